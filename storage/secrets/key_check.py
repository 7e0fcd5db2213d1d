"""This installation itself: a canary by which it knows its own encryption keys.

The canary is a known text, sealed. A process whose keys do not open it would fail at every secret and seal new ones with a
key that nobody else has, so it is refused before it does either.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from schemas.base.errors import WrongEncryptionKey
from schemas.base.timestamps import to_ms
from storage.db.engine import execute, rows, transaction
from storage.secrets.encrypted_columns import CANARY, SEALED, Place
from storage.secrets.vault import Vault

_TEXT: Final = "These keys are this installation's."
_CONTEXT: Final = CANARY.context("1")
#: Of an installation from before there was a canary: so many of each kind may have lost their key without hiding the rest.
_SAMPLE: Final = 20

_WRONG: Final = (
    "ENCRYPTION_KEYS does not open what this installation has sealed; put back the key that sealed it, "
    "in front of the others or behind them, or the DATABASE_URL that belongs to this key."
)


def check_keys(vault: Vault, now: datetime) -> None:
    """Make sure that the keys are this installation's; the first ones that come to it become so.

    Where secrets were sealed before there was a canary, one of them has to open. Raises WrongEncryptionKey, NoEncryptionKey.
    """
    found = canary()
    if found is None:
        _require_that_something_opens(vault)
        found = _made(vault, now)
    if not opens(found, vault):
        raise WrongEncryptionKey(_WRONG)


def canary() -> bytes | None:
    """Return the canary, None where nobody has started here yet."""
    found = rows("SELECT key_canary FROM installation WHERE id = 1")
    return bytes(found[0][0]) if found else None


def opens(canary: bytes, vault: Vault) -> bool:
    """Tell whether keys open a canary, of this database or read from a backup. Raises NoEncryptionKey without any key."""
    try:
        return vault.open(canary, _CONTEXT) == _TEXT
    except WrongEncryptionKey:
        return False


def is_current(canary: bytes, vault: Vault) -> bool:
    """Tell whether the first key sealed a canary."""
    return vault.is_current(canary, _CONTEXT)


def renew_canary(vault: Vault) -> None:
    """Seal the canary with the first key. From then on older keys alone are refused, so this comes last."""
    found = canary()
    if found is None or is_current(found, vault) or not opens(found, vault):
        return
    with transaction():
        # Who else might have won: another rotation, with other keys.
        execute("UPDATE installation SET key_canary = ? WHERE key_canary = ?", (vault.seal(_TEXT, _CONTEXT), found))


def _made(vault: Vault, now: datetime) -> bytes:
    """Make the canary, unless another process is quicker: then its keys are the installation's."""
    with transaction():
        execute(
            "INSERT INTO installation (id, key_canary, created_at) VALUES (1, ?, ?) ON CONFLICT (id) DO NOTHING",
            (vault.seal(_TEXT, _CONTEXT), to_ms(now)),
        )
        found = canary()
    if found is None:
        raise RuntimeError("The canary is gone as soon as it was made.")
    return found


def _require_that_something_opens(vault: Vault) -> None:
    sealed = list(_sampled())
    if sealed and not any(_opens(vault, *each) for each in sealed):
        raise WrongEncryptionKey(_WRONG)


def _sampled() -> Iterator[tuple[bytes, str]]:
    for place in SEALED:
        for row_id, sealed in rows(_newest(place), (_SAMPLE,)):
            yield bytes(sealed), place.context(row_id)


def _newest(place: Place) -> str:
    return (
        f"SELECT {place.key}, {place.column} FROM {place.table} WHERE {place.column} IS NOT NULL "  # noqa: S608 - our own names
        f"ORDER BY {place.key} DESC LIMIT ?"
    )


def _opens(vault: Vault, sealed: bytes, context: str) -> bool:
    try:
        vault.open(sealed, context)
    except WrongEncryptionKey:
        return False
    return True
