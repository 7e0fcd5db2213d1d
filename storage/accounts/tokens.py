"""Tokens: shown once at creation, stored as a SHA-256, and read for each request, so that revoking takes effect at once."""

import hashlib
import secrets
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from peewee import Expression, ModelSelect

from schemas.base.errors import Conflict, NotFound
from schemas.base.principal import ABILITIES, DEFAULT_ABILITIES, OPERATOR, Ability, TokenKind, TokenPrincipal
from storage.accounts.accounts import lock_user_by_email, user_by_email
from storage.accounts.audit_log import append, append_each
from storage.accounts.tokens_sql import find_principal
from storage.db.columns import columns, read, read_first
from storage.db.engine import transaction
from storage.db.models import TokenRow, UserRow
from storage.db.queries import newest_first, scalars, where_given

PREFIX: Final = "rrt_"
#: 27 base62 digits have 160 bits, so neither guessing nor a collision is feasible.
_RANDOM_BITS: Final = 160
_RANDOM_DIGITS: Final = 27
#: A CRC-32 in base62: a mistyped token is refused without a query, and secret scanners can recognize our tokens.
_CHECKSUM_DIGITS: Final = 6
_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase


@dataclass(frozen=True, slots=True)
class Token:
    """An API or platform token without its text; `user` is the email of its holder."""

    id: int
    kind: str
    name: str
    user_id: int
    user: str
    abilities: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


def create(
    email: str,
    kind: TokenKind,
    now: datetime,
    abilities: Sequence[Ability] = (),
    name: str = "",
    expires: timedelta | None = None,
    actor: str = OPERATOR.key,
) -> tuple[Token, str]:
    """Create a token for a user and return it with its text, which is not stored.

    Raises NotFound for the user, Conflict for a disabled user or an ability that this kind cannot have.
    """
    foreign = [ability.value for ability in abilities if ability not in ABILITIES[kind]]
    if foreign:
        raise Conflict(f"A token of kind {kind} cannot have: {', '.join(foreign)}.")
    text = _new_text()
    with transaction():
        user = lock_user_by_email(email)
        if user.disabled_at is not None:
            raise Conflict("This user is disabled; run `bin/riskrelay user enable EMAIL` first.")
        row = TokenRow.create(
            user=user.id,
            kind=kind.value,
            name=name,
            abilities=[ability.value for ability in abilities or DEFAULT_ABILITIES[kind]],
            token_sha256=sha256_hex(text),
            created_at=now,
            expires_at=None if expires is None else now + expires,
        )
        append(now, actor, "create_token", f"token:{row.id}")
        return _get(row.id), text


def list_page(
    account_id: int | None = None, user_id: int | None = None, limit: int | None = None, before: int | None = None
) -> list[Token]:
    """Return up to `limit` tokens, newest first; with an account or user, only its tokens."""
    query = where_given(_tokens(), (UserRow.account, account_id), (TokenRow.user, user_id))
    return read(Token, newest_first(query, TokenRow.id, limit, before))


def find(token_id: int, account_id: int | None) -> Token | None:
    """Return a token; with `account_id`, only of that account. None if there is no such token."""
    return read_first(Token, where_given(_tokens(), (TokenRow.id, token_id), (UserRow.account, account_id)))


def revoke(token_id: int, now: datetime, actor: str = OPERATOR.key) -> Token:
    """Revoke a token; the next request with it fails. Raises NotFound."""
    with transaction():
        revoke_where(TokenRow.id == token_id, now, actor)
        return _get(token_id)


def revoke_all(email: str, now: datetime, actor: str = OPERATOR.key) -> list[Token]:
    """Revoke every token of a user; return those that were not revoked before. Raises NotFound for the user."""
    with transaction():
        ids = revoke_where(TokenRow.user == user_by_email(email).id, now, actor)
        return read(Token, _tokens().where(TokenRow.id.in_(ids)).order_by(TokenRow.id))


def revoke_where(condition: Expression, now: datetime, actor: str) -> list[int]:
    """Revoke the tokens that match and are not revoked, in the caller's transaction; return their ids in order."""
    revoked = TokenRow.update(revoked_at=now).where(condition, TokenRow.revoked_at.is_null()).returning(TokenRow.id)
    ids = sorted(scalars(revoked))
    append_each(now, actor, "revoke_token", [f"token:{token_id}" for token_id in ids])
    return ids


def has_ability(ability: Ability) -> Expression:
    """Return the condition that a token has an ability."""
    # Cast, because a comparison with the field itself would encode the pattern as JSON.
    return TokenRow.abilities.cast("TEXT").contains(f'"{ability.value}"')


def is_live(now: datetime) -> Expression:
    """Return the condition that a token is neither revoked nor expired at `now`."""
    return TokenRow.revoked_at.is_null() & (TokenRow.expires_at.is_null() | (TokenRow.expires_at > now))


def principal_for(text: str, now: datetime) -> TokenPrincipal | None:
    """Return the holder of a token; None if it is unknown, revoked or expired."""
    digest = digest_of(text)
    return None if digest is None else find_principal(digest, now)


def digest_of(text: str) -> str | None:
    """Return the digest under which a token is stored; None for a text that is not a token and needs no query."""
    return sha256_hex(text) if _is_well_formed(text) else None


def sha256_hex(text: str) -> str:
    """Return the digest under which a secret is stored; surrogates stand for the bytes of a header that is not UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _tokens() -> "ModelSelect[TokenRow]":
    return TokenRow.select(*columns(Token, TokenRow, user=UserRow.email)).join(UserRow)


def _get(token_id: int) -> Token:
    token = find(token_id, None)
    if token is None:
        raise NotFound(f"There is no token {token_id}; see `bin/riskrelay token list`.")
    return token


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
