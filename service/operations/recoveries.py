"""Use cases of recoveries: redeliver what failed or was blocked at a target since a moment.

A target has one recovery at a time, and only an active or paused target gets a new one.
"""

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.base.principal import Actor, TokenPrincipal
from schemas.exports.recoveries import Recovery, past_from
from storage.exports import recoveries


class RecoveryOperations:
    """Begins and cancels recoveries of the caller's targets."""

    def __init__(self, wake_ups: WakeUpQueue) -> None:
        self._wake_ups = wake_ups

    def begin(self, target_id: str, since: str, principal: TokenPrincipal) -> Recovery:
        """Have a worker redeliver every export that failed or was blocked at `since` or later.

        Call `wake_workers` once the transaction is committed. Raises TargetNotFound, Conflict, and ValidationFailed on
        `/since`.
        """
        now = utc_now()
        return recoveries.request(target_id, principal.account_id, past_from(since, now), now, principal.key)

    def cancel(self, recovery_id: str, actor: Actor) -> Recovery:
        """End a running recovery; exports that are due again stay due. Raises NotFound, Conflict."""
        return recoveries.cancel(recovery_id, utc_now(), actor.key, actor.account_id)

    def wake_workers(self) -> None:
        """Wake the workers for a recovery that began, after the commit."""
        self._wake_ups.notify()
