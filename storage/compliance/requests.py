"""Compliance requests: stored once, leased to one worker at a time, and kept without the person's data.

The subject of a request is encrypted until the request is done, and is then erased; a pseudonym, times, counts and the
result stay. The requests of one shop run one after the other, so that no search reports data that an erasure has just
removed. Every write of a worker names its lease: a stale lease updates no row, and the next worker repeats the search. An
expired lease is stale as soon as a worker claims a request of the shop; until then, its holder may continue.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from peewee import SQL, ModelSelect, fn

from schemas.base.errors import Conflict, ValidationFailed
from schemas.base.fields import problem
from schemas.compliance.requests import (
    TOPIC_HEADER,
    ComplianceRequest,
    ComplianceResult,
    ComplianceStatus,
    ComplianceWebhook,
    Subject,
    Topic,
    subject_from,
)
from storage.accounts.audit_log import append
from storage.compliance import erasure_log
from storage.compliance.erasure import is_known
from storage.db import identifiers
from storage.db.columns import columns, get_by_id, read, record_of
from storage.db.engine import after_commit, transaction
from storage.db.leases import LeasedJobs
from storage.db.models import ComplianceRequestRow
from storage.db.queries import for_update, newest_first, tuples, where_given
from storage.secrets.encrypted_columns import REPORT, SUBJECT
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

#: The legal time limit for shops, which platforms pass on to their apps.
DUE_WITHIN: Final = timedelta(days=30)
#: A platform repeats a webhook without a response for two days at most. Later, the same bytes about a person are a new
#: request, because the person was a customer again. The same bytes about a shop are never a new request: a repeated old
#: webhook must not erase a shop that was installed again.
REPEATED_WITHIN: Final = timedelta(days=2)
#: A worker renews the lease with every batch, which takes a fraction of a second. If the worker dies, another one takes over
#: after this time.
LEASE_S: Final = 15.0
#: The delay of the next attempt after an error. It doubles with each error, up to an hour: failures stay visible, but do not
#: load the system.
RETRY_S: Final = 60.0
MAX_RETRY_S: Final = 3600.0

#: The stored columns of a request that no worker has claimed yet.
UNCLAIMED: Final[Mapping[str, Any]] = {
    "status": ComplianceStatus.RECEIVED.value,
    "result": None,
    "counts": {},
    "attempts": 0,
    "finished_at": None,
}

_jobs: Final = LeasedJobs(ComplianceRequestRow)
_log: Final = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another worker has claimed this request; its former holder must not write anything more."""


@dataclass(frozen=True, slots=True)
class ComplianceLease:
    """A request that one worker holds; `counts` are the counts of the work that is already done."""

    id: str
    lease: str
    topic: Topic
    shop_domain: str
    subject_pseudonym: str | None
    subject_sealed: bytes | None
    counts: Mapping[str, int]
    attempt: int
    received_at: datetime


def receive(order: ComplianceWebhook, signature: bytes, vault: Vault, now: datetime, actor: str) -> str | None:
    """Store a request and return its id; None if the same request is already stored.

    Raises ValidationFailed for a body that was accepted under another topic. For a request about a person, raises
    NoEncryptionKey without a key, and WrongEncryptionKey if the keys are not this installation's: a process that started
    while the database was unreachable has not checked them yet.
    """
    request_id = identifiers.new_id(identifiers.COMPLIANCE, now)
    sealed = pseudonym = None
    if order.subject is not None:
        check_keys(vault, now)
        sealed = vault.seal(json.dumps(order.subject.record(), ensure_ascii=False), SUBJECT.context(request_id))
        pseudonym = pseudonym_of(order.subject, order.shop_domain, vault)
    digest = hashlib.sha256(signature).hexdigest()
    with transaction():
        _free_digest(order.topic, digest, now)
        stored = ComplianceRequestRow.insert(
            id=request_id,
            topic=order.topic.value,
            shop_domain=order.shop_domain,
            body_sha256=digest,
            subject_pseudonym=pseudonym,
            subject_sealed=sealed,
            due_at=due_at(now),
            next_run_at=now,
            created_at=now,
            **UNCLAIMED,
        )
        if not stored.on_conflict_ignore().as_rowcount().execute():
            _check_repeated(order, digest, now, actor)
            return None
        append(now, actor, "receive_compliance_request", request_id, order.topic.value)
    return request_id


