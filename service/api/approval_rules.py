"""`/api/approval-rules`: rules that approve, dismiss or label exports when they are prepared.

A rule with an action other than `label` also needs the ability to approve exports.
"""

from typing import Final

import falcon

from schemas.api.approval_rules import RuleTestResponse, dump_rule
from schemas.api.response_fields import dump
from schemas.base.fields import NoMembers
from schemas.base.principal import Ability, TokenKind
from schemas.triage.approval_rules import RuleChangeForm, RuleForm
from service.api.resources import ApiContext, ApiResource, by_method, once_per_key, once_per_key_with
from service.http.auth import Bearer
from service.http.idempotency import ApiResponse
from service.http.limits.large_body_limiter import LARGE_BYTES, LargeBodyQueue
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Body, Operation
from storage.db import identifiers

RULES: Final = "/api/approval-rules"
_MANAGER: Final = Bearer(TokenKind.API, Ability.MANAGE_RULES)
_MANAGING: Final = Operation(_MANAGER)


class ApprovalRulesResource(ApiResource):
    """Creates rules, and lists them."""

    path = RULES
    checks = by_method(GET=_MANAGING, POST=Operation(_MANAGER, RuleForm()))

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return a page of the account's rules, newest first."""
        page = read_page(req, identifiers.RULE)
        found = self._api.operations.approval_rules.list_page(req.context.principal, page.fetch_limit, page.before)
        send_page(resp, self._url, page, [dump_rule(rule) for rule in found])

    @once_per_key
    def on_post(self, req: falcon.Request) -> ApiResponse:
        """Store the rule."""
        rule = self._api.operations.approval_rules.create(req.context.payload, req.context.principal)
        return ApiResponse(201, dump_rule(rule), {"Location": f"{self._url}/{rule.id}"})


class ApprovalRuleResource(ApiResource):
    """Reads, changes and deletes one rule."""

    path = f"{RULES}/{{rule_id}}"
    checks = by_method(GET=_MANAGING, PATCH=Operation(_MANAGER, RuleChangeForm()), DELETE=_MANAGING)

    def on_get(self, req: falcon.Request, resp: falcon.Response, rule_id: str) -> None:
        """Return the record."""
        send_record(resp, dump_rule(self._api.operations.approval_rules.get(rule_id, req.context.principal)))

    @once_per_key
    def on_patch(self, req: falcon.Request, rule_id: str) -> ApiResponse:
        """Change the rule, and return it."""
        changed = self._api.operations.approval_rules.change(rule_id, req.context.payload, req.context.principal)
        return ApiResponse(200, dump_rule(changed))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, rule_id: str) -> None:
        """Delete the rule."""
        self._api.operations.approval_rules.delete(rule_id, req.context.principal)
        resp.status = falcon.HTTP_204


class ApprovalRuleTestResource(ApiResource):
    """Shows which exports a rule would have matched."""

    path = f"{RULES}/{{rule_id}}/test"
    checks = by_method(POST=Operation(_MANAGER, NoMembers(), Body.OPTIONAL))

    def __init__(self, api: ApiContext) -> None:
        super().__init__(api)
        self._queue = LargeBodyQueue()

    def _test(self, req: falcon.Request, rule_id: str) -> None:
        # The test reads longer than other writers should wait, so it runs before the transaction. One test runs at a time,
        # and yields to other requests.
        principal = req.context.principal
        with self._queue.slot(str(principal.account_id), LARGE_BYTES + 1) as yield_to_others:
            req.context.result = self._api.operations.approval_rules.test(rule_id, principal, yield_to_others)

    @once_per_key_with(_test)
    def on_post(self, req: falcon.Request, rule_id: str) -> ApiResponse:
        """Test the rule, and return the result."""
        return ApiResponse(200, dump(RuleTestResponse, req.context.result))
