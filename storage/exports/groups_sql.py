"""The SQL of groups and snoozes, hand-written because postbacks run it. No statement writes an export's status."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from storage.db.bulk_sql import execute_over, rows_over
from storage.db.columns import column_types, select_list
from storage.db.engine import execute, is_sqlite
from storage.db.models import ExportRow, FindingRow
from storage.exports.rows import WrittenTicket
from storage.exports.transitions_sql import NOT_SNOOZED


class GroupRow(NamedTuple):
    """A group as stored; `title` is the title of its first finding, unless that was erased."""

    id: str
    open_group: str | None
    version: int
    status: str
    severity_rank: int
    scan_run_id: int | None
    ticket: str
    findings_total: int
    original_ticket: str | None
    title: str | None
    siblings: str | None


_GROUPS: Final = f"""
WITH r (id) AS ({{rows}})
SELECT {select_list(GroupRow, {"e": ExportRow}, title="f.title")} FROM r JOIN exports e ON e.id = r.id
    LEFT JOIN findings f ON f.id = e.source_id AND f.project_id = e.project_id
WHERE e.source_type = 'finding' AND e.rule IS NOT NULL AND e.redacted_at IS NULL"""  # noqa: S608 - our own names
_OPEN: Final = f"""
WITH r (rule, url) AS ({{{{rows}}}})
SELECT {select_list(GroupRow, {"e": ExportRow}, title="f.title")}, r.url,
    EXISTS (SELECT 1 FROM findings p WHERE p.export_id = e.id AND p.page_url = r.url)
FROM r JOIN exports e ON e.project_id = ? AND e.open_group = r.rule
    LEFT JOIN findings f ON f.id = e.source_id AND f.project_id = e.project_id
ORDER BY e.id {{lock}}"""  # noqa: S608 - our own names
_OPEN_UNLOCKED: Final = _OPEN.format(lock="")
# In the order of ids, as in other transactions that lock several exports. SQLite has one writer.
_OPEN_LOCKED: Final = _OPEN.format(lock="FOR UPDATE OF e")
_OPEN_TYPES: Final = ("TEXT", "TEXT")

#: The columns of a ticket are in the order of `WrittenTicket.columns`.
_EXTENSION: Final = ("id", "ticket", "ticket_digest", "preview_problems", "severity_rank")
#: If the severity rises, the snooze ends: the person who snoozed it decided on the lower severity.
_END_SNOOZE_IF_WORSE: Final = "CASE WHEN r.severity_rank > exports.severity_rank THEN NULL ELSE exports.{} END"
#: `open_group` is set again: the same postback may have fixed the group's last open findings and closed it.
_EXTEND: Final = f"""
WITH r ({", ".join(_EXTENSION)}, added) AS ({{rows}})
UPDATE exports SET {", ".join(f"{name} = r.{name}" for name in _EXTENSION[1:])},
    {", ".join(f"{name} = {_END_SNOOZE_IF_WORSE.format(name)}" for name in NOT_SNOOZED)},
    findings_total = exports.findings_total + r.added, open_group = exports.rule, version = version + 1
FROM r WHERE exports.id = r.id"""  # noqa: S608 - our own names
_EXTEND_TYPES: Final = (*column_types(ExportRow, _EXTENSION), "INTEGER")
_JOIN: Final = """
WITH r (id, added, open_group) AS ({rows})
UPDATE exports SET findings_total = exports.findings_total + r.added, open_group = r.open_group, version = version + 1
FROM r WHERE exports.id = r.id"""
_END_SNOOZES: Final = """
WITH r (fingerprint) AS ({{rows}}), waiting AS (
    SELECT id FROM exports
    WHERE project_id = ? AND snoozed_at IS NOT NULL AND snoozed_until IS NULL AND id IN (
        SELECT f.export_id FROM r JOIN findings f ON f.project_id = ? AND f.fingerprint = r.fingerprint
    )
    ORDER BY id {lock}
)
UPDATE exports SET snoozed_at = NULL, version = version + 1
FROM waiting WHERE exports.id = waiting.id RETURNING exports.id"""
_END_SNOOZES_BY_SQLITE: Final = _END_SNOOZES.format(lock="")
# In the order in which decisions lock several exports.
_END_SNOOZES_BY_POSTGRESQL: Final = _END_SNOOZES.format(lock="FOR UPDATE")
_SIBLINGS: Final = "WITH r (id) AS ({rows}) SELECT e.id, e.siblings FROM r JOIN exports e ON e.id = r.id"
#: A group is open until all its findings are fixed.
_COUNT_FIXED: Final = """
WITH r (id, more) AS ({rows})
UPDATE exports SET findings_fixed = COALESCE(findings_fixed, 0) + r.more, version = version + 1,
    open_group = CASE WHEN COALESCE(findings_fixed, 0) + r.more >= findings_total THEN NULL ELSE open_group END