def repeat(request_id: str, now: datetime, actor: str) -> None:
    """Make a finished shop erasure due again, for a shop that was installed again after it.

    The platform's second webhook has the same bytes as the first, so `receive` does not store it.

    Raises NotFound, and Conflict for a request that is not done or is about a person, whose data it no longer has.
    """
    row = ComplianceRequestRow
    with transaction():
        get(request_id)
        is_finished_erasure = (row.topic == Topic.SHOP_REDACT.value) & (row.status == ComplianceStatus.DONE.value)
        begun = row.update(due_at=due_at(now), next_run_at=now, **UNCLAIMED)
        if not begun.where(row.id == request_id, is_finished_erasure).execute():
            raise Conflict(f"Request {request_id} cannot be repeated; only a shop/redact that is done can.")
        append(now, actor, "repeat_compliance_request", request_id)


def due_at(received_at: datetime) -> datetime:
    """Return the due time of a request that was received at `received_at`."""
    return received_at + DUE_WITHIN


def pseudonym_of(subject: Subject, shop_domain: str, vault: Vault) -> str | None:
    """Return the pseudonym of a person in a shop's requests; None if only orders are named."""
    return None if subject.identity is None else vault.pseudonym(f"{shop_domain}|{subject.identity}")


def count_waiting(now: datetime) -> int:
    """Return how many requests may be claimed at `now`, including those of a shop with a claimed request."""
    return ComplianceRequestRow.select().where(ComplianceRequestRow.next_run_at <= now).count()


def count_unfinished() -> int:
    """Return how many requests are not done, including those that are not due yet."""
    return _jobs.count_unfinished()


def count_overdue(now: datetime) -> int:
    """Return how many requests are not done by `now` although their legal deadline has passed."""
    return _jobs.count_unfinished(ComplianceRequestRow.due_at < now)


def list_due(until: datetime, limit: int) -> list[ComplianceRequest]:
    """Return up to `limit` requests that are not done and due by `until`, the earliest due first."""
    row = ComplianceRequestRow
    found = _requests().where(row.next_run_at.is_null(False), row.due_at <= until)
    return read(ComplianceRequest, found.order_by(row.due_at, row.id).limit(limit))


def claim_next(now: datetime) -> ComplianceLease | None:
    """Claim the request that has waited longest, of a shop without a claimed request; None if no request is due.

    The claim expires LEASE_S after `now` unless `renew` is called; then the request waits again. Even then its holder may
    renew it, as long as nobody has claimed a request of the shop.
    """
    # This read takes no write lock. Most calls of an idle worker end here.
    if _next(now) is None:
        return None
    with transaction():
        row = _next(now)
        if row is None:
            return None
        # Workers that claim requests of one shop wait for each other.
        waiting = ComplianceRequestRow.select(ComplianceRequestRow.id).where(
            ComplianceRequestRow.shop_domain == row.shop_domain, ComplianceRequestRow.next_run_at.is_null(False)
        )
        tuples(for_update(waiting.order_by(ComplianceRequestRow.id)))
        # Since the SELECT, a worker may have claimed this request or another one of its shop.
        attempts = ComplianceRequestRow.attempts + 1
        lease = _jobs.claim(row.id, row.next_run_at, now, LEASE_S, _is_shop_free(now), attempts=attempts)
        if lease is None:
            return None
        _end_lapsed(row)
    return record_of(ComplianceLease, row, lease=lease, attempt=row.attempts + 1, received_at=row.created_at)


