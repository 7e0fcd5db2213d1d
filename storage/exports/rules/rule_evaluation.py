"""Applies an account's approval rules to exports that were prepared or extended, in the same transaction.

The oldest rule that matches decides, whatever its action is. All exports of a request are decided together: with one
statement if the account has no rules, with a few otherwise. To approve, a rule needs the same as `transitions.approve`: an
active target whose last validation passed, a URL that the policy allows, a preview without problems. While the target does
not accept approvals, the export stays prepared and waits for it; later, `ApprovalRules.resume` approves the export.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.base.errors import ValidationFailed
from schemas.base.timestamps import to_ms
from schemas.exports.record import MAX_LABELS
from schemas.exports.state_machine import TRANSITIONS, ExportStatus, Transition
from schemas.targets.approval import TargetUrlRefused, require_approvable
from schemas.triage.approval_rules import ApprovalRule, RuleActionType, RuleSubject
from schemas.url_policy.policy import TargetPolicy
from storage.accounts.audit_log import AuditEntry, append_all
from storage.db.columns import columns, read
from storage.db.engine import after_commit, transaction
from storage.db.models import ExportRow
from storage.db.queries import for_update
from storage.exports import transitions_sql
from storage.exports.rows import written_records
from storage.exports.rules import approval_rules
from storage.exports.rules.approval_rules import IS_WAITING, RuleUsability
from storage.exports.transitions_sql import ApprovalTarget, LockedExport
from storage.targets import targets

#: How many waiting exports are decided in one transaction: some 50 ms, during which no other writer of SQLite can write.
RESUME_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class _Decision:
    """A rule and the exports that it decides; with `is_of_groups`, it also decides later places of their groups."""

    rule: ApprovalRule
    exports: Sequence[LockedExport]
    is_of_groups: bool


class ApprovalRules:
    """Applies approval rules with the `policy` for targets; calls `wake_workers` after a commit that made exports due.

    Without a policy, exports wait for a worker, which has one.
    """

    def __init__(self, policy: TargetPolicy | None, wake_workers: Callable[[], object] = lambda: None) -> None:
        self._policy = policy
        self._wake_workers = wake_workers

    def apply(self, account_id: int, export_ids: Sequence[str], now: datetime) -> None:
        """Apply the account's rules to exports that were just prepared or extended; the caller holds the transaction.

        Exports that are not prepared, or snoozed, stay as they are.
        """
        if not export_ids or not transitions_sql.has_rules(account_id):
            return
        rules = approval_rules.enabled_rules(account_id)
        locked = transitions_sql.lock_exports(sorted(export_ids), account_id)
        prepared = [each for each in locked if each.status is ExportStatus.PREPARED and each.redacted_at is None]
        exports = [each for each in prepared if not _is_snoozed(each, now)]
        while True:
            usability = approval_rules.usability(rules, now)
            usable = _usable(rules, usability, now)
            decisions = _decisions(usable, exports)
            if approval_rules.lock([each.rule for each in decisions]):
                break
            # A person has just changed or deleted one of these rules.
            rules = approval_rules.enabled_rules(account_id)
        waiting = [each.id for each in exports if each.approved_by_rule_id is not None]
        transitions_sql.set_waiting(waiting, None)
        for decision in decisions:
            self._apply_decision(decision, usability.targets, now)

    def resume(self, now: datetime) -> bool:
        """Decide a batch of exports that waited for the target of a rule; return whether more may wait.

        Approves them if the target accepts approvals now. If an export no longer matches or was snoozed, or its rule was
        disabled, people decide on it.
        """
        # These reads take no write lock. Nearly all calls end here.
        rules = approval_rules.rules_with_waiting()
        usability = approval_rules.usability(rules, now) if rules else None
        return usability is not None and any(self._resume(rule, usability, now) for rule in rules)

    def _resume(self, rule: ApprovalRule, usability: RuleUsability, now: datetime) -> bool:
        target = usability.targets.get(rule.action.target_id or "")
        is_usable = rule.enabled and rule.id not in usability.stopped and target is not None
        if is_usable and target is not None and target.state.problem is not None:
            return False
        with transaction():
            of_rule = ExportRow.select(*columns(LockedExport, ExportRow)).order_by(ExportRow.id)
            of_rule = of_rule.where(IS_WAITING, ExportRow.approved_by_rule_id == rule.id).limit(RESUME_BATCH)
            # Skips exports that another process is changing.
            waiting = read(LockedExport, for_update(of_rule, "FOR UPDATE SKIP LOCKED"))
            # If the target was removed, people decide on its waiting exports.
            if not waiting or not approval_rules.lock([rule], targets=is_usable):
                return False
            if rule.enabled:
                _usable([rule], usability, now)
            found = [each for each in waiting if not _is_snoozed(each, now)] if is_usable else []
            transitions_sql.set_waiting([each.id for each in waiting], None)
            for decision in _decisions([rule] if is_usable else [], found):
                self._apply_decision(decision, usability.targets, now)
        return True

    def _apply_decision(self, decision: _Decision, known: Mapping[str, ApprovalTarget], now: datetime) -> None:
        """Label, dismiss or approve the exports of a decision; approvals wait while the target does not accept them."""
        rule, exports = decision.rule, decision.exports
        if rule.action.type is RuleActionType.LABEL:
            _label(rule, exports, now)
        elif rule.action.type is RuleActionType.DISMISS:
            _dismiss(decision, now)
        else:
            # A person must review a ticket whose preview has problems.
            safe = [each for each in exports if not each.preview_problems]
            if self._accepts(rule, known, now):
                approved = [(each, str(rule.action.target_id)) for each in safe]
                transitions_sql.approve_locked(approved, now, rule.actor, _reason(rule))
                after_commit(self._wake_workers)
            else:
                transitions_sql.set_waiting([each.id for each in safe], rule.id)
                new = [each for each in safe if each.approved_by_rule_id != rule.id]
                _append(rule, "wait_for_target", new, ExportStatus.PREPARED, now)

    def _accepts(self, rule: ApprovalRule, known: Mapping[str, ApprovalTarget], now: datetime) -> bool:
        """Return whether the target of a rule accepts approvals; block the target if the policy refuses its URL."""
        target_id = str(rule.action.target_id)
        target = known[target_id]
        if self._policy is None:
            return False
        try:
            require_approvable(target_id, target.base_url, target.state, self._policy)
        except TargetUrlRefused as refused:
            targets.refuse(target_id, refused.reason, now, rule.actor, refused.base_url)
            return False
        except ValidationFailed:
            return False
        return True


#: Leaves approvals to a worker, because it has no policy.
LEFT_TO_WORKERS: Final = ApprovalRules(None)


def _usable(rules: Iterable[ApprovalRule], usability: RuleUsability, now: datetime) -> list[ApprovalRule]:
    """Stop the rules that must stop, and return the others."""
    usable = []
    for rule in rules:
        reason = usability.stopped.get(rule.id)
        if reason is None:
            usable.append(rule)
        else:
            approval_rules.stop(rule, reason, now)
    return usable


def _decisions(rules: Sequence[ApprovalRule], exports: Sequence[LockedExport]) -> list[_Decision]:
    """Return for each rule the exports of which it is the first match; `rules` are in the order in which they decide."""
    has_paths = any(rule.match.page_path is not None for rule in rules)
    places = approval_rules.page_urls([each.id for each in exports if (each.findings_total or 0) > 1] if has_paths else [])
    decided: dict[str, list[LockedExport]] = {}
    for export in exports:
        urls = places.get(export.id) or {export.ticket["page_url"]} - {None}
        subject = RuleSubject(export.project_id, export.severity_rank, export.source_type, export.rule, urls)
        first = next((rule for rule in rules if rule.match.matches(subject)), None)
        if first is not None:
            decided.setdefault(first.id, []).append(export)
    return [
        _Decision(rule, decided[rule.id], _decides_groups(rule, rules[:index]))
        for index, rule in enumerate(rules)
        if rule.id in decided
    ]


def _decides_groups(rule: ApprovalRule, older: Iterable[ApprovalRule]) -> bool:
    """Return whether a rule's decision on a group is also valid for later places of it, on any page and of any severity.

    The severity of a group never decreases, so the rule itself matches by severity for good.
    """
    differs = any(each.match.page_path is not None or each.match.severity_at_least is not None for each in older)
    return rule.match.page_path is None and not differs


def _dismiss(decision: _Decision, now: datetime) -> None:
    rule, exports = decision.rule, decision.exports
    status = TRANSITIONS[Transition.DISMISS].target
    shared = {"status": status.value, **transitions_sql.dismissal_columns(rule.action.reason, None, now)}
    if not decision.is_of_groups:
        # Later places would be dismissed with the group, although the rules may decide differently on them.
        shared["open_group"] = None
    transitions_sql.write_locked([{"id": each.id} for each in exports], shared)
    _append(rule, Transition.DISMISS.value, exports, status, now)


def _label(rule: ApprovalRule, exports: Sequence[LockedExport], now: datetime) -> None:
    """Add the labels that a ticket lacks, up to the limit; check its preview again."""
    labels = [_labels(rule, each.ticket["labels"]) for each in exports]
    changed = [(each, wanted) for each, wanted in zip(exports, labels, strict=True) if wanted != each.ticket["labels"]]
    tickets = written_records([{**each.ticket, "labels": wanted} for each, wanted in changed])
    records = [{"id": each.id, **ticket.columns()} for (each, _), ticket in zip(changed, tickets, strict=True)]
    transitions_sql.write_locked(records, {})
    _append(rule, RuleActionType.LABEL.value, [each for each, _ in changed], ExportStatus.PREPARED, now)


def _labels(rule: ApprovalRule, present: Sequence[str]) -> list[str]:
    added = [label for label in rule.action.labels or () if label not in present]
    return [*present, *added[: max(0, MAX_LABELS - len(present))]]


def _append(rule: ApprovalRule, action: str, exports: Sequence[LockedExport], status: ExportStatus, now: datetime) -> None:
    """Append an entry for each export."""
    at, before, reason = to_ms(now), ExportStatus.PREPARED.value, _reason(rule)
    append_all([AuditEntry(at, rule.actor, action, each.id, before, status.value, reason) for each in exports])


def _reason(rule: ApprovalRule) -> str:
    """Return the reason of a rule's audit entries, which is its author."""
    return f"user:{rule.author_id}"


def _is_snoozed(export: LockedExport, now: datetime) -> bool:
    return export.snoozed_at is not None and (export.snoozed_until is None or export.snoozed_until > now)
