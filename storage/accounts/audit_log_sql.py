"""The SQL of the audit log: every tick of a dispatcher appends an entry for each export that it changed.

A worker chains the entries afterwards, so that no writer waits for the previous entry.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.audit.chain import GENESIS, Anchor, ChainEntry
from storage.db.bulk_sql import execute_over
from storage.db.columns import column_types, select_list
from storage.db.drivers.shared import Row
from storage.db.engine import rows
from storage.db.models import AuditEntryRow


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The entries that a list shows; None means any. Times are milliseconds since 1970; `before_ms` is exclusive."""

    account_id: int | None = None
    subject_id: str | None = None
    actor: str | None = None
    action: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None


_APPEND: Final = """
WITH r (subject_id, digest) AS ({rows})
INSERT INTO audit_entries (subject_id, digest, at, actor, action, status_before, status_after, reason, account_id)
SELECT subject_id, digest, ?, ?, ?, ?, ?, ?, {account} FROM r"""
#: The query for the account of a record, by the kind of its id.
_ACCOUNTS: Final = {
    "exp": "SELECT account_id FROM exports WHERE id = r.subject_id",
    "tgt": "SELECT account_id FROM targets WHERE id = r.subject_id",
    "rul": "SELECT account_id FROM approval_rules WHERE id = r.subject_id",
    "blk": "SELECT account_id FROM bulk_jobs WHERE id = r.subject_id",
    "rpt": "SELECT account_id FROM report_uploads WHERE id = r.subject_id",
    "alr": "SELECT account_id FROM alerts WHERE id = r.subject_id",
    "rec": "SELECT t.account_id FROM recoveries c JOIN targets t ON t.id = c.target_id WHERE c.id = r.subject_id",
    "hof": "SELECT p.account_id FROM handoffs h JOIN projects p ON p.id = h.project_id WHERE h.id = r.subject_id",
    "ses": "SELECT u.account_id FROM console_sessions s LEFT JOIN tokens k ON k.id = s.token_id "
    "JOIN users u ON u.id = COALESCE(s.user_id, k.user_id) WHERE s.id = r.subject_id",
    "account": "SELECT id FROM accounts WHERE id = {number}",
    "user": "SELECT account_id FROM users WHERE id = {number}",
    "project": "SELECT account_id FROM projects WHERE id = {number}",
    "token": "SELECT u.account_id FROM tokens k JOIN users u ON u.id = k.user_id WHERE k.id = {number}",
    "scan_run": "SELECT p.account_id FROM scan_runs s JOIN projects p ON p.id = s.project_id WHERE s.id = {number}",
}


def _append_text(kind: str, is_by_user: bool) -> str:
    """Return the statement for subjects of one kind; if a record has no account, its entry gets the account of the actor."""
    number = f"CAST(substr(r.subject_id, {len(kind) + 2}) AS BIGINT)"
    accounts = [f"({_ACCOUNTS[kind].format(number=number)})"] if kind in _ACCOUNTS else []
    accounts += ["(SELECT account_id FROM users WHERE id = ?)"] if is_by_user else []
    account = f"COALESCE({', '.join(accounts)})" if len(accounts) > 1 else "".join(accounts)
    return _APPEND.replace("{account}", account or "CAST(NULL AS INTEGER)")


#: The statements by the kind of the subjects ("" for all others), and by whether a user is the actor.
_APPENDS: Final = {(kind, by): _append_text(kind, by) for kind in ("", *_ACCOUNTS) for by in (False, True)}
#: A longer number may not fit into the column.
_ROW_ID: Final = re.compile(r"[0-9]{1,18}")
_OWN: Final = column_types(AuditEntryRow, ("subject_id", "digest"))

#: The columns of a ChainEntry.
_COLUMNS: Final = select_list(ChainEntry, {"e": AuditEntryRow})
# Ordered also by the position, which is always NULL here: ordered only by id, PostgreSQL may scan all entries.
_UNCHAINED: Final = f"""
SELECT {_COLUMNS} FROM audit_entries e WHERE e.position IS NULL ORDER BY e.position, e.id LIMIT ?"""  # noqa: S608 - our own names
_HEAD: Final = "SELECT position, hash FROM audit_entries WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1"
# Also by the time, so that PostgreSQL reads only the partition of that month.
_CHAIN: Final = """
WITH r (id, at, position, hash) AS ({rows})
UPDATE audit_entries SET position = r.position, hash = r.hash
FROM r WHERE audit_entries.id = r.id AND audit_entries.at = r.at AND audit_entries.position IS NULL"""
_PLACES: Final = column_types(AuditEntryRow, ("id", "at", "position", "hash"))
# By position and id, so that a second entry with the same position is not skipped.
_PAGE: Final = f"""
SELECT e.position, e.hash, {_COLUMNS} FROM audit_entries e
WHERE (e.position, e.id) > (?, ?) ORDER BY e.position, e.id LIMIT ?"""  # noqa: S608 - our own names
_OF_SUBJECT: Final = f"""
SELECT e.position, e.hash, b.hash, {_COLUMNS}
FROM audit_entries e LEFT JOIN audit_entries b ON b.position = e.position - 1
WHERE e.subject_id = ? ORDER BY e.position, e.id"""  # noqa: S608 - our own names


def append_alike(own: Sequence[tuple[str, bytes | None]], columns: Sequence[int | str | None]) -> None:
    """Insert an entry for each subject and digest; the subjects are of one kind.

    `columns` are at_ms, actor, action, status_before, status_after and reason.
    """
    actor, _, user_id = str(columns[1]).partition(":")
    of_user = (int(user_id),) if actor == "user" and _ROW_ID.fullmatch(user_id) else ()
    kind = kind_of(own[0][0])
    execute_over(_APPENDS[kind if kind in _ACCOUNTS else "", bool(of_user)], _OWN, own, (*columns, *of_user))


def kind_of(subject_id: str) -> str:
    """Return the kind of a record's id: `exp` of `exp_01J…`, `user` of `user:7`."""
    return subject_id.partition(":")[0] if ":" in subject_id else subject_id.partition("_")[0]


def head() -> Anchor:
    """Return the last entry of the chain, or position 0 if the chain is empty."""
    found = rows(_HEAD)
    return Anchor(found[0][0], found[0][1].hex()) if found else Anchor(0, GENESIS)


def unchained(limit: int) -> list[ChainEntry]:
    """Return up to `limit` entries that are not in the chain yet, in the order of their ids."""
    return [ChainEntry._make(row) for row in rows(_UNCHAINED, (limit,))]


def write_positions(places: Sequence[tuple[int, int, int, bytes]]) -> None:
    """Store the position and the hash of entries by their ids and times, unless they already have them."""
    execute_over(_CHAIN, _PLACES, places)


def page_after(position: int, entry_id: int, limit: int) -> list[Row]:
    """Return up to `limit` entries of the chain after one: position, hash, and the columns of a ChainEntry."""
    return rows(_PAGE, (position, entry_id, limit))


def of_subject(subject_id: str) -> list[Row]:
    """Return the entries about a record: position, hash, the hash of the entry before, and the columns of a ChainEntry."""
    return rows(_OF_SUBJECT, (subject_id,))
