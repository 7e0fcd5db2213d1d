"""The console shows untrusted text and never executes it: in a real browser, with markup in every stored text.

The texts are written directly into the tables, without the validation that would reject them. Each has a tag with its table,
column and row. The tests then open every page: no script runs, no dialog opens, no request goes to another origin, no
violation of the content security policy occurs, and a page shows each text without changes.

These tests run on SQLite only, because PostgreSQL does not store NUL characters in texts.
"""

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from falcon.inspect import inspect_routes
from peewee import IntegrityError, TextField
from playwright.sync_api import Browser, Error, Page

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.base.timestamps import to_ms
from service.app import create_app
from service.console.layout import CONSOLE, CONTENT_SECURITY_POLICY
from service.console.navigation import LiveCounts
from service.console.pages.exports import ExportReceipt
from service.console.pages.findings import FindingReport
from service.console.untrusted_text import pretty, visible
from storage.db.columns import JsonField
from storage.db.engine import close_database, connection, execute, open_database, rows
from storage.db.models import ALL
from tests.support.corpora import naughty_strings
from tests.support.database.plausible_rows import fill
from tests.support.factories import Customer, environment, make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import make_console_token
from tests.support.processes.gunicorn_process import Service
from tests.support.servers.browsers import Watch, watch

#: Markup that runs, or loads something, where it is not escaped. Scripts among them set `window.did`.
RUNS: Final = (
    "<script>window.did=1</script>",
    "<img src=/console/nothing onerror=window.did=1>",
    "<img src=https://evil.example/pixel>",
    '"><svg onload=window.did=1>',
    "'><svg/onload=window.did=1>",
    '" autofocus onfocus=window.did=1 x="',
    "<iframe src=javascript:alert(1)></iframe>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<link rel=stylesheet href=https://evil.example/style>",
    "<style>@import 'https://evil.example/style';*{background:url(https://evil.example/b)}</style>",
    "<base href=https://evil.example/>",
    "<form action=https://evil.example/><button>Sign in</button>",
    "<a href=javascript:window.did=1>here</a>",
    "</title></textarea></script></style></option></select></td></table><img src=x onerror=alert(1)>",
    "<details open ontoggle=window.did=1>",
    "<math><mtext></p><style><img src=x onerror=alert(1)>",
)
#: Texts that are only unusual, or that are syntax of templates, styles or entities.
ODD: Final = (
    "{{7*7}} {{ config }} {% include 'frame.html' %} {# gone #} ${7*7} <%= 7*7 %> #{7*7}",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "expression(alert(1)) url(javascript:alert(1)) */ } body { display: none }",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img&#62; &amp;amp; &nbsp;",
    "\\u003cscript\\u003e \\x3cscript\\x3e %3Cscript%3E +ADw-script+AD4-",
    "a\u202etxt.exe \u2066b\u2069 \u200fc \u200bd \ufeffe",
    "one\0two \x07\x1b[31mred\x1b[0m \x7f \x85",
    "line\r\nline\rline\u2028line\u2029line\tend",
    "\U0001f4a9 \ufffe \U0010ffff e\u0301\u0301\u0301\u0301",
    "=cmd|' /C calc'!A0 ' OR 1=1 -- ; DROP TABLE exports",
    "<!-- <![CDATA[ <?xml <plaintext> <noscript> <template>",
)
HOSTILE: Final = (*RUNS, *ODD)
#: Columns that contain only the product's own words, by which it finds or reads rows. Input is never written there.
OURS: Final = {
    "tokens.abilities",
    "tokens.token_sha256",
    "console_sessions.secret_sha256",
    "console_sessions.ended_reason",
    "compliance_requests.result",
    "alerts.kind",
    "alerts.subject_id",
    "approval_rules.action",
    "approval_rules.conditions",
    "approval_rules.stopped_reason",
    "bulk_jobs.action",
    "bulk_jobs.errors",
    "bulk_jobs.options",
    "bulk_jobs.status",
    "exports.approved_by_rule_id",
    "exports.dismissal_reason",
    "exports.events",
    "exports.siblings",
    "finding_sightings.outcome",
    "findings.export_id",
    "findings.severity",
    "projects.ticket_grouping",
    "report_uploads.error",
    "report_uploads.format",
    "report_uploads.status",
    "targets.events",
    "targets.format",
    "ticket_changes.change",
    "ticket_events.attempt_records",
    "ticket_events.status",
    "ticket_events.type",
    "targets.header_fingerprints",
    "targets.provider_key",
    "targets.provider_settings",
    "targets.signature",
    "inbound_refusals.source",
    "integration_secrets.name",
}
#: Tables whose names are not the plural of the name in the path.
TABLES: Final = {"recovery": "recoveries", "rule": "approval_rules", "job": "bulk_jobs", "upload": "report_uploads"}
#: Paths that are not pages: the script fetches them, or they are downloads.
NO_PAGES: Final = {LiveCounts.path, ExportReceipt.path, FindingReport.path}
#: Prefixes of texts in columns that contain a URL: a stored URL was validated, so only its path can be hostile.
ADDRESSES: Final = {"targets.base_url": "https://tracker.example/hook/"}

