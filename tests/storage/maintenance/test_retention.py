"""Retention deletes finished records with everything that belongs to them; unfinished and just changed records stay."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from schemas.base.console_session import SignInMethod
from schemas.base.errors import ExportNotFound
from schemas.base.principal import Ability, TokenKind, TokenPrincipal
from schemas.base.timestamps import format_rfc3339, from_ms, to_ms
from schemas.compliance.requests import ComplianceResult, Topic
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll
from schemas.exports.tickets.ticket_events import PlaceChange
from schemas.intake.email import InboundEmail
from schemas.intake.email_forms import EmailForm
from schemas.intake.evidence import Capture, CaptureForm
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm, ScanPostback
from schemas.targets.pings import PingResult
from schemas.targets.target import Target
from schemas.triage.decision_forms import Edit
from schemas.triage.export_filter import ExportQuery, ListPosition
from storage.accounts import projects, sessions, sign_in_links, tokens
from storage.accounts.sessions import IDLE_FOR, LASTS_FOR
from storage.compliance import requests as compliance_requests
from storage.db import identifiers
from storage.db.engine import connection, execute, is_sqlite, rows, transaction
from storage.db.models import ComplianceRequestRow, TargetRow
from storage.exports import attempts, claims_sql, idempotency, queries, recoveries, transitions
from storage.exports.search import export_list
from storage.intake import emails, handoffs
from storage.maintenance import retention
from storage.maintenance.archive import Archive, UnsafeFolder, archived_fields
from storage.maintenance.retention import EXPORTS_AT_ONCE, ROWS_AT_ONCE, Cutoffs
from storage.reporting import finding_trends
from storage.secrets.vault import Vault
from storage.targets import pings
from storage.triage import bulk_jobs, decisions, targeting
from tests.support.database.databases import on_postgresql
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    capture,
    claim_due,
    completed_attempt,
    issue,
    make_alert,
    make_approved,
    make_bulk_job,
    make_exports,
    make_failed,
    make_report_upload,
    make_target,
    plain_email,
    postback,
    record_postback,
)
from tests.support.http.storefront import ADA, order
from tests.support.processes.workers import wait_until

RETENTION: Final = timedelta(days=90)
TTL: Final = timedelta(hours=72)
#: A record that finished at NOW is just too old at this time.
LATER: Final = NOW + RETENTION + timedelta(milliseconds=1)
UNTIL: Final = retention.cutoffs(LATER, RETENTION, TTL)
MINUTE: Final = timedelta(minutes=1)
VAULT: Final = Vault([b"A" * 32])


def days(count: float) -> timedelta:
    return timedelta(days=count)


def prune(until: Cutoffs = UNTIL, limit: int = retention.ALL, archive: Archive | None = None) -> dict[str, int]:
    """Purge; return the counts without zeros."""
    counts = Counter[str]()
    for gone in retention.purge(until, limit, archive):
        counts += gone
    return dict(counts)


def planned(until: Cutoffs = UNTIL, limit: int = retention.ALL) -> dict[str, int]:
    return dict(+retention.count_expired(until, limit))


def count(table: str) -> int:
    return int(rows(f"SELECT COUNT(*) FROM {table}")[0][0])  # noqa: S608 - our own names


def left(table: str = "exports") -> set[Any]:
    return {row[0] for row in rows(f"SELECT id FROM {table}")}  # noqa: S608 - our own names


def set_status(export_id: str, target: Target, status: str, finished_at: datetime | None) -> None:
    """Set any status of an export directly."""
    waits = status in {"approved", "delivering", "retry_scheduled"}
    execute(
        "UPDATE exports SET status = ?, target_id = ?, body = ?, due_at = ?, lease = ?, finished_at = ? WHERE id = ?",
        (
            status,
            None if status in {"prepared", "dismissed"} else target.id,
            b"{}",
            1 if waits else None,
            "lse_1" if status == "delivering" else None,
            None if finished_at is None else to_ms(finished_at),
            export_id,
        ),
    )


def delivered(customer: Customer, target: Target, now: datetime = NOW) -> str:
    """Store an export that was delivered by its only attempt at `now`."""
    export_id = make_approved(customer, target.id, now)
    [claim] = claim_due(1, now, 60, "worker:test")
    assert claims_sql.record_attempts([completed_attempt(claim, at=now)], now, "worker:test") == {export_id}
    return export_id


def uploaded(customer: Customer, now: datetime = NOW) -> str:
    """Store a capture; return the ID of the export that was prepared from it."""
    principal = TokenPrincipal(
        1, customer.user_id, customer.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True
    )
    upload: Capture = CaptureForm().read(capture(customer.project_id))
    return handoffs.record_upload(handoffs.prepare_upload(upload), principal, now).ticket_export_id


def emailed(customer: Customer, now: datetime = NOW) -> bool:
    """Accept an email; return whether it was a duplicate."""
    email: InboundEmail = EmailForm().read(plain_email())
    return emails.accept(emails.prepare_email(email), customer.project_id, now, "email").is_duplicate


def scanned(customer: Customer, now: datetime = NOW, scan_run_id: int = 42) -> PostbackResult:
    seen: ScanPostback = PostbackForm().read(postback(scan_run_id, [issue()]))
    return record_postback(seen, customer.project_id, now)


def make_keys(count: int) -> None:
    """Store expired idempotency keys."""
    columns = "principal, method, route, key, payload_sha256, created_at"
    values = ", ".join(f"('user:1', 'POST', '/', '{number}', 'a', 1)" for number in range(count))
    execute(f"INSERT INTO idempotency_keys ({columns}) VALUES {values}")  # noqa: S608 - our own words


# --- what is deleted, and when


# Columns: status; age; time since it finished; whether it is deleted.
AGES: Final = [
    ("prepared", days(90) + MINUTE, None, True),
    ("prepared", days(90) - MINUTE, None, False),
    ("exported", days(200), days(90) + MINUTE, True),
    ("exported", days(200), days(90) - MINUTE, False),  # prepared long ago, finished recently
    ("failed", days(91), days(91), True),
    ("failed", days(200), days(89), False),
    ("blocked", days(91), days(91), True),
    ("dismissed", days(91), days(91), True),
    ("dismissed", days(91), days(2), False),
    ("approved", days(4000), None, False),  # its target is paused
    ("delivering", days(4000), None, False),
    ("retry_scheduled", days(4000), None, False),
]


@pytest.mark.parametrize(("status", "made", "over", "goes"), AGES)
def test_an_export_is_deleted_when_it_ended_long_enough_ago(
    customer: Customer, target: Target, status: str, made: timedelta, over: timedelta | None, goes: bool
) -> None:
    now = NOW + days(5000)
    [export_id] = make_exports(customer, 1, now - made)
    set_status(export_id, target, status, None if over is None else now - over)
    until = retention.cutoffs(now, RETENTION, TTL)
    expected = {"exports": 1} if goes else {}
    assert planned(until) == expected
    assert prune(until) == expected
    assert left() == (set() if goes else {export_id})


def test_retention_deletes_an_export_with_all_its_records(customer: Customer, target: Target) -> None:
    delivered(customer, target)
    uploaded(customer)
    emailed(customer)
    scanned(customer)
    entries = count("audit_entries")
    expected = {
        "exports": 4,
        "attempts": 1,
        "handoffs": 1,
        "evidence_captures": 1,
        "inbound_emails": 1,
        "page_results": 1,
        "finding_sightings": 1,
        # What the charts count of the only attempt.
        "delivery_hours": 1,
    }
    assert planned() == expected
    assert prune() == expected
    assert [count(table) for table in expected] == [0] * len(expected)
    # Findings stay, so that a known problem is not reported again; so does the audit log.
    assert (count("findings"), count("scan_runs"), count("audit_entries")) == (1, 1, entries)
    assert planned() == prune() == {}


def test_an_upload_stays_as_long_as_its_export(customer: Customer, target: Target) -> None:
    waiting = uploaded(customer)
    transitions.approve(waiting, customer.account_id, Approval(target.id, None), NOW, "user:1", LOOPBACK_POLICY)
    assert prune() == {}
    assert (left(), count("handoffs"), count("evidence_captures")) == ({waiting}, 1, 1)


def test_the_rest_of_an_erased_upload_is_deleted_too(customer: Customer) -> None:
    export_id = uploaded(customer)
    with transaction():
        execute("DELETE FROM handoffs")
        execute("DELETE FROM evidence_captures")
        assert transitions.redact([export_id], NOW, "cpl_1") == 1
    assert planned() == prune() == {"exports": 1}


def test_an_export_is_kept_as_long_as_stored_responses_with_its_ticket(customer: Customer) -> None:
    make_exports(customer, 1)
    now = NOW + days(2)
    assert prune(retention.cutoffs(now, days(1), TTL)) == {}
    assert prune(retention.cutoffs(now, days(1), days(1))) == {"exports": 1}


def test_responses_stay_for_a_day_if_clients_keys_are_stored_for_less() -> None:
    until = retention.cutoffs(NOW, RETENTION, timedelta(hours=1))
    assert until.responses == retention.cutoffs(NOW, RETENTION, days(1)).responses == NOW - days(1)


def test_exports_that_a_recovery_has_not_reached_yet_are_kept(customer: Customer, target: Target) -> None:
    covered = make_failed(customer, target.id, 1)
    blocked = make_failed(customer, target.id, 1, status="blocked")
    make_failed(customer, target.id, 1, NOW - MINUTE)
    make_failed(customer, make_target(customer).id, 1)
    [exported] = make_exports(customer, 1)
    set_status(exported, target, "exported", NOW)
    held = recoveries.begin(target.id, NOW, LATER, "operator")
    assert planned() == prune() == {"exports": 3}
    assert left() == {*covered, *blocked}
    recoveries.cancel(held.id, LATER, "operator")
    assert prune() == {"exports": 2}


def test_an_export_stays_while_an_event_about_its_erasure_waits(customer: Customer, target: Target) -> None:
    execute("UPDATE targets SET events = ? WHERE id = ?", ('["ticket.redact"]', target.id))
    informed, waiting = make_exports(customer, 2)
    for export_id in (informed, waiting):
        set_status(export_id, target, "exported", NOW)
    transitions.redact([informed, waiting], NOW, "operator")
    execute("UPDATE ticket_events SET status = 'delivered' WHERE export_id = ?", (informed,))
    assert planned()["exports"] == prune()["exports"] == 1
    assert left() == {waiting}
    execute("UPDATE ticket_events SET status = 'failed'")
    assert prune()["exports"] == 1


def test_page_results_are_deleted_by_the_time_of_their_last_report(customer: Customer) -> None:
    scanned(customer, scan_run_id=1)
    scanned(customer, scan_run_id=2)
    scanned(customer, NOW + days(1), scan_run_id=2)
    assert planned() == prune() == {"page_results": 1, "finding_sightings": 1}
    assert rows("SELECT scan_run_id FROM page_results") == rows("SELECT scan_run_id FROM finding_sightings") == [(2,)]


def test_a_group_stays_while_findings_join_it(customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    [group] = scanned(customer).ticket_exports
    joining: ScanPostback = PostbackForm().read(postback(43, [issue(location="footer")]))
    assert record_postback(joining, customer.project_id, NOW + days(1)).ticket_exports == (group,)
    assert prune().get("exports") is None
    execute("UPDATE exports SET status = 'dismissed', finished_at = created_at")
    assert prune() == {}
    execute("UPDATE findings SET first_seen_at = ?", (to_ms(NOW),))
    execute("UPDATE findings SET last_seen_at = ?", (to_ms(NOW),))
    assert prune() == {"exports": 1}


@pytest.mark.parametrize(
    ("status", "events", "is_fixed", "stays"),
    [
        ("prepared", None, False, True),
        ("prepared", None, True, False),
        ("dismissed", None, False, True),
        ("dismissed", None, True, False),
        ("exported", '["ticket.fixed"]', False, True),
        ("exported", '["ticket.fixed"]', True, False),
        ("exported", "[]", False, False),
        ("exported", None, False, False),
        ("failed", None, False, True),
        ("failed", '["ticket.fixed"]', True, False),
        ("blocked", None, False, True),
    ],
)
def test_an_export_that_has_an_effect_stays_while_scan_runs_report_its_finding(
    status: str, events: str | None, is_fixed: bool, stays: bool, customer: Customer
) -> None:
    [export_id] = scanned(customer).ticket_exports
    set_status(export_id, make_target(customer), status, None if status == "prepared" else NOW)
    execute("UPDATE exports SET events = ?", (events,))
    execute("UPDATE findings SET last_seen_at = ?, fixed_at = ?", (to_ms(LATER), to_ms(LATER) if is_fixed else None))
    assert (planned().get("exports") is None, prune().get("exports") is None) == (stays, stays)
    execute("UPDATE findings SET last_seen_at = ?", (to_ms(NOW),))
    assert prune().get("exports", 0) == int(stays)


def test_a_copy_that_has_an_effect_keeps_the_set_while_scan_runs_report_its_finding(customer: Customer) -> None:
    [export_id] = scanned(customer).ticket_exports
    both = ApprovalForAll((make_target(customer).id, make_target(customer).id), None)
    copies = targeting.approve_for_all(export_id, customer.account_id, both, NOW, "user:1", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL, finished_at = ?, events = '[]'", (to_ms(NOW),))
    # The finding names the other copy.
    execute("UPDATE exports SET events = ? WHERE id = ?", ('["ticket.fixed"]', copies[1].id))
    execute("UPDATE findings SET last_seen_at = ?", (to_ms(LATER),))
    assert (planned().get("exports"), prune().get("exports")) == (None, None)
    execute("UPDATE findings SET last_seen_at = ?", (to_ms(NOW),))
    assert prune()["exports"] == 2


@pytest.mark.parametrize("decided", ["snoozed until a time", "snoozed lately", "restored lately", "edited lately"])
def test_the_retention_of_a_prepared_export_begins_with_its_last_decision(customer: Customer, decided: str) -> None:
    [export_id] = make_exports(customer, 1)
    of, by = (export_id, customer.account_id), "user:1"
    lately = LATER - days(1)
    match decided:
        case "snoozed until a time":
            decisions.snooze(*of, NOW, by, LATER + days(30))
        case "snoozed lately":
            decisions.snooze(*of, lately, by, None)
        case "restored lately":
            decisions.dismiss(*of, NOW, by, DismissalReason.OTHER)
            decisions.restore(*of, lately, by)
        case "edited lately":
            decisions.edit(*of, lately, by, Edit(title="Better"))
    assert planned() == prune() == {}
    much_later = retention.cutoffs(LATER + days(30) + RETENTION + MINUTE, RETENTION, TTL)
    assert planned(much_later)["exports"] == prune(much_later)["exports"] == 1


def test_a_copy_that_is_retried_after_its_selection_keeps_the_other_copies(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    [export_id] = make_exports(customer, 1)
    both = ApprovalForAll((make_target(customer).id, make_target(customer).id), None)
    copies = targeting.approve_for_all(export_id, customer.account_id, both, NOW, "user:1", LOOPBACK_POLICY)
    for copy, status in zip(copies, ("exported", "failed"), strict=True):
        execute("UPDATE exports SET status = ?, finished_at = 1, due_at = NULL WHERE id = ?", (status, copy.id))
    later, take = NOW + timedelta(days=400), retention._delete_unchanged

    def retried(*arguments: Any) -> Counter[str]:
        monkeypatch.setattr(retention, "_delete_unchanged", take)
        transitions.retry(copies[1].id, customer.account_id, later, "user:1")
        return take(*arguments)

    monkeypatch.setattr(retention, "_delete_unchanged", retried)
    until = retention.cutoffs(later, timedelta(days=30), timedelta(days=1))
    assert [*retention.purge(until)] != []
    assert rows("SELECT COUNT(*) FROM exports") == [(2,)]
    execute("UPDATE exports SET status = 'failed', finished_at = 1, due_at = NULL WHERE id = ?", (copies[1].id,))
    assert [*retention.purge(until)] != []
    assert rows("SELECT COUNT(*) FROM exports") == [(0,)]


def test_the_copies_of_a_ticket_for_several_targets_are_deleted_together(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    both = ApprovalForAll((make_target(customer).id, make_target(customer).id), None)
    copies = targeting.approve_for_all(export_id, customer.account_id, both, NOW, "user:1", LOOPBACK_POLICY)
    first, second = [each.id for each in copies]
    over = "UPDATE exports SET status = 'exported', due_at = NULL, finished_at = ? WHERE id = ?"
    execute(over, (to_ms(NOW), first))
    assert planned() == prune() == {}
    execute(over, (to_ms(LATER), second))
    assert planned() == prune() == {}
    execute(over, (to_ms(NOW), second))
    assert planned() == prune() == {"exports": 2}


def test_a_reopened_finding_is_counted_once_however_old_its_fix_is(customer: Customer) -> None:
    def run(number: int, issues: list[Mapping[str, Any]], at: datetime) -> None:
        page = {"url": "https://shop.example/b"}
        record_postback(PostbackForm().read(postback(number, issues, page=page)), customer.project_id, at)

    def unfixed(at: datetime) -> int:
        return sum(finding_trends.read_trend(customer.account_id, None, at, 1).days[0].unfixed.values())

    for number, found, day in ((1, True, 0), (2, False, 1), (3, False, 2), (4, True, 20), (5, False, 30), (6, False, 31)):
        run(number, [issue()] if found else [], NOW + days(day))
    run(7, [issue()], NOW + days(60))
    assert (unfixed(NOW + days(59)), unfixed(NOW + days(60))) == (0, 1)
    for pruned_at in (50, 61):
        prune(retention.cutoffs(NOW + days(pruned_at) + RETENTION, RETENTION, TTL))
        assert unfixed(NOW + days(pruned_at) + RETENTION) == 1
    assert count("finding_sightings") == 0


def test_a_finding_reopened_after_its_fix_was_deleted_is_counted_once(customer: Customer) -> None:
    def run(number: int, issues: list[Mapping[str, Any]], at: datetime) -> None:
        page = {"url": "https://shop.example/b"}
        record_postback(PostbackForm().read(postback(number, issues, page=page)), customer.project_id, at)

    for number, found in ((1, True), (2, False), (3, False)):
        run(number, [issue()] if found else [], NOW + days(number))
    prune(retention.cutoffs(NOW + days(4) + RETENTION, RETENTION, TTL))
    assert count("finding_sightings") == 0
    back = NOW + days(5) + RETENTION
    run(4, [issue()], back)
    trend = finding_trends.read_trend(customer.account_id, None, back - days(1), 3).days
    assert [sum(day.unfixed.values()) for day in trend] == [0, 1, 1]


def test_an_idempotency_key_is_deleted_when_it_expires_and_not_by_retention(database: str) -> None:
    answer = idempotency.StoredResponse(200, {}, "{}")
    for number, at in enumerate([LATER - TTL - MINUTE, LATER - TTL + MINUTE]):
        request = idempotency.KeyedRequest("user:1", "POST", "/api/ticket-exports", f"key-{number}", "a" * 64)
        with transaction():
            assert idempotency.begin(request, at, TTL) is None
            idempotency.finish_all([(request, answer)])
    assert planned() == prune() == {"idempotency_keys": 1}
    assert rows("SELECT key FROM idempotency_keys") == [("key-1",)]


def test_a_token_is_deleted_long_after_it_expired_or_was_revoked(customer: Customer) -> None:
    def made(expires: timedelta | None = None) -> int:
        return int(tokens.create(customer.email, TokenKind.API, NOW - days(10), expires=expires)[0].id)

    lasting, expired, expires_later = made(), made(days(5)), made(days(20))
    revoked, revoked_later, both = made(), made(days(20)), made(days(5))
    tokens.revoke(revoked, NOW)
    tokens.revoke(revoked_later, NOW + days(1))
    tokens.revoke(both, NOW - days(9))
    before = left("tokens")
    assert planned() == prune() == {"tokens": 3}
    assert before - left("tokens") == {expired, revoked, both}
    assert {lasting, expires_later, revoked_later} < left("tokens")


def sessions_of(customer: Customer, *seen_at: datetime, revoked_at: datetime | None = None) -> tuple[int, list[str]]:
    """Create a token, and sessions of it at these moments; return the IDs of the token and of the sessions."""
    token, text = tokens.create(customer.email, TokenKind.API, NOW - days(10), (Ability.CONSOLE,))
    principal = tokens.principal_for(text, NOW)
    assert principal is not None
    for at in seen_at:
        sessions.begin(principal, "a browser", at)
    if revoked_at is not None:
        tokens.revoke(token.id, revoked_at)
    ids = rows("SELECT id FROM console_sessions WHERE token_id = ? ORDER BY id", (token.id,))
    return token.id, [row[0] for row in ids]


def test_sessions_are_deleted_thirty_days_after_their_last_page_view(customer: Customer) -> None:
    """Sessions that nobody has ended, too: they expired long ago."""
    _, (old, _) = sessions_of(customer, LATER - days(30) - MINUTE, LATER - days(30) + MINUTE)
    assert planned() == prune() == {"console_sessions": 1}
    assert old not in left("console_sessions")
    assert len(left("console_sessions")) == 1


def test_sessions_are_deleted_before_their_token(customer: Customer) -> None:
    """However short the retention period is."""
    gone, _ = sessions_of(customer, NOW - days(9), NOW - days(8), revoked_at=NOW - days(5))
    until = retention.cutoffs(NOW, days(4), TTL)
    # The count does not consider yet that the token's sessions will be deleted first.
    assert planned(until) == {"console_sessions": 2}
    assert prune(until) == {"console_sessions": 2, "tokens": 1}
    assert gone not in left("tokens")


def test_a_token_is_not_deleted_before_its_sessions(customer: Customer) -> None:
    """The clock of another host was ahead when the session was used."""
    for revoked_at, expires_at in ((NOW - days(5), None), (None, to_ms(NOW - days(5)))):
        kept, _ = sessions_of(customer, NOW - days(9), revoked_at=revoked_at)
        execute("UPDATE console_sessions SET seen_at = ? WHERE token_id = ?", (to_ms(NOW), kept))
        execute("UPDATE tokens SET expires_at = ? WHERE id = ?", (expires_at, kept))
        assert prune(retention.cutoffs(NOW, days(4), TTL)) == {}
        assert kept in left("tokens")


# Columns: time since the session began; time since it was last used; whether its ID token is erased.
SIGNED_IN: Final = [
    (timedelta(hours=1), timedelta(hours=1), False),
    (days(1), IDLE_FOR - MINUTE, False),
    (days(1), IDLE_FOR, True),
    (LASTS_FOR - MINUTE, timedelta(), False),
    (LASTS_FOR, timedelta(), True),
    # Used by a host whose clock is ahead.
    (days(1), -IDLE_FOR, False),
    (days(1), -IDLE_FOR - MINUTE, True),
]


@pytest.mark.parametrize(("began", "seen", "goes"), SIGNED_IN)
def test_an_id_token_is_erased_when_its_session_is_over(
    customer: Customer, began: timedelta, seen: timedelta, goes: bool
) -> None:
    now, method = NOW + days(5000), SignInMethod.OPENID_CONNECT
    sessions.begin_for_user(customer.user_id, method, "state", "a browser", now - began, lambda _id: b"sealed")
    execute("UPDATE console_sessions SET seen_at = ?", (to_ms(now - seen),))
    until = retention.cutoffs(now, RETENTION, TTL)
    assert planned(until) == prune(until) == ({"id_tokens": 1} if goes else {})
    [(sealed,)] = rows("SELECT id_token_sealed FROM console_sessions")
    assert (sealed is None) == goes


def test_delivery_hours_are_deleted_after_the_retention_period_and_beyond_their_limit(target: Target) -> None:
    hour = timedelta(hours=1)
    for number in range(5):
        at = to_ms(NOW - number * hour)
        execute("INSERT INTO delivery_hours VALUES (?, ?, 'a', 1, 0), (?, ?, 'b', 0, 1)", (target.id, at, target.id, at))
    assert planned(limit=3) == prune(limit=3) == {"delivery_hours": 3}
    assert planned() == prune() == {"delivery_hours": 7}
    execute("INSERT INTO delivery_hours VALUES (?, ?, 'a', 1, 0)", (target.id, to_ms(LATER - RETENTION)))
    assert planned() == prune() == {}


def test_pings_are_deleted_after_the_lifetime_of_idempotency_keys(target: Target) -> None:
    def asked(at: datetime) -> str:
        return pings.request(target.id, target.account_id, at, "user:1")

    ended = asked(LATER - TTL - MINUTE)
    pings.finish(ended, PingResult(True, 202, None, 7), LATER - TTL)
    # Its request died, and no worker has claimed it.
    asked(LATER - TTL - MINUTE)
    recent = asked(LATER - TTL + MINUTE)
    assert planned() == prune() == {"pings": 2}
    assert left("pings") == {recent}


def test_recoveries_are_deleted_long_after_they_ended(customer: Customer) -> None:
    targets = [make_target(customer) for _ in range(3)]
    old, ended_later, running = (recoveries.begin(each.id, NOW, NOW, "operator").id for each in targets)
    recoveries.cancel(old, NOW, "operator")
    recoveries.cancel(ended_later, NOW + days(1), "operator")
    assert planned() == prune() == {"recoveries": 1}
    assert left("recoveries") == {ended_later, running}


def test_bulk_jobs_are_deleted_long_after_they_ended(customer: Customer) -> None:
    old, ended_later, running = (make_bulk_job(customer) for _ in range(3))
    bulk_jobs.cancel(old, NOW, "operator")
    bulk_jobs.cancel(ended_later, NOW + days(1), "operator")
    assert planned() == prune() == {"bulk_jobs": 1}
    assert left("bulk_jobs") == {ended_later, running}


def test_uploaded_reports_are_deleted_long_after_their_import_ended(customer: Customer) -> None:
    old, ended_later, waiting = (make_report_upload(customer).id for _ in range(3))
    ended = "UPDATE report_uploads SET status = 'done', next_run_at = NULL, finished_at = ? WHERE id = ?"
    execute(ended, (to_ms(NOW), old))
    execute(ended, (to_ms(NOW + days(1)), ended_later))
    assert planned() == prune() == {"report_uploads": 1}
    assert left("report_uploads") == {ended_later, waiting}


def test_alerts_are_deleted_long_after_they_ended_and_unsent_messages_too(customer: Customer) -> None:
    _old, ended_later = (make_alert(customer, number, "recovered") for number in range(2))
    still_open = make_alert(customer, 2)
    execute("UPDATE alerts SET last_at = ? WHERE id = ?", (to_ms(NOW + days(1)), ended_later))
    message_id = identifiers.new_id(identifiers.ALERT_MESSAGE, NOW)
    insert = "INSERT INTO alert_messages (id, channel, body, attempts, created_at) VALUES (?, 'slack', '{}', 3, ?)"
    execute(insert, (message_id, to_ms(NOW)))
    sign_in_links.request(lambda _link_id, _token: b"sealed", NOW)
    assert planned() == prune() == {"alerts": 1, "alert_messages": 1, "sign_in_links": 1}
    assert left("alerts") == {ended_later, still_open}


def test_a_weekly_summary_stays_until_its_week_is_over(customer: Customer) -> None:
    """Otherwise the summary would be sent again."""
    _other, older, newer = (make_alert(customer, number, "recovered") for number in range(3))
    execute("UPDATE alerts SET kind = 'weekly' WHERE id IN (?, ?)", (older, newer))
    execute("UPDATE alerts SET last_at = ? WHERE id = ?", (to_ms(NOW - days(2)), older))
    until = retention.cutoffs(NOW + days(7), days(4), TTL)
    assert planned(until) == prune(until) == {"alerts": 2}
    assert left("alerts") == {newer}
    until = retention.cutoffs(NOW + days(8) + MINUTE, days(4), TTL)
    assert planned(until) == prune(until) == {"alerts": 1}


def test_exports_that_a_bulk_job_has_not_reached_yet_are_kept(customer: Customer) -> None:
    [waiting] = make_exports(customer, 1)
    decisions.dismiss(waiting, None, NOW, "user:1")
    held = make_bulk_job(customer)
    assert bulk_jobs.get(held).total == 1
    assert planned() == prune() == {}
    bulk_jobs.cancel(held, LATER, "operator")
    assert planned() == prune() == {"exports": 1}


def test_an_old_report_is_erased_and_its_request_is_kept(database: str) -> None:
    def reported(at: datetime, topic: Topic) -> str:
        request_id = compliance_requests.receive(*order(topic, ADA), VAULT, at, "storefront")
        held = compliance_requests.claim_next(at)
        assert held is not None
        with transaction():
            compliance_requests.finish(
                held,
                ComplianceResult.REPORTED,
                {},
                compliance_requests.seal_report(held.id, {"a": 1}, VAULT),
                at,
                "worker:1",
            )
        assert request_id == held.id
        return held.id

    old, recent = reported(NOW, Topic.DATA_REQUEST), reported(NOW + days(1), Topic.CUSTOMER_REDACT)
    execute("INSERT INTO redactions (request_id, table_name, row_id, redacted_at) VALUES ('cpl_1', 'exports', 'exp_1', 1)")
    assert planned() == prune() == {"compliance_reports": 1}
    assert [(line.id, line.has_report) for line in compliance_requests.list_all()] == [(recent, True), (old, False)]
    assert count("redactions") == 1


def test_every_deleted_row_is_counted(customer: Customer, target: Target) -> None:
    delivered(customer, target)
    counts = retention.count_expired(UNTIL)
    assert set(counts) <= set(retention.counted(UNTIL))


# Any moment: IDs from that time on are above the bound, earlier IDs below it.
@pytest.mark.parametrize("moment", [NOW, from_ms(0), from_ms(1)])
def test_ids_created_before_a_time_sort_below_its_first_id(moment: datetime) -> None:
    bound = identifiers.first_id(identifiers.EXPORT, moment)
    assert identifiers.is_id(identifiers.EXPORT, bound)
    assert all(identifiers.new_id(identifiers.EXPORT, moment) >= bound for _ in range(20))
    if moment > from_ms(0):
        assert identifiers.new_id(identifiers.EXPORT, moment - timedelta(milliseconds=1)) < bound


def test_an_age_that_begins_before_1970_keeps_everything(customer: Customer) -> None:
    make_exports(customer, 1, from_ms(0))
    assert prune(retention.cutoffs(NOW, days(36_500), TTL)) == {}


# --- one batch at a time


def test_many_exports_are_deleted_in_batches_that_skip_those_to_keep(customer: Customer, target: Target) -> None:
    ids = make_exports(customer, EXPORTS_AT_ONCE * 2 + 5)
    kept = ids[:: EXPORTS_AT_ONCE // 10]
    for export_id in kept:
        set_status(export_id, target, "approved", None)
    gone = [counts["exports"] for counts in retention.purge(UNTIL)]
    assert sum(gone) == len(ids) - len(kept)
    assert max(gone) <= EXPORTS_AT_ONCE
    assert left() == set(kept)


def test_idempotency_keys_are_deleted_in_batches(database: str) -> None:
    make_keys(ROWS_AT_ONCE + 3)
    assert [counts.total() for counts in retention.purge(UNTIL)] == [ROWS_AT_ONCE, 3]


# Columns: limit; deleted rows. There are an export with two attempts, an export without, and two keys.
LIMITS: Final = [
    (1, {"exports": 1}),  # the first export with its attempts is three rows, so it is skipped
    (2, {"exports": 1, "idempotency_keys": 1}),
    (3, {"exports": 1, "attempts": 2}),
    (4, {"exports": 2, "attempts": 2}),
    (5, {"exports": 2, "attempts": 2, "idempotency_keys": 1}),
    (6, {"exports": 2, "attempts": 2, "idempotency_keys": 2}),
    (7, {"exports": 2, "attempts": 2, "idempotency_keys": 2}),
]


@pytest.mark.parametrize(("limit", "expected"), LIMITS)
def test_no_more_rows_than_the_limit_are_deleted(
    customer: Customer, target: Target, limit: int, expected: dict[str, int]
) -> None:
    first = make_failed(customer, target.id)[0]
    execute(
        "INSERT INTO attempts (id, export_id, number, started_at, outcome, total_ms, worker) "
        "VALUES ('att_1', ?, 1, 1, 'rejected', 1, 'w'), ('att_2', ?, 2, 1, 'rejected', 1, 'w')",
        (first, first),
    )
    make_exports(customer, 1, NOW + days(1))
    make_keys(2)
    until = retention.cutoffs(LATER + days(1), RETENTION, TTL)
    assert planned(until, limit) == expected
    assert prune(until, limit) == expected


# --- concurrent changes


class MovedMeanwhile(Archive):
    """An archive that runs a concurrent change just before the found rows are deleted."""

    def __init__(self, folder: Path, transition: Callable[[], object]) -> None:
        super().__init__(folder, LATER)
        self._transition: Callable[[], object] | None = transition

    def sync(self) -> None:
        super().sync()
        transition, self._transition = self._transition, None
        if transition is not None:
            transition()


def test_an_export_that_changes_after_it_was_selected_is_kept(customer: Customer, target: Target, tmp_path: Path) -> None:
    retried, approved, redacted, recovered = (make_failed(customer, target.id)[0] for _ in range(4))
    other = make_target(customer)
    execute("UPDATE exports SET target_id = ? WHERE id = ?", (other.id, recovered))
    set_status(approved, target, "prepared", None)
    others = make_failed(customer, target.id, 3)

    def transition() -> None:
        transitions.retry(retried, None, LATER, "user:1")
        transitions.approve(approved, customer.account_id, Approval(target.id, None), LATER, "user:1", LOOPBACK_POLICY)
        recoveries.begin(other.id, NOW, LATER, "operator")
        with transaction():
            # Still finished, but no longer equal to what was archived.
            transitions.redact([redacted], LATER, "cpl_1")

    with MovedMeanwhile(tmp_path / "archive", transition) as archive:
        assert prune(archive=archive) == {"exports": len(others)}
    assert left() == {retried, approved, redacted, recovered}


def test_a_page_posted_again_after_its_selection_is_not_deleted(customer: Customer, tmp_path: Path) -> None:
    scanned(customer)
    execute("UPDATE exports SET created_at = ?", (to_ms(LATER),))
    with MovedMeanwhile(tmp_path / "archive", lambda: scanned(customer, LATER)) as archive:
        assert prune(archive=archive) == {}
    assert count("page_results") == 1


@on_postgresql
@pytest.mark.parametrize(
    ("held", "kept"),
    [
        ("SELECT 1 FROM exports WHERE id = %s FOR UPDATE", 1),
        # The batch waits for no lock: its holder might in turn wait for the batch.
        ("SELECT 1 FROM attempts WHERE export_id = %s FOR UPDATE", 2),
    ],
)
def test_locked_rows_are_skipped(customer: Customer, target: Target, database: str, held: str, kept: int) -> None:
    busy = delivered(customer, target)
    make_exports(customer, 1)
    with psycopg.connect(database) as other:
        other.execute(held, (busy,))
        assert prune().get("exports", 0) == 2 - kept
    assert len(left()) == kept
    assert prune()["exports"] == kept


@on_postgresql
def test_an_export_stays_if_its_finding_is_reported_during_its_deletion(customer: Customer, database: str) -> None:
    export_ids = scanned(customer).ticket_exports

    def pruned() -> dict[str, int]:
        with connection():
            return prune()

    with psycopg.connect(database) as reporting, ThreadPoolExecutor(1) as threads:
        reporting.execute("UPDATE findings SET last_seen_at = %s", (to_ms(LATER),))
        pruning = threads.submit(pruned)
        # If this commit comes too late, the batch has given up, and the export stays too.
        wait_until(lambda: pruning.done() or rows("SELECT 1 FROM pg_locks WHERE NOT granted"))
        reporting.commit()
        assert "exports" not in pruning.result(20)
    assert left() == {*export_ids}
    assert rows("SELECT export_id FROM findings") == [(each,) for each in export_ids]


@on_postgresql
def test_an_idempotency_key_locked_by_a_request_is_not_deleted(database: str) -> None:
    make_keys(2)
    with psycopg.connect(database) as other:
        other.execute("UPDATE idempotency_keys SET created_at = 2 WHERE key = '0'")
        assert prune() == {"idempotency_keys": 1}
    assert rows("SELECT key FROM idempotency_keys") == [("0",)]


# --- afterwards


def test_a_deleted_export_is_not_found(customer: Customer, target: Target) -> None:
    export_id = delivered(customer, target)
    assert prune()["exports"] == 1
    for verb in (queries.get, attempts.list_details):
        with pytest.raises(ExportNotFound):
            verb(export_id)
    with pytest.raises(ExportNotFound):
        transitions.retry(export_id, None, LATER, "user:1")


@pytest.mark.parametrize("grouping", TicketGrouping)
@pytest.mark.parametrize(
    ("status", "is_delivered"),
    [("prepared", False), ("failed", False), ("blocked", False), ("exported", True), ("dismissed", True)],
)
def test_a_finding_gets_a_new_ticket_if_its_ticket_was_deleted_before_a_delivery(
    customer: Customer, target: Target, grouping: TicketGrouping, status: str, is_delivered: bool
) -> None:
    projects.set_ticket_grouping(customer.project_id, None, grouping, NOW, "test")
    [export_id] = scanned(customer).ticket_exports
    set_status(export_id, target, status, None if status == "prepared" else NOW)
    assert prune()["exports"] == 1
    again = scanned(customer, LATER, scan_run_id=43)
    assert (again.new, again.seen, len(again.ticket_exports)) == (0, 1, 0 if is_delivered else 1)
    assert scanned(customer, LATER, scan_run_id=44).ticket_exports == ()
    assert {queries.get(each).findings for each in again.ticket_exports} <= {(1, 0)}


def test_a_new_ticket_names_no_earlier_one_that_was_deleted(customer: Customer) -> None:
    scanned(customer)
    assert prune()["exports"] == 1
    for run in (43, 44):
        clean: ScanPostback = PostbackForm().read(postback(run, []))
        record_postback(clean, customer.project_id, LATER)
    [export_id] = scanned(customer, LATER, scan_run_id=45).ticket_exports
    assert queries.get(export_id).ticket["description"].count("Its earlier ticket") == 0


def test_an_email_repeated_after_its_deletion_is_stored_as_new(customer: Customer) -> None:
    assert not emailed(customer)
    assert emailed(customer)
    assert prune()["inbound_emails"] == 1
    assert not emailed(customer, LATER)
    assert count("exports") == 1


def test_a_list_continues_after_the_position_of_a_deleted_export(customer: Customer) -> None:
    [oldest] = make_exports(customer, 1, NOW + days(1))
    [gone] = make_exports(customer, 1, NOW + days(2))
    execute("UPDATE exports SET status = 'dismissed', finished_at = ? WHERE id = ?", (to_ms(NOW + days(2)), gone))
    decisions.dismiss(oldest, None, NOW + days(50), "user:1")
    assert prune(retention.cutoffs(NOW + days(93), RETENTION, TTL)) == {"exports": 1}
    rest = export_list.list_page(ExportQuery(customer.account_id), after=ListPosition(gone))
    assert [each.id for each in rest] == [oldest]


# --- the archive


def archived(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows in an archive, by table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.iterdir()):
        table = path.name.removesuffix(".jsonl").partition("-")[2]
        found.setdefault(table, []).extend(json.loads(line) for line in path.read_text().splitlines())
    return found


def test_an_archive_contains_every_deleted_row(customer: Customer, target: Target, tmp_path: Path) -> None:
    delivered(customer, target)
    uploaded(customer)
    emailed(customer)
    scanned(customer)
    pings.request(target.id, target.account_id, NOW, "user:1")
    with Archive(tmp_path / "deep" / "archive", LATER) as archive:
        counts = prune(archive=archive)
    found = archived(tmp_path / "deep" / "archive")
    assert {table: len(lines) for table, lines in found.items()} == counts
    assert not (left() & {line["id"] for line in found["exports"]})


def test_an_archive_holds_the_events_of_exports_and_the_changes_they_are_formed_from(
    customer: Customer, target: Target, tmp_path: Path
) -> None:
    export_id = delivered(customer, target)
    scanned(customer)
    execute("UPDATE targets SET events = ? WHERE id = ?", ('["ticket.redact"]', target.id))
    with transaction():
        transitions.redact([export_id], NOW, "cpl_1")
    execute("UPDATE ticket_events SET status = 'delivered', body = NULL, due_at = NULL")
    execute(
        "INSERT INTO ticket_changes (scan_run_id, export_id, finding_id, change, changed_at) VALUES (42, ?, 'fnd_1', ?, 1)",
        (export_id, PlaceChange.FIXED.value),
    )
    expected = {name: planned()[name] for name in ("ticket_events", "ticket_changes")}
    with Archive(tmp_path / "archive", LATER) as archive:
        counts = prune(archive=archive)
    found = archived(tmp_path / "archive")
    assert expected == {name: counts[name] for name in expected} == dict.fromkeys(expected, 1)
    assert {table: len(lines) for table, lines in found.items()} == counts
    [event], [change] = found["ticket_events"], found["ticket_changes"]
    assert (event["export_id"], event["type"], event["created_at"]) == (export_id, "ticket.redact", format_rfc3339(NOW))
    assert (change["export_id"], change["finding_id"]) == (export_id, "fnd_1")


def test_a_line_of_an_archive_has_readable_times_and_texts(customer: Customer, target: Target, tmp_path: Path) -> None:
    export_id = delivered(customer, target)
    [(body, digest)] = rows("SELECT body, ticket_digest FROM exports")
    with Archive(tmp_path / "archive", LATER) as archive:
        prune(archive=archive)
    [line] = archived(tmp_path / "archive")["exports"]
    assert (line["id"], line["status"], line["finished_at"]) == (export_id, "exported", format_rfc3339(NOW))
    assert (line["ticket"]["title"], line["ticket_digest"], line["due_at"]) == ("Missing name", digest, None)
    assert line["body"] == bytes(body).decode()


def test_an_archive_is_readable_only_by_its_owner(customer: Customer, tmp_path: Path) -> None:
    make_exports(customer, 1)
    folder = tmp_path / "archive"
    with Archive(folder, LATER) as archive:
        prune(archive=archive)
    [path] = folder.iterdir()
    assert [each.stat().st_mode & 0o777 for each in (folder, path)] == [0o700, 0o600]
    folder.chmod(0o750)
    with pytest.raises(UnsafeFolder):
        Archive(folder, LATER)


def test_no_archive_contains_encrypted_values() -> None:
    assert TargetRow.secret_fingerprint in {*archived_fields(TargetRow)}
    for model in (TargetRow, ComplianceRequestRow):
        assert [field.name for field in archived_fields(model) if "sealed" in field.name] == []


def test_a_batch_that_cannot_be_archived_is_not_deleted(customer: Customer, tmp_path: Path) -> None:
    make_exports(customer, 2)
    before = left()
    archive = Archive(tmp_path / "archive", LATER)
    (tmp_path / "archive").rmdir()
    with pytest.raises(FileNotFoundError):
        prune(archive=archive)
    assert left() == before


def test_a_run_without_expired_rows_takes_no_write_lock(customer: Customer) -> None:
    make_exports(customer, 1, LATER)
    if is_sqlite():
        execute("PRAGMA query_only = 1")
    else:
        execute("SET default_transaction_read_only = on")
    try:
        assert prune() == {}
    finally:
        execute("PRAGMA query_only = 0" if is_sqlite() else "SET default_transaction_read_only = off")
