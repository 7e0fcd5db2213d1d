"""`init`: create an installation: `.env` with generated secrets and keys, the first account, user, project and token.

With an existing `.env` and a database without accounts it completes the installation: it adds the secrets that are missing
and creates the first records; `run` also creates them. It changes no secret, and refuses a database that has accounts.
"""

import base64
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bin.cli.env_file import set_line
from bin.cli.installation import (
    SHARED_SECRETS,
    WrongSettings,
    alone,
    checked_settings,
    database_at,
    is_in_environment,
    make_data_dir,
)
from bin.cli.output import Refused, echo
from bin.cli.terminal import is_terminal
from runtime.clock import utc_now
from runtime.files import replacing, sync
from schemas.base.principal import ABILITIES, TokenKind
from schemas.settings.definitions import (
    ENV_FILE_VARIABLE,
    FILE_SUFFIX,
    SETTINGS,
    InvalidSettings,
    Settings,
    empty_files,
    find_env_file,
)
from storage.accounts import accounts, projects, tokens
from storage.db import schema_version
from storage.db.engine import connection, transaction
from storage.db.locks import Lock
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault

FIRST_USER = "admin@localhost"
FIRST_TOKEN = "first-token"  # noqa: S105 - the name of a file
#: 256 bits: as many as HMAC-SHA-256 and AES-256 can use.
SECRET_BYTES = 32
#: How long to wait for another `init`: creating the first records takes milliseconds.
_OTHER_INIT_WITHIN_S = 10.0

_HEADER = """\
# Settings of this installation; docs/settings.md lists all settings. The environment takes precedence over this file.
# Keep a copy of ENCRYPTION_KEYS in a safe place: without it, stored secrets cannot be decrypted.
"""


@click.command()
def init() -> None:
    """Write .env with generated secrets, and create the first account, user, project and token.

    If .env exists and the database has no account, it keeps .env and adds what is missing.

    Example: riskrelay init

    Exit codes: 0 done, 1 the database has accounts or cannot be used, 2 wrong settings.
    """
    env_file = find_env_file()
    if env_file.exists() and not env_file.is_file():
        # Otherwise a file would replace a device such as /dev/null.
        raise Refused(f"{env_file} is not a file; set {ENV_FILE_VARIABLE} to another path.")
    settings = checked_settings()
    _require_files_with_values(env_file)
    if env_file.exists():
        make_data_dir(settings)
        with database_at(settings.database_url):
            schema_version.migrate()
        if not create_missing_records(settings, adds_secrets=True):
            raise Refused(f"{env_file} already exists, and the database has accounts; nothing was changed.")
        return
    with _draft_of(env_file) as draft:
        kept = _make_first_records(draft, env_file)
    echo(f"Wrote {env_file} with generated secrets and keys.")
    _print_environment_settings()
    echo(kept)


def _require_files_with_values(env_file: Path) -> None:
    """Raise WrongSettings if a setting names an empty file for a secret: a generated secret could not be added beside it."""
    fix = "Names an empty file. Write the value into it, or remove this setting: init then generates a value."
    empty = {name: [fix] for name in empty_files(env_file) if name.removesuffix(FILE_SUFFIX) in _generated()}
    if empty:
        raise WrongSettings(str(InvalidSettings(empty)))


@contextmanager
def _draft_of(env_file: Path) -> Iterator[Path]:
    """Write a draft with generated secrets beside `.env`, which the block renames; if it raises, no draft is left."""
    draft = env_file.with_name(".env.new")
    with _writing(env_file):
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise Refused(f"{draft} exists: another init is running or was killed; delete it and try again.") from None
    try:
        with _writing(env_file), os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_HEADER + _lines(_generated()))
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _generated() -> dict[str, str]:
    return {
        **{name: secrets.token_urlsafe(SECRET_BYTES) for name in SHARED_SECRETS},
        "ENCRYPTION_KEYS": base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode(),
    }


def _lines(settings: dict[str, str]) -> str:
    """Return settings as lines of `.env`, without those that the environment sets."""
    return "".join(f"{name}={value}\n" for name, value in settings.items() if not is_in_environment(name))


def _print_environment_settings() -> None:
    """Print which settings only the environment has: in another shell, a command would use other values or databases."""
    names = [setting.name for setting in SETTINGS if is_in_environment(setting.name)]
    if names:
        echo(f"Set in the environment and not in .env: {', '.join(names)}. Every command needs them.")


