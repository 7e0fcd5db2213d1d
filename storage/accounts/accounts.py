"""Accounts, their users, and the grants that say who manages what."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TypeVar

from peewee import IntegrityError

from schemas.base.errors import Conflict, NotFound
from storage.db.engine import rows, transaction
from storage.db.models import AccountRow, BaseModel, GrantRow, ProjectRow, ReportRow, UserRow

Row = TypeVar("Row", bound=BaseModel)


def add_account(name: str, now: datetime, *, may_use_webhooks: bool = True) -> AccountRow:
    """Make an account."""
    with transaction():
        return AccountRow.create(name=name, may_use_webhooks=may_use_webhooks, created_at=now)


def add_user(email: str, account_id: int, now: datetime) -> UserRow:
    """Make a user of an account. Raises NotFound for the account, Conflict for an email that is taken."""
    with transaction():
        if not AccountRow.select().where(AccountRow.id == account_id).exists():
            raise NotFound(f"There is no account {account_id}; see `bin/riskrelay account list`.")
        return _created(UserRow, "This email belongs to a user already.", email=email, account=account_id, created_at=now)


def first_id() -> int | None:
    """Return the account that was made first; None where there is none."""
    [(account_id,)] = rows("SELECT MIN(id) FROM accounts")
    return None if account_id is None else int(account_id)


def emails_of(user_ids: Collection[int]) -> Mapping[int, str]:
    """Return the emails of some users by their ids."""
    places = ", ".join("?" * len(user_ids))
    return dict(rows(f"SELECT id, email FROM users WHERE id IN ({places})", (*user_ids,))) if user_ids else {}  # noqa: S608 - places alone


def exists(account_id: int) -> bool:
    """Tell whether there is such an account."""
    return bool(rows("SELECT 1 FROM accounts WHERE id = ?", (account_id,)))


def are_several() -> bool:
    """Tell whether there is more than one account."""
    return len(rows("SELECT id FROM accounts LIMIT 2")) > 1


def user_by_email(email: str) -> UserRow:
    """Return the user. Raises NotFound."""
    user = UserRow.get_or_none(UserRow.email == email)
    if user is None:
        raise NotFound("There is no user with this email; see `bin/riskrelay user add`.")
    return user


def grant_project(email: str, project_id: int, now: datetime) -> GrantRow:
    """Let a user manage a project of the user's own account. Raises NotFound, Conflict."""
    with transaction():
        user = user_by_email(email)
        _require_of_account(ProjectRow.get_or_none(ProjectRow.id == project_id), user, f"There is no project {project_id}")
        return _created(GrantRow, "This grant exists already.", user=user, project=project_id, created_at=now)


def grant_report(email: str, report_id: int, now: datetime) -> GrantRow:
    """Let a user manage one report of the user's own account. Raises NotFound, Conflict."""
    with transaction():
        user = user_by_email(email)
        report = ReportRow.get_or_none(ReportRow.id == report_id)
        project = None if report is None else report.project
        _require_of_account(project, user, f"There is no report {report_id}")
        return _created(GrantRow, "This grant exists already.", user=user, report=report_id, created_at=now)


def _require_of_account(project: ProjectRow | None, user: UserRow, missing: str) -> None:
    if project is None or project.account.id != user.account.id:
        raise NotFound(f"{missing} in this user's account.")


def _created(model: type[Row], taken: str, **columns: object) -> Row:
    try:
        return model.create(**columns)
    except IntegrityError:
        raise Conflict(taken) from None
