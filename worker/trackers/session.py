"""Sends the requests that a tracker's module yields, one after the other, under one deadline and to one origin.

Redirects are never followed. Responses are read as far as each request allows. The token is removed from the response that
the module gets and from the excerpt that is kept, so that a tracker that repeats it cannot put it into a row.
"""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from schemas.exports.delivery import Outcome
from schemas.exports.response_excerpt import response_excerpt, without_secret
from schemas.trackers.events import TrackerEventAction
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
)
from schemas.trackers.failures import TOKEN_REJECTED
from schemas.version import USER_AGENT
from worker.http.adapter import GuardedAdapter, headers_of
from worker.http.deadline import Exchange
from worker.http.errors import transport_error

#: The shortest part of a token to remove: a shorter one would occur in a response by chance.
_LEAST_PART: Final = 8

Result = TypeVar("Result")
TrackerValue: TypeAlias = TrackerIssue | TrackerEventAction | TrackerFailure


class TrackerResult(NamedTuple):
    """The result of a task at a tracker.

    `outcome` is that of the last request, with the duration of all requests. `value` is what the steps returned; None means
    that a validation passed, that no issue was named, or that the steps did not end: then `outcome.error` is the reason.
    With `is_outcome_unknown`, the tracker may have the issue or comment although no response confirmed it; a lookup can find
    it after `lookup_delay_s` seconds. Send nothing before `held_until_s`, in seconds since 1970.
    """

    outcome: Outcome
    value: TrackerValue | None = None
    is_outcome_unknown: bool = False
    held_until_s: float | None = None
    lookup_delay_s: float = 0


class _Shown(NamedTuple):
    """What an attempt shows of a response: its status, the excerpt that is kept, the digest of its body."""

    status: int | None = None
    kept: str | None = None
    sha256: str | None = None


@dataclass(slots=True, repr=False)
class TrackerSession:
    """The requests of one task."""

    adapter: GuardedAdapter
    tracker: Tracker
    access: TrackerAccess
    exchange: Exchange
    #: Whether an earlier attempt may have created the issue or the comment.
    in_doubt: bool = False
    #: Whether a successful lookup could not be read, so that the issues it lists are unknown.
    has_unreadable: bool = field(default=False, init=False)
    _origin: tuple[str, str] | None = field(default=None, init=False)
    _shown: _Shown = field(default=_Shown(), init=False)
    #: The last response to a request that may create something.
    _create_shown: _Shown | None = field(default=None, init=False)
    _held_until_s: float | None = field(default=None, init=False)
    #: The last request that may have created an issue or a comment and got a 2xx.
    _created: TrackerRequest | None = field(default=None, init=False)
    _last: TrackerRequest | None = field(default=None, init=False)
    #: Whether a request to create got no response, or a response that says nothing about the issue.
    _is_create_lost: bool = field(default=False, init=False)

    def run(self, steps: Steps[Result], *, is_lookup: bool = False) -> Result | TrackerFailure:
        """Send what `steps` yield and return their result, or the failure that ended them.

        A token that no header can contain is rejected without a request. Raises TransportError, and whatever the module
        raises.
        """
        with closing(steps):
            try:
                request = next(steps)
                while _is_sendable(request.headers):
                    request = steps.send(self._send(request, is_lookup=is_lookup))
            except StopIteration as ended:
                result: Result = ended.value
                return result
            except TrackerRefused as refused:
                return refused.failure
        return TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED)

    def result(
        self, value: TrackerValue | None = None, error: str | None = None, *, is_refused: bool = False
    ) -> TrackerResult:
        """Return the result of the task, which has ended."""
        shown = self._shown_for(value) if error is None else self._shown._replace(status=None, sha256=None)
        outcome = self.exchange.outcome(shown.status, error, is_refused)
        outcome = outcome._replace(kept=shown.kept, response_sha256=shown.sha256)
        delay_s = self.tracker.lookup_delay_s
        return TrackerResult(outcome, value, self._may_have_created(value), self._held_until_s, delay_s)

    def _may_have_created(self, value: object) -> bool:
        """Return whether the tracker may have an issue or a comment that no response named.

        `value` is what the steps returned.
        """
        if isinstance(value, TrackerIssue | TrackerEventAction):
            return False
        if self.in_doubt or self._is_create_lost or self._created is None:
            return self.in_doubt or self._is_create_lost
        # A 2xx may contain a refusal, as with GraphQL. A temporary refusal says nothing about this request.
        is_refusal = isinstance(value, TrackerFailure) and (value.kind is not FailureKind.RETRY or value.is_rate_limit)
        return not (is_refusal and self._last is self._created)

    def _shown_for(self, value: object) -> _Shown:
        """Return the response to show for a result: that of a refused create if later requests only read the reason."""
        last, create = self._shown, self._create_shown
        is_refusal = isinstance(value, TrackerFailure) and value.kind is not FailureKind.RETRY
        if create is None or not is_refusal:
            return last
        # A refusal may have a 2xx, as with GraphQL.
        return create if _is_success(last.status) or not _is_success(create.status) else last

    def _send(self, request: TrackerRequest, *, is_lookup: bool) -> TrackerResponse:
        # Never send the token to another server: a URL in a response may lead to one.
        origin = urlsplit(request.url)[:2]
        if self._origin not in {None, origin}:
            raise ValueError("A tracker's module has left the origin of its first request.")
        self._origin = origin
        if self.exchange.is_over():
            raise transport_error("deadline_exceeded")
        self.exchange.has_sent, self.exchange.max_response_bytes = False, request.max_response_bytes
        self._shown, self._last = _Shown(), request
        headers = {"User-Agent": USER_AGENT, **request.headers}
        try:
            parsed = self.adapter.exchange(self.exchange, request.method, request.url, headers, request.body)
        except BaseException:
            self._is_create_lost |= request.creates and self.exchange.has_sent
            raise
        body = parsed.body
        received = hashlib.sha256(body).hexdigest()
        # The token of a pair `name:token` is a secret of its own.
        part = self.access.token.partition(":")[2]
        for secret in (self.access.token, part) if len(part) >= _LEAST_PART else (self.access.token,):
            body = without_secret(body, secret)
        response = TrackerResponse(parsed.status, headers_of(parsed), body)
        self._record(request, response, received, is_lookup=is_lookup)
        return response

    def _record(self, request: TrackerRequest, response: TrackerResponse, received: str, *, is_lookup: bool) -> None:
        """Record what a response, with the digest of its body, says about the result of the task."""
        is_success = _is_success(response.status)
        # Keep no excerpt of other successes: they list issues that are not ours.
        kept = response_excerpt(response.body) if request.creates or not is_success else None
        self._shown = _Shown(response.status, kept, received)
        if request.creates:
            self._create_shown = self._shown
            self._is_create_lost |= response.status >= 500
            self._created = request if is_success else self._created
        if is_lookup and is_success and response.json() is None:
            self.has_unreadable = True
        held_until_s = response.reset_at_s()
        if held_until_s is not None:
            self._held_until_s = max(held_until_s, self._held_until_s or 0.0)


def _is_success(status: int | None) -> bool:
    return status is not None and 200 <= status < 300


def _is_sendable(headers: Mapping[str, str]) -> bool:
    return all(value.isascii() and value.isprintable() for value in headers.values())
