"""The API is not for browsers: apart from its docs page and the console, responses forbid display, caching and redirects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import Result, TestClient

from service.app import App, create_app
from service.openapi.docs_page import CONTENT_SECURITY_POLICY
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import SAFE_HEADERS, is_of_the_console

# Headers and methods do not depend on the database.
pytestmark = on_sqlite

#: The headers that a browser adds by itself to a request from another site's page.
CROSS_SITE_HEADERS: Final = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Cookie": "session=1"}
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
#: The same for every client, so they may be cached and revalidated.
CACHED: Final = frozenset({"/openapi.json", "/docs", "/docs/page.js"})
#: The only document that a browser may display.
DOCS_PAGE: Final = "/docs"
#: These methods change nothing and echo nothing from the request.
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")


@pytest.fixture
def app(customer: Customer, tmp_path: Path) -> App:
    changes = {"DEPLOYMENT_MODE": "cloud", "AUTH_FAILURES_PER_MINUTE": "1000", "STOREFRONT_WEBHOOK_SECRET": "s" * 16}
    return create_app(make_settings(tmp_path, changes), FakeWakeUpQueue(), FakeResolver({}))


def answers(app: App, headers: Mapping[str, str]) -> dict[tuple[str, str], Result]:
    """Send a request to every route, and to a path without a route, with every method."""
    ids = {
        "export_id": "exp_1",
        "target_id": "tgt_1",
        "recovery_id": "rec_1",
        "rule_id": "rul_1",
        "job_id": "blk_1",
        "project_id": "1",
        "session_id": "ses_1",
        "handoff_id": "hof_1",
        "finding_id": "fnd_1",
        "account_id": "1",
        "user_id": "1",
        "grant_id": "1",
        "token_id": "1",
        "scan_run_id": "1",
        "compliance_id": "cmp_1",
        "file": "page.js",
    }
    paths = [route.path.format(**ids) for route in inspect_routes(app) if not is_of_the_console(route.path)]
    assert len(paths) >= 20
    client = TestClient(app)
    return {
        (method, path): client.simulate_request(method, path, headers=dict(headers))
        for path in [*paths, "/nowhere"]
        for method in METHODS
    }


def test_responses_have_security_headers_and_no_cookie_redirect_or_cors_header(app: App) -> None:
    for asked, answer in answers(app, CROSS_SITE_HEADERS).items():
        names = {name.lower() for name in answer.headers}
        record = {name: answer.headers.get(name) for name in SAFE_HEADERS}
        if asked[0] in {"GET", "HEAD"} and asked[1] in CACHED:
            assert record.pop("cache-control") == "no-cache"
        if asked in {("GET", DOCS_PAGE), ("HEAD", DOCS_PAGE)}:
            assert record.pop("content-security-policy") == CONTENT_SECURITY_POLICY
        assert record.items() <= SAFE_HEADERS.items(), asked
        # No origin gets access, no cookie is set, and nothing redirects.
        assert not [name for name in names if name.startswith("access-control-")], asked
        assert not names & {"set-cookie", "location", "refresh"}, asked
        assert not 300 <= answer.status_code < 400, asked


def test_safe_http_methods_change_nothing(app: App, customer: Customer) -> None:
    """A link or an image can make a browser send these methods, so they never change anything."""
    guarded = {path for (method, path), answer in answers(app, {}).items() if method == "POST" and answer.status_code == 401}
    assert len(guarded) >= 10
    for (method, path), answer in answers(app, customer.bearer).items():
        if method == "TRACE":
            assert answer.status_code in {404, 405}, path
            assert customer.token not in answer.text
        if method in SAFE_METHODS and path in guarded:
            assert answer.status_code in {200, 403, 404, 405}, (method, path)
    verbs = ("approve", "retry", "dismiss", "pause", "resume", "disable", "ping", "validate")
    client = TestClient(app)
    for path in guarded:
        if path.endswith(verbs):
            assert client.simulate_get(path, headers=customer.bearer).status_code == 405, path
