"""Findings of scan runs, deduplicated by fingerprint; new ones prepare exports, or extend the export of their rule."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.group_ticket import highest
from schemas.exports.tickets.ticket_text import reopened_text, ticket_for_finding
from schemas.intake.fingerprint import PostbackResult, by_fingerprint
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import SEVERITIES, STATUSES_WITH_FINDINGS, Issue, ScanPostback
from schemas.triage.search_words import host_of
from storage.accounts import projects
from storage.accounts.account_limits import Limited
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db import identifiers
from storage.db.engine import connection, is_sqlite, transaction
from storage.db.models import NO_EXPORT
from storage.exports import groups_sql
from storage.exports.rows import Draft, WrittenTicket, written
from storage.exports.transitions import prepare, reopen_groups
from storage.intake import findings_sql, life_cycle
from storage.intake.finding_groups import GroupedPostback, GroupTicket, finding_source, rule_of
from storage.intake.findings_sql import PostedRun, SeenFinding
from storage.intake.life_cycle_sql import ReportedFinding
from storage.intake.options import DEFAULT_OPTIONS, IntakeOptions
from storage.triage import groups

#: The tickets of this many issues take 60 ms at most, with texts of the largest size.
_FEW_ISSUES: Final = 5


@dataclass(frozen=True, slots=True)
class PreparedPostback:
    """A postback, its issues by fingerprint, and the tickets of issues that were new or reopened then.

    `tickets` are by fingerprint, each with the issue from which it was written; `group_tickets` are by rule.
    """

    postback: ScanPostback
    issues: Mapping[str, Issue]
    tickets: Mapping[str, tuple[Issue, WrittenTicket]] = field(default_factory=dict)
    group_tickets: Mapping[str, GroupTicket] = field(default_factory=dict)


def prepare_postback(
    postback: ScanPostback, default_project_id: int | None, checkpoint: Checkpoint = no_checkpoint
) -> PreparedPostback:
    """Do the work of a postback that needs no transaction; the caller holds none.

    While a transaction is open, SQLite has no other writer, and writing a ticket takes as long as storing its rows. On
    PostgreSQL a query costs more than a few tickets, so a few tickets are written in the transaction. `checkpoint` is called
    between parts of the work.
    """
    if postback.status not in STATUSES_WITH_FINDINGS:
        return PreparedPostback(postback, {})
    issues = by_fingerprint(postback.page, postback.issues, checkpoint)
    is_cheap = not issues or (len(issues) <= _FEW_ISSUES and not is_sqlite())
    known = None if is_cheap else findings_sql.known_findings(postback.scan_run_id, default_project_id, list(issues))
    if known is None:
        return PreparedPostback(postback, issues)
    new = {mark: issue for mark, issue in issues.items() if mark not in known.findings}
    if known.ticket_grouping == TicketGrouping.RULE:
        with connection():
            grouped = GroupedPostback.read(known.project_id, postback, new)
        return PreparedPostback(postback, issues, group_tickets=grouped.tickets(grouped.joining(new), checkpoint))
    renewed = {
        mark: _renewed_issue(issues[mark], each.export_id, each.severity)
        for mark, each in known.findings.items()
        if each.is_renewed
    }
    return PreparedPostback(postback, issues, _tickets(postback, {**new, **renewed}, checkpoint))


def record(
    prepared: PreparedPostback,
    default_project_id: int | None,
    now: datetime,
    actor: str,
    options: IntakeOptions = DEFAULT_OPTIONS,
) -> PostbackResult:
    """Store a page of a scan run with its findings, and prepare or extend exports for new findings.

    There is one export for each finding or for each rule, as the project groups them. A finding that is open again after its
    ticket was delivered also gets a new export. Findings of the page that enough runs have not reported are fixed. A run
    that is not registered belongs to `default_project_id`. Raises ValidationFailed on `/scanRunId` without one, or at an
    account's limit.
    """
    postback = prepared.postback
    with transaction():
        run = _post_page(postback, default_project_id, now)
        result = _store(prepared, run, now, actor, options)
        findings_sql.update_scan_run(postback, now)
        return result


def _store(prepared: PreparedPostback, run: PostedRun, now: datetime, actor: str, options: IntakeOptions) -> PostbackResult:
    """Store the findings of a page, with their exports; the caller holds the transaction and the lock of the page."""
    postback, issues, limits = prepared.postback, prepared.issues, options.limits
    grouped = None
    if run.ticket_grouping == TicketGrouping.RULE:
        groups_sql.lock_project(run.project_id)
        grouped = GroupedPostback.read(run.project_id, postback, issues, locks=True) if issues else None
    export_ids = (
        grouped.export_ids(now) if grouped else {mark: identifiers.new_id(identifiers.EXPORT, now) for mark in issues}
    )
    new = _insert_new(postback, issues, export_ids, run, now)
    limits.require_room(run.account_id, Limited.FINDINGS, len(new), now)
    known = {mark: issue for mark, issue in issues.items() if mark not in new}
    raised, fixed, unticketed = _mark_seen(known, run, postback, now)
    changes = life_cycle.advance(run, postback, [each.id for each in fixed.values()], now, options.fixed_after_runs)
    if not issues:
        return PostbackResult(postback.scan_run_id, 0, 0, (), changes.fixed)
    ticketed = new
    if changes.renewed or unticketed:
        issues, ticketed = _renewed(issues, changes.renewed, fixed, unticketed, new)
    apart = [] if grouped is None else [*changes.renewed, *grouped.at_disabled_targets(ticketed)]
    if apart or len(ticketed) > len(new):
        if grouped is not None:
            grouped, export_ids = grouped.renewed(issues, apart, export_ids, now)
        groups_sql.move_findings([(finding_id, export_ids[mark]) for mark, finding_id in ticketed.items()])
    if grouped is not None:
        joining, written_before = grouped.joining(ticketed), prepared.group_tickets
        changed = grouped.store(run, joining, written_before, ticketed, export_ids, now, actor, limits)
        reopen_groups(changes.reopened_groups)
    else:
        # Some tickets are missing: their findings were deleted, fixed or delivered after the postback was prepared.
        early = {mark: ticket for mark, ticket in prepared.tickets.items() if ticket[0] == issues[mark]}
        missing = _tickets(postback, {mark: issues[mark] for mark in ticketed if mark not in early})
        tickets = {**early, **missing}
        drafts = [
            Draft(
                run.account_id,
                run.project_id,
                finding_source(postback, finding_id),
                tickets[mark][1],
                rule=rule_of(issues[mark]),
                findings=1,
                export_id=export_ids[mark],
            )
            for mark, finding_id in ticketed.items()
        ]
        changed = prepare(drafts, now, actor, limits, None)
    if raised:
        changed = list(dict.fromkeys(changed + groups.raise_severities(raised, now, actor)))
    if run.has_snoozed:
        unsnoozed = groups_sql.end_snoozes(list(issues), run.project_id)
        status = ExportStatus.PREPARED.value
        append_all([AuditEntry(to_ms(now), actor, "seen_again", each, status, status) for each in unsnoozed])
    options.rules.apply(run.account_id, changed, now)
    seen = len(issues) - len(new) - changes.reopened
    return PostbackResult(postback.scan_run_id, len(new), seen, tuple(changed), changes.fixed, changes.reopened)


def _mark_seen(
    issues: Mapping[str, Issue], run: PostedRun, postback: ScanPostback, now: datetime
) -> tuple[set[str], dict[str, SeenFinding], dict[str, SeenFinding]]:
    """Store that findings were seen again.

    Returns the exports of the findings that became more severe; and, by fingerprint, the findings that were fixed, and those
    whose ticket was deleted before anybody received it. A finding keeps its highest severity and its first help link.
    """
    raised, changed, fixed, unticketed = set[str](), [], {}, {}
    for each in findings_sql.mark_seen(issues, run.project_id, postback, now):
        issue = issues[each.fingerprint]
        is_raised = _is_raised(issue, each.severity)
        if is_raised and each.export_id is not None:
            raised.add(each.export_id)
        if is_raised or (each.help_url is None and issue.help_url is not None):
            severity = issue.severity if is_raised else each.severity
            changed.append(each._replace(severity=severity, help_url=each.help_url or issue.help_url))
        if each.fixed_at is not None:
            fixed[each.fingerprint] = each
        elif each.export_id == NO_EXPORT:
            unticketed[each.fingerprint] = each
    findings_sql.upgrade(changed)
    return raised, fixed, unticketed


def _is_raised(issue: Issue, severity: str) -> bool:
    return SEVERITIES.index(issue.severity) > SEVERITIES.index(severity)


def _renewed(
    issues: Mapping[str, Issue],
    renewed: Mapping[str, ReportedFinding],
    fixed: Mapping[str, SeenFinding],
    unticketed: Mapping[str, SeenFinding],
    new: Mapping[str, str],
) -> tuple[dict[str, Issue], dict[str, str]]:
    """Return the issues by fingerprint, and the ids of the findings that need a ticket, by fingerprint.

    Reopened issues name their earlier export. All have the highest severity that was reported. Reopened issues come first,
    so that a group begins with their text.
    """
    naming = {mark: _renewed_issue(issues[mark], each.export_id, fixed[mark].severity) for mark, each in renewed.items()}
    again = {
        mark: replace(issues[mark], severity=highest([issues[mark].severity, each.severity]))
        for mark, each in unticketed.items()
    }
    ids = {mark: each.id for mark, each in renewed.items()} | {mark: each.id for mark, each in unticketed.items()}
    return {**issues, **naming, **again}, {**ids, **new}


def _renewed_issue(issue: Issue, export_id: str | None, severity: str) -> Issue:
    """Return an issue that is open again: it names its earlier export, and has the highest severity that was reported."""
    text = reopened_text(issue.description or issue.title, export_id or None)
    return replace(issue, description=text, severity=highest([issue.severity, severity]))


def _tickets(
    postback: ScanPostback, issues: Mapping[str, Issue], checkpoint: Checkpoint = no_checkpoint
) -> dict[str, tuple[Issue, WrittenTicket]]:
    page, screenshot = postback.page, postback.screenshot
    tickets = [ticket_for_finding(page, each, postback.scan_run_id, screenshot) for each in issues.values()]
    texts = written(tickets, checkpoint) if tickets else []
    return {mark: (issue, text) for (mark, issue), text in zip(issues.items(), texts, strict=True)}


def _post_page(postback: ScanPostback, default_project_id: int | None, now: datetime) -> PostedRun:
    """Store the page of a run and return its project; register the run if it is not registered yet."""
    found = findings_sql.post_page(postback, now)
    if found is None and default_project_id is not None and projects.exists(default_project_id):
        # Another postback may register the run first; the result is the same.
        projects.register_scan_run(postback.scan_run_id, default_project_id, postback.status, now)
        found = findings_sql.post_page(postback, now)
    if found is None:
        raise ValidationFailed(problem("/scanRunId", "unknown_scan_run"))
    return found


def _insert_new(
    postback: ScanPostback, issues: Mapping[str, Issue], export_ids: Mapping[str, str], run: PostedRun, now: datetime
) -> dict[str, str]:
    """Insert the findings that the project does not have; return the ids of those inserted, by fingerprint.

    A concurrent postback may have inserted any of them first.
    """
    ids = {mark: identifiers.new_id(identifiers.FINDING, now) for mark in issues}
    now_ms, page = to_ms(now), findings_sql.digest_of(postback)
    # Sorted, so that two postbacks with the same new findings lock them in the same order.
    records = [
        {
            "id": ids[mark],
            "project_id": run.project_id,
            "fingerprint": mark,
            "code": rule_of(issues[mark]),
            "title": issues[mark].title,
            "severity": issues[mark].severity,
            "page_url": issues[mark].url or postback.page.url,
            "location": issues[mark].location,
            "first_scan_run_id": postback.scan_run_id,
            "last_scan_run_id": postback.scan_run_id,
            "first_seen_at": now_ms,
            "last_seen_at": now_ms,
            "times_seen": 1,
            "export_id": export_ids[mark],
            "help_url": issues[mark].help_url,
            "account_id": run.account_id,
            "page_digest": page,
            "host": host_of(issues[mark].url or postback.page.url) or "",
            "missed_runs": 0,
            "fixed_at": None,
            "times_reopened": 0,
        }
        for mark in sorted(issues)
    ]
    new = findings_sql.insert_new(records)
    return {mark: ids[mark] for mark in issues if mark in new}
