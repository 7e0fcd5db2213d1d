"""`/api/ticket-export-targets/{id}/…`: clients pause, resume, disable, validate and ping their targets.

What a target is already changes nothing and is answered all the same, since clients repeat what they got no answer to.
Turning off is open to every account that has a target; what dials or delivers needs one that may use webhook targets. No
transaction and no connection is held while a resolver or a receiver is waited for.
"""

import time
from typing import Final

import falcon

from schemas.fields import NoMembers
from schemas.pings import BEGIN_WITHIN_S, Ping, PingResult, ping_record
from schemas.principal import Ability, TokenKind
from schemas.settings import RouteFamily
from schemas.targets import RESUMABLE, Target, target_record
from service.admission import Body, Operation
from service.auth import Bearer
from service.idempotency import Answer, Once, request_digest
from service.targets import AddressCheck, TicketExportTarget
from storage import database, pings, targets
from storage.clock import utc_now
from storage.doorbell import Doorbell

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
        return Answer(200, target_record(self._target(req, target_id)))

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
            targets.record_validation(target_id, principal.account_id, None, utc_now(), principal.key)
        return self._turn(req, target_id)


class TargetValidation(_TargetAction):
    """Looks at a target's address as it is now; one that may not be used blocks the target."""

    def __init__(self, once: Once, check: AddressCheck, default_secret_fingerprint: str | None) -> None:
        super().__init__("validate", once, default_secret_fingerprint, for_webhooks=True)
        self._check = check

    def on_post(self, req: falcon.Request, resp: falcon.Response, target_id: str) -> None:
        """Check the address, keep what was found, and answer with the target."""
        self._once.answer(req, resp, lambda: self._validate(req, target_id), beforehand=lambda: self._judge(req, target_id))

    def _judge(self, req: falcon.Request, target_id: str) -> None:
        url = self._target(req, target_id).base_url
        database.release()
        req.context.reason = self._check.judge(url)

    def _validate(self, req: falcon.Request, target_id: str) -> Answer:
        principal = req.context.principal
        targets.record_validation(target_id, principal.account_id, req.context.reason, utc_now(), principal.key)
        return self._record(req, target_id)


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
        req.context.ping_result = self._result(ping_id)

    def _result(self, ping_id: str) -> PingResult:
        """Wait until a worker has ended the ping, or end it where none begins or none ends in time."""
        began_at = asked_at = time.monotonic()
        while (ping := _look(ping_id)).result is None:
            now = time.monotonic()
            if not ping.has_begun:
                began_at = now
                if now - asked_at > BEGIN_WITHIN_S:
                    # A worker that begins this very moment wins, and is waited for.
                    pings.withdraw(ping_id, utc_now())
            elif now - began_at > self._end_within_s:
                pings.give_up(ping_id, utc_now())
            database.release()
            time.sleep(_LOOK_EVERY_S)
        return ping.result


def _look(ping_id: str) -> Ping:
    ping = pings.get(ping_id)
    database.release()
    return ping
