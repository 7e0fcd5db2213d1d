"""Whatever stands in a query, an id, a cursor or a filter: nothing breaks, and no row of another account is shown.

Cursors are not signed, since they tell nothing: who makes one up sees a part of his own rows, from another place on.
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

#: What has opened other services: each ends a string, a comment or a list, or asks for more than was meant.
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
class Two:
    """Two accounts with rows of every kind that is listed; the first one asks."""

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
def two(module_database: Path) -> Two:
    asking, other = make_customer(), make_customer()
    unlimited = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "100000"}
    app = create_app(make_settings(module_database, unlimited), FakeWakeUpQueue(), FakeResolver({}))
    return Two(TestClient(app), asking, ids_of(asking), ids_of(other))


def words(two: Two) -> st.SearchStrategy[str]:
    """Return what may stand wherever a client writes something."""
    known = st.sampled_from([*two.own, *two.others, *ExportStatus, *SOURCE_TYPES, "1", "200", ""])
    injected = st.sampled_from(INJECTED)
    cursors = (known | injected | st.text(max_size=30)).map(cursor) | known.map(cursor_of_exports)
    return known | injected | st.text(max_size=40) | cursors | st.tuples(known, injected).map("".join)


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(f"1:{text}".encode("utf-8", "surrogatepass")).decode().rstrip("=")


def cursor_of_exports(text: str) -> str:
    """Return a cursor of the unfiltered list of exports, newest first."""
    return encode_cursor(ExportQuery(), ExportSort.NEWEST, ListPosition(text))


def asked(two: Two, method: str, path: str, query: Mapping[str, str] | None = None) -> Result:
    """Send a request of the first account that fits but for what is tried; nothing may break or come back of the other."""
    reported = "&".join(f"{quote(name, safe='')}={quote(value, errors='replace')}" for name, value in (query or {}).items())
    headers = {**two.asking.bearer, **JSON}
    # Without its body an approval would be refused before anybody looked at the id.
    body = None if method == "GET" else json.dumps({"target_id": two.own[-1]} if path.endswith("/approve") else {})
    answer = two.client.simulate_request(
        method, quote(path, errors="replace"), query_string=reported, headers=headers, body=body
    )
    assert answer.status_code in STATUSES, (method, path, reported, answer.text)
    # What was asked for itself is not echoed either.
    assert not [each for each in two.others if each in answer.text], (method, path, reported)
    return answer


@given(data=st.data())
def test_no_query_shows_a_row_of_another_account(two: Two, data: st.DataObject) -> None:
    names = st.sampled_from([*FILTERS, "sort", "cursor", "limit"])
    query = data.draw(st.dictionaries(names, words(two), max_size=4) | st.dictionaries(st.text(max_size=10), words(two)))
    word = data.draw(words(two))
    for path in (EXPORTS, TARGETS, f"{EXPORTS}/{two.own[0]}/attempts", f"{EXPORTS}/{two.others[0]}/attempts"):
        asked(two, "GET", path, query)
        asked(two, "GET", path, {"cursor": word, "limit": "3"})


def test_another_accounts_id_opens_nothing(two: Two) -> None:
    for each in two.others:
        try_to_open(two, each)
    # One's own does what was tried.
    [export_id], target_id = make_exports(two.asking, 1), make_target(two.asking).id
    transitions = (f"{EXPORTS}/{export_id}/approve", f"{TARGETS}/{target_id}/pause", f"{TARGETS}/{target_id}/disable")
    assert [asked(two, "POST", each).status_code for each in transitions] == [202, 200, 200]


@given(data=st.data())
def test_no_id_opens_a_row_of_another_account(two: Two, data: st.DataObject) -> None:
    try_to_open(two, data.draw(words(two).filter(lambda text: text not in two.own)))


def try_to_open(two: Two, each: str) -> None:
    """Ask for an id, and for everything that can be done with it; nothing may come of it."""
    before = everything_stored()
    for path in (f"{EXPORTS}/{each}", f"{EXPORTS}/{each}/attempts", f"{EXPORTS}/{each}/receipt", f"{TARGETS}/{each}"):
        asked(two, "GET", path)
    for verb in ("approve", "retry", "dismiss"):
        asked(two, "POST", f"{EXPORTS}/{each}/{verb}")
    for verb in ("pause", "resume", "disable", "validate", "ping"):
        asked(two, "POST", f"{TARGETS}/{each}/{verb}")
    for method in ("PATCH", "DELETE"):
        asked(two, method, f"{TARGETS}/{each}")
    assert everything_stored() == before


def test_a_cursor_that_was_made_for_others_shows_ones_own(two: Two) -> None:
    """It is a place in time: the page that follows there has only rows of the account that asks."""
    for path, places, made in ((EXPORTS, two.others[:6], cursor_of_exports), (TARGETS, two.others[6:], cursor)):
        for place in places:
            shown = asked(two, "GET", path, {"cursor": made(place)}).text
            expected = [each for each in two.own if each[:3] == place[:3] and each < place]
            assert sum(each in shown for each in expected) == len(expected) > 0
