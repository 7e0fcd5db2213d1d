"""`import-scan`: import a scanner's report as postbacks through the public API.

It needs no database and no installation on this machine, only the URL of one and its scanner secret. The whole report is
read and checked before anything is sent; running the same command again sends the missing pages and prepares no ticket
twice.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from bin.checks.machine import is_loopback
from bin.cli.installation import checked_settings
from bin.cli.option_types import SCAN_RUN
from bin.cli.output import Refused, counted, echo, writing
from bin.cli.records import json_option, print_record
from bin.cli.terminal import progress_bar, secret_or_setting
from bin.scan_import.sender import ImportSummary, PostbackSender, send_all
from runtime.files import replacing, require_replaceable
from schemas.intake.page_url import page_key
from schemas.report_files.document import MAX_REPORT_BYTES, UnreadableReport
from schemas.report_files.formats import FORMATS, read_report
from schemas.report_files.pages import PreparedImport, clean_url, prepare, run_number

#: Rejected pages printed without --json.
_MAX_SHOWN: Final = 20


@click.command("import-scan")
@click.option("--format", "format_", type=click.Choice([*FORMATS]), required=True, help="The report's format.")
@click.option(
    "--scan-run",
    "scan_run_id",
    type=SCAN_RUN,
    help="Number of the scan run. Default: derived from the file, so that the same file always has the same number.",
)
@click.option(
    "--pages",
    "pages_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the pages that every scan visits, one URL per line: those without issues are sent, too, so that their "
    "findings can be fixed. Pages of the report are added to the file. Not for Lighthouse.",
)
@click.option("--to", "url", help="URL of RiskRelay, with https unless on this machine; default: PUBLIC_BASE_URL.")
@click.option(
    "--secret-stdin", is_flag=True, help="Read the secret from one line of standard input, not SCANNER_SHARED_SECRET."
)
@click.option("--dry-run", is_flag=True, help="Print the result that an import would have, and store nothing.")
@json_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_scan(
    format_: str,
    scan_run_id: int | None,
    pages_file: Path | None,
    url: str | None,
    secret_stdin: bool,
    dry_run: bool,
    as_json: bool,
    file: Path,
) -> None:
    """Import a scanner's report as tickets, one postback per page, through the public API.

    Examples:
      riskrelay import-scan --format zap zap.json --dry-run
      riskrelay import-scan --format nuclei results.jsonl --scan-run 42 --to https://relay.example.com
      riskrelay import-scan --format wapiti wapiti.json --pages pages.txt
      printf %s "$SECRET" | riskrelay import-scan --format sarif results.sarif --secret-stdin --json

    Exit codes:
      0  every page was accepted, or there is nothing to import
      1  the report is unreadable, a page was rejected, or the import stopped: run the same command again to resume
      2  wrong usage or configuration
    """
    settings = checked_settings()
    to = checked_url(url, "--to") if url else checked_url(settings.public_base_url, "PUBLIC_BASE_URL")
    secret = secret_or_setting(secret_stdin, settings.scanner_shared_secret, "SCANNER_SHARED_SECRET").encode()
    if pages_file and format_ == "lighthouse":
        raise click.UsageError("A Lighthouse report is of one page, which it names; leave out --pages.")
    with file.open("rb") as opened:
        content = opened.read(MAX_REPORT_BYTES + 1)
    pages = _pages(pages_file) if pages_file else ()
    try:
        report = read_report(content, format_)
    except UnreadableReport as unreadable:
        raise Refused(f"{file}: {unreadable} Nothing was sent.") from None
    visited = replace(report.visited, urls=report.visited.urls + pages)
    prepared = prepare(report.issues, scan_run_id or run_number(content), content, visited)
    with progress_bar(len(prepared.postbacks), "Pages") as bar:
        summary = send_all(prepared.postbacks, PostbackSender(to, secret, is_dry_run=dry_run), lambda _: bar.update(1))
    if pages_file and not dry_run:
        _add_pages(pages_file, pages, prepared, summary)
    if as_json:
        print_record(_record(format_, prepared, summary, dry_run), as_json=True)
    else:
        _print_summary(FORMATS[format_].title, prepared, summary, dry_run)
    _report_failures(prepared, summary)


def checked_url(url: str, given_as: str, what: str = "the scanner secret") -> str:
    """Return the URL of a RiskRelay. Raises BadParameter, also if it would send `what` unencrypted."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment:
        raise click.BadParameter("Use a URL such as https://relay.example.com.", param_hint=given_as)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise click.BadParameter(
            f"http would send {what} unencrypted; use an https URL, or one on this machine.", param_hint=given_as
        )
    return url


