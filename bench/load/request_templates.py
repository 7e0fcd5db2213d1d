"""Requests that measurements send to the service, and a database seeded for them.

    status(export_id, bearer)                200, the record of an export
    not_modified(export_id, bearer, etag)    304, as `etag` is the version that the client has
    postback(issues)                         202, each request has a new page with that many new findings
    target_create(bearer)                    201, a target at a loopback address to which nothing is delivered
    approve(bearer, target_id)               202, each request names another prepared export: see `prepare_many`
    upload(platform_bearer, project_id)      201, a capture of the browser extension

Each request that writes has a new Idempotency-Key. Bodies have the form that the product's clients send, and the usual size
of tickets.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bench.handwritten.stores import open_store
from bench.load.repeated_requests import NUMBER, RequestTemplate, request
from runtime.clock import utc_now
from schemas.base.principal import TokenKind
from schemas.exports.record import Approval
from schemas.exports.tickets.ticket import Source, Ticket
from storage.accounts import tokens
from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database, transaction
from storage.exports import transitions
from storage.exports.rows import Draft
from tests.support.factories import LOOPBACK_POLICY, SCANNER_SECRET, Customer, capture, make_customer, make_target
from tests.support.factories import issue as one_issue
from tests.support.factories import postback as one_postback

#: Ids of exports are `exp_` and 26 digits. Those of `prepare_many` are this prefix and a number of APPROVABLE_DIGITS digits.
APPROVABLE: Final = "exp_00000001"
APPROVABLE_DIGITS: Final = 18

_PATH: Final = "/api/ticket-exports"
#: Issue number n gets place n % 10 and rule n / 10, so that each pair is another finding; a real page has about as many.
_PLACES: Final = 10

# Copies all columns of an export that the product prepared: preparing them one by one would take a minute. PostgreSQL needs
# the types.
_PREPARE_MANY: Final = f"""
WITH RECURSIVE numbers (n) AS (
    SELECT CAST(? AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < CAST(? AS BIGINT)
)
INSERT INTO exports (id, account_id, project_id, source_type, source_id, status, ticket, ticket_digest, preview_problems,
    attempts, attempts_before, version, created_at, severity_rank)
SELECT '{APPROVABLE[:-1]}' || ({10**APPROVABLE_DIGITS} + n), e.account_id, e.project_id, e.source_type, 'note-' || n,
    e.status, e.ticket, e.ticket_digest, e.preview_problems, e.attempts, e.attempts_before, e.version, e.created_at,
    e.severity_rank
FROM numbers CROSS JOIN exports e WHERE e.id = CAST(? AS TEXT)"""  # noqa: S608 - our own names and numbers


@dataclass(frozen=True, slots=True)
class SeededDatabase:
    """A database with one customer, a target, an export that is approved for it, and a prepared export."""

    url: str
    customer: Customer
    platform_bearer: Mapping[str, str]
    target_id: str
    export_id: str
    prepared_id: str

    def templates(self) -> dict[str, RequestTemplate]:
        """Return the request of every kind, by its name in the figures."""
        bearer = self.customer.bearer
        return {
            "status": status(self.export_id, bearer),
            "not_modified": not_modified(self.export_id, bearer, '"v2"'),
            "postback": postback(1),
            "postback_100": postback(100),
            "target_create": target_create(bearer),
            "approval": approve(bearer, self.target_id),
            "upload": upload(self.platform_bearer, self.customer.project_id),
        }


def status(export_id: str, bearer: Mapping[str, str]) -> RequestTemplate:
    """Return the request for an export's record."""
    return RequestTemplate(request("GET", f"{_PATH}/{export_id}", bearer), 200)


def not_modified(export_id: str, bearer: Mapping[str, str], etag: str) -> RequestTemplate:
    """Return the request of a client that already has the version `etag`, which includes the quotes."""
    return RequestTemplate(request("GET", f"{_PATH}/{export_id}", {**bearer, "If-None-Match": etag}), 304)


def postback(issues: int) -> RequestTemplate:
    """Return the request that posts a new page with `issues` new findings."""
    url = f"https://shop.example/products/{NUMBER}"
    page = {**one_postback()["page"], "url": url, "normalizedUrl": url}
    body = one_postback(issues=[_issue(number) for number in range(issues)], page=page)
    return _post_with_key("/api/scanner/results", {"X-Scanner-Secret": SCANNER_SECRET}, body, 202)


def target_create(bearer: Mapping[str, str]) -> RequestTemplate:
    """Return the request that creates a target; its address needs no DNS lookup, and settings must allow it (`LOOPBACK`)."""
    body = {"provider_key": "generic_webhook", "base_url": f"http://127.0.0.1:9/hooks/{NUMBER}", "name": f"Tracker {NUMBER}"}
    return _post_with_key("/api/ticket-export-targets", bearer, body, 201)


def approve(bearer: Mapping[str, str], target_id: str) -> RequestTemplate:
    """Return the request that approves an export; `repeated_requests.Numbers(APPROVABLE, …)` numbers the exports."""
    return _post_with_key(f"{_PATH}/{NUMBER}/approve", bearer, {"target_id": target_id}, 202)


def upload(bearer: Mapping[str, str], project_id: int) -> RequestTemplate:
    """Return the request that uploads a capture of a page."""
    return _post_with_key(
        "/api/browser-extension/evidence-captures", bearer, capture(project_id, page_title=f"Cart {NUMBER}"), 201
    )


def seed(url: str) -> SeededDatabase:
    """Migrate the database at `url` and store the rows that the requests need; closes the database of this process."""
    open_database(url)
    schema_version.migrate()
    with connection(), transaction():
        customer, now = make_customer(), utc_now()
        target = make_target(customer, "http://127.0.0.1:9/hooks")
        ticket = Ticket("Image without alternative text", "x" * 1000, "high", "https://shop.example/", ("bench",), {})
        drafts = [Draft(customer.account_id, customer.project_id, Source("manual", name, 42), ticket) for name in "ab"]
        export_id, prepared_id = transitions.prepare(drafts, now, "bench")
        transitions.approve(export_id, customer.account_id, Approval(target.id, None), now, "bench", LOOPBACK_POLICY)
        _, platform_token = tokens.create(customer.email, TokenKind.PLATFORM, now)
    close_database()
    platform_bearer = {"Authorization": f"Bearer {platform_token}"}
    return SeededDatabase(url, customer, platform_bearer, target.id, export_id, prepared_id)


def prepare_many(seeded: SeededDatabase, first: int, count: int) -> None:
    """Store `count` prepared exports for `approve`, numbered from `first`."""
    with closing(open_store(seeded.url)) as store:
        with store.transaction() as execute:
            execute(_PREPARE_MANY, (first, first + count, seeded.prepared_id))
        store.checkpoint()


def _issue(number: int) -> dict[str, object]:
    rule, place = divmod(number, _PLACES)
    if number == 0:
        return one_issue()
    return one_issue(f"rule-{chr(ord('a') + rule)}", location=f"main > section.{chr(ord('a') + place)} > img.hero")


def _post_with_key(path: str, headers: Mapping[str, str], body: Mapping[str, object], status: int) -> RequestTemplate:
    headers = {**headers, "Content-Type": "application/json", "Idempotency-Key": f"bench-{NUMBER}"}
    return RequestTemplate(request("POST", path, headers, json.dumps(body)), status)
