"""Judges whether values fit their parts of an order record.

The label of a form, a flag, a count, a selector, an error's message and a type of a schema do not: findings name fields too.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from schemas.content_policy.detectors.secret_values import is_placeholder
from schemas.content_policy.field_names import ADDRESS, EMAIL, LINE_ITEMS, NAME, TOTAL, describes_page, is_bought, meaning

#: An address, or a name and the address in brackets.
_EMAIL: Final = re.compile(r"(?:[^<>@\r\n]{0,100}<)?[^\s@,;]{1,200}@[^\s@,;]{1,200}\.[^\s@,;]{2,100}")
#: A digit, two letters in a row, and a space.
_ADDRESS: Final = re.compile(r"(?=.*[0-9])(?=.*[^\W\d_]{2}).*\s", re.DOTALL)
#: The same by its field's name, which says that it is one: a digit or a space is enough.
_ADDRESS_OF_FIELD: Final = re.compile(r"(?=.*[^\W\d_]{2}).*[\s\d]", re.DOTALL)
#: A name has letters, no digits, and no character of a path, an address or markup.
_NAME: Final = re.compile(r"[^\W\d_][^\d/@<>{}=]{1,100}")
_AMOUNT: Final = re.compile(r"[^\d\s]{0,4}\s?[0-9][0-9.,' ]{0,20}\s?[^\d\s]{0,4}")
_FITS: Final = {EMAIL: _EMAIL, ADDRESS: _ADDRESS, NAME: _NAME, TOTAL: _AMOUNT}
#: As much of a text as tells what it is.
_LOOKED_AT: Final = 500
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
#: The types of JSON Schema.
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def plausible(part: str, value: str) -> bool:
    """Return whether `value` can be this part of an order; of line items, any text."""
    fits = _FITS.get(part)
    if not value or (fits is not None and not fits.match(value)):
        return False
    # An amount may have a single digit, or one twice.
    return part == TOTAL or not is_placeholder(value)


def is_order_record(members: Mapping[str, Any]) -> bool:
    """Return whether an object has two or more parts of an order record.

    The fields of its customer count as its own. The address in a page's structured data (`@type`) is its publisher's.
    """
    if "@type" in members and describes_page(members["@type"]):
        return False
    parts = {part for name, value in members.items() if (part := meaning(name).part) and _holds(part, value)}
    for name, value in members.items():
        if isinstance(value, dict) and meaning(name).is_customer:
            parts |= {part for each, held in value.items() if (part := _part_of(name, each)) and _holds(part, held)}
    return len(parts) > 1


def _part_of(customer: str, name: str) -> str | None:
    """Return the part of a customer's field: the `name` of a `customer` is a `customer_name`."""
    return meaning(f"{customer}_{name}").part or meaning(name).part


def _holds(part: str, value: Any) -> bool:
    """Return whether a field with the name of this part holds it: as a text or a number, or within a list or an object."""
    if part == LINE_ITEMS:
        # Each with a price, a quantity or a product id; of other lists the name says little.
        return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and any(map(is_bought, value[0]))
    entries = value if isinstance(value, list) else [value]
    return any(_object_holds(part, each) if isinstance(each, dict) else _fits(part, each) for each in entries)


def _object_holds(part: str, members: Mapping[str, Any]) -> bool:
    if _is_schema(members):
        return False
    if part == ADDRESS:
        # The street by itself, the city by itself: no fixed form.
        return any(each not in _EMPTY and not isinstance(each, bool) for each in members.values())
    return any(_fits(part, each) for each in members.values())


def _is_schema(members: Mapping[str, Any]) -> bool:
    kind = members.get("type")
    return isinstance(kind, list) or (isinstance(kind, str) and kind in _TYPES)


def _fits(part: str, value: Any) -> bool:
    if isinstance(value, str):
        text = value[:_LOOKED_AT].strip()
        if part == ADDRESS:
            return _ADDRESS_OF_FIELD.match(text) is not None and not is_placeholder(text)
        # Of a name, an initial may be what is left.
        return plausible(part, text) or (part == NAME and len(text) == 1 and text.isalpha())
    return part == TOTAL and isinstance(value, int | float) and not isinstance(value, bool)
