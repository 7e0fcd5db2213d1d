"""Use cases of tokens: create one, which never has more abilities than the token that creates it, and revoke tokens."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from runtime.clock import utc_now
from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import DEFAULT_ABILITIES, Ability, Manager, OperatorPrincipal, TokenKind, TokenPrincipal
from service.operations.accounts.authority import require_role, token_of
from storage.accounts import tokens
from storage.accounts.accounts import User
from storage.accounts.tokens import Token


def create(
    user: User,
    kind: TokenKind,
    abilities: Sequence[Ability],
    name: str,
    expires: timedelta | None,
    actor: Manager,
    now: datetime | None = None,
) -> tuple[Token, str]:
    """Create a token for a user and return it with its text, which is not stored.

    The token expires `expires` after `now`, and never after the token that creates it. Without `abilities`, it gets those
    default abilities that the creating token has. Platform tokens may have every ability of their kind, because the user's
    grants limit them.

    Raises Forbidden for an ability that the creating token lacks and for a user with a role above the caller's, Conflict for
    a disabled user, and ValidationFailed if the creating token has no default ability or expires earlier than `expires`.
    """
    now = now or utc_now()
    creator = token_of(actor)
    if creator is not None:
        require_role(user.role, actor)
        if kind is TokenKind.API:
            abilities = abilities or [each for each in DEFAULT_ABILITIES[kind] if each in creator.abilities]
            if not abilities:
                raise ValidationFailed(problem("/abilities", "required"))
            lacking = [each for each in abilities if each not in creator.abilities]
            if lacking:
                raise Forbidden(f"A token cannot create one with more abilities than its own: this one lacks {lacking[0]}.")
        expires = _lifetime(expires, creator, now)
    return tokens.create(user.email, kind, now, abilities, name, expires, actor.key)


def revoke(token_id: int, actor: Manager) -> Token:
    """Revoke a token; the next request with it is refused. Raises NotFound."""
    return tokens.revoke(token_id, utc_now(), actor.key)


def revoke_all(email: str, actor: OperatorPrincipal) -> list[Token]:
    """Revoke every token of a user; return the tokens that were not revoked before. Raises NotFound for the user."""
    return tokens.revoke_all(email, utc_now(), actor.key)


def _lifetime(expires: timedelta | None, creator: TokenPrincipal, now: datetime) -> timedelta | None:
    """Return the time until a new token expires: `expires`, or until the creating token does. Raises ValidationFailed."""
    own = tokens.find(creator.token_id, None) if creator.token_id is not None else None
    if own is None or own.expires_at is None:
        return expires
    left = own.expires_at - now
    if expires is not None and expires > left:
        raise ValidationFailed(problem("/expires_at", "after_own_expiry"))
    return expires or left
