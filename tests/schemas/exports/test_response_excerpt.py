"""The stored excerpt of a receiver's response: enough to see what went wrong, without data that must not be stored."""

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.content_policy.rules import find
from schemas.exports.response_excerpt import MAX_EXCERPT, REDACTED, response_excerpt, without_secret

SECRET: Final = "the secret that signed it"
CARD: Final = "4242 4242 4242 4242"

# Columns: a response body; the stored excerpt.
ANSWERS: Final = [
    (b"", None),
    (b" \r\n\t", None),
    (b"OK\r\n", "OK"),
    (b'{"id": "T-1"}', '{"id": "T-1"}'),
    # Line breaks are kept; characters that terminals or databases cannot handle are not.
    (b"one\ntwo\x00\x1b[31m\xff", "one\ntwo  [31m\N{REPLACEMENT CHARACTER}"),
    # JSON is checked member by member; members with forbidden names are removed with their values.
    (b'{"error": "no", "password": "hunter2 is mine"}', '{"error": "no"}'),
    (b'{"log": ["fine", "Authorization: Bearer 8f3kD92mfK2l0sMz81"]}', f'{{"log": ["fine", "{REDACTED}"]}}'),
    (f'{{"seen": "{CARD}", "at": 3}}'.encode(), f'{{"seen": "{REDACTED}", "at": 3}}'),
    (b'{"customer": {"customer_name": "A", "email": "a@shop.example", "total": "3.50"}}', f'{{"customer": "{REDACTED}"}}'),
    # Other text is checked line by line.
    (b"first\nCookie: session=abcdef0123456789\nlast", f"first\n{REDACTED}\nlast"),
    # Content that is recognized only as a whole is removed as a whole.
    (b"<!doctype html>\n<html>\n<head><title>x</title></head>\n<body>hi</body>\n</html>", REDACTED),
    # Incomplete or invalid JSON is treated as text.
    (b'{"a": 1, ', '{"a": 1,'),
    # A repeated member: the parser would drop the first value without a check.
    (f'{{"seen": "{CARD}", "seen": "nothing"}}'.encode(), REDACTED),
    # Forbidden names are found in incomplete JSON, in JSON within other text or within a JSON string, and in similar syntax.
    (b'{"password": "hunter2 is mine", "log": "' + b"x" * 5000 + b'"}', REDACTED),
    (b'first\nmet {"pin": 1, "password": "hunter2 is mine"}\nlast', f"first\n{REDACTED}\nlast"),
    (b'{"log": "{\\"password\\": \\"hunter2 is mine\\"}", "a": 1}', f'{{"log": "{REDACTED}", "a": 1}}'),
    (b"{'password': 'hunter2 is mine'}", REDACTED),
    (b"{'customer_name': 'A', 'total': '3.50'}", REDACTED),
    # Prose about them is kept.
    (b"It's the password: wrong", "It's the password: wrong"),
]


@pytest.mark.parametrize(("body", "kept"), ANSWERS)
def test_a_response_is_stored_without_forbidden_content(body: bytes, kept: str | None) -> None:
    assert response_excerpt(body) == kept


@pytest.mark.parametrize("secret", [SECRET, 'qu"ote/d & gr\u00fcn+%', "A" * 300])
@pytest.mark.parametrize(
    "spelled",
    [
        lambda secret: secret,
        lambda secret: json.dumps(secret)[1:-1],
        lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1].replace("/", "\\/"),
        html.escape,
        lambda secret: quote(secret, safe=""),
        lambda secret: quote(secret).lower() if secret.islower() else quote_plus(secret),
        lambda secret: secret.encode().hex(),
        lambda secret: secret.encode().hex().upper(),
        lambda secret: b64encode(secret.encode()).decode(),
        lambda secret: b64encode(f"u:{secret}:x".encode()).decode(),
        lambda secret: urlsafe_b64encode(f"?{secret}".encode()).decode(),
    ],
)
def test_an_echoed_signing_secret_is_removed_in_any_encoding(secret: str, spelled: Callable[[str], str]) -> None:
    came_back = spelled(secret)
    answer = without_secret(f'{{"id": "T-1", "expected": "{came_back}, sorry"}}'.encode(), secret).decode()
    # All but the base64 characters that depend on the surrounding text.
    assert not any(came_back[at : at + len(came_back) - 8] in answer for at in range(8))
    assert answer.startswith('{"id": "T-1", ')
    assert REDACTED in answer


def test_a_response_without_the_secret_stays_unchanged() -> None:
    assert without_secret(b'{"id": "T-1"}', SECRET) == b'{"id": "T-1"}'


def test_text_that_moves_into_the_excerpt_by_a_redaction_is_checked_as_a_whole() -> None:
    first = "Cookie: session=abcdef0123456789 " + "word " * 600
    padding = "y" * (2 * MAX_EXCERPT - len(first) - len(CARD) + 2)
    kept = response_excerpt(f"{first}\n{padding} {CARD} and on".encode())
    assert kept == f"{REDACTED}\n{REDACTED}"


def test_two_kib_are_stored_and_a_secret_at_the_limit_is_checked_as_a_whole() -> None:
    assert response_excerpt(b"x" * 100_000) == "x" * MAX_EXCERPT
    assert response_excerpt(("x" + "é" * 5000).encode()) == "x" + "é" * 1023
    padding = "x" * (MAX_EXCERPT - len(CARD) + 3)
    assert response_excerpt(f"{padding} {CARD} and on".encode()) == REDACTED
    assert response_excerpt(f"{padding}\n{CARD}\nand on".encode()) == f"{padding}\n{REDACTED}\nand on"[:MAX_EXCERPT]


def test_deeply_nested_json_is_stored_without_its_inner_levels() -> None:
    deep = "[" * 200 + f'"{CARD}"' + "]" * 200
    kept = response_excerpt(deep.encode())
    assert kept is not None
    assert REDACTED in kept
    assert "4242" not in kept
    assert response_excerpt(b"[" * 100_000) == "[" * MAX_EXCERPT


ODD: Final = st.sampled_from(
    [CARD, "Cookie: session=abcdef0123456789", "password", "x", "", "Authorization: Basic QWxhZGRpbjpvcGVu"]
)


@given(st.recursive(ODD | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(ODD, inner)))
def test_no_forbidden_content_of_any_response_is_stored(value: object) -> None:
    kept = response_excerpt(json.dumps(value).encode())
    assert kept is None or len(kept) == MAX_EXCERPT or not find(read(kept), frozenset())


def read(kept: str) -> object:
    try:
        return json.loads(kept)
    except ValueError:
        return kept


@given(st.binary(max_size=5000))
def test_any_bytes_are_stored_as_text_that_every_database_accepts(body: bytes) -> None:
    kept = response_excerpt(body)
    assert kept is None or (0 < len(kept.encode()) <= MAX_EXCERPT and "\x00" not in kept)


def test_an_unpaired_surrogate_is_stored_as_encodable_text() -> None:
    for beside in ({}, {"session_id": "abcdefabcdef"}):
        kept = response_excerpt(json.dumps({"id": "T-1", "note": "\ud83d", **beside}).encode())
        assert kept is not None
        assert kept.encode()
        assert "T-1" in kept
