"""A model of the guarantees to clients and receivers, written without the product's code.

The state machine test compares the product with it. For each export the model has what clients have read and what receivers
have received. It replays the audit log. After every step it compares the rows with the log, the log with the legal
transitions, received requests with what was due and allowed before the step, and attempts with the receivers' behaviors.
Its sources are `docs/delivery.md` and `docs/api.md`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final, NamedTuple

from schemas.base.timestamps import from_ms
from storage.db.engine import rows
from tests.fuzz.crashing_worker import MAX_AGE, RETRIES_S, HaltingWorker
from tests.fuzz.erratic_receiver import Arrival, ErraticReceiver
from worker.delivery.options import LEASE_S

FINISHED: Final = frozenset({"exported", "failed", "blocked", "dismissed"})
ON_ITS_WAY: Final = frozenset({"approved", "delivering", "retry_scheduled"})

#: For each action in the audit log, the statuses before it and the status after it.
LEGAL: Final[Mapping[str, tuple[frozenset[str | None], str | None]]] = {
    "prepare": (frozenset({None}), "prepared"),
    "approve": (frozenset({"prepared"}), "approved"),
    "edit": (frozenset({"prepared"}), "prepared"),
    "snooze": (frozenset({"prepared"}), "prepared"),
    "seen_again": (frozenset({"prepared"}), "prepared"),
    "extend": (frozenset({"prepared"}), "prepared"),
    "split": (frozenset({"prepared"}), "prepared"),
    # Only approval rules add labels.
    "label": (frozenset({"prepared"}), "prepared"),
    "wait_for_target": (frozenset({"prepared"}), "prepared"),
    # Findings join a ticket whose text does not change.
    "join": (frozenset({*FINISHED, *ON_ITS_WAY}), None),
    "dismiss": (frozenset({"prepared"}), "dismissed"),
    "restore": (frozenset({"dismissed", "prepared"}), "prepared"),
    "claim": (ON_ITS_WAY, "delivering"),
    "deliver": (frozenset({"delivering"}), "exported"),
    "reschedule": (frozenset({"delivering"}), "retry_scheduled"),
    "postpone": (frozenset({"delivering"}), "retry_scheduled"),
    "fail": (frozenset({"delivering"}), "failed"),
    "block": (ON_ITS_WAY, "blocked"),
    "withdraw": (ON_ITS_WAY, "failed"),
    "retry": (frozenset({"failed", "blocked"}), "approved"),
    # A finished export is emptied, and keeps its status.
    "redact": (FINISHED, None),
}
#: Actions of workers; every other action needs a request.
OF_WORKERS: Final = frozenset({"claim", "deliver", "reschedule", "postpone", "fail", "block", "withdraw"})
#: Error codes of responses that were lost: the receiver may have accepted the request.
LOST: Final = frozenset({"deadline_exceeded", "connect_timeout"})
#: Actions that change the ticket of an export.
_EDITS: Final = ("edit", "extend", "split")


class StoredExport(NamedTuple):
    """An export as it is stored."""

    id: str
    status: str
    reason: str | None
    target_id: str | None
    body: bytes | None
    digest: str
    attempts: int
    due_at: datetime | None
    lease: str | None
    version: int
    created_at: datetime
    approved_at: datetime | None
    finished_at: datetime | None
    redacted_at: datetime | None
    provider_ticket_id: str | None
    dismissal_reason: str | None
    snoozed_at: datetime | None
    snoozed_until: datetime | None
    siblings: str | None
    rule: str | None
    open_group: str | None
    findings_total: int | None
    findings_fixed: int | None
    events: str | None
    #: The approval rule that approved it, or for whose target it waits.
    rule_id: str | None

    @property
    def frozen(self) -> "StoredExport":
        """The fields that no longer change after the delivery. Findings can still be fixed, and join the export."""
        return self._replace(version=0, open_group=None, findings_total=None, findings_fixed=None)


class ObservedTarget(NamedTuple):
    """A target as it is stored."""

    id: str
    status: str
    held_until: datetime | None
    base_url: str


class UpcomingAttempt(NamedTuple):
    """The next attempt as a poll shows it; `at` is None if the time is unknown; `reason` is then the cause."""

    at: datetime | None = None
    reason: str | None = None
    wait_s: int | None = None


class ObservedAttempt(NamedTuple):
    """An attempt as it is stored."""

    id: str
    export_id: str
    number: int
    outcome: str
    status: int | None
    error_code: str | None
    retry_after_s: int | None
    nonce: str


@dataclass(slots=True)
class ExpectedExport:
    """The model's knowledge of one export in addition to its row."""

    mentions_person: bool = False
    status: str | None = None
    claims: int = 0
    postponed: int = 0
    verdicts: int = 0
    #: Attempts since the last approval, retry or recovery.
    tries: int = 0
    began_at: datetime | None = None
    #: The time before which no attempt may start, from the receiver's last response.
    not_before: datetime | None = None
    reasons: list[str | None] = field(default_factory=list)
    #: The approval rule that approved it, or None if a user did.
    approved_by: str | None = None


