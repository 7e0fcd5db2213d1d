"""Decides whether a value can be a certain part of an order record.

The label of a form, a flag, a count, a selector, an error's message and a type of a schema cannot: findings also describe
such fields without a customer's data.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from schemas.content_policy.detectors.secret_values import is_placeholder
from schemas.content_policy.field_names import OrderPart, describes_page, is_item_field, meaning

#: An address, or a name and the address in brackets.
_EMAIL: Final = re.compile(r"(?:[^<>@\r\n]{0,100}<)?[^\s@,;]{1,200}@[^\s@,;]{1,200}\.[^\s@,;]{2,100}")
#: An address in any text: a digit, two letters in a row, and a space.
_ADDRESS: Final = re.compile(r"(?=.*[0-9])(?=.*[^\W\d_]{2}).*\s", re.DOTALL)
#: An address in a field that is named as one: two letters in a row, and a digit or a space.
_ADDRESS_OF_FIELD: Final = re.compile(r"(?=.*[^\W\d_]{2}).*[\s\d]", re.DOTALL)
#: A name has letters, no digits, and no character of a path, an address or markup.
_NAME: Final = re.compile(r"[^\W\d_][^\d/@<>{}=]{1,100}")
_AMOUNT: Final = re.compile(r"[^\d\s]{0,4}\s?[0-9][0-9.,' ]{0,20}\s?[^\d\s]{0,4}")
_FITS: Final = {OrderPart.EMAIL: _EMAIL, OrderPart.ADDRESS: _ADDRESS, OrderPart.NAME: _NAME, OrderPart.TOTAL: _AMOUNT}
#: Characters of a text that are checked.
_CHECKED_CHARACTERS: Final = 500
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
#: The types of JSON Schema.
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def plausible(part: OrderPart, value: str) -> bool:
    """Return whether `value` can be this part of an order; any text can be line items."""
    fits = _FITS.get(part)
    if not value or (fits is not None and not fits.match(value)):
        return False
    # An amount may be a single digit or a repeated one, which is a placeholder elsewhere.
    return part == OrderPart.TOTAL or not is_placeholder(value)


def is_order_record(members: Mapping[str, Any]) -> bool:
    """Return whether an object has two or more parts of an order record.

    The fields of its customer count as its own. In structured data that describes a page (`@type`), the address is its
    publisher's.
    """
    if "@type" in members and describes_page(members["@type"]):
        return False
    parts = {part for name, value in members.items() if (part := meaning(name).part) and _holds(part, value)}
    for name, value in members.items():
        if isinstance(value, dict) and meaning(name).is_customer:
            parts |= {part for each, held in value.items() if (part := _part_of(name, each)) and _holds(part, held)}
    return len(parts) > 1


def _part_of(customer: str, name: str) -> OrderPart | None:
    """Return the part of a customer's field: the `name` of a `customer` is a `customer_name`."""
    return meaning(f"{customer}_{name}").part or meaning(name).part


def _holds(part: OrderPart, value: Any) -> bool:
    """Return whether a value holds the part that its field is named after: as a text or number, or in a list or object."""
    if part == OrderPart.LINE_ITEMS:
        # Entries have a price, a quantity or a product id; lists of other things may have the same name.
        return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and any(map(is_item_field, value[0]))
    entries = value if isinstance(value, list) else [value]
    return any(_object_holds(part, each) if isinstance(each, dict) else _fits(part, each) for each in entries)


def _object_holds(part: OrderPart, members: Mapping[str, Any]) -> bool:
    if _is_schema(members):
        return False
    if part == OrderPart.ADDRESS:
        # A street alone or a city alone has no fixed form.
        return any(each not in _EMPTY and not isinstance(each, bool) for each in members.values())
    return any(_fits(part, each) for each in members.values())


def _is_schema(members: Mapping[str, Any]) -> bool:
    kind = members.get("type")
    return isinstance(kind, list) or (isinstance(kind, str) and kind in _TYPES)


def _fits(part: OrderPart, value: Any) -> bool:
    if isinstance(value, str):
        text = value[:_CHECKED_CHARACTERS].strip()
        if part == OrderPart.ADDRESS:
            return _ADDRESS_OF_FIELD.match(text) is not None and not is_placeholder(text)
        # A name may be shortened to an initial.
        return plausible(part, text) or (part == OrderPart.NAME and len(text) == 1 and text.isalpha())
    return part == OrderPart.TOTAL and isinstance(value, int | float) and not isinstance(value, bool)
