"""GitHub and GitHub Enterprise Server: issues of a repository, over the REST API.

A lookup reads the newest issues of the token's user and compares their texts: the list is nearly consistent, while GitHub's
search lags by seconds. Labels and assignees need more rights than issues; GitHub drops them without an error, or refuses the
whole issue, which is then created without them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from schemas.base.fields import Form
from schemas.trackers import common, failures
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import Steps, TrackerAccess, TrackerFailure, TrackerIssue, TrackerResponse, TrackerTicket
from schemas.trackers.issue_events import COMMENTS_PER_PAGE, MAX_COMMENT_PAGES, IssueEvents
from schemas.trackers.responses import issue_of, text_at, value_at
from schemas.version import USER_AGENT

API_VERSION: Final = "2022-11-28"
MAX_TITLE: Final = 256
MAX_BODY: Final = 65_536
MAX_GITHUB_LABEL: Final = 50
#: Entries of a page: this many of the longest issues fit into MAX_LIST_BYTES.
PAGE_ENTRIES: Final = 50
#: 500 issues: GitHub lets one user create this many in an hour.
MAX_PAGES: Final = 10

_OWNER: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_REPOSITORY: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}(?<!\.git)", re.I)
_LOGIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}(?:\[bot\])?")
_LIMIT_MESSAGE: Final = re.compile("secondary rate limit|abuse detection|rate limit exceeded|submitted too quickly", re.I)
_ARCHIVED_MESSAGE: Final = re.compile(r"\barchived\b", re.I)
#: Our name for each field that an error may name.
_FIELDS: Final[Mapping[str | None, str]] = {
    "title": "title",
    "body": "description",
    "label": "labels",
    "labels": "labels",
    "assignee": "assignees",
    "assignees": "assignees",
}
#: Fields without which an issue can be created.
_OPTIONAL: Final = frozenset({"labels", "assignees"})
#: Who may set labels and assignees; each permission includes those before it.
_TRIAGE: Final = ("triage", "push", "maintain", "admin")


class GitHubSettingsForm(common.TrackerSettingsForm):
    """`provider_settings` of a GitHub target."""

    assignees = common.assignees_field(
        "The names of the users that issues are assigned to; they need access to the repository."
    )


class GitHubTracker(IssueEvents):
    """Issues in a repository of GitHub or GitHub Enterprise Server."""

    key = "github"
    name = "GitHub"
    base_url_example = "https://github.com/acme/shop"
    credential_help = (
        "A fine-grained personal access token for this repository, with its permission "
        "Issues: Read and write. A classic token needs the scope `repo`, or `public_repo` for a public repository."
    )
    credential_url: str | None = "https://github.com/settings/personal-access-tokens/new"
    settings_form: type[Form] = GitHubSettingsForm
    #: The list of issues follows a create within seconds, and GitHub ends a request after ten.
    lookup_delay_s = 60
    #: GitHub allows at most 80 new issues a minute.
    max_per_minute: int | None = 60
    _max_title = MAX_TITLE
    _max_text = MAX_BODY
    _states: ClassVar[Mapping[bool, Mapping[str, str]]] = {
        True: {"state": "open", "state_reason": "reopened"},
        False: {"state": "closed", "state_reason": "completed"},
    }

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return why a URL is not a repository's page; None if it is one."""
        url = urlsplit(base_url)
        path = url.path.strip("/").split("/")
        if url.query or len(path) != 2 or not _OWNER.fullmatch(path[0]) or not _REPOSITORY.fullmatch(path[1]):
            return f"base_url is the page of a repository, such as {self.base_url_example}, and of nothing in it."
        return None

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue, without its labels and assignees if GitHub refuses the issue because of them."""
        wanted = self._texts(ticket)
        options = {
            "labels": common.tidy_labels(common.labels_of(access, ticket), MAX_GITHUB_LABEL),
            "assignees": list(access.settings.get("assignees", ())),
        }
        given = {name: value for name, value in options.items() if value}
        response = yield self._api(access).post("/issues", wanted | given, creates=True)
        failure = self._refusal_of(response)
        if failure is not None and failure.field in _OPTIONAL:
            response = yield self._api(access).post("/issues", wanted, creates=True)
            failure = self._refusal_of(response)
        failures.raise_for(failure)
        return self._issue(access, response.json())

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue whose text has the export's id, among the newest of the token's user since the export exists."""
        query: dict[str, Any] = {"state": "all", "sort": "created", "direction": "desc", "per_page": PAGE_ENTRIES}
        creator = yield from self._login(access)
        if creator is not None:
            query["creator"] = creator
        query |= common.since_creation(ticket.export_id)
        pages = (query | {"page": page} for page in range(1, MAX_PAGES + 1))
        return (yield from self._find(access, ticket, pages))

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the token, the repository, whether it takes issues, and the rights that GitHub shows.

        GitHub shows the scopes of a classic token and the role of its user. It does not show whether a fine-grained token
        may write issues, so only reading them is checked.
        """
        response = yield from common.send(self._api(access).get(), self._refusal_of)
        failures.raise_for(_repository_failure(access, response))
        yield from common.send(self._api(access).get("/issues?per_page=1"), self._refusal_of)
        for login in access.settings.get("assignees", ()):
            failure = self._refusal_of((yield self._api(access).get(f"/assignees/{quote(login, safe='')}")))
            if failure is not None and failure.code == failures.NOT_FOUND:
                failure = replace(failure, field="assignees")
            failures.raise_for(failure)

    def _comment_queries(self, event: TrackerEvent) -> list[dict[str, Any]]:
        query = {"per_page": COMMENTS_PER_PAGE, **common.since_creation(event.event_id)}
        return [query | {"page": page} for page in range(1, MAX_COMMENT_PAGES + 1)]

    def _has_more(self, response: TrackerResponse, issues: Sequence[Any]) -> bool:
        return len(issues) >= PAGE_ENTRIES or 'rel="next"' in response.headers.get("link", "")

    def _issue(self, access: TrackerAccess, value: Any) -> TrackerIssue | None:
        place = urlsplit(access.base_url).path.strip("/")
        return issue_of(value_at(value, "number"), value_at(value, "html_url"), place, f"{access.base_url}/issues")

    def _api(self, access: TrackerAccess) -> common.Api:
        url, headers, _ = _api(access)
        return common.Api(f"{url}/repos/{urlsplit(access.base_url).path.strip('/')}", headers, self._refusal_of)

    def _refusal_of(self, response: TrackerResponse) -> TrackerFailure | None:
        """Return the failure that a response means; a 403 may be a limit, an archived repository, or the labels alone."""
        failure = failures.failure_of(response)
        if failure is None or response.status not in {403, 422, 429}:
            return failure
        if _is_limit(response):
            return failures.rate_limited(response)
        if response.status == 403 and _ARCHIVED_MESSAGE.search(_message(response)):
            return replace(failure, code=failures.ARCHIVED)
        return replace(failure, field=_refused_field(response.json()))

    def _login(self, access: TrackerAccess) -> Steps[str | None]:
        """Return the name of the token's user; None for a token without a user, such as a GitHub App's."""
        login = text_at((yield from common.fetch_visible(_api(access).get("/user"), self._refusal_of)), "login")
        return login if login and _LOGIN.fullmatch(login) else None


def _is_limit(response: TrackerResponse) -> bool:
    if response.status == 429 or _LIMIT_MESSAGE.search(_message(response)):
        return True
    is_used_up = (response.headers.get("x-ratelimit-remaining") or "").strip() == "0"
    return response.status == 403 and (is_used_up or "retry-after" in response.headers)


def _message(response: TrackerResponse) -> str:
    """Return GitHub's messages: the response's own, and that of each error in it."""
    value = response.json()
    return " ".join(filter(None, (text_at(value, "message"), *(text_at(each, "message") for each in _errors(value)))))


def _refused_field(value: Any) -> str | None:
    """Return the first of our fields that an error names; an error of a label names the label's own fields."""
    named = ("label" if text_at(each, "resource") == "Label" else text_at(each, "field") for each in _errors(value))
    return next((_FIELDS[name] for name in named if name in _FIELDS), None)


