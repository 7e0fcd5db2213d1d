"""The steps of an event at any tracker: a comment, then what `on_fixed` asks for, or the erasure of title and description.

A failure that may be about this issue alone never blocks its target: the target is validated first.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.events import TrackerEvent, TrackerEventAction, TrackerEventResult
from schemas.trackers.exchange import FailureKind, Steps, Tracker, TrackerAccess, TrackerFailure
from schemas.trackers.failures import FORBIDDEN, ISSUE_MOVED, ISSUE_NOT_FOUND, ISSUES_DISABLED, MOVED, NOT_FOUND

#: Ids of issues as people name them; they are parts of paths.
_ISSUE_ID: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]{0,99}-)?[0-9]{1,19}")
#: What a refusal of a single issue means if the target itself works. GitHub answers 410 for an issue that was deleted.
_OF_THE_ISSUE: Final[Mapping[str, str]] = {
    NOT_FOUND: ISSUE_NOT_FOUND,
    ISSUES_DISABLED: ISSUE_NOT_FOUND,
    MOVED: ISSUE_MOVED,
    FORBIDDEN: FORBIDDEN,
}
#: Settings whose failure blocks no target: the tracker ignores them, or refuses the single ticket.
_LEFT_OUT: Final = frozenset({"assignees", "labels"})


def apply_event(tracker: Tracker, access: TrackerAccess, event: TrackerEvent) -> Steps[TrackerEventResult | TrackerFailure]:
    """Apply an event to its issue; all of it may be repeated.

    A failure of the kind PAYLOAD fails the event alone.
    """
    if not _ISSUE_ID.fullmatch(event.issue_id):
        return TrackerFailure(FailureKind.PAYLOAD, ISSUE_NOT_FOUND)
    result = yield from _apply(tracker, access, event)
    if isinstance(result, TrackerEventResult):
        return result
    if result.kind is not FailureKind.CONFIGURATION or result.code not in _OF_THE_ISSUE:
        return result
    failure = yield from tracker.validate(access)
    if failure is not None and not failure.refuses_ticket and failure.field not in _LEFT_OUT:
        return failure
    return replace(result, kind=FailureKind.PAYLOAD, code=_OF_THE_ISSUE[result.code])


def _apply(tracker: Tracker, access: TrackerAccess, event: TrackerEvent) -> Steps[TrackerEventResult | TrackerFailure]:
    """Comment on the issue and change its state, as far as the settings ask for it and no earlier attempt did."""
    if event.has_moved:
        is_ours = yield from tracker.is_ours(access, event)
        if isinstance(is_ours, TrackerFailure):
            return is_ours
        if not is_ours:
            return TrackerFailure(FailureKind.PAYLOAD, ISSUE_MOVED)
    on_fixed = access.settings.get("on_fixed", "comment")
    if event.type is TicketEventType.REDACT:
        return (yield from tracker.redact(access, event)) or TrackerEventResult(TrackerEventAction.REDACTED)
    if event.type is TicketEventType.FIXED and on_fixed == "nothing":
        return TrackerEventResult(TrackerEventAction.SKIPPED)
    was_commented = (yield from tracker.has_comment(access, event)) if event.is_outcome_unknown else False
    if isinstance(was_commented, TrackerFailure):
        return was_commented
    failure = None if was_commented else (yield from tracker.comment(access, event))
    if failure is not None:
        return failure
    if on_fixed == "close" and event.type is TicketEventType.FIXED:
        wanted = TrackerEventAction.CLOSED
    elif on_fixed == "close" and event.type is TicketEventType.REOPENED and event.has_closed:
        wanted = TrackerEventAction.REOPENED
    else:
        return TrackerEventResult(TrackerEventAction.COMMENTED)
    action = yield from _set_state(tracker, access, event, wanted, was_commented=was_commented)
    return action if isinstance(action, TrackerFailure) else TrackerEventResult(action)


def _set_state(
    tracker: Tracker, access: TrackerAccess, event: TrackerEvent, wanted: TrackerEventAction, *, was_commented: bool
) -> Steps[TrackerEventAction | TrackerFailure]:
    """Close or reopen the issue, as `wanted`, unless a person has decided otherwise.

    What an earlier attempt has closed counts as closed. If an earlier attempt may have reopened the issue, it counts as
    reopened by a person: then it is never closed again by mistake. Where the tracker does not allow the change, the comment
    is all.
    """
    if event.is_left_alone:
        return TrackerEventAction.LEFT_ALONE
    closes = wanted is TrackerEventAction.CLOSED
    is_open = yield from tracker.is_open(access, event)
    if isinstance(is_open, TrackerFailure):
        return is_open
    if closes and not is_open:
        return TrackerEventAction.CLOSED if was_commented or event.has_closed else TrackerEventAction.COMMENTED
    if is_open and (event.has_closed or not closes):
        return TrackerEventAction.LEFT_ALONE
    is_set = yield from tracker.set_open(access, event, is_open=not closes)
    if isinstance(is_set, TrackerFailure):
        is_refused = is_set.refuses_ticket or is_set.code == FORBIDDEN
        return TrackerEventAction.COMMENTED if is_refused else is_set
    return wanted if is_set else TrackerEventAction.COMMENTED
