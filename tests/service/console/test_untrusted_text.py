"""Untrusted text is shown so that it cannot deceive users, and links only to safe addresses."""

import json
import unicodedata

import pytest

from service.console.untrusted_text import SafeLink, pretty, pretty_body, safe_link, visible
from tests.support.corpora import naughty_strings, url_texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Änderung 你好 👩\u200d💻 ❤\ufe0f", "Änderung 你好 👩\u200d💻 ❤\ufe0f"),  # letters of every script, composed emoji
        ("pay\u200bpal \u200d pa\u200cy", "pay[U+200B]pal [U+200D] pa[U+200C]y"),  # invisible characters between letters
        ("می\u200c\u200dخ", "می[U+200C][U+200D]خ"),  # more joiners than a script needs
        ("ok\U000e0068\U000e0069", "ok[U+E0068][U+E0069]"),  # tag characters, which are invisible
        ("a\xad\u3164\u034f", "a[U+00AD][U+3164][U+034F]"),  # a hyphen, a letter and a mark that are invisible
        ("می‌خواهم", "می‌خواهم"),  # a joiner that Persian needs
        ("a\tb\nc", "a\tb\nc"),  # whitespace of layout
        ("invoice\u202egpj.exe", "invoice[U+202E]gpj.exe"),  # reversed order
        ("a\u2066b\u2069c", "a[U+2066]b[U+2069]c"),  # isolates
        ("\u200fa\u061c", "[U+200F]a[U+061C]"),  # direction marks
        ("a\x1b[31mb\x7f\x85", "a[U+001B][31mb[U+007F][U+0085]"),  # terminal sequences
        ("a\rb\r\r\n", "a[U+000D]b[U+000D]\r\n"),  # overwrites the line
        ("a\r\nb", "a\r\nb"),  # the line ends of emails and Windows
        ("a\u2028b\u2029", "a[U+2028]b[U+2029]"),  # other line ends
        ("\ufeffa\u2060", "[U+FEFF]a[U+2060]"),  # zero width
        ("\ud800", "[U+D800]"),  # half of a surrogate pair, which cannot be encoded
    ],
)
def test_invisible_characters_are_shown_by_their_numbers(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_every_character_of_an_invisible_category_is_shown_by_its_number() -> None:
    for number in range(0x110000):
        letter = chr(number)
        is_invisible = unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and letter not in "\t\n"
        if is_invisible or 0xE0000 <= number < 0xE1000:
            assert visible(f"a{letter}b") == f"a[U+{number:04X}]b"
            assert json.loads(pretty(letter)) == letter
            assert pretty(letter).isascii()


@pytest.mark.parametrize(
    ("url", "way"),
    [
        ("https://shop.example/cart?a=1#b", SafeLink("https://shop.example/cart?a=1#b", "shop.example")),
        ("http://shop.example", SafeLink("http://shop.example/", "shop.example")),
        ("https://shop.example:8443?q", SafeLink("https://shop.example:8443?q", "shop.example:8443")),
        ("http://[::1]:80/", SafeLink("http://[::1]:80/", "[::1]:80")),
        ("https://bücher.example/ä", SafeLink("https://xn--bcher-kva.example/ä", "xn--bcher-kva.example")),
        # Cyrillic letters that look like Latin ones.
        (
            "https://\u0430\u0440\u0440\u04cf\u0435.example/",
            SafeLink("https://xn--80ak6aa92e.example/", "xn--80ak6aa92e.example"),
        ),
        ("javascript:alert(1)", None),
        ("JavaScript://shop.example/%0aalert(1)", None),
        ("data:text/html,<script>alert(1)</script>", None),
        ("file:///etc/passwd", None),
        ("ftp://shop.example/", None),
        ("//shop.example/", None),
        ("/console/sign-out", None),
        ("https://bank.example@shop.example/", None),  # looks like the bank
        ("https://bank.example\\@shop.example/", None),  # two hosts, depending on the parser
        ("https:\\\\shop.example/", None),
        ("https:/shop.example/", None),
        ("https://shop.example:99999999/", None),
        ("https://%73hop.example/", None),
        ("https://shop.example/\u202e", None),
        ("https://shop.example/\n", None),
        ("https://shop example/", None),
        ("https://..example/", None),
        ("https://", None),
        ("", None),
        (None, None),
    ],
)
def test_only_an_http_url_with_an_unambiguous_host_becomes_a_link(url: str | None, way: SafeLink | None) -> None:
    assert safe_link(url) == way


def test_untrusted_addresses_become_links_only_as_web_urls_with_an_ascii_host() -> None:
    ways = [way for way in map(safe_link, url_texts()) if way is not None]
    assert ways
    for way in ways:
        assert way.href.startswith((f"http://{way.host}", f"https://{way.host}"))
        assert way.host.isascii()
        assert way.href.isprintable()


def test_naughty_strings_are_shown_unchanged_except_invisible_characters() -> None:
    for text in naughty_strings():
        assert json.loads(pretty({"text": text})) == {"text": text}
        assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a":[1,"\xc3\xa9"]}', '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        ('{"a":"\u202e"}'.encode(), '{\n  "a": "\\u202e"\n}'),
        (b"<html>\x00\xff", "<html>[U+0000]�"),
        (b"", ""),
        (b"[" * 100_000, "[" * 100_000),  # deeper than a parser accepts
        (b"9" * 5_000, "9" * 5_000),  # a number that is too long
    ],
)
def test_a_body_is_shown_as_formatted_json_or_as_text(body: bytes, shown: str) -> None:
    assert pretty_body(body) == shown
