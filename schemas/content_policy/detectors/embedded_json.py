"""JSON inside a text, whole, truncated or escaped once more: forbidden field names, cookie jars and order records.

Names and braces are matched without parsing, because a finding's evidence is often truncated. A name counts if its value
holds something: not null, a flag, a placeholder, a type (`"string"`), a label of a form or an empty list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from schemas.content_policy.detectors.order_values import plausible
from schemas.content_policy.detectors.secret_values import is_label, is_placeholder
from schemas.content_policy.field_names import OrderPart, describes_page, is_item_field, meaning

#: A field name with its colon, a brace, or the end of one of several joined texts.
_TOKEN: Final = re.compile(r"[\"']([^\"'\\\r\n{}]{1,64})\\{0,3}[\"']\s{0,9}:|([{}\0])")
_NAME: Final = re.compile(r"[\"']([^\"'\\\r\n{}]{1,64})\\{0,3}[\"']\s{0,9}:")
_TEXT_VALUE: Final = re.compile(r"\s{0,20}\\{0,3}[\"']([^\"'\\]{0,4096})")
_NUMBER: Final = re.compile(r"\s{0,20}-?[0-9]{3}")
_LIST_OR_OBJECT: Final = re.compile(r"\s{0,20}[\[{](?!\s{0,20}[\]}])")
#: Characters of a list or an object that are searched for a value.
_SEARCHED_CHARACTERS: Final = 250
_ANY_VALUE: Final = re.compile(r"[:\[,]\s{0,20}(?:\\{0,3}[\"']([^\"'\\]{2,300})\\{0,3}[\"'](?!\\{0,3}\s{0,9}:)|-?[0-9]{3})")
#: The version of a package that has a forbidden name: `"js-cookie": "^3.0.5"`.
_VERSION: Final = re.compile(r"[\^~<>=v ]{0,3}[0-9]{1,5}(?:\.[0-9x*]{1,5}){1,3}(?:-[a-z]{1,10}(?:\.[0-9]{1,4})?)?")
#: A type in a schema instead of an address, and an amount that is not in quotes.
_TYPE: Final = re.compile(r"\s{0,20}[\[{]\s{0,20}(?:[\]}]|\\{0,3}[\"']type\\{0,3}[\"'])")
_AMOUNT: Final = re.compile(r"\s{0,20}[0-9]")
#: Fields of a cookie besides its name and value, and a length that exceeds the longest of them.
_LONGEST_JAR_NAME: Final = 20
COOKIE_FIELDS: Final = frozenset({"domain", "httponly", "hostonly", "expirationdate", "samesite", "storeid"})


@dataclass(slots=True)
class _Object:
    """The part of an object that has been read."""

    parts: set[OrderPart] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    last: str = ""
    is_page_data: bool = False


def has_forbidden_names(text: str) -> bool:
    """Return whether JSON in `text` has a forbidden field name with a value, or a cookie with its name and value."""
    names = {*_NAME.findall(text)}
    if not (any(meaning(name).forbidden for name in names) or {"name", "value"} <= names):
        return False
    return any(meaning(found[1]).forbidden and _holds_value(text, found.end()) for found in _NAME.finditer(text)) or any(
        COOKIE_FIELDS & each.names and {"name", "value"} <= each.names for each in _objects(text)
    )


def has_order_record(text: str) -> bool:
    """Return whether an object of JSON in `text` has two or more parts of an order record."""
    names = {*_NAME.findall(text)}
    if len({meaning(name).part for name in names} - {None}) < 2 and not any(meaning(name).is_customer for name in names):
        return False
    return any(len(each.parts) > 1 and not each.is_page_data for each in _objects(text))


def _holds_value(text: str, at: int) -> bool:
    """Return whether the value after a forbidden name holds something."""
    if written := _TEXT_VALUE.match(text, at):
        value = written[1].strip()
        return len(value) > 1 and not (is_placeholder(value) or is_label(value) or _VERSION.fullmatch(value))
    if _LIST_OR_OBJECT.match(text, at):
        # Only up to the end of this text and to the next closing brace: later values belong to other objects.
        inner = text[at : at + _SEARCHED_CHARACTERS].partition("\0")[0]
        return any(_may_be_secret(each[1]) for each in _ANY_VALUE.finditer(inner.partition("}")[0]))
    return _NUMBER.match(text, at) is not None


def _may_be_secret(value: str | None) -> bool:
    return value is None or not (is_placeholder(value) or is_label(value))


def _objects(text: str) -> Iterator[_Object]:
    """Yield the objects of JSON in a text, inner ones first, including those that are truncated."""
    open_objects = [_Object()]
    for found in _TOKEN.finditer(text):
        if found[1] is not None:
            _read_name(text, found, open_objects)
        elif found[2] == "{":
            open_objects.append(_Object())
        elif found[2] == "\0":
            yield from reversed(open_objects)
            open_objects = [_Object()]
        else:
            yield open_objects.pop()
            open_objects = open_objects or [_Object()]
    yield from reversed(open_objects)


def _read_name(text: str, found: re.Match[str], open_objects: list[_Object]) -> None:
    this, name = open_objects[-1], found[1]
    parent = open_objects[-2] if len(open_objects) > 1 else None
    this.last = name
    if len(name) < _LONGEST_JAR_NAME:
        this.names.add(name.lower())
    if name == "@type":
        written = _TEXT_VALUE.match(text, found.end())
        this.is_page_data = written is not None and describes_page(written[1])
    part = meaning(name).part
    if part == OrderPart.LINE_ITEMS:
        return
    if parent and meaning(parent.last).part == OrderPart.LINE_ITEMS and is_item_field(name):
        parent.parts.add(OrderPart.LINE_ITEMS)
    # The fields of a customer also count for the object that contains the customer.
    customer = parent if parent and meaning(parent.last).is_customer else None
    of_customer = meaning(f"{customer.last}_{name}").part if customer else None
    for each in {part, of_customer} - {None}:
        if each and _fits(each, text, found.end()):
            for holder in (this, customer or this):
                holder.parts.add(each)


def _fits(part: OrderPart, text: str, at: int) -> bool:
    """Return whether a value can be part of an order: not a form's label, a schema's type or a placeholder."""
    if written := _TEXT_VALUE.match(text, at):
        return plausible(part, written[1].strip())
    if _LIST_OR_OBJECT.match(text, at):
        return part == OrderPart.ADDRESS and not _TYPE.match(text, at)
    return part == OrderPart.TOTAL and _AMOUNT.match(text, at) is not None
