"""Any text of a hand-made ticket is returned unchanged, by polls and in lists; no query breaks a list."""

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from falcon.testing import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.app import create_app
from tests.support.corpora import CORPORA
from tests.support.factories import Customer, make_exports, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, Call

STRINGS: Final = CORPORA / "strings" / "blns.json"

#: Codes of refusals that a text may cause.
NAMED: Final = {"too_short", "not_one_line", "too_long"}


@pytest.fixture
def client(customer: Customer, tmp_path: Path) -> TestClient:
    """The application with a high rate limit, because the tests send hundreds of requests at once."""
    unlimited = make_settings(tmp_path, {"RATE_LIMIT_PER_MINUTE": "1000000"})
    return TestClient(create_app(unlimited, FakeWakeUpQueue(), FakeResolver({})))


def ticket(text: str) -> dict[str, Any]:
    """Return a ticket with `text` in every member that accepts any text."""
    return {
        "title": text,
        "description": text,
        "severity": "low",
        "page_url": None,
        "labels": [text],
        "evidence": {text: [text, {"inner": text}]},
    }


@pytest.mark.skipif(not STRINGS.exists(), reason=f"no strings corpus in {CORPORA}")
def test_naughty_strings_are_stored_unchanged_or_rejected_with_field_errors(client: TestClient, customer: Customer) -> None:
    headers = tuple(customer.bearer.items())
    stored: dict[str, dict[str, Any]] = {}
    for text in json.loads(STRINGS.read_bytes()):
        call = Call("POST", EXPORTS, (*headers, *JSON.items())).with_json({"ticket": ticket(text)})
        answer = call.send(client)
        if answer.status_code == 201:
            read = Call("GET", f"{EXPORTS}/{answer.json['id']}", headers).send(client)
            assert read.json["ticket"] == ticket(text), text
            stored[answer.json["id"]] = ticket(text)
        else:
            record = answer.json["error"]["details"]["fields"]
            assert (answer.status_code, bool(record)) == (422, True), text
    assert len(stored) > 450
    assert every_ticket(client, headers) == stored


def every_ticket(client: TestClient, headers: tuple[tuple[str, str], ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    query = "limit=200"
    while query:
        page = Call("GET", EXPORTS, headers, query=query).send(client).json
        found |= {item["id"]: item["ticket"] for item in page["items"]}
        query = f"limit=200&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    return found


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "\u202eright to left", "\ufeff", "👩‍👩‍👧", "\x85", "'; DROP TABLE exports; --", "\u2028"]
)
def test_unusual_characters_are_stored_unchanged_or_rejected_with_field_errors(
    text: str, client: TestClient, customer: Customer
) -> None:
    headers = (*customer.bearer.items(), *JSON.items())
    answer = Call("POST", EXPORTS, headers).with_json({"ticket": ticket(text)}).send(client)
    if answer.status_code == 201:
        assert answer.json["ticket"] == ticket(text)
    else:
        assert {each["code"] for each in answer.json["error"]["details"]["fields"]} <= NAMED
        named = {**ticket(text), "title": "x", "labels": []}
        assert Call("POST", EXPORTS, headers).with_json({"ticket": named}).send(client).json["ticket"] == named


NAMES: Final = st.sampled_from(["status", "source", "limit", "cursor", "dry", "a"])
WORDS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["failed", "manual", "50", "-1", "9" * 400, "MTpleHBf", "\x00", "failed,blocked", "==", "%"]
)
PAIRS: Final = st.lists(st.tuples(NAMES, WORDS), max_size=4).map(urlencode)
RAW: Final = st.text("abcstaulimtcursorexp_01=&%,;+-/\x7f\xff ", max_size=40).map(lambda text: "".join(text.split()))


@given(PAIRS | RAW)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_query_string_of_a_list_gets_200_or_422(client: TestClient, customer: Customer, query: str) -> None:
    [export_id] = make_exports(customer, 1)
    for path in (EXPORTS, f"{EXPORTS}/{export_id}/attempts"):
        answer = Call("GET", path, tuple(customer.bearer.items()), query=query).send(client)
        assert answer.status_code in {200, 422}, (path, query, answer.text)
