"""A user who is signed in at the console; the customer's account is the first one, and so the operator's."""

from collections.abc import Callable
from typing import Any

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.exports.record import PreparationForm
from storage.exports import transitions
from tests.support.factories import Customer
from tests.support.http.console_user import ConsoleBrowser, make_console_token


@pytest.fixture
def person(client: TestClient, customer: Customer) -> ConsoleBrowser:
    """The customer's user, signed in."""
    made = ConsoleBrowser(client)
    assert made.sign_in(make_console_token(customer)).status_code == 303
    return made


@pytest.fixture
def prepare(customer: Customer) -> Callable[..., str]:
    """A function that stores a prepared export with a hand-made ticket; returns its ID."""

    def made(title: str = "The total is wrong", /, of: Customer = customer, **ticket: Any) -> str:
        preparation = PreparationForm().read({"ticket": {"title": title, **ticket}})
        return transitions.prepare_by_hand(preparation, of.account_id, utc_now(), "user:1").id

    return made
