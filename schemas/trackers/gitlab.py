"""GitLab, gitlab.com and self-managed: issues of a project, over the REST API.

A lookup searches descriptions for the export's id, then compares the newest issues of the token's user: the search does not
depend on how many issues there are, the list not on GitLab's index. GitLab ignores parameters that it does not know, so only
the returned descriptions count.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode, urlsplit

from schemas.base.fields import Form
from schemas.trackers import common, failures
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import Steps, TrackerAccess, TrackerFailure, TrackerIssue, TrackerResponse, TrackerTicket
from schemas.trackers.issue_events import COMMENTS_PER_PAGE, MAX_COMMENT_PAGES, IssueEvents
from schemas.trackers.responses import is_number, issue_of, text_at, value_at
from schemas.version import USER_AGENT

MAX_TITLE: Final = 255
#: GitLab accepts 1,048,576 characters; of this length, PAGE_ENTRIES issues fit into MAX_LIST_BYTES.
MAX_DESCRIPTION: Final = 65_536
MAX_GITLAB_LABEL: Final = 255
PAGE_ENTRIES: Final = 50
#: Planner: the lowest role that may set labels and assignees.
PLANNER: Final = 15

_API: Final = "/api/v4"
_PART: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.][A-Za-z0-9_.-]{0,254}(?<!\.git)", re.I)
#: Our name for each field that an error may name.
_FIELDS: Final[Mapping[str, str]] = {
    "title": "title",
    "description": "description",
    "labels": "labels",
    "assignees": "assignees",
    "assignee_ids": "assignees",
}


class GitLabSettingsForm(common.TrackerSettingsForm):
    """`provider_settings` of a GitLab target."""

    assignees = common.assignees_field(
        "The names of the users that issues are assigned to; GitLab Free uses only the first.", max_length=255
    )


class GitLabTracker(IssueEvents):
    """Issues in a project of GitLab."""

    key = "gitlab"
    name = "GitLab"
    base_url_example = "https://gitlab.com/group/shop"
    credential_help = (
        "A project access token with the role Planner or Reporter and the scope `api`, created "
        "in the project under Settings, Access tokens. A personal access token of such a member works too."
    )
    credential_url: str | None = "https://docs.gitlab.com/user/project/settings/project_access_tokens/"
    settings_form: type[Form] = GitLabSettingsForm
    #: A create that got no response in time may run for as long as GitLab allows a request to take: a minute.
    lookup_delay_s = 60
    _comments = "notes"
    _description = "description"
    _update_method = "PUT"
    _max_title = MAX_TITLE
    _max_text = MAX_DESCRIPTION
    _states: ClassVar[Mapping[bool, Mapping[str, str]]] = {True: {"state_event": "reopen"}, False: {"state_event": "close"}}

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return why a URL is not a project's page; None if it is one."""
        parts = _project(base_url, settings).split("/")
        if urlsplit(base_url).query or len(parts) < 2 or not all(map(_PART.fullmatch, parts)):
            return f"base_url is the page of a project, such as {self.base_url_example}, and of nothing in it."
        return None

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue; an assignee who is not found is left out."""
        wanted = self._texts(ticket)
        labels = common.tidy_labels(common.labels_of(access, ticket), MAX_GITLAB_LABEL)
        if labels:
            wanted["labels"] = labels
        users = []
        for name in access.settings.get("assignees", ()):
            user = yield from self._user_id(access, name)
            users += [] if user is None else [user]
        if users:
            wanted["assignee_ids"] = users
        response = yield from common.send(self._api(access).post("/issues", wanted, creates=True), self._refusal_of)
        return self._issue(access, response.json())

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue whose description has the export's id: by the search, then among the user's newest."""
        searched = {"search": ticket.export_id, "in": "description", "sort": "asc"}
        newest = {"scope": "created_by_me", "sort": "desc"}
        both = {"state": "all", "order_by": "created_at", "per_page": PAGE_ENTRIES}
        return self._find(access, ticket, [searched | both, newest | both])

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the token's scope, the project, whether it has issues, the role in it, and the assignees."""
        response = yield _api(access).get("/personal_access_tokens/self")
        # Older versions do not know this path, and a fine-grained token may lack the right to read itself.
        if response.status not in {403, 404}:
            failures.raise_for(self._refusal_of(response) or _scope_failure(response))
        response = yield from common.send(self._api(access).get(), self._refusal_of)
        failures.raise_for(_project_failure(response))
        for name in access.settings.get("assignees", ()):
            if (yield from self._user_id(access, name)) is None:
                failures.raise_for(failures.misconfigured(failures.NOT_FOUND, "assignees"))

    def _comment_queries(self, event: TrackerEvent) -> list[dict[str, Any]]:
        query = {"order_by": "created_at", "sort": "desc", "per_page": COMMENTS_PER_PAGE}
        return [query | {"page": page} for page in range(1, MAX_COMMENT_PAGES + 1)]

    def _issue(self, access: TrackerAccess, value: Any) -> TrackerIssue | None:
        project = _project(access.base_url, access.settings)
        return issue_of(value_at(value, "iid"), value_at(value, "web_url"), project, f"{access.base_url}/-/issues")

    def _api(self, access: TrackerAccess) -> common.Api:
        url, headers, _ = _api(access)
        project = quote(_project(access.base_url, access.settings), safe="")
        return common.Api(f"{url}/projects/{project}", headers, self._refusal_of)

    def _refusal_of(self, response: TrackerResponse) -> TrackerFailure | None:
        """Return the failure of a response; GitLab redirects reads of a moved project, and answers writes with 405."""
        failure = failures.failure_of(response)
        if response.status == 405:
            return failures.misconfigured(failures.MOVED)
        if failure is not None and failure.refuses_ticket:
            return replace(failure, field=_refused_field(response.json()))
        return failure

    def _user_id(self, access: TrackerAccess, name: str) -> Steps[int | None]:
        """Return the id of a user; None if the token finds no user of this name."""
        users = yield from common.fetch_visible(
            _api(access).get(f"/users?{urlencode({'username': name})}"), self._refusal_of
        )
        for user in users if isinstance(users, list) else ():
            number, username = value_at(user, "id"), text_at(user, "username")
            if is_number(number) and username is not None and username.casefold() == name.casefold():
                return int(number)
        return None


