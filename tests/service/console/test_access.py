"""Permissions at the console: every page and every form, with every kind of session, valid, foreign and invalid.

A page without a row fails a test here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.console_session import Session
from schemas.base.principal import ROLE_ABILITIES, Ability, Role, TokenKind, TokenPrincipal
from schemas.base.timestamps import to_ms
from schemas.intake.scanner import PostbackForm
from schemas.triage.approval_rules import RuleAction, RuleActionType, RuleMatch, RuleRequest
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.export_filter import ExportQuery
from service.app import create_app
from service.console.permissions import NEEDS, is_offered, route_of
from service.operations import targets as operations_of_targets
from storage.accounts import audit_log, sessions, tokens, users
from storage.accounts.accounts import grant_project
from storage.accounts.audit_log import AuditEntry
from storage.accounts.sessions import IDLE_FOR, LASTS_FOR
from storage.db.engine import execute, rows, transaction
from storage.exports import recoveries
from storage.exports.rules import approval_rules
from storage.triage import bulk_jobs
from storage.triage.bulk_jobs import NewBulkJob
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    LOOPBACK_POLICY,
    Customer,
    make_alert,
    make_approved,
    make_colleague,
    make_customer,
    make_exports,
    make_project,
    make_report_upload,
    make_session,
    make_settings,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import everything_stored, is_of_the_console

# Access does not depend on the database.
pytestmark = on_sqlite

#: Public paths; each of them has its own tests.
OPEN: Final = {
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("GET", "/sign-in/openid-connect"),
    ("GET", "/sign-in/callback"),
    ("GET", "/sign-in/link"),
    ("POST", "/sign-in/link"),
    ("POST", "/sign-in/link/open"),
    ("POST", "/sign-out"),
    ("GET", ""),
    ("GET", "/"),
    ("GET", "/static/{file}"),
}


#: The abilities that forms need.
ABILITIES: Final = (Ability.CONSOLE, Ability.MANAGE_RULES, Ability.MANAGE_ACCOUNT)
#: A number that no page contains for another reason.
PROJECT_ID: Final = 987_654_321

LABELS: Final = RuleAction(RuleActionType.LABEL, labels=("team",))


@dataclass(frozen=True, slots=True)
class AccessRow:
    """A page or form, by its path below /console."""

    method: str
    path: str
    #: Whether it is about the whole installation, and therefore only for the operator's account.
    is_for_operator: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    #: The status for a permitted user.
    status: int = 200


ROWS: Final = [
    AccessRow("GET", "/overview"),
    AccessRow("GET", "/counts"),
    AccessRow("GET", "/inbox"),
    AccessRow("GET", "/deliveries"),
    AccessRow("GET", "/exports"),
    AccessRow("GET", "/exports/{export_id}"),
    AccessRow("GET", "/exports/{export_id}/receipt"),
    AccessRow("GET", "/targets"),
    AccessRow("GET", "/targets/add"),
    AccessRow("GET", "/targets/{target_id}"),
    AccessRow("GET", "/recoveries"),
    AccessRow("GET", "/recoveries/{recovery_id}"),
    AccessRow("GET", "/findings"),
    AccessRow("GET", "/findings/{finding_id}"),
    AccessRow("GET", "/findings/trends"),
    AccessRow("GET", "/projects/{project_id}/report/{report_format}"),
    AccessRow("POST", "/projects/{project_id}/grouping", fields={"ticket_grouping": "finding"}),
    AccessRow("GET", "/report-uploads"),
    # A form without a file.
    AccessRow("POST", "/report-uploads", status=415),
    AccessRow("GET", "/report-uploads/{upload_id}"),
    AccessRow("GET", "/sessions"),
    AccessRow("GET", "/alerts"),
    AccessRow("POST", "/alerts/{alert_id}/acknowledge"),
    AccessRow("GET", "/integrations", is_for_operator=True),
    AccessRow("GET", "/compliance", is_for_operator=True),
    AccessRow("GET", "/audit", is_for_operator=True),
    AccessRow("GET", "/queue", is_for_operator=True),
    AccessRow("GET", "/settings", is_for_operator=True),
    AccessRow(
        "POST", "/exports/{export_id}/approve", fields={"target_id": "{target_id}", "ticket_digest": f"sha256:{'0' * 64}"}
    ),
    AccessRow("POST", "/exports/{export_id}/retry"),
    AccessRow("POST", "/exports/{export_id}/dismiss"),
    AccessRow("POST", "/exports/{export_id}/restore"),
    AccessRow("POST", "/exports/{export_id}/snooze", fields={"days": "1"}),
    AccessRow("GET", "/exports/{export_id}/edit"),
    AccessRow("POST", "/exports/{export_id}/edit", fields={"title": "Another title", "severity": "low"}),
    AccessRow("POST", "/targets/add", status=422),
    AccessRow("POST", "/targets/{target_id}/edit"),
    AccessRow("POST", "/targets/{target_id}/validate"),
    AccessRow("POST", "/targets/{target_id}/ping"),
    AccessRow("POST", "/targets/{target_id}/pause"),
    AccessRow("POST", "/targets/{target_id}/resume"),
    AccessRow("POST", "/targets/{target_id}/secret", fields={"secret": "a secret that is long enough"}),
    AccessRow("POST", "/targets/{target_id}/header", fields={"name": "X-Api-Key", "value": "a key"}),
    AccessRow("POST", "/targets/{target_id}/header/remove", fields={"name": "X-Other-Key"}, status=422),
    AccessRow("POST", "/targets/{target_id}/standard-secret", fields={"secret": f"whsec_{'A' * 32}"}),
    AccessRow("POST", "/targets/{target_id}/webhook", fields={"signature": "service", "format": "sarif"}),
    AccessRow("POST", "/targets/{target_id}/recover", fields={"since": "24h"}),
    AccessRow("POST", "/targets/{target_id}/disable"),
    # The last form of the target, because afterwards the target no longer exists.
    AccessRow("POST", "/targets/{target_id}/remove"),
    AccessRow("POST", "/recoveries/{recovery_id}/cancel"),
    AccessRow("POST", "/sessions/{session_id}/revoke"),
    *(
        AccessRow("POST", f"{path}/{verb}", fields={"action": "dismiss", "{export_id}": "sha256:0"}, status=200)
        for path in ("/inbox", "/deliveries")
        for verb in ("review", "decide")
    ),
    AccessRow("POST", "/exports/{export_id}/split"),
    AccessRow("GET", "/rules"),
    AccessRow("GET", "/rules/new"),
    AccessRow("POST", "/rules/new", status=422),
    AccessRow("GET", "/rules/{rule_id}"),
    AccessRow("POST", "/rules/{rule_id}", fields={"name": "N", "type": "label", "labels": "a", "rule": "zap:*"}),
    AccessRow("GET", "/rules/{rule_id}/test"),
    AccessRow("POST", "/rules/{rule_id}/disable"),
    AccessRow("POST", "/rules/{rule_id}/enable"),
    AccessRow("POST", "/rules/{rule_id}/remove"),
    AccessRow("GET", "/bulk-jobs/{job_id}"),
    AccessRow("POST", "/bulk-jobs/{job_id}/cancel"),
    AccessRow("POST", "/shortcuts/on", status=303),
    AccessRow("POST", "/shortcuts/off", status=303),
]


@dataclass(frozen=True, slots=True)
class AccessScene:
    """An installation with two accounts; the first one, the operator's, has a record of every kind."""

    client: TestClient
    customer: Customer
    other: Customer
    ids: Mapping[str, str]

    def ask(self, person: ConsoleBrowser, row: AccessRow) -> Result:
        path = row.path.format(**self.ids, report_format="csv")
        if row.method == "GET":
            return person.get(path, urlencode(row.fields))
        return person.post(path, **{name.format(**self.ids): value.format(**self.ids) for name, value in row.fields.items()})


