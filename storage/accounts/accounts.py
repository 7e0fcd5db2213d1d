"""Accounts, their users, and the grants that let a user manage a project or a report."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from peewee import IntegrityError, fn

from schemas.base.errors import Conflict, NotFound
from storage.db.columns import columns, read, read_first
from storage.db.engine import transaction
from storage.db.models import AccountRow, GrantRow, ProjectRow, ReportRow, UserRow
from storage.db.queries import tuples


@dataclass(frozen=True, slots=True)
class Account:
    """The owner of projects, targets and exports."""

    id: int
    name: str
    may_use_webhooks: bool


@dataclass(frozen=True, slots=True)
class User:
    """A person of an account."""

    id: int
    email: str
    account_id: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A user's right to manage a whole project or one report: exactly one of both is set."""

    id: int
    user_id: int
    project_id: int | None
    report_id: int | None


def add_account(name: str, now: datetime, *, may_use_webhooks: bool = True) -> Account:
    """Create an account."""
    with transaction():
        row = AccountRow.create(name=name, may_use_webhooks=may_use_webhooks, created_at=now)
    return Account(row.id, name, may_use_webhooks)


def list_accounts() -> list[Account]:
    """Return every account, the oldest first."""
    return read(Account, AccountRow.select(*columns(Account, AccountRow)).order_by(AccountRow.id))


def add_user(email: str, account_id: int, now: datetime) -> User:
    """Create a user of an account. Raises NotFound for the account, Conflict for an email that is taken."""
    with transaction():
        require_account(account_id)
        try:
            row = UserRow.create(email=email, account=account_id, created_at=now)
        except IntegrityError:
            raise Conflict("This email belongs to a user already.") from None
    return User(row.id, email, account_id)


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
    """Return the emails of users by user id."""
    if not user_ids:
        return {}
    return dict(tuples(UserRow.select(UserRow.id, UserRow.email).where(UserRow.id.in_(user_ids))))


def user_by_email(email: str) -> User:
    """Return the user with this email. Raises NotFound."""
    user = read_first(User, UserRow.select(*columns(User, UserRow)).where(UserRow.email == email))
    if user is None:
        raise NotFound("There is no user with this email; see `bin/riskrelay user add`.")
    return user


def grant_project(email: str, project_id: int, now: datetime) -> Grant:
    """Let a user manage a project of the user's account. Raises NotFound, Conflict."""
    with transaction():
        user = user_by_email(email)
        if not ProjectRow.select().where(ProjectRow.id == project_id, ProjectRow.account == user.account_id).exists():
            raise NotFound(f"There is no project {project_id} in this user's account.")
        return _add_grant(user, project_id, None, now)


def grant_report(email: str, report_id: int, now: datetime) -> Grant:
    """Let a user manage one report of the user's account. Raises NotFound, Conflict."""
    with transaction():
        user = user_by_email(email)
        own = ReportRow.select().join(ProjectRow).where(ReportRow.id == report_id, ProjectRow.account == user.account_id)
        if not own.exists():
            raise NotFound(f"There is no report {report_id} in this user's account.")
        return _add_grant(user, None, report_id, now)


def _add_grant(user: User, project_id: int | None, report_id: int | None, now: datetime) -> Grant:
    try:
        row = GrantRow.create(user=user.id, project=project_id, report=report_id, created_at=now)
    except IntegrityError:
        raise Conflict("This grant exists already.") from None
    return Grant(row.id, user.id, project_id, report_id)
