"""The findings of a postback in a project that groups them by rule: the groups that they begin or join, and the tickets.

Tickets are written before the transaction, from the groups as they were read then. Inside it, a ticket is used only if its
group still has the same version and the same findings join it; otherwise it is written again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.places import Place
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.group_ticket import Group, group_ticket, new_group, with_findings
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.exports.tickets.ticket_events import PlaceChange
from schemas.intake.scanner import Issue, ScanPostback
from schemas.triage.search_words import host_of
from storage.accounts.account_limits import AccountLimits
from storage.db import identifiers
from storage.exports.events import changes_sql
from storage.exports.events.changes_sql import StoredChange, store
from storage.exports.rows import Draft, WrittenTicket, written
from storage.exports.search import export_search
from storage.exports.transitions import prepare
from storage.exports.transitions_sql import write_locked
from storage.intake.findings_sql import PostedRun
from storage.triage import groups
from storage.triage.groups import OpenGroup


@dataclass(frozen=True, slots=True)
class GroupTicket:
    """A group's ticket and what it was written from: the group's version (0 for a new one) and the findings that join it."""

    version: int
    joining: Sequence[str]
    ticket: WrittenTicket


@dataclass(frozen=True, slots=True)
class GroupedPostback:
    """A postback, its issues by fingerprint, and the open groups of their rules."""

    postback: ScanPostback
    issues: Mapping[str, Issue]
    opened: Mapping[str, OpenGroup]

    @classmethod
    def read(cls, project_id: int, postback: ScanPostback, issues: Mapping[str, Issue], *, locks: bool = False) -> Self:
        """Read the groups; with `locks`, nobody changes them until the caller's transaction ends."""
        places = [(rule_of(issue), issue.url or postback.page.url) for issue in issues.values()]
        return cls(postback, issues, groups.open_groups(project_id, places, locks=locks))

    def export_ids(self, now: datetime) -> dict[str, str]:
        """Return for each fingerprint the export of its rule's group, or a new id for an export to be prepared."""
        rules = dict.fromkeys(map(rule_of, self.issues.values()))
        ids = {rule: self._id_of(rule) or identifiers.new_id(identifiers.EXPORT, now) for rule in rules}
        return {fingerprint: ids[rule_of(issue)] for fingerprint, issue in self.issues.items()}

    def at_disabled_targets(self, fingerprints: Iterable[str]) -> list[str]:
        """Return those that would join the delivered ticket of a disabled target, which gets no events about them."""
        groups_of = {each: self.opened[rule] for each in fingerprints if (rule := rule_of(self.issues[each])) in self.opened}
        exported = ExportStatus.EXPORTED.value
        delivered = {each: opened.row.id for each, opened in groups_of.items() if opened.row.status == exported}
        disabled = changes_sql.at_disabled_targets({*delivered.values()}) if delivered else ()
        return [each for each, export_id in delivered.items() if export_id in disabled]

    def renewed(
        self, issues: Mapping[str, Issue], fingerprints: Iterable[str], export_ids: Mapping[str, str], now: datetime
    ) -> tuple[Self, dict[str, str]]:
        """Return the postback with `issues`, and the export id of each.

        An approved group is closed: the findings in `fingerprints` with its rule begin a new group, which later findings
        join.
        """
        rules = {rule_of(issues[fingerprint]) for fingerprint in fingerprints}
        closed = {
            rule: each.row.id
            for rule, each in self.opened.items()
            if rule in rules and each.group is None and each.row.status != ExportStatus.DISMISSED.value
        }
        write_locked([{"id": each} for each in closed.values()], {"open_group": None})
        opened = {rule: each for rule, each in self.opened.items() if rule not in closed}
        again = replace(self, issues=issues, opened=opened)
        fresh = again.export_ids(now)
        return again, {
            **export_ids,
            **{fingerprint: fresh[fingerprint] for fingerprint in issues if rule_of(issues[fingerprint]) in closed},
        }

    def joining(self, new: Iterable[str]) -> dict[str, list[str]]:
        """Return the new findings of each rule's group, by fingerprint."""
        found: dict[str, list[str]] = {}
        for fingerprint in new:
            found.setdefault(rule_of(self.issues[fingerprint]), []).append(fingerprint)
        return found

    def tickets(
        self, joining: Mapping[str, Sequence[str]], checkpoint: Checkpoint = no_checkpoint
    ) -> dict[str, GroupTicket]:
        """Write the tickets of groups that begin or grow, by rule; the tickets of frozen groups are unchanged."""
        rules = [rule for rule in joining if rule not in self.opened or self.opened[rule].group is not None]
        texts = written([self._ticket(rule, joining[rule]) for rule in rules], checkpoint)
        return {
            rule: GroupTicket(self._version_of(rule), joining[rule], text) for rule, text in zip(rules, texts, strict=True)
        }

    def store(
        self,
        run: PostedRun,
        joining: Mapping[str, Sequence[str]],
        prepared: Mapping[str, GroupTicket],
        finding_ids: Mapping[str, str],
        export_ids: Mapping[str, str],
        now: datetime,
        actor: str,
        limits: AccountLimits,
    ) -> list[str]:
        """Prepare new groups, extend prepared ones, count findings in frozen ones; return the ids of the first two in order.

        `prepared` are tickets that were written before. The ids of findings and exports are by fingerprint. The caller holds
        the transaction.
        """
        basis = {rule: (each.version, each.joining) for rule, each in prepared.items()}
        stale = {rule: each for rule, each in joining.items() if basis.get(rule) != (self._version_of(rule), each)}
        tickets = {rule: each.ticket for rule, each in {**prepared, **self.tickets(stale)}.items()}
        drafts, extended, waiting = [], [], []
        exports: dict[str, list[str]] = {}
        for rule, each in joining.items():
            opened = self.opened.get(rule)
            if opened is None:
                first, total = each[0], len(each)
                export_id, source = export_ids[first], finding_source(self.postback, finding_ids[first])
                drafts.append(Draft(run.account_id, run.project_id, source, tickets[rule], rule, total, rule, export_id))
                exports[rule] = [export_id]
            elif opened.group is None:
                waiting.append((opened.row, each))
            else:
                extended.append((opened.row, tickets[rule], len(each)))
                exports[rule] = [opened.row.id]
        changed = [export_id for [export_id] in exports.values()]
        # The caller applies the approval rules to new and extended groups together.
        prepare(drafts, now, actor, limits, None)
        groups.extend(extended, now, actor)
        frozen = groups.join_frozen([(row, len(fingerprints)) for row, fingerprints in waiting], now, actor)
        noted = [
            StoredChange(each.id, finding_ids[fingerprint], PlaceChange.ADDED)
            for row, fingerprints in waiting
            for each in frozen[row.id]
            if each.events
            for fingerprint in fingerprints
        ]
        store(noted, self.postback.scan_run_id, now)
        exports |= {str(row.open_group): [each.id for each in frozen[row.id]] for row, _ in waiting}
        # The hosts of new findings too, because tickets name few places, and frozen ones no new one.
        export_search.add_hosts(
            (run.account_id, host, export_id)
            for rule, ids in exports.items()
            for fingerprint in joining[rule]
            if (host := host_of(self.issues[fingerprint].url or self.postback.page.url))
            for export_id in ids
        )
        return changed

    def _ticket(self, rule: str, fingerprints: Sequence[str]) -> Ticket:
        opened = self.opened.get(rule)
        if opened is None or opened.group is None:
            first = self.issues[fingerprints[0]]
            begun = new_group(self.postback.page, first, self.postback.scan_run_id, self.postback.screenshot)
            return group_ticket(self._grown(begun, fingerprints[1:], {begun.places[0].url}))
        return groups.extended_ticket(opened.row, self._grown(opened.group, fingerprints, opened.known_pages))

    def _grown(self, group: Group, fingerprints: Sequence[str], known_pages: Iterable[str]) -> Group:
        added = [
            (Place(issue.url or self.postback.page.url, issue.location), issue.severity)
            for issue in (self.issues[fingerprint] for fingerprint in fingerprints)
        ]
        return with_findings(group, added, frozenset(known_pages))

    def _id_of(self, rule: str) -> str | None:
        return self.opened[rule].row.id if rule in self.opened else None

    def _version_of(self, rule: str) -> int:
        return self.opened[rule].row.version if rule in self.opened else 0


def finding_source(postback: ScanPostback, finding_id: str) -> Source:
    """Return the source of an export that a postback prepares from a finding."""
    return Source("finding", finding_id, postback.scan_run_id)


def rule_of(issue: Issue) -> str:
    """Return the value that the issues of a group share: the rule code, or the title of issues without one."""
    return issue.code.strip()
