"""Compliance requests are carried out completely: reports contain all data of the person, and erasures leave none."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.errors import Conflict, Forbidden
from schemas.base.principal import Ability, TokenKind, TokenPrincipal
from schemas.compliance.requests import MAX_ORDERS, ComplianceRequest, ComplianceResult, ComplianceWebhook, Subject, Topic
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll
from schemas.exports.state_machine import Transition
from schemas.intake.email_forms import EmailForm
from schemas.intake.evidence import CaptureForm
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.decision_forms import Edit
from schemas.triage.export_filter import ExportQuery
from storage.accounts import projects, tokens
from storage.accounts.account_limits import UNLIMITED, AccountLimits, Limited
from storage.compliance import erasure
from storage.compliance import requests as compliance_requests
from storage.db.drivers.sqlite import PRAGMAS
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.db.engine import database as db
from storage.db.models import BulkJobRow
from storage.exports import claims_sql, queries, transitions
from storage.intake import emails, handoffs, report_uploads
from storage.intake.options import IntakeOptions
from storage.maintenance import retention
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault
from storage.triage import bulk_jobs, decisions, targeting
from storage.triage.bulk_jobs import NewBulkJob
from tests.service.conftest import LogLines
from tests.support.database.databases import on_postgresql, on_sqlite
from tests.support.factories import (
    LOOPBACK_POLICY,
    Customer,
    capture,
    claim_due,
    completed_attempt,
    issue,
    make_approved,
    make_customer,
    make_exports,
    make_platform_token,
    make_project,
    make_report,
    make_report_upload,
    make_target,
    plain_email,
    postback,
    record_postback,
)
from tests.support.http.storefront import (
    ADA,
    BOB,
    SHOP,
    Ids,
    PersonDataSeeder,
    all_ids,
    cloud_client,
    data_request_body,
    give_shop,
    plant_captures,
    receive,
    redact_body,
    send_webhook,
    shop_body,
    stored,
    traces_of,
)
from worker.background.compliance import ComplianceTask, _ComplianceRun

KEY: Final = b"A" * 32
OTHER_SHOP: Final = "sun.shops.example"


@pytest.fixture
def vault() -> Vault:
    return Vault([KEY])


@pytest.fixture
def task(vault: Vault) -> ComplianceTask:
    return ComplianceTask(vault, "worker:test", utc_now)


@pytest.fixture
def shop(customer: Customer) -> Customer:
    return give_shop(customer)


@pytest.fixture
def client(shop: Customer, tmp_path: Path) -> TestClient:
    return cloud_client(tmp_path)


@pytest.fixture
def logged() -> Iterator[LogLines]:
    """Everything that is logged during the test, at level DEBUG and above."""
    handler, root = LogLines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.setLevel(level)
    root.removeHandler(handler)


def newer(before: Ids) -> Ids:
    return {table: ids - before[table] for table, ids in all_ids().items()}


def carry_out(task: ComplianceTask) -> None:
    while task.run_once():
        pass


def newest() -> ComplianceRequest:
    return max(compliance_requests.list_all(), key=lambda line: line.id)


# --- erasing a person


def test_a_redaction_erases_all_data_of_its_subject_and_no_other_data(
    client: TestClient, shop: Customer, task: ComplianceTask, logged: LogLines
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    assert send_webhook(client, Topic.DATA_REQUEST, data_request_body(ADA)).status_code == 204
    carry_out(task)
    assert set(traces_of(ADA, stored())) == set(ADA.traces)
    before = all_ids()
    PersonDataSeeder(client, give_shop(make_customer(), OTHER_SHOP)).plant(ADA, OTHER_SHOP)
    elsewhere, before = newer(before), all_ids()
    PersonDataSeeder(client, shop).plant(BOB)
    bobs = newer(before)
    untouched = (stored(elsewhere), stored(bobs))
    assert len(elsewhere["exports"]) == len(bobs["exports"]) == 12
    assert set(traces_of(ADA, untouched[0])) == set(ADA.traces)
    assert set(traces_of(BOB, untouched[1])) == set(BOB.traces)

    assert send_webhook(client, Topic.CUSTOMER_REDACT, redact_body(ADA)).status_code == 204
    carry_out(task)

    assert (stored(elsewhere), stored(bobs)) == untouched
    assert traces_of(ADA, stored(without=elsewhere)) == []
    assert logged.lines
    assert traces_of(ADA, logged.text.lower()) == []
    line = newest()
    assert (line.topic, line.status, line.result) == (Topic.CUSTOMER_REDACT, "done", ComplianceResult.REDACTED)
    assert dict(line.counts) == {
        "evidence_captures": 1,
        "diagnostics": 2,
        "handoffs": 3,
        "inbound_emails": 1,
        "findings": 1,
        "page_results": 1,
        "attempts": 1,
        "exports": 12,
        "idempotency_keys": 17,
        "compliance_requests": 1,
    }


def test_waiting_exports_are_never_sent_and_finished_ones_stay_finished(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    made = PersonDataSeeder(client, shop).plant(ADA)
    [held] = [queries.get(made["delivering"])]
    lease = rows("SELECT lease FROM exports WHERE id = ?", (held.id,))[0][0]
    assert lease is not None
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    ended = {name: (queries.get(each).status.value, queries.get(each).status_reason) for name, each in made.items()}
    prepared = ("capture", "diagnostics", "cms", "email", "finding", "by hand", "without a project")
    assert ended == {
        **dict.fromkeys(prepared, ("dismissed", "redacted")),
        "approved": ("failed", "redacted"),
        "retry_scheduled": ("failed", "redacted"),
        "delivering": ("failed", "redacted"),
        "exported": ("exported", None),
        "failed": ("failed", "receiver_rejected"),
    }
    later = utc_now().replace(year=2050)
    assert claim_due(100, later, 6, "worker:test") == []
    for export_id in made.values():
        export = queries.get(export_id)
        assert export.ticket == {
            "title": "Redacted",
            "description": "",
            "severity": "info",
            "page_url": None,
            "labels": [],
            "evidence": {},
        }
        assert (export.preview_problems, export.provider_ticket_id, export.provider_ticket_url) == ((), None, None)
        assert export.finished_at is not None
        assert export.due_at is None
    assert {bytes(row[0]) for row in rows("SELECT body FROM exports WHERE body IS NOT NULL")} == {b""}
    assert {row[0] for row in rows("SELECT source_id FROM exports WHERE source_type = 'manual'")} == {"redacted"}
    assert rows("SELECT COUNT(*) FROM exports WHERE redacted_at IS NULL") == [(0,)]


def test_a_person_named_only_in_a_note_or_in_the_original_of_an_edit_is_erased(shop: Customer, task: ComplianceTask) -> None:
    noted, edited, other = make_exports(shop, 3)
    decisions.dismiss(noted, None, utc_now(), "user:1", DismissalReason.OTHER, f"{ADA.email} reported it twice.")
    decisions.edit(edited, None, utc_now(), "user:1", Edit(title="Reported by a customer"))
    # As if the ticket before the edit had named the person.
    execute("UPDATE exports SET original_ticket = replace(original_ticket, 'Missing name', ?)", (ADA.email,))
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    kept = rows("SELECT id FROM exports WHERE redacted_at IS NULL")
    assert kept == [(other,)]
    assert rows("SELECT COUNT(*) FROM exports WHERE dismissal_note IS NOT NULL OR original_ticket IS NOT NULL") == [(0,)]


def test_the_note_of_a_running_bulk_decision_is_erased_and_the_decision_continues(
    shop: Customer, task: ComplianceTask
) -> None:
    ids = make_exports(shop, 3)
    decision = BulkDecision(BulkAction.DISMISS, None, DismissalReason.OTHER, f"asked by {ADA.email}")
    new = NewBulkJob(decision, ExportQuery(shop.account_id), 3, shop.account_id, shop.user_id, "user:1")
    job = bulk_jobs.request(new, utc_now(), LOOPBACK_POLICY)
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    assert traces_of(ADA, stored()) == []
    lease = bulk_jobs.claim_next(utc_now())
    assert lease is not None
    bulk_jobs.advance(lease, utc_now(), LOOPBACK_POLICY, UNLIMITED)
    assert rows("SELECT dismissal_reason, dismissal_note FROM exports") == [("other", None)] * len(ids)
    assert bulk_jobs.get(job.id).changed == len(ids)


def test_names_that_mention_the_person_are_replaced(shop: Customer, task: ComplianceTask) -> None:
    report_id, other_id = make_report(shop.project_id), make_report(shop.project_id)
    execute("UPDATE reports SET title = ? WHERE id = ?", (f"Complaint of {ADA.email}", report_id))
    execute("UPDATE projects SET name = ?", (f"Shop for {ADA.email}",))
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    assert traces_of(ADA, stored()) == []
    assert rows("SELECT name, shop_domain IS NULL FROM projects") == [(f"Redacted project {shop.project_id}", False)]
    titles = dict(rows("SELECT id, title FROM reports"))
    assert titles[report_id] == f"Redacted report {report_id}"
    assert "Redacted" not in titles[other_id]


@pytest.mark.parametrize("outcome", [None, Transition.RESCHEDULE, Transition.FAIL, Transition.BLOCK])
def test_the_other_findings_of_a_group_that_was_not_delivered_get_a_new_ticket(
    shop: Customer, task: ComplianceTask, outcome: Transition | None
) -> None:
    projects.set_ticket_grouping(shop.project_id, None, TicketGrouping.RULE, utc_now(), "test")

    def post(run: int, *names: str) -> list[str]:
        url = "https://shop.example/of/"
        issues: list[Mapping[str, Any]] = [{"code": "csp", "message": "No header", "url": url + name} for name in names]
        return [*record_postback(PostbackForm().read(postback(run, issues)), shop.project_id, utc_now()).ticket_exports]

    [group] = post(1, "a", "b", ADA.email)
    approval = Approval(make_target(shop).id, None)
    transitions.approve(group, shop.account_id, approval, utc_now(), "user:1", LOOPBACK_POLICY)
    if outcome is not None:
        [claim] = claim_due(1, utc_now(), 60, "worker:test")
        again_at = utc_now() if outcome is Transition.RESCHEDULE else None
        attempt = completed_attempt(claim, outcome, utc_now(), next_attempt_at=again_at)
        assert claims_sql.record_attempts([attempt], utc_now(), "worker:test") == {group}
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    [new] = post(2, "a", "b")
    assert rows("SELECT DISTINCT export_id FROM findings") == [(new,)] != [(group,)]


def test_a_key_and_a_response_that_name_the_person_are_erased_whatever_they_are_about(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    stranger = give_shop(make_customer(), OTHER_SHOP)

    def prepare(who: Customer, key: str) -> None:
        headers = {**who.bearer, "Content-Type": "application/json", "Idempotency-Key": key}
        body = {"ticket": {"title": "Nothing personal"}, "project_id": who.project_id}
        assert client.simulate_post("/api/ticket-exports", headers=headers, json=body).status_code == 201

    for each in (shop, stranger):
        prepare(each, f"ticket for {ADA.email}")
        prepare(each, "a key")
    bearer = tokens.create(shop.email, TokenKind.API, utc_now(), (Ability.MANAGE_ACCOUNT,))[1]
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json", "Idempotency-Key": "rename"}
    renamed = {"name": f"Shop of {ADA.email}"}
    assert client.simulate_patch(f"/api/projects/{shop.project_id}", headers=headers, json=renamed).status_code == 200
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    left = rows("SELECT principal, key, response_body FROM idempotency_keys ORDER BY id")
    own, others = f"user:{shop.user_id}", f"user:{stranger.user_id}"
    assert [(body == erasure.ERASED_RESPONSE, ADA.email in key) for who, key, body in left if who == own] == [
        (True, False),
        (False, False),
        (True, False),
    ]
    assert [(body == erasure.ERASED_RESPONSE, ADA.email in key) for who, key, body in left if who == others] == [
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize(("status", "left"), [("prepared", 0), ("dismissed", 1)])
def test_a_group_with_a_place_of_the_person_is_emptied_as_a_whole(
    client: TestClient, shop: Customer, task: ComplianceTask, status: str, left: int
) -> None:
    projects.set_ticket_grouping(shop.project_id, None, TicketGrouping.RULE, utc_now(), "test")
    export_ids = set()
    for name in ("a", ADA.email):
        body = postback(issues=[{"code": "csp", "message": "No header", "url": f"https://shop.example/of/{name}"}])
        posted = record_postback(PostbackForm().read(body), shop.project_id, utc_now())
        export_ids |= {*posted.ticket_exports}
    [group] = export_ids
    if status == "dismissed":
        decisions.dismiss(group, shop.account_id, utc_now(), "user:1", DismissalReason.WONT_FIX, f"Ask {ADA.email}.")
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    emptied = queries.get(group)
    assert (emptied.ticket["title"], emptied.status.value, emptied.rule) == ("Redacted", "dismissed", None)
    assert rows("SELECT open_group, dismissal_note FROM exports WHERE id = ?", (group,)) == [(None, None)]
    # The findings of a group that waited count as new in the next scan; those of a dismissed group stay known.
    assert rows("SELECT COUNT(*) FROM findings") == rows("SELECT COUNT(*) FROM finding_sightings") == [(left,)]
    again = PostbackForm().read(postback(2, [{"code": "csp", "url": "https://shop.example/of/a"}]))
    assert len(record_postback(again, shop.project_id, utc_now()).ticket_exports) == 1 - left


def test_a_finding_whose_ticket_alone_names_the_person_gets_a_new_ticket(shop: Customer, task: ComplianceTask) -> None:
    def post(run: int, **changes: Any) -> list[str]:
        posted = PostbackForm().read(postback(run, [issue(**changes)]))
        return [*record_postback(posted, shop.project_id, utc_now()).ticket_exports]

    [emptied] = post(1, description=f"Seen by {ADA.email}.")
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    assert (queries.get(emptied).ticket["title"], newest().counts["findings"]) == ("Redacted", 1)
    [new] = post(2)
    assert rows("SELECT export_id FROM findings") == [(new,)]


@pytest.mark.parametrize("topic", [Topic.CUSTOMER_REDACT, Topic.SHOP_REDACT])
def test_what_arrives_during_a_redaction_is_erased_with_its_ticket_or_not_at_all(
    topic: Topic, shop: Customer, vault: Vault
) -> None:
    """A finding and an email at every moment, each with an id that a search in progress has passed."""
    arrived: list[str] = []

    def meanwhile() -> datetime:
        number, at = len(arrived), utc_now() - timedelta(seconds=len(arrived))
        # Until all tables were searched: SQLite rewrites its index of words until nothing is added to it.
        if number < 25:
            posted = PostbackForm().read(postback(1, [issue(f"rule-{number}", title=f"No label for {ADA.email}")]))
            email = EmailForm().read(plain_email(message_id=f"<{number}@mail.example>", from_=ADA.email))
            arrived.extend(record_postback(posted, shop.project_id, at).ticket_exports)
            emails.accept(emails.prepare_email(email), shop.project_id, at, "email")
            # The ids of pages increase: with a new page at every moment, their search would not end before that.
            execute("DELETE FROM page_results")
        return utc_now()

    receive(topic, vault, ADA if topic is Topic.CUSTOMER_REDACT else None)
    carry_out(ComplianceTask(vault, "worker:test", meanwhile))
    emptied = "FROM exports WHERE redacted_at IS NOT NULL"
    assert 0 < rows(f"SELECT COUNT(*) {emptied} AND source_type = 'finding'")[0][0] < len(arrived)
    assert rows(f"SELECT COUNT(*) FROM findings WHERE export_id IN (SELECT id {emptied})") == [(0,)]  # noqa: S608 - our own text
    assert rows(f"SELECT COUNT(*) FROM inbound_emails WHERE text <> '' AND export_id IN (SELECT id {emptied})") == [(0,)]  # noqa: S608 - our own text


def test_a_redaction_of_a_group_erases_its_copies_for_further_targets(shop: Customer, task: ComplianceTask) -> None:
    projects.set_ticket_grouping(shop.project_id, None, TicketGrouping.RULE, utc_now(), "test")

    def post(run: int, name: str) -> list[str]:
        body = postback(run, [{"code": "csp", "message": "No header", "url": f"https://shop.example/of/{name}"}])
        return [*record_postback(PostbackForm().read(body), shop.project_id, utc_now()).ticket_exports]

    [group] = post(1, "a")
    both = ApprovalForAll((make_target(shop).id, make_target(shop).id), None)
    targeting.approve_for_all(group, shop.account_id, both, utc_now(), "user:1", LOOPBACK_POLICY)
    # No ticket names this place; only the events about it did.
    post(2, ADA.email)
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    assert rows("SELECT COUNT(*), COUNT(redacted_at) FROM exports") == [(2, 2)]


@pytest.mark.parametrize("name", ["failed", "delivering", "approved"])
def test_a_redacted_export_cannot_be_retried(name: str, client: TestClient, shop: Customer, task: ComplianceTask) -> None:
    export_id = PersonDataSeeder(client, shop).plant(ADA)[name]
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    with pytest.raises(Conflict, match="was redacted"):
        transitions.retry(export_id, None, utc_now(), "operator")
    assert queries.get(export_id).status == "failed"


def test_a_response_that_arrives_after_the_redaction_is_not_stored(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    export_id = make_approved(shop, make_target(shop).id, utc_now())
    execute("UPDATE exports SET ticket = ? WHERE id = ?", (json.dumps({"title": ADA.email}), export_id))
    [claim] = claim_due(1, utc_now(), 60, "worker:test")
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    before = stored()
    now = utc_now()
    assert claims_sql.record_attempts([completed_attempt(claim, provider_ticket_id=ADA.email)], now, "worker:test") == set()
    claims_sql.renew([claim], now, 60)
    assert claims_sql.postpone([claim], now, "worker:test") == 0
    assert stored() == before


def test_a_repeated_request_gets_a_redacted_response_and_does_no_work(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    headers = {**shop.bearer, "Content-Type": "application/json", "Idempotency-Key": "one"}
    body = {"ticket": {"title": f"Call {ADA.email}"}, "project_id": shop.project_id}
    assert client.simulate_post("/api/ticket-exports", headers=headers, json=body).status_code == 201
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    answer = client.simulate_post("/api/ticket-exports", headers=headers, json=body)
    assert (answer.status_code, answer.json) == (201, {"redacted": True})
    assert answer.headers["idempotency-replayed"] == "true"
    assert rows("SELECT COUNT(*) FROM exports") == [(1,)]


def test_a_response_that_outlives_its_export_is_redacted(client: TestClient, shop: Customer, task: ComplianceTask) -> None:
    headers = {**shop.bearer, "Content-Type": "application/json"}
    body = {"ticket": {"title": f"Call {ADA.email}"}, "project_id": shop.project_id}
    export_id = client.simulate_post("/api/ticket-exports", headers=headers, json=body).json["id"]

    def dismiss(**key: str) -> Result:
        return client.simulate_post(
            f"/api/ticket-exports/{export_id}/dismiss", headers=headers | key, json={"reason": "test"}
        )

    assert [dismiss().status_code, dismiss(**{"Idempotency-Key": "one"}).status_code] == [200, 200]
    now = utc_now()
    until = replace(retention.cutoffs(now, timedelta(days=90), timedelta(hours=72)), over=now + timedelta(seconds=1))
    assert sum(retention.purge(until), Counter())["exports"] == 1
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    answer = dismiss(**{"Idempotency-Key": "one"})
    assert (answer.status_code, answer.json) == (200, {"redacted": True})
    assert traces_of(ADA, stored()) == []


def test_a_redacted_upload_that_is_sent_again_within_a_day_is_not_stored_again(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    headers = {"Authorization": f"Bearer {make_platform_token(shop)}", "Content-Type": "application/json"}
    body = capture(shop.project_id, selected_text=f"Sold to {ADA.email}.")

    def upload() -> Result:
        return client.simulate_post("/api/browser-extension/evidence-captures", headers=headers, json=body)

    handoff_id = upload().json["handoff"]["id"]
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    answer = upload()
    assert (answer.status_code, answer.json) == (201, {"redacted": True})
    assert rows("SELECT (SELECT COUNT(*) FROM evidence_captures), COUNT(*) FROM exports") == [(0, 1)]
    assert client.simulate_get(f"/api/handoffs/{handoff_id}", headers=headers).status_code == 404


def test_a_redacted_email_that_is_sent_again_is_not_stored_again(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    seeder = PersonDataSeeder(client, shop)
    seeder.plant(ADA)
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    execute("DELETE FROM idempotency_keys")
    seeder._email(ADA)
    assert rows("SELECT sender, recipients, subject, text, attachments FROM inbound_emails") == [("", "[]", "", "", "[]")]


def test_the_audit_trail_names_the_request_and_never_the_person(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    entries = rows("SELECT actor, action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (request_id,))
    assert entries[0] == ("storefront", "receive_compliance_request", "customers/redact")
    assert entries[1][:2] == ("worker:test", "finish_compliance_request")
    assert entries[1][2].startswith("redacted attempts=1 diagnostics=2 evidence_captures=1 exports=12 ")
    statement = "SELECT action, status_before, status_after, reason FROM audit_entries WHERE actor = ?"
    redacted = rows(statement, (request_id,))
    assert len(redacted) == 12
    assert ("dismiss", "prepared", "dismissed", "redacted") in redacted
    assert ("withdraw", "delivering", "failed", "redacted") in redacted
    assert ("redact", "exported", "exported", "redacted") in redacted


# --- interruptions


class WorkerKilled(BaseException):
    """Ends a worker as a kill does, as far as the database can tell."""


class KillingClock:
    """A clock that kills its worker after `lives` readings, so late that the lease of the round before has lapsed."""

    def __init__(self, round_: int, lives: int) -> None:
        self._base = utc_now() + timedelta(seconds=round_ * (compliance_requests.LEASE_S + 1))
        self._lives = lives

    def __call__(self) -> datetime:
        self._lives -= 1
        if self._lives < 0:
            raise WorkerKilled
        return self._base


@pytest.mark.parametrize("topic", [Topic.CUSTOMER_REDACT, Topic.SHOP_REDACT, Topic.DATA_REQUEST])
def test_a_request_that_is_interrupted_repeatedly_is_finished_and_counted_once(
    topic: Topic, client: TestClient, shop: Customer, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(topic, vault, None if topic is Topic.SHOP_REDACT else ADA)
    partial = set()
    for round_ in range(200):
        task = ComplianceTask(vault, f"worker:{round_}", KillingClock(round_, 2 + round_ * 2))
        try:
            while task.run_once():
                pass
        except WorkerKilled:
            partial.add(tuple(sorted(compliance_requests.get(request_id).counts.items())))
            continue
        break
    line = compliance_requests.get(request_id)
    assert line.status == "done"
    assert len(partial) > 3
    counted = {name: line.counts[name] for name in ("evidence_captures", "diagnostics", "inbound_emails", "findings")}
    assert counted == {"evidence_captures": 1, "diagnostics": 2, "inbound_emails": 1, "findings": 1}
    assert line.counts["exports"] == 12
    assert line.attempts > 3
    if topic is Topic.CUSTOMER_REDACT:
        assert traces_of(ADA, stored()) == []


def test_a_worker_whose_lease_expired_erases_and_writes_nothing(client: TestClient, shop: Customer, vault: Vault) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(Topic.CUSTOMER_REDACT, vault, ADA)
    held = compliance_requests.claim_next(utc_now())
    assert held is not None
    later = utc_now() + timedelta(seconds=compliance_requests.LEASE_S + 1)
    successor = compliance_requests.claim_next(later)
    assert successor is not None
    assert successor.lease != held.lease
    before = stored()
    slept = _ComplianceRun(held, vault, "worker:slept", lambda: later)
    with pytest.raises(compliance_requests.LeaseLost):
        slept.run()
    assert stored() == before
    assert compliance_requests.get(request_id).attempts == 2


def test_two_workers_process_requests_of_two_shops_at_once_but_never_of_one(customer: Customer, vault: Vault) -> None:
    give_shop(customer)
    first, second = receive(Topic.CUSTOMER_REDACT, vault, ADA), receive(Topic.CUSTOMER_REDACT, vault, BOB)
    elsewhere = receive(Topic.CUSTOMER_REDACT, vault, ADA, OTHER_SHOP)
    now = utc_now()
    taken = [compliance_requests.claim_next(now) for _ in range(3)]
    assert [held and held.id for held in taken] == [first, elsewhere, None]
    assert taken[0] is not None
    with transaction():
        compliance_requests.finish(taken[0], ComplianceResult.REDACTED, {}, None, now, "worker:test")
    freed = compliance_requests.claim_next(now)
    assert freed is not None
    assert freed.id == second


class SlowClock:
    """A clock on which the lease lapses between any two readings."""

    def __init__(self) -> None:
        self._now = utc_now()

    def __call__(self) -> datetime:
        self._now += timedelta(seconds=compliance_requests.LEASE_S + 1)
        return self._now


@pytest.mark.parametrize("topic", Topic)
def test_a_request_whose_every_step_takes_longer_than_its_lease_is_finished(
    topic: Topic, client: TestClient, shop: Customer, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(topic, vault, None if topic is Topic.SHOP_REDACT else ADA)
    task = ComplianceTask(vault, "worker:slow", SlowClock())
    assert task.run_once()
    line = compliance_requests.get(request_id)
    assert (line.status, line.attempts, task.done) == ("done", 1, 1)
    assert (traces_of(ADA, stored()) == []) is (topic is not Topic.DATA_REQUEST)


@pytest.mark.parametrize("topic", [Topic.CUSTOMER_REDACT, Topic.DATA_REQUEST])
def test_a_request_about_fifty_thousand_orders_is_finished_at_once(shop: Customer, vault: Vault, topic: Topic) -> None:
    plant_captures(shop, ADA, 300)
    # IDs without common parts: a regular expression of them is the slowest.
    orders = tuple(f"{number * 2_654_435_761 % 2**32:08x}" for number in range(MAX_ORDERS))
    words = "The order 7000000001 of the customer was not among them. " * 40
    execute("UPDATE evidence_captures SET selected_text = ?", (words,))
    execute(
        "UPDATE evidence_captures SET selected_text = ? WHERE id IN (SELECT MAX(id) FROM evidence_captures)",
        (f"№{orders[-1]}",),
    )
    asked = ComplianceWebhook(topic, SHOP, Subject(order_ids=orders))
    request_id = compliance_requests.receive(asked, b"signature", vault, utc_now(), "storefront")
    task = ComplianceTask(vault, "worker:test", utc_now)
    assert task.run_once()
    line = compliance_requests.get(str(request_id))
    assert (line.status, line.attempts) == ("done", 1)
    assert line.counts["evidence_captures"] == 1


# --- failures


def test_a_request_that_fails_waits_longer_each_time_and_shows_the_reason(
    client: TestClient, shop: Customer, vault: Vault, logged: LogLines
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(Topic.CUSTOMER_REDACT, vault, ADA)
    now, waits = utc_now(), []
    for _ in range(9):
        foreign = ComplianceTask(Vault([b"B" * 32]), "worker:test", lambda now=now: now)  # type: ignore[misc]  # mypy takes no default
        assert foreign.run_once()
        assert not foreign.run_once()
        line = compliance_requests.get(request_id)
        assert (line.status, line.last_error) == ("received", "WrongEncryptionKey")
        assert line.next_run_at is not None
        waits.append(round((line.next_run_at - now).total_seconds()))
        now = line.next_run_at
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert traces_of(ADA, logged.text.lower()) == []
    mended = ComplianceTask(vault, "worker:test", lambda: now)
    assert mended.run_once()
    line = compliance_requests.get(request_id)
    assert (line.status, line.last_error, line.attempts, mended.done) == ("done", None, 10, 1)
    assert traces_of(ADA, stored()) == []


def vault_before(vault: Vault) -> Vault:
    """Return a vault of this installation that encrypts with a key that has since been lost."""
    check_keys(vault, utc_now())
    return Vault([b"B" * 32, b"A" * 32])


def test_a_request_that_fails_delays_no_other(client: TestClient, shop: Customer, vault: Vault) -> None:
    broken = receive(Topic.CUSTOMER_REDACT, vault_before(vault), ADA)
    sound = receive(Topic.CUSTOMER_REDACT, vault, BOB)
    task = ComplianceTask(vault, "worker:test", utc_now)
    carry_out(task)
    assert (task.done, task.failed) == (1, 1)
    assert compliance_requests.get(broken).status == "received"
    assert compliance_requests.get(sound).status == "done"


# --- data requests


def report_on(request_id: str, vault: Vault) -> dict[str, Any]:
    report = compliance_requests.report_of(request_id, vault)
    assert report is not None
    return report


def test_a_data_request_reports_stored_data_from_every_table(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    PersonDataSeeder(client, shop).plant(BOB)
    before = stored()
    request_id = receive(Topic.DATA_REQUEST, vault, ADA)
    carry_out(task)
    line = compliance_requests.get(request_id)
    assert (line.result, line.has_report) == (ComplianceResult.REPORTED, True)
    assert dict(line.counts) == {
        "evidence_captures": 1,
        "diagnostics": 2,
        "inbound_emails": 1,
        "findings": 1,
        "page_results": 1,
        "attempts": 1,
        "exports": 12,
    }
    report = report_on(request_id, vault)
    assert report["subject"] == ADA.subject.record()
    assert report["result"] == "reported"
    assert len(report["records"]) == 19
    [capture] = [record for record in report["records"] if record["table"] == "evidence_captures"]
    assert set(capture["texts"]) == {"page_url", "selected_text", "heading_outline/0/text"}
    reported = json.dumps(report).lower()
    assert traces_of(ADA, reported) == list(ADA.traces)
    assert traces_of(BOB, reported) == []
    # A data request erases nothing, and its report cannot be read in the database.
    everything = stored()
    assert all(row in everything for row in before.splitlines() if "audit" not in row)
    raw = rows("SELECT report_sealed, subject_sealed FROM compliance_requests WHERE id = ?", (request_id,))[0]
    assert ADA.email.encode() not in bytes(raw[0])
    assert raw[1] is None


def test_a_data_request_about_an_unknown_person_reports_no_data(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(Topic.DATA_REQUEST, vault, BOB)
    carry_out(task)
    line = compliance_requests.get(request_id)
    assert (line.result, dict(line.counts), line.has_report) == (ComplianceResult.NOTHING_HELD, {}, True)
    report = report_on(request_id, vault)
    assert (report["result"], report["records"]) == ("nothing_held", [])


@pytest.mark.parametrize("topic", Topic)
def test_a_request_for_an_unknown_shop_is_only_recorded(
    customer: Customer, task: ComplianceTask, vault: Vault, topic: Topic
) -> None:
    give_shop(customer)
    request_id = receive(topic, vault, None if topic is Topic.SHOP_REDACT else ADA, OTHER_SHOP)
    carry_out(task)
    line = compliance_requests.get(request_id)
    assert (line.status, line.result, line.has_report) == ("done", ComplianceResult.UNKNOWN_SHOP, False)
    assert rows("SELECT subject_sealed FROM compliance_requests") == [(None,)]


def test_only_records_that_mention_the_erased_person_are_removed_from_reports_on_others(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(BOB)
    body = {"ticket": {"title": f"{BOB.email} and {ADA.email}"}, "project_id": shop.project_id}
    assert client.simulate_post("/api/ticket-exports", headers=shop.bearer, json=body).status_code == 201
    request_id = receive(Topic.DATA_REQUEST, vault, BOB)
    carry_out(task)
    before = report_on(request_id, vault)
    receive(Topic.CUSTOMER_REDACT, vault, ADA)
    carry_out(task)
    after = report_on(request_id, vault)
    assert len(after["records"]) == len(before["records"]) - 1
    assert traces_of(ADA, json.dumps(after).lower()) == []
    assert compliance_requests.get(request_id).has_report


def test_a_report_about_the_same_person_under_another_name_is_erased(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    asked = ComplianceWebhook(Topic.DATA_REQUEST, SHOP, Subject(email=ADA.email.upper()))
    request_id = compliance_requests.receive(asked, b"signature", vault, utc_now(), "storefront")
    assert request_id is not None
    carry_out(task)
    assert compliance_requests.get(request_id).has_report
    redaction_id = receive(Topic.CUSTOMER_REDACT, vault, ADA)
    assert compliance_requests.get(request_id).subject_pseudonym != compliance_requests.get(redaction_id).subject_pseudonym
    carry_out(task)
    assert not compliance_requests.get(request_id).has_report


def test_a_report_that_cannot_be_decrypted_is_erased_too(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    old = vault_before(vault)
    request_id = receive(Topic.DATA_REQUEST, old, BOB)
    carry_out(ComplianceTask(old, "worker:test", utc_now))
    assert compliance_requests.get(request_id).has_report
    receive(Topic.CUSTOMER_REDACT, vault, ADA)
    carry_out(task)
    assert not compliance_requests.get(request_id).has_report


# --- erasure of a shop


def test_all_data_of_a_shop_is_erased_and_no_data_of_another_shop(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault, logged: LogLines
) -> None:
    report_id = make_report(shop.project_id, shop)
    PersonDataSeeder(client, shop).plant(ADA)
    receive(Topic.DATA_REQUEST, vault, ADA)
    carry_out(task)
    before = all_ids()
    elsewhere_customer = give_shop(make_customer(), OTHER_SHOP)
    PersonDataSeeder(client, elsewhere_customer).plant(ADA, OTHER_SHOP)
    elsewhere = newer(before)
    untouched = stored(elsewhere)

    assert send_webhook(client, Topic.SHOP_REDACT, shop_body()).status_code == 204
    carry_out(task)

    assert stored(elsewhere) == untouched
    assert traces_of(ADA, stored(without=elsewhere)) == []
    assert traces_of(ADA, logged.text.lower()) == []
    assert rows("SELECT name, shop_domain FROM projects WHERE id = ?", (shop.project_id,)) == [
        (f"Redacted project {shop.project_id}", None)
    ]
    assert rows("SELECT title FROM reports WHERE id = ?", (report_id,)) == [(f"Redacted report {report_id}",)]
    line = newest()
    assert (line.result, line.subject_pseudonym, line.shop_domain) == (ComplianceResult.REDACTED, None, SHOP)
    assert {name: line.counts[name] for name in ("grants", "tokens", "projects", "reports", "exports")} == {
        "grants": 2,
        "tokens": 1,
        "projects": 1,
        "reports": 1,
        "exports": 12,
    }
    assert not any(each.has_report for each in compliance_requests.list_all())


@pytest.mark.parametrize("topic", [Topic.CUSTOMER_REDACT, Topic.SHOP_REDACT])
def test_a_report_that_waits_for_its_import_is_erased_first(
    shop: Customer, task: ComplianceTask, vault: Vault, topic: Topic
) -> None:
    waiting, elsewhere = make_report_upload(shop), make_report_upload(give_shop(make_customer(), OTHER_SHOP))
    held = report_uploads.claim_next(utc_now())
    assert held is not None
    receive(topic, vault, None if topic is Topic.SHOP_REDACT else ADA)
    carry_out(task)
    found = rows("SELECT id, status, error, content_sealed IS NULL FROM report_uploads ORDER BY id")
    assert {(row[0], *row[1:3], bool(row[3])) for row in found} == {
        (waiting.id, "failed", "erased", True),
        (elsewhere.id, "running" if held.id == elsewhere.id else "waiting", None, False),
    }
    assert newest().counts["report_uploads"] == 1


def test_a_ticket_without_a_project_that_names_the_shop_is_erased_with_it(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    make_project(shop)
    for title in (f"The cart of https://{SHOP}/cart is empty", "The cart is empty"):
        body = {"ticket": {"title": title}}
        assert client.simulate_post("/api/ticket-exports", headers=shop.bearer, json=body).status_code == 201
    receive(Topic.SHOP_REDACT, vault)
    carry_out(task)
    left = rows("SELECT id FROM exports WHERE redacted_at IS NULL")
    assert [queries.get(row[0]).ticket["title"] for row in left] == ["The cart is empty"]


def test_no_upload_is_accepted_for_a_shop_that_is_being_erased(shop: Customer, vault: Vault) -> None:
    """An upload at every moment of the erasure: rows behind the position of a search would otherwise stay for good."""
    uploader = TokenPrincipal(1, shop.user_id, shop.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True)
    handed_in: list[str] = []
    refused: list[bool] = []

    def meanwhile() -> datetime:
        # Each ID sorts before the last one, so a search in progress never reaches it.
        at = utc_now() - timedelta(seconds=len(handed_in))
        try:
            made = handoffs.record_upload(
                handoffs.prepare_upload(CaptureForm().read(capture(shop.project_id))), uploader, at
            )
            handed_in.append(made.id)
        except Forbidden:
            refused.append(True)
        return utc_now()

    receive(Topic.SHOP_REDACT, vault)
    carry_out(ComplianceTask(vault, "worker:test", meanwhile))
    assert newest().result is ComplianceResult.REDACTED
    assert handed_in
    assert refused
    assert rows("SELECT COUNT(*) FROM evidence_captures") == [(0,)]
    assert rows("SELECT COUNT(*) FROM exports WHERE redacted_at IS NULL") == [(0,)]


def test_a_project_that_gets_the_shops_domain_during_its_erasure_is_erased_too(shop: Customer, vault: Vault) -> None:
    uploader = TokenPrincipal(1, shop.user_id, shop.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True)
    later = make_project(shop)
    for project_id in (shop.project_id, later):
        handoffs.record_upload(handoffs.prepare_upload(CaptureForm().read(capture(project_id))), uploader, utc_now())

    def meanwhile() -> datetime:
        if rows("SELECT COUNT(*) FROM evidence_captures") == [(1,)]:
            execute("UPDATE projects SET shop_domain = ? WHERE id = ?", (SHOP, later))
        return utc_now()

    receive(Topic.SHOP_REDACT, vault)
    carry_out(ComplianceTask(vault, "worker:test", meanwhile))
    assert rows("SELECT COUNT(*) FROM evidence_captures") == rows("SELECT COUNT(*) FROM grants") == [(0,)]
    assert rows("SELECT COUNT(*) FROM exports WHERE redacted_at IS NULL") == [(0,)]
    assert {projects.get_project(each).name for each in (shop.project_id, later)} == {
        f"Redacted project {shop.project_id}",
        f"Redacted project {later}",
    }


def test_an_erased_shop_is_in_no_stored_response(
    client: TestClient, shop: Customer, task: ComplianceTask, vault: Vault
) -> None:
    bearer = tokens.create(shop.email, TokenKind.API, utc_now(), (Ability.MANAGE_ACCOUNT,))[1]
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    for domain in (SHOP, OTHER_SHOP):
        body = {"name": f"The shop {domain}", "shop_domain": domain}
        created = client.simulate_post("/api/projects", headers={**headers, "Idempotency-Key": domain}, json=body)
        assert created.status_code == 201
    headers["Idempotency-Key"] = "unnamed"
    created = client.simulate_post("/api/projects", headers=headers, json={"name": "Secret shop"})
    execute("UPDATE projects SET shop_domain = ? WHERE id = ?", (SHOP, created.json["id"]))
    receive(Topic.SHOP_REDACT, vault)
    carry_out(task)
    [(erased, response), (kept, other), (_, unnamed)] = rows("SELECT key, response_body FROM idempotency_keys ORDER BY id")
    assert (SHOP in erased, response) == (False, erasure.ERASED_RESPONSE)
    assert (kept, OTHER_SHOP in other) == (OTHER_SHOP, True)
    assert unnamed == erasure.ERASED_RESPONSE


def test_data_of_the_accounts_other_shops_is_not_erased(shop: Customer, task: ComplianceTask, vault: Vault) -> None:
    """Notes of bulk jobs and responses about tickets without a project belong only to shops that they name."""
    execute("UPDATE projects SET shop_domain = ? WHERE id = ?", (OTHER_SHOP, make_project(shop)))
    texts = {"agreed on Monday": False, f"agreed with {SHOP}": True}
    for number, text in enumerate(texts):
        export_id = make_approved(shop, make_target(shop).id, utc_now())
        execute("UPDATE exports SET project_id = NULL WHERE id = ?", (export_id,))
        with transaction():
            claims_sql.record_attempts(
                [completed_attempt(each) for each in claim_due(1, utc_now(), 60, "worker:test")], utc_now(), "worker:test"
            )
        execute("UPDATE attempts SET answer = ? WHERE export_id = ?", (text, export_id))
        decision = BulkDecision(BulkAction.DISMISS, None, DismissalReason.OTHER, text)
        make_exports(shop, 1)
        query = ExportQuery(shop.account_id, statuses=("prepared",))
        bulk_jobs.request(
            NewBulkJob(decision, query, number + 1, shop.account_id, shop.user_id, "user:1"), utc_now(), LOOPBACK_POLICY
        )
    receive(Topic.SHOP_REDACT, vault)
    carry_out(task)
    kept = [(text if not is_erased else None,) for text, is_erased in texts.items()]
    assert sorted(rows("SELECT answer FROM attempts"), key=str) == sorted(kept, key=str)
    options = [
        BulkJobRow.get_by_id(job_id).options.get("note") for (job_id,) in rows("SELECT id FROM bulk_jobs ORDER BY id")
    ]
    assert options == [text for (text,) in kept]


def test_a_user_with_another_project_keeps_the_token(shop: Customer, task: ComplianceTask, vault: Vault) -> None:
    make_platform_token(shop)
    make_platform_token(shop, Ability.UPLOAD_EVIDENCE)
    kept = make_project(shop)
    receive(Topic.SHOP_REDACT, vault)
    carry_out(task)
    assert rows("SELECT COUNT(*) FROM tokens WHERE revoked_at IS NOT NULL") == [(0,)]
    assert rows("SELECT project_id FROM grants WHERE user_id = ?", (shop.user_id,)) == [(kept,)]


def test_only_the_storefronts_tokens_are_revoked(shop: Customer, task: ComplianceTask, vault: Vault) -> None:
    make_platform_token(shop, Ability.UPLOAD_STOREFRONT_DIAGNOSTICS)
    make_platform_token(shop, Ability.UPLOAD_EVIDENCE)
    receive(Topic.SHOP_REDACT, vault)
    carry_out(task)
    revoked = rows("SELECT abilities FROM tokens WHERE revoked_at IS NOT NULL")
    assert revoked == [('["storefront-app:diagnostics-upload"]',)]


def test_diagnostics_that_name_a_shop_are_erased_with_it_whatever_their_project(
    customer: Customer, task: ComplianceTask, vault: Vault, tmp_path: Path
) -> None:
    PersonDataSeeder(cloud_client(tmp_path), customer).plant(ADA, shop=OTHER_SHOP)
    assert rows("SELECT COUNT(*) FROM diagnostics WHERE shop_domain = ?", (OTHER_SHOP,)) == [(1,)]
    request_id = receive(Topic.SHOP_REDACT, vault, shop=OTHER_SHOP)
    carry_out(task)
    assert rows("SELECT COUNT(*) FROM diagnostics") == [(1,)]
    assert dict(compliance_requests.get(request_id).counts) == {
        "diagnostics": 1,
        "handoffs": 1,
        "exports": 1,
        "idempotency_keys": 1,
    }
    assert compliance_requests.get(request_id).result is ComplianceResult.REDACTED


# --- many rows, and the files of the database


def test_more_rows_than_a_slice_are_all_found(shop: Customer, task: ComplianceTask, vault: Vault) -> None:
    plant_captures(shop, ADA, 2 * erasure.SLICE + 7)
    plant_captures(shop, BOB, erasure.SLICE + 3)
    request_id = receive(Topic.CUSTOMER_REDACT, vault, ADA)
    carry_out(task)
    assert dict(compliance_requests.get(request_id).counts) == {"evidence_captures": 2 * erasure.SLICE + 7}
    assert rows("SELECT COUNT(*) FROM evidence_captures") == [(erasure.SLICE + 3,)]


def test_the_findings_of_a_large_group_are_logged_once(shop: Customer, task: ComplianceTask, vault: Vault) -> None:
    projects.set_ticket_grouping(shop.project_id, None, TicketGrouping.RULE, utc_now(), "test")
    findings = 2 * erasure.SLICE + 7
    record_postback(
        PostbackForm().read(postback(1, [issue(location=f"#{number}") for number in range(findings)])), shop.project_id
    )
    request_id = receive(Topic.SHOP_REDACT, vault)
    carry_out(task)
    assert compliance_requests.get(request_id).counts["findings"] == findings
    logged = "SELECT COUNT(*), COUNT(DISTINCT row_id) FROM redactions WHERE table_name IN ('findings', 'exports')"
    assert rows(logged) == [(findings + 1, findings + 1)]


@on_sqlite
def test_nothing_of_a_person_is_left_in_the_files_of_sqlite(
    client: TestClient, shop: Customer, task: ComplianceTask
) -> None:
    seeder = PersonDataSeeder(client, shop)
    # Some builds of SQLite enable secure_delete by default; here the PRAGMA enables it on every build.
    assert PRAGMAS["secure_delete"] == 1
    assert rows("PRAGMA secure_delete") == [(1,)]
    seeder.plant(ADA)
    # Long enough for database pages of their own, which an update or a deletion frees.
    execute("UPDATE evidence_captures SET selected_text = ?", (f"{ADA.email} " * 800,))
    execute("UPDATE inbound_emails SET text = ?", (f"{ADA.email} " * 800,))
    seeder.plant(BOB)
    files = [Path(f"{db.database}{end}") for end in ("", "-wal")]
    held = b"".join(file.read_bytes() for file in files if file.exists()).lower()
    assert all(trace.encode() in held for trace in ADA.traces)
    receive(Topic.CUSTOMER_REDACT, Vault([KEY]), ADA)
    carry_out(task)
    held = b"".join(file.read_bytes() for file in files if file.exists()).lower()
    assert [trace for trace in ADA.traces if trace.encode() in held] == []
    assert all(trace.encode() in held for trace in BOB.traces)


@on_sqlite
@pytest.mark.parametrize("topic", [Topic.CUSTOMER_REDACT, Topic.SHOP_REDACT])
def test_a_finished_request_leaves_no_erased_word_in_the_text_index(
    topic: Topic, client: TestClient, shop: Customer, vault: Vault
) -> None:
    PersonDataSeeder(client, shop).plant(ADA)
    request_id = receive(topic, vault, None if topic is Topic.SHOP_REDACT else ADA)
    word = str(ADA.orders[0]).encode()

    class Watcher:
        """A clock that records before each step whether the index contains a word of the person."""

        has_word = False

        def __call__(self) -> datetime:
            self.has_word = any(word in block for (block,) in rows("SELECT block FROM export_words_data"))
            return utc_now()

    watcher = Watcher()
    watcher()
    assert watcher.has_word
    # The last step completes the request, so a worker that is killed after it repeats nothing.
    assert ComplianceTask(vault, "worker:test", watcher).run_once()
    assert compliance_requests.get(request_id).status == "done"
    assert not watcher.has_word


@on_postgresql
@pytest.mark.parametrize("topic", [Topic.CUSTOMER_REDACT, Topic.SHOP_REDACT])
def test_a_redaction_waits_for_an_upload_that_is_being_stored(topic: Topic, postgres_url: str) -> None:
    open_database(postgres_url)
    with connection():
        customer = make_customer()
        execute("UPDATE projects SET shop_domain = 'shop.example.com'")
        check_keys(Vault([KEY]), utc_now())
        subject = Subject(email="ada@example.com") if topic is Topic.CUSTOMER_REDACT else None
        order = ComplianceWebhook(topic, "shop.example.com", subject)
        compliance_requests.receive(order, b"signature", Vault([KEY]), utc_now(), "test")
    is_stored, may_commit = threading.Event(), threading.Event()

    class Waiting(AccountLimits):
        def require_room(self, *_: Any) -> None:
            is_stored.set()
            assert may_commit.wait(20)

    def upload() -> None:
        caller = TokenPrincipal(
            1, customer.user_id, customer.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True
        )
        read = CaptureForm().read(capture(customer.project_id, selected_text="Order of ada@example.com"))
        with connection():
            options = IntakeOptions(Waiting({Limited.UPLOADS: 9}))
            handoffs.record_upload(handoffs.prepare_upload(read), caller, utc_now(), options)

    def redact() -> None:
        task = ComplianceTask(Vault([KEY]), "worker:1", utc_now)
        while task.run_once():
            pass

    uploading, redacting = threading.Thread(target=upload), threading.Thread(target=redact)
    uploading.start()
    assert is_stored.wait(20)
    redacting.start()
    redacting.join(0.5)
    assert redacting.is_alive()
    may_commit.set()
    uploading.join(20)
    redacting.join(20)
    with connection():
        assert rows("SELECT selected_text FROM evidence_captures") == []
        assert rows("SELECT status, result FROM compliance_requests") == [("done", "redacted")]
    close_database()
