"""Sessions of persons at the console: each stands for one API token, opaque to the browser, kept here as a digest.

A session is over when it was idle for too long, when it is as old as any may get, when somebody ended it, when its token was
revoked, has expired or lost the ability, or when its cookie comes from another browser than the one that it was given to.
"""

import hashlib
import logging
import re
import secrets
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.console_session import Ended, Session
from schemas.base.errors import NotFound
from schemas.base.principal import Ability, TokenPrincipal
from schemas.base.timestamps import from_ms, to_ms
from storage.accounts.audit_log import append
from storage.accounts.tokens import COLUMNS, principal_from
from storage.db import identifiers
from storage.db.engine import DAMAGE, OUTAGES, execute, is_sqlite, rows, transaction

#: Who has looked at nothing for so long has gone home.
IDLE_FOR: Final = timedelta(hours=12)
#: Whoever comes back every day signs in once a week.
LASTS_FOR: Final = timedelta(days=7)
#: Sessions that one token has at once: a person has a few browsers, and who signs in by a script is stopped from piling up.
MAX_LIVE: Final = 10
#: A look is written down this often: idle time is known to the minute.
_SEEN_EVERY: Final = timedelta(minutes=1)

PREFIX: Final = "rrs_"
#: 256 bits in URL-safe base64.
_RANDOM_BYTES: Final = 32
_SECRET: Final = re.compile(r"rrs_[A-Za-z0-9_-]{43}")

_ASKED: Final = f"""
SELECT {COLUMNS}, s.id, s.created_at, s.seen_at, s.ended_at, s.ended_reason, k.name, u.email, a.name,
    s.browser_sha256, k.revoked_at, k.expires_at
FROM console_sessions s JOIN tokens k ON k.id = s.token_id JOIN users u ON u.id = k.user_id
JOIN accounts a ON a.id = u.account_id
WHERE """  # noqa: S608 - our own names
#: Which hold at a moment, as `_over` tells of one; what stands in its places is `_live_at`'s.
_LIVE: Final = """s.ended_at IS NULL AND s.seen_at > ? AND s.seen_at <= ? AND s.created_at > ?
AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?) AND k.abilities LIKE ?"""
_SURPLUS: Final = """
SELECT id FROM console_sessions WHERE token_id = ? AND ended_at IS NULL AND id <> ? ORDER BY id DESC LIMIT ? OFFSET ?"""
_END: Final = "UPDATE console_sessions SET ended_at = ?, ended_reason = ? WHERE id = ? AND ended_at IS NULL"
_SEEN: Final = "UPDATE console_sessions SET seen_at = ? WHERE id = ? AND ended_at IS NULL AND seen_at < ?"
_END_ALL: Final = "UPDATE console_sessions SET ended_at = ?, ended_reason = ? WHERE ended_at IS NULL RETURNING id"
_PRINCIPAL_COLUMNS: Final = 6
#: More than a token can have.
_ALL: Final = 1_000_000

_log: Final = logging.getLogger(__name__)


def begin(principal: TokenPrincipal, browser: str, now: datetime) -> str:
    """Make a session for the holder of a token and return the secret for the browser's cookie, this once.

    `browser` is its User-Agent. The token's oldest ones beyond MAX_LIVE end.
    """
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    session_id = identifiers.new_id(identifiers.SESSION, now)
    at = to_ms(now)
    with transaction():
        _wait_for_others(principal.token_id)
        execute(
            "INSERT INTO console_sessions (id, token_id, secret_sha256, browser_sha256, created_at, seen_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (session_id, principal.token_id, _sha256(secret), _sha256(browser), at, at),
        )
        append(now, principal.key, "sign_in", session_id)
        for (surplus_id,) in rows(_SURPLUS, (principal.token_id, session_id, _ALL, MAX_LIVE - 1)):
            _end(surplus_id, Ended.CROWDED_OUT, now, principal.key)
    return secret


def find(secret: str, browser: str, now: datetime) -> Session | Ended:
    """Return the session that a cookie stands for, seen now, or why it stands for none.

    One that comes from another browser is ended: whoever has it, it was not given to them.
    """
    found = rows(f"{_ASKED} s.secret_sha256 = ?", (_sha256(secret),)) if _SECRET.fullmatch(secret) else []
    if not found:
        return Ended.UNKNOWN
    session, over = _read(found[0]), _over(found[0], browser, now)
    if over is Ended.ANOTHER_BROWSER:
        with transaction():
            _end(session.id, over, now, session.principal.key)
    if over is not None:
        return over
    if now - session.seen_at >= _SEEN_EVERY:
        _note_seen(session.id, now)
    return session


