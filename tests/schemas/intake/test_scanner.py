"""A postback is converted to our terms, or rejected without repeating submitted text."""

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base.errors import ValidationFailed
from schemas.base.fields import MAX_URL, MESSAGES
from schemas.base.strict_json import canonical
from schemas.exports.tickets.ticket_text import ticket_for_finding
from schemas.intake.fingerprint import by_fingerprint
from schemas.intake.scanner import MAX_EVIDENCE_BYTES, MAX_ISSUES, Issue, PostbackForm, ScanPostback
from tests.support.factories import issue, postback

FORM = PostbackForm()


def read(body: Any) -> ScanPostback:
    checked: ScanPostback = FORM.read(body)
    return checked


def only_issue(**changes: Any) -> Issue:
    [found] = read(postback(issues=[issue(**changes)])).issues
    return found


def problems(body: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    assert all(each.message.startswith(MESSAGES[each.code].removesuffix(".")) for each in refused.value.problems)
    return sorted((each.path, each.code) for each in refused.value.problems)


def without(name: str, **changes: Any) -> dict[str, Any]:
    return {member: value for member, value in postback(**changes).items() if member != name}


def test_the_form_shown_in_the_specification_is_read() -> None:
    read_it = read(postback(issues=[]))
    assert (read_it.scan_run_id, read_it.status, read_it.issues) == (42, "completed", ())
    assert read_it.screenshot_path == "artifacts/42/home.png"
    page = read_it.page
    assert (page.url, page.normalized_url, page.status_code, page.page_type, page.response_headers) == (
        "https://shop.example/",
        "https://shop.example/",
        200,
        "home",
        {},
    )


def test_only_run_status_and_page_are_required() -> None:
    least = read({"scanRunId": 1, "status": "completed", "page": {"url": "http://localhost"}})
    assert (least.issues, least.screenshot_path, least.page.response_headers) == ((), None, {})


@pytest.mark.parametrize("status", ["running", "completed", "partial", "failed", "cancelled"])
def test_a_run_has_one_of_five_statuses(status: str) -> None:
    assert read(postback(status=status)).status == status


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (without("scanRunId"), [("/scanRunId", "required")]),
        (without("status"), [("/status", "required")]),
        (without("page"), [("/page", "required")]),
        (postback(page={}), [("/page/url", "required")]),
        ({}, [("/page", "required"), ("/scanRunId", "required"), ("/status", "required")]),
        (postback(scanRunId=None), [("/scanRunId", "null")]),
        (postback(scanRunId="42"), [("/scanRunId", "invalid_type")]),
        (postback(scanRunId=True), [("/scanRunId", "invalid_type")]),
        (postback(scanRunId=4.0), [("/scanRunId", "invalid_type")]),
        (postback(scanRunId=0), [("/scanRunId", "out_of_range")]),
        (postback(scanRunId=2**63), [("/scanRunId", "out_of_range")]),
        (postback(status="done"), [("/status", "not_allowed")]),
        (postback(status=["completed"]), [("/status", "invalid_type")]),
        (postback(status="x" * 21), [("/status", "not_allowed")]),
        (postback(page=[]), [("/page", "invalid_type")]),
        (postback(page={"url": "ftp://shop.example"}), [("/page/url", "invalid_url")]),
        (postback(page={"url": "shop.example"}), [("/page/url", "invalid_url")]),
        (postback(page={"url": "http://[1:2:3]/"}), [("/page/url", "invalid_url")]),
        (postback(page={"url": "http://exa\u2100mple.com/"}), [("/page/url", "invalid_url")]),
        (postback(page={"url": "https://shop.example/\u4e2d" * 150}), [("/page/url", "too_long")]),
        (postback(page={"url": "https://a.example/" + "x" * MAX_URL}), [("/page/url", "too_long")]),
        (postback(page={"url": 7}), [("/page/url", "invalid_type")]),
        (postback(page={"url": "http://a.example", "statusCode": 99}), [("/page/statusCode", "out_of_range")]),
        (postback(page={"url": "http://a.example", "statusCode": "200"}), [("/page/statusCode", "invalid_type")]),
        (postback(page={"url": "http://a.example", "responseHeaders": []}), [("/page/responseHeaders", "invalid_type")]),
        (postback(page={"url": "http://a.example", "pageType": "x" * 101}), [("/page/pageType", "too_long")]),
        (postback(artifacts=7), [("/artifacts", "invalid_type")]),
        (postback(artifacts={"screenshotPath": "x" * 1001}), [("/artifacts/screenshotPath", "too_long")]),
        ({**postback(), "issues": {}}, [("/issues", "invalid_type")]),
        ({**postback(), "issues": ["x"]}, [("/issues/0", "invalid_type")]),
        ({**postback(), "issues": [None]}, [("/issues/0", "null")]),
        (postback(issues=[issue(), {}]), [("/issues/1/title", "required")]),
        (postback(issues=[{"code": " ", "title": "\n"}]), [("/issues/0/title", "required")]),
        (postback(issues=[issue(title="x" * 501)]), [("/issues/0/title", "too_long")]),
        (postback(issues=[{"message": "x" * 501}]), [("/issues/0/title", "too_long")]),
        (postback(issues=[{"code": ["x"]}]), [("/issues/0/code", "invalid_type")]),
        (postback(issues=[{"code": True}]), [("/issues/0/code", "invalid_type")]),
        (postback(issues=[issue(severity=3)]), [("/issues/0/severity", "invalid_type")]),
        (postback(issues=[issue(description="x" * 20_001)]), [("/issues/0/description", "too_long")]),
        (postback(issues=[issue(location="x" * 2001)]), [("/issues/0/location", "too_long")]),
        (postback(issues=[issue(url="javascript:alert(1)")]), [("/issues/0/url", "invalid_url")]),
        (postback(issues=[issue()] * (MAX_ISSUES + 1)), [("/issues", "too_many")]),
        ({**postback(), "issues": [1] * 100_000}, [("/issues", "too_many")]),  # counted before the elements are validated
        ([], [("", "invalid_type")]),
        ("text", [("", "invalid_type")]),
        (None, [("", "invalid_type")]),
    ],
)
def test_problems_have_our_path_and_a_code(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(body) == expected


def test_every_mistake_is_reported_at_once() -> None:
    text = problems(postback(status="done", page={}, issues=[issue(title=[1]), issue(severity=2)]))
    assert text == [
        ("/issues/0/title", "invalid_type"),
        ("/issues/1/severity", "invalid_type"),
        ("/page/url", "required"),
        ("/status", "not_allowed"),
    ]


@pytest.mark.parametrize(
    ("entry", "code", "title", "location"),
    [
        ({"code": "c", "title": "t", "location": "l"}, "c", "t", "l"),
        ({"rule": "r", "message": "m", "selector": "s"}, "r", "m", "s"),
        ({"type": "y", "message": "m"}, "y", "m", ""),
        ({"id": "i", "title": "t"}, "i", "t", ""),
        ({"id": 7, "title": "t"}, "7", "t", ""),
        ({"code": "c", "rule": "r", "id": 1}, "c", "c", ""),  # the first name wins; the code may serve as title
        ({"code": None, "type": "y", "rule": "r"}, "r", "r", ""),
        ({"code": "", "rule": "r", "title": " ", "message": "m", "location": "", "selector": "s"}, "r", "m", "s"),
        ({"code": "\t", "rule": " ", "id": 7}, "7", "7", ""),
        ({"code": "", "message": "m", "location": ""}, "m", "m", ""),
        ({"message": "m"}, "m", "m", ""),  # the title may serve as code
    ],
)
def test_members_of_an_issue_have_synonyms(entry: dict[str, Any], code: str, title: str, location: str) -> None:
    [found] = read(postback(issues=[entry])).issues
    assert (found.code, found.title, found.location) == (code, title, location)


def test_unused_synonyms_are_kept_as_evidence() -> None:
    found = only_issue(rule="other", id=9, impact="x")
    assert found.evidence == {"rule": "other", "id": 9, "impact": "x"}


@pytest.mark.parametrize(
    ("reported", "meant"),
    [
        *((name, name) for name in ("info", "low", "medium", "high", "critical")),
        ("informational", "info"),
        ("notice", "info"),
        ("minor", "low"),
        ("moderate", "medium"),
        ("warning", "medium"),
        ("serious", "high"),
        ("major", "high"),
        ("error", "high"),
        ("blocker", "critical"),
        (" SeRious ", "high"),
        (None, "info"),
        ("", "info"),
    ],
)
def test_severities_have_synonyms(reported: str | None, meant: str) -> None:
    found = only_issue(severity=reported)
    assert (found.severity, found.evidence) == (meant, {})


def test_an_unknown_severity_is_info_and_stays_readable() -> None:
    found = only_issue(severity="catastrophic", more=1)
    assert (found.severity, found.evidence) == ("info", {"severity": "catastrophic", "more": 1})


@pytest.mark.parametrize(
    ("references", "link"),
    [
        (["https://rules.example/1", "https://rules.example/2"], "https://rules.example/1"),
        (["CWE-79", None, {"url": "https://rules.example/0"}, "https://rules.example/1"], "https://rules.example/1"),
        (["CWE-79"], None),
        ([], None),
        ("https://rules.example/1", None),
    ],
)
def test_without_a_help_page_the_first_url_of_the_references_is_the_link(references: Any, link: str | None) -> None:
    assert only_issue(references=references).help_url == link
    assert only_issue(references=references, helpUrl="https://rules.example/help").help_url == "https://rules.example/help"


def test_evidence_is_kept_in_the_senders_order_as_long_as_it_fits() -> None:
    members = {f"m{number}": "x" * 1000 for number in range(12)}
    kept = only_issue(**members).evidence
    assert [*kept] == [f"m{number}" for number in range(8)]
    assert len(json.dumps(kept)) <= MAX_EVIDENCE_BYTES
    assert only_issue(**dict(reversed(members.items()))).evidence.keys() == {f"m{number}" for number in range(4, 12)}


def test_evidence_is_measured_in_bytes() -> None:
    assert only_issue(fits="x" * (MAX_EVIDENCE_BYTES - 20)).evidence != {}
    assert only_issue(fits="\u4e2d" * (MAX_EVIDENCE_BYTES // 2)).evidence == {}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_evidence_of_exactly_the_limit_is_kept_and_one_byte_more_is_not(count: int) -> None:
    names = [f"m{number}" for number in range(count)]
    rest = MAX_EVIDENCE_BYTES - len(canonical(dict.fromkeys(names, "")))
    for missing in (0, 1, count, count + 1):
        fits: dict[str, Any] = {**dict.fromkeys(names, ""), names[-1]: "x" * (rest - missing)}
        assert len(canonical(fits)) == MAX_EVIDENCE_BYTES - missing
        assert only_issue(**fits).evidence == fits
        # A later member is dropped instead.
        assert only_issue(**fits, late="x" * MAX_EVIDENCE_BYTES).evidence == fits
    too_long = {**dict.fromkeys(names, ""), names[-1]: "x" * (rest + 1)}
    assert only_issue(**too_long).evidence == dict.fromkeys(names[:-1], "")


def test_unknown_members_are_ignored() -> None:
    plain = read(postback())
    page = {**postback()["page"], "html": "<html>", "cookies": "a=b"}
    assert (
        read(postback(page=page, extra={"a": 1}, artifacts={"screenshotPath": "artifacts/42/home.png", "har": "x"})) == plain
    )


def test_members_of_an_issue_that_may_be_null_are_empty() -> None:
    found = only_issue(description=None, location=None, url=None, severity=None)
    assert (found.description, found.location, found.url, found.severity) == ("", "", None, "info")


def test_the_largest_allowed_number_of_issues_is_read() -> None:
    assert len(read(postback(issues=[issue()] * MAX_ISSUES)).issues) == MAX_ISSUES


# --- arbitrary postbacks

OUR_NAMES = {
    *("scanRunId", "status", "page", "artifacts", "issues", "url", "normalizedUrl", "statusCode", "pageType"),
    *("responseHeaders", "screenshotPath", "code", "title", "severity", "description", "location"),
}
MARK = "Zq9"  # contained in every submitted text, but in none of our own
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).map(lambda text: MARK + text)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(texts | st.sampled_from(sorted(OUR_NAMES)), inner, max_size=5)
    ),
    max_leaves=20,
)
addresses = st.text(string.ascii_letters + string.digits + "[]:%./?#@-_\u2100\uff0f\u00e9", max_size=25).map(
    "http://".__add__
)
issue_bodies = st.dictionaries(
    st.sampled_from(["code", "rule", "type", "id", "title", "message", "severity", "selector", "url", "x", MARK]),
    values | addresses,
    max_size=8,
)
bodies = values | st.fixed_dictionaries(
    {
        "scanRunId": st.integers(1, 9) | values,
        "status": st.sampled_from(["completed", "failed"]) | values,
        "page": values
        | st.fixed_dictionaries({"url": addresses | values}, optional={"normalizedUrl": addresses, "statusCode": values}),
        "issues": values | st.lists(issue_bodies, max_size=4),
    },
    optional={"artifacts": values, MARK: values},
)


@settings(max_examples=120, deadline=None)
@given(bodies)
def test_any_json_is_accepted_as_a_postback_or_rejected_without_being_repeated(body: Any) -> None:
    found = read_or_refuse(body)
    if isinstance(found, ScanPostback):
        assert all(len(each) == 64 for each in by_fingerprint(found.page, found.issues))
        for each_issue in found.issues:
            ticket = ticket_for_finding(found.page, each_issue, found.scan_run_id)
            assert 0 < len(ticket.title) <= 250
        return
    assert found.problems
    assert MARK not in str(found)
    for each in found.problems:
        assert MARK not in repr(each)
        assert {name for name in each.path.split("/")[1:] if not name.isdecimal()} <= OUR_NAMES
        assert each.message.startswith(MESSAGES[each.code].removesuffix("."))


def read_or_refuse(body: Any) -> ScanPostback | ValidationFailed:
    try:
        return read(body)
    except ValidationFailed as refused:
        return refused
