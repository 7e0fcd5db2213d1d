"""Documents `/api/approval-rules`."""

from typing import Final

from schemas.api.approval_rules import ApprovalRuleResponse, RuleTestResponse
from schemas.triage.approval_rules import MAX_RULES
from service.openapi.operations import TARGET_ID, Operations, Record, SuccessResponse

_RULE: Final = Record("rule", ApprovalRuleResponse, "ApprovalRule", "approval rule")

OPERATIONS: Final[Operations] = {
    "POST /api/approval-rules": _RULE.operation(
        "create",
        "Creates a rule. It decides on exports that are prepared or extended from now on. Of several rules "
        f"that match, the oldest decides. An account may have {MAX_RULES} rules. An action other than `label` also needs "
        "the ability `ticket-exports:approve`. The target may be inactive: exports wait for it.",
        _RULE.created(),
        examples={
            "Approve": {
                "name": "Severe findings of the checkout",
                "match": {"severity_at_least": "high", "sources": ["finding"], "page_path": "/checkout/*"},
                "action": {"type": "approve", "target_id": TARGET_ID},
            },
            "Dismiss": {
                "name": "Findings of the staging pages",
                "match": {"page_path": "/staging/*"},
                "action": {"type": "dismiss", "reason": "test"},
            },
            "Label": {
                "name": "Headers belong to the platform team",
                "match": {"rule": "*-header"},
                "action": {"type": "label", "labels": ["team:platform"]},
            },
        },
    ),
    "GET /api/approval-rules": _RULE.listed("The rules of the account, newest first."),
    "GET /api/approval-rules/{rule_id}": _RULE.read(
        "Reads a rule. If it stopped automatically, `stopped_reason` is the reason.", "The rule as it is now."
    ),
    "PATCH /api/approval-rules/{rule_id}": _RULE.operation(
        "change",
        "Changes the fields in the body; `match` and `action` are replaced as a whole. A caller who "
        "changes one of them, or enables the rule, becomes its author. The changed rule applies to exports "
        "that are prepared or extended from now on.",
        _RULE.response(),
        examples={"Turn off": {"enabled": False}, "Another action": {"action": {"type": "dismiss", "reason": "wont_fix"}}},
    ),
    "DELETE /api/approval-rules/{rule_id}": _RULE.operation(
        "delete",
        "Deletes a rule. Its decisions stay in effect; exports that waited for its target stay prepared.",
        SuccessResponse(204, "The rule is deleted."),
    ),
    "POST /api/approval-rules/{rule_id}/test": _RULE.operation(
        "test",
        "Compares the rule with the exports of the last 30 days, of any status, and changes nothing. Other "
        "rules are not considered.",
        SuccessResponse(200, "The exports that the rule matches.", RuleTestResponse),
    ),
}
