"""`target`: see and steer ticket export targets; clients make them."""

import time
from collections.abc import Callable
from typing import Final

import click

from bin.cli.installation import Refused, opened
from bin.cli.records import json_option, print_record, print_records
from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from schemas.base.errors import Conflict
from schemas.settings.definitions import Settings
from schemas.targets.pings import PingResult, ping_record
from schemas.targets.target import MAX_PER_MINUTE, RESUMABLE, Target, TargetStatus, target_record
from schemas.targets.validations import Validation
from storage.db.engine import release, transaction
from storage.secrets.vault import Vault
from storage.targets import pings, targets

_COLUMNS: Final = ("id", "name", "status", "status_reason", "base_url")
#: A look at a ping that a worker was quicker to take.
_LOOK_EVERY_S: Final = 0.05
#: What that worker may need beyond the deadline of its request: to write the result, to wait for another writer.
_MARGIN_S: Final = 2.0


def _limit_or_none(context: click.Context, option: click.Parameter, typed: str) -> int | None:
    limit: int | None = None if typed == "none" else click.IntRange(1, MAX_PER_MINUTE)(typed, option, context)
    return limit


@click.group()
def target() -> None:
    """Manage targets, the webhooks that tickets are delivered to."""


@target.command("list", epilog="Example: riskrelay target list --json\n\nExit codes: 0 listed, 2 wrong settings.")
@json_option
def list_targets(as_json: bool) -> None:
    """List targets, newest first."""
    with opened() as settings:
        records = [target_record(each, utc_now()) for each in targets.list_all(_default_fingerprint(settings))]
        print_records(records, as_json, _COLUMNS, "There are no targets.")


@target.command(epilog="Example: riskrelay target show tgt_… --json\n\nExit codes: 0 shown, 1 not found, 2 wrong usage.")
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
            _turn(target_id, verb, settings)
            _print(target_id, settings, as_json)

    return turn


pause = _turning("pause", "Pause deliveries to a target; its exports wait.")
disable = _turning("disable", "Disable a target: it accepts no approvals and receives no deliveries.")


