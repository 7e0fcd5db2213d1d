"""What an account can read of its targets and do with them, and which requests are refused."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from runtime.dns_resolver import Addresses, DnsFailure
from schemas.base.principal import Ability
from schemas.targets.pings import BEGIN_WITHIN_S, PingResult
from schemas.targets.target import Target, TargetEdit
from schemas.targets.validations import EXPIRES_SOON, Validation
from service.app import create_app
from storage.db.engine import database as peewee_database
from storage.db.engine import execute, rows
from storage.secrets.vault import Vault
from storage.targets import changes, pings, targets, validations
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    DEFAULT_SECRET,
    NOW,
    Customer,
    forbid_webhooks,
    make_customer,
    make_settings,
    make_target,
    make_tracker,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    BASE,
    CANARY,
    JSON,
    TARGETS,
    Call,
    FieldRefusal,
    assert_has_standard_headers,
    assert_is_error,
    everything_stored,
    target_request,
)

# Requests do not depend on the database; the storage tests cover targets on both databases.
pytestmark = on_sqlite

HOST: Final = "tracker.example.com"
VERBS: Final = ("validate", "ping", "pause", "resume", "disable")
#: The operations of an account that may no longer use webhook targets.
ALWAYS_ALLOWED: Final = ("pause", "disable")


def act(
    client: TestClient, customer: Customer, target_id: str, verb: str, key: str | None = None, body: Any = None
) -> Result:
    keyed = () if key is None else (("Idempotency-Key", key),)
    typed = () if body is None else tuple(JSON.items())
    call = Call("POST", f"{TARGETS}/{target_id}/{verb}", (*customer.bearer.items(), *typed, *keyed))
    return (call if body is None else call.with_json(body)).send(client)


def read(client: TestClient, customer: Customer, target_id: str) -> Result:
    return Call("GET", f"{TARGETS}/{target_id}", tuple(customer.bearer.items())).send(client)


def listed(client: TestClient, customer: Customer, query: str = "") -> Result:
    return Call("GET", TARGETS, tuple(customer.bearer.items()), query=query).send(client)


def set_status(target: Target, status: str, reason: str | None = None) -> None:
    assert execute("UPDATE targets SET status = ?, status_reason = ? WHERE id = ?", (status, reason, target.id)) == 1


def audited(target: Target) -> list[tuple[Any, ...]]:
    """Return the action and the reason of a target's audit entries after its creation."""
    return rows("SELECT action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (target.id,))[1:]


# ---- reading


def test_a_target_is_read_as_it_was_returned_at_its_creation(client: TestClient, customer: Customer) -> None:
    call = Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(target_request())
    made = call.send(client)
    answer = Call("GET", made.headers["location"].removeprefix(BASE), tuple(customer.bearer.items())).send(client)
    assert (answer.status_code, answer.json) == (200, made.json)
    assert_has_standard_headers(answer)


def test_a_secret_of_its_own_is_shown_as_its_fingerprint(client: TestClient, customer: Customer, target: Target) -> None:
    fingerprint = targets.set_secret(target.id, CANARY, Vault([b"A" * 32]), NOW)
    answer = read(client, customer, target.id)
    assert answer.json["secret"] == {"configured": True, "fingerprint": fingerprint}
    assert CANARY not in answer.text


def test_the_list_shows_the_accounts_own_targets_the_newest_first(client: TestClient, customer: Customer) -> None:
    made = sorted((make_target(customer).id for _ in range(3)), reverse=True)
    make_target(make_customer())
    answer = listed(client, customer)
    assert answer.status_code == 200
    assert [record["id"] for record in answer.json["items"]] == made
    assert answer.json["items"][0] == read(client, customer, made[0]).json
    assert answer.json["next_cursor"] is None
    assert "link" not in answer.headers
    assert_has_standard_headers(answer)


def test_the_pages_of_a_list_hold_each_target_once(client: TestClient, customer: Customer) -> None:
    made = sorted((make_target(customer).id for _ in range(5)), reverse=True)
    set_status(targets.get(made[2], None), "paused")
    actual: list[str] = []
    query = "limit=2"
    for count in (2, 2, 1):
        answer = listed(client, customer, query)
        actual += [record["id"] for record in answer.json["items"]]
        assert len(answer.json["items"]) == count
        query = f"limit=2&cursor={answer.json['next_cursor']}"
        assert answer.headers.get("link") == (None if count == 1 else f'<{BASE}{TARGETS}?{query}>; rel="next"')
    assert actual == made
    assert answer.json["next_cursor"] is None
    assert [record["id"] for record in listed(client, customer, "status=paused").json["items"]] == [made[2]]
    assert listed(client, customer, "status=disabled").json == {"items": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        (f"status={CANARY}", FieldRefusal("/status", "not_allowed")),
        (f"cursor={CANARY}", FieldRefusal("/cursor", "invalid_cursor")),
        ("limit=0", FieldRefusal("/limit", "out_of_range")),
        (f"limit={CANARY}", FieldRefusal("/limit", "invalid_type")),
    ],
)
def test_invalid_paging_parameters_are_rejected(
    client: TestClient, customer: Customer, query: str, refusal: FieldRefusal
) -> None:
    answer = listed(client, customer, query)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (refusal,))
    assert CANARY not in answer.text


