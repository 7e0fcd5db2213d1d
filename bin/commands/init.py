"""`init`: a fresh installation: `.env` with generated secrets and keys, the first account, user, project and token.

Refuses to overwrite a `.env`, and a database that has accounts: its secrets need the keys of the `.env` it was made with.
"""

import base64
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bin.cli.installation import Refused, WrongSettings, database_at, make_data_dir
from runtime.clock import utc_now
from runtime.fsync import sync
from schemas.base.principal import TokenKind
from schemas.settings.definitions import FILE_SUFFIX, SETTINGS, InvalidSettings, load_settings
from storage.accounts import accounts, projects, tokens
from storage.db import schema_version
from storage.db.engine import connection, transaction
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

FIRST_USER = "admin@localhost"
FIRST_TOKEN = "first-token"  # noqa: S105 - the name of a file
#: 256 bits: as many as HMAC-SHA-256 and AES-256 can use.
SECRET_BYTES = 32

_HEADER = """\
# Settings of this installation; docs/settings.md lists all settings. The environment takes precedence over this file.
# Keep a copy of ENCRYPTION_KEYS somewhere safe: without it, stored secrets cannot be read again.
"""


@click.command(
    epilog="Example: riskrelay init\n\nExit codes: 0 done, 1 there is a .env or an account already, 2 wrong settings."
)
def init() -> None:
    """Write .env with generated secrets, and create the first account, user, project and token."""
    env_file = Path.cwd() / ".env"
    if env_file.exists():
        raise Refused(f"{env_file} exists already; nothing was changed.")
    with _draft_of(env_file) as draft:
        token = _make_first_records(draft, env_file)
    click.echo(f"Wrote {env_file} with generated secrets and keys.")
    _tell_of_the_environment()
    _hand_over(token, load_settings(env_file).data_dir / FIRST_TOKEN)


@contextmanager
def _draft_of(env_file: Path) -> Iterator[Path]:
    """Write a draft with generated secrets beside `.env`; where its use breaks off, neither of them is left."""
    draft = env_file.with_name(".env.new")
    try:
        _write_private(draft, _HEADER + _lines(_generated()))
    except FileExistsError:
        raise Refused(f"{draft} is there: another init is running, or one was killed; delete it and try again.") from None
    except OSError as failed:
        raise Refused(f"{env_file} cannot be written: {failed.strerror}; make room, or its folder yours.") from None
    try:
        yield draft
    except BaseException:
        # Nothing was kept in the database, so nobody needs these keys.
        (draft if draft.exists() else env_file).unlink()
        raise


def _generated() -> dict[str, str]:
    return {
        "SCANNER_SHARED_SECRET": secrets.token_urlsafe(SECRET_BYTES),
        "EMAIL_WEBHOOK_SECRET": secrets.token_urlsafe(SECRET_BYTES),
        "STOREFRONT_WEBHOOK_SECRET": secrets.token_urlsafe(SECRET_BYTES),
        "WEBHOOK_SECRET": secrets.token_urlsafe(SECRET_BYTES),
        "ENCRYPTION_KEYS": base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode(),
    }


def _lines(settings: dict[str, str]) -> str:
    """Return settings as lines of `.env`; what the environment sets already is left to it."""
    return "".join(f"{name}={value}\n" for name, value in settings.items() if not _is_in_environment(name))


def _is_in_environment(name: str) -> bool:
    return bool(os.environ.get(name) or os.environ.get(name + FILE_SUFFIX))


def _tell_of_the_environment() -> None:
    """Name the settings that `.env` lacks: a command of another terminal would go by others, or to another database."""
    names = [setting.name for setting in SETTINGS if _is_in_environment(setting.name)]
    if names:
        click.echo(f"Set by the environment and not in .env: {', '.join(names)}. Every command needs them.")


def _make_first_records(draft: Path, env_file: Path) -> str:
    """Migrate and make the first account with what belongs to it and `.env`, all or nothing; return the token."""
    try:
        settings = load_settings(draft)
    except InvalidSettings as wrong:
        raise WrongSettings(wrong.report()) from None
    make_data_dir(settings)
    now = utc_now()
    with database_at(settings.database_url):
        schema_version.migrate()
        with connection(), transaction():
            if accounts.first_id() is not None:
                raise Refused("The database has accounts already; put back the .env that belongs to it.")
            account = accounts.add_account("Default", now)
            accounts.add_user(FIRST_USER, account.id, now)
            project = projects.add_project("Default", account.id, now)
            accounts.grant_project(FIRST_USER, project.id, now)
            check_keys(Vault(settings.encryption_keys), now)
            _, token = tokens.create(FIRST_USER, TokenKind.API, now, name="first")
            # Before the commit: keys that are committed to but lost could never be had again.
            _finish(draft, env_file, int(project.id))
        return token


def _finish(draft: Path, env_file: Path, project_id: int) -> None:
    """Make the draft the `.env`, whole and on disk."""
    try:
        with draft.open("a", encoding="utf-8") as file:
            file.write(_lines({"DEFAULT_PROJECT_ID": str(project_id)}))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(env_file)
        sync(env_file.parent)
    except OSError as failed:
        raise Refused(f"{env_file} cannot be written: {failed.strerror}; make room, or its folder yours.") from None


def _hand_over(token: str, path: Path) -> None:
    """Show the token on a terminal; where nobody may be looking, put it into a file of the owner's."""
    if sys.stdout.isatty():
        click.echo(f"The first API token, shown this once: {token}")
        return
    path.unlink(missing_ok=True)
    try:
        _write_private(path, f"{token}\n")
    except OSError as failed:
        another = f"make another: bin/riskrelay token create --user {FIRST_USER}"
        click.echo(f"riskrelay: {path} cannot be written: {failed.strerror}; {another}", err=True)
        return
    click.echo(f"The first API token is in {path}; keep it elsewhere and delete the file.")


def _write_private(path: Path, text: str) -> None:
    """Write a new file for its owner alone, whole or not at all."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise
