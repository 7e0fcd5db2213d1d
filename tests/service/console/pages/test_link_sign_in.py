"""Signing in with a one-time link by email: requested by a browser, sent by a worker, used once in the same browser."""

import re
from collections.abc import Callable
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import TestClient
from freezegun import freeze_time

from runtime.clock import utc_now
from service.app import create_app
from service.http.limits.rate_limits import LINKS_OF_NETWORK
from storage.accounts import accounts, users
from storage.accounts.sign_in_links import LASTS_FOR, MAX_OF_USER
from storage.db.engine import connection, database, execute, release, rows
from storage.secrets.vault import Vault
from tests.service.conftest import LogLines
from tests.support.factories import NOW, Customer, make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser
from tests.support.http.raw_http import everything_stored
from worker.background.alert_channels import ChannelResponse
from worker.background.sign_in_links import SignInLinkTask

MAIL: Final = {
    "CONSOLE_SIGN_IN_LINKS": "on",
    "SMTP_URL": "smtp://127.0.0.1",
    "ALERT_EMAIL_TO": "operator@agency.example",
    "ALERT_EMAIL_FROM": "riskrelay@agency.example",
}


class MailWorker:
    """A worker that appends mails to a list; if it `is_broken`, sending fails."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[EmailMessage] = []
        self.is_broken = False
        vault = Vault(make_settings(folder).encryption_keys)
        page = "http://127.0.0.1:8000/console/sign-in/link"
        self.task = SignInLinkTask(vault, self._send, MAIL["ALERT_EMAIL_FROM"], page, utc_now)

    def tokens(self) -> list[str]:
        """Send the mails that are due; return the secrets in their links."""
        self.sent.clear()
        release()
        while self.task.run_once():
            pass
        return [re.findall(r"/console/sign-in/link\?token=(\S+)\n", mail.get_content())[0] for mail in self.sent]

    def _send(self, message: EmailMessage) -> ChannelResponse:
        assert database.is_closed()
        if not self.is_broken:
            self.sent.append(message)
        return ChannelResponse(is_sent=not self.is_broken, text="")


class AddressClient(TestClient):
    """A client whose requests come from `address`."""

    address = "203.0.113.9"

    def simulate_request(self, *args: Any, **options: Any) -> Any:
        return super().simulate_request(*args, remote_addr=self.address, **options)


class LinkBrowser(ConsoleBrowser):
    """A browser that requests links; its cookie of the sign-in is in `preferences`."""

    def ask(self, email: str) -> None:
        answer = self.post("/sign-in/link", email=email)
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in?done=link_requested")
        self.keep_cookies(answer)

    def use(self, token: str) -> int:
        return self.post("/sign-in/link/open", token=token).status_code


@pytest.fixture
def app_with(customer: Customer, tmp_path: Path) -> Callable[..., LinkBrowser]:
    def made(**changes: str) -> LinkBrowser:
        app = create_app(make_settings(tmp_path, {**MAIL, **changes}), FakeWakeUpQueue(), FakeResolver({}))
        return LinkBrowser(AddressClient(app))

    return made


@pytest.fixture
def person(app_with: Callable[..., LinkBrowser]) -> LinkBrowser:
    return app_with()


@pytest.fixture
def mail_worker(tmp_path: Path) -> MailWorker:
    return MailWorker(tmp_path)


def test_a_request_for_a_link_is_logged_as_no_rejection(
    person: LinkBrowser, customer: Customer, caplog: pytest.LogCaptureFixture
) -> None:
    person.ask(customer.email)
    assert "rejected" not in caplog.text
    person.use("guessed")
    assert "the console rejected a request" in caplog.text


def test_a_link_signs_in_once(person: LinkBrowser, mail_worker: MailWorker, customer: Customer) -> None:
    assert "Send a link" in person.get("/sign-in").text
    person.ask(customer.email)
    assert "If a user has this address" in person.get("/sign-in", "done=link_requested").text
    [token] = mail_worker.tokens()
    assert (mail_worker.sent[0]["To"], mail_worker.sent[0]["From"]) == (customer.email, MAIL["ALERT_EMAIL_FROM"])
    # Opening the link, as a mail scanner does, does not use it up.
    for _ in range(2):
        assert f'value="{token}"' in person.get("/sign-in/link", f"token={token}").text
    assert person.use(token) == 303
    assert "email link" in person.get("/sessions").text
    assert person.use(token) == 403
    assert rows("SELECT COUNT(*) FROM sign_in_links") == [(0,)]
    assert rows("SELECT issuer, user_id FROM user_identities") == [("email", customer.user_id)]
    assert mail_worker.tokens() == []


def test_a_link_works_only_in_the_browser_that_requested_it(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    person.ask(customer.email)
    [token] = mail_worker.tokens()
    thief = LinkBrowser(person.client)
    assert thief.use(token) == 403
    thief.ask("nobody@example.com")
    assert thief.use(token) == 403
    assert person.use(token) == 303


@pytest.mark.parametrize(("after", "status"), [(LASTS_FOR - timedelta(seconds=1), 303), (LASTS_FOR, 403)])
def test_a_link_expires_after_fifteen_minutes(
    after: timedelta, status: int, person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    with freeze_time(NOW) as clock:
        person.ask(customer.email)
        [token] = mail_worker.tokens()
        clock.tick(after)
        assert person.use(token) == status


def test_an_unknown_address_gets_the_same_response_and_no_email(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    for email in ("nobody@example.com", customer.email):
        person.ask(email)
    users.disable(customer.email, utc_now(), "operator")
    assert mail_worker.tokens() == []
    assert rows("SELECT COUNT(*) FROM sign_in_links") == [(0,)]
    person.post("/sign-in/link", email="no address")
    assert rows("SELECT COUNT(*) FROM sign_in_links") == [(0,)]


def test_links_are_limited_by_user_and_by_network_address(
    app_with: Callable[..., LinkBrowser], mail_worker: MailWorker, customer: Customer
) -> None:
    person = app_with(AUTH_FAILURES_PER_MINUTE="8")
    for _ in range(LINKS_OF_NETWORK + 2):
        person.ask(customer.email)
    assert len(mail_worker.tokens()) == LINKS_OF_NETWORK
    statuses = [person.post("/sign-in/link", email="nobody@example.com").status_code for _ in range(5)]
    assert (statuses[0], statuses[-1]) == (303, 429)


def test_link_requests_by_others_do_not_prevent_a_user_from_getting_a_link(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    client = AddressClient(person.client.app)
    stranger = LinkBrowser(client)
    # Requests from other subnets of one network, with the email address in other cases.
    for number in range(MAX_OF_USER):
        client.address = f"2001:db8:1:{number:x}::1"
        stranger.ask(customer.email if number % 2 else customer.email.upper())
    assert len(mail_worker.tokens()) == LINKS_OF_NETWORK
    person.ask(customer.email)
    [token] = mail_worker.tokens()
    assert person.use(token) == 303


def test_requests_from_many_networks_do_not_fill_a_mailbox(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    client = AddressClient(person.client.app)
    stranger = LinkBrowser(client)
    for number in range(MAX_OF_USER + 5):
        client.address = f"198.51.{number}.1"
        stranger.ask(customer.email)
    assert len(mail_worker.tokens()) == MAX_OF_USER


def test_a_request_beyond_the_limit_leaves_the_last_link_usable(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    for _ in range(LINKS_OF_NETWORK + 2):
        person.ask(customer.email)
    assert person.use(mail_worker.tokens()[-1]) == 303


def test_a_mail_that_was_not_sent_is_sent_later_and_not_too_late(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    with freeze_time(NOW) as clock:
        person.ask(customer.email)
        mail_worker.is_broken = True
        assert mail_worker.tokens() == []
        mail_worker.is_broken = False
        assert mail_worker.tokens() == []
        clock.tick(60)
        [token] = mail_worker.tokens()
        assert person.use(token) == 303
        person.ask(customer.email)
        clock.tick(LASTS_FOR)
        assert mail_worker.tokens() == []


def test_an_address_with_users_in_two_accounts_gets_no_mail(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer
) -> None:
    # From a version that did not compare addresses in lower case.
    other = make_customer()
    execute("UPDATE users SET email = ? WHERE id = ?", (customer.email.capitalize(), other.user_id))
    for email in (customer.email, customer.email.capitalize()):
        person.ask(email)
        assert mail_worker.tokens() == []


def test_a_mail_that_no_key_can_decrypt_is_dropped(person: LinkBrowser, mail_worker: MailWorker, customer: Customer) -> None:
    person.ask(customer.email)
    execute("UPDATE sign_in_links SET mail_sealed = ?", (b"\x01" + bytes(40),))
    assert mail_worker.tokens() == []
    assert rows("SELECT COUNT(*) FROM sign_in_links") == [(0,)]


def test_a_link_of_a_removed_user_is_refused(person: LinkBrowser, mail_worker: MailWorker, customer: Customer) -> None:
    person.ask(customer.email)
    [token] = mail_worker.tokens()
    with connection():
        users.remove(customer.email, utc_now(), "operator")
    assert person.use(token) == 403
    assert accounts.get_user(customer.user_id).state == "removed"


def test_without_the_setting_there_are_no_links(app_with: Callable[..., LinkBrowser]) -> None:
    person = app_with(CONSOLE_SIGN_IN_LINKS="off")
    assert "Send a link" not in person.get("/sign-in").text
    assert person.post("/sign-in/link", email="a@example.com").status_code == 404


def test_neither_a_link_nor_a_cookie_is_stored_or_logged(
    person: LinkBrowser, mail_worker: MailWorker, customer: Customer, log_lines: LogLines
) -> None:
    person.ask(customer.email)
    waiting = everything_stored()
    [token] = mail_worker.tokens()
    person.get("/sign-in/link", f"token={token}")
    cookie = person.preferences["riskrelay_sign_in"]
    assert person.use(token) == 303
    kept = f"{waiting} {everything_stored()} {log_lines.text}"
    assert [each for each in (token, cookie, person.cookie) if each in kept] == []
