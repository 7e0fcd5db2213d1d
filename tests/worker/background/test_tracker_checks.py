"""Pings and validations check the token and the repository of a tracker over real sockets, and create nothing."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.targets.pings import PingResult
from schemas.targets.target import TargetRequest, TargetStatus
from storage.db.engine import execute, rows, transaction
from storage.exports import transitions
from storage.exports.transitions import REQUEUED_AT_ONCE
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import pings, targets, validations
from tests.support.factories import LOOPBACK_POLICY, Customer, make_failed, make_tracker
from tests.support.fakes import FakeResolver
from tests.support.trackers.servers import TOKEN, FakeGitea, Refusal
from tests.support.worker.account_tasks import run_once
from worker.background.pings import PingTask
from worker.background.validations import ValidationTask
from worker.http.client import HttpClient
from worker.http.signed_request import SignedPost
from worker.trackers.runner import TrackerRunner

VAULT: Final = Vault([b"k" * 32])
LEASE_S: Final = 30.0


@pytest.fixture
def gitea() -> Iterator[FakeGitea]:
    with FakeGitea() as made:
        yield made


@pytest.fixture
def client() -> Iterator[HttpClient]:
    made = HttpClient(LOOPBACK_POLICY, FakeResolver({}), 5.0, 5.0, 4)
    yield made
    made.close()


def ping_task(client: HttpClient) -> PingTask:
    trackers = TrackerRunner(client, VAULT, "https://riskrelay.example.com")
    return PingTask(SignedPost(client.post, VAULT, DefaultSecret("secret")), "worker", utc_now, trackers)


def validation_task(client: HttpClient) -> ValidationTask:
    trackers = TrackerRunner(client, VAULT, "https://riskrelay.example.com")
    return ValidationTask(lambda due: client.inspect(due.base_url, due.account_id), "worker", utc_now, LEASE_S, trackers)


def pinged(client: HttpClient, target_id: str) -> PingResult:
    account_id = targets.get(target_id, None).account_id
    ping_id = pings.request(target_id, account_id, utc_now(), "user:1")
    assert run_once(ping_task(client))
    result = pings.get(ping_id).result
    assert result is not None
    return result


def validated(client: HttpClient, target_id: str) -> tuple[str | None, str | None]:
    validations.request(target_id, None, utc_now(), "user:1")
    assert run_once(validation_task(client))
    target = targets.get(target_id, None)
    return target.validation_status, target.validation_reason


#: Columns: refusal of the tracker, or None for success; token; error code; status of the last response.
CHECKS: Final[list[tuple[Refusal | None, str, str | None, int]]] = [
    (None, TOKEN, None, 200),
    (None, "an expired token", "tracker_token_rejected", 401),
    (Refusal(403), TOKEN, "tracker_forbidden", 403),
    (Refusal(404), TOKEN, "tracker_not_found", 404),
    (Refusal(423), TOKEN, "tracker_archived", 423),
    (Refusal(301, {"Location": "/"}), TOKEN, "tracker_moved", 301),
    (Refusal(502), TOKEN, "tracker_unavailable", 502),
]


@pytest.mark.parametrize(("refusal", "token", "code", "status"), CHECKS)
def test_a_check_reports_problems_creates_nothing_and_blocks_nothing(
    customer: Customer,
    gitea: FakeGitea,
    client: HttpClient,
    refusal: Refusal | None,
    token: str,
    code: str | None,
    status: int,
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT, token)
    gitea.refusal = refusal
    result = pinged(client, target_id)
    assert (result.delivered, result.error_code, result.response_status) == (code is None, code, status)
    assert result.duration_ms is not None
    assert validated(client, target_id) == ("passed" if code is None else "failed", code)
    target = targets.get(target_id, None)
    assert target.status is TargetStatus.ACTIVE
    assert gitea.issues == []
    assert all("x-service-signature" not in request.headers for request in gitea.requests)


def test_a_tracker_that_does_not_respond_fails_the_check(customer: Customer, client: HttpClient) -> None:
    with FakeGitea() as gone:
        target_id = make_tracker(customer, gone.base_url, VAULT)
    assert pinged(client, target_id).error_code == "connect_refused"
    assert validated(client, target_id) == ("failed", "connect_refused")


def test_a_new_tracker_is_validated_as_soon_as_it_has_a_token(
    customer: Customer, gitea: FakeGitea, client: HttpClient
) -> None:
    request = TargetRequest("gitea", gitea.base_url, None, "Tracker", None)
    made = targets.create(request, customer.account_id, "self-hosted", DefaultSecret("secret"), utc_now(), "user:1")
    assert not run_once(validation_task(client))
    targets.set_secret(made.id, TOKEN, VAULT, utc_now())
    assert targets.get(made.id, None).validation_status is None
    assert run_once(validation_task(client))
    assert targets.get(made.id, None).validation_status == "passed"


def test_a_passed_ping_ends_a_failed_validation(customer: Customer, gitea: FakeGitea, client: HttpClient) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    gitea.refusal = Refusal(403)
    assert validated(client, target_id) == ("failed", "tracker_forbidden")
    gitea.refusal = None
    assert pinged(client, target_id).delivered
    assert targets.get(target_id, None).validation_status == "passed"


def test_a_rate_limit_postpones_a_validation_and_does_not_change_the_target(
    customer: Customer, gitea: FakeGitea, client: HttpClient
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    before = targets.get(target_id, None)
    gitea.refusal = Refusal(429)
    validations.request(target_id, None, utc_now(), "user:1")
    assert run_once(validation_task(client))
    after = targets.get(target_id, None)
    assert (after.validation_status, after.validated_at) == (before.validation_status, before.validated_at)
    # Neither validations nor deliveries are due before the tracker accepts requests again.
    [(held_until, reason, due_at)] = rows("SELECT held_until, held_reason, validation_due_at FROM targets")
    assert (reason, held_until - to_ms(utc_now()) > 30_000, abs(due_at - held_until) < 1000) == ("rate_limited", True, True)
    assert validations.claim_next(utc_now() + timedelta(seconds=30), LEASE_S) is None
    assert validations.claim_next(utc_now() + timedelta(seconds=61), LEASE_S) is not None


def test_a_held_tracker_is_not_validated_automatically(customer: Customer, gitea: FakeGitea) -> None:
    make_tracker(customer, gitea.base_url, VAULT)
    now = utc_now()
    execute("UPDATE targets SET validation_due_at = 1, held_until = ?", (to_ms(now) + 3_600_000,))
    assert validations.claim_next(now, LEASE_S) is None
    assert validations.claim_next(now + timedelta(seconds=3599), LEASE_S) is None
    assert validations.claim_next(now + timedelta(seconds=3601), LEASE_S) is not None


def test_a_tracker_without_a_token_is_checked_by_its_address_alone(
    customer: Customer, gitea: FakeGitea, client: HttpClient
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    execute("UPDATE targets SET secret_sealed = NULL, secret_fingerprint = NULL, status = 'inactive'")
    assert validated(client, target_id) == ("passed", None)
    assert gitea.requests == []


def test_a_draft_is_checked_without_a_lease_and_nothing_is_stored(
    customer: Customer, gitea: FakeGitea, client: HttpClient
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT, "an expired token")
    before = targets.get(target_id, None)
    assert validation_task(client).inspect(validations.draft(target_id)).reason == "tracker_token_rejected"
    draft = pings.draft(target_id, utc_now())
    assert ping_task(client).send_unrecorded(draft).error_code == "tracker_token_rejected"
    assert targets.get(target_id, None) == before


def test_a_passed_validation_makes_the_remaining_exports_of_a_resumption_due(
    customer: Customer, gitea: FakeGitea, client: HttpClient
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    make_failed(customer, target_id, REQUEUED_AT_ONCE + 3, status="blocked")
    execute("UPDATE exports SET status_reason = 'tracker_forbidden'")
    with transaction():
        assert transitions.requeue_blocked(target_id, utc_now(), "user:1") == REQUEUED_AT_ONCE
    gitea.refusal = Refusal(403)
    validated(client, target_id)
    assert rows("SELECT COUNT(*) FROM exports WHERE status = 'blocked'") == [(3,)]
    gitea.refusal = None
    validated(client, target_id)
    assert rows("SELECT DISTINCT status FROM exports") == [("approved",)]
    assert rows("SELECT COUNT(*), COUNT(DISTINCT subject_id) FROM audit_entries WHERE action = 'retry'") == [
        (REQUEUED_AT_ONCE + 3, REQUEUED_AT_ONCE + 3)
    ]


def test_a_passed_validation_of_a_blocked_tracker_makes_nothing_due(
    customer: Customer, gitea: FakeGitea, client: HttpClient
) -> None:
    target_id = make_tracker(customer, gitea.base_url, VAULT)
    make_failed(customer, target_id, 1, status="blocked")
    execute("UPDATE exports SET status_reason = 'tracker_forbidden'")
    execute("UPDATE targets SET status = 'blocked', status_reason = 'tracker_forbidden'")
    assert validated(client, target_id) == ("passed", None)
    assert rows("SELECT status FROM exports") == [("blocked",)]
