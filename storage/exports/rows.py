"""The rows of exports and attempts, as tuples for the hot statements and as the values that travel between rooms."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.delivery import Claim, CompletedAttempt
from schemas.exports.record import Export, LastAttempt, Sighting
from schemas.exports.state_machine import FINISHED, MOVES, ExportStatus
from schemas.exports.ticket import Source, Ticket, digest
from schemas.exports.ticket_text import preview_problems
from storage.db.columns import JsonField

_json: Final = JsonField()

# An attempt is made when it is due, but not while its target waits.
_NEXT_AT: Final = (
    "CASE WHEN e.status IN ('approved', 'retry_scheduled') AND t.status = 'active' AND t.held_until > e.due_at "
    "THEN t.held_until ELSE e.due_at END"
)
#: A whole export `e`, but for its body and its lease, its target `t` and the finding `f` that it was prepared from.
COLUMNS: Final = (
    "e.id, e.account_id, e.status, e.status_reason, e.target_id, e.source_type, e.source_id, e.scan_run_id, e.ticket, "
    f"e.ticket_digest, e.preview_problems, e.attempts, {_NEXT_AT}, e.version, e.last_attempt_at, e.last_response_status, "
    "e.last_error_code, e.last_duration_ms, e.provider_ticket_id, e.provider_ticket_url, e.created_at, e.approved_at, "
    "e.finished_at, f.id, f.first_seen_at, f.last_seen_at, f.times_seen, f.first_scan_run_id, f.last_scan_run_id"
)
#: Where COLUMNS come from besides the export; whoever reads one export or a page of them asks one question.
OF_AN_EXPORT: Final = """
    LEFT JOIN findings f ON f.id = e.source_id AND e.source_type = 'finding'
    LEFT JOIN targets t ON t.id = e.target_id"""
SOURCES: Final = f"exports e {OF_AN_EXPORT}"
#: What a claim is made from, of an export `e` and its target `t`.
DUE_COLUMNS: Final = (
    "e.id, e.status, e.attempts, e.attempts_before, e.target_id, t.base_url, t.secret_sealed, e.body, e.schedule_began_at"
)
#: Where the target's id stands in a row of them.
TARGET_PLACE: Final = 4

#: What an attempt leaves on its export, and of which type each value is.
RECORDED_COLUMNS: Final = {
    "id": "TEXT",
    "lease": "TEXT",
    "status": "TEXT",
    "reason": "TEXT",
    "due_at": "BIGINT",
    "finished_at": "BIGINT",
    "at": "BIGINT",
    "response_status": "INTEGER",
    "error_code": "TEXT",
    "ms": "INTEGER",
    "ticket_id": "TEXT",
    "ticket_url": "TEXT",
}

#: A new export, and of which type each value is.
PREPARED_COLUMNS: Final = {
    "id": "TEXT",
    "account_id": "INTEGER",
    "project_id": "INTEGER",
    "source_type": "TEXT",
    "source_id": "TEXT",
    "scan_run_id": "BIGINT",
    "status": "TEXT",
    "ticket": "TEXT",
    "ticket_digest": "TEXT",
    "preview_problems": "TEXT",
    "attempts": "INTEGER",
    "attempts_before": "INTEGER",
    "version": "INTEGER",
    "created_at": "BIGINT",
}

#: An attempt, and of which type each value is.
ATTEMPT_COLUMNS: Final = {
    "id": "TEXT",
    "export_id": "TEXT",
    "number": "INTEGER",
    "started_at": "BIGINT",
    "outcome": "TEXT",
    "response_status": "INTEGER",
    "error_code": "TEXT",
    "retry_after_s": "INTEGER",
    "address": "TEXT",
    "dns_ms": "INTEGER",
    "connect_ms": "INTEGER",
    "tls_ms": "INTEGER",
    "first_byte_ms": "INTEGER",
    "total_ms": "INTEGER",
    "nonce": "TEXT",
    "worker": "TEXT",
    "answer": "TEXT",
}


@dataclass(frozen=True, slots=True)
class WrittenTicket:
    """A ticket as its row holds it; the ticket and the problems of its preview are JSON."""

    text: str
    digest: str
    problems: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A ticket to be prepared for an account; a source with an empty id is the export itself."""

    account_id: int
    project_id: int | None
    source: Source
    ticket: Ticket | WrittenTicket


