"""No input in a URL or form of the console causes an error, or shows or changes another account's rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import pytest
from falcon.inspect import RouteInfo, inspect_routes
from falcon.testing import Result, TestClient
from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from service.app import create_app
from storage.db.engine import rows
from storage.exports import recoveries
from tests.fuzz.test_account_isolation import INJECTED, cursor
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_customer, make_exports, make_session, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from tests.support.http.raw_http import everything_stored, is_of_the_console

# Pages do not depend on the database. Other tests run their queries on both databases.
pytestmark = on_sqlite

#: Markup and URLs that would have an effect if they were not escaped.
MARKUP: Final = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ config }}",
    "javascript:alert(1)",
    "//evil.example",
]
ALIVE: Final = ("<script>alert", "<img src=x")
#: Allowed statuses; 409 is for the receipt of an export that is not delivered.
SHOWN: Final = frozenset({200, 303, 404, 409, 422})
DECIDED: Final = frozenset({303, 403, 404, 409, 422})
NAMES: Final = (
    *("status", "source", "target", "project", "severity", "topic", "subject", "since", "id", "cursor", "limit", "done"),
    *("next", "why", "target_id", "ticket_digest", "secret", "csrf"),
)


@dataclass(frozen=True, slots=True)
class ConsoleAccounts:
    """Two accounts with rows of every kind that the console shows, and a user of each; the first is the operator's."""

    operator: ConsoleBrowser
    person: ConsoleBrowser
    token: str
    pages: tuple[str, ...]
    forms: tuple[str, ...]
    own: tuple[str, ...]
    others: tuple[str, ...]


def ids_of(customer: Customer) -> tuple[str, ...]:
    """Store one row of each kind for a customer; return the ids."""
    recovering = recoveries.begin(make_target(customer).id, utc_now(), utc_now(), "user:test")
    return (*make_exports(customer, 2), make_target(customer).id, recovering.id, make_session(customer))


@pytest.fixture(scope="module")
def console(module_database: Path) -> ConsoleAccounts:
    first, second = make_customer(), make_customer()
    unlimited = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}
    app = create_app(make_settings(module_database, unlimited), FakeWakeUpQueue(), FakeResolver({}))
    routes = [route for route in inspect_routes(app) if is_of_the_console(route.path) and "sign" not in route.path]
    abilities = (Ability.CONSOLE, Ability.MANAGE_RULES, Ability.MANAGE_ACCOUNT)
    token = make_console_token(second, *abilities)
    people = [ConsoleBrowser(TestClient(app)) for _ in range(2)]
    pages, forms = paths(routes, "GET"), paths(routes, "POST")
    assert min(len(pages), len(forms)) > 10
    for person, text in zip(people, (make_console_token(first, *abilities), token), strict=True):
        assert person.sign_in(text).status_code == 303
    return ConsoleAccounts(people[0], people[1], token, pages, forms, ids_of(second), ids_of(first))


def paths(routes: Iterable[RouteInfo], method: str) -> tuple[str, ...]:
    """Return the paths below /console that serve a method."""
    served = (route for route in routes if any(each.method == method and not each.internal for each in route.methods))
    return tuple(route.path.removeprefix("/console") for route in served)


def words(console: ConsoleAccounts) -> st.SearchStrategy[str]:
    """Return a strategy for texts in any input of a user."""
    known = st.sampled_from([*console.own, *console.others, *ExportStatus, *SOURCE_TYPES, "1", "24h", "approved", ""])
    injected = st.sampled_from([*INJECTED, *MARKUP])
    cursors = (known | injected).map(cursor)
    return known | injected | st.text(max_size=40) | cursors | st.tuples(known, injected).map("".join)


def filled(path: str, word: str) -> str:
    """Replace the parameter of a route's path by a word."""
    head, brace, rest = path.partition("{")
    return head + quote(word, safe="", errors="replace") + rest.partition("}")[2] if brace else path


