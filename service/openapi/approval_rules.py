"""Documents `/api/approval-rules`."""

from typing import Any, Final

from schemas.api.approval_rules import ApprovalRuleListResponse, ApprovalRuleResponse, RuleTestResponse
from schemas.triage.approval_rules import MAX_RULES
from service.api.approval_rules import ApprovalRuleResource, ApprovalRulesResource, ApprovalRuleTestResource
from service.openapi.operations import (
    AT,
    EXPORT_ID,
    PAGING,
    RULE_ID,
    TARGET_ID,
    OperationDescription,
    Operations,
    SuccessResponse,
    listed,
)

TAG: Final = "Approval rules"

_MATCH: Final[dict[str, Any]] = {"severity_at_least": "high", "sources": ["finding"], "page_path": "/checkout/*"}
_ACTION: Final[dict[str, Any]] = {"type": "approve", "target_id": TARGET_ID}
_RULE: Final[dict[str, Any]] = {
    "id": RULE_ID,
    "name": "Severe findings of the checkout",
    "enabled": True,
    "match": _MATCH,
    "action": _ACTION,
    "author": {"id": 7, "email": "ada@shop.example"},
    "stopped_reason": None,
    "created_at": AT,
    "updated_at": AT,
}

OPERATIONS: Final[Operations] = {
    ("POST", ApprovalRulesResource.path): OperationDescription(
        id="createApprovalRule",
        tag=TAG,
        summary="Create an approval rule",
        description="It decides on exports that are prepared or extended from now on, of every source. Of several rules "
        f"that match, the oldest decides. An account may have {MAX_RULES} rules. An action other than `label` also needs "
        "the ability `ticket-exports:approve`. The target may be inactive: exports wait for it.",
        responses=(
            SuccessResponse(
                201,
                "The rule.",
                ApprovalRuleResponse,
                _RULE,
                ("Location",),
                ("readApprovalRule", "changeApprovalRule", "deleteApprovalRule", "testApprovalRule"),
            ),
        ),
        examples={
            "Approve": {"name": "Severe findings of the checkout", "match": _MATCH, "action": _ACTION},
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
    ("GET", ApprovalRulesResource.path): OperationDescription(
        id="listApprovalRules",
        tag=TAG,
        summary="List approval rules",
        description="Those of the account, the newest first.",
        responses=(listed("rules", ApprovalRuleListResponse, _RULE),),
        parameters=PAGING,
    ),
    ("GET", ApprovalRuleResource.path): OperationDescription(
        id="readApprovalRule",
        tag=TAG,
        summary="Read an approval rule",
        description="`stopped_reason` names why it stopped by itself.",
        responses=(SuccessResponse(200, "The rule as it is now.", ApprovalRuleResponse, _RULE),),
    ),
    ("PATCH", ApprovalRuleResource.path): OperationDescription(
        id="changeApprovalRule",
        tag=TAG,
        summary="Change an approval rule",
        description="`match` and `action` are replaced as a whole. A caller who changes one of them, or enables the rule, "
        "becomes its author. It applies to exports that are prepared or extended from now on.",
        responses=(SuccessResponse(200, "The rule.", ApprovalRuleResponse, {**_RULE, "enabled": False}),),
        examples={"Turn off": {"enabled": False}, "Another action": {"action": {"type": "dismiss", "reason": "wont_fix"}}},
    ),
    ("DELETE", ApprovalRuleResource.path): OperationDescription(
        id="deleteApprovalRule",
        tag=TAG,
        summary="Delete an approval rule",
        description="What it decided stays decided; exports that waited for its target stay prepared.",
        responses=(SuccessResponse(204, "It is deleted."),),
    ),
    ("POST", ApprovalRuleTestResource.path): OperationDescription(
        id="testApprovalRule",
        tag=TAG,
        summary="Test an approval rule",
        description="Compares the rule with the exports of the last 30 days, of any status, and changes nothing. Other "
        "rules are not considered.",
        responses=(
            SuccessResponse(
                200, "What it matches.", RuleTestResponse, {"matched": 1, "examined": 392, "examples": [EXPORT_ID]}
            ),
        ),
    ),
}
