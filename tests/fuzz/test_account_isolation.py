"""No query, id, cursor or filter causes an error or shows a row of another account.

Cursors are not signed, because they contain no secret: a client that invents one only sees its own rows, from another
position on.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from falcon.testing import Result, TestClient
from hypothesis import given
from hypothesis import strategies as st

from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.triage.export_filter import FILTERS, ExportQuery, ExportSort, ListPosition, encode_cursor
from service.app import create_app
from tests.support.factories import Customer, make_approved, make_customer, make_exports, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, TARGETS, everything_stored

#: Inputs that have broken into other services: they end a string, a comment or a list, or select more than intended.
INJECTED: Final = [
    "' OR '1'='1",
    "' OR 1=1 --",
    '" OR ""="',
    "1); DROP TABLE exports; --",
    "x' UNION SELECT token_sha256, 1, 1 FROM tokens --",
    "id DESC; SELECT pg_sleep(5)",
    "1 OR SLEEP(5)#",
    "prepared') OR account_id IN (1,2",
    "%27%20OR%201%3D1",
    '{"$ne": null}',
    "*",
    "%",
    "_" * 30,
    "\\'; --",
    "$(id)",
    "{{7*7}}",
    "../../../etc/passwd",
    "null",
    "-1",
    "0",
    "99999999999999999999999",
    "1e3",
    "\N{ARABIC-INDIC DIGIT ONE}",
    "\x00",
    "\N{GRINNING FACE}",
]
STATUSES: Final = frozenset({200, 202, 304, 401, 404, 405, 409, 422})


@dataclass(frozen=True, slots=True)
class TwoAccounts:
    """Two accounts with rows of every kind that is listed; the first one sends the requests."""

    client: TestClient
    asking: Customer
    own: tuple[str, ...]
    others: tuple[str, ...]


def ids_of(customer: Customer) -> tuple[str, ...]:
    """Make exports, targets and attempts of a customer; return the ids of the first two."""
    targets = [make_target(customer).id for _ in range(3)]
    made = make_exports(customer, 3) + [make_approved(customer, each) for each in targets]
    return (*made, *targets)


@pytest.fixture(scope="module")
def pair(module_database: Path) -> TwoAccounts:
    asking, other = make_customer(), make_customer()
    unlimited = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "100000"}
    app = create_app(make_settings(module_database, unlimited), FakeWakeUpQueue(), FakeResolver({}))
    return TwoAccounts(TestClient(app), asking, ids_of(asking), ids_of(other))


def words(pair: TwoAccounts) -> st.SearchStrategy[str]:
    """Return a strategy for texts in any input of a client."""
    known = st.sampled_from([*pair.own, *pair.others, *ExportStatus, *SOURCE_TYPES, "1", "200", ""])
    injected = st.sampled_from(INJECTED)
    cursors = (known | injected | st.text(max_size=30)).map(cursor) | known.map(cursor_of_exports)
    return known | injected | st.text(max_size=40) | cursors | st.tuples(known, injected).map("".join)


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(f"1:{text}".encode("utf-8", "surrogatepass")).decode().rstrip("=")


def cursor_of_exports(text: str) -> str:
    """Return a cursor of the unfiltered list of exports, newest first."""
    return encode_cursor(ExportQuery(), ExportSort.NEWEST, ListPosition(text))


def asked(pair: TwoAccounts, method: str, path: str, query: Mapping[str, str] | None = None) -> Result:
    """Send a request of the first account; check that it causes no error and returns no id of the other account."""
    reported = "&".join(f"{quote(name, safe='')}={quote(value, errors='replace')}" for name, value in (query or {}).items())
    headers = {**pair.asking.bearer, **JSON}
    # Without a valid body, an approval would be rejected before its id is read.
    body = None if method == "GET" else json.dumps({"target_id": pair.own[-1]} if path.endswith("/approve") else {})
    answer = pair.client.simulate_request(
        method, quote(path, errors="replace"), query_string=reported, headers=headers, body=body
    )
    assert answer.status_code in STATUSES, (method, path, reported, answer.text)
    # The response does not repeat an id from the request either.
    assert not [each for each in pair.others if each in answer.text], (method, path, reported)
    return answer


@given(data=st.data())
def test_no_query_shows_a_row_of_another_account(pair: TwoAccounts, data: st.DataObject) -> None:
    names = st.sampled_from([*FILTERS, "sort", "cursor", "limit"])
    query = data.draw(st.dictionaries(names, words(pair), max_size=4) | st.dictionaries(st.text(max_size=10), words(pair)))
    word = data.draw(words(pair))
    for path in (EXPORTS, TARGETS, f"{EXPORTS}/{pair.own[0]}/attempts", f"{EXPORTS}/{pair.others[0]}/attempts"):
        asked(pair, "GET", path, query)
        asked(pair, "GET", path, {"cursor": word, "limit": "3"})


def test_ids_of_another_account_give_no_access(pair: TwoAccounts) -> None:
    for each in pair.others:
        try_to_open(pair, each)
    # With the account's own ids, the same requests succeed.
    [export_id], target_id = make_exports(pair.asking, 1), make_target(pair.asking).id
    transitions = (f"{EXPORTS}/{export_id}/approve", f"{TARGETS}/{target_id}/pause", f"{TARGETS}/{target_id}/disable")
    assert [asked(pair, "POST", each).status_code for each in transitions] == [202, 200, 200]


@given(data=st.data())
def test_no_generated_id_gives_access_to_another_account(pair: TwoAccounts, data: st.DataObject) -> None:
    try_to_open(pair, data.draw(words(pair).filter(lambda text: text not in pair.own)))


def try_to_open(pair: TwoAccounts, each: str) -> None:
    """Send every request that an id allows; check that none returns or changes a row."""
    before = everything_stored()
    for path in (f"{EXPORTS}/{each}", f"{EXPORTS}/{each}/attempts", f"{EXPORTS}/{each}/receipt", f"{TARGETS}/{each}"):
        asked(pair, "GET", path)
    for verb in ("approve", "retry", "dismiss"):
        asked(pair, "POST", f"{EXPORTS}/{each}/{verb}")
    for verb in ("pause", "resume", "disable", "validate", "ping"):
        asked(pair, "POST", f"{TARGETS}/{each}/{verb}")
    for method in ("PATCH", "DELETE"):
        asked(pair, method, f"{TARGETS}/{each}")
    assert everything_stored() == before


def test_a_cursor_of_another_account_returns_only_own_rows(pair: TwoAccounts) -> None:
    """A cursor is a position in time. The page that follows it has only rows of the requesting account."""
    for path, places, made in ((EXPORTS, pair.others[:6], cursor_of_exports), (TARGETS, pair.others[6:], cursor)):
        for place in places:
            shown = asked(pair, "GET", path, {"cursor": made(place)}).text
            expected = [each for each in pair.own if each[:3] == place[:3] and each < place]
            assert sum(each in shown for each in expected) == len(expected) > 0
