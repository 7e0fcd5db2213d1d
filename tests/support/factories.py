"""Records, settings and request bodies for tests, with defaults that a test can replace."""

import itertools
import os
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from runtime.clock import utc_now
from schemas.base.principal import OPERATOR, Ability, Role, TokenKind, TokenPrincipal
from schemas.base.timestamps import to_ms
from schemas.exports.delivery import Claim, CompletedAttempt, Outcome, Timings, Verdict
from schemas.exports.handoffs import Handoff
from schemas.exports.record import Approval
from schemas.exports.state_machine import Transition
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.intake.evidence import CaptureForm
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.grouping import TicketGrouping
from schemas.intake.report_uploads import ReportUpload
from schemas.intake.scanner import ScanPostback
from schemas.report_files.pages import run_number
from schemas.settings.definitions import Settings, load_settings
from schemas.targets.target import Target, TargetEdit, TargetRequest
from schemas.triage.approval_rules import ApprovalRule, RuleAction, RuleMatch, RuleRequest
from schemas.triage.bulk_decisions import BulkAction, BulkDecision
from schemas.triage.export_filter import ExportQuery
from schemas.url_policy.policy import TargetPolicy
from storage.accounts import accounts, audit_log, projects, sessions, tokens
from storage.accounts.account_limits import UNLIMITED
from storage.db import identifiers
from storage.db.columns import JsonField
from storage.db.engine import execute, rows, transaction, values_list
from storage.exports import claims_sql, transitions
from storage.exports.rows import Draft
from storage.exports.rules import approval_rules
from storage.exports.search import export_list
from storage.intake import findings, handoffs, report_uploads
from storage.intake.report_uploads import NewReportUpload
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import changes, targets
from storage.triage import bulk_jobs
from storage.triage.bulk_jobs import NewBulkJob
from tests.support.trackers.servers import TOKEN

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ENCRYPTION_KEY: Final = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
SCANNER_SECRET: Final = "scanner-secret-for-tests"
WEBHOOK_SECRET: Final = "webhook-secret-for-tests"
#: The secret that signs deliveries to the targets of `make_target`.
DEFAULT_SECRET: Final = DefaultSecret(WEBHOOK_SECRET, "fp:000000000000")

#: The settings of an installation that delivers to loopback.
LOOPBACK: Final = {"TARGET_ALLOW_HTTP": "true", "TARGET_ALLOWED_PORTS": "1-65535", "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8"}

#: The target policy of such an installation.
LOOPBACK_POLICY: Final = TargetPolicy(True, ((1, 65535),), (ip_network("127.0.0.0/8"),))

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Customer:
    """An account, one user of it, one project, and an API token with every ability but the console."""

    account_id: int
    user_id: int
    email: str
    project_id: int
    token: str

    @property
    def bearer(self) -> dict[str, str]:
        """The header that authenticates it."""
        return {"Authorization": f"Bearer {self.token}"}


def in_s(seconds: float) -> datetime:
    """Return the time `seconds` after NOW."""
    return NOW + timedelta(seconds=seconds)


def make_customer(
    *, may_use_webhooks: bool = True, abilities: tuple[Ability, ...] = (), grouping: TicketGrouping = TicketGrouping.FINDING
) -> Customer:
    """Store a customer whose project groups its findings by `grouping`."""
    number = next(_numbers)
    email = f"user{number}@example.com"
    # Thousands of tests make a customer. The functions of storage check their arguments, and would take twice as long.
    with transaction():
        account_id = _insert("accounts", name=f"Account {number}", may_use_webhooks=may_use_webhooks, created_at=to_ms(NOW))
        user_id = _insert("users", account_id=account_id, email=email, created_at=to_ms(NOW), role=Role.OWNER.value)
        project_id = _insert(
            "projects",
            account_id=account_id,
            name=f"Project {number}",
            created_at=to_ms(NOW),
            ticket_grouping=grouping.value,
        )
        _insert("grants", user_id=user_id, project_id=project_id, created_at=to_ms(NOW))
        audit_log.append(NOW, OPERATOR.key, "add_grant", f"user:{user_id}", f"project:{project_id}")
        _, token = tokens.create(email, TokenKind.API, NOW, abilities)
    return Customer(account_id, user_id, email, project_id, token)


