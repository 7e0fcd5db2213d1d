"""What a tracker's response says: the values in it, and how the issue of an export is recognized."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from schemas.trackers.exchange import TrackerIssue, TrackerRefused, TrackerResponse
from schemas.trackers.failures import unreadable

Value = TypeVar("Value")


def value_of(response: TrackerResponse, kind: type[Value], *path: str | int) -> Value:
    """Return the value of this kind at `path` of a successful response. Raises TrackerRefused if there is none."""
    found = value_at(response.json(), *path)
    if not isinstance(found, kind):
        raise TrackerRefused(unreadable())
    return found


def text_at(value: Any, *path: str | int) -> str | None:
    """Return the text at `path` (names of objects, indexes of lists) in a parsed response; None if there is none."""
    found = value_at(value, *path)
    return found if isinstance(found, str) else None


def value_at(value: Any, *path: str | int) -> Any:
    """Return the value at `path` in a parsed response; None if there is none, whatever the response is."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def is_number(value: Any) -> bool:
    """Return whether a value of a response is a positive integer of at most 64 bits, like the numbers and ids of issues."""
    return type(value) is int and 0 < value < 2**63


def issue_of(number: Any, issues_url: str) -> TrackerIssue | None:
    """Return the issue that a response names by its number, with the URL of its page; None if it names none."""
    return TrackerIssue(str(number), f"{issues_url}/{number}") if is_number(number) else None


def oldest_with_marker(
    issues: Iterable[Any], member: str, marker: str, issue_from: Callable[[Any], TrackerIssue | None]
) -> TrackerIssue | None:
    """Return the oldest listed issue whose text (`member`) has the marker: a person may have quoted it in a later issue.

    `issue_from` returns the issue for a listed entry; its id is a number.
    """
    having = (each for each in issues if marker in (text_at(each, member) or ""))
    found = (issue for issue in map(issue_from, having) if issue is not None)
    return min(found, key=lambda issue: int(issue.id), default=None)
