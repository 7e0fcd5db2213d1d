"""`/api/audit` lists the entries of an account, and all entries for administrators; so does `/api/compliance-requests`."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import format_rfc3339
from schemas.compliance.requests import Topic
from schemas.exports.state_machine import ExportStatus
from schemas.intake.grouping import TicketGrouping
from schemas.triage.approval_rules import RuleAction, RuleActionType
from storage.accounts import audit_log, projects, tokens
from storage.accounts.audit_log_sql import AuditFilter
from storage.db import identifiers
from storage.db.engine import execute, rows
from storage.exports.rules import approval_rules
from storage.reporting import alerts
from storage.secrets.vault import Vault
from tests.support.database.query_plans import full_scans, indexes_read, plan_of, statements
from tests.support.factories import (
    NOW,
    Customer,
    make_alert,
    make_approved,
    make_bulk_job,
    make_customer,
    make_exports,
    make_handoff,
    make_rule,
    make_session,
    make_settings,
    make_target,
)
from tests.support.http.raw_http import Call, FieldRefusal, assert_is_error
from tests.support.http.storefront import receive

AUDIT = "/api/audit"
_LABEL = RuleAction(RuleActionType.LABEL, labels=("later",))
_GROUPING = TicketGrouping.RULE


def listed(client: TestClient, customer: Customer, query: str = "", ability: Ability = Ability.MANAGE_ACCOUNT) -> Any:
    text = tokens.create(customer.email, TokenKind.API, NOW, (ability,))[1]
    return Call("GET", AUDIT, (("Authorization", f"Bearer {text}"),), query=query).send(client)


def items(client: TestClient, customer: Customer, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = listed(client, customer, query).json["items"]
    return found


def test_an_account_sees_the_audit_entries_about_its_records(client: TestClient, customer: Customer) -> None:
    """Entries about each kind of record are visible to the record's account and to no other."""
    first, other = make_customer(), make_customer()
    label = make_rule(first, _LABEL)
    target = make_target(first)
    about = {
        make_exports(first, 1)[0],
        target.id,
        label.id,
        make_bulk_job(first),
        make_session(first),
        make_handoff(first).id,
        make_alert(first),
    }
    [alert] = alerts.list_open(first.account_id)
    alerts.acknowledge(alert.id, None, utc_now(), "operator")
    projects.set_ticket_grouping(first.project_id, None, _GROUPING, utc_now(), "operator")
    scan_run = projects.add_scan_run(first.project_id, NOW)
    audit_log.append(utc_now(), "operator", "add_scan_run", f"scan_run:{scan_run.id}")
    audit_log.append(utc_now(), "operator", "rename_account", f"account:{first.account_id}")
    about |= {f"project:{first.project_id}", f"scan_run:{scan_run.id}", f"account:{first.account_id}"}
    about |= {f"user:{first.user_id}"}
    audit_log.append(utc_now(), f"user:{first.user_id}", "acknowledge_alert", "alr_1")
    audit_log.append(utc_now(), "operator", "set_secret", "scanner")

    own = items(client, first, "limit=200")
    assert {entry["object"]["id"] for entry in own} >= about | {"alr_1"}
    assert {entry["object"]["type"] for entry in own} >= {"exp", "tgt", "rul", "user", "token", "scan_run"}
    theirs = {entry["object"]["id"] for entry in items(client, other, "limit=200")}
    assert theirs & {entry["object"]["id"] for entry in own} == set()
    assert "scanner" not in theirs | {entry["object"]["id"] for entry in own}
    everything = listed(client, customer, "limit=200", Ability.ADMIN).json["items"]
    assert {entry["object"]["id"] for entry in everything} >= about | theirs | {"scanner"}
    assert [entry["id"] for entry in everything] == sorted((entry["id"] for entry in everything), reverse=True)
    [of_one] = listed(client, customer, f"account_id={first.account_id}&object=alr_1", Ability.ADMIN).json["items"]
    assert of_one["actor"] == {"kind": "user", "id": str(first.user_id)}


def test_an_account_sees_that_the_operator_deleted_a_rule(client: TestClient, customer: Customer) -> None:
    rule = make_rule(customer, _LABEL)
    approval_rules.delete(rule.id, None, utc_now(), "operator")
    assert [entry["action"] for entry in items(client, customer, f"object={rule.id}")] == ["delete_rule", "create_rule"]


