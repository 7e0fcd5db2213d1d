"""The fields of a submitted console form, and functions that read their texts."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from schemas.base.errors import FieldProblem

#: The texts of a submitted form by field name, and the problems of a refused form.
Fields = Mapping[str, str]
Problems = Sequence[FieldProblem]

#: Whole numbers of forms; a larger one does not fit into a column.
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}")

#: A path below the console with an optional query, as in our links.
_PAGE_PATH: Final = re.compile(r"(/[A-Za-z0-9_-]+)+(\?[!-\[\]-~]*)?")
#: Longer than the address of a list with a search and filters in any script; shorter than the limit of servers for a header
#: line.
_MAX_NEXT: Final = 7000


def normalize_line_breaks(text: str) -> str:
    """Return a text with line feeds instead of CR LF, which browsers send for every line break."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def entries_of(text: str) -> list[str]:
    """Return the entries of a field that has one entry per line."""
    return [each.strip() for each in normalize_line_breaks(text).split("\n") if each.strip()]


def whole_number(text: str) -> int | None:
    """Return the number in a text; None for any other text."""
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None


def safe_next(path: str) -> str:
    """Return a path below the console if a redirect to it after sign-in is safe; otherwise "", which is the inbox."""
    return path if len(path) <= _MAX_NEXT and _PAGE_PATH.fullmatch(path) else ""


def by_path(problems: Problems) -> dict[str, FieldProblem]:
    """Return the problems of a form by path, as templates use them."""
    return {each.path: each for each in problems}
