"""Which routes each deployment mode serves, and that all but the public ones require authentication."""

from pathlib import Path

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import TestClient

from service.app import App, create_app
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import RESULTS, TARGETS, Call, assert_is_error, is_of_the_console

# Routes do not depend on the database.
pytestmark = on_sqlite

SCANNER_ON = [
    {"DEPLOYMENT_MODE": "cloud"},
    {"DEPLOYMENT_MODE": "self-hosted"},
    {},
    {"DEPLOYMENT_MODE": "webhook-only", "EXTRA_ROUTE_FAMILIES": "scanner"},
    {"DEPLOYMENT_MODE": "webhook-only", "EXTRA_ROUTE_FAMILIES": "email,scanner"},
]
SCANNER_OFF = [{"DEPLOYMENT_MODE": "webhook-only"}, {"DEPLOYMENT_MODE": "webhook-only", "EXTRA_ROUTE_FAMILIES": "email"}]


def app_with(folder: Path, changes: dict[str, str]) -> App:
    return create_app(make_settings(folder, changes), FakeWakeUpQueue(), FakeResolver({}))


@pytest.mark.parametrize("changes", SCANNER_ON)
def test_the_scanner_has_its_route(changes: dict[str, str], customer: Customer, tmp_path: Path) -> None:
    client = TestClient(app_with(tmp_path, changes))
    assert_is_error(Call("POST", RESULTS).send(client), 401, "UNAUTHORIZED")


@pytest.mark.parametrize("changes", SCANNER_OFF)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_webhook_only_mode_does_not_serve_the_scanner_route(
    method: str, changes: dict[str, str], customer: Customer, tmp_path: Path
) -> None:
    client = TestClient(app_with(tmp_path, changes))
    assert_is_error(Call(method, RESULTS).send(client), 404, "NOT_FOUND")


@pytest.mark.parametrize("changes", [*SCANNER_ON, *SCANNER_OFF])
def test_every_configuration_has_the_export_target_and_health_routes(
    changes: dict[str, str], customer: Customer, tmp_path: Path
) -> None:
    client = TestClient(app_with(tmp_path, changes))
    assert_is_error(Call("POST", TARGETS).send(client), 401, "UNAUTHORIZED")
    assert_is_error(Call("GET", "/api/ticket-exports/exp_1").send(client), 401, "UNAUTHORIZED")
    assert Call("GET", "/healthz").send(client).status_code == 200


#: Public routes.
OPEN = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/{file}"}


def test_every_other_route_requires_authentication(customer: Customer, tmp_path: Path) -> None:
    """A resource that names no operation for a method would serve it without authentication."""
    changes = {"DEPLOYMENT_MODE": "cloud", "AUTH_FAILURES_PER_MINUTE": "1000", "STOREFRONT_WEBHOOK_SECRET": "s" * 16}
    app = app_with(tmp_path, changes)
    guarded = [route for route in inspect_routes(app) if route.path not in OPEN and not is_of_the_console(route.path)]
    asked = [
        (route.path, method.method, Call(method.method, route.path.replace("{export_id}", "exp_1")).send(TestClient(app)))
        for route in guarded
        for method in route.methods
        if not method.internal
    ]
    assert len(asked) >= len(guarded) >= 4
    assert [(path, method) for path, method, answer in asked if answer.status_code != 401] == []
