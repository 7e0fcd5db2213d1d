"""The API's docs page: its files and their headers, and a real browser that shows it and sends requests without errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from falcon.testing import TestClient
from playwright.sync_api import Browser, Locator, Page, Route, expect

from service.app import create_app
from service.openapi.docs_page import CONTENT_SECURITY_POLICY, FILES
from storage.db.engine import close_database, connection, open_database
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, environment, make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import SAFE_HEADERS, Call, assert_is_error
from tests.support.processes.gunicorn_process import Service
from tests.support.servers.browsers import PATIENCE_MS, watch

# The docs page does not depend on the database.
pytestmark = on_sqlite

MODES: Final = ("cloud", "self-hosted", "webhook-only")
#: Text that an attacker might get into a ticket.
HOSTILE: Final = "<img src=/docs/nothing onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def client(database: str, tmp_path: Path) -> TestClient:
    return TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({})))


# --- served files


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_serves_the_docs_page(mode: str, database: str, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": mode})
    answer = Call("GET", "/docs").send(TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_the_content_security_policy_allows_only_own_scripts_and_styles(client: TestClient) -> None:
    answer = Call("GET", "/docs").send(client)
    actual = {name: answer.headers[name] for name in SAFE_HEADERS}
    assert actual == SAFE_HEADERS | {"cache-control": "no-cache", "content-security-policy": CONTENT_SECURITY_POLICY}
    directives = dict(each.strip().split(" ", 1) for each in CONTENT_SECURITY_POLICY.split(";"))
    assert directives.pop("img-src") == "data:"
    assert {name: source for name, source in directives.items() if source != "'none'"} == {
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
    }
    assert {"default-src", "base-uri", "form-action", "frame-ancestors"} <= directives.keys()


@pytest.mark.parametrize("name", FILES)
def test_each_file_has_its_content_type(name: str, client: TestClient) -> None:
    answer = Call("GET", f"/docs/{name}").send(client)
    kind = {"js": "text/javascript", "css": "text/css"}[name.rpartition(".")[2]]
    assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
    assert len(answer.content) == int(answer.headers["content-length"]) > 100
    actual = {header: answer.headers[header] for header in SAFE_HEADERS}
    assert actual == SAFE_HEADERS | {"cache-control": "no-cache"}
    assert f"docs/{name}" in Call("GET", "/docs").send(client).text


@pytest.mark.parametrize("path", ["/docs", *(f"/docs/{name}" for name in FILES)])
def test_each_file_is_cached_until_it_changes(path: str, client: TestClient) -> None:
    first = Call("GET", path).send(client)
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = Call("GET", path, (("If-None-Match", known),)).send(client)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), known
        # A browser applies the headers of a 304 response to its cached copy.
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert Call("GET", path, (("If-None-Match", '"other"'),)).send(client).content == first.content
    head = Call("HEAD", path).send(client)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)
    assert head.headers["content-length"] == first.headers["content-length"]


#: Other files in and above the directories from which the page's files are served.
OTHER_FILES: Final = (
    "swagger-editor-bundle.js",
    "swagger-ui.js",
    "LICENSE",
    "index.html",
    "PAGE.JS",
    "page.js.map",
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2fcore.py",
    "%2e%2e%2fcore.py",
    "..\\core.py",
    "%2fetc%2fpasswd",
    "page.js%00.css",
    "page.js/",
    "%ff",
)


@pytest.mark.parametrize("name", OTHER_FILES)
def test_no_other_file_is_served_below_docs(name: str, client: TestClient) -> None:
    answer = client.simulate_get(f"/docs/{name}")
    assert answer.status_code in {404, 422}, answer.text
    assert answer.json["error"]["code"] in {"NOT_FOUND", "VALIDATION_FAILED"}
    assert_is_error(Call("GET", "/docs/nothing").send(client), 404, "NOT_FOUND")


# --- in a browser


@dataclass(frozen=True, slots=True)
class DocsPageVisit:
    """A page in a browser, and the URLs that it requested."""

    page: Page
    asked: list[str]

    def operation(self, tag: str, operation_id: str) -> Locator:
        """Return the block of an operation."""
        return self.page.locator(f"#operations-{tag}-{operation_id}")

    @property
    def blocks(self) -> set[str]:
        """The IDs of all operations that are shown, except webhooks."""
        shown = [str(block.get_attribute("id")) for block in self.page.locator(".opblock").all()]
        return {name.rpartition("-")[2] for name in shown if not name.startswith("operations-webhooks-")}


@contextmanager
def visit(browser: Browser, url: str, place: str = "", beneath: str = "") -> Iterator[DocsPageVisit]:
    """Open a page at a fragment and record its activity until the block ends; there must be no error.

    `beneath` is a path prefix that a proxy adds and removes.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 1600})
    seen = watch(context)
    page = context.new_page()
    if beneath:
        page.route(f"{url}/**", lambda route: route.fulfill(status=404))
        page.route(f"{url}{beneath}/**", lambda route: _pass_on(route, beneath))
        url += beneath
    page.goto(f"{url}/docs{place}")
    page.locator(".opblock").first.wait_for()
    yield DocsPageVisit(page, seen.requested)
    assert seen.complaints(url) == []
    # The entered token is not stored anywhere.
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert page.evaluate("indexedDB.databases()") == []
    context.close()


