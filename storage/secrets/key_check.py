"""Checks that the encryption keys belong to this installation, by a canary: a known text, encrypted with its first key.

With foreign keys a process would fail at every secret and encrypt new ones with a key that no other process has, so it does
not start.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final

from schemas.base.errors import WrongEncryptionKey
from storage.db.engine import transaction
from storage.db.models import InstallationRow
from storage.db.queries import tuples
from storage.secrets.encrypted_columns import CANARY, ENCRYPTED_COLUMNS
from storage.secrets.vault import Vault

_TEXT: Final = "These keys are this installation's."
_CONTEXT: Final = CANARY.context("1")
#: Encrypted values of each column that are tried where there is no canary yet; one that opens is enough.
_SAMPLE: Final = 20

_WRONG: Final = (
    "ENCRYPTION_KEYS does not open what this installation has sealed; put back the key that sealed it, "
    "in front of the others or behind them, or the DATABASE_URL that belongs to this key."
)


def check_keys(vault: Vault, now: datetime) -> None:
    """Check that the keys are this installation's. The first check of a new installation stores the canary with its keys.

    Without a canary, one of the values that are encrypted already has to open. Raises WrongEncryptionKey, NoEncryptionKey.
    """
    found = canary()
    if found is None:
        _require_that_something_opens(vault)
        found = _add_canary(vault, now)
    if not opens(found, vault):
        raise WrongEncryptionKey(_WRONG)


def canary() -> bytes | None:
    """Return the encrypted canary; None if this installation has never been started."""
    found: bytes | None = InstallationRow.select(InstallationRow.key_canary).where(InstallationRow.id == 1).scalar()
    return found


def opens(canary: bytes, vault: Vault) -> bool:
    """Return whether the keys open a canary, of this database or from a backup. Raises NoEncryptionKey without any key."""
    return _open_or_none(vault, canary, _CONTEXT) == _TEXT


def is_current(canary: bytes, vault: Vault) -> bool:
    """Return whether the first key opens a canary."""
    return vault.is_current(canary, _CONTEXT)


def renew_canary(vault: Vault) -> None:
    """Encrypt the canary with the first key; from then on older keys alone are refused, so this is the last step."""
    found = canary()
    if found is None or is_current(found, vault) or not opens(found, vault):
        return
    with transaction():
        # Another rotation, with other keys, may have won.
        renewed = InstallationRow.update(key_canary=vault.seal(_TEXT, _CONTEXT))
        renewed.where(InstallationRow.key_canary == found).execute()


def _add_canary(vault: Vault, now: datetime) -> bytes:
    """Add the canary, unless another process has done so: then its keys are the installation's."""
    with transaction():
        added = InstallationRow.insert(id=1, key_canary=vault.seal(_TEXT, _CONTEXT), created_at=now)
        added.on_conflict_ignore().execute()
        found = canary()
    if found is None:
        raise RuntimeError("The canary was removed while it was added.")
    return found


def _require_that_something_opens(vault: Vault) -> None:
    samples = list(_samples())
    if samples and all(_open_or_none(vault, *each) is None for each in samples):
        raise WrongEncryptionKey(_WRONG)


def _samples() -> Iterator[tuple[bytes, str]]:
    """Yield the newest encrypted values of each column with their contexts."""
    for column in ENCRYPTED_COLUMNS:
        newest = column.field.model.select(column.key, column.field).where(column.field.is_null(False))
        for row_id, sealed in tuples(newest.order_by(column.key.desc()).limit(_SAMPLE)):
            yield sealed, column.context(row_id)


def _open_or_none(vault: Vault, sealed: bytes, context: str) -> str | None:
    with suppress(WrongEncryptionKey):
        return vault.open(sealed, context)
    return None
