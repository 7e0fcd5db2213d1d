"""Parses bytes as strict JSON; each violation has a name.

Python's parser is lenient where two parsers of one body could disagree, or where a later step fails: it keeps the last of
two equal names, turns 1e999 into infinity, accepts NUL, which PostgreSQL's text rejects, and half surrogate pairs, which no
UTF-8 response can carry. Bytes that are signed, stored or approved must have one meaning, so all of these are rejected here,
and nesting deeper than any of our payloads needs.

A violation is described in fixed words. Neither it nor its chain of exceptions contains any of the body.
"""

import json
import math
import re
from array import array
from enum import StrEnum
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"

# The deepest payload of the API has 6 levels; evidence of a scanner may contain a tree.
MAX_DEPTH = 32

# The largest payload of the API, a compliance request with 50,000 orders, has half as many. Each value costs a hundred bytes
# of memory and a microsecond in every check of the body, so a megabyte of commas would cost as much as ten megabytes of
# text.
MAX_VALUES = 100_000

# The largest IEEE double has 309 digits: other parsers may read an integer of more than 308 digits as another number, or
# refuse it.
MAX_INTEGER_DIGITS = 308


class JsonFault(StrEnum):
    """Why a body is not strict JSON, in words for its sender; only NOT_JSON has no further words."""

    EMPTY = "it is empty"
    BYTE_ORDER_MARK = "it begins with a byte order mark"
    NOT_UTF8 = "it is not UTF-8"
    NOT_JSON = ""
    TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
    TOO_MANY_VALUES = f"it has more than {MAX_VALUES:,} values"
    DUPLICATE_MEMBER = "an object has two members of the same name"
    NOT_FINITE_NUMBER = "a number is infinite or not a number"
    NUMBER_TOO_LONG = f"a number has more than {MAX_INTEGER_DIGITS} digits"
    NUL_CHARACTER = "a string contains a NUL character"
    LONE_SURROGATE = "a string contains half of a surrogate pair"


class MalformedJson(ValueError):
    """The body is not strict JSON; `reason` names the violated rule and quotes nothing."""

    def __init__(self, reason: JsonFault) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return ": ".join(filter(None, ("The body is not strict JSON", self.reason))) + "."


def parse(body: bytes, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Parse one JSON text (RFC 8259), which may be a bare scalar.

    Arrays and objects may be nested up to `max_depth` levels, and have MAX_VALUES values at most in all. The work is linear
    in the size of `body`. Raises MalformedJson.
    """
    text = _decode_utf8(body)
    _refuse_depth(body, max_depth)
    if has_too_many_values(body):
        raise MalformedJson(JsonFault.TOO_MANY_VALUES)
    value = _read(text)
    if _MAY_HIDE_A_CHARACTER.search(body):
        _refuse_characters(value)
    return value


def canonical(value: JsonValue) -> bytes:
    """Return the canonical JSON of `value` for digests: names sorted by code point, no spaces, UTF-8.

    Integers and floats stay distinct (1 and 1.0 differ). Raises ValueError for values that `parse` refuses: NaN, an infinity
    or a lone surrogate.
    """
    return _canonical(value).encode("utf-8")


# json.dumps would create an encoder for every value.
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


# Only escapes can produce NUL and surrogates: the JSON parser refuses a raw NUL, the UTF-8 decoder a raw surrogate. An
# escaped backslash before the `u` makes a false match. The check of all values decides; this search spares most bodies
# that check.
_MAY_HIDE_A_CHARACTER = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_SURROGATE = re.compile("[\ud800-\udfff]")

# The closing quote is optional and the quantifiers are possessive: an unterminated string must not be matched again from
# each of its escaped quotes, which would take quadratic time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: one level down, one level up
_BEFORE_A_VALUE = (b",", b"[", b"{")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _decode_utf8(body: bytes) -> str:
    if not body.strip(b" \t\r\n"):
        raise MalformedJson(JsonFault.EMPTY)
    if body.startswith(b"\xef\xbb\xbf"):
        raise MalformedJson(JsonFault.BYTE_ORDER_MARK)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        reason = JsonFault.NOT_UTF8
    # Raised outside of the handler: a UnicodeDecodeError holds the body, and would become this error's context.
    raise MalformedJson(reason)


def _refuse_depth(body: bytes, max_depth: int) -> None:
    """Count the nesting before the recursive parser runs: the parser's own limit differs between versions of Python.

    Up to its first syntax error, where it stops, a parser splits the body into the same strings and brackets.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    brackets = _STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS)
    if max(accumulate(array("b", brackets)), default=0) > max_depth:
        raise MalformedJson(JsonFault.TOO_DEEP)


def has_too_many_values(body: bytes, at_most: int = MAX_VALUES) -> bool:
    """Return whether a body has too many values, before parsing it: each follows a comma or a bracket, except a lone scalar.

    Parsing values takes much longer than parsing text, and blocks all other threads: 4 MiB of small arrays take 2 seconds.
    """
    if sum(map(body.count, _BEFORE_A_VALUE)) <= at_most:
        return False
    # A value has at most two strings, its name and itself. Counting the quotes first avoids matching a million strings.
    if body.count(b'"') - body.count(b'\\"') > 4 * at_most:
        return True
    without_strings = _STRING.sub(b"", body)
    return sum(map(without_strings.count, _BEFORE_A_VALUE)) > at_most


def _read(text: str) -> JsonValue:
    try:
        value: JsonValue = _DECODER.decode(text)
        return value
    except json.JSONDecodeError:
        reason = JsonFault.NOT_JSON
    except RecursionError:  # the caller's own stack is deep, or `max_depth` exceeds the interpreter's limit
        reason = JsonFault.TOO_DEEP
    # Raised outside of the handler, because a JSONDecodeError holds the whole text.
    raise MalformedJson(reason)


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises MalformedJson if a name occurs twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedJson(JsonFault.DUPLICATE_MEMBER)
    return members


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS and len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise MalformedJson(JsonFault.NUMBER_TOO_LONG)
    return int(digits)


def _real(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise MalformedJson(JsonFault.NOT_FINITE_NUMBER)
    return number


def _constant(_name: str) -> NoReturn:
    raise MalformedJson(JsonFault.NOT_FINITE_NUMBER)


# The C scanner reads strings and structure; it calls Python only for objects and numbers.
_DECODER = json.JSONDecoder(
    object_pairs_hook=unique_members, parse_int=_integer, parse_float=_real, parse_constant=_constant
)


def _refuse_characters(value: JsonValue) -> None:
    """Refuse forbidden characters in strings and names; the recursion is bounded, since the depth was checked."""
    if isinstance(value, str):
        _refuse_text(value)
    elif isinstance(value, list):
        for item in value:
            _refuse_characters(item)
    elif isinstance(value, dict):
        for name, member in value.items():
            _refuse_text(name)
            _refuse_characters(member)


def _refuse_text(text: str) -> None:
    if "\0" in text:
        raise MalformedJson(JsonFault.NUL_CHARACTER)
    if _SURROGATE.search(text):
        raise MalformedJson(JsonFault.LONE_SURROGATE)