def _insert(table: str, **columns: Any) -> int:
    """Store a row and return its id."""
    statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values_list(len(columns), 1)} RETURNING id"  # noqa: S608 - our own names
    [(row_id,)] = rows(statement, tuple(columns.values()))
    return int(row_id)


def forbid_webhooks(customer: Customer) -> None:
    """Forbid webhook targets to a customer's account. Its existing targets are unchanged."""
    execute("UPDATE accounts SET may_use_webhooks = (1 = 0) WHERE id = ?", (customer.account_id,))


def make_colleague(customer: Customer) -> Customer:
    """Store another user of the customer's account, without a grant, and an API token."""
    email = f"user{next(_numbers)}@example.com"
    user = accounts.add_user(email, customer.account_id, NOW)
    return replace(customer, user_id=user.id, email=email, token=tokens.create(email, TokenKind.API, NOW)[1])


def make_platform_token(customer: Customer, *abilities: Ability) -> str:
    """Store a platform token of the customer's user, by default with every platform ability; return its text."""
    return tokens.create(customer.email, TokenKind.PLATFORM, NOW, abilities)[1]


def make_session(customer: Customer, browser: str = "a browser") -> str:
    """Sign the customer's user in to the console with a new token; return the session's id."""
    token = tokens.create(customer.email, TokenKind.API, utc_now(), (Ability.CONSOLE,), "console")[1]
    principal = tokens.principal_for(token, utc_now())
    assert principal is not None
    sessions.begin(principal, browser, utc_now())
    return sessions.list_live(utc_now(), 1, email=customer.email)[0].id


def make_project(customer: Customer, shop_domain: str | None = None, *, is_granted: bool = True) -> int:
    """Store another project of the customer's account, by default with a grant for the customer's user; return its id."""
    name, grouping = f"Project {next(_numbers)}", TicketGrouping.FINDING
    project = projects.add_project(name, customer.account_id, NOW, shop_domain, grouping)
    if is_granted:
        accounts.grant_project(customer.email, project.id, NOW)
    return project.id


def make_report(project_id: int, granted_to: Customer | None = None) -> int:
    """Store a report of a project; grant the user of `granted_to` access to this report only. Return its id."""
    report = projects.add_report(f"Report {next(_numbers)}", project_id, NOW)
    if granted_to is not None:
        accounts.grant_report(granted_to.email, report.id, NOW)
    return report.id


def make_target(customer: Customer, base_url: str = "https://tracker.example.com/hook", name: str = "Tracker") -> Target:
    """Store an active target that uses the default secret and that no worker validates.

    NOW is long past, so a worker would validate the target at once, and a test's receiver would count that connection.
    """
    request = TargetRequest("generic_webhook", base_url, None, name, None)
    # In one transaction, because a running worker could claim the validation before it is removed.
    with transaction():
        target = targets.create(request, customer.account_id, "self-hosted", DEFAULT_SECRET, NOW, "user:test")
        execute("UPDATE targets SET validation_due_at = NULL WHERE id = ?", (target.id,))
    return target


def make_tracker(customer: Customer, base_url: str, vault: Vault | None = None, token: str = TOKEN) -> str:
    """Store an active Gitea target with its token that no worker validates; return its id.

    `vault` encrypts the token, by default with the key that `environment` sets.
    """
    request = TargetRequest("gitea", base_url, None, "Tracker", None)
    with transaction():
        target_id = targets.create(request, customer.account_id, "self-hosted", DEFAULT_SECRET, NOW, "user:test").id
        targets.set_secret(target_id, token, vault or Vault([b64decode(ENCRYPTION_KEY)]), NOW)
        execute("UPDATE targets SET validation_due_at = NULL WHERE id = ?", (target_id,))
    return target_id


def limit_target(target_id: str, max_per_minute: int | None, now: datetime = NOW) -> None:
    """Set a target's rate limit."""
    changes.edit(target_id, TargetEdit(sets_limit=True, max_per_minute=max_per_minute), DEFAULT_SECRET, now, "operator")


def make_rule(
    customer: Customer, action: RuleAction, match: RuleMatch | None = None, now: datetime = NOW, name: str = "A rule"
) -> ApprovalRule:
    """Store an enabled approval rule of the customer's user. It matches every export, or those that `match` selects."""
    request = RuleRequest(name, True, match or RuleMatch(severity_at_least="info"), action)
    return approval_rules.create(customer.account_id, request, customer.user_id, now, f"user:{customer.user_id}")


