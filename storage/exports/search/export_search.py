"""Writes the words, hosts and rules by which exports are found; `storage.exports.search.export_list` reads them.

Every writer of a ticket calls one of these in its transaction: `records_of` for new exports, `replace` for changed tickets,
`add_hosts` for findings that join a group, `remove` for redacted exports. When an export is deleted, so are its rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from peewee import Model, chunked

from storage.db.bulk_sql import insert_records, insert_together
from storage.db.models import ExportRow, ExportSearchRow, ExportTermRow
from storage.db.queries import scalars, tuples

HOST: Final = "host"
RULE: Final = "rule"

_ROWS_PER_STATEMENT: Final = 1000


class SearchEntry(NamedTuple):
    """The words, hosts and rule by which one export is found."""

    export_id: str
    account_id: int
    words: str
    hosts: tuple[str, ...]
    rule: str | None = None


def account_word(account_id: int) -> str:
    """Return the word with which every text of an account begins; no word of a ticket has this form."""
    return f"@{account_id}"


def add(entries: Sequence[SearchEntry]) -> None:
    """Write the search records of exports; the caller holds the transaction."""
    insert_together(*records_of(entries))


def records_of(entries: Sequence[SearchEntry]) -> tuple[tuple[type[Model], list[dict[str, Any]]], ...]:
    """Return the search records of new exports, for the caller to insert with them."""
    terms = [(entry, HOST, host) for entry in entries for host in entry.hosts]
    terms += [(entry, RULE, entry.rule) for entry in entries if entry.rule is not None]
    names = ("account_id", "kind", "value", "export_id")
    written = [(entry.account_id, kind, value, entry.export_id) for entry, kind, value in terms]
    return (
        (ExportTermRow, [dict(zip(names, each, strict=True)) for each in written]),
        (ExportSearchRow, [_text(entry.export_id, entry.account_id, entry.words) for entry in entries]),
    )


def replace(changed: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    """Replace the words of changed tickets and add their hosts, by export id; the caller holds the transaction.

    Other hosts stay, because a ticket names only the first places of a group. The rule stays too.
    """
    accounts = ExportRow.select(ExportRow.id, ExportRow.account).where(ExportRow.id.in_([*changed]))
    found = tuples(accounts) if changed else []
    _remove_words([*changed])
    insert_records(ExportSearchRow, [_text(export_id, account_id, changed[export_id][0]) for export_id, account_id in found])
    add_hosts((account_id, host, export_id) for export_id, account_id in found for host in changed[export_id][1])


def add_hosts(hosts: Iterable[tuple[int, str, str]]) -> None:
    """Add hosts by which exports are found, as account, host and export; the caller holds the transaction."""
    names = (ExportTermRow.account_id, ExportTermRow.value, ExportTermRow.export, ExportTermRow.kind)
    for together in chunked(dict.fromkeys(hosts), _ROWS_PER_STATEMENT):
        rows = [(*each, HOST) for each in together]
        ExportTermRow.insert_many(rows, names).on_conflict_ignore().execute()


def hosts_of_export(export_id: str) -> tuple[str, ...]:
    """Return the hosts by which an export is found."""
    term = ExportTermRow
    return tuple(scalars(term.select(term.value).where(term.export == export_id, term.kind == HOST)))


def remove_hosts(export_id: str) -> None:
    """Remove the hosts of an export whose findings leave it; the caller holds the transaction."""
    ExportTermRow.delete().where(ExportTermRow.export == export_id, ExportTermRow.kind == HOST).execute()


def remove(export_ids: Sequence[str]) -> None:
    """Remove the words, hosts and rules of exports, so that no search finds them; the caller holds the transaction."""
    if export_ids:
        _remove_words(export_ids)
        ExportTermRow.delete().where(ExportTermRow.export.in_(export_ids)).execute()


def _remove_words(export_ids: Sequence[str]) -> None:
    if export_ids:
        ExportSearchRow.delete().where(ExportSearchRow.export.in_(export_ids)).execute()


def _text(export_id: str, account_id: int, words: str) -> dict[str, str]:
    return {"export_id": export_id, "words": f"{account_word(account_id)} {words}".rstrip()}
