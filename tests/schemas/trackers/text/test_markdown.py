"""A ticket in Markdown is readable, and a real renderer keeps untrusted text within code."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.markdown import body_of, linear_body_of
from schemas.trackers.text.neutral import ZWSP
from tests.support.corpora import naughty_strings
from tests.support.trackers.texts import (
    PLAIN,
    effects,
    effects_in_text,
    everywhere,
    html_of,
    in_code,
    recorded_bodies,
    skeleton,
    tickets,
)

LIMIT = 65_536
#: The elements of our own part of the text.
OURS = {"html", "link"}


def recorded_effects(body: dict[str, Any]) -> set[str]:
    """Return the effects that a body had in a real Gitea."""
    found = {
        "mention": body["mentioned"] or ">@victim</a>" in body["html"],
        "reference": body["cross_references"] or "ref-issue" in body["html"],
        "image": "<img" in body["html"],
        "link": "<a " in body["html"],
    }
    return {name for name, is_found in found.items() if is_found}


def is_contained(ticket: TrackerTicket) -> bool:
    """Return whether the text has the markup of a plain ticket, and untrusted text is in code and without effect."""
    body = body_of(ticket, LIMIT)
    code = "\n".join(in_code(body))
    return (
        skeleton(body) == skeleton(body_of(PLAIN, LIMIT)) and not effects_in_text(code) - {"link"} and effects(body) <= OURS
    )


def test_a_ticket_has_its_parts_as_markdown() -> None:
    assert body_of(PLAIN, LIMIT) == (
        "- **Severity:** high\n"
        "- **Page:** `https://shop.example/cart`\n"
        "\n"
        "### What was found\n"
        "\n"
        "```\n"
        "What is wrong.\n"
        "```\n"
        "\n"
        "### Places (5)\n"
        "\n"
        "- `https://shop.example/cart` `main > img`\n"
        "- `https://shop.example/`\n"
        "- … and 3 more\n"
        "\n"
        "<details>\n"
        "<summary>Evidence</summary>\n"
        "\n"
        "```json\n"
        "{\n"
        '  "rule": "image-alt"\n'
        "}\n"
        "```\n"
        "\n"
        "</details>\n"
        "\n"
        "[Open this ticket in RiskRelay](https://risk.example/console/exports/exp_01JD0000000000000000000000)\n"
        "\n"
        "RiskRelay export exp_01JD0000000000000000000000"
    )


def test_a_renderer_shows_list_fold_link_and_marker() -> None:
    html = html_of(body_of(PLAIN, LIMIT))
    assert "<li><code>https://shop.example/cart</code> <code>main &gt; img</code></li>" in html
    assert '<details>\n<summary>Evidence</summary>\n<pre><code class="language-json">' in html
    assert f'<a href="{PLAIN.console_url}">Open this ticket in RiskRelay</a>' in html
    assert html.endswith(f"<p>RiskRelay export {PLAIN.export_id}</p>\n")


def test_the_simulated_tracker_finds_all_effects_of_the_recorded_ones() -> None:
    missed = {body["name"] for body in recorded_bodies() if recorded_effects(body) and not effects(body["markdown"])}
    assert missed == set()
    contained = {body["name"] for body in recorded_bodies() if not effects(body["markdown"])}
    assert contained >= {"fence", "fence4", "tilde", "indent", "inline", "zwsp_after", "fence_html"}


def test_the_recorded_bodies_are_code_wherever_they_are() -> None:
    assert [body["name"] for body in recorded_bodies() if not is_contained(everywhere(body["markdown"]))] == []


def test_the_recorded_bodies_look_as_they_were() -> None:
    for body in recorded_bodies():
        shown = in_code(body_of(everywhere(body["markdown"]), LIMIT))[1]
        assert shown.replace(ZWSP, "") == f"{body['markdown'].replace(ZWSP, '')}\n"


def test_naughty_strings_are_code() -> None:
    assert [text for text in naughty_strings() if not is_contained(everywhere(f"x{text}"))] == []


@given(tickets())
def test_untrusted_text_of_any_ticket_is_contained_in_code_blocks(ticket: TrackerTicket) -> None:
    assert is_contained(ticket)


@pytest.mark.parametrize("url", ["`", "``", "a`b", "`a", "a`", " ` ", "a`` ``b", "\\`", "`\n`"])
def test_backticks_do_not_end_inline_code(url: str) -> None:
    ticket = replace(PLAIN, places=(replace(PLAIN.places[0], location=url), PLAIN.places[1]))
    assert is_contained(ticket)
    (location,) = [code for code in in_code(body_of(ticket, LIMIT)) if "`" in code]
    assert location.replace(ZWSP, "") == " ".join(url.split())


def test_linear_folds_the_evidence_without_html() -> None:
    made, plain = linear_body_of(everywhere("+++\n\n+++ a"), LIMIT), linear_body_of(PLAIN, LIMIT)
    assert skeleton(made) == skeleton(plain)
    assert effects(plain) == {"link"}
    fold = '+++ Evidence\n\n```json\n{\n  "rule": "image-alt"\n}\n```\n\n+++\n\n'
    assert plain == f"{body_of(PLAIN, LIMIT).partition('<details>')[0]}{fold}[{plain.rpartition('[')[2]}"


def test_a_ticket_of_a_person_has_no_empty_parts() -> None:
    ticket = TrackerTicket("exp_01JD", "Title", "Text", "low")
    assert (
        body_of(ticket, LIMIT) == "- **Severity:** low\n\n### What was found\n\n```\nText\n```\n\nRiskRelay export exp_01JD"
    )
