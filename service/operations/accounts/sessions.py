"""Use cases of console sessions: list the live ones, revoke one, revoke all of a user."""

from runtime.clock import utc_now
from schemas.base.console_session import Session, SessionEndReason
from schemas.base.principal import Actor, OperatorPrincipal, Role, TokenPrincipal
from storage.accounts import sessions
from storage.accounts.accounts import user_by_email


def list_page(caller: TokenPrincipal, limit: int, before: str | None = None) -> list[Session]:
    """Return up to `limit` live sessions, newest first: all of the account for an owner, only their own for other users."""
    return sessions.list_live(utc_now(), limit, before, caller.account_id, user_id=_own_user_id(caller))


def revoke(session_id: str, actor: Actor) -> Session:
    """End a session of the caller's account; a session that has already ended is returned unchanged.

    Raises NotFound, also for a session of another user unless the caller is an owner.
    """
    user_id = _own_user_id(actor) if isinstance(actor, TokenPrincipal) else None
    return sessions.end(session_id, SessionEndReason.REVOKED, utc_now(), actor.key, actor.account_id, user_id)


def revoke_of_user(email: str, actor: OperatorPrincipal) -> list[Session]:
    """End every live session of a user, and return them, newest first. Raises NotFound for an unknown user."""
    return sessions.end_of_user(user_by_email(email).email, SessionEndReason.REVOKED, utc_now(), actor.key)


def _own_user_id(caller: TokenPrincipal) -> int | None:
    return None if caller.role is Role.OWNER else caller.user_id
