"""What the service is asked in measurements: raw requests, and a database seeded so that they can be answered.

    status(export_id, bearer)                200, the record of an export
    not_modified(export_id, bearer, etag)    304, as `etag` is the version that the client has
    postback(issues)                         202, a page of its own with that many new findings each time
    target_create(bearer)                    201, a target at an address of loopback that nobody dials
    approve(bearer, target_id)               202, another prepared export each time: see `prepare_many`
    upload(platform_bearer, project_id)      201, a capture of the browser extension

Whatever writes carries an Idempotency-Key of its own. Bodies are such as the product's clients send, of the size that
tickets have.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bench.handwritten.stores import open_store
from bench.load.repeated_requests import NUMBER, Question, request
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

#: Ids of exports are `exp_` and 26 digits; these are the first of those that `prepare_many` makes, which end in a number.
APPROVABLE: Final = "exp_00000001"
#: How many digits that number has.
APPROVABLE_DIGITS: Final = 18

_PATH: Final = "/api/ticket-exports"
#: As many rules and places as a real page has; each pair is another finding.
_RULES: Final = 10

# Copies of one that the product has prepared, in every column: a verb a row would take a minute. PostgreSQL wants the types.
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
    """A database with one customer, a target of theirs, an export that waits for it, and one that is prepared."""

    url: str
    customer: Customer
    platform_bearer: Mapping[str, str]
    target_id: str
    export_id: str
    prepared_id: str

    def questions(self) -> dict[str, Question]:
        """Return a question of every kind, by its name in the figures."""
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


def status(export_id: str, bearer: Mapping[str, str]) -> Question:
    """Return the question for an export's record."""
    return Question(request("GET", f"{_PATH}/{export_id}", bearer), 200)


def not_modified(export_id: str, bearer: Mapping[str, str], etag: str) -> Question:
    """Return the question of a client that has the version `etag`, with its quotes."""
    return Question(request("GET", f"{_PATH}/{export_id}", {**bearer, "If-None-Match": etag}), 304)


def postback(issues: int) -> Question:
    """Return the question that posts a page of its own with `issues` new findings."""
    url = f"https://shop.example/products/{NUMBER}"
    page = {**one_postback()["page"], "url": url, "normalizedUrl": url}
    body = one_postback(issues=[_issue(number) for number in range(issues)], page=page)
    return _keyed("/api/scanner/results", {"X-Scanner-Secret": SCANNER_SECRET}, body, 202)


def target_create(bearer: Mapping[str, str]) -> Question:
    """Return the question that makes a target; its address needs no look-up, and it must be allowed (`LOOPBACK`)."""
    body = {"provider_key": "generic_webhook", "base_url": f"http://127.0.0.1:9/hooks/{NUMBER}", "name": f"Tracker {NUMBER}"}
    return _keyed("/api/ticket-export-targets", bearer, body, 201)


def approve(bearer: Mapping[str, str], target_id: str) -> Question:
    """Return the question that approves another export each time, numbered by `repeated_requests.Numbers(APPROVABLE, …)`."""
    return _keyed(f"{_PATH}/{NUMBER}/approve", bearer, {"target_id": target_id}, 202)


def upload(bearer: Mapping[str, str], project_id: int) -> Question:
    """Return the question that hands in what a person captured on a page."""
    return _keyed("/api/browser-extension/evidence-captures", bearer, capture(project_id, page_title=f"Cart {NUMBER}"), 201)


def seed(url: str) -> SeededDatabase:
    """Migrate the database at `url` and store what the questions need. It is open in this process while that lasts."""
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
    """Store prepared exports that `approve` can name, numbered from `first`."""
    with closing(open_store(seeded.url)) as store:
        with store.transaction() as execute:
            execute(_PREPARE_MANY, (first, first + count, seeded.prepared_id))
        store.settle()


def _issue(number: int) -> dict[str, object]:
    rule, place = divmod(number, _RULES)
    if number == 0:
        return one_issue()
    return one_issue(f"rule-{chr(ord('a') + rule)}", location=f"main > section.{chr(ord('a') + place)} > img.hero")


def _keyed(path: str, headers: Mapping[str, str], body: Mapping[str, object], answered: int) -> Question:
    record = {**headers, "Content-Type": "application/json", "Idempotency-Key": f"bench-{NUMBER}"}
    return Question(request("POST", path, record, json.dumps(body)), answered)