def subject_of(held: ComplianceLease, vault: Vault) -> Subject:
    """Return the subject of a request, an empty one for a shop. Raises WrongEncryptionKey, NoEncryptionKey."""
    if held.subject_sealed is None:
        return Subject()
    return subject_from(json.loads(vault.open(held.subject_sealed, SUBJECT.context(held.id))))


def renew(held: ComplianceLease, counts: Mapping[str, int], now: datetime) -> None:
    """Extend a lease and store the progress, in the transaction of the counted work. Raises LeaseLost.

    On PostgreSQL this locks the row, so that no worker claims the request before the work is committed.
    """
    if not _jobs.renew(held.id, held.lease, now, LEASE_S, counts=_nonzero(counts)):
        raise LeaseLost


def finish(
    held: ComplianceLease,
    result: ComplianceResult,
    counts: Mapping[str, int],
    report_sealed: bytes | None,
    now: datetime,
    actor: str,
) -> None:
    """End a request and erase its subject; the caller holds the transaction. Raises LeaseLost."""
    is_finished = _jobs.finish(
        held.id,
        held.lease,
        status=ComplianceStatus.DONE.value,
        result=result.value,
        counts=_nonzero(counts),
        report_sealed=report_sealed,
        subject_sealed=None,
        last_error=None,
        finished_at=now,
    )
    if not is_finished:
        raise LeaseLost
    summary = " ".join([result.value, *(f"{name}={count}" for name, count in _nonzero(counts).items())])
    append(now, actor, "finish_compliance_request", held.id, summary)


def postpone(held: ComplianceLease, error: str, now: datetime) -> datetime | None:
    """Postpone a request that failed, longer each time; return until when, or None if another worker holds it.

    `error` names the kind of error, never its message.
    """
    wait_s = min(RETRY_S * 2 ** min(held.attempt - 1, 10), MAX_RETRY_S)
    next_run_at = now + timedelta(seconds=wait_s)
    with transaction():
        is_postponed = _jobs.finish(held.id, held.lease, due_at=next_run_at, last_error=error)
    return next_run_at if is_postponed else None


def seal_report(request_id: str, report: Mapping[str, Any], vault: Vault) -> bytes:
    """Encrypt the report of a data request."""
    return vault.seal(json.dumps(report, ensure_ascii=False), REPORT.context(request_id))


def report_of(request_id: str, vault: Vault) -> dict[str, Any] | None:
    """Return the report of a data request; None if there is none or it was erased. Raises WrongEncryptionKey."""
    row = ComplianceRequestRow
    sealed = row.select(row.report_sealed).where(row.id == request_id).scalar()
    if sealed is None:
        return None
    report: dict[str, Any] = json.loads(vault.open(sealed, REPORT.context(request_id)))
    return report


def reported(shop_domain: str) -> list[tuple[str, str | None]]:
    """Return the requests of a shop that have a report, each with the pseudonym of its subject."""
    row = ComplianceRequestRow
    with_report = row.select(row.id, row.subject_pseudonym).where(row.report_sealed.is_null(False))
    found = tuples(with_report.where(row.shop_domain == shop_domain).order_by(row.id))
    return [(request_id, pseudonym) for request_id, pseudonym in found]


def replace_report(request_id: str, report_sealed: bytes | None, now: datetime, actor: str) -> None:
    """Replace or erase the report of a request, on behalf of the request `actor`; the caller holds the transaction."""
    erasure_log.add(actor, REPORT.table, [request_id], now)
    replaced = ComplianceRequestRow.update(report_sealed=report_sealed)
    replaced.where(ComplianceRequestRow.id == request_id).execute()


def get(request_id: str) -> ComplianceRequest:
    """Return one request. Raises NotFound."""
    query = _requests().where(ComplianceRequestRow.id == request_id)
    missing = "There is no such compliance request; see `bin/riskrelay compliance list`."
    return get_by_id(ComplianceRequest, query, identifiers.COMPLIANCE, request_id, missing)


