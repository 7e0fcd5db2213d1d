"""The validation of requests against official descriptions detects errors; otherwise it would prove nothing."""

import json
from typing import Any

import pytest

from schemas.trackers.exchange import TrackerRequest
from tests.support.trackers.descriptions import description_of

GITHUB = "https://api.github.com"
ISSUES = f"{GITHUB}/repos/acme/shop/issues"


def complaints(method: str, url: str, body: Any = None, content_type: str = "application/json") -> list[str]:
    sent = b"" if body is None else json.dumps(body).encode()
    request = TrackerRequest(method, url, {"Content-Type": content_type}, sent)
    return description_of("github-issues.openapi.json").complaints(request, GITHUB)


def test_described_requests_cause_no_complaint() -> None:
    assert complaints("POST", ISSUES, {"title": "A title", "labels": ["a"], "assignees": ["octocat"]}) == []
    assert complaints("GET", f"{ISSUES}?state=all&per_page=50&since=2026-11-22T00:00:00Z") == []


@pytest.mark.parametrize(
    ("method", "url", "body", "expected"),
    [
        ("POST", ISSUES, {}, "body/: 'title' is a required property"),
        ("POST", ISSUES, {"title": "A", "etiquettes": []}, "body: etiquettes is unknown"),
        ("POST", ISSUES, {"title": "A", "labels": "a"}, "body/labels: 'a' is not of type 'array'"),
        ("POST", ISSUES, None, "the body is missing"),
        ("GET", ISSUES, {"title": "A"}, "no body is described"),
        ("GET", f"{ISSUES}?status=all", None, "query: status is unknown"),
        ("GET", f"{ISSUES}?per_page=many", None, "query/per_page: /: 'many' is not of type 'integer'"),
        ("GET", f"{ISSUES}?page=1&page=2", None, "a parameter of the query is repeated"),
        ("GET", f"{ISSUES}/latest", None, "path/issue_number: /: 'latest' is not of type 'integer'"),
        ("GET", f"{GITHUB}/repos/acme/shop/tickets", None, "not described"),
    ],
)
def test_each_undescribed_request_causes_its_complaint(method: str, url: str, body: Any, expected: str) -> None:
    assert complaints(method, url, body) == [expected]


def test_a_json_body_needs_its_content_type() -> None:
    assert complaints("POST", ISSUES, {"title": "A"}, "text/plain") == ["Content-Type is not application/json"]


@pytest.mark.parametrize(
    "name",
    [
        "github-issues.openapi.json",
        "gitlab-issues.openapi.json",
        "jira-cloud-v3.openapi.json",
        "jira-dc-v2.openapi.json",
        "gitea-issues.swagger2.json",
    ],
)
def test_every_description_is_read(name: str) -> None:
    request = TrackerRequest("GET", "https://tracker.example.com/nothing", {})
    assert description_of(name).complaints(request, "https://tracker.example.com") == ["not described"]


def test_the_body_of_swagger_2_is_a_parameter() -> None:
    base = "https://git.example.com/api/v1"
    request = TrackerRequest(
        "POST", f"{base}/repos/acme/shop/issues", {"Content-Type": "application/json"}, b'{"labels": ["a"], "title": "A"}'
    )
    found = description_of("gitea-issues.swagger2.json").complaints(request, base)
    assert found == ["body/labels/0: 'a' is not of type 'integer'"]
