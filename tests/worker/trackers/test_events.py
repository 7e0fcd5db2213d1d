"""Events at trackers over HTTP: one comment whatever happens to its response; no issue's problem blocks the target."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.logs import JsonFormatter
from schemas.base.places import ChangedPlace
from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, event_body
from schemas.exports.tickets.tracker_ticket import event_of
from schemas.targets.delivery_options import DeliveryOptions
from schemas.trackers.events import TrackerEvent, TrackerEventAction
from schemas.trackers.exchange import FailureKind, Steps, TrackerAccess, TrackerFailure
from schemas.trackers.gitea import GiteaTracker
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from storage.targets.validations import ValidationJob
from tests.support.fakes import FakeResolver
from tests.support.trackers.events import EVENT_ID, EXPORT_ID
from tests.support.trackers.servers import REPOSITORY, TOKEN, FakeGitea, FakeGitHub, FakeGitLab, LostResponse, Refusal
from tests.support.worker.receivers import DEADLINE_S, NAME, made_client
from worker.trackers.runner import TrackerRunner
from worker.trackers.session import TrackerResult

VAULT: Final = Vault([b"k" * 32])
BASE: Final = "https://riskrelay.example.com"
FIXED, REOPENED, UPDATED, REDACT = (
    TicketEventType.FIXED,
    TicketEventType.REOPENED,
    TicketEventType.UPDATED,
    TicketEventType.REDACT,
)
ISSUE: Final = {"number": 7, "iid": 7, "title": "Jane Doe", "body": f"Her address. {EXPORT_ID}", "state": "open"}


@pytest.fixture(params=[FakeGitea, FakeGitHub, FakeGitLab])
def server(request: pytest.FixtureRequest) -> Iterator[FakeGitea]:
    with request.param() as made:
        made.issues.append(ISSUE | {"state": "opened" if made.provider_key == "gitlab" else "open"})
        yield made


@pytest.fixture
def runner() -> Iterator[TrackerRunner]:
    with made_client(resolver=FakeResolver({NAME: ["127.0.0.1"]}), deadline_s=DEADLINE_S) as client:
        yield TrackerRunner(client, VAULT, BASE)


def event(event_type: TicketEventType = UPDATED, number: str = "7", **changes: Any) -> TrackerEvent:
    """Return an event as parsed from its body."""
    ticket = EventTicket(EXPORT_ID, "tgt_1", Source("finding", "fnd_1", 1), "A title", "d" * 64, number, "https://x.example")
    change = TicketChange(3, 17, 25, (ChangedPlace("https://shop.example/cart", "main > img", "fixed"),))
    body = event_body(EVENT_ID, event_type, ticket, change, "2026-03-01T12:00:00.000Z")
    return event_of(body, BASE, **changes)


def applied(
    server: FakeGitea, runner: TrackerRunner, made: TrackerEvent, token: str = TOKEN, on_fixed: str = "close"
) -> TrackerResult:
    options = DeliveryOptions(server.provider_key, f'{{"on_fixed": "{on_fixed}"}}')
    sealed = VAULT.seal(token, secret_context("tgt_1"))
    return runner.apply_event(ValidationJob("tgt_1", 1, server.url(NAME, path=f"/{REPOSITORY}"), "", sealed, options), made)


def test_an_event_of_a_ticket_without_an_issue_has_an_empty_issue_id() -> None:
    ticket = EventTicket(EXPORT_ID, "tgt_1", Source("finding", "fnd_1", 1), None, "d" * 64)
    body = event_body(EVENT_ID, REDACT, ticket, TicketChange(), "2026-03-01T12:00:00.000Z")
    made = event_of(body, None)
    assert (made.issue_id, made.console_url, made.places) == ("", None, ())


def test_an_event_is_a_comment_in_plain_words(server: FakeGitea, runner: TrackerRunner) -> None:
    result = applied(server, runner, event())
    assert result.value == TrackerEventAction.COMMENTED
    assert (result.is_outcome_unknown, result.outcome.error) == (False, None)
    [comment] = server.comments_of(7)
    assert "3 places added, 17 fixed, 25 still open." in comment
    assert "- `https://shop.example/cart` `main > img`" in comment
    assert f"{BASE}/console/exports/{EXPORT_ID}" in comment
    assert comment.endswith(EVENT_ID)


def test_an_issue_is_closed_reopened_and_erased(server: FakeGitea, runner: TrackerRunner) -> None:
    closed = applied(server, runner, event(FIXED))
    assert closed.value == TrackerEventAction.CLOSED
    assert server.issues[0]["state"] == "closed"
    reopened = applied(server, runner, event(REOPENED, has_closed=True))
    assert reopened.value == TrackerEventAction.REOPENED
    assert server.issues[0]["state"] in {"open", "opened"}
    left_alone = applied(server, runner, event(FIXED, has_closed=True))
    assert left_alone.value == TrackerEventAction.LEFT_ALONE
    assert len(server.comments_of(7)) == 3
    erased = applied(server, runner, event(REDACT))
    assert erased.value == TrackerEventAction.REDACTED
    assert server.issues[0]["title"] == f"Erased ticket {EXPORT_ID}"
    assert server.issues[0]["body"].endswith(f"RiskRelay export {EXPORT_ID}")
    assert "Her address" not in str(server.issues[0])
    assert applied(server, runner, event(REDACT)).value == erased.value


def test_a_target_without_subscribed_events_gets_no_request(server: FakeGitea, runner: TrackerRunner) -> None:
    result = applied(server, runner, event(FIXED), on_fixed="nothing")
    assert result.value == TrackerEventAction.SKIPPED
    assert (result.outcome.status, result.outcome.error, server.requests) == (None, None, [])


@pytest.mark.parametrize("lost", LostResponse)
def test_a_lost_response_leads_to_one_comment(server: FakeGitea, runner: TrackerRunner, lost: LostResponse) -> None:
    server.next_comments(lost)
    first = applied(server, runner, event(FIXED))
    assert (first.value, first.outcome.error, first.is_outcome_unknown) == (None, "connection_closed", True)
    second = applied(server, runner, event(FIXED, is_outcome_unknown=True))
    assert (second.value, second.is_outcome_unknown) == (TrackerEventAction.CLOSED, False)
    assert len(server.comments_of(7)) == 1


@given(
    st.lists(st.sampled_from([*LostResponse, Refusal(500), Refusal(429), Refusal(200, body=b"{}")]), max_size=5),
    st.sampled_from([FIXED, REOPENED, UPDATED]),
)
@settings(max_examples=40, deadline=None)
def test_whatever_happens_to_its_responses_an_event_is_one_comment(
    lost: list[LostResponse | Refusal], event_type: TicketEventType
) -> None:
    resolver = FakeResolver({NAME: ["127.0.0.1"]})
    with FakeGitea() as server, made_client(resolver=resolver, deadline_s=DEADLINE_S) as client:
        server.issues.append(dict(ISSUE))
        server.next_comments(*lost)
        runner, is_unknown = TrackerRunner(client, VAULT, BASE), False
        for _ in range(len(lost) + 1):
            result = applied(server, runner, event(event_type, is_outcome_unknown=is_unknown))
            if isinstance(result.value, TrackerEventAction):
                break
            is_unknown = result.is_outcome_unknown
        assert isinstance(result.value, TrackerEventAction)
        assert len(server.comments_of(7)) == 1


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"{}", b"[]"])
def test_a_success_without_a_comment_is_retried_with_an_unknown_outcome(
    server: FakeGitea, runner: TrackerRunner, body: bytes
) -> None:
    server.next_comments(Refusal(200, body=body))
    result = applied(server, runner, event())
    assert isinstance(result.value, TrackerFailure)
    assert (result.value.kind, result.is_outcome_unknown) == (FailureKind.RETRY, True)


def test_a_refused_comment_has_a_known_outcome(server: FakeGitea, runner: TrackerRunner) -> None:
    server.next_comments(Refusal(422))
    result = applied(server, runner, event())
    assert isinstance(result.value, TrackerFailure)
    assert (result.value.kind, result.value.code) == (FailureKind.PAYLOAD, "tracker_rejected")
    assert not result.is_outcome_unknown


def test_an_event_that_fails_after_its_comment_is_retried_without_another_comment(
    server: FakeGitea, runner: TrackerRunner
) -> None:
    server.next_comments(None)
    closing = server.issues[0]
    server.issues[0] = closing | {"state": "somewhere in between"}
    result = applied(server, runner, event(FIXED))
    assert isinstance(result.value, TrackerFailure)
    assert (result.value.kind, result.is_outcome_unknown) == (FailureKind.RETRY, True)
    server.issues[0] = closing
    again = applied(server, runner, event(FIXED, is_outcome_unknown=True))
    assert again.value == TrackerEventAction.CLOSED
    assert len(server.comments_of(7)) == 1


@pytest.mark.parametrize("event_type", TicketEventType)
def test_a_deleted_issue_fails_its_event_without_blocking_the_target(
    server: FakeGitea, runner: TrackerRunner, event_type: TicketEventType
) -> None:
    result = applied(server, runner, event(event_type, "8"))
    assert result.value == TrackerFailure(FailureKind.PAYLOAD, "issue_not_found")
    assert not result.is_outcome_unknown


def test_a_token_without_access_is_a_configuration_failure(server: FakeGitea, runner: TrackerRunner) -> None:
    result = applied(server, runner, event(), token="another-token")
    assert result.value == TrackerFailure(FailureKind.CONFIGURATION, "tracker_token_rejected")
    server.refusal = Refusal(404)
    result = applied(server, runner, event())
    assert isinstance(result.value, TrackerFailure)
    assert (result.value.kind, result.value.code) == (FailureKind.CONFIGURATION, "tracker_not_found")


def test_an_event_for_a_target_without_a_token_has_the_error_no_secret(server: FakeGitea, runner: TrackerRunner) -> None:
    target = ValidationJob("tgt_1", 1, server.url(NAME), "", None, DeliveryOptions(server.provider_key))
    for is_unknown in (False, True):
        result = runner.apply_event(target, replace(event(), is_outcome_unknown=is_unknown))
        assert (result.outcome.error, result.is_outcome_unknown) == ("no_secret", is_unknown)


def test_an_event_that_was_never_sent_keeps_its_unknown_outcome(server: FakeGitea, runner: TrackerRunner) -> None:
    sealed = VAULT.seal(TOKEN, secret_context("tgt_1"))
    url = f"http://10.0.0.1/{REPOSITORY}"
    target = ValidationJob("tgt_1", 1, url, "", sealed, DeliveryOptions(server.provider_key))
    for is_unknown in (False, True):
        result = runner.apply_event(target, event(is_outcome_unknown=is_unknown))
        assert (result.outcome.error, result.value, result.is_outcome_unknown) == ("address_private", None, is_unknown)


class _Broken(GiteaTracker):
    """A tracker whose comment fails with a bug: after the request, or before it if the issue's number begins with 9."""

    def comment(self, access: TrackerAccess, event: TrackerEvent) -> Steps[None]:
        if not event.issue_id.startswith("9"):
            yield from super().comment(access, event)
        raise ValueError


def test_a_bug_is_an_internal_error_that_keeps_the_unknown_outcome(caplog: pytest.LogCaptureFixture) -> None:
    resolver = FakeResolver({NAME: ["127.0.0.1"]})
    with FakeGitea() as server, made_client(resolver=resolver, deadline_s=DEADLINE_S) as client:
        server.issues.append(dict(ISSUE))
        runner = TrackerRunner(client, VAULT, BASE, {"gitea": _Broken()})
        after_comment = applied(server, runner, event())
        before_it = applied(server, runner, event(number="9"))
        in_doubt = applied(server, runner, event(number="9", is_outcome_unknown=True))
    results = [after_comment, before_it, in_doubt]
    assert [(each.outcome.error, each.value) for each in results[:2]] == [("internal_error", None)] * 2
    assert [each.is_outcome_unknown for each in results] == [True, False, True]
    assert {record.message for record in caplog.records} == {"a task at a tracker failed"}
    assert json.loads(JsonFormatter().format(caplog.records[0]))["target_id"].startswith("tgt_")
