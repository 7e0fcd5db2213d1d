"""Grants: checks that a user has a grant for a project or a report; lists and removes grants.

A project that does not exist, belongs to another account or is not granted gives the same error. So does any report that
does not belong to the project.
"""

from dataclasses import dataclass
from datetime import datetime

from peewee import ModelSelect

from schemas.base.errors import Forbidden, NotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Role, TokenPrincipal
from storage.accounts import grants_sql
from storage.accounts.audit_log import append
from storage.db.columns import columns, read, read_first
from storage.db.engine import is_sqlite, rows, transaction
from storage.db.models import GrantRow, UserRow
from storage.db.queries import newest_first, where_given


@dataclass(frozen=True, slots=True)
class ManagedProject:
    """A project for which the caller may submit data, with its shop's domain as an operator set it."""

    id: int
    account_id: int
    shop_domain: str | None


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant with the email of its user: exactly one of `project_id` and `report_id` is set."""

    id: int
    user_id: int
    user: str
    is_disabled: bool
    project_id: int | None
    report_id: int | None
    role: Role | None
    created_at: datetime

    @property
    def scope(self) -> str:
        """The project or report of the grant, as the audit log names it."""
        return f"report:{self.report_id}" if self.project_id is None else f"project:{self.project_id}"


def manageable(principal: TokenPrincipal, project_id: int, report_id: int | None) -> ManagedProject:
    """Return the project if the caller may manage all of it, or its report `report_id`.

    Raises Forbidden for a project in which the caller manages nothing; then ValidationFailed on `/report_id` for any report
    that does not belong to the project; then Forbidden for a report, or a whole project, that the caller does not manage.
    """
    found = grants_sql.find(principal, project_id, report_id)
    if found is None or not (found.has_project or found.has_some_report):
        raise _forbidden()
    # The same error whether the report belongs to another project or account or does not exist: it reveals nothing about it.
    if report_id is not None and not found.is_report_in_project:
        raise ValidationFailed(problem("/report_id", "report_not_in_project"))
    if not (found.has_project or found.has_report):
        raise _forbidden()
    return ManagedProject(project_id, principal.account_id, found.shop_domain)


def lock_project(project_id: int) -> None:
    """Lock a project against a redaction of its shop until the transaction ends; wait for a redaction that has begun.

    Read the grants after this call, because a redaction deletes them.
    """
    if not is_sqlite():
        rows("SELECT 1 FROM projects WHERE id = ? FOR KEY SHARE", (project_id,))


def list_all(email: str | None = None) -> list[Grant]:
    """Return every grant, or those of one user, the oldest first."""
    return read(Grant, where_given(_grants(), (UserRow.email, email)).order_by(GrantRow.id))


def list_page(
    account_id: int | None, user_id: int | None, project_id: int | None, limit: int, before: int | None
) -> list[Grant]:
    """Return up to `limit` grants, newest first; with an account, user or project, only its grants."""
    wanted = ((UserRow.account, account_id), (GrantRow.user, user_id), (GrantRow.project, project_id))
    query = where_given(_grants(), *wanted)
    return read(Grant, newest_first(query, GrantRow.id, limit, before))


def find(grant_id: int, account_id: int | None) -> Grant | None:
    """Return a grant; with `account_id`, only of that account. None if there is no such grant."""
    return read_first(Grant, where_given(_grants(), (GrantRow.id, grant_id), (UserRow.account, account_id)))


def get(grant_id: int) -> Grant:
    """Return the grant with an id that exists."""
    [grant] = read(Grant, _grants().where(GrantRow.id == grant_id))
    return grant


def remove(grant_id: int, now: datetime, actor: str) -> Grant:
    """Remove a grant and return it as it was. Raises NotFound."""
    with transaction():
        grant = find(grant_id, None)
        if grant is None or not GrantRow.delete().where(GrantRow.id == grant_id).execute():
            raise NotFound(f"There is no grant {grant_id}; see `bin/riskrelay grant list`.")
        append(now, actor, "remove_grant", f"user:{grant.user_id}", grant.scope)
    return grant


def _grants() -> "ModelSelect[GrantRow]":
    own = {"user": UserRow.email, "is_disabled": UserRow.disabled_at.is_null(False).converter(bool).alias("is_disabled")}
    return GrantRow.select(*columns(Grant, GrantRow, **own)).join(UserRow)


def _forbidden() -> Forbidden:
    return Forbidden("The token's user may not manage this project or report.")
