"""`/api/ticket-export-targets/{id}/…`: clients pause, resume, disable, validate and ping their targets.

What a target is already changes nothing and is answered all the same, since clients repeat what they got no answer to.
Turning off is open to every account that has a target; what dials or delivers needs one that may use webhook targets. No
transaction and no connection is held while a resolver or a receiver is waited for.
"""

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import falcon

from schemas.fields import NoMembers
from schemas.pings import BEGIN_WITHIN_S, Ping, ping_record
from schemas.principal import Ability, TokenKind, TokenPrincipal
from schemas.settings import RouteFamily
from schemas.targets import RESUMABLE, Target, target_record
from schemas.validations import Validation
from service.admission import Body, Operation
from service.auth import Bearer
from service.idempotency import Answer, Once, request_digest
from service.targets import AddressCheck, TicketExportTarget
from storage import database, pings, targets, validations
from storage.clock import utc_now
from storage.doorbell import Doorbell
from storage.validations import Awaited

#: `status_reason` of what a client turned off.
BY_CLIENT: Final = "client"

#: A look at one row; half of it is what an answer comes late by.
_LOOK_EVERY_S: Final = 0.05
#: What a worker may need beyond the deadline of its request: to write the result, to wait for another writer.
_MARGIN_S: Final = 2.0


class _TargetAction:
    """A POST without members to one target."""

    family = RouteFamily.EXPORTS

    def __init__(self, verb: str, once: Once, default_secret_fingerprint: str | None, *, for_webhooks: bool) -> None:
        self.path = f"{TicketExportTarget.path}/{verb}"
        bearer = Bearer(TokenKind.API, Ability.MANAGE_TARGETS, for_webhooks=for_webhooks)
        self.operations = {"POST": Operation(bearer, NoMembers(), Body.OPTIONAL)}
        self._verb = verb
        self._once = once
        self._default_secret_fingerprint = default_secret_fingerprint

    def _target(self, req: falcon.Request, target_id: str) -> Target:
        return targets.get(target_id, self._default_secret_fingerprint, req.context.principal.account_id)

    def _record(self, req: falcon.Request, target_id: str) -> Answer:
        return Answer(200, target_record(self._target(req, target_id), utc_now()))

    def _turn(self, req: falcon.Request, target_id: str) -> Answer:
        principal = req.context.principal
        targets.turn(
            target_id,
            self._verb,
            utc_now(),
            principal.key,
            BY_CLIENT,
            has_default_secret=self._default_secret_fingerprint is not None,
            account_id=principal.account_id,
        )
        return self._record(req, target_id)


class TargetSwitch(_TargetAction):
    """Pauses or disables a target: its exports wait, or are taken no more."""

    def __init__(self, verb: str, once: Once, default_secret_fingerprint: str | None) -> None:
        super().__init__(verb, once, default_secret_fingerprint, for_webhooks=False)

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Turn it, and answer with the target."""
        self._once.answer(req, resp, lambda: self._turn(req, target_id))


class TargetResumption(_TargetAction):
    """Delivers to a target again, once its address has passed the URL policy again."""

    def __init__(self, once: Once, check: AddressCheck, doorbell: Doorbell, default_secret_fingerprint: str | None) -> None:
        super().__init__("resume", once, default_secret_fingerprint, for_webhooks=True)
        self._check = check
        self._doorbell = doorbell

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Resume it, and ring for the exports that waited."""
        self._once.answer(
            req, resp, lambda: self._resume(req, target_id), beforehand=lambda: self._require_safe(req, target_id)
        )
        self._doorbell.ring()

    def _require_safe(self, req: falcon.Request, target_id: str) -> None:
        target = self._target(req, target_id)
        req.context.is_checked = target.status in RESUMABLE
        if req.context.is_checked:
            database.release()
            self._check.require_safe(target.base_url)

    def _resume(self, req: falcon.Request, target_id: str) -> Answer:
        if req.context.is_checked:
            principal = req.context.principal
            targets.record_validation(target_id, principal.account_id, Validation(), utc_now(), principal.key)
        return self._turn(req, target_id)


