"""Redmine: issues of a project.

Redmine answers in the language of the token's user, reports an unknown project as a missing field, and ignores an unknown
tracker. So names in the settings are resolved to ids before the create, and the project is read after a refused create.
Redmine has no labels; those of a ticket are not sent.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from marshmallow import fields

from schemas.base.fields import Form, described
from schemas.trackers import common, failures
from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import Steps, Tracker, TrackerAccess, TrackerIssue, TrackerRefused, TrackerTicket
from schemas.trackers.responses import is_number, oldest_with_marker, text_at, value_at, value_of
from schemas.trackers.text import textile, titles
from schemas.trackers.text.outline import erased_title

MAX_SUBJECT: Final = 255
#: Redmine has no limit; this keeps an issue readable.
MAX_DESCRIPTION: Final = 60_000
#: Entries of a page of members, the maximum of Redmine, and how many pages are read.
PAGE_ENTRIES: Final = 100
MAX_PAGES: Final = 3
#: One export makes one issue; but a Redmine that does not know the filter returns the newest issues.
MAX_FOUND: Final = 50

_PATH: Final = re.compile(r"(?P<prefix>/.*)?/projects/(?P<project>[a-z0-9_-]{1,100})")
#: `status` of a project that takes issues; 5 is a closed one.
_ACTIVE: Final = 1


class RedmineSettingsForm(common.TrackerSettingsForm):
    """`provider_settings` of a Redmine target."""

    tracker = common.name_field("The name or the id of the project's tracker, such as `Bug`; default: its first tracker.")
    priority_by_severity = fields.Nested(
        common.PriorityBySeverityForm,
        **described("The name or the id of the priority for each severity; default: Redmine's default priority."),
    )
    assignee = common.name_field(
        "The member that issues are assigned to: the name in the project's list of members, an id, or `me`.", max_length=200
    )


class RedmineTracker(Tracker):
    """Issues in a project of Redmine."""

    key = "redmine"
    name = "Redmine"
    base_url_example = "https://redmine.example.com/projects/shop"
    credential_help = (
        "The API access key of a user with the permissions View issues, Add issues and Add notes in the project (Edit own "
        "issues to close and erase them); the page My account shows it. An administrator enables the REST API under "
        "Administration > Settings > API."
    )
    credential_url: str | None = "https://www.redmine.org/projects/redmine/wiki/Rest_api#Authentication"
    settings_form: type[Form] = RedmineSettingsForm
    #: The list is consistent at once, but a request that got no response in time may still be running.
    lookup_delay_s = 5

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return why a URL is not a project's page; None if it is one. A path before `/projects` is allowed."""
        url = urlsplit(base_url)
        if url.query or not _PATH.fullmatch(url.path.rstrip("/")):
            return "base_url is the page of a project, such as https://redmine.example.com/projects/shop."
        return None

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue; returns None if a success names no issue."""
        priority = _priorities(access).get(ticket.severity)
        ids = yield from _ids(access, () if priority is None else (priority,))
        subject, description = titles.title_of(ticket, MAX_SUBJECT), textile.body_of(ticket, MAX_DESCRIPTION)
        made = {"issue": {**ids, "subject": subject, "description": description}}
        response = yield _api(access).post("/issues.json", made, creates=True)
        failure = failures.failure_of(response)
        if failure is not None and failure.refuses_ticket:
            yield from _require_issues(access)
        failures.raise_for(failure)
        return _issue(access, value_at(response.json(), "issue"))

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue whose text has the export's id; if there are several, the oldest."""
        marker = ticket.export_id
        query = {
            "project_id": _project(access),
            "status_id": "*",
            "description": f"~{marker}",
            "sort": "id:desc",
            "limit": MAX_FOUND,
        }
        issues = yield from _api(access).fetch(f"/issues.json?{urlencode(query)}", list, "issues")
        return oldest_with_marker(issues, "description", marker, lambda each: _issue(access, each))

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the token, the project, the settings, and the permission to add issues.

        Redmine does not show a user's permissions. It refuses an issue without a subject, and checks everything else before.
        """
        yield from _require_issues(access)
        ids = yield from _ids(access, tuple(_priorities(access).values()))
        response = yield _api(access).post("/issues.json", {"issue": {**ids, "subject": ""}})
        errors = value_at(response.json(), "errors")
        if response.status != 422 or not isinstance(errors, list):
            failures.raise_for(failures.failure_of(response) or failures.misconfigured(failures.NOT_FOUND, "base_url"))
        # One error is about the subject. Another means a required field that we do not know, or an assignee who may get no
        # issues.
        elif len(errors) > 1:
            raise TrackerRefused(failures.rejected())

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Add a note to the issue, then read it: Redmine answers 204 even if the user may not add one."""
        yield from _change(access, event, {"notes": textile.comment_of(event, MAX_DESCRIPTION)}, creates=True)
        if not (yield from self.has_comment(access, event)):
            raise TrackerRefused(failures.misconfigured(failures.FORBIDDEN))

    def has_comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the issue's notes for the event's id."""
        journals = yield from _api(access).fetch(
            f"/issues/{event.issue_id}.json?include=journals", list, "issue", "journals"
        )
        return any(event.event_id in (text_at(each, "notes") or "") for each in journals)

    def is_ours(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the issue's description for the export's id."""
        issue = yield from _read(access, event)
        return event.export_id in (text_at(issue, "description") or "")

    def is_open(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Read the issue's status."""
        return not (yield from _api(access).fetch(f"/issues/{event.issue_id}.json", bool, "issue", "status", "is_closed"))

    def set_open(self, access: TrackerAccess, event: TrackerEvent, *, is_open: bool) -> Steps[bool]:
        """Set the first status that is open, or closed, of those that the workflow allows; returns whether it was set.

        The status is read afterwards: Redmine answers 204 even if the user may not change it.
        """
        path = f"/issues/{event.issue_id}.json?include=allowed_statuses"
        statuses = yield from _api(access).fetch(path, list, "issue", "allowed_statuses")
        ids = (value_at(each, "id") for each in statuses if value_at(each, "is_closed") is not is_open)
        status_id = next(filter(is_number, ids), None)
        if status_id is None:
            return False
        yield from _change(access, event, {"status_id": status_id})
        return (yield from self.is_open(access, event)) is is_open

    def redact(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Overwrite subject and description, and read them back: a workflow may let the user change only one of them."""
        erased = {"subject": erased_title(event), "description": textile.erased_of(event)}
        yield from _change(access, event, erased)
        issue = yield from _read(access, event)
        # Compared by words: Redmine may store other line breaks. A tracker may have no description at all.
        left = (text_at(issue, "description") or "").split()
        if text_at(issue, "subject") != erased["subject"] or left not in ([], erased["description"].split()):
            raise TrackerRefused(failures.misconfigured(failures.FORBIDDEN))


def _read(access: TrackerAccess, event: TrackerEvent) -> Steps[dict[str, Any]]:
    """Return the issue of an event."""
    return _api(access).fetch(f"/issues/{event.issue_id}.json", dict, "issue")


def _change(access: TrackerAccess, event: TrackerEvent, changes: Mapping[str, Any], *, creates: bool = False) -> Steps[None]:
    request = _api(access).send("PUT", f"/issues/{event.issue_id}.json", {"issue": changes}, creates=creates)
    yield from common.send(request, failures.failure_of)


def _ids(access: TrackerAccess, priorities: tuple[str, ...]) -> Steps[dict[str, Any]]:
    """Return ids for the members of an issue that the settings name; all `priorities` must exist, the first is used."""
    settings, project = access.settings, f"/projects/{_project(access)}"
    members: dict[str, Any] = {"project_id": _project(access)}
    for member, setting, path, listed in (
        ("tracker_id", "tracker", f"{project}.json?include=trackers", ("project", "trackers")),
        ("priority_id", "priority_by_severity", "/enumerations/issue_priorities.json", ("issue_priorities",)),
        ("assigned_to_id", "assignee", f"{project}/memberships.json", ("memberships",)),
    ):
        names = priorities if member == "priority_id" else [settings[setting]] if setting in settings else []
        ids = {} if all(map(_is_id, names)) else (yield from _listed(access, path, listed))
        found = [name if _is_id(name) else ids.get(name.casefold()) for name in names]
        if None in found:
            raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, setting))
        if found:
            members[member] = found[0]
    return members


def _listed(access: TrackerAccess, path: str, place: tuple[str, ...]) -> Steps[dict[str, int]]:
    """Return the ids of a list's entries, by name in lower case; for memberships, the ids of their users or groups."""
    ids: dict[str, int] = {}
    for page in range(MAX_PAGES):
        separator = "&" if "?" in path else "?"
        request = _api(access).get(f"{path}{separator}limit={PAGE_ENTRIES}&offset={page * PAGE_ENTRIES}")
        response = yield from common.send(request, failures.failure_of)
        for entry in value_of(response, list, *place):
            named = value_at(entry, "user") or value_at(entry, "group") or entry
            name, number = text_at(named, "name"), value_at(named, "id")
            if name is not None and is_number(number):
                ids.setdefault(name.casefold(), number)
        total = value_at(response.json(), "total_count")
        if not is_number(total) or total <= (page + 1) * PAGE_ENTRIES:
            break
    return ids


def _is_id(name: str) -> bool:
    """Return whether Redmine accepts a value as it is: an id, or `me`, the user of the token."""
    return name == "me" or (name.isascii() and name.isdecimal())


def _priorities(access: TrackerAccess) -> Mapping[str, str]:
    return access.settings.get("priority_by_severity") or {}


def _require_issues(access: TrackerAccess) -> Steps[None]:
    """Raise TrackerRefused if the project takes no issues, as far as it shows."""
    request = _api(access).get(f"/projects/{_project(access)}.json?include=enabled_modules")
    response = yield from common.send(request, failures.failure_of)
    project = value_at(response.json(), "project")
    if value_at(project, "status") not in [None, _ACTIVE]:
        raise TrackerRefused(failures.misconfigured(failures.ARCHIVED))
    modules = value_at(project, "enabled_modules")
    if isinstance(modules, list) and "issue_tracking" not in [value_at(module, "name") for module in modules]:
        raise TrackerRefused(failures.misconfigured(failures.ISSUES_DISABLED))


def _issue(access: TrackerAccess, value: Any) -> TrackerIssue | None:
    named = value_at(value, "id")
    return TrackerIssue(str(named), f"{_redmine(access)}/issues/{named}") if is_number(named) else None


def _project(access: TrackerAccess) -> str:
    return access.base_url.rpartition("/")[2]


def _redmine(access: TrackerAccess) -> str:
    """Return the URL of the Redmine that has the project."""
    return access.base_url.rsplit("/", 2)[0]


def _api(access: TrackerAccess) -> common.Api:
    headers = {"X-Redmine-API-Key": access.token, "Accept": "application/json"}
    return common.Api(common.api_base_of(access.settings, _redmine(access)), headers)