@pytest.mark.parametrize(
    "path", ["", "/tgt_01ARZ3NDEKTSV4RRFFQ69G5FAV", *(f"/tgt_01ARZ3NDEKTSV4RRFFQ69G5FAV/{verb}" for verb in VERBS)]
)
def test_a_token_needs_the_ability(client: TestClient, path: str) -> None:
    reader = make_customer(abilities=(Ability.READ_EXPORTS,))
    method = "POST" if path.count("/") == 2 else "GET"
    assert_is_error(Call(method, TARGETS + path, tuple(reader.bearer.items())).send(client), 403, "FORBIDDEN")
    assert_is_error(Call(method, TARGETS + path).send(client), 401, "UNAUTHORIZED")


@pytest.mark.parametrize(
    "find", [lambda theirs: theirs.id, lambda _: "tgt_x", lambda _: "exp_1", lambda _: "tgt_%00", lambda _: "%F0%9F%92%A9"]
)
def test_another_accounts_target_is_not_found(client: TestClient, customer: Customer, find: Callable[[Target], str]) -> None:
    theirs = make_target(make_customer())
    before = everything_stored()
    assert_is_error(read(client, customer, find(theirs)), 404, "NOT_FOUND")
    for verb in VERBS:
        assert_is_error(act(client, customer, find(theirs), verb), 404, "NOT_FOUND")
    assert everything_stored() == before


# ---- status changes

# Columns: operation; status and reason before; status and reason after, or None for a conflict.
STATUS_CHANGES: Final = [
    ("pause", ("active", None), ("paused", "client")),
    ("pause", ("paused", "operator"), ("paused", "operator")),  # paused already: nothing changes
    ("pause", ("inactive", "no_secret"), None),
    ("pause", ("blocked", "address_private"), None),
    ("pause", ("disabled", "receiver_gone"), None),
    ("resume", ("active", None), ("active", None)),
    ("resume", ("paused", "client"), ("active", None)),
    ("resume", ("paused", "restored"), ("active", None)),
    ("resume", ("blocked", "address_private"), ("active", None)),
    ("resume", ("disabled", "receiver_gone"), ("active", None)),
    ("resume", ("inactive", "no_secret"), None),  # only its first secret makes it active
    ("disable", ("active", None), ("disabled", "client")),
    ("disable", ("paused", "operator"), ("disabled", "client")),
    ("disable", ("blocked", "address_private"), ("disabled", "client")),
    ("disable", ("inactive", "no_secret"), ("disabled", "client")),
    ("disable", ("disabled", "receiver_gone"), ("disabled", "receiver_gone")),
]


@pytest.mark.parametrize(("verb", "before", "after"), STATUS_CHANGES)
def test_an_action_changes_the_status_as_in_the_table(
    client: TestClient,
    customer: Customer,
    target: Target,
    verb: str,
    before: tuple[str, str | None],
    after: tuple[str, str | None] | None,
) -> None:
    set_status(target, *before)
    answer = act(client, customer, target.id, verb)
    record = read(client, customer, target.id).json
    if after is None:
        assert_is_error(answer, 409, "CONFLICT")
    else:
        assert (answer.status_code, answer.json) == (200, record)
    assert (record["status"], record["status_reason"]) == (after or before)
    actual = [action for action, _ in audited(target) if action != "validate_target"]
    assert actual == ([] if after in {None, before} else [f"{verb}_target"])


@pytest.mark.parametrize("body", [None, {}])
def test_the_body_of_an_action_is_optional(client: TestClient, customer: Customer, target: Target, body: Any) -> None:
    assert act(client, customer, target.id, "pause", body=body).json["status"] == "paused"


