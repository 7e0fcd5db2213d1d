"""The fields and the form that every request body is read with.

A form refuses with `ValidationFailed`: a JSON Pointer of our own names, a code, a sentence. Nothing that was submitted, not
even the name of an unknown member, is repeated.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from marshmallow import RAISE, Schema, ValidationError, fields, validate

from schemas.errors import FieldProblem, ValidationFailed

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
    "too_long": "This value is longer than its limit.",
    "too_short": "This value cannot be empty.",
    "too_many": "There are more entries than the limit.",
    "out_of_range": "This number is out of range.",
    "not_allowed": "This is not one of the allowed values.",
    "unknown_member": "This object has a member that is not known here.",
    "malformed_json": "The body is not valid JSON.",
    "unknown_scan_run": "This scan run is not registered and there is no default project.",
    "unknown_target": "There is no such target.",
    "target_not_active": "This target is neither active nor paused.",
    "preview_not_safe": "The ticket's preview has problems; see preview.problems.",
    "not_supported": "This parameter is not supported.",
    "invalid_key": "Idempotency-Key must be 1 to 255 printable ASCII characters.",
}


class Text(fields.String):
    """A string of at most `max_length` characters and at least `min_length`, one of `allowed` where that is given."""

    default_error_messages = {"invalid": "invalid_type", "invalid_utf8": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(
        self, *, max_length: int = MAX_TEXT, min_length: int = 0, allowed: Iterable[str] | None = None, **options: Any
    ) -> None:
        checks: list[Any] = [validate.Length(max=max_length, error="too_long")]
        if min_length:
            checks.append(validate.Length(min=min_length, error="too_short"))
        if allowed is not None:
            checks.append(validate.OneOf(tuple(allowed), error="not_allowed"))
        super().__init__(validate=checks, **options)


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
    """An absolute http or https URL; this checks its form, `schemas.target_url` whether it is safe to dial."""

    default_error_messages = {"invalid": "invalid_url", "invalid_utf8": "invalid_type"}  # noqa: RUF012 - as marshmallow declares it

    def __init__(self, **options: Any) -> None:
        super().__init__(schemes={"http", "https"}, require_tld=False, **options)
        # Length first: what is too long is not worth a regular expression.
        self.validators = [_fits_an_index, *self.validators, _splits]

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("invalid_type")
        return value


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


def _fits_an_index(url: str) -> None:
    if len(url.encode()) > MAX_URL:
        raise ValidationError("too_long")


def _splits(url: str) -> None:
    """Refuse what the regular expression lets through and `urlsplit` does not: broken IPv6, hosts that NFKC takes apart."""
    try:
        urlsplit(url)
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
