"""Users of an OpenID Connect issuer: linked once, created with a role, found by issuer and subject."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from schemas.base.errors import Forbidden
from schemas.base.principal import Role
from storage.accounts import accounts, identities
from storage.accounts.identities import Identity
from storage.db.engine import connection, rows
from tests.support.factories import NOW, Customer, make_customer


def of(email: str | None, subject: str = "1", role: Role | None = None, issuer: str = "https://a.example") -> Identity:
    return Identity(issuer, subject, email, role)


def test_a_person_is_linked_by_address_once_and_found_by_subject_afterwards(customer: Customer) -> None:
    user = identities.sign_in(of(customer.email), customer.account_id, NOW)
    assert user.id == customer.user_id
    assert identities.sign_in(of("another@example.com"), customer.account_id, NOW) == user
    assert identities.sign_in(of(None), customer.account_id, NOW) == user
    assert rows("SELECT COUNT(*) FROM user_identities") == [(1,)]


def test_the_same_subject_of_another_issuer_is_another_person(customer: Customer) -> None:
    identities.sign_in(of(customer.email), customer.account_id, NOW)
    other = identities.sign_in(of("b@example.com", role=Role.VIEWER, issuer="https://b.example"), customer.account_id, NOW)
    assert (other.id != customer.user_id, other.role) == (True, Role.VIEWER)


@pytest.mark.parametrize("email", [None, "", "no address", "a@b@c"])
def test_without_a_valid_email_address_no_user_is_created(email: str | None, customer: Customer) -> None:
    with pytest.raises(Forbidden):
        identities.sign_in(of(email, role=Role.OWNER), customer.account_id, NOW)
    assert len(accounts.list_users()) == 1


def test_a_user_of_another_account_is_not_taken_over(customer: Customer) -> None:
    with pytest.raises(Forbidden):
        identities.sign_in(of(make_customer().email, role=Role.OWNER), customer.account_id, NOW)
    assert rows("SELECT COUNT(*) FROM user_identities") == [(0,)]


def test_a_linked_user_of_another_account_gets_no_role(customer: Customer) -> None:
    """As after a change of OIDC_ACCOUNT_ID."""
    identities.sign_in(of(customer.email, role=Role.VIEWER), customer.account_id, NOW)
    with pytest.raises(Forbidden):
        identities.sign_in(of(customer.email, role=Role.OWNER), make_customer().account_id, NOW)
    assert accounts.user_by_email(customer.email).role is Role.VIEWER


def test_first_sign_ins_at_once_make_one_user(customer: Customer) -> None:
    def run(_number: int) -> int:
        with connection():
            return identities.sign_in(of("new@example.com", role=Role.VIEWER), customer.account_id, NOW).id

    with ThreadPoolExecutor(4) as pool:
        found = {*pool.map(run, range(4))}
    assert found == {accounts.user_by_email("new@example.com").id}
    assert len(accounts.list_users()) == 2
