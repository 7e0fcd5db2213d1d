"""The requests that GitHub, GitLab and Gitea have in common: lists of issues, an issue, and its comments."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from schemas.trackers.common import Api, asked, is_number, oldest_with_marker, text_at, unreadable, value_at, value_of
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import (
    FailureKind,
    Steps,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.failures import FORBIDDEN, ISSUE_LOCKED, failure_of, misconfigured
from schemas.trackers.text import markdown
from schemas.trackers.text.outline import erased_title

#: Comments of a page: so many of the longest fit into MAX_LIST_BYTES.
COMMENTS_PER_PAGE: Final = 50
#: Comments that are newer than a lost one: 250.
MAX_COMMENT_PAGES: Final = 5

_IS_OPEN: Final = {"open": True, "opened": True, "closed": False}
#: "This issue is locked", "comment_on_locked"; not "You are blocked".
_LOCKED: Final = re.compile("(?<!b)locked", re.IGNORECASE)


class IssueEvents(ABC):
    """The part of a tracker for look-ups and events; `_comments` and `_description` are the tracker's names for them."""

    max_per_minute: int | None = None
    _comments: ClassVar[str] = "comments"
    _description: ClassVar[str] = "body"
    _update_method: ClassVar[str] = "PATCH"
    _max_comment: ClassVar[int]
    #: What is sent to reopen or close an issue, by whether it is to be open.
    _states: ClassVar[Mapping[bool, Mapping[str, str]]]

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[TrackerFailure | None]:
        """Comment an event; a locked issue is a failure of its own."""
        text = {"body": markdown.comment_of(event, self._max_comment)}
        response = yield self._api(access).post(f"/issues/{event.issue_id}/{self._comments}", text, creates=True)
        failure = self._refusal_of(response)
        if failure is not None:
            is_locked = failure.code == FORBIDDEN and _LOCKED.search(text_at(response.json(), "message") or "")
            return replace(failure, kind=FailureKind.PAYLOAD, code=ISSUE_LOCKED) if is_locked else failure
        return None if is_number(value_at(response.json(), "id")) else unreadable()

    def has_comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool | TrackerFailure]:
        """Look for the event's id in the comments that may be its own."""
        for query in self._comment_queries(event):
            path = f"/issues/{event.issue_id}/{self._comments}?{urlencode(query)}".rstrip("?")
            comments = yield from asked(self._api(access).get(path), self._refusal_of, list)
            if isinstance(comments, TrackerFailure):
                return comments
            if any(event.event_id in (text_at(each, "body") or "") for each in comments):
                return True
            if len(comments) < COMMENTS_PER_PAGE:
                break
        return False

    def is_ours(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool | TrackerFailure]:
        """Look for the export's id in the issue's text."""
        issue = yield from asked(self._api(access).get(f"/issues/{event.issue_id}"), self._refusal_of, dict)
        # An issue without a text has null there.
        return issue if isinstance(issue, TrackerFailure) else event.export_id in (text_at(issue, self._description) or "")

    def is_open(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool | TrackerFailure]:
        """Read the issue's state."""
        response = yield self._api(access).get(f"/issues/{event.issue_id}")
        return self._refusal_of(response) or _is_open(response)

    def set_open(self, access: TrackerAccess, event: TrackerEvent, *, is_open: bool) -> Steps[bool | TrackerFailure]:
        """Set the issue's state."""
        response = yield self._update(access, event, self._states[is_open])
        state = self._refusal_of(response) or _is_open(response)
        return state if isinstance(state, TrackerFailure) else state is is_open

    def redact(self, access: TrackerAccess, event: TrackerEvent) -> Steps[TrackerFailure | None]:
        """Overwrite the issue; the response shows the title that it has now."""
        title = erased_title(event)
        update = self._update(access, event, {"title": title, self._description: markdown.erased_of(event)})
        shown = yield from asked(update, self._refusal_of, str, "title")
        if isinstance(shown, TrackerFailure):
            return shown
        return None if shown == title else misconfigured(FORBIDDEN)

    def held_until_s(self, response: TrackerResponse) -> float | None:
        """Return None: the tracker has no limit of requests that it shows."""
        return None

    def _find(
        self, access: TrackerAccess, ticket: TrackerTicket, queries: Iterable[Mapping[str, Any]]
    ) -> Steps[TrackerIssue | TrackerFailure | None]:
        """Find the issue whose text has the export's id in the lists that the queries give, one after the other."""
        for query in queries:
            response = yield self._api(access).get(f"/issues?{urlencode(query)}")
            issues = value_of(response, self._refusal_of(response), list)
            if isinstance(issues, TrackerFailure):
                return issues
            # The lists of GitHub and Gitea have pull requests too.
            listed = [each for each in issues if not value_at(each, "pull_request")]
            found = oldest_with_marker(listed, self._description, ticket.export_id, lambda each: self._issue(access, each))
            if found is not None or not self._has_more(response, issues):
                return found
        return None

    def _update(self, access: TrackerAccess, event: TrackerEvent, changes: Mapping[str, str]) -> TrackerRequest:
        return self._api(access).send(self._update_method, f"/issues/{event.issue_id}", changes)

    @abstractmethod
    def _comment_queries(self, event: TrackerEvent) -> list[dict[str, Any]]:
        """Return the queries of the pages of comments that may have an event's, in the order in which to read them."""

    @abstractmethod
    def _api(self, access: TrackerAccess) -> Api:
        """Return the API at the repository or project."""

    @abstractmethod
    def _issue(self, access: TrackerAccess, value: Any) -> TrackerIssue | None:
        """Return the issue of a response; None where it names none of this repository or project."""

    def _has_more(self, response: TrackerResponse, issues: Sequence[Any]) -> bool:
        """Return whether the next query may list more issues than this response."""
        return True

    def _refusal_of(self, response: TrackerResponse) -> TrackerFailure | None:
        """Return the failure that a response means."""
        return failure_of(response)


def _is_open(response: TrackerResponse) -> bool | TrackerFailure:
    return _IS_OPEN.get(text_at(response.json(), "state") or "", unreadable())