def read_page(person: ConsoleBrowser, path: str, query: Mapping[str, str]) -> Result:
    """Read a page; check that it is shown, redirects, or reports an error, and contains no unescaped markup."""
    shown = "&".join(f"{quote(name, errors='replace')}={quote(text, errors='replace')}" for name, text in query.items())
    answer = person.get(path, shown)
    assert answer.status_code in SHOWN, (path, shown, answer.text)
    assert not [each for each in ALIVE if each in answer.text], (path, shown)
    return answer


def redirect_host(answer: Result) -> str:
    """Return the host of a response's redirect; it must be empty."""
    return urlsplit(answer.headers.get("location", "")).netloc


@given(data=st.data())
def test_no_url_breaks_a_page_or_shows_data_of_another_account(console: ConsoleAccounts, data: st.DataObject) -> None:
    query = data.draw(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), words(console), max_size=4))
    word = data.draw(words(console))
    for path in console.pages:
        read_page(console.operator, filled(path, word), query)
        asked = filled(path, word)
        shown = read_page(console.person, asked, query)
        said = f"{asked} {query}"
        assert not [each for each in console.others if each in shown.text and each not in said], said
        assert redirect_host(shown) == ""


@given(data=st.data())
def test_no_form_changes_data_of_another_account_or_causes_an_error(console: ConsoleAccounts, data: st.DataObject) -> None:
    fields = data.draw(st.dictionaries(st.sampled_from(NAMES[1:]), words(console), max_size=4))
    word = data.draw(words(console).filter(lambda text: text not in console.own))
    before = stored()
    for path in console.forms:
        if path.startswith("/shortcuts/") or path == "/report-uploads":
            # The first only sets a preference in the browser. The second requires a file, and responds 415 to other forms.
            continue
        answer = console.person.post(filled(path, word), **fields)
        assert answer.status_code in DECIDED - {303}, (path, word, fields, answer.text)
        assert not [each for each in ALIVE if each in answer.text], (path, word, fields)
    assert stored() == before


@given(data=st.data())
def test_no_form_on_own_data_causes_an_error_or_changes_another_account(
    console: ConsoleAccounts, data: st.DataObject
) -> None:
    fields = data.draw(st.dictionaries(st.sampled_from(NAMES), words(console), max_size=4))
    others = rows_of_first_account()
    for path, each in own_forms(console):
        answer = console.person.post(filled(path, each), **fields)
        assert answer.status_code in DECIDED, (path, each, fields, answer.text)
        assert redirect_host(answer) == ""
    assert rows_of_first_account() == others


@given(there=st.text(max_size=60) | st.sampled_from([*MARKUP, *INJECTED, "/exports", "/\\evil.example", "@evil.example"]))
def test_a_sign_in_redirects_only_to_the_console(console: ConsoleAccounts, there: str) -> None:
    answer = ConsoleBrowser(console.person.client).sign_in(console.token, next=there)
    # Browsers never send NUL in a form.
    assert answer.status_code == (422 if "\0" in there else 303), answer.text
    if answer.status_code == 303:
        assert answer.headers["location"].startswith("/console")
        assert redirect_host(answer) == ""


def own_forms(console: ConsoleAccounts) -> Iterator[tuple[str, str]]:
    """Yield the path of each form with an id of the user's account, except forms that would wait for a worker."""
    kinds = {"exports": "exp_", "targets": "tgt_", "recoveries": "rec_"}
    for path in console.forms:
        prefix = kinds.get(path.split("/")[1])
        if prefix is not None and path.rpartition("/")[2] not in {"ping", "validate"}:
            yield path, next(each for each in console.own if each.startswith(prefix))


def stored() -> Mapping[str, object]:
    """Return all rows; of sessions, only the ids of active ones, because their last use is updated once a minute."""
    going_on = rows("SELECT id FROM console_sessions WHERE ended_at IS NULL ORDER BY id")
    return {**everything_stored(), "console_sessions": going_on}


def rows_of_first_account() -> list[tuple[object, ...]]:
    """Return the state of the first account's exports and targets."""
    return [
        *rows("SELECT id, status, target_id, approved_at FROM exports WHERE account_id = 1 ORDER BY id"),
        *rows("SELECT id, status, secret_fingerprint FROM targets WHERE account_id = 1 ORDER BY id"),
    ]
