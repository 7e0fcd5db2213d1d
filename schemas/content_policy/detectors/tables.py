"""Rows of a database in text: password hashes, and tables of customers, orders or credentials with a header.

A table is a header, which is a line of column names separated by commas, semicolons, tabs or bars, and a row below it. The
names of its columns and the values in its first rows decide, so that measurements of pages and lists of files pass.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.content_policy.detectors.order_values import plausible
from schemas.content_policy.detectors.secret_values import is_opaque, is_password
from schemas.content_policy.field_names import OrderPart, is_item_field, meaning
from schemas.content_policy.text_parts import folded

#: Hashes as crypt(3), PHP, Django, LDAP and Argon2 write them. A pattern begins with the mark `$` or `{`; the text before it
#: is not matched.
_HASH: Final = re.compile(
    r"\$(?:2[abxy]\$[0-9]{2}\$[./A-Za-z0-9]{53}"
    r"|argon2(?:id|i|d)\$(?:v=[0-9]{1,3}\$)?[a-z0-9=,]{5,60}\$[A-Za-z0-9+/]{8,100}\$[A-Za-z0-9+/]{16,200}"
    r"|[PH]\$[./A-Za-z0-9]{31}"
    r"|S\$[./A-Za-z0-9]{52}"
    r"|(?:1|5|6|7|y|gy|apr1|sha1|md5)\$(?:rounds=[0-9]{1,9}\$|[./A-Za-z0-9]{1,12}\$(?=[./A-Za-z0-9]{8,64}\$))?[./A-Za-z0-9]{1,64}\$[./A-Za-z0-9]{22,128}"
    r"|[0-9]{3,8}\$[A-Za-z0-9]{6,64}\$[A-Za-z0-9+/]{27,128})"
)
_LDAP: Final = re.compile(r"\{S?(?:SHA(?:256|512)?|MD5)\}[A-Za-z0-9+/]{22,200}")
#: Parts of column names for a person's address or telephone number.
PLACE_WORDS: Final = ("street", "strasse", "straße", "anschrift", "phone", "telefon", "mobile", "plz", "zip", "postcode")
#: The end of a column's name that may be a customer's, such as `customer_name`, `buyerName` and `Billing last name`. The
#: letter before it is one that such words end with: this skips most lines about names of other things.
CUSTOMER_NAME: Final = r"name(?=[\"']?[^\S\n]{0,40}(?:[,;|\t\n\0]|\Z))(?:(?<=[eglrty]name)|(?<=[eglrty][ _-]name))"
#: A word whose line may be the header of a table.
_COLUMN: Final = re.compile("|".join(("mail|address|pass|pwd|secret|token|key|session", *PLACE_WORDS, CUSTOMER_NAME)))
_SEPARATORS: Final = (",", ";", "\t", "|")
#: Maximum length of a header or row, in characters.
_MAX_LINE: Final = 4000
_MAX_COLUMNS: Final = 100
#: Rows that are read below a header; the first may be a horizontal rule.
_ROWS: Final = 4
_COLUMN_NAME: Final = re.compile(r"[\w .#/()-]{1,60}")
#: Characters that no cell contains and csv.reader refuses.
_NO_CELL: Final = re.compile("[\r\0]")
#: Columns with a person's name or address, or with a total, besides those of an order record.
_PEOPLE: Final[Mapping[str, OrderPart]] = {
    **dict.fromkeys(
        ("name", "firstname", "lastname", "fullname", "surname", "vorname", "nachname", "kunde"), OrderPart.NAME
    ),
    **dict.fromkeys(("betrag", "summe", "gesamtbetrag", "montant"), OrderPart.TOTAL),
    **dict.fromkeys(
        ("phone", "telephone", "telefon", "mobile", "city", "zip", "postcode", "plz", "strasse", "straße", "anschrift"),
        OrderPart.ADDRESS,
    ),
}
#: Columns that are a customer's, as `customer_name` and `street` are; a plain name may be a product's.
_OF_CUSTOMERS: Final = frozenset({"kunde", "strasse", "straße", "anschrift"})
_PHONES: Final = frozenset({"phone", "telephone", "telefon", "mobile"})
#: A telephone number with a country or area code, or in American grouping; plain numbers may be measurements.
_PHONE: Final = re.compile(
    r"(?:\+|00|\(?0)[1-9][0-9 ()/.-]{6,20}|\(?[2-9][0-9]{2}\)?[ .-]{1,2}[0-9]{3}[ .-][0-9]{4}", re.ASCII
)
#: Columns of passwords and their hashes, with the usual short names.
_PASSWORDS: Final = re.compile(r"(?:user|db|login)?_?(?:pass(?:word|wd|wort)?|pwd)(?:_?(?:hash|digest|md5|sha1))?")
_KEYS: Final = frozenset(
    {"secret", "client_secret", "api_key", "access_token", "refresh_token", "auth_token", "private_key", "session_id"}
)
#: Parts that a person's row has.
_PERSONAL: Final = frozenset({OrderPart.EMAIL, OrderPart.NAME, OrderPart.ADDRESS})
#: Parts that orders have, but not directories of people or shops.
_ORDERED: Final = frozenset({OrderPart.TOTAL, OrderPart.LINE_ITEMS})
_LEAST_PASSWORD: Final = 4
_LEAST_KEY: Final = 8

Column = TypeVar("Column")


class _Column(NamedTuple):
    """A column with a part of an order record: its index, the part, and what its name implies about its values."""

    at: int
    part: OrderPart
    #: Whether the name is a field name of an order record, so that the form of a value decides.
    is_own: bool
    is_of_customers: bool
    is_phone: bool


@dataclass(frozen=True, slots=True)
class _TableHeader(Generic[Column]):
    """A header: its relevant columns, where it begins and ends, its separator and number of columns."""

    columns: list[Column]
    start: int
    end: int
    separator: str
    width: int


def has_password_hash(text: str) -> bool:
    """Return whether `text` holds the hash of a password, as a table of users has it."""
    return _HASH.search(text) is not None or _LDAP.search(text) is not None


def has_credential_table(text: str) -> bool:
    """Return whether `text` holds a table with a column for passwords or keys, and with a value that looks like one."""
    return any(
        is_password(cells[at], _LEAST_PASSWORD) if is_of_passwords else is_opaque(cells[at], _LEAST_KEY)
        for columns, rows in _tables(text, _credential_columns)
        for cells in rows
        for at, is_of_passwords in columns
    )


def has_customer_table(text: str) -> bool:
    """Return whether `text` holds a table of customers or orders: a row with a person and another part of an order."""
    return any(_is_of_a_customer(cells, columns) for columns, rows in _tables(text, _customer_columns) for cells in rows)


def _credential_columns(names: Sequence[str]) -> list[tuple[int, bool]]:
    """Return the index of each column of passwords or keys, and whether it has passwords."""
    columns = []
    for at, name in enumerate(names):
        is_of_passwords = _PASSWORDS.fullmatch(name.lower().replace(" ", "_")) is not None
        if is_of_passwords or meaning(name).forbidden in _KEYS:
            columns.append((at, is_of_passwords))
    return columns


def _customer_columns(names: Sequence[str]) -> list[_Column]:
    """Return the columns with a part of an order record; none unless there are two parts."""
    columns = []
    for at, name in enumerate(names):
        part = meaning(name).part
        folded_name = name.lower().replace("_", "").replace(" ", "")
        if found := part or _PEOPLE.get(folded_name) or (OrderPart.LINE_ITEMS if is_item_field(name) else None):
            is_of_customers = part is not None or folded_name in _OF_CUSTOMERS
            columns.append(_Column(at, found, part is not None, is_of_customers, folded_name in _PHONES))
    return columns if len({column.part for column in columns}) > 1 else []


def _is_of_a_customer(cells: Sequence[str], columns: Sequence[_Column]) -> bool:
    """Return whether a row has several parts of an order and is a person's.

    A name alone may be a product's. With an address it is a person's; with a telephone number it may still be a shop's.
    """
    found = {column.part for column in columns if _holds_part(cells[column.at], column)}
    if len(found) < 2:
        return False
    own = (column for column in columns if column.is_of_customers and column.part in _PERSONAL)
    if any(plausible(column.part, cells[column.at]) for column in own):
        return True
    is_ordered = OrderPart.NAME in found and not found.isdisjoint(_ORDERED)
    return is_ordered and any(column.is_phone and _PHONE.fullmatch(cells[column.at]) for column in columns)


def _holds_part(cell: str, column: _Column) -> bool:
    # A city or a telephone number has no fixed form.
    has_no_form = column.part == OrderPart.LINE_ITEMS or (column.part == OrderPart.ADDRESS and not column.is_own)
    return bool(cell) and (has_no_form or plausible(column.part, cell))


def _tables(
    text: str, columns_of: Callable[[Sequence[str]], list[Column]]
) -> Iterator[tuple[list[Column], Iterator[Sequence[str]]]]:
    """Yield the relevant columns of each header that has some, with the rows below it, up to the next such header.

    So each line is read once, even if many lines look like headers.
    """
    headers = list(_headers(text, columns_of))
    for header, following in zip_longest(headers, headers[1:]):
        yield header.columns, _rows(text, header, following.start if following else len(text))


def _headers(text: str, columns_of: Callable[[Sequence[str]], list[Column]]) -> Iterator[_TableHeader[Column]]:
    at = 0
    lower = folded(text)
    while word := _COLUMN.search(lower, at):
        start = text.rfind("\n", at, word.start()) + 1 or at
        at = _end_of_line(text, word.end())
        line = text[start:at]
        separator = _separator(line)
        names = _cells(line, separator) if separator else []
        if len(names) > 1 and all(map(_COLUMN_NAME.fullmatch, names)) and (columns := columns_of(names)):
            yield _TableHeader(columns, start, at, separator, len(names))


def _rows(text: str, header: _TableHeader[Column], stop: int) -> Iterator[Sequence[str]]:
    at = header.end
    for _ in range(_ROWS):
        start, at = at + 1, _end_of_line(text, at + 1)
        if start >= stop:
            return
        if at - start <= _MAX_LINE and header.separator in (line := text[start:at]):
            cells = _cells(line, header.separator)
            if len(cells) >= header.width:
                yield cells


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _separator(line: str) -> str:
    """Return the separator of a header's columns; empty if the line is no header."""
    if len(line) > _MAX_LINE:
        return ""
    most = max(_SEPARATORS, key=line.count)
    return most if 0 < line.count(most) < _MAX_COLUMNS else ""


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        line = line.strip().strip("|")
    # csv.reader handles quotes, but takes ten times as long.
    cells = next(csv.reader([_NO_CELL.sub(" ", line)], delimiter=separator), []) if '"' in line else line.split(separator)
    return [cell.strip().strip("\"'") for cell in cells]