def _pass_on(route: Route, beneath: str) -> None:
    route.fulfill(response=route.fetch(url=route.request.url.replace(f"{beneath}/", "/", 1)))


@dataclass(frozen=True, slots=True)
class DocsInstallation:
    """The settings of an installation, and a customer in it."""

    settings: dict[str, str]
    customer: Customer


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> DocsInstallation:
    """An installation whose public URL differs from the one that the browser uses."""
    folder = tmp_path_factory.mktemp("page")
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    (folder / "riskrelay.db").write_bytes(migrated_sqlite.read_bytes())
    open_database(url)
    with connection():
        customer = make_customer()
    close_database()
    elsewhere = "https://risk.example.com"
    return DocsInstallation(environment(folder, DATABASE_URL=url, WEB_PROCESSES="1", PUBLIC_BASE_URL=elsewhere), customer)


@pytest.fixture(scope="module")
def service(installation: DocsInstallation) -> Iterator[Service]:
    """The service of the installation."""
    with Service(installation.settings) as running:
        yield running


def url_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


def described_by(service: Service) -> set[str]:
    record = service.request("GET", "/openapi.json").json
    return {operation["operationId"] for item in record["paths"].values() for operation in item.values()}


def test_the_api_page_shows_every_operation_and_sends_requests(
    browser: Browser, service: Service, installation: DocsInstallation
) -> None:
    # A proxy serves it below a path prefix.
    url = f"{url_of(service)}/relay"
    bearer = installation.customer.bearer
    made = service.request("POST", "/api/ticket-exports", bearer, {"ticket": {"title": HOSTILE}})
    assert made.status == 201
    with visit(browser, url_of(service), beneath="/relay") as seen:
        # Every operation of the description is shown.
        assert seen.blocks == described_by(service)
        expect(seen.page.locator(".webhooks")).to_contain_text("ticket.export")
        expect(seen.page.locator(".webhooks")).to_contain_text("target.ping")
        expect(seen.page.locator(".servers option")).to_have_text(url)

        # An operation opens, and its address links to it.
        listed = seen.operation("Ticket_exports", "listTicketExports")
        listed.locator(".opblock-summary-control").click()
        expect(listed.locator(".responses-inner").first).to_contain_text("RATE_LIMITED")
        assert seen.page.url == f"{url}/docs#/Ticket%20exports/listTicketExports"

        # It sends a real request with the entered token.
        seen.page.locator("button.authorize").first.click()
        form = seen.page.locator(".auth-container").filter(has_text="apiToken")
        # No browser may offer the token to its next user.
        assert {field.get_attribute("autocomplete") for field in seen.page.locator(".auth-container input").all()} == {"off"}
        form.locator("input").fill(installation.customer.token)
        form.locator("button[type=submit]").click()
        form.locator("button.btn-done").click()
        listed.locator(".try-out__btn").click()
        listed.locator("button.execute").click()
        answer = listed.locator(".live-responses-table tbody")
        expect(answer.locator(".response-col_status")).to_contain_text("200")
        expect(answer).to_contain_text("next_cursor")
        # Untrusted text is shown but not executed: the browser would request the image, and the script would cause an error.
        expect(answer).to_contain_text(HOSTILE)
        assert f"{url}/api/ticket-exports?sort=-created_at&limit=50" in seen.asked
        assert {f"{url}/openapi.json", *(f"{url}/docs/{name}" for name in FILES)} <= {*seen.asked}
        assert not [asked for asked in (*seen.asked, seen.page.url) if installation.customer.token in asked]
        assert installation.customer.token not in service.log.read_text()


def test_the_page_shows_what_the_mode_serves_and_nothing_else(browser: Browser, installation: DocsInstallation) -> None:
    only = {**installation.settings, "DEPLOYMENT_MODE": "webhook-only"}
    with Service(only) as service, visit(browser, url_of(service), "#/webhooks/deliverTicketExport") as seen:
        assert seen.blocks == described_by(service)
        assert "prepareTicketExport" in seen.blocks
        others = {"postScannerResults", "postEmail", "browser-extension.evidence-captures.store"}
        assert not seen.blocks & {*others, "storefront-app.webhooks.compliance"}
        # The link leads to the operation and opens it.
        expect(seen.operation("webhooks", "deliverTicketExport")).to_contain_text("X-Service-Signature")
        seen.page.locator("button.authorize").first.click()
        expect(seen.page.locator(".auth-container h4")).to_have_text(["apiToken\xa0 (http, Bearer)"])


def test_the_page_reports_that_the_description_could_not_be_loaded(browser: Browser, service: Service) -> None:
    """Swagger UI alone would show an empty page."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.route("**/openapi.json", lambda route: route.fulfill(status=503, body="{}"))
    page.goto(f"{url_of(service)}/docs")
    record = "The API's description cannot be shown: the request for openapi.json returned 503. Load the page again."
    expect(page.locator("#page")).to_have_text(record)
    page.close()
