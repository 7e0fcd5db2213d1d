"""What a person or a client does to a target: pause, resume, disable, validate, ping; whoever asks, by the same rules.

Turning off is open to every account that has a target; what dials or delivers needs one that may use webhook targets, which
is for the callers to see to. No transaction and no connection is held while a resolver or a receiver is waited for.
"""

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.principal import TokenPrincipal
from schemas.targets.pings import BEGIN_WITHIN_S, Ping, PingResult
from schemas.targets.target import RESUMABLE, Target
from schemas.targets.validations import Validation
from service.operations.address_check import AddressCheck
from storage.db import engine
from storage.targets import pings, targets, validations
from storage.targets.validations import RequestedValidation

#: `status_reason` of what a client turned off.
BY_CLIENT: Final = "client"

#: A look at one row; half of it is what an answer comes late by.
_LOOK_EVERY_S: Final = 0.05
#: What a worker may need beyond the deadline of its request: to write the result, to wait for another writer.
_MARGIN_S: Final = 2.0


class TargetOperations:
    """Everything that may be done to one target of the caller's account. Every verb raises TargetNotFound."""

    def __init__(
        self, check: AddressCheck, wake_ups: WakeUpQueue, default_secret_fingerprint: str | None, delivery_timeout_s: float
    ) -> None:
        self._check = check
        self._wake_ups = wake_ups
        self._default_secret_fingerprint = default_secret_fingerprint
        self._end_within_s = delivery_timeout_s + _MARGIN_S

    def get(self, target_id: str, principal: TokenPrincipal) -> Target:
        """Return the target as it is now."""
        return targets.get(target_id, self._default_secret_fingerprint, principal.account_id)

    def turn(self, target_id: str, verb: str, principal: TokenPrincipal) -> None:
        """Pause, disable or resume it; what it is already changes nothing. Raises Conflict where its state forbids it."""
        targets.change_status(
            target_id,
            verb,
            utc_now(),
            principal.key,
            BY_CLIENT,
            has_default_secret=self._default_secret_fingerprint is not None,
            account_id=principal.account_id,
        )

    def check_before_resuming(self, target_id: str, principal: TokenPrincipal) -> bool:
        """Look at the address of a target that can be resumed, and tell whether it is one; it may wait for the resolver.

        Raises ValidationFailed on `/base_url`.
        """
        target = self.get(target_id, principal)
        can_be_resumed = target.status in RESUMABLE
        if can_be_resumed:
            engine.release()
            self._check.require_safe(target.base_url)
        return can_be_resumed

    def resume(self, target_id: str, principal: TokenPrincipal, *, is_checked: bool) -> None:
        """Deliver to it again; `is_looked_at` as `look_before_resuming` told. Notifies the workers after the commit."""
        if is_checked:
            targets.record_validation(target_id, principal.account_id, Validation(), utc_now(), principal.key)
        self.turn(target_id, "resume", principal)

    def validate(self, target_id: str, principal: TokenPrincipal) -> None:
        """Look at it as it is now; an address that may not be used blocks it.

        Its URL and its names are looked at from here. What only who dials can tell, a worker is asked for.
        """
        url = self.get(target_id, principal).base_url
        engine.release()
        found = self._check.validate(url)
        if found.has_passed:
            self._ask_worker(target_id, principal)
        else:
            targets.record_validation(target_id, principal.account_id, found, utc_now(), principal.key)
        engine.release()

    def ping(self, target_id: str, principal: TokenPrincipal, request_sha256: str | None = None) -> PingResult | None:
        """Have a worker send it a signed test event, wait for its end, and return what came of it.

        The same keyed request, known by its digest, gets the ping that it asked for before. Raises Conflict.
        """
        ping_id = pings.request(target_id, principal.account_id, utc_now(), principal.key, request_sha256)
        engine.release()
        self._wake_ups.notify()
        _wait(
            lambda: _stage(pings.get(ping_id)),
            lambda: pings.withdraw(ping_id, utc_now()),
            lambda: pings.give_up(ping_id, utc_now()),
            self._end_within_s,
        )
        result = pings.get(ping_id).result
        engine.release()
        return result

    def _ask_worker(self, target_id: str, principal: TokenPrincipal) -> None:
        """Wait until a worker has looked; where none does in time, what was found here is recorded."""
        asked_at = validations.request(target_id, principal.account_id, utc_now(), principal.key)
        engine.release()
        self._wake_ups.notify()
        _wait(
            lambda: _stage(validations.get(target_id, asked_at, utc_now())),
            lambda: validations.withdraw(target_id, asked_at, utc_now(), principal.key),
            lambda: validations.give_up(target_id, asked_at, utc_now(), principal.key),
            self._end_within_s,
        )


class _JobStage(Enum):
    """How far something is that a worker was asked for."""

    WAITING = auto()
    BEGUN = auto()
    OVER = auto()


def _stage(asked: Ping | RequestedValidation) -> _JobStage:
    if asked.is_over:
        return _JobStage.OVER
    return _JobStage.BEGUN if asked.has_begun else _JobStage.WAITING


def _wait(
    stage: Callable[[], _JobStage], withdraw: Callable[[], object], give_up: Callable[[], object], end_within_s: float
) -> None:
    """Wait until it is over, or end it where no worker begins or none ends in time. No connection is held meanwhile."""
    began_at = asked_at = time.monotonic()
    while (reached := stage()) is not _JobStage.OVER:
        now = time.monotonic()
        if reached is _JobStage.WAITING:
            began_at = now
            if now - asked_at > BEGIN_WITHIN_S:
                # A worker that begins this very moment wins, and is waited for.
                withdraw()
        elif now - began_at > end_within_s:
            give_up()
        engine.release()
        time.sleep(_LOOK_EVERY_S)
