"""Use cases of accounts, users and grants. Changes of rights apply from the next request.

No process caches a user, a grant or an account's rights.
"""

from runtime.clock import utc_now
from schemas.base.errors import NotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Manager, OperatorPrincipal, Role
from service.operations.accounts.authority import require_role
from storage.accounts import accounts, audit_log, grants, users
from storage.accounts.accounts import Account, User
from storage.accounts.grants import Grant
from storage.db.engine import transaction
from storage.targets import targets


def add_account(name: str, actor: Manager, *, may_use_webhooks: bool = True) -> Account:
    """Create an account."""
    now = utc_now()
    with transaction():
        account = accounts.add_account(name, now, may_use_webhooks=may_use_webhooks)
        audit_log.append(now, actor.key, "add_account", f"account:{account.id}")
    return account


def rename_account(account_id: int, name: str, actor: Manager) -> Account:
    """Rename an account. Raises NotFound."""
    return accounts.rename(account_id, name, utc_now(), actor.key)


def set_webhooks(account_id: int, is_allowed: bool, actor: Manager) -> Account:
    """Allow or forbid an account to use webhook targets.

    Forbidding blocks the account's targets, so the exports that wait for them are not sent. After it is allowed again, a
    target stays blocked until it is resumed, which checks its address. Raises NotFound.
    """
    now = utc_now()
    with transaction():
        account = accounts.set_webhooks(account_id, is_allowed, now, actor.key)
        if not is_allowed:
            targets.block_all(account_id, now, actor.key)
    return account


def add_user(email: str, account_id: int, role: Role | None, actor: Manager) -> User:
    """Create a user of an account. Raises NotFound for the account, Forbidden, and Conflict for an email in use."""
    require_role(role, actor)
    now = utc_now()
    with transaction():
        user = accounts.add_user(email, account_id, now, role)
        audit_log.append(now, actor.key, "add_user", f"user:{user.id}", role.value if role else "none")
    return user


def set_role(email: str, role: Role | None, actor: Manager) -> User:
    """Set a user's role in the account. With None, the user has only the roles of the grants.

    Raises NotFound, Forbidden, and Conflict for the last active owner.
    """
    require_role(role, actor)
    with transaction():
        if role is not Role.OWNER:
            _require_may_withdraw(email, actor)
        return users.set_role(email, role, utc_now(), actor.key)


def disable_user(email: str, actor: Manager) -> User:
    """Refuse a user's tokens and end the user's console sessions.

    Raises NotFound, Forbidden, and Conflict for the last active owner.
    """
    with transaction():
        _require_may_withdraw(email, actor)
        return users.disable(email, utc_now(), actor.key)


def enable_user(email: str, actor: Manager) -> User:
    """Accept a disabled user's tokens again. Raises NotFound, Forbidden."""
    with transaction():
        require_role(accounts.user_by_email(email).role, actor)
        return users.enable(email, utc_now(), actor.key)


def remove_user(email: str, actor: Manager) -> User:
    """Disable a user permanently and erase the email address, tokens, grants and stored responses.

    Raises NotFound, Forbidden, and Conflict for the last active owner.
    """
    with transaction():
        _require_may_withdraw(email, actor)
        # The stored spelling of the address, because stored responses contain it.
        email = accounts.user_by_email(email).email
    naming = users.responses_that_name(email, utc_now())
    with transaction():
        _require_may_withdraw(email, actor)
        return users.remove(email, utc_now(), actor.key, naming)


def add_grant(email: str, project_id: int | None, report_id: int | None, role: Role | None, actor: Manager) -> Grant:
    """Let a user manage one report or one project of the user's account; a `role` gives further abilities in the project.

    Raises NotFound for the user, ValidationFailed for the project or the report, Forbidden, and Conflict if the grant
    exists.
    """
    require_role(role, actor)
    with transaction():
        accounts.user_by_email(email)
        try:
            if project_id is not None:
                return accounts.grant_project(email, project_id, utc_now(), role, actor.key)
            return accounts.grant_report(email, report_id or 0, utc_now(), actor.key)
        except NotFound as absent:
            if isinstance(actor, OperatorPrincipal):
                raise
            scope = "report" if project_id is None else "project"
            raise ValidationFailed(problem(f"/{scope}_id", f"unknown_{scope}")) from absent


def remove_grant(grant_id: int, actor: Manager) -> Grant:
    """Withdraw a grant. Raises NotFound."""
    return grants.remove(grant_id, utc_now(), actor.key)


def _require_may_withdraw(email: str, actor: Manager) -> None:
    """Raise Forbidden for a user above the caller, and Conflict for the last active owner; neither for the operator."""
    user = accounts.user_by_email(email)
    require_role(user.role, actor)
    if not isinstance(actor, OperatorPrincipal):
        users.require_other_owner(user.id)
