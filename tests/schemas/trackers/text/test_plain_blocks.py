"""Untrusted text stays within its blocks in Jira's wiki markup and in Redmine, whichever text format Redmine uses."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given

from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text import textile, wiki
from schemas.trackers.text.neutral import ZWSP
from tests.support.trackers.texts import (
    PLAIN,
    HtmlTags,
    effects_in_text,
    everywhere,
    html_of,
    recorded_bodies,
    skeleton,
    tickets,
)

LIMIT = 32_767

NOFORMAT: Final = re.compile(r"\{noformat(?::[^}]*)?\}", re.IGNORECASE)
PRE: Final = re.compile("</?(?:pre|code|kbd|notextile)", re.IGNORECASE)
#: Syntax that Redmine recognizes: mentions even in code, the rest where a tag is removed.
REDMINE: Final = {
    "mention": re.compile(r"(?:^|\W)@[a-z0-9_.-]", re.IGNORECASE | re.MULTILINE),
    "number": re.compile(r"#\d|(?:[\s(,\[>|:-]|^)r\d", re.MULTILINE),
    "name": re.compile(r"\b(?:attachment|document|version|forum|news|message|project|commit|source|export|user):[^\s<>]"),
    "page": re.compile(r"\[\["),
    "macro": re.compile(r"\{\{"),
    "image": re.compile(r"(?:^|[\s>])![^\s(!]+!", re.MULTILINE),
    "link": re.compile(r'":\S|\]\(|\]\[|\]:'),
}


def outside(text: str, token: re.Pattern[str]) -> list[str]:
    """Return the text outside of blocks; a token alternately opens and closes a block."""
    return token.split(text)[::2]


def found_by_redmine(text: str) -> set[str]:
    return {name for name, pattern in REDMINE.items() if pattern.search(text)}


def untrusted_blocks(text: str) -> Iterator[str]:
    """Yield the blocks with untrusted text but without URLs of a ticket in Redmine."""
    blocks = re.findall(r"<pre>\n\n(.*?)\n</pre>", text, re.DOTALL)
    yield from (blocks[1], blocks[3])


def is_contained_in_redmine(ticket: TrackerTicket) -> bool:
    made, plain = textile.body_of(ticket, LIMIT), textile.body_of(PLAIN, LIMIT)
    in_textile = outside(made, PRE) == outside(plain, PRE)
    in_markdown = HtmlTags(html_of(made)).tags == HtmlTags(html_of(plain)).tags
    in_older_markdown = skeleton(made, html=False) == skeleton(plain, html=False)
    is_broken = not any(map(found_by_redmine, untrusted_blocks(made))) and "mention" not in found_by_redmine(made)
    return in_textile and in_markdown and in_older_markdown and is_broken


def test_a_ticket_has_its_parts_as_wiki_markup() -> None:
    assert wiki.body_of(PLAIN, LIMIT) == (
        "*Severity:* high\n\n*Page:*\n\n{noformat}\nhttps://shop.example/cart\n{noformat}\n\n"
        "h3. What was found\n\n{noformat}\nWhat is wrong.\n{noformat}\n\n"
        "h3. Places (5)\n\n{noformat}\nhttps://shop.example/cart main > img\nhttps://shop.example/\n"
        "… and 3 more\n{noformat}\n\n"
        'h3. Evidence\n\n{noformat}\n{\n  "rule": "image-alt"\n}\n{noformat}\n\n'
        "[Open this ticket in RiskRelay|https://risk.example/console/exports/exp_01JD0000000000000000000000]\n\n"
        "RiskRelay export exp_01JD0000000000000000000000"
    )


def test_a_ticket_has_its_parts_as_textile() -> None:
    assert textile.body_of(PLAIN, LIMIT).replace(ZWSP, "") == (
        "*Severity:* high\n\n*Page:*\n\n<pre>\n\n    https://shop.example/cart\n</pre>\n\n"
        "*What was found*\n\n<pre>\n\n    What is wrong.\n</pre>\n\n"
        "*Places (5)*\n\n<pre>\n\n    https://shop.example/cart main > img\n    https://shop.example/\n"
        "    … and 3 more\n</pre>\n\n"
        '*Evidence*\n\n<pre>\n\n    {\n      "rule": "image-alt"\n    }\n</pre>\n\n'
        "Open this ticket in RiskRelay: https://risk.example/console/exports/exp_01JD0000000000000000000000\n\n"
        "RiskRelay export exp_01JD0000000000000000000000"
    )


def test_the_urls_of_a_ticket_can_be_copied_from_redmine() -> None:
    assert "\n    https://shop.example/cart main > img\n" in textile.body_of(PLAIN, LIMIT)


@given(tickets())
def test_any_text_stays_in_its_block_in_wiki_markup(ticket: TrackerTicket) -> None:
    made = wiki.body_of(ticket, LIMIT)
    assert outside(made, NOFORMAT) == outside(wiki.body_of(PLAIN, LIMIT), NOFORMAT)
    assert "[~" not in made
    assert not effects_in_text(made) - {"link"}


@given(tickets())
def test_any_text_stays_in_its_block_in_redmine(ticket: TrackerTicket) -> None:
    assert is_contained_in_redmine(ticket)


def test_the_recorded_bodies_stay_in_their_blocks() -> None:
    bodies = {each["name"]: everywhere(each["markdown"]) for each in recorded_bodies()}
    assert [name for name, ticket in bodies.items() if not is_contained_in_redmine(ticket)] == []
    plain = outside(wiki.body_of(PLAIN, LIMIT), NOFORMAT)
    assert [name for name, ticket in bodies.items() if outside(wiki.body_of(ticket, LIMIT), NOFORMAT) != plain] == []


@pytest.mark.parametrize("token", ["{noformat}", "{NOFORMAT}", "{noformat:title=a}", "{{noformat}}", "{no\x00format}"])
def test_a_quoted_token_does_not_end_a_block_of_wiki_markup(token: str) -> None:
    made = wiki.body_of(everywhere(f"a {token} [~victim]"), LIMIT)
    assert outside(made, NOFORMAT) == outside(wiki.body_of(PLAIN, LIMIT), NOFORMAT)


#: Text that ends a block, or is a tag, an entity, a link, a macro, an image or a mention in Redmine.
REDMINE_SYNTAX: Final = [
    *("</pre>", "</PRE >", "a</pre>\n\n@victim", "<redpre#0>", '<code class="ruby">a', "</script>", "<!-- -->", "&lt;b&gt;"),
    *("#1", "##1", "r12", "svn|r12", "shop:r12", "commit:abc", "shop:commit:abc", 'document:"A b"', "attachment:a.png"),
    *("user:victim", "user#2", "@victim", "(@victim)", "message#1", "forum:1", "version:1.0", "source:a/b@1#L2", "export:a"),
    *("{{toc}}", "{{include(a)}}", "[[Page]]", "[[shop:Page|text]]", "!a.png!", "!>a.png!", "!http://evil.example/p.png!:x"),
    *('"a":http://evil.example', '"a":/b', "[a](/b)", "[a]: http://evil.example\n\n[a]", "http://evil.example"),
    *("www.evil.example", "a@b.example", "<http://evil.example>", "<img src=http://evil.example/p.png>", "&copy"),
]


@pytest.mark.parametrize("text", REDMINE_SYNTAX)
def test_no_redmine_syntax_has_an_effect(text: str) -> None:
    assert is_contained_in_redmine(everywhere(text))
    assert is_contained_in_redmine(everywhere(f"a {text} b"))


def test_redmines_limit_is_in_bytes() -> None:
    made = textile.body_of(replace(PLAIN, description="€" * LIMIT), LIMIT)
    assert LIMIT - 100 < len(made.encode()) <= LIMIT


def test_redmines_markdown_shows_tags_and_entities_as_they_were() -> None:
    shown = HtmlTags(html_of(textile.body_of(everywhere("a <b>&amp;</b> &lt;"), LIMIT))).text
    assert "a <b>&amp;</b> &lt;" in shown.replace(ZWSP, "")
