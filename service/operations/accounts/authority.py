"""Checks who may act on which account, and which roles a caller may give to users.

A token with the ability `admin` acts on every account, but only while its user belongs to the operator's account.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from schemas.accounts.forms import MAX_ROW_ID
from schemas.base.errors import Forbidden, NotFound
from schemas.base.principal import AdministratorPrincipal, Manager, OperatorPrincipal, Role, TokenPrincipal
from schemas.settings.definitions import DeploymentMode, Settings
from storage.accounts import accounts

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")
_ROLES: Final = tuple(Role)

Record = TypeVar("Record")


class OperatorAccount:
    """The account whose users see all accounts and, with the ability `admin`, manage them.

    OPERATOR_ACCOUNT_ID names it. Without that setting it is the first account, except in cloud mode, where there is none.
    """

    def __init__(self, settings: Settings) -> None:
        self._account_id = settings.operator_account_id
        self._is_first = settings.deployment_mode is not DeploymentMode.CLOUD

    def has_id(self, account_id: int) -> bool:
        """Return whether this is the id of the operator's account."""
        if self._account_id is not None:
            return account_id == self._account_id
        return self._is_first and account_id == accounts.first_id()


def finder(
    what: str, find: Callable[[int, int | None], Record | None], largest: int = MAX_ROW_ID
) -> Callable[[str, Manager], Record]:
    """Return a function that returns the record with the id in a path, if the caller may see it, and raises NotFound."""

    def found(text: str, actor: Manager) -> Record:
        number = whole_number(text, largest)
        record = None if number is None else find(number, actor.account_id)
        if record is None:
            raise NotFound(f"There is no such {what}.")
        return record

    return found


def whole_number(text: str, largest: int) -> int | None:
    """Return a number from 1 to `largest`; None for any other text."""
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= largest else None


def token_of(actor: Manager) -> TokenPrincipal | None:
    """Return the token of a caller; None for the operator at the command line, who is not limited by a role."""
    if isinstance(actor, OperatorPrincipal):
        return None
    return actor.token if isinstance(actor, AdministratorPrincipal) else actor


def require_role(role: Role | None, actor: Manager) -> None:
    """Raise Forbidden for a role above the caller's own.

    A caller may neither give such a role nor act for a user who has it.
    """
    token = token_of(actor)
    if token is not None and _rank(role) > _rank(token.role):
        raise Forbidden(f"Your role is below {role}; a user with that role or a higher one must do this.")


def _rank(role: Role | None) -> int:
    return -1 if role is None else _ROLES.index(role)