#: Returns the elements and attributes that no page has unless an injection succeeded.
STRANGE: Final = """() => {
  const found = [];
  const never = "img, iframe, object, embed, base, style, video, audio, math, template, frame, frameset, "
    + "plaintext, marquee, animate, set, foreignObject, meta[http-equiv], script:not([src]), [srcdoc], [style]";
  for (const each of document.querySelectorAll(never)) found.push(each.outerHTML.slice(0, 200));
  for (const each of document.querySelectorAll("*")) for (const { name, value } of each.attributes) {
    const mayFocus = each.matches("#token, a.primary");
    if (name.startsWith("on") || name === "autofocus" && !mayFocus) found.push(`${each.localName} ${name}`);
    if (!["href", "src", "action", "formaction", "xlink:href"].includes(name) || each.rel === "icon") continue;
    const leads = new URL(value, location);
    const isOwn = leads.origin === location.origin;
    if (!isOwn && !(each.localName === "a" && ["http:", "https:"].includes(leads.protocol))) found.push(`${name}=${value}`);
  }
  if ("did" in window) found.push("something ran");
  return found;
}"""
#: Returns all text of a page, including the values of attributes, one on each line.
READ: Final = """() => [
  document.documentElement.textContent,
  ...[...document.querySelectorAll("*")].flatMap((each) => [...each.attributes].map(({ value }) => value)),
].join("\\n")"""

_TAG: Final = re.compile(r"⟦([a-z.-]+#[0-9]+)⟧")
#: Columns that pages must show, so that the test is not empty. Pages may show more.
SHOWN: Final = {
    "accounts.name",
    "attempts.address",
    "attempts.answer",
    "attempts.error-code",
    "attempts.worker",
    "audit-entries.action",
    "audit-entries.actor",
    "audit-entries.reason",
    "audit-entries.status-after",
    "audit-entries.status-before",
    "audit-entries.subject-id",
    "compliance-requests.counts",
    "compliance-requests.last-error",
    "compliance-requests.shop-domain",
    "exports.preview-problems.code",
    "exports.preview-problems.message",
    "exports.preview-problems.path",
    "exports.provider-ticket-id",
    "exports.provider-ticket-url",
    "exports.source-id",
    "exports.source-type",
    "exports.status-reason",
    "exports.ticket.description",
    "exports.ticket.evidence",
    "exports.ticket.evidence-name",
    "exports.ticket.labels",
    "exports.ticket.page-url",
    "exports.ticket.title",
    "findings.code",
    "findings.location",
    "findings.page-url",
    "findings.title",
    "inbound-refusals.code",
    "inbound-refusals.problems.code",
    "inbound-refusals.problems.path",
    "inbound-refusals.request-id",
    "pings.error-code",
    "projects.name",
    "report-uploads.file-name",
    "report-uploads.left-out.reason",
    "report-uploads.left-out.url",
    "targets.base-url",
    "targets.name",
    "targets.status-reason",
    "targets.validation-reason",
    "tokens.name",
    "users.email",
    "workers.name",
}


