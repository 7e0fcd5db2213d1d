"""Encryption at rest, and the fingerprints and pseudonyms by which a secret or a person is known without being shown.

AES-256-GCM with a context (`table|row|purpose`) as associated data: a sealed secret moved to another row does not open.
The first key seals, every key opens.
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

#: Named in front of every sealed secret, so that a later format can be told apart.
_FORMAT: Final = b"\x01"
#: The nonce length that GCM is made for; random is safe for far more seals than one key will see.
_NONCE_BYTES: Final = 12
#: 48 bits: too many to meet by chance among an installation's secrets, too few to learn anything from.
_FINGERPRINT_DIGITS: Final = 12
#: 128 bits: no two persons share a pseudonym, however many a shop has.
_PSEUDONYM_DIGITS: Final = 32


class Vault:
    """Seals and opens secrets with an installation's keys. Raises NoEncryptionKey when it has none and one is needed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]
        self._fingerprint_key = hmac.digest(keys[0], b"riskrelay secret fingerprint", "sha256") if keys else None
        self._pseudonym_key = hmac.digest(keys[0], b"riskrelay pseudonym", "sha256") if keys else None

    def seal(self, secret: str, context: str) -> bytes:
        """Encrypt `secret` for the place named by `context`."""
        if not self._ciphers:
            raise NoEncryptionKey
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + self._ciphers[0].encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Decrypt what `seal` made for the same `context`. Raises WrongEncryptionKey."""
        opened = _first_opened(self._ciphers, sealed, context)
        if opened is None:
            raise WrongEncryptionKey if self._ciphers else NoEncryptionKey
        return opened

    def is_current(self, sealed: bytes, context: str) -> bool:
        """Tell whether the first key opens it, so that it needs no older one."""
        return _first_opened(self._ciphers[:1], sealed, context) is not None

    def fingerprint(self, secret: str) -> str:
        """Return `fp:` and 12 hex digits; keyed, so that nobody can try guesses against it elsewhere."""
        if self._fingerprint_key is None:
            raise NoEncryptionKey
        return "fp:" + hmac.new(self._fingerprint_key, secret.encode(), hashlib.sha256).hexdigest()[:_FINGERPRINT_DIGITS]

    def pseudonym(self, text: str) -> str:
        """Return `ps:` and 32 hex digits: the same for the same text, and nothing to whoever has not the first key."""
        if self._pseudonym_key is None:
            raise NoEncryptionKey
        return "ps:" + hmac.new(self._pseudonym_key, text.encode(), hashlib.sha256).hexdigest()[:_PSEUDONYM_DIGITS]


def key_fingerprint(key: bytes) -> str:
    """Return by what an encryption key is known; the same wherever it stands among the others."""
    return Vault([key]).fingerprint("encryption key")


def _first_opened(ciphers: Sequence[AESGCM], sealed: bytes, context: str) -> str | None:
    """Return what the first of these keys that fits opens; None where none does, or nothing of ours is sealed there."""
    if sealed[:1] != _FORMAT or len(sealed) <= 1 + _NONCE_BYTES:
        return None
    nonce, encrypted = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    for cipher in ciphers:
        with suppress(InvalidTag):
            return cipher.decrypt(nonce, encrypted, context.encode()).decode()
    return None
