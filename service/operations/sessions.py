"""Use cases of console sessions: revoke one, or all of a user."""

from runtime.clock import utc_now
from schemas.base.console_session import Ended, Session
from schemas.base.principal import Actor, OperatorPrincipal
from storage.accounts import sessions
from storage.accounts.accounts import user_by_email


def revoke(session_id: str, actor: Actor) -> Session:
    """End a session of the caller's account; one that has ended already is returned as it ended. Raises NotFound."""
    return sessions.end(session_id, Ended.REVOKED, utc_now(), actor.key, actor.account_id)


def revoke_of_user(email: str, actor: OperatorPrincipal) -> list[Session]:
    """End every live session of a user, and return them, the newest first. Raises NotFound for an unknown user."""
    user_by_email(email)
    return sessions.end_of_user(email, Ended.REVOKED, utc_now(), actor.key)
