"""Linear: one GraphQL endpoint, whose application errors arrive in `errors` under any status.

An issue gets its id from us, made of the export's id: a second creation is refused, and the lookup by that id is exact.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from schemas.base.fields import Form
from schemas.trackers import common, failures
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
from schemas.trackers.responses import issue_url, text_at, value_at, value_of
from schemas.trackers.text import markdown, titles
from schemas.trackers.text.outline import erased_title

MAX_TITLE: Final = 255
MAX_DESCRIPTION: Final = 65_536
#: Linear's priorities: 0 none, 1 urgent, 2 high, 3 medium, 4 low.
PRIORITIES: Final[Mapping[str, int]] = {"critical": 1, "high": 2, "medium": 3, "low": 4}
#: Two labels of one name may exist, one of the team and one of the workspace; teams have their own.
_MAX_LABELS: Final = 250

Value = TypeVar("Value")

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9]{1,20}-[0-9]{1,12}")

_TEAM_AND_LABELS: Final = """\
query TeamAndLabels($team: String!, $labels: [String!]!, $most: Int!) {
  teams(filter: {key: {eq: $team}}, first: 1) { nodes { id } }
  issueLabels(filter: {name: {in: $labels}}, first: $most) { nodes { id name isGroup team { id } } }
}"""
_CREATE: Final = """\
mutation Create($input: IssueCreateInput!) {
  issueCreate(input: $input) { success issue { id identifier url } }
}"""
#: Issues are read by the ids that RiskRelay gave them: a move to another team changes an issue's identifier.
_ISSUE: Final = """\
query Issue($id: ID!, $comments: Int!) {
  issues(filter: {id: {eq: $id}}, first: 1, includeArchived: true) {
    nodes { id identifier url state { type } team { id } comments(first: $comments) { nodes { id } } }
  }
}"""
_COMMENT: Final = """\
mutation Comment($input: CommentCreateInput!) {
  commentCreate(input: $input) { success comment { id } }
}"""
_STATES: Final = """\
query States($team: ID!, $type: String!) {
  workflowStates(filter: {team: {id: {eq: $team}}, type: {eq: $type}}) { nodes { id position } }
}"""
_UPDATE: Final = """\
mutation Update($id: String!, $input: IssueUpdateInput!) {
  issueUpdate(id: $id, input: $input) { success issue { id title state { type } } }
}"""
#: Types of states in which an issue is not open.
_CLOSED: Final = frozenset({"completed", "canceled", "duplicate"})
#: Maximum number of an issue's comments that are searched.
_MAX_COMMENTS: Final = 250

#: The failure that `errors[].extensions.type` means; any other type is Linear's own problem, which may pass.
_CODES: Final[Mapping[str, tuple[FailureKind, str]]] = {
    "authentication error": (FailureKind.CONFIGURATION, failures.TOKEN_REJECTED),
    "forbidden": (FailureKind.CONFIGURATION, failures.FORBIDDEN),
    "feature not accessible": (FailureKind.CONFIGURATION, failures.FORBIDDEN),
    # The workspace's plan allows no more issues.
    "usage limit exceeded": (FailureKind.CONFIGURATION, failures.FORBIDDEN),
    "invalid input": (FailureKind.PAYLOAD, failures.REJECTED),
    "user error": (FailureKind.PAYLOAD, failures.REJECTED),
    "graphql error": (FailureKind.PAYLOAD, failures.REJECTED),
}
_RATE_LIMITED: Final = "ratelimited"


class LinearSettingsForm(common.TrackerSettingsForm):
    """`provider_settings` of a Linear target."""

    team = common.key_field("The key of the team, such as `ENG`.")


class LinearTracker(Tracker):
    """Issues of a team in Linear."""

    key = "linear"
    name = "Linear"
    base_url_example = "https://linear.app/acme"
    credential_help = (
        "A personal API key with the permissions Read, Create issues and Create comments, for the one team; "
        "Write too, to close issues and to erase them."
    )
    credential_url: str | None = "https://linear.app/settings/account/security"
    settings_form: type[Form] = LinearSettingsForm
    #: The lookup by id is exact at once.
    lookup_delay_s = 0

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return why a URL is not the page of a workspace; None if it is one."""
        url = urlsplit(base_url)
        if url.query or (_is_linear(base_url) and not re.fullmatch(r"/[^/]+/?", url.path)):
            return "base_url is the page of the workspace: https://linear.app/acme"
        return None

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue under our id; returns None if a success names no issue."""
        team_id, label_ids = yield from _team_and_labels(access, common.labels_of(access, ticket))
        made = {
            "id": own_id(ticket.export_id),
            "teamId": team_id,
            "title": titles.title_of(ticket, MAX_TITLE),
            "description": markdown.linear_body_of(ticket, MAX_DESCRIPTION),
            "priority": PRIORITIES.get(ticket.severity, 0),
            "labelIds": label_ids,
        }
        response = yield _request(access, _CREATE, {"input": made}, creates=True)
        issue = _issue(access, value_at(response.json(), "data", "issueCreate", "issue"))
        if issue is not None and 200 <= response.status < 300:
            return issue
        failure = _refusal_of(response)
        # Linear may have refused our id, because an earlier attempt created the issue.
        found = (yield from self.find(access, ticket)) if failure is not None and failure.refuses_ticket else None
        if found is None:
            failures.raise_for(failure)
        return found

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue by the id that we gave it."""
        node = yield from _node(access, ticket.export_id)
        return None if node is None else _issue(access, node)

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the key and the team. Linear does not say whether the key may create issues."""
        yield from _team_and_labels(access, [])

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Post an event as a comment under our id, which Linear accepts once."""
        # Linear reports an absent issue as invalid input, as it does a refused comment.
        yield from _issue_node(access, event)
        body = markdown.comment_of(event, MAX_DESCRIPTION)
        made = {"id": own_id(event.event_id), "issueId": own_id(event.export_id), "body": body}
        response = yield _request(access, _COMMENT, {"input": made}, creates=True)
        failure = _refusal_of(response)
        # Linear may have refused our id, because an earlier attempt made the comment.
        if failure is not None and failure.refuses_ticket and (yield from self.has_comment(access, event)):
            return
        failures.raise_for(failure)
        if text_at(response.json(), "data", "commentCreate", "comment", "id") is None:
            raise TrackerRefused(failures.unreadable())

    def has_comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Search the issue's comments for the comment's id."""
        comments = value_at((yield from _issue_node(access, event)), "comments", "nodes")
        if not isinstance(comments, list):
            raise TrackerRefused(failures.unreadable())
        return any(text_at(each, "id") == own_id(event.event_id) for each in comments)

    def is_ours(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Read the issue by its id, which is made of the export's: if it exists, it is the export's."""
        yield from _issue_node(access, event)
        return True

    def is_open(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Read the type of the issue's state."""
        return _is_open((yield from _issue_node(access, event)))

    def set_open(self, access: TrackerAccess, event: TrackerEvent, *, is_open: bool) -> Steps[bool]:
        """Move the issue to its team's first unstarted (or completed) state; False if the team has no such state."""
        issue = yield from _issue_node(access, event)
        wanted = {"team": text_at(issue, "team", "id"), "type": "unstarted" if is_open else "completed"}
        nodes = yield from _fetch(access, _STATES, wanted, list, "workflowStates", "nodes")
        states = [each for each in nodes if text_at(each, "id") is not None]
        if not states:
            return False
        first = min(states, key=_position)
        return _is_open((yield from _updated(access, event, {"stateId": first["id"]}))) is is_open

    def redact(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Overwrite title and description; the response must show the new title."""
        yield from _issue_node(access, event)
        title = erased_title(event)
        updated = yield from _updated(access, event, {"title": title, "description": markdown.erased_of(event)})
        if text_at(updated, "title") != title:
            raise TrackerRefused(failures.unreadable())


def own_id(our_id: str) -> str:
    """Return the id of an export's issue or an event's comment.

    It is the first 16 bytes of the SHA-256 of our id, with the version and variant of a UUIDv4.
    """
    return str(UUID(bytes=hashlib.sha256(our_id.encode()).digest()[:16], version=4))


def _issue_node(access: TrackerAccess, event: TrackerEvent) -> Steps[Any]:
    """Return the issue of an event. Raises TrackerRefused if the issue was deleted."""
    node = yield from _node(access, event.export_id)
    if node is None:
        raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND))
    return node


def _node(access: TrackerAccess, export_id: str) -> Steps[Any]:
    """Return the issue of an export; None if there is none."""
    wanted = own_id(export_id)
    nodes = yield from _fetch(access, _ISSUE, {"id": wanted, "comments": _MAX_COMMENTS}, list, "issues", "nodes")
    return next((node for node in nodes if text_at(node, "id") == wanted), None)


def _updated(access: TrackerAccess, event: TrackerEvent, changes: Mapping[str, Any]) -> Steps[dict[str, Any]]:
    """Change the issue of an event; returns the changed issue."""
    variables = {"id": own_id(event.export_id), "input": changes}
    return (yield from _fetch(access, _UPDATE, variables, dict, "issueUpdate", "issue"))


def _fetch(access: TrackerAccess, query: str, variables: Mapping[str, Any], kind: type[Value], *place: str) -> Steps[Value]:
    return common.fetch(_request(access, query, variables), _refusal_of, kind, "data", *place)


def _is_open(issue: Any) -> bool:
    state = text_at(issue, "state", "type")
    if state is None:
        raise TrackerRefused(failures.unreadable())
    return state not in _CLOSED


def _position(state: Any) -> float:
    position = value_at(state, "position")
    return position if isinstance(position, int | float) else 0.0


def _team_and_labels(access: TrackerAccess, names: list[str]) -> Steps[tuple[str, list[str]]]:
    """Return the ids of the team and of its labels with these names; of two labels with one name, that of the team's own.

    Raises TrackerRefused if there is no such team.
    """
    variables = {"team": access.settings["team"], "labels": names, "most": _MAX_LABELS}
    response = yield from common.send(_request(access, _TEAM_AND_LABELS, variables), _refusal_of)
    team_id = text_at(value_of(response, list, "data", "teams", "nodes"), 0, "id")
    if team_id is None:
        raise TrackerRefused(failures.misconfigured(failures.NOT_FOUND, "team"))
    nodes = value_at(response.json(), "data", "issueLabels", "nodes")
    ids: dict[str, str] = {}
    for node in nodes if isinstance(nodes, list) else []:
        name, label_id, owner = text_at(node, "name"), text_at(node, "id"), text_at(node, "team", "id")
        if name is None or label_id is None or owner not in (None, team_id) or value_at(node, "isGroup") is True:
            continue
        if owner is not None or name not in ids:
            ids[name] = label_id
    return team_id, list(ids.values())


def _issue(access: TrackerAccess, node: Any) -> TrackerIssue | None:
    identifier = text_at(node, "identifier")
    if identifier is None or not _IDENTIFIER.fullmatch(identifier):
        return None
    return TrackerIssue(identifier, issue_url(value_at(node, "url")) or f"{access.base_url}/issue/{identifier}")


def _refusal_of(response: TrackerResponse) -> TrackerFailure | None:
    """Return the failure that the errors of a response mean, or, without errors, its status."""
    errors = value_at(response.json(), "errors")
    errors = errors if isinstance(errors, list) else []
    types = [_lowered(error, "type") for error in errors]
    # A rate limit error may have only its code, and no type.
    if response.status == 429 or _RATE_LIMITED in (*types, *(_lowered(error, "code") for error in errors)):
        return failures.rate_limited(response)
    known = next((_CODES[each] for each in types if each in _CODES), None)
    if known is not None and response.status < 500:
        return TrackerFailure(*known)
    failed = failures.failure_of(response)
    if failed is None:
        return failures.unreadable() if types else None
    return failures.unreadable() if any(types) and failed.kind is FailureKind.PAYLOAD else failed


def _lowered(error: Any, name: str) -> str:
    """Return an extension of an error in lower case; empty if it is no text."""
    value = value_at(error, "extensions", name)
    return value.lower() if isinstance(value, str) else ""


def _is_linear(base_url: str) -> bool:
    return urlsplit(base_url).hostname in {"linear.app", "www.linear.app"}


def _request(access: TrackerAccess, query: str, variables: Mapping[str, Any], creates: bool = False) -> TrackerRequest:
    """Return a request with the API key, which has no scheme before it."""
    url = urlsplit(access.base_url)
    usual = "https://api.linear.app/graphql" if _is_linear(access.base_url) else f"{url.scheme}://{url.netloc}/graphql"
    headers = {"Authorization": access.token, "Accept": "application/json"}
    api = common.Api(common.api_base_of(access.settings, usual), headers)
    return api.post("", {"query": query, "variables": variables}, creates=creates)
