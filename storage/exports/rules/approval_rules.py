"""Approval rules of accounts: stored, changed, deleted, and stopped when their author or their target no longer allows them.

`rule_evaluation` applies them. On PostgreSQL, a rule that decides is locked until the decision is committed: once a change
or a deletion has returned, the old rule decides nothing more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final

from peewee import JOIN, SQL, fn

from schemas.base.checkpoint import Checkpoint
from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability, Role, TokenKind, effective_abilities
from schemas.triage.approval_rules import (
    MAX_EXAMPLES,
    MAX_RULES,
    MAX_TESTED,
    TESTED_AGE,
    ApprovalRule,
    RuleAction,
    RuleActionType,
    RuleChange,
    RuleMatch,
    RuleRequest,
    RuleSubject,
    RuleTestResult,
    StoppedReason,
)
from storage.accounts.audit_log import append
from storage.accounts.tokens import is_live
from storage.db import identifiers
from storage.db.columns import LAST_ULID, columns, get_by_id, read, values_of
from storage.db.engine import is_sqlite, transaction
from storage.db.leases import compare_and_swap
from storage.db.models import (
    ApprovalRuleRow,
    ExportRow,
    FindingRow,
    GrantRow,
    ProjectRow,
    TargetRow,
    TokenRow,
    UserIdentityRow,
    UserRow,
)
from storage.db.queries import for_update, newest_first, tuples, where_given
from storage.exports.transitions_sql import ApprovalTarget, lock_targets

#: How many exports the test of a rule reads at once: the most expensive pattern takes some 20 ms for them.
_TEST_BATCH: Final = 200
#: For how many findings of groups the test reads the pages at once; the findings of one group are read together.
_TEST_FINDINGS: Final = 10_000
#: The exports that wait for the target of a rule; while all findings of an export are fixed, there is nothing to approve.
#: The beginning is exactly the condition of the index exports_waiting_for_rule: with parameters, neither database would use
#: the index.
IS_WAITING: Final = SQL(
    "status = 'prepared' AND approved_by_rule_id IS NOT NULL "
    "AND (findings_total IS NULL OR COALESCE(findings_fixed, 0) < findings_total)"
)
#: Each change gets a later time than the last one, so that a changed rule is recognized.
_TICK: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class RuleUsability:
    """Reasons why rules can no longer decide, by rule id; and the targets of the other approving rules, by target id."""

    stopped: Mapping[str, StoppedReason]
    targets: Mapping[str, ApprovalTarget]


def needed_abilities(action: RuleAction) -> frozenset[Ability]:
    """Return the abilities that the author of a rule needs."""
    needed = frozenset({Ability.MANAGE_RULES})
    return needed if action.type is RuleActionType.LABEL else needed | {Ability.APPROVE_EXPORTS}


def abilities_of(user_ids: Collection[int], now: datetime) -> dict[int, set[str]]:
    """Return the abilities of the valid API tokens of users who are not disabled, as far as their roles allow them.

    Any token of a user counts. A user who can sign in without a token has all abilities that the role allows; a user with
    neither has none. Disabled users are left out.
    """
    is_theirs = (TokenRow.user == UserRow.id) & (TokenRow.kind == TokenKind.API.value) & is_live(now)
    wanted = list(user_ids)
    has_identity = fn.EXISTS(UserIdentityRow.select(SQL("1")).where(UserIdentityRow.user == UserRow.id))
    query = UserRow.select(UserRow.id, UserRow.role, has_identity, TokenRow.abilities)
    query = query.join(TokenRow, JOIN.LEFT_OUTER, on=is_theirs)
    found = tuples(query.where(UserRow.id.in_(wanted), UserRow.disabled_at.is_null()))
    in_projects: dict[int, set[Role]] = {}
    granted = GrantRow.select(GrantRow.user, GrantRow.role).where(GrantRow.user.in_(wanted), GrantRow.role.is_null(False))
    for user_id, role in tuples(granted) if any(role is None for _, role, _, _ in found) else ():
        in_projects.setdefault(user_id, set()).add(role)
    held: dict[int, set[str]] = {}
    for user_id, role, is_linked, abilities in found:
        own = frozenset(Ability) if is_linked else frozenset(abilities or ())
        allowed = effective_abilities(own, role, frozenset(in_projects.get(user_id, ())))
        held.setdefault(user_id, set()).update(allowed)
    return held


def create(account_id: int, request: RuleRequest, author_id: int, now: datetime, actor: str) -> ApprovalRule:
    """Store a rule; from now on, it decides on exports that are prepared.

    Raises ValidationFailed for a project or target of another account, and for more than MAX_RULES rules.
    """
    rule_id = identifiers.new_id(identifiers.RULE, now)
    with transaction():
        _require_known(account_id, request.match, request.action)
        if ApprovalRuleRow.select().where(ApprovalRuleRow.account == account_id).count() >= MAX_RULES:
            message = f"An account may have {MAX_RULES} approval rules; delete or change one."
            raise ValidationFailed(FieldProblem("", "limit_reached", message))
        parts = {"conditions": request.match.record(), "action": request.action.record()}
        own = {"id": rule_id, "account": account_id, "author": author_id, "created_at": now, "updated_at": now}
        ApprovalRuleRow.insert(values_of(ApprovalRuleRow, request, **parts, **own)).execute()
        append(now, actor, "create_rule", rule_id, request.action.type.value)
    return _get(rule_id, account_id)


def get(rule_id: str, account_id: int | None, now: datetime) -> ApprovalRule:
    """Return a rule, with the reason if it must stop at `now`; with `account_id`, only of that account. Raises NotFound."""
    return _shown([_get(rule_id, account_id)], now)[0]


def list_page(
    account_id: int | None, now: datetime, limit: int | None = None, before: str | None = None
) -> list[ApprovalRule]:
    """Return up to `limit` rules of one account or of all, the newest first, older than the one with the id `before`."""
    query = where_given(_rules(), (ApprovalRuleRow.account, account_id))
    return _shown(read(ApprovalRule, newest_first(query, ApprovalRuleRow.id, limit, before)), now)


def change(
    rule_id: str, account_id: int | None, changes: RuleChange, author_id: int | None, now: datetime, actor: str
) -> ApprovalRule:
    """Change a rule; from now on it acts for `author_id`, or still for its author if that is None.

    Raises NotFound, and ValidationFailed as `create` does.
    """
    with transaction():
        rule = _locked(rule_id, account_id)
        match, action = changes.match or rule.match, changes.action or rule.action
        # A rule whose target was removed may still be renamed or disabled.
        is_checked = changes.action is not None or changes.enabled is True
        _require_known(rule.account_id, changes.match or RuleMatch(), action if is_checked else None)
        is_enabled = rule.enabled if changes.enabled is None else changes.enabled
        compare_and_swap(
            ApprovalRuleRow,
            rule_id,
            name=changes.name or rule.name,
            enabled=is_enabled,
            conditions=match.record(),
            action=action.record(),
            author=author_id or rule.author_id,
            stopped_reason=None if is_enabled else rule.stopped_reason,
            updated_at=max(now, rule.updated_at + _TICK),
        )
        append(now, actor, "change_rule", rule_id, action.type.value if is_enabled else "disabled")
    return get(rule_id, account_id, now)


def delete(rule_id: str, account_id: int | None, now: datetime, actor: str) -> None:
    """Delete a rule; people decide on the exports that waited for its target. Raises NotFound."""
    with transaction():
        _locked(rule_id, account_id)
        # Before the deletion: the audit entry takes its account from the rule.
        append(now, actor, "delete_rule", rule_id)
        ApprovalRuleRow.delete().where(ApprovalRuleRow.id == rule_id).execute()


def enabled_rules(account_id: int) -> list[ApprovalRule]:
    """Return the enabled rules of an account, oldest first."""
    wanted = _rules().where(ApprovalRuleRow.account == account_id, ApprovalRuleRow.enabled)
    return read(ApprovalRule, wanted.order_by(ApprovalRuleRow.id))


def usability(rules: Collection[ApprovalRule], now: datetime) -> RuleUsability:
    """Return which rules must stop at `now`, and why, and the targets of the others."""
    held = abilities_of({rule.author_id for rule in rules}, now)
    wanted = [rule.action.target_id for rule in rules if rule.action.target_id is not None]
    query = TargetRow.select(TargetRow.id, *columns(ApprovalTarget, TargetRow))
    found = tuples(query.where(TargetRow.id.in_(wanted), TargetRow.deleted_at.is_null())) if wanted else []
    targets = {target_id: ApprovalTarget._make(target) for target_id, *target in found}
    reasons = {rule.id: _stop_reason(rule, held, targets) for rule in rules}
    return RuleUsability({rule_id: reason for rule_id, reason in reasons.items() if reason is not None}, targets)


def stop(rule: ApprovalRule, reason: StoppedReason, now: datetime) -> None:
    """Stop a rule until a person enables it again. The caller holds the transaction."""
    stopped = {"enabled": False, "stopped_reason": reason.value, "updated_at": max(now, rule.updated_at + _TICK)}
    # A person may have changed the rule, or another process may have stopped it.
    if compare_and_swap(ApprovalRuleRow, rule.id, ApprovalRuleRow.updated_at == rule.updated_at, **stopped):
        append(now, rule.actor, "stop_rule", rule.id, reason.value)


def lock(rules: Collection[ApprovalRule], *, targets: bool = True) -> bool:
    """Prevent changes of rules, and with `targets` the removal of their targets, until the transaction ends.

    Returns whether all of them are still as they were read.
    """
    if not rules:
        return True
    known = {rule.id: rule.updated_at for rule in rules}
    wanted = ApprovalRuleRow.select(ApprovalRuleRow.id, ApprovalRuleRow.updated_at).order_by(ApprovalRuleRow.id)
    held: dict[str, datetime] = dict(tuples(for_update(wanted.where(ApprovalRuleRow.id.in_(list(known))), "FOR SHARE")))
    target_ids = {rule.action.target_id for rule in rules if targets and rule.action.target_id is not None}
    return held == known and set(lock_targets(target_ids)) == target_ids


def rules_with_waiting() -> list[ApprovalRule]:
    """Return the rules, of all accounts, with prepared exports that wait for the rule's target."""
    waiting = ExportRow.select().where(IS_WAITING, ExportRow.approved_by_rule_id == ApprovalRuleRow.id)
    return read(ApprovalRule, _rules().where(fn.EXISTS(waiting)).order_by(ApprovalRuleRow.id))


