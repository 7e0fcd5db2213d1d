"""The meaning of a tracker's refusal for the export and the target.

The table is the same for every tracker; a module adds its own cases (GitHub's 403 that is a rate limit, GraphQL errors).
"""

from collections.abc import Mapping
from typing import Final

from schemas.base.retry_after import parse_retry_after
from schemas.trackers.exchange import FailureKind, TrackerFailure, TrackerRefused, TrackerResponse

TOKEN_REJECTED: Final = "tracker_token_rejected"  # noqa: S105 - an error code
FORBIDDEN: Final = "tracker_forbidden"
NOT_FOUND: Final = "tracker_not_found"
ISSUES_DISABLED: Final = "tracker_issues_disabled"
ARCHIVED: Final = "tracker_archived"
MOVED: Final = "tracker_moved"
REJECTED: Final = "tracker_rejected"
RATE_LIMITED: Final = "tracker_rate_limited"
UNAVAILABLE: Final = "tracker_unavailable"
#: The response neither names the issue nor refuses it.
UNKNOWN_OUTCOME: Final = "tracker_outcome_unknown"
#: Events only: the issue was deleted, moved elsewhere or takes no comments. The target itself is not affected.
ISSUE_NOT_FOUND: Final = "issue_not_found"
ISSUE_MOVED: Final = "issue_moved"
ISSUE_LOCKED: Final = "issue_locked"

#: Codes that block the target and the export; `resume` restores both.
CONFIGURATION_CODES: Final = frozenset({TOKEN_REJECTED, FORBIDDEN, NOT_FOUND, ISSUES_DISABLED, ARCHIVED, MOVED})

_CONFIGURATION: Final[Mapping[int, str]] = {
    **dict.fromkeys((301, 302, 303, 307, 308), MOVED),
    401: TOKEN_REJECTED,
    403: FORBIDDEN,
    404: NOT_FOUND,
    410: ISSUES_DISABLED,
    423: ARCHIVED,
}


def failure_of(response: TrackerResponse) -> TrackerFailure | None:
    """Return the failure that the status of a response means; None for a 2xx."""
    status = response.status
    if 200 <= status < 300:
        return None
    if status in _CONFIGURATION:
        return misconfigured(_CONFIGURATION[status])
    if status == 429:
        return rate_limited(response)
    if status >= 500 or status in {408, 425}:
        return TrackerFailure(FailureKind.RETRY, UNAVAILABLE, *_named_wait(response))
    return rejected()


def raise_for(failure: TrackerFailure | None) -> None:
    """Raise TrackerRefused if there is a failure."""
    if failure is not None:
        raise TrackerRefused(failure)


def misconfigured(code: str, field: str | None = None) -> TrackerFailure:
    """Return a failure that a person has to fix, in the settings or at the tracker."""
    return TrackerFailure(FailureKind.CONFIGURATION, code, field=field)


def rejected(field: str | None = None) -> TrackerFailure:
    """Return a refusal of this ticket, for the value of a field if the tracker names one."""
    return TrackerFailure(FailureKind.PAYLOAD, REJECTED, field=field)


def unreadable() -> TrackerFailure:
    """Return the failure of a success that cannot be read: no lookup may conclude from it that there is no issue."""
    return TrackerFailure(FailureKind.RETRY, UNAVAILABLE)


def rate_limited(response: TrackerResponse) -> TrackerFailure:
    """Return a refusal by a rate limit, with the wait that Retry-After names, or else until the limit is reset."""
    wait_s, retry_at_s = _named_wait(response)
    if wait_s is None and retry_at_s is None:
        retry_at_s = response.reset_at_s(if_unknown="0")
    return TrackerFailure(FailureKind.RETRY, RATE_LIMITED, wait_s, retry_at_s, is_rate_limit=True)


def _named_wait(response: TrackerResponse) -> tuple[float | None, float | None]:
    """Return the seconds that Retry-After names, and the moment, in seconds since 1970; both may be None."""
    named = parse_retry_after(response.headers.get("retry-after"))
    return named.seconds, None if named.moment is None else named.moment.timestamp()
