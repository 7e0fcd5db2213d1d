"""Code that all trackers share: common settings, requests with JSON, labels, and how issues are recognized."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from marshmallow import ValidationError, validate, validates
from ulid import ULID

from schemas.base.fields import Array, Form, Text, WebUrl, described, required
from schemas.trackers.exchange import (
    MAX_LIST_BYTES,
    FailureKind,
    Steps,
    TrackerAccess,
    TrackerFailure,
    TrackerRefused,
    TrackerRequest,
    TrackerResponse,
    TrackerTicket,
)
from schemas.trackers.failures import TOKEN_REJECTED, failure_of, raise_for
from schemas.trackers.responses import value_of

#: What happens to the issue when its ticket is fixed.
ON_FIXED: Final = ("comment", "close", "nothing")
MAX_LABELS: Final = 20
MAX_LABEL: Final = 100
MAX_ASSIGNEES: Final = 10
MAX_KEY: Final = 50
#: The key of a project or a team, with which the names of its issues begin.
_KEY: Final = validate.Regexp(r"[A-Z][A-Z0-9_]*\Z", error="not_a_key")

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


def _priority(severity: str) -> Text:
    return name_field(f"The name of the priority of tickets with the severity `{severity}`.")


class PriorityBySeverityForm(Form):
    """The tracker's name of a priority for each severity that has one."""

    critical = _priority("critical")
    high = _priority("high")
    medium = _priority("medium")
    low = _priority("low")
    info = _priority("info")


def key_field(description: str) -> Text:
    """Return the field of the key of a project or a team."""
    field = Text(min_length=1, max_length=MAX_KEY, **required(description))
    field.validators.append(_KEY)
    return field


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