class Model:
    """The expected state. `compare` checks the actual state against it, and updates it for the next step."""

    def __init__(self, receiver: ErraticReceiver) -> None:
        self.receiver = receiver
        self.clock = receiver.clock
        self.known: dict[str, ExpectedExport] = {}
        self.rows: dict[str, StoredExport] = {}
        self.targets: dict[str, ObservedTarget] = {}
        self.workers: list[HaltingWorker] = []
        #: Whether workers have run since the last comparison, and whether one of them had slept before.
        self.worked = self.woke = False
        #: Actions that were requested since the last comparison; exactly these must be in the audit log.
        self.expected_actions: Counter[tuple[str, str]] = Counter()
        #: Actions that approval rules must have done since the last comparison: the export, the action, the rule.
        self.ruled: Counter[tuple[str, str, str]] = Counter()
        #: Exports that wait for the target of a rule, with the rule.
        self.waiting: dict[str, str] = {}
        #: The new targets of exports that were retried at another target. `_moving` has those since the last comparison.
        self.moved: dict[str, str] = {}
        self._moving: set[str] = set()
        #: Whether an erasure is pending: from the acknowledged request until it is carried out.
        self.erasing = False
        self._attempts: dict[str, ObservedAttempt] = {}
        self._arrivals: list[Arrival] = []
        self._holds: dict[str, datetime] = {}
        #: Targets whose receivers have responded 410 since the last comparison.
        self._gone: set[str] = set()
        self._trail_read = rows("SELECT COALESCE(MAX(id), 0) FROM audit_entries")[0][0]

    # --- requests that the state machine reports

    def prepared(self, export_id: str, *, mentions_person: bool = False) -> None:
        """Record that a request that prepared this export was acknowledged."""
        assert export_id not in self.known, f"{export_id} was acknowledged twice"
        self.known[export_id] = ExpectedExport(mentions_person)
        self.expected_actions[export_id, "prepare"] += 1

    def expect(self, action: str, export_ids: Iterable[str]) -> None:
        """Record that an action was requested and acknowledged."""
        for export_id in export_ids:
            self.expected_actions[export_id, action] += 1

    def move(self, export_id: str, target_id: str) -> None:
        """Record that an export was retried at another target."""
        self.expect("retry", [export_id])
        self.moved[export_id] = target_id
        self._moving.add(export_id)

    def resumed(self, target_id: str) -> None:
        """Record that a target may get requests now, regardless of its receiver's Retry-After."""
        self._holds.pop(target_id, None)

    def pruned(self, before: datetime, held: set[str], decided: set[str]) -> None:
        """Check that exports that ended before a time are deleted and no others; delete them from the model.

        Exports in `held` may stay. Pending exports that were `decided` on since then must stay. The copies of a ticket are
        deleted together.
        """
        left = {row[0] for row in rows("SELECT id FROM exports")}
        over = {row.id for row in self.rows.values() if _is_over(row, before, decided)}
        needed = self.rows.keys() - over
        for row in list(self.rows.values()):
            copies = {row.id, *json.loads(row.siblings or "[]")}
            is_over = needed.isdisjoint(copies)
            assert is_over or row.id in left, f"{row.id} is gone and was not over"
            # After the clock was set back, an export can end before its creation. It may stay until both are old enough.
            may_stay = row.created_at >= before or not held.isdisjoint(copies)
            assert not is_over or may_stay or row.id not in left, f"{row.id} is over and still there"
            if row.id not in left:
                del self.rows[row.id], self.known[row.id]
                self.waiting.pop(row.id, None)
        self._attempts = {each.id: each for each in self._attempts.values() if each.export_id in left}

    def is_due(self, row: StoredExport) -> bool:
        """Return whether a worker may claim an export now."""
        target = self.targets.get(row.target_id or "")
        is_open = target is not None and target.status == "active" and not _is_after(target.held_until, self.clock.at)
        return is_open and row.due_at is not None and row.due_at <= self.clock.at

    def upcoming(self, row: StoredExport) -> UpcomingAttempt:
        """Return the next attempt of an export as a poll must show it now."""
        target = self.targets.get(row.target_id or "")
        if target is None or row.due_at is None or row.status not in {"approved", "retry_scheduled"}:
            return UpcomingAttempt()
        if target.status in {"paused", "inactive"}:
            return UpcomingAttempt(None, f"target_{target.status}", 60)
        # A blocked or disabled target delays nothing: a worker ends the exports that wait for it.
        at = max(row.due_at, target.held_until or row.due_at) if target.status == "active" else row.due_at
        if at <= self.clock.at:
            # An expired hold has no effect.
            return UpcomingAttempt(row.due_at, None, 1 if row.status == "retry_scheduled" else None)
        return UpcomingAttempt(at, None, ceil((at - self.clock.at).total_seconds()))

    # --- the comparison

    def compare(self) -> None:
        """Compare the actual state with the model. Raises AssertionError for each difference."""
        before, found = self.rows, {row.id: row for row in _exports()}
        targets = {row.id: row for row in _targets()}
        assert found.keys() == self.known.keys(), f"nobody or everybody asked for {found.keys() ^ self.known.keys()}"
        arrived = self.receiver.arrivals[len(self._arrivals) :]
        for arrival in arrived:
            self._check_arrival(arrival, before)
        moved = self._replay_the_trail()
        self._check_attempts(moved)
        for arrival in arrived:
            self._record_hold(arrival)
        for row in found.values():
            self._check_row(row, before.get(row.id))
        self._check_expected_actions(moved)
        for target_id in self._gone:
            assert targets[target_id].status in {"disabled", "blocked"}, f"{targets[target_id]} said that it is gone"
        assert not self.receiver.complaints, self.receiver.complaints
        self.rows, self.targets = found, targets
        self.worked = self.woke = False
        self.expected_actions.clear()
        self.ruled.clear()
        self._moving.clear()
        self._gone.clear()
        self.clock.shown = {self.clock.at}

    def _replay_the_trail(self) -> list[tuple[str, str, str | None]]:
        """Check every audit entry since the last comparison; return export, action and reason of those not done by rules."""
        query = (
            "SELECT id, subject_id, action, status_before, status_after, reason, actor FROM audit_entries "
            "WHERE id > ? AND subject_id LIKE ? AND action NOT LIKE ? AND action <> 'approve_events' ORDER BY id"
        )
        # Ticket events do not change the export.
        moved, of_exports = [], (self._trail_read, "exp_%", "ticket.%")
        ruled: Counter[tuple[str, str, str]] = Counter()
        for entry_id, export_id, action, status_before, status_after, reason, actor in rows(query, of_exports):
            self._trail_read = entry_id
            sources, leads_to = LEGAL[action]
            known = self.known[export_id]
            reported = f"{export_id}: {action} from {status_before} to {status_after} ({reason})"
            assert status_before == known.status, f"{reported}, but it was {known.status}"
            assert status_before in sources, reported
            assert status_after == (status_before if leads_to is None else leads_to), reported
            if action == "claim":
                # An export that was claimed before the clock was set back is sent, or claimed again, after it.
                is_early = _is_after(known.not_before, max(self.clock.shown))
                assert not is_early, f"{reported}, but its receiver wanted it from {known.not_before}"
                known.not_before = None
            known.status = status_after
            self._count(known, action, reason)
            rule_id = actor.removeprefix("rule:") if actor.startswith("rule:") else None
            if action == "approve":
                known.approved_by = rule_id
            if action in {"approve", "dismiss", "split"}:
                self.waiting.pop(export_id, None)
            if rule_id is None:
                moved.append((export_id, action, reason))
            else:
                ruled[export_id, action, rule_id] += 1
        assert ruled == self.ruled, f"rules did: {ruled}, and had to do: {self.ruled}"
        return moved

    def _count(self, known: ExpectedExport, action: str, reason: str | None) -> None:
        match action:
            case "claim":
                known.claims += 1
                known.tries += 1
            case "postpone":
                known.postponed += 1
                known.tries -= 1
            case "approve" | "retry":
                known.tries, known.began_at, known.not_before = 0, self.clock.at, None
            case "deliver" | "reschedule" | "fail":
                known.verdicts += 1
                known.reasons.append(reason)
            case "block" if reason != "target_blocked":
                known.verdicts += 1
                known.reasons.append(reason)

    def _check_expected_actions(self, moved: list[tuple[str, str, str | None]]) -> None:
        """Check that each requested action was done exactly once, and no other action of a user."""
        by_people = Counter((export_id, action) for export_id, action, reason in moved if _is_asked_for(action, reason))
        if self.erasing:
            forgotten = {each for each in by_people if self.rows_redacted(each[0])}
            by_people = Counter({each: count for each, count in by_people.items() if each not in forgotten})
        assert by_people == self.expected_actions, f"done: {by_people}, asked for: {self.expected_actions}"
        by_workers = [each for each in moved if not _is_asked_for(each[1], each[2])]
        assert self.worked or not by_workers, f"no worker was at work, but: {by_workers}"

    def rows_redacted(self, export_id: str) -> bool:
        """Return whether an export was redacted. Fails if it does not mention the erased person."""
        found = rows("SELECT redacted_at FROM exports WHERE id = ?", (export_id,))[0][0] is not None
        assert not found or self.known[export_id].mentions_person, f"{export_id} speaks of nobody and was redacted"
        return found

    # --- received requests and stored attempts

    def _check_arrival(self, arrival: Arrival, before: Mapping[str, StoredExport]) -> None:
        reported = f"{arrival.export_id} at {arrival.at} as {arrival.id}"
        # An export that was claimed before the clock was set back is sent after it.
        latest = max(self.clock.shown)
        row = before.get(arrival.export_id)
        assert row is not None, f"{reported}: sent before it was approved"
        target = self.targets[row.target_id or ""]
        assert arrival.request.body == row.body, f"{reported}: other bytes than were approved"
        assert target.base_url.endswith(arrival.path), f"{reported}: at another target's place"
        assert row.redacted_at is None, f"{reported}: sent after it was redacted"
        assert row.status in ON_ITS_WAY, f"{reported}: sent while {row.status}"
        assert target.status == "active", f"{reported}: sent while its target was {target.status}"
        assert not _is_after(target.held_until, latest), f"{reported}: sent while its target was held"
        held_on = self.woke and row.status == "delivering"
        assert held_on or not _is_after(self._due_at(row), latest), f"{reported}: sent before it was due, {row.due_at}"
        assert not _is_after(self._holds.get(target.id), latest), f"{reported}: sent before its receiver wanted any"
        for earlier in self.receiver.arrivals:
            if earlier is arrival:
                break
            if earlier.export_id == arrival.export_id:
                self._check_repeat(earlier, arrival, reported)

    def _due_at(self, row: StoredExport) -> datetime | None:
        """Return the time from which a worker may have claimed an export since the last comparison."""
        if row.due_at is None or row.status != "delivering":
            return row.due_at
        # A worker shortens leases from before the clock was set back.
        return min(row.due_at, min(self.clock.shown) + timedelta(seconds=LEASE_S))

    def _check_repeat(self, earlier: Arrival, arrival: Arrival, reported: str) -> None:
        if earlier.path != arrival.path:
            assert arrival.export_id in self.moved, f"{reported}: at another place than before"
            return
        assert earlier.id != arrival.id, f"{reported}: the same attempt twice"
        assert earlier.request.body == arrival.request.body, f"{reported}: other bytes than before"
        is_one_step = earlier not in self._arrivals
        if is_one_step and len(self.clock.shown) == 1:
            raise AssertionError(f"{reported}: sent twice at the same time")
        if earlier.behavior.leads_to == "delivered":
            attempt = self._attempts.get(earlier.id)
            was_lost = attempt is not None and attempt.error_code in LOST
            # An attempt in this same step has not been read yet.
            assert was_lost or (is_one_step and attempt is None) or self._lost_lease(earlier.id), f"{reported}: sent again"

    def _lost_lease(self, attempt_id: str) -> bool:
        """Return whether the worker that sent an attempt may have lost its lease."""
        return any(attempt_id in worker.sent and worker.may_have_lost_lease for worker in self.workers)

    def _check_attempts(self, moved: list[tuple[str, str, str | None]]) -> None:
        arrivals = {arrival.id: arrival for arrival in self.receiver.arrivals}
        reasons = {export_id: reason for export_id, action, reason in moved if action in {"fail", "block"}}
        for attempt in _attempts():
            if attempt.id in self._attempts:
                assert attempt._replace(nonce="") == self._attempts[attempt.id]._replace(nonce=""), f"{attempt} changed"
                continue
            self._attempts[attempt.id] = attempt
            self._check_attempt(attempt, arrivals.get(attempt.id), reasons.get(attempt.export_id))
        for arrival in self.receiver.arrivals[len(self._arrivals) :]:
            assert arrival.id in self._attempts or self._lost_lease(arrival.id), f"{arrival} left no attempt"
        delivered = Counter(each.export_id for each in self._attempts.values() if each.outcome == "delivered")
        assert set(delivered.values()) <= {1}, f"delivered more than once: {delivered}"

    def _check_attempt(self, attempt: ObservedAttempt, arrival: Arrival | None, reason: str | None) -> None:
        known = self.known[attempt.export_id]
        if attempt.outcome == "exhausted":
            spent = known.tries > len(RETRIES_S)
            too_old = known.began_at is not None and self.clock.at - known.began_at > MAX_AGE - timedelta(days=1, hours=1)
            assert spent or too_old or len(self.clock.shown) > 1, f"{attempt} gave up after {known.tries} tries"
        if arrival is None:
            assert attempt.outcome in {"retryable", "exhausted", "refused"}, f"{attempt} arrived nowhere"
            assert attempt.status is None, f"{attempt} arrived nowhere"
            return
        assert attempt.nonce == arrival.request.headers["x-service-nonce"], f"{attempt} has another nonce than was sent"
        if attempt.error_code in LOST:
            return
        behavior = arrival.behavior
        assert attempt.status == behavior.status, f"{attempt} met {behavior}"
        assert attempt.retry_after_s == (behavior.asks_s or None), f"{attempt} met {behavior}"
        match behavior.leads_to:
            case "delivered":
                assert attempt.outcome == "delivered", f"{attempt} met {behavior}"
            case "later":
                assert attempt.outcome in {"retryable", "exhausted"}, f"{attempt} met {behavior}"
                assert attempt.outcome == "exhausted" or known.tries <= len(RETRIES_S), f"{attempt} is one too many"
            case for_good:
                assert attempt.outcome == "rejected", f"{attempt} met {behavior}"
                assert reason == for_good, f"{attempt} failed as {reason}"
                if for_good == "receiver_gone":
                    self._gone.add(self.rows[attempt.export_id].target_id or "")

    def _record_hold(self, arrival: Arrival) -> None:
        """Record the wait that a receiver's response requires, unless it was lost or the clock was set meanwhile."""
        self._arrivals.append(arrival)
        attempt = self._attempts.get(arrival.id)
        if (
            attempt is None
            or attempt.error_code in LOST
            or len(self.clock.shown) > 1
            or arrival.behavior.leads_to != "later"
        ):
            return
        known, behavior = self.known[arrival.export_id], arrival.behavior
        if attempt.outcome == "retryable":
            wait_s = max(behavior.asks_s, behavior.holds_s, 0 if behavior.asks_s else RETRIES_S[known.tries - 1])
            known.not_before = arrival.at + timedelta(seconds=wait_s)
        target_id = self.rows[arrival.export_id].target_id or ""
        if behavior.holds_s:
            until = arrival.at + timedelta(seconds=behavior.holds_s)
            self._holds[target_id] = max(until, self._holds.get(target_id, until))

    # --- rows

    def _check_row(self, row: StoredExport, before: StoredExport | None) -> None:
        known = self.known[row.id]
        assert row.status == known.status, f"{row.id} is {row.status}, the trail says {known.status}"
        assert row.attempts == known.claims - known.postponed, f"{row.id} counts {row.attempts} attempts: {known}"
        written = [each for each in self._attempts.values() if each.export_id == row.id]
        assert len(written) == known.verdicts, f"{row.id} has {len(written)} attempts: {known}"
        assert len({each.number for each in written}) == len(written), f"{row.id} numbers attempts twice: {written}"
        is_waiting = row.status in ON_ITS_WAY
        assert (row.due_at is not None) == is_waiting, f"{row.id} is {row.status} and due at {row.due_at}"
        assert (row.lease is not None) == (row.status == "delivering"), f"{row.id} is {row.status} with lease {row.lease}"
        assert (row.finished_at is not None) == (row.status in FINISHED), f"{row.id} is {row.status}: {row.finished_at}"
        # An export has a reason exactly if its status needs one.
        must, may = row.status in {"failed", "blocked"}, row.status in {"failed", "blocked", "dismissed"}
        assert bool(row.reason) or not must, f"{row.id} is {row.status} and does not say why"
        assert row.reason is None or may, f"{row.id} is {row.status} because {row.reason}"
        assert row.snoozed_at is None or row.status == "prepared", f"{row.id} is {row.status} and snoozed"
        assert row.dismissal_reason is None or row.status == "dismissed", f"{row.id} is {row.status} for a reason"
        if row.status == "prepared":
            assert row.rule_id == self.waiting.get(row.id), f"{row.id} waits for {row.rule_id}: {self.waiting}"
        elif row.approved_at is not None:
            assert row.rule_id == known.approved_by, f"{row.id} was approved by {known.approved_by}: {row.rule_id}"
        if row.redacted_at is not None:
            assert known.mentions_person, f"{row.id} speaks of nobody and was redacted"
            assert row.body in {None, b""}, f"{row.id} was redacted and says something"
        if before is not None:
            self._check_change(row, before)

    def _check_change(self, row: StoredExport, before: StoredExport) -> None:
        # Clients do not see that an export waits for the target of a rule.
        if row._replace(due_at=None, rule_id=None) != before._replace(due_at=None, rule_id=None):
            assert row.version > before.version, f"{row.id} changed under the same version: {before} {row}"
        if row.id in self._moving:
            assert row.target_id == self.moved[row.id], f"{row.id} is at another target than was asked for"
            assert row.target_id.encode() in (row.body or b""), f"{row.id} names another target"
            assert row.provider_ticket_id is None, f"{row.id} names the ticket of its former target"
        else:
            assert before.target_id in {None, row.target_id}, f"{row.id} changed its target"
        assert before.redacted_at in {None, row.redacted_at}, f"{row.id} was redacted twice"
        if before.status == "exported" or before.status == row.status == "dismissed":
            assert (row.status, row.finished_at, row.attempts) == (before.status, before.finished_at, before.attempts), (
                f"{row.id} left {before.status}: {row}"
            )
        if row.redacted_at is None:
            is_labelled = any(each[:2] == (row.id, "label") for each in self.ruled)
            is_edited = is_labelled or any((row.id, each) in self.expected_actions for each in _EDITS)
            # The ticket of a restored group includes the places that joined it meanwhile.
            may_grow = (before.status, row.status) == ("dismissed", "prepared") and (row.findings_total or 1) > 1
            is_as_asked = (row.digest == before.digest) != is_edited
            assert is_as_asked or may_grow, f"{row.id} has another ticket than it should have"
            assert row.id in self._moving or before.body in {None, row.body}, f"{row.id} has other bytes than were approved"
            is_exported = before.status == "exported"
            assert not is_exported or row.frozen == before.frozen, f"{row.id} was exported and changed: {row}"