class TextPlanter:
    """Puts hostile texts into the open database, each after a tag. `texts` has them by their tags."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._rows = itertools.count()
        self.texts: dict[str, str] = {}

    def plant(self) -> None:
        """Fill every column that accepts any text."""
        for model in ALL:
            table = str(model._meta.table_name)
            for field in model._meta.sorted_fields:
                column = field.column_name
                if isinstance(field, TextField) and column != "id" and f"{table}.{column}" not in OURS:
                    for (row,) in rows(f"SELECT rowid FROM {table}"):  # noqa: S608 - our own names
                        self._put(table, column, row, is_json=isinstance(field, JsonField))

    def _put(self, table: str, column: str, row: int, *, is_json: bool) -> None:
        name = f"{table}.{column}"
        value = json.dumps(self._document(name)) if is_json else ADDRESSES.get(name, "") + self._text(name)
        # A column whose CHECK allows only certain words, or NULL in some states, also keeps the product's own words.
        with suppress(IntegrityError):
            execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))  # noqa: S608 - our own names

    def _text(self, name: str) -> str:
        """Return all HOSTILE texts and a tenth of the other strings, after a new tag."""
        number = next(self._rows)
        tag = f"{name.replace('_', '-')}#{number}"
        self.texts[tag] = "\n".join([*HOSTILE, *self._strings[number % 10 :: 10]])
        return f"⟦{tag}⟧{self.texts[tag]}"

    def _document(self, name: str) -> Any:
        """Return a value for a JSON column, in the column's own form where code reads it."""
        if name in {"exports.ticket", "exports.original_ticket"}:
            texts = {each: self._text(f"{name}.{each}") for each in ("title", "description", "page_url")}
            return texts | {
                "severity": self._text(f"{name}.severity"),
                "labels": [self._text(f"{name}.labels"), "a11y"],
                "evidence": {self._text(f"{name}.evidence-name"): self._text(f"{name}.evidence")},
            }
        if name == "exports.preview_problems":
            return [{each: self._text(f"{name}.{each}") for each in ("path", "code", "message")}]
        if name == "alerts.details":
            return {each: self._text(f"{name}.{each}") for each in ("name", "host")} | {"status": "failing", "reason": None}
        if name == "report_uploads.left_out":
            return [[self._text(f"{name}.url"), self._text(f"{name}.reason")]]
        if name == "inbound_refusals.problems":
            return [[self._text(f"{name}.path"), self._text(f"{name}.code")]]
        if name == "compliance_requests.counts":
            return {self._text(name): 3}
        return {self._text(f"{name}.name"): self._text(name)}


@dataclass(frozen=True, slots=True)
class HostileInstallation:
    """An installation full of hostile texts: its operator's token, the texts, and the paths of its pages."""

    settings: dict[str, str]
    token: str
    texts: dict[str, str]
    paths: list[str]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> HostileInstallation:
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copyfile(migrated_sqlite, folder / "riskrelay.db")
    url = f"sqlite:///{folder / 'riskrelay.db'}"
    open_database(url)
    with connection():
        customer = make_customer()
        token = make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_RULES)
        fill()
        planter = TextPlanter(naughty_strings())
        planter.plant()
        let_the_operator_see_it(customer)
        paths = pages_of(folder)
    close_database()
    return HostileInstallation(environment(folder, DATABASE_URL=url, WEB_PROCESSES="1"), token, planter.texts, paths)


