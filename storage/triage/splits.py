"""Splits a prepared group: one export for each of its findings."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from peewee import JOIN

from schemas.base.errors import Conflict, WrongStatus
from schemas.base.places import Place
from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.group_ticket import Group, finding_ticket, read_group
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.intake.artifacts import artifact_url
from storage.accounts.account_limits import UNLIMITED, AccountLimits
from storage.db import identifiers
from storage.db.columns import columns, read
from storage.db.engine import transaction
from storage.db.models import FindingRow, PageResultRow
from storage.exports import groups_sql
from storage.exports.rows import Draft, WrittenTicket, written
from storage.exports.search import export_search
from storage.exports.transitions import append_entry, lock, prepare, update
from storage.exports.transitions_sql import write_locked
from storage.triage.decisions import EDITABLE

#: The tickets and rows of this many findings take SQLite's one writer a third of a second.
MAX_SPLIT: Final = 1000


class _Finding(NamedTuple):
    id: str
    code: str
    title: str
    severity: str
    page_url: str
    location: str
    help_url: str | None
    first_scan_run_id: int
    screenshot_path: str | None
    fixed_at: datetime | None


def split(
    export_id: str,
    account_id: int | None,
    now: datetime,
    actor: str,
    limits: AccountLimits = UNLIMITED,
    artifacts_base_url: str = "",
) -> list[str]:
    """Prepare an export for each finding of a prepared group; return the ids of the group's own export and the new ones.

    The group's export keeps its first finding and a person's edits. Later findings of the rule begin a new group. Raises
    ExportNotFound; Conflict, also for a group of one finding; ValidationFailed at the account's limit.
    """
    with transaction():
        # Before the export, as in a postback, which then locks findings and exports.
        groups_sql.lock_projects_of([export_id] if identifiers.is_id(identifiers.EXPORT, export_id) else [])
        export = lock(export_id, account_id)
        total = 0 if export.findings is None else export.findings[0]
        first, *others = _findings_of_group(export, total)
        group = read_group(export.original_ticket or export.ticket, first.title, export.source.scan_run_id)
        kept, *tickets = written(
            [_kept_ticket(export, group, first), *(_ticket(group, each, artifacts_base_url) for each in others)]
        )
        drafts = [
            Draft(
                export.account_id,
                export.project_id,
                Source("finding", each.id, each.first_scan_run_id),
                ticket,
                rule=each.code.strip(),
                findings=1,
            )
            for each, ticket in zip(others, tickets, strict=True)
        ]
        # No approval rule is applied, because a person split the group to decide on each finding.
        new_ids = prepare(drafts, now, actor, limits, None)
        groups_sql.move_findings(list(zip([each.id for each in others], new_ids, strict=True)))
        fixed = [new_id for each, new_id in zip(others, new_ids, strict=True) if each.fixed_at is not None]
        update(fixed, findings_fixed=1)
        _reduce(export.id, first, kept)
        append_entry(export, "split", now, actor, f"{1 + len(others)} findings")
        return [export.id, *new_ids]


def _findings_of_group(export: Export, total: int) -> list[_Finding]:
    """Return the findings of a group, the source of the export first. Raises Conflict if the group cannot be split."""
    if export.status is not ExportStatus.PREPARED:
        raise WrongStatus(f"Export {export.id} is {export.status.value}; split needs the status prepared.")
    if total > MAX_SPLIT:
        raise Conflict(f"Export {export.id} has {total} findings; split takes groups of up to {MAX_SPLIT}.")
    of_page = (PageResultRow.scan_run == FindingRow.first_scan_run) & (PageResultRow.url == FindingRow.page_url)
    shown = columns(_Finding, FindingRow, screenshot_path=PageResultRow.screenshot_path)
    query = FindingRow.select(*shown).join(PageResultRow, JOIN.LEFT_OUTER, on=of_page)
    found = read(_Finding, query.where(FindingRow.export_id == export.id).order_by(FindingRow.id))
    if len(found) <= 1:
        raise Conflict(f"Export {export.id} is the ticket of one finding or of none; split needs a group.")
    return sorted(found, key=lambda each: each.id != export.source.id)


def _reduce(export_id: str, first: _Finding, kept: WrittenTicket) -> None:
    """Reduce the group's export to its first finding."""
    # Closed by the same statement: this group and another one of its rule must never be open at the same time.
    alone = {
        "source_id": first.id,
        "findings_total": 1,
        "findings_fixed": int(first.fixed_at is not None),
        "open_group": None,
    }
    # If the export waited for the target of a rule, the person now decides on it too.
    write_locked([{"id": export_id, **kept.columns()}], {**alone, "approved_by_rule_id": None})
    export_search.remove_hosts(export_id)
    export_search.replace({export_id: (kept.words, kept.hosts)})


def _ticket(group: Group, finding: _Finding, artifacts_base_url: str = "") -> Ticket:
    """Return the ticket of one finding with the reported text of its group."""
    screenshot = artifact_url(artifacts_base_url, finding.screenshot_path) or finding.screenshot_path
    known = {"screenshot": screenshot, "help_url": finding.help_url}
    facts: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    return finding_ticket(
        replace(
            group,
            title=finding.title,
            severity=finding.severity,
            rule=finding.code,
            scan_run_id=finding.first_scan_run_id,
            evidence={"rule": finding.code, "location": finding.location, **facts},
            places=(Place(finding.page_url, finding.location),),
        )
    )


def _kept_ticket(export: Export, group: Group, first: _Finding) -> Ticket:
    """Return the ticket that the group's export keeps, with the scanner's own evidence and a person's edits."""
    ticket = replace(_ticket(group, first), evidence={**group.evidence})
    original = export.original_ticket or export.ticket
    edited = {name: export.ticket[name] for name in EDITABLE if export.ticket[name] != original[name]}
    if "labels" in edited:
        edited["labels"] = tuple(edited["labels"])
    return replace(ticket, **edited)
