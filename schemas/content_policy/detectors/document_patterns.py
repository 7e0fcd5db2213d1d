"""Detects whole documents in text: an HTML page or a database dump.

Prose that mentions `<html>` or an SQL statement is neither. A page has an opening followed by an element; a dump has the
header of its tool, or statements that only a dump combines.
"""

import re
from typing import Final

#: The opening of a page (a doctype, or `<html>`, perhaps behind a comment) and then content; or a head and then a body.
_PAGE: Final = re.compile(
    r"""(?xi) (?: <!doctype \s{1,9} html [^<>]{0,300}> | <html (?:\s [^<>]{0,1000})? > ) \s{0,99}
    (?: <!-- [^<>]{0,1000} --> \s{0,99} ){0,3} < (?! html | / | ! ) [a-z]
    | </head \s{0,9} > \s{0,99} <body [\s>]"""
)
#: What only a page with content has; a longer text that opens like one is one that was cut.
_CONTENT: Final = re.compile(r"(?i)<(?:body|main|div|section|article|table|form|ul|ol|p|h[1-6])[\s/>]|</html")
_EXTRACT_CHARACTERS: Final = 500
_DUMP_HEADER: Final = re.compile(
    r"(?im)^[-#/* ]{0,9}"
    r"(?:(?:mysql|mariadb|postgresql database(?: cluster)?|phpmyadmin sql|adminer [\d.]{1,9} \w{1,20}) dump\b"
    r"|pragma foreign_keys ?= ?off;\s{0,9}begin transaction;)"
)
#: PostgreSQL's own form, rows after it until a line with a backslash and a dot.
_COPY: Final = re.compile(r"(?im)^copy [\w.\"]{1,200} (?:\([^()]{0,2000}\) )?from stdin\b")
_INTO: Final = (
    r"(?i)\binsert\s{1,9}(?:ignore\s{1,9})?into\s{1,9}[`\"\[\w.\]]{1,200}\s{0,9}(?:\([^()]{1,2000}\)\s{0,9})?values\s{0,9}\("
)
_INSERT: Final = re.compile(_INTO)
#: What a dump does and a manual seldom: a second row behind the first.
_INSERT_MANY: Final = re.compile(rf"{_INTO}[^()]{{1,2000}}\)\s{{0,9}},\s{{0,9}}\(")
_CREATE: Final = re.compile(
    r"(?i)\bcreate\s{1,9}table\s{1,9}(?:if\s{1,9}not\s{1,9}exists\s{1,9})?[`\"\[\w.\]]{1,200}\s{0,9}\("
)


def is_page(text: str) -> bool:
    """Return whether `text` holds a whole HTML document; a validator's extract of a head is none."""
    return _PAGE.search(text) is not None and (len(text) > _EXTRACT_CHARACTERS or _CONTENT.search(text) is not None)


def is_dump(text: str) -> bool:
    """Return whether `text` holds a dump of a database: its header, or a table with rows, or several rows."""
    if any(pattern.search(text) for pattern in (_DUMP_HEADER, _COPY, _INSERT_MANY)):
        return True
    inserts = _INSERT.finditer(text)
    return next(inserts, None) is not None and (next(inserts, None) is not None or _CREATE.search(text) is not None)
