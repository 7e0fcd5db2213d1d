"""`audit`: list the audit log, export it as a hash chain, and verify the chain of the database or of an export.

To verify an export takes no database and no settings: an auditor can do it elsewhere.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from bin.cli.installation import opened
from bin.cli.option_types import LIMIT, ROW_ID, Parsed
from bin.cli.output import Refused, echo
from bin.cli.private_files import write_private
from bin.cli.records import SHOWN, Record, RecordTable, all_pages, json_option, print_record, shown_of
from bin.cli.request_bodies import parse_lines
from schemas.api.administration import AuditEntryResponse
from schemas.api.response_fields import dump
from schemas.audit.chain import Anchor, BrokenChain, ChainVerification
from schemas.base.timestamps import parse_rfc3339, to_ms
from service.operations.accounts import audit as operations
from storage.accounts import audit_chain
from storage.accounts.audit_log_sql import AuditFilter

ENTRIES: Final = RecordTable(("id", "at", "actor", "action", "object", "details"), "No entries match.")
_MOMENT: Final = Parsed(parse_rfc3339, "Use an RFC 3339 time, such as 2026-01-31T12:00:00Z.")
_WORD: Final = Parsed(lambda text: text if operations.is_word(text) else None, "Use 1 to 200 printable characters.")
_ANCHOR: Final = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


def _anchors(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[int, str]:
    """Parse the values of `--anchor`."""
    found = [_ANCHOR.fullmatch(text) for text in texts]
    anchors = {Anchor(int(each[1]), each[2]) for each in found if each}
    if None in found or len(dict(anchors)) < len(anchors):
        raise click.BadParameter("Use POSITION:HASH as in the log, with one hash for each position.")
    return dict(anchors)


_anchor_option: Final = click.option(
    "--anchor",
    "anchors",
    multiple=True,
    callback=_anchors,
    metavar="POSITION:HASH",
    help="Require this hash at this position of the log, as a worker logged it; may be repeated.",
)


audit: Final = click.Group("audit")


@audit.command("list")
@click.option("--account", "account_id", type=ROW_ID, help="Only entries of this account.")
@click.option("--actor", type=_WORD, help="Only entries about actions of this actor, such as operator or user:7.")
@click.option("--action", type=_WORD, help="Only entries with this action.")
@click.option("--object", "subject_id", type=_WORD, help="Only entries about the record with this id.")
@click.option("--created-after", type=_MOMENT, help="Only entries written at this time (RFC 3339) or later.")
@click.option("--created-before", type=_MOMENT, help="Only entries written before this time (RFC 3339).")
@click.option("--limit", type=LIMIT, help=f"Maximum number of entries; default: {SHOWN} in a table, all in JSON.")
@json_option
def list_entries(
    created_after: datetime | None, created_before: datetime | None, limit: int | None, as_json: bool, **filters: Any
) -> None:
    """List entries of the audit log, newest first.

    Example: riskrelay audit list --object exp_… --json

    Exit codes: 0 listed, 1 database unavailable, 2 wrong usage or settings.
    """
    after_ms, before_ms = (None if each is None else to_ms(each) for each in (created_after, created_before))
    criteria = AuditFilter(**filters, after_ms=after_ms, before_ms=before_ms)
    with opened():
        entries = all_pages(partial(operations.list_page, criteria), itemgetter("id"))
        found = [dump(AuditEntryResponse, each) for each in islice(entries, shown_of(limit, as_json))]
        show_entries(found, as_json, are_more=next(entries, None) is not None)


def show_entries(entries: Sequence[Record], as_json: bool, *, are_more: bool) -> None:
    """Print entries, and below a table whether there are more."""
    ENTRIES.show(entries, as_json)
    if are_more and not as_json:
        echo(f"Showing the newest {len(entries):,}; there are more. To list more: --limit N.")


@audit.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@_anchor_option
def export(file: Path | None, anchors: Mapping[int, str]) -> None:
    """Write the audit log as JSON Lines to FILE or standard output, and verify it.

    One entry per line, the oldest first, with its position and hash. Entries that no worker has chained yet are chained
    first. FILE is replaced atomically, with mode 0600; it stays as it was if the chain is broken.

    Example: riskrelay audit export /mnt/elsewhere/audit.jsonl

    Exit codes: 0 written, 1 the chain is broken, write failed or database unavailable, 2 wrong usage or settings.
    """
    with opened(), _whole_chain():
        unchained = audit_chain.extend_to_end()
        verification = ChainVerification(anchors)
        write_private(file, (f"{json.dumps(line)}\n" for line in audit_chain.lines(verification)))
        if unchained:
            echo(f"The {unchained} newest entries are not in the chain yet and were left out.", err=True)


@audit.command()
@click.argument("file", required=False, type=click.File("rb"))
@_anchor_option
@json_option
def verify(file: BinaryIO | None, anchors: Mapping[int, str], as_json: bool) -> None:
    """Verify the audit log in the database, or an export of it in FILE; - reads standard input.

    Entries of the database that no worker has chained yet are chained first. Compare the printed head with your notes, or
    pass them as --anchor: only an anchor that is kept elsewhere proves that the log was not rewritten as a whole.

    Example: riskrelay audit verify audit.jsonl --anchor 4711:9f86d081…

    Exit codes: 0 the chain is intact, 1 it is broken, FILE is no export of it or database unavailable, 2 no such file, wrong
    usage or settings.
    """
    verification = ChainVerification(anchors)
    unchained: dict[str, int] = {}
    if file is not None:
        with _whole_chain():
            for line in parse_lines(file):
                verification.add(line)
            verification.finish()
    else:
        with opened(), _whole_chain():
            unchained["not_chained_yet"] = audit_chain.extend_to_end()
            for _ in audit_chain.lines(verification):
                pass
    position, hash_ = verification.head
    print_record({"entries": verification.count, "head": f"{position}:{hash_}", **unchained}, as_json)


@contextmanager
def _whole_chain() -> Iterator[None]:
    """Raise Refused if the chain is broken."""
    try:
        yield
    except BrokenChain as broken:
        raise Refused(f"The audit log is broken. {broken}") from None
