"""Where exports go, as lists of them show it: the name, the host and the status of many targets in one question."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.targets.target import TargetStatus, host_of
from storage.db.engine import rows, values_list

_COLUMNS: Final = "id, name, base_url, status"


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """A target as far as an export tells of it; `host` has the port where one is named."""

    id: str
    name: str
    host: str
    status: TargetStatus


def by_id(target_ids: Collection[str], account_id: int) -> dict[str, TargetSummary]:
    """Return an account's targets among these, by id; none is asked for where none is named."""
    if not target_ids:
        return {}
    asked = f"SELECT {_COLUMNS} FROM targets WHERE account_id = ? AND id IN {values_list(len(target_ids), 1)}"  # noqa: S608 - our own names
    return {row[0]: _destination(row) for row in rows(asked, (account_id, *target_ids))}


def list_page(account_id: int, limit: int, statuses: Sequence[TargetStatus] = tuple(TargetStatus)) -> list[TargetSummary]:
    """Return up to `limit` of an account's targets that have one of `statuses`, the newest first."""
    asked = (
        f"SELECT {_COLUMNS} FROM targets WHERE account_id = ? AND status IN {values_list(len(statuses), 1)} "  # noqa: S608 - our own names
        "ORDER BY id DESC LIMIT ?"
    )
    return [_destination(row) for row in rows(asked, (account_id, *statuses, limit))]


def _destination(row: tuple[Any, ...]) -> TargetSummary:
    target_id, name, base_url, status = row
    return TargetSummary(target_id, name, host_of(base_url), TargetStatus(status))
