"""`rule`: create, change, test and delete approval rules, which decide on exports when they are prepared."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click

from bin.cli.database_command import with_database
from bin.cli.option_types import LIMIT, ROW_ID, ValueList, options
from bin.cli.records import Record, RecordTable
from bin.cli.request_bodies import given, present
from schemas.api.approval_rules import RuleTestResponse, dump_rule
from schemas.api.response_fields import dump
from schemas.base.principal import OPERATOR
from schemas.content_policy.checked_form import read_checked
from schemas.exports.decisions import DismissalReason
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.intake.scanner import SEVERITIES
from schemas.triage.approval_rules import RuleChangeForm, RuleForm
from service.operations.approval_rules import ApprovalRuleOperations
from service.operations.wiring import build_operations
from storage.accounts.accounts import user_by_email

RULES: Final = RecordTable(("id", "name", "enabled", "stopped_reason", "match", "action"), "There are no approval rules.")
#: The options that make a rule's match, by the names of its members.
_MATCH: Final = ("project_id", "severity_at_least", "sources", "rule", "page_path")
#: The type of action that each option makes, by the name of the action's member.
_ACTIONS: Final = {"target_id": "approve", "reason": "dismiss", "labels": "label"}
_rule_options: Final = options(
    click.option("--project", "project_id", type=ROW_ID, help="Match exports of this project."),
    click.option(
        "--severity", "severity_at_least", type=click.Choice(SEVERITIES), help="Match this severity or a higher one."
    ),
    click.option(
        "--source", "sources", type=ValueList(click.Choice(SOURCE_TYPES)), help="Match these sources, separated by commas."
    ),
    click.option(
        "--rule-code", "rule", metavar="PATTERN", help="Match this pattern with the rule code; * and ? are wildcards."
    ),
    click.option(
        "--page-path", metavar="PATTERN", help="Match this pattern with the path of every page; * and ? are wildcards."
    ),
    click.option("--approve-for", "target_id", metavar="TARGET", help="Approve matching exports for this target."),
    click.option(
        "--dismiss",
        "reason",
        type=click.Choice([*map(str, DismissalReason)]),
        help="Dismiss matching exports with this reason.",
    ),
    click.option(
        "--label", "labels", type=ValueList(click.STRING), help="Add these labels to matching exports; separated by commas."
    ),
)


_with_rules: Final = partial(with_database, build=lambda settings: build_operations(settings).approval_rules)
rule: Final = click.Group("rule")


@rule.command()
@click.argument("name")
@click.option(
    "--user",
    "email",
    required=True,
    help="The rule's author: a user who has a token with the abilities that the rule needs.",
)
@click.option("--disabled", "is_disabled", is_flag=True, help="Create the rule turned off, to test it first.")
@_rule_options
@_with_rules()
def add(rules: ApprovalRuleOperations, name: str, email: str, is_disabled: bool, **chosen: Any) -> Record:
    """Create a rule of a user's account; of several rules that match, the oldest decides.

    Example: riskrelay rule add 'Severe findings' --user ada@example.com --severity high --approve-for tgt_…

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    members = {"name": name, "enabled": not is_disabled, "match": {}, **match_and_action(chosen)}
    return dump_rule(rules.create_for(user_by_email(email), read_checked(RuleForm(), members), OPERATOR))


@rule.command("list")
@click.option("--limit", type=LIMIT, help="Maximum number of rules; default: all.")
@_with_rules(RULES.show)
def list_rules(rules: ApprovalRuleOperations, limit: int | None) -> list[Record]:
    """List approval rules, newest first.

    Example: riskrelay rule list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong usage or settings.
    """
    return [dump_rule(each) for each in rules.list_page(OPERATOR, limit)]


@rule.command()
@click.argument("rule_id")
@_with_rules()
def show(rules: ApprovalRuleOperations, rule_id: str) -> Record:
    """Show one approval rule.

    Example: riskrelay rule show rul_… --json

    Exit codes: 0 shown, 1 no such rule, 2 wrong usage.
    """
    return dump_rule(rules.get(rule_id, OPERATOR))


@rule.command("set")
@click.argument("rule_id")
@click.option("--name", help="The new name.")
@click.option("--enable/--disable", "is_enabled", default=None, help="Turn the rule on or off.")
@click.option("--user", "email", help="The rule's new author.")
@_rule_options
@_with_rules()
def set_members(
    rules: ApprovalRuleOperations, rule_id: str, name: str | None, is_enabled: bool | None, email: str | None, **chosen: Any
) -> Record:
    """Change an approval rule.

    If you give options that match, they replace the whole match. --user makes another user the author, also of a rule
    that stopped.

    Example: riskrelay rule set rul_… --page-path '/checkout/*' --enable

    Exit codes: 0 changed, 1 refused or no such rule, 2 wrong usage.
    """
    members = {"name": name, "enabled": is_enabled, **match_and_action(chosen)}
    changes = read_checked(RuleChangeForm(), present(members))
    return dump_rule(rules.change(rule_id, changes, OPERATOR, None if email is None else user_by_email(email)))


@rule.command()
@click.argument("rule_id")
@_with_rules()
def remove(rules: ApprovalRuleOperations, rule_id: str) -> Record:
    """Delete an approval rule; its decisions stay in effect.

    Example: riskrelay rule remove rul_…

    Exit codes: 0 deleted, 1 no such rule, 2 wrong usage.
    """
    rules.delete(rule_id, OPERATOR)
    return {"id": rule_id, "removed": True}


@rule.command()
@click.argument("rule_id")
@_with_rules()
def test(rules: ApprovalRuleOperations, rule_id: str) -> Record:
    """Show what a rule would have matched in the last 30 days; changes nothing.

    Example: riskrelay rule test rul_…

    Exit codes: 0 tested, 1 no such rule, 2 wrong usage.
    """
    return dump(RuleTestResponse, rules.test(rule_id, OPERATOR))


def match_and_action(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `match` and the `action` from the options, each only if one of its options is given."""
    match = given({name: chosen[name] for name in _MATCH})
    actions = given({name: chosen[name] for name in _ACTIONS})
    if len(actions) > 1:
        raise click.UsageError("Use one of --approve-for, --dismiss and --label.")
    members: dict[str, Any] = {"match": match} if match else {}
    for name, value in actions.items():
        members["action"] = {"type": _ACTIONS[name], name: value}
    return members
