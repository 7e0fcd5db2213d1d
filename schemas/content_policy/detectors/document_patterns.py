"""Detects whole documents in text: an HTML page or a database dump.

Prose that mentions `<html>` or an SQL statement is neither. A page has an opening followed by an element; a dump has the
header of its tool, or statements that only a dump combines.
"""

import re
from typing import Final

#: White space, also escaped as in JSON or a script.
_SPACE: Final = r"(?:\s|\\{1,3}[nrt])"
#: The opening of a page (a doctype, or `<html>`, perhaps after a comment) and then content; or a head and then a body.
_PAGE: Final = re.compile(
    rf"""(?xi) (?: <!doctype {_SPACE}{{1,9}} html [^<>]{{0,300}}> | <html (?:{_SPACE} [^<>]{{0,1000}})? > ) {_SPACE}{{0,99}}
    (?: <!-- [^<>]{{0,1000}} --> {_SPACE}{{0,99}} ){{0,3}} < (?! html | / | ! ) [a-z]
    | <\\{{0,3}}/head {_SPACE}{{0,9}} > {_SPACE}{{0,99}} <body [\s>\\]"""
)
#: Elements that only a page with content has. A longer text that begins like a page counts without them: it was truncated.
_CONTENT: Final = re.compile(r"(?i)<(?:body|main|div|section|article|table|form|ul|ol|p|h[1-6])[\s/>\\]|<\\{0,3}/html")
_EXTRACT_CHARACTERS: Final = 500
_DUMP_HEADER: Final = re.compile(
    r"(?im)^[-#/* ]{0,9}"
    r"(?:(?:mysql|mariadb|postgresql database(?: cluster)?|phpmyadmin sql|adminer [\d.]{1,9} \w{1,20}) dump\b"
    r"|pragma foreign_keys ?= ?off;\s{0,9}begin transaction;)"
)
#: PostgreSQL's own form; rows follow it up to a line with a backslash and a dot.
_COPY: Final = re.compile(r"(?im)^copy [\w.\"]{1,200} (?:\([^()]{0,2000}\) )?from stdin\b")
#: A part of a table's name: the schema or the table. In quotes or brackets it may have hyphens and spaces.
_NAME_PART: Final = r"(?:\\{0,2}[`\"\[][^`\"\[\]\\\r\n]{1,128}\\{0,2}[`\"\]]|[\w$]{1,128})"
_TABLE: Final = rf"{_NAME_PART}(?:\s{{0,3}}\.\s{{0,3}}{_NAME_PART}){{0,3}}"
#: SQL Server omits INTO and puts names in brackets; text with neither may be prose.
_INTO: Final = (
    r"(?i)\b(?:insert\s{1,9}(?:ignore\s{1,9})?(?:into\s{1,9}|(?=\[))|replace\s{1,9}into\s{1,9})"
    rf"{_TABLE}\s{{0,9}}(?:\([^()]{{1,2000}}\)\s{{0,9}})?values\s{{0,9}}\("
)
_INSERT: Final = re.compile(_INTO)
#: A second row after the first: usual in a dump, rare in a manual.
_NEXT_ROW: Final = r"\)\s{0,9},\s{0,9}\("
_INSERT_MANY: Final = re.compile(rf"{_INTO}[^()]{{1,2000}}{_NEXT_ROW}")
#: A second row after a first row of any length, whose texts and calls may have brackets. No part of a row can fail, and the
#: next search begins where a row ends, so no character is read twice. NUL ends one of several joined texts.
_INSERT_LONG: Final = re.compile(
    rf"""{_INTO}
    (?: [^()'"\0]++
      | '(?: [^'\\\0]++ | \\[^\0] | '' )*+ (?: ' | \\?(?=\0|\Z) )
      | "(?: [^"\\\0]++ | \\[^\0] | "" )*+ (?: " | \\?(?=\0|\Z) )
      | \( [^()'"\0]*+ \)?+
    )*+ ({_NEXT_ROW})?""",
    re.VERBOSE,
)
_CREATE: Final = re.compile(
    rf"(?i)\bcreate\s{{1,9}}table\s{{1,9}}(?:if\s{{1,9}}not\s{{1,9}}exists\s{{1,9}})?{_TABLE}\s{{0,9}}\("
)


def is_page(text: str) -> bool:
    """Return whether `text` holds a whole HTML document; a validator's extract of a head does not count."""
    return _PAGE.search(text) is not None and (len(text) > _EXTRACT_CHARACTERS or _CONTENT.search(text) is not None)


def is_dump(text: str) -> bool:
    """Return whether `text` holds a dump of a database: its header, or a table with rows, or several rows."""
    if any(pattern.search(text) for pattern in (_DUMP_HEADER, _COPY, _INSERT_MANY)):
        return True
    if any(rows[1] for rows in _INSERT_LONG.finditer(text)):
        return True
    inserts = _INSERT.finditer(text)
    return next(inserts, None) is not None and (next(inserts, None) is not None or _CREATE.search(text) is not None)
