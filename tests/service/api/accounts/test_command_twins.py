"""Every command about accounts, users, projects, grants, tokens and scan runs has a route, and both show the same rows."""

import json
import re
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner
from falcon.inspect import inspect_routes
from falcon.testing import TestClient

from bin.__main__ import riskrelay
from schemas.base.principal import Ability, TokenKind
from storage.accounts import tokens
from storage.db.engine import close_database
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer, make_colleague, make_customer, make_project

# The rows are the same on every database.
pytestmark = on_sqlite

NOUNS: Final = ("account", "project", "user", "grant", "token", "scan-run")
PAGE: Final = (Path(__file__).parents[4] / "docs" / "administration.md").read_text()
#: Rows of the table of operations in docs/administration.md: method, path, command.
REMOTE_COMMANDS: Final = re.findall(r"^\| [^|]+ \| `([A-Z]+) (/[^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
#: Members that only one of the two lists has: names of settings, user details, usage and state.
ONE_SIDED: Final = {"webhooks", "may_use_webhooks", "created_at", "usage", "user_state", "user_id", "findings"} | {
    *("waiting_exports", "targets", "uploads_24h")
}


def test_every_command_has_a_route_on_the_page_and_in_the_service(client: TestClient) -> None:
    commands = {f"{noun} {verb}" for noun in NOUNS for verb in _verbs(noun)}
    assert {command for _, _, command in REMOTE_COMMANDS} == commands
    routes = {
        (each.method, re.sub(r"\{[a-z_]+\}", "{id}", route.path))
        for route in inspect_routes(client.app)
        for each in route.methods
    }
    assert {(method, path) for method, path, _ in REMOTE_COMMANDS} <= routes


@pytest.mark.parametrize("noun", [noun for noun in NOUNS if noun != "scan-run"])
def test_a_list_has_the_same_rows(client: TestClient, customer: Customer, database: str, noun: str) -> None:
    other = make_customer()
    make_colleague(other)
    make_project(other, "snow.shops.example")
    text = tokens.create(customer.email, TokenKind.API, NOW, (Ability.ADMIN,))[1]
    answer = client.simulate_get(f"/api/{noun}s", headers={"Authorization": f"Bearer {text}"}, params={"limit": "200"})
    by_route = answer.json["items"]
    close_database()
    environment = {"DATABASE_URL": database, "RISKRELAY_ENV_FILE": "/nonexistent/.env"}
    done = CliRunner().invoke(riskrelay, [noun, "list", "--json"], env=environment)
    assert done.exit_code == 0, done.output
    by_command = json.loads(done.stdout)
    assert len(by_command) >= 2
    assert _shared(by_command) == _shared(by_route[::-1])


def _shared(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in ONE_SIDED} for record in records]


def _verbs(noun: str) -> list[str]:
    group = riskrelay.get_command(click.Context(riskrelay), noun)
    assert isinstance(group, click.Group)
    return group.list_commands(click.Context(group))