def list_all() -> Sequence[ComplianceRequest]:
    """Return every request: first those that wait, the earliest due first, then those that are done, newest first."""
    requests = read(ComplianceRequest, _requests().order_by(ComplianceRequestRow.id.desc()))
    waiting = [request for request in requests if request.status is ComplianceStatus.RECEIVED]
    done = [request for request in requests if request.status is ComplianceStatus.DONE]
    return [*sorted(waiting, key=lambda request: request.due_at), *done]


def list_page(
    limit: int, before: str | None, status: ComplianceStatus | None, topic: Topic | None
) -> list[ComplianceRequest]:
    """Return up to `limit` requests, the newest first, older than the one with the id `before`."""
    query = newest_first(_requests(), ComplianceRequestRow.id, limit, before)
    wanted = ((ComplianceRequestRow.status, status), (ComplianceRequestRow.topic, topic))
    return read(ComplianceRequest, where_given(query, *wanted))


def _requests() -> "ModelSelect[ComplianceRequestRow]":
    row = ComplianceRequestRow
    has_report = row.report_sealed.is_null(False).converter(bool).alias("has_report")
    return row.select(*columns(ComplianceRequest, row, has_report=has_report, received_at=row.created_at))


def _free_digest(topic: Topic, digest: str, now: datetime) -> None:
    """Free the digest of an old, finished request about a person, so that the same bytes can be stored as a new request."""
    row = ComplianceRequestRow
    freed = row.update(body_sha256=row.body_sha256.concat("|").concat(row.id))
    freed.where(
        row.body_sha256 == digest,
        row.topic == topic.value,
        row.topic != Topic.SHOP_REDACT.value,
        row.finished_at < now - REPEATED_WITHIN,
    ).execute()


def _check_repeated(order: ComplianceWebhook, digest: str, now: datetime, actor: str) -> None:
    """Log that a finished erasure was requested again although data of the shop exists: an operator must decide.

    Either the shop was installed and removed again, or somebody has sent an old webhook. Raises ValidationFailed if the body
    was accepted under another topic: the signature does not cover the header.
    """
    first = ComplianceRequestRow.get(ComplianceRequestRow.body_sha256 == digest)
    if first.topic is not order.topic:
        raise ValidationFailed(problem(f"/{TOPIC_HEADER}", "body_of_other_topic"))
    is_old = first.finished_at is not None and first.finished_at < now - REPEATED_WITHIN
    if order.topic is Topic.SHOP_REDACT and is_old and is_known(order.shop_domain):
        append(now, actor, "ignore_compliance_request", first.id)
        message = "the erasure of a shop was requested again; if the shop was removed again, run: compliance repeat %s"
        after_commit(partial(_log.warning, message, first.id))


def _next(now: datetime) -> ComplianceRequestRow | None:
    """Return the request that has waited longest and may be claimed; None if there is none."""
    row = ComplianceRequestRow
    due = row.select().where(row.next_run_at <= now, _is_shop_free(now))
    found: ComplianceRequestRow | None = due.order_by(row.next_run_at, row.id).first()
    return found


def _is_shop_free(now: datetime) -> Any:
    """Return the condition that no other request of the same shop is claimed."""
    row, other = ComplianceRequestRow, ComplianceRequestRow.alias("o")
    is_claimed = (other.id != row.id) & other.lease.is_null(False) & (other.next_run_at > now)
    return ~fn.EXISTS(other.select(SQL("1")).where(other.shop_domain == row.shop_domain, is_claimed))


def _end_lapsed(claimed: ComplianceRequestRow) -> None:
    """End the leases of the other requests of a shop, which have all expired.

    If their holders continued, they would report data that they read before the claimed request erased it.
    """
    row = ComplianceRequestRow
    others = (row.shop_domain == claimed.shop_domain) & (row.id != claimed.id) & row.lease.is_null(False)
    row.update(lease=None).where(others).execute()


def _nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(Counter(counts)) if counts[name]}
