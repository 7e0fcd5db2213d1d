"""Generated bodies for every schema never cause a 5xx, and an error names the member that it refers to.

Corpora of texts collected by others are tested in `tests/fuzz/test_corpora.py`.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.database.databases import on_postgresql
from tests.support.http.request_bodies import WHICH, calls, changed, patient_world, send, send_raw
from tests.support.http.specification import CloudInstallation

# Most of these bodies never reach a database; of the two databases, PostgreSQL is the one that rejects some texts.
pytestmark = on_postgresql


@pytest.fixture(scope="module")
def world(module_database: Path) -> CloudInstallation:
    """One installation for all examples, which are independent of each other."""
    return patient_world(module_database)


#: Integers around the limits of every column, numbers of every form, and text with any characters, including lone
#: surrogates.
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
#: The place of each change (a chain of choices among the existing members), and whether to replace, add or remove a value.
CHANGES: Final = st.lists(
    st.tuples(
        st.lists(st.integers(0, 15), max_size=4), st.sampled_from(["replace", "add", "remove"]), st.text(max_size=12), VALUES
    ),
    min_size=1,
    max_size=3,
)


@given(data=st.data(), changes=CHANGES)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_generated_body_causes_a_server_error(world: CloudInstallation, data: st.DataObject, changes: list[Any]) -> None:
    which = data.draw(st.sampled_from(WHICH))
    body = json.loads(calls(world)[which].body)
    for path, how, name, value in changes:
        body = changed(body, path, how, name, value)
    answer = send(world, which, body)
    assert answer.status_code < 500, (which, body, answer.text)
    assert answer.status_code in {200, 201, 202, 204, 403, 409, 422}, (which, body, answer.text)


@given(data=st.data(), raw=st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_route_rejects_arbitrary_bytes(world: CloudInstallation, data: st.DataObject, raw: bytes) -> None:
    which = data.draw(st.sampled_from(WHICH))
    answer = send_raw(world, which, raw)
    assert answer.status_code == 422, (which, raw, answer.text)