def page_urls(export_ids: Sequence[str]) -> dict[str, set[str]]:
    """Return the URLs of the pages with a group's findings, by the id of its export."""
    if not export_ids:
        return {}
    urls: dict[str, set[str]] = {}
    query = FindingRow.select(FindingRow.export_id, FindingRow.page_url).where(FindingRow.export_id.in_(export_ids))
    for export_id, url in tuples(query.distinct()):
        urls.setdefault(export_id, set()).add(url)
    return urls


def test(rule: ApprovalRule, now: datetime, checkpoint: Checkpoint) -> RuleTestResult:
    """Return which exports of the last TESTED_AGE, in any status, a rule matches; change nothing.

    Reads the newest MAX_TESTED of them at most, in batches, and calls `checkpoint` between batches. Call it outside any
    transaction.
    """
    e = ExportRow
    own = (e.account == rule.account_id) & (e.id >= identifiers.first_id(identifiers.EXPORT, now - TESTED_AGE))
    newest = e.select(e.id).where(own).order_by(e.id.desc())
    last = tuples(newest.offset(MAX_TESTED - 1).limit(1))
    own &= e.id >= (last[0][0] if last else "")
    examined = MAX_TESTED if last else newest.count()
    match = rule.match
    wanted = own & (e.severity_rank >= match.severity_rank)
    if match.project_id is not None:
        wanted &= e.project == match.project_id
    if match.sources is not None:
        wanted &= e.source_type.in_(match.sources)
    matched, examples, before = 0, list[str](), f"{identifiers.EXPORT}_{LAST_ULID}"
    while batch := _test_batch(match, wanted & (e.id < before)):
        ids = [export_id for export_id, subject in batch if match.matches(subject)]
        matched, before = matched + len(ids), batch[-1][0]
        examples += ids[: MAX_EXAMPLES - len(examples)]
        checkpoint()
    return RuleTestResult(matched, examined, examples)


