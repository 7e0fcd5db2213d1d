"""An attempt without a response is followed by a lookup, so one issue exists whether or not the first attempt created it."""

from collections.abc import Iterator
from typing import Final

import pytest

from schemas.exports.delivery import Claim
from schemas.exports.tickets.ticket import Source, Ticket, delivery_body
from schemas.targets.delivery_options import DeliveryOptions
from schemas.trackers.exchange import TrackerIssue
from storage.secrets.vault import Vault
from storage.targets.targets import secret_context
from tests.support.factories import NOW
from tests.support.fakes import FakeResolver
from tests.support.trackers.servers import REPOSITORY, TOKEN, FakeGitea, FakeGitHub, FakeGitLab, LostResponse
from tests.support.worker.receivers import DEADLINE_S, NAME, made_client
from worker.trackers.runner import TrackerRunner

VAULT: Final = Vault([b"k" * 32])
MARKER: Final = "exp_01KG9YS7G061SQWPCHNYBQC8F2"
#: Nearly the longest text that trackers accept: responses repeat it and have to be read completely.
TICKET: Final = Ticket("A title", "Its text 😀. " * 4_000, "high", "https://shop.example.com/", ("a11y",), {})
BODY: Final = delivery_body(MARKER, "tgt_1", Source("finding", "fnd_1", 1), TICKET.record(), "2026-03-01T12:00:00.000Z")


@pytest.fixture(params=[FakeGitea, FakeGitHub, FakeGitLab])
def server(request: pytest.FixtureRequest) -> Iterator[FakeGitea]:
    with request.param() as made:
        yield made


@pytest.fixture
def runner() -> Iterator[TrackerRunner]:
    with made_client(resolver=FakeResolver({NAME: ["127.0.0.1"]}), deadline_s=DEADLINE_S) as client:
        yield TrackerRunner(client, VAULT, "https://riskrelay.example.com")


def claim_at(server: FakeGitea) -> Claim:
    options = DeliveryOptions(provider_key=server.provider_key)
    url = server.url(NAME, path=f"/{REPOSITORY}")
    sealed = VAULT.seal(TOKEN, secret_context("tgt_1"))
    return Claim(MARKER, "lse_1", 1, 1, "tgt_1", url, sealed, BODY, NOW, NOW, 1, options)


def test_a_ticket_becomes_one_issue_without_a_lookup(server: FakeGitea, runner: TrackerRunner) -> None:
    result = runner.deliver(claim_at(server))
    assert isinstance(result.value, TrackerIssue)
    assert (result.value.id, result.is_outcome_unknown) == ("1", False)
    assert (server.creates_of(MARKER), server.lookups) == (1, 0)


@pytest.mark.parametrize("lost", LostResponse)
def test_a_lost_response_leads_to_one_issue(server: FakeGitea, runner: TrackerRunner, lost: LostResponse) -> None:
    runner.deliver(claim_at(server)._replace(body=BODY.replace(MARKER.encode(), b"exp_01KG9YS7G061SQWPCHNYBQC8F3")))
    server.next_creates(lost)
    first = runner.deliver(claim_at(server))
    assert (first.value, first.is_outcome_unknown) == (None, True)
    second = runner.deliver(claim_at(server)._replace(is_outcome_unknown=True))
    assert isinstance(second.value, TrackerIssue)
    assert (second.value.id, second.is_outcome_unknown) == ("2", False)
    assert [issue["number"] for issue in server.issues_of(MARKER)] == [2]
    assert server.creates_of(MARKER) == (1 if lost is LostResponse.AFTER_CREATING else 2)
    assert server.lookups > 0


def test_a_wrong_token_is_a_failed_validation(server: FakeGitea, runner: TrackerRunner) -> None:
    claim = claim_at(server)
    sealed = VAULT.seal("another-token", secret_context("tgt_1"))
    result = runner.validate(claim._replace(secret_sealed=sealed))
    assert getattr(result.value, "code", None) == "tracker_token_rejected"


def test_a_validation_of_a_good_target_creates_nothing(server: FakeGitea, runner: TrackerRunner) -> None:
    result = runner.validate(claim_at(server))
    assert (result.value, result.outcome.error) == (None, None)
    assert server.issues == []
