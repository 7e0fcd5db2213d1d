"""A ticket as a document for Jira Cloud has a structure that Jira accepts, with untrusted text only in text nodes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import jsonschema_rs
import pytest
from hypothesis import given

from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text.adf import body_of
from schemas.trackers.text.neutral import ZWSP
from tests.support.trackers.texts import PLAIN, effects_in_text, everywhere, recorded_bodies, tickets

LIMIT = 32_767


def node(kind: str, **members: Any) -> dict[str, Any]:
    """Return the schema of a node with exactly these members."""
    properties = {"type": {"const": kind}, **members}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def several(*kinds: str) -> dict[str, Any]:
    """Return the schema of content that consists of these nodes."""
    return {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds]}}


TEXT: Final = {"type": "string", "minLength": 1}
#: The part of version 1 of the Atlassian Document Format that a ticket needs; the only link is our own.
DOCUMENT: Final = {
    **node("doc", version={"const": 1}, content=several("paragraph", "heading", "bulletList", "expand", "codeBlock")),
    "$defs": {
        "plain": node("text", text=TEXT),
        "strong": node("text", text={"enum": ["Severity: ", "Page: "]}, marks={"const": [{"type": "strong"}]}),
        "code": node("text", text=TEXT, marks={"const": [{"type": "code"}]}),
        "link": node(
            "text",
            text={"const": "Open this ticket in RiskRelay"},
            marks={"const": [{"type": "link", "attrs": {"href": PLAIN.console_url}}]},
        ),
        "hardBreak": node("hardBreak"),
        "paragraph": node("paragraph", content=several("plain", "strong", "code", "link", "hardBreak")),
        "heading": node("heading", attrs={"const": {"level": 3}}, content=several("plain")),
        "listItem": node("listItem", content=several("paragraph")),
        "bulletList": node("bulletList", content=several("listItem")),
        "codeBlock": {"anyOf": [node("codeBlock", content=several("plain")), {"$ref": "#/$defs/jsonBlock"}]},
        "jsonBlock": node("codeBlock", attrs={"const": {"language": "json"}}, content=several("plain")),
        "expand": node("expand", attrs={"const": {"title": "Evidence"}}, content=several("jsonBlock")),
    },
}
VALIDATOR: Final = jsonschema_rs.Draft202012Validator(DOCUMENT)


def texts(of: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a document."""
    if of["type"] == "text":
        yield of["text"]
    for inner in of.get("content", ()):
        yield from texts(inner)


def kinds(document: dict[str, Any]) -> list[str]:
    return [block["type"] for block in document["content"]]


def test_a_ticket_has_its_parts_as_paragraphs_headings_lists_and_code() -> None:
    document = body_of(PLAIN, LIMIT)
    assert VALIDATOR.is_valid(document)
    assert kinds(document) == [
        "paragraph",
        "heading",
        "paragraph",
        "heading",
        "bulletList",
        "expand",
        "paragraph",
        "paragraph",
    ]
    assert list(texts(document)) == [
        *("Severity: ", "high", "Page: ", "https://shop.example/cart"),
        *("What was found", "What is wrong."),
        *("Places (5)", "https://shop.example/cart", " ", "main > img", "https://shop.example/", "… and 3 more"),
        *('{\n  "rule": "image-alt"\n}', "Open this ticket in RiskRelay", f"RiskRelay export {PLAIN.export_id}"),
    ]


def test_the_lines_of_a_description_are_paragraphs_with_breaks() -> None:
    document = body_of(replace(PLAIN, description="\n\na\nb\n\n\n\n  c\n"), LIMIT)
    plain, hard_break = {"type": "text", "text": "a"}, {"type": "hardBreak"}
    assert document["content"][2:4] == [
        {"type": "paragraph", "content": [plain, hard_break, {"type": "text", "text": "b"}]},
        {"type": "paragraph", "content": [{"type": "text", "text": "  c"}]},
    ]


def test_a_description_of_many_lines_is_a_block_of_code() -> None:
    document = body_of(replace(PLAIN, description="a\n\n" * 8000), LIMIT)
    assert VALIDATOR.is_valid(document)
    assert kinds(document)[2] == "codeBlock"


@given(tickets())
def test_any_ticket_has_a_valid_structure_without_effects(ticket: TrackerTicket) -> None:
    document = body_of(ticket, LIMIT)
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []
    assert not effects_in_text("\n".join(texts(document))) - {"link"}


@pytest.mark.parametrize("text", ["", " ", "\n", ZWSP, "\x00"])
def test_a_ticket_of_invisible_text_is_a_valid_document(text: str) -> None:
    empty = replace(everywhere(text), page_url=text, severity=text)
    assert VALIDATOR.is_valid(body_of(empty, LIMIT))
    assert VALIDATOR.is_valid(body_of(TrackerTicket("exp_01JD", text, text, text), LIMIT))


def test_the_recorded_bodies_are_texts() -> None:
    for body in recorded_bodies():
        document = body_of(everywhere(body["markdown"]), LIMIT)
        assert VALIDATOR.is_valid(document), body["name"]
        assert not effects_in_text("\n".join(texts(document))) - {"link"}, body["name"]
        assert json.loads(json.dumps(document)) == document
