"""JSON Schemas of request bodies: those of our own fields, and conditions that depend on several fields."""

from collections.abc import Mapping
from typing import Any, Final

from marshmallow import fields

from schemas.base.fields import NOT_BLANK
from schemas.intake.scanner import ISSUE_ALIASES

#: The form stores this member in the evidence, like every other unknown member.
_HELP_URL: Final = {
    "type": ["string", "null"],
    "description": "The scanner's page about the rule, http or https; `help_url` in the ticket's evidence. Also accepted as "
    "`helpUri`, `helpLink`, `docsUrl` or `documentationUrl`.",
}


def own_schema(_converter: Any, field: fields.Field[Any], ret: dict[str, Any]) -> dict[str, Any]:
    """Replace the JSON Schema `ret` that apispec made for a field by the field's own; apispec calls this for every field."""
    # Optional fields are absent from `required`, so they need no default; a default of null would be invalid.
    if ret.get("default", ...) is None:
        del ret["default"]
    own: dict[str, Any] | None = getattr(field, "json_schema", None)
    if own is None:
        return {}
    # For an array of objects, apispec's `items` refers to the form of the objects, so it is kept.
    kept = {"description", "default", "items"} if own.get("type") == "array" else {"description", "default"}
    for name in {*ret} - kept:
        del ret[name]
    return _or_null(own) if field.allow_none else own


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **values}


def with_aliases(issue: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an issue with the aliases of its members and its help page; one member must name the issue."""
    members = dict(issue["properties"])
    for name, aliases in ISSUE_ALIASES.items():
        # An integer is accepted too; its digits are the text.
        members[name] = {**members[name], "type": ["string", "integer", "null"]}
        for alias in aliases:
            members[alias] = {**members[name], "description": f"The same as `{name}`."}
    members["helpUrl"] = dict(_HELP_URL)
    naming = [alias for name in ("code", "title") for alias in (name, *ISSUE_ALIASES[name])]
    text = {"type": ["string", "integer"], "pattern": NOT_BLANK}
    return {**issue, "properties": members, **_one_of(dict.fromkeys(naming, text))}


def with_mailboxes(email: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an email in Postmark's format with the fields that contain its sender and its recipients."""
    header: dict[str, Any] = {"type": "string"}
    parsed: dict[str, Any] = {"type": "object", "required": ["Email"], "properties": {"Email": {"type": "string"}}}
    several: dict[str, Any] = {"type": "array", "minItems": 1}
    senders = {"From": header, "FromFull": parsed}
    headers = dict.fromkeys(("To", "Cc", "Bcc", "OriginalRecipient"), header)
    recipients = {**headers, **dict.fromkeys(("ToFull", "CcFull", "BccFull"), several)}
    return {**email, "allOf": [_one_of(senders), _one_of(recipients)]}


def require_a_part(edit: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an edit, which must contain at least one part of the ticket."""
    return {**edit, "anyOf": [{"required": [name]} for name in edit["properties"] if name != "ticket_digest"]}


def with_target_or_targets(approval: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an approval, which must contain either one target or several."""
    target_ids = {**approval["properties"]["target_ids"], "uniqueItems": True}
    named = [{"required": ["target_id"]}, {"required": ["target_ids"]}]
    return {**approval, "properties": {**approval["properties"], "target_ids": target_ids}, "oneOf": named}


def _one_of(members: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"anyOf": [{"required": [name], "properties": {name: dict(schema)}} for name, schema in members.items()]}