FROM r WHERE exports.id = r.id"""
_LOCK_PROJECT: Final = "SELECT 1 FROM projects WHERE id = ? FOR NO KEY UPDATE"
_LOCK_PROJECTS: Final = """
WITH r (id) AS ({rows})
SELECT id FROM projects WHERE id IN (SELECT e.project_id FROM r JOIN exports e ON e.id = r.id) ORDER BY id
FOR NO KEY UPDATE"""
_MOVE: Final = """
WITH r (id, export_id) AS ({rows})
UPDATE findings SET export_id = r.export_id FROM r WHERE findings.id = r.id"""
_MOVE_TYPES: Final = column_types(FindingRow, ("id", "export_id"))


def lock_project(project_id: int) -> None:
    """Keep other postbacks of a project from storing findings until the commit: both might begin the same group."""
    if not is_sqlite():
        execute(_LOCK_PROJECT, (project_id,))


def lock_projects_of(export_ids: Iterable[str]) -> None:
    """Prevent new groups in the projects of these exports until the transaction ends. Lock the exports after this call."""
    if not is_sqlite():
        rows_over(_LOCK_PROJECTS, ("TEXT",), [(each,) for each in export_ids])


def open_groups(project_id: int, places: Iterable[tuple[str, str]], *, locks: bool) -> list[tuple[GroupRow, set[str]]]:
    """Return the open groups of rules, each with the URLs that it already has; `places` are pairs of rule and URL."""
    sql = _OPEN_LOCKED if locks and not is_sqlite() else _OPEN_UNLOCKED
    found: dict[str, tuple[GroupRow, set[str]]] = {}
    for *columns, url, is_known in rows_over(sql, _OPEN_TYPES, list(dict.fromkeys(places)), (project_id,)):
        _, pages = found.setdefault(columns[0], (GroupRow._make(columns), set()))
        if is_known:
            pages.add(url)
    return list(found.values())


def groups(export_ids: Iterable[str]) -> list[GroupRow]:
    """Return the groups with these export ids, open or not, without exports of other sources and redacted ones."""
    return [GroupRow._make(row) for row in rows_over(_GROUPS, ("TEXT",), [(each,) for each in export_ids])]


def extend(extensions: Sequence[tuple[str, WrittenTicket, int]]) -> None:
    """Write tickets of prepared groups: the export's id, its ticket, and the number of findings that were added."""
    values = [(export_id, *ticket.columns().values(), added) for export_id, ticket, added in extensions]
    execute_over(_EXTEND, _EXTEND_TYPES, values)


def join_frozen(joined: Sequence[tuple[str, int, str | None]]) -> None:
    """Count findings of groups whose tickets stay unchanged.

    A row has the export's id, the number of new findings, and their rule's code, or None for a copy.
    """
    execute_over(_JOIN, ("TEXT", "INTEGER", "TEXT"), joined)


def siblings(export_ids: Iterable[str]) -> list[tuple[str, str | None]]:
    """Return each export that exists, with its siblings as JSON."""
    return [(row[0], row[1]) for row in rows_over(_SIBLINGS, ("TEXT",), [(each,) for each in export_ids])]


def count_fixed(more: Mapping[str, int]) -> None:
    """Change the numbers of fixed findings of locked exports; close groups whose findings are all fixed."""
    execute_over(_COUNT_FIXED, ("TEXT", "INTEGER"), list(more.items()))


def move_findings(moved: Sequence[tuple[str, str]]) -> None:
    """Assign findings to other exports: pairs of finding id and export id."""
    execute_over(_MOVE, _MOVE_TYPES, moved)


def end_snoozes(fingerprints: Sequence[str], project_id: int) -> list[str]:
    """End the snoozes that last until one of these findings is seen again; return the ids of the exports."""
    sql = _END_SNOOZES_BY_SQLITE if is_sqlite() else _END_SNOOZES_BY_POSTGRESQL
    return [row[0] for row in rows_over(sql, ("TEXT",), [(mark,) for mark in fingerprints], (project_id, project_id))]
