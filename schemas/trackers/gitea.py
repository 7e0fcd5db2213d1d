"""Gitea and Forgejo: issues of a repository.

The list of issues is consistent at once, newest first, but no filter finds the export's id for certain: a lookup reads the
newest issues and compares their texts, then uses the search, which may lag. Labels are set by id. Gitea drops labels and
assignees unless the token's user may write to the repository.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from schemas.base.fields import Form
from schemas.trackers import common, failures
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import (
    Steps,
    TrackerAccess,
    TrackerIssue,
    TrackerRefused,
    TrackerResponse,
    TrackerTicket,
    number,
)
from schemas.trackers.issue_events import IssueEvents
from schemas.trackers.responses import is_number, text_at, value_at, value_of

#: Gitea cuts a longer title without an error, in the middle of a character.
MAX_TITLE_BYTES: Final = 255
#: Gitea has no limit; this is somewhat less than GitHub's.
MAX_BODY_CHARS: Final = 60_000
#: Entries of a page: the maximum that Gitea returns by default.
PAGE_ENTRIES: Final = 50
#: Pages that are read: enough for 150 issues that are newer than a lost one, and for 1,000 labels.
MAX_PAGES: Final = 3
_MAX_LABEL_PAGES: Final = 20

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}(?<!\.git)")
#: Pages of a repository: a longer URL that ends in one is not the repository's.
_PAGES: Final = frozenset(
    {"issues", "pulls", "labels", "milestones", "projects", "releases", "wiki", "activity", "settings"}
)
_NEXT: Final = re.compile(r'rel="?next\b')
#: Words in Gitea's messages, and our names for the fields.
_FIELDS: Final[Mapping[str, str]] = {"assign": "assignees", "title": "title", "body": "description", "label": "labels"}


class GiteaSettingsForm(common.TrackerSettingsForm):
    """`provider_settings` of a Gitea target."""

    assignees = common.assignees_field(
        "The names of the users that issues are assigned to; they need access to the repository."
    )


class GiteaTracker(IssueEvents):
    """Issues in a repository of Gitea or Forgejo."""

    key = "gitea"
    name = "Gitea, Forgejo"
    base_url_example = "https://gitea.example.com/acme/shop"
    credential_help = (
        "An access token with the scope `write:issue` (in the web interface: Issue, Read and Write), created "
        "under Settings > Applications. Labels and assignees are set if its user may write to the repository."
    )
    credential_url: str | None = "https://docs.gitea.com/development/api-usage#generating-and-listing-api-tokens"
    settings_form: type[Form] = GiteaSettingsForm
    #: The list is consistent at once, but a request that got no response in time may still be running.
    lookup_delay_s = 5
    _max_title = _max_title_bytes = MAX_TITLE_BYTES
    _max_text = MAX_BODY_CHARS
    _states: ClassVar[Mapping[bool, Mapping[str, str]]] = {True: {"state": "open"}, False: {"state": "closed"}}

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return why a URL is not a repository's page; None if it is one. A path before its owner is allowed."""
        url = urlsplit(base_url)
        path = [part for part in url.path.split("/") if part]
        is_page = len(path) > 2 and path[-1] in _PAGES
        if url.query or len(path) < 2 or is_page or not all(map(_NAME.fullmatch, path[-2:])):
            return f"base_url is the page of a repository, such as {self.base_url_example}, and of nothing in it."
        return None

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue; returns None if a success names no issue. Labels that do not exist are left out."""
        wanted = self._texts(ticket)
        names = common.labels_of(access, ticket)
        ids = (yield from _label_ids(access, names)) if names else []
        if access.settings.get("assignees"):
            wanted["assignees"] = access.settings["assignees"]
        if ids:
            wanted["labels"] = ids
        response = yield _api(access).post("/issues", wanted, creates=True)
        yield from _require_success(access, response)
        return self._issue(access, response.json())

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue whose text has the export's id: among the newest 150, then by the search."""
        query: dict[str, Any] = {"state": "all", "type": "issues", "limit": PAGE_ENTRIES}
        pages = [query | {"page": page} for page in range(1, MAX_PAGES + 1)]
        return self._find(access, ticket, [*pages, query | {"q": ticket.export_id}])

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the token and its right to create issues, whether the repository takes them, and the assignees.

        Gitea shows neither scopes nor rights to a token for issues alone. But it refuses an issue without a title only after
        it has checked everything else.
        """
        response = yield _api(access).post("/issues", {"title": ""})
        if response.status != 422 or response.json() is None:
            yield from _require_success(access, response)
            raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, "base_url"))
        yield from _require_issues(access)
        yield from _require_assignees(access)

    def _comment_queries(self, event: TrackerEvent) -> list[dict[str, Any]]:
        # This list is not paged.
        return [common.since_creation(event.event_id)]

    def _api(self, access: TrackerAccess) -> common.Api:
        return _api(access)

    def _has_more(self, response: TrackerResponse, issues: Sequence[Any]) -> bool:
        return _NEXT.search(response.headers.get("link") or "") is not None

    def _issue(self, access: TrackerAccess, value: Any) -> TrackerIssue | None:
        named = value_at(value, "number")
        return TrackerIssue(str(named), f"{access.base_url}/issues/{named}") if is_number(named) else None


def _label_ids(access: TrackerAccess, names: list[str]) -> Steps[list[int]]:
    """Return the ids of those labels that the repository has; Gitea distinguishes upper and lower case.

    Gitea returns the number of labels but no link to the next page, and a page may have fewer entries than requested.
    """
    ids: dict[str, int] = {}
    listed = 0
    for page in range(1, _MAX_LABEL_PAGES + 1):
        response = yield from common.send(_api(access).get(f"/labels?limit={PAGE_ENTRIES}&page={page}"), failures.failure_of)
        labels = value_of(response, list)
        for label in labels:
            name, label_id = text_at(label, "name"), value_at(label, "id")
            if name is not None and is_number(label_id):
                ids.setdefault(name, label_id)
        listed += len(labels)
        if not labels or listed >= (number(response.headers.get("x-total-count", "")) or 0) or ids.keys() >= {*names}:
            break
    return [ids[name] for name in names if name in ids]


def _require_success(access: TrackerAccess, response: TrackerResponse) -> Steps[None]:
    """Raise TrackerRefused for a refused create; a 404 may mean a repository without issues, so the repository is read."""
    failure = failures.failure_of(response)
    if failure is not None and failure.code == failures.NOT_FOUND:
        yield from _require_issues(access)
    elif failure is not None and failure.refuses_ticket:
        message = (text_at(response.json(), "message") or "").lower()
        failure = replace(failure, field=next((field for word, field in _FIELDS.items() if word in message), None))
    failures.raise_for(failure)


def _require_issues(access: TrackerAccess) -> Steps[None]:
    """Raise TrackerRefused if the repository takes no issues, as far as the token may read it."""
    response = yield _api(access).get()
    repository = response.json() if response.status == 200 else None
    if value_at(repository, "archived") is True:
        raise TrackerRefused(failures.misconfigured(failures.ARCHIVED))
    if value_at(repository, "has_issues") is False:
        raise TrackerRefused(failures.misconfigured(failures.ISSUES_DISABLED))


def _require_assignees(access: TrackerAccess) -> Steps[None]:
    """Raise TrackerRefused if a user cannot be assigned, as far as the token may read the possible assignees."""
    wanted = access.settings.get("assignees")
    if not wanted:
        return
    response = yield _api(access).get("/assignees")
    users = response.json() if response.status == 200 else None
    names = {(text_at(user, "login") or "").lower() for user in users} if isinstance(users, list) else None
    if names is not None and not names.issuperset(map(str.lower, wanted)):
        raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, "assignees"))


def _api(access: TrackerAccess) -> common.Api:
    """Return the API of the repository."""
    prefix, owner, repository = access.base_url.rsplit("/", 2)
    base = common.api_base_of(access.settings, f"{prefix}/api/v1")
    headers = {"Authorization": f"token {access.token}", "Accept": "application/json"}
    return common.Api(f"{base}/repos/{owner}/{repository}", headers)
