"""Use cases of accounts and users: withdraw rights and give them back. All take effect on the next request.

No process caches a user, a grant or an account's rights.
"""

from runtime.clock import utc_now
from schemas.base.principal import OperatorPrincipal, Role
from storage.accounts import accounts, grants, users
from storage.accounts.accounts import Account, User
from storage.accounts.grants import UserGrant
from storage.db.engine import transaction
from storage.targets import targets


def set_webhooks(account_id: int, is_allowed: bool, actor: OperatorPrincipal) -> Account:
    """Allow an account to use webhook targets, or forbid it, which blocks its targets; what waits for them is not sent.

    Allowed again, a target stays blocked until it is resumed, which checks its address. Raises NotFound.
    """
    now = utc_now()
    with transaction():
        account = accounts.set_webhooks(account_id, is_allowed, now, actor.key)
        if not is_allowed:
            targets.block_all(account_id, now, actor.key)
    return account


def set_role(email: str, role: Role | None, actor: OperatorPrincipal) -> User:
    """Set a user's role in the account; None leaves the roles of the user's grants. Raises NotFound."""
    return users.set_role(email, role, utc_now(), actor.key)


def disable_user(email: str, actor: OperatorPrincipal) -> User:
    """Refuse a user's tokens and end the user's console sessions. Raises NotFound."""
    return users.disable(email, utc_now(), actor.key)


def enable_user(email: str, actor: OperatorPrincipal) -> User:
    """Accept a disabled user's tokens again. Raises NotFound."""
    return users.enable(email, utc_now(), actor.key)


def remove_user(email: str, actor: OperatorPrincipal) -> User:
    """Disable a user for good and erase the address, tokens, grants and stored responses. Raises NotFound."""
    return users.remove(email, utc_now(), actor.key)


def remove_grant(grant_id: int, actor: OperatorPrincipal) -> UserGrant:
    """Withdraw a grant. Raises NotFound."""
    return grants.remove(grant_id, utc_now(), actor.key)
