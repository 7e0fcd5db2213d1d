"""Screenshots of the console for the documentation: `python -m tests.docs.screenshots` writes docs/console/*.png.

With `FOLDER [NAME.png …]` it writes all pictures, or the named ones, to another folder.

It fills a temporary installation with made-up data. Times, ids and secrets are fixed and the clock is frozen, so a picture
changes only when its page changes.
"""

import hashlib
import itertools
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from freezegun import freeze_time
from playwright.sync_api import Browser, Page
from ulid import ULID

from schemas.base.principal import Ability, TokenKind
from schemas.base.timestamps import to_ms
from schemas.exports.record import Approval
from schemas.exports.state_machine import Transition
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.intake.scanner import PostbackForm
from schemas.intake.sources import InboundSource, RejectedField, Rejection
from schemas.targets.target import TargetRequest
from service.app import create_app
from storage.accounts import accounts, projects, sessions, tokens
from storage.db import identifiers, schema_version
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.exports import claims_sql, recoveries, transitions, worker_heartbeats
from storage.exports.rows import Draft
from storage.intake import rejections
from storage.secrets.default_secret import DefaultSecret
from storage.targets import targets
from storage.triage import decisions
from tests.support.factories import (
    LOOPBACK_POLICY,
    claim_due,
    completed_attempt,
    issue,
    make_settings,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.servers.browsers import PATIENCE_MS, chromium

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "console"
#: The time that every picture shows.
NOW: Final = datetime(2026, 3, 2, 14, 25, tzinfo=UTC)
#: The largest picture that a reader on a mobile network should load.
MAX_BYTES: Final = 150_000
#: The server process first imports everything, which is slow on a busy machine.
START_WITHIN_S: Final = 60.0
BROWSER: Final = "Mozilla/5.0 (screenshots)"
HOME: Final = "/var/lib/riskrelay"
WORKER: Final = "worker:host-1:812:5f0c11aa"

DESKTOP: Final = {"width": 1024, "height": 600}
#: Pages that need more height to be useful.
HEIGHTS: Final = {"overview": 800, "export": 820, "target": 900, "inbox": 640}
#: Lists need more width.
WIDTHS: Final = {"inbox": 1180, "exports": 1180}
#: A form is taken whole, without the sticky header in its middle.
FORM_HEIGHT: Final = 1200
PHONE: Final = {"width": 390, "height": 844}
#: Paths below /console by page; ids in braces come from the database.
PAGES: Final[Mapping[str, str]] = {
    "overview": "/overview",
    "exports": "/exports",
    "export": "/exports/{export}",
    "target": "/targets/{target}",
    "integrations": "/integrations",
    "inbox": "/inbox",
}
#: By provider, the values by input name for the form of a new target, whose picture docs/targets/PROVIDER.md shows.
FORMS: Final[Mapping[str, Mapping[str, str]]] = {
    "webhook": {"name": "Shop receiver", "base_url": "https://tickets.shop.example/hooks/risks", "max_per_minute": "120"},
    "github": {"name": "Shop", "base_url": "https://github.com/acme/shop", "setting.labels": "website-risk"},
    "gitlab": {"name": "Shop", "base_url": "https://gitlab.com/acme/web/shop", "setting.labels": "website-risk"},
    "jira": {"name": "Shop", "base_url": "https://acme.atlassian.net", "setting.project": "SHOP"},
    "gitea": {"name": "Shop", "base_url": "https://gitea.example.com/acme/shop", "setting.labels": "website-risk"},
    "linear": {"name": "Shop", "base_url": "https://linear.app/acme", "setting.team": "ENG"},
    "redmine": {"name": "Shop", "base_url": "https://redmine.example.com/projects/shop"},
}
#: The `provider_key` of providers that have another name in the documentation.
PROVIDERS: Final[Mapping[str, str]] = {"webhook": "generic_webhook"}
#: Named PAGE[-phone]-SCHEME.png, and add-PROVIDER-light.png.
PICTURES: Final = (
    *(f"{page}-light.png" for page in PAGES),
    *("inbox-dark.png", "target-phone-light.png"),
    *(f"add-{provider}-light.png" for provider in FORMS),
)

_ISSUES: Final = (
    ("img-alt", "Image without alternative text", "high", "main > img.hero"),
    ("label", "Form field without a label", "critical", "form#checkout > input:nth-child(3)"),
    ("color-contrast", "Text with too little contrast", "medium", "footer > p.small"),
    ("link-name", "Link without a name", "high", "header > a.cart"),
    ("html-lang", "Page without a language", "medium", "html"),
    ("csp-missing", "No Content-Security-Policy header", "medium", ""),
    ("jquery-old", "jQuery 1.12.4 has known vulnerabilities", "critical", "script[src*=jquery]"),
    ("cookie-httponly", "Cookie without HttpOnly", "medium", ""),
    ("server-version", "Server header reveals its version", "low", ""),
    ("meta-description", "Meta description missing", "low", "head"),
    ("heading-order", "Heading levels are skipped", "medium", "main > h4"),
    ("hsts-missing", "No Strict-Transport-Security header", "high", ""),
    ("tap-target", "Touch targets are too small", "low", "nav > a"),
    ("title-long", "Title is longer than 60 characters", "info", "head > title"),
)
#: What the newest scan finds.
_NEW_ISSUES: Final = (
    ("form-action-http", "Form sends its data without encryption", "critical", "form#newsletter"),
    ("aria-name", "Button without an accessible name", "high", "button.close"),
    ("focus-hidden", "Focus is not visible", "medium", "nav > a.menu"),
    ("referrer-policy", "No Referrer-Policy header", "low", ""),
    ("favicon-missing", "No icon for bookmarks", "info", "head"),
)
_PATHS: Final = ("", "cart", "checkout", "shipping")


@dataclass(frozen=True, slots=True)
class SampleSession:
    """The cookie of a signed-in session, and the ids of the records to show."""

    cookie: str
    ids: Mapping[str, str]


def main() -> None:
    """Write the named pictures, or all of them."""
    folder, *names = sys.argv[1:] or [str(FOLDER)]
    write(Path(folder), names or PICTURES)


def write(folder: Path, names: Sequence[str]) -> None:
    """Write pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        sample = create_sample(Path(data))
        with served(Path(data)) as base_url, chromium() as browser:
            for name in names:
                picture = take(browser, base_url, name, sample)
                (folder / name).write_bytes(picture)
                sys.stdout.write(f"{folder / name}  {len(picture) / 1000:.0f} kB\n")


def take(browser: Browser, base_url: str, name: str, sample: SampleSession) -> bytes:
    """Return the named picture as PNG."""
    page_name, scheme = name.removesuffix(".png").rsplit("-", 1)
    provider = page_name.removeprefix("add-")
    height = FORM_HEIGHT if provider in FORMS else HEIGHTS.get(page_name, DESKTOP["height"])
    size = {"width": WIDTHS.get(page_name, DESKTOP["width"]), "height": height}
    if page_name.endswith("-phone"):
        size = PHONE
    context = browser.new_context(
        viewport=size,  # type: ignore[arg-type]  # a dict of both
        color_scheme=scheme,  # type: ignore[arg-type]  # light or dark
        user_agent=BROWSER,
        timezone_id="UTC",
        locale="en-GB",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    context.clock.set_fixed_time(NOW)
    context.add_cookies([{"name": "riskrelay_session", "value": sample.cookie, "url": f"{base_url}/console"}])
    page = context.new_page()
    add = f"/targets/add?provider={PROVIDERS.get(provider, provider)}"
    path = add if provider in FORMS else PAGES[page_name.removesuffix("-phone")]
    response = page.goto(f"{base_url}/console{path.format(**sample.ids)}")
    assert response is not None
    assert (response.status, "/sign-in" in page.url) == (200, False), page.content()
    picture = _form(page, FORMS[provider]) if provider in FORMS else page.screenshot(animations="disabled", caret="hide")
    context.close()
    return picture


def _form(page: Page, typed: Mapping[str, str]) -> bytes:
    """Return a page's heading and its form, filled in."""
    for name, text in {**typed, "secret": "a-token-of-this-length"}.items():
        page.locator(f'main form [name="{name}"]').fill(text)
    page.locator(":focus").blur()
    main, form = page.locator("main").bounding_box(), page.locator("main form").bounding_box()
    assert main is not None
    assert form is not None
    margin = form["x"] - main["x"]
    return page.screenshot(
        animations="disabled", caret="hide", clip={**main, "height": form["y"] + form["height"] + margin - main["y"]}
    )


# --- the installation


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the installation from a separate process with a frozen clock; yield its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(folder, port), daemon=True)
    process.start()
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """Threads, because browsers open spare connections that would block a single-threaded server."""

    daemon_threads = True


