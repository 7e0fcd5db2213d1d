"""Checks the documented guarantees after any sequence of requests, crashes, receiver behaviors and clock steps.

Requests go through the application's test client, and workers run in this process. The database, Redis and the receiver on
loopback are real. `tests/fuzz/model.py` defines what must hold.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from runtime import clock as storage_clock
from runtime import wake_up_queue
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.timestamps import format_rfc3339_or_none, to_ms
from schemas.intake.grouping import TicketGrouping
from schemas.settings.definitions import Settings
from service.app import create_app
from storage.accounts import projects
from storage.accounts.account_limits import account_limits
from storage.compliance import requests as compliance_requests
from storage.db.engine import connection, execute, is_sqlite, release, rows, transaction
from storage.db.engine import database as opened
from storage.db.leases import BatchProgress
from storage.db.models import ALL
from storage.exports import queries, recoveries
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.maintenance import retention
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from storage.targets import targets
from storage.triage import bulk_jobs
from tests.fuzz.crashing_worker import DEATHS, MAX_AGE, RETRIES_S, SLEEPS, Died, Halt, HaltingWorker, run_in_parallel
from tests.fuzz.erratic_receiver import BEHAVIORS, KIND, ErraticReceiver, ErraticTarget, ModelClock
from tests.fuzz.life_cycle import SETTLE, ExpectedScan, LifeCycleModel, Scan
from tests.fuzz.model import FINISHED, ON_ITS_WAY, Model
from tests.fuzz.triage_model import (
    ACTIONS,
    MATCHES,
    ComparedExport,
    Decided,
    ExpectedJob,
    ExpectedRule,
    RulesModel,
    judge,
    matching,
)
from tests.support.factories import (
    LOOPBACK,
    NOW,
    SCANNER_SECRET,
    WEBHOOK_SECRET,
    Customer,
    capture,
    issue,
    make_customer,
    make_platform_token,
    make_settings,
    plain_email,
    postback,
)
from tests.support.fakes import FakeResolver
from tests.support.http.storefront import ADA, CLOUD, EMAIL_SECRET, give_shop, redact_body, send_webhook, stored, traces_of
from tests.support.servers.redis_and_postgres import REDIS_FAILURES, RedisServer
from worker.background.approval_rules import decide_waiting
from worker.background.batches.batch_task import BatchTask, bulk_job_task, recovery_task
from worker.background.compliance import ComplianceTask
from worker.background.ticket_events import EventOptions, form_events
from worker.delivery.outcomes import Schedule
from worker.http.client import HttpClient

#: The deadline of a request: enough for loopback on a busy machine. Each hanging receiver costs this time.
DEADLINE_S: Final = 0.5
#: Slightly longer than the claims of a dead worker last.
OVER_A_LEASE_S: Final = 6.5
#: Failures of Redis that take no time; stopping or restarting it would take 0.1 s.
AWAY: Final = ("emptied", "read-only", "refusing writes", "full")
FORWARDS_S: Final = (0.3, 4.0, OVER_A_LEASE_S, 31.0, 150.0, 3600.0, 26 * 3600.0, 4 * 86400.0, 91 * 86400.0)
BACKWARDS_S: Final = (-2.0, -600.0, -86400.0)
SAFE, UNSAFE = ["127.0.0.1"], ["10.0.0.1"]
#: Limits that no run reaches: rate limits have their own tests.
UNLIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}

#: Events that can occur while a worker sleeps with claims.
MEANWHILE: Final = (
    "its lease is over",
    "another one takes over",
    "the clock is set back",
    "targets are disabled",
    "targets are paused",
    "secrets are rotated",
    "its person is forgotten",
)

EXPORTS: Final = "/api/ticket-exports"
RULES: Final = "/api/approval-rules"
BULK_JOBS: Final = "/api/bulk-jobs"
TARGETS: Final = "/api/ticket-export-targets"

PAGES: Final = ("https://shop.example/", "https://shop.example/cart")
CODES: Final = ("alt", "label", "title", "link")
#: The statuses of a scan run and of its page. In most, the page was scanned.
SCANS: Final = [("completed", 200)] * 5 + [("completed", None), ("completed", 503), ("partial", 200), ("failed", 200)]
#: The batch size of bulk jobs: small, so that many steps occur between two batches.
BATCH: Final = 2
#: With more rules, no exports would be left for users to decide.
MAX_RULES: Final = 3
#: The maximum of running bulk jobs in an account.
MAX_JOBS: Final = 20
#: The statuses of exports that a bulk decision can select, by its action.
STATUSES: Final[Mapping[str, list[str]]] = {
    "approve": ["prepared"],
    "dismiss": ["prepared"],
    "restore": ["dismissed", "prepared"],
    "retry": ["failed", "blocked"],
}
#: The events of the second target; the first target has none.
EVENTS: Final = ["ticket.fixed", "ticket.reopened", "ticket.updated"]

anything = st.integers(0, 11)
hands = st.sampled_from([1, 2, 4])
#: For each new ticket, whether it mentions a person, whose erasure can be requested.
people = st.lists(st.booleans(), min_size=1, max_size=5)
bulk_actions = st.sampled_from(sorted(STATUSES))
rule_matches, rule_actions = st.sampled_from(sorted(MATCHES)), st.sampled_from(sorted(ACTIONS))
behaviors = st.lists(st.sampled_from(sorted(BEHAVIORS)), min_size=1, max_size=3)
#: How the service dies within a request: at the n-th read of its clock, before it notifies the workers, or not at all.
deaths = st.sampled_from(["no", "no", "no", "notify", 1, 2, 3, 4, 5])


class ServiceDied(BaseException):
    """Ends a request as a crash of the service would. The framework does not catch it, as it is a BaseException."""


class CrashingWakeUpQueue(WakeUpQueue):
    """Notifies the workers, unless the service dies before."""

    dies = False

    def notify(self) -> bool:
        if self.dies:
            raise ServiceDied
        return super().notify()


@dataclass(frozen=True, slots=True)
class SharedSetup:
    """The servers and settings that all runs share."""

    settings: Settings
    redis: RedisServer
    receiver: ErraticReceiver
    resolver: FakeResolver
    client: HttpClient
    wake_ups: CrashingWakeUpQueue


@dataclass(slots=True)
class KeyedResponse:
    """A request with an idempotency key and its response, which a repeat must return again."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int
    text: str
    at: datetime


