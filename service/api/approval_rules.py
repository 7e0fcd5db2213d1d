"""`/api/approval-rules`: rules that approve, dismiss or label exports when they are prepared.

A rule with an action other than `label` also needs the ability to approve exports.
"""

from collections.abc import Iterator
from typing import Final

import falcon

from schemas.api.approval_rules import RuleTestResponse, dump_rule
from schemas.api.response_fields import dump
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.triage.approval_rules import RuleChangeForm, RuleForm, RuleTestResult
from service.api.routes import ApiContext, ApiRoute, read, removed
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.limits.large_body_limiter import LARGE_BYTES, LargeBodyQueue
from service.http.request_pipeline import Body, Operation
from storage.db import identifiers

RULES: Final = "/api/approval-rules"


def routes(api: ApiContext) -> Iterator[ApiRoute]:
    """Yield the routes of rules."""
    rules = api.operations.approval_rules
    manager = Bearer(TokenKind.API, Ability.MANAGE_RULES)
    queue = LargeBodyQueue()

    def test(req: falcon.Request, rule_id: str) -> RuleTestResult:
        # The test reads longer than other writers should wait, so it runs before the transaction. One test runs at a time,
        # and yields to other requests.
        principal = req.context.principal
        with queue.slot(str(principal.account_id), LARGE_BYTES + 1) as yield_to_others:
            return rules.test(rule_id, principal, yield_to_others)

    yield ApiRoute(
        RULES,
        get=api.listed(manager, identifiers.RULE, rules.list_page, dump_rule),
        post=api.created(
            manager, RuleForm(), lambda req: rules.create(req.context.payload, req.context.principal), dump_rule
        ),
    )
    yield ApiRoute(
        f"{RULES}/{{rule_id}}",
        get=read(manager, rules.get, dump_rule),
        patch=api.changed(manager, RuleChangeForm(), rules.change, dump_rule),
        delete=removed(manager, rules.delete),
    )
    yield ApiRoute(
        f"{RULES}/{{rule_id}}/test",
        post=api.once_per_key(
            Operation(manager, NoMembers(), Body.OPTIONAL),
            lambda req, **_: ApiResponse(200, dump(RuleTestResponse, req.context.prepared)),
            test,
        ),
    )
