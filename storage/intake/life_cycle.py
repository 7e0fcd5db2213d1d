"""Applies the life cycle of findings to a postback: findings that it leaves out may be fixed, reported ones may reopen.

`schemas.findings.life_cycle` decides. PostgreSQL runs the postbacks of a page one after the other, because
`findings_sql.post_page` takes a lock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket_events import PlaceChange
from schemas.findings.life_cycle import CheckedRules, LifeCycle, RunOutcome, after_miss, after_report, counts_as_visit
from schemas.intake.scanner import ScanPostback
from storage.db.columns import JsonField
from storage.exports import groups_sql, transitions
from storage.exports.events.changes_sql import StoredChange, store, subscribed_to
from storage.exports.transitions_sql import LockedExport
from storage.intake import life_cycle_sql
from storage.intake.findings_sql import PostedRun, digest_of
from storage.intake.life_cycle_sql import ReportedFinding, UnreportedFinding

#: In these statuses the ticket is final or a person has decided, so a closed group does not open again.
_ENDED: Final = frozenset({ExportStatus.EXPORTED, ExportStatus.DISMISSED})
_json: Final = JsonField()


@dataclass(frozen=True, slots=True)
class LifeCycleChanges:
    """The changes of known findings by a postback: how many are fixed, and how many are open again.

    `renewed` are findings, by fingerprint, that need a new ticket, because theirs was delivered or deleted.
    `reopened_groups` are exports with findings that are open again.
    """

    fixed: int = 0
    reopened: int = 0
    renewed: Mapping[str, ReportedFinding] = field(default_factory=dict)
    reopened_groups: Sequence[LockedExport] = ()


def advance(
    run: PostedRun, postback: ScanPostback, reported_ids: Sequence[str], now: datetime, fixed_after_runs: int
) -> LifeCycleChanges:
    """Store the changes of a page's known findings by a postback; `reported_ids` are fixed findings that it reports.

    The caller holds the transaction and has stored the reported findings. Most postbacks run one statement here.
    """
    page = postback.page
    unreported = []
    if counts_as_visit(postback.status, page.status_code):
        found = life_cycle_sql.unreported(run.project_id, digest_of(postback), postback.scan_run_id)
        checked = CheckedRules(page.rules)
        unreported = [each for each in found if each.code in checked]
    reported = life_cycle_sql.reported(reported_ids, postback.scan_run_id)
    if not unreported and not reported:
        return LifeCycleChanges()
    missed = [
        after_miss(LifeCycle(each.missed_runs, times_reopened=each.times_reopened), None, fixed_after_runs)
        for each in unreported
    ]
    back = [
        after_report(LifeCycle(is_fixed=True, times_reopened=each.times_reopened), None, has_fixed=bool(each.has_fixed))
        for each in reported
    ]
    ids = [each.id for each in unreported] + [each.id for each in reported]
    life_cycle_sql.write(list(zip(ids, [*missed, *back], strict=True)), postback.scan_run_id, now)
    fixed = [each for each, (after, _) in zip(unreported, missed, strict=True) if after.is_fixed]
    reopened = [each for each, (_, outcome) in zip(reported, back, strict=True) if outcome is RunOutcome.REOPENED]
    if not fixed and not reported:
        return LifeCycleChanges()
    exports, sets = _lock_exports([*(each.export_id for each in fixed), *(each.export_id for each in reported)])
    # A target that is subscribed to this event gets an event about the delivered ticket; for others there is a new ticket.
    delivered = {id_ for id_, each in exports.items() if each.status is ExportStatus.EXPORTED}
    informed = delivered & subscribed_to(TicketEventType.REOPENED, exports.values()) if reported else set()
    renewed = {
        each.fingerprint: each
        for each in reopened
        if each.export_id not in exports or each.export_id in delivered - informed
    }
    unfixed = Counter(each.export_id for each in reported if each.fingerprint not in renewed)
    counts = Counter(each.export_id for each in fixed)
    counts.subtract(unfixed)
    # Even if as many are fixed as open again, because new places may join their group again.
    more = {id_: count for main, count in counts.items() for id_ in sets.get(main or "", ()) if id_ in exports}
    groups_sql.count_fixed(more)
    # New places join the export that has the findings, but not its copies.
    open_again = [
        exports[id_] for id_ in unfixed if id_ and id_ in exports and (exports[id_].status not in _ENDED or id_ in informed)
    ]
    informing = [each for each in reopened if each.fingerprint not in renewed]
    changed = _changes(fixed, PlaceChange.FIXED, exports, sets) + _changes(informing, PlaceChange.REOPENED, exports, sets)
    store(changed, postback.scan_run_id, now)
    # If a run reports findings that it has fixed itself, nothing has changed, unless an event about the fix already exists.
    taken_back = [each for each, (_, outcome) in zip(reported, back, strict=True) if outcome is not RunOutcome.REOPENED]
    store(_changes(taken_back, PlaceChange.REOPENED, exports, sets), postback.scan_run_id, now, replaces=False)
    return LifeCycleChanges(len(fixed), len(reopened), renewed, open_again)


def _changes(
    findings: Sequence[UnreportedFinding | ReportedFinding],
    change: PlaceChange,
    exports: Mapping[str, LockedExport],
    sets: Mapping[str, Sequence[str]],
) -> list[StoredChange]:
    """Return the changes of findings for the exports of their ticket whose approval covers events."""
    return [
        StoredChange(id_, each.id, change)
        for each in findings
        for id_ in sets.get(each.export_id or "", ())
        if id_ in exports and exports[id_].events
    ]


def _lock_exports(export_ids: Sequence[str | None]) -> tuple[dict[str, LockedExport], dict[str, Sequence[str]]]:
    """Lock exports and their siblings in the order of their ids; return them, and the siblings of each of `export_ids`."""
    found = groups_sql.siblings({each for each in export_ids if each is not None})
    known = {id_: [id_] if siblings is None else _json.python_value(siblings) for id_, siblings in found}
    wanted = sorted({each for siblings in known.values() for each in siblings})
    locked = transitions.lock_many(wanted, None)
    # An approval for several targets may have won and made copies, which have later ids.
    sets = {id_: locked[id_].siblings or [id_] for id_ in known if id_ in locked}
    copies = sorted({each for siblings in sets.values() for each in siblings} - locked.keys())
    return locked | transitions.lock_many(copies, None), sets
