"""Parsers of untrusted input return a value or raise their documented error for every input.

The texts are built from pieces that parsers treat specially, because random characters rarely form them. Parsing a result
again does not change it. Time is not measured here: the tests of each parser check the limits that bound it.
"""

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from schemas.base.strict_json import MalformedJson, canonical, parse
from schemas.content_policy.rules import MAX_PROBLEMS, find
from schemas.exports.response_excerpt import MAX_EXCERPT, response_excerpt, without_secret
from schemas.intake.html_text import text_of
from schemas.intake.mail_headers import MAX_ADDRESS, date_from, decoded_words, mailboxes_in
from schemas.url_policy.policy import RefusalReason, TargetPolicy
from schemas.url_policy.target_url import TargetAddress, check_url

#: Pieces with a special meaning for some parser.
PIECES: Final = [
    *(
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        ":",
        ",",
        "\\",
        "\\u0000",
        "\\ud83d",
        "\\ude00",
        "null",
        "1e999",
        "-0.0",
        "NaN",
        "9" * 320,
    ),
    *(
        "<",
        ">",
        "</",
        "<p>",
        "<script>",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "&amp;",
        "&#x41;",
        "&#0;",
        "&#99999999;",
        "<a href=",
    ),
    *("=?utf-8?b?", "=?utf-8?q?", "?=", "=?no-such?q?a?=", "<a@b.example>", '"', "(", ")", ";", "@", "a@b", "\r\n ", "=C3"),
    *(
        "https://",
        "http:",
        "//",
        "user:pw@",
        "[::1]",
        "127.0.0.1",
        "0x7f.1",
        "xn--",
        "%00",
        "%2e",
        ":443",
        ":99999",
        "#",
        "?",
        "/../",
    ),
    *(
        "password",
        "Authorization: Bearer ",
        "Cookie: a=b",
        "4242 4242 4242 4242",
        "eyJhbGciOi",
        "-----BEGIN PRIVATE KEY-----",
        "JTJG",
    ),
    *(
        "2026-03-01T12:00:00Z",
        "Sun, 1 Mar 2026 12:00:00 +2400",
        "\ufeff",
        "\u202e",
        "\u2028",
        "\x85",
        "\x00",
        "é",
        "\U0001f600",
    ),
]
TEXTS: Final = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=30).map("".join)
BYTES: Final = st.binary(max_size=60) | TEXTS.map(lambda text: text.encode(errors="replace"))
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


@given(BYTES)
def test_bytes_are_parsed_as_strict_json_or_rejected_as_malformed(body: bytes) -> None:
    try:
        value = parse(body)
    except MalformedJson:
        return
    assert canonical(parse(canonical(value))) == canonical(value)


@given(VALUES)
def test_the_search_of_any_value_finds_a_limited_number_of_problems(value: Any) -> None:
    found = find(value, frozenset())
    assert len(found) <= MAX_PROBLEMS
    assert find(value, frozenset()) == found
    # Content that is forbidden in a part is forbidden in the whole.
    assert bool(find([value], frozenset())) == bool(found)


@given(TEXTS)
def test_any_html_becomes_text_of_limited_length(html: str) -> None:
    text = text_of(html)
    assert len(text) <= 8 * len(html) + 8


@given(TEXTS)
def test_any_email_header_is_parsed_or_ignored(header: str) -> None:
    assert isinstance(decoded_words(header), str)
    for mailbox in mailboxes_in(header):
        assert "@" in mailbox.address
        assert len(mailbox.address) <= MAX_ADDRESS
    moment = date_from(header)
    assert moment is None or moment.utcoffset() is not None


@given(TEXTS)
def test_any_text_is_accepted_as_a_target_address_or_refused_with_a_reason(text: str) -> None:
    verdict = check_url(text, TargetPolicy())
    assert isinstance(verdict, TargetAddress | RefusalReason)
    if isinstance(verdict, TargetAddress):
        assert verdict == check_url(text, TargetPolicy())


@given(BYTES, st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=20))
def test_the_excerpt_of_any_response_is_limited_and_without_the_signing_secret(body: bytes, secret: str) -> None:
    kept = response_excerpt(without_secret(body + secret.encode() + body, secret))
    if kept is not None:
        assert len(kept) <= MAX_EXCERPT
        assert "\x00" not in kept
        assert secret not in kept
