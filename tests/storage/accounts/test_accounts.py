"""Accounts, users, projects, reports, scan runs and grants: their relations, and what the tables refuse."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from peewee import IntegrityError

from schemas.base.errors import Conflict, NotFound
from schemas.base.fields import MAX_ID
from schemas.intake.grouping import TicketGrouping
from storage.accounts import accounts, projects, users
from storage.db.engine import connection, execute, rows, transaction
from tests.support.database.databases import on_postgresql
from tests.support.factories import NOW, Customer, make_customer
from tests.support.processes.workers import wait_until


def test_a_user_can_only_be_added_to_an_existing_account(database: str) -> None:
    account = accounts.add_account("One", NOW)
    user = accounts.add_user("a@example.com", account.id, NOW)
    assert accounts.user_by_email("a@example.com").id == user.id
    with pytest.raises(NotFound, match="no account 999"):
        accounts.add_user("b@example.com", 999, NOW)


def test_an_email_belongs_to_one_user(customer: Customer) -> None:
    other = accounts.add_account("Other", NOW)
    with pytest.raises(Conflict):
        accounts.add_user(customer.email, other.id, NOW)
    assert rows("SELECT COUNT(*) FROM users") == [(1,)]


def test_an_unknown_email_is_not_found_and_not_repeated(database: str) -> None:
    with pytest.raises(NotFound) as missing:
        accounts.user_by_email("somebody@example.com")
    assert "somebody" not in missing.value.message


def test_a_user_is_found_in_upper_and_lower_case(database: str) -> None:
    account = accounts.add_account("One", NOW)
    ada = accounts.add_user("Ada@Example.com", account.id, NOW)
    for email in ("ada@example.com", "ADA@EXAMPLE.COM", "Ada@Example.com"):
        assert accounts.user_by_email(email) == ada
        assert accounts.list_users(email=email) == [ada]
    # A row from an earlier version, which allowed such addresses.
    execute("INSERT INTO users (email, account_id, created_at) VALUES ('ada@example.com', ?, 1)", (account.id,))
    assert accounts.user_by_email("Ada@Example.com") == ada
    assert accounts.user_by_email("ada@example.com").id != ada.id
    with pytest.raises(Conflict, match="Several users"):
        accounts.user_by_email("ADA@example.com")
    users.remove("Ada@Example.com", NOW, "operator")
    assert accounts.user_by_email("ADA@example.com").email == "ada@example.com"
    with pytest.raises(NotFound):
        accounts.user_by_email(f"removed:{ada.id}")


@on_postgresql
def test_an_address_that_is_added_in_two_cases_at_once_belongs_to_one_user(customer: Customer) -> None:
    def add() -> None:
        with connection():
            accounts.add_user("ADA@example.com", customer.account_id, NOW)

    with ThreadPoolExecutor(1) as threads:
        with transaction():
            ada = accounts.add_user("ada@example.com", customer.account_id, NOW)
            adding = threads.submit(add)
            wait_until(lambda: adding.done() or rows("SELECT 1 FROM pg_locks WHERE NOT granted"))
        with pytest.raises(Conflict):
            adding.result(20)
    assert accounts.users_by_email("ada@example.com") == [ada]


def test_an_account_may_use_webhooks_unless_created_without_them(database: str) -> None:
    accounts.add_account("With", NOW)
    accounts.add_account("Without", NOW, may_use_webhooks=False)
    assert [bool(row[0]) for row in rows("SELECT may_use_webhooks FROM accounts ORDER BY id")] == [True, False]


def test_projects_reports_and_scan_runs_can_only_be_added_to_an_existing_parent(database: str) -> None:
    with pytest.raises(NotFound, match="no account 7"):
        projects.add_project("P", 7, NOW)
    with pytest.raises(NotFound, match="no project 7"):
        projects.add_report("R", 7, NOW)
    with pytest.raises(NotFound, match="no project 7"):
        projects.add_scan_run(7, NOW)


def test_a_project_may_have_a_shop_domain(customer: Customer) -> None:
    project = projects.add_project("Shop", customer.account_id, NOW, "shop.example")
    assert rows("SELECT shop_domain FROM projects ORDER BY id") == [(None,), ("shop.example",)]
    assert project.account_id == customer.account_id


def test_scan_runs_get_the_next_free_id_or_the_requested_one(customer: Customer) -> None:
    assert projects.add_scan_run(customer.project_id, NOW).id == 1
    assert projects.add_scan_run(customer.project_id, NOW, 41).id == 41
    assert projects.add_scan_run(customer.project_id, NOW).id == 42
    projects.add_scan_run(customer.project_id, NOW, MAX_ID)
    # After the largest ID there is no next one, so a random one is used.
    assert 10**11 <= projects.add_scan_run(customer.project_id, NOW).id < 10**12
    with pytest.raises(Conflict, match="Scan run 41"):
        projects.add_scan_run(customer.project_id, NOW, 41)
    assert rows("SELECT status FROM scan_runs WHERE id = 42") == [("running",)]


def test_scan_runs_that_are_registered_at_once_get_ids_of_their_own(customer: Customer) -> None:
    barrier = Barrier(4)

    def add(_: int) -> list[int]:
        with connection():
            barrier.wait()
            return [projects.add_scan_run(customer.project_id, NOW).id for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        ids = [each for added in threads.map(add, range(4)) for each in added]
    assert sorted(ids) == list(range(1, 41))


def test_a_grant_is_for_a_project_or_report_of_the_users_own_account(customer: Customer) -> None:
    report = projects.add_report("R", customer.project_id, NOW)
    accounts.grant_report(customer.email, report.id, NOW)
    stranger = make_customer()
    with pytest.raises(NotFound):
        accounts.grant_project(stranger.email, customer.project_id, NOW)
    with pytest.raises(NotFound):
        accounts.grant_report(stranger.email, report.id, NOW)
    with pytest.raises(NotFound):
        accounts.grant_report(customer.email, 999, NOW)
    assert rows("SELECT COUNT(*) FROM grants WHERE user_id = ?", (customer.user_id,)) == [(2,)]


def test_the_same_grant_twice_is_a_conflict(customer: Customer) -> None:
    report = projects.add_report("R", customer.project_id, NOW)
    accounts.grant_report(customer.email, report.id, NOW)
    with pytest.raises(Conflict):
        accounts.grant_project(customer.email, customer.project_id, NOW)
    with pytest.raises(Conflict):
        accounts.grant_report(customer.email, report.id, NOW)


@pytest.mark.parametrize(
    ("project", "report"),
    [
        (None, None),  # for nothing
        (1, 1),  # for a project and a report
        (999, None),  # an unknown project
        (None, 999),  # an unknown report
    ],
)
def test_a_grant_names_exactly_one_existing_project_or_report(
    customer: Customer, project: int | None, report: int | None
) -> None:
    projects.add_report("R", customer.project_id, NOW)
    with pytest.raises(IntegrityError):
        execute(
            "INSERT INTO grants (user_id, project_id, report_id, created_at) VALUES (?, ?, ?, 1)",
            (customer.user_id, project, report),
        )


def test_referenced_rows_cannot_be_deleted(customer: Customer) -> None:
    for table in ("accounts", "users", "projects"):
        with pytest.raises(IntegrityError):
            execute(f"DELETE FROM {table}")  # noqa: S608 - our own names


def test_projects_are_read_back_newest_first(customer: Customer) -> None:
    quiet = projects.add_project("Quiet", customer.account_id, NOW)
    [second, first] = projects.list_page(customer.account_id, 10)
    assert (first.id, first.ticket_grouping) == (customer.project_id, TicketGrouping.FINDING)
    assert (second, second.ticket_grouping) == (quiet, TicketGrouping.RULE)
    assert projects.list_page(customer.account_id, 1) == [second]
    assert projects.get_project(customer.project_id, customer.account_id) == first
    with pytest.raises(NotFound):
        projects.get_project(customer.project_id, make_customer().account_id)
