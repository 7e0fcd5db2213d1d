"""Compliance requests: each is stored once, each shop has one worker at a time, and only the holder of the lease writes."""

import hashlib
import json
import threading
from datetime import timedelta
from typing import Any

import pytest

from schemas.base.errors import NoEncryptionKey, NotFound, ValidationFailed, WrongEncryptionKey
from schemas.compliance.requests import ComplianceResult, ComplianceStatus, ComplianceWebhook, Subject, Topic
from storage.compliance import requests as compliance_requests
from storage.compliance.requests import LEASE_S, ComplianceLease, LeaseLost
from storage.db.engine import connection, execute, rows, transaction
from storage.secrets.vault import Vault
from tests.support.factories import NOW
from tests.support.http.storefront import ADA, BOB, SHOP, order, redact_body, stored, traces_of

VAULT = Vault([b"A" * 32])
LAPSED = NOW + timedelta(seconds=LEASE_S)


def receive(topic: Topic = Topic.CUSTOMER_REDACT, person: Any = ADA, shop: str = SHOP, vault: Vault = VAULT) -> str | None:
    return compliance_requests.receive(*order(topic, person, shop), vault, NOW, "storefront")


def claimed() -> ComplianceLease:
    held = compliance_requests.claim_next(NOW)
    assert held is not None
    return held


def test_an_order_is_stored_encrypted_and_due_in_thirty_days(database: str) -> None:
    request_id = receive()
    assert request_id is not None
    line = compliance_requests.get(request_id)
    assert (line.status, line.due_at - line.received_at) == (ComplianceStatus.RECEIVED, timedelta(days=30))
    assert line.has_report is False
    assert traces_of(ADA, stored()) == []
    held = claimed()
    assert compliance_requests.subject_of(held, VAULT) == ADA.subject
    with pytest.raises(WrongEncryptionKey):
        compliance_requests.subject_of(held, Vault([b"B" * 32]))


def test_the_same_order_is_stored_once(database: str) -> None:
    assert receive() is not None
    assert receive() is None
    assert receive(person=BOB) is not None
    assert receive(shop="sun.shops.example") is not None
    assert receive(Topic.DATA_REQUEST) is not None
    assert len(compliance_requests.list_all()) == 4


