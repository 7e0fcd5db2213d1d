"""Identities at OpenID Connect issuers, each linked to a user: an issuer and the subject that it assigns.

The first sign-in of a person links them to the user of the account with the same verified address, or creates that user. If
the issuer's groups decide the role, it is set at every sign-in.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from peewee import IntegrityError

from schemas.base.email_address import is_email_address
from schemas.base.errors import Conflict, Forbidden
from schemas.base.principal import Role
from storage.accounts import users
from storage.accounts.accounts import User, add_user, lock_user, users_by_email
from storage.accounts.audit_log import append
from storage.db.engine import transaction
from storage.db.models import UserIdentityRow
from storage.db.queries import tuples

#: The actor of changes by a sign-in.
ACTOR: Final = "openid_connect"


@dataclass(frozen=True, slots=True)
class Identity:
    """A person as an issuer describes them; `email` is None unless verified, `role` is None unless groups decide it."""

    issuer: str
    subject: str
    email: str | None
    role: Role | None


def sign_in(identity: Identity, account_id: int, now: datetime) -> User:
    """Return the user of an identity; the first sign-in links or creates one. Sets the role that the identity gives.

    Raises Forbidden for a person who is no user.
    """
    try:
        return _sign_in(identity, account_id, now)
    except (IntegrityError, Conflict):
        # Another request has just stored the identity or the user; now they are found.
        return _sign_in(identity, account_id, now)


def link_email(user: User, now: datetime) -> None:
    """Store that a user, whom the caller's transaction has locked, signed in with a link sent to their address."""
    known = UserIdentityRow.select(UserIdentityRow.user).where(UserIdentityRow.user == user.id)
    if not tuples(known.limit(1)):
        _store(user, "email", str(user.id), now)


def _sign_in(identity: Identity, account_id: int, now: datetime) -> User:
    with transaction():
        user = _linked(identity) or _link_by_email(identity, account_id, now)
        if user.account_id != account_id:
            raise Forbidden("The user with your email address belongs to an account that does not use this sign-in.")
        if user.disabled_at is not None:
            raise Forbidden("This user is disabled. An owner of the account can enable it.")
        return user if identity.role is None else users.set_role(user.email, identity.role, now, ACTOR)


def _linked(identity: Identity) -> User | None:
    own = (UserIdentityRow.issuer == identity.issuer) & (UserIdentityRow.subject == identity.subject)
    found = tuples(UserIdentityRow.select(UserIdentityRow.user).where(own))
    return lock_user(found[0][0]) if found else None


def _link_by_email(identity: Identity, account_id: int, now: datetime) -> User:
    """Link an identity to the user with its verified email address, or to a new user. Raises Forbidden."""
    email = identity.email
    if email is None or not is_email_address(email):
        raise Forbidden(
            "The sign-in server did not send a verified email address for you. Verify it there, or ask the operator about "
            "OIDC_TRUST_EMAIL."
        )
    # Addresses are stored as they were entered, but issuers often send them in lower case.
    named = users_by_email(email)
    named.sort(key=lambda each: (each.account_id != account_id, each.email != email))
    user = lock_user(named[0].id) if named else None
    if user is None:
        if identity.role is None:
            raise Forbidden("There is no user with your email address. Ask the operator to add you.")
        user = add_user(email, account_id, now, identity.role)
        append(now, ACTOR, "add_user", f"user:{user.id}", identity.role.value)
    _store(user, identity.issuer, identity.subject, now)
    return user


def _store(user: User, issuer: str, subject: str, now: datetime) -> None:
    UserIdentityRow.insert(issuer=issuer, subject=subject, user=user.id, created_at=now).execute()
    append(now, f"user:{user.id}", "link_identity", f"user:{user.id}")
