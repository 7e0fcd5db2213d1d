"""A poll is one query, and returns the same record of an export as every other response."""

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.base.principal import TokenKind
from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.decisions import DismissalReason
from schemas.exports.polled_record import PolledExport, entity_tag, next_attempt_of, record_json
from schemas.exports.record import Approval, export_record
from schemas.exports.state_machine import ExportStatus
from schemas.intake.scanner import PostbackForm
from schemas.targets.target import TargetStatus
from storage.accounts import tokens
from storage.db.columns import JsonField
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from storage.exports import poll_sql, queries, transitions
from storage.exports.rows import export_from
from storage.triage import decisions
from tests.support.database.many_rows import many_targets
from tests.support.database.query_plans import full_scans, plan_of, statements
from tests.support.exports import written_record
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    issue,
    make_customer,
    make_exports,
    make_target,
    postback,
    record_postback,
)

as_text = JsonField().db_value
#: So many other customers, exports and targets that PostgreSQL prefers indexes.
OTHERS = 200


def polled(customer: Customer, export_id: str) -> PolledExport | None:
    """Poll as the customer."""
    known = poll_sql.poll(customer.token, export_id, NOW)
    assert known is not None
    return known[1]


def tag_of(customer: Customer, export_id: str, now: datetime = NOW) -> str:
    export = polled(customer, export_id)
    assert export is not None
    return entity_tag(export, next_attempt_of(export, to_ms(now)), to_ms(now))


def approved(customer: Customer) -> str:
    [export_id] = make_exports(customer, 1)
    transitions.approve(
        export_id, customer.account_id, Approval(make_target(customer).id, None), NOW, "user:1", LOOPBACK_POLICY
    )
    return export_id


def of_a_finding(customer: Customer, scan_run_id: int = 42) -> str | None:
    """Post one finding; return its export if the finding is new."""
    posted = PostbackForm().read(postback(scan_run_id, issues=[issue()]))
    made = record_postback(posted, customer.project_id, NOW + timedelta(seconds=scan_run_id)).ticket_exports
    return made[0] if made else None


# --- the record


