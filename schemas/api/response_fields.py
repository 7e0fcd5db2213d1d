"""The fields of response schemas, which document the API and dump the records of its responses.

Schemas are closed, and tests check real responses against them: an undocumented member fails a test, and so does a missing
one.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, TypedDict, Unpack

from marshmallow import RAISE, Schema, fields, missing, validate

from schemas.base.timestamps import format_rfc3339

#: 26 characters of a ULID.
ULID: Final = "[0-9A-HJKMNP-TV-Z]{26}"
#: RFC 3339 in UTC, with milliseconds.
MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"
DIGEST: Final = "^sha256:[0-9a-f]{64}$"
FINGERPRINT: Final = "^fp:[0-9a-f]{12}$"
SHA256: Final = "^[0-9a-f]{64}$"
#: The metadata key of a field's own example; a field without one gets an example that its type determines.
EXAMPLE: Final = "example_value"


class ResponseSchema(Schema):
    """A closed object in a response."""

    class Meta:
        unknown = RAISE


@cache
def _instance(schema: type[ResponseSchema]) -> ResponseSchema:
    return schema()


def dump(schema: type[ResponseSchema], record: Any) -> dict[str, Any]:
    """Return the JSON object of a record, as `schema` documents it."""
    dumped: dict[str, Any] = _instance(schema).dump(record)
    return dumped


class TimestampText(fields.String):
    """An instant, dumped as RFC 3339 in UTC with milliseconds."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        return None if value is None else format_rfc3339(value)


class Fixed(fields.String):
    """A string that is the same in every record."""

    def __init__(self, value: str, **options: Any) -> None:
        super().__init__(validate=validate.OneOf([value]), **options)
        self._value = value

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = None) -> Any:
        """Return the string, whatever the record is."""
        return self._value


class OptionalInteger(fields.Integer):
    """A number that is absent, not null, if the record has none."""

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = missing) -> Any:
        """Return the number, or nothing to dump."""
        value: Any = super().get_value(obj, attr, accessor, default)
        return missing if value is None else value


class Inline(fields.Nested):
    """An object whose members are attributes of the record itself; null if the attribute `present_if` is None."""

    def __init__(self, schema: type[Schema], present_if: str | None = None, **options: Any) -> None:
        super().__init__(schema, **options)
        self._present_if = present_if

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = None) -> Any:
        """Return the record: the nested schema picks the members."""
        return None if self._present_if is not None and getattr(obj, self._present_if) is None else obj


class FieldOptions(TypedDict, total=False):
    """Options of a field: whether it may be null or absent, the record's attribute if its name differs, and an example.

    `null` and `absent` say when it is; its description ends with them.
    """

    null: str
    absent: str
    nullable: bool
    optional: bool
    attribute: str
    example: Any


def _options(description: str, options: FieldOptions, **metadata: Any) -> dict[str, Any]:
    if options.get("example") is not None:
        metadata[EXAMPLE] = options["example"]
    may_be_null, may_be_absent = options.get("nullable", False), options.get("optional", False)
    if "null" in options:
        description, may_be_null = f"{description}; null {options['null']}.", True
    if "absent" in options:
        description, may_be_absent = f"{description}; absent {options['absent']}.", True
    metadata["description"] = description
    named = {"attribute": options["attribute"]} if "attribute" in options else {}
    return {"required": not may_be_absent, "allow_none": may_be_null, "metadata": metadata, **named}


def text(description: str, *, pattern: str | None = None, **options: Unpack[FieldOptions]) -> fields.String:
    """Return a field for a string that matches `pattern`."""
    more = {"pattern": pattern} if pattern else {}
    return fields.String(**_options(description, options, **more))


def identifier(prefix: str, description: str, **options: Unpack[FieldOptions]) -> fields.String:
    """Return a field for an id that begins with `prefix`."""
    return text(description, pattern=f"^{prefix}_{ULID}$", **options)


def one_of(choices: Iterable[str], description: str, **options: Unpack[FieldOptions]) -> fields.String:
    """Return a field for one of several strings."""
    names = [str(each) for each in choices]
    return fields.String(validate=validate.OneOf(names), **_options(description, options))


def constant(value: str, description: str) -> fields.String:
    """Return a field for a string that is the same in every record."""
    return Fixed(value, **_options(description, {}))


def moment(description: str, **options: Unpack[FieldOptions]) -> fields.String:
    """Return a field for an instant as `schemas.base.timestamps` formats it."""
    return TimestampText(**_options(description, options, format="date-time", pattern=MOMENT))


def number(description: str, *, minimum: int = 0, **options: Unpack[FieldOptions]) -> fields.Integer:
    """Return a field for a whole number."""
    made = _options(description, options)
    kind = fields.Integer if made["required"] else OptionalInteger
    return kind(validate=validate.Range(min=minimum), **made)


def truth(description: str, **options: Unpack[FieldOptions]) -> fields.Boolean:
    """Return a field for true or false."""
    return fields.Boolean(**_options(description, options))


def part(schema: type[Schema], description: str, **options: Unpack[FieldOptions]) -> fields.Nested:
    """Return a field for an object with its own schema."""
    return fields.Nested(schema, **_options(description, options))


def inline(schema: type[Schema], description: str, *, present_if: str | None = None) -> fields.Nested:
    """Return a field for an object whose members are attributes of the record itself."""
    return Inline(schema, present_if, **_options(description, {"nullable": present_if is not None}))


def several(entry: fields.Field[Any] | type[Schema], description: str, **options: Unpack[FieldOptions]) -> fields.List[Any]:
    """Return a field for an array of values, or of objects with a schema."""
    return fields.List(fields.Nested(entry) if isinstance(entry, type) else entry, **_options(description, options))


def free(description: str, example: dict[str, Any] | None = None) -> fields.Dict:
    """Return a field for an object with any members."""
    return fields.Dict(**_options(description, {"example": example}))


def counts(description: str) -> fields.Dict:
    """Return a field for an object with a number for each of its members."""
    return fields.Dict(keys=fields.String(), values=fields.Integer(), **_options(description, {}))


def next_cursor_text() -> fields.String:
    """Return the field `next_cursor` of a page of records."""
    return text("The `cursor` of the next page", null="on the last page")


@cache
def page_schema(entry: type[ResponseSchema], description: str) -> type[ResponseSchema]:
    """Return the schema of a page of records: `UserListResponse` for `UserResponse`."""
    members = {"items": several(entry, description), "next_cursor": next_cursor_text()}
    return type(f"{entry.__name__.removesuffix('Response')}ListResponse", (ResponseSchema,), members)
