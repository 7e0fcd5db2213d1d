"""An operator's day at the console: real pages in a real browser, a real service and worker, a receiver that verifies.

The tests read all results from pages, and reload a page to wait for a change. The browser must log no error, and must send
no request to another origin.
"""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from runtime.clock import utc_now
from schemas.exports.tickets.ticket import Source, Ticket
from storage.db.engine import transaction
from storage.exports import transitions
from storage.exports.rows import Draft
from tests.support.database.databases import on_sqlite
from tests.support.factories import LOOPBACK, WEBHOOK_SECRET, Customer, environment, make_approved, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.console_user import make_console_token
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import WorkerProcess
from tests.support.servers.browsers import Watch, watch
from tests.support.servers.redis_and_postgres import RedisServer
from worker.http.signing import SignatureVerdict, verify

NEW_SECRET: Final = "a-secret-that-somebody-typed-at-the-console"
DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 844},
    "color_scheme": "dark",
    "has_touch": True,
    "is_mobile": True,
}
#: Two attempts, one second apart.
SHORT: Final = {"RETRY_SCHEDULE": "1"}
WITHIN_S: Final = 30.0
POLL_MS: Final = 200


class ConsoleReceiver(LoopbackServer):
    """Verifies each request with its current secret, and responds as configured."""

    def __init__(self) -> None:
        super().__init__(self._verify)
        self.secret = WEBHOOK_SECRET
        self.status = 202
        #: The export id and the verdict of each delivery.
        self.verdicts: list[tuple[str, SignatureVerdict]] = []

    def of(self, export_id: str) -> list[SignatureVerdict]:
        """Return the verdict of each delivery of one export."""
        return [verdict for found, verdict in self.verdicts if found == export_id]

    def _verify(self, peer: Peer) -> None:
        while request := peer.read():
            verdict = verify(self.secret.encode(), request.headers, request.body, int(time.time()), lambda _nonce: False)
            self.verdicts.append((request.headers["idempotency-key"], verdict))
            peer.answer(self.status if verdict.ok else 401, b'{"id": "T-1"}')


class ConsoleUi:
    """Operates the console as a user does: by the labels and texts on its pages."""

    def __init__(self, page: Page, home: str) -> None:
        self.page = page
        self._home = home

    def open(self, path: str = "") -> None:
        """Open a page of the console by its path."""
        answer = self.page.goto(f"{self._home}/console{path}")
        assert answer is not None
        assert answer.status == 200, path

    def sign_in(self, token: str) -> None:
        """Open a page that requires signing in, sign in, and check that the page follows."""
        self.open("/exports")
        self.page.get_by_label("API token").fill(token)
        self.press("Sign in")
        expect(self.page.get_by_role("heading", level=1)).to_have_text("Exports")

    def press(self, button: str) -> None:
        """Press the one button with this text."""
        self.page.locator("main, header").get_by_role("button", name=button, exact=True).click()

    def confirm(self, button: str, **fields: str) -> None:
        """Open the confirmation that contains a button, fill in its fields, and press the button."""
        behind = self.page.locator("details.confirm").filter(has=self.page.locator("button", has_text=exactly(button)))
        behind.locator("summary").click()
        for name, text in fields.items():
            behind.locator(f"[name={name}]").fill(text)
        behind.get_by_role("button", name=button, exact=True).click()

    def find(self, status: str, title: str) -> None:
        """Find an export with the filters, and open its page."""
        self.open("/exports")
        self.page.get_by_label("Status").select_option(status)
        self.press("Filter")
        self.page.wait_for_url(re.compile(rf"[?&]status={status}"))
        self.page.get_by_role("link", name=title, exact=True).click()
        expect(self.page.get_by_role("heading", level=1)).to_contain_text(title)

    def approve(self, title: str, target: str) -> str:
        """Approve a prepared export for a target, and return its id."""
        self.find("prepared", title)
        choice = self.page.locator("select[name=target_id]")
        choice.select_option(choice.locator("option", has_text=target).get_attribute("value"))
        self.press("Approve")
        self.expect_notice("Ticket approved. A worker delivers it.")
        return self.page.url.partition("?")[0].rpartition("/")[2]

    def expect_notice(self, notice: str) -> None:
        """Check that the page shows this notice after an action."""
        expect(self.page.get_by_role("status").filter(has_text=notice)).to_be_visible()

    def wait_for_text(self, place: Locator, text: str) -> None:
        """Reload the page until a text is at a place on it."""
        until = time.monotonic() + WITHIN_S
        while text not in place.inner_text():
            assert time.monotonic() < until, f"{place.inner_text()!r} stayed"
            # Leave the CPU to the worker.
            self.page.wait_for_timeout(POLL_MS)
            self.page.reload()

    def wait_for_status(self, status: str) -> None:
        """Reload the page until its export, target or recovery has a status."""
        self.wait_for_text(self.status, status)

    @property
    def status(self) -> Locator:
        """The status on the page of an export, a target or a recovery."""
        return self.page.locator("main .status").first

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the secret on a target's page."""
        found = re.search(r"fp:[0-9a-f]{12}", self.page.locator("main").inner_text())
        assert found
        return found[0]