@pytest.mark.parametrize("verb", VERBS)
def test_a_non_empty_body_is_refused(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue, verb: str
) -> None:
    answer = act(client, customer, target.id, verb, body={"reason": CANARY})
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("", "unknown_member"),))
    assert CANARY not in answer.text
    assert (audited(target), wake_ups.notifications) == ([], 0)


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_is_rejected_and_not_executed(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue, verb: str
) -> None:
    path = f"{TARGETS}/{target.id}/{verb}"
    answer = Call("POST", path, tuple(customer.bearer.items()), query="dry_run=true").send(client)
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/dry_run", "not_supported"),))
    assert (audited(target), wake_ups.notifications) == ([], 0)


def test_a_repeated_request_with_a_key_gets_the_first_response(
    client: TestClient, customer: Customer, target: Target
) -> None:
    first = act(client, customer, target.id, "pause", "k")
    act(client, customer, target.id, "resume")
    again = act(client, customer, target.id, "pause", "k")
    assert (again.json, again.headers["idempotency-replayed"]) == (first.json, "true")
    assert read(client, customer, target.id).json["status"] == "active"
    other = make_target(customer)
    assert_is_error(act(client, customer, other.id, "pause", "k"), 409, "IDEMPOTENCY_CONFLICT")


def test_an_account_without_webhooks_can_only_read_and_turn_off_targets(
    client: TestClient, customer: Customer, resolver: FakeResolver, wake_ups: FakeWakeUpQueue
) -> None:
    poor = make_customer()
    target = make_target(poor)
    forbid_webhooks(poor)
    for verb in VERBS:
        set_status(target, "active")
        answer = act(client, poor, target.id, verb)
        if verb in ALWAYS_ALLOWED:
            assert answer.status_code == 200
        else:
            assert_is_error(answer, 403, "FORBIDDEN")
    assert read(client, poor, target.id).status_code == listed(client, poor).status_code == 200
    assert (resolver.asked, wake_ups.notifications) == ([], 0)


# ---- resuming and validating