def make_exports(customer: Customer, count: int, now: datetime = NOW, labels: tuple[str, ...] = ("a11y",)) -> list[str]:
    """Store `count` prepared manual exports of the customer's project, and return their ids."""
    ticket = Ticket("Missing name", "The field has no name.", "high", "https://shop.example/é", labels, {"rule": "label"})
    sources = [Source("manual", f"note-{next(_numbers)}") for _ in range(count)]
    drafts = [Draft(customer.account_id, customer.project_id, source, ticket) for source in sources]
    with transaction():
        return transitions.prepare(drafts, now, "user:test")


def make_approved(customer: Customer, target_id: str, now: datetime = NOW, labels: tuple[str, ...] = ("a11y",)) -> str:
    """Store an export that is approved for a target and due at `now`; return its id."""
    [export_id] = make_exports(customer, 1, now, labels)
    transitions.approve(export_id, customer.account_id, Approval(target_id, None), now, "user:test", LOOPBACK_POLICY)
    return export_id


def make_bulk_job(customer: Customer) -> str:
    """Start a bulk job of a customer that selects dismissed exports; return its id."""
    decision, query = BulkDecision(BulkAction.RESTORE), ExportQuery(customer.account_id, statuses=("dismissed",))
    count = len(export_list.ids_matching(query))
    new = NewBulkJob(decision, query, count, customer.account_id, customer.user_id, f"user:{customer.user_id}")
    return bulk_jobs.begin(new, NOW, LOOPBACK_POLICY).id


def make_handoff(customer: Customer) -> Handoff:
    """Store an evidence capture of the customer's user, with its handoff and its prepared export."""
    user = TokenPrincipal(1, customer.user_id, customer.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True)
    upload = CaptureForm().read(capture(customer.project_id))
    return handoffs.record_upload(handoffs.prepare_upload(upload), user, utc_now())


def make_report_upload(
    customer: Customer, content: bytes = b"[]", format_: str = "nuclei", now: datetime | None = None
) -> ReportUpload:
    """Store a report upload of the customer's project that no worker has read yet."""
    new = NewReportUpload(
        account_id=customer.account_id,
        project_id=customer.project_id,
        user_id=customer.user_id,
        file_name="report.json",
        format=format_,
        content=content,
        scan_run_id=run_number(b"%d|%b" % (customer.project_id, content)),
        is_new_run=True,
        actor=f"user:{customer.user_id}",
    )
    return report_uploads.create(new, now or NOW, Vault([b64decode(ENCRYPTION_KEY)]), UNLIMITED)


def make_alert(customer: Customer, number: int = 1, state: str = "open", name: str = "Tracker") -> str:
    """Store an alert about a failing target of the customer; return its id."""
    alert_id, at = identifiers.new_id(identifiers.ALERT, NOW), to_ms(NOW)
    details = JsonField.text({"name": name, "host": "tracker.example.com", "status": "failing", "reason": "connect_refused"})
    execute(
        "INSERT INTO alerts (id, cause, kind, state, account_id, subject_id, details, first_at, last_at, count) "
        "VALUES (?, ?, 'target', ?, ?, 'tgt_1', ?, ?, ?, 1)",
        (alert_id, f"target:{customer.account_id}-{number}", state, customer.account_id, details, at, at),
    )
    return alert_id


def claim_due(limit: int, now: datetime, lease_s: float, worker: str) -> list[Claim]:
    """Claim up to `limit` due exports of every target, regardless of its throttle state."""
    quotas = {row[0]: limit for row in rows("SELECT DISTINCT target_id FROM exports WHERE due_at IS NOT NULL")}
    return claims_sql.claim_due(quotas, now, lease_s, worker)


