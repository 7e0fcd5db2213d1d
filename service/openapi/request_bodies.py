"""The JSON Schema of request bodies: what our own field classes add to apispec's conversion of marshmallow fields."""

from collections.abc import Mapping
from typing import Any, Final

from marshmallow import fields

from schemas.base.fields import MAX_ID, MAX_TEXT, MAX_URL, AnyObject, Array, Text, Timestamp, WebUrl
from schemas.compliance import requests as compliance_requests
from schemas.exports import record
from schemas.intake import diagnostics, email_forms
from schemas.intake.diagnostics import MAX_SYMPTOM, MAX_SYMPTOMS
from schemas.intake.email_forms import MAX_RECIPIENTS
from schemas.intake.scanner import ISSUE_ALIASES, SEVERITY_SYNONYMS
from schemas.triage.export_filter import OneOrMore, ProjectIdValues

#: A character that is not white space; unlike in JavaScript's patterns, some control characters count as white space.
_NOT_BLANK: Final = r"[^\s\u001c-\u001f\u0085]"
_LINE_ENDS: Final = r"\n\v\f\r\u001c-\u001e\u0085\u2028\u2029"
_ONE_LINE: Final = rf"^[^{_LINE_ENDS}]*{_NOT_BLANK}[^{_LINE_ENDS}]*$"
_URL: Final = {"type": "string", "format": "uri", "maxLength": MAX_URL, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"}
_IDENTIFIER: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_ID},
        {"type": "string", "maxLength": compliance_requests.MAX_IDENTIFIER, "pattern": _NOT_BLANK},
    ]
}
_HEADER: Final = {"type": "string", "maxLength": MAX_TEXT}
_SYMPTOMS: Final = {
    "anyOf": [
        {"type": "array", "maxItems": MAX_SYMPTOMS, "items": {"type": "string", "maxLength": MAX_SYMPTOM}},
        {"type": "string", "maxLength": MAX_TEXT},
    ]
}
#: The form keeps it among the evidence, with every other unknown member.
_HELP_URL: Final = {
    "type": ["string", "null"],
    "description": "The scanner's page about the rule, http or https; `help_url` in the ticket's evidence. Also accepted as "
    "`helpUri`, `helpLink`, `docsUrl` or `documentationUrl`.",
}


def own_schema(_converter: Any, field: fields.Field[Any], ret: dict[str, Any]) -> dict[str, Any]:
    """Return the additions to the JSON Schema `ret` that apispec made for a field; an attribute function of apispec."""
    # A field that is not required is omitted from `required`; a default of null would be invalid.
    if ret.get("default", ...) is None:
        del ret["default"]
    schema = _own_class_schema(field)
    if "enum" in {*ret, *schema}:
        ret.pop("maxLength", None)
    if not field.allow_none:
        return _without_type(schema, ret)
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return _without_type({**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]} if "anyOf" in schema else schema, ret)


def _without_type(schema: dict[str, Any], ret: dict[str, Any]) -> dict[str, Any]:
    """Return `schema`; if it has alternatives, drop the type that apispec derived from the field."""
    if "anyOf" in schema:
        ret.pop("type", None)
        ret.pop("items", None)
    return schema


def _own_class_schema(field: fields.Field[Any]) -> dict[str, Any]:
    """Return what the class of a field adds to its schema, if it is one of ours."""
    if isinstance(field, email_forms.Mailboxes):
        several = {"type": "array", "maxItems": MAX_RECIPIENTS, "items": _HEADER}
        return {"anyOf": [_HEADER, several]} if field.may_be_array else dict(_HEADER)
    for kind, schema in _KINDS.items():
        if isinstance(field, kind):
            return dict(schema)
    if isinstance(field, OneOrMore):
        return _text_or_several(field)
    if isinstance(field, Array):
        counted = {"minItems": field.at_least, "maxItems": field.at_most}
        return {name: count for name, count in counted.items() if count}
    if isinstance(field, Text) and field.min_length:
        return {"minLength": field.min_length, "pattern": _NOT_BLANK}
    return {}


def _text_or_several(field: OneOrMore) -> dict[str, Any]:
    value: dict[str, Any] = {"type": ["integer", "string"] if isinstance(field, ProjectIdValues) else "string"}
    if field.allowed:
        value["enum"] = [str(each) for each in field.allowed]
    several = {"type": "array", "minItems": 1, "items": value}
    return {"anyOf": [{"type": "string", "description": "One value, or several separated by commas."}, several]}


#: Fields whose kind says everything, the narrower ones first.
_KINDS: Final[Mapping[type[fields.Field[Any]], Mapping[str, Any]]] = {
    WebUrl: _URL,
    Timestamp: {"type": "string", "format": "date-time"},
    AnyObject: {"type": "object"},
    record.Title: {"minLength": 1, "pattern": _ONE_LINE},
    record.Severity: {"enum": sorted(SEVERITY_SYNONYMS)},
    diagnostics.ShopDomain: {"type": "string", "format": "idn-hostname"},
    diagnostics.Symptoms: _SYMPTOMS,
    compliance_requests.Identifier: _IDENTIFIER,
    email_forms.AnyText: {"type": "string"},
}


def with_aliases(issue: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an issue with the other names of its members, one of which has to name it, and its help page."""
    members = dict(issue["properties"])
    for name, aliases in ISSUE_ALIASES.items():
        # A number is taken as its digits.
        members[name] = {**members[name], "type": ["string", "integer", "null"]}
        for alias in aliases:
            members[alias] = {**members[name], "description": f"The same as `{name}`."}
    members["helpUrl"] = dict(_HELP_URL)
    naming = [alias for name in ("code", "title") for alias in (name, *ISSUE_ALIASES[name])]
    said = {"type": ["string", "integer"], "pattern": _NOT_BLANK}
    return {**issue, "properties": members, **_one_of(dict.fromkeys(naming, said))}


def with_mailboxes(email: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an email in Postmark's format with the fields that name its sender and its recipients."""
    header: dict[str, Any] = {"type": "string"}
    parsed: dict[str, Any] = {"type": "object", "required": ["Email"], "properties": {"Email": {"type": "string"}}}
    several: dict[str, Any] = {"type": "array", "minItems": 1}
    senders = {"From": header, "FromFull": parsed}
    headers = dict.fromkeys(("To", "Cc", "Bcc", "OriginalRecipient"), header)
    recipients = {**headers, **dict.fromkeys(("ToFull", "CcFull", "BccFull"), several)}
    return {**email, "allOf": [_one_of(senders), _one_of(recipients)]}


def with_a_part(edit: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an edit, which names at least one part of the ticket."""
    return {**edit, "anyOf": [{"required": [name]} for name in edit["properties"] if name != "ticket_digest"]}


def with_target_or_targets(approval: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an approval, which names one target or several."""
    target_ids = {**approval["properties"]["target_ids"], "uniqueItems": True}
    named = [{"required": ["target_id"]}, {"required": ["target_ids"]}]
    return {**approval, "properties": {**approval["properties"], "target_ids": target_ids}, "oneOf": named}


def _one_of(members: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"anyOf": [{"required": [name], "properties": {name: dict(schema)}} for name, schema in members.items()]}
