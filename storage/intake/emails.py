"""Inbound emails: a project stores each message once and prepares one export, even if its provider posts it repeatedly."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

from peewee import IntegrityError

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_text import ticket_for_email
from schemas.intake.email import EmailAccepted, InboundEmail, attachment_records
from storage.db import identifiers
from storage.db.columns import values_of
from storage.db.engine import savepoint, transaction
from storage.db.models import InboundEmailRow, ProjectRow
from storage.db.queries import tuples
from storage.exports.rows import Draft, WrittenTicket, written
from storage.exports.transitions import prepare
from storage.intake.options import DEFAULT_OPTIONS, IntakeOptions


@dataclass(frozen=True, slots=True)
class PreparedEmail:
    """An email and its written ticket."""

    email: InboundEmail
    ticket: WrittenTicket


def prepare_email(email: InboundEmail, checkpoint: Checkpoint = no_checkpoint) -> PreparedEmail:
    """Write the ticket of an email, which needs no transaction; `checkpoint` is called between parts of the work."""
    return PreparedEmail(email, written([ticket_for_email(email)], checkpoint)[0])


def accept(
    prepared: PreparedEmail,
    default_project_id: int | None,
    now: datetime,
    actor: str,
    options: IntakeOptions = DEFAULT_OPTIONS,
) -> EmailAccepted:
    """Store an email and prepare its export; if its project already has the message, return the id of the first one.

    The project is the one that a recipient names, else `default_project_id`. Raises ValidationFailed at the recipients' path
    if that project does not exist or no project is given, and at an account's limit.
    """
    email, email_id = prepared.email, identifiers.new_id(identifiers.EMAIL, now)
    with transaction():
        project_id, account_id = _project(email, default_project_id)
        digest = hashlib.sha256(email.message_id.encode()).hexdigest()
        known = _find(project_id, digest)
        if known is None:
            draft = Draft(account_id, project_id, Source("inbound_email", email_id), prepared.ticket)
            try:
                # A savepoint, because the transaction around it may have claimed an idempotency key and must continue.
                with savepoint():
                    [export_id] = prepare([draft], now, actor, options.limits, options.rules)
                    ids = {"id": email_id, "project_id": project_id, "export_id": export_id, "message_sha256": digest}
                    lists = {"recipients": list(email.recipients), "attachments": attachment_records(email)}
                    InboundEmailRow.insert(values_of(InboundEmailRow, email, **ids, **lists, created_at=now)).execute()
                return EmailAccepted(email_id, is_duplicate=False)
            except IntegrityError:
                # Another request has just stored the same message. The savepoint has rolled back the export of this request.
                known = _find(project_id, digest)
                if known is None:
                    raise
        return EmailAccepted(known, is_duplicate=True)


def _find(project_id: int, digest: str) -> str | None:
    query = InboundEmailRow.select(InboundEmailRow.id).where(InboundEmailRow.project == project_id)
    found: str | None = query.where(InboundEmailRow.message_sha256 == digest).scalar()
    return found


def _project(email: InboundEmail, default_project_id: int | None) -> tuple[int, int]:
    """Return the id and the account of the project that the email is for."""
    project_id = default_project_id if email.project_id is None else email.project_id
    if project_id is None:
        raise ValidationFailed(problem(email.recipients_path, "no_project"))
    found = tuples(ProjectRow.select(ProjectRow.id, ProjectRow.account).where(ProjectRow.id == project_id))
    if not found:
        raise ValidationFailed(problem(email.recipients_path, "unknown_project"))
    return found[0][0], found[0][1]
