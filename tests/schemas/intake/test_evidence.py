"""A capture has a closed form: every listed member has its type, and unlisted members are rejected at any depth."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.api.uploads import CaptureUploadResponse, dump_upload
from schemas.base.errors import ValidationFailed
from schemas.base.fields import MAX_ID, MAX_TEXT, MAX_URL, MESSAGES
from schemas.exports.handoffs import Handoff
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_text import ticket_for_capture
from schemas.intake.evidence import MAX_HEADINGS, Capture, CaptureForm, Heading, captured_facts
from tests.support.factories import NOW, capture
from tests.support.http.forms import read_or_failure

FORM = CaptureForm()
LEAST = {"project_id": 7, "page_url": "https://shop.example"}
NO_NUMBERS: tuple[Any, ...] = ("7", 7.0, True, [7], {})
MARK = "Zq9"  # contained in submitted texts and names, but in none of our own


def problems(body: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    return sorted((each.path, each.code) for each in refused.value.problems)


def without(name: str) -> dict[str, Any]:
    return {member: value for member, value in capture(7).items() if member != name}


def headings(*entries: Any) -> dict[str, Any]:
    return capture(7, heading_outline=list(entries))


def test_the_form_of_the_specification_is_read() -> None:
    assert FORM.read(capture(7, report_id=3)) == Capture(
        project_id=7,
        report_id=3,
        page_url="https://shop.example/cart?step=2",
        page_title="Your cart",
        selected_text="The total is missing.",
        meta_description="Everything you chose.",
        canonical_url="https://shop.example/cart",
        heading_outline=(Heading("h1", "Your cart"), Heading("h2", "Delivery")),
        captured_at=datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC),
        extension_version="1.4.0",
    )


def test_the_level_of_a_heading_may_be_in_upper_case() -> None:
    assert FORM.read(headings({"level": "H2", "text": "Delivery"})).heading_outline == (Heading("h2", "Delivery"),)


def test_only_project_and_page_are_required_and_null_is_absent() -> None:
    least = FORM.read(LEAST)
    assert least == Capture(7, None, "https://shop.example", None, None, None, None, None, None, None)
    assert FORM.read({**dict.fromkeys(capture(7)), "report_id": None, **LEAST}) == least


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, [("/page_url", "required"), ("/project_id", "required")]),
        (without("project_id"), [("/project_id", "required")]),
        (without("page_url"), [("/page_url", "required")]),
        (capture(7, project_id=None), [("/project_id", "null")]),
        (capture(7, page_url=None), [("/page_url", "null")]),
        *((capture(7, project_id=wrong), [("/project_id", "invalid_type")]) for wrong in NO_NUMBERS),
        *((capture(7, report_id=wrong), [("/report_id", "invalid_type")]) for wrong in NO_NUMBERS),
        *((capture(7, project_id=wrong), [("/project_id", "out_of_range")]) for wrong in (0, -1, MAX_ID + 1)),
        *((capture(7, report_id=wrong), [("/report_id", "out_of_range")]) for wrong in (0, -1, MAX_ID + 1)),
        (capture(7, page_url="shop.example/cart"), [("/page_url", "invalid_url")]),
        (capture(7, page_url="javascript:alert(1)"), [("/page_url", "invalid_url")]),
        (capture(7, page_url="http://[::1/"), [("/page_url", "invalid_url")]),
        (capture(7, page_url="http://a.example:65536/"), [("/page_url", "invalid_url")]),  # an invalid port
        (capture(7, page_url=f"https://shop.example/{'x' * MAX_URL}"), [("/page_url", "too_long")]),
        (capture(7, page_url=["https://shop.example"]), [("/page_url", "invalid_type")]),
        (capture(7, canonical_url="//shop.example"), [("/canonical_url", "invalid_url")]),
        (capture(7, canonical_url=1), [("/canonical_url", "invalid_type")]),
        (capture(7, page_title="x" * 1001), [("/page_title", "too_long")]),
        (capture(7, page_title=1), [("/page_title", "invalid_type")]),
        (capture(7, selected_text="x" * (MAX_TEXT + 1)), [("/selected_text", "too_long")]),
        (capture(7, selected_text=["x"]), [("/selected_text", "invalid_type")]),
        (capture(7, meta_description="x" * (MAX_TEXT + 1)), [("/meta_description", "too_long")]),
        (capture(7, meta_description={}), [("/meta_description", "invalid_type")]),
        (capture(7, extension_version="1" * 101), [("/extension_version", "too_long")]),
        (capture(7, extension_version=1.4), [("/extension_version", "invalid_type")]),
        # --- headings
        (capture(7, heading_outline="h1"), [("/heading_outline", "invalid_type")]),
        (capture(7, heading_outline={"level": "h1", "text": "x"}), [("/heading_outline", "invalid_type")]),
        (headings("h1"), [("/heading_outline/0", "invalid_type")]),
        (headings(None), [("/heading_outline/0", "null")]),
        (headings({}), [("/heading_outline/0/level", "required"), ("/heading_outline/0/text", "required")]),
        (headings({"level": "h1", "text": "x"}, {"level": "h1"}), [("/heading_outline/1/text", "required")]),
        (headings({"level": "h7", "text": "x"}), [("/heading_outline/0/level", "not_allowed")]),
        (headings({"level": 1, "text": "x"}), [("/heading_outline/0/level", "invalid_type")]),
        (headings({"level": "h1", "text": None}), [("/heading_outline/0/text", "null")]),
        (headings({"level": "h1", "text": "x" * 1001}), [("/heading_outline/0/text", "too_long")]),
        (headings({"level": "h1", "text": "x", MARK: 1}), [("/heading_outline/0", "unknown_member")]),
        (headings(*[{"level": "h1", "text": "x"}] * (MAX_HEADINGS + 1)), [("/heading_outline", "too_many")]),
        (headings(*[1] * 100_000), [("/heading_outline", "too_many")]),  # counted before the elements are validated
        # --- the time
        (capture(7, captured_at="2026-03-01T12:00:00"), [("/captured_at", "invalid_timestamp")]),  # no time zone
        (capture(7, captured_at="yesterday"), [("/captured_at", "invalid_timestamp")]),
        (capture(7, captured_at=""), [("/captured_at", "invalid_timestamp")]),
        (capture(7, captured_at=1772366400), [("/captured_at", "invalid_type")]),
        # --- forbidden members
        (capture(7, html="<html></html>"), [("", "unknown_member")]),
        (capture(7, **{MARK: 1, "screenshot": "x"}), [("", "unknown_member")]),
        ([capture(7)], [("", "invalid_type")]),
        (None, [("", "invalid_type")]),
    ],
)
def test_problems_have_our_path_and_a_code(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(body) == expected


def test_each_member_may_be_as_long_as_its_limit() -> None:
    longest = capture(
        7,
        page_title="x" * 1000,
        selected_text="x" * MAX_TEXT,
        meta_description="x" * MAX_TEXT,
        extension_version="1" * 100,
        heading_outline=[{"level": "h6", "text": "x" * 1000}] * MAX_HEADINGS,
    )
    assert FORM.read(longest).heading_outline == (Heading("h6", "x" * 1000),) * MAX_HEADINGS


def shown(read: Capture) -> dict[str, Any]:
    """Return the capture from the response to its upload."""
    handoff = Handoff("hof_1", Source("evidence_capture", "evc_1"), 7, None, "exp_1", NOW)
    record: dict[str, Any] = dump_upload(CaptureUploadResponse, read, handoff)["evidence_capture"]
    return record


def test_a_record_has_every_member_under_its_own_name() -> None:
    assert shown(FORM.read(capture(7, report_id=3))) == {
        **capture(7, report_id=3),
        "captured_at": "2026-03-01T12:00:00.250Z",
        "id": "evc_1",
        "created_at": "2026-03-01T12:00:00.000Z",
    }


def test_omitted_members_are_null() -> None:
    assert shown(FORM.read(LEAST)) == {
        **dict.fromkeys(capture(7)),
        "report_id": None,
        **LEAST,
        "id": "evc_1",
        "created_at": "2026-03-01T12:00:00.000Z",
    }
    assert shown(FORM.read({**LEAST, "heading_outline": []}))["heading_outline"] == []


def test_the_facts_of_a_capture_omit_its_project() -> None:
    assert captured_facts(FORM.read(LEAST)).keys() == capture(7).keys() - {"project_id"}


NAMES = sorted(FORM.member_names())
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).map(MARK.__add__)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
bodies = values | st.dictionaries(st.sampled_from(NAMES), values, max_size=8).map(lambda members: {**LEAST, **members})


@settings(max_examples=150, deadline=None)
@given(bodies)
def test_any_json_is_a_capture_or_a_refusal_that_repeats_nothing(body: Any) -> None:
    found = read_or_failure(FORM, body)
    if isinstance(found, ValidationFailed):
        assert found.problems
        assert MARK not in repr(found.problems)
        paths = {name for each in found.problems for name in each.path.split("/")[1:] if not name.isdecimal()}
        assert paths <= set(NAMES)
        assert all(each.message.startswith(MESSAGES[each.code].removesuffix(".")) for each in found.problems)
        return
    assert 0 < len(ticket_for_capture(found).title) <= 250
