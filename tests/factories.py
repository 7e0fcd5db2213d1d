"""Made-up things that tests act on, each with sensible values and any of them replaceable."""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from schemas.delivery import Attempted, Claim, Outcome, Timings, Verdict
from schemas.export_state import Move
from schemas.exports import Approval
from schemas.principal import Ability, TokenKind
from schemas.settings import Settings, load_settings
from schemas.targets import Target, TargetRequest
from schemas.ticket import Source, Ticket
from storage import accounts, exports, identifiers, projects, targets, tokens
from storage.database import transaction
from storage.export_rows import Draft

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ENCRYPTION_KEY: Final = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
SCANNER_SECRET: Final = "scanner-secret-for-tests"
WEBHOOK_SECRET: Final = "webhook-secret-for-tests"

#: What an installation that delivers to loopback is run with.
LOOPBACK: Final = {
    "TARGET_ALLOW_HTTP": "true",
    "TARGET_ALLOWED_PORTS": "1-65535",
    "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
}

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


def make_customer(*, may_use_webhooks: bool = True, abilities: tuple[Ability, ...] = ()) -> Customer:
    """Store a customer in the open database."""
    number = next(_numbers)
    account = accounts.add_account(f"Account {number}", NOW, may_use_webhooks=may_use_webhooks)
    email = f"user{number}@example.com"
    user = accounts.add_user(email, account.id, NOW)
    project = projects.add_project(f"Project {number}", account.id, NOW)
    accounts.grant_project(email, project.id, NOW)
    _, token = tokens.create(email, TokenKind.API, NOW, abilities)
    return Customer(account.id, user.id, email, project.id, token)


def make_target(customer: Customer, base_url: str = "https://tracker.example.com/hook", name: str = "Tracker") -> Target:
    """Store an active target that the default secret signs for."""
    request = TargetRequest("generic_webhook", base_url, None, name)
    return targets.create(request, customer.account_id, "self-hosted", "fp:000000000000", NOW, "user:test")


def make_exports(customer: Customer, count: int, now: datetime = NOW) -> list[str]:
    """Store `count` prepared exports of the customer's project, made by hand, and return their ids."""
    ticket = Ticket("Missing name", "The field has no name.", "high", "https://shop.example/é", ("a11y",), {"rule": "label"})
    sources = [Source("manual", f"note-{next(_numbers)}") for _ in range(count)]
    drafts = [Draft(customer.account_id, customer.project_id, source, ticket) for source in sources]
    with transaction():
        return exports.prepare(drafts, now, "user:test")


def make_approved(customer: Customer, target_id: str, now: datetime = NOW) -> str:
    """Store an export that is approved for a target and due at `now`; return its id."""
    [export_id] = make_exports(customer, 1, now)
    exports.approve(export_id, customer.account_id, Approval(target_id, None), now, "user:test")
    return export_id


def attempted(claim: Claim, move: Move = Move.DELIVER, at: datetime = NOW, **verdict: Any) -> Attempted:
    """Return an attempt that was sent for `claim` and judged to be `move`; `verdict` says more of the judgement."""
    status, outcome = {Move.DELIVER: (202, "delivered"), Move.FAIL: (404, "rejected")}.get(move, (503, "retryable"))
    judged = Verdict(move, outcome, **verdict)
    timings = Timings(dns_ms=1, connect_ms=2, tls_ms=3, first_byte_ms=4, total_ms=5)
    met = Outcome(status=status, address="192.0.2.1", timings=timings)
    return Attempted(claim, identifiers.new_id(identifiers.ATTEMPT, at), at, "ab" * 16, met, judged)


def postback(scan_run_id: int = 42, issues: list[Mapping[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
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


def environment(data_dir: Path, **changes: str) -> dict[str, str]:
    """Return the environment of an installation in `data_dir`; nothing of the caller's settings is inherited."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
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
    """Let this process have exactly `variables` as its environment for a moment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