@dataclass(slots=True)
class Polled:
    """The last response of a poll of an export."""

    tag: str
    record: dict[str, Any] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """The possible events of an installation, one step at a time.

    Drawn values never depend on the progress of threads, so that the same values cause the same steps in every run. A rule
    that does not apply does nothing.
    """

    def __init__(self, shared: SharedSetup) -> None:
        super().__init__()
        self.shared = shared
        self.clock = shared.receiver.clock
        self.clock.at, self.clock.shown = NOW, {NOW}
        shared.receiver.reset()
        shared.redis.flush()
        _empty()
        self.numbers = count(1)
        self.customer: Customer = give_shop(make_customer())
        self.platform = {"Authorization": f"Bearer {make_platform_token(self.customer)}"}
        # Each run creates its own account, which is the operator's: in cloud mode, only that account has the default secret.
        project_id, account_id = self.customer.project_id, self.customer.account_id
        self.settings = replace(shared.settings, default_project_id=project_id, operator_account_id=account_id)
        self.vault = Vault(self.settings.encryption_keys)
        self.client = TestClient(create_app(self.settings, shared.wake_ups, shared.resolver))
        self.scanner_secret = SCANNER_SECRET
        self.model = Model(shared.receiver)
        self.approval_rules = RulesModel(self.model.waiting)
        #: The source types of exports that do not belong to a finding.
        self.sources: dict[str, str] = {}
        self.jobs: dict[str, ExpectedJob] = {}
        #: Bulk jobs whose worker may have found Redis unavailable.
        self.quiet_jobs: set[str] = set()
        self.bulk_worker = self.new_bulk_worker()
        self.sleepers: list[HaltingWorker] = []
        self.target_ids: list[str] = []
        self.kept: list[KeyedResponse] = []
        self.polled: dict[str, Polled] = {}
        self.is_redis_well = True
        self.repair_redis: Callable[[RedisServer], None] = lambda _server: None

    # --- requests, and crashes within them

    def post(
        self, path: str, body: dict[str, Any], headers: dict[str, str], *, keyed: bool = True, death: str | int = "no"
    ) -> Result:
        """Send a POST request. If the service dies, repeat it with the same key, as a client does."""
        sent = {**headers, "Content-Type": "application/json"}
        if keyed or death != "no":
            sent["Idempotency-Key"] = f"key {next(self.numbers)}"
        answer = self._dying(path, body, sent, death) or self._send(path, body, sent)
        if "Idempotency-Key" in sent and answer.status_code < 300:
            self.kept.append(KeyedResponse(path, sent, body, answer.status_code, answer.text, self.clock.at))
        return answer

    def _send(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Result:
        answer = self.client.simulate_post(path, body=json.dumps(body), headers=headers)
        assert answer.status_code < 500, answer.text
        return answer

    def _dying(self, path: str, body: dict[str, Any], headers: dict[str, str], death: str | int) -> Result | None:
        """Send a request during which the service dies at the point `death`. Return None if it died."""
        if death == "no":
            return None
        reads = count(1)

        def before_read() -> None:
            if next(reads) == death:
                raise ServiceDied

        self.clock.before_read, self.shared.wake_ups.dies = before_read, death == "notify"
        try:
            return self._send(path, body, headers)
        except ServiceDied:
            release()
            return None
        finally:
            self.clock.before_read, self.shared.wake_ups.dies = (lambda: None), False

    def pick(self, number: int, *statuses: str) -> str | None:
        """Return one of the exports by a number, mostly one in these statuses. The choice is the same in every run."""
        ids = list(self.model.known)
        fitting = [each for each in ids if each in self.model.rows and self.model.rows[each].status in statuses]
        # One number in six selects any export, so that rejected requests are tested too.
        chosen = fitting if fitting and number % 6 else ids
        return chosen[number % len(chosen)] if chosen else None

    def target(self, number: int) -> str:
        """Return one of the targets."""
        return self.target_ids[number % len(self.target_ids)]

    def place(self, target_id: str) -> ErraticTarget:
        """Return the receiver's path for a target."""
        return self.shared.receiver.places[f"/hook/{self.target_ids.index(target_id)}"]

    def is_notified(self) -> None:
        """Check that a wake-up waits for the workers, if Redis was available."""
        if self.is_redis_well:
            with wake_up_queue.connect(self.shared.redis.url) as client:
                assert wake_up_queue.queue(client).count >= 1, "something is due and no wake-up waits"

    # --- intake

    @initialize(own_secret=st.booleans(), is_grouped=st.booleans())
    def begin(self, own_secret: bool, is_grouped: bool) -> None:
        """Create two targets and some tickets. One target has events, and one may have its own secret."""
        grouping = TicketGrouping.RULE if is_grouped else TicketGrouping.FINDING
        with connection():
            projects.set_ticket_grouping(self.customer.project_id, None, grouping, NOW, "test")
        for number in range(2):
            self.shared.resolver.table[f"t{number}.example.com"] = SAFE
            self.shared.receiver.places[f"/hook/{number}"] = ErraticTarget(WEBHOOK_SECRET)
            url = f"http://t{number}.example.com:{self.shared.receiver.port}/hook/{number}"
            body = {"provider_key": "generic_webhook", "base_url": url, "name": "T", "events": EVENTS if number else []}
            made = self.post(TARGETS, body, self.customer.bearer)
            assert made.status_code == 201, made.text
            self.target_ids.append(made.json["id"])
        asking = frozenset(self.target_ids[1:])
        self.life = LifeCycleModel(is_grouped=is_grouped, asking=asking, events=frozenset(EVENTS))
        if own_secret:
            self.rotate_target_secret(0)
        for number in range(3):
            self.by_hand(mentions=number == 0, death="no")
        self.model.compare()
        for number in range(2):
            self.approve(number, number, "none", "no")

    @rule(
        spots=st.lists(anything, max_size=3, unique=True),
        run=anything,
        page=st.sampled_from(PAGES),
        outcome=st.sampled_from(SCANS),
        checked=st.none() | st.lists(st.sampled_from(CODES), min_size=1, max_size=2, unique=True),
        keyed=st.booleans(),
        death=deaths,
    )
    def postback(
        self,
        spots: list[int],
        run: int,
        page: str,
        outcome: tuple[str, int | None],
        checked: list[str] | None,
        keyed: bool,
        death: str | int,
    ) -> None:
        """A scan run posts a page: some places of the checked rules are reported, and others are missing."""
        found = [(CODES[spot % len(CODES)], f"#{spot // len(CODES)}") for spot in spots]
        found = [each for each in found if checked is None or each[0] in checked]
        scan = Scan(run + 1, page, found, *outcome, checked)
        issues: list[Mapping[str, Any]] = [issue(code, location=location) for code, location in found]
        body = postback(scan.run, issues, status=scan.status)
        about = {"url": page, "normalizedUrl": page, "statusCode": scan.status_code}
        body["page"] |= {**about, **({"rules": checked} if checked else {})}
        disabled = {target_id for target_id, target in self.model.targets.items() if target.status == "disabled"}
        expected = self.life.scan(scan, self.model.rows, disabled, self.clock.at)
        answer = self.post("/api/scanner/results", body, {"X-Scanner-Secret": self.scanner_secret}, keyed=keyed, death=death)
        assert answer.status_code == 202, answer.text
        assert answer.json["findings"] == expected.counts, answer.text
        self.check_tickets(scan, expected, answer.json["ticket_exports"])

    def check_tickets(self, scan: Scan, expected: ExpectedScan, answered: list[str]) -> None:
        """Check that a postback has created exactly the expected tickets."""
        stored = {tuple(row[:3]): row[3] for row in rows("SELECT page_url, code, location, export_id FROM findings")}
        prepared: dict[Any, str] = {}
        for place, ticket in expected.ticketed.items():
            export_id = stored[place]
            self.life.findings[place].export_id = export_id
            assert export_id == ticket or (ticket is None and export_id not in self.model.known), (
                f"{place} is in {export_id}"
            )
            if ticket is None:
                # One ticket for each finding, or for each rule.
                key = place[1] if self.life.is_grouped else place
                assert prepared.setdefault(key, export_id) == export_id, f"{place} has a ticket of its own, {export_id}"
                self.life.counts[export_id]["total"] += 1
        assert len({*prepared.values()}) == len(prepared), f"several findings have one ticket: {prepared}"
        assert {*answered} == {*prepared.values(), *expected.extended}, f"{answered}, {prepared}, {expected}"
        for export_id in prepared.values():
            self.model.prepared(export_id)
        self.model.expect("extend", expected.extended)
        self.model.expect("join", expected.joined)
        if scan.status in {"completed", "partial"}:
            seen = {stored[scan.page, code, location] for code, location in scan.found}
            self.model.expect("seen_again", [each for each in seen if self.is_snoozed_until_seen(each)])
        expected.kept_open -= self.follow_rules([*prepared.values(), *expected.extended])
        opened = {row[0] for row in rows("SELECT id FROM exports WHERE open_group IS NOT NULL")}
        assert expected.kept_open <= opened, f"{expected.kept_open - opened} take no new places"

    @rule(
        at=anything,
        spots=st.lists(anything, min_size=1, max_size=4, unique=True),
        run=st.integers(20, 60),
        story=st.lists(st.tuples(st.integers(0, 15), st.sampled_from(PAGES), st.booleans()), min_size=2, max_size=5),
    )
    def live(self, at: int, spots: list[int], run: int, story: list[tuple[int, str, bool]]) -> None:
        """Findings of delivered tickets disappear and return, one page at a time; sometimes events are formed."""
        self.set_behaviors(at, [KIND])
        self.revive(at)
        for number, (mask, page, is_formed) in enumerate([(15, PAGES[0], False), *story]):
            present = [spot for place, spot in enumerate(spots) if mask >> place & 1]
            self.postback(present, run + number, page, ("completed", 200), None, False, "no")
            self.model.compare()
            if number == 0:
                for export_id in [row.id for row in self.model.rows.values() if row.rule and row.status == "prepared"]:
                    self.approve_this(export_id, at)
                self.work([self.worker(2)])
                self.model.compare()
            self.step_clock(SETTLE.total_seconds() + 1)
            self.model.compare()
            self.check_findings()
            if is_formed:
                self.form_events()

    def approve_this(self, export_id: str, at: int) -> None:
        """Approve an export for one of the targets."""
        answer = self.post(f"{EXPORTS}/{export_id}/approve", {"target_id": self.target(at)}, self.customer.bearer)
        assert answer.status_code == 202, answer.text
        self.model.expect("approve", [export_id])
        self.model.compare()

    @rule()
    def form_events(self) -> None:
        """Form the events of changed tickets that were approved with events: one for each ticket and run."""
        counted = (
            "SELECT export_id, type, COUNT(*) FROM ticket_events WHERE type <> 'ticket.redact' GROUP BY export_id, type"
        )
        before = Counter({(row[0], row[1]): row[2] for row in rows(counted)})
        self.model.compare()
        expected = self.life.form(self.model.rows, self.clock.at)
        options = EventOptions(Schedule(RETRIES_S, MAX_AGE), SETTLE.total_seconds(), 30, "worker", self.now)
        while form_events(options):
            pass
        release()
        formed = Counter({(row[0], row[1]): row[2] for row in rows(counted)}) - before
        assert formed == expected, f"formed: {formed}, due: {expected}"

    def now(self) -> datetime:
        """Return the time of the model."""
        return self.clock.at

    @rule(mentions=st.booleans(), death=deaths)
    def by_hand(self, mentions: bool, death: str | int) -> None:
        reported = f"{ADA.email} waits for an answer." if mentions else "The field has no name."
        ticket = {"title": f"Ticket {next(self.numbers)}", "description": reported}
        body = {"ticket": ticket, "project_id": self.customer.project_id}
        answer = self.post(EXPORTS, body, self.customer.bearer, death=death)
        assert answer.status_code == 201, answer.text
        self.prepared(answer.json["id"], "manual", mentions)

    def prepared(self, export_id: str, source: str, mentions: bool) -> None:
        """Record an export that does not belong to a finding, and the actions of rules on it."""
        self.model.prepared(export_id, mentions_person=mentions)
        self.sources[export_id] = source
        self.follow_rules([export_id])

    @rule(number=anything, mentions=st.booleans(), keyed=st.booleans(), death=deaths)
    def email(self, number: int, mentions: bool, keyed: bool, death: str | int) -> None:
        message_id = f"<{number}-{mentions}@mail.example>"
        sender = ADA.email if mentions else "somebody@mail.example"
        before = {row[0] for row in rows("SELECT export_id FROM inbound_emails")}
        body = plain_email(message_id=message_id, from_=sender)
        answer = self.post("/api/email/webhook", body, {"X-Email-Webhook-Secret": EMAIL_SECRET}, keyed=keyed, death=death)
        assert answer.status_code == 202, answer.text
        made = {row[0] for row in rows("SELECT export_id FROM inbound_emails")} - before
        assert len(made) == (not answer.json["duplicate"]), answer.text
        for export_id in made:
            self.prepared(export_id, "inbound_email", mentions)

    @rule(mentions=st.booleans(), death=deaths)
    def evidence(self, mentions: bool, death: str | int) -> None:
        reported = f"Sold to {ADA.email}." if mentions else "The total is missing."
        body = capture(self.customer.project_id, selected_text=reported)
        answer = self.post("/api/browser-extension/evidence-captures", body, self.platform, death=death)
        assert answer.status_code == 201, answer.text
        self.prepared(answer.json["handoff"]["ticket_export_id"], "evidence_capture", mentions)

    def is_snoozed_until_seen(self, export_id: str) -> bool:
        """Return whether an export waits until one of its findings is seen again."""
        row = self.model.rows.get(export_id)
        return row is not None and row.snoozed_at is not None and row.snoozed_until is None

    # --- decisions of users

    @rule(number=anything, at=anything, digest=st.sampled_from(["none", "none", "right", "wrong"]), death=deaths)
    def approve(self, number: int, at: int, digest: str, death: str | int) -> None:
        export_id, target_id = self.pick(number, "prepared"), self.target(at)
        if export_id is None:
            return
        row = self.model.rows[export_id]
        reported = {"right": row.digest, "wrong": "sha256:" + "0" * 64}.get(digest)
        body = {"target_id": target_id, **({"ticket_digest": reported} if reported else {})}
        is_open = self.model.targets[target_id].status == "active"
        if digest == "wrong":
            expected = 409
        elif row.target_id == target_id:
            expected = 202
        elif row.status != "prepared":
            expected = 409
        else:
            expected = 202 if is_open else 422
        answer = self.post(f"{EXPORTS}/{export_id}/approve", body, self.customer.bearer, death=death)
        assert answer.status_code == expected, f"{answer.text}; {row}"
        if expected == 202 and row.target_id is None:
            self.model.expect("approve", [export_id])
            # A service that died before it notified the workers notifies them when it responds to the repeat.
            self.is_notified()

    @rule(number=anything, death=deaths)
    def approve_for_all(self, number: int, death: str | int) -> None:
        """Approve an export for every target, or repeat that request."""
        export_id = self.pick(number, "prepared")
        if export_id is None:
            return
        row = self.model.rows[export_id]
        siblings = json.loads(row.siblings or "[]")
        stands = {self.model.rows[each].target_id for each in siblings if each in self.model.rows} == {*self.target_ids}
        is_prepared = row.status == "prepared"
        are_open = all(self.model.targets[each].status == "active" for each in self.target_ids)
        expected = 202 if stands or (is_prepared and are_open) else 422 if is_prepared else 409
        body = {"target_ids": self.target_ids}
        answer = self.post(f"{EXPORTS}/{export_id}/approve", body, self.customer.bearer, death=death)
        assert answer.status_code == expected, f"{answer.text}; {row}"
        if expected != 202:
            return
        ids = [item["id"] for item in answer.json["items"]]
        assert [item["target_id"] for item in answer.json["items"]] == self.target_ids
        if stands:
            assert {*ids} == {*siblings}
            return
        assert ids[0] == export_id
        for each in ids[1:]:
            self.model.prepared(each, mentions_person=self.model.known[export_id].mentions_person)
            self.life.copy(export_id, each)
        self.model.expect("approve", ids)
        self.is_notified()

    @rule(number=anything, reason=st.sampled_from([None, "test", "wont_fix"]), death=deaths)
    def dismiss(self, number: int, reason: str | None, death: str | int) -> None:
        export_id = self.pick(number, "prepared", "dismissed")
        if export_id is None:
            return
        row = self.model.rows[export_id]
        is_same = row.status == "dismissed" and row.dismissal_reason == reason
        answer = self.post(f"{EXPORTS}/{export_id}/dismiss", {"reason": reason}, self.customer.bearer, death=death)
        assert answer.status_code == (200 if is_same or row.status == "prepared" else 409), answer.text
        self.model.expect("dismiss", [export_id] if row.status == "prepared" else [])

    @rule(number=anything, death=deaths)
    def restore(self, number: int, death: str | int) -> None:
        export_id = self.pick(number, "prepared", "dismissed", "dismissed")
        if export_id is None:
            return
        row = self.model.rows[export_id]
        may = row.status == "prepared" or (row.status == "dismissed" and row.redacted_at is None)
        answer = self.post(f"{EXPORTS}/{export_id}/restore", {}, self.customer.bearer, death=death)
        assert answer.status_code == (200 if may else 409), f"{answer.text}; {row}"
        changes = may and (row.status == "dismissed" or row.snoozed_at is not None)
        self.model.expect("restore", [export_id] if changes else [])

    @rule(number=anything, seconds=st.sampled_from([None, -1.0, 60.0, 1e6]), death=deaths)
    def snooze(self, number: int, seconds: float | None, death: str | int) -> None:
        export_id = self.pick(number, "prepared")
        if export_id is None:
            return
        row = self.model.rows[export_id]
        until = None if seconds is None else self.clock.at + timedelta(seconds=seconds)
        body = {"until": format_rfc3339_or_none(until)}
        answer = self.post(f"{EXPORTS}/{export_id}/snooze", body, self.customer.bearer, death=death)
        is_past = seconds is not None and seconds < 0
        expected = 422 if is_past else 200 if row.status == "prepared" else 409
        assert answer.status_code == expected, f"{answer.text}; {row}"
        is_same = row.snoozed_at is not None and row.snoozed_until == until
        self.model.expect("snooze", [export_id] if expected == 200 and not is_same else [])

    @rule(number=anything, digest=st.sampled_from(["none", "right", "wrong"]))
    def edit(self, number: int, digest: str) -> None:
        export_id = self.pick(number, "prepared")
        if export_id is None:
            return
        row = self.model.rows[export_id]
        reported = {"right": row.digest, "wrong": "sha256:" + "0" * 64}.get(digest)
        body = {"title": f"Edited {next(self.numbers)}", **({"ticket_digest": reported} if reported else {})}
        headers = {**self.customer.bearer, "Content-Type": "application/json"}
        answer = self.client.simulate_patch(f"{EXPORTS}/{export_id}", body=json.dumps(body), headers=headers)
        may = row.status == "prepared" and digest != "wrong"
        assert answer.status_code == (200 if may else 409), f"{answer.text}; {row}"
        self.model.expect("edit", [export_id] if may else [])

    @rule(number=anything, at=anything, death=deaths)
    def retry_elsewhere(self, number: int, at: int, death: str | int) -> None:
        """Retry an export at a target that it was not approved for."""
        export_id, target_id = self.pick(number, "failed", "blocked"), self.target(at)
        if export_id is None or self.model.rows[export_id].target_id == target_id:
            return
        row = self.model.rows[export_id]
        is_undelivered = row.status in {"failed", "blocked"} and row.redacted_at is None
        is_open = self.model.targets[target_id].status == "active"
        answer = self.post(f"{EXPORTS}/{export_id}/retry", {"target_id": target_id}, self.customer.bearer, death=death)
        expected = 409 if not is_undelivered else 202 if is_open else 422
        assert answer.status_code == expected, f"{answer.text}; {row}"
        if expected == 202:
            self.model.move(export_id, target_id)
            self.is_notified()

    @rule(number=anything, death=deaths)
    def retry(self, number: int, death: str | int) -> None:
        export_id = self.pick(number, "failed", "blocked")
        if export_id is None:
            return
        row = self.model.rows[export_id]
        may = is_undelivered = row.status in {"failed", "blocked"} and row.redacted_at is None
        target = self.model.targets.get(row.target_id or "")
        was_blocked = target is not None and target.status == "blocked"
        if may and target is not None:
            may = target.status == "active" or (was_blocked and self.is_safe(target.id))
        answer = self.post(f"{EXPORTS}/{export_id}/retry", {}, self.customer.bearer, death=death)
        expected = 202 if may else 422 if is_undelivered else 409
        assert answer.status_code == expected, f"{answer.text}; {row}, {target}"
        if may and target is not None:
            self.model.expect("retry", [export_id])
            self.is_notified()
            if was_blocked:
                self.model.resumed(target.id)

    @rule(at=anything, verb=st.sampled_from(["pause", "resume", "resume", "disable"]), death=deaths)
    def turn(self, at: int, verb: str, death: str | int) -> None:
        target_id = self.target(at)
        status = self.model.targets[target_id].status
        answer = self.post(f"{TARGETS}/{target_id}/{verb}", {}, self.customer.bearer, death=death)
        expected, leads_to = 200, {"pause": "paused", "resume": "active", "disable": "disabled"}[verb]
        if verb == "pause" and status not in {"active", "paused"}:
            expected, leads_to = 409, status
        if verb == "resume" and status != "active" and not self.is_safe(target_id):
            expected, leads_to = 422, status
        assert answer.status_code == expected, f"{answer.text}; {status}"
        assert rows("SELECT status FROM targets WHERE id = ?", (target_id,)) == [(leads_to,)]
        if verb == "resume" and expected == 200:
            self.model.resumed(target_id)

    @rule(at=anything)
    def recover(self, at: int) -> None:
        target_id = self.target(at)
        if self.model.targets[target_id].status not in {"active", "paused"}:
            return
        wanted = [
            row.id
            for row in self.model.rows.values()
            if row.target_id == target_id and row.status in {"failed", "blocked"} and row.redacted_at is None
        ]
        since = datetime(2020, 1, 1, tzinfo=NOW.tzinfo)
        with connection():
            held = recoveries.begin(target_id, since, self.clock.at, "operator")
        task = recovery_task(self.shared.wake_ups, storage_clock.utc_now)
        while task.process_batch(held).progress is BatchProgress.MORE:
            pass
        self.model.expect("retry", wanted)

    def is_safe(self, target_id: str) -> bool:
        """Return whether a target's name resolves to an allowed address."""
        return self.shared.resolver.table[f"t{self.target_ids.index(target_id)}.example.com"] == SAFE

    # --- groups that users split

    @rule(number=anything, death=deaths)
    def split(self, number: int, death: str | int) -> None:
        """Split a group, or try to split an export that is not a group."""
        groups = [row.id for row in self.model.rows.values() if row.status == "prepared" and (row.findings_total or 0) > 1]
        export_id = groups[number % len(groups)] if groups else self.pick(number, "prepared")
        if export_id is None:
            return
        places = self.life.places_of(export_id)
        may = self.model.rows[export_id].status == "prepared" and len(places) > 1
        answer = self.post(f"{EXPORTS}/{export_id}/split", {}, self.customer.bearer, death=death)
        assert answer.status_code == (200 if may else 409), f"{answer.text}; {self.model.rows[export_id]}"
        if not may:
            return
        ids = answer.json["ticket_exports"]
        stored = {tuple(row[:3]): row[3] for row in rows("SELECT page_url, code, location, export_id FROM findings")}
        parts = {place: stored[place] for place in places}
        assert ids[0] == export_id
        assert sorted(parts.values()) == sorted(ids), f"{parts} have the tickets {ids}"
        for each in ids[1:]:
            self.model.prepared(each)
        self.model.expect("split", [export_id])
        self.life.split(export_id, parts)

    @rule(code=st.integers(0, len(CODES) - 1), run=st.integers(70, 99), is_fixed=st.booleans(), number=anything)
    def split_what_was_fixed(self, code: int, run: int, is_fixed: bool, number: int) -> None:
        """A group of three places, of which one may be fixed, is split; then all are reported again."""
        spots = [code, code + len(CODES), code + 2 * len(CODES)]
        for later, reported in enumerate([spots, *([spots[:2]] * 2 if is_fixed else [])]):
            self.postback(reported, run + later, PAGES[1], ("completed", 200), None, False, "no")
            self.model.compare()
        self.split(number, "no")
        self.model.compare()
        self.check_findings()
        self.postback(spots, run + 5, PAGES[1], ("completed", 200), None, False, "no")

    # --- approval rules

    def follow_rules(self, export_ids: Iterable[str]) -> set[str]:
        """Record the expected actions of rules on prepared or extended exports; return the exports that they closed."""
        subjects = {each: self.subject(each) for each in dict.fromkeys(export_ids)}
        decided = self.approval_rules.apply(subjects, self.model.rows, self.model.targets, self.clock.at)
        self.ruled(decided)
        stays_open = {each for each, rule in self.approval_rules.rules.items() if rule.action.get("reason") == "wont_fix"}
        return {each.export_id for each in decided if each.action == "dismiss" and each.rule_id not in stays_open}

    def subject(self, export_id: str) -> ComparedExport:
        """Return the fields of an export that rules compare."""
        places = self.life.places_of(export_id)
        if not places:
            return ComparedExport(self.sources.get(export_id, ""))
        return ComparedExport("finding", places[0][1], frozenset(page for page, _, _ in places))

    def ruled(self, decided: Iterable[Decided]) -> None:
        """Record expected actions of rules."""
        for each in decided:
            self.model.ruled[each.export_id, each.action, each.rule_id] += 1

    @rule(match=rule_matches, action=rule_actions, at=anything, death=deaths)
    def make_rule(self, match: str, action: str, at: int, death: str | int) -> None:
        """Store a rule. It has no effect on existing exports."""
        if len(self.approval_rules.rules) >= MAX_RULES:
            self.delete_rule(0)
        requested = {**ACTIONS[action], **({"target_id": self.target(at)} if action == "approve" else {})}
        body = {"name": "A rule", "match": MATCHES[match].requested, "action": requested}
        answer = self.post(RULES, body, self.customer.bearer, death=death)
        assert answer.status_code == 201, answer.text
        rule_id = answer.json["id"]
        self.approval_rules.rules[rule_id] = ExpectedRule(rule_id, match, requested)

    @rule(number=anything, is_enabled=st.booleans())
    def turn_rule(self, number: int, is_enabled: bool) -> None:
        """Disable or enable a rule."""
        if not self.approval_rules.rules:
            return
        changed = list(self.approval_rules.rules.values())[number % len(self.approval_rules.rules)]
        headers = {**self.customer.bearer, "Content-Type": "application/json"}
        body = json.dumps({"enabled": is_enabled})
        answer = self.client.simulate_patch(f"{RULES}/{changed.id}", body=body, headers=headers)
        assert (answer.status_code, answer.json["enabled"]) == (200, is_enabled), answer.text
        changed.is_enabled = is_enabled

    @rule(number=anything)
    def delete_rule(self, number: int) -> None:
        """Delete a rule. Its decisions stay."""
        if not self.approval_rules.rules:
            return
        rule_id = list(self.approval_rules.rules)[number % len(self.approval_rules.rules)]
        answer = self.client.simulate_delete(f"{RULES}/{rule_id}", headers=self.customer.bearer)
        assert answer.status_code == 204, answer.text
        del self.approval_rules.rules[rule_id]

    @rule()
    def resume_rules(self) -> None:
        """A worker decides on exports that waited for the target of a rule."""
        self.ruled(self.approval_rules.resume(self.subject, self.model.rows, self.model.targets, self.clock.at))
        policy, notify = self.settings.target_policy, self.shared.wake_ups.notify
        while decide_waiting(ApprovalRules(policy, notify), self.now):
            pass
        release()
        if any(action == "approve" for _, action, _ in self.model.ruled):
            self.is_notified()

    @rule(
        at=anything,
        of_whom=people,
        meanwhile=st.sampled_from(
            ["nothing", "is off", "is off and on", "is deleted", "is dismissed", "is snoozed", "is split"]
        ),
    )
    def let_wait_for_target(self, at: int, of_whom: list[bool], meanwhile: str) -> None:
        """Exports wait for the paused target of a rule; one of them or the rule changes; then the target is resumed."""
        for rule_id in list(self.approval_rules.rules):
            self.delete_rule(0)
            assert rule_id not in self.approval_rules.rules
        self.make_rule("a page" if meanwhile == "is split" else "by hand", "approve", at, "no")
        self.revive(at)
        self.turn(at, "pause", "no")
        self.model.compare()
        for mentions in of_whom:
            self.by_hand(mentions, "no")
        if meanwhile == "is split":
            self.postback([at, (at + 4) % 12], 100 + at, PAGES[1], ("completed", 200), None, False, "no")
        self.model.compare()
        match meanwhile:
            case "is off" | "is off and on":
                self.turn_rule(0, False)
                if meanwhile == "is off and on":
                    self.resume_rules()
                    self.turn_rule(0, True)
            case "is deleted":
                self.delete_rule(0)
            case "is dismissed":
                self.dismiss(-1, None, "no")
            case "is snoozed":
                self.snooze(-1, None, "no")
            case "is split":
                self.split(0, "no")
        self.model.compare()
        self.turn(at, "resume", "no")
        self.model.compare()
        self.resume_rules()
        self.model.compare()
        self.work([self.worker(2)])

    # --- bulk decisions

    @rule(
        action=bulk_actions,
        numbers=st.lists(anything, min_size=1, max_size=4),
        at=anything,
        digest=st.sampled_from(["none", "right", "wrong"]),
        death=deaths,
    )
    def decide_on_many(self, action: str, numbers: list[int], at: int, digest: str, death: str | int) -> None:
        """One decision on the exports in a request: each is applied if it is allowed, regardless of the others."""
        picked = [self.pick(number, *STATUSES[action]) for number in numbers]
        ids = list(dict.fromkeys(each for each in picked if each is not None))
        if not ids:
            return
        target_id = self.target(at) if action == "approve" else None
        digests = {
            each: {"right": self.model.rows[each].digest, "wrong": "sha256:" + "0" * 64}.get(digest) for each in ids[:1]
        }
        named = [{"id": each, **({"ticket_digest": digests[each]} if digests.get(each) else {})} for each in ids]
        body = {"action": action, "ids": named, **({"target_id": target_id} if target_id else {})}
        expected = [
            judge(action, self.model.rows[each], target_id, self.model.targets, digest=digests.get(each)) for each in ids
        ]
        answer = self.post(f"{EXPORTS}/bulk", body, self.customer.bearer, death=death)
        if action == "approve" and "target refused" in expected:
            assert answer.status_code == 422, answer.text
            return
        assert answer.status_code == 200, answer.text
        found = ["refused" if "error" in each else each["status"] for each in answer.json["results"]]
        leads_to = {"approve": "approved", "dismiss": "dismissed", "restore": "prepared", "retry": "approved"}[action]
        wanted = {"changed": leads_to, "refused": "refused", "target refused": "refused"}
        assert found == [
            wanted.get(result, self.model.rows[each].status) for each, result in zip(ids, expected, strict=True)
        ], f"{answer.text}; {expected}"
        changed = [each for each, result in zip(ids, expected, strict=True) if result == "changed"]
        assert (answer.json["changed"], answer.json["skipped"]) == (len(changed), expected.count("skipped")), answer.text
        self.model.expect(action, changed)
        if changed and action in {"approve", "retry"}:
            self.is_notified()

    @rule(action=bulk_actions, at=anything, is_right=st.sampled_from([True, True, True, False]), death=deaths)
    def begin_job(self, action: str, at: int, is_right: bool, death: str | int) -> None:
        """Start a bulk job on all exports in some statuses, if their number is the one that the client expects."""
        target_id = self.target(at) if action == "approve" else None
        found = matching(self.model.rows.values(), STATUSES[action])
        body = {"action": action, "filter": {"status": STATUSES[action]}, "expected_count": len(found) + (not is_right)}
        body |= {"target_id": target_id} if target_id else {}
        expected = 202 if is_right and len(self.running_jobs()) < MAX_JOBS else 409
        if target_id is not None and self.model.targets[target_id].status != "active":
            expected = 422
        answer = self.post(f"{EXPORTS}/bulk", body, self.customer.bearer, death=death)
        assert answer.status_code == expected, f"{answer.text}; {found}"
        if expected != 202:
            return
        job_id = answer.json["id"]
        items = [*rows("SELECT export_id, version FROM bulk_job_items WHERE job_id = ? ORDER BY position", (job_id,))]
        assert dict(items) == found
        self.jobs[job_id] = ExpectedJob(action, target_id, [(row[0], row[1]) for row in items])
        self.is_notified()

    @rule(batches=st.integers(1, 4), dies=st.booleans())
    def continue_jobs(self, batches: int, dies: bool) -> None:
        """A worker processes some batches of bulk jobs, and may then die: the rest waits until its lease expires."""
        for _ in range(batches):
            self.model.compare()
            before = self.running_jobs()
            is_due = rows("SELECT 1 FROM bulk_jobs WHERE next_run_at <= ? LIMIT 1", (to_ms(self.clock.at),)) != []
            has_worked = self.bulk_worker.run_once()
            release()
            moved = before.items() - self.running_jobs().items()
            if not has_worked:
                assert not is_due, "a bulk job waits, and no worker continues it"
                break
            # A worker may still have had the lease of a cancelled job.
            for job_id, _ in moved:
                self.check_batch(job_id)
        if dies:
            self.bulk_worker = self.new_bulk_worker()
            self.quiet_jobs.clear()

    def check_batch(self, job_id: str) -> None:
        """Check a worker's decisions on the next exports of a bulk job."""
        job = self.jobs[job_id]
        batch = job.items[len(job.results) :][:BATCH]
        results = [
            judge(job.action, self.model.rows.get(each), job.target_id, self.model.targets, version=version)
            for each, version in batch
        ]
        job.results += results
        changed = [each for (each, _), result in zip(batch, results, strict=True) if result == "changed"]
        self.model.expect(job.action, changed)
        answer = self.client.simulate_get(f"{BULK_JOBS}/{job_id}", headers=self.customer.bearer)
        errors = sum(answer.json["errors"].values())
        counts = [answer.json[name] for name in ("total", "done", "changed", "skipped")]
        counted = Counter(job.results)
        assert counts == [len(job.items), len(job.results), counted["changed"], counted["skipped"]], answer.text
        assert errors == counted["refused"] + counted["target refused"], answer.text
        assert (answer.json["status"] == "done") == (len(job.results) == len(job.items)), answer.text
        if not changed or job.action not in {"approve", "retry"}:
            return
        if not self.is_redis_well:
            # A worker that finds Redis unavailable once leaves the rest of the job to the sweep.
            self.quiet_jobs.add(job_id)
        elif job_id not in self.quiet_jobs:
            self.is_notified()

    @rule(number=anything, death=deaths)
    def cancel_job(self, number: int, death: str | int) -> None:
        """Cancel a bulk job: its decisions stay, and no more follow."""
        if not self.jobs:
            return
        job_id = list(self.jobs)[number % len(self.jobs)]
        is_running = job_id in self.running_jobs()
        answer = self.post(f"{BULK_JOBS}/{job_id}/cancel", {}, self.customer.bearer, death=death)
        assert answer.status_code == 200, answer.text
        assert answer.json["status"] == "cancelled" or not is_running, answer.text

    @rule(action=bulk_actions, at=anything, behavior=st.sampled_from([KIND, "is gone", "does not trust"]), number=anything)
    def decide_by_filter(self, action: str, at: int, behavior: str, number: int) -> None:
        """A user decides on one new export, then a bulk job on all new ones; due exports are delivered."""
        if action == "retry":
            self.approve_new([False] * 3, at)
            self.set_behaviors(at, [behavior])
            self.work([self.worker(2)])
        else:
            self.revive(at)
            for _ in range(3):
                self.by_hand(False, "no")
        self.model.compare()
        self.set_behaviors(at, [KIND])
        self.revive(at)
        self.begin_job(action, at, True, "no")
        self.model.compare()
        self.continue_jobs(1, False)
        self.model.compare()
        self.edit(number, "none")
        self.dismiss(-1, None, "no")
        self.model.compare()
        self.continue_jobs(4, False)
        self.model.compare()
        self.work([self.worker(2)])

    def running_jobs(self) -> dict[str, int]:
        """Return the running bulk jobs with their numbers of processed exports."""
        return {row[0]: row[1] for row in rows("SELECT id, done FROM bulk_jobs WHERE status = 'running'")}

    def new_bulk_worker(self) -> BatchTask:
        """Return the bulk job task of a new worker process."""
        return bulk_job_task(self.shared.wake_ups, self.settings.target_policy, account_limits(self.settings), self.now)

    # --- repeats

    @rule(number=anything)
    def repeat(self, number: int) -> None:
        """A repeat with the same key and body gets the same response, byte for byte, and has no effect."""
        if not self.kept:
            return
        kept = self.kept[number % len(self.kept)]
        answer = self._send(kept.path, kept.body, self._present(kept.headers))
        assert answer.status_code == kept.status, answer.text
        assert answer.headers.get("Idempotency-Replayed") == "true", answer.text
        redacted = '{"redacted": true}'
        assert answer.text == kept.text or (answer.text == redacted and self.may_be_redacted(kept)), answer.text

    @rule(number=anything)
    def repeat_changed(self, number: int) -> None:
        """A request with the same key and another body is rejected."""
        if not self.kept:
            return
        kept = self.kept[number % len(self.kept)]
        body = {**kept.body, "ticket_digest": "sha256:1"} if kept.path.endswith("approve") else _changed(kept)
        if body is None:
            return
        answer = self._send(kept.path, body, self._present(kept.headers))
        assert answer.status_code == 409, answer.text
        assert answer.json["error"]["code"] == "IDEMPOTENCY_CONFLICT", answer.text

    def may_be_redacted(self, kept: KeyedResponse) -> bool:
        """Return whether a response is about a redacted export, or about the email of one."""
        emptied = {row.id for row in self.model.rows.values() if row.redacted_at is not None}
        return any(export_id in kept.text for export_id in emptied) or kept.path == "/api/email/webhook"

    def _present(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers with the current scanner secret: a repeat must be authenticated too."""
        is_scanner = "X-Scanner-Secret" in headers
        return {**headers, **({"X-Scanner-Secret": self.scanner_secret} if is_scanner else {})}

    # --- polls

    @rule(number=anything)
    def poll(self, number: int) -> None:
        """The response of a poll matches the row, the earlier responses, and the ETag."""
        export_id = self.pick(number, *ON_ITS_WAY)
        if export_id is not None:
            self.check_poll(export_id)

    @rule(at=anything)
    def poll_while_paused(self, at: int) -> None:
        """The state of a waiting export is correct before, during and after a pause of its target."""
        self.approve_new([False], at)
        export_id = list(self.model.known)[-1]
        self.check_poll(export_id)
        for verb in ("pause", "resume"):
            self.turn(at, verb, "no")
            self.model.compare()
            self.check_poll(export_id)

    def check_poll(self, export_id: str) -> None:
        """Poll an export, and compare the response with the model and the earlier responses."""
        row = self.model.rows[export_id]
        answer = self.client.simulate_get(f"{EXPORTS}/{export_id}", headers=self.customer.bearer)
        assert answer.status_code == 200, answer.text
        record, tag = answer.json, answer.headers["etag"]
        upcoming = self.model.upcoming(row)
        assert (record["status"], record["status_reason"]) == (row.status, upcoming.reason or row.reason)
        assert record["attempts"] == row.attempts
        counts = self.life.counts[export_id]
        assert record["findings"] == ({name: counts[name] for name in ("total", "fixed")} if counts else None), answer.text
        seconds = record.pop("retry_after_seconds", None)
        assert (record["next_attempt_at"], seconds) == (format_rfc3339_or_none(upcoming.at), upcoming.wait_s), answer.text
        assert answer.headers.get("retry-after") == (None if seconds is None else str(seconds))
        before = self.polled.get(export_id)
        if before is not None:
            self._check_reported_before(before, record, tag)
        self.polled[export_id] = Polled(tag, record)
        known = self.client.simulate_get(f"{EXPORTS}/{export_id}", headers={**self.customer.bearer, "If-None-Match": tag})
        assert known.status_code == 304
        reported = self.client.simulate_get(f"{EXPORTS}/{export_id}/attempts", headers=self.customer.bearer).json["items"]
        assert len(reported) <= record["attempts"], reported

    def _check_reported_before(self, before: Polled, record: dict[str, Any], tag: str) -> None:
        if tag == before.tag:
            assert record == before.record, f"the same tag, another record: {before.record} {record}"
        if before.record["status"] == "exported":
            assert record["status"] == before.record["status"]
            assert record["finished_at"] == before.record["finished_at"]
        assert before.record["target_id"] in {None, record["target_id"]} or record["id"] in self.model.moved
        assert before.record["approved_at"] in {None, record["approved_at"]}
        assert before.record["created_at"] == record["created_at"]

    # --- workers

    def worker(self, concurrency: int, halt: Halt | None = None) -> HaltingWorker:
        """Return a worker that acts as a new process, but runs in this process."""
        name = f"worker:model:{next(self.numbers)}"
        post = self.shared.client.post
        made = HaltingWorker(name, post, self.vault, WEBHOOK_SECRET, self.clock, concurrency, halt)
        self.model.workers.append(made)
        return made

    def work(self, workers: list[HaltingWorker], notifications: int = 1) -> None:
        """Consume the wake-ups in Redis, and run workers in parallel."""
        if self.is_redis_well:
            with wake_up_queue.connect(self.shared.redis.url) as client:
                client.delete(wake_up_queue.queue(client).key)
        self.shared.wake_ups.acknowledge()
        run_in_parallel(workers, notifications)
        self.model.worked = True
        for worker in workers:
            # A worker that has just started does not know that the clock was set, and can treat valid leases as expired.
            worker.was_misled = len(workers) > 1 and len(self.clock.shown) > 1
        self.sleepers += [worker for worker in workers if worker.is_asleep]
        for worker in workers:
            assert worker.is_asleep or worker.is_dead or not rows("SELECT 1 FROM workers WHERE name = ?", (worker.name,))

    @rule(concurrency=hands, notifications=st.integers(1, 3))
    def deliver(self, concurrency: int, notifications: int) -> None:
        self.work([self.worker(concurrency)], notifications)

    @rule(of_whom=people, at=anything, chosen=behaviors, concurrency=hands)
    def approve_and_deliver(self, of_whom: list[bool], at: int, chosen: list[str], concurrency: int) -> None:
        """The most common sequence: approve exports and deliver them."""
        self.set_behaviors(at, chosen)
        self.approve_new(of_whom, at)
        self.work([self.worker(concurrency)])

    @rule(at=anything, chosen=behaviors, seconds=st.sampled_from(FORWARDS_S), concurrency=hands)
    def wait_and_deliver(self, at: int, chosen: list[str], seconds: float, concurrency: int) -> None:
        self.set_behaviors(at, chosen)
        self.step_clock(seconds)
        self.work([self.worker(concurrency)])

    @rule(at=anything, behavior=st.sampled_from(["is ill", "hangs up", "is ill for a while"]))
    def fail_throughout(self, at: int, behavior: str) -> None:
        """A receiver fails until an export has used all its retries."""
        self.approve_new([False], at)
        export_id = list(self.model.known)[-1]
        self.set_behaviors(at, [behavior])
        # The target's breaker opens meanwhile. Other exports of the target can use its few attempts first.
        for _ in range(4 * len(RETRIES_S)):
            if self.model.rows[export_id].status in FINISHED:
                break
            self.step_clock(4000)
            self.work([self.worker(2)])
            self.model.compare()

    @rule(all_hands=st.lists(hands, min_size=2, max_size=3))
    def deliver_together(self, all_hands: list[int]) -> None:
        self.work([self.worker(concurrency) for concurrency in all_hands])

    @rule(point=st.sampled_from(DEATHS), nth=st.integers(1, 3), concurrency=hands, joined=st.booleans())
    def deliver_and_die(self, point: str, nth: int, concurrency: int, joined: bool) -> None:
        self.approve_new([True, False, False, False], 0)
        doomed = self.worker(concurrency, Halt(point, nth))
        self.work([doomed, self.worker(2)] if joined else [doomed])

    @rule(point=st.sampled_from(SLEEPS), nth=st.integers(1, 2))
    def deliver_and_sleep(self, point: str, nth: int) -> None:
        self.approve_new([True, False, False, False], 0)
        self.work([self.worker(1, Halt(point, nth, only_sleeps=True))])
        # Longer than the maximum delay between the scan of a row and the start of its attempt.
        self.clock.step(0.3)

    def approve_new(self, of_whom: list[bool], at: int) -> None:
        """Prepare tickets that mention the person or not, and approve them for one target, which is made usable first."""
        self.revive(at)
        for mentions in of_whom:
            self.by_hand(mentions, "no")
            self.model.compare()
            self.approve(-1, at, "none", "no")
            self.model.compare()

    def revive(self, at: int) -> None:
        """Make a target usable. Without this, most targets would be unusable during most of a long run."""
        number = self.target_ids.index(self.target(at))
        self.shared.resolver.table[f"t{number}.example.com"] = SAFE
        self.turn(at, "resume", "no")
        self.model.compare()

    @rule(number=anything, dies=st.booleans())
    def wake(self, number: int, dies: bool) -> None:
        if not self.sleepers:
            return
        sleeper = self.sleepers.pop(number % len(self.sleepers))
        self.model.worked = self.model.woke = True
        if dies:
            sleeper.kill()
        else:
            sleeper.wake()

    @rule(point=st.sampled_from(SLEEPS), meanwhile=st.sampled_from(MEANWHILE), dies=st.booleans())
    def sleep_through(self, point: str, meanwhile: str, dies: bool) -> None:
        """A worker sleeps at `point` while something happens to its claims, then continues or dies."""
        self.deliver_and_sleep(point, 1)
        self.model.compare()
        self.let_happen(meanwhile)
        self.model.compare()
        self.wake(-1, dies)

    def let_happen(self, meanwhile: str) -> None:
        """Cause one of the events in MEANWHILE."""
        match meanwhile:
            case "its lease is over":
                self.clock.step(OVER_A_LEASE_S)
            case "another one takes over":
                self.clock.step(OVER_A_LEASE_S)
                self.work([self.worker(2)])
            case "the clock is set back":
                self.clock.step(-600)
            case "targets are disabled":
                self.turn(0, "disable", "no")
                self.turn(1, "disable", "no")
            case "targets are paused":
                self.turn(0, "pause", "no")
                self.turn(1, "pause", "no")
            case "secrets are rotated":
                self.rotate_target_secret(0)
                self.rotate_target_secret(1)
            case "its person is forgotten":
                self.ask_to_forget()
                self.model.compare()
                self.erase(None)

    @rule()
    def sweep(self) -> None:
        """Check that a sweep counts the exports that are due by the model."""
        with connection():
            counted = queries.count_due(self.clock.at, 1000)
        assert counted == sum(self.model.is_due(row) for row in self.model.rows.values())

    # --- events outside of RiskRelay

    @rule(at=anything, chosen=behaviors)
    def set_behaviors(self, at: int, chosen: list[str]) -> None:
        place = self.place(self.target(at))
        place.behaviors, place.answered = chosen, 0

    @rule(at=anything, is_safe=st.booleans())
    def move_address(self, at: int, is_safe: bool) -> None:
        """Change the address of a target's name. Kept connections would use the old address for a while, so close them."""
        number = self.target_ids.index(self.target(at))
        self.shared.resolver.table[f"t{number}.example.com"] = SAFE if is_safe else UNSAFE
        self.shared.client.close()

    @rule(seconds=st.sampled_from(FORWARDS_S + BACKWARDS_S))
    def step_clock(self, seconds: float) -> None:
        self.clock.step(seconds)
        # No worker has run meanwhile, so the next step has only one time.
        self.clock.shown = {self.clock.at}
        self._drop_old_responses(self.clock.at - timedelta(hours=72))

    def _drop_old_responses(self, before: datetime) -> None:
        self.kept = [kept for kept in self.kept if kept.at >= before]

    @rule(name=st.sampled_from(AWAY))
    def break_redis(self, name: str) -> None:
        if self.is_redis_well:
            fail, self.repair_redis = REDIS_FAILURES[name]
            fail(self.shared.redis)
            self.is_redis_well = False

    @rule()
    def repair(self) -> None:
        if self.is_redis_well:
            return
        self.repair_redis(self.shared.redis)
        # Keys in Redis expire after some seconds; the test does not wait for that.
        self.shared.redis.flush()
        self.is_redis_well = True

    @rule(at=anything)
    def rotate_target_secret(self, at: int) -> None:
        target_id, secret = self.target(at), f"secret of target {next(self.numbers)}"
        with connection():
            targets.set_secret(target_id, secret, self.vault, self.clock.at)
        self.place(target_id).secret = secret

    @rule()
    def rotate_scanner_secret(self) -> None:
        before, self.scanner_secret = self.scanner_secret, f"secret of scanner {next(self.numbers)}"
        with connection():
            SharedSecrets(self.settings, self.vault).set(Integration.SCANNER, self.scanner_secret, self.clock.at)
        headers = {"X-Scanner-Secret": before, "Content-Type": "application/json"}
        refused = self._send("/api/scanner/results", postback(), headers)
        assert refused.status_code == 401, refused.text

    # --- erasure and retention

    @rule()
    def ask_to_forget(self) -> None:
        person = replace(ADA, orders=(880_000_000 + next(self.numbers),))
        assert send_webhook(self.client, "customers/redact", redact_body(person)).status_code == 204
        self.model.erasing = True

    @rule(dies_at=st.sampled_from([None, None, 3, 5, 8, 12]))
    def erase(self, dies_at: int | None) -> None:
        """Carry out the pending erasure. If the worker dies, the next one continues after the lease has expired."""
        if not self.model.erasing:
            return
        looks = count(1)

        def now() -> datetime:
            if next(looks) == dies_at:
                raise ServiceDied
            return self.clock.at

        task = ComplianceTask(self.vault, "worker:compliance", now)
        try:
            while task.run_once():
                pass
        except ServiceDied:
            release()
        assert task.failed == 0
        with connection():
            is_done = compliance_requests.count_unfinished() == 0
        if is_done:
            self.check_erased()

    def check_erased(self) -> None:
        """Check that no data of the person is stored or sent."""
        assert traces_of(ADA, stored()) == []
        for export_id, known in self.model.known.items():
            assert self.model.rows_redacted(export_id) == known.mentions_person, export_id
        self.model.compare()
        for row in self.model.rows.values():
            assert row.redacted_at is None or row.status in FINISHED, row
        self.model.erasing = False

    @rule(at=anything, is_much_later=st.booleans())
    def prune(self, at: int, is_much_later: bool) -> None:
        """Delete old records. Pending exports stay, however old they are."""
        self.approve_new([False], at)
        if is_much_later:
            self.step_clock(max(FORWARDS_S))
        until = retention.cutoffs(self.clock.at, self.settings.retention, self.settings.idempotency_ttl)
        with connection():
            for _ in retention.purge(until):
                pass
        # Exports stay if they have undelivered events, or if findings joined them recently.
        held = "SELECT export_id FROM bulk_job_items UNION SELECT export_id FROM ticket_events WHERE status = 'pending'"
        joined = rows("SELECT export_id FROM findings WHERE first_seen_at >= ?", (to_ms(until.over),))
        decided = rows("SELECT subject_id FROM audit_entries WHERE at >= ?", (to_ms(until.over),))
        self.model.pruned(until.over, {row[0] for row in [*rows(held), *joined]}, {row[0] for row in decided})
        jobs = {row[0] for row in rows("SELECT id FROM bulk_jobs")}
        self.jobs = {job_id: job for job_id, job in self.jobs.items() if job_id in jobs}
        sighted = (
            "SELECT page_url, code, location, s.scan_run_id FROM findings f JOIN finding_sightings s ON s.finding_id = f.id"
        )
        left = {((row[0], row[1], row[2]), row[3]) for row in rows(sighted)}
        self.life.forget_runs(left, {row[0] for row in rows("SELECT id FROM scan_runs")})
        self._drop_old_responses(until.responses)

    # --- what must hold

    @invariant()
    def everything_is_explained(self) -> None:
        self.model.compare()
        self.check_findings()

    def check_findings(self) -> None:
        """Check the states of findings and the counts of their tickets."""
        stored = rows("SELECT page_url, code, location, fixed_at IS NOT NULL, times_reopened FROM findings")
        expected = {(*place, each.fixed_at is not None, each.times_reopened) for place, each in self.life.findings.items()}
        assert {(*row[:3], bool(row[3]), row[4]) for row in stored} == expected
        for row in self.model.rows.values():
            total, fixed = row.findings_total or 0, row.findings_fixed or 0
            counts = self.life.counts[row.id]
            assert (total, fixed) == (counts["total"], counts["fixed"]), f"{row.id} has {counts}: {row}"
            assert row.open_group is None or fixed < total, f"all places of {row.id} are fixed, and it takes new ones"

    def teardown(self) -> None:
        """Wake all workers, repair everything, and let days pass: then no export may still be pending."""
        try:
            # After a failure, these checks would only hide it.
            if sys.exception() is None:
                self._end_well()
        finally:
            for sleeper in self.sleepers:
                sleeper.kill()
            self.repair_redis(self.shared.redis)

    def _end_well(self) -> None:
        while self.sleepers:
            self.wake(0, dies=False)
            self.model.compare()
        for number, target_id in enumerate(self.target_ids):
            self.shared.resolver.table[f"t{number}.example.com"] = SAFE
            self.set_behaviors(number, [KIND])
            if self.model.targets[target_id].status == "paused":
                self.turn(number, "resume", "no")
        self.model.compare()
        # Longer than the lease of a dead worker, and than the largest step back of the clock.
        self.clock.step(25 * 3600)
        self.model.compare()
        while self.running_jobs():
            self.continue_jobs(1, False)
        self.model.compare()
        for _ in range(12):
            if not (self.model.erasing or any(row.status in ON_ITS_WAY for row in self.model.rows.values())):
                break
            # Longer than every lease, hold and delay. An open breaker allows single attempts.
            self.clock.step(25 * 3600)
            self.deliver(4, 1)
            self.model.compare()
            self.erase(None)
            self.model.compare()
        left = [row for row in self.model.rows.values() if row.status not in {"prepared", *FINISHED}]
        assert left == []


def _changed(kept: KeyedResponse) -> dict[str, Any] | None:
    """Return another valid body for a route; None if there is none."""
    changes: dict[str, dict[str, Any]] = {
        EXPORTS: {"ticket": {"title": "Another one"}},
        "/api/scanner/results": {"issues": []},
        "/api/email/webhook": {"subject": "Another one"},
        "/api/browser-extension/evidence-captures": {"page_title": "Another one"},
        TARGETS: {"name": "Another one"},
    }
    changed = {**kept.body, **changes.get(kept.path, {})}
    return changed if changed != kept.body else None


def _empty() -> None:
    with transaction():
        for model in reversed(ALL):
            execute(f"DELETE FROM {model._meta.table_name}")  # noqa: S608 - our own names
    if not is_sqlite():
        # Autovacuum is off, and reading the deleted rows of hundreds of runs would take most of the time.
        execute(f"VACUUM {', '.join(model._meta.table_name for model in ALL)}")


@pytest.fixture
def shared(database: str, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedSetup]:
    """An installation on each kind of database, with the model's clock."""
    clock = ModelClock(NOW)
    # The only place that reads the real time: every import of `utc_now` uses it.
    monkeypatch.setattr(storage_clock, "datetime", clock)
    reported = threading.excepthook
    monkeypatch.setattr(bulk_jobs, "BATCH_SIZE", BATCH)
    monkeypatch.setattr(threading, "excepthook", lambda of: None if of.exc_type is Died else reported(of))
    made = make_settings(tmp_path, {**CLOUD, **LOOPBACK, **UNLIMITED, "DATABASE_URL": database, "REDIS_URL": redis.url})
    resolver = FakeResolver({})
    client = HttpClient(made.target_policy, resolver, DEADLINE_S, DEADLINE_S, connections=16)
    with ErraticReceiver(clock) as receiver:
        yield SharedSetup(made, redis, receiver, resolver, client, CrashingWakeUpQueue(wake_up_queue.connect(redis.url)))
        client.close()


@pytest.mark.timeout(0)
def test_the_contract_holds_for_any_sequence_of_events(shared: SharedSetup) -> None:
    assert not opened.in_transaction()
    size = settings()
    # Starting a run takes as long as 20 steps, and many states need a long history. So there are fewer runs with more steps.
    longer = settings(max_examples=max(1, size.max_examples // 3), stateful_step_count=size.stateful_step_count * 3 // 2)
    run_state_machine_as_test(lambda: Machine(shared), settings=longer)  # type: ignore[arg-type]  # accepts a factory, too