def _refused_field(value: Any) -> str | None:
    """Return the field that an error names: the first of `message`, or the first word of `error`."""
    messages = value_at(value, "message")
    named = [*messages] if isinstance(messages, dict) else (text_at(value, "error") or "").split()[:1]
    return next((_FIELDS[name] for name in named if name in _FIELDS), None)


def _scope_failure(response: TrackerResponse) -> TrackerFailure | None:
    token = response.json()
    if not isinstance(token, dict):
        return failures.misconfigured(failures.NOT_FOUND, "base_url")
    scopes = token.get("scopes")
    # A fine-grained token has no scopes; its rights are not shown.
    lacks_scope = isinstance(scopes, list) and token.get("granular") is not True and "api" not in scopes
    return failures.misconfigured(failures.FORBIDDEN) if lacks_scope else None


def _project_failure(response: TrackerResponse) -> TrackerFailure | None:
    """Return why issues cannot be created in the project of a response, as far as the response shows it."""
    project = response.json()
    if not isinstance(project, dict):
        return failures.misconfigured(failures.NOT_FOUND, "base_url")
    if project.get("archived") is True:
        return failures.misconfigured(failures.ARCHIVED)
    if project.get("issues_enabled") is False or project.get("issues_access_level") == "disabled":
        return failures.misconfigured(failures.ISSUES_DISABLED)
    levels = [value_at(project, "permissions", each, "access_level") for each in ("project_access", "group_access")]
    known = [level for level in levels if type(level) is int]
    # A missing level is no refusal: members of a group with which the project is shared have no level here.
    return failures.misconfigured(failures.FORBIDDEN) if known and max(known) < PLANNER else None


def _api(access: TrackerAccess) -> common.Api:
    headers = {"PRIVATE-TOKEN": access.token, "Accept": "application/json", "User-Agent": USER_AGENT}
    return common.Api(_api_base(access.base_url, access.settings), headers)


def _project(base_url: str, settings: Mapping[str, Any]) -> str:
    """Return the path of the project, without the path below which GitLab runs.

    `api_base` begins with the same path, unless it is a gateway on another host.
    """
    page, api = urlsplit(base_url), urlsplit(_api_base(base_url, settings))
    prefix = api.path.removesuffix(_API) if page.netloc == api.netloc else ""
    path = page.path.rstrip("/")
    return (path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path).strip("/")


def _api_base(base_url: str, settings: Mapping[str, Any]) -> str:
    url = urlsplit(base_url)
    return common.api_base_of(settings, f"{url.scheme}://{url.netloc}{_API}")
