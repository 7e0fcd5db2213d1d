"""The requests that GitHub, GitLab and Gitea have in common: lists of issues, an issue, and its comments."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from schemas.trackers.common import Api, fetch, send
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import (
    FailureKind,
    Steps,
    Tracker,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerRefused,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.failures import FORBIDDEN, ISSUE_LOCKED, failure_of, misconfigured, raise_for, unreadable
from schemas.trackers.responses import is_number, oldest_with_marker, text_at, value_at, value_of
from schemas.trackers.text import markdown, titles
from schemas.trackers.text.outline import erased_title

#: Comments of a page: this many of the longest fit into MAX_LIST_BYTES.
COMMENTS_PER_PAGE: Final = 50
#: Pages of comments that are read: enough for 250 comments that are newer than a lost one.
MAX_COMMENT_PAGES: Final = 5

_IS_OPEN: Final = {"open": True, "opened": True, "closed": False}
#: "This issue is locked", "comment_on_locked"; not "You are blocked".
_LOCKED: Final = re.compile("(?<!b)locked", re.IGNORECASE)


class IssueEvents(Tracker):
    """The part of a tracker for lookups and events; `_comments` and `_description` are the tracker's names for them."""

    _comments: ClassVar[str] = "comments"
    _description: ClassVar[str] = "body"
    _update_method: ClassVar[str] = "PATCH"
    _max_title: ClassVar[int]
    _max_title_bytes: ClassVar[int | None] = None
    #: Maximum length of an issue's text and of a comment.
    _max_text: ClassVar[int]
    #: The changes that reopen (True) or close (False) an issue.
    _states: ClassVar[Mapping[bool, Mapping[str, str]]]

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Post an event as a comment; a locked issue has its own error code."""
        text = {"body": markdown.comment_of(event, self._max_text)}
        response = yield self._api(access).post(f"/issues/{event.issue_id}/{self._comments}", text, creates=True)
        failure = self._refusal_of(response)
        if failure is not None and failure.code == FORBIDDEN and _LOCKED.search(text_at(response.json(), "message") or ""):
            failure = replace(failure, kind=FailureKind.PAYLOAD, code=ISSUE_LOCKED)
        raise_for(failure)
        if not is_number(value_at(response.json(), "id")):
            raise TrackerRefused(unreadable())

    def has_comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the comments that may be the event's for its id."""
        for query in self._comment_queries(event):
            path = f"/issues/{event.issue_id}/{self._comments}?{urlencode(query)}".rstrip("?")
            comments = yield from self._api(access).fetch(path, list)
            if any(event.event_id in (text_at(each, "body") or "") for each in comments):
                return True
            if len(comments) < COMMENTS_PER_PAGE:
                break
        return False

    def is_ours(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the issue's text for the export's id."""
        issue = yield from self._api(access).fetch(f"/issues/{event.issue_id}", dict)
        # The text of an issue without one is null.
        return event.export_id in (text_at(issue, self._description) or "")

    def is_open(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Read the issue's state."""
        return (yield from self._has_open(self._api(access).get(f"/issues/{event.issue_id}")))

    def set_open(self, access: TrackerAccess, event: TrackerEvent, *, is_open: bool) -> Steps[bool]:
        """Set the issue's state."""
        return (yield from self._has_open(self._update(access, event, self._states[is_open]))) is is_open

    def redact(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Overwrite title and text of the issue; the response must show the new title."""
        title = erased_title(event)
        update = self._update(access, event, {"title": title, self._description: markdown.erased_of(event)})
        if (yield from fetch(update, self._refusal_of, str, "title")) != title:
            raise TrackerRefused(misconfigured(FORBIDDEN))

    def _texts(self, ticket: TrackerTicket) -> dict[str, Any]:
        """Return the title and the text of a new issue."""
        title = titles.title_of(ticket, self._max_title, self._max_title_bytes)
        return {"title": title, self._description: markdown.body_of(ticket, self._max_text)}

    def _find(
        self, access: TrackerAccess, ticket: TrackerTicket, queries: Iterable[Mapping[str, Any]]
    ) -> Steps[TrackerIssue | None]:
        """Find the issue whose text has the export's id in the lists that the queries return, one list after the other."""
        for query in queries:
            response = yield from send(self._api(access).get(f"/issues?{urlencode(query)}"), self._refusal_of)
            issues = value_of(response, list)
            # The lists of GitHub and Gitea have pull requests too.
            listed = [each for each in issues if not value_at(each, "pull_request")]
            found = oldest_with_marker(listed, self._description, ticket.export_id, lambda each: self._issue(access, each))
            if found is not None or not self._has_more(response, issues):
                return found
        return None

    def _has_open(self, request: TrackerRequest) -> Steps[bool]:
        """Send a request; returns whether the issue in its response is open."""
        state = yield from fetch(request, self._refusal_of, str, "state")
        if state not in _IS_OPEN:
            raise TrackerRefused(unreadable())
        return _IS_OPEN[state]

    def _update(self, access: TrackerAccess, event: TrackerEvent, changes: Mapping[str, str]) -> TrackerRequest:
        return self._api(access).send(self._update_method, f"/issues/{event.issue_id}", changes)

    @abstractmethod
    def _comment_queries(self, event: TrackerEvent) -> list[dict[str, Any]]:
        """Return the queries of the pages that may have an event's comment, in the order in which to read them."""

    @abstractmethod
    def _api(self, access: TrackerAccess) -> Api:
        """Return the API of the repository or project."""

    @abstractmethod
    def _issue(self, access: TrackerAccess, value: Any) -> TrackerIssue | None:
        """Return the issue of a response; None if the response names none of this repository or project."""

    def _has_more(self, response: TrackerResponse, issues: Sequence[Any]) -> bool:
        """Return whether the next query may list more issues than this response."""
        return True

    def _refusal_of(self, response: TrackerResponse) -> TrackerFailure | None:
        """Return the failure that a response means."""
        return failure_of(response)
