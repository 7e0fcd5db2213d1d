"""Approval rules and their tests."""

from typing import Any

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.administration import address
from schemas.api.response_fields import ResponseSchema, dump
from schemas.triage.approval_rules import ApprovalRule, RuleActionType, StoppedReason


class RuleMatchResponse(ResponseSchema):
    """What an export must match; absent members match every export."""

    project_id = field.number("The project.", optional=True, minimum=1)
    severity_at_least = field.text("This severity or a higher one.", optional=True)
    sources = field.several(fields.String(), "Any of these sources.", optional=True)
    rule = field.text("A glob for the rule code.", optional=True)
    page_path = field.text("A glob for the path of every page.", optional=True)


class RuleActionResponse(ResponseSchema):
    """What a rule does."""

    type = field.one_of(RuleActionType, "What is done.")
    target_id = field.text("The target, to `approve`.", optional=True)
    reason = field.text("The reason, to `dismiss`.", optional=True)
    labels = field.several(fields.String(), "The labels that are added, to `label`.", optional=True)


class RuleAuthorResponse(ResponseSchema):
    """The user on whose behalf a rule acts."""

    id = field.number("The user.", attribute="author_id", minimum=1, example=7)
    email = address("The user's address", attribute="author")


class ApprovalRuleResponse(ResponseSchema):
    """A rule that decides on exports when they are prepared or extended."""

    id = field.identifier("rul", "The rule.")
    name = field.text("The name.", example="Severe findings of the checkout")
    enabled = field.truth("Whether it decides; false once it stopped.")
    match = field.part(RuleMatchResponse, "What an export must match.", example={"severity_at_least": "high"})
    action = field.part(
        RuleActionResponse, "What is done with an export that matches.", example={"type": "dismiss", "reason": "wont_fix"}
    )
    author = field.inline(
        RuleAuthorResponse, "The user who decided last what it does; it stops when the user may not do so."
    )
    stopped_reason = field.one_of(StoppedReason, "Why it stopped automatically; null if it did not.", nullable=True)
    created_at = field.moment("When it was created; of several rules that match, the oldest decides.")
    updated_at = field.moment("When it was last changed, or stopped.")


def dump_rule(rule: ApprovalRule) -> dict[str, Any]:
    """Return the record of a rule."""
    record = {name: getattr(rule, name) for name in rule.__slots__}
    return dump(ApprovalRuleResponse, {**record, "match": rule.match.record(), "action": rule.action.record()})


class RuleTestResponse(ResponseSchema):
    """What a rule would have matched in the last 30 days."""

    matched = field.number("The number of exports that match, of any status.", example=1)
    examined = field.number(
        "The number of exports that were compared: all of the last 30 days, the newest 50,000 at most.", example=392
    )
    examples = field.several(field.identifier("exp", "An export."), "The newest that match, up to 20.")