def live(
    now: datetime, limit: int, before: str | None = None, account_id: int | None = None, email: str | None = None
) -> list[Session]:
    """Return up to `limit` sessions that hold, the newest first, older than the one with the id `before`.

    Those of one account or of one user, where they are named.
    """
    asked = {"s.id < ?": before, "u.account_id = ?": account_id, "u.email = ?": email}
    chosen = {clause: value for clause, value in asked.items() if value is not None}
    where = " AND ".join([_LIVE, *chosen])
    found = rows(f"{_ASKED} {where} ORDER BY s.id DESC LIMIT ?", (*_live_at(now), *chosen.values(), limit))
    return [_read(row) for row in found]


def end(session_id: str, reason: Ended, now: datetime, actor: str, account_id: int | None = None) -> Session:
    """End a session, of one account where `account_id` is given, and return it; one that is over stays as it ended.

    Raises NotFound.
    """
    with transaction():
        if account_id not in {None, _get(session_id).principal.account_id}:
            raise _missing()
        _end(session_id, reason, now, actor)
        return _get(session_id)


def end_all(reason: Ended, now: datetime, actor: str) -> None:
    """End every session that nobody has ended yet, within the caller's transaction."""
    for (session_id,) in rows(_END_ALL, (to_ms(now), reason.value)):
        append(now, actor, "end_session", session_id, reason.value)


def _wait_for_others(token_id: int) -> None:
    """Let sessions of one token begin one after the other, so that each sees those before it; SQLite has one writer."""
    if not is_sqlite():
        rows("SELECT 1 FROM tokens WHERE id = ? FOR NO KEY UPDATE", (token_id,))


def _get(session_id: str) -> Session:
    found = rows(f"{_ASKED} s.id = ?", (session_id,)) if identifiers.is_id(identifiers.SESSION, session_id) else []
    if not found:
        raise _missing()
    return _read(found[0])


def _missing() -> NotFound:
    return NotFound("There is no such session.")


def _end(session_id: str, reason: Ended, now: datetime, actor: str) -> None:
    # Who else might have won: another end, which stays; the caller holds the transaction.
    if execute(_END, (to_ms(now), reason.value, session_id)):
        append(now, actor, "end_session", session_id, reason.value)


def _note_seen(session_id: str, now: datetime) -> None:
    """Note a look; whoever looks while nothing can be written is shown what there is all the same."""
    try:
        with transaction():
            execute(_SEEN, (to_ms(now), session_id, to_ms(now)))
    except (*OUTAGES, DAMAGE) as failed:
        _log.warning("a look at the console could not be noted", extra={"error": type(failed).__name__})


def _live_at(now: datetime) -> tuple[int, int, int, int, str]:
    console = f'%"{Ability.CONSOLE.value}"%'
    return to_ms(now - IDLE_FOR), to_ms(now + IDLE_FOR), to_ms(now - LASTS_FOR), to_ms(now), console


def _read(row: tuple[Any, ...]) -> Session:
    session_id, created_at, seen_at, ended_at, reason, token_name, email, account, *_ = row[_PRINCIPAL_COLUMNS:]
    return Session(
        id=session_id,
        principal=principal_from(row[:_PRINCIPAL_COLUMNS]),
        email=email,
        account_name=account,
        token_name=token_name,
        created_at=from_ms(created_at),
        seen_at=from_ms(seen_at),
        ended_at=None if ended_at is None else from_ms(ended_at),
        ended=None if reason is None else Ended(reason),
    )


def _over(row: tuple[Any, ...], browser: str, now: datetime) -> Ended | None:
    """Return why a session is over; what somebody ended comes first, and a stolen cookie is asked for of a living one."""
    session = _read(row)
    browser_sha256, revoked_at, expires_at = row[-3:]
    if session.ended is not None:
        return session.ended
    is_live = revoked_at is None and (expires_at is None or expires_at > to_ms(now))
    if not is_live or Ability.CONSOLE not in session.principal.abilities:
        return Ended.TOKEN_OVER
    if now - session.created_at >= LASTS_FOR:
        return Ended.TOO_OLD
    # One that was seen long after now was seen by a clock that was wrong: counted by that, it would last until then.
    if now - session.seen_at >= IDLE_FOR or session.seen_at - now > IDLE_FOR:
        return Ended.IDLE
    is_same = secrets.compare_digest(browser_sha256, _sha256(browser))
    return None if is_same else Ended.ANOTHER_BROWSER


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
