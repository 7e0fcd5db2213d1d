"""Approval rules and their tests."""

from typing import Any

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.administration import address
from schemas.api.response_fields import ResponseSchema, dump
from schemas.triage.approval_rules import ApprovalRule, RuleActionType, StoppedReason


class RuleMatchResponse(ResponseSchema):
    """What an export must match; absent members match every export."""

    project_id = field.number("The id of the export's project.", optional=True, minimum=1)
    severity_at_least = field.text("The lowest severity that matches.", optional=True)
    sources = field.several(fields.String(), "The kinds of source that match.", optional=True)
    rule = field.text("A pattern for the rule code; `*` and `?` are wildcards.", optional=True)
    page_path = field.text(
        "A pattern for the path of the page's URL; `*` and `?` are wildcards. Every page of a group must match.",
        optional=True,
    )


class RuleActionResponse(ResponseSchema):
    """What a rule does."""

    type = field.one_of(RuleActionType, "What the rule does with an export that matches.")
    target_id = field.text("With `approve`: the id of the target.", optional=True)
    reason = field.text("With `dismiss`: the reason.", optional=True)
    labels = field.several(fields.String(), "With `label`: the labels that are added.", optional=True)


class RuleAuthorResponse(ResponseSchema):
    """The user on whose behalf a rule acts."""

    id = field.number("The id of the user.", attribute="author_id", minimum=1, example=7)
    email = address("The user's email address", attribute="author")


class ApprovalRuleResponse(ResponseSchema):
    """A rule that decides on exports when they are prepared or extended."""

    id = field.identifier("rul", "The id of the rule.")
    name = field.text("The name of the rule.", example="Severe findings of the checkout")
    enabled = field.truth("Whether the rule is on; false after it stopped automatically.")
    match = field.part(RuleMatchResponse, "What an export must match.", example={"severity_at_least": "high"})
    action = field.part(
        RuleActionResponse,
        "What the rule does with an export that matches.",
        example={"type": "dismiss", "reason": "wont_fix"},
    )
    author = field.inline(
        RuleAuthorResponse,
        "The user who created the rule, or who last changed `match` or `action` or enabled it. The "
        "rule stops if this user loses the right to decide.",
    )
    stopped_reason = field.one_of(StoppedReason, "Why the rule stopped automatically", null="if it did not")
    created_at = field.moment("The time at which the rule was created; of several rules that match, the oldest decides.")
    updated_at = field.moment("The time at which the rule was last changed, or stopped.")


def dump_rule(rule: ApprovalRule) -> dict[str, Any]:
    """Return the record of a rule."""
    record = {name: getattr(rule, name) for name in rule.__slots__}
    return dump(ApprovalRuleResponse, {**record, "match": rule.match.record(), "action": rule.action.record()})


class RuleTestResponse(ResponseSchema):
    """What a rule would have matched in the last 30 days."""

    matched = field.number("The number of exports that match, with any status.", example=1)
    examined = field.number(
        "The number of exports that were compared: those of the last 30 days, at most the newest 50,000.", example=392
    )
    examples = field.several(
        field.identifier("exp", "The id of an export."), "The ids of the newest exports that match, up to 20."
    )