def test_a_resumption_notifies_workers_after_its_commit(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    set_status(target, "paused")
    wake_ups.on_notify = lambda: (peewee_database.in_transaction(), targets.get(target.id, None).status.value)
    assert act(client, customer, target.id, "resume").status_code == 200
    assert wake_ups.seen == [(False, "active")]


@pytest.mark.parametrize("status", ["paused", "blocked", "disabled"])
@pytest.mark.parametrize(("found", "reason"), [(["10.20.30.40"], "address_private"), (DnsFailure.TIMEOUT, "dns_timeout")])
def test_a_target_whose_address_may_not_be_used_is_not_resumed(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver, status: str, found: Any, reason: str
) -> None:
    resolver.table[HOST] = found
    set_status(target, status, "operator")
    before = everything_stored()
    answer = act(client, customer, target.id, "resume", "k")
    assert_is_error(answer, 422, "VALIDATION_FAILED", (FieldRefusal("/base_url", reason),))
    assert everything_stored() == before
    assert "10.20.30.40" not in answer.text

    resolver.table[HOST] = ["93.184.215.14"]
    assert act(client, customer, target.id, "resume", "k").json["status"] == "active"


def test_a_resumption_records_its_lookup(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver
) -> None:
    execute("UPDATE targets SET validation_status = 'failed', validation_reason = 'dns_timeout', status = 'blocked'")
    record = act(client, customer, target.id, "resume").json
    assert record["last_validation"]["status"] == "passed"
    assert record["last_validation"]["reason"] is None
    assert audited(target) == [("validate_target", "passed"), ("resume_target", "client")]
    act(client, customer, target.id, "resume")
    assert resolver.asked == [HOST]  # resuming an active target needs no lookup


def test_a_target_without_a_secret_is_not_resumed(
    customer: Customer, target: Target, tmp_path: Path, resolver: FakeResolver
) -> None:
    client = TestClient(create_app(make_settings(tmp_path, {"WEBHOOK_SECRET": ""}), FakeWakeUpQueue(), resolver))
    set_status(target, "disabled", "client")
    assert_is_error(act(client, customer, target.id, "resume"), 409, "CONFLICT")
    assert audited(target) == []


def run_validation_worker(found: Validation) -> Callable[[], object]:
    """Return a callback for the wake-up queue that validates targets as a worker would, with this result."""

    def work() -> object:
        job = validations.claim_next(utc_now(), 30.0)
        return job and validations.finish(job, found, utc_now(), "worker")

    return work


# Columns: result of the worker; then the validation's status and reason, and the target's connection.
VALIDATION_RESULTS: Final = [
    (Validation(), "passed", None, "unknown"),
    (Validation(EXPIRES_SOON), "passed", EXPIRES_SOON, "unknown"),
    (Validation("tls_certificate"), "failed", "tls_certificate", "failing"),
    (Validation("connect_timeout"), "failed", "connect_timeout", "failing"),
]


@pytest.mark.parametrize(("found", "status", "reason", "connected"), VALIDATION_RESULTS)
def test_a_validation_returns_the_result_of_a_worker(
    client: TestClient,
    customer: Customer,
    target: Target,
    wake_ups: FakeWakeUpQueue,
    found: Validation,
    status: str,
    reason: str | None,
    connected: str,
) -> None:
    wake_ups.on_notify = run_validation_worker(found)
    before = read(client, customer, target.id).json
    answer = act(client, customer, target.id, "validate")
    assert answer.status_code == 200
    checked = answer.json["last_validation"]
    assert checked == {"status": status, "reason": reason, "checked_at": checked["checked_at"]}
    assert checked["checked_at"] != before["last_validation"]["checked_at"]
    connection = {**before["connected"], "status": connected}
    assert answer.json == {**before, "connected": connection, "last_validation": checked}
    assert audited(target) == [("ask_validation", None), ("validate_target", reason or "passed")]


def test_a_worker_that_refuses_an_address_blocks_the_target(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    wake_ups.on_notify = run_validation_worker(Validation("address_private", is_refused=True))
    answer = act(client, customer, target.id, "validate").json
    assert (answer["status"], answer["status_reason"]) == ("blocked", "address_private")


@pytest.mark.parametrize("status", ["active", "paused", "inactive", "blocked", "disabled"])
def test_a_target_is_validated_in_any_state_and_stays_in_it(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue, status: str
) -> None:
    set_status(target, status)
    wake_ups.on_notify = run_validation_worker(Validation("tls_failed"))
    answer = act(client, customer, target.id, "validate").json
    assert (answer["status"], answer["last_validation"]["reason"]) == (status, "tls_failed")


def test_a_repeated_request_with_a_key_does_not_validate_again(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    wake_ups.on_notify = run_validation_worker(Validation())
    first = act(client, customer, target.id, "validate", "k")
    again = act(client, customer, target.id, "validate", "k")
    assert (again.json, again.headers["idempotency-replayed"]) == (first.json, "true")
    assert wake_ups.notifications == 1
    assert len(audited(target)) == 2


def test_without_a_worker_the_services_own_result_counts_and_no_worker_validates_later(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    wake_ups.is_connected = False
    before = read(client, customer, target.id).json
    began = time.monotonic()
    answer = act(client, customer, target.id, "validate")
    assert time.monotonic() - began >= BEGIN_WITHIN_S
    checked = answer.json["last_validation"]
    assert (answer.status_code, checked["status"], checked["reason"]) == (200, "passed", None)
    assert checked["checked_at"] > before["last_validation"]["checked_at"]
    assert validations.claim_next(utc_now(), 30.0) is None


def test_a_request_does_not_wait_for_a_worker_that_never_finishes_its_validation(
    customer: Customer, target: Target, tmp_path: Path, resolver: FakeResolver
) -> None:
    wake_ups = FakeWakeUpQueue(lambda: validations.claim_next(utc_now(), 30.0))
    settings = make_settings(tmp_path, {"DELIVERY_TIMEOUT_S": "0.5"})
    began = time.monotonic()
    answer = act(TestClient(create_app(settings, wake_ups, resolver)), customer, target.id, "validate")
    assert time.monotonic() - began >= 0.5
    assert answer.json["last_validation"]["status"] == "passed"
    [job] = wake_ups.seen
    assert isinstance(job, validations.ValidationJob)
    assert validations.finish(job, Validation("deadline_exceeded"), utc_now(), "worker")


@pytest.mark.parametrize(
    ("found", "reason"), [(["10.20.30.40"], "address_private"), (["93.184.215.14", "169.254.169.254"], "address_metadata")]
)
def test_an_address_that_may_not_be_used_blocks_the_target_at_once(
    client: TestClient,
    customer: Customer,
    target: Target,
    wake_ups: FakeWakeUpQueue,
    resolver: FakeResolver,
    found: Any,
    reason: str,
) -> None:
    resolver.table[HOST] = found
    answer = act(client, customer, target.id, "validate")
    assert answer.status_code == 200
    assert (answer.json["status"], answer.json["status_reason"]) == ("blocked", reason)
    assert (answer.json["last_validation"]["status"], answer.json["last_validation"]["reason"]) == ("failed", reason)
    assert audited(target) == [("validate_target", reason), ("target_blocked", reason)]
    assert wake_ups.notifications == 0
    for hidden in ("10.20.30.40", "169.254.169.254", "93.184"):
        assert hidden not in answer.text

    resolver.table[HOST] = ["93.184.215.14"]
    wake_ups.on_notify = run_validation_worker(Validation())
    again = act(client, customer, target.id, "validate").json
    assert (again["status"], again["last_validation"]["status"]) == ("blocked", "passed")  # only `resume` activates it
    assert act(client, customer, target.id, "resume").json["status"] == "active"


@pytest.mark.parametrize("found", [DnsFailure.NOT_FOUND, DnsFailure.TIMEOUT, DnsFailure.FAILED])
def test_a_name_that_does_not_resolve_is_reported_and_blocks_nothing(
    client: TestClient,
    customer: Customer,
    target: Target,
    wake_ups: FakeWakeUpQueue,
    resolver: FakeResolver,
    found: DnsFailure,
) -> None:
    resolver.table[HOST] = found
    answer = act(client, customer, target.id, "validate").json
    assert (answer["status"], answer["status_reason"]) == ("active", None)
    assert (answer["last_validation"]["status"], answer["last_validation"]["reason"]) == ("failed", found.value)
    assert answer["connected"]["status"] == "failing"
    assert audited(target) == [("validate_target", found.value)]
    assert wake_ups.notifications == 0


def test_an_address_that_the_policy_no_longer_allows_is_detected(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver
) -> None:
    execute("UPDATE targets SET base_url = 'http://tracker.example.com/hook'")
    assert act(client, customer, target.id, "validate").json["status_reason"] == "scheme_not_allowed"
    assert resolver.asked == []


def test_a_lookup_refused_by_our_own_overload_does_not_change_the_target(
    client: TestClient, customer: Customer, target: Target, resolver: FakeResolver
) -> None:
    resolver.table[HOST] = DnsFailure.OVERLOADED
    before = everything_stored()
    assert_is_error(act(client, customer, target.id, "validate", "k"), 503, "SERVICE_UNAVAILABLE")
    assert everything_stored() == before


class MovingResolver(FakeResolver):
    """Gives the target another URL during a lookup."""

    def __init__(self, target_id: str, base_url: str, found: str) -> None:
        super().__init__({HOST: [found]})
        self._move = (target_id, TargetEdit(base_url=base_url))

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        changes.edit(*self._move, DEFAULT_SECRET, utc_now(), "user:1")
        return super().resolve(host, port, timeout_s, account_id)


def test_a_refusal_of_the_former_url_does_not_block_a_target_that_was_moved_during_the_lookup(
    customer: Customer, target: Target, tmp_path: Path
) -> None:
    resolver = MovingResolver(target.id, "https://other.example.com/hook", "10.20.30.40")
    client = TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), resolver))
    answer = act(client, customer, target.id, "validate").json
    assert (answer["base_url"], answer["status"]) == ("https://other.example.com/hook", "active")
    assert answer["last_validation"]["status"] == "passed"
    assert audited(target) == [("move_target", "other.example.com")]


def test_a_resumption_does_not_validate_a_tracker_that_was_moved_during_the_lookup(
    customer: Customer, tmp_path: Path
) -> None:
    target_id = make_tracker(customer, f"https://{HOST}/shop/old")
    execute("UPDATE targets SET status = 'blocked', status_reason = 'tracker_not_found'")
    resolver = MovingResolver(target_id, f"https://{HOST}/shop/new", "93.184.215.14")
    client = TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), resolver))
    answer = act(client, customer, target_id, "resume").json
    assert (answer["base_url"], answer["status"]) == (f"https://{HOST}/shop/new", "active")
    assert answer["last_validation"] is None
    job = validations.claim_next(utc_now(), 30.0)
    assert job is not None
    assert job.base_url == answer["base_url"]


