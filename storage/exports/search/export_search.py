"""Writes the words, hosts and rules by which exports are found; `storage.exports.search.export_list` reads them.

Every writer of a ticket calls one of these in its transaction: `records_of` for new exports, `replace` for changed tickets,
`remove` for redacted ones. The rows of a deleted export are deleted with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from peewee import Model

from storage.db.bulk_sql import insert_together
from storage.db.models import ExportRow, ExportSearchRow, ExportTermRow
from storage.db.queries import tuples

HOST: Final = "host"
RULE: Final = "rule"


class SearchEntry(NamedTuple):
    """What one export is found by."""

    export_id: str
    account_id: int
    words: str
    hosts: tuple[str, ...]
    rule: str | None = None


def account_word(account_id: int) -> str:
    """Return the word that every text of an account begins with; no word of a ticket has this form."""
    return f"@{account_id}"


def add(entries: Sequence[SearchEntry]) -> None:
    """Write what exports are found by; the caller holds the transaction."""
    insert_together(*records_of(entries))


def records_of(entries: Sequence[SearchEntry]) -> tuple[tuple[type[Model], list[dict[str, Any]]], ...]:
    """Return the records of what new exports are found by, for the caller to insert with them."""
    terms = [(entry, HOST, host) for entry in entries for host in entry.hosts]
    terms += [(entry, RULE, entry.rule) for entry in entries if entry.rule is not None]
    names = ("account_id", "kind", "value", "export_id")
    written = [(entry.account_id, kind, value, entry.export_id) for entry, kind, value in terms]
    texts = [(entry.export_id, f"{account_word(entry.account_id)} {entry.words}".rstrip()) for entry in entries]
    return (
        (ExportTermRow, [dict(zip(names, each, strict=True)) for each in written]),
        (ExportSearchRow, [{"export_id": export_id, "words": text} for export_id, text in texts]),
    )


def replace(changed: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    """Write the words and hosts of changed tickets, by the ids of their exports; the caller holds the transaction.

    The rule stays: no change of a ticket gives its export another one.
    """
    accounts = ExportRow.select(ExportRow.id, ExportRow.account).where(ExportRow.id.in_([*changed]))
    found = tuples(accounts) if changed else []
    remove([*changed], ExportTermRow.kind == HOST)
    add([SearchEntry(export_id, account_id, *changed[export_id]) for export_id, account_id in found])


def remove(export_ids: Sequence[str], *of_terms: Any) -> None:
    """Remove the words of exports, and their hosts and rules or those that meet the conditions, so that nothing finds them.

    The caller holds the transaction.
    """
    if export_ids:
        ExportSearchRow.delete().where(ExportSearchRow.export.in_(export_ids)).execute()
        ExportTermRow.delete().where(ExportTermRow.export.in_(export_ids), *of_terms).execute()
