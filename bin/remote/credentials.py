"""The token for a remote installation: from the environment, or from a file that only its owner can read.

Never from an argument: `ps` shows arguments to every user of the machine.
"""

import os
import stat
from pathlib import Path
from typing import Final

import click

from bin.cli.output import Refused

TOKEN_VARIABLE: Final = "RISKRELAY_TOKEN"  # noqa: S105 - a name
FILE_VARIABLE: Final = "RISKRELAY_CREDENTIALS"


def token_for(url: str) -> str:
    """Return the token for the installation at `url`. Raises Refused; UsageError if there is none."""
    token = os.environ.get(TOKEN_VARIABLE) or _read().get(_normal(url))
    if not token:
        raise click.UsageError(f"No token for {url}; set {TOKEN_VARIABLE}, or add a line `URL TOKEN` to {_path()}.")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Refused("The token contains a character that no token has, such as a space or a line break.")
    return token


def _path() -> Path:
    named = os.environ.get(FILE_VARIABLE) or "~/.config/riskrelay/credentials"
    return Path(os.path.expanduser(named))  # noqa: PTH111 - Path.expanduser raises for a user without a home, as in a container


def _normal(url: str) -> str:
    return url.rstrip("/").lower()


def _read() -> dict[str, str]:
    """Return the tokens of the file by URL, none without a file. Raises Refused, without quoting a line."""
    path = _path()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise Refused(f"{path} must belong to you and be readable by you alone; run: chmod 600 {path}")
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as failed:
        raise Refused(f"{path} cannot be read: {failed.strerror}.") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match line.split():
            case [url, token] if not url.startswith("#"):
                tokens[_normal(url)] = token
            case [first, *_] if not first.startswith("#"):
                raise Refused(f"{path}, line {number}: use the form `URL TOKEN`.")
    return tokens