class WatchingResolver(FakeResolver):
    """Records whether a connection is held during a lookup."""

    def __init__(self) -> None:
        super().__init__({HOST: ["93.184.215.14"]})
        self.held: list[bool] = []

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Addresses:
        self.held.append(not peewee_database.is_closed())
        return super().resolve(host, port, timeout_s, account_id)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("verb", ["validate", "resume"])
def test_no_database_connection_is_held_during_a_lookup(
    customer: Customer, target: Target, tmp_path: Path, verb: str, key: str | None
) -> None:
    resolver = WatchingResolver()
    wake_ups = FakeWakeUpQueue(run_validation_worker(Validation()))
    client = TestClient(create_app(make_settings(tmp_path), wake_ups, resolver))
    set_status(target, "paused")
    assert act(client, customer, target.id, verb, key).status_code == 200
    assert resolver.held == [False]


# ---- pinging


def run_ping_worker(result: PingResult) -> Callable[[], object]:
    """Return a callback for the wake-up queue that sends pings as a worker would, with this result."""

    def work() -> object:
        order = pings.claim_next(utc_now())
        return order and pings.finish(order.id, result, utc_now())

    return work


@pytest.mark.parametrize(
    "result",
    [
        PingResult(True, 202, None, 12),
        PingResult(False, 503, "receiver_unavailable", 3),
        PingResult(False, None, "deadline_exceeded", 15000),
    ],
)
def test_a_ping_returns_its_result(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue, result: PingResult
) -> None:
    wake_ups.on_notify = run_ping_worker(result)
    answer = act(client, customer, target.id, "ping")
    assert answer.status_code == 200
    assert answer.json == {
        "delivered": result.delivered,
        "response_status": result.response_status,
        "error_code": result.error_code,
        "duration_ms": result.duration_ms,
    }
    assert_has_standard_headers(answer)
    assert audited(target) == [("ping_target", None)]


