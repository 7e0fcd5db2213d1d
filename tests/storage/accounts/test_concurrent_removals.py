"""A change of a user that waits for the removal of this user finds no user; nothing of the user is stored again."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from schemas.base.errors import Forbidden, NotFound
from schemas.base.principal import Role, TokenKind
from storage.accounts import accounts, identities, sign_in_links, tokens, users
from storage.accounts.identities import Identity
from storage.accounts.sign_in_links import NewLink, SignInLinkJob
from storage.db.engine import connection, rows, transaction
from tests.support.database.databases import on_postgresql
from tests.support.factories import NOW, Customer
from tests.support.processes.workers import wait_until

pytestmark = on_postgresql

ISSUER = "https://login.example"


def claimed() -> tuple[NewLink, SignInLinkJob]:
    link = sign_in_links.request(lambda _id, _token: b"mail", NOW)
    due = sign_in_links.claim(NOW, 60)
    assert due is not None
    return link, due


def link_of(customer: Customer) -> NewLink:
    link, due = claimed()
    assert sign_in_links.assign_recipient(due, customer.email, NOW) == customer.email
    return link


def using(customer: Customer) -> Callable[[], Any]:
    link = link_of(customer)
    return lambda: sign_in_links.consume(link.token, link.browser, NOW)


def assigning(customer: Customer) -> Callable[[], Any]:
    _, due = claimed()
    return lambda: sign_in_links.assign_recipient(due, customer.email, NOW)


def signing_in(customer: Customer, *, is_linked: bool = False, role: Role | None = None) -> Callable[[], Any]:
    identity = Identity(ISSUER, "1", customer.email, role)
    if is_linked:
        identities.sign_in(identity, customer.account_id, NOW)
    return lambda: identities.sign_in(identity, customer.account_id, NOW)


def enabling(customer: Customer) -> Callable[[], Any]:
    users.disable(customer.email, NOW, "operator")
    return lambda: users.enable(customer.email, NOW, "operator")


#: By name, a function that returns the change, and the error of the change; without an error, it returns None.
CHANGES: dict[str, tuple[Callable[[Customer], Callable[[], Any]], type[Exception] | None]] = {
    "enabling": (enabling, NotFound),
    "disabling": (lambda c: lambda: users.disable(c.email, NOW, "operator"), NotFound),
    "a role": (lambda c: lambda: users.set_role(c.email, Role.VIEWER, NOW, "operator"), NotFound),
    "a token": (lambda c: lambda: tokens.create(c.email, TokenKind.API, NOW, name="the laptop of Ada"), NotFound),
    "a grant": (lambda c: lambda: accounts.grant_project(c.email, c.project_id, NOW, Role.VIEWER), NotFound),
    "the first sign-in": (signing_in, Forbidden),
    "a sign-in": (lambda c: signing_in(c, is_linked=True), Forbidden),
    "a link": (using, Forbidden),
    "the email with a link": (assigning, None),
}


def changed_during_removal(customer: Customer, change: Callable[[], Any]) -> Any:
    """Begin a change while a transaction that removes the user is open; return the result of the change."""

    def connected() -> Any:
        with connection():
            return change()

    with ThreadPoolExecutor(1) as threads:
        with transaction():
            users.remove(customer.email, NOW, "operator")
            changing = threads.submit(connected)
            wait_until(lambda: rows("SELECT 1 FROM pg_locks WHERE NOT granted"))
        return changing.result(20)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_during_the_removal_of_its_user_is_refused(name: str, customer: Customer) -> None:
    prepare, error = CHANGES[name]
    change = prepare(customer)
    if error is None:
        assert changed_during_removal(customer, change) is None
    else:
        with pytest.raises(error):
            changed_during_removal(customer, change)
    assert rows("SELECT COUNT(*) FROM users WHERE removed_at IS NOT NULL AND disabled_at IS NOT NULL") == [(1,)]
    assert rows("SELECT COUNT(*) FROM tokens WHERE revoked_at IS NULL OR name <> ''") == [(0,)]
    for table in ("grants", "user_identities", "sign_in_links"):
        assert rows(f"SELECT COUNT(*) FROM {table}") == [(0,)], table  # noqa: S608 - our own names


def test_a_person_who_signs_in_during_the_removal_becomes_a_new_user(customer: Customer) -> None:
    new = changed_during_removal(customer, signing_in(customer, is_linked=True, role=Role.VIEWER))
    assert (new.id != customer.user_id, new.email, new.state) == (True, customer.email, "active")