def let_the_operator_see_it(customer: Customer) -> None:
    """Assign all rows to the customer and to the current time where pages select rows by these."""
    for table in ("users", "projects", "targets", "exports", "findings", "approval_rules", "bulk_jobs", "report_uploads"):
        execute(f"UPDATE {table} SET account_id = ?", (customer.account_id,))  # noqa: S608 - our own names
    now = to_ms(utc_now())
    execute("UPDATE tokens SET user_id = ?, expires_at = NULL, revoked_at = NULL", (customer.user_id,))
    execute(
        "UPDATE console_sessions SET token_id = 1, user_id = NULL, created_at = ?, seen_at = ?, ended_at = NULL, "
        "ended_reason = NULL",
        (now, now),
    )
    execute("UPDATE targets SET deleted_at = NULL")
    execute("UPDATE workers SET seen_at = ?", (now,))
    execute("UPDATE delivery_hours SET hour_at = ?", (now - now % 3_600_000,))
    execute("UPDATE attempts SET export_id = (SELECT MIN(id) FROM exports WHERE attempts.id IS NOT NULL)")
    # One export can be approved, and has a history.
    execute("UPDATE exports SET preview_problems = '[]' WHERE status = 'prepared'")
    execute("UPDATE audit_entries SET subject_id = (SELECT MIN(id) FROM exports) WHERE id = 2")


def pages_of(folder: Path) -> list[str]:
    """Return the path of every page of the console, for each row that has one."""
    app = create_app(make_settings(folder), FakeWakeUpQueue(), FakeResolver({}))
    # Falcon itself responds to methods that a resource does not define.
    own = {each.path: {method.method for method in each.methods if not method.internal} for each in inspect_routes(app)}
    shown = [path for path, methods in own.items() if "GET" in methods]
    found: list[str] = []
    for path in shown:
        if path.startswith(CONSOLE) and "/static/" not in path and path not in NO_PAGES:
            noun = re.search(r"\{([a-z]+)_id\}", path)
            table = TABLES.get(noun[1], f"{noun[1]}s") if noun else None
            # Only a prepared ticket has the page for editing.
            which = "WHERE status = 'prepared'" if path.endswith("/edit") else ""
            ids = [one for (one,) in rows(f"SELECT id FROM {table} {which} ORDER BY id")] if table else [""]  # noqa: S608 - our own names
            found += [re.sub(r"\{.*?\}", one, path) for one in ids]
    return sorted(found)


@pytest.fixture(scope="module")
def service(installation: HostileInstallation) -> Iterator[Service]:
    with Service(installation.settings) as running:
        yield running


