"""The state machine of a ticket export: the only place that says which move is legal.

    prepared --approve--> approved --claim--> delivering --deliver--> exported
       |                     ^                    |--reschedule / postpone--> retry_scheduled --claim--> delivering
       | dismiss             | retry              |--fail--> failed
       v                     +-- failed, blocked  +--block--> blocked
    dismissed

`claim` also leads from `delivering` to `delivering`: that is a lease that lapsed because its worker died. `withdraw` leads
from `approved`, `delivering` and `retry_scheduled` to `failed`: whom the ticket is about asked to be forgotten, or its
target was disabled, so it is not sent any more, and an attempt that is being made is too late to be written. `block` leads
from the same three states to `blocked`: the policy refused the address, to this attempt or to another one of the same
target. Nothing leaves `exported` or `dismissed`.
`storage.exports.transitions` is the only module that writes the column.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ExportStatus(StrEnum):
    """Where an export is on its way; the values are those of the API."""

    PREPARED = "prepared"
    APPROVED = "approved"
    DELIVERING = "delivering"
    EXPORTED = "exported"
    RETRY_SCHEDULED = "retry_scheduled"
    FAILED = "failed"
    BLOCKED = "blocked"
    DISMISSED = "dismissed"


class Move(StrEnum):
    """What happens to an export; the values are the actions of the audit trail."""

    APPROVE = "approve"
    CLAIM = "claim"
    DELIVER = "deliver"
    RESCHEDULE = "reschedule"
    POSTPONE = "postpone"
    FAIL = "fail"
    BLOCK = "block"
    DISMISS = "dismiss"
    RETRY = "retry"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class Step:
    """One legal move: the states it may start from and the one it ends in."""

    sources: frozenset[ExportStatus]
    target: ExportStatus


def _step(target: ExportStatus, *sources: ExportStatus) -> Step:
    return Step(frozenset(sources), target)


_S = ExportStatus

MOVES: Final[Mapping[Move, Step]] = {
    Move.APPROVE: _step(_S.APPROVED, _S.PREPARED),
    Move.CLAIM: _step(_S.DELIVERING, _S.APPROVED, _S.RETRY_SCHEDULED, _S.DELIVERING),
    Move.DELIVER: _step(_S.EXPORTED, _S.DELIVERING),
    Move.RESCHEDULE: _step(_S.RETRY_SCHEDULED, _S.DELIVERING),
    # Claimed but not sent: the attempt is given back and the export is due again.
    Move.POSTPONE: _step(_S.RETRY_SCHEDULED, _S.DELIVERING),
    Move.FAIL: _step(_S.FAILED, _S.DELIVERING),
    Move.BLOCK: _step(_S.BLOCKED, _S.APPROVED, _S.DELIVERING, _S.RETRY_SCHEDULED),
    Move.DISMISS: _step(_S.DISMISSED, _S.PREPARED),
    Move.RETRY: _step(_S.APPROVED, _S.FAILED, _S.BLOCKED),
    Move.WITHDRAW: _step(_S.FAILED, _S.APPROVED, _S.DELIVERING, _S.RETRY_SCHEDULED),
}

#: States from which no delivery starts unless a person acts.
FINISHED: Final = frozenset({_S.EXPORTED, _S.FAILED, _S.BLOCKED, _S.DISMISSED})


def allows(move: Move, status: ExportStatus) -> bool:
    """Tell whether `move` may start from `status`."""
    return status in MOVES[move].sources
