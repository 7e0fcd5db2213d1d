"""The hot statement of the audit log: every tick of a dispatcher appends an entry for each export that it changed."""

from collections.abc import Iterable, Sequence
from typing import Final

from storage.db.bulk_sql import execute_over

_APPEND: Final = """
WITH r (subject_id) AS ({rows})
INSERT INTO audit_entries (subject_id, at, actor, action, status_before, status_after, reason)
SELECT subject_id, ?, ?, ?, ?, ?, ? FROM r"""


def append_alike(subject_ids: Iterable[str], columns: Sequence[int | str | None]) -> None:
    """Insert an entry for each subject; `columns` are at_ms, actor, action, status_before, status_after and reason."""
    execute_over(_APPEND, ("TEXT",), [(subject_id,) for subject_id in subject_ids], columns)
