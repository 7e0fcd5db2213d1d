"""Seals with the first key what an older one has sealed, and names anew what is known by a keyed hash.

It reads in slices and writes each in one transaction, so it may be cut off anywhere and begun again: what the first key
opens is left alone. A value that somebody replaced or erased since it was read stays as they left it. What no key opens is
told by its place and holds nothing else up. The canary comes last: until all the rest is done, a process that has the first
key alone is refused at its start.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.base.errors import WrongEncryptionKey
from schemas.compliance.requests import subject_from
from storage.compliance.requests import pseudonym_of
from storage.db.engine import is_sqlite, rows, transaction, values_list
from storage.secrets import key_check
from storage.secrets.encrypted_columns import REPORT, SEALED, SHARED_SECRET, SUBJECT, TARGET_SECRET, Place
from storage.secrets.vault import Vault

#: Rows of one slice: written in a few milliseconds, so that deliveries and requests hardly wait.
SLICE: Final = 100


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A sealed value that no key opens."""

    table: str
    id: str
    column: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of one slice: how many values were looked at, sealed anew, or are not to be opened."""

    looked: int
    resealed: int
    unreadable: Sequence[Unreadable]


@dataclass(frozen=True, slots=True)
class Survey:
    """How everything sealed opens: with the first key, with an older one, not at all.

    `outdated` counts what is to be sealed or named anew: what needs an older key, and what is known by an older key's hash.
    """

    current: int
    older: int
    outdated: int
    unreadable: Sequence[Unreadable]


@dataclass(frozen=True, slots=True)
class _Named:
    """A sealed column whose rows are known by a keyed hash in another one; `shop` is what is hashed with it, if anything."""

    place: Place
    known_by: str
    name: Callable[[Vault, str, str], str | None]
    shop: str = "''"


@dataclass(frozen=True, slots=True)
class _Value:
    """A sealed value as it was read."""

    row_id: str
    sealed: bytes
    known_by: str | None
    shop: str


def _fingerprint(vault: Vault, secret: str, _shop: str) -> str | None:
    return vault.fingerprint(secret)


def _of_subject(vault: Vault, subject: str, shop: str) -> str | None:
    return pseudonym_of(subject_from(json.loads(subject)), shop, vault)


def _of_report(vault: Vault, report: str, shop: str) -> str | None:
    return pseudonym_of(subject_from(json.loads(report)["subject"]), shop, vault)


_NAMED: Final = {
    TARGET_SECRET: _Named(TARGET_SECRET, "secret_fingerprint", _fingerprint),
    SHARED_SECRET: _Named(SHARED_SECRET, "secret_fingerprint", _fingerprint),
    SUBJECT: _Named(SUBJECT, "subject_pseudonym", _of_subject, "shop_domain"),
    REPORT: _Named(REPORT, "subject_pseudonym", _of_report, "shop_domain"),
}


def count() -> int:
    """Return how many values are sealed, the canary not among them."""
    asked = " UNION ALL ".join(
        f"SELECT COUNT(*) FROM {place.table} WHERE {place.column} IS NOT NULL"  # noqa: S608 - our own names
        for place in SEALED
    )
    return sum(int(row[0]) for row in rows(asked))


def survey(vault: Vault) -> Survey:
    """Open everything and tell with which keys; changes nothing."""
    current = older = outdated = 0
    unreadable: list[Unreadable] = []
    for named, values in _slices():
        for value in values:
            text = _opened(named.place, value, vault)
            if text is None:
                unreadable.append(_unreadable(named.place, value))
                continue
            is_current = _is_current(named.place, value, vault)
            current, older = current + is_current, older + (not is_current)
            outdated += not is_current or _is_misnamed(named, value, text, vault)
    return Survey(current, older, outdated, unreadable)


def reseal(vault: Vault, limit: int) -> Iterator[Progress]:
    """Seal up to `limit` values anew with the first key; yields after each slice, which is committed then."""
    left = limit
    for named, values in _slices():
        read = [(value, _opened(named.place, value, vault)) for value in values]
        unreadable = [_unreadable(named.place, value) for value, text in read if text is None]
        outdated = [(value, text) for value, text in read if text is not None and _is_outdated(named, value, text, vault)]
        changed = _replace(named, outdated[:left], vault) if outdated and left else 0
        left -= changed
        yield Progress(len(values), changed, unreadable)


def needs_older_keys(vault: Vault) -> bool:
    """Tell whether the first key alone would be refused: the canary follows when everything else is done."""
    found = key_check.canary()
    return found is not None and not key_check.is_current(found, vault)


def _slices() -> Iterator[tuple[_Named, list[_Value]]]:
    """Read everything sealed, in the order of its ids; each slice is asked for when it is wanted."""
    for place in SEALED:
        named, after = _NAMED[place], ""
        while found := rows(_slice(named), (after, SLICE)):
            after = found[-1][0]
            yield named, [_Value(row[0], bytes(row[1]), row[2], row[3]) for row in found]


def _slice(named: _Named) -> str:
    place = named.place
    return (
        f"SELECT {place.key}, {place.column}, {named.known_by}, {named.shop} FROM {place.table} "  # noqa: S608 - our own names
        f"WHERE {place.column} IS NOT NULL AND {place.key} > ? ORDER BY {place.key} LIMIT ?"
    )


def _opened(place: Place, value: _Value, vault: Vault) -> str | None:
    try:
        return vault.open(value.sealed, place.context(value.row_id))
    except WrongEncryptionKey:
        return None


def _unreadable(place: Place, value: _Value) -> Unreadable:
    return Unreadable(place.table, value.row_id, place.column)


def _is_outdated(named: _Named, value: _Value, text: str, vault: Vault) -> bool:
    return not _is_current(named.place, value, vault) or _is_misnamed(named, value, text, vault)


def _is_current(place: Place, value: _Value, vault: Vault) -> bool:
    return vault.is_current(value.sealed, place.context(value.row_id))


def _is_misnamed(named: _Named, value: _Value, text: str, vault: Vault) -> bool:
    return value.known_by != named.name(vault, text, value.shop)


def _replace(named: _Named, values: Sequence[tuple[_Value, str]], vault: Vault) -> int:
    """Write what was sealed anew where it still is what was read; return how much that was."""
    place, written = named.place, list[Any]()
    for value, text in values:
        sealed = vault.seal(text, place.context(value.row_id))
        written += [value.row_id, sealed, named.name(vault, text, value.shop), value.sealed]
    with transaction():
        _lock(place, [value.row_id for value, _ in values])
        # Who else might have won: `secret set`, or an erasure. What they wrote is not touched.
        changed = rows(
            f"WITH r (row_id, sealed, known_by, was) AS (VALUES {values_list(4, len(values))}) "  # noqa: S608 - our own names
            f"UPDATE {place.table} SET {place.column} = r.sealed, {named.known_by} = r.known_by "
            f"FROM r WHERE {place.table}.{place.key} = r.row_id AND {place.table}.{place.column} = r.was "
            f"RETURNING {place.table}.{place.key}",
            written,
        )
    return len(changed)


def _lock(place: Place, ids: Sequence[str]) -> None:
    """Take the rows in the order in which others take them, so that nothing deadlocks; SQLite has one writer."""
    if not is_sqlite():
        within = values_list(len(ids), 1)
        rows(
            f"SELECT 1 FROM {place.table} WHERE {place.key} IN {within} "  # noqa: S608 - our own names
            f"ORDER BY {place.key} FOR NO KEY UPDATE",
            ids,
        )
