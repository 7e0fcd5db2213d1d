"""Reads a report as a JSON value with checked access to its fields.

Reports are written by other tools, may be truncated, and contain text chosen by the scanned site: every field may be
missing, of another type, or very large. An unreadable report is refused in one line with the position, as line and column
or as a JSON Pointer. Messages contain names of the report's fields but none of its values.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from schemas.base.strict_json import has_too_many_values

#: The largest report that is read. A report of a thousand pages has a few MiB, and takes ten times its size in memory.
MAX_REPORT_BYTES: Final = 64 * 1024 * 1024
#: Longer texts are shortened; no part of an issue is nearly as long. Thousands of results may share the texts of one rule,
#: and each result reads them again.
_MAX_TEXT: Final = 4000
#: Longer field names are truncated in messages; no format has longer ones.
_MAX_NAME: Final = 80

_MIB: Final = 1024 * 1024
_NO_SPACE: Final = re.compile(r"[^ \t\r\n]")
_DECODER: Final = json.JSONDecoder()


class UnreadableReport(Exception):
    """The report cannot be read; the message contains the cause and the position, in one line."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a report and its JSON Pointer; JSON lines are the entries of an array, without empty lines."""

    value: Any
    pointer: str = ""

    def member(self, name: str) -> "Node":
        """Return a field of an object; null if it is missing."""
        return Node(self._object().get(name), f"{self.pointer}/{_shown(name)}")

    def members(self) -> Iterator[tuple[str, "Node"]]:
        """Yield the fields of an object, in the order of the report; null has none. Names are cleaned as texts are."""
        for name in self._object():
            yield _clean(shortened(name)), self.member(name)

    def entries(self) -> Iterator["Node"]:
        """Yield the entries of an array; null has none."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self._mismatch("an array")
        for number, entry in enumerate(self.value):
            yield Node(entry, f"{self.pointer}/{number}")

    def text(self) -> str:
        """Return a string, or a number as text; empty for null.

        A long text is shortened; NUL and lone surrogates are removed.
        """
        if self.value is None:
            return ""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            raise self._mismatch("a string")
        return _clean(shortened(str(self.value)))

    def number(self) -> float | None:
        """Return a number, also if it is written as a string; None otherwise."""
        try:
            return float(self.text())
        except (ValueError, OverflowError):
            return None

    def _mismatch(self, expected: str) -> UnreadableReport:
        return UnreadableReport(f"{self.pointer or 'The report'} is not {expected}.")

    def _object(self) -> dict[str, Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self._mismatch("an object")
        return self.value


def read(content: bytes, *, may_be_lines: bool = False, max_values: int | None = None) -> Node:
    """Parse a report in UTF-8 or UTF-16, with or without a byte order mark.

    With `may_be_lines`, JSON lines are read as an array, and an empty file as an empty array. Raises UnreadableReport, also
    for more than `max_values` values.
    """
    if len(content) > MAX_REPORT_BYTES:
        raise UnreadableReport(f"The report is larger than {MAX_REPORT_BYTES // _MIB} MiB; scan fewer pages at once.")
    text = _text(content)
    if not text.strip():
        if may_be_lines:
            return Node([])
        raise UnreadableReport("The report is empty; check whether the scan succeeded.")
    if max_values is not None and has_too_many_values(text.encode(), max_values):
        raise UnreadableReport(f"The report has more than {max_values:,} values; scan fewer pages at once.")
    try:
        values = list(_values(text, are_lines=may_be_lines))
    except json.JSONDecodeError as error:
        raise _malformed(error) from None
    except (RecursionError, ValueError):
        raise UnreadableReport("The report is nested too deeply, or contains a number with thousands of digits.") from None
    return Node(values[0] if len(values) == 1 else values)


def shortened(text: str) -> str:
    """Return at most _MAX_TEXT characters of a text, in whole words: half an email address is not recognized as one."""
    if len(text) <= _MAX_TEXT:
        return text
    return text[:_MAX_TEXT].rpartition(" ")[0] or text[:_MAX_TEXT]


def _text(content: bytes) -> str:
    try:
        return content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UnreadableReport(f"The report is not valid {error.encoding} at byte {error.start + 1}.") from None


def _values(text: str, *, are_lines: bool) -> Iterator[Any]:
    """Yield the value of a text, or the objects that follow each other in it. Raises json.JSONDecodeError."""
    value, at = None, 0
    while begins := _NO_SPACE.search(text, at):
        if at and not (are_lines and isinstance(value, dict)):
            raise json.JSONDecodeError("Extra data", text, begins.start())
        value, at = _DECODER.raw_decode(text, begins.start())
        yield value


def _malformed(error: json.JSONDecodeError) -> UnreadableReport:
    text, position = error.doc, f"line {error.lineno}, column {error.colno}"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return UnreadableReport(f"The report is truncated at {position}; wait until the scanner has written it.")
    if text.lstrip().startswith("<"):
        return UnreadableReport("The report is HTML or XML; configure the scanner to write JSON.")
    return UnreadableReport(f"The report is not JSON at {position}: {error.msg}.")


def _clean(text: str) -> str:
    """Remove NUL and lone surrogates, which databases and responses cannot contain."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode()


def _shown(name: str) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in name[:_MAX_NAME])
    return _clean(printable).replace("~", "~0").replace("/", "~1")
