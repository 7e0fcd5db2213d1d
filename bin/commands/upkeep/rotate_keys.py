"""`rotate-keys`: encrypt everything with the first of ENCRYPTION_KEYS, so that older keys can be removed.

The order: put a new key in front (`--generate` does so in `.env`), restart service and workers, run `rotate-keys`, remove
the older keys. It can be killed at any point and run again. Refuses while a worker on this host is older than the change of
`.env`: that worker could not decrypt values of the new key.
"""

import os
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

import click

from bin.cli.env_file import by_hand, put_in_front
from bin.cli.installation import alone, is_in_environment, opened
from bin.cli.option_types import LIMIT
from bin.cli.output import Refused, echo
from bin.cli.records import json_option, print_record
from bin.cli.terminal import progress_bar
from runtime.clock import utc_now
from schemas.settings.definitions import Settings, find_env_file
from schemas.settings.parsers import KEY_BYTES
from storage.accounts.audit_log import append
from storage.db.engine import transaction
from storage.db.locks import Lock
from storage.exports import worker_heartbeats
from storage.maintenance import key_rotation
from storage.maintenance.key_rotation import Survey
from storage.secrets.key_check import check_keys, renew_canary
from storage.secrets.vault import Vault

_SETTING: Final = "ENCRYPTION_KEYS"
#: More values than any installation has.
_ALL: Final = 1_000_000


@click.command("rotate-keys")
@click.option("--generate", is_flag=True, help="Only add a new first key to ENCRYPTION_KEYS in the .env in use.")
@click.option("--dry-run", is_flag=True, help="Only count the values that would be encrypted again.")
@click.option("--limit", type=LIMIT, help=f"Maximum number of values to encrypt; default: {_ALL}.")
@json_option
def rotate_keys(generate: bool, dry_run: bool, limit: int | None, as_json: bool) -> None:
    """Encrypt secrets with the first of ENCRYPTION_KEYS, and report when the others can be removed.

    Example: riskrelay rotate-keys --generate

    Exit codes: 0 done, 1 refused or a value that no key decrypts, 2 wrong usage or settings.
    """
    if generate:
        if dry_run or limit:
            raise click.UsageError("--generate has neither --dry-run nor --limit: it changes one line of .env.")
        _generate(as_json)
        return
    is_from_file = not is_in_environment(_SETTING)
    with opened() as settings:
        vault = Vault(settings.encryption_keys)
        check_keys(vault, utc_now())
        if not dry_run and is_from_file and (key_rotation.survey(vault).outdated or key_rotation.needs_older_keys(vault)):
            # Even if there is no secret: a service with only the older keys is not ready once the canary is renewed.
            _require_restarted()
        reencrypted = 0 if dry_run else _rotate(vault, limit or _ALL)
        found = key_rotation.survey(vault)
        _print(reencrypted, found, settings, vault, as_json)
    if found.unreadable:
        raise SystemExit(1)


def _generate(as_json: bool) -> None:
    if is_in_environment(_SETTING):
        raise Refused(by_hand("comes from the environment"))
    env_file = find_env_file()
    with opened() as settings, alone(Lock.ROTATE_KEYS):
        # A new key in front of wrong ones would hide the mistake.
        check_keys(Vault(settings.encryption_keys), utc_now())
        put_in_front(env_file, os.urandom(KEY_BYTES))
    print_record({"env_file": str(env_file), "keys": len(settings.encryption_keys) + 1}, as_json)
    if not as_json:
        echo("Next, restart service and workers on every host that uses these ENCRYPTION_KEYS. Then run:")
        echo("  bin/riskrelay rotate-keys")
        echo("Keep a copy of the new key in a safe place. Existing backups need the older keys.")


def _require_restarted() -> None:
    env_file = find_env_file()
    if not env_file.is_file():
        return
    changed_at = datetime.fromtimestamp(env_file.stat().st_mtime, UTC)
    older = worker_heartbeats.on_this_host_since_before(changed_at, utc_now())
    if older:
        raise Refused(f"{older[0]} started before {env_file} was changed and may not have the new key. Restart it first.")


def _rotate(vault: Vault, limit: int) -> int:
    """Encrypt up to `limit` values with the first key, and the canary once no value is left; return how many values."""
    reencrypted = 0
    with alone(Lock.ROTATE_KEYS), progress_bar(key_rotation.count(), "Secrets") as bar:
        for progress in key_rotation.rotate(vault, limit):
            reencrypted += progress.rotated
            bar.update(progress.read)
        if not key_rotation.survey(vault).outdated:
            renew_canary(vault)
        if reencrypted:
            with transaction():
                append(utc_now(), "operator", "rotate_keys", "installation", f"reencrypted={reencrypted}")
    return reencrypted


def _print(reencrypted: int, found: Survey, settings: Settings, vault: Vault, as_json: bool) -> None:
    needs_older = found.older > 0 or key_rotation.needs_older_keys(vault)
    record = {
        "reencrypted": reencrypted,
        "waiting": found.outdated,
        "unreadable": [asdict(each) for each in found.unreadable],
        "keys": len(settings.encryption_keys),
        "older_keys_needed": needs_older,
    }
    if as_json:
        print_record(record, as_json)
        return
    print_record({**record, "unreadable": len(found.unreadable)}, as_json)
    for each in found.unreadable:
        fix = "restore the key that encrypted it, or set it again; an ID token or a link is deleted within a week"
        echo(f"riskrelay: {each.table} {each.id}: no key decrypts {each.column}; {fix}.", err=True)
    echo(_conclusion(found, needs_older, len(settings.encryption_keys)))


def _conclusion(found: Survey, needs_older: bool, keys: int) -> str:
    if found.outdated or needs_older:
        return "Older keys are still needed; run: bin/riskrelay rotate-keys"
    if keys == 1:
        return "All secrets are encrypted with the only key."
    return "You can remove the older keys from ENCRYPTION_KEYS. Keep them with the backups made so far."
