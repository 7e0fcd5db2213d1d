"""The token look-up of every request, hand-written because it runs thousands of times a second.

`storage.exports.poll_sql` joins the same columns with the polled export.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from schemas.base.principal import Role, TokenKind, TokenPrincipal, effective_abilities
from schemas.base.timestamps import to_ms
from storage.db.columns import JsonField, select_list
from storage.db.engine import first_row, rows
from storage.db.models import AccountRow, TokenRow, UserRow

_json: Final = JsonField()

#: The columns that `principal_from` reads, their tables, and the condition: the token with a digest, unless it is revoked,
#: expired or of a disabled user.
COLUMNS: Final = select_list(
    TokenPrincipal,
    {"k": TokenRow, "u": UserRow, "a": AccountRow},
    token_id="k.id",  # noqa: S106 - a column
    projects="NULL",
)
HOLDERS: Final = "tokens k JOIN users u ON u.id = k.user_id JOIN accounts a ON a.id = u.account_id"
IS_LIVE: Final = (
    "k.token_sha256 = ? AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?) AND u.disabled_at IS NULL"
)

_FIND: Final = f"SELECT {COLUMNS} FROM {HOLDERS} WHERE {IS_LIVE}"  # noqa: S608 - our own names
_PROJECT_ROLES: Final = "SELECT project_id, role FROM grants WHERE user_id = ? AND role IS NOT NULL"
#: Many tokens have the same list of abilities. Parsing a list takes 3 µs of each request.
_MAX_LISTS: Final = 256


def find_principal(token_sha256: str, now: datetime) -> TokenPrincipal | None:
    """Return the holder of the token with this digest; None if it is unknown, revoked or expired at `now`."""
    found = first_row(_FIND, (token_sha256, to_ms(now)))
    return None if found is None else principal_from(found)


def principal_from(row: Sequence[Any]) -> TokenPrincipal:
    """Return the principal of a row of COLUMNS."""
    token_id, user_id, account_id, kind, abilities, may_use_webhooks, role, _ = row
    in_account = None if role is None else Role(role)
    # Few users have no role in their account. All others need no further query.
    projects = None if in_account else project_roles(user_id)
    allowed = effective_abilities(_abilities(abilities), in_account, frozenset((projects or {}).values()))
    return TokenPrincipal(
        token_id, user_id, account_id, TokenKind(kind), allowed, bool(may_use_webhooks), in_account, projects
    )


def project_roles(user_id: int) -> dict[int, Role]:
    """Return the roles of a user in single projects, by project id."""
    return {project_id: Role(role) for project_id, role in rows(_PROJECT_ROLES, (user_id,))}


@lru_cache(maxsize=_MAX_LISTS)
def _abilities(text: str) -> frozenset[str]:
    return frozenset(_json.python_value(text))
