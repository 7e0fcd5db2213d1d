"""Console sessions, each of one API token or one user. The browser has a random secret; the table has only its digest.

A session ends after 12 idle hours, after 7 days, when somebody ends it, when its user is disabled or loses the role, when
its token is revoked, expires or loses the ability, or when another browser sends its cookie.
"""

import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from peewee import JOIN, Expression, IntegrityError, ModelSelect, fn

from schemas.base.console_session import Session, SessionEndReason, SignInMethod
from schemas.base.errors import Conflict, NotFound
from schemas.base.principal import Ability, Role, TokenKind, TokenPrincipal, effective_abilities
from storage.accounts.audit_log import append, append_each
from storage.accounts.tokens import has_ability, is_live, sha256_hex
from storage.accounts.tokens_sql import project_roles
from storage.db import identifiers
from storage.db.engine import DAMAGE, OUTAGES, transaction
from storage.db.models import AccountRow, ConsoleSessionRow, TokenRow, UserRow
from storage.db.queries import for_update, newest_first, scalars, tuples, where_given

#: An idle session ends after half a day.
IDLE_FOR: Final = timedelta(hours=12)
#: A person who works every day signs in once a week.
LASTS_FOR: Final = timedelta(days=7)
#: The most open sessions of one token, or of one user and one other sign-in method. A person has a few browsers, and a
#: script that signs in must not accumulate sessions.
MAX_LIVE: Final = 10
#: How often `seen_at` is written: the idle time is known to the minute.
_SEEN_EVERY: Final = timedelta(minutes=1)

PREFIX: Final = "rrs_"
#: 256 bits in URL-safe base64.
_RANDOM_BYTES: Final = 32
_SECRET: Final = re.compile(r"rrs_[A-Za-z0-9_-]{43}")

_log: Final = logging.getLogger(__name__)


def begin(principal: TokenPrincipal, browser: str, now: datetime) -> str:
    """Create a session for the holder of a token and return the secret for the browser's cookie, which is not stored.

    `browser` is the User-Agent. Ends the token's oldest sessions beyond MAX_LIVE. Raises Conflict if the user was disabled
    meanwhile.
    """
    with transaction():
        _lock_user(principal.user_id)
        # Sessions of one token are created one after the other, so that each sees the earlier ones.
        tuples(for_update(TokenRow.select(TokenRow.id).where(TokenRow.id == principal.token_id), "FOR NO KEY UPDATE"))
        same_origin = ConsoleSessionRow.token == principal.token_id
        return _begin(same_origin, browser, now, principal.key, token=principal.token_id)


def begin_for_user(
    user_id: int,
    method: SignInMethod,
    credential: str,
    browser: str,
    now: datetime,
    seal_id_token: Callable[[str], bytes] | None = None,
) -> str:
    """Create a session for a user without a token; `credential`, used to sign in, is valid for only one session.

    `seal_id_token` encrypts the ID token for the session whose id it is given. Raises Conflict if the credential is used
    again, or if the user was disabled meanwhile.
    """
    try:
        with transaction():
            _lock_user(user_id)
            same_origin = (ConsoleSessionRow.user == user_id) & (ConsoleSessionRow.method == method)
            own: dict[str, Any] = {"user": user_id, "method": method, "sign_in_sha256": sha256_hex(credential)}
            return _begin(same_origin, browser, now, f"user:{user_id}", seal_id_token, **own)
    except IntegrityError:
        raise Conflict("This sign-in has already been used. Sign in again.") from None


def authenticate_cookies(
    cookies: Sequence[str], browser: str, now: datetime
) -> list[tuple[str, Session | SessionEndReason]]:
    """Return each cookie with its session, or the reason why it has none, with one query.

    Also stores that the sessions were used at `now`. A cookie that another browser sends was stolen, so its session ends.
    """
    digests = {sha256_hex(secret): secret for secret in cookies if _SECRET.fullmatch(secret)}
    found = list(_sessions().where(ConsoleSessionRow.secret_sha256.in_(list(digests)))) if digests else []
    known = {digests[row.secret_sha256]: _use(row, browser, now) for row in found}
    return [(secret, known.get(secret, SessionEndReason.UNKNOWN)) for secret in cookies]


def sealed_id_token(session_id: str) -> bytes | None:
    """Return the encrypted ID token of a session that has not ended, if it has one."""
    found = tuples(ConsoleSessionRow.select(ConsoleSessionRow.id_token_sealed).where(ConsoleSessionRow.id == session_id))
    return found[0][0] if found else None


