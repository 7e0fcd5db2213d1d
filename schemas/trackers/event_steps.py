"""The steps of an event at any tracker: a comment, then the change that `on_fixed` asks for, or the erasure of the text.

A failure that may be about this issue alone never blocks its target: the target is validated first.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.events import TrackerEvent, TrackerEventAction
from schemas.trackers.exchange import FailureKind, Steps, Tracker, TrackerAccess, TrackerFailure, TrackerRefused
from schemas.trackers.failures import FORBIDDEN, ISSUE_MOVED, ISSUE_NOT_FOUND, ISSUES_DISABLED, MOVED, NOT_FOUND

#: Ids of issues as people name them; they are parts of paths.
_ISSUE_ID: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]{0,99}-)?[0-9]{1,19}")
#: The error code of a refusal that is about a single issue, because the target itself works. GitHub answers 410 for an issue
#: that was deleted.
_ISSUE_CODES: Final[Mapping[str, str]] = {
    NOT_FOUND: ISSUE_NOT_FOUND,
    ISSUES_DISABLED: ISSUE_NOT_FOUND,
    MOVED: ISSUE_MOVED,
    FORBIDDEN: FORBIDDEN,
}
#: Settings whose failure blocks no target: the tracker ignores them, or refuses the single ticket.
_OPTIONAL_SETTINGS: Final = frozenset({"assignees", "labels"})


def apply_event(tracker: Tracker, access: TrackerAccess, event: TrackerEvent) -> Steps[TrackerEventAction]:
    """Apply an event to its issue; every step may be repeated.

    A failure of the kind PAYLOAD fails only the event.
    """
    if not _ISSUE_ID.fullmatch(event.issue_id):
        raise TrackerRefused(TrackerFailure(FailureKind.PAYLOAD, ISSUE_NOT_FOUND))
    try:
        return (yield from _apply(tracker, access, event))
    except TrackerRefused as refused:
        failure = refused.failure
        if failure.kind is not FailureKind.CONFIGURATION or failure.code not in _ISSUE_CODES:
            raise
    try:
        yield from tracker.validate(access)
    except TrackerRefused as refused:
        if not refused.failure.refuses_ticket and refused.failure.field not in _OPTIONAL_SETTINGS:
            raise
    raise TrackerRefused(replace(failure, kind=FailureKind.PAYLOAD, code=_ISSUE_CODES[failure.code]))


def _apply(tracker: Tracker, access: TrackerAccess, event: TrackerEvent) -> Steps[TrackerEventAction]:
    """Comment on the issue and change its state, as far as the settings require it and no earlier attempt did it."""
    if event.has_moved and not (yield from tracker.is_ours(access, event)):
        raise TrackerRefused(TrackerFailure(FailureKind.PAYLOAD, ISSUE_MOVED))
    on_fixed = access.settings.get("on_fixed", "comment")
    if event.type is TicketEventType.REDACT:
        yield from tracker.redact(access, event)
        return TrackerEventAction.REDACTED
    if event.type is TicketEventType.FIXED and on_fixed == "nothing":
        return TrackerEventAction.SKIPPED
    was_commented = event.is_outcome_unknown and (yield from tracker.has_comment(access, event))
    if not was_commented:
        yield from tracker.comment(access, event)
    if on_fixed == "close" and event.type is TicketEventType.FIXED:
        wanted = TrackerEventAction.CLOSED
    elif on_fixed == "close" and event.type is TicketEventType.REOPENED and event.has_closed:
        wanted = TrackerEventAction.REOPENED
    else:
        return TrackerEventAction.COMMENTED
    return (yield from _set_state(tracker, access, event, wanted, was_commented=was_commented))


def _set_state(
    tracker: Tracker, access: TrackerAccess, event: TrackerEvent, wanted: TrackerEventAction, *, was_commented: bool
) -> Steps[TrackerEventAction]:
    """Close or reopen the issue, as `wanted`, unless a person has decided otherwise.

    An issue that an earlier attempt closed counts as closed. An issue that an earlier attempt may have reopened counts as
    reopened by a person: then it is never closed again by mistake. If the tracker does not allow the change, there is only
    the comment.
    """
    if event.is_left_alone:
        return TrackerEventAction.LEFT_ALONE
    closes = wanted is TrackerEventAction.CLOSED
    is_open = yield from tracker.is_open(access, event)
    if closes and not is_open:
        return TrackerEventAction.CLOSED if was_commented or event.has_closed else TrackerEventAction.COMMENTED
    if is_open and (event.has_closed or not closes):
        return TrackerEventAction.LEFT_ALONE
    try:
        is_set = yield from tracker.set_open(access, event, is_open=not closes)
    except TrackerRefused as refused:
        if not refused.failure.refuses_ticket and refused.failure.code != FORBIDDEN:
            raise
        return TrackerEventAction.COMMENTED
    return wanted if is_set else TrackerEventAction.COMMENTED
