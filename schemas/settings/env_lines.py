"""Finds the lines of `.env` that cannot be read, and names that are set twice: without an error, a value would be lost."""

import logging
import re
from collections.abc import Collection, Iterator
from io import StringIO
from typing import Final

from dotenv.parser import Binding, parse_stream

#: The shape of variable names: all capitals or all small letters, and shorter than a key. Other text may be a secret.
NAME: Final = re.compile(r"(?!.{41})(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*|[a-z]+(?:_[a-z]+)*)")

# dotenv would warn about lines that `line_mistakes` explains.
logging.getLogger("dotenv.main").setLevel(logging.ERROR)


def line_mistakes(text: str, known: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each mistake, with the number of its line and never a value.

    A value in quotes that goes on in the next line is a mistake if its name is one of the `known`: a quote is missing.
    """
    lines: dict[str, int] = {}
    for each in parse_stream(StringIO(text)):
        line = _line(each)
        if each.error or (each.key is not None and each.value is None):
            yield f"Line {line} cannot be read: write NAME=value, and close every quote."
        elif each.key in lines:
            name = each.key if each.key in known or NAME.fullmatch(each.key) else "a name"
            yield f"Line {line} sets {name} again, after line {lines[each.key]}: keep one of them."
        elif each.key is not None:
            lines[each.key] = line
            if each.key in known and "\n" in each.original.string.strip():
                yield f"Line {line} has a quote that is not closed on the same line."


def _line(binding: Binding) -> int:
    """Return the number of a binding's line; the parser counts from the empty lines before it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
