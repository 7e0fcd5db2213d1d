"""Encryption at rest, fingerprints of secrets and pseudonyms of persons.

AES-256-GCM with a context (`table|row|purpose`) as associated data: a value that is copied to another row cannot be
decrypted. The first key encrypts; every key decrypts.
"""

import hashlib
import hmac
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.base.errors import NoEncryptionKey, WrongEncryptionKey

#: The first byte of every encrypted secret, so that a later format can be recognized.
_FORMAT: Final = b"\x01"
#: The nonce length that GCM is designed for. Random nonces are safe for far more secrets than one key will encrypt.
_NONCE_BYTES: Final = 12
#: 48 bits: enough that no two secrets of an installation collide by chance, too few to reveal anything.
_FINGERPRINT_DIGITS: Final = 12
#: 64 bits: enough to distinguish installations.
_INSTALLATION_DIGITS: Final = 16
#: 128 bits: no two persons have the same pseudonym, even in the largest shop.
_PSEUDONYM_DIGITS: Final = 32


class Vault:
    """Encrypts and decrypts secrets with an installation's keys. Raises NoEncryptionKey if one is needed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]
        self._fingerprint_key = hmac.digest(keys[0], b"riskrelay secret fingerprint", "sha256") if keys else None
        self._pseudonym_key = hmac.digest(keys[0], b"riskrelay pseudonym", "sha256") if keys else None

    def seal(self, secret: str, context: str) -> bytes:
        """Encrypt `secret` for the row and column named by `context`."""
        if not self._ciphers:
            raise NoEncryptionKey
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + self._ciphers[0].encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Decrypt a value that `seal` returned for the same `context`. Raises WrongEncryptionKey."""
        opened = _first_opened(self._ciphers, sealed, context)
        if opened is None:
            raise WrongEncryptionKey if self._ciphers else NoEncryptionKey
        return opened

    def is_current(self, sealed: bytes, context: str) -> bool:
        """Return whether the first key opens a value, so that it needs no older key."""
        return _first_opened(self._ciphers[:1], sealed, context) is not None

    def fingerprint(self, secret: str) -> str:
        """Return `fp:` and 12 hex digits. It is keyed, so that nobody can test guesses against it without the key."""
        if self._fingerprint_key is None:
            raise NoEncryptionKey
        return "fp:" + hmac.new(self._fingerprint_key, secret.encode(), hashlib.sha256).hexdigest()[:_FINGERPRINT_DIGITS]

    def pseudonym(self, text: str) -> str:
        """Return `ps:` and 32 hex digits: the same for the same text, meaningless without the first key."""
        if self._pseudonym_key is None:
            raise NoEncryptionKey
        return "ps:" + hmac.new(self._pseudonym_key, text.encode(), hashlib.sha256).hexdigest()[:_PSEUDONYM_DIGITS]


def key_fingerprint(key: bytes) -> str:
    """Return the fingerprint of an encryption key, which does not depend on its position among the keys."""
    return Vault([key]).fingerprint("encryption key")


def installation_ids(keys: Sequence[bytes], database_url: str) -> list[str]:
    """Return the identifiers of an installation, one for each of its keys; a service publishes the one of its first key.

    An identifier is keyed, so that it reveals nothing. It includes the path of a SQLite file, which distinguishes a copy of
    an installation from the original. It leaves out the URL of PostgreSQL, because hosts may write the URL of one database
    differently.
    """
    place = database_url if database_url.startswith("sqlite") else "postgresql"
    label = f"riskrelay installation|{place}".encode()
    return [hmac.digest(key, label, "sha256").hex()[:_INSTALLATION_DIGITS] for key in keys]


def _first_opened(ciphers: Sequence[AESGCM], sealed: bytes, context: str) -> str | None:
    """Return the text from the first key that opens `sealed`; None if no key does or `sealed` does not have our format."""
    if sealed[:1] != _FORMAT or len(sealed) <= 1 + _NONCE_BYTES:
        return None
    nonce, encrypted = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    for cipher in ciphers:
        with suppress(InvalidTag):
            return cipher.decrypt(nonce, encrypted, context.encode()).decode()
    return None
