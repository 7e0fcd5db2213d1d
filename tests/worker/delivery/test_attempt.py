"""One delivery attempt: requests are signed, fresh and identifiable, and every failure becomes a verdict."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from schemas.exports.delivery import Claim, CompletedAttempt, Outcome
from schemas.exports.state_machine import Transition
from schemas.targets.delivery_options import DeliveryOptions
from schemas.version import VERSION
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import targets
from storage.targets.targets import secret_context
from tests.support.factories import NOW, WEBHOOK_SECRET, Customer, claim_due, make_approved, make_target
from tests.support.fakes import NO_TRACKERS
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.outcomes import Schedule
from worker.http.signing import SignatureVerdict, verify

KEY: Final = b"k" * 32
OWN_SECRET: Final = "the target's own secret"
BODY: Final = '{"id":"exp_1","title":"Ü"}'.encode()
CLAIM: Final = Claim(
    export_id="exp_1",
    lease="lse_1",
    attempt=3,
    try_number=1,
    target_id="tgt_1",
    base_url="https://tracker.example.com/hook",
    secret_sealed=None,
    body=BODY,
    schedule_began_at=NOW,
    claimed_at=NOW,
    account_id=1,
)


@dataclass
class RecordingPost:
    """Records requests, and returns the configured outcome."""

    answer: Callable[[], Outcome] = lambda: Outcome(status=202)
    sent: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def __call__(
        self, url: str, headers: dict[str, str], body: bytes, account_id: int | None = None, certificate: str | None = None
    ) -> Outcome:
        self.sent.append((url, headers, body))
        return self.answer()


class AdvancingClock:
    """A clock that advances by a second and a half each time it is read."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> datetime:
        self.at += timedelta(seconds=1.5)
        return self.at


def runner(
    post: RecordingPost, secret: str | None = WEBHOOK_SECRET, keys: tuple[bytes, ...] = (KEY,), retries: int = 2
) -> AttemptRunner:
    schedule = Schedule((5,) * retries, timedelta(hours=1))
    return AttemptRunner(
        post,
        Vault(keys),
        AttemptOptions(DefaultSecret(secret), schedule, AdvancingClock(), lambda: 0.0, lambda claim, _now: claim),
        NO_TRACKERS,
    )


def delivered(by: AttemptRunner, claim: Claim = CLAIM) -> CompletedAttempt:
    """Run an attempt that nothing prevents from being made."""
    completed_attempt = by.run(claim)
    assert completed_attempt is not None
    return completed_attempt


def sealed(secret: str, target_id: str = CLAIM.target_id, key: bytes = KEY) -> bytes:
    return Vault([key]).seal(secret, secret_context(target_id))


def signature(post: RecordingPost, secret: str) -> SignatureVerdict:
    _, headers, body = post.sent[-1]
    return verify(secret.encode(), headers, body, int(headers["X-Service-Timestamp"]), lambda _nonce: False)


def test_the_headers_are_those_of_the_contract_and_no_others() -> None:
    post = RecordingPost()
    attempt = delivered(runner(post))
    [(url, headers, body)] = post.sent
    assert (url, body) == (CLAIM.base_url, BODY)
    assert set(headers) == {
        "Content-Type",
        "User-Agent",
        "X-Service-Timestamp",
        "X-Service-Nonce",
        "X-Service-Signature",
        "Idempotency-Key",
        "X-Request-Id",
    }
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"] == f"RiskRelay/{VERSION}"
    assert headers["X-Service-Timestamp"] == str(int(attempt.started_at.timestamp()))
    assert re.fullmatch(r"[0-9a-f]{32}", headers["X-Service-Nonce"])
    assert re.fullmatch(r"sha256=[0-9a-f]{64}", headers["X-Service-Signature"])
    assert headers["Idempotency-Key"] == CLAIM.export_id
    assert headers["X-Request-Id"] == attempt.id
    assert attempt.id.startswith("att_")


def test_the_signature_verifies_with_the_default_secret() -> None:
    post = RecordingPost()
    runner(post).run(CLAIM)
    assert signature(post, WEBHOOK_SECRET) is SignatureVerdict.OK
    assert signature(post, "another") is SignatureVerdict.SIGNATURE_WRONG


def test_a_second_attempt_has_a_fresh_timestamp_and_nonce_and_the_same_body_and_key() -> None:
    post = RecordingPost(lambda: Outcome(status=503))
    carrier = runner(post)
    first, second = delivered(carrier), delivered(carrier, CLAIM._replace(attempt=4, try_number=2))
    (_, before, body), (_, after, body_again) = post.sent
    assert body == body_again == BODY
    assert before["Idempotency-Key"] == after["Idempotency-Key"]
    for name in ("X-Service-Timestamp", "X-Service-Nonce", "X-Service-Signature", "X-Request-Id"):
        assert before[name] != after[name], name
    assert (first.nonce, second.nonce) == (before["X-Service-Nonce"], after["X-Service-Nonce"])
    assert signature(post, WEBHOOK_SECRET) is SignatureVerdict.OK


