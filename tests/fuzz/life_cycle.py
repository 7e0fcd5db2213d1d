"""A model of the effects of scan runs on findings, groups and events, written without the product's code.

For each postback it computes from the state before it: which findings are new, fixed or open again, which tickets they
start, join or leave, and which events are due for tickets that were approved with events.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tests.fuzz.model import StoredExport

#: The page, the rule and the location of a finding.
Place = tuple[str, str, str]

SETTLE: Final = timedelta(seconds=60)
_ENOUGH: Final = 2
_ON_TICKET: Final = frozenset({"prepared", "dismissed"})
_ENDED: Final = frozenset({"exported", "dismissed"})


class Scan(NamedTuple):
    """A postback; `rules` are the rules that were checked, or None for all rules."""

    run: int
    page: str
    found: Sequence[tuple[str, str]]
    status: str
    status_code: int | None
    rules: Sequence[str] | None


@dataclass(slots=True)
class ExpectedFinding:
    """One finding; `outcomes` has its result in each run, and the time of the run's first postback."""

    export_id: str | None = None
    missed: int = 0
    fixed_at: datetime | None = None
    times_reopened: int = 0
    outcomes: dict[int, tuple[str, datetime]] = field(default_factory=dict)
    #: The first and the last run that reported it. They stay known after old runs are deleted.
    first_run: int = 0
    last_run: int = 0


@dataclass(slots=True)
class ExpectedScan:
    """The expected effects of a postback. `ticketed` has findings with the ticket that they join, None for a new ticket."""

    counts: dict[str, int]
    ticketed: dict[Place, str | None] = field(default_factory=dict)
    extended: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    #: Groups that stay open, or must be reopened.
    kept_open: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Run:
    created_at: datetime
    updated_at: datetime
    is_read: bool = False
    #: The last change of each place of a ticket.
    changes: dict[tuple[str, Place], tuple[str, datetime]] = field(default_factory=dict)


