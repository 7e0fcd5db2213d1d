"""A request for a target has a closed form, and a target is shown without its secret."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.api.targets import dump_target
from schemas.base.errors import ValidationFailed
from schemas.targets.forms import TargetForm
from schemas.targets.target import ENABLED, Target, TargetRequest, TargetStatus

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
    held_until=None,
    held_reason=None,
    concurrency=16,
    failures_in_row=0,
    max_per_minute=None,
)


def problems(body: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    return sorted((each.path, each.code) for each in refused.value.problems)


def test_the_form_of_the_specification_is_read() -> None:
    assert FORM.read(REQUEST) == TargetRequest("generic_webhook", "https://tracker.example.com/hook", None, "Tracker", None)
    assert FORM.read({**REQUEST, "deployment_mode": None}).deployment_mode is None


@pytest.mark.parametrize("mode", ["cloud", "self-hosted", "webhook-only"])
def test_a_target_may_name_its_deployment_mode(mode: str) -> None:
    assert FORM.read({**REQUEST, "deployment_mode": mode}).deployment_mode == mode


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, [("/base_url", "required"), ("/name", "required"), ("/provider_key", "required")]),
        ({**REQUEST, "provider_key": "no_tracker"}, [("/provider_key", "not_allowed")]),
        ({**REQUEST, "provider_key": 1}, [("/provider_key", "invalid_type")]),
        ({**REQUEST, "deployment_mode": "hybrid"}, [("/deployment_mode", "not_allowed")]),
        ({**REQUEST, "deployment_mode": []}, [("/deployment_mode", "invalid_type")]),
        ({**REQUEST, "name": ""}, [("/name", "too_short")]),
        ({**REQUEST, "name": "x" * 201}, [("/name", "too_long")]),
        ({**REQUEST, "name": None}, [("/name", "null")]),
        ({**REQUEST, "base_url": "x" * 2049}, [("/base_url", "too_long")]),
        ({**REQUEST, "max_per_minute": 0}, [("/max_per_minute", "out_of_range")]),
        ({**REQUEST, "max_per_minute": -60}, [("/max_per_minute", "out_of_range")]),
        ({**REQUEST, "max_per_minute": 60_001}, [("/max_per_minute", "out_of_range")]),
        ({**REQUEST, "max_per_minute": 10**30}, [("/max_per_minute", "out_of_range")]),
        ({**REQUEST, "max_per_minute": 59.5}, [("/max_per_minute", "invalid_type")]),
        ({**REQUEST, "max_per_minute": "60"}, [("/max_per_minute", "invalid_type")]),
        ({**REQUEST, "max_per_minute": True}, [("/max_per_minute", "invalid_type")]),
        ({**REQUEST, "max_per_minute": [60]}, [("/max_per_minute", "invalid_type")]),
        # A receiver's secret is not accepted here, and the response does not repeat its name.
        ({**REQUEST, "signing_secret": "hunter2"}, [("", "unknown_member")]),
        ({**REQUEST, "a": 1, "b": 2, "_schema": 3}, [("", "unknown_member")]),
        ([REQUEST], [("", "invalid_type")]),
    ],
)
def test_problems_have_our_path_and_a_code(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(body) == expected


@pytest.mark.parametrize("limit", [None, 1, 60, 60_000])
def test_a_target_may_have_a_rate_limit(limit: int | None) -> None:
    assert FORM.read({**REQUEST, "max_per_minute": limit}).max_per_minute == limit


def test_a_record_shows_only_the_fingerprint_of_the_secret() -> None:
    assert dump_target(TARGET, MADE) == {
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
        "delivery": {"concurrency": 16, "failures_in_row": 0, "max_per_minute": None, "waits_until": None},
        "created_at": "2026-03-01T12:00:00.000Z",
        "max_per_minute": None,
        "provider_settings": {},
        "signature": "service",
        "format": "ticket",
        "events": [],
        "headers": [],
        "standard_secret": {"configured": False, "fingerprint": None},
    }


def test_unknown_values_are_null() -> None:
    bare = replace(TARGET, secret_fingerprint=None, last_success_at=None, validation_status=None, connected_status="unknown")
    record = dump_target(bare, MADE)
    assert record["secret"] == {"configured": False, "fingerprint": None}
    assert record["connected"] == {"status": "unknown", "last_success_at": None}
    assert record["last_validation"] is None


# Columns: a target's status and reason; why it is held for a minute; what is shown; whether the end of the hold is shown.
HELD = [
    ((TargetStatus.ACTIVE, None), "rate_limited", ("paused", "rate_limited"), True),
    ((TargetStatus.ACTIVE, None), "receiver_unavailable", ("paused", "receiver_unavailable"), True),
    ((TargetStatus.ACTIVE, None), "breaker_open", ("active", "breaker_open"), True),
    # A target that was turned off by a person or automatically does not wait for a specific time.
    ((TargetStatus.PAUSED, "client"), "rate_limited", ("paused", "client"), False),
    ((TargetStatus.DISABLED, "receiver_gone"), "breaker_open", ("disabled", "receiver_gone"), False),
]


@pytest.mark.parametrize(("status", "held_reason", "shown", "is_reported"), HELD)
def test_a_record_shows_that_a_target_waits_and_until_when(
    status: tuple[TargetStatus, str | None], held_reason: str, shown: tuple[str, str | None], is_reported: bool
) -> None:
    until = MADE + timedelta(minutes=1)
    held = replace(TARGET, status=status[0], status_reason=status[1], held_until=until, held_reason=held_reason)
    record = dump_target(held, until - timedelta(milliseconds=1))
    assert (record["status"], record["status_reason"]) == shown
    assert record["delivery"]["waits_until"] == ("2026-03-01T12:01:00.000Z" if is_reported else None)
    over = dump_target(held, until)
    assert (over["status"], over["status_reason"]) == (status[0].value, status[1])
    assert over["delivery"]["waits_until"] is None


def test_a_record_shows_the_concurrency_and_rate_limit_of_a_target() -> None:
    record = dump_target(replace(TARGET, concurrency=3, failures_in_row=4, max_per_minute=90), MADE)
    assert record["delivery"] == {"concurrency": 3, "failures_in_row": 4, "max_per_minute": 90, "waits_until": None}


def test_the_exports_of_active_and_paused_targets_are_not_ended() -> None:
    assert {status.value for status in ENABLED} == {"active", "paused"}
