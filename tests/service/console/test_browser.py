"""The console in a browser: every page, on a full and on an empty installation, behind a proxy with a path prefix.

A test fails if axe-core reports a serious problem, a page scrolls sideways, the browser logs a message, or a request goes
to another server.
"""

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, ViewportSize, expect

import service.console.routes
from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import to_ms
from service.console.layout import CONSOLE, ConsolePage
from service.console.navigation import MENU
from service.console.pages.exports import ExportReceipt
from service.console.pages.findings import FindingReport
from service.console.pages.sign_in import SignIn
from storage.accounts import audit_log, tokens
from storage.accounts.audit_log import AuditEntry
from storage.db import identifiers
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.db.models import AttemptRow
from tests.support.database import plausible_rows
from tests.support.factories import environment, make_approved, make_customer, make_exports, make_failed, make_target
from tests.support.processes.gunicorn_process import Service
from tests.support.servers.browsers import PATIENCE_MS
from tests.support.servers.redis_and_postgres import RedisServer

#: The path prefix of the proxy, which it removes from requests.
BENEATH: Final = "/relay"
DESKTOP: Final[ViewportSize] = {"width": 1280, "height": 900}
#: The width of a classic scroll bar in pixels.
SCROLL_BAR: Final = 15
#: The name of a worker in a data center, as `process_name` builds it.
WORKER: Final = "worker:ip-10-0-112-134.eu-central-1.compute.internal:1234567:3554aeac"
#: The width of the narrowest current phones.
PHONE: Final[ViewportSize] = {"width": 360, "height": 740}
#: A window of 1280 pixels at 200 % zoom is 640 pixels wide for the page.
ZOOMED: Final[ViewportSize] = {"width": 640, "height": 450}

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
AXE: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

#: Queries for the IDs in paths: an export with attempts, a target with a response, and others.
IDS: Final = {
    "export_id": "SELECT id FROM exports WHERE status = 'failed' ORDER BY attempts DESC, id DESC LIMIT 1",
    "moving_id": "SELECT id FROM exports WHERE status = 'approved' ORDER BY id DESC LIMIT 1",
    "prepared_id": "SELECT id FROM exports WHERE status = 'prepared' ORDER BY id DESC LIMIT 1",
    "target_id": "SELECT id FROM targets ORDER BY id DESC LIMIT 1",
    "recovery_id": "SELECT id FROM recoveries ORDER BY id DESC LIMIT 1",
    "job_id": "SELECT id FROM bulk_jobs ORDER BY id DESC LIMIT 1",
    "upload_id": "SELECT id FROM report_uploads ORDER BY id DESC LIMIT 1",
    "rule_id": "SELECT id FROM approval_rules ORDER BY id DESC LIMIT 1",
    "finding_id": "SELECT id FROM findings ORDER BY id DESC LIMIT 1",
    "session_id": "SELECT id FROM console_sessions ORDER BY id DESC LIMIT 1",
    "attempted_id": "SELECT export_id FROM attempts ORDER BY started_at DESC LIMIT 1",
}
#: Pages that are lists; each shows its four states.
LISTS: Final = ("/exports", "/targets", "/recoveries", "/findings", "/compliance", "/audit", "/sessions", "/alerts")
#: Never empty for a signed-in user, whose sign-in is recorded.
NEVER_EMPTY: Final = {"/audit", "/sessions"}


def _kinds(of: type[ConsolePage]) -> Iterator[type[ConsolePage]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


#: The tested pages below /console; receipts and reports are downloads.
_DOWNLOADS: Final = {ExportReceipt.path, FindingReport.path}
_PAGES: Final = {kind.path for kind in _kinds(ConsolePage) if hasattr(kind, "path")} - _DOWNLOADS
PATHS: Final = sorted(path.removeprefix(CONSOLE) for path in _PAGES)
PLAIN: Final = [*(path for path in PATHS if "{" not in path), "/targets/add?provider=jira"]


# --- an installation


class _Proxy(ThreadingHTTPServer):
    """A reverse proxy that serves the service below a path prefix."""

    daemon_threads = True
    #: The port of the service, once it runs.
    service_port = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)


