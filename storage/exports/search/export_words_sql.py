"""SQLite's text index `export_words`: removed words stay in its file, marked as deleted, until the index is rewritten."""

from typing import Final

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from storage.db.engine import execute, is_sqlite, rows, transaction

#: How many pages one transaction rewrites: some 10 ms, during which no other writer can write.
_PAGES_AT_ONCE: Final = 200
#: If a merge changed fewer rows, it had nothing left to do.
_MIN_CHANGES: Final = 2


def overwrite_removed(checkpoint: Checkpoint = no_checkpoint) -> None:
    """Rewrite the text index without the words that were removed, so that the file contains none of them.

    Uses short transactions; between them, other writers write and `checkpoint` is called. Needs a connection without a
    transaction. PostgreSQL's vacuum does the same.
    """
    if not is_sqlite():
        return
    # A negative number begins a merge of the whole index.
    pages = -_PAGES_AT_ONCE
    while _merge(pages) >= _MIN_CHANGES:
        pages = _PAGES_AT_ONCE
        checkpoint()


def _merge(pages: int) -> int:
    """Rewrite this many pages and return how many rows of the index changed."""
    with transaction():
        before = _changes()
        execute("INSERT INTO export_words (export_words, rank) VALUES ('merge', ?)", (pages,))
        return _changes() - before


def _changes() -> int:
    return int(rows("SELECT total_changes()")[0][0])
