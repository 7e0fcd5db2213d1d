"""`compliance`: process and list the requests of storefront compliance webhooks.

`run` is for cron on hosts without a worker daemon. It may run beside a daemon: each request has one lease holder. If
`run` is killed, its lease expires within seconds and the next run continues.
"""

from pathlib import Path
from typing import Final

import click

from bin.cli.database_command import with_database
from bin.cli.installation import alone, opened
from bin.cli.option_types import LIMIT
from bin.cli.output import writing
from bin.cli.private_files import write_private
from bin.cli.records import Record, RecordTable, json_option, print_record
from bin.cli.terminal import progress_bar
from runtime.clock import utc_now
from schemas.api.administration import dump_compliance_request
from schemas.base.principal import OPERATOR
from schemas.settings.definitions import Settings
from storage.compliance import erasure_replay, recipients
from storage.compliance import requests as ledger
from storage.db.locks import Lock
from storage.exports.worker_heartbeats import process_name
from storage.secrets.vault import Vault
from worker.background.compliance import ComplianceTask

REQUESTS: Final = RecordTable(
    ("id", "topic", "shop_domain", "status", "result", "due_at", "overdue", "attempts", "last_error"),
    "There are no compliance requests.",
)
#: The most tickets at targets that `show` lists.
MAX_RECIPIENTS: Final = 1_000


def _vault(settings: Settings) -> Vault:
    return Vault(settings.encryption_keys)


compliance: Final = click.Group("compliance")


@compliance.command()
@click.option("--dry-run", is_flag=True, help="Only count waiting requests.")
@click.option("--limit", type=LIMIT, default=10_000, show_default=True, help="Maximum number of requests.")
@json_option
def run(dry_run: bool, limit: int, as_json: bool) -> None:
    """Process the waiting requests, oldest first; an interrupted request is resumed later.

    Example: riskrelay compliance run --json

    Exit codes: 0 done, 1 already running, a request failed, or database unavailable, 2 wrong usage or settings.
    """
    with opened() as settings:
        task = ComplianceTask(Vault(settings.encryption_keys), process_name("compliance"), utc_now)
        if not dry_run:
            count = min(limit, ledger.count_waiting(utc_now()))
            with alone(Lock.COMPLIANCE), progress_bar(count, "Requests") as bar:
                while bar.pos < count and task.run_once():
                    bar.update(1)
        print_record({"done": task.done, "waiting": ledger.count_unfinished()}, as_json)
    if task.failed:
        raise SystemExit(1)


@compliance.command("list")
@with_database(REQUESTS.show)
def list_requests() -> list[Record]:
    """List compliance requests: waiting ones by due date, then finished ones, newest first.

    Example: riskrelay compliance list --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong settings.
    """
    return [dump_compliance_request(each, utc_now()) for each in ledger.list_all()]


@compliance.command()
@click.argument("request_id")
@click.option("--report", "with_report", is_flag=True, help="Include the personal data that a data request found.")
@with_database(build=_vault)
def show(vault: Vault, request_id: str, with_report: bool) -> Record:
    """Show one compliance request.

    Includes the targets that received the data that it redacted, and whether they accepted the redaction.

    Example: riskrelay compliance show cpl_… --report --json

    Exit codes: 0 shown, 1 not found or its report cannot be decrypted, 2 wrong usage.
    """
    record = dump_compliance_request(ledger.get(request_id), utc_now())
    received = recipients.of_requests([request_id], MAX_RECIPIENTS).get(request_id, [])
    record["recipients"] = [each.record() for each in received]
    if with_report:
        record["report"] = ledger.report_of(request_id, vault)
    return record


@compliance.command()
@click.argument("request_id")
@with_database()
def repeat(request_id: str) -> Record:
    """Repeat the finished erasure of a shop that was installed and removed again.

    The platform's second webhook has the same bytes as the first, so RiskRelay accepts it and erases nothing.

    Example: riskrelay compliance repeat cpl_…

    Exit codes: 0 the request waits for a worker, 1 not found, not done or about a person, 2 wrong usage.
    """
    ledger.repeat(request_id, utc_now(), OPERATOR.key)
    return dump_compliance_request(ledger.get(request_id), utc_now())


@compliance.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
def export(file: Path | None) -> None:
    """Write the erasure log for `restore --redactions` to FILE or standard output.

    Each line is a JSON object with ids of erased rows; encrypted values stay encrypted. FILE is replaced atomically, with
    mode 0600; its folder is created if missing.

    Example: riskrelay compliance export /mnt/elsewhere/riskrelay.redactions

    Exit codes: 0 written, 1 write failed or database unavailable, 2 wrong usage or settings.
    """
    with opened():
        if file is not None:
            with writing(file):
                # As `backup` does: this may be the first file in its folder.
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file, erasure_replay.lines())
