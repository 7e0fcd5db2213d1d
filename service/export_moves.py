"""What a person decides about an export: to approve it for a target, to have it tried again, to put it aside.

Each leaves from the states that `schemas.export_state` names; from any other one it is refused with 409. What makes an
export due rings the doorbell, once that is committed. No transaction and no connection is held while a resolver is asked.
"""

from datetime import datetime

import falcon

from schemas.errors import Forbidden
from schemas.exports import ApprovalForm, Export, export_record
from schemas.fields import NoMembers
from schemas.principal import Ability, TokenKind
from schemas.settings import RouteFamily
from service.admission import Body, Operation
from service.auth import Bearer
from service.exports import EXPORTS, export_url
from service.idempotency import Answer, Once
from service.targets import AddressCheck
from storage import database, exports
from storage.clock import utc_now
from storage.doorbell import Doorbell


class TicketExportApproval:
    """Approves a prepared export for a target."""

    path = f"{EXPORTS}/{{export_id}}/approve"
    family = RouteFamily.EXPORTS

    def __init__(self, once: Once, doorbell: Doorbell, public_base_url: str) -> None:
        self.operations = {"POST": Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), ApprovalForm())}
        self._once = once
        self._doorbell = doorbell
        self._public_base_url = public_base_url

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Freeze the ticket, make it due, and ring once that is committed."""
        self._once.answer(req, resp, lambda: self._approve(req, export_id))
        self._doorbell.ring()

    def _approve(self, req: falcon.Request, export_id: str) -> Answer:
        principal, now = req.context.principal, utc_now()
        export = exports.approve(export_id, principal.account_id, req.context.payload, now, principal.key)
        return _due(export, now, self._public_base_url)


class TicketExportRetry:
    """Delivers a failed or blocked export after all, with its whole schedule.

    Where its target is blocked, the address is looked at anew: if it may be used by now, the target is resumed with it.
    """

    path = f"{EXPORTS}/{{export_id}}/retry"
    family = RouteFamily.EXPORTS

    def __init__(
        self, once: Once, check: AddressCheck, doorbell: Doorbell, public_base_url: str, *, has_default_secret: bool
    ) -> None:
        self.operations = {"POST": _decision()}
        self._once = once
        self._check = check
        self._doorbell = doorbell
        self._public_base_url = public_base_url
        self._has_default_secret = has_default_secret

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Make it due, and ring once that is committed."""
        self._once.answer(
            req, resp, lambda: self._retry(req, export_id), beforehand=lambda: self._look_at_blocked(req, export_id)
        )
        self._doorbell.ring()

    def _look_at_blocked(self, req: falcon.Request, export_id: str) -> None:
        principal = req.context.principal
        url = exports.blocked_url(export_id, principal.account_id)
        if url is not None and not principal.may_use_webhooks:
            raise Forbidden("This account may not use generic_webhook targets.")
        database.release()
        req.context.validation = None if url is None else self._check.validate(url)

    def _retry(self, req: falcon.Request, export_id: str) -> Answer:
        principal, now = req.context.principal, utc_now()
        export = exports.retry(
            export_id,
            principal.account_id,
            now,
            principal.key,
            req.context.validation,
            has_default_secret=self._has_default_secret,
        )
        return _due(export, now, self._public_base_url)


class TicketExportDismissal:
    """Puts a prepared export aside for good."""

    path = f"{EXPORTS}/{{export_id}}/dismiss"
    family = RouteFamily.EXPORTS

    def __init__(self, once: Once) -> None:
        self.operations = {"POST": _decision()}
        self._once = once

    def on_post(self, req: falcon.Request, resp: falcon.Response, export_id: str) -> None:
        """Dismiss it."""
        self._once.answer(req, resp, lambda: self._dismiss(req, export_id))

    def _dismiss(self, req: falcon.Request, export_id: str) -> Answer:
        principal, now = req.context.principal, utc_now()
        export = exports.dismiss(export_id, principal.account_id, now, principal.key)
        return Answer(200, export_record(export, now))


def _decision() -> Operation:
    return Operation(Bearer(TokenKind.API, Ability.APPROVE_EXPORTS), NoMembers(), Body.OPTIONAL)


def _due(export: Export, now: datetime, public_base_url: str) -> Answer:
    headers = {"Location": export_url(public_base_url, export.id)}
    return Answer(202, export_record(export, now), headers, {"target_id": export.target_id})
