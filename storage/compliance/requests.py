"""Compliance requests: taken in once, held by one worker at a time, kept as a ledger that names nobody.

Whom a request is about is sealed until it is done and erased then; what stays is a pseudonym, times, counts and the result.
The requests of one shop are carried out one after the other, so that no search reports what an erasure has just taken away.
Every write of a worker names its lease: who overslept it changes nothing, and the next one begins the search anew.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.errors import NotFound
from schemas.base.timestamps import from_ms, to_ms
from schemas.compliance.requests import (
    ComplianceOrder,
    ComplianceRequest,
    ComplianceResult,
    ComplianceStatus,
    Subject,
    Topic,
    subject_from,
)
from storage.accounts.audit_log import append
from storage.compliance import erasure_log
from storage.db import identifiers
from storage.db.columns import JsonField
from storage.db.engine import execute, is_sqlite, rows, transaction
from storage.secrets.encrypted_columns import REPORT, SUBJECT
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

#: What the law gives a shop, and what platforms tell their apps.
DUE_WITHIN: Final = timedelta(days=30)
#: A platform repeats an unanswered webhook for two days at most. The same bytes later are a new wish: the person came back,
#: or the shop was installed and left again.
REPEATED_WITHIN: Final = timedelta(days=2)
#: A worker renews with every batch, which takes a fraction of a second; one that died is replaced this soon.
LEASE_S: Final = 15.0
#: After an error the next look comes this much later, then twice as much, up to an hour: visible, and never a hot loop.
RETRY_S: Final = 60.0
MAX_RETRY_S: Final = 3600.0

_COLUMNS: Final = (
    "id, topic, shop_domain, subject_pseudonym, status, result, counts, attempts, last_error, "
    "report_sealed IS NOT NULL, created_at, due_at, next_run_at, finished_at"
)
#: Nobody is carrying out another request of the same shop.
_SHOP_IS_FREE: Final = (
    "NOT EXISTS (SELECT 1 FROM compliance_requests o WHERE o.shop_domain = r.shop_domain AND o.id <> r.id "
    "AND o.lease IS NOT NULL AND o.next_run_at > ?)"
)
_NEXT: Final = f"""
SELECT r.id, r.topic, r.shop_domain, r.subject_pseudonym, r.subject_sealed, r.counts, r.attempts, r.next_run_at, r.created_at
FROM compliance_requests r WHERE r.next_run_at <= ? AND {_SHOP_IS_FREE}
ORDER BY r.next_run_at, r.id LIMIT 1"""  # noqa: S608 - our own names

_json: Final = JsonField()


class LeaseLost(Exception):
    """Another worker has taken this request up; whatever its former holder does is too late."""


@dataclass(frozen=True, slots=True)
class ComplianceLease:
    """A request that one worker carries out; `counts` are those of the work that is already done."""

    id: str
    lease: str
    topic: Topic
    shop_domain: str
    subject_pseudonym: str | None
    subject_sealed: bytes | None
    counts: Mapping[str, int]
    attempt: int
    received_at: datetime


def receive(order: ComplianceOrder, body: bytes, vault: Vault, now: datetime, actor: str) -> str | None:
    """Store an order and return its id; None where the same one is there already.

    Where it is about a person, raises NoEncryptionKey where nothing can be sealed, and WrongEncryptionKey where the keys are
    not this installation's: a process that started while the database was away has not been told so yet.
    """
    request_id = identifiers.new_id(identifiers.COMPLIANCE, now)
    sealed, pseudonym = _sealed_subject(request_id, order, vault, now)
    key = (order.topic.value, order.shop_domain, hashlib.sha256(body).hexdigest())
    with transaction():
        _retire(key, now)
        stored = execute(
            "INSERT INTO compliance_requests (id, topic, shop_domain, body_sha256, subject_pseudonym, subject_sealed, "
            "status, counts, attempts, due_at, next_run_at, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, 'received', '{}', 0, ?, ?, ?) "
            "ON CONFLICT (topic, shop_domain, body_sha256) DO NOTHING",
            (request_id, *key, pseudonym, sealed, to_ms(due_at(now)), to_ms(now), to_ms(now)),
        )
        if not stored:
            return None
        append(now, actor, "receive_compliance_request", request_id, order.topic.value)
    return request_id


def due_at(received_at: datetime) -> datetime:
    """Return by when a request has to be done that came at `received_at`."""
    return received_at + DUE_WITHIN


def pseudonym_of(subject: Subject, shop_domain: str, vault: Vault) -> str | None:
    """Return by what a person is known in a shop's requests; None where only orders are named."""
    return None if subject.identity is None else vault.pseudonym(f"{shop_domain}|{subject.identity}")


def any_waiting(now: datetime) -> bool:
    """Tell whether a request may be taken up at `now`."""
    return bool(rows(_NEXT, (to_ms(now), to_ms(now))))