def _is_over(row: StoredExport, before: datetime, decided: set[str]) -> bool:
    """Return whether an export, apart from its copies, is old enough to be deleted."""
    if row.status == "prepared":
        is_awake = row.snoozed_until is None or row.snoozed_until < before
        return row.created_at < before and is_awake and row.id not in decided
    return row.finished_at is not None and row.finished_at < before


def _is_after(moment: datetime | None, at: datetime) -> bool:
    return moment is not None and moment > at


def _is_asked_for(action: str, reason: str | None) -> bool:
    return action not in OF_WORKERS or reason == "redacted"


def _exports() -> list[StoredExport]:
    query = (
        "SELECT id, status, status_reason, target_id, body, ticket_digest, attempts, due_at, lease, version, created_at, "
        "approved_at, finished_at, redacted_at, provider_ticket_id, dismissal_reason, snoozed_at, snoozed_until, siblings, "
        "rule, open_group, findings_total, findings_fixed, events, approved_by_rule_id FROM exports ORDER BY id"
    )
    return [StoredExport(*_moments(row, {7, 10, 11, 12, 13, 16, 17}, blob=4)) for row in rows(query)]


def _targets() -> list[ObservedTarget]:
    query = "SELECT id, status, held_until, base_url FROM targets"
    return [ObservedTarget(*_moments(row, {2})) for row in rows(query)]


def _attempts() -> list[ObservedAttempt]:
    query = "SELECT id, export_id, number, outcome, response_status, error_code, retry_after_s, nonce FROM attempts"
    return [ObservedAttempt(*row) for row in rows(query)]


def _moments(row: tuple[Any, ...], places: set[int], blob: int | None = None) -> list[Any]:
    read = [from_ms(value) if place in places else value for place, value in enumerate(row)]
    if blob is not None and read[blob] is not None:
        read[blob] = bytes(read[blob])
    return read
