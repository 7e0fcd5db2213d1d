"""Withdraws a user's rights: disables the user for a while, or removes the user for good, from the next request on.

The user's approval rules stop, and stay stopped if the user is enabled again.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from peewee import chunked

from schemas.base.console_session import SessionEndReason
from schemas.base.errors import Conflict
from schemas.base.principal import Role
from schemas.triage.approval_rules import StoppedReason
from storage.accounts import sessions, tokens
from storage.accounts.accounts import User, get_user, lock_user_by_email
from storage.accounts.audit_log import append, append_each
from storage.db.engine import transaction
from storage.db.models import (
    AccountRow,
    ApprovalRuleRow,
    ConsoleSessionRow,
    GrantRow,
    IdempotencyKeyRow,
    SignInLinkRow,
    TokenRow,
    UserIdentityRow,
    UserRow,
)
from storage.db.queries import for_update, scalars, tuples

#: How many stored responses one statement processes: a few milliseconds on either database.
_SLICE: Final = 1000
#: The longest time that a request may run: a search does not see the response to a request that still runs.
_LONGEST_REQUEST: Final = timedelta(minutes=5)


class NamingResponses(NamedTuple):
    """The ids of stored responses with a user's address; responses to requests after `since` may be missing."""

    ids: list[int]
    since: datetime


#: The value before any search.
NONE_SEARCHED: Final = NamingResponses([], datetime(1970, 1, 1, tzinfo=UTC))


def set_role(email: str, role: Role | None, now: datetime, actor: str) -> User:
    """Set a user's role in the account; without a role, only grants with a role allow anything. Raises NotFound."""
    with transaction():
        user = lock_user_by_email(email)
        if user.role is not role:
            UserRow.update(role=role).where(UserRow.id == user.id).execute()
            append(now, actor, "set_role", f"user:{user.id}", role.value if role else "none")
        return get_user(user.id)


def require_other_owner(user_id: int) -> None:
    """Raise Conflict for the only active owner of an account; other changes of its owners wait for the caller's commit."""
    user = get_user(user_id)
    tuples(for_update(AccountRow.select(AccountRow.id).where(AccountRow.id == user.account_id), "FOR NO KEY UPDATE"))
    active = UserRow.select(UserRow.id).where(
        UserRow.account == user.account_id, UserRow.role == Role.OWNER, UserRow.disabled_at.is_null()
    )
    if scalars(active) == [user_id]:
        raise Conflict("This user is the account's last active owner; make another user an owner first.")


def disable(email: str, now: datetime, actor: str) -> User:
    """Refuse a user's tokens and end the user's console sessions; no change if already disabled. Raises NotFound."""
    with transaction():
        user = lock_user_by_email(email)
        if UserRow.update(disabled_at=now).where(UserRow.id == user.id, UserRow.disabled_at.is_null()).execute():
            _end_sessions(user, now, actor)
            _stop_rules(user, now, actor)
            append(now, actor, "disable_user", f"user:{user.id}")
        return get_user(user.id)


def enable(email: str, now: datetime, actor: str) -> User:
    """Accept a user's tokens again; the console needs a new sign-in. Raises NotFound, also for a removed user."""
    with transaction():
        user = lock_user_by_email(email)
        if UserRow.update(disabled_at=None).where(UserRow.id == user.id, UserRow.disabled_at.is_null(False)).execute():
            append(now, actor, "enable_user", f"user:{user.id}")
        return get_user(user.id)


def responses_that_name(email: str, now: datetime) -> NamingResponses:
    """Search the stored responses and their keys for a user's address, slice by slice; the caller holds no transaction.

    These are responses of many kinds: an export names its approver, an approval rule its author.
    """
    row, ids, last = IdempotencyKeyRow, list[int](), 0
    query = row.select(row.id, _names(email))
    while slice_ := tuples(query.where(row.id > last).order_by(row.id).limit(_SLICE)):
        ids += [row_id for row_id, is_named in slice_ if is_named]
        last = slice_[-1][0]
    return NamingResponses(ids, now - _LONGEST_REQUEST)


def remove(email: str, now: datetime, actor: str, naming: NamingResponses = NONE_SEARCHED) -> User:
    """Disable a user for good and erase the address; revoke tokens, delete grants and stored responses.

    `naming` are the responses that `responses_that_name` found before, which need not be searched again. The row stays for
    the data that the user submitted and for the audit log, which name the user by id. Raises NotFound.
    """
    with transaction():
        user = lock_user_by_email(email)
        # First, because this waits for tokens and grants that are being created: their foreign keys lock the row.
        UserRow.update(email=f"removed:{user.id}", disabled_at=now, removed_at=now).where(UserRow.id == user.id).execute()
        _end_sessions(user, now, actor)
        _stop_rules(user, now, actor)
        tokens.revoke_where(TokenRow.user == user.id, now, actor)
        TokenRow.update(name="").where(TokenRow.user == user.id).execute()
        for owned in (GrantRow, SignInLinkRow, UserIdentityRow):
            owned.delete().where(owned.user == user.id).execute()
        _delete_responses(user, naming)
        append(now, actor, "remove_user", f"user:{user.id}")
        return get_user(user.id)


def _delete_responses(user: User, naming: NamingResponses) -> None:
    """Delete the stored responses to the user's requests, and other stored responses with the user's address."""
    row = IdempotencyKeyRow
    row.delete().where(row.principal == f"user:{user.id}").execute()
    row.delete().where(row.created_at >= naming.since, _names(user.email)).execute()
    for ids in chunked(naming.ids, _SLICE):
        row.delete().where(row.id.in_(ids)).execute()


def _names(email: str) -> Any:
    """Return the condition that a stored response or its key contains an address."""
    row, address = IdempotencyKeyRow, json.dumps(email, ensure_ascii=False)
    return row.response_body.contains(address) | row.key.contains(email)


def _end_sessions(user: User, now: datetime, actor: str) -> None:
    by_token = ConsoleSessionRow.token.in_(TokenRow.select(TokenRow.id).where(TokenRow.user == user.id))
    sessions.end_where(by_token | (ConsoleSessionRow.user == user.id), SessionEndReason.REVOKED, now, actor)


def _stop_rules(user: User, now: datetime, actor: str) -> None:
    reason = StoppedReason.AUTHOR_DISABLED.value
    is_enabled = (ApprovalRuleRow.author == user.id) & ApprovalRuleRow.enabled
    stopped = ApprovalRuleRow.update(enabled=False, stopped_reason=reason, updated_at=now).where(is_enabled)
    append_each(now, actor, "stop_rule", sorted(scalars(stopped.returning(ApprovalRuleRow.id))), reason)