def make_due_events(customer: Customer, target_id: str, count: int, due_at_ms: int) -> None:
    """Store a due event for each of `count` delivered tickets of a target."""
    for _ in range(count):
        make_approved(customer, target_id)
    execute("UPDATE exports SET status = 'exported', due_at = NULL WHERE target_id = ?", (target_id,))
    execute(
        "INSERT INTO ticket_events (id, account_id, export_id, target_id, number, type, status, body, attempts, "
        "attempt_records, is_outcome_unknown, due_at, created_at) SELECT 'evt_' || SUBSTR(id, 5), account_id, id, "
        "target_id, 1, 'ticket.updated', 'pending', body, 0, '[]', is_outcome_unknown, CAST(? AS BIGINT), created_at "
        "FROM exports WHERE target_id = ?",
        (due_at_ms, target_id),
    )


def make_failed(
    customer: Customer, target_id: str, count: int = 1, finished_at: datetime = NOW, status: str = "failed"
) -> list[str]:
    """Store exports of a target that failed or were blocked at `finished_at`, after two attempts; return their ids."""
    ids: list[str] = []
    for _ in range(0, count, 500):
        batch = make_exports(customer, min(500, count - len(ids)))
        with transaction():
            execute(
                "UPDATE exports SET status = ?, status_reason = 'receiver_gone', target_id = ?, body = ?, attempts = 2, "  # noqa: S608 - our own names
                f"approved_at = ?, schedule_began_at = ?, finished_at = ? WHERE id IN {values_list(len(batch), 1)}",
                (status, target_id, b"{}", to_ms(NOW), to_ms(NOW), to_ms(finished_at), *batch),
            )
        ids += batch
    return ids


def completed_attempt(
    claim: Claim, transition: Transition = Transition.DELIVER, at: datetime = NOW, **verdict: Any
) -> CompletedAttempt:
    """Return a completed attempt of a claim that led to `transition`; `verdict` sets further fields of its Verdict."""
    status, outcome = {Transition.DELIVER: (202, "delivered"), Transition.FAIL: (404, "rejected")}.get(
        transition, (503, "retryable")
    )
    timings = Timings(dns_ms=1, connect_ms=2, tls_ms=3, first_byte_ms=4, total_ms=5)
    sent = Outcome(status=status, address="192.0.2.1", timings=timings)
    attempt_id = identifiers.new_id(identifiers.ATTEMPT, at)
    return CompletedAttempt(claim, attempt_id, at, "ab" * 16, sent, Verdict(transition, outcome, **verdict))


