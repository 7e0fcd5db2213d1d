"""`GET /api/ticket-exports/{id}/receipt`: only the account of a delivery gets its receipt."""

from typing import Any

import pytest
from falcon.testing import Result, TestClient

from bin.commands.exports.receipt import _forms as forms
from schemas.base.principal import Ability, TokenKind
from schemas.exports.receipt import verify_receipt
from storage.accounts import audit_chain, tokens
from storage.db.engine import transaction
from storage.exports import transitions
from tests.support.database.query_plans import statements
from tests.support.factories import NOW, Customer, make_approved, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS, Call, assert_has_standard_headers, assert_is_error
from tests.support.worker.receipts import deliver


def asked(client: TestClient, export_id: str, bearer: dict[str, str], method: str = "GET") -> Result:
    return Call(method, f"{EXPORTS}/{export_id}/receipt", tuple(bearer.items())).send(client)


def test_the_receipt_of_a_delivery_is_valid(client: TestClient, customer: Customer) -> None:
    export_id = deliver(customer)
    audit_chain.extend_to_end()
    with statements() as ran:
        answer = asked(client, export_id, customer.bearer)
    assert answer.status_code == 200
    assert_has_standard_headers(answer)
    # The token, the export, its entries, its body, its attempts.
    assert len(ran) <= 6, ran
    receipt: Any = answer.json
    assert verify_receipt(receipt, forms).problems == []
    assert "host-of-ours" not in answer.text
    head = asked(client, export_id, customer.bearer, "HEAD")
    assert (head.status_code, head.text) == (200, "")


def test_a_redacted_delivery_has_a_receipt_too(client: TestClient, customer: Customer) -> None:
    export_id = deliver(customer)
    with transaction():
        transitions.redact([export_id], NOW, "cpl_1")
    audit_chain.extend_to_end()
    answer = asked(client, export_id, customer.bearer)
    assert (answer.status_code, answer.json["body"], answer.json["target_id"]) == (200, None, None)


def test_entries_that_are_not_chained_yet_are_waited_for(client: TestClient, customer: Customer) -> None:
    answer = asked(client, deliver(customer), customer.bearer)
    assert_is_error(answer, 409, "CONFLICT")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize("is_approved", [True, False])
def test_an_export_that_is_not_delivered_has_no_receipt(client: TestClient, customer: Customer, is_approved: bool) -> None:
    export_id = make_approved(customer, make_target(customer).id) if is_approved else make_exports(customer, 1)[0]
    audit_chain.extend_to_end()
    answer = asked(client, export_id, customer.bearer)
    assert_is_error(answer, 409, "CONFLICT")
    assert "retry-after" not in answer.headers


def test_another_accounts_receipt_is_not_found(client: TestClient, customer: Customer) -> None:
    export_id = deliver(customer)
    audit_chain.extend_to_end()
    assert_is_error(asked(client, export_id, make_customer().bearer), 404, "NOT_FOUND")
    assert_is_error(asked(client, "exp_01AAAAAAAAAAAAAAAAAAAAAAAA", customer.bearer), 404, "NOT_FOUND")
    token = tokens.create(customer.email, TokenKind.API, NOW, (Ability.PREPARE_EXPORTS,))[1]
    assert_is_error(asked(client, export_id, {"Authorization": f"Bearer {token}"}), 403, "FORBIDDEN")
