"""`target`: create, show, control and remove ticket export targets."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from bin.cli.account_option import account_option, account_or_only
from bin.cli.database_command import with_database
from bin.cli.installation import opened
from bin.cli.option_types import require_one
from bin.cli.output import Refused, echo
from bin.cli.provider_options import settings_from, settings_options, webhook_members, webhook_options
from bin.cli.records import Command, Record, RecordTable, json_option, print_record
from bin.cli.request_bodies import present
from bin.cli.secret_input import own_vault, read_token
from runtime.clock import utc_now
from schemas.api.response_fields import dump
from schemas.api.targets import PingOutcomeResponse, dump_target
from schemas.base.principal import OPERATOR
from schemas.content_policy.checked_form import read_checked
from schemas.targets.error_help import help_for
from schemas.targets.forms import TargetEditForm, TargetForm
from schemas.targets.target import MAX_PER_MINUTE, TargetRequest, place_of
from schemas.targets.validations import Validation
from schemas.trackers.registry import GENERIC_WEBHOOK, provider_keys
from service.operations.wiring import Operations, build_operations
from storage.db.engine import transaction
from storage.targets import pings, targets, validations

TARGETS: Final = RecordTable(("id", "name", "provider_key", "status", "status_reason", "base_url"), "There are no targets.")


def _limit_members(context: click.Context, option: click.Parameter, typed: str | None) -> dict[str, int | None]:
    """Return the limit as a member of a form, or no member if the option is absent: `none` is a value."""
    if typed is None:
        return {}
    if typed == "none":
        return {"max_per_minute": None}
    is_number = typed.isascii() and typed.isdecimal() and len(typed) <= len(str(MAX_PER_MINUTE))
    if not is_number or not 1 <= int(typed) <= MAX_PER_MINUTE:
        raise click.BadParameter(f"Use a whole number from 1 to {MAX_PER_MINUTE}, or none.", context, option)
    return {"max_per_minute": int(typed)}


def _limit_option(*, required: bool = False) -> Callable[[Command], Command]:
    return click.option(
        "--max-per-minute",
        "limit_members",
        metavar="N|none",
        required=required,
        callback=_limit_members,
        help=f"Attempts per minute over all workers: 1 to {MAX_PER_MINUTE}, or none for no limit.",
    )


target: Final = click.Group("target")


@target.command("list")
@with_database(TARGETS.show, build_operations)
def list_targets(operations: Operations) -> list[Record]:
    """List targets, newest first.

    Example: riskrelay target list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    return [dump_target(each, utc_now()) for each in targets.list_all(operations.targets.default_secret)]


@target.command()
@click.argument("target_id")
@with_database(build=build_operations)
def show(operations: Operations, target_id: str) -> Record:
    """Show one target.

    Example: riskrelay target show tgt_… --json

    Exit codes: 0 shown, 1 not found, 2 wrong usage.
    """
    return _record(operations, target_id)


@target.command()
@click.argument("provider_key", metavar="PROVIDER")
@click.argument("base_url", metavar="URL", required=False)
@click.option("--name", help="The name; default: the host and path of the URL.")
@account_option
@settings_options
@webhook_options
@_limit_option()
@click.option("--url", help="The URL of a webhook, if the first argument is its name.")
@json_option
def add(account_id: int | None, as_json: bool, **given: Any) -> None:
    """Create a target: a webhook, or a tracker, whose token is read from standard input.

    PROVIDER is generic_webhook or a tracker such as github, URL the receiver, or the page of the tracker's project. The
    settings of this command check the URL; a worker validates the target afterwards. Without a token a tracker is inactive
    until `secret set target`. WEBHOOK_SECRET signs deliveries to a webhook that has no own secret.

    Examples: riskrelay target add github https://github.com/acme/shop --label website-risk <token.txt; riskrelay target add
    generic_webhook https://tracker.example.com/hook --name 'Our tracker'

    Exit codes: 0 created, 1 refused, 2 wrong usage.
    """
    members = new_members(**given)
    with opened() as installation:
        operations = build_operations(installation)
        account_id = account_or_only(account_id)
        request: TargetRequest = read_checked(TargetForm(), members)
        operations.targets.require_safe(request, account_id)
        token, vault = (
            (None, None) if request.provider_key == GENERIC_WEBHOOK else (read_token("Token"), own_vault(installation))
        )
        with transaction():
            made = operations.targets.create(request, account_id, OPERATOR)
            if token is not None and vault is not None:
                operations.targets.set_secret(made.id, token, vault, OPERATOR)
        operations.wake_workers()
        print_record(_record(operations, made.id), as_json)
    if vault is not None and token is None:
        echo(f"riskrelay: the target has no token yet; set it with `riskrelay secret set target {made.id}`.", err=True)