def postback(scan_run_id: int = 42, issues: Sequence[Mapping[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the body of a postback with one issue, or with `issues`; `changes` replace members."""
    body = {
        "scanRunId": scan_run_id,
        "status": "completed",
        "page": {
            "url": "https://shop.example/",
            "normalizedUrl": "https://shop.example/",
            "statusCode": 200,
            "pageType": "home",
            "responseHeaders": {},
        },
        "artifacts": {"screenshotPath": "artifacts/42/home.png"},
        "issues": [issue()] if issues is None else issues,
    }
    return {**body, **changes}


def record_postback(posted: ScanPostback, default_project_id: int | None, now: datetime = NOW) -> PostbackResult:
    """Store a validated postback as the scanner's route does."""
    return findings.record(findings.prepare_postback(posted, default_project_id), default_project_id, now, "scanner")


def issue(code: str = "img-alt", **changes: Any) -> dict[str, Any]:
    """Return one issue of a postback."""
    body = {
        "code": code,
        "title": "Image without alternative text",
        "severity": "serious",
        "description": "Screen readers cannot tell what the picture shows.",
        "location": "main > img.hero",
    }
    return {**body, **changes}


def capture(project_id: int, /, **changes: Any) -> dict[str, Any]:
    """Return the body of an evidence capture with every member except the report; `changes` replace members."""
    body = {
        "project_id": project_id,
        "page_url": "https://shop.example/cart?step=2",
        "page_title": "Your cart",
        "selected_text": "The total is missing.",
        "meta_description": "Everything you chose.",
        "canonical_url": "https://shop.example/cart",
        "heading_outline": [{"level": "h1", "text": "Your cart"}, {"level": "h2", "text": "Delivery"}],
        "captured_at": "2026-03-01T13:00:00.25+01:00",
        "extension_version": "1.4.0",
    }
    return {**body, **changes}


def cms_diagnostics(project_id: int, /, **changes: Any) -> dict[str, Any]:
    """Return the body of a CMS plugin's diagnostics with every member except the report; `changes` replace members."""
    body = {
        "project_id": project_id,
        "platform": "cms_commerce",
        "site_url": "https://shop.example/",
        "plugin_version": "2.0.1",
        "diagnostics": {
            "cms_version": "6.8",
            "commerce_plugin_version": "9.3.1",
            "active_theme": "Storefront Light",
            "active_plugin_names": ["Forms", "Cache"],
            "checkout_page_url": "https://shop.example/checkout",
            "commerce_plugin_status": "active",
            "visible_browser_symptoms": ["The pay button does nothing.", "The total flickers."],
        },
    }
    return {**body, **changes}


def storefront_diagnostics(project_id: int, /, **changes: Any) -> dict[str, Any]:
    """Return the body of the storefront app's diagnostics with every member except the report; `changes` replace members."""
    body = {
        "project_id": project_id,
        "shop_domain": "snow.shops.example",
        "shop_name": "Snow",
        "granted_scopes": ["read_content", "read_themes"],
        "app_version": "3.1",
        "diagnostics": {
            "primary_domain": "www.snow.example",
            "published_theme_name": "Dawn",
            "theme_count": 3,
            "product_count_bucket": "100-500",
            "checkout_profile_status": "published",
            "app_embed_status": "enabled",
            "visible_storefront_symptoms": ["The price is missing."],
        },
    }
    return {**body, **changes}


def plain_email(**changes: Any) -> dict[str, Any]:
    """Return the body of an inbound email in the plain form; `changes` replace members, `from_` the one called `from`."""
    body = {
        "message_id": "<1@mail.example>",
        "from": "Jane Doe <jane@mail.example>",
        "to": "inbox@service.example",
        "subject": "The checkout is broken",
        "text": "The button does nothing on https://shop.example/checkout.",
        "html": "<p>The button does <b>nothing</b>.</p>",
        "received_at": "2026-03-01T12:00:00Z",
    }
    return {**body, **{"from" if name == "from_" else name: value for name, value in changes.items()}}


def postmark_email(**changes: Any) -> dict[str, Any]:
    """Return the body of an inbound email in Postmark's form; `changes` replace members."""
    body = {
        "MessageID": "3f1f2b6c-0000-4000-8000-000000000001",
        "From": "jane@mail.example",
        "FromName": "Jane Doe",
        "FromFull": {"Email": "jane@mail.example", "Name": "Jane Doe", "MailboxHash": ""},
        "To": "Inbox <inbox@service.example>",
        "ToFull": [{"Email": "inbox@service.example", "Name": "Inbox", "MailboxHash": ""}],
        "Cc": "",
        "CcFull": [],
        "Bcc": "",
        "BccFull": [],
        "OriginalRecipient": "inbox@service.example",
        "MailboxHash": "",
        "Subject": "The checkout is broken",
        "Date": "Sun, 1 Mar 2026 13:00:00 +0100",
        "TextBody": "The button does nothing on https://shop.example/checkout.",
        "HtmlBody": "<p>The button does <b>nothing</b>.</p>",
        "Headers": [{"Name": "X-Spam-Score", "Value": "-0.1"}],
        "Attachments": [{"Name": "screen.png", "Content": "iVBORw0KGgo=", "ContentType": "image/png", "ContentLength": 8}],
    }
    return {**body, **changes}


def environment(data_dir: Path, **changes: str) -> dict[str, str]:
    """Return the environment of an installation in `data_dir`. No RiskRelay setting of this process is inherited.

    Its `.env`, if there is one, is in that folder, or beside it if the folder is called `data`.
    """
    folder = data_dir.parent if data_dir.name == "data" else data_dir
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "RISKRELAY_ENV_FILE": str(folder / ".env"),
        "DATA_DIR": str(data_dir),
        "ENCRYPTION_KEYS": ENCRYPTION_KEY,
        "SCANNER_SHARED_SECRET": SCANNER_SECRET,
        "WEBHOOK_SECRET": WEBHOOK_SECRET,
        **changes,
    }


def make_settings(data_dir: Path, changes: Mapping[str, str] | None = None, **fields: Any) -> Settings:
    """Return settings of an environment with `changes`, then with single `fields` replaced."""
    with _environment(environment(data_dir, **(changes or {}))):
        settings = load_settings(data_dir / "no.env")
    return replace(settings, **fields)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment variables of this process by exactly these during the block."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