def create_missing_records(settings: Settings, *, adds_secrets: bool = False) -> bool:
    """Create the first account, user, project and token if the migrated database has no account; return whether it had none.

    Prints or saves the token, and writes the project to DEFAULT_PROJECT_ID in `.env`. With `adds_secrets`, also adds the
    secrets that are not set.
    """
    lines: list[str] = []
    with database_at(settings.database_url), connection(), alone(Lock.INIT, _OTHER_INIT_WITHIN_S):
        if accounts.first_id() is not None:
            return False
        if adds_secrets:
            settings, lines = _add_secrets(find_env_file())
        with transaction():
            token, project_id = _add_first_records(settings)
            # Before the commit, and before anything is printed: after a failure, the next run creates all records again.
            kept = _keep_token(token, settings.data_dir / FIRST_TOKEN)
            lines += ["The database had no account: created the first account, user, project and token."]
            lines += [*_set_default_project(settings, project_id), kept]
    for line in lines:
        echo(line)
    return True


def _add_secrets(env_file: Path) -> tuple[Settings, list[str]]:
    """Add the secrets and keys that are not set; return the settings with them, and a line to print about each.

    The caller holds the lock. The settings are read again, because another `init` may have added secrets before.
    """
    settings, lines = checked_settings(), []
    for name, value in _generated().items():
        if not getattr(settings, name.lower()):
            with _writing(env_file):
                set_line(env_file, name, value)
            lines.append(f"Added {name} to {env_file}.")
    return checked_settings(), lines


def _set_default_project(settings: Settings, project_id: int) -> Iterator[str]:
    """Write the first project to `.env`; if the setting does not come from there, yield what the operator must do."""
    name, env_file = "DEFAULT_PROJECT_ID", find_env_file()
    if settings.default_project_id == project_id:
        return
    if is_in_environment(name) or not env_file.is_file():
        yield f"Set {name}={project_id} in the environment, and restart: scan runs that are not registered need it."
        return
    try:
        set_line(env_file, name, str(project_id))
    except OSError as failed:
        echo(f"riskrelay: {env_file} cannot be written: {failed.strerror}; set {name}={project_id} in it.", err=True)


def _make_first_records(draft: Path, env_file: Path) -> str:
    """Migrate, then create the first account, user, project, token and `.env`, all or none; return a line on the token."""
    settings = checked_settings(draft)
    make_data_dir(settings)
    with database_at(settings.database_url):
        schema_version.migrate()
        with connection(), alone(Lock.INIT, _OTHER_INIT_WITHIN_S), transaction():
            if accounts.first_id() is not None:
                raise Refused("The database already has accounts; restore the .env that belongs to it.")
            token, project_id = _add_first_records(settings)
            # Before the commit: a database whose keys are lost cannot be recovered. If the commit fails, `.env` stays,
            # because the database may have committed before the connection was lost; the next `init` completes either.
            try:
                _finish(draft, env_file, project_id)
                return _keep_token(token, settings.data_dir / FIRST_TOKEN)
            except BaseException:
                env_file.unlink(missing_ok=True)
                raise


def _add_first_records(settings: Settings) -> tuple[str, int]:
    """Store the first account, user, project and token; return the token and the project's id."""
    now = utc_now()
    account = accounts.add_account("Default", now)
    accounts.add_user(FIRST_USER, account.id, now)
    project = projects.add_project("Default", account.id, now)
    accounts.grant_project(FIRST_USER, project.id, now)
    check_keys(Vault(settings.encryption_keys), now)
    # With all abilities, also `console`: the operator signs in to the console with this token.
    _, token = tokens.create(FIRST_USER, TokenKind.API, now, ABILITIES[TokenKind.API], name="first")
    return token, int(project.id)


def _finish(draft: Path, env_file: Path, project_id: int) -> None:
    """Complete the draft, sync it and rename it to `.env`."""
    with _writing(env_file):
        with draft.open("a", encoding="utf-8") as file:
            file.write(_lines({"DEFAULT_PROJECT_ID": str(project_id)}))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(env_file)
        sync(env_file.parent)


def _keep_token(token: str, path: Path) -> str:
    """Return a line to print. On a terminal it shows the token; elsewhere, output may be logged, so it names a file.

    The token is written to this file; its mode is 0600.
    """
    if is_terminal(sys.stdout):
        return f"The first API token, shown only once: {token}"
    with _writing(path):
        path.unlink(missing_ok=True)
        with replacing(path) as file:
            file.write(f"{token}\n")
    return f"The first API token is in {path}; store it elsewhere and delete the file."


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise Refused with the fix if a file cannot be written."""
    try:
        yield
    except OSError as failed:
        fix = "create its folder, free space, or become the owner of the folder"
        raise Refused(f"{path} cannot be written: {failed.strerror}; {fix}.") from None