def _test_batch(match: RuleMatch, wanted: Any) -> list[tuple[str, RuleSubject]]:
    """Return the next exports of a test, with the data that a rule compares."""
    e = ExportRow
    page_url: Any = fn.json_extract(e.ticket, "$.page_url")
    if not is_sqlite():
        page_url = fn.json_extract_path_text(e.ticket.cast("json"), "page_url")
    # Only if the rule compares it, because parsing the tickets takes most of the time.
    shown = page_url.coerce(False) if match.page_path is not None else e.rule
    query = e.select(e.id, e.project, e.severity_rank, e.source_type, e.rule, e.findings_total, shown)
    found = tuples(query.where(wanted).order_by(e.id.desc()).limit(_TEST_BATCH))
    places: Mapping[str, set[str]] = {}
    if match.page_path is not None:
        totals = accumulate(row[5] or 0 for row in found)
        found = [row for row, total in zip(found, totals, strict=True) if total <= _TEST_FINDINGS] or found[:1]
        places = page_urls([row[0] for row in found if (row[5] or 0) > 1])
    return [(row[0], RuleSubject(row[1], row[2], row[3], row[4], places.get(row[0]) or {row[6]} - {None})) for row in found]


def _rules() -> Any:
    shown = columns(ApprovalRule, ApprovalRuleRow, author=UserRow.email, match=ApprovalRuleRow.conditions)
    return ApprovalRuleRow.select(*shown).join(UserRow)


