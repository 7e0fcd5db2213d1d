"""A page has one key for all spellings of its URL and all links to it; different pages have different keys."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.intake.page_url import MAX_PARAMETERS, page_key

#: Two URLs of one page.
SAME = [
    ("HTTPS://Shop.Example/cart", "https://shop.example/cart"),  # the case of scheme and host
    ("https://shop.example:443/cart", "https://shop.example/cart"),  # the default port
    ("http://shop.example:80/cart", "http://shop.example/cart"),
    ("https://shop.example:/cart", "https://shop.example/cart"),  # an empty port
    ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
    ("https://shop.example./cart", "https://shop.example/cart"),  # a trailing dot
    ("https://shop.example", "https://shop.example/"),  # an empty path
    ("https://shop.example/cart/", "https://shop.example/cart"),  # a trailing slash
    ("https://shop.example/cart#top", "https://shop.example/cart"),  # a fragment
    ("https://shop.example/cart#:~:text=total", "https://shop.example/cart"),  # a text fragment from a search engine
    ("https://shop.example/cart?", "https://shop.example/cart"),  # an empty query
    ("https://shop.example/?a=1&&b=2&", "https://shop.example/?a=1&b=2"),  # empty parameters
    ("https://shop.example/?b=2&a=1", "https://shop.example/?a=1&b=2"),  # the order of parameters
    ("https://shop.example/%7eann/%61", "https://shop.example/~ann/a"),  # unnecessary escapes
    ("https://shop.example/caf%c3%a9", "https://shop.example/caf%C3%A9"),  # the case of escapes
    ("https://shop.example/café", "https://shop.example/caf%C3%A9"),  # a missing escape
    ("https://shop.example/?q=red+shoes", "https://shop.example/?q=red%20shoes"),  # two encodings of a space
    (" https://shop.example/ ", "https://shop.example/"),
    ("https://shop.example/a;jsessionid=1F2E.node1?x=1", "https://shop.example/a?x=1"),  # a Java session in the path
    ("https://shop.example/a;JSESSIONID=1F2E/b", "https://shop.example/a/b"),
    ("https://shop.example/(S(lit3py55t21z5v55vlm25s55))/a", "https://shop.example/a"),  # an ASP.NET session
    ("https://shop.example/?PHPSESSID=1&x=1", "https://shop.example/?x=1"),
    ("https://shop.example/?sid=0e7d4b2f9a1c4e6d8b3f5a7c9e1d2b4f", "https://shop.example/"),  # a session by its value
    ("https://shop.example/p?_=1700000000000", "https://shop.example/p"),  # jQuery's cache buster
    ("https://shop.example/p?_", "https://shop.example/p"),
    *(
        (f"https://shop.example/p?id=7&{name}=x%2Fy", "https://shop.example/p?id=7")
        for name in ("utm_source", "UTM_Campaign", "utm_anything", "gclid", "fbclid", "msclkid", "mc_cid", "mc_eid", "_ga")
    ),
    *(
        (f"https://shop.example/p?{name}=1&id=7", "https://shop.example/p?id=7")
        for name in ("gbraid", "srsltid", "_hsenc", "pk_campaign", "mtm_kwd", "_pos", "nocache", "twclid", "%75tm_source")
    ),
]

#: Two similar URLs of different pages.
DIFFERENT = [
    ("http://shop.example/", "https://shop.example/"),
    ("https://shop.example/", "https://www.shop.example/"),
    ("https://shop.example/", "https://shop.example:8443/"),
    ("https://shop.example:80/", "https://shop.example/"),  # the default port of another scheme
    ("https://shop.example/Cart", "https://shop.example/cart"),  # paths are case-sensitive
    ("https://shop.example/a//", "https://shop.example/a"),  # only one trailing slash is ignored
    ("https://shop.example/a%2Fb", "https://shop.example/a/b"),  # reserved characters have a different meaning when escaped
    ("https://shop.example/%25", "https://shop.example/%"),
    ("https://shop.example/?v=1", "https://shop.example/?v=2"),  # a video or a variant
    ("https://shop.example/?page=1", "https://shop.example/?page=2"),
    ("https://shop.example/?ref=a", "https://shop.example/"),  # its meaning depends on the site
    ("https://shop.example/?t=1", "https://shop.example/"),
    ("https://shop.example/?_=news", "https://shop.example/"),  # not a number, so not a cache buster
    ("https://shop.example/?sid=12", "https://shop.example/?sid=13"),  # a section or a story
    ("https://shop.example/?session_id=intro-to-python-3-2026", "https://shop.example/?session_id=closing"),
    ("https://shop.example/?utm=1", "https://shop.example/"),  # not one of the tracking parameters
    ("https://shop.example/?pk_product=1", "https://shop.example/?pk_product=2"),
    ("https://shop.example/?a=1&a=2", "https://shop.example/?a=2&a=1"),  # the order of one parameter's values matters
    ("https://shop.example/?a", "https://shop.example/?a="),
    ("https://shop.example/?a=B", "https://shop.example/?a=b"),
    ("https://shop.example/?q=a%2Bb", "https://shop.example/?q=a+b"),  # a plus sign
    ("https://shop.example/?q=a%26b", "https://shop.example/?q=a&b"),
    ("https://shop.example/#/cart", "https://shop.example/#/checkout"),  # pages of a single-page application
    ("https://shop.example/#!/cart", "https://shop.example/"),
    ("https://shop.example/;v=1", "https://shop.example/;v=2"),
    ("https://ann@shop.example/", "https://bob@shop.example/"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equivalent_urls_have_the_same_key(one: str, other: str) -> None:
    assert page_key(one) == page_key(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_pages_have_different_keys(one: str, other: str) -> None:
    assert page_key(one) != page_key(other)


@pytest.mark.parametrize("url", ["http://[::1", "http://ex\u2100.com/"])
def test_a_url_that_cannot_be_parsed_is_its_own_key(url: str) -> None:
    assert page_key(url) == url


words = st.text("abcXYZ019-._~%/é", max_size=12)
members = st.lists(st.tuples(st.sampled_from("abcdefgh"), words), max_size=6, unique_by=lambda member: member[0])


def written(path: str, pairs: list[tuple[str, str]]) -> str:
    return f"https://shop.example/{path}?" + "&".join(f"{name}={value}" for name, value in pairs)


@given(words, members, st.randoms(use_true_random=False))
def test_neither_order_nor_tags_change_a_key(path: str, pairs: list[tuple[str, str]], chance: object) -> None:
    turned = [*pairs, ("utm_source", "news"), ("fbclid", "x")]
    chance.shuffle(turned)  # type: ignore[attr-defined]  # a random.Random
    assert page_key(written(path, turned)) == page_key(written(path, pairs))


@given(st.text(max_size=60) | st.from_regex(r"https?://[a-z]{1,5}(:[0-9]{1,5})?/[ -~]{0,40}", fullmatch=True))
def test_any_text_has_a_key(url: str) -> None:
    assert page_key(f" {url} ") == page_key(url)


@pytest.mark.parametrize(
    "unit", ["%", "%4", "é", "«", "&a", "a=1&", ";jsessionid=", "/(S(", ":", "[", "sid=1a-", "/", "#", "@"]
)
@pytest.mark.parametrize(
    "before", ["https://", "https://shop.example/", "https://shop.example/?sid=", "https://shop.example/#/"]
)
def test_any_url_of_the_largest_size_is_normalized_quickly(before: str, unit: str) -> None:
    url = (before + unit * 65_536)[:65_536]
    began = time.process_time()
    page_key(url)
    assert time.process_time() - began < 5


def test_a_query_of_very_many_parameters_is_kept_as_it_is() -> None:
    many = "&".join(["b=1", "utm_source=x", *["a=%7e"] * MAX_PARAMETERS])
    assert page_key(f"https://shop.example/?{many}") == f"https://shop.example/?{many.replace('%7e', '~')}"
