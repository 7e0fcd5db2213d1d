"""The fields and the form that every request body is read with.

A form refuses with `ValidationFailed`: a JSON Pointer of our own names, a code, a sentence. Nothing that was submitted, not
even the name of an unknown member, is repeated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

from marshmallow import EXCLUDE, RAISE, Schema, ValidationError, fields, validate

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.timestamps import moment_from

#: Long enough for a selected passage or a stack of headers, short enough to keep a row small.
MAX_TEXT: Final = 20_000
#: What browsers and proxies agree to carry, in bytes of UTF-8; an index entry of PostgreSQL holds no more than 2.7 KB.
MAX_URL: Final = 2048
#: The largest integer that both databases hold.
MAX_ID: Final = 2**63 - 1

MESSAGES: Final[Mapping[str, str]] = {
    "required": "This member is required.",
    "null": "This member cannot be null.",
    "invalid_type": "This value has the wrong type.",
    "invalid_url": "Not a valid URL.",
    "invalid_timestamp": "Not an RFC 3339 timestamp with a time zone.",
    "invalid_shop_domain": "Not a valid shop domain.",
    "other_shop": "This project belongs to another shop.",
    "not_the_headers_shop": "This shop is not the one that the header names.",
    "other_topic": "This member belongs to another topic than the header names.",
    "report_not_in_project": "This report does not belong to the project.",
    "too_long": "This value is longer than its limit.",
    "too_short": "This value cannot be empty.",
    "not_one_line": "This value must be one line.",
    "too_many": "There are more entries than the limit.",
    "out_of_range": "This number is out of range.",
    "not_allowed": "This is not one of the allowed values.",
    "unknown_member": "This object has a member that is not known here.",
    "malformed_json": "The body is not valid JSON.",
    "malformed_form": "The form cannot be read: its fields are text in UTF-8, each there once.",
    "unknown_scan_run": "This scan run is not registered and there is no default project.",
    "unknown_project": "There is no such project.",
    "no_project": "No recipient names a project and there is no default project.",
    "invalid_address": "There is no email address in this value.",
    "unknown_target": "There is no such target.",
    "target_not_active": "This target is neither active nor paused.",
    "preview_not_safe": "The ticket's preview has problems; see preview.problems.",
    "not_supported": "This parameter is not supported.",
    "invalid_cursor": "This is not a cursor of this list; take next_cursor as it came.",
    "invalid_since": "Not an RFC 3339 timestamp, a date, or how long ago, such as 7d, 12h or 30m.",
    "still_to_come": "This moment is still to come.",
    "secret_unfit": "A secret is one line of printable characters, 4096 at most.",
    "secret_too_short": "A secret has 8 bytes or more; `openssl rand -hex 32` makes one. Nothing was changed.",
    "invalid_key": "Idempotency-Key must be 1 to 255 printable ASCII characters.",
}


class Text(fields.String):
    """A string of at most `max_length` characters, one of `allowed` where that is given.

    `min_length` characters of it are no white space at its ends: a name of spaces names nothing.
    """

    default_error_messages = {"invalid": "invalid_type", "invalid_utf8": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(
        self, *, max_length: int = MAX_TEXT, min_length: int = 0, allowed: Iterable[str] | None = None, **options: Any
    ) -> None:
        checks: list[Any] = [validate.Length(max=max_length, error="too_long")]
        if min_length:
            checks.append(_at_least(min_length))
        if allowed is not None:
            checks.append(validate.OneOf(tuple(allowed), error="not_allowed"))
        super().__init__(validate=checks, **options)
        self.min_length = min_length
        self._max_length = max_length
        self._is_plain = type(self) is Text and len(checks) == 1 and not (self.pre_load or self.post_load)

    def deserialize(self, value: Any, attr: str | None = None, data: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """Read a value; a plain text within its limit needs none of the machinery: 1 ms less a hundred issues."""
        if type(value) is str and self._is_plain and len(value) <= self._max_length:
            return value
        return super().deserialize(value, attr, data, **kwargs)


class WholeNumber(fields.Integer):
    """A JSON integer; neither 1.7, nor "1", nor true."""

    default_error_messages = {"invalid": "invalid_type", "too_large": "out_of_range"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(self, *, minimum: int = 0, maximum: int = MAX_ID, **options: Any) -> None:
        super().__init__(validate=validate.Range(min=minimum, max=maximum, error="out_of_range"), **options)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> int:
        if type(value) is not int:
            raise self.make_error("invalid")
        return value


class WebUrl(fields.Url):
    """An absolute http or https URL; this checks its form, `schemas.url_policy.target_url` whether it is safe to dial."""

    default_error_messages = {"invalid": "invalid_url", "invalid_utf8": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(self, **options: Any) -> None:
        super().__init__(schemes={"http", "https"}, require_tld=False, **options)
        # Length first: what is too long is not worth a regular expression.
        self.validators = [_fits_an_index, *self.validators, _splits]

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("invalid_type")
        return value


class Moment(fields.Field[datetime]):
    """An RFC 3339 timestamp with a time zone."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> datetime:
        if not isinstance(value, str):
            raise ValidationError("invalid_type")
        moment = moment_from(value)
        if moment is None:
            raise ValidationError("invalid_timestamp")
        return moment