class _SilentRequestHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _serve(folder: Path, port: int) -> None:
    open_database(_url(folder))
    # With https, the browser would send the session cookie only over TLS.
    shown = {"PUBLIC_BASE_URL": "http://risk.example.com", "EMAIL_WEBHOOK_SECRET": "email-secret-for-pictures"}
    # Display values only: nothing is written to these paths and nothing connects to this Redis.
    made = replace(
        make_settings(folder, shown),
        data_dir=Path(HOME),
        database_url=f"sqlite:///{HOME}/riskrelay.db",
        redis_url="redis://redis.internal:6379/0",
    )
    app = create_app(made, FakeWakeUpQueue(), FakeResolver({}))
    with freeze_time(NOW), make_server("127.0.0.1", port, app, _ThreadingServer, _SilentRequestHandler) as server:
        server.serve_forever()


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < until, "The installation did not start."
            time.sleep(0.05)
        else:
            return


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'riskrelay.db'}"


def create_sample(folder: Path) -> SampleSession:
    """Create the installation: a shop that is scanned every night, and two trackers, one of which fails."""
    numbers = itertools.count(1)

    def counted(prefix: str, now: datetime) -> str:
        chance = hashlib.sha256(str(next(numbers)).encode()).digest()[:10]
        return f"{prefix}_{ULID.from_bytes(to_ms(now).to_bytes(6, 'big') + chance)}"

    drawn, identifiers.new_id = identifiers.new_id, counted
    open_database(_url(folder))
    try:
        with freeze_time(NOW), connection():
            schema_version.migrate()
            return _fill()
    finally:
        close_database()
        identifiers.new_id = drawn


