"""Key rotation: encrypts every stored value with the first key, and renews its fingerprint or pseudonym.

It reads values in slices and writes each slice in one transaction, so it may be killed at any point and run again: a value
that the first key opens is not changed. A value that was replaced or erased after it was read keeps that change. A value
that no key opens is reported by table, row and column, and the rotation continues. The canary comes last: until everything
else is done, a process that has only the first key does not start.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Final

from peewee import CTE, SQL, Field, ValuesList, fn

from schemas.base.errors import WrongEncryptionKey
from schemas.compliance.requests import subject_from
from storage.compliance.requests import pseudonym_of
from storage.db.columns import JsonField
from storage.db.engine import transaction
from storage.db.models import ComplianceRequestRow, IntegrationSecretRow, TargetRow
from storage.db.queries import for_update, scalars, tuples
from storage.secrets import key_check
from storage.secrets.encrypted_columns import (
    ENCRYPTED_COLUMNS,
    REPORT,
    SHARED_SECRET,
    STANDARD_SECRET,
    SUBJECT,
    TARGET_HEADERS,
    TARGET_SECRET,
    EncryptedColumn,
)
from storage.secrets.vault import Vault
from storage.targets.webhook_secrets import header_fingerprints

#: How many rows a slice has. It is written in a few milliseconds, so that deliveries and requests hardly wait.
SLICE: Final = 100


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """An encrypted value that no key opens."""

    table: str
    id: str
    column: str


@dataclass(frozen=True, slots=True)
class RotationProgress:
    """The result of one slice: how many values were read, how many were encrypted again, and which ones no key opens."""

    read: int
    rotated: int
    unreadable: Sequence[UnreadableValue]


@dataclass(frozen=True, slots=True)
class Survey:
    """How many values the first key opens, how many an older key opens, and which ones no key opens.

    `outdated` counts the values that a rotation would change: they need an older key, or their keyed hash is an older key's.
    """

    current: int
    older: int
    outdated: int
    unreadable: Sequence[UnreadableValue]


@dataclass(frozen=True, slots=True)
class _KeyedHash:
    """The column of the keyed hash of an encrypted value; `shop` is hashed too."""

    column: "Field[Any]"
    of: Callable[[Vault, str, str], str | None]
    shop: "Field[Any] | None" = None


@dataclass(frozen=True, slots=True)
class _Value:
    """An encrypted value as it was read; `text` is None if no key opens it."""

    row_id: str
    sealed: bytes
    text: str | None
    #: Whether the first key opens it.
    is_current: bool
    #: The stored keyed hash, and the hash with the first key.
    keyed_hash: str | None
    new_hash: str | None

    @property
    def is_outdated(self) -> bool:
        return self.text is not None and (not self.is_current or self.keyed_hash != self.new_hash)


def _fingerprint(vault: Vault, secret: str, _shop: str) -> str | None:
    return vault.fingerprint(secret)


def _fingerprints_of_headers(vault: Vault, headers: str, _shop: str) -> str | None:
    return JsonField.text(header_fingerprints(vault, headers))


def _of_subject(vault: Vault, subject: str, shop: str) -> str | None:
    return pseudonym_of(subject_from(json.loads(subject)), shop, vault)


def _of_report(vault: Vault, report: str, shop: str) -> str | None:
    return pseudonym_of(subject_from(json.loads(report)["subject"]), shop, vault)


_PSEUDONYM: Final = ComplianceRequestRow.subject_pseudonym
_SHOP: Final = ComplianceRequestRow.shop_domain
#: The other columns have no keyed hash: the fingerprint of a client certificate depends on no key.
_KEYED_HASHES: Final = {
    TARGET_SECRET: _KeyedHash(TargetRow.secret_fingerprint, _fingerprint),
    TARGET_HEADERS: _KeyedHash(TargetRow.header_fingerprints, _fingerprints_of_headers),
    STANDARD_SECRET: _KeyedHash(TargetRow.standard_secret_fingerprint, _fingerprint),
    SHARED_SECRET: _KeyedHash(IntegrationSecretRow.secret_fingerprint, _fingerprint),
    SUBJECT: _KeyedHash(_PSEUDONYM, _of_subject, _SHOP),
    REPORT: _KeyedHash(_PSEUDONYM, _of_report, _SHOP),
}


def count() -> int:
    """Return how many encrypted values there are, without the canary."""
    counts = [
        column.field.model.select(fn.COUNT(column.key)).where(column.field.is_null(False)) for column in ENCRYPTED_COLUMNS
    ]
    return sum(scalars(reduce(add, counts)))


def survey(vault: Vault) -> Survey:
    """Decrypt every value and count which keys open it; change nothing."""
    current = older = outdated = 0
    unreadable: list[UnreadableValue] = []
    for column, values in _slices(vault):
        readable = [value for value in values if value.text is not None]
        current += sum(value.is_current for value in readable)
        older += sum(not value.is_current for value in readable)
        outdated += sum(value.is_outdated for value in readable)
        unreadable += _unreadable(column, values)
    return Survey(current, older, outdated, unreadable)


def rotate(vault: Vault, limit: int) -> Iterator[RotationProgress]:
    """Encrypt up to `limit` values again with the first key; yield after each slice has been committed."""
    left = limit
    for column, values in _slices(vault):
        outdated = [value for value in values if value.is_outdated][:left]
        rotated = _replace(column, outdated, vault) if outdated else 0
        left -= rotated
        yield RotationProgress(len(values), rotated, _unreadable(column, values))


def needs_older_keys(vault: Vault) -> bool:
    """Return whether a process with only the first key would not start: the canary is renewed after everything else."""
    found = key_check.canary()
    return found is not None and not key_check.is_current(found, vault)


def _slices(vault: Vault) -> Iterator[tuple[EncryptedColumn, list[_Value]]]:
    """Read every encrypted value in the order of its row's id; each slice is read when the caller requests it."""
    for column in ENCRYPTED_COLUMNS:
        hashed, key, sealed, after = _KEYED_HASHES.get(column), column.key, column.field, ""
        known = SQL("NULL") if hashed is None else hashed.column
        shop = SQL("''") if hashed is None or hashed.shop is None else hashed.shop
        query = sealed.model.select(key, sealed, known, shop).where(sealed.is_null(False))
        while found := tuples(query.where(key > after).order_by(key).limit(1 if column.is_large else SLICE)):
            after = found[-1][0]
            yield column, [_read(vault, column, *row) for row in found]


