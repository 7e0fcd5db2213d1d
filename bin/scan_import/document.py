"""A report's bytes as a JSON value that can be asked for its members, and says where it is not what it should be.

Reports come from other tools, from half-written files and from whoever a scanned site made them say things: every member
may be missing, of another type, or absurdly large. What cannot be read is refused in one line with its place, a line and a
column or a JSON Pointer. Values of the report are not repeated, names of its members are.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

#: The largest report that is read. One of a thousand pages has a few MiB, and a report ten times its size in memory.
MAX_REPORT_BYTES: Final = 64 * 1024 * 1024
#: Members are named up to here; a longer name is no format's.
_MAX_NAME: Final = 80

_MIB: Final = 1024 * 1024


class UnreadableReport(Exception):
    """The report cannot be read; the message says why and where, in one line."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a report and its place, a JSON Pointer; JSON lines are the entries of an array, empty ones left out."""

    value: Any
    place: str = ""

    def member(self, name: str) -> "Node":
        """Return a member; null where it is missing."""
        return Node(self._object().get(name), f"{self.place}/{_shown(name)}")

    def members(self) -> Iterator[tuple[str, "Node"]]:
        """Yield the members of an object, in the order of the report; none of null."""
        for name in self._object():
            yield name, self.member(name)

    def entries(self) -> Iterator["Node"]:
        """Yield the entries of an array; none of null."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.refused("an array")
        for number, entry in enumerate(self.value):
            yield Node(entry, f"{self.place}/{number}")

    def text(self) -> str:
        """Return a text, a number as it is written, or the empty string of null; what no text may hold is left out."""
        if self.value is None:
            return ""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            raise self.refused("a text")
        return _clean(_digits(self.value) if isinstance(self.value, int) else str(self.value))

    def number(self) -> float | None:
        """Return a number, also one that is written as a text; None for null and for what is no number."""
        try:
            return float(self.text())
        except (ValueError, OverflowError):
            return None

    def is_there(self) -> bool:
        """Tell whether it is anything but null."""
        return self.value is not None

    def refused(self, wanted: str) -> UnreadableReport:
        """Return the refusal of a value that is not `wanted`."""
        return UnreadableReport(f"{self.place or 'The report'} is not {wanted}.")

    def _object(self) -> dict[str, Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.refused("an object")
        return self.value


def read(content: bytes, *, may_be_lines: bool = False) -> Node:
    """Return what a report says: UTF-8 or UTF-16, with or without a byte order mark.

    `may_be_lines` takes JSON lines as an array of them, and an empty file as an empty array. Raises UnreadableReport.
    """
    if len(content) > MAX_REPORT_BYTES:
        raise UnreadableReport(f"The report is over {MAX_REPORT_BYTES // _MIB} MiB; scan fewer pages at once.")
    text = _text(content)
    if not text.strip():
        if may_be_lines:
            return Node([])
        raise UnreadableReport("The report is empty; did the scan end well?")
    try:
        return Node(_value(text))
    except json.JSONDecodeError as wrong:
        # Several texts, one behind the other: what is wrong with the first of them is wrong with a report of any form.
        if not (may_be_lines and wrong.msg == "Extra data"):
            raise _no_json(text, wrong, 0) from None
    return Node([_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()])


def _text(content: bytes) -> str:
    if content[:2] == b"\x1f\x8b":
        raise UnreadableReport("The report is compressed; unpack it first: gunzip FILE")
    try:
        return content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
    except UnicodeDecodeError as wrong:
        raise UnreadableReport(f"The report is no text from byte {wrong.start + 1} on: not {wrong.encoding}.") from None


def _line(line: str, number: int) -> Any:
    try:
        return _value(line)
    except json.JSONDecodeError as wrong:
        raise _no_json(line, wrong, number - 1) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise UnreadableReport("The report is nested too deeply to be one.") from None
    except ValueError:
        raise UnreadableReport("The report holds a number with thousands of digits.") from None


def _no_json(text: str, wrong: json.JSONDecodeError, lines_before: int) -> UnreadableReport:
    place = f"line {wrong.lineno + lines_before}, column {wrong.colno}"
    if wrong.pos >= len(text.rstrip()) or wrong.msg.startswith("Unterminated string"):
        return UnreadableReport(f"The report ends too soon, after {place}; was it still being written?")
    if text.lstrip().startswith("<"):
        return UnreadableReport("The report is HTML or XML; let the scanner write JSON.")
    return UnreadableReport(f"The report is not JSON at {place}: {wrong.msg}.")


def _digits(number: int) -> str:
    # Python writes no number of thousands of digits.
    return str(number) if abs(number) < 10**18 else ""


def _clean(text: str) -> str:
    """Leave out what no answer and no database can carry: NUL and half characters."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode()


def _shown(name: str) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in name[:_MAX_NAME])
    return _clean(printable).replace("~", "~0").replace("/", "~1")
