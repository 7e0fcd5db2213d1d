"""Approval rules and their tests."""

from typing import Any

from marshmallow import fields

from schemas.api.administration import address
from schemas.api.response_fields import (
    ResponseSchema,
    dump,
    identifier,
    inline,
    moment,
    number,
    one_of,
    part,
    several,
    text,
    truth,
)
from schemas.triage.approval_rules import ApprovalRule, RuleActionType, StoppedReason


class RuleMatchResponse(ResponseSchema):
    """What an export must match; absent members match every export."""

    project_id = number("The project.", optional=True, minimum=1)
    severity_at_least = text("This severity or a higher one.", optional=True)
    sources = several(fields.String(), "Any of these sources.", optional=True)
    rule = text("A glob for the rule code.", optional=True)
    page_path = text("A glob for the path of every page.", optional=True)


class RuleActionResponse(ResponseSchema):
    """What a rule does."""

    type = one_of(RuleActionType, "What is done.")
    target_id = text("The target, to `approve`.", optional=True)
    reason = text("The reason, to `dismiss`.", optional=True)
    labels = several(fields.String(), "The labels that are added, to `label`.", optional=True)


class RuleAuthorResponse(ResponseSchema):
    """The user whom a rule acts for."""

    id = number("The user.", attribute="author_id", minimum=1, example=7)
    email = address("The user's address", attribute="author")


class ApprovalRuleResponse(ResponseSchema):
    """A rule that decides on exports when they are prepared or extended."""

    id = identifier("rul", "The rule.")
    name = text("The name.", example="Severe findings of the checkout")
    enabled = truth("Whether it decides; false once it stopped.")
    match = part(RuleMatchResponse, "What an export must match.")
    action = part(RuleActionResponse, "What is done with an export that matches.")
    author = inline(RuleAuthorResponse, "The user who decided last what it does; it stops when the user may not do so.")
    stopped_reason = one_of(StoppedReason, "Why it stopped automatically; null if it did not.", nullable=True)
    created_at = moment("When it was created; of several rules that match, the oldest decides.")
    updated_at = moment("When it was last changed, or stopped.")


def dump_rule(rule: ApprovalRule) -> dict[str, Any]:
    """Return the record of a rule."""
    record = {name: getattr(rule, name) for name in rule.__slots__}
    return dump(ApprovalRuleResponse, {**record, "match": rule.match.record(), "action": rule.action.record()})


class RuleTestResponse(ResponseSchema):
    """What a rule would have matched in the last 30 days."""

    matched = number("The number of exports that match, of any status.", example=1)
    examined = number(
        "The number of exports that were compared: all of the last 30 days, the newest 50,000 at most.", example=392
    )
    examples = several(identifier("exp", "An export."), "The newest that match, up to 20.")