class LifeCycleModel:
    """Findings, their number for each ticket, and due events. The targets `asking` are configured for `events`."""

    def __init__(self, *, is_grouped: bool, asking: frozenset[str], events: frozenset[str]) -> None:
        self.is_grouped = is_grouped
        self.findings: dict[Place, ExpectedFinding] = {}
        #: The total number of findings of each ticket, and the number of fixed ones.
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        #: Tickets with one finding, into which a group was split: they are no groups.
        self._parts: set[str] = set()
        self._asking = asking
        self._events = events
        self._runs: dict[int, _Run] = {}

    def scan(self, scan: Scan, rows: Mapping[str, StoredExport], disabled: Set[str], at: datetime) -> ExpectedScan:
        """Apply a postback, given the exports `rows` and the `disabled` targets before it."""
        run = self._runs.setdefault(scan.run, _Run(at, at))
        run.updated_at = at
        expected = ExpectedScan(dict.fromkeys(("new", "seen", "fixed", "reopened"), 0))
        before = {id_ for id_, row in rows.items() if row.open_group is not None}
        renewed, reopened = self._report(scan, rows, disabled, run, at, expected)
        fixed = self._miss(scan, rows, run, at) if scan.status == "completed" and scan.status_code in {200, None} else []
        expected.counts["fixed"] = len(fixed)
        closed = self._ticket(scan, rows, renewed, run, at, expected)
        all_fixed = {id_ for id_ in before if self.counts[id_]["total"] <= self.counts[id_]["fixed"]}
        # If the same postback has a new place of the rule, that starts a new group, which is then the open one.
        begun = {code for (_, code, _), ticket in expected.ticketed.items() if ticket is None}
        expected.kept_open = (before - closed - all_fixed) | {each for each in reopened if rows[each].rule not in begun}
        return expected

    def is_due(self, run: int, now: datetime) -> bool:
        """Return whether the events of a run are due: it has had no recent postback, or a later run has posted."""
        mine = self._runs[run]
        later = any(each.created_at > mine.created_at and each.updated_at > mine.updated_at for each in self._runs.values())
        return mine.updated_at <= now - SETTLE or (later and not mine.is_read)

    def form(self, rows: Mapping[str, StoredExport], now: datetime) -> Counter[tuple[str, str]]:
        """Return the due events by ticket and type, and record that they were formed."""
        formed: Counter[tuple[str, str]] = Counter()
        for number, run in self._runs.items():
            if not run.changes or not self.is_due(number, now):
                continue
            of_ticket: dict[str, list[str]] = defaultdict(list)
            for (export_id, place), (change, at) in run.changes.items():
                # A change that was undone causes no event; a change before the approval is part of the approved ticket.
                stands = (change == "fixed") == (self.findings[place].fixed_at is not None)
                approved_at = rows[export_id].approved_at if export_id in rows else None
                if stands and approved_at is not None and at > approved_at:
                    of_ticket[export_id].append(change)
            for export_id, changes in of_ticket.items():
                if event_type := self._type_of(rows[export_id], changes):
                    formed[export_id, event_type] += 1
            run.changes, run.is_read = {}, True
        return formed

    def forget_runs(self, left: set[tuple[Place, int]], runs: set[int]) -> None:
        """Delete the outcomes of old runs."""
        for place, finding in self.findings.items():
            finding.outcomes = {run: each for run, each in finding.outcomes.items() if (place, run) in left}
        self._runs = {number: run for number, run in self._runs.items() if number in runs}

    def copy(self, export_id: str, sibling: str) -> None:
        """Record that an export was also approved for another target."""
        self.counts[sibling] = Counter(self.counts[export_id])

    def places_of(self, export_id: str) -> list[Place]:
        """Return the places whose ticket is this export."""
        return [place for place, each in self.findings.items() if each.export_id == export_id]

    def split(self, export_id: str, parts: Mapping[Place, str]) -> None:
        """Record that a group was split: each of its places, fixed or not, has its own ticket."""
        self.counts[export_id].clear()
        for place, part in parts.items():
            self.findings[place].export_id = part
            self.counts[part].update(total=1, fixed=int(self.findings[place].fixed_at is not None))
        self._parts.update(parts.values())

    def _report(
        self,
        scan: Scan,
        rows: Mapping[str, StoredExport],
        disabled: Set[str],
        run: _Run,
        at: datetime,
        expected: ExpectedScan,
    ) -> tuple[list[Place], set[str]]:
        """Apply the reported places; return the places that need another ticket, and the groups that are open again."""
        if scan.status not in {"completed", "partial"}:
            return [], set()
        renewed, opened = [], set()
        for code, location in scan.found:
            place = (scan.page, code, location)
            finding = self.findings.get(place)
            if finding is None:
                expected.counts["new"] += 1
                self.findings[place] = ExpectedFinding(None, 0, None, 0, {scan.run: ("seen", at)}, scan.run, scan.run)
                expected.ticketed[place] = None
                continue
            own, own_at = finding.outcomes.get(scan.run, ("", at))
            finding.missed = 0
            if scan.run != finding.first_run:
                finding.last_run = scan.run
            if finding.fixed_at is None:
                # A fix that another run undid stays in the history.
                finding.outcomes[scan.run] = (own if own in {"fixed", "reopened"} else "seen", own_at)
                expected.counts["seen"] += 1
                continue
            # A run that posts a page in parts undoes its own fixes.
            is_back = not (own == "fixed" and own_at == finding.fixed_at)
            finding.outcomes[scan.run] = ("reopened" if is_back else "seen", own_at)
            finding.fixed_at, finding.times_reopened = None, finding.times_reopened + is_back
            expected.counts["reopened" if is_back else "seen"] += 1
            row = rows.get(finding.export_id or "")
            is_informed = row is not None and row.status == "exported" and self._gets_event(row, disabled)
            if is_back and (row is None or (row.status == "exported" and not is_informed)):
                renewed.append(place)
                continue
            for each in self._with_siblings(row, rows):
                self.counts[each.id]["fixed"] -= 1
                # A change that is undone before its event is formed causes no event.
                if is_back or (each.id, place) not in run.changes:
                    self._note(run, each, place, "reopened", at)
                # New places join the ticket with the findings, not its copies.
                is_copy = each.id != finding.export_id
                if not is_copy and (each.status not in _ENDED or self._gets_event(each, disabled)):
                    opened.add(each.id)
        may_open = sorted(id_ for id_ in opened if self.is_grouped and self._may_open(rows[id_], rows))
        # For each rule, only the newest group.
        return renewed, {*{rows[id_].rule: id_ for id_ in may_open}.values()}

    def _miss(self, scan: Scan, rows: Mapping[str, StoredExport], run: _Run, at: datetime) -> list[Place]:
        """Apply the places that were not reported; return the fixed ones."""
        fixed = []
        for place, finding in self.findings.items():
            page, code, location = place
            is_new_run = scan.run not in {finding.last_run, *finding.outcomes}
            is_open = page == scan.page and finding.fixed_at is None and is_new_run
            if (code, location) in scan.found or not is_open or not (scan.rules is None or code in scan.rules):
                continue
            finding.missed += 1
            finding.outcomes[scan.run] = ("missed", at)
            if finding.missed >= _ENOUGH:
                finding.fixed_at, finding.outcomes[scan.run] = at, ("fixed", at)
                fixed.append(place)
                for each in self._with_siblings(rows.get(finding.export_id or ""), rows):
                    self.counts[each.id]["fixed"] += 1
                    self._note(run, each, place, "fixed", at)
        return fixed

    def _ticket(
        self,
        scan: Scan,
        rows: Mapping[str, StoredExport],
        renewed: Sequence[Place],
        run: _Run,
        at: datetime,
        expected: ExpectedScan,
    ) -> set[str]:
        """Choose the tickets that new findings join; return the groups that are closed to further findings."""
        expected.ticketed |= dict.fromkeys(renewed)
        groups = {row.open_group: row for row in rows.values() if row.open_group is not None} if self.is_grouped else {}
        rules = {code for _, code, _ in renewed}
        closed = {code for code in rules & groups.keys() if groups[code].status not in _ON_TICKET}
        for place in expected.ticketed:
            group = None if place[1] in closed else groups.get(place[1])
            if group is None:
                continue
            expected.ticketed[place] = group.id
            copies = self._with_siblings(group, rows)
            for each in copies:
                self.counts[each.id]["total"] += 1
            if group.status == "prepared":
                expected.extended.add(group.id)
                continue
            expected.joined.add(group.id)
            for each in copies:
                self._note(run, each, place, "added", at)
        return {groups[code].id for code in closed}

    def _with_siblings(self, row: StoredExport | None, rows: Mapping[str, StoredExport]) -> list[StoredExport]:
        if row is None:
            return []
        return [rows[each] for each in json.loads(row.siblings or "null") or [row.id] if each in rows]

    def _may_open(self, row: StoredExport, rows: Mapping[str, StoredExport]) -> bool:
        """Return whether new places can join a group again, which requires that no other group of its rule is open."""
        is_group = row.rule is not None and row.id not in self._parts
        return is_group and not any(each.open_group == row.rule for each in rows.values() if each.id != row.id)

    def _note(self, run: _Run, row: StoredExport, place: Place, change: str, at: datetime) -> None:
        if json.loads(row.events or "null"):
            # A change in the same millisecond counts as after the approval.
            after = at if row.approved_at is None else max(at, row.approved_at + timedelta(milliseconds=1))
            run.changes[row.id, place] = (change, after)

    def _wanted(self, row: StoredExport) -> set[str]:
        """Return the events that an approval covers and that the target is configured for."""
        return {*(json.loads(row.events or "null") or ())} & (self._events if row.target_id in self._asking else set())

    def _gets_event(self, row: StoredExport, disabled: Set[str]) -> bool:
        """Return whether a target gets an event about a reopened place. An event for a disabled target fails."""
        return "ticket.reopened" in self._wanted(row) and row.target_id not in disabled

    def _type_of(self, row: StoredExport, changes: Sequence[str]) -> str | None:
        if row.redacted_at is not None:
            return None
        is_fixed = self.counts[row.id]["total"] <= self.counts[row.id]["fixed"]
        applies = {"ticket.fixed": is_fixed, "ticket.reopened": "reopened" in changes, "ticket.updated": True}
        return next((name for name, is_so in applies.items() if is_so and name in self._wanted(row)), None)
