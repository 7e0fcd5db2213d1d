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

from peewee import ModelSelect

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
from storage.db.columns import JsonField, columns, read, read_first
from storage.db.engine import execute, is_sqlite, rows, transaction
from storage.db.models import ComplianceRequestRow
from storage.db.queries import tuples
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
        topic, shop_domain, body_sha256 = key
        stored = ComplianceRequestRow.insert(
            id=request_id,
            topic=topic,
            shop_domain=shop_domain,
            body_sha256=body_sha256,
            subject_pseudonym=pseudonym,
            subject_sealed=sealed,
            status=ComplianceStatus.RECEIVED,
            counts={},
            attempts=0,
            due_at=due_at(now),
            next_run_at=now,
            created_at=now,
        )
        if not stored.on_conflict_ignore().as_rowcount().execute():
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
    """Return how many requests may be claimed at `now`, including those of a shop with a claimed request."""
    return ComplianceRequestRow.select().where(ComplianceRequestRow.next_run_at <= now).count()


def count_unfinished() -> int:
    """Return how many requests are not done, whenever they are due."""
    return _unfinished().count()


def count_overdue(now: datetime) -> int:
    """Return how many requests are not done although the law wants them done by `now`."""
    return _unfinished().where(ComplianceRequestRow.due_at < now).count()


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
    """Return the report of a data request; None if there is none or it was erased. Raises WrongEncryptionKey."""
    row = ComplianceRequestRow
    sealed = row.select(row.report_sealed).where(row.id == request_id).scalar()
    if sealed is None:
        return None
    report: dict[str, Any] = json.loads(vault.open(bytes(sealed), REPORT.context(request_id)))
    return report


def reported(shop_domain: str) -> list[tuple[str, str | None]]:
    """Return the requests of a shop that have a report, each with the pseudonym of its subject."""
    row = ComplianceRequestRow
    with_report = row.select(row.id, row.subject_pseudonym).where(row.report_sealed.is_null(False))
    found = tuples(with_report.where(row.shop_domain == shop_domain).order_by(row.id))
    return [(request_id, pseudonym) for request_id, pseudonym in found]


def replace_report(request_id: str, report_sealed: bytes | None, now: datetime, actor: str) -> None:
    """Replace or erase the report of a request, for the request `actor`; the caller holds the transaction."""
    erasure_log.add(actor, REPORT.table, [request_id], now)
    replaced = ComplianceRequestRow.update(report_sealed=report_sealed)
    replaced.where(ComplianceRequestRow.id == request_id).execute()


def get(request_id: str) -> ComplianceRequest:
    """Return one request. Raises NotFound."""
    is_id = identifiers.is_id(identifiers.COMPLIANCE, request_id)
    query = _requests().where(ComplianceRequestRow.id == request_id)
    request = read_first(ComplianceRequest, query) if is_id else None
    if request is None:
        raise NotFound("There is no such compliance request; see `bin/riskrelay compliance list`.")
    return request


def list_all() -> Sequence[ComplianceRequest]:
    """Return every request: first those that wait, by when they are due, then those done, the newest first."""
    requests = read(ComplianceRequest, _requests().order_by(ComplianceRequestRow.id.desc()))
    waiting = [request for request in requests if request.status is ComplianceStatus.RECEIVED]
    done = [request for request in requests if request.status is ComplianceStatus.DONE]
    return [*sorted(waiting, key=lambda request: request.due_at), *done]


def list_page(
    limit: int, before: str | None, status: ComplianceStatus | None, topic: Topic | None
) -> list[ComplianceRequest]:
    """Return up to `limit` requests, the newest first, older than the one with the id `before`."""
    query = _requests().order_by(ComplianceRequestRow.id.desc()).limit(limit)
    if before is not None:
        query = query.where(ComplianceRequestRow.id < before)
    if status is not None:
        query = query.where(ComplianceRequestRow.status == status)
    if topic is not None:
        query = query.where(ComplianceRequestRow.topic == topic)
    return read(ComplianceRequest, query)


def _requests() -> "ModelSelect[ComplianceRequestRow]":
    row = ComplianceRequestRow
    has_report = row.report_sealed.is_null(False).converter(bool).alias("has_report")
    return row.select(*columns(ComplianceRequest, row, has_report=has_report, received_at=row.created_at))


def _unfinished() -> "ModelSelect[ComplianceRequestRow]":
    return ComplianceRequestRow.select().where(ComplianceRequestRow.next_run_at.is_null(False))


def _retire(key: tuple[str, str, str], now: datetime) -> None:
    """Make room for the same bytes if they were carried out so long ago that this is no repetition."""
    row = ComplianceRequestRow
    topic, shop_domain, body_sha256 = key
    retired = row.update(body_sha256=row.body_sha256.concat("|").concat(row.id))
    retired.where(
        row.topic == topic,
        row.shop_domain == shop_domain,
        row.body_sha256 == body_sha256,
        row.finished_at < now - REPEATED_WITHIN,
    ).execute()


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
