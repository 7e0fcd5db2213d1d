"""Rows of exports and attempts: the columns that hot statements select and store, and the records for other layers."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.decisions import ApprovedBy, Dismissal, DismissalReason, Snooze
from schemas.exports.delivery import Claim, CompletedAttempt
from schemas.exports.polled_record import PolledExport
from schemas.exports.record import Export, LastAttempt, Sighting
from schemas.exports.state_machine import FINISHED, TRANSITIONS, ExportStatus
from schemas.exports.tickets.ticket import Source, Ticket, digest
from schemas.exports.tickets.ticket_text import preview_problems
from schemas.intake.scanner import SEVERITIES
from schemas.targets.delivery_options import DeliveryOptions
from schemas.triage.search_words import hosts_of, words_of
from schemas.url_policy.addresses import address_class
from storage.db.columns import JsonField, record_of, select_list
from storage.db.models import ExportRow, FindingRow, TargetRow
from storage.targets.delivery_options import OPTION_COLUMNS

_json: Final = JsonField()
_NO_PROBLEMS: Final = "[]"


class DueExport(NamedTuple):
    """A due export and its target, as stored; `claim_from` makes a claim of it."""

    id: str
    status: str
    attempts: int
    attempts_before: int
    target_id: str
    base_url: str
    secret_sealed: bytes | None
    body: bytes
    schedule_began_at: int
    due_at: int
    account_id: int
    is_outcome_unknown: bool
    options: DeliveryOptions


#: Until when a target is held or has used up its rate limit; a limit above 61 a minute is never used up for a whole second.
_HELD_UNTIL: Final = (
    "CASE WHEN t.max_per_minute <= 61 AND t.paced_until > COALESCE(t.held_until, 0) * 1000 "
    "THEN (t.paced_until + 999) / 1000 ELSE t.held_until END"
)
#: The columns of a PolledExport: export `e` except its body and lease, finding `f` from which it was prepared, target `t`.
EXPORT_COLUMNS: Final = select_list(
    PolledExport,
    {"e": ExportRow, "f": FindingRow},
    finding_id="f.id",
    target_status="t.status",
    held_until=_HELD_UNTIL,
    approved_by_name="COALESCE(ar.name, CASE WHEN au.removed_at IS NULL THEN au.email END)",
)
#: The tables that EXPORT_COLUMNS need besides the export `e`.
EXPORT_JOINS: Final = """
    LEFT JOIN findings f ON f.id = e.source_id AND e.source_type = 'finding'
    LEFT JOIN targets t ON t.id = e.target_id
    LEFT JOIN users au ON au.id = e.approved_by_user_id
    LEFT JOIN approval_rules ar ON ar.id = e.approved_by_rule_id"""
#: The columns of a DueExport, which `read_job` reads: an export `e` and its target `t`.
DUE_COLUMNS: Final = select_list(DueExport, {"e": ExportRow, "t": TargetRow}, options=OPTION_COLUMNS)


@dataclass(frozen=True, slots=True)
class WrittenTicket:
    """A ticket as its row stores it; the ticket and the problems of its preview are JSON."""

    text: str
    digest: str
    problems: str
    severity_rank: int
    #: The words and hosts by which the ticket is found.
    words: str
    hosts: tuple[str, ...]

    def columns(self) -> dict[str, Any]:
        """Return the ticket's columns in an export's row."""
        return {
            "ticket": self.text,
            "ticket_digest": self.digest,
            "preview_problems": self.problems,
            "severity_rank": self.severity_rank,
        }


@dataclass(frozen=True, slots=True)
class Draft:
    """A ticket to be prepared for an account; if the id of its source is empty, the source is the export itself."""

    account_id: int
    project_id: int | None
    source: Source
    ticket: Ticket | WrittenTicket
    #: The rule code and the number of the ticket's findings, if it has any.
    rule: str | None = None
    findings: int | None = None
    #: The rule code again, if later findings may join the ticket.
    open_group: str | None = None
    #: The id of the new export, if its findings already have it.
    export_id: str | None = None


def written(tickets: Iterable[Ticket], checkpoint: Checkpoint = no_checkpoint) -> list[WrittenTicket]:
    """Write tickets, and search each for forbidden content, which is most of the cost of preparing one.

    `checkpoint` is called between parts of the work; a caller that is in a transaction passes none.
    """
    return written_records([ticket.record() for ticket in tickets], checkpoint)


def written_records(records: Sequence[dict[str, Any]], checkpoint: Checkpoint = no_checkpoint) -> list[WrittenTicket]:
    """Write tickets that are already JSON records, as `written` does."""
    made: list[WrittenTicket] = []
    for record, problems in zip(records, preview_problems(records, checkpoint), strict=True):
        found = _json.text([asdict(each) for each in problems]) if problems else _NO_PROBLEMS
        rank, words, hosts = SEVERITIES.index(record["severity"]), words_of(record), hosts_of(record)
        made.append(WrittenTicket(_json.text(record), digest(record), found, rank, words, hosts))
        checkpoint()
    return made


def export_from(row: PolledExport) -> Export:
    """Return the record of an export's row."""
    return record_of(
        Export,
        row,
        stored=row,
        status=ExportStatus(row.status),
        source=Source(row.source_type, row.source_id, row.scan_run_id),
        ticket=_json.python_value(row.ticket),
        preview_problems=tuple(_json.python_value(row.preview_problems)),
        due_at=from_ms(row.due_at),
        last_attempt=None if row.last_attempt_at is None else _last_attempt(row, row.last_attempt_at),
        created_at=from_ms(row.created_at),
        approved_at=from_ms(row.approved_at),
        finished_at=from_ms(row.finished_at),
        severity=SEVERITIES[row.severity_rank],
        findings=None if row.findings_total is None else (row.findings_total, row.findings_fixed or 0),
        original_ticket=_json.python_value(row.original_ticket),
        dismissal=_dismissal(row) if row.status == ExportStatus.DISMISSED else None,
        snooze=None if row.snoozed_at is None else Snooze(from_ms(row.snoozed_until)),
        approved_by=_approved_by(row),
        siblings=None if row.siblings is None else tuple(_json.python_value(row.siblings)),
        finding=None if row.finding_id is None else _sighting(row),
    )


