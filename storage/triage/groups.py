"""Groups: prepared exports that new findings of their rule join, one for each rule of a project.

`open_group` is the rule's code while findings may join. The ticket of a prepared group grows with them. After approval, or
in a dismissed group that stays open, findings are only counted, and wait. While a postback writes groups, it holds the
project's lock and then the lock of each group's row, which a person's decision takes too.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from peewee import fn

from schemas.base.places import Place
from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.group_ticket import (
    MAX_PLACES,
    Group,
    group_ticket,
    grown_ticket,
    highest,
    is_group,
    read_group,
    with_stored,
)
from schemas.exports.tickets.ticket import Ticket
from schemas.intake.scanner import SEVERITIES
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db.columns import JsonField
from storage.db.models import FindingRow
from storage.db.queries import scalars, tuples
from storage.exports import groups_sql
from storage.exports.groups_sql import GroupRow
from storage.exports.rows import WrittenTicket, written
from storage.exports.search import export_search
from storage.exports.transitions import lock_many
from storage.exports.transitions_sql import NOT_SNOOZED, LockedExport, write_locked

_json: Final = JsonField()


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """An open group as it was read; its ticket is written from `group`, or unchanged if that is None."""

    row: GroupRow
    known_pages: frozenset[str]
    group: Group | None


def open_groups(project_id: int, places: Iterable[tuple[str, str]], *, locks: bool) -> dict[str, OpenGroup]:
    """Return the open groups of a project by rule, for the rules in `places`: pairs of a rule and a page's URL.

    With `locks`, nobody changes the groups until the caller's transaction ends.
    """
    found = groups_sql.open_groups(project_id, places, locks=locks)
    return {str(row.open_group): OpenGroup(row, frozenset(pages), _group(row)) for row, pages in found}


def extended_ticket(row: GroupRow, group: Group) -> Ticket:
    """Return the ticket of an open group that has become `group`; it keeps a person's edits, and labels of rules."""
    before = _json.python_value(row.ticket)
    if row.original_ticket is None:
        ticket = group_ticket(group)
        own = group_ticket(read_group(before, before["title"], None)).labels
        added = [label for label in before["labels"] if label not in {*own, *ticket.labels}]
        ticket = replace(ticket, labels=(*ticket.labels, *added))
    else:
        ticket = grown_ticket(before, _json.python_value(row.original_ticket)["severity"], group)
    # The ticket of a single finding has no list of places, so it keeps its title and evidence.
    return ticket if is_group(before) else replace(ticket, title=before["title"], evidence=before["evidence"])


def update_tickets(exports: Sequence[LockedExport]) -> list[GroupRow]:
    """Write prepared tickets whose findings have more places or a higher severity; return the exports that changed.

    The caller's transaction has locked the exports. Other tickets are unchanged.
    """
    listed = {each.id: each.ticket["evidence"]["findings"] if is_group(each.ticket) else 1 for each in exports}
    severities, rows, grown = _severities(listed), [], []
    for row in groups_sql.groups(listed):
        severity = highest([SEVERITIES[row.severity_rank], *severities[row.id]])
        is_changed = row.findings_total != listed[row.id] or severity != SEVERITIES[row.severity_rank]
        if is_changed and (group := _group(row)) is not None:
            rows.append(row)
            grown.append(extended_ticket(row, replace(group, severity=severity)))
    # Unchanged tickets are left out: a person may have chosen a lower severity.
    changed = [(row, ticket) for row, ticket in zip(rows, written(grown), strict=True) if ticket.text != row.ticket]
    # Restored tickets are not snoozed. If a ticket became more severe, its snooze ends.
    write_locked([{"id": row.id, **ticket.columns()} for row, ticket in changed], NOT_SNOOZED)
    export_search.replace({row.id: (ticket.words, ticket.hosts) for row, ticket in changed})
    return [row for row, _ in changed]


def extend(extended: Sequence[tuple[GroupRow, WrittenTicket, int]], now: datetime, actor: str) -> None:
    """Store new tickets of prepared groups that the caller's transaction has locked; the number is that of new findings."""
    groups_sql.extend([(row.id, ticket, added) for row, ticket, added in extended])
    export_search.replace({row.id: (ticket.words, ticket.hosts) for row, ticket, _ in extended})
    _append("extend", [(row, added) for row, _, added in extended], now, actor)


def raise_severities(export_ids: Iterable[str], now: datetime, actor: str) -> list[str]:
    """Raise the severity of prepared tickets to that of their findings; return the ids of the exports that changed."""
    exports = lock_many(export_ids, None)
    changed = update_tickets([*exports.values()])
    _append("extend", [(row, 0) for row in changed], now, actor)
    return [row.id for row in changed]


def join_frozen(joined: Sequence[tuple[GroupRow, int]], now: datetime, actor: str) -> dict[str, list[LockedExport]]:
    """Count findings that join groups with unchanged tickets; the caller's transaction has locked the groups.

    The copies of a group for further targets count them too. Returns, for each group, the group and its copies, locked.
    """
    sets = {row.id: [row.id] if row.siblings is None else _json.python_value(row.siblings) for row, _ in joined}
    exports = lock_many([id_ for ids in sets.values() for id_ in ids], None)
    groups_sql.join_frozen(
        [(id_, added, row.open_group if id_ == row.id else None) for row, added in joined for id_ in sets[row.id]]
    )
    _append("join", joined, now, actor)
    return {group: [exports[id_] for id_ in ids if id_ in exports] for group, ids in sets.items()}


def stored_group(group: Group, export_id: str) -> Group:
    """Return a group with all findings of its export, including those that waited while it was dismissed."""
    of_export = FindingRow.export_id == export_id
    query = FindingRow.select(FindingRow.page_url, FindingRow.location).where(of_export).order_by(FindingRow.id)
    places = [Place(*row) for row in tuples(query.limit(MAX_PLACES))]
    count, pages = fn.COUNT(FindingRow.id), fn.COUNT(FindingRow.page_url.distinct())
    [(total, on_pages)] = tuples(FindingRow.select(count, pages).where(of_export))
    severities = scalars(FindingRow.select(FindingRow.severity).where(of_export).distinct())
    severity = highest([group.severity, *severities])
    return with_stored(group, severity, places, total, on_pages)


def _severities(export_ids: Iterable[str]) -> Mapping[str, list[str]]:
    """Return the severities of each export's findings."""
    found: dict[str, list[str]] = defaultdict(list)
    of_exports = FindingRow.select(FindingRow.export_id, FindingRow.severity).where(FindingRow.export_id.in_([*export_ids]))
    for export_id, severity in tuples(of_exports.distinct()):
        found[export_id].append(severity)
    return found


def _group(row: GroupRow) -> Group | None:
    if row.status != ExportStatus.PREPARED.value:
        return None
    ticket: Mapping[str, Any] = _json.python_value(row.ticket)
    group = read_group(ticket, row.title or ticket["title"], row.scan_run_id)
    return group if group.findings == row.findings_total else stored_group(group, row.id)


def _append(action: str, changed: Sequence[tuple[GroupRow, int]], now: datetime, actor: str) -> None:
    at = to_ms(now)
    counted = [(row, f"{added} finding{'' if added == 1 else 's'}") for row, added in changed]
    append_all([AuditEntry(at, actor, action, row.id, row.status, row.status, reason) for row, reason in counted])
