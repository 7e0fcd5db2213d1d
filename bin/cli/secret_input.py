"""Reads a secret or a certificate from standard input, a secret also from a terminal that does not show it."""

import sys

import click
from marshmallow import ValidationError

from bin.cli.output import Refused
from runtime.clock import utc_now
from schemas.settings.certificates import MAX_PAIR, certificate_pair
from schemas.settings.definitions import Settings
from schemas.settings.parsers import HOW_TO_GENERATE, MIN_SECRET_BYTES
from schemas.settings.secret_text import MAX_SECRET, SecretFault, secret_from
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault


def own_vault(settings: Settings) -> Vault:
    """Return the vault, after checking that ENCRYPTION_KEYS belong to this installation's database."""
    vault = Vault(settings.encryption_keys)
    check_keys(vault, utc_now())
    return vault


def read_secret(prompt: str = "Secret", fix: str = f"; {HOW_TO_GENERATE}") -> str:
    """Read one line, without its newline. Raises Refused, with the `fix` for a secret that is too short."""
    return _checked(_read(prompt), fix)


def read_line(prompt: str) -> str:
    """Read one line without checks, and without its newline."""
    return _read(prompt).removesuffix("\n").removesuffix("\r")


def read_token(prompt: str) -> str | None:
    """Read the token of a tracker; None for no input. Raises Refused."""
    text = _read(prompt, default="")
    return _checked(text, "") if text.rstrip("\r\n") else None


def read_certificate() -> str:
    """Read a certificate, its chain and its private key as PEM. Raises Refused."""
    # A terminal would show the key.
    text = "" if sys.stdin.isatty() else sys.stdin.read(MAX_PAIR + 1)
    if not text or len(text) > MAX_PAIR:
        raise Refused(
            f"Pass the certificate, its chain and its private key (PEM, at most {MAX_PAIR:,} characters) on standard input: "
            "cat client.pem client.key | riskrelay secret set target ID --client-certificate"
        )
    try:
        return certificate_pair(text)
    except ValidationError as invalid:
        raise Refused(f"{' '.join(map(str, invalid.messages))} Nothing was changed.") from None


def _checked(text: str, fix: str) -> str:
    secret = secret_from(text)
    if secret is SecretFault.TOO_SHORT:
        raise Refused(f"A secret must have at least {MIN_SECRET_BYTES} bytes{fix}. Nothing was changed.")
    if isinstance(secret, SecretFault):
        raise Refused(f"Invalid secret; pass one line of at most {MAX_SECRET} printable characters on standard input.")
    return secret


def _read(prompt: str, default: str | None = None) -> str:
    if sys.stdin.isatty():
        typed: str = click.prompt(prompt, default=default, hide_input=True, show_default=False, err=True)
        return typed
    return sys.stdin.read(MAX_SECRET + 2)
