"""Requests to a tracker: one deadline, one origin, bounded responses, no stored token, and no unknown outcome is lost."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from runtime.logs import JsonFormatter
from schemas.exports.delivery import Claim
from schemas.exports.tickets.ticket import Source, Ticket, delivery_body
from schemas.targets.delivery_options import DeliveryOptions
from schemas.trackers.exchange import (
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
from schemas.trackers.failures import RATE_LIMITED, REJECTED, TOKEN_REJECTED, UNAVAILABLE, failure_of
from schemas.version import USER_AGENT
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from tests.support.factories import NOW
from tests.support.fakes import FakeResolver, LoopbackServer, Peer
from tests.support.worker.receivers import DEADLINE_S, NAME, SLACK_S, made_client
from worker.http.client import HttpClient
from worker.trackers.runner import TrackerRunner
from worker.trackers.session import TrackerResult

KEY: Final = b"k" * 32
TOKEN: Final = "bot@example.com:a-token-of-many-letters"
OPTIONS: Final = DeliveryOptions(provider_key="tiny")
TICKET: Final = Ticket("A title", "Its text.", "high", "https://shop.example.com/", (), {})
BODY: Final = delivery_body("exp_1", "tgt_1", Source("finding", "fnd_1", 1), TICKET.record(), "2026-03-01T12:00:00.000Z")


class TinyTracker:
    """A tracker with one request to create and one to look up; `create_steps` and `find_steps` replace them."""

    key = "tiny"
    lookup_delay_s = 0

    def __init__(self) -> None:
        self.create_steps: Callable[[TrackerAccess], Steps[Any]] = self._create
        self.find_steps: Callable[[TrackerAccess], Steps[Any]] = self._find
        self.seen: list[TrackerResponse] = []

    def create(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | TrackerFailure | None]:
        return self.create_steps(access)

    def find(self, access: TrackerAccess, ticket: TrackerTicket) -> Steps[TrackerIssue | TrackerFailure | None]:
        return self.find_steps(access)

    def validate(self, access: TrackerAccess) -> Steps[TrackerFailure | None]:
        response = yield TrackerRequest("GET", f"{access.base_url}/user", authorized(access))
        return failure_of(response)

    def _create(self, access: TrackerAccess) -> Steps[Any]:
        response = yield creating(access)
        self.seen.append(response)
        return failure_of(response) or issue_of(response)

    def _find(self, access: TrackerAccess) -> Steps[Any]:
        response = yield TrackerRequest("GET", f"{access.base_url}/issues", authorized(access), max_response_bytes=200_000)
        self.seen.append(response)
        return failure_of(response) or issue_of(response)


def authorized(access: TrackerAccess) -> dict[str, str]:
    return {"Authorization": f"Bearer {access.token}"}


def creating(access: TrackerAccess) -> TrackerRequest:
    return TrackerRequest("POST", f"{access.base_url}/issues", authorized(access), b"{}", creates=True)


def issue_of(response: TrackerResponse) -> TrackerIssue | None:
    found = response.json()
    return TrackerIssue(found["id"], found["url"]) if isinstance(found, dict) and "id" in found else None


CREATED: Final = json.dumps({"id": "7", "url": "https://tracker.example.com/7"}).encode()


@pytest.fixture
def tracker() -> TinyTracker:
    return TinyTracker()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    with made_client(resolver=FakeResolver({NAME: ["127.0.0.1"]}), deadline_s=DEADLINE_S) as made:
        yield made


def claim_for(url: str, token: str = TOKEN, **changes: Any) -> Claim:
    sealed = Vault([KEY]).seal(token, secret_context("tgt_1"))
    return Claim("exp_1", "lse_1", 1, 1, "tgt_1", url, sealed, BODY, NOW, NOW, 1, OPTIONS)._replace(**changes)


def delivered(client: HttpClient, tracker: TinyTracker, claim: Claim) -> TrackerResult:
    return TrackerRunner(client, Vault([KEY]), "https://riskrelay.example.com", {"tiny": tracker}).deliver(claim)  # type: ignore[dict-item]  # what a delivery uses of it


def answering(*responses: tuple[int, bytes] | tuple[int, bytes, dict[str, str]]) -> Callable[[Peer], None]:
    """Respond with each of these in turn, and with the last one from then on; the headers may be left out."""
    left = list(responses)

    def behave(peer: Peer) -> None:
        while peer.read():
            status, body, *headers = left.pop(0) if len(left) > 1 else left[0]
            peer.answer(status, body, **dict(*headers))

    return behave


def test_a_created_issue_is_returned_with_its_number_and_a_known_outcome(client: HttpClient, tracker: TinyTracker) -> None:
    with LoopbackServer(answering((201, CREATED))) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert (result.value, result.is_outcome_unknown) == (TrackerIssue("7", "https://tracker.example.com/7"), False)
    assert (result.outcome.status, result.outcome.error, result.outcome.address) == (201, None, "127.0.0.1")


# Columns: status and body of the response to the creation; the failure's code or None; whether the outcome is unknown.
CREATES: Final[list[tuple[int, bytes, str | None, bool]]] = [
    (201, b"{}", None, True),
    (201, b"not JSON", None, True),
    (200, b"", None, True),
    (500, b"", UNAVAILABLE, True),
    (502, b"", UNAVAILABLE, True),
    (422, b"", REJECTED, False),
    (401, b"", TOKEN_REJECTED, False),
    (302, b"", "tracker_moved", False),
    (429, b"", RATE_LIMITED, False),
]


@pytest.mark.parametrize(("status", "body", "code", "is_unknown"), CREATES)
def test_each_response_to_a_create_leaves_the_outcome_known_or_unknown(
    client: HttpClient, tracker: TinyTracker, status: int, body: bytes, code: str | None, is_unknown: bool
) -> None:
    with LoopbackServer(answering((status, body))) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert result.is_outcome_unknown is is_unknown
    assert result.outcome.status == status
    assert (result.value.code if isinstance(result.value, TrackerFailure) else result.value) == code


def test_a_create_whose_response_is_lost_leaves_the_outcome_unknown(client: HttpClient, tracker: TinyTracker) -> None:
    def hang_up(peer: Peer) -> None:
        peer.read()

    for behave, error in ((hang_up, "connection_closed"), (Peer.wait, "deadline_exceeded")):
        with LoopbackServer(behave) as server:
            result = delivered(client, tracker, claim_for(server.url(NAME)))
        assert (result.outcome.error, result.outcome.status) == (error, None)
        assert result.is_outcome_unknown


def test_a_create_that_was_never_sent_has_a_known_outcome(client: HttpClient, tracker: TinyTracker) -> None:
    with LoopbackServer(answering((201, CREATED))) as server:
        port = server.port
    for url, error in (
        (f"http://{NAME}:{port}/", "connect_refused"),
        ("http://nowhere.example.com/", "dns_not_found"),
        ("http://10.0.0.1/", "address_private"),
    ):
        result = delivered(client, tracker, claim_for(url))
        assert (result.outcome.error, result.is_outcome_unknown) == (error, False)
        assert delivered(client, tracker, claim_for(url, is_outcome_unknown=True)).is_outcome_unknown


def test_a_create_that_was_never_sent_after_another_request_has_a_known_outcome(
    client: HttpClient, tracker: TinyTracker
) -> None:
    stack = ExitStack()

    def reads_then_creates(access: TrackerAccess) -> Steps[Any]:
        yield TrackerRequest("GET", f"{access.base_url}/labels", authorized(access))
        stack.close()
        yield creating(access)

    tracker.create_steps = reads_then_creates
    with stack:
        server = stack.enter_context(LoopbackServer(answering((200, b"[]"))))
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert (result.outcome.error, result.is_outcome_unknown) == ("connect_refused", False)


def test_a_request_after_the_create_that_fails_leaves_the_outcome_unknown(client: HttpClient, tracker: TinyTracker) -> None:
    def creates_then_reads(access: TrackerAccess) -> Steps[Any]:
        yield creating(access)
        response = yield TrackerRequest("GET", f"{access.base_url}/7", {})
        return failure_of(response)

    tracker.create_steps = creates_then_reads
    for second in (404, 422):
        with LoopbackServer(answering((201, b"{}"), (second, b""))) as server:
            assert delivered(client, tracker, claim_for(server.url(NAME))).is_outcome_unknown


@pytest.mark.parametrize(
    ("failure", "is_unknown"),
    [
        (TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED), False),
        (TrackerFailure(FailureKind.PAYLOAD, REJECTED), False),
        (TrackerFailure(FailureKind.RETRY, RATE_LIMITED, is_rate_limit=True), False),
        (TrackerFailure(FailureKind.RETRY, UNAVAILABLE), True),
    ],
)
def test_an_error_in_a_successful_response_is_a_known_outcome_unless_it_is_temporary(
    client: HttpClient, tracker: TinyTracker, failure: TrackerFailure, is_unknown: bool
) -> None:
    def refuses(access: TrackerAccess) -> Steps[Any]:
        yield creating(access)
        return failure

    tracker.create_steps = refuses
    with LoopbackServer(answering((200, b'{"errors": []}'))) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert (result.value, result.is_outcome_unknown) == (failure, is_unknown)


def test_a_known_outcome_costs_no_lookup_and_an_unknown_one_is_looked_up_first(
    client: HttpClient, tracker: TinyTracker
) -> None:
    lines: list[str] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            lines.append(request.line.split(" ")[0])
            peer.answer(200, CREATED if request.line.startswith("POST") else b"{}")

    with LoopbackServer(behave) as server:
        delivered(client, tracker, claim_for(server.url(NAME)))
        assert lines == ["POST"]
        result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
        assert lines == ["POST", "GET", "POST"]
        # All requests use one connection.
        assert server.connections == 1
    assert (result.value is not None, result.is_outcome_unknown) == (True, False)


def test_an_issue_that_is_found_is_not_created_again(client: HttpClient, tracker: TinyTracker) -> None:
    with LoopbackServer(answering((200, CREATED))) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
    assert (result.value, result.is_outcome_unknown) == (TrackerIssue("7", "https://tracker.example.com/7"), False)
    assert len(tracker.seen) == 1


@pytest.mark.parametrize("response", [(500, b""), (401, b""), (200, b"[{"), (200, b"<html>"), (429, b"")])
def test_a_failed_lookup_creates_nothing_and_keeps_the_unknown_outcome(
    client: HttpClient, tracker: TinyTracker, response: tuple[int, bytes]
) -> None:
    with LoopbackServer(answering(response)) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
    assert isinstance(result.value, TrackerFailure)
    assert result.is_outcome_unknown
    assert len(tracker.seen) == 1


def test_a_create_after_a_lookup_that_found_nothing_may_be_lost_again(client: HttpClient, tracker: TinyTracker) -> None:
    def behave(peer: Peer) -> None:
        while request := peer.read():
            if request.line.startswith("POST"):
                return
            peer.answer(200, b"[]")

    with LoopbackServer(behave) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
    assert (result.outcome.error, result.outcome.status) == ("connection_closed", None)
    assert result.is_outcome_unknown


def test_after_an_expired_lease_a_lagging_tracker_is_looked_up_twice_before_a_create(
    client: HttpClient, tracker: TinyTracker
) -> None:
    tracker.lookup_delay_s = 30
    with LoopbackServer(answering((200, b"[]"), (201, CREATED))) as server:
        claim = claim_for(server.url(NAME), is_outcome_unknown=True, has_lapsed=True)
        first = delivered(client, tracker, claim)
        assert (first.value, first.is_outcome_unknown, first.lookup_delay_s) == (None, True, 30)
        assert len(tracker.seen) == 1
    with LoopbackServer(answering((200, b"[]"), (201, CREATED))) as server:
        second = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
        assert isinstance(second.value, TrackerIssue)


def test_a_lookup_reads_up_to_its_requested_size(client: HttpClient, tracker: TinyTracker) -> None:
    for size, read in ((150_000, 150_000), (1_000_000, 200_000)):
        with LoopbackServer(answering((200, b" " * (size - 2) + b"[]"), (201, CREATED))) as server:
            result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
        assert len(tracker.seen[0].body) == read
        # A truncated list does not prove that the issue is missing.
        assert result.is_outcome_unknown is (read < size)
        tracker.seen.clear()


def test_a_tracker_that_never_finishes_is_given_up_at_the_deadline_of_the_whole_attempt(
    client: HttpClient, tracker: TinyTracker
) -> None:
    def pages(access: TrackerAccess) -> Steps[Any]:
        while True:
            yield TrackerRequest("GET", f"{access.base_url}/issues", {})

    def slowly(peer: Peer) -> None:
        while peer.read():
            time.sleep(DEADLINE_S / 10)
            peer.answer(200, b"[]")

    tracker.find_steps = pages
    with LoopbackServer(slowly) as server:
        began = time.monotonic()
        result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
        assert time.monotonic() - began < DEADLINE_S + SLACK_S
    assert (result.outcome.error, result.is_outcome_unknown) == ("deadline_exceeded", True)


def test_a_token_is_sent_to_no_other_origin(client: HttpClient, tracker: TinyTracker) -> None:
    requests: list[str] = []

    def record(peer: Peer) -> None:
        while request := peer.read():
            requests.append(request.line)
            peer.answer(200)

    with LoopbackServer(answering((200, b"[]"))) as server, LoopbackServer(record) as other:

        def leaves(access: TrackerAccess) -> Steps[Any]:
            yield TrackerRequest("GET", f"{access.base_url}/issues", authorized(access))
            yield TrackerRequest("GET", other.url(NAME), authorized(access))

        tracker.create_steps = leaves
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert (result.outcome.error, requests) == ("internal_error", [])


def test_a_redirect_is_not_followed(client: HttpClient, tracker: TinyTracker) -> None:
    with LoopbackServer(answering((200, b"{}"))) as elsewhere:

        def redirect(peer: Peer) -> None:
            while peer.read():
                peer.answer(307, b"", Location=elsewhere.url(NAME))

        with LoopbackServer(redirect) as server:
            result = delivered(client, tracker, claim_for(server.url(NAME)))
        assert elsewhere.connections == 0
    assert isinstance(result.value, TrackerFailure)
    assert (result.value.code, result.outcome.status) == ("tracker_moved", 307)


def test_a_token_repeated_by_the_tracker_is_in_no_result(client: HttpClient, tracker: TinyTracker) -> None:
    part = TOKEN.partition(":")[2]
    echo = json.dumps({"id": part, "url": f"https://tracker.example.com/?t={TOKEN}"}).encode()
    with LoopbackServer(answering((201, echo))) as server:
        created = delivered(client, tracker, claim_for(server.url(NAME)))
    with LoopbackServer(answering((422, TOKEN.encode()))) as server:
        refused = delivered(client, tracker, claim_for(server.url(NAME)))
    for result in (created, refused):
        assert part not in repr(result)
    assert "[redacted]" in str(refused.outcome.kept)


def test_the_response_to_a_successful_lookup_is_not_stored(client: HttpClient, tracker: TinyTracker) -> None:
    with LoopbackServer(answering((200, b'[{"title": "of somebody else"}]'), (500, b"broken"))) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True))
    assert result.outcome.kept == "broken"
    with LoopbackServer(answering((200, CREATED))) as server:
        assert delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True)).outcome.kept is None


def test_a_bug_of_a_module_is_an_internal_error_whose_log_has_no_token(
    client: HttpClient, tracker: TinyTracker, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(access: TrackerAccess) -> Steps[Any]:
        yield creating(access)
        raise ValueError(f"bad token {access.token}")

    tracker.create_steps = fails
    with LoopbackServer(answering((201, CREATED))) as server, caplog.at_level(logging.DEBUG):
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert (result.outcome.error, result.outcome.status, result.is_outcome_unknown) == ("internal_error", None, True)
    [line] = [JsonFormatter().format(record) for record in caplog.records]
    assert json.loads(line)["message"] == "a task at a tracker failed"
    assert json.loads(line)["target_id"] == "tgt_1"
    assert "ValueError" in line
    assert "a-token-of-many-letters" not in line


@pytest.mark.parametrize("token", ["line\r\nX-Other: 1", "snow☃man"])
def test_a_token_that_no_header_can_hold_is_rejected_and_not_sent(
    client: HttpClient, tracker: TinyTracker, token: str
) -> None:
    with LoopbackServer(answering((201, CREATED))) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME), token))
        assert server.connections == 0
    assert result.value == TrackerFailure(FailureKind.CONFIGURATION, TOKEN_REJECTED)
    assert not result.is_outcome_unknown


@pytest.mark.parametrize(
    ("changes", "error", "logged"),
    [
        ({"secret_sealed": None}, "no_secret", []),
        ({"secret_sealed": b"not sealed by us"}, "secret_unreadable", ["the token of a tracker cannot be read"]),
        ({"options": DeliveryOptions(provider_key="unknown")}, "internal_error", ["a task at a tracker cannot begin"]),
        ({"options": DeliveryOptions("tiny", "not JSON")}, "internal_error", ["a task at a tracker cannot begin"]),
    ],
)
def test_a_task_that_cannot_begin_sends_nothing_and_keeps_the_unknown_outcome(
    client: HttpClient,
    tracker: TinyTracker,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    error: str,
    logged: list[str],
) -> None:
    for is_unknown in (False, True):
        caplog.clear()
        claim = claim_for(f"http://{NAME}/", **changes, is_outcome_unknown=is_unknown)
        result = delivered(client, tracker, claim)
        assert (result.outcome.error, result.is_outcome_unknown, result.lookup_delay_s) == (error, is_unknown, 0)
        lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
        assert [(line["message"], line["target_id"]) for line in lines] == [(each, "tgt_1") for each in logged]


@pytest.mark.parametrize(
    ("resets", "longest"), [(["1234", "1234"], 1234.0), (["7", "5"], 7.0), (["5", ""], 5.0), (["", ""], None)]
)
def test_the_longest_hold_of_all_responses_counts(
    client: HttpClient, tracker: TinyTracker, resets: list[str], longest: float | None
) -> None:
    found, created = ({"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": each} for each in resets)
    with LoopbackServer(answering((200, b"[]", found), (201, CREATED, created))) as server:
        assert delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True)).held_until_s == longest


@pytest.mark.parametrize(("status", "kept"), [(200, None), (299, None), (300, "[]"), (404, "[]")])
def test_a_response_to_a_lookup_is_kept_unless_it_is_a_success(
    client: HttpClient, tracker: TinyTracker, status: int, kept: str | None
) -> None:
    def lookup_steps(access: TrackerAccess) -> Steps[Any]:
        yield TrackerRequest("GET", f"{access.base_url}/issues", authorized(access))
        raise TrackerRefused(TrackerFailure(FailureKind.RETRY, UNAVAILABLE))

    tracker.find_steps = lookup_steps
    with LoopbackServer(answering((status, b"[]"))) as server:
        outcome = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=True)).outcome
    assert (outcome.status, outcome.kept) == (status, kept)
    assert outcome.response_sha256 == hashlib.sha256(b"[]").hexdigest()


# Columns: status of the creation; status of the request for the reason; kind of the failure; the status that is shown.
EXPLAINED: Final = [
    (422, 200, FailureKind.PAYLOAD, 422),
    (404, 403, FailureKind.CONFIGURATION, 404),
    (200, 200, FailureKind.PAYLOAD, 200),  # a GraphQL API reports its refusals with status 200
    (201, 404, FailureKind.CONFIGURATION, 404),
    (422, 503, FailureKind.RETRY, 503),
]


@pytest.mark.parametrize(("created", "asked", "kind", "shown"), EXPLAINED)
def test_a_refused_create_is_shown_although_a_request_for_the_reason_followed(
    client: HttpClient, tracker: TinyTracker, created: int, asked: int, kind: FailureKind, shown: int
) -> None:
    def refused(access: TrackerAccess) -> Steps[Any]:
        yield creating(access)
        yield TrackerRequest("GET", f"{access.base_url}/project", authorized(access))
        raise TrackerRefused(TrackerFailure(kind, REJECTED))

    tracker.create_steps = refused
    with LoopbackServer(answering((created, b"the create"), (asked, b"the reason"))) as server:
        outcome = delivered(client, tracker, claim_for(server.url(NAME))).outcome
    text = "the create" if shown == created else "the reason"
    assert (outcome.status, outcome.kept) == (shown, text)
    assert outcome.response_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_requests_have_our_user_agent_unless_the_module_sets_one(client: HttpClient, tracker: TinyTracker) -> None:
    names: list[str] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            names.append(request.headers["user-agent"])
            peer.answer(200, b"[]")

    def asks(access: TrackerAccess) -> Steps[Any]:
        yield TrackerRequest("GET", f"{access.base_url}/a", {})
        yield TrackerRequest("GET", f"{access.base_url}/b", {"User-Agent": "its own"})

    tracker.create_steps = asks
    with LoopbackServer(behave) as server:
        delivered(client, tracker, claim_for(server.url(NAME)))
    assert names == [USER_AGENT, "its own"]


def test_a_module_reads_headers_in_lower_case_and_those_of_one_name_together(
    client: HttpClient, tracker: TinyTracker
) -> None:
    def behave(peer: Peer) -> None:
        while peer.read():
            peer.send(b"HTTP/1.1 201 Created\r\nLink: <a>\r\nX-Other:  b \r\nlink: <c>\r\nContent-Length: 2\r\n\r\n{}")

    with LoopbackServer(behave) as server:
        delivered(client, tracker, claim_for(server.url(NAME)))
    [seen] = tracker.seen
    assert (seen.status, seen.headers["link"], seen.headers["x-other"]) == (201, "<a>, <c>", "b")


@pytest.mark.parametrize(
    ("part", "kept"), [("12345678", "[redacted]"), ("1234567", "1234567"), ("12345678:9", "[redacted]")]
)
def test_the_second_part_of_a_token_is_redacted_unless_it_is_short(
    client: HttpClient, tracker: TinyTracker, part: str, kept: str
) -> None:
    with LoopbackServer(answering((422, part.encode()))) as server:
        assert delivered(client, tracker, claim_for(server.url(NAME), f"ann:{part}")).outcome.kept == kept


def test_a_lost_response_to_a_request_before_the_create_leaves_the_outcome_known(
    client: HttpClient, tracker: TinyTracker
) -> None:
    def reads_first(access: TrackerAccess) -> Steps[Any]:
        yield TrackerRequest("GET", f"{access.base_url}/labels", authorized(access))
        yield creating(access)

    def hang_up(peer: Peer) -> None:
        peer.read()

    tracker.create_steps = reads_first
    with LoopbackServer(hang_up) as server:
        result = delivered(client, tracker, claim_for(server.url(NAME)))
    assert (result.outcome.error, result.is_outcome_unknown) == ("connection_closed", False)


def test_a_lookup_that_a_bug_ends_keeps_the_unknown_outcome(client: HttpClient, tracker: TinyTracker) -> None:
    def fails(access: TrackerAccess) -> Steps[Any]:
        yield TrackerRequest("GET", f"{access.base_url}/issues", authorized(access))
        raise ValueError

    tracker.find_steps = tracker.create_steps = fails
    with LoopbackServer(answering((200, b"[]"))) as server:
        for is_unknown in (True, False):
            result = delivered(client, tracker, claim_for(server.url(NAME), is_outcome_unknown=is_unknown))
            assert (result.outcome.error, result.is_outcome_unknown) == ("internal_error", is_unknown)


def test_a_bug_in_a_validation_is_an_internal_error(
    client: HttpClient, tracker: TinyTracker, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(access: TrackerAccess) -> Steps[Any]:
        yield TrackerRequest("GET", f"{access.base_url}/user", authorized(access))
        raise ValueError

    tracker.validate = fails  # type: ignore[method-assign]  # as a module with a bug
    runner = TrackerRunner(client, Vault([KEY]), "https://riskrelay.example.com", {"tiny": tracker})  # type: ignore[dict-item]  # as above
    with LoopbackServer(answering((200, b"{}"))) as server:
        result = runner.validate(claim_for(server.url(NAME)))
    assert (result.outcome.error, result.outcome.status, result.value) == ("internal_error", None, None)
    assert [record.message for record in caplog.records] == ["a task at a tracker failed"]


def test_a_validation_creates_nothing_and_names_what_is_wrong(client: HttpClient, tracker: TinyTracker) -> None:
    lines: list[str] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            lines.append(request.line.split(" ")[0])
            assert request.headers["authorization"] == f"Bearer {TOKEN}"
            peer.answer(200 if len(lines) == 1 else 403)

    with LoopbackServer(behave) as server:
        target = claim_for(server.url(NAME))
        runner = TrackerRunner(client, Vault([KEY]), "https://riskrelay.example.com", {"tiny": tracker})  # type: ignore[dict-item]  # as above
        valid = runner.validate(target)
        assert (valid.value, valid.is_outcome_unknown, valid.outcome.error) == (None, False, None)
        failed = runner.validate(target)
        assert failed.value == TrackerFailure(FailureKind.CONFIGURATION, "tracker_forbidden")
        spent = runner.validate(target, spent_s=DEADLINE_S)
    assert (spent.outcome.error, spent.value) == ("deadline_exceeded", None)
    assert lines == ["GET", "GET"]