class Several(fields.List[Any]):
    """An array, counted before any entry is looked at: a problem for each of a million entries would be a large answer."""

    def __init__(self, entry: fields.Field[Any], *, at_most: int, at_least: int = 0, **options: Any) -> None:
        super().__init__(entry, **options)
        self.at_most = at_most
        self.at_least = at_least

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> list[Any]:
        if isinstance(value, list) and len(value) > self.at_most:
            raise ValidationError("too_many")
        if isinstance(value, list) and len(value) < self.at_least:
            raise ValidationError("too_short")
        return super()._deserialize(value, attr, data, **kwargs)


class AnyObject(fields.Field[dict[str, Any]]):
    """A JSON object of the sender's own members, kept as it is."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError("invalid_type")
        return value


class Form(Schema):
    """A request body; `read` turns it into the value its `post_load` makes."""

    error_messages = {"unknown": "unknown_member", "type": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    class Meta:
        unknown = RAISE

    def read(self, value: Any) -> Any:
        """Return what the form makes of `value`. Raises ValidationFailed with every problem."""
        try:
            return self.load(value)
        except ValidationError as refused:
            raise ValidationFailed(*_problems(_normalized(refused))) from None

    def member_names(self) -> frozenset[str]:
        """Return every name this form knows at any depth: what a path may be made of."""
        return frozenset(_names(self))

    def on_bind_field(self, field_name: str, field_obj: fields.Field[Any]) -> None:
        """Give every field the codes of this project instead of sentences."""
        field_obj.error_messages = {
            **field_obj.error_messages,
            "required": "required",
            "null": "null",
            "validator_failed": "not_allowed",
        }
        if isinstance(field_obj, fields.List | fields.Nested | fields.Boolean):
            field_obj.error_messages = {**field_obj.error_messages, "invalid": "invalid_type", "type": "invalid_type"}
        if isinstance(field_obj, fields.List):
            # marshmallow binds the entries' field to the list and tells nobody.
            self.on_bind_field(field_name, field_obj.inner)


class LenientForm(Form):
    """A form that ignores unknown fields."""

    class Meta:
        unknown = EXCLUDE


class NoMembers(Form):
    """The body of a POST that says everything in its path: none, or an empty object."""


def _at_least(min_length: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if len(text.strip()) < min_length:
            raise ValidationError("too_short")

    return check


def _names(form: Schema) -> Iterator[str]:
    for name, declared in form.fields.items():
        yield declared.data_key or name
        inner = declared.inner if isinstance(declared, fields.List) else declared
        if isinstance(inner, fields.Nested):
            yield from _names(inner.schema)


def _fits_an_index(url: str) -> None:
    if len(url.encode()) > MAX_URL:
        raise ValidationError("too_long")


def _splits(url: str) -> None:
    """Refuse what the regular expression lets through: broken IPv6, hosts that NFKC takes apart, ports that cannot be."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ValidationError("invalid_url") from None


def problem(path: str, code: str) -> FieldProblem:
    """Return the refusal of the member at `path` (a JSON Pointer) for the reason `code`."""
    return FieldProblem(path, code, MESSAGES.get(code, "This value is refused."))


def _normalized(refused: ValidationError) -> Mapping[Any, Any]:
    messages: Mapping[Any, Any] = refused.normalized_messages()  # type: ignore[no-untyped-call]  # marshmallow left it out
    return messages


def _problems(messages: Mapping[Any, Any]) -> tuple[FieldProblem, ...]:
    return tuple(dict.fromkeys(_walk(messages, "")))


def _walk(messages: Mapping[Any, Any], parent: str) -> Iterator[FieldProblem]:
    """Yield a problem for each code; an unknown member is told on its parent, since its name is the sender's text."""
    for name, told in messages.items():
        path = parent if name == "_schema" else f"{parent}/{name}"
        if isinstance(told, Mapping):
            yield from _walk(told, path)
            continue
        for code in cast("list[str]", told):
            yield problem(parent if code == "unknown_member" else path, code)
