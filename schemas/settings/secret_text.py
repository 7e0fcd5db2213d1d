"""Reads a secret that a person enters on standard input or in a form: one line. It is never displayed."""

from enum import Enum
from typing import Final

from schemas.settings.parsers import MIN_SECRET_BYTES

#: A longer text is a mistake, such as a key file or a whole document.
MAX_SECRET: Final = 4096


class SecretFault(Enum):
    """Why a text is refused as a secret; the value is the error code."""

    INVALID = "invalid_secret"
    TOO_SHORT = "secret_too_short"


def secret_from(text: str) -> str | SecretFault:
    """Return the secret without one newline at its end, or why it is refused."""
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret or len(secret) > MAX_SECRET or not secret.isprintable():
        return SecretFault.INVALID
    if len(secret.encode()) < MIN_SECRET_BYTES:
        return SecretFault.TOO_SHORT
    return secret
