"""Fields: what reads a plain text at once takes and refuses what marshmallow's own way does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import ValidationError, fields

from schemas.base.fields import Text

LIMIT = 5
#: What JSON has, and texts around the limit.
values = st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.text()) | st.text(max_size=LIMIT + 2)


class Unhurried(Text):
    """A text that marshmallow reads from beginning to end, as it does every field of another kind."""


def read(field: fields.Field[Any], value: object) -> object:
    """Return what a field makes of a value, or the codes of its refusal."""
    try:
        return field.deserialize(value)
    except ValidationError as refused:
        return refused.messages


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allow_none": True},
        {"min_length": 2},
        {"allowed": ("a", "plain", "beyond")},
        {"post_load": str.upper},
        {"pre_load": lambda value: value * 2 if isinstance(value, str) else value},
    ],
    ids=["plain", "or_null", "at_least", "one_of", "changed_after", "changed_before"],
)
@given(value=values | st.sampled_from(["a", "plain", "beyond", " a ", "12345", "123456"]))
def test_a_text_is_read_as_marshmallow_reads_it(options: dict[str, Any], value: object) -> None:
    assert read(Text(max_length=LIMIT, **options), value) == read(Unhurried(max_length=LIMIT, **options), value)
