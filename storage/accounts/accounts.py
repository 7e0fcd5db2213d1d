"""Accounts, their users, and the grants that let a user manage a project or a report."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from peewee import IntegrityError, ModelSelect, fn

from schemas.base.errors import Conflict, NotFound, WebhooksForbidden
from schemas.base.principal import OPERATOR, Role
from storage.accounts import grants
from storage.accounts.audit_log import append
from storage.accounts.grants import Grant
from storage.db.columns import columns, read, read_first
from storage.db.engine import transaction
from storage.db.models import AccountRow, GrantRow, ProjectRow, ReportRow, UserRow
from storage.db.queries import ASCII_LOWER, for_update, newest_first, tuples, where_given

_NO_USER: Final = "There is no user with this email; see `bin/riskrelay user list`."


@dataclass(frozen=True, slots=True)
class Account:
    """The owner of projects, targets and exports."""

    id: int
    name: str
    may_use_webhooks: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class User:
    """A person of an account; the address of a removed user is erased."""

    id: int
    email: str
    account_id: int
    role: Role | None
    created_at: datetime
    disabled_at: datetime | None = None
    removed_at: datetime | None = None

    @property
    def state(self) -> str:
        """The state of the user: `active`, `disabled` or `removed`."""
        if self.removed_at is not None:
            return "removed"
        return "active" if self.disabled_at is None else "disabled"


def add_account(name: str, now: datetime, *, may_use_webhooks: bool = True) -> Account:
    """Create an account."""
    with transaction():
        row = AccountRow.create(name=name, may_use_webhooks=may_use_webhooks, created_at=now)
    return Account(row.id, name, may_use_webhooks, now)


def list_page(limit: int | None = None, before: int | None = None) -> list[Account]:
    """Return up to `limit` accounts, newest first, older than the account `before`."""
    return read(Account, newest_first(_accounts(), AccountRow.id, limit, before))


def find_account(account_id: int) -> Account | None:
    """Return an account; None if there is no such account."""
    return read_first(Account, _accounts().where(AccountRow.id == account_id))


def get_account(account_id: int) -> Account:
    """Return an account. Raises NotFound."""
    account = find_account(account_id)
    if account is None:
        raise NotFound(f"There is no account {account_id}; see `bin/riskrelay account list`.")
    return account


def rename(account_id: int, name: str, now: datetime, actor: str) -> Account:
    """Rename an account. Raises NotFound."""
    with transaction():
        if AccountRow.update(name=name).where(AccountRow.id == account_id, AccountRow.name != name).execute():
            append(now, actor, "rename_account", f"account:{account_id}")
        return get_account(account_id)


def set_webhooks(account_id: int, is_allowed: bool, now: datetime, actor: str) -> Account:
    """Allow an account to use webhook targets, or forbid it. Raises NotFound."""
    with transaction():
        changed = AccountRow.update(may_use_webhooks=is_allowed).where(
            AccountRow.id == account_id, AccountRow.may_use_webhooks != is_allowed
        )
        if changed.execute():
            append(now, actor, "set_webhooks", f"account:{account_id}", "on" if is_allowed else "off")
        return get_account(account_id)


def require_webhooks(account_id: int) -> None:
    """Raise WebhooksForbidden if the account may not use webhook targets; this cannot change until the transaction ends."""
    allowed = AccountRow.select(AccountRow.id).where(AccountRow.id == account_id, AccountRow.may_use_webhooks)
    if not tuples(for_update(allowed, "FOR SHARE")):
        raise WebhooksForbidden


def add_user(email: str, account_id: int, now: datetime, role: Role | None = Role.OWNER) -> User:
    """Create a user of an account; without a `role`, grants with a role decide what the user may do.

    Raises NotFound for the account, Conflict for an email that is taken, in upper or lower case.
    """
    with transaction():
        get_account(account_id)
        # One user after the other, in all accounts: the unique index distinguishes upper and lower case.
        tuples(for_update(AccountRow.select(AccountRow.id).order_by(AccountRow.id).limit(1), "FOR NO KEY UPDATE"))
        if users_by_email(email):
            raise Conflict("This email belongs to a user already.")
        row = UserRow.create(email=email, account=account_id, created_at=now, role=role)
    return User(row.id, email, account_id, role, now)


def list_users(
    account_id: int | None = None, email: str | None = None, limit: int | None = None, before: int | None = None
) -> list[User]:
    """Return up to `limit` users, newest first; with `account_id` or `email`, only those.

    The case of an email does not matter.
    """
    query = where_given(_users(), (UserRow.account, account_id))
    if email is not None:
        query = query.where(UserRow.id.in_([each.id for each in users_by_email(email)]))
    return read(User, newest_first(query, UserRow.id, limit, before))


def first_id() -> int | None:
    """Return the id of the oldest account; None if there is none."""
    found: int | None = AccountRow.select(fn.MIN(AccountRow.id)).scalar()
    return found


def are_several() -> bool:
    """Return whether there is more than one account."""
    return len(AccountRow.select(AccountRow.id).limit(2)) > 1


def emails_of(user_ids: Collection[int]) -> Mapping[int, str]:
    """Return the emails of users by user id, without those of removed users."""
    if not user_ids:
        return {}
    is_known = UserRow.id.in_(user_ids) & UserRow.removed_at.is_null()
    return dict(tuples(UserRow.select(UserRow.id, UserRow.email).where(is_known)))


def user_by_email(email: str) -> User:
    """Return the user with this email, ignoring case. Raises NotFound, Conflict if several users differ only in its case."""
    named = [each for each in users_by_email(email) if each.removed_at is None]
    named = [each for each in named if each.email == email] or named
    if not named:
        raise NotFound(_NO_USER)
    if len(named) > 1:
        raise Conflict("Several users have this email; write it as `bin/riskrelay user list` does.")
    return named[0]


def lock_user(user_id: int) -> User | None:
    """Return a user, and prevent changes of the user until the transaction ends; None for a removed user."""
    wanted = _users().where(UserRow.id == user_id, UserRow.removed_at.is_null())
    return read_first(User, for_update(wanted, "FOR NO KEY UPDATE"))


def lock_user_by_email(email: str) -> User:
    """Return the user with this email as `lock_user` does. Raises what `user_by_email` raises."""
    user = lock_user(user_by_email(email).id)
    if user is None:
        # The user was removed meanwhile.
        raise NotFound(_NO_USER)
    return user


def users_by_email(email: str) -> list[User]:
    """Return the users with an address, ignoring case; more than one only if they were added before that was refused.

    The case is ignored for ASCII letters only: in Unicode, other letters may become ASCII letters.
    """
    wanted = email.translate(ASCII_LOWER)
    found = read(User, _users().where(fn.LOWER(UserRow.email).in_({wanted, wanted.lower()})))
    return [each for each in found if each.email.translate(ASCII_LOWER) == wanted]


def get_user(user_id: int) -> User:
    """Return the user with an id that exists."""
    [user] = read(User, _users().where(UserRow.id == user_id))
    return user


def find_user(user_id: int, account_id: int | None) -> User | None:
    """Return a user; with `account_id`, only of that account. None if there is no such user."""
    return read_first(User, where_given(_users(), (UserRow.id, user_id), (UserRow.account, account_id)))


def grant_project(email: str, project_id: int, now: datetime, role: Role | None = None, actor: str = OPERATOR.key) -> Grant:
    """Allow a user to submit data for a project of the account, and more with a `role`. Raises NotFound, Conflict."""
    with transaction():
        user = lock_user_by_email(email)
        if not ProjectRow.select().where(ProjectRow.id == project_id, ProjectRow.account == user.account_id).exists():
            raise NotFound(f"There is no project {project_id} in this user's account.")
        return _add_grant(user, project_id, None, now, role, actor)


def grant_report(email: str, report_id: int, now: datetime, actor: str = OPERATOR.key) -> Grant:
    """Allow a user to manage one report of the user's account. Raises NotFound, Conflict."""
    with transaction():
        user = lock_user_by_email(email)
        own = ReportRow.select().join(ProjectRow).where(ReportRow.id == report_id, ProjectRow.account == user.account_id)
        if not own.exists():
            raise NotFound(f"There is no report {report_id} in this user's account.")
        return _add_grant(user, None, report_id, now, None, actor)


def _add_grant(
    user: User, project_id: int | None, report_id: int | None, now: datetime, role: Role | None, actor: str
) -> Grant:
    try:
        row = GrantRow.create(user=user.id, project=project_id, report=report_id, created_at=now, role=role)
    except IntegrityError:
        raise Conflict("This grant exists already.") from None
    grant = grants.get(row.id)
    append(now, actor, "add_grant", f"user:{user.id}", f"{grant.scope} {role.value}" if role else grant.scope)
    return grant


def _accounts() -> "ModelSelect[AccountRow]":
    return AccountRow.select(*columns(Account, AccountRow))


def _users() -> "ModelSelect[UserRow]":
    return UserRow.select(*columns(User, UserRow))
