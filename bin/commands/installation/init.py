"""`init`: create an installation: `.env` with generated secrets and keys, the first account, user, project and token.

With an existing `.env` and a database without accounts it completes the installation: it adds the secrets that are missing
and creates the first records; `run` also creates them. It changes no secret, and refuses a database that has accounts. After
a failure or a kill, the next `init` continues.
"""

import base64
import secrets
import sys
from collections.abc import Iterator
from contextlib import suppress
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
from bin.cli.output import Refused, echo, writing
from runtime.clock import utc_now
from runtime.files import replacing
from schemas.base.principal import ABILITIES, TokenKind
from schemas.settings.definitions import SETTINGS, Settings, find_env_file
from schemas.settings.file_trust import trust_problem, trusted_users
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
_FIX = "Create its folder, free space, or become the owner of the folder."

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
    if not env_file.exists():
        with writing(env_file, _FIX):
            problem = trust_problem(env_file.parent, trusted_users())
        if problem:
            raise WrongSettings(f"{env_file}: {problem.message} Run: {problem.command}")
    settings = checked_settings()
    make_data_dir(settings)
    with database_at(settings.database_url):
        schema_version.migrate()
    if create_missing_records(settings, adds_secrets=True):
        _print_environment_settings()
    elif env_file.exists():
        raise Refused(f"{env_file} already exists, and the database has accounts; nothing was changed.")
    else:
        raise Refused("The database already has accounts; restore the .env that belongs to it.")


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
            # Before the records: a database whose keys are lost cannot be recovered.
            lines = _add_secrets(find_env_file())
            settings = checked_settings()
        with transaction():
            token, project_id = _add_first_records(settings)
            # Before the commit, and before anything is printed: after a failure, the next run creates all records again.
            kept = _keep_token(token, settings.data_dir / FIRST_TOKEN)
            lines += ["The database had no account: created the first account, user, project and token."]
            lines += [*_set_default_project(settings, project_id), kept]
    for line in lines:
        echo(line)
    return True


def _add_secrets(env_file: Path) -> list[str]:
    """Add the secrets and keys that are not set to `.env`, which is created if missing; return the lines to print.

    The caller holds the lock. The settings are read again, because another `init` may have added secrets before.
    """
    settings, is_new, added = checked_settings(), not env_file.exists(), []
    generated = {name: secrets.token_urlsafe(SECRET_BYTES) for name in SHARED_SECRETS}
    generated["ENCRYPTION_KEYS"] = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    with writing(env_file, _FIX):
        if is_new:
            with replacing(env_file) as file:
                file.write(_HEADER)
        for name, value in generated.items():
            if not (getattr(settings, name.lower()) or is_in_environment(name)):
                set_line(env_file, name, value)
                added.append(f"Added {name} to {env_file}.")
    return [f"Wrote {env_file} with generated secrets and keys."] if is_new else added


def _set_default_project(settings: Settings, project_id: int) -> Iterator[str]:
    """Write the first project to `.env`; if that is impossible or has no effect, yield what the operator must do."""
    name, env_file = "DEFAULT_PROJECT_ID", find_env_file()
    if settings.default_project_id == project_id:
        return
    if not is_in_environment(name) and env_file.is_file():
        with suppress(OSError):
            set_line(env_file, name, str(project_id))
            return
    yield f"Set {name}={project_id} in the environment, and restart: scan runs that are not registered need it."


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


def _keep_token(token: str, path: Path) -> str:
    """Return a line to print. On a terminal it shows the token; elsewhere, output may be logged, so it names a file.

    The token is written to this file; its mode is 0600.
    """
    if sys.stdout.isatty():
        return f"The first API token, shown only once: {token}"
    with writing(path, _FIX):
        path.unlink(missing_ok=True)
        with replacing(path) as file:
            file.write(f"{token}\n")
    return f"The first API token is in {path}; store it elsewhere and delete the file."
