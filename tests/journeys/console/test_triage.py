"""The inbox: hundreds of findings are decided in a few interactions, with the mouse, with keys, without JavaScript."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.intake.scanner import PostbackForm
from storage.db.engine import execute, rows
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    LOOPBACK,
    SCANNER_SECRET,
    Customer,
    environment,
    issue,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.console_user import make_console_token
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import WorkerProcess
from tests.support.scan_reports import FILES, imported
from tests.support.servers.browsers import watch
from tests.support.servers.redis_and_postgres import RedisServer

# The pages are the same on both databases.
pytestmark = on_sqlite

#: The numbers of findings and of rules that group them, as in three real scans.
FINDINGS: Final = 392
RULES: Final = 51
MAX_INTERACTIONS: Final = 15
SEVERITIES: Final = ("critical", "high", "medium", "low", "info")
WITHIN_S: Final = 30.0
PHONE: Final = {"width": 390, "height": 844}


class InboxUser:
    """A user of the inbox; counts each click, key and choice."""

    def __init__(self, page: Page, home: str, token: str) -> None:
        self.page = page
        self.home = home
        self.interactions = 0
        page.goto(f"{home}/console/sign-in")
        page.get_by_label("API token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/console/inbox")

    def click(self, found: Any) -> None:
        """Click an element."""
        self.interactions += 1
        found.click()

    def button(self, name: str) -> None:
        """Press the button with a name."""
        self.click(self.page.locator("main").get_by_role("button", name=name, exact=True))

    def choose(self, name: str, text: str) -> None:
        """Choose an option from a drop-down list."""
        self.interactions += 1
        self.page.locator(f"main select[name={name}]").select_option(label=text)

    def key(self, key: str) -> None:
        """Press a key after the page's script has started: on a page that still loads, the key would have no effect."""
        self.interactions += 1
        self.page.wait_for_load_state()
        self.page.keyboard.press(key)

    def select_all(self) -> None:
        """Select every ticket that matches the filters."""
        self.click(self.page.locator(".row input[type=checkbox]").first)
        self.click(self.page.locator("#selection input[name=all]"))

    def wait_for_job(self) -> None:
        """Wait until the page of the bulk job shows that it is done."""
        until = time.monotonic() + WITHIN_S
        while "done" not in self.page.locator("#job .status").inner_text():
            assert time.monotonic() < until, self.page.locator("#job").inner_text()
            self.page.wait_for_timeout(300)
            self.page.reload()