def _pages(file: Path) -> tuple[str, ...]:
    """Return the URLs in a file of pages, none if it does not exist yet."""
    with writing(file, "Nothing was sent."):
        content = file.read_bytes() if require_replaceable(file) else b""
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    for number, line in enumerate(lines, 1):
        if line and clean_url(line) is None:
            raise Refused(f"{file}: line {number} is not the http or https URL of a page. Nothing was sent.")
    return tuple(filter(None, lines))


def _add_pages(file: Path, known: Sequence[str], prepared: PreparedImport, summary: ImportSummary) -> None:
    """Add the accepted pages of a report to the file of pages."""
    keys = {page_key(clean_url(url) or url) for url in known}
    keys.update(page_key(url) for url, _ in summary.rejected)
    # A stopped import has not sent the other pages, which may be rejected.
    done = prepared.postbacks[: summary.sent + summary.sent_before + len(summary.rejected)]
    added = dict.fromkeys(each.url for each in done if page_key(each.url) not in keys)
    if not added:
        return
    with writing(file, "The report was sent; run the same command again."), replacing(file) as pages:
        pages.writelines(f"{url}\n" for url in [*known, *added])


def _record(format_: str, prepared: PreparedImport, summary: ImportSummary, is_dry_run: bool) -> dict[str, Any]:
    return {
        "format": format_,
        "scan_run_id": prepared.scan_run_id,
        "dry_run": is_dry_run,
        "pages": prepared.pages,
        "issues": prepared.issues,
        "postbacks": len(prepared.postbacks),
        "sent": summary.sent,
        "sent_before": summary.sent_before,
        "findings": {"new": summary.new, "seen": summary.seen},
        "ticket_exports": [] if is_dry_run else summary.ticket_exports,
        "refused": [{"url": url, "problems": problems} for url, problems in summary.rejected],
        "skipped": list(prepared.skipped),
        "stopped": summary.stopped,
    }


def _print_summary(title: str, prepared: PreparedImport, summary: ImportSummary, is_dry_run: bool) -> None:
    # On standard output: cron mails standard error, and a report may always have issues without a page.
    for reason in prepared.skipped:
        echo(f"Skipped: {reason}.")
    if not prepared.postbacks:
        echo(f"The {title} report contains no issues to import; nothing was sent.")
        return
    issues, pages = counted(prepared.issues, "issue"), counted(prepared.pages, "page")
    echo(f"{title} report: {issues} on {pages}, scan run {prepared.scan_run_id}.")
    fixed = f", {summary.fixed} fixed" if summary.fixed else ""
    findings = f"{counted(summary.new, 'new finding')}, {counted(summary.seen, 'known finding')}{fixed}"
    if is_dry_run:
        echo(f"{findings}. Nothing was stored.")
        return
    before = f" ({counted(summary.sent_before, 'postback')} sent by an earlier import)" if summary.sent_before else ""
    # Findings of one rule may share a ticket, and a new finding may extend an existing ticket.
    echo(f"{findings}{before}; {counted(len(summary.ticket_exports), 'ticket')} prepared or extended.")
    for export_id in summary.ticket_exports:
        echo(export_id)


def _report_failures(prepared: PreparedImport, summary: ImportSummary) -> None:
    """Print each rejected page; exit with code 1 after a rejected page or a stopped import."""
    for url, problems in summary.rejected[:_MAX_SHOWN]:
        echo(f"Rejected: {url}: {'; '.join(problems)}", err=True)
    if len(summary.rejected) > _MAX_SHOWN:
        echo(f"Rejected: {len(summary.rejected) - _MAX_SHOWN} more; --json lists all.", err=True)
    if summary.stopped is not None:
        done = f"Sent {summary.sent + summary.sent_before} of {len(prepared.postbacks)} postbacks"
        raise Refused(f"{summary.stopped} {done}; run the same command again to resume.")
    if summary.rejected:
        raise SystemExit(1)
