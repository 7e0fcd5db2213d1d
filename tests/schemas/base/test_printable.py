"""Text for terminals: every unprintable character is replaced by an escape sequence that JSON can read."""

import json

import pytest

from schemas.base.printable import printable

EVERYTHING = "".join(map(chr, range(0x110000)))


def test_json_with_escapes_parses_to_the_same_value_and_holds_nothing_unprintable() -> None:
    for start in range(0, len(EVERYTHING), 0x1000):
        part = EVERYTHING[start : start + 0x1000]
        written = printable(json.dumps(part, ensure_ascii=False))
        assert written.isprintable()
        # JSON joins a surrogate pair; this is the only place where its two halves become adjacent.
        assert json.loads(written) == part.replace("\udbff\udc00", "\U0010fc00")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Änderung 你好 🛒", "Änderung 你好 🛒"),
        ("\x1b[2J\x9b2J\x9d0;x\x07", r"\u001b[2J\u009b2J\u009d0;x\u0007"),
        ("a\x7f\u200b\u202eb", r"a\u007f\u200b\u202eb"),
        ("\U000e0041", r"\udb40\udc41"),
        ("\ud800", r"\ud800"),
        ("a\nb\tc", r"a\u000ab\u0009c"),
    ],
)
def test_control_and_invisible_characters_are_shown_by_their_numbers(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_characters_to_keep_are_not_escaped() -> None:
    assert printable("a\nb\x9b", keep="\n") == "a\nb\\u009b"