@pytest.fixture
def service(database: str, redis: RedisServer, customer: Customer, tmp_path: Path) -> Iterator[Service]:
    """The service on the same database and Redis as the worker."""
    folder = tmp_path / "served"
    folder.mkdir()
    settings = {"DATABASE_URL": database, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
    settings["DEFAULT_PROJECT_ID"] = str(customer.project_id)
    with Service(environment(folder, **settings)) as running:
        yield running


@pytest.fixture
def worker(start: Callable[..., Any]) -> Iterator[WorkerProcess]:
    with start() as running:
        yield running


def group_by_rule() -> None:
    execute("UPDATE projects SET ticket_grouping = 'rule'")


def record_findings(customer: Customer) -> None:
    """Store FINDINGS findings of RULES rules."""
    group_by_rule()
    issues: list[Mapping[str, Any]] = [
        issue(f"rule-{n % RULES}", title=f"Problem {n % RULES}", severity=SEVERITIES[n % RULES % 5], location=f"#n{n}")
        for n in range(FINDINGS)
    ]
    record_postback(PostbackForm().read(postback(issues=issues)), customer.project_id, utc_now())


@pytest.mark.timeout(180)
def test_hundreds_of_findings_are_approved_or_dismissed_in_a_few_interactions(
    browser: Browser, customer: Customer, service: Service, worker: WorkerProcess
) -> None:
    record_findings(customer)
    target = make_target(customer)
    assert rows("SELECT COUNT(*), SUM(findings_total) FROM exports")[0] == (RULES, FINDINGS)
    home = f"http://127.0.0.1:{service.port}"
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    seen = watch(context)
    user = InboxUser(context.new_page(), home, make_console_token(customer))
    # Critical tickets are approved for the tracker.
    user.click(user.page.locator("summary", has_text="Severity:"))
    user.click(user.page.get_by_role("link", name=re.compile("^Critical")))
    user.page.wait_for_url("**severity=critical*")
    user.select_all()
    user.button("Approve…")
    user.button("Approve 11 tickets")
    user.wait_for_job()
    # All other tickets are dismissed.
    user.click(user.page.get_by_role("link", name="Back to the inbox"))
    # The list still has the filter, which matches no ticket any more.
    user.click(user.page.get_by_role("link", name="Clear filters"))
    user.select_all()
    user.button("Dismiss…")
    user.choose("reason", "Won't fix")
    user.button("Dismiss 40 tickets")
    user.wait_for_job()
    assert user.interactions <= MAX_INTERACTIONS
    found = dict(rows("SELECT CASE WHEN target_id IS NULL THEN status ELSE 'sent' END, COUNT(*) FROM exports GROUP BY 1"))
    assert found == {"sent": 11, "dismissed": 40}
    assert {target_id for (target_id,) in rows("SELECT target_id FROM exports WHERE target_id IS NOT NULL")} == {target.id}
    assert seen.complaints(home) == []
    context.close()


@pytest.mark.timeout(180)
def test_tickets_are_approved_and_dismissed_with_keyboard_shortcuts(
    browser: Browser, customer: Customer, service: Service
) -> None:
    group_by_rule()
    for name in FILES:
        for each in imported(name).postbacks:
            record_postback(PostbackForm().read(each.body), customer.project_id, utc_now())
    make_target(customer)
    home = f"http://127.0.0.1:{service.port}"
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    seen = watch(context)
    user = InboxUser(context.new_page(), home, make_console_token(customer))
    title = user.page.locator("#ticket-title")
    first = title.inner_text()
    user.key("j")
    expect(title).not_to_have_text(first)
    user.key("k")
    expect(title).to_have_text(first)
    # A letter that is typed into the search field is not a shortcut.
    user.key("/")
    user.page.keyboard.type("adj")
    expect(user.page.get_by_role("searchbox")).to_have_value("adj")
    expect(title).to_have_text(first)
    user.page.locator("h1").click()
    user.key("a")
    user.page.wait_for_url("**done=approved*", wait_until="commit")
    expect(user.page.get_by_role("status").filter(has_text="Ticket approved.")).to_be_visible()
    second = title.inner_text()
    assert second != first
    user.key("d")
    user.page.locator(".pop[open]").get_by_label("Note").fill("Seen before.")
    user.button("Dismiss")
    expect(title).not_to_have_text(second)
    assert sorted(rows("SELECT status, COUNT(*) FROM exports WHERE status <> 'prepared' GROUP BY status")) == [
        ("approved", 1),
        ("dismissed", 1),
    ]
    user.page.goto(f"{home}/console/inbox?view=dismissed")
    user.button("Restore")
    expect(user.page.get_by_role("status").filter(has_text="Ticket restored.")).to_be_visible()
    assert seen.complaints(home) == []
    context.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "how", [{"java_script_enabled": False}, {"viewport": {"width": 390, "height": 844}, "is_mobile": True}]
)
def test_editing_and_bulk_dismissal_work_on_a_phone_and_without_javascript(
    how: dict[str, Any], browser: Browser, customer: Customer, service: Service
) -> None:
    record_findings(customer)
    make_target(customer)
    home = f"http://127.0.0.1:{service.port}"
    context = browser.new_context(**how)
    user = InboxUser(context.new_page(), home, make_console_token(customer))
    user.click(user.page.locator("a.row-title").first)
    user.click(user.page.locator("#ticket").get_by_role("link", name="edit"))
    user.page.get_by_label("Title").fill("A better title")
    user.button("Save")
    expect(user.page.locator("#ticket-title")).to_have_text("A better title")
    user.page.goto(f"{home}/console/inbox?severity=low")
    for box in user.page.locator(".row input[type=checkbox]").all()[:2]:
        box.check()
    user.button("Dismiss…")
    user.button("Dismiss 2 tickets")
    expect(user.page.get_by_role("status").filter(has_text="2 tickets dismissed.")).to_be_visible()
    context.close()