def written(tickets: Sequence[Ticket]) -> list[WrittenTicket]:
    """Write tickets, and search each for what may not be delivered: most of what it costs to prepare one."""
    records = [ticket.record() for ticket in tickets]
    return [
        WrittenTicket(_json.text(record), digest(record), _json.text([asdict(problem) for problem in problems]))
        for record, problems in zip(records, preview_problems(records), strict=True)
    ]


def export_from(row: tuple[Any, ...]) -> Export:
    """Read a row of COLUMNS."""
    return Export(
        id=row[0],
        account_id=row[1],
        status=ExportStatus(row[2]),
        status_reason=row[3],
        target_id=row[4],
        source=Source(row[5], row[6], row[7]),
        ticket=_json.python_value(row[8]),
        ticket_digest=row[9],
        preview_problems=tuple(_json.python_value(row[10])),
        attempts=row[11],
        due_at=from_ms(row[12]),
        version=row[13],
        last_attempt=None if row[14] is None else LastAttempt(from_ms(row[14]), row[15], row[16], row[17]),
        provider_ticket_id=row[18],
        provider_ticket_url=row[19],
        created_at=from_ms(row[20]),
        approved_at=from_ms(row[21]),
        finished_at=from_ms(row[22]),
        finding=None if row[23] is None else Sighting(row[23], from_ms(row[24]), from_ms(row[25]), *row[26:29]),
    )


def claim_from(row: tuple[Any, ...], lease: str, now: datetime) -> Claim:
    """Read a row of DUE_COLUMNS as it was before `lease` took it at `now`."""
    export_id, _status, attempts, attempts_before, target_id, base_url, secret_sealed, body, schedule_began_at = row
    return Claim(
        export_id=export_id,
        lease=lease,
        attempt=attempts + 1,
        try_number=attempts + 1 - attempts_before,
        target_id=target_id,
        base_url=base_url,
        secret_sealed=None if secret_sealed is None else bytes(secret_sealed),
        body=bytes(body),
        schedule_began_at=from_ms(schedule_began_at),
        claimed_at=now,
    )


def prepared_row(export_id: str, draft: Draft, now: datetime) -> tuple[Any, ...]:
    """Return the row of PREPARED_COLUMNS of a draft."""
    ticket = draft.ticket if isinstance(draft.ticket, WrittenTicket) else written([draft.ticket])[0]
    return (
        export_id,
        draft.account_id,
        draft.project_id,
        draft.source.type,
        draft.source.id or export_id,
        draft.source.scan_run_id,
        ExportStatus.PREPARED.value,
        ticket.text,
        ticket.digest,
        ticket.problems,
        0,
        0,
        1,
        to_ms(now),
    )


def recorded_row(attempted: CompletedAttempt, now: datetime) -> tuple[Any, ...]:
    """Return the row of RECORDED_COLUMNS of an attempt that was judged at `now`."""
    verdict = attempted.verdict
    status = MOVES[verdict.move].target
    return (
        attempted.claim.export_id,
        attempted.claim.lease,
        status.value,
        verdict.reason if status in FINISHED else None,
        None if verdict.next_attempt_at is None else to_ms(verdict.next_attempt_at),
        to_ms(now) if status in FINISHED else None,
        to_ms(attempted.started_at),
        attempted.outcome.status,
        verdict.error_code,
        attempted.outcome.timings.total_ms,
        verdict.provider_ticket_id,
        verdict.provider_ticket_url,
    )


def attempt_row(attempted: CompletedAttempt, worker: str) -> tuple[Any, ...]:
    """Return the row of ATTEMPT_COLUMNS of an attempt."""
    timings = attempted.outcome.timings
    return (
        attempted.id,
        attempted.claim.export_id,
        attempted.claim.attempt,
        to_ms(attempted.started_at),
        attempted.verdict.outcome,
        attempted.outcome.status,
        attempted.verdict.error_code,
        attempted.verdict.retry_after_s,
        attempted.outcome.address,
        timings.dns_ms,
        timings.connect_ms,
        timings.tls_ms,
        timings.first_byte_ms,
        timings.total_ms,
        attempted.nonce,
        worker,
        attempted.outcome.kept,
    )
