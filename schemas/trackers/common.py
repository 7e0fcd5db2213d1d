"""Code that all trackers share: common settings, requests with JSON, labels, and how issues are recognized."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from marshmallow import ValidationError, validates
from ulid import ULID

from schemas.base.fields import Array, Form, Text, WebUrl, described
from schemas.intake.scanner import SEVERITIES
from schemas.trackers.exchange import (
    MAX_LIST_BYTES,
    FailureKind,
    Steps,
    TrackerAccess,
    TrackerFailure,
    TrackerIssue,
    TrackerRefused,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.failures import TOKEN_REJECTED, failure_of, raise_for, unreadable

#: What happens to the issue when its ticket is fixed.
ON_FIXED: Final = ("comment", "close", "nothing")
MAX_LABELS: Final = 20
MAX_LABEL: Final = 100
MAX_ASSIGNEES: Final = 10
MAX_KEY: Final = 50
#: The key of a project or a team, with which the names of its issues begin.
_KEY: Final = re.compile(r"[A-Z][A-Z0-9_]*")

#: The clocks of a tracker and of RiskRelay differ by less.
_CLOCK_DIFFERENCE: Final = timedelta(hours=1)

Value = TypeVar("Value")
#: Returns the failure that a response means; None for a success.
RefusalOf: TypeAlias = Callable[[TrackerResponse], TrackerFailure | None]


class TrackerSettingsForm(Form):
    """`provider_settings` that every tracker has; closed."""

    labels = Array(
        Text(min_length=1, max_length=MAX_LABEL),
        at_most=MAX_LABELS,
        **described("The labels of every issue, in addition to the labels of its ticket."),
    )
    on_fixed = Text(allowed=ON_FIXED, **described("What happens to the issue when its ticket is fixed; default: `comment`."))
    api_base = WebUrl(**described("The base URL of the API, without a trailing slash, if it differs from the default."))

    @validates("api_base")
    def _is_a_prefix(self, url: str, data_key: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc or re.search(r"[?#\s\\]", url):
            raise ValidationError("invalid_url")


def name_field(description: str, max_length: int = 100) -> Text:
    """Return the field of a name in the tracker."""
    return Text(min_length=1, max_length=max_length, **described(description))


def assignees_field(description: str, max_length: int = 100) -> Array:
    """Return the field of the users that issues are assigned to."""
    return Array(Text(min_length=1, max_length=max_length), at_most=MAX_ASSIGNEES, **described(description))


#: The tracker's name of a priority for each severity that has one.
PriorityBySeverityForm: Final[type[Form]] = type(
    "PriorityBySeverityForm",
    (Form,),
    {each: name_field(f"The name of the priority of tickets with the severity `{each}`.") for each in reversed(SEVERITIES)},
)


def require_key(key: str) -> None:
    """Raise ValidationError if a text is not the key of a project or a team."""
    if not _KEY.fullmatch(key):
        raise ValidationError("not_a_key")


def api_base_of(settings: Mapping[str, Any], usual: str) -> str:
    """Return `api_base` of the settings, or else the `usual` address, without a trailing slash."""
    return str(settings.get("api_base") or usual).rstrip("/")


class Api(NamedTuple):
    """The URL of an API, the headers of all requests to it, including the authentication, and what refuses a read."""

    url: str
    headers: Mapping[str, str]
    refusal_of: RefusalOf = failure_of

    def fetch(self, path: str, kind: type[Value], *place: str | int) -> Steps[Value]:
        """Send a GET request; returns the value of this kind at `place` of its response."""
        return fetch(self.get(path), self.refusal_of, kind, *place)

    def get(self, path: str = "") -> TrackerRequest:
        """Return a GET request, whose response may be a list of issues."""
        return TrackerRequest("GET", self.url + path, self.headers, max_response_bytes=MAX_LIST_BYTES)

    def post(self, path: str, content: Any, *, creates: bool = False) -> TrackerRequest:
        """Return a POST request with JSON."""
        return self.send("POST", path, content, creates=creates)

    def send(self, method: str, path: str, content: Any, *, creates: bool = False) -> TrackerRequest:
        """Return a request with JSON."""
        headers = {**self.headers, "Content-Type": "application/json"}
        return TrackerRequest(method, self.url + path, headers, json.dumps(content).encode(), creates)


def send(request: TrackerRequest, refusal_of: RefusalOf) -> Steps[TrackerResponse]:
    """Send a request; returns its response. Raises TrackerRefused if the response is no success."""
    response = yield request
    raise_for(refusal_of(response))
    return response


def fetch(request: TrackerRequest, refusal_of: RefusalOf, kind: type[Value], *path: str | int) -> Steps[Value]:
    """Send a request; returns the value of this kind at `path` of its response. Raises TrackerRefused if there is none."""
    response = yield from send(request, refusal_of)
    return value_of(response, kind, *path)


def fetch_visible(request: TrackerRequest, refusal_of: RefusalOf) -> Steps[Any]:
    """Send a request; returns its parsed response, None if the token may not see the resource."""
    response = yield request
    failure = refusal_of(response)
    if failure is None:
        return response.json()
    if failure.kind is FailureKind.RETRY or failure.code == TOKEN_REJECTED:
        raise TrackerRefused(failure)
    return None


def value_of(response: TrackerResponse, kind: type[Value], *path: str | int) -> Value:
    """Return the value of this kind at `path` of a successful response. Raises TrackerRefused if there is none."""
    found = value_at(response.json(), *path)
    if not isinstance(found, kind):
        raise TrackerRefused(unreadable())
    return found


def labels_of(access: TrackerAccess, ticket: TrackerTicket) -> list[str]:
    """Return the labels of the ticket and those of the target's settings, each once."""
    return list(dict.fromkeys([*ticket.labels, *access.settings.get("labels", ())]))


def tidy_labels(labels: Iterable[str], max_chars: int) -> list[str]:
    """Return labels in one line without commas, which separate labels: shortened, not empty, each once in any case."""
    tidied: dict[str, str] = {}
    for label in labels:
        line = " ".join(label.replace(",", " ").split())
        shown = line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
        tidied.setdefault(shown.casefold(), shown)
    return [label for label in tidied.values() if label]


def since_creation(own_id: str) -> dict[str, str]:
    """Return the parameter `since` of a list with everything that has the id of an export or event; none if unknown.

    It is an hour before the id, a prefix and a ULID, was made: `2026-01-31T12:00:00Z`.
    """
    try:
        made_at = ULID.from_str(own_id.partition("_")[2]).datetime
    except ValueError:
        return {}
    return {"since": f"{made_at - _CLOCK_DIFFERENCE:%Y-%m-%dT%H:%M:%SZ}"}


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


def is_number(value: Any) -> bool:
    """Return whether a value of a response is a positive integer of at most 64 bits, like the numbers and ids of issues."""
    return type(value) is int and 0 < value < 2**63


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
