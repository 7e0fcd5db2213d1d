"""`/console/rules`: approval rules with their conditions, actions and authors, and why a rule stopped."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import falcon

from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability
from schemas.base.strict_json import canonical
from schemas.content_policy.checked_form import read_checked
from schemas.intake.scanner import SEVERITIES
from schemas.triage.approval_rules import (
    ApprovalRule,
    RuleAction,
    RuleActionType,
    RuleChange,
    RuleChangeForm,
    RuleForm,
    RuleMatch,
    RuleRequest,
    StoppedReason,
)
from service.console.choices import offered_projects, offered_targets
from service.console.form_fields import Fields, Problems, entries_of, whole_number
from service.console.layout import CONSOLE, Action, ConsolePage, Content, FormPage, PageLayout, Redirect
from service.console.sessions import ConsoleUser
from service.console.triage.ticket_view import REASONS, SOURCES
from service.http.limits.large_body_limiter import LARGE_BYTES, LargeBodyQueue
from storage.db import engine
from storage.exports import queries
from storage.targets import summaries

RULES: Final = f"{CONSOLE}/rules"
RULE: Final = f"{RULES}/{{rule_id}}"
_SAVED: Final = Redirect("/rules", "rule_saved")
#: The prefix of the names of the source check boxes; the source follows it.
_SOURCE_PREFIX: Final = "source-"
_MATCH_FIELDS: Final = ("project_id", "severity_at_least", "rule", "page_path")
#: Messages that replace those of the API, by field and code.
_MESSAGES: Final[Mapping[tuple[str, str], str]] = {
    ("/match", "empty_match"): "Choose at least one condition.",
    ("/target_id", "too_short"): "Choose a target.",
    ("/labels", "too_short"): "Enter a label.",
}
#: Texts for stopped rules: the reason, and the fix.
STOPS: Final[Mapping[StoppedReason, tuple[str, str]]] = {
    StoppedReason.AUTHOR_LOST_ABILITY: ("Its author may no longer do this.", "Turn it on to become its author."),
    StoppedReason.AUTHOR_DISABLED: ("Its author is disabled.", "Turn it on to become its author."),
    StoppedReason.TARGET_REMOVED: ("Its target was removed.", "Edit it to choose another target, then turn it on."),
}


class RulesPage(ConsolePage):
    """Lists the account's rules, oldest first, because the oldest matching rule decides."""

    path = RULES
    template = "rules.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return the rules with their texts."""
        rules = sorted(self._operations.approval_rules.list_page(user.principal), key=lambda rule: rule.id)
        return {
            "rules": _in_words(rules, user),
            "lacks_ability": Ability.MANAGE_RULES in user.principal.role_abilities - user.principal.abilities,
            "stops": STOPS,
        }


class RuleTestPage(ConsolePage):
    """Shows which tickets of the last 30 days a rule would have matched."""

    path = f"{RULE}/test"
    template = "rule_test.html"

    def __init__(self, layout: PageLayout) -> None:
        super().__init__(layout)
        self._queue = LargeBodyQueue()

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the result. Raises NotFound, LargeBodyOverload."""
        engine.release()
        with self._queue.slot(str(user.account_id), LARGE_BYTES + 1) as yield_to_others:
            result = self._operations.approval_rules.test(ids["rule_id"], user.principal, yield_to_others)
        return {
            "rule": self._operations.approval_rules.get(ids["rule_id"], user.principal),
            "result": result,
            "examples": queries.list_named(result.examples, user.account_id),
        }


class _RuleFormPage(FormPage):
    """A page with the form of a rule."""

    template = "rule.html"
    text_fields: ClassVar = {"name": "Name", "rule": "Rule code", "page_path": "Path of the page", "labels": "Labels"}


class NewRulePage(_RuleFormPage):
    """Adds a rule; `?rule=` and `?project_id=` prefill the form from a ticket."""

    path = f"{RULES}/new"

    def form(self, req: falcon.Request, user: ConsoleUser, typed: Fields | None, problems: Problems, **_ids: str) -> Content:
        """Return a new form, or the refused one."""
        if typed is None:
            kind = "approve" if Ability.APPROVE_EXPORTS in user.principal.abilities else "label"
            given = {name: str(req.params[name]) for name in _MATCH_FIELDS if isinstance(req.params.get(name), str)}
            typed = {**given, "type": kind}
        return _form_content(user, typed, problems)

    def act(self, user: ConsoleUser, form: Fields, **_ids: str) -> Redirect:
        """Add the rule. Raises ValidationFailed."""
        request: RuleRequest = read_checked(RuleForm(), _body(form))
        self._operations.approval_rules.create(request, user.principal)
        return _SAVED


class RulePage(_RuleFormPage):
    """Changes a rule."""

    path = RULE

    def form(self, req: falcon.Request, user: ConsoleUser, typed: Fields | None, problems: Problems, **ids: str) -> Content:
        """Return the rule as form fields, or the refused form. Raises NotFound."""
        rule = self._operations.approval_rules.get(ids["rule_id"], user.principal)
        content = {**_form_content(user, _typed(rule) if typed is None else typed, problems), "rule_id": rule.id}
        is_stale = any(each.code == "rule_changed" for each in problems)
        if typed is None or is_stale:
            # The form gets the current digest only if the page shows the current rule. Only then may the entered texts
            # replace it.
            content["digest"] = _digest(rule)
        return {**content, "present": _in_words([rule], user)[0] if is_stale else None}

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Change the rule. Raises NotFound, ValidationFailed."""
        rule = self._operations.approval_rules.get(ids["rule_id"], user.principal)
        change: RuleChange = read_checked(RuleChangeForm(), _body(form))
        # If a form is sent twice, the second one has an old digest, but the rule already has the entered values.
        is_stale = form.get("digest", "") not in {"", _digest(rule)}
        if is_stale and (change.name, change.match, change.action) != (rule.name, rule.match, rule.action):
            raise ValidationFailed(problem("/digest", "rule_changed"))
        saved = self._operations.approval_rules.change(ids["rule_id"], change, user.principal)
        return _SAVED if saved.enabled else Redirect("/rules", "rule_saved_off")


