"""Bodies that nobody would send by accident: generated ones at every schema, and naughty strings in every text.

Whatever comes in, the answer is not a 5xx, and a refusal names what it refuses.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.app import create_app
from tests.corpora import naughty_strings
from tests.factories import make_customer, make_settings
from tests.fakes import FakeDoorbell, FakeLookup
from tests.service.exchange import EXPORTS, Call
from tests.service.specified import EMAIL_SECRET, STOREFRONT_SECRET, World, make_world, signed

#: The routes that take a body: those of the specification, and the ticket made by hand.
ENDPOINTS: Final = (1, 2, 3, 4, 6, 7, 8, 9)
BY_HAND: Final = {
    "ticket": {
        "title": "Missing name",
        "description": "The field has no name.",
        "severity": "high",
        "page_url": "https://shop.example/",
        "labels": ["a11y"],
        "evidence": {"rule": "label"},
    },
    "source": {"type": "manual", "id": "note-1"},
}


@pytest.fixture(scope="module")
def world(module_database: Path) -> World:
    """One installation of each kind for all examples; they do not depend on each other."""
    customer = make_customer()
    told = make_settings(
        module_database,
        {
            "DEPLOYMENT_MODE": "cloud",
            "DEFAULT_PROJECT_ID": str(customer.project_id),
            "EMAIL_WEBHOOK_SECRET": EMAIL_SECRET,
            "STOREFRONT_WEBHOOK_SECRET": STOREFRONT_SECRET,
            "RATE_LIMIT_PER_MINUTE": "1000000",
        },
    )
    doorbell = FakeDoorbell()
    client = TestClient(create_app(told, doorbell, FakeLookup({"tracker.example.com": ["93.184.215.14"]})))
    return make_world(told, client, doorbell, customer)


def calls(world: World) -> dict[str, Call]:
    """Every request with a body, as it should be."""
    by_hand = Call("POST", EXPORTS, world.call(4).headers).with_json(BY_HAND)
    return {**{str(endpoint): world.call(endpoint) for endpoint in ENDPOINTS}, "by hand": by_hand}


#: Integers around the limits of every column, numbers of every form, and texts of any characters, halves of pairs included.
SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**22, 1.5, -0.0, 1e308]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.text(alphabet=st.characters(), max_size=10),
    st.sampled_from(["", " ", "https://shop.example/", "http://[::1", "2026-03-01T12:00:00Z", "h1", "\ud800", "x" * 20_001]),
)
VALUES: Final = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4))
)
#: Where to put it: a chain of choices among the members that are there, and whether to replace, add or take away.
CHANGES: Final = st.lists(
    st.tuples(
        st.lists(st.integers(0, 15), max_size=4), st.sampled_from(["replace", "add", "remove"]), st.text(max_size=12), VALUES
    ),
    min_size=1,
    max_size=3,
)


def changed(body: Any, path: list[int], how: str, name: str, value: Any) -> Any:
    """Return the body with one thing changed somewhere inside."""
    if not path or not isinstance(body, dict | list) or not body:
        return value
    place = sorted(body)[path[0] % len(body)] if isinstance(body, dict) else path[0] % len(body)
    if len(path) == 1 and how == "remove":
        del body[place]
    elif len(path) == 1 and how == "add" and isinstance(body, dict):
        body[name] = value
    else:
        body[place] = changed(body[place], path[1:], how, name, value)
    return body


@given(data=st.data(), changes=CHANGES)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_generated_body_breaks_a_route(world: World, data: st.DataObject, changes: list[Any]) -> None:
    there = calls(world)
    which = data.draw(st.sampled_from(sorted(there)))
    body = json.loads(there[which].body)
    for path, how, name, value in changes:
        body = changed(body, path, how, name, value)
    call = there[which].with_json(body)
    answer = (signed(call) if which == "9" else call).send(world.client)
    assert answer.status_code < 500, (which, body, answer.text)
    assert answer.status_code in {200, 201, 202, 204, 403, 409, 422}, (which, body, answer.text)


@given(data=st.data(), raw=st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_bytes_break_a_route(world: World, data: st.DataObject, raw: bytes) -> None:
    there = calls(world)
    which = data.draw(st.sampled_from(sorted(there)))
    call = Call(there[which].method, there[which].path, there[which].headers, raw)
    answer = (signed(call) if which == "9" else call).send(world.client)
    assert answer.status_code == 422, (which, raw, answer.text)


def texts(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every text in a body."""
    if isinstance(body, str):
        yield path
    elif isinstance(body, dict | list):
        for place in body if isinstance(body, dict) else range(len(body)):
            yield from texts(body[place], (*path, place))


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of the body with another value at a path."""
    copy = deepcopy(body)
    inner = copy
    for place in path[:-1]:
        inner = inner[place]
    inner[path[-1]] = value
    return copy


#: What these keep of each string is read back in test_uploads and test_naughty_tickets.
READ_BACK_ELSEWHERE: Final = {"6", "7", "8", "by hand"}


@pytest.mark.parametrize("which", [*map(str, ENDPOINTS), "by hand"])
def test_naughty_strings_are_taken_or_refused_by_name(which: str, world: World) -> None:
    """Each string goes into every text that may say anything at once, and then into one of the others."""
    call = calls(world)[which]
    body = json.loads(call.body)

    def send(sent: Any) -> Result:
        changed_call = call.with_json(sent)
        return (signed(changed_call) if which == "9" else changed_call).send(world.client)

    places = list(texts(body))
    free = [place for place in places if send(put(body, place, "just words")).status_code < 300]
    bound = [place for place in places if place not in free] or places
    for number, text in enumerate(naughty_strings()):
        everywhere = body
        for place in free:
            everywhere = put(everywhere, place, text)
        bodies = [put(body, bound[number % len(bound)], text)]
        bodies += [everywhere] if free and which not in READ_BACK_ELSEWHERE else []
        for answer in map(send, bodies):
            assert answer.status_code < 500, text
            assert answer.status_code != 422 or answer.json["error"]["details"]["fields"], text
