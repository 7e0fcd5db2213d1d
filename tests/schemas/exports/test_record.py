"""Approvals and hand-made tickets have closed forms; the record tells a poller what is there and when to come again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.timestamps import format_rfc3339
from schemas.exports.record import (
    Approval,
    ApprovalForm,
    Export,
    LastAttempt,
    Preparation,
    PreparationForm,
    Sighting,
    as_shown,
    export_record,
)
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.targets.target import TargetStatus

FORM = ApprovalForm()
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXPORT = Export(
    id="exp_1",
    account_id=1,
    status=ExportStatus.PREPARED,
    status_reason=None,
    target_id=None,
    source=Source("finding", "fnd_1", 42),
    ticket={"title": "T"},
    ticket_digest="sha256:00",
    preview_problems=(),
    attempts=0,
    due_at=None,
    version=1,
    last_attempt=None,
    provider_ticket_id=None,
    provider_ticket_url=None,
    created_at=NOW,
    approved_at=None,
    finished_at=None,
    severity="info",
)


def waiting(status: ExportStatus, seconds: float) -> Export:
    due_at = NOW + timedelta(seconds=seconds)
    return replace(EXPORT, status=status, target_id="tgt_1", target_status=TargetStatus.ACTIVE, due_at=due_at)


WAITING_STATUSES = [ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED]


@pytest.mark.parametrize(
    ("body", "approval"),
    [
        ({"target_id": "tgt_1"}, Approval("tgt_1", None)),
        ({"target_id": "tgt_1", "ticket_digest": "sha256:00"}, Approval("tgt_1", "sha256:00")),
        ({"target_id": "tgt_1", "ticket_digest": None}, Approval("tgt_1", None)),
    ],
)
def test_an_approval_names_a_target_and_may_name_a_digest(body: dict[str, Any], approval: Approval) -> None:
    assert FORM.read(body) == approval


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ("/target_id", "required")),
        ({"target_id": None}, ("/target_id", "null")),
        ({"target_id": ""}, ("/target_id", "too_short")),
        ({"target_id": 7}, ("/target_id", "invalid_type")),
        ({"target_id": "x" * 65}, ("/target_id", "too_long")),
        ({"target_id": "x", "ticket_digest": "x" * 101}, ("/ticket_digest", "too_long")),
        ({"target_id": "x", "ticket_digest": 1}, ("/ticket_digest", "invalid_type")),
        ({"target_id": "x", "provider_secret": "hunter2"}, ("", "unknown_member")),
        (None, ("", "invalid_type")),
    ],
)
def test_another_approval_is_refused(body: Any, expected: tuple[str, str]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    assert [(each.path, each.code) for each in refused.value.problems] == [expected]
    assert "hunter2" not in repr(refused.value.problems)


def test_a_prepared_export_is_shown_with_nulls_and_without_what_is_optional() -> None:
    assert export_record(EXPORT, NOW) == {
        "id": "exp_1",
        "status": "prepared",
        "status_reason": None,
        "target_id": None,
        "source": {"type": "finding", "id": "fnd_1", "scan_run_id": 42},
        "ticket": {"title": "T"},
        "ticket_digest": "sha256:00",
        "preview": {"safe": True, "problems": []},
        "attempts": 0,
        "next_attempt_at": None,
        "created_at": "2026-03-01T12:00:00.000Z",
        "approved_at": None,
        "finished_at": None,
        "project_id": None,
        "severity": "info",
        "rule": None,
        "findings": None,
        "edited": False,
    }


def test_a_delivered_export_shows_its_last_attempt_and_the_providers_ticket() -> None:
    attempt = LastAttempt(NOW, 201, None, 12)
    delivered = replace(
        EXPORT, status=ExportStatus.EXPORTED, last_attempt=attempt, provider_ticket_id="T-1", finished_at=NOW
    )
    record = export_record(delivered, NOW)
    assert record["last_attempt"] == {
        "at": "2026-03-01T12:00:00.000Z",
        "response_status": 201,
        "error_code": None,
        "duration_ms": 12,
    }
    assert record["provider_ticket"] == {"id": "T-1", "url": None}
    assert record["finished_at"] == "2026-03-01T12:00:00.000Z"


SEEN = Sighting("fnd_1", NOW, NOW + timedelta(hours=1), 2, 41, 42)


def test_the_export_of_a_finding_says_when_and_how_often_it_was_seen() -> None:
    assert export_record(replace(EXPORT, finding=SEEN), NOW)["finding"] == {
        "id": "fnd_1",
        "first_seen_at": "2026-03-01T12:00:00.000Z",
        "last_seen_at": "2026-03-01T13:00:00.000Z",
        "times_seen": 2,
        "first_scan_run_id": 41,
        "last_scan_run_id": 42,
    }


def test_a_preview_with_problems_is_not_safe() -> None:
    record = export_record(replace(EXPORT, preview_problems=({"rule": "card_number"},)), NOW)
    assert record["preview"] == {"safe": False, "problems": [{"rule": "card_number"}]}


@pytest.mark.parametrize(("seconds", "expected"), [(30, 30), (29.001, 30), (0.001, 1), (0, 1), (-5, 1), (86400, 86400)])
def test_a_scheduled_retry_is_reported_in_whole_seconds_rounded_up_and_at_least_one(seconds: float, expected: int) -> None:
    assert export_record(waiting(ExportStatus.RETRY_SCHEDULED, seconds), NOW)["retry_after_seconds"] == expected


@pytest.mark.parametrize("status", [status for status in ExportStatus if status is not ExportStatus.RETRY_SCHEDULED])
def test_an_export_that_is_due_or_not_waiting_reports_no_wait(status: ExportStatus) -> None:
    export = waiting(status, 0 if status is ExportStatus.APPROVED else 30)
    assert "retry_after_seconds" not in export_record(export, NOW)


@pytest.mark.parametrize("status", WAITING_STATUSES)
@pytest.mark.parametrize(("due_s", "held_s", "shown_s"), [(-5, 3600, 3600), (-5, 0.001, 1), (30, 3600, 3600), (30, 5, 30)])
def test_a_hold_of_the_target_is_waited_for_as_a_retry_is(
    status: ExportStatus, due_s: float, held_s: float, shown_s: int
) -> None:
    export = replace(waiting(status, due_s), held_until=NOW + timedelta(seconds=held_s))
    record = export_record(export, NOW)
    assert record["retry_after_seconds"] == shown_s
    assert record["next_attempt_at"] == format_rfc3339(NOW + timedelta(seconds=max(due_s, held_s)))
    assert record["status_reason"] is None


@pytest.mark.parametrize("status", WAITING_STATUSES)
def test_a_hold_that_is_over_shows_no_more(status: ExportStatus) -> None:
    export = waiting(status, -5)
    assert export_record(replace(export, held_until=NOW), NOW) == export_record(export, NOW)


@pytest.mark.parametrize("status", WAITING_STATUSES)
@pytest.mark.parametrize("target_status", [TargetStatus.PAUSED, TargetStatus.INACTIVE])
def test_a_stopped_target_is_named_and_polled_once_a_minute(status: ExportStatus, target_status: TargetStatus) -> None:
    export = replace(waiting(status, 30), target_status=target_status, held_until=NOW + timedelta(hours=1))
    record = export_record(export, NOW)
    assert record["status_reason"] == f"target_{target_status.value}"
    assert (record["next_attempt_at"], record["retry_after_seconds"]) == (None, 60)


@pytest.mark.parametrize("target_status", TargetStatus)
@pytest.mark.parametrize("status", [status for status in ExportStatus if status not in WAITING_STATUSES])
def test_a_target_that_is_stopped_or_held_changes_nothing_of_an_export_that_does_not_wait(
    status: ExportStatus, target_status: TargetStatus
) -> None:
    export = replace(EXPORT, status=status, status_reason="receiver_gone")
    held = replace(export, target_status=target_status, held_until=NOW + timedelta(hours=1))
    assert export_record(held, NOW) == export_record(export, NOW)


@pytest.mark.parametrize("status", ExportStatus)
def test_the_end_of_a_lease_is_not_shown_as_the_next_attempt(status: ExportStatus) -> None:
    shown = export_record(waiting(status, 30), NOW)["next_attempt_at"]
    waits = status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED}
    assert shown == ("2026-03-01T12:00:30.000Z" if waits else None)


@given(st.integers(-10_000, 10**9))
def test_a_client_that_waits_as_reported_never_comes_too_early(ms: int) -> None:
    seconds = ms / 1000
    actual = as_shown(waiting(ExportStatus.RETRY_SCHEDULED, seconds), NOW).retry_after_s
    assert actual is not None
    assert actual >= 1
    assert actual - 1 <= max(seconds, 0)
    assert NOW + timedelta(seconds=actual) >= NOW + timedelta(seconds=seconds)


# --- by hand


PREPARATION = PreparationForm()


def written(**members: Any) -> Ticket:
    preparation: Preparation = PREPARATION.read({"ticket": {"title": "T", **members}})
    return preparation.ticket


def test_a_hand_made_ticket_needs_a_title_alone() -> None:
    ticket = Ticket("T", "T", "info", None, (), {})
    assert PREPARATION.read({"ticket": {"title": "T"}}) == Preparation(ticket, None, None)


@pytest.mark.parametrize(
    ("named", "severity"), [("high", "high"), (" Serious ", "high"), ("WARN", "medium"), (None, "info")]
)
def test_a_severity_may_go_by_another_name(named: str | None, severity: str) -> None:
    assert written(severity=named).severity == severity


@pytest.mark.parametrize("severity", ["", "urgent", "hoch", "1", "p1"])
def test_a_severity_that_nobody_knows_is_refused(severity: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        written(severity=severity)
    assert [(each.path, each.code) for each in refused.value.problems] == [("/ticket/severity", "not_allowed")]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["ticket", "source", "project_id", "title", "description", "severity", "page_url", "labels", "type"])


@given(values | st.dictionaries(names, values | st.dictionaries(names, values, max_size=6), max_size=4))
def test_any_value_is_a_preparation_or_a_refusal(body: Any) -> None:
    refused: tuple[FieldProblem, ...] = ()
    preparation: Preparation | None = None
    try:
        preparation = PREPARATION.read(body)
    except ValidationFailed as failed:
        refused = failed.problems
    assert bool(refused) != (preparation is not None and preparation.ticket.title == body["ticket"]["title"])


@given(
    st.text(min_size=1, max_size=250).filter(
        lambda text: text.strip() and len(text.splitlines()) == 1 and text.splitlines()[0] == text
    ),
    st.text(min_size=1, max_size=300),
    # A label of spaces names nothing and is refused.
    st.lists(st.text(min_size=1, max_size=100).filter(str.strip), max_size=50),
)
def test_a_hand_made_ticket_is_never_changed(title: str, description: str, labels: list[str]) -> None:
    ticket = PREPARATION.read({"ticket": {"title": title, "description": description, "labels": labels}}).ticket
    assert (ticket.title, ticket.description, list(ticket.labels)) == (title, description, labels)