class SwitchRule(Action):
    """Turns a rule on or off."""

    def __init__(self, verb: str, layout: PageLayout) -> None:
        super().__init__(layout)
        self.path = f"{RULE}/{verb}"
        self._is_on = verb == "enable"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Change the rule. Raises NotFound, Forbidden."""
        self._operations.approval_rules.change(ids["rule_id"], RuleChange(enabled=self._is_on), user.principal)
        return Redirect("/rules", "rule_on" if self._is_on else "rule_off")


class RemoveRule(Action):
    """Removes a rule."""

    path = f"{RULE}/remove"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Remove the rule. Raises NotFound."""
        self._operations.approval_rules.delete(ids["rule_id"], user.principal)
        return Redirect("/rules", "rule_removed")


def _in_words(rules: Sequence[ApprovalRule], user: ConsoleUser) -> list[tuple[ApprovalRule, list[str], str]]:
    """Return the rules, each with its conditions and its action as texts."""
    names = {each.id: each.name for each in offered_projects(user)}
    named = {rule.action.target_id for rule in rules if rule.action.target_id is not None}
    targets = {each.id: f"{each.name} ({each.host})" for each in summaries.by_id(named, user.account_id).values()}
    return [(rule, [*_match_words(rule.match, names)], _action_words(rule.action, targets)) for rule in rules]


def _match_words(match: RuleMatch, projects_by_id: Mapping[int, str]) -> Iterator[str]:
    if match.project_id is not None:
        yield f"project {projects_by_id.get(match.project_id, match.project_id)}"
    if match.severity_at_least is not None:
        is_highest = match.severity_at_least == SEVERITIES[-1]
        yield match.severity_at_least if is_highest else f"{match.severity_at_least} or higher"
    if match.sources is not None:
        yield " or ".join(SOURCES.get(each, each) for each in match.sources)
    if match.rule is not None:
        yield f"rule {match.rule}"
    if match.page_path is not None:
        yield f"pages {match.page_path}"


def _action_words(action: RuleAction, targets: Mapping[str, str]) -> str:
    if action.type is RuleActionType.APPROVE:
        return f"Approve for {targets.get(str(action.target_id), action.target_id)}"
    if action.type is RuleActionType.DISMISS:
        return f"Dismiss as {REASONS[str(action.reason)].lower()}"
    return f"Label {', '.join(action.labels or ())}"


def _body(form: Fields) -> dict[str, Any]:
    """Return a form as the API's body. An account without targets sends no target id."""
    match: dict[str, Any] = {name: form[name].strip() for name in _MATCH_FIELDS if form.get(name, "").strip()}
    if "project_id" in match:
        # The API's form refuses a text that is no number.
        match["project_id"] = whole_number(match["project_id"]) or match["project_id"]
    sources = [name.removeprefix(_SOURCE_PREFIX) for name in form if name.startswith(_SOURCE_PREFIX)]
    kind = form.get("type", "")
    members: dict[str, dict[str, Any]] = {
        "approve": {"target_id": form.get("target_id", "")},
        "dismiss": {"reason": form.get("reason", "")},
        "label": {"labels": entries_of(form.get("labels", ""))},
    }
    return {
        "name": form.get("name", ""),
        "match": {**match, **({"sources": sources} if sources else {})},
        "action": {"type": kind, **members.get(kind, {})},
    }


def _typed(rule: ApprovalRule) -> dict[str, str]:
    """Return a rule as texts of the form's fields."""
    match, action = rule.match.record(), rule.action
    return {
        "name": rule.name,
        **{name: str(match[name]) for name in _MATCH_FIELDS if name in match},
        **{f"{_SOURCE_PREFIX}{each}": "yes" for each in match.get("sources", ())},
        "type": action.type.value,
        "target_id": action.target_id or "",
        "reason": action.reason or "",
        "labels": "\n".join(action.labels or ()),
    }


def _digest(rule: ApprovalRule) -> str:
    """Return a digest of those fields of a rule that the form shows."""
    return hashlib.sha256(canonical({**_typed(rule)})).hexdigest()


def _form_content(user: ConsoleUser, typed: Fields, problems: Problems) -> dict[str, Any]:
    # The path of a problem with one label ends with the label's index.
    by_field = {"/labels" if "/labels" in each.path else f"/{each.path.rpartition('/')[2]}": each for each in problems}
    worded = {name: replace(each, message=_MESSAGES.get((name, each.code), each.message)) for name, each in by_field.items()}
    return {
        "rule_id": None,
        "lacks_approval": Ability.APPROVE_EXPORTS not in user.principal.abilities,
        "digest": typed.get("digest", ""),
        "present": None,
        "typed": typed,
        "problems": worded,
        "projects": offered_projects(user, typed.get("project_id", "")),
        "severities": tuple(reversed(SEVERITIES)),
        "sources": SOURCES,
        "targets": [each for each in offered_targets(user, typed.get("target_id", "")) if not each.is_removed],
        "reasons": REASONS,
    }
