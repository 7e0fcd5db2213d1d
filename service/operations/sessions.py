"""Use cases of console sessions: revoke one."""

from runtime.clock import utc_now
from schemas.base.console_session import Ended, Session
from schemas.base.principal import Actor
from storage.accounts import sessions


def revoke(session_id: str, actor: Actor) -> Session:
    """End a session of the caller's account; one that has ended already is returned as it ended. Raises NotFound."""
    return sessions.end(session_id, Ended.REVOKED, utc_now(), actor.key, actor.account_id)
