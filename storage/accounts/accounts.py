"""Accounts, their users, and the grants that let a user manage a project or a report."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from peewee import IntegrityError, fn

from schemas.base.errors import Conflict, NotFound, WebhooksForbidden
from schemas.base.principal import OPERATOR, Role
from storage.accounts.audit_log import append
from storage.db.columns import columns, read, read_first
from storage.db.engine import transaction
from storage.db.models import AccountRow, GrantRow, ProjectRow, ReportRow, UserRow
from storage.db.queries import for_update, tuples


@dataclass(frozen=True, slots=True)
class Account:
    """The owner of projects, targets and exports."""

    id: int
    name: str
    may_use_webhooks: bool


@dataclass(frozen=True, slots=True)
class User:
    """A person of an account; the address of a removed user is erased."""

    id: int
    email: str
    account_id: int
    role: Role | None
    disabled_at: datetime | None = None
    removed_at: datetime | None = None

    @property
    def state(self) -> str:
        """`active`, `disabled` or `removed`."""
        if self.removed_at is not None:
            return "removed"
        return "active" if self.disabled_at is None else "disabled"


@dataclass(frozen=True, slots=True)
class Grant:
    """A user's right to manage a whole project or one report: exactly one of both is set."""

    id: int
    user_id: int
    project_id: int | None
    report_id: int | None
    role: Role | None


def add_account(name: str, now: datetime, *, may_use_webhooks: bool = True) -> Account:
    """Create an account."""
    with transaction():
        row = AccountRow.create(name=name, may_use_webhooks=may_use_webhooks, created_at=now)
    return Account(row.id, name, may_use_webhooks)


def list_accounts() -> list[Account]:
    """Return every account, the oldest first."""
    return read(Account, AccountRow.select(*columns(Account, AccountRow)).order_by(AccountRow.id))


def set_webhooks(account_id: int, is_allowed: bool, now: datetime, actor: str) -> Account:
    """Allow an account to use webhook targets, or forbid it. Raises NotFound."""
    with transaction():
        require_account(account_id)
        changed = AccountRow.update(may_use_webhooks=is_allowed).where(
            AccountRow.id == account_id, AccountRow.may_use_webhooks != is_allowed
        )
        if changed.execute():
            append(now, actor, "set_webhooks", f"account:{account_id}", "on" if is_allowed else "off")
        [account] = read(Account, AccountRow.select(*columns(Account, AccountRow)).where(AccountRow.id == account_id))
        return account


def require_webhooks(account_id: int) -> None:
    """Raise WebhooksForbidden unless the account may use webhook targets until the caller's transaction ends."""
    allowed = AccountRow.select(AccountRow.id).where(AccountRow.id == account_id, AccountRow.may_use_webhooks)
    if not tuples(for_update(allowed, "FOR SHARE")):
        raise WebhooksForbidden


def add_user(email: str, account_id: int, now: datetime, role: Role | None = Role.OWNER) -> User:
    """Create a user of an account; without a `role`, grants with one decide what the user may do.

    Raises NotFound for the account, Conflict for an email that is taken."""
    with transaction():
        require_account(account_id)
        try:
            row = UserRow.create(email=email, account=account_id, created_at=now, role=role)
        except IntegrityError:
            raise Conflict("This email belongs to a user already.") from None
    return User(row.id, email, account_id, role)


def list_users() -> list[User]:
    """Return every user, the oldest first."""
    return read(User, UserRow.select(*columns(User, UserRow)).order_by(UserRow.id))


def require_account(account_id: int) -> None:
    """Raise NotFound unless the account exists."""
    if not exists(account_id):
        raise NotFound(f"There is no account {account_id}; see `bin/riskrelay account list`.")


def exists(account_id: int) -> bool:
    """Return whether the account exists."""
    return AccountRow.select().where(AccountRow.id == account_id).exists()


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
    """Return the user with this email. Raises NotFound."""
    is_theirs = (UserRow.email == email) & UserRow.removed_at.is_null()
    user = read_first(User, UserRow.select(*columns(User, UserRow)).where(is_theirs))
    if user is None:
        raise NotFound("There is no user with this email; see `bin/riskrelay user add`.")
    return user


def get_user(user_id: int) -> User:
    """Return a user that exists."""
    [user] = read(User, UserRow.select(*columns(User, UserRow)).where(UserRow.id == user_id))
    return user


def grant_project(email: str, project_id: int, now: datetime, role: Role | None = None) -> Grant:
    """Let a user submit data for a project of the account, and with a `role` more. Raises NotFound, Conflict."""
    with transaction():
        user = user_by_email(email)
        if not ProjectRow.select().where(ProjectRow.id == project_id, ProjectRow.account == user.account_id).exists():
            raise NotFound(f"There is no project {project_id} in this user's account.")
        return _add_grant(user, project_id, None, now, role)


def grant_report(email: str, report_id: int, now: datetime) -> Grant:
    """Let a user manage one report of the user's account. Raises NotFound, Conflict."""
    with transaction():
        user = user_by_email(email)
        own = ReportRow.select().join(ProjectRow).where(ReportRow.id == report_id, ProjectRow.account == user.account_id)
        if not own.exists():
            raise NotFound(f"There is no report {report_id} in this user's account.")
        return _add_grant(user, None, report_id, now)


def _add_grant(user: User, project_id: int | None, report_id: int | None, now: datetime, role: Role | None = None) -> Grant:
    try:
        row = GrantRow.create(user=user.id, project=project_id, report=report_id, created_at=now, role=role)
    except IntegrityError:
        raise Conflict("This grant exists already.") from None
    scope = f"report:{report_id}" if project_id is None else f"project:{project_id}"
    append(now, OPERATOR.key, "add_grant", f"user:{user.id}", f"{scope} {role.value}" if role else scope)
    return Grant(row.id, user.id, project_id, report_id, role)
