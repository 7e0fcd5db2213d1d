"""What is kept of a receiver's answer: enough to see what went wrong, nothing that must never be stored."""

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.forbidden import find
from schemas.kept_answer import MAX_KEPT, REDACTED, kept_answer

SECRET: Final = "the secret that signed it"
CARD: Final = "4242 4242 4242 4242"

# what the receiver said, what is kept
ANSWERS: Final = [
    (b"", None),
    (b" \r\n\t", None),
    (b"OK\r\n", "OK"),
    (b'{"id": "T-1"}', '{"id": "T-1"}'),
    # lines stay lines; what a terminal or a database would stumble over does not
    (b"one\ntwo\x00\x1b[31m\xff", "one\ntwo  [31m\N{REPLACEMENT CHARACTER}"),
    # JSON, member by member: names that say enough go with their values
    (b'{"error": "no", "password": "hunter2 is mine"}', '{"error": "no"}'),
    (b'{"log": ["fine", "Authorization: Bearer 8f3kD92mfK2l0sMz81"]}', f'{{"log": ["fine", "{REDACTED}"]}}'),
    (f'{{"seen": "{CARD}", "at": 3}}'.encode(), f'{{"seen": "{REDACTED}", "at": 3}}'),
    (b'{"customer": {"customer_name": "A", "email": "a@shop.example", "total": "3.50"}}', f'{{"customer": "{REDACTED}"}}'),
    # other text, line by line
    (b"first\nCookie: session=abcdef0123456789\nlast", f"first\n{REDACTED}\nlast"),
    # what only the whole gives away takes the whole away
    (b"<!doctype html>\n<html>\n<head><title>x</title></head>\n<body>hi</body>\n</html>", REDACTED),
    # JSON that is cut or wrong is text
    (b'{"a": 1, ', '{"a": 1,'),
    # the request that came back
    (f"expected {SECRET}, sorry".encode(), f"expected {REDACTED}, sorry"),
]


@pytest.mark.parametrize(("body", "kept"), ANSWERS)
def test_an_answer_is_kept_without_what_must_never_be_stored(body: bytes, kept: str | None) -> None:
    assert kept_answer(body, SECRET) == kept


def test_two_kib_are_kept_and_a_secret_at_the_edge_is_seen_whole() -> None:
    assert kept_answer(b"x" * 100_000) == "x" * MAX_KEPT
    padding = "x" * (MAX_KEPT - len(CARD) + 3)
    assert kept_answer(f"{padding} {CARD} and on".encode()) == REDACTED
    assert kept_answer(f"{padding}\n{CARD}\nand on".encode()) == f"{padding}\n{REDACTED}\nand on"[:MAX_KEPT]


def test_what_is_nested_without_end_is_kept_without_its_depths() -> None:
    deep = "[" * 200 + f'"{CARD}"' + "]" * 200
    kept = kept_answer(deep.encode())
    assert kept is not None
    assert REDACTED in kept
    assert "4242" not in kept
    assert kept_answer(b"[" * 100_000) == "[" * MAX_KEPT


ODD: Final = st.sampled_from(
    [CARD, "Cookie: session=abcdef0123456789", "password", "x", "", "Authorization: Basic QWxhZGRpbjpvcGVu"]
)


@given(st.recursive(ODD | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(ODD, inner)))
def test_whatever_comes_nothing_forbidden_is_kept(value: object) -> None:
    kept = kept_answer(json.dumps(value).encode())
    assert kept is None or len(kept) == MAX_KEPT or not find(read(kept), frozenset())


def read(kept: str) -> object:
    try:
        return json.loads(kept)
    except ValueError:
        return kept


@given(st.binary(max_size=5000))
def test_any_bytes_are_kept_as_text_that_every_database_takes(body: bytes) -> None:
    kept = kept_answer(body)
    assert kept is None or (0 < len(kept) <= MAX_KEPT and "\x00" not in kept and kept.encode())