def count_waiting(now: datetime) -> int:
    """Return how many requests may be taken up at `now`, those of a shop that is being served included."""
    return int(rows("SELECT COUNT(*) FROM compliance_requests WHERE next_run_at <= ?", (to_ms(now),))[0][0])


def count_unfinished() -> int:
    """Return how many requests are not done, whenever they are due."""
    return int(rows("SELECT COUNT(*) FROM compliance_requests WHERE next_run_at IS NOT NULL")[0][0])


def count_overdue(now: datetime) -> int:
    """Return how many requests are not done although the law wants them done by `now`."""
    return int(
        rows("SELECT COUNT(*) FROM compliance_requests WHERE next_run_at IS NOT NULL AND due_at < ?", (to_ms(now),))[0][0]
    )


def claim_next(now: datetime) -> ComplianceLease | None:
    """Take up the request that has waited longest, of a shop that nobody serves; None if there is none.

    The claim lapses LEASE_S after `now` unless `renew` is called; then the request waits again.
    """
    now_ms = to_ms(now)
    with transaction():
        found = rows(_NEXT, (now_ms, now_ms))
        if not found:
            return None
        request_id, topic, shop_domain, pseudonym, sealed, counts, attempts, next_run_at, created_at = found[0]
        _lock_shop(shop_domain)
        lease = identifiers.new_id(identifiers.LEASE, now)
        # Who else might have won: a worker that took it, or another request of its shop, since the SELECT.
        taken = execute(
            "UPDATE compliance_requests AS r SET lease = ?, next_run_at = ?, attempts = attempts + 1 "  # noqa: S608 - our own names
            f"WHERE r.id = ? AND r.next_run_at = ? AND {_SHOP_IS_FREE}",
            (lease, _lapses_at(now), request_id, next_run_at, now_ms),
        )
        if not taken:
            return None
    return ComplianceLease(
        id=request_id,
        lease=lease,
        topic=Topic(topic),
        shop_domain=shop_domain,
        subject_pseudonym=pseudonym,
        subject_sealed=None if sealed is None else bytes(sealed),
        counts=_json.python_value(counts),
        attempt=attempts + 1,
        received_at=from_ms(created_at),
    )


def subject_of(held: ComplianceLease, vault: Vault) -> Subject:
    """Return whom a request is about; nobody where it is about a shop. Raises WrongEncryptionKey, NoEncryptionKey."""
    if held.subject_sealed is None:
        return Subject()
    return subject_from(json.loads(vault.open(held.subject_sealed, SUBJECT.context(held.id))))


def renew(held: ComplianceLease, counts: Mapping[str, int], now: datetime) -> None:
    """Hold on to a request and write how far it is, in the transaction of the work it counts. Raises LeaseLost.

    On PostgreSQL this locks the row, so that nobody takes the request up before the work is committed.
    """
    renewed = execute(
        "UPDATE compliance_requests SET next_run_at = ?, counts = ? WHERE id = ? AND lease = ? AND next_run_at > ?",
        (_lapses_at(now), _json.db_value(_sorted(counts)), held.id, held.lease, to_ms(now)),
    )
    if not renewed:
        raise LeaseLost


def finish(
    held: ComplianceLease,
    result: ComplianceResult,
    counts: Mapping[str, int],
    report_sealed: bytes | None,
    now: datetime,
    actor: str,
) -> None:
    """Close a request and forget whom it was about; the caller holds the transaction. Raises LeaseLost."""
    renew(held, counts, now)
    execute(
        "UPDATE compliance_requests SET status = 'done', result = ?, report_sealed = ?, subject_sealed = NULL, "
        "lease = NULL, next_run_at = NULL, last_error = NULL, finished_at = ? WHERE id = ?",
        (result.value, report_sealed, to_ms(now), held.id),
    )
    told = " ".join([result.value, *(f"{name}={count}" for name, count in _sorted(counts).items())])
    append(now, actor, "finish_compliance_request", held.id, told)


def postpone(held: ComplianceLease, error: str, now: datetime) -> datetime | None:
    """Let a request that broke off wait, longer each time; return until when, None where another worker has it.

    `error` names the kind of error, never what it says.
    """
    wait_s = min(RETRY_S * 2 ** min(held.attempt - 1, 10), MAX_RETRY_S)
    next_run_at = now + timedelta(seconds=wait_s)
    with transaction():
        postponed = execute(
            "UPDATE compliance_requests SET lease = NULL, next_run_at = ?, last_error = ? WHERE id = ? AND lease = ?",
            (to_ms(next_run_at), error, held.id, held.lease),
        )
    return next_run_at if postponed else None


def seal_report(request_id: str, report: Mapping[str, Any], vault: Vault) -> bytes:
    """Seal what a search found for the ledger's line of that request."""
    return vault.seal(json.dumps(report, ensure_ascii=False), REPORT.context(request_id))


