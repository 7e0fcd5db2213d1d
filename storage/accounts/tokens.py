"""Tokens: made once, shown once, kept as a SHA-256; every request asks again, so that revoking counts at once."""

import hashlib
import secrets
import string
import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from schemas.base.errors import Conflict, NotFound
from schemas.base.principal import ABILITIES, DEFAULT_ABILITIES, Ability, TokenKind, TokenPrincipal
from schemas.base.timestamps import to_ms
from storage.accounts.accounts import user_by_email
from storage.accounts.audit_log import Entry, append, append_all
from storage.db.columns import JsonField
from storage.db.engine import rows, transaction
from storage.db.models import TokenRow

PREFIX: Final = "rrt_"
#: 27 base62 digits hold 160 bits: no guessing, no birthday.
_RANDOM_BITS: Final = 160
_RANDOM_DIGITS: Final = 27
#: A CRC-32 in base62: a mistyped token is refused without a query, and secret scanners can tell ours from noise.
_CHECKSUM_DIGITS: Final = 6
_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase

_json: Final = JsonField()

#: What `principal_from` reads, where it stands, and which token it is: the one with a digest, at a moment.
COLUMNS: Final = "k.id, k.user_id, u.account_id, k.kind, k.abilities, a.may_use_webhooks"
HOLDERS: Final = "tokens k JOIN users u ON u.id = k.user_id JOIN accounts a ON a.id = u.account_id"
IS_LIVE: Final = "k.token_sha256 = ? AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)"

_FIND: Final = f"SELECT {COLUMNS} FROM {HOLDERS} WHERE {IS_LIVE}"  # noqa: S608 - our own names
_REVOKE_ALL: Final = "UPDATE tokens SET revoked_at = ? WHERE user_id = ? AND revoked_at IS NULL RETURNING id"
#: Of lists of abilities, which tokens have in common; to read one anew costs 3 µs of each request.
_MOST_LISTS: Final = 256


def create(
    email: str,
    kind: TokenKind,
    now: datetime,
    abilities: Sequence[Ability] = (),
    name: str = "",
    expires: timedelta | None = None,
) -> tuple[TokenRow, str]:
    """Make a token for a user and return its row and the text that is shown once.

    Raises NotFound for the user, Conflict for an ability that this kind cannot have.
    """
    foreign = [ability.value for ability in abilities if ability not in ABILITIES[kind]]
    if foreign:
        raise Conflict(f"A token of kind {kind} cannot have: {', '.join(foreign)}.")
    text = _new_text()
    with transaction():
        row = TokenRow.create(
            user=user_by_email(email),
            kind=kind.value,
            name=name,
            abilities=[ability.value for ability in abilities or DEFAULT_ABILITIES[kind]],
            token_sha256=_sha256(text),
            created_at=now,
            expires_at=None if expires is None else now + expires,
        )
        append(now, "operator", "create_token", f"token:{row.id}")
    return row, text


def revoke(token_id: int, now: datetime) -> TokenRow:
    """Revoke a token; it stops with the next request. Raises NotFound."""
    with transaction():
        row = TokenRow.get_or_none(TokenRow.id == token_id)
        if row is None:
            raise NotFound(f"There is no token {token_id}; see `bin/riskrelay token list`.")
        if TokenRow.update(revoked_at=now).where(TokenRow.id == token_id, TokenRow.revoked_at.is_null()).execute():
            append(now, "operator", "revoke_token", f"token:{token_id}")
        return TokenRow.get_by_id(token_id)


def revoke_all(email: str, now: datetime) -> list[TokenRow]:
    """Revoke every token of a user and return those that were not revoked before. Raises NotFound for the user."""
    with transaction():
        revoked = rows(_REVOKE_ALL, (to_ms(now), user_by_email(email).id))
        ids = sorted(row[0] for row in revoked)
        append_all([Entry(to_ms(now), "operator", "revoke_token", f"token:{token_id}") for token_id in ids])
        return list(TokenRow.select().where(TokenRow.id << ids).order_by(TokenRow.id))


def principal_for(text: str, now: datetime) -> TokenPrincipal | None:
    """Return who holds this token; None if nobody does, it was revoked or it has expired."""
    digest = digest_of(text)
    found = rows(_FIND, (digest, to_ms(now))) if digest is not None else []
    return principal_from(found[0]) if found else None


def digest_of(text: str) -> str | None:
    """Return what the table knows a token by; None for what is no token, whose digest nobody needs to look for."""
    return _sha256(text) if _is_well_formed(text) else None


def principal_from(row: tuple[Any, ...]) -> TokenPrincipal:
    """Read a row of COLUMNS."""
    token_id, user_id, account_id, kind, abilities, may_use_webhooks = row
    return TokenPrincipal(token_id, user_id, account_id, TokenKind(kind), _abilities(abilities), bool(may_use_webhooks))


@lru_cache(maxsize=_MOST_LISTS)
def _abilities(text: str) -> frozenset[str]:
    return frozenset(_json.python_value(text))


def _new_text() -> str:
    random = _base62(secrets.randbits(_RANDOM_BITS), _RANDOM_DIGITS)
    return PREFIX + random + _checksum(random)


def _is_well_formed(text: str) -> bool:
    body = text.removeprefix(PREFIX)
    random, checksum = body[:_RANDOM_DIGITS], body[_RANDOM_DIGITS:]
    return text.startswith(PREFIX) and text.isascii() and len(random) == _RANDOM_DIGITS and checksum == _checksum(random)


def _checksum(random: str) -> str:
    return _base62(zlib.crc32(random.encode()), _CHECKSUM_DIGITS)


def _base62(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, rest = divmod(number, len(_BASE62))
        text = _BASE62[rest] + text
    return text


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
