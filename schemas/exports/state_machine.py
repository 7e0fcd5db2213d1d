"""The state machine of a ticket export: the only definition of the legal transitions.

    prepared --approve--> approved --claim--> delivering --deliver--> exported
       |                     ^                    |--reschedule / postpone--> retry_scheduled --claim--> delivering
       | dismiss             | retry              |--fail--> failed
       v                     +-- failed, blocked  +--block--> blocked
    dismissed --restore--> prepared

`claim` also leads from `delivering` to `delivering`, if a lease expired because its worker died. `withdraw` leads from
`approved`, `delivering` and `retry_scheduled` to `failed`, if the ticket was redacted or its target was disabled: it is not
sent again, and the result of a running attempt is not written. `block` leads from the same three states to `blocked`, if the
policy refused the address, or a tracker the access, in this attempt or in another one of the same target. Resuming a target
retries the exports that its tracker's refusal blocked. Nothing leaves `exported`.
Only `claims_sql`, `transitions` and `transitions_sql` of `storage.exports` write the column.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ExportStatus(StrEnum):
    """The status of an export, with the values of the API."""

    PREPARED = "prepared"
    APPROVED = "approved"
    DELIVERING = "delivering"
    EXPORTED = "exported"
    RETRY_SCHEDULED = "retry_scheduled"
    FAILED = "failed"
    BLOCKED = "blocked"
    DISMISSED = "dismissed"


class Transition(StrEnum):
    """A change of status; the values are the actions of the audit log."""

    APPROVE = "approve"
    CLAIM = "claim"
    DELIVER = "deliver"
    RESCHEDULE = "reschedule"
    POSTPONE = "postpone"
    FAIL = "fail"
    BLOCK = "block"
    DISMISS = "dismiss"
    RESTORE = "restore"
    RETRY = "retry"
    WITHDRAW = "withdraw"


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """The states that a transition may start from, and the one that it leads to."""

    sources: frozenset[ExportStatus]
    target: ExportStatus


def _rule(target: ExportStatus, *sources: ExportStatus) -> TransitionRule:
    return TransitionRule(frozenset(sources), target)


_S = ExportStatus

TRANSITIONS: Final[Mapping[Transition, TransitionRule]] = {
    Transition.APPROVE: _rule(_S.APPROVED, _S.PREPARED),
    Transition.CLAIM: _rule(_S.DELIVERING, _S.APPROVED, _S.RETRY_SCHEDULED, _S.DELIVERING),
    Transition.DELIVER: _rule(_S.EXPORTED, _S.DELIVERING),
    Transition.RESCHEDULE: _rule(_S.RETRY_SCHEDULED, _S.DELIVERING),
    # Claimed but not sent: the attempt does not count and the export is due again.
    Transition.POSTPONE: _rule(_S.RETRY_SCHEDULED, _S.DELIVERING),
    Transition.FAIL: _rule(_S.FAILED, _S.DELIVERING),
    Transition.BLOCK: _rule(_S.BLOCKED, _S.APPROVED, _S.DELIVERING, _S.RETRY_SCHEDULED),
    Transition.DISMISS: _rule(_S.DISMISSED, _S.PREPARED),
    Transition.RESTORE: _rule(_S.PREPARED, _S.DISMISSED),
    Transition.RETRY: _rule(_S.APPROVED, _S.FAILED, _S.BLOCKED),
    Transition.WITHDRAW: _rule(_S.FAILED, _S.APPROVED, _S.DELIVERING, _S.RETRY_SCHEDULED),
}

#: States from which no delivery starts without a person.
FINISHED: Final = frozenset({_S.EXPORTED, _S.FAILED, _S.BLOCKED, _S.DISMISSED})
#: States of an approved export whose delivery is not over.
IN_PROGRESS: Final = (_S.APPROVED, _S.DELIVERING, _S.RETRY_SCHEDULED)


def allows(transition: Transition, status: ExportStatus) -> bool:
    """Return whether `transition` may start from `status`."""
    return status in TRANSITIONS[transition].sources