def _read(vault: Vault, column: EncryptedColumn, row_id: str, sealed: bytes, known: Any, shop: str) -> _Value:
    # A keyed hash is compared and written in its stored form.
    keyed_hash: str | None = JsonField.text(known) if isinstance(known, list) else known
    context = column.context(row_id)
    try:
        text = vault.open(sealed, context)
    except WrongEncryptionKey:
        return _Value(row_id, sealed, None, is_current=False, keyed_hash=keyed_hash, new_hash=None)
    new_hash = _KEYED_HASHES[column].of(vault, text, shop) if column in _KEYED_HASHES else keyed_hash
    return _Value(row_id, sealed, text, vault.is_current(sealed, context), keyed_hash, new_hash)


def _unreadable(column: EncryptedColumn, values: Sequence[_Value]) -> list[UnreadableValue]:
    return [UnreadableValue(column.table, value.row_id, column.column) for value in values if value.text is None]


def _replace(column: EncryptedColumn, values: Sequence[_Value], vault: Vault) -> int:
    """Encrypt values again unless they have changed since they were read; return how many were encrypted."""
    key, sealed = column.key, column.field
    new = [
        (value.row_id, vault.seal(value.text or "", column.context(value.row_id)), value.new_hash, value.sealed)
        for value in values
    ]
    r = CTE("r", ValuesList(new), columns=("row_id", "sealed", "name", "was"))
    changes = {sealed: r.c.sealed} | ({_KEYED_HASHES[column].column: r.c.name} if column in _KEYED_HASHES else {})
    with transaction():
        # In the same order as other transactions that lock these rows, so that they do not deadlock.
        ids = [value.row_id for value in values]
        tuples(for_update(sealed.model.select(key).where(key.in_(ids)).order_by(key), "FOR NO KEY UPDATE"))
        # `secret set` or an erasure may have won; its value stays.
        replaced = (
            sealed.model.update(changes).with_cte(r).from_(r).where(key == r.c.row_id, sealed == r.c.was).returning(key)
        )
        return len(tuples(replaced))
