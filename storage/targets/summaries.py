"""The name, host and status of targets, for lists of exports: many targets in one query."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from peewee import Expression, fn

from schemas.targets.approval import ApprovalState
from schemas.targets.target import TargetStatus, host_of
from schemas.targets.validations import FAILED
from storage.db.columns import columns
from storage.db.models import TargetRow
from storage.db.queries import tuples
from storage.targets.targets import IS_NOT_REMOVED

#: The same condition as `ApprovalState.problem` being None.
_IS_APPROVABLE: Final = (TargetRow.status == TargetStatus.ACTIVE.value) & (
    fn.COALESCE(TargetRow.validation_status, "") != FAILED
)


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """A target as a list of exports shows it; `host` includes the port if the URL has one."""

    id: str
    name: str
    host: str
    approval: ApprovalState
    is_removed: bool = False
    #: Whether the target is subscribed to events of the tickets that it receives.
    has_events: bool = False

    @property
    def status(self) -> TargetStatus:
        """Return the target's status as stored."""
        return self.approval.status


def by_id(target_ids: Collection[str], account_id: int) -> dict[str, TargetSummary]:
    """Return those of an account's targets with these ids, by id, including removed ones; without ids, no query runs."""
    found = _read(account_id, TargetRow.id.in_(target_ids)) if target_ids else []
    return {target.id: target for target in found}


def list_page(account_id: int, limit: int) -> list[TargetSummary]:
    """Return up to `limit` of an account's targets, the newest first."""
    return _read(account_id, IS_NOT_REMOVED, limit)


def list_approvable(account_id: int, limit: int) -> list[TargetSummary]:
    """Return up to `limit` of an account's targets for which an export may be approved, newest first."""
    return _read(account_id, _IS_APPROVABLE & IS_NOT_REMOVED, limit)


def list_unapprovable(account_id: int, limit: int) -> list[TargetSummary]:
    """Return up to `limit` of an account's other targets, newest first, except disabled ones."""
    return _read(account_id, ~_IS_APPROVABLE & (TargetRow.status != TargetStatus.DISABLED.value) & IS_NOT_REMOVED, limit)


def _read(account_id: int, wanted: Expression, limit: int | None = None) -> list[TargetSummary]:
    own = (TargetRow.id, TargetRow.name, TargetRow.base_url, TargetRow.deleted_at, TargetRow.events)
    query = TargetRow.select(*own, *columns(ApprovalState, TargetRow))
    found = query.where(TargetRow.account == account_id, wanted).order_by(TargetRow.id.desc()).limit(limit)
    return [
        TargetSummary(target_id, name, host_of(url), ApprovalState._make(state), deleted_at is not None, bool(events))
        for target_id, name, url, deleted_at, events, *state in tuples(found)
    ]
