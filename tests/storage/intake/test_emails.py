"""A message is accepted once per project and prepares one export, however often and however close together it is posted."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from schemas.base.errors import ValidationFailed
from schemas.exports.state_machine import ExportStatus
from schemas.intake.email import EmailAccepted, InboundEmail
from schemas.intake.email_forms import EmailForm
from storage.db.engine import close_database, connection, database, open_database, rows, transaction
from storage.db.models import InboundEmailRow
from storage.exports import queries
from storage.intake import emails
from tests.support.factories import NOW, Customer, make_customer, plain_email, postmark_email

COUNTS = (
    "SELECT (SELECT COUNT(*) FROM inbound_emails), (SELECT COUNT(*) FROM exports), "
    "(SELECT COUNT(*) FROM audit_entries WHERE action = 'prepare')"
)


def read(**changes: Any) -> InboundEmail:
    checked: InboundEmail = EmailForm().read(plain_email(**changes))
    return checked


def accept(customer: Customer, **changes: Any) -> EmailAccepted:
    return emails.accept(emails.prepare_email(read(**changes)), customer.project_id, NOW, "email")


def test_an_email_is_stored_and_prepares_one_export_that_names_it(customer: Customer) -> None:
    accepted = emails.accept(emails.prepare_email(EmailForm().read(postmark_email())), customer.project_id, NOW, "email")
    assert accepted.id.startswith("eml_")
    assert not accepted.is_duplicate
    [row] = list(InboundEmailRow.select())
    assert (row.id, row.project.id, row.sender) == (accepted.id, customer.project_id, "Jane Doe <jane@mail.example>")
    assert row.recipients == ["Inbox <inbox@service.example>"]
    assert row.subject == "The checkout is broken"
    assert row.text == "The button does nothing on https://shop.example/checkout."
    assert row.attachments == [{"name": "screen.png", "content_type": "image/png", "size_bytes": 8}]
    assert (row.sent_at, row.created_at) == (NOW, NOW)
    export = queries.get(row.export.id, customer.account_id)
    assert (export.status, export.source.type, export.source.id) == (ExportStatus.PREPARED, "inbound_email", accepted.id)
    assert export.ticket["title"] == "The checkout is broken"
    assert rows("SELECT actor, action FROM audit_entries WHERE subject_id = ?", (export.id,)) == [("email", "prepare")]


def test_a_repeated_email_gets_the_first_id_and_prepares_nothing(customer: Customer) -> None:
    first = accept(customer)
    again = emails.accept(
        emails.prepare_email(read(subject="Other words")), customer.project_id, NOW + timedelta(days=9), "email"
    )
    assert again == EmailAccepted(first.id, is_duplicate=True)
    assert rows("SELECT subject FROM inbound_emails") == [("The checkout is broken",)]
    assert rows("SELECT COUNT(*) FROM exports") == [(1,)]


def test_another_message_or_another_project_is_not_a_duplicate(customer: Customer) -> None:
    other = make_customer()
    accepted = [
        accept(customer),
        accept(customer, message_id="<2@mail.example>"),
        accept(other),
        accept(customer, to=f"inbox+p{make_customer().project_id}@service.example"),
    ]
    assert [each.is_duplicate for each in accepted] == [False] * 4
    assert len({each.id for each in accepted}) == 4
    assert rows("SELECT COUNT(DISTINCT project_id), COUNT(*) FROM inbound_emails") == [(3, 4)]


def test_a_plus_address_takes_precedence_over_the_default_project(customer: Customer) -> None:
    named = make_customer()
    accepted = accept(customer, to=["a@b.example", f"inbox+p{named.project_id}@service.example"])
    [(project_id, export_id)] = rows("SELECT project_id, export_id FROM inbound_emails WHERE id = ?", (accepted.id,))
    assert project_id == named.project_id
    assert queries.get(export_id).account_id == named.account_id


def test_an_email_with_hidden_recipients_belongs_to_the_default_project(customer: Customer) -> None:
    hidden = read(to="undisclosed-recipients:;")
    accepted = emails.accept(emails.prepare_email(hidden), customer.project_id, NOW, "email")
    [stored] = rows("SELECT project_id, recipients FROM inbound_emails WHERE id = ?", (accepted.id,))
    assert stored == (customer.project_id, "[]")
    with pytest.raises(ValidationFailed) as refused:
        emails.accept(emails.prepare_email(hidden), None, NOW, "email")
    assert [(each.path, each.code) for each in refused.value.problems] == [("/to", "no_project")]


@pytest.mark.parametrize(
    ("tag", "default", "code"),
    [
        ("", None, "no_project"),
        ("", 999_999, "unknown_project"),
        ("+p999999", None, "unknown_project"),
        ("+p999999", 1, "unknown_project"),  # the default project never replaces an unknown one
        ("+p0", 1, "unknown_project"),
        (f"+p{2**63 - 1}", 1, "unknown_project"),
        (f"+p{'9' * 60}", 1, "unknown_project"),
    ],
)
def test_an_email_for_no_project_is_refused_and_stores_nothing(
    tag: str, default: int | None, code: str, customer: Customer
) -> None:
    default_project_id = customer.project_id if default == 1 else default
    for body in (
        plain_email(to=f"inbox{tag}@service.example"),
        postmark_email(OriginalRecipient=f"inbox{tag}@service.example"),
    ):
        email: InboundEmail = EmailForm().read(body)
        with pytest.raises(ValidationFailed) as refused:
            emails.accept(emails.prepare_email(email), default_project_id, NOW, "email")
        assert [(each.path, each.code) for each in refused.value.problems] == [(email.recipients_path, code)]
        assert email.recipients_path == ("/to" if "to" in body else "/To")
    assert rows(COUNTS) == [(0, 0, 0)]


def test_every_text_of_an_email_is_stored_unchanged(customer: Customer) -> None:
    text = "é \U0001f600 \u202e \x07 '; DROP TABLE exports; -- \r\n\\u0000 %s ? {}"
    accept(customer, subject=text, text=text, attachments=[{"name": text, "content_type": text}])
    [row] = list(InboundEmailRow.select())
    assert (row.subject, row.text) == (text, text)
    assert row.attachments == [{"name": text, "content_type": text, "size_bytes": None}]


def test_concurrent_threads_store_one_message_once(customer: Customer) -> None:
    start = threading.Barrier(8)

    def race(_number: int) -> EmailAccepted:
        with connection():
            start.wait()
            return accept(customer)

    with ThreadPoolExecutor(8) as pool:
        accepted = list(pool.map(race, range(8)))
    assert len({each.id for each in accepted}) == 1
    assert sorted(each.is_duplicate for each in accepted) == [False] + [True] * 7
    assert rows(COUNTS) == [(1, 1, 1)]


@pytest.fixture
def postgres_customer(postgres_url: str) -> Iterator[Customer]:
    open_database(postgres_url)
    with connection():
        yield make_customer()
    close_database()


def until_somebody_waits(watcher: psycopg.Connection[Any]) -> None:
    waiting = b"SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + 10
    while watcher.execute(waiting).fetchone() != (1,):
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.005)


@pytest.mark.parametrize("first_one_stays", [True, False])
def test_a_thread_that_loses_the_race_rolls_its_export_back(
    first_one_stays: bool, postgres_url: str, postgres_customer: Customer
) -> None:
    """The first transaction has not committed its row: the second finds none, prepares an export, and waits to insert."""

    def second() -> EmailAccepted:
        # Inside another transaction, as with an idempotency key: the earlier work of this transaction must survive.
        with connection(), transaction():
            make_customer()
            return accept(postgres_customer)

    with psycopg.connect(postgres_url, autocommit=True) as watcher, ThreadPoolExecutor(1) as pool:
        with database.atomic() as held:
            first = accept(postgres_customer)
            waiting = pool.submit(second)
            until_somebody_waits(watcher)
            if not first_one_stays:
                held.rollback()
        accepted = waiting.result(10)
    assert accepted.is_duplicate is first_one_stays
    assert (accepted.id == first.id) is first_one_stays
    assert rows(COUNTS) == [(1, 1, 1)]
    assert rows("SELECT COUNT(*) FROM accounts") == [(2,)]
    assert rows("SELECT e.id FROM inbound_emails i JOIN exports e ON e.id = i.export_id AND e.source_id = i.id") != []