@target.command("set")
@click.argument("target_id")
@click.option("--name", help="The new name.")
@click.option("--url", help="The new URL; exports that wait are sent to it.")
@settings_options
@webhook_options
@_limit_option()
@with_database(build=build_operations)
def set_members(operations: Operations, target_id: str, **given: Any) -> Record:
    """Change a target's name, URL, settings, signature, format or rate limit.

    A new URL is checked like the URL of a new target; status, validation and failures then become those of a new target.
    Settings that are not named stay; `--setting NAME=` removes one. If the new URL is on another server, a tracker loses
    its token, and a webhook its headers.

    Example: riskrelay target set tgt_… --url https://tracker.example.com/hook --name 'Our tracker'

    Exit codes: 0 done, 1 refused or no such target, 2 wrong usage.
    """
    settings, labels = given.pop("settings"), given.pop("labels")
    members = changed_members(**given, has_settings=bool(settings or labels))
    if settings or labels:
        found = operations.targets.get(target_id, OPERATOR)
        members["provider_settings"] = settings_from(found.provider_key, settings, labels, found.provider_settings)
    edit = read_checked(TargetEditForm(), members)
    operations.targets.require_safe_edit(target_id, edit, OPERATOR)
    operations.targets.edit(target_id, edit, OPERATOR)
    operations.wake_workers()
    return _record(operations, target_id)


@target.command()
@click.argument("target_id")
@with_database(build=build_operations)
def remove(operations: Operations, target_id: str) -> Record:
    """Remove a target that no export waits for, and erase its secrets.

    Its exports keep its id, and their attempts remain.

    Example: riskrelay target remove tgt_…

    Exit codes: 0 removed, 1 no such target, or exports wait for it, 2 wrong usage.
    """
    operations.targets.remove(target_id, OPERATOR)
    return {"id": target_id, "removed": True}


@target.command()
@click.argument("target_id")
@with_database(build=build_operations)
def pause(operations: Operations, target_id: str) -> Record:
    """Pause deliveries to a target; its exports wait.

    Example: riskrelay target pause tgt_…

    Exit codes: 0 done, 1 refused, 2 wrong usage.
    """
    return _change_status(operations, target_id, "pause")


@target.command()
@click.argument("target_id")
@with_database(build=build_operations)
def disable(operations: Operations, target_id: str) -> Record:
    """Disable a target: it accepts no approvals and receives no deliveries.

    Example: riskrelay target disable tgt_…

    Exit codes: 0 done, 1 refused, 2 wrong usage.
    """
    return _change_status(operations, target_id, "disable")


def _change_status(operations: Operations, target_id: str, verb: str) -> Record:
    operations.targets.change_status(target_id, verb, OPERATOR)
    return _record(operations, target_id)


@target.command()
@click.argument("target_id", required=False)
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Resume every target that was paused by a user or a restore, but not by its receiver.",
)
@json_option
def resume(target_id: str | None, is_all: bool, as_json: bool) -> None:
    """Resume deliveries, and clear holds that the receiver or failures caused.

    The target is resumed only if the settings of this command allow its address; a worker validates it afterwards. Exports
    that became blocked because the tracker refused them are queued again.

    Examples: riskrelay target resume tgt_…; riskrelay target resume --all --json

    Exit codes: 0 done, 1 refused, with --all for at least one target, 2 wrong usage.
    """
    require_one("Use either a target id or --all.", target_id, is_all)
    with opened() as settings:
        operations = build_operations(settings)
        if target_id is None:
            resumed, refusals = operations.targets.resume_all_paused(OPERATOR)
            print_resumed([_record(operations, each) for each in resumed], [*map(str, refusals)], as_json)
        else:
            operations.targets.check_and_resume(target_id, OPERATOR)
            print_record(_record(operations, target_id), as_json)


@target.command()
@click.argument("target_id")
@_limit_option(required=True)
@with_database(build=build_operations)
def limit(operations: Operations, target_id: str, limit_members: dict[str, int | None]) -> Record:
    """Set a rate limit: attempts per minute over all workers, or none.

    Example: riskrelay target limit tgt_… --max-per-minute 30

    Exit codes: 0 done, 1 no such target, 2 wrong usage.
    """
    operations.targets.edit(target_id, TargetEditForm().read(limit_members), OPERATOR)
    return _record(operations, target_id)


