"""Approvals that arrive at the same time share one transaction, and each gets the response it would have got alone."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from falcon.testing import Result, TestClient

from service.operations.exports import ExportOperations
from storage.db.engine import rows
from tests.service.conftest import LogLines
from tests.support.canaries import columns, traces
from tests.support.factories import Customer, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS, JSON, Call, assert_is_error
from tests.support.processes.workers import wait_until

REPLAYED = "idempotency-replayed"
CANARY = "cAnArY-of-a-batch-93117"


def approval(customer: Customer, export_id: str, target_id: str, key: str | None, **members: Any) -> Call:
    headers = (*customer.bearer.items(), *JSON.items(), *([("Idempotency-Key", key)] if key else []))
    return Call("POST", f"{EXPORTS}/{export_id}/approve", headers).with_json({"target_id": target_id, **members})


class ConcurrentApprovals:
    """Sends approvals while an earlier approval for the same target is in progress, so that they wait together."""

    def __init__(self, client: TestClient, customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.customer = client, customer
        self.target_id = make_target(customer).id
        self.batches: list[int] = []
        resource: Any = (client.app._router.find(f"{EXPORTS}/exp_1/approve") or (None,))[0]
        self._waiting = resource.on_post.__self__._batches._batches._waiting
        self._is_held, self._may_go_on = threading.Event(), threading.Event()
        self._first = make_exports(customer, 1)[0]
        approve, approve_all = ExportOperations.approve, ExportOperations.approve_all

        def held(operations: ExportOperations, export_id: str, *rest: Any) -> Any:
            if export_id == self._first:
                self._is_held.set()
                assert self._may_go_on.wait(10)
            return approve(operations, export_id, *rest)

        def counted(operations: ExportOperations, approvals: Sequence[Any], actor: Any) -> Any:
            self.batches.append(len(approvals))
            return approve_all(operations, approvals, actor)

        monkeypatch.setattr(ExportOperations, "approve", held)
        monkeypatch.setattr(ExportOperations, "approve_all", counted)

    def send(self, *calls: Call) -> list[Result]:
        """Send calls that wait together, and return the responses in order."""

        def all_wait() -> bool:
            return sum(map(len, self._waiting.values())) == len(calls)

        with ThreadPoolExecutor(len(calls) + 1) as pool:
            first = pool.submit(approval(self.customer, self._first, self.target_id, None).send, self.client)
            assert self._is_held.wait(10)
            sent = [pool.submit(call.send, self.client) for call in calls]
            wait_until(all_wait, 10)
            self._may_go_on.set()
            assert first.result(30).status_code == 202
            return [each.result(30) for each in sent]


@pytest.fixture
def moment(client: TestClient, customer: Customer, monkeypatch: pytest.MonkeyPatch) -> ConcurrentApprovals:
    return ConcurrentApprovals(client, customer, monkeypatch)


def record(client: TestClient, customer: Customer, export_id: str) -> Any:
    return Call("GET", f"{EXPORTS}/{export_id}", tuple(customer.bearer.items())).send(client).json


@pytest.mark.parametrize("key", ["k-{}", None], ids=["keys", "no keys"])
def test_waiting_approvals_share_one_transaction_and_each_gets_its_record(
    key: str | None, moment: ConcurrentApprovals, client: TestClient, customer: Customer
) -> None:
    ids = make_exports(customer, 5)
    calls = [approval(customer, each, moment.target_id, key and key.format(each)) for each in ids]

    answers = moment.send(*calls)

    assert moment.batches == [5]
    assert [answer.status_code for answer in answers] == [202] * 5
    assert [answer.json["id"] for answer in answers] == ids
    assert [answer.headers["location"].rpartition("/")[2] for answer in answers] == ids
    assert [answer.json for answer in answers] == [record(client, customer, each) for each in ids]
    assert len({answer.json["approved_at"] for answer in answers}) == 1
    assert sorted(row[0] for row in rows("SELECT subject_id FROM audit_entries WHERE action = 'approve'")) == sorted(
        [*ids, moment._first]
    )
    if key:
        again = [call.send(client) for call in calls]
        assert [each.content for each in again] == [each.content for each in answers]
        assert [each.headers[REPLAYED] for each in again] == ["true"] * 5
    assert not any(REPLAYED in answer.headers for answer in answers)


def test_an_approval_that_fails_affects_no_other(
    moment: ConcurrentApprovals, client: TestClient, customer: Customer
) -> None:
    ids = make_exports(customer, 4)
    Call("POST", f"{EXPORTS}/{ids[1]}/dismiss", tuple(customer.bearer.items())).send(client)

    answers = moment.send(*[approval(customer, each, moment.target_id, f"k-{each}") for each in ids])

    assert [answer.status_code for answer in answers] == [202, 409, 202, 202]
    assert_is_error(answers[1], 409, "CONFLICT")
    assert {row[0] for row in rows("SELECT key FROM idempotency_keys")} == {f"k-{each}" for each in ids if each != ids[1]}


def test_a_batch_with_a_failure_is_rolled_back_before_each_approval_is_repeated_alone(
    moment: ConcurrentApprovals, client: TestClient, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_exports(customer, 4)
    Call("POST", f"{EXPORTS}/{ids[1]}/dismiss", tuple(customer.bearer.items())).send(client)
    approve, seen = ExportOperations.approve, dict[str, set[str]]()
    # Prevents other approvals while the first one reads the database.
    one_at_a_time = threading.Lock()

    def looking(operations: ExportOperations, export_id: str, *rest: Any) -> Any:
        with one_at_a_time:
            if export_id in ids and not seen:
                seen["keys"] = {row[0] for row in rows("SELECT key FROM idempotency_keys")} - {f"k-{export_id}"}
                seen["statuses"] = {row[0] for row in rows("SELECT status FROM exports WHERE id <> ?", (moment._first,))}
                seen["approvals"] = {row[0] for row in rows("SELECT subject_id FROM audit_entries WHERE action = 'approve'")}
        return approve(operations, export_id, *rest)

    monkeypatch.setattr(ExportOperations, "approve", looking)
    moment.send(*[approval(customer, each, moment.target_id, f"k-{each}") for each in ids])

    # The batch was attempted and failed, because the second export cannot be approved.
    assert moment.batches == [4]
    assert seen == {"keys": set(), "statuses": {"prepared", "dismissed"}, "approvals": {moment._first}}


def test_a_secret_in_a_request_of_a_batch_is_in_no_log_row_or_response_to_others(
    moment: ConcurrentApprovals, customer: Customer, log_lines: LogLines
) -> None:
    one, two, three = make_exports(customer, 3)
    carriers = [("X-Scanner-Secret", CANARY), ("Cookie", f"session={CANARY}"), ("X-Api-Key", CANARY), ("Referer", CANARY)]
    served = replace(approval(customer, one, moment.target_id, "a").plus(*carriers), query=f"token={CANARY}")
    refused = approval(customer, two, moment.target_id, "b", ticket_digest=CANARY)

    answers = moment.send(served, refused, approval(customer, three, moment.target_id, "c"))

    assert [answer.status_code for answer in answers] == [202, 409, 202]
    assert moment.batches == [3]
    assert CANARY not in "".join(f"{answer.text} {sorted(answer.headers.items())}" for answer in answers)
    assert CANARY not in log_lines.text
    assert traces(columns(), [CANARY]) == []


def test_a_repeated_key_is_carried_out_once_and_replayed(moment: ConcurrentApprovals, customer: Customer) -> None:
    one, two = make_exports(customer, 2)
    repeated = approval(customer, one, moment.target_id, "same")

    answers = moment.send(repeated, approval(customer, two, moment.target_id, "other"), repeated)

    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert answers[0].content == answers[2].content
    assert sorted(answer.headers.get(REPLAYED, "") for answer in answers) == ["", "", "true"]
    assert len(rows("SELECT 1 FROM audit_entries WHERE action = 'approve' AND subject_id = ?", (one,))) == 1


def test_one_key_for_two_exports_is_a_conflict(moment: ConcurrentApprovals, client: TestClient, customer: Customer) -> None:
    one, two, three = make_exports(customer, 3)

    answers = moment.send(
        *[approval(customer, each, moment.target_id, key) for each, key in ((one, "same"), (two, "same"), (three, "other"))]
    )

    # They are sent by threads, so either of the first two may come first in the batch.
    statuses = [answer.status_code for answer in answers]
    assert (sorted(statuses[:2]), statuses[2]) == ([202, 409], 202)
    refused = statuses.index(409)
    assert_is_error(answers[refused], 409, "IDEMPOTENCY_CONFLICT")
    assert record(client, customer, (one, two)[refused])["status"] == "prepared"
    assert moment.batches == [2]


def test_a_key_that_was_used_before_is_replayed_or_a_conflict(
    moment: ConcurrentApprovals, client: TestClient, customer: Customer
) -> None:
    before, one, two = make_exports(customer, 3)
    used = approval(customer, before, moment.target_id, "used")
    first = used.send(client)

    answers = moment.send(
        approval(customer, one, moment.target_id, "new"), used, approval(customer, two, moment.target_id, "used")
    )

    assert [answer.status_code for answer in answers] == [202, 202, 409]
    assert answers[1].content == first.content
    assert answers[1].headers[REPLAYED] == "true"
    assert_is_error(answers[2], 409, "IDEMPOTENCY_CONFLICT")
    assert record(client, customer, two)["status"] == "prepared"


def test_two_requests_for_one_export_both_succeed(moment: ConcurrentApprovals, customer: Customer) -> None:
    one, two = make_exports(customer, 2)

    answers = moment.send(
        *[approval(customer, each, moment.target_id, key) for each, key in ((one, "a"), (two, "b"), (one, "c"))]
    )

    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert answers[0].json["approved_at"] == answers[2].json["approved_at"]
    assert len(rows("SELECT 1 FROM audit_entries WHERE action = 'approve' AND subject_id = ?", (one,))) == 1


def test_each_approval_of_a_batch_is_checked_against_the_digest_of_its_own_ticket(
    moment: ConcurrentApprovals, client: TestClient, customer: Customer
) -> None:
    one, two = make_exports(customer, 2)
    digest = record(client, customer, one)["ticket_digest"]

    answers = moment.send(
        approval(customer, one, moment.target_id, "a", ticket_digest=digest),
        approval(customer, two, moment.target_id, "b", ticket_digest=f"sha256:{'0' * 64}"),
    )

    assert [answer.status_code for answer in answers] == [202, 409]
    assert record(client, customer, two)["status"] == "prepared"


def test_another_customers_export_is_not_found(moment: ConcurrentApprovals, customer: Customer) -> None:
    [own], [others] = make_exports(customer, 1), make_exports(make_customer(), 1)

    answers = moment.send(*[approval(customer, each, moment.target_id, None) for each in (own, others)])

    assert [answer.status_code for answer in answers] == [202, 404]
