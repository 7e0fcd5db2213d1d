"""The fields of a submitted form of the console, and how their texts are read."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from schemas.base.errors import FieldProblem

#: A submitted form by the names of its fields, and the problems of a refused one.
Fields = Mapping[str, str]
Problems = Sequence[FieldProblem]

#: The version of an export: a larger number does not fit into the column.
VERSION_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")

#: A path below the console as our links have it, with an optional query.
_PAGE_PATH: Final = re.compile(r"(/[A-Za-z0-9_-]+)+(\?[!-\[\]-~]*)?")
#: Longer than the address of a list with a search and filters in any script, shorter than servers' limits for a header line.
_MAX_NEXT: Final = 7000


def normalize_line_breaks(text: str) -> str:
    """Return a text as its field sends it back, with line feeds: browsers send every line break as CR LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def entries_of(text: str) -> list[str]:
    """Return the entries of a field that has one a line."""
    return [each.strip() for each in normalize_line_breaks(text).split("\n") if each.strip()]


def safe_next(path: str) -> str:
    """Return a path below the console if it is safe to redirect to after sign-in, else "", the inbox."""
    return path if len(path) <= _MAX_NEXT and _PAGE_PATH.fullmatch(path) else ""


def by_path(problems: Problems) -> dict[str, FieldProblem]:
    """Return the problems of a form by their paths, as pages show them."""
    return {each.path: each for each in problems}