def list_live(
    now: datetime,
    limit: int,
    before: str | None = None,
    account_id: int | None = None,
    email: str | None = None,
    user_id: int | None = None,
) -> list[Session]:
    """Return up to `limit` live sessions, newest first, older than the one with the id `before`.

    With `account_id`, `email` or `user_id`, only sessions of that account or user.
    """
    query = newest_first(_sessions().where(_is_live(now)), ConsoleSessionRow.id, limit, before)
    wanted = ((UserRow.account, account_id), (UserRow.email, email), (UserRow.id, user_id))
    return _listed(where_given(query, *wanted))


def end(
    session_id: str,
    reason: SessionEndReason,
    now: datetime,
    actor: str,
    account_id: int | None = None,
    user_id: int | None = None,
) -> Session:
    """End a session and return it; an ended session keeps its reason.

    With `account_id` or `user_id` only a session of that account or user. Raises NotFound.
    """
    with transaction():
        holder = _get(session_id).principal
        if account_id not in {None, holder.account_id} or user_id not in {None, holder.user_id}:
            raise _missing()
        end_where(ConsoleSessionRow.id == session_id, reason, now, actor)
        return _get(session_id)


def end_of_user(email: str, reason: SessionEndReason, now: datetime, actor: str) -> list[Session]:
    """End every live session of a user and return these sessions, newest first."""
    live = _sessions().where(_is_live(now), UserRow.email == email)
    with transaction():
        ended = end_where(ConsoleSessionRow.id.in_(live.select(ConsoleSessionRow.id)), reason, now, actor)
        return _listed(_sessions().where(ConsoleSessionRow.id.in_(ended)).order_by(ConsoleSessionRow.id.desc()))


def end_all(reason: SessionEndReason, now: datetime, actor: str) -> None:
    """End every session that has not ended, in the caller's transaction."""
    end_where(ConsoleSessionRow.ended_at.is_null(), reason, now, actor)


def end_where(condition: Expression, reason: SessionEndReason, now: datetime, actor: str) -> list[str]:
    """End the sessions that match, in the caller's transaction, and return their ids."""
    # Another request may have ended the session first; its reason stays.
    ended = (
        ConsoleSessionRow.update(ended_at=now, ended_reason=reason.value, id_token_sealed=None)
        .where(condition, ConsoleSessionRow.ended_at.is_null())
        .returning(ConsoleSessionRow.id)
    )
    ids = sorted(scalars(ended))
    append_each(now, actor, "end_session", ids, reason.value)
    return ids


def is_fresh(now: datetime) -> Expression:
    """Return the condition that a session is neither idle nor too old; a last use far in the future counts as idle."""
    s = ConsoleSessionRow
    return (s.seen_at > now - IDLE_FOR) & (s.seen_at <= now + IDLE_FOR) & (s.created_at > now - LASTS_FOR)


def _lock_user(user_id: int) -> None:
    """Lock a user until the transaction ends, because disabling a user ends only the sessions that are committed by then.

    Raises Conflict for a disabled user.
    """
    wanted = UserRow.select(UserRow.id).where(UserRow.id == user_id, UserRow.disabled_at.is_null())
    if not tuples(for_update(wanted, "FOR NO KEY UPDATE")):
        raise Conflict("This user is disabled. An owner of the account can enable it.")


def _begin(
    same_origin: Expression,
    browser: str,
    now: datetime,
    actor: str,
    seal_id_token: Callable[[str], bytes] | None = None,
    **columns: object,
) -> str:
    """Store a session in the caller's transaction and return its secret.

    Ends the oldest sessions beyond MAX_LIVE that match `same_origin`.
    """
    session_id, secret = identifiers.new_id(identifiers.SESSION, now), PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    ConsoleSessionRow.insert(
        id=session_id,
        secret_sha256=sha256_hex(secret),
        browser_sha256=sha256_hex(browser),
        created_at=now,
        seen_at=now,
        id_token_sealed=None if seal_id_token is None else seal_id_token(session_id),
        **columns,
    ).execute()
    append(now, actor, "sign_in", session_id)
    surplus = (
        ConsoleSessionRow.select(ConsoleSessionRow.id)
        .where(same_origin, ConsoleSessionRow.ended_at.is_null(), ConsoleSessionRow.id != session_id)
        .order_by(ConsoleSessionRow.id.desc())
        .offset(MAX_LIVE - 1)
    )
    end_where(ConsoleSessionRow.id.in_(scalars(surplus)), SessionEndReason.REPLACED, now, actor)
    return secret


def _use(row: ConsoleSessionRow, browser: str, now: datetime) -> Session | SessionEndReason:
    """Return the session of a cookie and record its use, or return why it has ended."""
    session, end_reason = _session(row), _end_reason(row, browser, now)
    if end_reason is SessionEndReason.ANOTHER_BROWSER:
        with transaction():
            end_where(ConsoleSessionRow.id == session.id, end_reason, now, session.principal.key)
    if end_reason is not None:
        return end_reason
    if Ability.CONSOLE not in session.principal.abilities:
        return SessionEndReason.USER_INVALID if session.principal.token_id is None else SessionEndReason.TOKEN_INVALID
    if now - session.seen_at >= _SEEN_EVERY:
        _record_use(session.id, now)
    return session


