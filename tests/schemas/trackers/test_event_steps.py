"""How an event changes an issue: by its type, by `on_fixed`, and by who closed or reopened the issue before."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.event_steps import apply_event
from schemas.trackers.events import TrackerEvent, TrackerEventAction
from schemas.trackers.exchange import FailureKind, TrackerAccess, TrackerFailure, TrackerRefused, TrackerRequest
from schemas.trackers.failures import (
    ARCHIVED,
    FORBIDDEN,
    ISSUE_LOCKED,
    ISSUE_MOVED,
    ISSUE_NOT_FOUND,
    ISSUES_DISABLED,
    MOVED,
    NOT_FOUND,
    REJECTED,
    TOKEN_REJECTED,
    UNAVAILABLE,
)
from tests.support.trackers.events import EVENT_ID, event
from tests.support.trackers.steps import answer, play

CONFIGURATION, PAYLOAD, RETRY = FailureKind.CONFIGURATION, FailureKind.PAYLOAD, FailureKind.RETRY
FIXED, REOPENED, UPDATED, REDACT = (
    TicketEventType.FIXED,
    TicketEventType.REOPENED,
    TicketEventType.UPDATED,
    TicketEventType.REDACT,
)
COMMENTED, CLOSED, LEFT_ALONE = TrackerEventAction.COMMENTED, TrackerEventAction.CLOSED, TrackerEventAction.LEFT_ALONE

Result = TypeVar("Result")


@dataclass
class OneIssue:
    """A fake tracker with one issue; each operation is a request with its name as URL, and fails if it is in `failures`."""

    opened: bool = True
    ours: bool = True
    can_close: bool = True
    failures: dict[str, TrackerFailure] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    title: str = "A title"

    def _asked(self, name: str, result: Result) -> Generator[TrackerRequest, Any, Result]:
        yield TrackerRequest("POST", name, {})
        if name in self.failures:
            raise TrackerRefused(self.failures[name])
        return result

    def comment(self, access: TrackerAccess, made: TrackerEvent) -> Any:
        yield from self._asked("comment", None)
        self.comments.append(made.event_id)

    def has_comment(self, access: TrackerAccess, made: TrackerEvent) -> Any:
        return self._asked("has_comment", made.event_id in self.comments)

    def is_ours(self, access: TrackerAccess, made: TrackerEvent) -> Any:
        return self._asked("is_ours", self.ours)

    def is_open(self, access: TrackerAccess, made: TrackerEvent) -> Any:
        return self._asked("is_open", self.opened)

    def set_open(self, access: TrackerAccess, made: TrackerEvent, *, is_open: bool) -> Any:
        result = yield from self._asked("set_open", self.can_close)
        self.opened = is_open if result else self.opened
        return result

    def redact(self, access: TrackerAccess, made: TrackerEvent) -> Any:
        yield from self._asked("redact", None)
        self.title = ""

    def validate(self, access: TrackerAccess) -> Any:
        return self._asked("validate", None)


def applied(tracker: OneIssue, made: TrackerEvent, on_fixed: str | None = None) -> tuple[Any, list[str]]:
    """Return the action or the failure, and the operations in order."""
    settings = {} if on_fixed is None else {"on_fixed": on_fixed}
    access = TrackerAccess("https://tracker.example.com/acme/shop", settings, "token")
    steps = apply_event(tracker, access, made)  # type: ignore[arg-type]  # has the methods that events use
    result, requests = play(steps, iter([answer(200)] * 9))
    return result, [each.url for each in requests]


#: Columns: type; on_fixed; whether the issue is open; has_closed; is_left_alone; the action; whether it is open then;
#: operations.
CASES: Final = [
    (UPDATED, "comment", True, False, False, COMMENTED, True, ["comment"]),
    (UPDATED, "close", False, True, True, COMMENTED, False, ["comment"]),
    (UPDATED, "nothing", True, False, False, COMMENTED, True, ["comment"]),
    (FIXED, None, True, False, False, COMMENTED, True, ["comment"]),
    (FIXED, "comment", True, False, False, COMMENTED, True, ["comment"]),
    (FIXED, "nothing", True, False, False, TrackerEventAction.SKIPPED, True, []),
    (FIXED, "close", True, False, False, CLOSED, False, ["comment", "is_open", "set_open"]),
    # A person closed it before.
    (FIXED, "close", False, False, False, COMMENTED, False, ["comment", "is_open"]),
    # We closed it, and nobody has reopened it.
    (FIXED, "close", False, True, False, CLOSED, False, ["comment", "is_open"]),
    # We closed it, and a person has reopened it.
    (FIXED, "close", True, True, False, LEFT_ALONE, True, ["comment", "is_open"]),
    (FIXED, "close", True, True, True, LEFT_ALONE, True, ["comment"]),
    (FIXED, "close", False, False, True, LEFT_ALONE, False, ["comment"]),
    (REOPENED, None, False, True, False, COMMENTED, False, ["comment"]),
    (REOPENED, "nothing", False, True, False, COMMENTED, False, ["comment"]),
    (REOPENED, "close", False, True, False, TrackerEventAction.REOPENED, True, ["comment", "is_open", "set_open"]),
    # A person closed it.
    (REOPENED, "close", False, False, False, COMMENTED, False, ["comment"]),
    # A person has already reopened it.
    (REOPENED, "close", True, True, False, LEFT_ALONE, True, ["comment", "is_open"]),
    (REOPENED, "close", False, True, True, LEFT_ALONE, False, ["comment"]),
    (REDACT, "nothing", True, False, False, TrackerEventAction.REDACTED, True, ["redact"]),
    (REDACT, "close", False, True, True, TrackerEventAction.REDACTED, False, ["redact"]),
]


@pytest.mark.parametrize(
    ("event_type", "on_fixed", "is_open", "has_closed", "is_left_alone", "action", "is_open_then", "operations"), CASES
)
def test_each_event_has_the_listed_effect(
    event_type: TicketEventType,
    on_fixed: str | None,
    is_open: bool,
    has_closed: bool,
    is_left_alone: bool,
    action: TrackerEventAction,
    is_open_then: bool,
    operations: list[str],
) -> None:
    tracker = OneIssue(is_open)
    made = event(event_type, has_closed=has_closed, is_left_alone=is_left_alone)
    assert applied(tracker, made, on_fixed) == (action, operations)
    assert tracker.opened is is_open_then
    assert (tracker.title == "") is (event_type is REDACT)


@given(
    st.sampled_from(TicketEventType),
    st.sampled_from([None, "comment", "close", "nothing"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["comment", "is_open", "set_open", "redact", None]),
)
def test_a_repeated_event_changes_nothing_more(
    event_type: TicketEventType, on_fixed: str | None, is_open: bool, has_closed: bool, is_left_alone: bool, lost: str | None
) -> None:
    tracker = OneIssue(is_open)
    made = event(event_type, has_closed=has_closed, is_left_alone=is_left_alone)
    if lost is not None:
        # The operation is executed, but its response is lost.
        original = getattr(tracker, lost)

        def loses(*arguments: Any, **options: Any) -> Any:
            yield from original(*arguments, **options)
            raise TrackerRefused(TrackerFailure(RETRY, UNAVAILABLE))

        setattr(tracker, lost, loses)
    first, _ = applied(tracker, made, on_fixed)
    seen = (tracker.opened, tracker.title)
    if lost is not None:
        setattr(tracker, lost, original)
    again = event(event_type, has_closed=has_closed, is_left_alone=is_left_alone, is_outcome_unknown=True)
    second, _ = applied(tracker, again, on_fixed)
    assert isinstance(second, TrackerEventAction)
    if isinstance(first, TrackerEventAction):
        # It is no longer known who did it: a reopened issue is left alone, and a closed one counts as closed by us.
        assert second in {first, LEFT_ALONE if tracker.opened else CLOSED}
        assert (tracker.opened, tracker.title) == seen
    assert tracker.comments == ([] if second in {TrackerEventAction.SKIPPED, TrackerEventAction.REDACTED} else [EVENT_ID])
    # An issue that a person reopened is never closed by us.
    assert not (is_open and (is_left_alone or has_closed) and event_type is FIXED) or tracker.opened


def test_a_lookup_that_fails_makes_no_comment() -> None:
    failure = TrackerFailure(RETRY, UNAVAILABLE)
    tracker = OneIssue(failures={"has_comment": failure})
    assert applied(tracker, event(is_outcome_unknown=True)) == (failure, ["has_comment"])
    assert tracker.comments == []


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (TrackerFailure(CONFIGURATION, NOT_FOUND), ISSUE_NOT_FOUND),
        (TrackerFailure(CONFIGURATION, ISSUES_DISABLED), ISSUE_NOT_FOUND),
        (TrackerFailure(CONFIGURATION, MOVED), ISSUE_MOVED),
        (TrackerFailure(CONFIGURATION, FORBIDDEN), FORBIDDEN),
    ],
)
@pytest.mark.parametrize("event_type", [UPDATED, REDACT])
def test_a_refusal_about_the_issue_does_not_block_its_target(
    failure: TrackerFailure, code: str, event_type: TicketEventType
) -> None:
    operation = "redact" if event_type is REDACT else "comment"
    tracker = OneIssue(failures={operation: failure})
    assert applied(tracker, event(event_type)) == (TrackerFailure(PAYLOAD, code), [operation, "validate"])
    # A validation that fails because of a single ticket says nothing about the target.
    tracker.failures["validate"] = TrackerFailure(PAYLOAD, REJECTED)
    assert applied(tracker, event(event_type))[0] == TrackerFailure(PAYLOAD, code)
    # Nor does an unavailable assignee or label, since tickets are delivered without them.
    for setting in ("assignees", "labels"):
        tracker.failures["validate"] = TrackerFailure(CONFIGURATION, NOT_FOUND, field=setting)
        assert applied(tracker, event(event_type))[0] == TrackerFailure(PAYLOAD, code)
    for found in (TrackerFailure(CONFIGURATION, NOT_FOUND), TrackerFailure(RETRY, UNAVAILABLE)):
        tracker.failures["validate"] = found
        assert applied(tracker, event(event_type))[0] == found


@pytest.mark.parametrize(
    "failure",
    [
        TrackerFailure(CONFIGURATION, TOKEN_REJECTED),
        TrackerFailure(CONFIGURATION, ARCHIVED),
        TrackerFailure(PAYLOAD, ISSUE_LOCKED),
        TrackerFailure(PAYLOAD, REJECTED),
        TrackerFailure(RETRY, UNAVAILABLE),
    ],
)
def test_other_refusals_of_a_comment_are_returned_unchanged(failure: TrackerFailure) -> None:
    assert applied(OneIssue(failures={"comment": failure}), event()) == (failure, ["comment"])


@pytest.mark.parametrize("failure", [TrackerFailure(CONFIGURATION, FORBIDDEN), TrackerFailure(PAYLOAD, REJECTED), None])
def test_an_issue_that_cannot_be_closed_has_the_comment(failure: TrackerFailure | None) -> None:
    tracker = OneIssue(can_close=False, failures={} if failure is None else {"set_open": failure})
    assert applied(tracker, event(FIXED), "close")[0] is COMMENTED
    assert tracker.comments == [EVENT_ID]


@pytest.mark.parametrize("issue_id", ["", "..", "7/comments", "7?x=1", "-7", "SHOP-", "\u0661", "SHOP 7"])
def test_an_invalid_issue_id_is_not_sent(issue_id: str) -> None:
    assert applied(OneIssue(), event(issue_id=issue_id)) == (TrackerFailure(PAYLOAD, ISSUE_NOT_FOUND), [])


@pytest.mark.parametrize("event_type", [FIXED, UPDATED, REDACT])
def test_an_issue_of_a_moved_target_is_changed_only_if_it_is_ours(event_type: TicketEventType) -> None:
    tracker, made = OneIssue(ours=False), event(event_type, has_moved=True)
    assert applied(tracker, made, "close") == (TrackerFailure(PAYLOAD, ISSUE_MOVED), ["is_ours"])
    assert (tracker.opened, tracker.comments, tracker.title) == (True, [], "A title")
    failure = TrackerFailure(RETRY, UNAVAILABLE)
    assert applied(OneIssue(failures={"is_ours": failure}), made) == (failure, ["is_ours"])
    done, operations = applied(OneIssue(), made)
    assert isinstance(done, TrackerEventAction)
    assert (operations[0], len(operations)) == ("is_ours", 2)