@dataclass(frozen=True, slots=True)
class PageReader:
    """Reads pages with untrusted text in a browser that blocks requests to other origins."""

    page: Page
    home: str
    seen: Watch

    def open(self, path: str) -> int:
        """Open a page, check that nothing was injected, and return the response's status."""
        answer = self.page.goto(self.home + path)
        assert answer is not None
        # Waits for effects that would occur only after the page is painted.
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert self.page.evaluate(STRANGE) == [], path
        assert self.page.url.startswith(f"{self.home}/console"), path
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        return answer.status

    def sign_in(self, token: str) -> None:
        """Sign in with the token."""
        self.open("/console/sign-in")
        self.page.get_by_label("API token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(re.compile(r"/console/(?!sign-in)"))

    def complaints(self) -> list[str]:
        """Return the events that must not happen. The browser's own messages about 4xx responses are left out."""
        refused = "error: Failed to load resource: the server responded with a status of 4"
        return [expected for expected in self.seen.complaints(self.home) if not expected.startswith((refused, "4"))]


@pytest.fixture
def reader(browser: Browser, service: Service) -> Iterator[PageReader]:
    home = f"http://127.0.0.1:{service.port}"
    context = browser.new_context()
    seen = watch(context)
    # Requests to other origins are recorded, but aborted.
    context.route(lambda url: not url.startswith(f"{home}/"), lambda route: route.abort())
    yield PageReader(context.new_page(), home, seen)
    context.close()


def test_untrusted_text_is_shown_unchanged_and_never_executed(installation: HostileInstallation, reader: PageReader) -> None:
    reader.sign_in(installation.token)
    assert len(installation.paths) > 30
    shown: set[str] = set()
    for path in installation.paths:
        assert reader.open(path) == 200, path
        shown |= read(reader.page, path, installation.texts)
    assert reader.complaints() == []
    assert SHOWN - shown == set()


def read(page: Page, path: str, texts: Mapping[str, str]) -> set[str]:
    """Check that a page shows each tagged text without changes; return the columns of these texts."""
    content = plain(page.evaluate(READ))
    shown: set[str] = set()
    for found in _TAG.finditer(content):
        forms = spellings(texts[found[1]])
        assert any(content.startswith(form, found.end()) for form in forms), (path, found[0], content[found.end() :][:3000])
        shown.add(found[1].partition("#")[0])
    return shown


def spellings(text: str) -> set[str]:
    """Return the ways in which a page can display a text: unchanged, invisible characters as numbers, as JSON or shell."""
    quoted, shown = json.dumps(text, ensure_ascii=False)[1:-1], visible(text)
    return {*map(plain, (text, shown, quoted, pretty(text)[1:-1], shlex.quote(text)[1:-1]))}


def plain(text: str) -> str:
    """Normalize a text as HTML does: one kind of line end, no NULs. Underscores become spaces, as in words on pages.

    Backticks are removed: on pages they mark code, and a pair can begin in a message and end in a text that it quotes.
    """
    return re.sub("[\0\ufffd`]", "", re.sub("\r\n?", "\n", text)).replace("_", " ")


@pytest.mark.parametrize("text", RUNS)
def test_unescaped_text_is_detected_by_the_checks(text: str, reader: PageReader) -> None:
    """Shows these texts unescaped on a page with the console's policy, and so proves that the test above can fail."""
    raw = f"<!doctype html><title>T</title><input value=\"{text}\"><input value='{text}'><p>{text}</p>"
    headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Content-Type": "text/html; charset=utf-8"}
    reader.page.route(f"{reader.home}/console/raw", lambda route: route.fulfill(body=raw, headers=headers))
    reader.page.goto(f"{reader.home}/console/raw", wait_until="commit")
    with suppress(Error):  # the page navigated away
        assert [*reader.page.evaluate(STRANGE), *reader.complaints()] != []
        return
    assert reader.seen.outside(reader.home) != []


def test_untrusted_text_in_urls_is_never_executed(installation: HostileInstallation, reader: PageReader) -> None:
    many = [" ".join(texts) for texts in (RUNS[:8], RUNS[8:], ODD)]
    for text in many:
        assert reader.open("/console/sign-in?" + urlencode({"next": "/exports?" + text, "why": text, "done": text})) == 200
    # The form keeps the page that is opened after signing in.
    assert reader.open("/console/exports?" + urlencode({"status": many[0]})) == 200
    reader.sign_in(installation.token)
    names = ("status", "source", "cursor", "subject", "project", "severity", "topic", "target", "since", "limit", "other")
    lists = [path for path in installation.paths if path.count("/") <= 2]
    # An error message is about one parameter only, so each parameter is sent alone.
    asked = zip(itertools.cycle(lists), [*names, *names], itertools.cycle(HOSTILE), strict=False)
    statuses = {reader.open(f"{path}?{urlencode({name: text, 'done': text})}") for path, name, text in asked}
    for text in many:
        for beneath in ("", "exports/", "targets/"):
            statuses.add(reader.open(f"/console/{beneath}{quote(text, safe='')}"))
    assert statuses == {200, 404, 422}
    assert reader.complaints() == []


def test_a_refused_form_does_not_show_the_submitted_token(reader: PageReader) -> None:
    going_to = "/exports?" + "".join(re.findall(r"[!-\[\]-~]", "".join(RUNS)))[:900]
    reader.open(f"/console/sign-in?{urlencode({'next': going_to})}")
    reader.page.get_by_label("API token").fill("".join(RUNS))
    reader.page.get_by_role("button", name="Sign in").click()
    reader.page.get_by_role("alert").wait_for()
    assert reader.page.evaluate(STRANGE) == []
    assert reader.page.get_by_label("API token").input_value() == ""
    # The page to open afterwards is in the console, and the form repeats it without changes.
    assert reader.page.locator("[name=next]").input_value() == going_to
    assert reader.complaints() == []
