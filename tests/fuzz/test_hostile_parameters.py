"""Sends values that a database could reject in every parameter of a path or query: no response may be a 5xx.

`test_api_by_description` sends random values on SQLite. PostgreSQL is stricter about texts, numbers and times.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from falcon.testing import TestClient

from service.app import create_app
from tests.support.database.databases import on_postgresql
from tests.support.factories import Customer, make_exports, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue

pytestmark = on_postgresql

UNLIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}
METHODS: Final = frozenset({"get", "post", "patch", "put", "delete"})
#: Values as encoded in a URL; the first is a lone surrogate.
VALUES: Final = (
    "%ED%A0%80",
    *map(
        quote,
        (
            *("\0", "a\0b", "\u202e", "é" * 300, "a" * 5000, "%", "_", "'", '"', "\\", "{", "[", "(" * 200, "*", ",", " "),
            *("-1", "2147483648", "9223372036854775808", "9" * 30, "1e9999", "NaN", "null"),
            *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-99-99"),
        ),
    ),
)


def parameters(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield method, path, place and name of each parameter. For requests that change data, only parameters of paths."""
    known = document["components"].get("parameters", {})
    for path, operations in document["paths"].items():
        for method in METHODS & operations.keys():
            for given in [*operations.get("parameters", ()), *operations[method].get("parameters", ())]:
                parameter = known[given["$ref"].rpartition("/")[2]] if "$ref" in given else given
                if parameter["in"] == "path" or (parameter["in"] == "query" and method == "get"):
                    yield method.upper(), path, parameter["in"], parameter["name"]


def test_no_value_of_a_parameter_causes_a_server_error(customer: Customer, tmp_path: Path) -> None:
    client = TestClient(create_app(make_settings(tmp_path, UNLIMITED), FakeWakeUpQueue(), FakeResolver({})))
    make_exports(customer, 3)
    make_target(customer)
    headers = {**customer.bearer, "Content-Type": "application/json"}
    found = [*parameters(client.simulate_get("/openapi.json").json)]
    assert len(found) > 100
    statuses = set[int]()
    for method, path, place, name in found:
        for value in VALUES:
            filled = "/".join(
                (value if part == f"{{{name}}}" and place == "path" else "1") if part.startswith("{") else part
                for part in path.split("/")
            )
            query = f"{name}={value}" if place == "query" else ""
            response = client.simulate_request(method, filled, query_string=query, body="{}", headers=headers)
            assert response.status_code < 500, (method, filled, query, response.text)
            statuses.add(response.status_code)
    # Some values are valid, some unknown, and some rejected.
    assert {200, 404, 422} <= statuses
