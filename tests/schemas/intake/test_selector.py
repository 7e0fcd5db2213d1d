"""A location is recognized after a new build or another visit, and distinct locations are never confused."""

import re
import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.intake.selector import MAX_PARTS, stable_selector

#: Two spellings of exactly the same location.
SAME_SPELLING = [
    ("main>img", "main > img"),  # space around combinators
    ("  main   >\n img ", "main > img"),
    ("ul+p~a", "ul + p ~ a"),
    ("h1,h2", "h1 , h2"),
    ("DIV > P.Note", "div > p.Note"),  # the case of tag names, as in tagName
    ("MY-WIDGET > a", "my-widget > a"),
    ("a.b.c", "a.c.b"),  # the order of classes
    ("a.b.b", "a.b"),
    ("a.b#c", "a#c.b"),
    ("*.note", ".note"),
    ("[href='/x']", '[href="/x"]'),  # the kind of quotes
    ("[type=text]", '[type="text"]'),
    ("[ TYPE = 'text' I ]", '[type="text" i]'),
    ("li:nth-child( 2n + 1 )", "li:nth-child(2n+1)"),
    ("a:NOT( .b )", "a:not(.b)"),
    (r"#\31 23", r"#\31  23"),  # one space ends an escape
    (r".md\:flex", r".md\3a flex"),  # two escapes of one character
    ("/HTML/BODY/DIV[ 2 ]", "/html/body/div[2]"),  # XPath
    ("//*[@id='x']", '//*[@id = "x"]'),
    ("//a[contains(@href, '/x')]", '//a[contains(@href,"/x")]'),
    ("the  second\tpicture", "the second picture"),  # a description in words
]

