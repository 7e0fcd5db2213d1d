"""Approval rules: the form, globs, and what they match."""

import itertools
import time
from typing import Any

import pytest

from schemas.base.errors import ValidationFailed
from schemas.triage.approval_rules import (
    MAX_GLOB,
    RuleChangeForm,
    RuleForm,
    RuleMatch,
    RuleSubject,
    action_from,
    glob_matches,
    glob_of,
    match_from,
)

SUBJECT = RuleSubject(7, 3, "finding", "csp-missing", ["https://shop.example/checkout/pay?step=1"])
APPROVE = {"type": "approve", "target_id": "tgt_1"}


def form(**changes: Any) -> dict[str, Any]:
    """Return the body of a rule; `changes` replace members."""
    return {"name": "A rule", "match": {"rule": "csp-*"}, "action": APPROVE, **changes}


def problems(body: dict[str, Any]) -> set[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        RuleForm().read(body)
    return {(each.path, each.code) for each in refused.value.problems}


@pytest.mark.parametrize(
    "match",
    [
        RuleMatch(project_id=7),
        RuleMatch(severity_at_least="high"),
        RuleMatch(severity_at_least="info"),
        RuleMatch(sources=("manual", "finding")),
        RuleMatch(rule="csp-*"),
        RuleMatch(page_path="/checkout/*"),
        RuleMatch(page_path="*"),
        RuleMatch(7, "medium", ("finding",), "*missing", "/*/pay"),
    ],
)
def test_an_export_matches_when_every_named_member_does(match: RuleMatch) -> None:
    assert match.matches(SUBJECT)


@pytest.mark.parametrize(
    "match",
    [
        RuleMatch(project_id=8),
        RuleMatch(severity_at_least="critical"),
        RuleMatch(sources=("manual",)),
        RuleMatch(rule="csp"),
        RuleMatch(rule="CSP-*"),
        RuleMatch(page_path="/checkout"),
        RuleMatch(page_path="/checkout/pay?step=1"),
        RuleMatch(7, "medium", ("finding",), "*missing", "/other/*"),
    ],
)
def test_an_export_does_not_match_when_one_member_does_not(match: RuleMatch) -> None:
    assert not match.matches(SUBJECT)


def test_every_page_of_a_group_matches_a_path() -> None:
    inside = SUBJECT._replace(page_urls=["https://shop.example/a/1", "https://shop.example/a/2"])
    assert RuleMatch(page_path="/a/*").matches(inside)
    assert not RuleMatch(page_path="/a/*").matches(inside._replace(page_urls=[*inside.page_urls, "https://shop.example/b"]))
    assert RuleMatch(page_path="/").matches(SUBJECT._replace(page_urls=["https://shop.example"]))


def test_an_export_without_a_page_or_a_rule_code_matches_no_pattern_for_it() -> None:
    bare = RuleSubject(None, 0, "inbound_email", None, [])
    assert not RuleMatch(page_path="*").matches(bare)
    assert not RuleMatch(rule="*").matches(bare)
    assert not RuleMatch(page_path="/*").matches(bare._replace(page_urls=["http://[no-address"]))


def test_brackets_and_backslashes_are_ordinary_characters() -> None:
    matching = [("[ab]*", "[ab]c"), ("a\\*", "a\\b"), ("ü?*", "üñ…")]
    assert [pair for pair in matching if not glob_matches(*pair)] == []
    assert not glob_matches("[ab]*", "ac")


def test_the_glob_of_a_text_matches_only_texts_of_the_same_length() -> None:
    for text, glob in {"zap:1": "zap:1", "a*": "a?", "**b?": "??b?", "[a]*": "[a]?", "x" * 200: "x" * 200}.items():
        assert (glob_of(text), glob_matches(glob, text), glob_matches(glob, f"{text}b")) == (glob, True, False)
    long = "y" * 500
    assert (len(glob_of(long)), glob_matches(glob_of(long), long), glob_matches(glob_of(long), "y")) == (200, True, False)


def test_a_hostile_glob_takes_no_longer_than_another() -> None:
    text = "/" + "a" * 2_040
    began = time.monotonic()
    for hostile in ("*a" * 100, "*?a" * 66, "*" * MAX_GLOB, "?" * MAX_GLOB, "*a" * 99 + "*b", "/*aaaaaaaaaaaaaaaaab*b"):
        for number in range(100):
            glob_matches(hostile, f"{text}{number}")
    # 600 comparisons of the maximum size; a backtracking matcher would not finish.
    assert time.monotonic() - began < 10


def test_a_rule_is_read_with_its_defaults_and_written_back() -> None:
    full = {"project_id": 7, "severity_at_least": "high", "sources": ["finding"], "rule": "csp-*", "page_path": "/a/*"}
    for match, action in itertools.product(
        ({"rule": "x"}, full), (APPROVE, {"type": "dismiss", "reason": "wont_fix"}, {"type": "label", "labels": ["a", "b"]})
    ):
        rule = RuleForm().read(form(match=match, action=action))
        assert (rule.enabled, rule.match.record(), rule.action.record()) == (True, match, action)
        assert (match_from(rule.match.record()), action_from(rule.action.record())) == (rule.match, rule.action)


@pytest.mark.parametrize(
    ("changes", "path", "code"),
    [
        ({"match": {}}, "/match", "empty_match"),
        ({"match": {"rule": None}}, "/match", "empty_match"),
        ({"match": {"rule": ""}}, "/match/rule", "too_short"),
        ({"match": {"rule": "x" * 201}}, "/match/rule", "too_long"),
        ({"match": {"page_path": "checkout/*"}}, "/match/page_path", "not_a_path"),
        ({"match": {"sources": []}}, "/match/sources", "too_short"),
        ({"match": {"sources": ["fax"]}}, "/match/sources/0", "not_allowed"),
        ({"match": {"severity_at_least": "urgent"}}, "/match/severity_at_least", "not_allowed"),
        ({"match": {"project_id": "7"}}, "/match/project_id", "invalid_type"),
        ({"match": {"host": "x"}}, "/match", "unknown_member"),
        ({"enabled": 1}, "/enabled", "invalid_type"),
        ({"enabled": "true"}, "/enabled", "invalid_type"),
        ({"name": " "}, "/name", "too_short"),
        ({"action": {"type": "approve"}}, "/action/target_id", "required"),
        ({"action": {"type": "dismiss"}}, "/action/reason", "required"),
        ({"action": {"type": "dismiss", "reason": "boring"}}, "/action/reason", "not_allowed"),
        ({"action": {"type": "label", "labels": []}}, "/action/labels", "too_short"),
        ({"action": {**APPROVE, "labels": ["a"]}}, "/action/labels", "not_of_this_action"),
        ({"action": {"type": "delete"}}, "/action/type", "not_allowed"),
        ({"also": 1}, "", "unknown_member"),
    ],
)
def test_an_invalid_rule_names_the_field(changes: dict[str, Any], path: str, code: str) -> None:
    assert (path, code) in problems(form(**changes))


def test_a_change_of_a_rule_has_at_least_one_member() -> None:
    assert RuleChangeForm().read({"enabled": False}).enabled is False
    for refused in ({}, {"match": None}):
        with pytest.raises(ValidationFailed):
            RuleChangeForm().read(refused)