def make_job(customer: Customer) -> str:
    """Store a bulk job of the customer's account without exports; return its ID."""
    query = ExportQuery(customer.account_id, statuses=("dismissed",))
    new = NewBulkJob(BulkDecision(BulkAction.RESTORE), query, 0, customer.account_id, customer.user_id, "user:test")
    return bulk_jobs.request(new, utc_now(), LOOPBACK_POLICY).id


def make_rule(customer: Customer) -> str:
    """Store a rule of the customer's account that sets a label; return its ID."""
    request = RuleRequest("A rule", enabled=True, match=RuleMatch(rule="zap:*"), action=LABELS)
    return approval_rules.create(customer.account_id, request, customer.user_id, utc_now(), "user:test").id


def make_finding(customer: Customer) -> str:
    """Store a finding of the customer's project; return its ID."""
    record_postback(PostbackForm().read(postback(1)), customer.project_id)
    return str(rows("SELECT id FROM findings")[0][0])


@pytest.fixture
def scene(customer: Customer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AccessScene:
    # No worker runs in these tests.
    monkeypatch.setattr(operations_of_targets, "BEGIN_WITHIN_S", 0.1)
    unlimited = {"RATE_LIMIT_PER_MINUTE": "100000", "AUTH_FAILURES_PER_MINUTE": "100000"}
    unlimited |= {"OIDC_ISSUER": "https://issuer.example", "OIDC_CLIENT_ID": "riskrelay"}
    mail = {"SMTP_URL": "smtp://127.0.0.1", "ALERT_EMAIL_TO": "a@example.com", "ALERT_EMAIL_FROM": "b@example.com"}
    unlimited |= {"CONSOLE_SIGN_IN_LINKS": "on", **mail}
    resolver = FakeResolver({"tracker.example.com": ["93.184.215.14"]})
    client = TestClient(create_app(make_settings(tmp_path, unlimited), FakeWakeUpQueue(), resolver))
    execute("UPDATE projects SET id = ? WHERE id = ?", (PROJECT_ID, make_project(customer, is_granted=False)))
    ids = {
        "export_id": make_exports(customer, 1)[0],
        "target_id": make_target(customer).id,
        "recovery_id": recoveries.begin(make_target(customer).id, utc_now(), utc_now(), "user:test").id,
        "session_id": make_session(customer),
        "job_id": make_job(customer),
        "rule_id": make_rule(customer),
        "upload_id": make_report_upload(customer).id,
        "project_id": str(PROJECT_ID),
        "finding_id": make_finding(customer),
        "alert_id": make_alert(customer),
    }
    return AccessScene(client, customer, make_customer(), ids)


def test_the_access_table_lists_every_page_and_form(scene: AccessScene) -> None:
    app = scene.client.app
    routes = {
        (method.method, route.path.removeprefix("/console"))
        for route in inspect_routes(app)
        if is_of_the_console(route.path)
        for method in route.methods
        # HEAD is GET without a body.
        if not method.internal and method.method != "HEAD"
    }
    assert sorted(routes - OPEN) == sorted((row.method, row.path) for row in ROWS)


# --- invalid sessions

#: Makes a user's session invalid.
Spoil = Callable[[ConsoleBrowser], object]


def _sql(change: str, *parameters: object) -> Spoil:
    """Return a function that changes the session or its token in the database."""
    return lambda _person: execute(change, parameters)


def _become(name: str, value: str) -> Spoil:
    return lambda person: setattr(person, name, value)


_OF_SESSION: Final = "UPDATE console_sessions SET"
_OF_TOKEN: Final = "UPDATE tokens SET"
_LONG_AGO: Final = 1

#: Invalid sessions by kind, with the reason that the sign-in page shows.
STRANGERS: Final[dict[str, tuple[Spoil, str | None]]] = {
    "no cookie": (_become("cookie", ""), None),
    "a made-up cookie": (_become("cookie", "rrs_" + "A" * 43), "unknown"),
    "a cookie that is none": (_become("cookie", "1"), "unknown"),
    "another browser": (_become("browser", "curl/8"), "another_browser"),
    "an idle session": (lambda _: execute(f"{_OF_SESSION} seen_at = ?", (to_ms(utc_now() - IDLE_FOR),)), "idle"),
    "an old session": (lambda _: execute(f"{_OF_SESSION} created_at = ?", (to_ms(utc_now() - LASTS_FOR),)), "too_old"),
    "a session that was signed out": (_sql(f"{_OF_SESSION} ended_at = 1, ended_reason = 'signed_out'"), "signed_out"),
    "a session that was revoked": (_sql(f"{_OF_SESSION} ended_at = 1, ended_reason = 'revoked'"), "revoked"),
    "a session of before a restore": (_sql(f"{_OF_SESSION} ended_at = 1, ended_reason = 'restored'"), "restored"),
    "a revoked token": (_sql(f"{_OF_TOKEN} revoked_at = ?", _LONG_AGO), "token_over"),
    "an expired token": (_sql(f"{_OF_TOKEN} expires_at = ?", _LONG_AGO), "token_over"),
    "a token without the ability": (_sql(f"{_OF_TOKEN} abilities = ?", '["ticket-exports:approve"]'), "token_over"),
    "a platform token": (
        _sql(f"{_OF_TOKEN} kind = 'platform', abilities = ?", '["browser-extension:evidence-upload"]'),
        "token_over",
    ),
}


def signed_in(scene: AccessScene, customer: Customer) -> ConsoleBrowser:
    person = ConsoleBrowser(scene.client)
    assert person.sign_in(make_console_token(customer, *ABILITIES)).status_code == 303
    return person


@pytest.mark.parametrize("name", STRANGERS)
def test_without_a_valid_session_no_page_and_no_form_is_served(name: str, scene: AccessScene) -> None:
    spoil, why = STRANGERS[name]
    person = signed_in(scene, scene.customer)
    spoil(person)
    cookie, before = person.cookie, everything_stored()
    for row in ROWS:
        # The first response deletes the cookie of an ended session; this client sends it again.
        person.cookie = cookie
        answer = scene.ask(person, row)
        if row.method == "POST":
            assert answer.status_code == 401, row
            assert "Nothing was changed" in answer.text, row
        else:
            assert answer.status_code == 303, row
            leads_to = answer.headers["location"]
            assert leads_to.startswith("/console/sign-in"), row
            assert leads_to.partition("why=")[2] == (why or ""), row
            assert answer.text == "", row
    after = everything_stored()
    if why != "another_browser":
        assert after == before


def test_an_api_token_in_its_header_is_no_session(scene: AccessScene) -> None:
    bearer = {"Authorization": f"Bearer {make_console_token(scene.customer)}"}
    for row in ROWS:
        answer = scene.client.simulate_request(
            row.method, f"/console{row.path.format(**scene.ids, report_format='csv')}", headers=bearer
        )
        assert answer.status_code == (303 if row.method == "GET" else 401), row


def test_a_session_is_no_api_token(scene: AccessScene) -> None:
    person = signed_in(scene, scene.customer)
    for headers in ({"Cookie": f"riskrelay_session={person.cookie}"}, {"Authorization": f"Bearer {person.cookie}"}):
        assert scene.client.simulate_get("/api/console-sessions", headers=headers).status_code == 401


# --- valid sessions


def test_another_account_sees_only_its_own_data(scene: AccessScene) -> None:
    person = signed_in(scene, scene.other)
    before = everything_stored()
    nowhere = AccessScene(
        scene.client, scene.customer, scene.other, {name: _unlike(each) for name, each in scene.ids.items()}
    )
    for row in ROWS:
        answer = scene.ask(person, row)
        is_open = not row.is_for_operator and "{" not in row.path
        assert answer.status_code == (row.status if is_open else 404), row
        assert not any(each in answer.text for each in scene.ids.values()) or row.method == "POST", row
        if "{" in row.path:
            # Records of another account look like records that do not exist.
            assert rows_by(nowhere.ask(person, row), nowhere) == rows_by(answer, scene), row
    assert everything_stored() == before


def _unlike(row_id: str) -> str:
    return row_id[:-1] + ("0" if row_id[-1] != "0" else "1")


def rows_by(answer: Result, scene: AccessScene) -> str:
    """Return the text of a page without its request ID and the requested IDs."""
    text = answer.text.replace(answer.headers["x-request-id"], "")
    for row_id in scene.ids.values():
        text = text.replace(row_id, "")
    return text


def test_the_operators_account_has_access_to_every_page_and_form(scene: AccessScene) -> None:
    person = signed_in(scene, scene.customer)
    for row in ROWS:
        answer = scene.ask(person, row)
        assert answer.status_code not in {401, 403, 404}, (row, answer.text)
        assert answer.status_code < 500, (row, answer.text)
        if row.method == "GET":
            # The export is not delivered.
            assert answer.status_code == (409 if row.path.endswith("/receipt") else 200), row
            assert "Sign out" in answer.text or row.path == "/counts" or "/report/" in row.path, row


@pytest.mark.parametrize(
    ("mode", "named", "who"),
    [
        ("self-hosted", None, "first"),
        ("self-hosted", "second", "second"),
        ("self-hosted", "999", None),
        ("cloud", None, None),
        ("cloud", "second", "second"),
    ],
)
def test_only_the_operators_account_sees_pages_of_the_installation(
    mode: str, named: str | None, who: str | None, customer: Customer, tmp_path: Path
) -> None:
    people = {"first": customer, "second": make_customer()}
    account = {"first": customer, "second": people["second"]}.get(named or "")
    changes = {"DEPLOYMENT_MODE": mode, "STOREFRONT_WEBHOOK_SECRET": "s" * 16}
    if named is not None:
        changes["OPERATOR_ACCOUNT_ID"] = str(account.account_id) if account else named
    client = TestClient(create_app(make_settings(tmp_path, changes), FakeWakeUpQueue(), FakeResolver({})))
    for name, each in people.items():
        person = ConsoleBrowser(client)
        person.sign_in(make_console_token(each))
        for row in ROWS:
            if row.is_for_operator:
                assert person.get(row.path).status_code == (200 if name == who else 404), (name, row)
        menu = person.get("/exports").text
        assert ("/console/settings" in menu) is (name == who)


def test_a_session_ends_when_its_token_expires(scene: AccessScene) -> None:
    text = tokens.create(scene.customer.email, TokenKind.API, utc_now(), (Ability.CONSOLE,), "short", timedelta(days=1))[1]
    person = ConsoleBrowser(scene.client)
    person.sign_in(text)
    assert person.get("/exports").status_code == 200
    execute("UPDATE tokens SET expires_at = ? WHERE name = 'short'", (to_ms(utc_now()),))
    assert person.get("/exports").status_code == 303


# --- roles

_LINKS: Final = re.compile(r'<a [^>]*href="/console(/[^"#]*)')
_FORMS: Final = re.compile(r'<form [^>]*method="post"[^>]*action="/console(/[^"]*)')
#: Ends the session of the test.
SIGN_OUT: Final = "/sign-out"


def set_role(customer: Customer, role: Role | None) -> None:
    users.set_role(customer.email, role, utc_now(), "operator")


def test_the_table_of_permissions_has_every_page_and_form(scene: AccessScene) -> None:
    assert {row.path for row in ROWS} == set(NEEDS)


@pytest.mark.parametrize("role", Role)
def test_a_role_allows_exactly_the_pages_and_forms_in_the_table(role: Role, scene: AccessScene) -> None:
    person = signed_in(scene, scene.customer)
    set_role(scene.customer, role)
    before = everything_stored()
    # Forms that the role may not use come first, because they change nothing.
    for row in sorted(ROWS, key=lambda row: NEEDS[row.path].ability in ROLE_ABILITIES[role]):
        answer = scene.ask(person, row)
        if NEEDS[row.path].ability in ROLE_ABILITIES[role]:
            assert answer.status_code not in {401, 403, 404}, (row, answer.text)
        else:
            assert answer.status_code == (415 if row.path == "/report-uploads" and row.method == "POST" else 403), row
            assert row.path == "/report-uploads" or "This needs the role" in answer.text, row
            assert everything_stored() == before, row


def crawl(person: ConsoleBrowser, *first: str) -> tuple[dict[str, str], set[str]]:
    """Follow all links from the first pages; return the pages by address, and the paths of their forms."""
    waiting, pages, forms = [*first], {}, set()
    while waiting:
        address = waiting.pop()
        path, _, query = address.partition("?")
        answer = person.get(path, query)
        if answer.status_code == 303:
            continue
        assert answer.status_code == 200, (address, answer.status_code)
        pages[address] = answer.text
        forms |= {unescape(each) for each in _FORMS.findall(answer.text)}
        found = (
            {unescape(each) for each in _LINKS.findall(answer.text)}
            if "text/html" in answer.headers["content-type"]
            else set()
        )
        # Links with a query are skipped: filters show the same pages with fewer rows.
        waiting += sorted(each for each in found if each not in pages and each not in waiting and "?" not in each)
    return pages, forms


@pytest.mark.parametrize("role", Role)
def test_pages_offer_each_role_exactly_the_forms_that_it_may_send(role: Role, scene: AccessScene) -> None:
    person = signed_in(scene, scene.customer)
    set_role(scene.customer, role)
    execute("UPDATE alerts SET subject_id = ?", (scene.ids["target_id"],))
    pages, forms = crawl(person, "/inbox", f"/exports/{scene.ids['export_id']}")
    assert f"/targets/{scene.ids['target_id']}" in pages
    refused = [form for form in forms - {SIGN_OUT} if not is_offered(form, principal_of(person), is_operator=True)]
    assert refused == []
    shown = {route_of(form) for form in forms - {SIGN_OUT}}
    # The main forms of each role.
    assert ("/exports/{export_id}/approve" in shown) is (role is not Role.VIEWER)
    assert ("/inbox/review" in shown) is (role is not Role.VIEWER)
    assert ("/targets/{target_id}/secret" in shown) is (role in {Role.MANAGER, Role.OWNER})
    assert ("/rules/{rule_id}/disable" in shown) is (role in {Role.MANAGER, Role.OWNER})
    assert ("/alerts/{alert_id}/acknowledge" in shown) is (role is not Role.VIEWER)
    assert "/sessions/{session_id}/revoke" in shown


def test_pages_link_a_project_role_only_to_allowed_pages(scene: AccessScene) -> None:
    customer = replace(scene.customer, project_id=make_project(scene.customer, is_granted=False))
    person = signed_in(scene, customer)
    set_role(customer, None)
    grant_project(customer.email, customer.project_id, utc_now(), Role.TRIAGER)
    approved = make_approved(customer, scene.ids["target_id"], utc_now())
    recovered = AuditEntry(to_ms(utc_now()), "user:1", "retry", approved, "approved", "failed", scene.ids["recovery_id"])
    with transaction():
        audit_log.append_all([recovered])
    pages, _ = crawl(person, "/inbox", "/deliveries", "/findings", f"/exports/{approved}")
    assert "Tracker</bdi>" in pages["/deliveries"]
    assert '<span class="aside">recovery</span>' in pages[f"/exports/{approved}"]


def test_pages_forbidden_to_a_project_role_require_a_role_in_the_whole_account(scene: AccessScene) -> None:
    customer = replace(scene.customer, project_id=make_project(scene.customer, is_granted=False))
    person = signed_in(scene, customer)
    set_role(customer, None)
    grant_project(customer.email, customer.project_id, utc_now(), Role.TRIAGER)
    for path in ("/report-uploads", "/exports", "/targets/add"):
        page = person.get(path)
        assert (page.status_code, "This needs a role in the whole account" in page.text) == (403, True)


def principal_of(person: ConsoleBrowser) -> TokenPrincipal:
    [(_, session)] = sessions.authenticate_cookies([person.cookie], person.browser, utc_now())
    assert isinstance(session, Session)
    return session.principal


def test_only_an_owner_sees_and_revokes_sessions_of_others(scene: AccessScene) -> None:
    person = signed_in(scene, scene.customer)
    colleague = make_colleague(scene.customer)
    theirs = make_session(colleague)
    assert colleague.email in person.get("/sessions").text
    set_role(scene.customer, Role.MANAGER)
    assert colleague.email not in person.get("/sessions").text
    assert person.post(f"/sessions/{theirs}/revoke").status_code == 404
    assert person.post(f"/sessions/{scene.ids['session_id']}/revoke").status_code == 303


def test_without_any_role_the_console_is_closed(scene: AccessScene) -> None:
    person = signed_in(scene, scene.customer)
    set_role(scene.customer, None)
    assert person.get("/inbox").headers["location"].endswith("why=token_over")
    other = ConsoleBrowser(scene.client)
    assert other.sign_in(make_console_token(scene.customer)).status_code == 403
