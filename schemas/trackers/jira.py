"""Jira: Cloud with REST API 3 and ADF, Data Center with REST API 2 and wiki text.

Both have the same resources; only the callers of `_is_data_center` treat them differently. Jira has no idempotency key and
its search lags: each issue gets a label made of the export's id, and a lookup waits `lookup_delay_s` before it trusts an
empty result.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from marshmallow import fields

from schemas.base.fields import Form, Integer, described
from schemas.trackers import common, failures
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import (
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
from schemas.trackers.responses import text_at, value_at, value_of
from schemas.trackers.text import adf, titles, wiki
from schemas.trackers.text.outline import erased_title

MAX_SUMMARY: Final = 255
MAX_DESCRIPTION: Final = 32_767
MAX_JIRA_LABEL: Final = 255
DEFAULT_ISSUE_TYPE: Final = "Task"
#: Entries of a page, the maximum of Cloud, and number of pages: enough for 1,000 issue types, or fields of one.
_PAGE: Final = 200
_MAX_PAGES: Final = 5
#: An export has one issue, or more if a lookup ran before Jira had indexed the first one.
_MAX_FOUND: Final = 10
#: Number of newest comments in which a lost one is searched.
_MAX_COMMENTS: Final = 100
#: The key of the category of statuses in which an issue is done.
_DONE: Final = "done"

_ISSUE_KEY: Final = re.compile(r"[A-Z][A-Z0-9_]{0,99}-[0-9]{1,18}")
#: First parts of paths of Jira's pages: a URL with one is a page's, not the site's.
_PAGES: Final = frozenset({"browse", "projects", "issues", "secure", "software", "rest", "servicedesk", "plugins"})

#: Our name for each field of Jira that an error may name.
_FIELDS: Final[Mapping[str, str]] = {
    "summary": "title",
    "description": "description",
    "labels": "labels",
    "priority": "priority_by_severity",
    "assignee": "assignee",
    "issuetype": "issue_type",
    "project": "project",
}
#: Jira sets these itself, even if it reports them as required.
_SET_BY_JIRA: Final = frozenset({"project", "issuetype", "reporter", "assignee", "priority"})
_FIELD_ID: Final = re.compile(r"[A-Za-z0-9_]{1,60}")
#: Jira treats a request with a wrong token as anonymous, sometimes with status 200; this header then begins with one of
#: these values.
_LOGIN_HEADER: Final = "x-seraph-loginreason"
_LOGIN_FAILED: Final = ("AUTHENTICATED_FAILED", "AUTHENTICATION_DENIED")
_PERMISSIONS: Final = ("BROWSE_PROJECTS", "CREATE_ISSUES")
_TOKEN_REJECTED: Final = failures.misconfigured(failures.TOKEN_REJECTED)


class JiraSettingsForm(common.TrackerSettingsForm):
    """`provider_settings` of a Jira target."""

    project = common.key_field("The key of the project, such as `SHOP`.")
    issue_type = common.name_field("The name of the issue type; default: `Task`.")
    priority_by_severity = fields.Nested(
        common.PriorityBySeverityForm,
        **described("The name of Jira's priority for each severity; default: Jira's default priority."),
    )
    assignee = common.name_field(
        "The user that issues are assigned to: an account id of Jira Cloud, or a user name of Jira Data Center.",
        max_length=200,
    )
    api_version = Integer(
        minimum=2, maximum=3, **described("The version of the API: 3 for Jira Cloud, 2 for Jira Data Center; default: 3.")
    )


class JiraTracker(Tracker):
    """Issues in a project of Jira Cloud or Jira Data Center."""

    key = "jira"
    name = "Jira"
    base_url_example = "https://acme.atlassian.net"
    credential_help = (
        "Jira Cloud: `email:token`, an API token of a user with the permissions Browse projects, Create issues and "
        "Add comments in the project; Transition issues to close them, Edit issues to erase them. "
        "Data Center: a personal access token of such a user, or `user:password`."
    )
    credential_url: str | None = "https://id.atlassian.com/manage-profile/security/api-tokens"
    settings_form: type[Form] = JiraSettingsForm
    lookup_delay_s = 60

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return why a URL is not the address of a Jira, or why the settings do not fit it; None if both are right."""
        url = urlsplit(base_url)
        path = [part for part in url.path.split("/") if part]
        is_cloud = (url.hostname or "").endswith(".atlassian.net")
        if url.query or (path and (is_cloud or not _PAGES.isdisjoint(path))):
            return f"base_url is the address of Jira, not of a page in it: {url.scheme}://{url.netloc}"
        if is_cloud and _is_data_center(settings):
            return "api_version 2 is for Jira Data Center; Jira Cloud has api_version 3."
        return None

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue; returns None if a success names no issue."""
        request = _api(access).post("/issue", {"fields": _fields(access, ticket)}, creates=True)
        response = yield from common.send(request, _refusal_of)
        return _issue(access, text_at(response.json(), "key"))

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue with the export's label; if there are several, the oldest."""
        label = marker_label(ticket.export_id)
        search = "/search" if _is_data_center(access.settings) else "/search/jql"
        jql = f'project = "{access.settings["project"]}" AND labels = "{label}" ORDER BY created ASC'
        response = yield _api(access).post(search, {"jql": jql, "fields": ["labels"], "maxResults": _MAX_FOUND})
        refusal = _read_refusal_of(response)
        if refusal is not None and refusal.refuses_ticket:
            # Only the project in the query can be wrong: it does not exist, or the token cannot see it.
            refusal = failures.misconfigured(failures.NOT_FOUND, "project")
        failures.raise_for(refusal)
        issues = value_of(response, list, "issues")
        found = (_issue(access, text_at(issue, "key")) for issue in issues if label in _labels_in(issue))
        return next((issue for issue in found if issue is not None), None)

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the token, the project, the permissions in it, its issue type and the fields of that."""
        response = yield _api(access).get("/myself")
        refusal = _read_refusal_of(response)
        if response.status == 404 or (refusal is None and not isinstance(response.json(), dict)):
            # No Jira responds like this: the address is another server's, or this Jira has the other version of the API.
            raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, "base_url"))
        # Every user may read their own name; Cloud responds with 403 to a token without its email.
        failures.raise_for(_TOKEN_REJECTED if response.status == 403 else refusal)
        yield from _require_permissions(access)
        yield from _require_issue_type(access)

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Post an event as a comment."""
        text = wiki if _is_data_center(access.settings) else adf
        body = {"body": text.comment_of(event, MAX_DESCRIPTION)}
        request = _api(access).post(f"/issue/{event.issue_id}/comment", body, creates=True)
        if not (yield from common.fetch(request, _refusal_of, str, "id")):
            raise TrackerRefused(failures.unreadable())

    def has_comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the newest comments for the event's id."""
        query = f"orderBy=-created&maxResults={_MAX_COMMENTS}"
        comments = yield from _api(access).fetch(f"/issue/{event.issue_id}/comment?{query}", list, "comments")
        return any(event.event_id in json.dumps(value_at(each, "body")) for each in comments)

    def is_ours(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the issue's labels for the export's label."""
        labels = yield from _api(access).fetch(f"/issue/{event.issue_id}?fields=labels", list, "fields", "labels")
        return marker_label(event.export_id) in labels

    def is_open(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Read the category of the issue's status."""
        path = f"/issue/{event.issue_id}?fields=status"
        return (yield from _api(access).fetch(path, str, "fields", "status", "statusCategory", "key")) != _DONE

    def set_open(self, access: TrackerAccess, event: TrackerEvent, *, is_open: bool) -> Steps[bool]:
        """Make the first transition to a status that is done, or is not, as `is_open` requires; False if there is none."""
        path = f"/issue/{event.issue_id}/transitions"
        for each in (yield from _api(access).fetch(path, list, "transitions")):
            transition_id, category = text_at(each, "id"), text_at(each, "to", "statusCategory", "key")
            if transition_id and category is not None and (category != _DONE) is is_open:
                yield from _change(_api(access).post(path, {"transition": {"id": transition_id}}))
                return True
        return False

    def redact(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Overwrite summary and description."""
        text = wiki if _is_data_center(access.settings) else adf
        made = {"fields": {"summary": erased_title(event), "description": text.erased_of(event)}}
        yield from _change(_api(access).send("PUT", f"/issue/{event.issue_id}", made))


def marker_label(export_id: str) -> str:
    """Return the label by which the issue of an export is found."""
    return f"rr-{export_id.lower()}"


def _fields(access: TrackerAccess, ticket: TrackerTicket) -> dict[str, Any]:
    settings = access.settings
    is_data_center = _is_data_center(settings)
    made: dict[str, Any] = {
        "project": {"key": settings["project"]},
        "issuetype": {"name": _issue_type(settings)},
        "summary": titles.title_of(ticket, MAX_SUMMARY),
        "description": (wiki.body_of(ticket, MAX_DESCRIPTION) if is_data_center else adf.body_of(ticket, MAX_DESCRIPTION)),
        "labels": _labels(access, ticket),
    }
    priority = settings.get("priority_by_severity", {}).get(ticket.severity)
    if priority:
        made["priority"] = {"name": priority}
    if settings.get("assignee"):
        made["assignee"] = {"name" if is_data_center else "id": settings["assignee"]}
    return made


def _labels(access: TrackerAccess, ticket: TrackerTicket) -> list[str]:
    """Return the labels as Jira accepts them: without white space and invisible characters."""
    joined = ("-".join(label.split()) for label in common.labels_of(access, ticket))
    printable = ("".join(filter(str.isprintable, label))[:MAX_JIRA_LABEL] for label in joined)
    return list(dict.fromkeys(filter(None, [*printable, marker_label(ticket.export_id)])))


def _labels_in(issue: Any) -> list[str]:
    labels = value_at(issue, "fields", "labels")
    return [label.lower() for label in labels if isinstance(label, str)] if isinstance(labels, list) else []


def _issue(access: TrackerAccess, key: str | None) -> TrackerIssue | None:
    if key is None or not _ISSUE_KEY.fullmatch(key):
        return None
    return TrackerIssue(key, f"{access.base_url}/browse/{key}")


def _require_permissions(access: TrackerAccess) -> Steps[None]:
    wanted = {"projectKey": access.settings["project"]}
    if not _is_data_center(access.settings):  # Data Center always returns every permission
        wanted["permissions"] = ",".join(_PERMISSIONS)
    response = yield _api(access).get(f"/mypermissions?{urlencode(wanted)}")
    if response.status in {400, 404}:
        raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, "project"))
    failures.raise_for(_refusal_of(response))
    permissions = value_of(response, dict, "permissions")
    for name in _PERMISSIONS:
        if value_at(permissions, name, "havePermission") is not True:
            raise TrackerRefused(failures.misconfigured(failures.FORBIDDEN, name))


def _require_issue_type(access: TrackerAccess) -> Steps[None]:
    """Raise TrackerRefused unless the project has the issue type, with fields that tickets can fill in."""
    path = f"/issue/createmeta/{quote(access.settings['project'], safe='')}/issuetypes"
    listed = yield from _listed(access, path)
    wanted = _issue_type(access.settings)
    # A subtask needs a parent, which no ticket has.
    ids = (
        text_at(each, "id")
        for each in listed
        if wanted in (value_at(each, "name"), value_at(each, "untranslatedName")) and value_at(each, "subtask") is not True
    )
    issue_type_id = next(filter(None, ids), None)
    if issue_type_id is None:
        raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, "issue_type"))
    failures.raise_for(_fields_failure(access, (yield from _listed(access, f"{path}/{quote(issue_type_id, safe='')}"))))


def _fields_failure(access: TrackerAccess, listed: list[Any]) -> TrackerFailure | None:
    """Return why every ticket would fail: a field of ours that cannot be set, or a required field that we do not send."""
    by_id = {field_id: each for each in listed if (field_id := text_at(each, "fieldId")) is not None}
    optional = [name for name in ("priority", "assignee") if access.settings.get(_FIELDS[name])]
    ours = ["summary", "description", "labels", *optional]
    for name in ours:
        if name not in by_id:
            return failures.rejected(_name_of(name))
    for name, each in by_id.items():
        is_required = value_at(each, "required") is True and value_at(each, "hasDefaultValue") is not True
        if is_required and name not in ours and name not in _SET_BY_JIRA:
            return failures.rejected(_name_of(name))
    return None


def _listed(access: TrackerAccess, path: str) -> Steps[list[Any]]:
    """Return all entries of a list that Jira gives in pages; Cloud and Data Center name it differently."""
    entries: list[Any] = []
    for _ in range(_MAX_PAGES):
        request = _api(access).get(f"{path}?startAt={len(entries)}&maxResults={_PAGE}")
        page = (yield from common.send(request, _refusal_of)).json()
        lists = (value_at(page, name) for name in ("issueTypes", "fields", "values"))
        found = next((each for each in lists if isinstance(each, list)), None)
        if found is None:
            raise TrackerRefused(failures.unreadable())
        entries += found
        total = value_at(page, "total")
        if not found or not isinstance(total, int) or len(entries) >= total:
            break
    return entries


def _refusal_of(response: TrackerResponse) -> TrackerFailure | None:
    failure = failures.failure_of(response)
    if failure is None:
        return None
    if failure.refuses_ticket:
        failure = replace(failure, field=_refused_field(response))
    return _login_failure(response) or failure


def _change(request: TrackerRequest) -> Steps[None]:
    """Change an issue; Jira confirms a change with 204, and a sign-in page has another status."""
    response = yield from common.send(request, _read_refusal_of)
    if response.status != 204:
        raise TrackerRefused(failures.unreadable())


def _read_refusal_of(response: TrackerResponse) -> TrackerFailure | None:
    """Return the failure that a response means, including a 200 that Jira sent to an anonymous user."""
    return _login_failure(response) or _refusal_of(response)


def _login_failure(response: TrackerResponse) -> TrackerFailure | None:
    return _TOKEN_REJECTED if (response.headers.get(_LOGIN_HEADER) or "").startswith(_LOGIN_FAILED) else None


def _refused_field(response: TrackerResponse) -> str | None:
    """Return the first field that Jira refuses."""
    if response.status == 413:
        return "description"
    errors = value_at(response.json(), "errors")
    return next((_name_of(name) for name in errors), None) if isinstance(errors, dict) else None


def _name_of(field_id: str) -> str | None:
    """Return our name for a field of Jira; for any other field, Jira's id such as `customfield_10010`."""
    return _FIELDS.get(field_id) or (field_id if _FIELD_ID.fullmatch(field_id) else None)


def _is_data_center(settings: Mapping[str, Any]) -> bool:
    return settings.get("api_version") == 2


def _issue_type(settings: Mapping[str, Any]) -> str:
    return str(settings.get("issue_type") or DEFAULT_ISSUE_TYPE)


def _api(access: TrackerAccess) -> common.Api:
    """Return the API; the token `name:secret` is Basic, anything else a personal access token."""
    version = 2 if _is_data_center(access.settings) else 3
    token = access.token
    scheme = f"Basic {b64encode(token.encode()).decode()}" if ":" in token else f"Bearer {token}"
    headers = {"Authorization": scheme, "Accept": "application/json"}
    return common.Api(
        common.api_base_of(access.settings, f"{access.base_url}/rest/api/{version}"), headers, _read_refusal_of
    )
