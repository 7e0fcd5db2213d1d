"""Forbidden field names, and field names that together form an order record.

Names are compared after folding case, `_`, `-` and camelCase. A forbidden name matches alone or as the end of a longer name,
at a word boundary: `admin_password` and `customerBillingAddress`, not `session_identity`. Digits at the end are ignored:
`password2`.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple

FORBIDDEN_NAMES: Final = (
    *("password", "passwd", "passphrase", "secret", "client_secret", "api_key", "access_token", "refresh_token"),
    *("auth_token", "private_key", "credentials", "authorization", "cookie", "cookies", "set_cookie", "session_id"),
    *("local_storage", "session_storage", "card_number", "cvv", "cvc", "card_expiry", "iban", "full_html", "raw_html"),
    *("page_html", "html_export", "database_dump", "sql_dump", "order_items", "line_items", "billing_address"),
    "shipping_address",
)
#: Standard names that end like a forbidden one but hold a flag: `Access-Control-Allow-Credentials: true`.
_HARMLESS: Final = frozenset({"accesscontrolallowcredentials"})


class OrderPart(Enum):
    """A part of an order record; its value is checked as well."""

    NAME = auto()
    EMAIL = auto()
    ADDRESS = auto()
    TOTAL = auto()
    LINE_ITEMS = auto()


_CUSTOMERS: Final = ("customer", "buyer", "client", "purchaser", "recipient", "consignee", "billing", "shipping", "delivery")
#: The parts of an order record and the names of their fields. A plain `name` is not a customer's.
_PARTS: Final[Mapping[OrderPart, tuple[str, ...]]] = {
    OrderPart.NAME: tuple(
        f"{who}_{name}" for who in _CUSTOMERS for name in ("name", "full_name", "first_name", "last_name")
    ),
    OrderPart.EMAIL: ("email", "email_address", "e_mail", "contact_email", *(f"{who}_email" for who in _CUSTOMERS)),
    OrderPart.ADDRESS: (
        *("address", "address_1", "address_line_1", "street", "street_address", "postal_address", "home_address"),
        *(f"{who}_address" for who in _CUSTOMERS),
    ),
    OrderPart.TOTAL: (
        *("total", "total_price", "total_amount", "total_paid", "order_total", "grand_total", "cart_total"),
        *("subtotal", "subtotal_price", "amount_paid", "amount_due", "order_amount", "invoice_total", "current_total_price"),
    ),
    OrderPart.LINE_ITEMS: (
        *("line_items", "order_items", "items", "lines", "products", "ordered_items", "cart_items", "purchased_items"),
        "order_lines",
    ),
}
#: Fields of a purchased item; a list without them is not a list of line items.
_BOUGHT: Final = frozenset(
    {"price", "unitprice", "quantity", "qty", "sku", "productid", "variantid", "lineprice", "linetotal"}
)

#: Objects whose fields are a customer's: `"customer": {"name": …, "email": …}`.
_CUSTOMER_OBJECTS: Final = frozenset({"customer", "buyer", "purchaser", "consignee", "billing"})
#: Types of structured data about a customer's order; other types describe a page and its publisher.
_CUSTOMER_TYPES: Final = frozenset({"order", "invoice", "parceldelivery"})

#: Longer than any listed name in any spelling; only this many final characters of a name matter.
_END_CHARACTERS: Final = 64
#: As many words as the longest listed name has, and one more for names that camelCase splits oddly.
_END_WORDS: Final = 3
#: Cached names: names repeat from body to body, and this many fit in a third of a megabyte.
_MAX_CACHED: Final = 4096
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Meaning(NamedTuple):
    """The meaning of a field name: the forbidden name it matches, its part of an order record, whether it is a customer."""

    forbidden: str | None
    part: OrderPart | None
    is_customer: bool = False


def meaning(name: str) -> Meaning:
    """Return the meaning of a field name."""
    return _meaning(name[-_END_CHARACTERS:])


def is_item_field(name: str) -> bool:
    """Return whether a list whose entries have a field with this name is a list of purchased items."""
    return _folded(name) in _BOUGHT


def describes_page(kind: Any) -> bool:
    """Return whether structured data of this `@type` describes a page, not a customer's order."""
    return not isinstance(kind, str) or kind.lower() not in _CUSTOMER_TYPES


@lru_cache(maxsize=_MAX_CACHED)
def _meaning(end: str) -> Meaning:
    whole = _folded(end)
    if not whole.endswith(_ENDINGS) and whole not in _PART_OF:
        return _CUSTOMER if whole in _CUSTOMER_OBJECTS else NOTHING
    words = [word.lower() for word in _WORD.findall(end)]
    ends = (whole, *("".join(words[-count:]) for count in range(_END_WORDS, 0, -1)))
    forbidden = next((_LISTED[each] for each in ends if each in _LISTED), None)
    return Meaning(None if whole in _HARMLESS else forbidden, _PART_OF.get(whole))


def _folded(name: str) -> str:
    return name[-_END_CHARACTERS:].encode("ascii", "ignore").translate(_LOWER, _NO_LETTERS).decode()


#: Folding converts ASCII letters to lower case and removes all other bytes.
_LOWER: Final = bytes(range(256)).lower()
_NO_LETTERS: Final = bytes(byte for byte in range(256) if not bytes((byte,)).isalpha())
#: The meaning of nearly every name.
NOTHING: Final = Meaning(None, None)
_CUSTOMER: Final = Meaning(None, None, True)
_LISTED: Final = {_folded(name): name for name in FORBIDDEN_NAMES}
_PART_OF: Final = {_folded(name): part for part, names in _PARTS.items() for name in names}
_ENDINGS: Final = tuple(_LISTED)
