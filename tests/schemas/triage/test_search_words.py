"""The search words and hosts of tickets do not depend on letter case or Unicode form, and are bounded."""

from typing import Any

import pytest

from schemas.triage.search_words import MAX_WORD, MAX_WORDS, hosts_of, words_in, words_of


def ticket(**members: Any) -> dict[str, Any]:
    return {"title": "Title", "description": "", "page_url": None, "evidence": {}, **members}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Image without alternative text", ["image", "without", "alternative", "text"]),
        ("https://Shop.example/cart?step=2", ["https", "shop", "example", "cart", "step", "2"]),
        ("snake_case, it's 50%", ["snake", "case", "it", "s", "50"]),
        ("Straße GRÖSSE ﬁne", ["strasse", "grösse", "fine"]),
        ("cafe\u0301 café", ["café"]),
        ("Привет 你好 ٣", ["привет", "你好", "٣"]),
        ("a a A", ["a"]),
        ('" OR * @17 AND\0', ["or", "17", "and"]),
        ("", []),
        ("x" * 100, ["x" * MAX_WORD]),
    ],
)
def test_words_are_runs_of_letters_and_digits_in_one_case(text: str, words: list[str]) -> None:
    assert words_in(text) == words


def test_a_tickets_words_are_of_its_title_its_urls_and_its_description() -> None:
    places = [{"url": "https://blog.example/7", "location": "main"}, {"location": "x"}, "y", {"url": 3}]
    found = words_of(ticket(page_url="https://a.example/", description="The end", evidence={"places": places, "x": "no"}))
    assert found == "title https a example the end blog 7"


def test_a_tickets_words_are_bounded_and_end_with_a_whole_word() -> None:
    found = words_of(ticket(description=" ".join(f"word{number}" for number in range(10_000))))
    assert MAX_WORDS - MAX_WORD < len(found) <= MAX_WORDS
    assert found.split()[-1].removeprefix("word").isdecimal()
    assert found.split() == words_in(found)


def test_hosts_are_those_of_the_page_and_of_every_place() -> None:
    urls = ["https://B.example:8443/x", "https://a.example/", "http://[::1]/", "https://[", "mailto:x"]
    found = hosts_of(ticket(page_url="https://a.example/", evidence={"places": [{"url": url} for url in urls]}))
    assert found == ("a.example", "b.example", "::1")
    assert hosts_of(ticket()) == ()
    assert hosts_of(ticket(evidence={"places": "https://a.example/"})) == ()
    assert hosts_of(ticket(evidence={"sites": ["a.example", "", 3, "x" * 254]})) == ("a.example",)
    assert hosts_of(ticket(evidence={"sites": {"a.example": 1}})) == ()