def test_filters_and_pages_narrow_the_audit_log(client: TestClient, customer: Customer) -> None:
    account = make_customer()
    export_id = make_approved(account, make_target(account).id)
    [entry] = items(client, account, f"object={export_id}&action=approve")
    assert entry["details"]["status_after"] == ExportStatus.APPROVED
    assert items(client, customer, f"object={export_id}") == []
    assert {each["actor"]["kind"] for each in items(client, account, "actor=operator")} == {"operator"}
    newest = items(client, account)
    found, query = [], "limit=1"
    while query:
        page = listed(client, account, query)
        found += page.json["items"]
        query = page.json["next_cursor"] and f"limit=1&cursor={page.json['next_cursor']}"
        assert len(found) < 100
    # Each page is requested with a new token, whose creation is another entry.
    assert [each for each in found if each in newest][-len(newest) :] == [each for each in newest if each in found]
    now = utc_now()
    audit_log.append(now, "operator", "noted", f"account:{account.account_id}")
    later = format_rfc3339(now + timedelta(seconds=1)).replace("+", "%2B")
    shown = items(client, account, f"created_after={format_rfc3339(now)}&created_before={later}&action=noted")
    assert [each["action"] for each in shown] == ["noted"]
    assert items(client, account, f"created_before={format_rfc3339(now)}&action=noted") == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("actor", "not_allowed"),
        ("action", "not_allowed"),
        ("object", "not_allowed"),
        ("created_after", "invalid_timestamp"),
        ("created_before", "invalid_timestamp"),
    ],
)
def test_an_impossible_filter_is_rejected(client: TestClient, customer: Customer, name: str, code: str) -> None:
    answer = listed(client, customer, f"{name}=%00")
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal(f"/{name}", code),))


def test_names_of_workers_are_omitted_from_the_audit_log_of_an_account(client: TestClient, customer: Customer) -> None:
    export_id = make_exports(customer, 1)[0]
    audit_log.append(utc_now(), "worker:host-7:42", "claim", export_id)
    answer = listed(client, customer, f"object={export_id}")
    assert {"kind": "worker", "id": None} in [each["actor"] for each in answer.json["items"]]
    assert "host-7" not in answer.text


def test_entries_of_one_statement_have_their_own_accounts(database: str) -> None:
    first, second = make_customer(), make_customer()
    ids = [make_exports(first, 1)[0], make_exports(second, 1)[0]]
    entries = [audit_log.AuditEntry(1, "worker:a", "claim", export_id) for export_id in ids]
    audit_log.append_all(entries)
    found = rows("SELECT subject_id, account_id FROM audit_entries WHERE action = 'claim' ORDER BY id")
    assert dict(found) == {ids[0]: first.account_id, ids[1]: second.account_id}


MANY = 20_000


@pytest.mark.parametrize(
    "filters", [{}, {"after_ms": 1, "before_ms": 10**15}, {"action": "approve"}, {"subject_id": "exp_1"}]
)
def test_an_accounts_entries_are_read_from_an_index(customer: Customer, filters: dict[str, Any]) -> None:
    _many_entries(customer.account_id)
    with statements() as found:
        audit_log.list_matching(AuditFilter(customer.account_id, **filters), 51, MANY)
    [statement] = found
    assert not full_scans(statement), plan_of(statement)
    index = "audit_entries_subject" if "subject_id" in filters else "audit_entries_account"
    assert index in indexes_read(statement), plan_of(statement)
    with statements() as found:
        audit_log.list_matching(AuditFilter(None), 51, MANY)
    assert not full_scans(found[0]), plan_of(found[0])


def _many_entries(account_id: int) -> None:
    """Store entries; one in two thousand belongs to the account."""
    execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        "INSERT INTO audit_entries (at, actor, action, subject_id, account_id) "
        "SELECT 1000 + i, 'worker:a', 'claim', 'exp_' || i, "
        "CASE i - i / 2000 * 2000 WHEN 0 THEN CAST(? AS INTEGER) ELSE CAST(? AS INTEGER) END FROM n",
        (MANY, account_id, account_id + 1),
    )
    # Without statistics, the plan would depend on what autovacuum saw in earlier tests.
    execute("ANALYZE audit_entries")


def test_compliance_requests_are_for_administrators(client: TestClient, customer: Customer, tmp_path: Path) -> None:
    request_id = receive(Topic.SHOP_REDACT, Vault(make_settings(tmp_path).encryption_keys))
    admin = tokens.create(customer.email, TokenKind.API, NOW, (Ability.ADMIN,))[1]
    owner = tokens.create(customer.email, TokenKind.API, NOW, (Ability.MANAGE_ACCOUNT,))[1]
    call = Call("GET", "/api/compliance-requests", (("Authorization", f"Bearer {admin}"),))
    [record] = call.send(client).json["items"]
    assert (record["id"], record["status"], record["subject"]) == (request_id, "received", None)
    one = Call("GET", f"/api/compliance-requests/{request_id}", call.headers)
    assert one.send(client).json == record
    refused = Call("GET", one.path, (("Authorization", f"Bearer {owner}"),))
    assert_is_error(refused.send(client), 403, "FORBIDDEN")
    unknown = identifiers.new_id(identifiers.COMPLIANCE, NOW)
    assert_is_error(Call("GET", f"/api/compliance-requests/{unknown}", call.headers).send(client), 404, "NOT_FOUND")
