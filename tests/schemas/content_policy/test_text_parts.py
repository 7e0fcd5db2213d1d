"""The parts of a joined text that need a closer check, and the decoded forms of a text."""

from base64 import b64encode

import pytest

from schemas.content_policy.encoded_text import once_decoded
from schemas.content_policy.text_parts import (
    MIN_RUN,
    alphabet,
    beyond_ascii,
    folded,
    joined,
    long_runs,
    parts_with,
    parts_with_digits,
    parts_with_run,
)

LETTERS = alphabet("-")
RUN = "a" * MIN_RUN


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (["words", RUN, "more words", f"x {RUN} y", "end"], [RUN, f"x {RUN} y"]),
        ([RUN], [RUN]),
        ([RUN, RUN], [RUN, RUN]),
        (["words", "Zoë " + RUN], ["Zo? " + RUN]),
        ([RUN[1:]], []),
        ([f"{RUN[2:]} {RUN[2:]}"], []),
        ([f"{RUN[5:]}_{RUN[5:]}"], []),
        ([f"{RUN[5:]}-{RUN[5:]}", "words"], [f"{RUN[5:]}-{RUN[5:]}"]),
        (["words"], []),
        ([], []),
    ],
)
def test_only_parts_with_a_long_run_are_kept(texts: list[str], kept: list[str]) -> None:
    found = parts_with_run(joined(texts), LETTERS)
    assert [part.strip("\n").replace("ë", "?") for part in found.split("\0") if part.strip("\n")] == kept


def test_long_runs_are_returned_in_their_order() -> None:
    assert long_runs(f"b{RUN} short {RUN}-1.x", LETTERS) == [f"b{RUN}".encode(), f"{RUN}-1".encode()]
    assert long_runs(RUN[1:], LETTERS) == []


@pytest.mark.parametrize(
    ("texts", "at_least", "kept"),
    [
        (["12", "1a2b3", "1234"], 3, "1a2b3\n\n\0\n\n1234"),
        (["12"], 2, "12"),
        (["12"], 3, ""),
        (["٣٤", "x"], 2, "34"),
        (["३४ and é²"], 2, "34 and é²"),
    ],
)
def test_parts_with_enough_digits_of_any_script_are_kept(texts: list[str], at_least: int, kept: str) -> None:
    assert parts_with_digits(joined(texts), at_least).strip("\n") == kept


def test_parts_with_a_mark_are_kept() -> None:
    assert parts_with(joined(["50%", "none", "%41"]), "%") == "50%\n\n\0\n\n%41"
    assert parts_with("none", "%") == ""


def test_folding_keeps_the_length_of_a_text() -> None:
    assert folded("\u0130STANBUL \u00c9") == "istanbul \u00e9"
    assert len(folded("\u0130" * 5)) == 5


def test_text_beyond_ascii_is_recognized() -> None:
    assert beyond_ascii("Zoë 5€\x7f") == "ë€"
    assert beyond_ascii("plain") == ""


WORDS = "postgres://app:hunter22@db"


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("plain words", []),
        ("%41b and %zz", ["Ab and %zz"]),
        ("100% of it", []),
        ("&#65;&#x42;&amp;c", ["AB&c"]),
        ("AT&T; R&D", []),
        ("&#12345678901;", ["\ufffd1;"]),  # at most ten digits
        ("&amp &lt;", ["&amp <"]),
        (b64encode(WORDS.encode()).decode(), [WORDS]),
        (b64encode(WORDS.encode()).decode().rstrip("="), [WORDS]),
        (b64encode(WORDS.encode() + b"!").decode() + "x", [WORDS + "!"]),  # an incomplete last character
        (f"/{'x' * 10}/{b64encode(WORDS.encode()).decode()}", [WORDS]),
        (b64encode(b"\xff" * 30).decode(), []),
        (b64encode(b"too short").decode(), []),
        ("a\u200bb", ["ab"]),
        ("%41\u200b", ["%41", "A\u200b", "A"]),
    ],
)
def test_each_encoding_of_a_text_is_undone_once(text: str, decoded: list[str]) -> None:
    assert list(once_decoded(text)) == decoded
