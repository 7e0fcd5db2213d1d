"""`target`: see and steer ticket export targets; clients make them."""

from collections.abc import Callable

import click

from bin.installation import opened
from bin.records import json_option, print_record, print_records
from schemas.settings import Settings
from schemas.targets import target_record
from storage import targets
from storage.clock import utc_now
from storage.vault import Vault


@click.group()
def target() -> None:
    """Targets: where tickets are delivered."""


@target.command("list", epilog="Example: riskrelay target list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_targets(as_json: bool) -> None:
    """List the targets, the newest first."""
    with opened() as settings:
        records = [target_record(each) for each in targets.all_targets(_default_fingerprint(settings))]
        columns = ("id", "name", "status", "status_reason", "base_url")
        print_records(records, as_json, columns, "There are no targets.")


@target.command(epilog="Example: riskrelay target show tgt_… --json\n\nExit codes: 0 shown, 1 there is none, 2 wrong usage.")
@click.argument("target_id")
@json_option
def show(target_id: str, as_json: bool) -> None:
    """Show one target."""
    with opened() as settings:
        _print(target_id, settings, as_json)


def _turning(verb: str, what: str) -> Callable[..., None]:
    @target.command(
        verb,
        help=what,
        epilog=f"Example: riskrelay target {verb} tgt_…\n\nExit codes: 0 done, 1 refused, 2 wrong usage.",
    )
    @click.argument("target_id")
    @json_option
    def turn(target_id: str, as_json: bool) -> None:
        with opened() as settings:
            targets.turn(target_id, verb, utc_now(), "operator", has_default_secret=settings.webhook_secret is not None)
            _print(target_id, settings, as_json)

    return turn


pause = _turning("pause", "Let exports wait; nothing is lost.")
resume = _turning("resume", "Deliver again.")
disable = _turning("disable", "Take no more approvals and deliver nothing.")


def _print(target_id: str, settings: Settings, as_json: bool) -> None:
    print_record(target_record(targets.get(target_id, _default_fingerprint(settings))), as_json)


def _default_fingerprint(settings: Settings) -> str | None:
    return Vault(settings.encryption_keys).fingerprint(settings.webhook_secret) if settings.webhook_secret else None