@target.command()
@click.argument("target_id")
@json_option
def validate(target_id: str, as_json: bool) -> None:
    """Check a target's URL, DNS, connection and certificate; a tracker's token, rights and settings too.

    Nothing is sent to a receiver, and nothing is created at a tracker.
    A running worker checks the target with the worker's settings, and the result is stored. Without a running worker, this
    command checks the target with its own settings, prints the result as `checked`, and stores nothing.

    Example: riskrelay target validate tgt_… --json

    Exit codes: 0 passed, 1 failed or no such target, 2 wrong usage.
    """
    with opened() as settings:
        operations = build_operations(settings).targets
        is_by_worker = operations.validate_by_worker(target_id, OPERATOR)
        target = operations.get(target_id, OPERATOR)
        found = Validation(target.validation_reason)
        if not is_by_worker:
            # Imported here: only the commands that connect to targets need it, and the import is slow.
            from worker.composition import compose_validation_task  # noqa: PLC0415 - see above

            _report_no_worker()
            found = compose_validation_task(settings, 1).inspect(validations.draft(target_id))
        by, status = "worker" if is_by_worker else "command", "passed" if found.has_passed else "failed"
        checked = {"by": by, "status": status, "reason": found.reason}
        record = {**dump_target(target, utc_now()), "checked": checked}
    print_result(record, found.reason, as_json, is_good=found.has_passed)


@target.command()
@click.argument("target_id")
@json_option
def ping(target_id: str, as_json: bool) -> None:
    """Send one signed test event to a target and print the result; validate a target of a tracker.

    A running worker sends the event with the worker's settings. Without a running worker, this command sends it with its
    own settings and stores nothing.

    Example: riskrelay target ping tgt_… --json

    Exit codes: 0 delivered, 1 not delivered, refused or no such target, 2 wrong usage.
    """
    with opened() as settings:
        operations = build_operations(settings).targets
        if operations.has_worker():
            result = operations.ping(target_id, OPERATOR)
        else:
            from worker.composition import compose_ping_task  # noqa: PLC0415 - as in `validate`

            order = pings.draft(target_id, utc_now())
            _report_no_worker()
            result = compose_ping_task(settings, 1).send_unrecorded(order)
        record = dump(PingOutcomeResponse, result)
    print_result(record, result.error_code, as_json, is_good=result.delivered)


def print_result(record: Record, error_code: str | None, as_json: bool, *, is_good: bool) -> None:
    """Print the result of a validation or ping, with an explanation of its error; exit with code 1 unless it `is_good`."""
    print_record(record, as_json)
    if error_code is not None and not as_json:
        echo(" ".join(help_for(error_code)))
    if not is_good:
        raise SystemExit(1)


def new_members(
    provider_key: str,
    base_url: str | None,
    name: str | None,
    settings: tuple[str, ...],
    labels: tuple[str, ...],
    url: str | None,
    limit_members: dict[str, int | None],
    **webhook: Any,
) -> dict[str, Any]:
    """Return the options of `add` as members of a form. Raises UsageError."""
    if url is not None:
        if base_url is not None or name is not None or provider_key in provider_keys():
            raise click.UsageError("Use PROVIDER URL and --name, or the name of a webhook and --url.")
        provider_key, base_url, name = GENERIC_WEBHOOK, url, provider_key
    if base_url is None:
        raise click.UsageError("Missing argument 'URL'.")
    members: dict[str, Any] = {
        "provider_key": provider_key,
        "base_url": base_url,
        "name": name or place_of(base_url),
        **limit_members,
        **webhook_members(**webhook),
    }
    if given := settings_from(provider_key, settings, labels):
        members["provider_settings"] = given
    return members


def changed_members(
    name: str | None, url: str | None, limit_members: dict[str, int | None], *, has_settings: bool, **webhook: Any
) -> dict[str, Any]:
    """Return the options of `set`, except settings, as members of a form. Raises UsageError without any."""
    members = present({"name": name, "base_url": url}) | limit_members | webhook_members(**webhook)
    if not (members or has_settings):
        raise click.UsageError("Use --name, --url, --setting, --label, --signature, --format, --event or --max-per-minute.")
    return members


def _report_no_worker() -> None:
    echo("riskrelay: no worker responded; this command uses its own settings and stores nothing.", err=True)


def print_resumed(resumed: Sequence[Record], refusals: Sequence[str], as_json: bool) -> None:
    """Print the targets that `--all` resumed. Raises Refused with the reasons for the others."""
    TARGETS.show(resumed, as_json, "No target was resumed." if refusals else "No target is paused.")
    if refusals:
        raise Refused(" ".join(refusals))


def _record(operations: Operations, target_id: str) -> Record:
    return dump_target(operations.targets.get(target_id, OPERATOR), utc_now())
