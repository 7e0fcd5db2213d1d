"""Secrets entered by a person: their length, and how their end is treated."""

import pytest

from schemas.settings.parsers import MIN_SECRET_BYTES
from schemas.settings.secret_text import MAX_SECRET, SecretFault, secret_from

LEAST = "s" * MIN_SECRET_BYTES


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (LEAST, LEAST),
        ("s" * MAX_SECRET, "s" * MAX_SECRET),
        # The length is counted in bytes, not characters.
        ("é" * (MIN_SECRET_BYTES // 2), "é" * (MIN_SECRET_BYTES // 2)),
        # One line break at the end comes from the terminal or the file; spaces belong to the secret.
        (f"{LEAST}\n", LEAST),
        (f"{LEAST}\r\n", LEAST),
        (f" {LEAST} \n", f" {LEAST} "),
        (LEAST[1:], SecretFault.TOO_SHORT),
        ("s" * (MAX_SECRET + 1), SecretFault.INVALID),
        (f"{LEAST}\n\n", SecretFault.INVALID),
        (f"{LEAST}\n{LEAST}", SecretFault.INVALID),
        (f"{LEAST}\0", SecretFault.INVALID),
        ("", SecretFault.INVALID),
        ("\n", SecretFault.INVALID),
    ],
)
def test_a_secret_is_one_line_within_length_limits(text: str, secret: str | SecretFault) -> None:
    assert secret_from(text) == secret