def exactly(text: str) -> re.Pattern[str]:
    return re.compile(rf"^\s*{re.escape(text)}\s*$")


@pytest.fixture
def service(database: str, redis: RedisServer, tmp_path: Path) -> Iterator[Service]:
    """The service on the same database and Redis as the worker."""
    folder = tmp_path / "served"
    folder.mkdir()
    settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK, **SHORT}
    with Service(environment(folder, **settings)) as running:
        yield running


@pytest.fixture
def worker(start: Any) -> Iterator[WorkerProcess]:
    with start(**SHORT) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[ConsoleReceiver]:
    with ConsoleReceiver() as made:
        yield made


def prepare(customer: Customer, *titles: str) -> None:
    """Store a prepared export for each title."""
    tickets = [Ticket(title, "Seen at the till.", "high", "https://shop.example/till", (), {}) for title in titles]
    drafts = [Draft(customer.account_id, customer.project_id, Source("manual", ticket.title), ticket) for ticket in tickets]
    with transaction():
        transitions.prepare(drafts, utc_now(), "user:test")


@contextmanager
def console_user(browser: Browser, service: Service, **how: Any) -> Iterator[tuple[ConsoleUi, Watch]]:
    """Yield a user with a browser. At the end, check that the browser recorded no errors and the service logged none."""
    home = f"http://127.0.0.1:{service.port}"
    context = browser.new_context(reduced_motion="reduce", **how)
    seen = watch(context)
    yield ConsoleUi(context.new_page(), home), seen
    assert seen.complaints(home) == []
    assert service.log.read_text().count('"level": "error"') == 0
    context.close()


def sign_out(operator: ConsoleUi) -> None:
    """Sign out, and check that the session's cookie is no longer accepted."""
    context = operator.page.context
    kept = [cookie for cookie in context.cookies() if cookie["name"] != "riskrelay_preferences"]
    assert [cookie["name"] for cookie in kept] == ["riskrelay_session"]
    # Until the style sheet is loaded, the menu for narrow windows is visible in wide windows too.
    operator.page.wait_for_load_state()
    if operator.page.get_by_text("More", exact=True).is_visible():
        operator.page.get_by_text("More", exact=True).click()
    operator.press("Sign out")
    operator.expect_notice("You are signed out.")
    assert [cookie["name"] for cookie in context.cookies()] == ["riskrelay_preferences"]
    context.add_cookies(kept)  # type: ignore[arg-type]  # it accepts the cookies that it returned
    operator.open("/exports")
    assert "/console/sign-in?" in operator.page.url
    expect(operator.page.get_by_role("alert")).to_have_text("This session was signed out.")


def complete_core_workflow(
    operator: ConsoleUi, receiver: ConsoleReceiver, worker: WorkerProcess, token: str, target_id: str
) -> None:
    """Sign in, approve an export and see its delivery; see another one fail and retry it; pause, see one wait, resume."""
    operator.sign_in(token)
    first = operator.approve("The price is missing", "Tracker")
    operator.wait_for_status("delivered")
    assert receiver.of(first) == [SignatureVerdict.OK]

    receiver.status = 500
    second = operator.approve("The cart is empty", "Tracker")
    operator.wait_for_status("failed")
    assert receiver.of(second) == [SignatureVerdict.OK] * 2
    receiver.status = 202
    operator.press("Retry")
    operator.expect_notice("Export queued for retry, with a new schedule of attempts.")
    operator.wait_for_status("delivered")
    assert len(receiver.of(second)) == 3

    # Approved before the pause, but not sent yet.
    worker.signal(signal.SIGSTOP)
    third = operator.approve("The form has no name", "Tracker")
    operator.open(f"/targets/{target_id}")
    operator.press("Pause")
    operator.expect_notice("Target paused.")
    expect(operator.status).to_have_text("paused")
    worker.signal(signal.SIGCONT)
    # A paused target is not offered, and the page names the reason.
    operator.find("prepared", "The picture has no text")
    expect(operator.page.locator("select[name=target_id] option", has_text="Tracker")).to_have_count(0)
    expect(operator.page.locator("[data-unavailable] li", has_text="Tracker")).to_contain_text("is paused")
    # An export that was approved later for another target has arrived already; this one waits.
    operator.approve("The picture has no text", "Witness")
    operator.wait_for_status("delivered")
    assert receiver.of(third) == []
    operator.find("approved", "The form has no name")
    operator.open(f"/targets/{target_id}")
    operator.press("Resume")
    operator.expect_notice("Target resumed.")
    operator.open(f"/exports/{third}")
    operator.wait_for_status("delivered")
    assert receiver.of(third) == [SignatureVerdict.OK]


CORE: Final = ("The price is missing", "The cart is empty", "The form has no name", "The picture has no text")


