"""The attempts of an export are read newest first, and only by its account."""

from datetime import timedelta
from typing import Any, Final

import pytest

from schemas.api.deliveries import AttemptResponse, dump_details
from schemas.api.response_fields import dump
from schemas.base.errors import ExportNotFound, ValidationFailed
from schemas.exports.attempt_record import Attempt, AttemptDetails
from schemas.exports.delivery import Timings
from schemas.exports.state_machine import Transition
from storage.db.engine import transaction
from storage.exports import attempts, claims_sql, transitions
from tests.support.factories import (
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    make_approved,
    make_customer,
    make_exports,
    make_target,
)

LEASE_S: Final = 6.0


def tried(customer: Customer, count: int) -> str:
    """Return an export with `count` attempts, one each minute."""
    export_id = make_approved(customer, make_target(customer).id)
    for number in range(count):
        at = NOW + timedelta(minutes=number)
        [claim] = claim_due(1, at, LEASE_S, "worker")
        again = {"next_attempt_at": at + timedelta(seconds=30), "error_code": "http_503", "retry_after_s": 30}
        assert claims_sql.record_attempts([completed_attempt(claim, Transition.RESCHEDULE, at, **again)], at, "worker")
    return export_id


def newest(customer: Customer, export_id: str, **asked: Any) -> list[Attempt]:
    return attempts.list_page(export_id, customer.account_id, **{"limit": 10, **asked})


def test_an_attempt_is_read_as_it_was_recorded(customer: Customer) -> None:
    [attempt] = newest(customer, tried(customer, 1))
    timings = Timings(dns_ms=1, connect_ms=2, tls_ms=3, first_byte_ms=4, total_ms=5)
    assert attempt == Attempt(attempt.id, 1, NOW, "retryable", 503, "http_503", 30, timings)
    assert attempt.id.startswith("att_")


def test_the_operator_sees_the_url_and_the_response_of_an_attempt(customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    [claim] = claim_due(1, NOW, LEASE_S, "worker")
    made = completed_attempt(claim)
    made = made._replace(outcome=made.outcome._replace(kept="No such project."))
    claims_sql.record_attempts([made], NOW, "worker:host:1")
    [details] = attempts.list_details(export_id)
    [seen] = newest(customer, export_id)
    assert details == AttemptDetails(seen, "192.0.2.1", "ab" * 16, "worker:host:1", "No such project.")
    own = {"address", "nonce", "worker", "answer"}
    assert dump_details(details).keys() - dump(AttemptResponse, seen).keys() == own
    with pytest.raises(ExportNotFound):
        attempts.list_details("exp_01AAAAAAAAAAAAAAAAAAAAAAAA")


def test_the_responses_of_a_redacted_export_are_erased(customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    [claim] = claim_due(1, NOW, LEASE_S, "worker")
    made = completed_attempt(claim)
    claims_sql.record_attempts([made._replace(outcome=made.outcome._replace(kept="Hello, Ada."))], NOW, "worker")
    with transaction():
        transitions.redact([export_id], NOW, "worker")
    assert [each.response_excerpt for each in attempts.list_details(export_id)] == [None]


def test_attempts_are_listed_newest_first_in_pages(customer: Customer) -> None:
    export_id = tried(customer, 5)
    first = newest(customer, export_id, limit=2)
    rest = newest(customer, export_id, before=first[-1].id)
    assert [attempt.number for attempt in first + rest] == [5, 4, 3, 2, 1]


def test_an_export_that_was_never_sent_has_no_attempts(customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    assert newest(customer, export_id) == []


@pytest.mark.parametrize("export_id", ["exp_01AAAAAAAAAAAAAAAAAAAAAAAA", "exp_\x00", "", "att_01AAAAAAAAAAAAAAAAAAAAAAAA"])
def test_an_unknown_export_has_no_attempts(customer: Customer, export_id: str) -> None:
    with pytest.raises(ExportNotFound):
        newest(customer, export_id)


def test_another_accounts_attempts_are_not_found(customer: Customer) -> None:
    with pytest.raises(ExportNotFound):
        newest(make_customer(), tried(customer, 1))


def test_a_page_cannot_begin_after_an_attempt_of_another_export(customer: Customer) -> None:
    [other] = newest(customer, tried(customer, 1))
    for before in (other.id, "att_01AAAAAAAAAAAAAAAAAAAAAAAA"):
        with pytest.raises(ValidationFailed) as refused:
            newest(customer, make_exports(customer, 1)[0], before=before)
        assert [(problem.path, problem.code) for problem in refused.value.problems] == [("/cursor", "invalid_cursor")]


def test_an_operator_reads_attempts_a_page_at_a_time(customer: Customer) -> None:
    export_id = tried(customer, 3)
    first = attempts.list_details(export_id, customer.account_id, 2)
    rest = attempts.list_details(export_id, customer.account_id, 2, first[-1].attempt.id)
    assert first + rest == attempts.list_details(export_id)
    with pytest.raises(ExportNotFound):
        attempts.list_details(export_id, make_customer().account_id, 2)
    with pytest.raises(ValidationFailed):
        attempts.list_details(make_exports(customer, 1)[0], customer.account_id, 2, first[0].attempt.id)
