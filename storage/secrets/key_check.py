"""Checks that the encryption keys belong to this installation, by a canary: a known text, encrypted with its first key.

With the keys of another installation, a process would fail to decrypt every secret, and would encrypt new ones with a key
that no other process has. So it does not start.
"""

from contextlib import suppress
from datetime import datetime
from typing import Final

from schemas.base.errors import WrongEncryptionKey
from storage.db.engine import transaction
from storage.db.models import InstallationRow
from storage.secrets.encrypted_columns import CANARY
from storage.secrets.vault import Vault

_TEXT: Final = "These keys are this installation's."
_CONTEXT: Final = CANARY.context("1")

_WRONG: Final = (
    "ENCRYPTION_KEYS does not open what this installation has sealed; put back the key that sealed it, "
    "in front of the others or behind them, or the DATABASE_URL that belongs to this key."
)


def check_keys(vault: Vault, now: datetime) -> None:
    """Check that the keys belong to this installation. Raises WrongEncryptionKey, NoEncryptionKey.

    The first check of a new installation stores the canary with its keys, before any other encrypted value.
    """
    if not opens(canary() or _add_canary(vault, now), vault):
        raise WrongEncryptionKey(_WRONG)


def canary() -> bytes | None:
    """Return the encrypted canary; None if this installation has never been started."""
    found: bytes | None = InstallationRow.select(InstallationRow.key_canary).where(InstallationRow.id == 1).scalar()
    return found


def opens(canary: bytes, vault: Vault) -> bool:
    """Return whether the keys open a canary of this database or of a backup. Raises NoEncryptionKey if there is no key."""
    with suppress(WrongEncryptionKey):
        return vault.open(canary, _CONTEXT) == _TEXT
    return False


def is_current(canary: bytes, vault: Vault) -> bool:
    """Return whether the first key opens a canary."""
    return vault.is_current(canary, _CONTEXT)


def renew_canary(vault: Vault) -> None:
    """Encrypt the canary with the first key. This is the last step, because older keys alone are refused afterwards."""
    found = canary()
    if found is None or is_current(found, vault) or not opens(found, vault):
        return
    with transaction():
        # Another rotation, with other keys, may have won.
        renewed = InstallationRow.update(key_canary=vault.seal(_TEXT, _CONTEXT))
        renewed.where(InstallationRow.key_canary == found).execute()


def _add_canary(vault: Vault, now: datetime) -> bytes:
    """Add the canary. If another process has already added it, that process's keys are the installation's."""
    with transaction():
        added = InstallationRow.insert(id=1, key_canary=vault.seal(_TEXT, _CONTEXT), created_at=now)
        added.on_conflict_ignore().execute()
        found = canary()
    if found is None:
        raise RuntimeError("The canary was removed while it was added.")
    return found