def _fill() -> SampleSession:
    began = NOW - timedelta(days=21)
    account = accounts.add_account("Snow Outfitters", began)
    accounts.add_user("jane@shop.example", account.id, began)
    project = projects.add_project("shop.example", account.id, began, "snow.shops.example")
    accounts.grant_project("jane@shop.example", project.id, began)
    _, token = tokens.create("jane@shop.example", TokenKind.API, began, (Ability.CONSOLE,), "Jane's laptop")
    tracker, helpdesk = (_target(account.id, name, began) for name in ("Tracker", "Agency helpdesk"))
    _scan(project.id)
    _write_by_hand(account.id, project.id)
    _deliver(account.id, tracker, helpdesk)
    _scan_again(project.id)
    _count_hours(tracker, helpdesk)
    _refuse()
    recovery = recoveries.request(helpdesk, account.id, NOW - timedelta(hours=2), NOW - timedelta(seconds=40), "user:1")
    execute("UPDATE recoveries SET total = 1840, done = 1250 WHERE id = ?", (recovery.id,))
    for name, seconds in ((WORKER, 1), ("worker:host-2:790:a1d9e04b", 2)):
        worker_heartbeats.beat(name, NOW - timedelta(seconds=seconds))
    principal = tokens.principal_for(token, NOW)
    assert principal is not None
    [(retried,)] = rows("SELECT id FROM exports WHERE status = 'exported' ORDER BY attempts DESC, id LIMIT 1")
    ids = {"export": str(retried), "target": tracker}
    return SampleSession(sessions.begin(principal, BROWSER, NOW), ids)


def _target(account_id: int, name: str, at: datetime) -> str:
    request = TargetRequest(
        "generic_webhook", f"https://{name.split(maxsplit=1)[0].lower()}.example/hooks/risks", None, name, None
    )
    with transaction():
        made = targets.create(request, account_id, "self-hosted", DefaultSecret("secret", "fp:5b1f0c9e77a2"), at, "user:1")
        execute("UPDATE targets SET validation_due_at = NULL WHERE id = ?", (made.id,))
    execute(
        "UPDATE targets SET validation_status = 'passed', validated_at = ?, ramp = 16 WHERE id = ?",
        (to_ms(NOW - timedelta(hours=9)), made.id),
    )
    return made.id


def _scan(project_id: int) -> None:
    """Record two scans of a few pages; the second finds most of the same issues again."""
    for run, days in ((41, 2), (42, 1)):
        at = NOW - timedelta(days=days, hours=11)
        projects.add_scan_run(project_id, at, run)
        for number, place in enumerate(_PATHS):
            found: list[Mapping[str, Any]] = [
                issue(code, title=title, severity=severity, location=location)
                for code, title, severity, location in _ISSUES[: len(_ISSUES) - 3 * number]
            ]
            _post(project_id, run, place, found, at + timedelta(minutes=number))


def _scan_again(project_id: int) -> None:
    """Record a scan of this hour, whose findings wait for a decision."""
    at = NOW - timedelta(minutes=20)
    projects.add_scan_run(project_id, at, 43)
    for number, place in enumerate(_PATHS):
        found: list[Mapping[str, Any]] = [
            issue(code, title=title, severity=severity, location=location)
            for code, title, severity, location in _NEW_ISSUES[: len(_NEW_ISSUES) - number]
        ]
        _post(project_id, 43, place, found, at + timedelta(seconds=40 * number))


