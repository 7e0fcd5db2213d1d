"""A person who is signed in at the console of the customer's account, which is the first one and the operator's."""

import pytest
from falcon.testing import TestClient

from tests.support.factories import Customer
from tests.support.http.console_user import ConsoleBrowser, make_console_token


@pytest.fixture
def person(client: TestClient, customer: Customer) -> ConsoleBrowser:
    """The customer's user, signed in."""
    made = ConsoleBrowser(client)
    assert made.sign_in(make_console_token(customer)).status_code == 303
    return made
