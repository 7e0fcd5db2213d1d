"""Use cases of recoveries: redeliver exports that failed or were blocked at a target since a given time.

A target has one recovery at a time, and only an active or paused target can get a new one.
"""

from runtime.clock import utc_now
from schemas.base.principal import Actor, TokenPrincipal
from schemas.exports.recoveries import Recovery, parse_past
from storage.exports import recoveries


def begin(target_id: str, since: str, principal: TokenPrincipal) -> Recovery:
    """Create a recovery: a worker redelivers every export of the caller's target that failed or was blocked since `since`.

    Call `Operations.wake_workers` after the commit. Raises TargetNotFound, Conflict, and ValidationFailed on `/since`.
    """
    now = utc_now()
    return recoveries.request(target_id, principal.account_id, parse_past(since, now), now, principal.key)


def cancel(recovery_id: str, actor: Actor) -> Recovery:
    """End a running recovery; exports that it has already made due stay due. Raises NotFound, Conflict."""
    return recoveries.cancel(recovery_id, utc_now(), actor.key, actor.account_id)
