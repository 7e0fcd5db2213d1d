"""`rotate-keys`: seal everything with the first of ENCRYPTION_KEYS, so that older ones may go.

In this order: a new key in front (`--generate` puts it into `.env`), restart service and workers, `rotate-keys`, take the
older keys away. It may be killed anywhere and run again. Refuses while a worker of this host runs that was started before
the `.env` was changed: it could not open what is sealed with the new key.
"""

import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import click

from bin.cli.env_file import by_hand, put_in_front
from bin.cli.installation import Refused, alone, opened
from bin.cli.number_types import LIMIT
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from schemas.settings.definitions import Settings, find_env_file
from schemas.settings.parsers import KEY_BYTES
from storage.accounts.audit_log import append
from storage.db.engine import transaction
from storage.db.locks import Lock
from storage.exports import worker_heartbeats
from storage.maintenance import key_rotation
from storage.maintenance.key_rotation import Survey, UnreadableValue
from storage.secrets.key_check import check_keys, renew_canary
from storage.secrets.vault import Vault

_SETTING: Final = "ENCRYPTION_KEYS"


@click.command(
    "rotate-keys",
    epilog="Example: riskrelay rotate-keys --generate\n\n"
    "Exit codes: 0 done, 1 something opens with no key, or it was refused, 2 wrong usage or settings.",
)
@click.option("--generate", is_flag=True, help="Only put a new key in front of ENCRYPTION_KEYS in the .env in use.")
@click.option("--dry-run", is_flag=True, help="Only count what would be sealed anew.")
@click.option("--limit", type=LIMIT, default=1_000_000, show_default=True, help="Seal no more anew.")
@json_option
def rotate_keys(generate: bool, dry_run: bool, limit: int, as_json: bool) -> None:
    """Encrypt every stored secret with the first of ENCRYPTION_KEYS, and say when older keys can go."""
    if generate:
        if dry_run:
            raise click.UsageError("--generate has no dry run: it changes one line of .env and nothing else.")
        _generate(as_json)
        return
    is_from_file = not _is_set()
    with opened() as settings:
        vault = Vault(settings.encryption_keys)
        check_keys(vault, utc_now())
        if not dry_run and is_from_file and key_rotation.survey(vault).outdated:
            _require_restarted()
        resealed = 0 if dry_run else _rotate(vault, limit)
        found = key_rotation.survey(vault)
        _print(resealed, found, settings, vault, as_json)
    if found.unreadable:
        raise SystemExit(1)


def _is_set() -> bool:
    """Tell whether the keys come from the environment; to be asked before `.env` is read into it."""
    return bool({_SETTING, f"{_SETTING}_FILE"} & os.environ.keys())


def _generate(as_json: bool) -> None:
    if _is_set():
        raise Refused(by_hand("comes from the environment"))
    env_file = find_env_file()
    with opened() as settings, alone(Lock.ROTATE_KEYS):
        # A new key in front of wrong ones would make the mistake harder to see.
        check_keys(Vault(settings.encryption_keys), utc_now())
        put_in_front(env_file, os.urandom(KEY_BYTES), settings.encryption_keys)
    print_record({"env_file": str(env_file), "keys": len(settings.encryption_keys) + 1}, as_json)
    if not as_json:
        click.echo("Now restart service and workers, on every host with this ENCRYPTION_KEYS; then run:")
        click.echo("  bin/riskrelay rotate-keys")
        click.echo("Keep a copy of the new key somewhere safe; the older ones belong to the backups made until now.")


def _require_restarted() -> None:
    env_file = find_env_file()
    if not env_file.is_file():
        return
    changed_at = datetime.fromtimestamp(env_file.stat().st_mtime, UTC)
    older = worker_heartbeats.on_this_host_since_before(changed_at, utc_now())
    if older:
        raise Refused(
            f"{older[0]} was started before {env_file} was changed and may not have the new key; restart it first."
        )


def _rotate(vault: Vault, limit: int) -> int:
    """Seal up to `limit` values anew, then the canary where nothing is left; return how many."""
    resealed = 0
    with alone(Lock.ROTATE_KEYS), _bar(key_rotation.count()) as bar:
        for progress in key_rotation.rotate(vault, limit):
            resealed += progress.rotated
            bar.update(progress.read)
        if not key_rotation.survey(vault).outdated:
            renew_canary(vault)
        if resealed:
            with transaction():
                append(utc_now(), "operator", "rotate_keys", "installation", f"resealed={resealed}")
    return resealed


def _bar(length: int) -> Any:
    return click.progressbar(length=length, label="Secrets", file=sys.stderr, hidden=not sys.stderr.isatty())


def _print(resealed: int, found: Survey, settings: Settings, vault: Vault, as_json: bool) -> None:
    needs_older = found.older > 0 or key_rotation.needs_older_keys(vault)
    record = {
        "resealed": resealed,
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
        click.echo(f"riskrelay: {_told(each)}", err=True)
    click.echo(_conclusion(found, needs_older, len(settings.encryption_keys)))


def _told(each: UnreadableValue) -> str:
    remedy = "set it anew" if each.table != "compliance_requests" else "put back the key that sealed it"
    return f"{each.table} {each.id}: {each.column} opens with no key; {remedy}."


def _conclusion(found: Survey, needs_older: bool, keys: int) -> str:
    if found.outdated or needs_older:
        return "Older keys are still needed; run: bin/riskrelay rotate-keys"
    if keys == 1:
        return "Everything is sealed with the one key there is."
    return "Older keys may be removed from ENCRYPTION_KEYS; keep them with the backups that were made until now."
