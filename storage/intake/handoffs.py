"""Handoffs: stores a capture or a diagnostic, prepares an export from it, and links both in one record.

One transaction does all of this. It first checks that the uploader may manage the project or report.
"""

from dataclasses import dataclass
from datetime import datetime

from peewee import JOIN

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import TokenPrincipal
from schemas.base.shop_domain import normalized_shop_domain
from schemas.base.timestamps import to_ms
from schemas.exports.handoffs import RECEIVED, Handoff, HandoffProgress
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_text import ticket_for_capture, ticket_for_diagnostic
from schemas.intake.diagnostics import Diagnostics
from schemas.intake.evidence import Capture, outline_record
from storage.accounts.account_limits import Limited
from storage.accounts.audit_log import AuditEntry, append_all
from storage.accounts.grants import lock_project, manageable
from storage.db import identifiers
from storage.db.bulk_sql import insert_records
from storage.db.columns import columns, get_by_id, values_of
from storage.db.engine import transaction
from storage.db.models import DiagnosticRow, EvidenceCaptureRow, ExportRow, HandoffRow
from storage.exports.rows import Draft, WrittenTicket, written
from storage.exports.transitions import prepare
from storage.intake.options import DEFAULT_OPTIONS, IntakeOptions


@dataclass(frozen=True, slots=True)
class PreparedUpload:
    """An upload and its written ticket."""

    upload: Capture | Diagnostics
    ticket: WrittenTicket


def prepare_upload(upload: Capture | Diagnostics, checkpoint: Checkpoint = no_checkpoint) -> PreparedUpload:
    """Write the ticket of an upload, which needs no transaction; `checkpoint` is called between parts of the work."""
    ticket = ticket_for_capture(upload) if isinstance(upload, Capture) else ticket_for_diagnostic(upload)
    return PreparedUpload(upload, written([ticket], checkpoint)[0])


def record_upload(
    prepared: PreparedUpload, principal: TokenPrincipal, now: datetime, options: IntakeOptions = DEFAULT_OPTIONS
) -> Handoff:
    """Store an upload and prepare an export from it.

    Raises Forbidden, and ValidationFailed on `/report_id`, on `/shop_domain` if the project has another shop, or at an
    account's limit.
    """
    upload = prepared.upload
    with transaction():
        lock_project(upload.project_id)
        project = manageable(principal, upload.project_id, upload.report_id)
        if isinstance(upload, Capture):
            source = Source("evidence_capture", identifiers.new_id(identifiers.CAPTURE, now))
            outline = outline_record(upload)
            row = values_of(EvidenceCaptureRow, upload, id=source.id, heading_outline=outline, created_at=now)
            EvidenceCaptureRow.insert(row).execute()
        else:
            _require_shop(upload.shop_domain, project.shop_domain)
            source = Source("diagnostics", identifiers.new_id(identifiers.DIAGNOSTIC, now))
            _insert_diagnostics(upload, source.id, now)
        draft = Draft(principal.account_id, upload.project_id, source, prepared.ticket)
        [export_id] = prepare([draft], now, principal.key, options.limits, options.rules)
        handoff_id = identifiers.new_id(identifiers.HANDOFF, now)
        handoff = Handoff(handoff_id, source, upload.project_id, upload.report_id, export_id, now)
        _insert_handoff(handoff, principal)
        options.limits.require_room(principal.account_id, Limited.UPLOADS, 1, now)
        return handoff


def get(handoff_id: str, user_id: int) -> HandoffProgress:
    """Return a user's handoff with the state of its export. Raises NotFound."""
    of_export = ("findings_total", "findings_fixed", "provider_ticket_id", "provider_ticket_url")
    shown = {name: getattr(ExportRow, name) for name in of_export}
    query = (
        HandoffRow.select(
            *columns(HandoffProgress, HandoffRow, platform=DiagnosticRow.platform, export_status=ExportRow.status, **shown)
        )
        .join(ExportRow)
        .join_from(HandoffRow, DiagnosticRow, JOIN.LEFT_OUTER, on=DiagnosticRow.id == HandoffRow.source_id)
        .where(HandoffRow.id == handoff_id, HandoffRow.user == user_id)
    )
    return get_by_id(HandoffProgress, query, identifiers.HANDOFF, handoff_id, "There is no such handoff.")


def _require_shop(named: str | None, expected: str | None) -> None:
    """Refuse a shop other than the project's; a project without a shop accepts any, and does not store it."""
    if named is None or expected is None:
        return
    # An operator may have stored the domain before domains were normalized.
    if named != (normalized_shop_domain(expected) or expected):
        raise ValidationFailed(problem("/shop_domain", "other_shop"))


def _insert_handoff(handoff: Handoff, principal: TokenPrincipal) -> None:
    now_ms = to_ms(handoff.created_at)
    record = {
        "id": handoff.id,
        "source_type": handoff.source.type,
        "source_id": handoff.source.id,
        "project_id": handoff.project_id,
        "report_id": handoff.report_id,
        "user_id": principal.user_id,
        "export_id": handoff.ticket_export_id,
        "status": RECEIVED,
        "created_at": now_ms,
    }
    insert_records(HandoffRow, [record])
    append_all([AuditEntry(now_ms, principal.key, "hand_off", handoff.id, None, RECEIVED)])


def _insert_diagnostics(diagnostics: Diagnostics, diagnostic_id: str, now: datetime) -> None:
    scopes = diagnostics.granted_scopes
    row = values_of(
        DiagnosticRow,
        diagnostics,
        id=diagnostic_id,
        platform=diagnostics.platform.value,
        granted_scopes=None if scopes is None else list(scopes),
        diagnostics=dict(diagnostics.reported),
        created_at=now,
    )
    DiagnosticRow.insert(row).execute()
