"""`import-scan`: the report of a scanner that somebody already runs, as postbacks through the public API.

It needs no database and no installation on this machine, only the address of one and its scanner secret. The whole report
is read and checked before anything is sent; typing the same again sends what is missing and prepares nothing twice.
"""

import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from bin.checks.machine import is_loopback
from bin.cli.installation import Refused, checked_settings
from bin.cli.records import json_option, print_record
from bin.cli.terminal import secret_line
from bin.scan_import.document import MAX_REPORT_BYTES, UnreadableReport
from bin.scan_import.formats import FORMATS, flaws_in
from bin.scan_import.pages import Import, prepare, run_number
from bin.scan_import.sender import Relay, Tally, send_all
from schemas.base.fields import MAX_ID

#: Refused pages that are shown; with --json all of them are.
_MAX_SHOWN: Final = 20


@click.command(
    "import-scan",
    epilog="""\b
Examples:
  riskrelay import-scan --format zap zap.json --dry-run
  riskrelay import-scan --format nuclei results.jsonl --scan-run 42 --to https://relay.example.com
  printf %s "$SECRET" | riskrelay import-scan --format sarif results.sarif --secret-stdin --json

\b
Exit codes:
  0  everything was accepted, or there is nothing to import
  1  the report cannot be read, a page was refused, or it broke off: type the same again to go on
  2  wrong usage or configuration""",
)
@click.option("--format", "format_", type=click.Choice([*FORMATS]), required=True, help="What wrote the report.")
@click.option(
    "--scan-run",
    "scan_run_id",
    type=click.IntRange(1, MAX_ID),
    help="Number of the scan run; default: one made from the file, so that the same file is the same run.",
)
@click.option("--to", "url", help="Where RiskRelay is, over https or on this machine; default: PUBLIC_BASE_URL.")
@click.option(
    "--secret-stdin", is_flag=True, help="Read the secret from one line of standard input, not SCANNER_SHARED_SECRET."
)
@click.option("--dry-run", is_flag=True, help="Let the service say what would be made of it, and store nothing.")
@json_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_scan(
    format_: str, scan_run_id: int | None, url: str | None, secret_stdin: bool, dry_run: bool, as_json: bool, file: Path
) -> None:
    """Import a scanner's report as tickets, one postback per page, through the public API."""
    settings = checked_settings()
    to = _address(url, "--to") if url else _address(settings.public_base_url, "PUBLIC_BASE_URL")
    secret = secret_line() if secret_stdin else (settings.scanner_shared_secret or "").encode()
    if not secret:
        raise Refused("There is no secret to post with; set SCANNER_SHARED_SECRET, or use --secret-stdin and type it.")
    content = _read(file)
    found = _prepared(content, format_, file, scan_run_id or run_number(content))
    for told in found.left_out:
        click.echo(f"Left out: {told}.", err=True)
    with click.progressbar(
        length=len(found.postbacks), label="Pages", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        tally = send_all(found.postbacks, Relay(to, secret, is_dry_run=dry_run), lambda _: bar.update(1))
    if as_json:
        print_record(_record(format_, found, tally, dry_run), as_json=True)
    else:
        _tell(FORMATS[format_].title, found, tally, dry_run)
    _tell_what_failed(found, tally)


def _address(url: str, given_as: str) -> str:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.query or parts.fragment:
        raise click.BadParameter("Give an address such as https://relay.example.com.", param_hint=given_as)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise click.BadParameter(
            "The scanner secret would go there in the clear; give an https address, or one on this machine.",
            param_hint=given_as,
        )
    return url


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as report:
            return report.read(MAX_REPORT_BYTES + 1)
    except OSError as failed:
        raise Refused(f"{file} cannot be read: {failed.strerror}.") from None


def _prepared(content: bytes, format_: str, file: Path, scan_run_id: int) -> Import:
    try:
        return prepare(flaws_in(content, format_), scan_run_id, content)
    except UnreadableReport as unreadable:
        raise Refused(f"{file}: {unreadable} Nothing was sent.") from None


def _record(format_: str, found: Import, tally: Tally, is_dry_run: bool) -> dict[str, Any]:
    return {
        "format": format_,
        "scan_run_id": found.scan_run_id,
        "dry_run": is_dry_run,
        "pages": found.pages,
        "flaws": found.flaws,
        "postbacks": len(found.postbacks),
        "sent": tally.sent,
        "sent_before": tally.sent_before,
        "findings": {"new": tally.new, "seen": tally.seen},
        "ticket_exports": [] if is_dry_run else tally.ticket_exports,
        "refused": [{"url": url, "problems": list(refused.problems)} for url, refused in tally.refused],
        "left_out": list(found.left_out),
        "failed": tally.failed,
    }


def _tell(title: str, found: Import, tally: Tally, is_dry_run: bool) -> None:
    if not found.postbacks:
        click.echo(f"The {title} report holds nothing to import; nothing was sent.")
        return
    click.echo(
        f"{title} report: {_count(found.flaws, 'flaw')} on {_count(found.pages, 'page')}, scan run {found.scan_run_id}."
    )
    if is_dry_run:
        click.echo(f"{_count(tally.new, 'ticket')} would be prepared, {tally.seen} are known already. Nothing was stored.")
        return
    before = f" ({tally.sent_before} sent by an import before)" if tally.sent_before else ""
    click.echo(f"{_count(tally.new, 'ticket')} prepared, {tally.seen} were known already{before}.")
    for export_id in tally.ticket_exports:
        click.echo(export_id)


def _tell_what_failed(found: Import, tally: Tally) -> None:
    """Tell each refused page and where it broke off, and end with exit code 1 where there is anything of it."""
    for url, refused in tally.refused[:_MAX_SHOWN]:
        click.echo(f"Refused: {url}: {'; '.join(refused.problems)}", err=True)
    if len(tally.refused) > _MAX_SHOWN:
        click.echo(f"Refused: {len(tally.refused) - _MAX_SHOWN} more; --json names them all.", err=True)
    if tally.failed is not None:
        done = tally.sent + tally.sent_before
        raise Refused(f"{tally.failed} Sent {done} of {len(found.postbacks)} postbacks; type the same again to go on.")
    if tally.refused:
        raise SystemExit(1)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
