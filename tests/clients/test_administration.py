"""The requests for accounts, projects, users, grants, tokens, scan runs, the audit log and compliance."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.support.http.scripted_api import Run, Script, ok, run_async, run_blocking

#: A call of the client, and the method, the path with query, and the body of its request.
CALLS: Final[list[tuple[Callable[[Any], Any], str, str, Any]]] = [
    (lambda client: client.accounts.own(), "GET", "/api/account", None),
    (lambda client: client.accounts.rename_own("Agency"), "PATCH", "/api/account", {"name": "Agency"}),
    (lambda client: client.accounts.list(), "GET", "/api/accounts", None),
    (lambda client: client.accounts.create("A"), "POST", "/api/accounts", {"name": "A"}),
    (
        lambda client: client.accounts.create("A", may_use_webhooks=False),
        "POST",
        "/api/accounts",
        {"name": "A", "may_use_webhooks": False},
    ),
    (lambda client: client.accounts.get(2), "GET", "/api/accounts/2", None),
    (lambda client: client.accounts.edit(2, may_use_webhooks=True), "PATCH", "/api/accounts/2", {"may_use_webhooks": True}),
    (lambda client: client.projects.list(account_id=2), "GET", "/api/projects?account_id=2", None),
    (
        lambda client: client.projects.create("Shop", shop_domain="shop.example", ticket_grouping="finding", account_id=2),
        "POST",
        "/api/projects",
        {"name": "Shop", "shop_domain": "shop.example", "ticket_grouping": "finding", "account_id": 2},
    ),
    (lambda client: client.projects.edit(7, name="Store"), "PATCH", "/api/projects/7", {"name": "Store"}),
    (lambda client: client.projects.edit(7, shop_domain=None), "PATCH", "/api/projects/7", {"shop_domain": None}),
    (lambda client: client.users.list(email="a@b.example"), "GET", "/api/users?email=a%40b.example", None),
    (
        lambda client: client.users.create("a@b.example", role="triager", account_id=2),
        "POST",
        "/api/users",
        {"email": "a@b.example", "role": "triager", "account_id": 2},
    ),
    (lambda client: client.users.get(3), "GET", "/api/users/3", None),
    (lambda client: client.users.set_role(3, None), "PATCH", "/api/users/3", {"role": None}),
    (lambda client: client.users.set_state(3, "disabled"), "PATCH", "/api/users/3", {"state": "disabled"}),
    (lambda client: client.users.remove(3), "DELETE", "/api/users/3", None),
    (lambda client: client.grants.list(user_id=3, project_id=7), "GET", "/api/grants?user_id=3&project_id=7", None),
    (
        lambda client: client.grants.create(3, project_id=7, role="viewer"),
        "POST",
        "/api/grants",
        {"user_id": 3, "project_id": 7, "role": "viewer"},
    ),
    (lambda client: client.grants.create(3, report_id=9), "POST", "/api/grants", {"user_id": 3, "report_id": 9}),
    (lambda client: client.grants.get(4), "GET", "/api/grants/4", None),
    (lambda client: client.grants.remove(4), "DELETE", "/api/grants/4", None),
    (lambda client: client.tokens.list(user_id=3), "GET", "/api/tokens?user_id=3", None),
    (lambda client: client.tokens.create(), "POST", "/api/tokens", {"kind": "api"}),
    (
        lambda client: client.tokens.create(
            "platform",
            user_id=3,
            abilities=("cms-plugin:diagnostics-upload",),
            name="plugin",
            expires_at=datetime(2027, 1, 1, tzinfo=UTC),
        ),
        "POST",
        "/api/tokens",
        {
            "kind": "platform",
            "user_id": 3,
            "abilities": ["cms-plugin:diagnostics-upload"],
            "name": "plugin",
            "expires_at": "2027-01-01T00:00:00+00:00",
        },
    ),
    (lambda client: client.tokens.get(5), "GET", "/api/tokens/5", None),
    (lambda client: client.tokens.revoke(5), "DELETE", "/api/tokens/5", None),
    (lambda client: client.scan_runs.list(project_id=7), "GET", "/api/scan-runs?project_id=7", None),
    (lambda client: client.scan_runs.register(7), "POST", "/api/scan-runs", {"project_id": 7}),
    (lambda client: client.scan_runs.register(7, scan_run_id=42), "POST", "/api/scan-runs", {"project_id": 7, "id": 42}),
    (lambda client: client.scan_runs.get(42), "GET", "/api/scan-runs/42", None),
    (
        lambda client: client.audit.list(action="export.approved", created_after="2026-03-01T00:00:00Z", page_size=200),
        "GET",
        "/api/audit?action=export.approved&created_after=2026-03-01T00%3A00%3A00Z&limit=200",
        None,
    ),
    (lambda client: client.compliance_requests.list(), "GET", "/api/compliance-requests", None),
    (lambda client: client.compliance_requests.get("cpl_1"), "GET", "/api/compliance-requests/cpl_1", None),
]


@pytest.mark.parametrize("run", [run_blocking, run_async], ids=["blocking", "async"])
@pytest.mark.parametrize(("call", "method", "address", "body"), CALLS, ids=[f"{call[1]} {call[2]}" for call in CALLS])
def test_a_call_sends_the_documented_request(
    run: Run, call: Callable[[Any], Any], method: str, address: str, body: Any
) -> None:
    record = {"id": 1, "items": [], "next_cursor": None}
    script = Script([ok(record)])
    result = run(script, call)
    [request] = script.requests
    assert (request.method, request.url.raw_path.decode(), script.bodies) == (method, address, [body])
    assert ("Idempotency-Key" in request.headers) == (method in ("POST", "PATCH"))
    assert result in (record, [], None)
