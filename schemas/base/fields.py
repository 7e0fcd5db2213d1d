"""The fields and the form that read every request body.

`json_schema` of a field describes the values that it accepts, as far as JSON Schema can.

A form raises ValidationFailed: for each problem a JSON Pointer of documented names, a code and a sentence. Submitted values
are never repeated; the name of an unknown field is repeated only if it is an ordinary identifier and the caller allows it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from heapq import nsmallest
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

from marshmallow import EXCLUDE, RAISE, Schema, ValidationError, fields, post_load, validate, validates_schema

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.timestamps import parse_rfc3339

#: Long enough for a selected passage or a stack of headers, short enough to keep a row small.
MAX_TEXT: Final = 20_000
#: Bytes of UTF-8 in a URL: browsers and proxies support this length, and an index entry of PostgreSQL holds at most 2.7 KB.
MAX_URL: Final = 2048
#: Maximum number of members in an object of a closed form, which declares far fewer. Reporting 90,000 unknown members took a
#: third of a second.
MAX_MEMBERS: Final = 100
#: The largest integer that both databases hold.
MAX_ID: Final = 2**63 - 1

#: A character that is not white space; unlike in JavaScript's patterns, some control characters count as white space.
NOT_BLANK: Final = r"[^\s\u001c-\u001f\u0085]"
_LINE_ENDS: Final = r"\n\v\f\r\u001c-\u001e\u0085\u2028\u2029"
_ONE_LINE: Final = rf"^[^{_LINE_ENDS}]*{NOT_BLANK}[^{_LINE_ENDS}]*$"

#: The form of unknown fields' names that a message may repeat, and the maximum number of such names per object.
_NAMEABLE: Final = re.compile(r"[A-Za-z0-9_]{1,40}")
_MAX_NAMED: Final = 5

#: Words that tools write instead of a password; they also write stars.
_MASKED: Final = frozenset({"redacted", "masked", "hidden", "removed"})
#: The scheme and authority of a URL.
_AUTHORITY: Final = re.compile(r"\A[^:/]*+://[^/?#]*+")

Value = TypeVar("Value")

#: Whether a message may repeat the name of an unknown field.
MayName: TypeAlias = Callable[[str], bool]

#: The message of each code, as clients read it; `docs/error-codes.md` is generated from it.
MESSAGES: Final[Mapping[str, str]] = {
    "required": "This field is required.",
    "null": "This field cannot be null.",
    "invalid_type": "This value has the wrong JSON type.",
    "invalid_url": "Not a valid URL.",
    "url_credentials": "Contains a URL with a password, token or key; remove it from the URL.",
    "invalid_timestamp": "Not an RFC 3339 timestamp with a time zone.",
    "invalid_shop_domain": "Not a valid shop domain.",
    "other_shop": "This project belongs to another shop.",
    "not_the_headers_shop": "This shop differs from the shop in the X-Platform-Shop-Domain header.",
    "body_of_other_topic": "This body was accepted under another topic; send each webhook under its own topic.",
    "other_topic": "This field does not belong to the topic in the X-Platform-Topic header.",
    "report_not_in_project": "This report does not belong to the project.",
    "too_long": "This value exceeds its maximum length.",
    "too_short": "This value is empty or has too few entries.",
    "not_one_line": "This value must be a single line.",
    "no_word": "A search needs a letter or a digit; other characters separate its words.",
    "too_many": "This list or object exceeds its maximum number of entries.",
    "out_of_range": "This number is out of range.",
    "not_allowed": "This value is not one of the allowed values.",
    "unknown_member": "Unknown field.",
    "malformed_json": "The request body is not valid JSON.",
    "malformed_form": "The form cannot be read: each field must be UTF-8 text and appear once.",
    "unknown_scan_run": "This scan run is not registered, and no DEFAULT_PROJECT_ID is set.",
    "unknown_project": "No project has this id.",
    "unknown_account": "No account has this id.",
    "unknown_user": "No user has this id.",
    "unknown_report": "No report has this id.",
    "admin_only": "Only a token with the ability admin may use this.",
    "invalid_email": "Not an email address; use the form ada@example.com.",
    "project_or_report": "Send either project_id or report_id, not both; a role needs project_id.",
    "no_project": "No recipient address names a project, and no DEFAULT_PROJECT_ID is set.",
    "invalid_address": "This value contains no email address.",
    "credential_in_query": (
        "A parameter of this URL is named like a credential, such as token or key; URLs are shown and logged. Remove it: "
        "deliveries are signed with the target's secret, which `secret set target` sets and the receiver verifies."
    ),
    "webhooks_only": "Only targets of the provider generic_webhook have this; trackers are sent no webhooks.",
    "secret_needed": (
        "No secret signs for this target; set one with `secret set target ID`, or set the signature to standard-webhooks."
    ),
    "standard_secret_needed": (
        "This target has no Standard Webhooks secret; set it first with `secret set target ID --standard-webhooks`."
    ),
    "invalid_standard_secret": "A Standard Webhooks secret is `whsec_` and the base64 of 24 to 64 random bytes.",
    "invalid_header_name": "A header name has 1 to 64 letters, digits or characters of !#$%&'*+-.^_`|~.",
    "header_reserved": (
        "RiskRelay or HTTP itself sets this header: Host, Content-*, User-Agent, X-Service-*, X-Request-Id, "
        "Idempotency-Key, webhook-*, ce-*, and those of the connection. Choose another name."
    ),
    "invalid_header_value": "A header value is one line of 1 to 4096 printable ASCII characters without spaces at its ends.",
    "too_many_headers": "A target has at most 4 headers; remove one first.",
    "unknown_header": "The target has no header of this name.",
    "no_tracker_page": "This URL is not a page of the tracker; the message names the page to enter.",
    "unknown_target": "No target has this id.",
    "target_not_active": "This target is not active; the message names its status and the fix.",
    "target_unavailable": "The last validation of this target failed; the message names the reason and the fix.",
    "empty_match": (
        "An empty match would match every export; name one of project_id, severity_at_least, sources, rule, page_path."
    ),
    "not_a_key": "Not a key: capital letters, digits and underscores, beginning with a letter, such as SHOP.",
    "not_a_path": "A pattern for a path begins with /, * or ?.",
    "preview_not_safe": "The ticket's preview has problems; preview.problems lists them.",
    "target_removed": "The target of this export was removed; choose another target with target_id.",
    "no_members": "This object has no member to change.",
    "not_supported": "This parameter is not supported.",
    "ticket_changed": "The ticket changed meanwhile. Compare your text with it as it is now; saving replaces the ticket.",
    "rule_changed": "The rule changed meanwhile. Compare your entries with it as it is now; saving replaces the rule.",
    "invalid_cursor": "This cursor does not belong to this list; use next_cursor unchanged.",
    "invalid_since": "Not an RFC 3339 timestamp, a date or an age such as 7d, 12h or 30m.",
    "in_the_future": "This time is in the future.",
    "in_the_past": "This time is in the past.",
    "after_own_expiry": "A token cannot create one that expires later than itself.",
    "not_both": "Use either target_id or target_ids, not both.",
    "invalid_secret": "A secret must be one line of at most 4096 printable characters.",
    "secret_too_short": "A secret must have at least 8 bytes; `openssl rand -hex 32` prints one. Nothing was changed.",
    "not_of_this_action": (
        "This field belongs to another action: target_id to approve, reason and note to dismiss, labels to label."
    ),
    "ids_or_filter": "Send either ids, or filter and expected_count.",
    "too_many_matches": "The filter matches more exports than one job decides on; narrow it and send several requests.",
    "repeated": "This id is in the list already.",
    "changed": "This export changed after the bulk job had been created; the job leaves it as it is.",
    "limit_reached": "The account may not store more; the message names the setting that limits it.",
    "invalid_key": "Idempotency-Key must be 1 to 255 printable ASCII characters.",
}


def described(description: str, **more: Any) -> dict[str, Any]:
    """Return the options of a field that may be absent. An absent field is not in the result unless `more` has a default."""
    return {"metadata": {"description": description}, **more}


def required(description: str) -> dict[str, Any]:
    """Return the options of a field that every body must have."""
    return described(description, required=True)


def optional(description: str) -> dict[str, Any]:
    """Return the options of a field that may be absent or null; both are read as None."""
    return described(description, load_default=None)


def typed(value: Any, kind: type[Value]) -> Value:
    """Return a value of this type. Raises ValidationError for any other."""
    if not isinstance(value, kind):
        raise ValidationError("invalid_type")
    return value


class Text(fields.String):
    """A string of at most `max_length` characters, and one of `allowed` if that is given.

    It has at least `min_length` characters without white space at its ends, so a name of spaces is invalid.
    """

    default_error_messages = {"invalid": "invalid_type", "invalid_utf8": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(
        self, *, max_length: int = MAX_TEXT, min_length: int = 0, allowed: Iterable[str] | None = None, **options: Any
    ) -> None:
        checks: list[Any] = [validate.Length(max=max_length, error=f"too_long: {max_length} characters")]
        if min_length:
            checks.append(_at_least(min_length))
        self.allowed = tuple(allowed or ())
        if allowed is not None:
            checks.append(validate.OneOf(self.allowed, error=f"not_allowed: {', '.join(self.allowed)}"))
        super().__init__(validate=checks, **options)
        self.min_length = min_length
        self.max_length = max_length
        self._is_plain = type(self) is Text and len(checks) == 1 and not (self.pre_load or self.post_load)

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values."""
        if self.allowed:
            return {"type": "string", "enum": [str(each) for each in self.allowed]}
        not_blank = {"minLength": self.min_length, "pattern": NOT_BLANK} if self.min_length else {}
        return {"type": "string", "maxLength": self.max_length, **not_blank}

    def deserialize(self, value: Any, attr: str | None = None, data: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """Read a value; a plain text within its limit skips marshmallow's checks, which saves 1 ms per hundred issues."""
        if type(value) is str and self._is_plain and len(value) <= self.max_length:
            return value
        return super().deserialize(value, attr, data, **kwargs)


class Line(Text):
    """One line that is not blank."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values."""
        return {**super().json_schema, "minLength": 1, "pattern": _ONE_LINE}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        line: str = super()._deserialize(value, attr, data, **kwargs)
        if line.splitlines() not in ([line], []):
            raise ValidationError("not_one_line")
        if not line.strip():
            raise ValidationError("too_short")
        return line


class Integer(fields.Integer):
    """A JSON integer; neither 1.7, nor "1", nor true."""

    def __init__(self, *, minimum: int = 0, maximum: int = MAX_ID, **options: Any) -> None:
        limits = validate.Range(min=minimum, max=maximum, error=f"out_of_range: {minimum} to {maximum}")
        super().__init__(validate=limits, **options)
        self.json_schema = {"type": "integer", "minimum": minimum, "maximum": maximum}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> int:
        if type(value) is not int:
            raise ValidationError("invalid_type")
        return value


class Boolean(fields.Boolean):
    """A JSON true or false; neither 1 nor "yes"."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> bool:
        return typed(value, bool)


class WebUrl(fields.Url):
    """An absolute http or https URL. Only its form is checked; `schemas.url_policy.target_url` checks targets further."""

    json_schema: Final = {"type": "string", "format": "uri", "maxLength": MAX_URL, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"}
    default_error_messages = {"invalid": "invalid_url", "invalid_utf8": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(self, **options: Any) -> None:
        super().__init__(schemes={"http", "https"}, require_tld=False, **options)
        # Length first: a regular expression on a long text costs more.
        self.validators = [_fits_an_index, *self.validators, _splits]

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        return typed(value, str)


class PageUrl(WebUrl):
    """The URL of a page. Its host may have underscores, as in RFC 3986 and in browsers; a password must be masked."""

    def _validate(self, value: str) -> None:
        # marshmallow's regular expression refuses hosts with underscores.
        super()._validate(_AUTHORITY.sub(lambda host: host[0].replace("_", "x"), value, count=1) if "_" in value else value)
        # The content policy accepts words such as `admin` as placeholders, but here they are passwords.
        password = urlsplit(value).password or ""
        if any(map(str.isalnum, password)) and password.lower() not in _MASKED:
            raise ValidationError("url_credentials")


class Timestamp(fields.Field[datetime]):
    """An RFC 3339 timestamp with a time zone."""

    json_schema: Final = {"type": "string", "format": "date-time"}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> datetime:
        moment = parse_rfc3339(typed(value, str))
        if moment is None:
            raise ValidationError("invalid_timestamp")
        return moment


class Array(fields.List[Any]):
    """An array of values or of objects with a form.

    Its length is checked before its entries: one problem for each of a million entries would be a large response.
    """

    def __init__(self, entry: fields.Field[Any] | type[Schema], *, at_most: int, at_least: int = 0, **options: Any) -> None:
        super().__init__(fields.Nested(entry) if isinstance(entry, type) else entry, **options)
        self.at_most = at_most
        self.at_least = at_least

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted arrays; the form of an object is described separately."""
        entry: Any = self.inner
        items = {} if isinstance(entry, fields.Nested) else {"items": entry.json_schema}
        at_least = {"minItems": self.at_least} if self.at_least else {}
        return {"type": "array", **items, **at_least, "maxItems": self.at_most}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> list[Any]:
        if isinstance(value, list) and len(value) > self.at_most:
            raise ValidationError(f"too_many: {self.at_most}")
        if isinstance(value, list) and len(value) < self.at_least:
            raise ValidationError("too_short")
        return super()._deserialize(value, attr, data, **kwargs)


class AnyObject(fields.Field[dict[str, Any]]):
    """A JSON object with any fields, unchanged."""

    json_schema: Final = {"type": "object"}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
        return typed(value, dict)


class Form(Schema):
    """A request body; `read` returns the value that its `post_load` builds."""

    error_messages = {"unknown": "unknown_member", "type": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    class Meta:
        unknown = RAISE

    def load(self, data: Any, **options: Any) -> Any:
        """Read an object; a closed form refuses more than MAX_MEMBERS members, instead of reporting each unknown one."""
        if self.unknown == RAISE and isinstance(data, dict) and len(data) > MAX_MEMBERS:
            raise ValidationError("too_many")
        return super().load(data, **options)

    def read(self, value: Any, may_name: MayName = lambda _: False) -> Any:
        """Return the value built from `value`. Raises ValidationFailed with every problem."""
        return self.read_reduced(self.reduced(value), may_name)

    def reduced(self, value: Any, _checkpoint: Checkpoint = no_checkpoint) -> Any:
        """Return `value` with its long parts reduced to the parts that are read; most forms read everything."""
        return value

    def read_reduced(self, value: Any, may_name: MayName = lambda _: False) -> Any:
        """Return the value built from a reduced one. Raises ValidationFailed with every problem."""
        try:
            return self.load(value)
        except ValidationError as refused:
            messages = refused.normalized_messages()  # type: ignore[no-untyped-call]  # marshmallow left it out
            problems = dict.fromkeys(_walk(messages, "", may_name))
            raise ValidationFailed(*problems) from None

    def member_names(self) -> frozenset[str]:
        """Return every member name of this form at any depth; the paths of problems consist of these names."""
        return _names_of(type(self))

    def on_bind_field(self, field_name: str, field_obj: fields.Field[Any]) -> None:
        """Replace marshmallow's error messages with our codes."""
        field_obj.error_messages = {
            **field_obj.error_messages,
            "required": "required",
            "null": "null",
            "validator_failed": "not_allowed",
        }
        if isinstance(field_obj, fields.List | fields.Nested | fields.Boolean):
            field_obj.error_messages = {**field_obj.error_messages, "invalid": "invalid_type", "type": "invalid_type"}
        if isinstance(field_obj, fields.List):
            # marshmallow does not call this hook for the field of a list's entries.
            self.on_bind_field(field_name, field_obj.inner)


class RecordForm(Form):
    """A form whose value is built by calling `makes` with its members."""

    makes: ClassVar[Callable[..., Any]]

    @post_load
    def _make(self, members: dict[str, Any], **_: Any) -> Any:
        return type(self).makes(**members)


class ChangeForm(Form):
    """A form for changes: its value has only the members that were sent, at least one."""

    @validates_schema
    def _require_members(self, changes: Mapping[str, Any], **_: Any) -> None:
        if not changes:
            raise ValidationError("no_members")


class LenientForm(Form):
    """A form that ignores unknown fields."""

    class Meta:
        unknown = EXCLUDE


class NoMembers(Form):
    """The body of a POST that needs none: empty, or an empty object."""


@cache
def _page_url() -> PageUrl:
    return PageUrl()


def is_page_url(text: str) -> bool:
    """Return whether a PageUrl accepts a text."""
    try:
        _page_url().deserialize(text)
    except ValidationError:
        return False
    return True


def problem(path: str, code: str, limit: str = "") -> FieldProblem:
    """Return the problem of the field at `path` (a JSON Pointer) with the message of `code`, and the `limit` if given."""
    message = MESSAGES.get(code, "This value is refused.")
    return FieldProblem(path, code, f"{message.removesuffix('.')}: {limit}." if limit else message)


def _at_least(min_length: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if len(text.strip()) < min_length:
            raise ValidationError("too_short")

    return check


@cache
def _names_of(form: type[Form]) -> frozenset[str]:
    return frozenset(_names(form()))


def _names(form: Schema) -> Iterator[str]:
    for name, declared in form.fields.items():
        yield declared.data_key or name
        inner = declared.inner if isinstance(declared, fields.List) else declared
        if isinstance(inner, fields.Nested):
            yield from _names(inner.schema)


def _fits_an_index(url: str) -> None:
    if len(url.encode()) > MAX_URL:
        raise ValidationError(f"too_long: {MAX_URL} bytes")


def _splits(url: str) -> None:
    """Refuse malformed addresses, hosts that NFKC splits and invalid ports, which the regular expression accepts."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if host.rpartition(".")[2].isdecimal():
            IPv4Address(host)
        is_valid = parts.port != 0 and host.isprintable()
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValidationError("invalid_url")


def _walk(messages: Mapping[Any, Any], parent: str, may_name: MayName) -> Iterator[FieldProblem]:
    """Yield a problem for each code; all unknown fields of an object are one problem.

    The limit that a value exceeds, or the values that are allowed, follow a code after a colon.
    """
    unknown = [str(name) for name, codes in messages.items() if not isinstance(codes, Mapping) and "unknown_member" in codes]
    if unknown:
        yield _unknown_fields(parent, unknown, may_name)
    for name, codes in messages.items():
        path = parent if name == "_schema" else f"{parent}/{name}"
        if isinstance(codes, Mapping):
            yield from _walk(codes, path, may_name)
            continue
        for code, _, limit in (str(each).partition(": ") for each in codes):
            if code != "unknown_member":
                yield problem(path, code, limit)


def _unknown_fields(path: str, names: list[str], may_name: MayName) -> FieldProblem:
    # Sorted, because marshmallow reports them in no fixed order.
    ordinary = nsmallest(_MAX_NAMED, (name for name in names if _NAMEABLE.fullmatch(name)))
    named = [f"`{name}`" for name in ordinary if may_name(name)]
    if not named:
        return problem(path, "unknown_member")
    more = f" and {len(names) - len(named)} more" if len(names) > len(named) else ""
    return FieldProblem(path, "unknown_member", f"Unknown field{'s' if len(names) > 1 else ''}: {', '.join(named)}{more}")
