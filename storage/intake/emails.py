"""Inbound emails: each message is taken once a project and prepares one export, however often its provider posts it."""

import hashlib
from datetime import datetime
from typing import Final

from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import to_ms
from schemas.exports.ticket import Source
from schemas.exports.ticket_text import ticket_for_email
from schemas.intake.email import Accepted, InboundEmail, attachment_records
from storage.db import identifiers
from storage.db.columns import JsonField
from storage.db.engine import execute, rows, savepoint, transaction
from storage.exports.rows import Draft
from storage.exports.transitions import prepare

_INSERT: Final = """
INSERT INTO inbound_emails
    (id, project_id, message_sha256, sender, recipients, subject, text, attachments, sent_at, export_id, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (project_id, message_sha256) DO NOTHING"""

_json: Final = JsonField()


def accept(email: InboundEmail, default_project_id: int | None, now: datetime, actor: str) -> Accepted:
    """Store an email and prepare its export; a message that its project has already is answered with the first one's id.

    The project is the one that a recipient names, else `default_project_id`. Raises ValidationFailed at the recipients'
    path where that project does not exist, or where neither names one.
    """
    with transaction():
        project_id, account_id = _project(email, default_project_id)
        digest = hashlib.sha256(email.message_id.encode()).hexdigest()
        known = _known(project_id, digest)
        if known is not None:
            return Accepted(known, is_duplicate=True)
        email_id = identifiers.new_id(identifiers.EMAIL, now)
        draft = Draft(account_id, project_id, Source("inbound_email", email_id), ticket_for_email(email))
        try:
            _store(email_id, digest, email, draft, now, actor)
        except _Beaten:
            return accept(email, default_project_id, now, actor)
        return Accepted(email_id, is_duplicate=False)


class _Beaten(Exception):
    """Another request stored the same message a moment before, and takes this one's export back with it."""


def _store(email_id: str, digest: str, email: InboundEmail, draft: Draft, now: datetime, actor: str) -> None:
    """Prepare the export and insert the email that names it: both, or neither. Raises _Beaten."""
    # A savepoint: the transaction around it may hold an idempotency key, and goes on.
    with savepoint():
        [export_id] = prepare([draft], now, actor)
        parameters = (
            email_id,
            draft.project_id,
            digest,
            email.sender,
            _json.db_value(list(email.recipients)),
            email.subject,
            email.text,
            _json.db_value(attachment_records(email)),
            None if email.sent_at is None else to_ms(email.sent_at),
            export_id,
            to_ms(now),
        )
        if not execute(_INSERT, parameters):
            raise _Beaten


def _known(project_id: int, digest: str) -> str | None:
    found = rows("SELECT id FROM inbound_emails WHERE project_id = ? AND message_sha256 = ?", (project_id, digest))
    return found[0][0] if found else None


def _project(email: InboundEmail, default_project_id: int | None) -> tuple[int, int]:
    """Return the id and the account of the project that the email is for."""
    project_id = default_project_id if email.project_id is None else email.project_id
    found = [] if project_id is None else rows("SELECT id, account_id FROM projects WHERE id = ?", (project_id,))
    if not found:
        raise ValidationFailed(problem(email.recipients_path, "no_project" if project_id is None else "unknown_project"))
    return found[0][0], found[0][1]