#: Two selectors of one location, before and after a new build of the site or in two visits.
SAME_PLACE = [
    (".Button_root__a8F3k > a", ".Button_root__x9Zq2 > a"),  # CSS modules
    ("._root_1x2y3_1", "._root_9kq8b_14"),  # CSS modules of Vite
    (".nav-module--link--a8f3k", ".nav-module--link--0c1d2"),  # CSS modules of Gatsby
    (".sc-abc123", ".sc-bdvvtL-0"),  # styled-components
    ("p.sc-bdvvtL.fQkvLM", "p.sc-gsnTZi.kXyzAb"),
    (".css-1q2w3e4", ".css-9z8y7x6"),  # Emotion
    (".css-1q2w3e4-Label", ".css-0kq8b-Label"),
    (".svelte-1a2b3c > a", ".svelte-9z8y7x > a"),
    (".jsx-1234567890", ".jsx-987654321"),
    (".makeStyles-root-12", ".makeStyles-root-7"),
    (".MuiButton-root-12", ".MuiButton-root-9"),
    ("[_ngcontent-xyz-c12] > p", "[_ngcontent-abc-c7] > p"),  # Angular
    ("a[data-v-7ba5bd90]", "a[data-v-00c0ffee]"),  # Vue
    (r"#\:r1\:", r"#\:r2f\:"),  # React IDs, escaped for CSS
    ("#:r1:", "#:R1ab6:"),  # React IDs without escapes, as scanners report them
    ("#radix-:r1:-trigger", "#radix-:r7:-trigger"),
    ("label[for='«r3»']", "label[for='«rb»']"),
    ("#_r_1_", "#_r_2f_"),
    ("#ember123 > a", "#ember456 > a"),
    ("#ext-gen1001", "#ext-gen17"),
    ("#ui-id-3", "#ui-id-12"),
    ("#mat-input-3", "#mat-input-4"),
    ("#react-select-2-input", "#react-select-3-input"),
    ("#popover123456", "#popover654321"),
    ("#f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "#0b7f6b0e-1f5e-4a43-9f6f-2f1a0a9d8c7b"),  # UUIDs
    ("#row-f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "#row-0b7f6b0e-1f5e-4a43-9f6f-2f1a0a9d8c7b"),
    ("//*[@id='ember12']/a", "//*[@id='ember99']/a"),
    ("//div[@class='card css-1q2w3e4 is-open']", "//div[@class='css-9z8y7x6 card']"),
    ("li.is-active > a", "li > a"),  # state that depends on the visit
    ("a.link.hover", "a.link"),
    ("a.link.focus.isOpen.hasFocus", "a.link"),
    ("img.hero.lazyloaded", "img.hero.lazyload"),
    (".tab.tab--active", ".tab"),
    (".swiper-slide.swiper-slide-active", ".swiper-slide"),
    ("input.name.ng-untouched.ng-pristine.ng-invalid", "input.name.ng-touched.ng-dirty.ng-valid"),
    ("https://cdn.example/app.js?utm_source=x", "https://cdn.example/app.js"),  # a URL, normalized like that of a page
]

#: Distinct locations: any two of a row must differ.
DIFFERENT = [
    ("p", "p p", "p > p", "p + p", "p ~ p", "p, p"),  # structure
    ("li:nth-child(1)", "li:nth-child(2)", "li:nth-child(2n)", "li:nth-last-child(2)", "li"),  # positions
    ("/html/body/div", "/html/body/div[1]", "/html/body/div[2]", "/html/body//div"),
    ("a", "a:hover", "a:focus", "a::before", "a:not(.b)"),  # a selector that names a state
    (".note", ".Note", "#note", "note-note", "[note]"),  # plain names, which are case-sensitive
    (".card", ".card__title", ".card__text", ".card--large", ".card__titleText"),  # human-readable names of parts of blocks
    (".col-1", ".col-2", ".col-12", ".h1", ".h2", ".mt-4", ".w-1\\/2"),  # utility classes
    (".btn-primary", ".btn-secondary", ".is-primary", ".is-large", ".has-icon"),  # not states, although they look like it
    (".sc-button", ".sc-container"),  # a prefix that is also used in normal names
    (".ratio--16by9", ".ratio--21by9", ".grid--2xl", ".grid--col12"),
    (".active", ".open", ".loading"),  # the only distinguishing feature
    ("#item-1", "#item-2", "#item-12345", "#item-12346"),  # numbered items
    ("#product-5f2b8c", "#product-5f2b8d"),
    ("[href='/a']", "[href='/b']", "[href^='/a']", "[href]", "[title='/a']"),
    ("[data-id='css-1q2w3e4']", "[data-id='css-9z8y7x6']"),  # values that do not name an element are kept
    ("[class='active']", "[class='open']", "[class]"),
    (r"#a\.b", "#a.b"),  # an escaped dot is part of the name
    ("/assets/App.js", "/assets/app.js"),  # a file name is not an XPath
    ("/A/b", "/a/b"),
    ("app.js:1", "app.js:2"),
    ("Set-Cookie: a", "Set-Cookie: A"),
    ("app.min.js", "app.js.min"),
    ("settings.active", "settings.open", "settings.hover", "settings"),  # not a selector: there is no tag "settings"
    ("line 12", "line 13"),
    ("12:5", "12:6", "1:25"),
    ("", "html", "body"),
    ("https://cdn.example/a.js", "https://cdn.example/b.js", "https://cdn.example/a.js?v=2"),
]


@pytest.mark.parametrize(("one", "other"), SAME_SPELLING)
def test_a_location_has_one_normalized_form(one: str, other: str) -> None:
    assert stable_selector(one) == stable_selector(other)


@pytest.mark.parametrize(("one", "other"), SAME_PLACE)
def test_a_location_is_recognized_after_a_build_and_a_visit(one: str, other: str) -> None:
    assert stable_selector(one) == stable_selector(other)


@pytest.mark.parametrize("places", DIFFERENT, ids=lambda places: places[0])
def test_distinct_locations_stay_distinct(places: tuple[str, ...]) -> None:
    assert [pair for pair in combinations(places, 2) if stable_selector(pair[0]) == stable_selector(pair[1])] == []


@pytest.mark.parametrize(
    ("location", "lasting"),
    [
        ("main > img.hero", "main > img.hero"),
        ("div.Card_title__x7Fq2:nth-child(2) > a.is-active", "div.Card_title_*:nth-child(2) > a"),
        ("#radix-:r1:-trigger", "#radix-*-trigger"),
        (".is-active", ".is-active"),
        ("* > .css-1q2w3e4", "* > .css-*"),
    ],
)
def test_a_description_in_words_is_not_changed_by_normalization(location: str, lasting: str) -> None:
    assert stable_selector(location) == lasting


NAMES = st.from_regex(r"[a-z]{2,8}(-[a-z]{2,8})?", fullmatch=True).filter(
    lambda name: not re.match("css-|svelte-|astro-", name)
)
TAGS = st.sampled_from(["div", "p", "a", "main", "section", "li"])
COMPOUNDS = st.builds(
    lambda tag, names, nth: tag + "".join(f".{name}" for name in names) + (f":nth-child({nth})" if nth else ""),
    TAGS,
    st.lists(NAMES.filter(lambda name: stable_selector(f"p.{name}") == f"p.{name}"), max_size=2, unique=True).map(sorted),
    st.integers(0, 9),
)
SELECTORS = st.lists(COMPOUNDS, min_size=1, max_size=5).map(" > ".join)


@given(SELECTORS)
def test_a_selector_of_plain_names_is_its_own_key(selector: str) -> None:
    assert stable_selector(selector) == selector


@given(SELECTORS, st.sampled_from(["is-active", "hover", "lazyloaded", "hasFocus"]))
def test_a_class_for_a_state_does_not_change_a_selector(selector: str, state: str) -> None:
    head, _, last = selector.rpartition(" > ")
    tag = re.match("[a-z]+", last)
    assert tag is not None
    touched = f"{head} > " * bool(head) + f"{tag[0]}.{state}{last[tag.end() :]}"
    assert stable_selector(touched) == selector


@pytest.mark.parametrize("code", ["0", "d800", "dfff", "110000", "ffffff"])
def test_an_escape_of_no_valid_character_becomes_the_replacement_character(code: str) -> None:
    assert stable_selector(rf"#a\{code} b") == stable_selector("#a\ufffdb")
    stable_selector(rf".x [title='\{code}']").encode()


@given(st.text(max_size=80) | st.text("ab.#[]()>+~,:*='\"\\ /@1_-:r", max_size=60))
def test_any_text_has_a_selector_key(text: str) -> None:
    assert stable_selector(f" {text} ") == stable_selector(text)


UNITS = [
    "a",
    "_",
    "__",
    "--",
    ":",
    ".",
    "#",
    "[",
    "]",
    "(",
    "'",
    "\\",
    " ",
    ">",
    "/",
    "*",
    ":r",
    "«",
    "[a=",
    ".a",
    "a b ",
    "/a[",
    "é",
]
UNITS += ["_a_", "mat-", "data-v-", "\\41 ", ".css-", ":not(", "/div[1]", "x__", "550e8400-"]


@pytest.mark.parametrize("unit", UNITS)
def test_any_selector_of_the_largest_size_is_normalized_quickly(unit: str) -> None:
    for before in ("", ".", "#", "[a='", "/html/", "//a[", "p.sc-x.", ".mat-", "[class='", ":not("):
        text = (before + unit * 65_536)[:65_536] + "!"
        began = time.process_time()
        stable_selector(text)
        assert time.process_time() - began < 5, (before, unit)


@pytest.mark.parametrize("part", [".is-active", " > DIV", "#a", "[B]", ":HOVER", " li,", "/DIV[1]", "+p", ".-"])
def test_a_location_of_very_many_parts_is_compared_as_it_is(part: str) -> None:
    very_long = "html" + part * (MAX_PARTS + 1) + "a"
    assert stable_selector(very_long) == " ".join(very_long.split())


def test_a_deep_location_is_normalized() -> None:
    depth = MAX_PARTS // len((">DIV", ".b", ":nth-child"))
    assert stable_selector("html" + ">DIV.b:nth-child(2)" * depth) == "html" + " > div.b:nth-child(2)" * depth