def report_of(request_id: str, vault: Vault) -> dict[str, Any] | None:
    """Return what a data request found; None where there is no report or it was erased. Raises WrongEncryptionKey."""
    found = rows("SELECT report_sealed FROM compliance_requests WHERE id = ?", (request_id,))
    if not found or found[0][0] is None:
        return None
    report: dict[str, Any] = json.loads(vault.open(bytes(found[0][0]), REPORT.context(request_id)))
    return report


def reported(shop_domain: str) -> list[tuple[str, str | None]]:
    """Return the requests of a shop that have a report, each with the pseudonym of its subject."""
    statement = "SELECT id, subject_pseudonym FROM compliance_requests WHERE shop_domain = ? AND report_sealed IS NOT NULL"
    return [(row[0], row[1]) for row in rows(f"{statement} ORDER BY id", (shop_domain,))]


def replace_report(request_id: str, report_sealed: bytes | None, now: datetime, actor: str) -> None:
    """Put another report in place of one, or erase it, for the request `actor`; the caller holds the transaction."""
    erasure_log.add(actor, REPORT.table, [request_id], now)
    execute("UPDATE compliance_requests SET report_sealed = ? WHERE id = ?", (report_sealed, request_id))


def get(request_id: str) -> ComplianceRequest:
    """Return one line of the ledger. Raises NotFound."""
    known = identifiers.is_id(identifiers.COMPLIANCE, request_id)
    found = rows(f"SELECT {_COLUMNS} FROM compliance_requests WHERE id = ?", (request_id,)) if known else []  # noqa: S608 - our own names
    if not found:
        raise NotFound("There is no such compliance request; see `bin/riskrelay compliance list`.")
    return _request(found[0])


def ledger() -> Sequence[ComplianceRequest]:
    """Return every line of the ledger: first what waits, by when it is due, then what is done, the newest first."""
    statement = f"SELECT {_COLUMNS} FROM compliance_requests ORDER BY id DESC"  # noqa: S608 - our own names
    lines = [_request(row) for row in rows(statement)]
    waiting = [line for line in lines if line.status is ComplianceStatus.RECEIVED]
    done = [line for line in lines if line.status is ComplianceStatus.DONE]
    return [*sorted(waiting, key=lambda line: line.due_at), *done]


def newest(limit: int, before: str | None, status: ComplianceStatus | None, topic: Topic | None) -> list[ComplianceRequest]:
    """Return up to `limit` lines of the ledger, the newest first, of those older than the one with the id `before`."""
    wanted = {"id < ?": before, "status = ?": status, "topic = ?": topic}
    given = {condition: str(value) for condition, value in wanted.items() if value is not None}
    where = f"WHERE {' AND '.join(given)}" if given else ""
    statement = f"SELECT {_COLUMNS} FROM compliance_requests {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - our own names
    return [_request(row) for row in rows(statement, (*given.values(), limit))]


def _retire(key: tuple[str, str, str], now: datetime) -> None:
    """Make room for the same bytes where they were carried out so long ago that this is no repetition."""
    execute(
        "UPDATE compliance_requests SET body_sha256 = body_sha256 || '|' || id "
        "WHERE topic = ? AND shop_domain = ? AND body_sha256 = ? AND finished_at < ?",
        (*key, to_ms(now - REPEATED_WITHIN)),
    )


def _sealed_subject(request_id: str, order: ComplianceOrder, vault: Vault, now: datetime) -> tuple[bytes | None, str | None]:
    if order.subject is None:
        return None, None
    check_keys(vault, now)
    sealed = vault.seal(json.dumps(order.subject.record(), ensure_ascii=False), SUBJECT.context(request_id))
    return sealed, pseudonym_of(order.subject, order.shop_domain, vault)


def _lock_shop(shop_domain: str) -> None:
    """Let two workers that want requests of the same shop take turns; SQLite has one writer at a time anyway."""
    if not is_sqlite():
        rows(
            "SELECT 1 FROM compliance_requests WHERE shop_domain = ? AND next_run_at IS NOT NULL ORDER BY id FOR UPDATE",
            (shop_domain,),
        )


def _lapses_at(now: datetime) -> int:
    return to_ms(now + timedelta(seconds=LEASE_S))


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(Counter(counts)) if counts[name]}


def _request(row: tuple[Any, ...]) -> ComplianceRequest:
    return ComplianceRequest(
        id=row[0],
        topic=Topic(row[1]),
        shop_domain=row[2],
        subject_pseudonym=row[3],
        status=ComplianceStatus(row[4]),
        result=None if row[5] is None else ComplianceResult(row[5]),
        counts=_json.python_value(row[6]),
        attempts=row[7],
        last_error=row[8],
        has_report=bool(row[9]),
        received_at=from_ms(row[10]),
        due_at=from_ms(row[11]),
        next_run_at=from_ms(row[12]),
        finished_at=from_ms(row[13]),
    )