def _get(rule_id: str, account_id: int | None) -> ApprovalRule:
    query = where_given(_rules(), (ApprovalRuleRow.id, rule_id), (ApprovalRuleRow.account, account_id))
    return get_by_id(ApprovalRule, query, identifiers.RULE, rule_id, "There is no such approval rule.")


def _locked(rule_id: str, account_id: int | None) -> ApprovalRule:
    """Return a rule, and prevent changes of it until the transaction ends."""
    if identifiers.is_id(identifiers.RULE, rule_id):
        tuples(for_update(ApprovalRuleRow.select(ApprovalRuleRow.id).where(ApprovalRuleRow.id == rule_id)))
    return _get(rule_id, account_id)


def _shown(rules: list[ApprovalRule], now: datetime) -> list[ApprovalRule]:
    """Set `stopped_reason` on rules that can no longer decide; they are stored as stopped only at the next export."""
    enabled = [rule for rule in rules if rule.enabled]
    reasons = usability(enabled, now).stopped if enabled else {}
    return [replace(rule, enabled=False, stopped_reason=reasons[rule.id]) if rule.id in reasons else rule for rule in rules]


def _stop_reason(
    rule: ApprovalRule, held: Mapping[int, set[str]], targets: Mapping[str, ApprovalTarget]
) -> StoppedReason | None:
    """Return why a rule must stop; None if it need not. `held` are the abilities of authors."""
    if rule.author_id not in held:
        return StoppedReason.AUTHOR_DISABLED
    if not held[rule.author_id].issuperset(needed_abilities(rule.action)):
        return StoppedReason.AUTHOR_LOST_ABILITY
    if rule.action.target_id is not None and rule.action.target_id not in targets:
        return StoppedReason.TARGET_REMOVED
    return None


def _require_known(account_id: int, match: RuleMatch, action: RuleAction | None) -> None:
    """Raise ValidationFailed for a project or a target that the account does not have; a target may be inactive."""
    problems = []
    project_id, target_id = match.project_id, None if action is None else action.target_id
    projects = ProjectRow.select().where(ProjectRow.id == project_id, ProjectRow.account == account_id)
    if project_id is not None and not projects.exists():
        problems.append(problem("/match/project_id", "unknown_project"))
    targets = TargetRow.select().where(
        TargetRow.id == target_id, TargetRow.account == account_id, TargetRow.deleted_at.is_null()
    )
    if target_id is not None and not targets.exists():
        problems.append(problem("/action/target_id", "unknown_target"))
    if problems:
        raise ValidationFailed(*problems)
