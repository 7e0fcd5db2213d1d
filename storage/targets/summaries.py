"""The name, host and status of targets, as lists of exports show them: many targets in one query."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from peewee import Expression

from schemas.targets.target import TargetStatus, host_of
from storage.db.models import TargetRow
from storage.db.queries import tuples


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """A target as a list of exports shows it; `host` has the port if the URL names one."""

    id: str
    name: str
    host: str
    status: TargetStatus


def by_id(target_ids: Collection[str], account_id: int) -> dict[str, TargetSummary]:
    """Return an account's targets among these, by id; runs no query for none."""
    found = _read(account_id, TargetRow.id.in_(target_ids)) if target_ids else []
    return {target.id: target for target in found}


def list_page(account_id: int, limit: int, statuses: Sequence[TargetStatus] = tuple(TargetStatus)) -> list[TargetSummary]:
    """Return up to `limit` of an account's targets that have one of `statuses`, the newest first."""
    return _read(account_id, TargetRow.status.in_(statuses), limit)


def _read(account_id: int, wanted: Expression, limit: int | None = None) -> list[TargetSummary]:
    query = TargetRow.select(TargetRow.id, TargetRow.name, TargetRow.base_url, TargetRow.status)
    found = query.where(TargetRow.account == account_id, wanted).order_by(TargetRow.id.desc()).limit(limit)
    return [TargetSummary(target_id, name, host_of(url), status) for target_id, name, url, status in tuples(found)]
