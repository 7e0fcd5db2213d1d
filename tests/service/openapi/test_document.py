"""`/openapi.json` describes every served route completely, and no other, and the description is correct.

That responses match the description is checked in every call of these tests by `tests.support.http.described_responses`.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import TestClient
from jsonschema_rs import Draft202012Validator
from openapi_spec_validator import validate
from requests.structures import CaseInsensitiveDict

from schemas.base.errors import ValidationFailed
from schemas.base.principal import ABILITIES
from schemas.content_policy import rules
from schemas.exports.tickets.ticket import Source, delivery_body
from schemas.intake.email_forms import EmailForm
from schemas.targets.pings import PingJob, ping_body
from service.app import App, create_app
from service.http.error_responses import STATUS
from service.openapi.document import document
from service.openapi.resource import OpenApiResource
from storage.compliance.erasure import ERASED_RESPONSE
from tests.support.database.databases import on_sqlite
from tests.support.factories import NOW, Customer, make_exports, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.described_responses import OpenApiDescription
from tests.support.http.raw_http import EXPORTS, Call, is_of_the_console

# The description does not depend on the database.
pytestmark = on_sqlite

MODES = ("cloud", "self-hosted", "webhook-only")


def app_in(mode: str, folder: Path) -> App:
    return create_app(make_settings(folder, {"DEPLOYMENT_MODE": mode}), FakeWakeUpQueue(), FakeResolver({}))


def described_in(mode: str, folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = TestClient(app_in(mode, folder)).simulate_get("/openapi.json").json
    return record


@cache
def described_in_cloud(folder: Path) -> dict[str, Any]:
    return document(resources_of(app_in("cloud", folder)), "https://risk.example.com")


def operations(reported: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in reported["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


@pytest.mark.parametrize("mode", MODES)
def test_the_description_is_valid_openapi(mode: str, database: str, tmp_path: Path) -> None:
    actual = described_in(mode, tmp_path)
    assert actual["openapi"] == "3.1.0"
    validate(actual)


def test_a_repeated_response_is_described_with_the_body_that_an_erasure_leaves(database: str, tmp_path: Path) -> None:
    header = described_in("cloud", tmp_path)["components"]["headers"]["Replayed"]
    assert f"`{ERASED_RESPONSE}`" in header["description"]


@pytest.mark.parametrize("mode", MODES)
def test_every_route_that_is_served_is_described_and_no_other(mode: str, database: str, tmp_path: Path) -> None:
    served = {
        (method.method, route.path)
        for route in inspect_routes(app_in(mode, tmp_path))
        for method in route.methods
        # HEAD is GET without a body, OPTIONS comes from the framework, and the console is not part of the API.
        if not method.internal and method.method != "HEAD" and not is_of_the_console(route.path)
    }
    assert {(method, path) for method, path, _ in operations(described_in(mode, tmp_path))} == served


def test_the_description_names_the_credentials_of_each_route(database: str, tmp_path: Path) -> None:
    actual = described_in("cloud", tmp_path)
    named = {scheme for _, _, operation in operations(actual) for needed in operation["security"] for scheme in needed}
    assert named == set(actual["components"]["securitySchemes"])
    needed = [needed for _, _, operation in operations(actual) for needed in operation["security"]]
    abilities = {ability for each in needed for abilities in each.values() for ability in abilities}
    assert abilities == {ability.value for each in ABILITIES.values() for ability in each}
    is_open = {path for _, path, operation in operations(actual) if not operation["security"]}
    assert is_open == {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/{file}"}


def test_every_operation_and_member_has_a_description(database: str, tmp_path: Path) -> None:
    actual = described_in("cloud", tmp_path)
    ids = [operation["operationId"] for _, _, operation in operations(actual)]
    assert len(set(ids)) == len(ids)
    # Generators derive function names from them. The specification names four routes in a form of its own.
    named = {each for each in ids if re.fullmatch("[a-z]+([A-Z][a-z]+)+", each) is None}
    assert named == {
        "browser-extension.evidence-captures.store",
        "cms-plugins.cms-commerce.diagnostics.store",
        "storefront-app.diagnostics.store",
        "storefront-app.webhooks.compliance",
    }
    assert [
        op["operationId"] for _, _, op in operations(actual) if not (op["summary"] and op["description"] and op["tags"])
    ] == []
    silent = [
        f"{name}.{member}"
        for name, schema in actual["components"]["schemas"].items()
        for member, its in schema["properties"].items()
        if not its.get("description")
    ]
    assert silent == []


def test_response_schemas_allow_no_additional_members(database: str, tmp_path: Path) -> None:
    schemas = described_in("cloud", tmp_path)["components"]["schemas"]
    outbound = {name: schema for name, schema in schemas.items() if not name.endswith("Input") and name != "NoMembers"}
    assert len(outbound) > 30
    assert [name for name, schema in outbound.items() if schema.get("additionalProperties") is not False] == []


def test_every_error_code_is_described(database: str, tmp_path: Path) -> None:
    responses = described_in("cloud", tmp_path)["components"]["responses"]
    record = {code for response in responses.values() for code in response["content"]["application/json"]["examples"]}
    # A method that a route does not support is not a response of any of its operations.
    assert record == set(STATUS) - {"METHOD_NOT_ALLOWED"}


def test_the_examples_of_bodies_are_accepted(database: str, tmp_path: Path) -> None:
    tried = 0
    for resource in resources_of(app_in("cloud", tmp_path)):
        for method, operation in getattr(resource, "operations", {}).items():
            for body in examples_of(resource, method, tmp_path):
                tried += 1
                assert operation.form.read(body) is not None
                reduced = operation.form.reduced(body)
                assert rules.find(operation.inspected(reduced), operation.form.member_names()) == ()
    assert tried > 10


def test_the_example_of_an_approval_for_several_targets_is_named_so(tmp_path: Path) -> None:
    body = described_in_cloud(tmp_path)["paths"]["/api/ticket-exports/{export_id}/approve"]["post"]["requestBody"]
    named = body["content"]["application/json"]["examples"]
    assert {name for name, each in named.items() if "target_ids" in each["value"]} == {"Several targets"}


def resources_of(app: App) -> tuple[Any, ...]:
    found = app._router.find(OpenApiResource.path)
    assert found is not None
    assert isinstance(found[0], OpenApiResource)
    return found[0].resources


def examples_of(resource: Any, method: str, folder: Path) -> list[Any]:
    operation = described_in_cloud(folder)["paths"][resource.path].get(method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return [example["value"] for example in content.get("examples", {}).values()]


@pytest.mark.parametrize(
    ("sender", "recipients", "is_taken"),
    [
        ({"From": "a@b.example"}, {"To": "c@d.example"}, True),
        ({"FromFull": {"Email": "a@b.example"}}, {"ToFull": [{"Email": "c@d.example"}]}, True),
        ({"From": None, "FromFull": {"Email": "a@b.example"}}, {"To": None, "Cc": "c@d.example"}, True),
        ({"FromFull": {"Email": "a@b.example"}}, {"BccFull": [{"Email": "c@d.example"}]}, True),
        ({"From": "a@b.example"}, {"OriginalRecipient": "c@d.example"}, True),
        ({}, {"To": "c@d.example"}, False),
        ({"From": None, "FromFull": None}, {"To": "c@d.example"}, False),
        ({"FromFull": {"Name": "Jane"}}, {"To": "c@d.example"}, False),
        ({"From": "a@b.example"}, {}, False),
        ({"From": "a@b.example"}, {"To": None, "ToFull": []}, False),
    ],
)
def test_the_description_says_which_mailboxes_an_email_needs(
    database: str, tmp_path: Path, sender: dict[str, Any], recipients: dict[str, Any], is_taken: bool
) -> None:
    body = {"MessageID": "1", **sender, **recipients}
    schema = {**described_in("cloud", tmp_path), "$ref": "#/components/schemas/PostmarkInput"}
    assert Draft202012Validator(schema).is_valid(body) == is_taken
    if is_taken:
        assert EmailForm().read(body).message_id == "1"
    else:
        with pytest.raises(ValidationFailed):
            EmailForm().read(body)


def test_every_body_has_an_example(database: str, tmp_path: Path) -> None:
    actual = described_in("cloud", tmp_path)
    without = [
        op["operationId"]
        for _, _, op in operations(actual)
        for media in op.get("requestBody", {}).get("content", {}).values()
        if not media.get("examples")
    ]
    assert without == []
    for name, item in actual["webhooks"].items():
        for header in item["post"]["parameters"]:
            validator = Draft202012Validator(header["schema"])
            assert [problem.message for problem in validator.iter_errors(header["example"])] == [], (name, header["name"])


def test_the_description_has_the_public_url(database: str, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"PUBLIC_BASE_URL": "https://risk.example.com/relay/"})
    record = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))).simulate_get("/openapi.json").json
    assert record["servers"] == [{"url": "https://risk.example.com/relay"}]
    assert "(https://risk.example.com/relay/docs)" in record["info"]["description"]


def test_all_errors_share_one_schema(database: str, tmp_path: Path) -> None:
    """A generated client needs only one class for all errors; a schema for each status resulted in 700 classes."""
    for name, response in described_in("cloud", tmp_path)["components"]["responses"].items():
        shapes = {kind: media["schema"] for kind, media in response["content"].items()}
        assert shapes == {
            "application/json": {"$ref": "#/components/schemas/Error"},
            "application/problem+json": {"$ref": "#/components/schemas/Problem"},
        }, name


def test_the_headers_of_errors_are_described(database: str, tmp_path: Path) -> None:
    responses = described_in("cloud", tmp_path)["components"]["responses"]
    assert set(responses["RateLimited"]["headers"]) == {"X-Request-Id", "Retry-After", "RateLimit", "RateLimit-Policy"}
    assert set(responses["ServiceUnavailable"]["headers"]) == set(responses["RateLimited"]["headers"])
    assert set(responses["UnauthorizedWithChallenge"]["headers"]) == {"X-Request-Id", "WWW-Authenticate"}


@pytest.mark.parametrize(
    ("mode", "schemes"),
    [
        ("cloud", {"apiToken", "platformToken", "scannerSecret", "emailSecret", "storefrontSignature"}),
        ("self-hosted", {"apiToken", "scannerSecret", "emailSecret"}),
        ("webhook-only", {"apiToken"}),
    ],
)
def test_the_description_has_no_credential_that_the_mode_does_not_accept(
    mode: str, schemes: set[str], database: str, tmp_path: Path
) -> None:
    assert described_in(mode, tmp_path)["components"]["securitySchemes"].keys() == schemes


def test_the_examples_of_responses_match_their_schemas(database: str, tmp_path: Path) -> None:
    actual = described_in("cloud", tmp_path)
    webhooks = [(f"webhook {name}", item["post"]["requestBody"]) for name, item in actual["webhooks"].items()]
    answers = [
        (f"{operation['operationId']} {status}", response)
        for _, _, operation in operations(actual)
        for status, response in operation["responses"].items()
        if "$ref" not in response
    ]
    errors = list(actual["components"]["responses"].items())
    wrong, tried = [], 0
    for name, holder in (*webhooks, *answers, *errors):
        for media in holder.get("content", {}).values():
            validator = Draft202012Validator({**media["schema"], "components": actual["components"]}, validate_formats=True)
            named = [each["value"] for each in media.get("examples", {}).values()]
            for value in named or [media["example"]]:
                tried += 1
                wrong += [f"{name}: {problem.message}" for problem in validator.iter_errors(value)]
    assert wrong == []
    assert tried > 60


def test_deliveries_match_their_description(customer: Customer, tmp_path: Path) -> None:
    actual = described_in("cloud", tmp_path)
    export_id, target_id = "exp_01KJM8AV0G3T0M3Q9V6W2Y5Z7A", "tgt_01KJM8A1Z8Q4R2S6T0V8W3X5Y7"
    ticket = actual["webhooks"]["ticket.export"]["post"]["requestBody"]["content"]["application/json"]["example"]["ticket"]
    source = Source("finding", "fnd_1", 42)
    order = PingJob("png_01KJM8G7H9J1K2M4N6P8Q0R1S3", NOW, target_id, 1, "Tracker", "https://tracker.example.com/", None)
    sent = {
        "ticket.export": delivery_body(export_id, target_id, source, ticket, "2026-03-01T12:00:00.000Z"),
        "target.ping": ping_body(order),
    }
    for name, body in sent.items():
        schema = actual["webhooks"][name]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**schema, "components": actual["components"]})
        assert [problem.message for problem in validator.iter_errors(json.loads(body))] == [], name
        assert not validator.is_valid({**json.loads(body), "more": 1})


def test_the_description_is_cached_until_it_changes(database: str, tmp_path: Path) -> None:
    client = TestClient(app_in("cloud", tmp_path))
    first = Call("GET", "/openapi.json").send(client)
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = Call("GET", "/openapi.json", (("If-None-Match", known),)).send(client)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), known
    assert Call("GET", "/openapi.json", (("If-None-Match", '"other"'),)).send(client).content == first.content
    head = Call("HEAD", "/openapi.json").send(client)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)
    assert Call("GET", "/openapi.json").send(TestClient(app_in("self-hosted", tmp_path))).headers["etag"] != tag


def test_the_description_contains_no_secret(database: str, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": "cloud"})
    text = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))).simulate_get("/openapi.json").text
    for secret in (settings.webhook_secret, settings.scanner_shared_secret, *settings.encryption_keys, str(tmp_path)):
        assert secret
        assert str(secret) not in text


def test_undescribed_responses_are_detected(client: TestClient, customer: Customer) -> None:
    """Proves that extra or missing members, other statuses and missing headers are detected, as other tests assume."""
    [export_id] = make_exports(customer, 1)
    path = f"{EXPORTS}/{{export_id}}"
    answer = client.simulate_get(path.format(export_id=export_id), headers=customer.bearer)
    described = OpenApiDescription(document(resources_of(client.app), "https://risk.example.com"))
    assert described.complaints("GET", path, answer) == []

    def changed(**changes: Any) -> list[str]:
        other = _Changed(answer, **changes)
        return described.complaints("GET", path, other)  # type: ignore[arg-type]  # it has the attributes that are read

    assert changed(json={**answer.json, "more": 1}) != []
    assert changed(json={name: value for name, value in answer.json.items() if name != "status"}) != []
    assert changed(json={**answer.json, "status": "lost"}) != []
    assert changed(status_code=418) == ["status 418 is not described"]
    html = CaseInsensitiveDict({**answer.headers, "content-type": "text/html"})
    assert changed(headers=html) == ["the media type text/html is not described"]
    assert "X-Request-Id is missing" in changed(headers=CaseInsensitiveDict({"content-type": "application/json"}))
    led_on = CaseInsensitiveDict({**answer.headers, "location": "https://risk.example.com/"})
    assert changed(headers=led_on) == ["Location is not described"]

    for accepted in ("application/json", "application/problem+json"):
        headers = {**customer.bearer, "Accept": accepted}
        refused = client.simulate_get(path.format(export_id=f"exp_{'0' * 26}"), headers=headers)
        assert described.complaints("GET", path, refused) == []
        body = json.loads(refused.text.replace("NOT_FOUND", "CONFLICT"))
        other = _Changed(refused, json=body)
        actual = described.complaints("GET", path, other)  # type: ignore[arg-type]  # as above
        assert actual == ["the code CONFLICT is not described"], accepted


class _Changed:
    """A response with some attributes replaced."""

    def __init__(self, answer: Any, **changes: Any) -> None:
        for name in ("status_code", "headers", "content", "json"):
            setattr(self, name, changes.get(name, getattr(answer, name)))