def _errors(value: Any) -> list[Any]:
    errors = value_at(value, "errors")
    return errors if isinstance(errors, list) else []


def _repository_failure(access: TrackerAccess, response: TrackerResponse) -> TrackerFailure | None:
    """Return why issues cannot be created in the repository of a response, as far as the response shows it."""
    repository = response.json()
    if not isinstance(repository, dict):
        return failures.misconfigured(failures.NOT_FOUND, "base_url")
    if repository.get("archived") is True:
        return failures.misconfigured(failures.ARCHIVED)
    if repository.get("has_issues") is False:
        return failures.misconfigured(failures.ISSUES_DISABLED)
    # Only classic tokens have scopes; GitHub sends none, or an empty list, for others.
    scopes = {scope.strip() for scope in response.headers.get("x-oauth-scopes", "").split(",")} - {""}
    needed = {"repo"} if repository.get("private") is True else {"repo", "public_repo"}
    if scopes and scopes.isdisjoint(needed):
        return failures.misconfigured(failures.FORBIDDEN)
    permissions = repository.get("permissions")
    wanted = next((name for name in ("labels", "assignees") if access.settings.get(name)), None)
    if wanted and isinstance(permissions, dict) and not any(permissions.get(role) is True for role in _TRIAGE):
        return failures.misconfigured(failures.FORBIDDEN, wanted)
    return None


def _api(access: TrackerAccess) -> common.Api:
    url = urlsplit(access.base_url)
    if url.netloc.lower() in {"github.com", "www.github.com"}:
        usual = "https://api.github.com"
    elif url.netloc.lower().endswith(".ghe.com"):  # GitHub Enterprise Cloud with data residency
        usual = f"https://api.{url.netloc}"
    else:
        usual = f"{url.scheme}://{url.netloc}/api/v3"
    headers = {
        "Authorization": f"Bearer {access.token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": API_VERSION,
        "User-Agent": USER_AGENT,
    }
    return common.Api(common.api_base_of(access.settings, usual), headers)