def test_a_targets_own_secret_takes_precedence_over_the_default() -> None:
    post = RecordingPost()
    runner(post).run(CLAIM._replace(secret_sealed=sealed(OWN_SECRET)))
    assert signature(post, OWN_SECRET) is SignatureVerdict.OK
    assert signature(post, WEBHOOK_SECRET) is SignatureVerdict.SIGNATURE_WRONG


def test_a_rotated_secret_signs_the_next_delivery() -> None:
    post = RecordingPost()
    carrier = runner(post)
    for secret in (OWN_SECRET, "rotated"):
        carrier.run(CLAIM._replace(secret_sealed=sealed(secret)))
        assert signature(post, secret) is SignatureVerdict.OK


def test_a_claim_that_waited_while_the_secret_was_rotated_is_signed_with_the_new_one(customer: Customer) -> None:
    post, vault, target = RecordingPost(), Vault([KEY]), make_target(customer)
    carrier = AttemptRunner(
        post,
        vault,
        AttemptOptions(DefaultSecret(WEBHOOK_SECRET), Schedule((5,), timedelta(hours=1)), AdvancingClock(), lambda: 0.0),
        NO_TRACKERS,
    )
    for before, after in ((None, OWN_SECRET), (OWN_SECRET, "rotated")):
        make_approved(customer, target.id)
        [claim] = claim_due(1, NOW, 60, "worker:test")
        assert (claim.secret_sealed is None) == (before is None)
        targets.set_secret(target.id, after, vault, NOW)
        carrier.run(claim)
        assert signature(post, after) is SignatureVerdict.OK


@pytest.mark.parametrize("since", [timedelta(hours=-1), timedelta(hours=1)], ids=["waited", "clock set back"])
def test_a_claim_is_checked_again_after_a_wait_or_a_clock_step(since: timedelta) -> None:
    post = RecordingPost()
    options = AttemptOptions(DefaultSecret(WEBHOOK_SECRET), Schedule((5,), timedelta(hours=1)), lambda: NOW)
    gone = AttemptRunner(post, Vault([KEY]), replace(options, recheck=lambda _claim, _now: None), NO_TRACKERS)
    assert gone.run(CLAIM._replace(claimed_at=NOW + since)) is None
    assert post.sent == []


def test_an_older_key_can_decrypt_a_secret() -> None:
    post = RecordingPost()
    runner(post, keys=(b"n" * 32, KEY)).run(CLAIM._replace(secret_sealed=sealed(OWN_SECRET)))
    assert signature(post, OWN_SECRET) is SignatureVerdict.OK


# Columns: encrypted secret of the target; default secret; keys of the vault; error.
UNSENDABLE: Final = [
    (None, None, (KEY,), "no_secret"),  # no secret at all
    (sealed(OWN_SECRET, key=b"o" * 32), WEBHOOK_SECRET, (KEY,), "secret_unreadable"),  # encrypted with an unknown key
    (sealed(OWN_SECRET, "tgt_2"), WEBHOOK_SECRET, (KEY,), "secret_unreadable"),  # copied from another target's row
    (sealed(OWN_SECRET), WEBHOOK_SECRET, (), "secret_unreadable"),  # a vault without keys
    (b"", WEBHOOK_SECRET, (KEY,), "secret_unreadable"),
    (b"\x01short", WEBHOOK_SECRET, (KEY,), "secret_unreadable"),
]


# The IDs are numbers, because encryption yields different bytes in each run.
@pytest.mark.parametrize(("blob", "default", "keys", "error"), UNSENDABLE, ids=range(len(UNSENDABLE)))
def test_a_delivery_that_cannot_be_signed_is_not_sent_and_is_retried_later(
    blob: bytes | None, default: str | None, keys: tuple[bytes, ...], error: str
) -> None:
    post = RecordingPost()
    attempt = delivered(runner(post, default, keys), CLAIM._replace(secret_sealed=blob))
    assert post.sent == []
    assert (attempt.verdict.transition, attempt.verdict.error_code) == (Transition.RESCHEDULE, error)


