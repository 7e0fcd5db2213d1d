"""Tickets to decide on."""

from collections.abc import Callable
from typing import Any

import pytest

from runtime.clock import utc_now
from schemas.exports.record import PreparationForm
from storage.exports import transitions
from tests.support.factories import Customer


@pytest.fixture
def prepare(customer: Customer) -> Callable[..., str]:
    """Stores a prepared export of the customer with a ticket that somebody wrote; returns its id."""

    def made(title: str = "The total is wrong", /, of: Customer = customer, **ticket: Any) -> str:
        preparation = PreparationForm().read({"ticket": {"title": title, **ticket}})
        return transitions.prepare_by_hand(preparation, of.account_id, utc_now(), "user:1").id

    return made
