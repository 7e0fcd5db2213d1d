"""Approvals and prepared tickets reject unknown members; the record tells a client the state and when to poll again."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.timestamps import format_rfc3339, to_ms
from schemas.exports.polled_record import PolledExport
from schemas.exports.record import Approval, ApprovalForm, Preparation, PreparationForm, export_record
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Ticket
from schemas.targets.target import TargetStatus
from storage.exports.rows import export_from
from tests.support.exports import NOW, export_row

FORM = ApprovalForm()
ROW = export_row()


def shown(row: PolledExport) -> dict[str, Any]:
    """Return the record of a row as a client sees it."""
    return export_record(export_from(row), NOW)


def waiting(status: ExportStatus, seconds: float) -> PolledExport:
    due_at = to_ms(NOW + timedelta(seconds=seconds))
    return export_row(status=status.value, target_id="tgt_1", target_status="active", due_at=due_at)


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
def test_an_invalid_approval_is_refused_with_the_field(body: Any, expected: tuple[str, str]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    assert [(each.path, each.code) for each in refused.value.problems] == [expected]
    assert "hunter2" not in repr(refused.value.problems)


def test_a_prepared_export_is_shown_with_nulls_and_without_optional_members() -> None:
    assert shown(ROW) == {
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
    attempt: dict[str, Any] = {"last_attempt_at": to_ms(NOW), "last_response_status": 201, "last_duration_ms": 12}
    record = shown(export_row(status="exported", provider_ticket_id="T-1", finished_at=to_ms(NOW), **attempt))
    assert record["last_attempt"] == {
        "at": "2026-03-01T12:00:00.000Z",
        "response_status": 201,
        "error_code": None,
        "duration_ms": 12,
    }
    assert record["provider_ticket"] == {"id": "T-1", "url": None}
    assert record["finished_at"] == "2026-03-01T12:00:00.000Z"


def test_the_export_of_a_finding_says_when_and_how_often_it_was_seen() -> None:
    seen: dict[str, Any] = {"first_seen_at": to_ms(NOW), "last_seen_at": to_ms(NOW + timedelta(hours=1)), "times_seen": 2}
    row = export_row(finding_id="fnd_1", first_scan_run_id=41, last_scan_run_id=42, **seen)
    assert shown(row)["finding"] == {
        "id": "fnd_1",
        "first_seen_at": "2026-03-01T12:00:00.000Z",
        "last_seen_at": "2026-03-01T13:00:00.000Z",
        "times_seen": 2,
        "first_scan_run_id": 41,
        "last_scan_run_id": 42,
    }


def test_a_preview_with_problems_is_not_safe() -> None:
    record = shown(export_row(preview_problems='[{"rule": "card_number"}]'))
    assert record["preview"] == {"safe": False, "problems": [{"rule": "card_number"}]}


@pytest.mark.parametrize(("seconds", "expected"), [(30, 30), (29.001, 30), (0.001, 1), (0, 1), (-5, 1), (86400, 86400)])
def test_a_scheduled_retry_is_reported_in_whole_seconds_rounded_up_and_at_least_one(seconds: float, expected: int) -> None:
    assert shown(waiting(ExportStatus.RETRY_SCHEDULED, seconds))["retry_after_seconds"] == expected


@pytest.mark.parametrize("status", [status for status in ExportStatus if status is not ExportStatus.RETRY_SCHEDULED])
def test_an_export_that_is_due_or_not_waiting_reports_no_wait(status: ExportStatus) -> None:
    export = waiting(status, 0 if status is ExportStatus.APPROVED else 30)
    assert "retry_after_seconds" not in shown(export)


@pytest.mark.parametrize("status", WAITING_STATUSES)
@pytest.mark.parametrize(("due_s", "held_s", "shown_s"), [(-5, 3600, 3600), (-5, 0.001, 1), (30, 3600, 3600), (30, 5, 30)])
def test_the_reported_wait_includes_the_hold_of_the_target(
    status: ExportStatus, due_s: float, held_s: float, shown_s: int
) -> None:
    export = waiting(status, due_s)._replace(held_until=to_ms(NOW + timedelta(seconds=held_s)))
    record = shown(export)
    assert record["retry_after_seconds"] == shown_s
    assert record["next_attempt_at"] == format_rfc3339(NOW + timedelta(seconds=max(due_s, held_s)))
    assert record["status_reason"] is None


@pytest.mark.parametrize("status", WAITING_STATUSES)
def test_an_expired_hold_is_not_shown(status: ExportStatus) -> None:
    export = waiting(status, -5)
    assert shown(export._replace(held_until=to_ms(NOW))) == shown(export)


@pytest.mark.parametrize("status", WAITING_STATUSES)
@pytest.mark.parametrize("target_status", [TargetStatus.PAUSED, TargetStatus.INACTIVE])
def test_an_export_of_a_stopped_target_has_its_status_as_reason_and_a_wait_of_a_minute(
    status: ExportStatus, target_status: TargetStatus
) -> None:
    held: dict[str, Any] = {"target_status": target_status.value, "held_until": to_ms(NOW + timedelta(hours=1))}
    export = waiting(status, 30)._replace(**held)
    record = shown(export)
    assert record["status_reason"] == f"target_{target_status.value}"
    assert (record["next_attempt_at"], record["retry_after_seconds"]) == (None, 60)


@pytest.mark.parametrize("target_status", TargetStatus)
@pytest.mark.parametrize("status", [status for status in ExportStatus if status not in WAITING_STATUSES])
def test_a_target_that_is_stopped_or_held_changes_nothing_of_an_export_that_does_not_wait(
    status: ExportStatus, target_status: TargetStatus
) -> None:
    export = export_row(status=status.value, status_reason="receiver_gone")
    held = export._replace(target_status=target_status.value, held_until=to_ms(NOW + timedelta(hours=1)))
    assert shown(held) == shown(export)


@pytest.mark.parametrize("status", ExportStatus)
def test_the_end_of_a_lease_is_not_shown_as_the_next_attempt(status: ExportStatus) -> None:
    next_at = shown(waiting(status, 30))["next_attempt_at"]
    waits = status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED}
    assert next_at == ("2026-03-01T12:00:30.000Z" if waits else None)


@given(st.integers(-10_000, 10**9))
def test_a_client_that_waits_as_reported_never_polls_too_early(ms: int) -> None:
    seconds = ms / 1000
    actual = shown(waiting(ExportStatus.RETRY_SCHEDULED, seconds))["retry_after_seconds"]
    assert actual >= 1
    assert actual - 1 <= max(seconds, 0)
    assert NOW + timedelta(seconds=actual) >= NOW + timedelta(seconds=seconds)


# --- prepared by a client


PREPARATION = PreparationForm()


def written(**members: Any) -> Ticket:
    preparation: Preparation = PREPARATION.read({"ticket": {"title": "T", **members}})
    return preparation.ticket


def test_a_manual_ticket_needs_only_a_title() -> None:
    ticket = Ticket("T", "T", "info", None, (), {})
    assert PREPARATION.read({"ticket": {"title": "T"}}) == Preparation(ticket, None, None)


@pytest.mark.parametrize(
    ("named", "severity"), [("high", "high"), (" Serious ", "high"), ("WARN", "medium"), (None, "info")]
)
def test_synonyms_of_severities_are_accepted(named: str | None, severity: str) -> None:
    assert written(severity=named).severity == severity


@pytest.mark.parametrize("severity", ["", "urgent", "hoch", "1", "p1"])
def test_an_unknown_severity_is_refused(severity: str) -> None:
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
def test_any_value_is_accepted_as_a_ticket_or_rejected(body: Any) -> None:
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
    # A label that consists of spaces is rejected.
    st.lists(st.text(min_size=1, max_size=100).filter(str.strip), max_size=50),
)
def test_a_manual_ticket_is_never_changed(title: str, description: str, labels: list[str]) -> None:
    ticket = PREPARATION.read({"ticket": {"title": title, "description": description, "labels": labels}}).ticket
    assert (ticket.title, ticket.description, list(ticket.labels)) == (title, description, labels)
