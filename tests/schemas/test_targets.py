"""A target is asked for in a closed form and shown without its secret."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas.errors import ValidationFailed
from schemas.targets import APPROVABLE, Target, TargetForm, TargetRequest, TargetStatus, target_record

FORM = TargetForm()
REQUEST = {"provider_key": "generic_webhook", "base_url": "https://tracker.example.com/hook", "name": "Tracker"}
MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)
TARGET = Target(
    id="tgt_1",
    account_id=1,
    provider_key="generic_webhook",
    base_url="https://tracker.example.com/hook",
    deployment_mode="cloud",
    name="Tracker",
    status=TargetStatus.ACTIVE,
    status_reason=None,
    secret_fingerprint="fp:000000000000",
    has_own_secret=False,
    connected_status="connected",
    last_success_at=MADE,
    validation_status="passed",
    validation_reason=None,
    validated_at=MADE,
    created_at=MADE,
)


def problems(body: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    return sorted((each.path, each.code) for each in refused.value.problems)


def test_the_form_of_the_specification_is_read() -> None:
    assert FORM.read(REQUEST) == TargetRequest("generic_webhook", "https://tracker.example.com/hook", None, "Tracker")
    assert FORM.read({**REQUEST, "deployment_mode": None}).deployment_mode is None


@pytest.mark.parametrize("mode", ["cloud", "self-hosted", "webhook-only"])
def test_a_target_may_name_its_deployment_mode(mode: str) -> None:
    assert FORM.read({**REQUEST, "deployment_mode": mode}).deployment_mode == mode


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, [("/base_url", "required"), ("/name", "required"), ("/provider_key", "required")]),
        ({**REQUEST, "provider_key": "jira"}, [("/provider_key", "not_allowed")]),
        ({**REQUEST, "provider_key": 1}, [("/provider_key", "invalid_type")]),
        ({**REQUEST, "deployment_mode": "hybrid"}, [("/deployment_mode", "not_allowed")]),
        ({**REQUEST, "deployment_mode": []}, [("/deployment_mode", "invalid_type")]),
        ({**REQUEST, "name": ""}, [("/name", "too_short")]),
        ({**REQUEST, "name": "x" * 201}, [("/name", "too_long")]),
        ({**REQUEST, "name": None}, [("/name", "null")]),
        ({**REQUEST, "base_url": "x" * 2049}, [("/base_url", "too_long")]),
        # A receiver's secret has no place here, and neither has its name in the answer.
        ({**REQUEST, "signing_secret": "hunter2"}, [("", "unknown_member")]),
        ({**REQUEST, "a": 1, "b": 2, "_schema": 3}, [("", "unknown_member")]),
        ([REQUEST], [("", "invalid_type")]),
    ],
)
def test_what_is_wrong_is_named_by_our_path_and_a_code(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(body) == expected


def test_a_record_shows_the_secrets_fingerprint_alone() -> None:
    assert target_record(TARGET) == {
        "id": "tgt_1",
        "provider_key": "generic_webhook",
        "base_url": "https://tracker.example.com/hook",
        "deployment_mode": "cloud",
        "name": "Tracker",
        "status": "active",
        "status_reason": None,
        "secret": {"configured": True, "fingerprint": "fp:000000000000"},
        "connected": {"status": "connected", "last_success_at": "2026-03-01T12:00:00.000Z"},
        "last_validation": {"status": "passed", "reason": None, "checked_at": "2026-03-01T12:00:00.000Z"},
        "created_at": "2026-03-01T12:00:00.000Z",
    }


def test_what_is_not_known_is_there_as_null() -> None:
    bare = replace(TARGET, secret_fingerprint=None, last_success_at=None, validation_status=None, connected_status="unknown")
    record = target_record(bare)
    assert record["secret"] == {"configured": False, "fingerprint": None}
    assert record["connected"] == {"status": "unknown", "last_success_at": None}
    assert record["last_validation"] is None


def test_active_and_paused_targets_can_be_approved_for() -> None:
    assert {status.value for status in APPROVABLE} == {"active", "paused"}
