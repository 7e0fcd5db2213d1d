"""The values between a tracker's module and the worker that sends its requests.

A module describes each task as a generator: it yields requests, is sent the response to each, and returns the result, or
raises TrackerRefused. It performs no I/O and reads no clock; the worker sends every request of one attempt under one
deadline, and ends the generator when a request gets no response.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from schemas.base.fields import Form
from schemas.base.places import Place
from schemas.base.strict_json import has_too_many_values
from schemas.trackers.events import TrackerEvent

#: Maximum number of bytes that are read of an ordinary response; a longer one is cut. The response to a create repeats the
#: issue's text, escaped.
MAX_RESPONSE_BYTES: Final = 1024 * 1024
#: Maximum number of bytes that are read of a list of issues, which contains their whole texts.
MAX_LIST_BYTES: Final = 4 * 1024 * 1024
#: The headers of a limit begin with one of these names: GitHub's and Jira's, GitLab's, then those of Linear.
_LIMITS: Final = (
    *("x-ratelimit", "ratelimit"),
    *("x-ratelimit-requests", "x-ratelimit-complexity", "x-ratelimit-endpoint-requests"),
)
#: Linear names times in milliseconds: larger numbers.
_MAX_SECONDS: Final = 1e11

Result = TypeVar("Result")


class TrackerRequest(NamedTuple):
    """One request: `headers` include the authentication.

    `creates` says that the request may create the issue, or the comment of an event: without a response that names it, the
    outcome is unknown.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    creates: bool = False
    max_response_bytes: int = MAX_RESPONSE_BYTES


class TrackerResponse(NamedTuple):
    """A response; names in `headers` are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the parsed body; None if it is no JSON, was cut, or has too many values."""
        try:
            return None if has_too_many_values(self.body) else json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def reset_at_s(self, if_unknown: str = "") -> float | None:
        """Return the latest reset of the limits that are used up, in seconds since 1970; None if there is none.

        A limit is used up if its remaining number is 0; `if_unknown` stands for a missing number.
        """
        used_up = (each for each in _LIMITS if self.headers.get(f"{each}-remaining", if_unknown).strip() == "0")
        resets = (_moment(self.headers.get(f"{each}-reset", "").strip()) for each in used_up)
        return max((reset for reset in resets if reset is not None), default=None)


def number(text: str) -> float | None:
    """Return a header's number; None for anything but a plain decimal of at most 15 digits."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _moment(text: str) -> float | None:
    """Return a time in seconds since 1970: a number, or as Jira writes it, `2026-01-31T12:00Z`."""
    seconds = number(text)
    if seconds is not None:
        return seconds / 1000 if seconds > _MAX_SECONDS else seconds
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


class FailureKind(Enum):
    """The consequence of a failure."""

    #: The token, the repository or the settings are wrong: export and target are blocked until a person fixes it.
    CONFIGURATION = auto()
    #: The tracker refuses this ticket: the export fails.
    PAYLOAD = auto()
    #: A later request may succeed: the export is retried.
    RETRY = auto()


@dataclass(frozen=True, slots=True)
class TrackerFailure:
    """Why a tracker did not carry out a task: `code` is the error code of the attempt.

    `retry_after_s` are the seconds that the tracker asks to wait, `retry_at_s` the moment, in seconds since 1970; if both
    are set, the later one counts. `is_rate_limit` holds the whole target until then. `field` names what is refused or
    missing: a member of the ticket or a setting, else the tracker's own name for it.
    """

    kind: FailureKind
    code: str
    retry_after_s: float | None = None
    retry_at_s: float | None = None
    is_rate_limit: bool = False
    field: str | None = None

    @property
    def refuses_ticket(self) -> bool:
        """Whether the tracker refuses only this ticket, not every ticket."""
        return self.kind is FailureKind.PAYLOAD

    @property
    def reason(self) -> str:
        """The code with the field that it is about, as a failed validation names it: `tracker_not_found:project`."""
        return self.code if self.field is None else f"{self.code}:{self.field}"


class TrackerRefused(Exception):
    """Ends the steps of a task that the tracker did not carry out; the worker handles its `failure` as a value."""

    def __init__(self, failure: TrackerFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class TrackerIssue:
    """An issue in a tracker: `id` as people name it (`7`, `SHOP-7`), `url` of its page."""

    id: str
    url: str


@dataclass(frozen=True, slots=True)
class TrackerAccess:
    """A target of a tracker: `base_url` without a trailing slash, its settings as stored, its token."""

    base_url: str
    settings: Mapping[str, Any]
    token: str


@dataclass(frozen=True, slots=True)
class TrackerTicket:
    """The ticket from which a tracker's text is made; everything but `export_id` and `console_url` may be untrusted text.

    `export_id` is the marker by which the issue is found again: the text contains it unchanged.
    """

    export_id: str
    title: str
    description: str
    severity: str
    page_url: str | None = None
    labels: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    #: The number of places, including those that are not listed.
    places_total: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)
    #: The export's page in the console.
    console_url: str | None = None


Steps: TypeAlias = Generator[TrackerRequest, TrackerResponse, Result]


class Tracker(Protocol):
    """One kind of tracker. Every step raises TrackerRefused if the tracker does not carry it out."""

    #: Its `provider_key`, and its name in texts for people.
    key: str
    name: str
    base_url_example: str
    #: What the token is, its least scope, and where it is created: a sentence and a link.
    credential_help: str
    credential_url: str | None
    #: The form of `provider_settings`; closed.
    settings_form: type[Form]
    #: Seconds after an attempt with an unknown outcome until a lookup certainly finds its issue.
    lookup_delay_s: int
    #: `max_per_minute` of a new target that names none.
    max_per_minute: int | None = None

    def problem_of(self, base_url: str, settings: Mapping[str, Any]) -> str | None:
        """Return a message for people that says why a valid URL is no page of this tracker; None if it is one."""

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Create an issue; returns None if a success names no issue, so that the outcome is unknown."""

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | None]:
        """Find the issue that an earlier attempt created; returns None if there is none."""

    def validate(self, access: TrackerAccess) -> Steps[None]:
        """Check the token, its rights and the settings, and change nothing; the failure names what is missing."""

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Post an event as a comment on its issue, with the event's id in the text; on return, the comment exists."""

    def has_comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Return whether an earlier attempt made the comment of an event."""

    def is_ours(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Return whether the issue with the number of an event's issue belongs to the event's export."""

    def is_open(self, access: TrackerAccess, event: TrackerEvent) -> Steps[bool]:
        """Return whether the issue of an event is open."""

    def set_open(self, access: TrackerAccess, event: TrackerEvent, *, is_open: bool) -> Steps[bool]:
        """Reopen or close the issue of an event; returns False if its workflow does not allow that."""

    def redact(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        """Overwrite title and description of the issue of an event; returns only if the tracker shows the change."""
