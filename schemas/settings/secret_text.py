"""What a person hands over as a secret: one line, by standard input or by a form. It is read here and shown nowhere."""

from enum import Enum
from typing import Final

from schemas.settings.parsers import LEAST_SECRET_BYTES

#: A longer one is a mistake: a key file, or a whole document.
MAX_SECRET: Final = 4096


class SecretFault(Enum):
    """Why a text is no secret; the value is the code of that refusal."""

    UNFIT = "secret_unfit"
    TOO_SHORT = "secret_too_short"


def secret_from(text: str) -> str | SecretFault:
    """Return the secret in what was handed over, without one newline at its end; or why it is none."""
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret or len(secret) > MAX_SECRET or not secret.isprintable():
        return SecretFault.UNFIT
    if len(secret.encode()) < LEAST_SECRET_BYTES:
        return SecretFault.TOO_SHORT
    return secret