moments = st.integers(0, to_ms(datetime(2100, 1, 1, tzinfo=UTC)))
texts = st.text(max_size=8)
numbers = st.integers(0, 2**31)
problems = st.sampled_from([[], [{"rule": "card_number", "path": "/title"}]])
target_statuses = st.none() | st.sampled_from([status.value for status in TargetStatus])
#: Any rows that the tables allow, whatever other versions have written.
stored = st.tuples(
    st.just(("exp_1", 1)),
    st.tuples(st.sampled_from([status.value for status in ExportStatus]), st.none() | texts, st.none() | texts),
    st.tuples(st.just("manual"), texts, st.none() | numbers),
    st.tuples(st.dictionaries(texts, texts, max_size=2).map(as_text), st.just("sha256:00"), problems.map(as_text)),
    st.tuples(numbers, numbers),
    st.tuples(st.none() | moments, st.none() | numbers, st.none() | texts, st.none() | numbers),
    st.tuples(st.none() | texts, st.none() | texts),
    st.tuples(moments, st.none() | moments, st.none() | moments),
    st.just((None,) * 7) | st.tuples(st.just("fnd_1"), moments, moments, numbers, numbers, numbers, numbers),
    st.tuples(st.none() | moments, target_statuses, st.none() | moments),
    # project, severity, rule, findings
    st.tuples(st.none() | numbers, st.integers(0, 4), st.none() | texts),
    st.just((None, None)) | st.tuples(numbers, numbers),
    # decisions: edit, dismissal, snooze, approval, copies for other targets
    st.tuples(st.none() | st.dictionaries(texts, texts, max_size=2).map(as_text)),
    st.tuples(st.none() | st.sampled_from([reason.value for reason in DismissalReason]), st.none() | texts),
    st.just((None, None)) | st.tuples(moments, st.none() | moments),
    st.tuples(st.none() | numbers, st.none() | st.just("rul_1"), st.none() | texts),
    st.tuples(st.none() | st.lists(st.just("exp_1"), max_size=3).map(as_text)),
).map(lambda parts: tuple(itertools.chain.from_iterable(parts)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines are slow
@given(stored, moments)
def test_a_poll_returns_the_same_record_as_other_responses(row: tuple[Any, ...], now_ms: int) -> None:
    export, now = PolledExport._make(row), from_ms(now_ms)
    attempt = next_attempt_of(export, now_ms)
    record = json.loads(record_json(export, attempt, now_ms))
    assert record == export_record(export_from(export), now) == written_record(export_from(export), now)


@pytest.mark.parametrize("make", [lambda customer: make_exports(customer, 1)[0], approved, of_a_finding])
def test_a_poll_returns_the_stored_export_as_a_record(customer: Customer, make: Callable[[Customer], str]) -> None:
    export_id = make(customer)
    export = polled(customer, export_id)
    assert export is not None
    polled_json = record_json(export, next_attempt_of(export, to_ms(NOW)), to_ms(NOW))
    assert json.loads(polled_json) == export_record(queries.get(export_id), NOW)


# --- the entity tag


def test_the_entity_tag_changes_with_every_version(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    before = tag_of(customer, export_id)
    decisions.dismiss(export_id, customer.account_id, NOW, "user:1")
    assert (before, tag_of(customer, export_id)) == ("v1", "v2")


def test_the_entity_tag_changes_with_the_name_of_the_approver(customer: Customer) -> None:
    export_id = approved(customer)
    execute("UPDATE exports SET approved_by_user_id = ? WHERE id = ?", (customer.user_id, export_id))
    before = tag_of(customer, export_id)
    execute("UPDATE users SET email = 'removed:1'")
    assert tag_of(customer, export_id) != before


def test_the_entity_tag_of_a_finding_changes_whenever_it_is_seen(customer: Customer) -> None:
    export_id = of_a_finding(customer)
    assert export_id is not None
    tags = [tag_of(customer, export_id)]
    for change in (
        "times_seen = times_seen + 1",  # seen by another run within the same millisecond
        "last_seen_at = last_seen_at + 1",  # seen by the same run again
    ):
        execute(f"UPDATE findings SET {change}")  # noqa: S608 - the two above
        tags.append(tag_of(customer, export_id))
    assert len(set(tags)) == 3
    assert all(tag.isprintable() and '"' not in tag and " " not in tag for tag in tags)


HELD_MS = to_ms(NOW) + 60_000
#: Changes of the target's row only.
TARGET_CHANGES = [
    "held_until = NULL",
    f"held_until = {HELD_MS}, held_reason = 'breaker_open'",
    f"held_until = {HELD_MS + 30_000}",
    "status = 'paused'",
    "status = 'inactive'",
    f"status = 'active', held_until = NULL, max_per_minute = 1, paced_until = {HELD_MS + 45_000}000",
    "paced_until = NULL",
]


def test_the_entity_tag_changes_with_every_change_of_the_target_that_the_record_shows(customer: Customer) -> None:
    export_id, reported = approved(customer), []
    for change in TARGET_CHANGES:
        execute(f"UPDATE targets SET {change}")  # noqa: S608 - those above
        record = export_record(queries.get(export_id), NOW)
        shown = (record["next_attempt_at"], record["status_reason"], record.get("retry_after_seconds"))
        reported.append((tag_of(customer, export_id), shown))
    assert reported[0] == reported[-1]
    assert len({tag for tag, _ in reported}) == len({shown for _, shown in reported}) == len(TARGET_CHANGES) - 1


@pytest.mark.parametrize("status", ["approved", "retry_scheduled"])
def test_the_entity_tag_changes_when_a_hold_ends_although_nothing_is_written(status: str, customer: Customer) -> None:
    export_id = approved(customer)
    before = tag_of(customer, export_id)
    execute("UPDATE exports SET status = ?", (status,))
    execute("UPDATE targets SET held_until = ?", (HELD_MS,))
    held = [tag_of(customer, export_id, from_ms(HELD_MS - left_ms)) for left_ms in (60_000, 1)]
    assert held[0] == held[1] != before
    assert tag_of(customer, export_id, from_ms(HELD_MS)) == before


# --- authentication


def test_a_poll_is_one_statement_that_uses_indexes(customer: Customer) -> None:
    export_id, tables = of_a_finding(customer), ("exports", "findings", "targets", "tokens", "users", "accounts")
    if not is_sqlite():
        database.execute_sql("SET enable_seqscan = off")  # PostgreSQL would read so few rows completely
        with transaction():
            others = [make_customer() for _ in range(OTHERS)]
            posted = PostbackForm().read(postback(issues=[issue(f"code-{number}") for number in range(OTHERS)]))
            record_postback(posted, others[0].project_id, NOW)
        many_targets(others[0], 0, OTHERS, "https://tracker.example.com/hook")
        for table in tables:
            database.execute_sql(f"ANALYZE {table}")
    with statements() as asked:
        assert polled(customer, str(export_id)) is not None
    assert len(asked) == 1
    assert full_scans(asked[0], tables) == []
    assert not any("TEMP" in step or "MATERIALIZE" in step for step in plan_of(asked[0]))


def test_an_export_of_another_account_is_not_found(customer: Customer) -> None:
    [others] = make_exports(make_customer(), 1)
    assert polled(customer, others) is None


@pytest.mark.parametrize("export_id", ["", "exp_", "exp_\x00", "tgt_01ARZ3NDEKTSV4RRFFQ69G5FAV", "exp_é", "x" * 10_000])
def test_a_malformed_export_id_is_not_found(customer: Customer, export_id: str) -> None:
    assert polled(customer, export_id) is None


def test_a_poll_authenticates_like_every_other_request(customer: Customer) -> None:
    text = tokens.create(customer.email, TokenKind.PLATFORM, NOW)[1]
    known = poll_sql.poll(text, "", NOW)
    assert known is not None
    assert known[0] == tokens.principal_for(text, NOW)


def test_a_revoked_token_is_refused_from_the_next_poll_on(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    assert polled(customer, export_id) is not None
    [(token_id,)] = rows("SELECT id FROM tokens")
    tokens.revoke(token_id, NOW)
    assert poll_sql.poll(customer.token, export_id, NOW) is None


def test_an_expired_token_cannot_poll(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    text = tokens.create(customer.email, TokenKind.API, NOW, expires=timedelta(days=1))[1]
    assert poll_sql.poll(text, export_id, NOW + timedelta(days=1, milliseconds=-1)) is not None
    assert poll_sql.poll(text, export_id, NOW + timedelta(days=1)) is None


@pytest.mark.parametrize("text", ["", "rrt_", "rrt_" + "0" * 33, "rrt_é", "Bearer", "\x00"])
def test_a_malformed_token_is_not_looked_up(customer: Customer, text: str) -> None:
    with statements() as asked:
        assert poll_sql.poll(text, "exp_01ARZ3NDEKTSV4RRFFQ69G5FAV", NOW) is None
    assert asked == []