def change_secret(operator: ConsoleUi, receiver: ConsoleReceiver, target_id: str) -> None:
    """Set another secret: the page does not show it, and the next delivery is signed with it."""
    operator.open(f"/targets/{target_id}")
    before = operator.fingerprint
    operator.confirm("Set secret", secret=NEW_SECRET)
    operator.expect_notice("Secret set. The next delivery is signed with it.")
    assert operator.fingerprint != before
    assert NEW_SECRET not in operator.page.content()
    receiver.secret = NEW_SECRET
    export_id = operator.approve("The link leads nowhere", "Tracker")
    operator.wait_for_status("delivered")
    assert receiver.of(export_id) == [SignatureVerdict.OK]


def recover_last_hour(
    operator: ConsoleUi, receiver: ConsoleReceiver, worker: WorkerProcess, customer: Customer, target_id: str
) -> None:
    """Redeliver the exports that failed in the last hour, and wait for the end of the recovery."""
    lost = fail_exports(operator, receiver, customer, target_id, 3)
    recovery = begin_recovery(operator, worker, target_id)
    expect(recovery.page.locator("main progress")).to_have_attribute("value", "0")
    expect(recovery.page.locator("main progress")).to_have_attribute("max", "3")
    worker.signal(signal.SIGCONT)
    operator.wait_for_status("done")
    for export_id in lost:
        operator.open(f"/exports/{export_id}")
        operator.wait_for_status("delivered")
        assert receiver.of(export_id) == [SignatureVerdict.OK] * 2


def cancel_recovery(
    operator: ConsoleUi, receiver: ConsoleReceiver, worker: WorkerProcess, customer: Customer, target_id: str
) -> None:
    """Start another recovery, and cancel it before it redelivers any export."""
    lost = fail_exports(operator, receiver, customer, target_id, 1)
    begin_recovery(operator, worker, target_id)
    operator.press("Cancel recovery")
    operator.expect_notice("Recovery cancelled.")
    expect(operator.status).to_have_text("cancelled")
    worker.signal(signal.SIGCONT)
    operator.approve("The page is slow", "Tracker")
    operator.wait_for_status("delivered")
    assert [len(receiver.of(export_id)) for export_id in lost] == [1]


def fail_exports(
    operator: ConsoleUi, receiver: ConsoleReceiver, customer: Customer, target_id: str, count: int
) -> list[str]:
    """Let a receiver reject `count` exports permanently, and return their ids."""
    receiver.status = 404
    lost = [make_approved(customer, target_id, utc_now()) for _ in range(count)]
    for export_id in lost:
        operator.open(f"/exports/{export_id}")
        operator.wait_for_status("failed")
    receiver.status = 202
    return lost


def begin_recovery(operator: ConsoleUi, worker: WorkerProcess, target_id: str) -> ConsoleUi:
    """Request a recovery of the last hour while the worker is stopped, and check that it waits."""
    worker.signal(signal.SIGSTOP)
    operator.open(f"/targets/{target_id}")
    operator.page.locator("[name=since][value='1h']").check()
    operator.press("Recover")
    operator.expect_notice("Recovery started.")
    expect(operator.status).to_have_text("running")
    return operator


#: The complete test on each database: once on a desktop with the light theme, once on a phone with the dark theme.
STORIES: Final = [pytest.param("sqlite", DESKTOP, id="light"), pytest.param("postgresql", PHONE, id="dark_phone")]


@pytest.mark.timeout(300)  # many pages, one after the other
@pytest.mark.parametrize(("database_url", "how"), STORIES, indirect=["database_url"])
def test_a_user_completes_every_task_of_the_console(
    how: dict[str, Any],
    browser: Browser,
    customer: Customer,
    service: Service,
    worker: WorkerProcess,
    receiver: ConsoleReceiver,
) -> None:
    prepare(customer, *CORE, "The link leads nowhere", "The page is slow")
    target = make_target(customer, receiver.url())
    make_target(customer, receiver.url(), "Witness")
    token = make_console_token(customer)
    with console_user(browser, service, **how) as (operator, seen):
        complete_core_workflow(operator, receiver, worker, token, target.id)
        change_secret(operator, receiver, target.id)
        recover_last_hour(operator, receiver, worker, customer, target.id)
        cancel_recovery(operator, receiver, worker, customer, target.id)
        sign_out(operator)
        assert any(url.endswith("/console/static/console.js") for url in seen.requested)
    shown = service.log.read_text() + worker.log.read_text()
    assert [secret for secret in (token, NEW_SECRET, WEBHOOK_SECRET) if secret in shown] == []


@on_sqlite
def test_the_core_workflow_works_without_javascript(
    browser: Browser, customer: Customer, service: Service, worker: WorkerProcess, receiver: ConsoleReceiver
) -> None:
    prepare(customer, *CORE)
    target = make_target(customer, receiver.url())
    make_target(customer, receiver.url(), "Witness")
    with console_user(browser, service, java_script_enabled=False, **DESKTOP) as (operator, seen):
        complete_core_workflow(operator, receiver, worker, make_console_token(customer), target.id)
        sign_out(operator)
        assert not any(url.endswith(".js") for url in seen.requested)
