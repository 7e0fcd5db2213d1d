"""Harmless untrusted text stays unchanged, and no untrusted text has an effect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.trackers.text.neutral import ZWSP, cut, encoded, harmless, harmless_title, length, one_line
from tests.support.corpora import naughty_strings
from tests.support.trackers.texts import HOSTILE, effects_in_text, recorded_bodies


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text, as it is: a/b <c> & \"d\" 'e' *f* _g_ é", "plain text, as it is: a/b <c> & \"d\" 'e' *f* _g_ é"),
        ("@victim see #1 and !2", "@|victim see #|1 and !|2"),
        ("owner/pub#2 ![image](x) a@b.example", "owner/pub#|2 !|[image](x) a@|b.example"),
        ("@@##", "@|@|#|#|"),
        ("/close", "|/close"),
        ("a\n/close\n \t/label ~bug\nb /x", "a\n|/close\n| \t/label ~bug\nb /x"),
        ("```\n~~~~\n`a`", "`|`|`\n~|~|~|~\n`a`"),
        ("a\r\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h\x1ci", "a\nb\nc\nd\ne\nf\ng\nh\ni"),
        ("a\r/close\u2028/close", "a\n|/close\n|/close"),
        ("a\x00b\x1bc\x7fd\x9be\tf\n", "abcde\tf\n"),
        ("@\x00victim `\x07``", "@|victim `|`|`"),
        ("\u202egnp.exe\u202c \u2066a\u2069 \u200eb\u200f\u061c", "gnp.exe a b"),
        ("\ud800a\udfff\ufffeb\uffff \ufffd", "ab \ufffd"),
        ("exp_01JD EXP_01jd exp_ expert_1 lexp_1", "exp|_01JD EXP|_01jd exp_ expert_1 lexp|_1"),
        ("@\u200bvictim #\u200b1", "@|victim #|1"),
        ("👩\u200d🚀 e\u0301 \u2060", "👩\u200d🚀 e\u0301 \u2060"),
        ("", ""),
    ],
)
def test_each_rule_separates_characters_that_have_an_effect_together(text: str, expected: str) -> None:
    assert harmless(text).replace(ZWSP, "|") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a \n\t b\u2028c ", "a b c"),
        ("@victim fixes #1", "@|victim fixes #|1"),
        (
            '$1 %1 ~bug &1 ^alert *iteration:1 [vulnerability:1] ~"a b"',
            '$|1 %|1 ~|bug &|1 ^|alert *|iteration:1 [|vulnerability:1] ~|"a b"',
        ),
        ("100% of $ & more ~ here [ ]", "100% of $ & more ~ here [ ]"),
        ("http://evil.example/issues/2", "http:|//evil.example/issues/2"),
        ("\x00/close\x00 a", "|/close a"),
    ],
)
def test_a_title_is_one_line_that_links_nothing(text: str, expected: str) -> None:
    assert harmless_title(text).replace(ZWSP, "|") == expected


@given(HOSTILE | st.text())
def test_text_made_harmless_looks_the_same_has_no_effect_and_is_not_changed_again(text: str) -> None:
    once = harmless(text)
    assert harmless(once) == once
    assert not effects_in_text(once) - {"link"}
    assert not any(line.lstrip(" \t").startswith("/") for line in once.split("\n"))
    assert "``" not in once
    assert "~~" not in once
    visible = "".join(text.replace(ZWSP, "").splitlines())
    removed = set(visible) - set(once)
    assert all(not letter.isprintable() for letter in removed)
    assert "".join(once.replace(ZWSP, "").splitlines()) == "".join(letter for letter in visible if letter not in removed)


@given(HOSTILE | st.text())
def test_any_title_is_one_line_without_effect(text: str) -> None:
    title = harmless_title(text)
    assert not effects_in_text(title) - {"link"}
    assert "://" not in title
    assert title == one_line(title) == harmless_title(title)


def test_every_recorded_body_has_no_effect_even_without_code_around_it() -> None:
    assert [each["name"] for each in recorded_bodies() if effects_in_text(harmless_title(each["markdown"])) - {"link"}] == []


def test_naughty_strings_are_made_harmless() -> None:
    texts = [harmless(text) for text in naughty_strings()]
    assert [text for text in texts if effects_in_text(text) - {"link"} or harmless(text) != text] == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://shop.example/npm/vue@3/x!y`z", "https://shop.example/npm/vue%403/x%21y%60z"),
        ("https://shop.example/?q=a#top", "https://shop.example/?q=a#top"),
        (" a\nb\x00 ", "a b"),
    ],
)
def test_a_url_is_encoded_so_that_it_can_be_copied(url: str, expected: str) -> None:
    assert encoded(url) == expected


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("abc", 1, "…"), ("abc", 0, ""), ("", 0, ""), ("", 3, "")],
)
def test_a_text_is_cut_with_an_ellipsis_within_its_limit(text: str, max_chars: int, expected: str) -> None:
    assert cut(text, max_chars) == expected


@pytest.mark.parametrize(("text", "units"), [("", 0), ("aé", 2), ("…", 1), ("🚀", 2), ("a🚀", 3)])
def test_a_length_is_counted_in_units_of_utf_16(text: str, units: int) -> None:
    assert length(text) == units