def test_of_two_simultaneous_requests_with_one_body_and_two_topics_one_is_stored(database: str) -> None:
    reached, stored_ids, refused = threading.Barrier(2), [], []

    def arrive(topic: Topic) -> None:
        with connection():
            reached.wait()
            asked = ComplianceWebhook(topic, SHOP, ADA.subject)
            try:
                stored_ids.append(compliance_requests.receive(asked, b"signature", VAULT, NOW, "storefront"))
            except ValidationFailed as failed:
                refused.append(failed.problems[0])

    threads = [threading.Thread(target=arrive, args=(topic,)) for topic in (Topic.DATA_REQUEST, Topic.CUSTOMER_REDACT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.id for line in compliance_requests.list_all()] == stored_ids
    assert [(each.path, each.code) for each in refused] == [("/X-Platform-Topic", "body_of_other_topic")]


def test_the_digest_of_a_body_cannot_be_computed_from_the_body(database: str) -> None:
    body, (_, signature) = json.dumps(redact_body(ADA, SHOP)).encode(), order(Topic.CUSTOMER_REDACT, ADA)
    receive()
    [(digest,)] = rows("SELECT body_sha256 FROM compliance_requests")
    assert digest not in {hashlib.sha256(body).hexdigest(), signature.hex()}


def test_an_order_that_cannot_be_encrypted_is_not_stored(database: str) -> None:
    with pytest.raises(NoEncryptionKey):
        receive(vault=Vault([]))
    assert compliance_requests.list_all() == []
    assert receive(Topic.SHOP_REDACT, None, vault=Vault([])) is not None


def test_a_pseudonym_depends_on_the_person_the_shop_and_the_key(database: str) -> None:
    ids = [receive(), receive(Topic.DATA_REQUEST), receive(shop="sun.shops.example"), receive(person=BOB)]
    first, same, elsewhere, other = (compliance_requests.get(str(each)).subject_pseudonym for each in ids)
    assert first == same
    assert len({first, elsewhere, other}) == 3
    assert VAULT.pseudonym("a") == Vault([b"A" * 32, b"B" * 32]).pseudonym("a") != Vault([b"B" * 32]).pseudonym("a")


def test_a_request_about_orders_alone_has_no_pseudonym(database: str) -> None:
    request_id = compliance_requests.receive(
        ComplianceWebhook(Topic.CUSTOMER_REDACT, SHOP, Subject(order_ids=("7",))), b"signature", VAULT, NOW, "s"
    )
    assert compliance_requests.get(str(request_id)).subject_pseudonym is None


def test_a_claimed_request_cannot_be_claimed_again_until_its_lease_expires(database: str) -> None:
    receive()
    held = claimed()
    assert compliance_requests.claim_next(LAPSED - timedelta(milliseconds=1)) is None
    successor = compliance_requests.claim_next(LAPSED)
    assert successor is not None
    assert (successor.id, successor.attempt) == (held.id, 2)


def test_a_renewed_lease_is_not_taken_over(database: str) -> None:
    receive()
    held, later = claimed(), NOW + timedelta(seconds=LEASE_S - 1)
    with transaction():
        compliance_requests.renew(held, {"exports": 2, "findings": 0}, later)
    assert compliance_requests.claim_next(LAPSED) is None
    assert dict(compliance_requests.get(held.id).counts) == {"exports": 2}
    successor = compliance_requests.claim_next(later + timedelta(seconds=LEASE_S))
    assert successor is not None
    assert dict(successor.counts) == {"exports": 2}


@pytest.mark.parametrize("claims_another", [True, False])
def test_the_holder_of_an_expired_lease_writes_nothing_once_a_request_of_the_shop_is_claimed(
    database: str, claims_another: bool
) -> None:
    receive()
    held = claimed()
    if claims_another:
        # It has waited longer than the request whose lease lapsed, so it is claimed first.
        receive(Topic.DATA_REQUEST, BOB)
    successor = compliance_requests.claim_next(LAPSED)
    assert successor is not None
    assert (successor.id != held.id) is claims_another
    before = stored()
    with pytest.raises(LeaseLost), transaction():
        compliance_requests.renew(held, {"exports": 1}, LAPSED)
    with pytest.raises(LeaseLost), transaction():
        compliance_requests.finish(held, ComplianceResult.REDACTED, {}, None, LAPSED, "worker:late")
    assert compliance_requests.postpone(held, "X", LAPSED) is None
    assert stored() == before


def test_an_expired_lease_stays_invalid_after_the_other_request_of_the_shop_is_done(database: str) -> None:
    receive(Topic.DATA_REQUEST)
    held = claimed()
    receive(Topic.CUSTOMER_REDACT, BOB)
    other = compliance_requests.claim_next(LAPSED)
    assert other is not None
    assert other.id != held.id
    with transaction():
        compliance_requests.finish(other, ComplianceResult.REDACTED, {}, None, LAPSED, "worker:2")
    # The report may contain data that the other request has erased.
    with pytest.raises(LeaseLost), transaction():
        compliance_requests.finish(held, ComplianceResult.REPORTED, {}, b"report", LAPSED, "worker:late")


def test_an_expired_lease_that_was_not_taken_over_can_be_renewed_and_finished(database: str) -> None:
    receive()
    receive(person=BOB, shop="sun.shops.example")
    held = claimed()
    elsewhere = compliance_requests.claim_next(LAPSED - timedelta(seconds=1))
    assert elsewhere is not None
    with transaction():
        compliance_requests.renew(held, {"exports": 1}, LAPSED)
    later = LAPSED + timedelta(seconds=2 * LEASE_S)
    with transaction():
        compliance_requests.finish(held, ComplianceResult.REDACTED, {"exports": 1}, None, later, "worker:slow")
    line = compliance_requests.get(held.id)
    assert (line.status, dict(line.counts)) == ("done", {"exports": 1})


def test_a_finished_request_has_no_subject_and_no_lease(database: str) -> None:
    receive(Topic.DATA_REQUEST)
    held = claimed()
    sealed = compliance_requests.seal_report(held.id, {"records": [ADA.email]}, VAULT)
    with transaction():
        compliance_requests.finish(held, ComplianceResult.REPORTED, {"exports": 1}, sealed, NOW, "worker:1")
    line = compliance_requests.get(held.id)
    assert (line.status, line.result, line.has_report, line.next_run_at) == ("done", ComplianceResult.REPORTED, True, None)
    assert rows("SELECT subject_sealed, lease FROM compliance_requests") == [(None, None)]
    assert compliance_requests.report_of(held.id, VAULT) == {"records": [ADA.email]}
    assert traces_of(ADA, stored()) == []
    assert compliance_requests.claim_next(NOW + timedelta(days=99)) is None


def test_a_report_encrypted_for_one_request_cannot_be_decrypted_in_another(database: str) -> None:
    first, second = receive(Topic.DATA_REQUEST), receive(Topic.DATA_REQUEST, BOB)
    compliance_requests.replace_report(str(first), compliance_requests.seal_report(str(second), {}, VAULT), NOW, str(second))
    with pytest.raises(WrongEncryptionKey):
        compliance_requests.report_of(str(first), VAULT)


def test_requests_that_are_due_first_are_listed_first(database: str) -> None:
    ids = [str(receive(person=person, shop=shop)) for person in (ADA, BOB) for shop in (SHOP, "sun.shops.example")]
    execute("UPDATE compliance_requests SET due_at = due_at - 1 WHERE id = ?", (ids[3],))
    with transaction():
        compliance_requests.finish(claimed(), ComplianceResult.REDACTED, {}, None, NOW, "w")
    done = [line.id for line in compliance_requests.list_all() if line.status == "done"]
    assert [line.id for line in compliance_requests.list_all()] == [
        ids[3],
        *sorted(set(ids[:3]) - set(done), reverse=True),
        *done,
    ]


def test_an_unknown_compliance_request_is_not_found(database: str) -> None:
    for unknown in ("cpl_1", "cpl_01ARZ3NDEKTSV4RRFFQ69G5FAV", "x", "\0"):
        with pytest.raises(NotFound, match="compliance list"):
            compliance_requests.get(unknown)
        assert compliance_requests.report_of("cpl_01ARZ3NDEKTSV4RRFFQ69G5FAV", VAULT) is None


def test_workers_that_claim_at_once_never_hold_one_shop_twice(database: str) -> None:
    for number in range(6):
        for person in (ADA, BOB):
            receive(person=person, shop=f"shop{number}.example")
    taken: list[ComplianceLease] = []

    def claim() -> None:
        with connection():
            for _ in range(6):
                held = compliance_requests.claim_next(NOW)
                if held is not None:
                    taken.append(held)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shops = [held.shop_domain for held in taken]
    assert len(shops) == len(set(shops)) > 0
    assert rows("SELECT COUNT(*) FROM compliance_requests WHERE lease IS NOT NULL") == [(len(shops),)]