def _sessions() -> "ModelSelect[ConsoleSessionRow]":
    return (
        ConsoleSessionRow.select(ConsoleSessionRow, TokenRow, UserRow, AccountRow)
        .join(TokenRow, JOIN.LEFT_OUTER)
        .join_from(
            ConsoleSessionRow, UserRow, on=(UserRow.id == fn.COALESCE(TokenRow.user, ConsoleSessionRow.user)), attr="holder"
        )
        .join(AccountRow)
    )


def _get(session_id: str) -> Session:
    is_id = identifiers.is_id(identifiers.SESSION, session_id)
    found = list(_sessions().where(ConsoleSessionRow.id == session_id)) if is_id else []
    if not found:
        raise _missing()
    return _session(found[0])


def _missing() -> NotFound:
    return NotFound("There is no such session.")


def _record_use(session_id: str, now: datetime) -> None:
    """Record that a session was used. If nothing can be written, the console still works."""
    try:
        with transaction():
            ConsoleSessionRow.update(seen_at=now).where(
                ConsoleSessionRow.id == session_id, ConsoleSessionRow.ended_at.is_null(), ConsoleSessionRow.seen_at < now
            ).execute()
    except (*OUTAGES, *DAMAGE) as failed:
        _log.warning("the use of a console session could not be recorded", extra={"error": type(failed).__name__})


def _is_live(now: datetime) -> Expression:
    """Return the condition that `_end_reason` checks for one session, except the browser."""
    return (
        ConsoleSessionRow.ended_at.is_null()
        & is_fresh(now)
        & UserRow.disabled_at.is_null()
        & (ConsoleSessionRow.token.is_null() | (is_live(now) & has_ability(Ability.CONSOLE)))
    )


def _listed(query: "ModelSelect[ConsoleSessionRow]") -> list[Session]:
    """Return sessions for a list. Lists show no rights, so the roles in projects, which cost a query each, are left out."""
    return [_session(row, {}) for row in query]


def _session(row: ConsoleSessionRow, in_projects: Mapping[int, Role] | None = None) -> Session:
    """Return the session of a row; `in_projects` are the holder's roles in projects, if the caller has read them."""
    token, user = row.token, _holder(row)
    account = user.account
    projects = None
    if user.role is None:
        projects = project_roles(user.id) if in_projects is None else in_projects
    token_id, kind, own = (None, TokenKind.API, Ability) if token is None else (token.id, token.kind, token.abilities)
    abilities = effective_abilities(frozenset(own), user.role, frozenset((projects or {}).values()))
    return Session(
        id=row.id,
        principal=TokenPrincipal(
            token_id, user.id, account.id, TokenKind(kind), abilities, account.may_use_webhooks, user.role, projects
        ),
        email=user.email,
        account_name=account.name,
        token_name=None if token is None else token.name,
        method=row.method,
        created_at=row.created_at,
        seen_at=row.seen_at,
        ended_at=row.ended_at,
        ended=None if row.ended_reason is None else SessionEndReason(row.ended_reason),
    )


def _holder(row: ConsoleSessionRow) -> UserRow:
    """Return the user of a row of `_sessions`, with or without a token."""
    holder: UserRow = row.holder  # type: ignore[attr-defined]  # the name that the join gave it
    return holder


def _end_reason(row: ConsoleSessionRow, browser: str, now: datetime) -> SessionEndReason | None:
    """Return why a session has ended, or None. An explicit end takes precedence; only a live session checks the browser."""
    token = row.token
    if row.ended_reason is not None:
        return SessionEndReason(row.ended_reason)
    if token is not None:
        is_live = token.revoked_at is None and (token.expires_at is None or token.expires_at > now)
        if not is_live or Ability.CONSOLE not in token.abilities:
            return SessionEndReason.TOKEN_INVALID
    if _holder(row).disabled_at is not None:
        return SessionEndReason.USER_INVALID if token is None else SessionEndReason.TOKEN_INVALID
    if now - row.created_at >= LASTS_FOR:
        return SessionEndReason.TOO_OLD
    # A `seen_at` far in the future comes from a wrong clock; the session must not last until then.
    if now - row.seen_at >= IDLE_FOR or row.seen_at - now > IDLE_FOR:
        return SessionEndReason.IDLE
    return None if secrets.compare_digest(row.browser_sha256, sha256_hex(browser)) else SessionEndReason.ANOTHER_BROWSER
