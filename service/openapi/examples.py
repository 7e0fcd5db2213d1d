"""Generates examples of responses from their schemas: each field has its own example, or one that follows from its type."""

import re
from typing import Any, Final

from marshmallow import Schema, fields, validate

from schemas.api.response_fields import DIGEST, EXAMPLE, FINGERPRINT, SHA256, TimestampText

#: The time in all examples.
AT: Final = "2026-03-01T12:00:00.000Z"
_ULID: Final = "01KJM8AV0G3T0M3Q9V6W2Y5Z7A"
_HASH: Final = "5b1f0c8a4d2e6f7091a3b5c7d9e1f30214365870a1b2c3d4e5f60718293a4b5c"
_BY_PATTERN: Final = {DIGEST: f"sha256:{_HASH}", FINGERPRINT: "fp:1f3a5c7e9b0d", SHA256: _HASH}
_PREFIX: Final = re.compile(r"\^([a-z]{3})_")


def example_id(prefix: str) -> str:
    """Return an example id with the prefix `prefix`."""
    return f"{prefix}_{_ULID}"


def example_of(schema: type[Schema], /, **members: Any) -> dict[str, Any]:
    """Return an example of a record with the required fields; `members` are added or replace them."""
    made = {field.data_key or name: _example(field) for name, field in schema().fields.items() if field.required}
    return made | members


def _example(field: fields.Field[Any]) -> Any:
    if EXAMPLE in field.metadata:
        return field.metadata[EXAMPLE]
    if field.allow_none:
        return None
    match field:
        case fields.Nested():
            return example_of(type(field.schema))
        case fields.List():
            return [_example(field.inner)]
        case fields.Dict():
            return {}
        case fields.Boolean():
            return True
        case TimestampText():
            return AT
        case _:
            return _valid_value(field)


def _valid_value(field: fields.Field[Any]) -> Any:
    """Return a value that the validators of a number or text field accept."""
    for check in field.validators:
        if isinstance(check, validate.Range):
            return check.min
        if isinstance(check, validate.OneOf):
            return next(iter(check.choices))
    pattern = field.metadata["pattern"]
    prefix = _PREFIX.match(pattern)
    return example_id(prefix[1]) if prefix else _BY_PATTERN[pattern]
