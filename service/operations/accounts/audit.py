"""Lists audit log entries as their readers may see them: without the names of workers."""

from typing import Any

from schemas.base.timestamps import from_ms
from storage.accounts import audit_log
from storage.accounts.audit_log import AuditEntry
from storage.accounts.audit_log_sql import AuditFilter, kind_of

#: Actor kinds whose names are shown; the names of workers contain host names.
_NAMED_ACTORS = ("user", "rule")


def is_word(text: str) -> bool:
    """Return whether a text can be the actor, the action or the object of an entry; none has more than 200 characters."""
    return 0 < len(text) <= 200 and text.isprintable()


def list_page(filters: AuditFilter, limit: int, before: int | None) -> list[dict[str, Any]]:
    """Return up to `limit` matching entries, newest first, older than the entry `before` if that is given."""
    return [_record(entry) for entry in audit_log.list_matching(filters, limit, before)]


def _record(entry: AuditEntry) -> dict[str, Any]:
    kind, _, name = entry.actor.partition(":")
    return {
        "id": entry.id,
        "at": from_ms(entry.at_ms),
        "actor": {"kind": kind, "id": name if kind in _NAMED_ACTORS else None},
        "action": entry.action,
        "object": {"type": kind_of(entry.subject_id), "id": entry.subject_id},
        "details": _details(entry),
    }


def _details(entry: AuditEntry) -> dict[str, str]:
    given = {name: getattr(entry, name) for name in ("status_before", "status_after", "reason", "digest")}
    return {name: value for name, value in given.items() if value is not None}
