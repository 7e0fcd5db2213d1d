"""Use cases of approval rules: create, change, delete, test.

A rule acts for its author, the user who last decided what it does. It runs only while the author is not disabled and has
live API tokens with the abilities that the rule needs. It does not matter with which token the rule was created.
"""

from collections.abc import Collection, Sequence

from runtime.clock import utc_now
from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import Conflict, Forbidden
from schemas.base.principal import Ability, Actor, TokenPrincipal
from schemas.triage.approval_rules import ApprovalRule, RuleAction, RuleChange, RuleRequest, RuleTestResult
from storage.accounts.accounts import User
from storage.db import engine
from storage.exports.rules import approval_rules


class ApprovalRuleOperations:
    """Changes the rules of the caller's account; the operator names an author. Methods with a `rule_id` raise NotFound."""

    def create(self, request: RuleRequest, actor: TokenPrincipal) -> ApprovalRule:
        """Store a rule of the caller's account, with the caller as its author.

        Raises Forbidden if the caller lacks an ability that the action needs, ValidationFailed for a project or a target
        that the account does not have, and at the limit of rules.
        """
        _require(actor.abilities, request.action)
        return approval_rules.create(actor.account_id, request, actor.user_id, utc_now(), actor.key)

    def create_for(self, author: User, request: RuleRequest, actor: Actor) -> ApprovalRule:
        """Store a rule for the operator, with a user as its author. Raises Conflict, ValidationFailed."""
        with engine.transaction():
            _require_author(author, request.action)
            return approval_rules.create(author.account_id, request, author.id, utc_now(), actor.key)

    def list_page(self, actor: Actor, limit: int | None = None, before: str | None = None) -> Sequence[ApprovalRule]:
        """Return up to `limit` rules, newest first, older than the rule with the id `before` if that is given."""
        return approval_rules.list_page(actor.account_id, utc_now(), limit, before)

    def get(self, rule_id: str, actor: Actor) -> ApprovalRule:
        """Return a rule in its current state."""
        return approval_rules.get(rule_id, actor.account_id, utc_now())

    def change(self, rule_id: str, changes: RuleChange, actor: Actor, author: User | None = None) -> ApprovalRule:
        """Change a rule.

        A user who changes `match` or `action`, or enables the rule, becomes its author; the operator may name an author.
        Raises Forbidden if the caller lacks an ability that the old or the new action needs, Conflict for an author who
        lacks one, and ValidationFailed as `create` does.
        """
        with engine.transaction():
            rule = self.get(rule_id, actor)
            action = changes.action or rule.action
            author_id = None
            if isinstance(actor, TokenPrincipal):
                _require(actor.abilities, rule.action)
                _require(actor.abilities, action)
                author_id = actor.user_id if changes.decides_anew else None
            elif author is not None:
                if author.account_id != rule.account_id:
                    raise Conflict(f"User {author.email} belongs to another account than rule {rule.id}.")
                _require_author(author, action)
                author_id = author.id
            changed = approval_rules.change(rule_id, actor.account_id, changes, author_id, utc_now(), actor.key)
            if changes.enabled and changed.stopped_reason is not None:
                raise Conflict(f"Rule {rule.id} cannot be enabled: {changed.stopped_reason}; name another author.")
            return changed

    def delete(self, rule_id: str, actor: Actor) -> None:
        """Delete a rule; its earlier decisions remain. Raises Forbidden for a token that may not manage rules."""
        # The API's route requires the ability too, but a console session has the abilities of the token that began it.
        if isinstance(actor, TokenPrincipal) and Ability.MANAGE_RULES not in actor.abilities:
            raise Forbidden(f"This needs the ability {Ability.MANAGE_RULES}, which this token lacks.")
        approval_rules.delete(rule_id, actor.account_id, utc_now(), actor.key)

    def test(self, rule_id: str, actor: Actor, checkpoint: Checkpoint = no_checkpoint) -> RuleTestResult:
        """Return the exports of the last 30 days that a rule matches; changes nothing and holds no transaction.

        `checkpoint` is called between parts of the work.
        """
        return approval_rules.test(self.get(rule_id, actor), utc_now(), checkpoint)


def _require(abilities: Collection[str], action: RuleAction) -> None:
    lacking = sorted(approval_rules.needed_abilities(action) - set(abilities))
    if lacking:
        raise Forbidden(f"A rule with the action {action.type} needs the ability {lacking[0]}, which this token lacks.")


def _require_author(author: User, action: RuleAction) -> None:
    held = approval_rules.abilities_of([author.id], utc_now()).get(author.id, set())
    lacking = sorted(approval_rules.needed_abilities(action) - held)
    if lacking:
        raise Conflict(
            f"User {author.email} is disabled or has no live API token with {', '.join(lacking)}; "
            "create one with `token create`, or name another author."
        )