class _Passing(BaseHTTPRequestHandler):
    server: _Proxy

    def do_GET(self) -> None:
        """Forward the request."""
        if not self.path.startswith(f"{BENEATH}/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.service_port, timeout=30)) as client:
            client.request(self.command, self.path.removeprefix(BENEATH), body, dict(self.headers.items()))
            answer = client.getresponse()
            content = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding"}:
                self.send_header(name, value)
        # The browser may have closed the connection.
        with suppress(OSError):
            self.end_headers()
            self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 - http.server's own name

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A running installation: the URL of its console, and IDs of existing rows."""

    url: str
    token: str
    ids: Mapping[str, str]

    def at(self, path: str) -> str:
        """Return the URL of a page, with IDs filled in."""
        # Only a prepared ticket can be edited.
        return self.url + path.replace("{export_id}/edit", "{prepared_id}/edit").format(**self.ids)


@contextmanager
def installed(folder: Path, migrated: Path, redis: RedisServer, *, is_populated: bool) -> Iterator[Installed]:
    """Run an installation behind a proxy, with rows of every kind or empty."""
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    (folder / "riskrelay.db").write_bytes(migrated.read_bytes())
    open_database(url)
    try:
        with connection():
            token, account_id = _populate(is_populated=is_populated)
            ids = {name: found[0][0] for name, query in IDS.items() if (found := rows(query))}
    finally:
        close_database()
    proxy = _Proxy()
    console = f"http://127.0.0.1:{proxy.server_port}{BENEATH}"
    settings = environment(
        folder,
        DATABASE_URL=url,
        REDIS_URL=redis.url,
        WEB_PROCESSES="1",
        PUBLIC_BASE_URL=console,
        OPERATOR_ACCOUNT_ID=str(account_id),
    )
    Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        with Service(settings) as service:
            proxy.service_port = service.port
            yield Installed(console + CONSOLE, token, ids)
    finally:
        proxy.shutdown()
        proxy.server_close()


def _populate(*, is_populated: bool) -> tuple[str, int]:
    """Store the rows that pages show; return a token and its account."""
    if is_populated:
        plausible_rows.fill()
    customer = make_customer()
    if is_populated:
        target = make_target(customer)
        make_exports(customer, 60)
        make_failed(customer, target.id, 3)
        _attempt(make_approved(customer, target.id, utc_now()))
        for table in ("projects", "targets", "exports", "findings", "bulk_jobs", "approval_rules", "report_uploads"):
            execute(f"UPDATE {table} SET account_id = ?", (customer.account_id,))  # noqa: S608 - our own names
    abilities = (Ability.CONSOLE, Ability.MANAGE_RULES)
    return tokens.create(customer.email, TokenKind.API, utc_now(), abilities)[1], customer.account_id


def _attempt(export_id: str) -> None:
    """Store an attempt of an export, with every column and the longest realistic values."""
    now = utc_now()
    AttemptRow.insert(
        id=identifiers.new_id(identifiers.ATTEMPT, now),
        export=export_id,
        number=12,
        started_at=now,
        outcome="retryable",
        response_status=503,
        error_code="receiver_unavailable",
        retry_after_s=86_400,
        address="2001:db8:85a3:1111:2222:8a2e:1370:7334",
        dns_ms=1234,
        connect_ms=1234,
        tls_ms=1234,
        first_byte_ms=14_321,
        total_ms=15_000,
        worker=WORKER,
        answer="x" * 999,
    ).execute()
    entry = AuditEntry(to_ms(now), WORKER, "reschedule", export_id, "retry_scheduled", "delivering", "receiver_unavailable")
    with transaction():
        audit_log.append_all([entry])


@pytest.fixture(scope="module")
def populated(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path, redis_server: RedisServer
) -> Iterator[Installed]:
    """An installation with rows of every kind."""
    with installed(tmp_path_factory.mktemp("populated"), migrated_sqlite, redis_server, is_populated=True) as running:
        yield running


@pytest.fixture(scope="module")
def unpopulated(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path, redis_server: RedisServer
) -> Iterator[Installed]:
    """A new installation."""
    with installed(tmp_path_factory.mktemp("unpopulated"), migrated_sqlite, redis_server, is_populated=False) as running:
        yield running


# --- a browser


@contextmanager
def signed_in(browser: Browser, at: Installed, **options: Any) -> Iterator[BrowserContext]:
    """Yield a browser of a signed-in user, in a time zone that is not UTC."""
    context = browser.new_context(viewport=DESKTOP, timezone_id="Asia/Kolkata", **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(at.at("/sign-in"))
    page.get_by_label("API token").fill(at.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
    page.close()
    yield context
    context.close()


@pytest.fixture(scope="module")
def at_populated(browser: Browser, populated: Installed) -> Iterator[BrowserContext]:
    """A signed-in browser at the installation with rows."""
    with signed_in(browser, populated) as context:
        yield context


@pytest.fixture(scope="module")
def at_unpopulated(browser: Browser, unpopulated: Installed) -> Iterator[BrowserContext]:
    """A signed-in browser at the new installation."""
    with signed_in(browser, unpopulated) as context:
        yield context


@dataclass
class PageVisit:
    """A page, with its requests and the messages on the browser's console."""

    page: Page
    source: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def visit(context: BrowserContext, url: str, status: int = 200) -> Iterator[PageVisit]:
    """Open a page; at the end of the block, require that it requested nothing elsewhere and logged no message."""
    page = context.new_page()
    seen = PageVisit(page)
    page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.console.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == status, page.locator("main").inner_text()
    seen.source, seen.headers = answer.text(), answer.headers
    yield seen
    console, _, _ = url.partition(CONSOLE)
    assert [asked for asked in seen.asked if not asked.startswith((f"{console}{CONSOLE}", "data:"))] == []
    # The browser logs the status of the page itself if it is an error.
    shown = [text for text in seen.console if status == 200 or f"status of {status}" not in text]
    assert shown == []
    page.close()


def complaints(page: Page, *only: str) -> list[str]:
    """Return the problems that axe-core finds on a page, by all rules or by the named ones."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    chosen = {"type": "rule", "values": list(only)} if only else {"type": "tag", "values": RULES}
    found = page.evaluate("(runOnly) => axe.run(document, { runOnly, resultTypes: ['violations'] })", chosen)
    return [
        f"{broken['id']} ({broken['impact']}): {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for broken in found["violations"]
        for node in broken["nodes"]
    ]


def assert_fits(page: Page, size: ViewportSize, zoom: str = "") -> None:
    """Require that a page of this size does not scroll sideways; `zoom` is the zoom of the text."""
    page.set_viewport_size(size)
    page.evaluate("(zoom) => { document.documentElement.style.fontSize = zoom; }", zoom)
    wide = page.evaluate(
        "[...document.body.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && "
        "!e.closest('.scroll, .skip, .unseen, pre')).slice(0, 5).map((e) => e.outerHTML.slice(0, 120))"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (size, zoom, wide)
    page.evaluate("document.documentElement.style.fontSize = ''")


def assert_is_accessible(page: Page) -> None:
    """Require that a page is accessible in all color schemes and sizes."""
    assert complaints(page) == []
    page.emulate_media(color_scheme="dark")
    assert complaints(page, "color-contrast", "link-in-text-block") == []
    page.emulate_media(color_scheme="light")
    assert_fits(page, DESKTOP, "200%")
    assert_fits(page, ZOOMED)
    assert_fits(page, PHONE)
    assert complaints(page, "target-size", "scrollable-region-focusable") == []


# --- every page


_HANDLER: Final = re.compile(r"<[^>]*\s(on[a-z]+|style|srcdoc)\s*=", re.IGNORECASE)
_START: Final = re.compile(r"<([a-z][a-z0-9]*)[\s>/]", re.IGNORECASE)


def assert_is_well_made(seen: PageVisit, path: str) -> None:
    """Require the properties of source and structure that every page must have."""
    page = seen.page
    assert seen.headers["content-security-policy"] == POLICY
    assert _HANDLER.findall(seen.source) == []
    assert re.findall(r"<script(?![^>]* src=)|<style|javascript:", seen.source) == []
    # Browsers repair invalid nesting by adding or dropping elements.
    parsed = (
        "(text) => [...new DOMParser().parseFromString(text, 'text/html').querySelectorAll('*')].map((e) => e.localName)"
    )
    assert page.evaluate(parsed, seen.source) == [name.lower() for name in _START.findall(seen.source)]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len({*ids})
    assert page.evaluate("document.documentElement.lang") == "en"
    for only in ("main", "h1", "footer"):
        assert page.locator(only).count() == 1, only
    assert "`" not in page.locator("main").inner_text()
    unscoped = page.locator("th:not([scope])")
    assert unscoped.count() == 0, unscoped.first.evaluate("(e) => e.outerHTML")
    for each in page.locator("[data-refresh]").all():
        assert each.get_attribute("id"), "console.js finds what it renews by its id"
    beneath = {entry.path for entry in MENU if path == entry.path or (entry.path and path.startswith(f"{entry.path}/"))}
    current = [link.get_attribute("href") for link in page.locator("nav[aria-label=Console] [aria-current=page]").all()]
    assert current == [f"{BENEATH}{CONSOLE}{each}" for each in beneath] or page.locator("header.side").count() == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_full_page_is_valid_and_accessible(path: str, populated: Installed, at_populated: BrowserContext) -> None:
    # Few rows are enough, and axe-core checks each of them.
    with visit(at_populated, populated.at(path) + ("?limit=4" if path in LISTS else "")) as seen:
        assert_is_well_made(seen, path)
        assert_is_accessible(seen.page)


@pytest.mark.parametrize("path", PLAIN)
def test_an_empty_page_is_valid_and_accessible(path: str, unpopulated: Installed, at_unpopulated: BrowserContext) -> None:
    with visit(at_unpopulated, unpopulated.at(path)) as seen:
        assert_is_well_made(seen, path)
        assert_fits(seen.page, PHONE)
        assert complaints(seen.page) == []


@pytest.mark.parametrize("path", [*PATHS, "/exports/{attempted_id}", "/audit?subject={attempted_id}"])
def test_tables_fit_a_desktop_with_a_scroll_bar(path: str, populated: Installed, at_populated: BrowserContext) -> None:
    with visit(at_populated, populated.at(path)) as seen:
        seen.page.set_viewport_size({"width": DESKTOP["width"] - SCROLL_BAR, "height": DESKTOP["height"]})
        assert "{attempted_id}" not in path or WORKER in seen.page.locator("#attempts, table").first.inner_text()
        widths = "(e) => [e.ariaLabel, e.scrollWidth, e.clientWidth]"
        for label, width, room in [each.evaluate(widths) for each in seen.page.locator(".scroll").all()]:
            assert width <= room, label


#: Paths without a page, and the status of the response.
ASTRAY: Final = {"/nowhere": 404, "/exports?status=nonsense": 422}


@pytest.mark.parametrize("path", ASTRAY)
def test_an_error_page_is_accessible(path: str, populated: Installed, at_populated: BrowserContext) -> None:
    with visit(at_populated, populated.at(path), ASTRAY[path]) as seen:
        assert_is_well_made(seen, path.partition("?")[0])
        assert_is_accessible(seen.page)


def test_the_sign_in_page_is_accessible(populated: Installed, browser: Browser) -> None:
    context = browser.new_context(viewport=DESKTOP)
    assert SignIn.path == f"{CONSOLE}/sign-in"
    with visit(context, populated.at("/sign-in?why=idle&next=/exports")) as seen:
        assert_is_well_made(seen, "/sign-in")
        assert_is_accessible(seen.page)
    context.close()


def test_no_two_pages_have_the_same_title(populated: Installed, at_populated: BrowserContext) -> None:
    titles = {}
    for path in [*PATHS, "/sign-in", "/nowhere"]:
        shown = re.search("<title>(.*?)</title>", at_populated.request.get(populated.at(path)).text())
        assert shown is not None, path
        titles[path] = shown[1]
    assert len({*titles.values()}) == len(titles), titles
    assert {title.rpartition(" · ")[2] for title in titles.values()} == {"RiskRelay"}


# --- lists and their states


def a_list(page: Page) -> Any:
    return page.locator("main section[aria-label]").first


@pytest.mark.parametrize("path", LISTS)
def test_an_empty_list_differs_from_one_without_matches(
    path: str, unpopulated: Installed, at_unpopulated: BrowserContext
) -> None:
    with visit(at_unpopulated, unpopulated.at(path)) as seen:
        page = seen.page
        if path in NEVER_EMPTY:
            expect(a_list(page).locator("tbody tr")).not_to_have_count(0)
        else:
            expect(a_list(page).locator('[data-state="unused"]')).to_be_visible()
        if not page.locator("[data-filters]").count():
            return
        _filter_by_anything(page)
        expect(a_list(page).locator('[data-state="filtered"]')).to_contain_text("No results match these filters.")
        assert "?" in page.url
        a_list(page).get_by_role("link", name="Clear filters").click()
        expect(a_list(page).locator('[data-state="filtered"]')).to_have_count(0)


def _filter_by_anything(page: Page) -> None:
    form = page.locator("[data-filters]").first
    choices = form.locator('select:has(option[value=""])')
    if choices.count():
        choices.first.select_option(index=1)
    else:
        form.locator("input:not([type=hidden])").first.fill("exp_01J00000000000000000000000")
    form.get_by_role("button", name="Filter").click()


def test_these_tests_cover_every_page_with_a_list() -> None:
    folder = Path(service.console.routes.__file__).parent / "templates"
    with_list = {file.name for file in folder.glob("*.html") if '{% extends "list.html" %}' in file.read_text()}
    pages = [kind for kind in _kinds(ConsolePage) if hasattr(kind, "path")]
    known = {kind.template for kind in pages if kind.path.removeprefix(CONSOLE) in LISTS}
    assert known <= with_list
    assert {path for path in LISTS if path not in PATHS} == set()


# --- the script, on an artificial page


_FRAME: Final = """<!doctype html><html lang="en"><title>Made up</title>
<script defer src="{base}/static/console.js"></script>
<main tabindex="-1">{main}</main><p data-said></p><span data-zone></span></html>"""


class StubPage:
    """A page of the console with the content `main`, which counts requests and stores submitted forms."""

    def __init__(self, context: BrowserContext, at: Installed, main: str) -> None:
        self.main = main
        self.status = 200
        self.posted: list[str] = []
        self.asked = 0
        self.url = at.at("/made-up")
        self._base = at.url
        self.page = context.new_page()
        self.page.route(f"{self.url}*", self._answer)
        self.page.goto(self.url)

    def _answer(self, route: Route, request: Request) -> None:
        self.asked += 1
        if request.method == "POST":
            self.posted.append(request.post_data or "")
            # With a 204, the browser stays on the page.
            route.fulfill(status=204)
            return
        body = _FRAME.format(base=self._base, main=self.main)
        route.fulfill(status=self.status, body=body, content_type="text/html", headers={"Content-Security-Policy": POLICY})


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_a_primary_button_under_the_pointer_keeps_its_colors(
    color_scheme: Literal["light", "dark"], populated: Installed, at_populated: BrowserContext
) -> None:
    page = at_populated.new_page()
    page.emulate_media(color_scheme=color_scheme)
    page.goto(populated.at("/targets/add?provider=github"))
    button = page.get_by_role("button", name="Add target")
    colors = "(e) => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    before = button.evaluate(colors)
    button.hover()
    assert button.evaluate("(e) => e.matches(':hover')")
    assert button.evaluate(colors) == before
    page.close()


def test_times_are_in_the_readers_time_zone_with_utc_on_hover(populated: Installed, at_populated: BrowserContext) -> None:
    with visit(at_populated, populated.at("/audit")) as seen:
        made = seen.page.locator("time").last
        shown = made.get_attribute("title")
        assert shown is not None
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", shown)
        # The browser's time zone is 5 h 30 min ahead of UTC all year.
        here = "(e) => (Date.parse(e.textContent.replace(' ', 'T') + 'Z') - Date.parse(e.dateTime)) / 60000"
        assert made.evaluate(here) == 330
        expect(seen.page.locator("[data-zone]")).to_have_text(re.compile("^Exact times are in your time zone"))
        seen.page.get_by_role("link", name="Older").click()
        expect(seen.page.get_by_role("link", name="Newest")).to_be_visible()
        assert seen.page.locator("time").last.evaluate(here) == 330


def test_the_findings_fit_a_small_laptop_with_their_filters_in_one_line(
    populated: Installed, at_populated: BrowserContext
) -> None:
    with visit(at_populated, populated.at("/findings")) as seen:
        seen.page.locator("tbody td:first-child code").first.evaluate("(code) => { code.textContent = 'x'.repeat(500); }")
        over = "(table) => table.scrollWidth - table.clientWidth"
        assert seen.page.locator(".scroll").first.evaluate(over) <= 0
        for path in ("/findings", "/audit"):
            seen.page.goto(populated.at(path))
            fields = seen.page.locator(".filters > :is(label, button)")
            assert len(set(fields.evaluate_all("(all) => all.map((e) => e.getBoundingClientRect().bottom)"))) == 1


def test_no_section_of_facts_has_nested_frames(populated: Installed, at_populated: BrowserContext) -> None:
    for path in ("/findings/{finding_id}", "/report-uploads/{upload_id}", "/inbox", "/exports/{export_id}"):
        with visit(at_populated, populated.at(path)) as seen:
            facts = seen.page.locator(":is(.card, .pane-detail) dl.facts")
            widths = facts.evaluate_all("(all) => all.map((each) => getComputedStyle(each).borderTopWidth)")
            assert {*widths} == {"0px"}, path


def test_after_an_expired_session_the_sign_in_redirects_to_the_requested_page(
    populated: Installed, browser: Browser
) -> None:
    with signed_in(browser, populated) as context:
        page = context.new_page()
        page.goto(populated.at("/exports"))
        context.clear_cookies()
        page.get_by_label("Status").select_option("failed")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url("**/sign-in?*")
        page.get_by_label("API token").fill(populated.token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/exports?status=failed*")


def test_a_form_is_sent_once_however_often_it_is_clicked(populated: Installed, at_populated: BrowserContext) -> None:
    made = StubPage(at_populated, populated, '<form method="post"><input name="a" value="1"><button>Do it</button></form>')
    button = made.page.get_by_role("button")
    made.page.evaluate("document.forms[0].requestSubmit(); document.forms[0].requestSubmit()")
    expect(button).to_be_disabled()
    assert made.posted == ["a=1"]
    # The user returns to a page in the browser's back/forward cache.
    made.page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    expect(button).to_be_enabled()
    made.page.close()


def test_work_in_progress_is_refreshed_until_it_is_finished(populated: Installed, at_populated: BrowserContext) -> None:
    followed = (
        '<p class="notice">Begun.</p><section id="it"{0}><p class="status">{1}</p>'
        "<details><summary>All of it</summary><p>it all</p></details>"
        '<time datetime="2026-03-01T12:00:00Z">then</time><button type="button">Stop</button></section>'
    )
    going = ' data-refresh="0.05"'
    made = StubPage(at_populated, populated, followed.format(going, "1 of 3"))
    page = made.page
    page.evaluate("window.first = document.querySelector('#it')")
    page.get_by_text("All of it").click()
    page.get_by_role("button", name="Stop").focus()
    asked = made.asked
    while made.asked < asked + 2:
        page.wait_for_timeout(20)
    assert page.evaluate("window.first.isConnected"), "what is the same stays where it is"
    made.main = followed.format(going, "2 of 3")
    expect(page.locator(".status")).to_have_text("2 of 3")
    # Open parts stay open, the focus stays, and times are in the user's time zone.
    expect(page.get_by_text("it all")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    expect(page.locator("time")).to_have_text("2026-03-01 17:30:00")
    expect(page.locator(".notice")).to_have_count(1)
    # The refresh continues after an error.
    made.status = 503
    asked = made.asked
    while made.asked < asked + 2:
        page.wait_for_timeout(20)
    made.status, made.main = 200, followed.format("", "done")
    expect(page.locator(".status")).to_have_text("done")
    expect(page.locator("[data-said]")).to_have_text("done")
    # The notice that it has begun disappears.
    expect(page.locator(".notice")).to_have_count(0)
    asked = made.asked
    page.wait_for_timeout(300)
    assert made.asked == asked
    page.close()


def test_a_refresh_never_replaces_a_field_in_use(populated: Installed, at_populated: BrowserContext) -> None:
    form = '<section id="it" data-refresh="0.05"><p>{}</p><input aria-label="Why"></section>'
    made = StubPage(at_populated, populated, form.format("one"))
    made.page.get_by_label("Why").fill("becau")
    made.main = form.format("two")
    asked = made.asked
    while made.asked < asked + 3:
        made.page.wait_for_timeout(20)
    assert made.page.get_by_label("Why").input_value() == "becau"
    made.page.get_by_label("Why").blur()
    expect(made.page.locator("#it p")).to_have_text("two")
    made.page.close()


def test_the_counts_of_the_menu_are_refreshed_when_work_is_finished(
    populated: Installed, at_populated: BrowserContext
) -> None:
    menu = f'<div data-live="{populated.at("/counts-made-up")}"><span data-count="inbox">9</span></div>'
    parts = menu + '<p id="it"{}>115 of 115</p>'
    made = StubPage(at_populated, populated, parts.format(' data-refresh="0.05"'))
    body = {"counts": {"inbox": {"number": 4, "text": "4"}}, "health": None}
    made.page.route(populated.at("/counts-made-up"), lambda route: route.fulfill(json=body))
    expect(made.page.locator("[data-count]")).to_have_text("9")
    made.main = parts.format("")
    # Not only with the next regular request for the counts, half a minute later.
    expect(made.page.locator("[data-count]")).to_have_text("4", timeout=PATIENCE_MS / 3)
    made.page.close()


def test_counts_are_refreshed_without_moving_the_page(populated: Installed, at_populated: BrowserContext) -> None:
    menu = '<span data-count="inbox">{}</span><a data-health class="status good">fine</a><a data-new="inbox" hidden></a>'
    made = StubPage(at_populated, populated, f'<div data-live="{populated.at("/counts-made-up")}">{menu.format(3)}</div>')
    page = made.page
    answers = [(5, "All systems ok", "good"), (4, "Redis not responding", "warn"), (4, "Redis not responding", "warn")]
    tags: list[str | None] = []

    def answer(route: Route, request: Request) -> None:
        number, text, tone = answers.pop(0)
        tags.append(request.headers.get("if-none-match"))
        if tags[-1] == f'"{number}"':
            route.fulfill(status=304)
            return
        body = {"counts": {"inbox": {"number": number, "text": str(number)}}, "health": {"text": text, "tone": tone}}
        route.fulfill(json=body, headers={"ETag": f'"{number}"'})

    page.route(populated.at("/counts-made-up"), answer)
    page.evaluate("renewCounts()")
    expect(page.locator("[data-new]")).to_have_text("2 new")
    expect(page.locator("[data-count]")).to_have_text("5")
    page.evaluate("renewCounts()")
    expect(page.locator("[data-new]")).to_have_text("1 new")
    expect(page.locator("[data-health]")).to_have_class("status warn")
    expect(page.locator("[data-health]")).to_have_text("Redis not responding")
    page.evaluate("renewCounts()")
    assert tags == [None, '"5"', '"4"']
    # A hidden tab requests nothing.
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
    page.evaluate("renewCounts()")
    assert len(tags) == 3
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_inbox_names_new_tickets_without_moving_the_list(
    width: int, populated: Installed, at_populated: BrowserContext
) -> None:
    page = at_populated.new_page()
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(populated.at("/inbox"))
    number = page.evaluate("counted.inbox")
    body = {"counts": {"inbox": {"number": number + 3, "text": str(number + 3)}}, "health": None}
    page.route(populated.at("/counts"), lambda route: route.fulfill(json=body))
    fresh, ticket = page.locator("main [data-new=inbox]"), page.locator(".pane-list .row").first
    expect(fresh).to_be_hidden()
    before = ticket.bounding_box()
    page.evaluate("renewCounts()")
    expect(fresh).to_have_text("3 new")
    expect(fresh).to_be_visible()
    assert ticket.bounding_box() == before
    fresh.click()
    expect(fresh).to_be_hidden()
    page.close()


# --- the open ticket


def test_the_open_ticket_begins_beside_the_list_and_its_decisions_are_in_view(
    populated: Installed, at_populated: BrowserContext
) -> None:
    with visit(at_populated, populated.at("/inbox")) as seen:
        seen.page.set_viewport_size(DESKTOP)
        listed, ticket, decisions = (
            seen.page.locator(each).bounding_box() for each in (".pane-list", "#ticket", ".pane-actions")
        )
        assert listed is not None
        assert ticket is not None
        assert decisions is not None
        assert ticket["y"] == listed["y"]
        assert decisions["y"] + decisions["height"] <= DESKTOP["height"]


def test_a_long_label_fits_a_telephone(populated: Installed, at_populated: BrowserContext) -> None:
    with visit(at_populated, populated.at("/exports/{prepared_id}")) as seen:
        seen.page.locator(".labels bdi").first.evaluate("(label) => { label.textContent = 'label'.repeat(20); }")
        assert_fits(seen.page, PHONE)


#: Texts by their selector, and the maximum number of lines of 20 pixels.
LONG_TEXTS: Final = {
    "#ticket .kind .aside": ("A client " * 20, None),
    "#ticket .kind .end": ("1 of 10 000+ · Open", 1),
    ".row-about bdi": ("/a" * 500, None),
    ".row-about": (None, 2),
    ".count": ("999+", 1),
}


@pytest.mark.parametrize("width", [390, 1280])
def test_long_texts_do_not_displace_other_parts_of_the_page(
    width: int, populated: Installed, at_populated: BrowserContext
) -> None:
    with visit(at_populated, populated.at("/inbox?export={prepared_id}")) as seen:
        seen.page.set_viewport_size({"width": width, "height": 844})
        for where, (text, _) in LONG_TEXTS.items():
            if text is not None:
                seen.page.locator(where).first.evaluate("(each, text) => { each.textContent = text; }", text)
        heights = {where: seen.page.locator(where).first.evaluate("(each) => each.offsetHeight") for where in LONG_TEXTS}
        assert {
            where: heights[where] for where, (_, lines) in LONG_TEXTS.items() if lines and heights[where] > 22 * lines
        } == {}


class HeldTickets:
    """The inbox on a slow connection: responses with tickets are held, and submitted forms are stored but not executed."""

    def __init__(self, context: BrowserContext, at: Installed, path: str = "/inbox") -> None:
        self.page = page = context.new_page()
        page.goto(at.at(path))
        self.titles = page.locator(".row-title")
        self.held: list[Route] = []
        self.posted: list[str] = []
        page.route("**/*export=*", self._hold)
        page.route("**/exports/exp_*/*", self._keep)

    def _hold(self, route: Route) -> None:
        self.held.append(route)

    def _keep(self, route: Route, request: Request) -> None:
        self.posted.append(request.url)
        route.fulfill(status=204)

    def ask(self, number: int) -> None:
        """Click a row, and wait until its ticket is requested."""
        before = len(self.held)
        self.titles.nth(number).click()
        self.wait(before + 1)

    def wait(self, number: int) -> None:
        """Wait until so many tickets have been requested."""
        while len(self.held) < number:
            self.page.wait_for_timeout(20)

    def answer(self, asked: int, number: int) -> None:
        """Release a response, and wait until it shows the ticket of a row."""
        self.held[asked].continue_()
        expect(self.page.locator('.row[aria-current="true"] a')).to_have_attribute("data-open", self.ids()[number])

    def shown(self) -> str:
        """Return the ID of the ticket that is shown."""
        return self.page.locator("#ticket [data-copy]").first.text_content() or ""

    def ids(self) -> list[str]:
        """Return the IDs of the rows."""
        return [each.get_attribute("data-open") or "" for each in self.titles.all()]


def test_keyboard_shortcuts_do_nothing_until_the_requested_ticket_is_loaded(
    populated: Installed, at_populated: BrowserContext
) -> None:
    inbox = HeldTickets(at_populated, populated)
    page, pane = inbox.page, inbox.page.locator("#ticket")
    page.keyboard.press("j")
    inbox.wait(1)
    expect(pane).to_have_attribute("aria-busy", "true")
    expect(pane.locator(".loading")).to_be_visible()
    # The target is selected, so that only the pending request keeps `a` from approving the previous ticket.
    page.get_by_label("Target", exact=True).evaluate("(select) => { select.selectedIndex = 1; }")
    for key in "adx":
        page.keyboard.press(key)
    assert inbox.posted == []
    assert pane.locator("details.pop[open]").count() == 0
    assert page.locator(".row :checked").count() == 0
    inbox.answer(0, 1)
    assert inbox.shown() == inbox.ids()[1]
    page.get_by_label("Target", exact=True).evaluate("(select) => { select.selectedIndex = 1; }")
    with page.expect_request("**/approve") as sent:
        page.keyboard.press("a")
    assert f"/exports/{inbox.ids()[1]}/approve" in sent.value.url
    page.close()


def test_the_last_requested_ticket_is_shown_whatever_the_order_of_responses(
    populated: Installed, at_populated: BrowserContext
) -> None:
    inbox = HeldTickets(at_populated, populated)
    inbox.ask(1)
    inbox.ask(2)
    inbox.answer(1, 2)
    address = inbox.page.url
    with inbox.page.expect_response("**/*export=*"):
        inbox.held[0].continue_()
    inbox.page.wait_for_timeout(200)
    assert (inbox.shown(), inbox.page.url) == (inbox.ids()[2], address)
    inbox.page.close()


def test_a_late_ticket_does_not_replace_a_form_in_use(populated: Installed, at_populated: BrowserContext) -> None:
    inbox = HeldTickets(at_populated, populated)
    page, first = inbox.page, inbox.shown()
    inbox.ask(1)
    page.locator("#ticket summary", has_text="Dismiss").click()
    page.get_by_label("Note").fill("Seen before.")
    inbox.held[0].continue_()
    expect(page.locator("#ticket")).not_to_have_attribute("aria-busy", "true")
    assert inbox.shown() == first
    assert page.get_by_label("Note").input_value() == "Seen before."
    expect(page.locator("[data-said]")).to_contain_text("stays open")
    # A ticket that the user opens after typing replaces the form.
    inbox.ask(1)
    inbox.answer(1, 1)
    assert inbox.shown() == inbox.ids()[1]
    page.close()


def test_a_refresh_updates_the_state_of_the_open_ticket(populated: Installed, at_populated: BrowserContext) -> None:
    page = at_populated.new_page()
    page.goto(populated.at("/deliveries"))
    first, second = [each.get_attribute("data-open") for each in page.locator(".row-title").all()[:2]]
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/deliveries*", hold_the_first)
    page.evaluate("void refresh()")
    while not held:
        page.wait_for_timeout(20)
    # Without this ID, the response would contain another ticket as soon as this one leaves the list.
    assert f"export={first}" in held[0].request.url
    page.locator(".row-title").nth(1).click()
    expect(page.locator('.row[aria-current="true"] a')).to_have_attribute("data-open", second or "")
    # The response about the previous ticket arrives after another one was opened.
    answer = held[0].fetch()
    with page.expect_event("requestfinished", lambda request: request.url == held[0].request.url):
        held[0].fulfill(response=answer, body=answer.text().replace("<dt>Target</dt>", "<dt>Stale</dt>"))
    page.wait_for_timeout(200)
    expect(page.locator("#state")).not_to_contain_text("Stale")
    page.close()


def test_another_ticket_inherits_neither_focus_nor_open_sections(populated: Installed, at_populated: BrowserContext) -> None:
    inbox = HeldTickets(at_populated, populated)
    page = inbox.page
    page.locator("#ticket summary", has_text="Details").click()
    page.get_by_role("button", name="Approve").focus()
    page.keyboard.press("j")
    inbox.wait(1)
    inbox.answer(0, 1)
    expect(page.locator("#ticket-title")).to_be_focused()
    assert page.locator("#ticket details[open]").count() == 0
    # The focus stays in the list.
    page.locator(".row-title").nth(1).focus()
    page.keyboard.press("k")
    inbox.wait(2)
    inbox.answer(1, 0)
    expect(page.locator(".row-title").nth(1)).to_be_focused()
    page.close()


def test_a_reloaded_ticket_keeps_its_open_sections(populated: Installed, at_populated: BrowserContext) -> None:
    inbox = HeldTickets(at_populated, populated)
    inbox.ask(0)
    inbox.page.locator("#ticket summary", has_text="Dismiss").click()
    inbox.held[0].continue_()
    inbox.page.wait_for_url(f"**/*export={inbox.ids()[0]}*")
    expect(inbox.page.locator("#ticket").get_by_role("button", name="Dismiss", exact=True)).to_be_visible()
    inbox.page.close()


def test_an_open_filter_or_decision_is_closed_by_a_click_elsewhere_and_by_escape(
    populated: Installed, at_populated: BrowserContext
) -> None:
    with visit(at_populated, populated.at("/inbox")) as seen:
        page = seen.page
        for fold in (page.locator("details.menu").first, page.locator("details.pop").first):
            summary = fold.locator("summary")
            summary.click()
            expect(fold).to_have_attribute("open", "")
            page.locator("h1").click()
            expect(fold).not_to_have_attribute("open", "")
            summary.click()
            page.keyboard.press("Escape")
            expect(fold).not_to_have_attribute("open", "")
            expect(summary).to_be_focused()


def test_once_a_delivery_has_failed_it_can_be_retried_without_a_reload(
    populated: Installed, at_populated: BrowserContext
) -> None:
    failed = at_populated.request.get(populated.at("/exports/{export_id}")).text()
    page = at_populated.new_page()
    page.goto(populated.at("/exports/{moving_id}"))
    assert page.get_by_role("button", name="Retry").count() == 0
    answers = [failed.replace(' id="decisions"', ' id="decisions" data-refresh="3"'), failed.replace(">Retry<", ">Again<")]
    page.route(page.url, lambda route: route.fulfill(body=answers.pop(0), content_type="text/html"))
    page.evaluate("refresh()")
    expect(page.locator("#state .status").first).to_have_text("failed")
    expect(page.locator("#decisions").get_by_role("button", name="Retry", exact=True)).to_be_visible()
    expect(page.locator("[data-said]")).to_have_text("failed")
    # A menu of a decision stays open, even if the focus is elsewhere.
    page.get_by_text("Other target…").click()
    page.locator(".sheet select").select_option(index=0)
    page.locator("h1").click()
    page.evaluate("refresh()")
    expect(page.get_by_role("button", name="Retry", exact=True)).to_be_visible()
    assert answers == []
    page.close()


def test_a_relative_time_has_the_exact_one_on_hover(populated: Installed, at_populated: BrowserContext) -> None:
    with visit(at_populated, populated.at("/sessions")) as seen:
        signed_in_at = seen.page.locator("time.ago").first
        expect(signed_in_at).to_have_text(re.compile(r"^(now|\d+ (min|h|days?) ago)$"))
        shown = signed_in_at.get_attribute("title")
        assert shown is not None
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)", shown)


def test_a_sample_is_copied(populated: Installed, browser: Browser) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    made = StubPage(context, populated, '<pre data-copy>curl "$URL" \\\n  -d @-</pre>')
    made.page.get_by_role("button", name="Copy").click()
    expect(made.page.locator("[data-said]")).to_have_text("Copied")
    assert made.page.evaluate("navigator.clipboard.readText()") == 'curl "$URL" \\\n  -d @-'
    # Without HTTPS a page may not use the clipboard, so it selects the text.
    made.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    expect(made.page.get_by_role("button", name="Copy", exact=True)).to_be_visible()
    made.page.get_by_role("button", name="Copy", exact=True).click()
    expect(made.page.locator("[data-said]")).to_contain_text("Ctrl+C")
    assert made.page.evaluate("getSelection().toString()").startswith("curl")
    context.close()


# --- without a mouse, without colors, on paper


def tab_to(page: Page, wanted: Any) -> None:
    """Press Tab until the element has the focus; fail if it never has."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if wanted.evaluate("(e) => e === document.activeElement"):
            # The focus is visible.
            assert wanted.evaluate("(e) => getComputedStyle(e).outlineStyle !== 'none'")
            return
    raise AssertionError(f"Tab never comes to {wanted}")


def test_the_core_path_needs_no_mouse(populated: Installed, browser: Browser) -> None:
    context = browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(populated.at("/sign-in"))
    expect(page.get_by_label("API token")).to_be_focused()
    page.keyboard.type(populated.token)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Sign out").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.goto(populated.at(""))
    tab_to(page, page.get_by_role("navigation", name="Console").get_by_role("link", name="Deliveries"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/deliveries")
    page.goto(populated.at("/exports?status=prepared"))
    tab_to(page, page.get_by_role("link", name="Missing name").first)
    page.keyboard.press("Enter")
    page.wait_for_url("**/exports/exp_*")
    tab_to(page, page.get_by_label("Target", exact=True))
    page.keyboard.type("Tracker")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Approve").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_contain_text("approved")
    expect(page.locator(".status", has_text="approved").first).to_be_visible()
    page.goto(populated.at("/exports"))
    tab_to(page, page.get_by_role("button", name="Sign out"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/sign-in*")
    context.close()


def test_the_menu_is_a_bar_on_a_telephone_and_opens_without_the_script(populated: Installed, browser: Browser) -> None:
    with signed_in(browser, populated, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(populated.at("/exports"))
        link = page.get_by_role("navigation", name="Console").get_by_role("link", name="Targets")
        assert link.is_visible()
        assert not page.get_by_text("More", exact=True).is_visible()
        page.set_viewport_size(PHONE)
        assert not link.is_visible()
        assert page.get_by_role("navigation", name="Console").get_by_role("link", name="Findings").is_visible()
        page.get_by_text("More", exact=True).click()
        link.click()
        page.wait_for_url("**/targets")


def test_a_page_is_readable_on_paper_in_forced_colors_and_without_motion(
    populated: Installed, at_populated: BrowserContext
) -> None:
    with visit(at_populated, populated.at("/exports")) as seen:
        page = seen.page
        page.emulate_media(media="print", color_scheme="dark")
        assert not page.locator("header").is_visible()
        assert not page.locator(".filters").first.is_visible()
        assert page.locator("body").evaluate("(e) => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
        page.emulate_media(media="screen", color_scheme="light", forced_colors="active", reduced_motion="reduce")
        status = page.locator(".status").first
        assert status.evaluate("(e) => getComputedStyle(e).borderTopStyle") == "solid"
        page.evaluate("document.querySelector('main section').prepend(make('p', 'loading', 'Loading'))")
        assert page.locator(".loading").evaluate("(e) => getComputedStyle(e, '::before').animationName") == "none"