def claim_from(due: DueExport, lease: str, now: datetime) -> Claim:
    """Return the claim of an export that was due until `lease` claimed it at `now`."""
    has_lapsed = due.status == ExportStatus.DELIVERING
    return record_of(
        Claim,
        due,
        export_id=due.id,
        lease=lease,
        attempt=due.attempts + 1,
        try_number=due.attempts + 1 - due.attempts_before,
        schedule_began_at=from_ms(due.schedule_began_at),
        claimed_at=now,
        # A worker whose lease expired may have sent the request before it died.
        is_outcome_unknown=bool(due.is_outcome_unknown) or has_lapsed,
        has_lapsed=has_lapsed,
        due_at_ms=due.due_at,
    )


def prepared_values(export_id: str, draft: Draft, ticket: WrittenTicket, now: datetime) -> dict[str, Any]:
    """Return the columns of a new export."""
    return {
        "id": export_id,
        "account_id": draft.account_id,
        "project_id": draft.project_id,
        "source_type": draft.source.type,
        "source_id": draft.source.id or export_id,
        "scan_run_id": draft.source.scan_run_id,
        "status": ExportStatus.PREPARED.value,
        **ticket.columns(),
        "attempts": 0,
        "attempts_before": 0,
        "version": 1,
        "created_at": to_ms(now),
        "rule": draft.rule,
        "open_group": draft.open_group,
        "findings_total": draft.findings,
        "findings_fixed": None if draft.findings is None else 0,
    }


def recorded_values(attempted: CompletedAttempt, now: datetime) -> dict[str, Any]:
    """Return the columns of an export after an attempt that was decided at `now`, with the id and the lease of its claim."""
    verdict = attempted.verdict
    status = TRANSITIONS[verdict.transition].target
    return {
        "id": attempted.claim.export_id,
        "lease": attempted.claim.lease,
        "status": status.value,
        "status_reason": verdict.reason if status in FINISHED else None,
        "due_at": None if verdict.next_attempt_at is None else to_ms(verdict.next_attempt_at),
        "finished_at": to_ms(now) if status in FINISHED else None,
        "last_attempt_at": to_ms(attempted.started_at),
        "last_response_status": attempted.outcome.status,
        "last_error_code": verdict.error_code,
        "last_duration_ms": attempted.outcome.timings.total_ms,
        "provider_ticket_id": verdict.provider_ticket_id,
        "provider_ticket_url": verdict.provider_ticket_url,
        "is_outcome_unknown": verdict.is_outcome_unknown,
    }


def attempt_values(attempted: CompletedAttempt, worker: str) -> dict[str, Any]:
    """Return the columns of an attempt."""
    return {
        "id": attempted.id,
        "export_id": attempted.claim.export_id,
        "number": attempted.claim.attempt,
        "started_at": to_ms(attempted.started_at),
        "outcome": attempted.verdict.outcome,
        "response_status": attempted.outcome.status,
        "error_code": attempted.verdict.error_code,
        "retry_after_s": attempted.verdict.retry_after_s,
        "address": attempted.outcome.address,
        **attempted.outcome.timings._asdict(),
        "nonce": attempted.nonce,
        "worker": worker,
        "answer": attempted.outcome.kept,
        "address_class": None if attempted.outcome.address is None else address_class(attempted.outcome.address),
        "signature": attempted.outcome.signature,
        "body_sha256": attempted.outcome.body_sha256,
        "response_sha256": attempted.outcome.response_sha256,
    }


def _dismissal(row: PolledExport) -> Dismissal:
    reason = None if row.dismissal_reason is None else DismissalReason(row.dismissal_reason)
    return Dismissal(reason, row.dismissal_note, from_ms(row.finished_at))


def _approved_by(row: PolledExport) -> ApprovedBy | None:
    if row.approved_at is None:
        # Not approved: the rule may still be set, if a prepared export waits for the rule's target.
        return None
    if row.approved_by_rule_id is not None:
        return ApprovedBy("rule", row.approved_by_rule_id, row.approved_by_name)
    if row.approved_by_user_id is not None:
        return ApprovedBy("user", row.approved_by_user_id, row.approved_by_name)
    return None


def _last_attempt(row: PolledExport, at: int) -> LastAttempt:
    return LastAttempt(from_ms(at), row.last_response_status, row.last_error_code, row.last_duration_ms)


def _sighting(row: PolledExport) -> Sighting:
    moments = {"first_seen_at": from_ms(row.first_seen_at), "last_seen_at": from_ms(row.last_seen_at)}
    return record_of(Sighting, row, **moments)