@target.command(
    epilog="Examples: riskrelay target resume tgt_…; riskrelay target resume --all --json\n\n"
    "Exit codes: 0 done, 1 refused, with --all even for one, 2 wrong usage."
)
@click.argument("target_id", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every target that a person or a restore has paused, but no receiver.")
@json_option
def resume(target_id: str | None, is_all: bool, as_json: bool) -> None:
    """Resume deliveries, and clear holds that the receiver or failures caused.

    The address is looked at anew: one that may not be used is not resumed, and a blocked target only once nothing speaks
    against its address any more.
    """
    if is_all == (target_id is not None):
        raise click.UsageError("Name either a target or --all.")
    with opened() as settings:
        if target_id is None:
            _resume_all(settings, as_json)
        else:
            _resume(target_id, settings)
            _print(target_id, settings, as_json)


@target.command(
    epilog="Example: riskrelay target limit tgt_… --max-per-minute 30\n\n"
    "Exit codes: 0 done, 1 no such target, 2 wrong usage."
)
@click.argument("target_id")
@click.option(
    "--max-per-minute",
    metavar="N|none",
    required=True,
    callback=_limit_or_none,
    help=f"1 to {MAX_PER_MINUTE}, or none for no limit.",
)
@json_option
def limit(target_id: str, max_per_minute: int | None, as_json: bool) -> None:
    """Set a rate limit: attempts per minute over all workers, or none."""
    with opened() as settings:
        targets.set_limit(target_id, max_per_minute, utc_now(), "operator")
        _print(target_id, settings, as_json)


@target.command(
    epilog="Example: riskrelay target validate tgt_… --json\n\n"
    "Exit codes: 0 passed, 1 failed or no such target, 2 wrong usage."
)
@click.argument("target_id")
@json_option
def validate(target_id: str, as_json: bool) -> None:
    """Check a target's URL, DNS, connection and certificate without sending a request. Nothing is sent."""
    with opened() as settings:
        # Here, so that only the commands that dial carry what dialling needs.
        from worker.daemon import compose_client  # noqa: PLC0415 - see above

        url = targets.get(target_id, None).base_url
        release()
        found = compose_client(settings, 1).inspect(url)
        targets.record_validation(target_id, None, found, utc_now(), "operator")
        _print(target_id, settings, as_json)
    if not found.has_passed:
        raise SystemExit(1)


@target.command(
    epilog="Example: riskrelay target ping tgt_… --json\n\n"
    "Exit codes: 0 delivered, 1 not delivered, refused or no such target, 2 wrong usage."
)
@click.argument("target_id")
@json_option
def ping(target_id: str, as_json: bool) -> None:
    """Send one signed test event to a target and print the result; no worker is needed."""
    with opened() as settings:
        from worker.daemon import compose_ping_task  # noqa: PLC0415 - as in `validate`

        account_id = targets.get(target_id, None).account_id
        ping_id = pings.request(target_id, account_id, utc_now(), "operator")
        result = _sent(ping_id, compose_ping_task(settings, 1).run_once, settings.delivery_timeout_s + _MARGIN_S)
        print_record(ping_record(result), as_json)
    if not result.delivered:
        raise SystemExit(1)


def _turn(target_id: str, verb: str, settings: Settings) -> None:
    targets.change_status(target_id, verb, utc_now(), "operator", has_default_secret=settings.webhook_secret is not None)


def _resume(target_id: str, settings: Settings) -> None:
    """Resume a target. Raises Conflict where its address speaks against it, as a client is refused, too."""
    target = targets.get(target_id, None)
    found = _look(target, settings) if target.status in RESUMABLE else None
    if found is not None and (found.is_refused or (target.status is TargetStatus.BLOCKED and not found.has_passed)):
        raise Conflict(f"Target {target_id} stays {target.status}: {found.reason}; its address may not be used as it is.")
    with transaction():
        if found is not None and found.has_passed:
            targets.record_validation(target_id, None, found, utc_now(), "operator")
        _turn(target_id, "resume", settings)


def _look(target: Target, settings: Settings) -> Validation:
    """Look at a target's address as it is now. It may wait for the resolver."""
    # Here, so that only what needs the guard carries the service with it.
    from service.operations.address_check import AddressCheck  # noqa: PLC0415 - see above

    release()
    return AddressCheck(settings, DnsResolver()).look(target.base_url)


def _resume_all(settings: Settings, as_json: bool) -> None:
    """Resume what is paused; what cannot be is told, and holds up nothing else."""
    resumed, refused = [], []
    for each in targets.list_all(None):
        if each.status is TargetStatus.PAUSED:
            try:
                _resume(each.id, settings)
                resumed.append(each.id)
            except Conflict as conflict:
                refused.append(str(conflict))
    records = [target_record(each, utc_now()) for each in targets.list_all(_default_fingerprint(settings))]
    print_records([each for each in records if each["id"] in resumed], as_json, _COLUMNS, "No target is paused.")
    if refused:
        raise Refused(" ".join(refused))


def _sent(ping_id: str, run_once: Callable[[], bool], wait_s: float) -> PingResult:
    """Send a ping, or wait for the worker that was quicker; no connection is held meanwhile."""
    until = time.monotonic() + wait_s
    while (result := pings.get(ping_id).result) is None:
        release()
        if not run_once():
            if time.monotonic() > until:
                pings.give_up(ping_id, utc_now())
            time.sleep(_LOOK_EVERY_S)
    return result


def _print(target_id: str, settings: Settings, as_json: bool) -> None:
    print_record(target_record(targets.get(target_id, _default_fingerprint(settings)), utc_now()), as_json)


def _default_fingerprint(settings: Settings) -> str | None:
    return Vault(settings.encryption_keys).fingerprint(settings.webhook_secret) if settings.webhook_secret else None
