"""The customer of most tests is inserted without the functions of storage, but stored as they would store it."""

from typing import Any, Final

from schemas.base.principal import TokenKind
from schemas.intake.grouping import TicketGrouping
from storage.accounts import accounts, projects, tokens
from storage.db.engine import rows
from tests.support.factories import NOW, make_customer

#: The rows of a customer, without the values that differ between customers: IDs, names, the token.
ROWS: Final = {
    "account": "SELECT may_use_webhooks, created_at FROM accounts ORDER BY id DESC LIMIT 1",
    "user": "SELECT created_at, disabled_at, removed_at, role FROM users ORDER BY id DESC LIMIT 1",
    "project": "SELECT shop_domain, created_at, ticket_grouping FROM projects ORDER BY id DESC LIMIT 1",
    "grant": "SELECT report_id, created_at, role FROM grants ORDER BY id DESC LIMIT 1",
    "token": "SELECT kind, name, abilities, created_at, expires_at, revoked_at FROM tokens ORDER BY id DESC LIMIT 1",
    "entries": "SELECT at, actor, action, status_before, status_after FROM audit_entries ORDER BY id",
}


def newest() -> dict[str, list[tuple[Any, ...]]]:
    return {name: rows(query) for name, query in ROWS.items()}


def test_make_customer_stores_the_same_rows_as_the_commands_of_an_operator(database: str) -> None:
    account = accounts.add_account("Account", NOW)
    accounts.add_user("ada@shop.example", account.id, NOW)
    project = projects.add_project("Project", account.id, NOW, ticket_grouping=TicketGrouping.FINDING)
    accounts.grant_project("ada@shop.example", project.id, NOW)
    tokens.create("ada@shop.example", TokenKind.API, NOW)
    added = newest()
    assert len(added["entries"]) == 2
    make_customer()
    assert newest() == {**added, "entries": added["entries"] * 2}