class TargetValidation(_TargetAction):
    """Looks at a target as it is now; an address that may not be used blocks it.

    Its URL and its names are looked at from here. What only who dials can tell, a worker is asked for.
    """

    def __init__(
        self,
        once: Once,
        check: AddressCheck,
        doorbell: Doorbell,
        default_secret_fingerprint: str | None,
        delivery_timeout_s: float,
    ) -> None:
        super().__init__("validate", once, default_secret_fingerprint, for_webhooks=True)
        self._check = check
        self._doorbell = doorbell
        self._end_within_s = delivery_timeout_s + _MARGIN_S

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Have it looked at, and answer with the target; a repeat with the same key looks no more."""
        self._once.answer(req, resp, lambda: self._record(req, target_id), beforehand=lambda: self._validate(req, target_id))

    def _validate(self, req: falcon.Request, target_id: str) -> None:
        principal = req.context.principal
        url = self._target(req, target_id).base_url
        database.release()
        found = self._check.validate(url)
        if found.has_passed:
            self._ask_worker(target_id, principal)
        else:
            targets.record_validation(target_id, principal.account_id, found, utc_now(), principal.key)
        database.release()

    def _ask_worker(self, target_id: str, principal: TokenPrincipal) -> None:
        """Wait until a worker has looked; where none does in time, what was found here is recorded."""
        asked_at = validations.ask(target_id, principal.account_id, utc_now(), principal.key)
        database.release()
        self._doorbell.ring()
        _wait(
            lambda: _stage(validations.get(target_id, asked_at, utc_now())),
            lambda: validations.withdraw(target_id, asked_at, utc_now(), principal.key),
            lambda: validations.give_up(target_id, asked_at, utc_now(), principal.key),
            self._end_within_s,
        )


class TargetPing(_TargetAction):
    """Has a worker send a signed test event to a target; nothing is dialled from here."""

    def __init__(self, once: Once, doorbell: Doorbell, delivery_timeout_s: float) -> None:
        super().__init__("ping", once, None, for_webhooks=True)
        self._doorbell = doorbell
        self._end_within_s = delivery_timeout_s + _MARGIN_S

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Ask for a ping, wait for its end, and answer what came of it; a repeat with the same key pings no more."""
        self._once.answer(
            req,
            resp,
            lambda: Answer(200, ping_record(req.context.ping_result)),
            beforehand=lambda: self._ping(req, target_id),
        )

    def _ping(self, req: falcon.Request, target_id: str) -> None:
        principal = req.context.principal
        ping_id = pings.request(target_id, principal.account_id, utc_now(), principal.key, request_digest(req))
        database.release()
        self._doorbell.ring()
        _wait(
            lambda: _stage(pings.get(ping_id)),
            lambda: pings.withdraw(ping_id, utc_now()),
            lambda: pings.give_up(ping_id, utc_now()),
            self._end_within_s,
        )
        req.context.ping_result = pings.get(ping_id).result
        database.release()


class _Stage(Enum):
    """How far something is that a worker was asked for."""

    WAITING = auto()
    BEGUN = auto()
    OVER = auto()


def _stage(asked: Ping | Awaited) -> _Stage:
    if asked.is_over:
        return _Stage.OVER
    return _Stage.BEGUN if asked.has_begun else _Stage.WAITING


def _wait(
    stage: Callable[[], _Stage], withdraw: Callable[[], object], give_up: Callable[[], object], end_within_s: float
) -> None:
    """Wait until it is over, or end it where no worker begins or none ends in time. No connection is held meanwhile."""
    began_at = asked_at = time.monotonic()
    while (reached := stage()) is not _Stage.OVER:
        now = time.monotonic()
        if reached is _Stage.WAITING:
            began_at = now
            if now - asked_at > BEGIN_WITHIN_S:
                # A worker that begins this very moment wins, and is waited for.
                withdraw()
        elif now - began_at > end_within_s:
            give_up()
        database.release()
        time.sleep(_LOOK_EVERY_S)