def _post(project_id: int, run: int, place: str, found: list[Mapping[str, Any]], at: datetime) -> None:
    url = f"https://shop.example/{place}"
    posted = postback(run, found)
    posted["page"] |= {"url": url, "normalizedUrl": url}
    record_postback(PostbackForm().read(posted), project_id, at)


def _write_by_hand(account_id: int, project_id: int) -> None:
    described = (
        ("The checkout takes no postcode with a space", "critical", "https://shop.example/checkout"),
        ("Prices flicker while the cart loads", "medium", "https://shop.example/cart"),
        ("The size table cannot be read by a screen reader", "high", "https://shop.example/shipping"),
    )
    for number, (title, severity, url) in enumerate(described):
        text = f"{title}. Seen in two browsers, again after a reload."
        draft = Draft(
            account_id,
            project_id,
            Source("manual", f"note-{number + 1}"),
            Ticket(title, text, severity, url, ("checkout",), {"steps": ["Open the page.", "Fill the form.", "Press pay."]}),
        )
        with transaction():
            transitions.prepare([draft], NOW - timedelta(hours=3, minutes=7 * number), "user:1")


def _deliver(account_id: int, tracker: str, helpdesk: str) -> None:
    """Approve most prepared exports: some are delivered, one on its second attempt, some fail, some wait."""
    prepared = [one for (one,) in rows("SELECT id FROM exports ORDER BY id")]
    at = NOW - timedelta(hours=1)
    for number, export_id in enumerate(prepared[:13]):
        where = helpdesk if number in {4, 7, 9} else tracker
        transitions.approve(
            export_id, account_id, Approval(where, None), at + timedelta(seconds=number), "user:1", LOOPBACK_POLICY
        )
    at += timedelta(minutes=1)
    for claim in claim_due(20, at, 60, WORKER):
        number = prepared.index(claim.export_id)
        if number == 2:
            again = at + timedelta(seconds=60)
            retried = completed_attempt(
                claim, Transition.RESCHEDULE, at, error_code="receiver_unavailable", next_attempt_at=again
            )
            claims_sql.record_attempts([retried], at, WORKER)
        elif number in {4, 7, 9}:
            lost = completed_attempt(claim, Transition.FAIL, at, reason="receiver_rejected", error_code="receiver_rejected")
            claims_sql.record_attempts([lost], at, WORKER)
        elif number < 11:
            took = completed_attempt(claim, Transition.DELIVER, at, provider_ticket_id=f"RISK-{100 + number}")
            claims_sql.record_attempts([took], at, WORKER)
        else:
            claims_sql.postpone([claim], NOW, WORKER)
    at += timedelta(minutes=2)
    for claim in claim_due(1, at, 60, WORKER):
        claims_sql.record_attempts(
            [completed_attempt(claim, Transition.DELIVER, at, provider_ticket_id="RISK-118")], at, WORKER
        )
    decisions.dismiss(prepared[13], account_id, NOW - timedelta(minutes=30), "user:1")


def _count_hours(tracker: str, helpdesk: str) -> None:
    hour = NOW.replace(minute=0)
    for back in range(24):
        at = to_ms(hour - timedelta(hours=back))
        busy = 40 + (back * 37) % 90 + (120 if 6 < back < 16 else 0)
        for target_id, delivered, failed in ((tracker, busy, back % 5 == 2), (helpdesk, busy // 4, (back < 4) * 9)):
            execute(
                "INSERT INTO delivery_hours (target_id, hour_at, worker, delivered, failed) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (target_id, hour_at, worker) DO UPDATE SET delivered = excluded.delivered",
                (target_id, at, WORKER, delivered, int(failed)),
            )
    execute(
        "UPDATE targets SET connected_status = 'connected', last_success_at = ? WHERE id = ?",
        (to_ms(NOW - timedelta(minutes=4)), tracker),
    )
    execute("UPDATE targets SET connected_status = 'failing', failures_in_row = 3 WHERE id = ?", (helpdesk,))


def _refuse() -> None:
    at = NOW - timedelta(hours=5)
    refused = Rejection(
        InboundSource.SCANNER,
        at,
        422,
        "VALIDATION_FAILED",
        (RejectedField("/issues/0/severity", "required"),),
        identifiers.new_id(identifiers.REQUEST, at),
    )
    rejections.record([refused])


if __name__ == "__main__":
    # The caller's database must not be used.
    os.environ.pop("DATABASE_URL", None)
    main()