@pytest.mark.parametrize(("account_id", "error"), [(1, None), (2, "no_secret")])
def test_the_default_secret_signs_for_the_accounts_that_it_serves_alone(account_id: int, error: str | None) -> None:
    post, default = RecordingPost(), DefaultSecret(WEBHOOK_SECRET, accounts=frozenset({1}))
    options = AttemptOptions(
        default, Schedule((5,), timedelta(hours=1)), AdvancingClock(), recheck=lambda claim, _now: claim
    )
    runner = AttemptRunner(post, Vault([KEY]), options, NO_TRACKERS)
    attempt = delivered(runner, CLAIM._replace(account_id=account_id))
    assert (len(post.sent), attempt.outcome.error) == (0 if error else 1, error)
    signed = delivered(runner, CLAIM._replace(account_id=account_id, secret_sealed=sealed(OWN_SECRET)))
    assert signed.outcome.error is None


def test_an_empty_secret_signs_nothing() -> None:
    post = RecordingPost()
    attempt = delivered(runner(post, ""))
    assert post.sent == []
    assert attempt.verdict.error_code == "internal_error"


@pytest.mark.parametrize("broken", [RuntimeError("a bug"), ValueError(), OSError(), MemoryError(), RecursionError()])
def test_an_unexpected_exception_while_sending_is_an_internal_error_outcome(broken: Exception) -> None:
    def fail() -> Outcome:
        raise broken

    attempt = delivered(runner(RecordingPost(fail)))
    assert (attempt.verdict.transition, attempt.verdict.error_code) == (Transition.RESCHEDULE, "internal_error")
    assert attempt.claim is CLAIM


def test_a_response_is_stored_without_an_echoed_secret() -> None:
    body = f'{{"error": "expected {WEBHOOK_SECRET}"}}'.encode()
    attempt = delivered(runner(RecordingPost(lambda: Outcome(status=401, body=body))))
    assert attempt.outcome.kept == '{"error": "expected [redacted]"}'
    assert delivered(runner(RecordingPost())).outcome.kept is None


@pytest.mark.parametrize("secret", ['"', "id", ":", "T-1", "ticket"])
def test_a_short_secret_of_an_earlier_version_changes_no_stored_response(secret: str) -> None:
    post = RecordingPost(lambda: Outcome(status=200, body=b'{"id": "T-1", "note": "a ticket"}'))
    attempt = delivered(runner(post), CLAIM._replace(secret_sealed=sealed(secret)))
    assert attempt.verdict.provider_ticket_id == "T-1"
    assert attempt.outcome.kept is not None
    assert secret not in attempt.outcome.kept.replace("[redacted]", "")


def test_a_log_of_a_broken_delivery_holds_neither_secret_nor_body(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Outcome:
        raise RuntimeError("a bug")

    runner(RecordingPost(fail)).run(CLAIM)
    assert "sending failed" in caplog.text
    assert WEBHOOK_SECRET not in caplog.text
    assert BODY.decode() not in caplog.text


# Columns: try number; whether the request is sent. Two retries make three tries.
TRIES: Final = [(1, True), (3, True), (4, False), (5, False)]


@pytest.mark.parametrize(("try_number", "is_sent"), TRIES)
def test_a_claim_beyond_its_attempts_is_not_sent(try_number: int, is_sent: bool) -> None:
    post = RecordingPost()
    attempt = delivered(runner(post, retries=2), CLAIM._replace(try_number=try_number))
    assert bool(post.sent) == is_sent
    if not is_sent:
        verdict = attempt.verdict
        assert (verdict.transition, verdict.reason, verdict.error_code) == (
            Transition.FAIL,
            "attempts_exhausted",
            "worker_lost",
        )


@pytest.mark.parametrize("is_unknown", [False, True])
def test_a_claim_for_a_tracker_beyond_its_attempts_is_not_sent_and_keeps_its_unknown_outcome(is_unknown: bool) -> None:
    at_a_tracker = CLAIM._replace(try_number=4, options=DeliveryOptions(provider_key="gitea"), is_outcome_unknown=is_unknown)
    verdict = delivered(runner(RecordingPost(), retries=2), at_a_tracker).verdict
    assert (verdict.reason, verdict.error_code) == ("attempts_exhausted", "worker_lost")
    assert verdict.is_outcome_unknown == is_unknown


def test_the_next_attempt_counts_from_the_end_of_this_one() -> None:
    attempt = delivered(runner(RecordingPost(lambda: Outcome(status=500))))
    assert attempt.started_at == NOW + timedelta(seconds=1.5)
    assert attempt.verdict.next_attempt_at == NOW + timedelta(seconds=3 + 5)


def test_random_jitter_stays_within_its_bounds() -> None:
    terms = AttemptOptions(DefaultSecret(), Schedule((), timedelta()), lambda: datetime.now(UTC))
    drawn = [terms.jitter() for _ in range(1000)]
    assert -1 <= min(drawn) < -0.5
    assert 0.5 < max(drawn) <= 1