class StatusReceiver(LoopbackServer):
    """Responds to every request with one status."""

    def __init__(self, status: int) -> None:
        super().__init__(self._answer)
        self._status = status

    def _answer(self, peer: Peer) -> None:
        while peer.read():
            peer.answer(self._status, b"{}")


@pytest.mark.timeout(180)
def test_a_rule_approves_a_finding_and_a_failed_export_is_retried_at_another_target(
    browser: Browser, customer: Customer, service: Service, worker: WorkerProcess
) -> None:
    with StatusReceiver(202) as right, StatusReceiver(404) as wrong:
        make_target(customer, f"http://127.0.0.1:{right.port}/hook", "Tracker")
        make_target(customer, f"http://127.0.0.1:{wrong.port}/hook", "Moved away")
        home = f"http://127.0.0.1:{service.port}"
        context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        seen = watch(context)
        token = make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_RULES, Ability.APPROVE_EXPORTS)
        user = InboxUser(context.new_page(), home, token)
        page = user.page
        page.goto(f"{home}/console/rules/new")
        page.get_by_label("Name", exact=True).fill("Labels of forms")
        page.get_by_label("Rule code").fill("axe:label*")
        page.get_by_label("Approve for").check()
        user.choose("target_id", f"Tracker (127.0.0.1:{right.port})")
        user.button("Add the rule")
        expect(page.get_by_role("status").filter(has_text="Rule saved.")).to_be_visible()
        # After a scan, the rule approves the first finding, and a user the second one.
        issues: list[Mapping[str, Any]] = [
            issue("axe:label", title="Field without label"),
            issue("axe:alt", title="Image without text"),
        ]
        headers = {"X-Scanner-Secret": SCANNER_SECRET}
        posted = service.request("POST", "/api/scanner/results", headers, postback(issues=issues))
        assert posted.status == 202
        page.goto(f"{home}/console/inbox")
        expect(page.locator(".row")).to_have_count(1)
        user.choose("target_id", f"Moved away (127.0.0.1:{wrong.port})")
        user.button("Approve")
        expect(page.get_by_role("status").filter(has_text="Ticket approved.")).to_be_visible()
        wait_for_row(page, f"{home}/console/deliveries?view=delivered", "Field without label")
        expect(page.locator("#ticket")).to_contain_text("rule Labels of forms")
        wait_for_row(page, f"{home}/console/deliveries?view=failed", "Image without text")
        expect(page.locator("#ticket")).to_contain_text("HTTP 404")
        user.click(page.locator("#ticket summary", has_text="Other target…"))
        user.click(page.locator("#ticket").get_by_role("button", name="Retry there"))
        expect(page.get_by_role("status").filter(has_text="Export queued for retry")).to_be_visible()
        wait_for_row(page, f"{home}/console/deliveries?view=delivered", "Image without text")
        assert seen.complaints(home) == []
        context.close()
    assert dict(rows("SELECT status, COUNT(*) FROM exports GROUP BY status")) == {"exported": 2}


def wait_for_row(page: Page, address: str, title: str) -> None:
    """Reload a list until it has a ticket with this title, and open the ticket."""
    until = time.monotonic() + WITHIN_S
    page.goto(address)
    while not page.locator("a.row-title", has_text=title).count():
        assert time.monotonic() < until, page.locator("main").inner_text()
        page.wait_for_timeout(300)
        page.reload()
    page.locator("a.row-title", has_text=title).click()
    expect(page.locator("#ticket-title")).to_contain_text(title)
