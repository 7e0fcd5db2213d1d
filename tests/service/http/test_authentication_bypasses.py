"""Attempts to bypass authentication: other methods, other spellings of a path, overriding headers, other modes.

A request is only what its request line says. A method or path that a proxy or another framework would derive from other
parts of the request has no effect, so a proxy's rule for a path applies to the path that the service sees.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import TestClient

from service.app import App, create_app
from tests.support.database.databases import on_sqlite
from tests.support.factories import SCANNER_SECRET, Customer, make_exports, make_platform_token, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    EXPORTS,
    JSON,
    RESULTS,
    TARGETS,
    everything_stored,
    is_of_the_console,
    response_fingerprint,
)
from tests.support.http.storefront import CLOUD, EMAIL_SECRET, signature

# Routes and methods do not depend on the database.
pytestmark = on_sqlite

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")
OPEN: Final = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/{file}"}
UNLIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "100000", "AUTH_FAILURES_PER_MINUTE": "100000"}
MODES: Final = ("cloud", "self-hosted", "webhook-only")

#: Each makes some proxy or framework treat the request as one with a different method or path.
OVERRIDES: Final = [
    {"X-HTTP-Method-Override": "GET", "X-HTTP-Method": "GET", "X-Method-Override": "GET"},
    {"X-HTTP-Method-Override": "POST", "X-HTTP-Method": "POST", "X-Method-Override": "POST"},
    {"X-Original-URL": "/healthz", "X-Rewrite-URL": "/healthz", "X-Original-URI": "/healthz"},
    {"X-Forwarded-Prefix": "/healthz", "X-Forwarded-Path": "/healthz", "X-Forwarded-Uri": "/healthz"},
    {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1", "X-Client-IP": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
    {"X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "https", "X-Forwarded-Scheme": "https", "Host": "localhost"},
    {"X-Remote-User": "admin", "Remote-User": "admin", "X-Forwarded-User": "admin", "X-Authenticated-User": "1"},
    {"X-Custom-IP-Authorization": "127.0.0.1", "X-Account-Id": "1", "X-User-Id": "1", "X-Ssl-Client-Verify": "SUCCESS"},
]


@pytest.fixture
def all_credentials(customer: Customer) -> dict[str, str]:
    """All credentials at once: every shared secret, a signature, and the token of a user (a request can carry only one)."""
    secrets = {"X-Scanner-Secret": SCANNER_SECRET, "X-Email-Webhook-Secret": EMAIL_SECRET}
    return {**secrets, "X-Platform-Hmac-Sha256": signature(b"{}"), **customer.bearer}


@pytest.fixture
def app(customer: Customer, tmp_path: Path) -> App:
    return app_in("cloud", tmp_path)


def app_in(mode: str, folder: Path) -> App:
    settings = make_settings(folder, {**CLOUD, **UNLIMITED, "DEPLOYMENT_MODE": mode})
    return create_app(settings, FakeWakeUpQueue(), FakeResolver({}))


def authenticated_routes(app: App) -> Iterator[tuple[str, set[str]]]:
    """Yield every route that requires authentication, with its methods."""
    for route in inspect_routes(app):
        if route.path not in OPEN and not is_of_the_console(route.path):
            yield route.path, {method.method for method in route.methods if not method.internal}


def test_an_unsupported_method_gets_the_same_response_for_all_callers(app: App, all_credentials: Mapping[str, str]) -> None:
    client = TestClient(app)
    senders = ({}, all_credentials, {"Authorization": "Bearer x"}, *OVERRIDES)
    asked = 0
    for path, methods in authenticated_routes(app):
        for method in set(METHODS) - methods:
            actual = {
                response_fingerprint(client.simulate_request(method, path, headers=dict(headers), body=body))
                for headers, body in (({}, None), *((each, b"{}") for each in senders))
            }
            assert len(actual) == 1, (method, path, actual)
            [(status, text, headers_reported)] = actual
            assert status == 405
            assert method == "HEAD" or "METHOD_NOT_ALLOWED" in text
            assert set(dict(headers_reported)["allow"].split(", ")) == methods | {"OPTIONS"}
            asked += 1
    assert asked > 60


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda override: next(iter(override)))
def test_no_header_changes_the_method_or_path_of_a_request(override: dict[str, str], app: App) -> None:
    """An unauthenticated request stays unauthenticated, on every route and with every method of the route."""
    client = TestClient(app)
    before = everything_stored()
    for path, methods in authenticated_routes(app):
        for method in methods:
            plain = client.simulate_request(method, path, headers=JSON, body=b"{}")
            changed = client.simulate_request(method, path, headers={**JSON, **override}, body=b"{}")
            assert plain.status_code == 401, (method, path)
            assert response_fingerprint(changed) == response_fingerprint(plain), (method, path)
    assert everything_stored() == before


def spellings(path: str) -> Iterator[str]:
    """Yield paths that other software might treat as this path or as one below it."""
    last = path.rpartition("/")[2]
    yield from (f"{path}/", f"/{path}", path.replace("/api", "//api"), path.replace("/api", "/API"), path.upper())
    yield from (path.replace("/api/", "/api%2f"), path.replace("/api/", "/api%2F"), path.replace("/api/", "/api\\"))
    yield from (f"{path};a=b", path.replace("/api", "/api;a=b"), f"{path}%00", f"{path}%20", f"{path}%0a", f"{path}.json")
    yield from (f"/healthz/..{path}", f"/healthz/%2e%2e{path}", f"/api/../api{path[4:]}", f"/./{path[1:]}", f"{path}/.")
    yield from (f"{path}/..", f"{path}/%2e%2e/{last}", f"{path}?", f"{path}%3f", f"{path}%23", f"{path}/%2e")


def test_a_path_has_one_spelling(app: App, customer: Customer) -> None:
    """Any other spelling is not found, with or without a token; percent-encoding alone does not change the path."""
    [export_id], target_id = make_exports(customer, 1), make_target(customer).id
    client = TestClient(app)
    for path in (f"{EXPORTS}/{export_id}", EXPORTS, f"{TARGETS}/{target_id}", TARGETS, f"{EXPORTS}/{export_id}/attempts"):
        assert client.simulate_get(path, headers=customer.bearer).status_code == 200
        assert client.simulate_get(path.replace("/api", "/%61pi")).status_code == 401
        for spelled in spellings(path):
            known = client.simulate_get(spelled, headers=customer.bearer).status_code
            nobody = client.simulate_get(spelled).status_code
            is_same = spelled.endswith("?") or "%2f" in spelled.lower()
            assert (known, nobody) in ({(200, 401)} if is_same else {(404, 404), (404, 401), (422, 422)}), spelled
    for spelled in spellings(RESULTS):
        answer = client.simulate_post(spelled, headers={**JSON, "X-Scanner-Secret": SCANNER_SECRET}, body=b"{}")
        assert answer.status_code in {404, 422}, spelled
        assert client.simulate_post(spelled, headers=JSON, body=b"{}").status_code in {401, 404, 422}
        assert answer.status_code == 404 or answer.json["error"]["code"] == "VALIDATION_FAILED"


@pytest.mark.parametrize("mode", MODES)
def test_a_route_of_another_mode_is_not_found_for_any_caller(
    mode: str, app: App, all_credentials: dict[str, str], customer: Customer, tmp_path: Path
) -> None:
    client = TestClient(app_in(mode, tmp_path))
    everywhere = {path for path, _ in authenticated_routes(app)}
    there = {path for path, _ in authenticated_routes(app_in(mode, tmp_path))}
    assert there == everywhere if mode == "cloud" else there < everywhere
    platform = {"Authorization": f"Bearer {make_platform_token(customer)}"}
    for path in everywhere - there:
        for method in METHODS:
            actual = {
                response_fingerprint(client.simulate_request(method, asked, headers={**headers, **JSON}, body=b"{}"))
                for headers in ({}, all_credentials, {**all_credentials, **platform})
                for asked in (path, "/nowhere")
            }
            assert (len(actual), {status for status, _, _ in actual}) == (1, {404}), (method, path)