def test_a_repeated_request_with_a_key_sends_no_further_ping(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    wake_ups.on_notify = run_ping_worker(PingResult(True, 202, None, 12))
    first = act(client, customer, target.id, "ping", "k")
    again = act(client, customer, target.id, "ping", "k")
    assert (again.json, again.headers["idempotency-replayed"]) == (first.json, "true")
    assert (rows("SELECT COUNT(*) FROM pings"), wake_ups.notifications) == ([(1,)], 1)
    assert act(client, customer, target.id, "ping").json == first.json
    assert rows("SELECT COUNT(*) FROM pings") == [(2,)]


@pytest.mark.parametrize(
    ("status", "answered"), [("active", 200), ("paused", 200), ("blocked", 200), ("inactive", 409), ("disabled", 409)]
)
def test_a_target_is_pinged_in_certain_states(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue, status: str, answered: int
) -> None:
    set_status(target, status)
    wake_ups.on_notify = run_ping_worker(PingResult(True, 202, None, 12))
    answer = act(client, customer, target.id, "ping")
    assert answer.status_code == answered
    if answered == 409:
        assert_is_error(answer, 409, "CONFLICT")
        assert (rows("SELECT COUNT(*) FROM pings"), wake_ups.notifications) == ([(0,)], 0)


def test_without_a_worker_the_ping_is_cancelled(
    client: TestClient, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    wake_ups.is_connected = False
    began = time.monotonic()
    answer = act(client, customer, target.id, "ping")
    assert 5 <= time.monotonic() - began < 7
    assert answer.status_code == 200
    assert answer.json == {"delivered": False, "response_status": None, "error_code": "no_worker", "duration_ms": None}
    assert pings.claim_next(utc_now()) is None


def test_the_wait_for_a_worker_that_died_ends(
    customer: Customer, target: Target, tmp_path: Path, resolver: FakeResolver
) -> None:
    wake_ups = FakeWakeUpQueue(lambda: pings.claim_next(utc_now()))
    settings = make_settings(tmp_path, {"DELIVERY_TIMEOUT_S": "0.5"})
    began = time.monotonic()
    answer = act(TestClient(create_app(settings, wake_ups, resolver)), customer, target.id, "ping")
    assert 2.5 <= time.monotonic() - began < 4.5
    assert answer.json == {"delivered": False, "response_status": None, "error_code": "worker_lost", "duration_ms": None}


def test_the_api_accepts_no_secret_of_a_target(client: TestClient, customer: Customer) -> None:
    for name in ("secret", "signing_secret", "token"):
        call = Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items()))
        answer = call.with_json(target_request(**{name: CANARY})).send(client)
        assert answer.status_code == 422
        assert {each["code"] for each in answer.json["error"]["details"]["fields"]} >= {"unknown_member"}
        assert CANARY not in answer.text
    assert rows("SELECT COUNT(*) FROM targets") == [(0,)]
