"""A ping is signed like a delivery, sent once, and changes the state of its target as a delivery does."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from schemas.exports.delivery import Outcome, Timings
from schemas.targets.pings import PingResult
from schemas.targets.target import Target
from schemas.version import VERSION
from storage.db.engine import connection, database, release, rows
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import pings, targets
from tests.support.factories import NOW, WEBHOOK_SECRET, Customer, make_target
from tests.support.fakes import NO_TRACKERS
from tests.support.worker.account_tasks import run_once
from worker.background.pings import PingTask
from worker.http.signed_request import SignedPost
from worker.http.signing import SignatureVerdict, verify

VAULT: Final = Vault([b"k" * 32])
TOOK: Final = Timings(total_ms=12)


class ConnectionCheckingPost:
    """Records requests, and whether a connection was held meanwhile; responds as configured."""

    def __init__(self, outcome: Outcome | Exception) -> None:
        self.outcome = outcome
        self.sent: list[tuple[str, dict[str, str], bytes]] = []
        self.held: list[bool] = []

    def __call__(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        self.sent.append((url, headers, body))
        self.held.append(not database.is_closed())
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def ping_task(post: ConnectionCheckingPost, secret: str | None = WEBHOOK_SECRET) -> PingTask:
    return PingTask(
        SignedPost(post, VAULT, DefaultSecret(secret)), "worker", lambda: NOW + timedelta(seconds=1), NO_TRACKERS
    )


def asked(target: Target) -> str:
    return pings.request(target.id, target.account_id, NOW, "user:test")


def pinged(target: Target, outcome: Outcome | Exception, secret: str | None = WEBHOOK_SECRET) -> PingResult | None:
    """Request a ping whose request ends with `outcome`; return the result that was recorded."""
    ping_id = asked(target)
    assert run_once(ping_task(ConnectionCheckingPost(outcome), secret))
    return pings.get(ping_id).result


def judgement(post: ConnectionCheckingPost, secret: str) -> SignatureVerdict:
    [(_, headers, body)] = post.sent
    return verify(secret.encode(), headers, body, int(headers["X-Service-Timestamp"]), lambda _nonce: False)


def test_without_a_requested_ping_the_task_does_nothing(database: str) -> None:
    post = ConnectionCheckingPost(Outcome(status=202))
    assert not run_once(ping_task(post))
    assert post.sent == []


def test_a_ping_has_the_documented_headers_and_body(customer: Customer) -> None:
    target = make_target(customer, name="Tracker „Ü“")
    ping_id, post = asked(target), ConnectionCheckingPost(Outcome(status=202))
    assert run_once(ping_task(post))
    [(url, headers, body)] = post.sent
    assert url == target.base_url
    assert json.loads(body) == {
        "id": ping_id,
        "type": "target.ping",
        "version": 1,
        "created_at": "2026-03-01T12:00:00.000Z",
        "target": {"id": target.id, "name": "Tracker „Ü“"},
    }
    assert {name: headers[name] for name in ("Content-Type", "User-Agent", "Idempotency-Key", "X-Request-Id")} == {
        "Content-Type": "application/json",
        "User-Agent": f"RiskRelay/{VERSION}",
        "Idempotency-Key": ping_id,
        "X-Request-Id": ping_id,
    }
    assert len(headers) == 7  # and the three headers of the signature
    assert judgement(post, WEBHOOK_SECRET) is SignatureVerdict.OK


def test_a_targets_own_secret_signs_its_ping(customer: Customer) -> None:
    target = make_target(customer)
    targets.set_secret(target.id, "of its own", VAULT, NOW)
    asked(target)
    post = ConnectionCheckingPost(Outcome(status=202))
    run_once(ping_task(post))
    assert judgement(post, "of its own") is SignatureVerdict.OK
    assert judgement(post, WEBHOOK_SECRET) is SignatureVerdict.SIGNATURE_WRONG


# Columns: outcome of the request; result for the client; then the target's connection, status and status reason.
MET: Final[list[tuple[Outcome | Exception, PingResult, tuple[str, str, str | None]]]] = [
    (Outcome(status=200, timings=TOOK), PingResult(True, 200, None, 12), ("connected", "active", None)),
    # Any 2xx counts as received; the body of a response to a ping does not matter.
    (Outcome(status=204, body=b"{", timings=TOOK), PingResult(True, 204, None, 12), ("connected", "active", None)),
    # A receiver that asks to wait: a delivery would be retried, and the target would not count as failing.
    (Outcome(status=503, retry_after="60"), PingResult(False, 503, "receiver_unavailable", 0), ("unknown", "active", None)),
    (Outcome(status=429), PingResult(False, 429, "receiver_rate_limited", 0), ("unknown", "active", None)),
    (Outcome(status=302), PingResult(False, 302, "redirect_refused", 0), ("failing", "active", None)),
    (Outcome(status=401), PingResult(False, 401, "receiver_unauthorized", 0), ("failing", "active", None)),
    (
        Outcome(status=401, body=b'{"code": "WEBHOOK_SIGNATURE_INVALID"}'),
        PingResult(False, 401, "WEBHOOK_SIGNATURE_INVALID", 0),
        ("failing", "active", None),
    ),
    (Outcome(status=422), PingResult(False, 422, "receiver_rejected", 0), ("unknown", "active", None)),
    # A 410 disables the target, also in response to a ping.
    (Outcome(status=410), PingResult(False, 410, "receiver_gone", 0), ("failing", "disabled", "receiver_gone")),
    (Outcome(error="connect_refused"), PingResult(False, None, "connect_refused", 0), ("failing", "active", None)),
    (
        Outcome(error="deadline_exceeded", timings=Timings(total_ms=15000)),
        PingResult(False, None, "deadline_exceeded", 15000),
        ("failing", "active", None),
    ),
    (
        Outcome(error="address_private", refused=True),
        PingResult(False, None, "address_private", 0),
        ("failing", "blocked", "address_private"),
    ),
    (RuntimeError("a bug"), PingResult(False, None, "internal_error", 0), ("failing", "active", None)),
]


@pytest.mark.parametrize(("met", "result", "after"), MET)
def test_an_outcome_is_recorded_and_marks_the_target(
    customer: Customer, met: Outcome | Exception, result: PingResult, after: tuple[str, str, str | None]
) -> None:
    target = make_target(customer)
    assert pinged(target, met) == result
    marked = targets.get(target.id, None)
    assert (marked.connected_status, marked.status.value, marked.status_reason) == after
    assert (marked.last_success_at is not None) == result.delivered


def test_a_successful_ping_does_not_resume_a_paused_target(customer: Customer) -> None:
    target = make_target(customer)
    targets.change_status(target.id, "pause", NOW, "user:test", "client")
    assert pinged(target, Outcome(status=200)) == PingResult(True, 200, None, 0)
    after = targets.get(target.id, None)
    assert (after.status.value, after.status_reason, after.connected_status) == ("paused", "client", "connected")


def test_the_default_secret_signs_no_ping_of_an_account_that_it_does_not_serve(customer: Customer) -> None:
    post, target = ConnectionCheckingPost(Outcome(status=200)), make_target(customer)
    ping_id, default = asked(target), DefaultSecret(WEBHOOK_SECRET, accounts=frozenset({customer.account_id + 1}))
    assert run_once(PingTask(SignedPost(post, VAULT, default), "worker", lambda: NOW, NO_TRACKERS))
    result = pings.get(ping_id).result
    assert result is not None
    assert (post.sent, result.error_code) == ([], "no_secret")


def test_without_a_secret_nothing_is_sent(customer: Customer) -> None:
    target = make_target(customer)
    assert pinged(target, Outcome(status=200), None) == PingResult(False, None, "no_secret", 0)


def test_a_result_that_arrives_too_late_changes_nothing(customer: Customer) -> None:
    target = make_target(customer)
    ping_id = asked(target)

    def give_up_meanwhile(
        url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        with connection():
            pings.stop_waiting(ping_id, NOW)
        return Outcome(status=200)

    run_once(
        PingTask(SignedPost(give_up_meanwhile, VAULT, DefaultSecret(WEBHOOK_SECRET)), "worker", lambda: NOW, NO_TRACKERS)
    )
    assert pings.get(ping_id).result == PingResult(False, None, "worker_lost", None)
    assert targets.get(target.id, None).connected_status == "unknown"


def test_no_database_connection_is_held_while_a_ping_is_sent(customer: Customer) -> None:
    asked(make_target(customer))
    release()
    post = ConnectionCheckingPost(Outcome(status=200))
    assert run_once(ping_task(post))
    assert post.held == [False]
    assert database.is_closed()


@pytest.mark.parametrize(
    "counted", [lambda: rows("SELECT COUNT(*) FROM attempts"), lambda: rows("SELECT COUNT(*) FROM exports")]
)
def test_a_ping_is_no_attempt_of_an_export(customer: Customer, counted: Callable[[], Any]) -> None:
    pinged(make_target(customer), Outcome(status=200))
    assert counted() == [(0,)]
