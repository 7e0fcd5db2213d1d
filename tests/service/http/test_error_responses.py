"""Every error, one row each: the exact response, nothing stored, and nothing of the request in the response or the log."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from service.app import create_app
from storage.accounts import tokens
from storage.db.engine import execute
from tests.service.conftest import LogLines
from tests.support.factories import SCANNER_SECRET, issue, make_customer, make_settings, make_target, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import (
    CANARY,
    EXPORTS,
    RESULTS,
    SCANNER,
    TARGETS,
    Call,
    FieldRefusal,
    HttpScene,
    assert_is_error,
    everything_stored,
    prepared,
    target_request,
)

LIMIT_BYTES = 64 * 1024

#: All rows come from one address within a few seconds; limits/test_rate_limits.py tests the errors of rate limits.
UNLIMITED = {"AUTH_FAILURES_PER_MINUTE": "100000", "RATE_LIMIT_PER_MINUTE": "100000"}


@pytest.fixture(scope="module")
def scene(module_database: Path) -> HttpScene:
    """One scene for all rows: rejected requests do not change it, and every row checks that."""
    return _set_scene(module_database)


def _set_scene(folder: Path) -> HttpScene:
    customer, other = make_customer(), make_customer()
    clients = [
        _client(folder, {"DEFAULT_PROJECT_ID": str(each.project_id), "MAX_BODY_BYTES": str(LIMIT_BYTES), **UNLIMITED})
        for each in (customer, other)
    ]
    scene = HttpScene(
        customer=customer,
        other=other,
        client=clients[0],
        export_id=prepared(clients[0], 1),
        target_id=make_target(customer).id,
        others_export_id=prepared(clients[1], 2),
        others_target_id=make_target(other).id,
    )
    scene.tokens = _bad_tokens(scene)
    scene.stored = everything_stored()
    return scene


def _client(folder: Path, changes: dict[str, str]) -> TestClient:
    resolver = FakeResolver({"tracker.example.com": ["93.184.215.14"]})
    return TestClient(create_app(make_settings(folder, changes), FakeWakeUpQueue(), resolver))


def _bad_tokens(scene: HttpScene) -> dict[str, str]:
    """Create an invalid or insufficient token of each kind."""
    email, now = scene.customer.email, utc_now()
    expired = tokens.create(email, TokenKind.API, now - timedelta(days=2), expires=timedelta(days=1))
    revoked = tokens.create(email, TokenKind.API, now)
    tokens.revoke(revoked[0].id, now)
    forgotten = tokens.create(email, TokenKind.API, now)
    execute("DELETE FROM tokens WHERE id = ?", (forgotten[0].id,))
    return {
        "expired": expired[1],
        "revoked": revoked[1],
        "unknown": forgotten[1],
        "platform": tokens.create(email, TokenKind.PLATFORM, now)[1],
        "reader": tokens.create(email, TokenKind.API, now, [Ability.READ_EXPORTS])[1],
        "writer": tokens.create(email, TokenKind.API, now, [Ability.MANAGE_TARGETS, Ability.APPROVE_EXPORTS])[1],
        "poor": make_customer(may_use_webhooks=False).token,
    }


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """A request that is rejected, and the expected response."""

    title: str
    call: Callable[[HttpScene], Call]
    status: int
    code: str
    fields: tuple[FieldRefusal, ...] = ()
    allow: str | None = None


def unauthorized(title: str, call: Callable[[HttpScene], Call]) -> ErrorCase:
    return ErrorCase(title, call, 401, "UNAUTHORIZED")


def invalid(title: str, call: Callable[[HttpScene], Call], *fields: tuple[str, str]) -> ErrorCase:
    return ErrorCase(title, call, 422, "VALIDATION_FAILED", tuple(FieldRefusal(*each) for each in fields))


def bearer(call: Call, token: str, scheme: str = "Bearer") -> Call:
    return call.without("Authorization").plus(("Authorization", f"{scheme} {token}"))


#: The three routes that accept a bearer token.
BEARER_ROUTES: dict[str, Callable[[HttpScene], Call]] = {
    "register": lambda scene: scene.register,
    "approve": lambda scene: scene.approve,
    "read": lambda scene: scene.read,
}

#: Ways of sending no valid token.
NO_BEARER: dict[str, Callable[[HttpScene, Call], Call]] = {
    "no token": lambda _, call: call.without("Authorization"),
    "an empty header": lambda _, call: call.without("Authorization").plus(("Authorization", "")),
    "the scheme alone": lambda _, call: bearer(call, ""),
    "another scheme": lambda scene, call: bearer(call, scene.customer.token, "Basic"),
    "no scheme": lambda scene, call: call.without("Authorization").plus(("Authorization", scene.customer.token)),
    "a made-up token": lambda _, call: bearer(call, CANARY),
    "a token with one digit changed": lambda scene, call: bearer(call, _one_digit_off(scene.customer.token)),
    "a token with something behind it": lambda scene, call: bearer(call, f"{scene.customer.token} {CANARY}"),
    "a token that nobody has": lambda scene, call: bearer(call, scene.tokens["unknown"]),
    "an expired token": lambda scene, call: bearer(call, scene.tokens["expired"]),
    "a revoked token": lambda scene, call: bearer(call, scene.tokens["revoked"]),
    "the header twice": lambda scene, call: call.plus(("Authorization", f"Bearer {scene.customer.token}")),
    "a second header that is wrong": lambda _, call: call.plus(("Authorization", f"Bearer {CANARY}")),
    "characters beyond ASCII": lambda _, call: bearer(call, "rrt_gr\xfcn"),
    "the scanner's secret as a token": lambda _, call: bearer(call, SCANNER_SECRET),
    "the scanner's header": lambda _, call: call.without("Authorization").plus(*SCANNER.items()),
    "a token in the query": lambda scene, call: _in_query(call, scene.customer.token),
}


def _one_digit_off(token: str) -> str:
    return token[:10] + ("a" if token[10] != "a" else "b") + token[11:]


def _in_query(call: Call, token: str) -> Call:
    bare = call.without("Authorization")
    return Call(bare.method, bare.path, bare.headers, bare.body, query=f"access_token={token}")


def _no_bearer_row(name: str, spoil: Callable[[HttpScene, Call], Call], route: str) -> ErrorCase:
    return unauthorized(f"{route}: {name}", lambda scene: spoil(scene, BEARER_ROUTES[route](scene)))


def secret(value: str) -> Callable[[HttpScene], Call]:
    return lambda scene: scene.results.without("X-Scanner-Secret").plus(("X-Scanner-Secret", value))


AUTHENTICATION = [
    *(_no_bearer_row(name, spoil, route) for name, spoil in NO_BEARER.items() for route in BEARER_ROUTES),
    unauthorized("results: no secret", lambda scene: scene.results.without("X-Scanner-Secret")),
    unauthorized("results: an empty secret", secret("")),
    unauthorized("results: a wrong secret", secret(CANARY)),
    unauthorized("results: the secret and more", secret(f"{SCANNER_SECRET}{CANARY}")),
    unauthorized("results: half of the secret", secret(SCANNER_SECRET[:-1])),
    unauthorized("results: the secret in capitals", secret(SCANNER_SECRET.upper())),
    unauthorized("results: a secret beyond ASCII", secret("gr\xfcn")),
    unauthorized("results: the secret twice", lambda scene: scene.results.plus(*SCANNER.items())),
    unauthorized("results: a wrong secret behind it", lambda scene: scene.results.plus(("X-Scanner-Secret", CANARY))),
    unauthorized(
        "results: a token instead",
        lambda scene: scene.results.without("X-Scanner-Secret").plus(*scene.customer.bearer.items()),
    ),
    unauthorized(
        "results: the secret as a token", lambda scene: bearer(scene.results.without("X-Scanner-Secret"), SCANNER_SECRET)
    ),
    unauthorized(
        "results: a token as the secret",
        lambda scene: scene.results.without("X-Scanner-Secret").plus(("X-Scanner-Secret", scene.customer.token)),
    ),
]


def forbidden(title: str, call: Callable[[HttpScene], Call]) -> ErrorCase:
    return ErrorCase(title, call, 403, "FORBIDDEN")


ABILITIES = [
    forbidden("register: a platform token", lambda scene: bearer(scene.register, scene.tokens["platform"])),
    forbidden("approve: a platform token", lambda scene: bearer(scene.approve, scene.tokens["platform"])),
    forbidden("read: a platform token", lambda scene: bearer(scene.read, scene.tokens["platform"])),
    forbidden("register: a token that may only read", lambda scene: bearer(scene.register, scene.tokens["reader"])),
    forbidden("approve: a token that may only read", lambda scene: bearer(scene.approve, scene.tokens["reader"])),
    forbidden("read: a token that may not read", lambda scene: bearer(scene.read, scene.tokens["writer"])),
    forbidden("register: an account without webhooks", lambda scene: bearer(scene.register, scene.tokens["poor"])),
]

#: Bodies that cannot be parsed, whatever the route.
MALFORMED = {
    "an empty body": b"",
    "spaces": b"  \r\n",
    "no JSON": CANARY.encode(),
    "half an object": b'{"scanRunId": 1, "' + CANARY.encode(),
    "a second value": b"{} {}",
    "a trailing comma": b'{"a": 1,}',
    "a comment": b"{} // " + CANARY.encode(),
    "single quotes": b"{'a': 1}",
    "a member twice": b'{"status": "a", "status": "b"}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "a number beyond doubles": b'{"a": 1e999}',
    "an integer of 400 digits": b'{"a": ' + b"9" * 400 + b"}",
    "NUL as an escape": rb'{"a": "\u0000"}',
    "NUL itself": b'{"a": "\x00"}',
    "a lone surrogate": rb'{"a": "\ud800"}',
    "Latin-1": b'{"a": "gr\xfcn"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "33 arrays": b"[" * 33 + b"]" * 33,
    "20,000 arrays": b"[" * 20_000 + b"]" * 20_000,
    "20,000 objects without end": b'{"a":' * 8_000,
}

WRITING_ROUTES: dict[str, Callable[[HttpScene], Call]] = {
    "results": lambda scene: scene.results,
    "register": lambda scene: scene.register,
    "approve": lambda scene: scene.approve,
}

#: Well-formed JSON that is not an object.
NO_OBJECT = {"an array": b"[]", "a string": b'"x"', "a number": b"1", "true": b"true", "null": b"null"}


def body(route: str, content: bytes) -> Callable[[HttpScene], Call]:
    def call(scene: HttpScene) -> Call:
        sent = WRITING_ROUTES[route](scene)
        return Call(sent.method, sent.path, sent.headers, content)

    return call


SYNTAX = [
    *(
        invalid(f"{route}: {name}", body(route, content), ("", "malformed_json"))
        for name, content in MALFORMED.items()
        for route in WRITING_ROUTES
    ),
    *(
        invalid(f"{route}: {name}", body(route, content), ("", "invalid_type"))
        for name, content in NO_OBJECT.items()
        for route in WRITING_ROUTES
    ),
]


def results(**changes: Any) -> Callable[[HttpScene], Call]:
    return lambda scene: scene.results.with_json(postback(99, **changes))


def results_without(member: str) -> Callable[[HttpScene], Call]:
    return lambda scene: scene.results.with_json({name: value for name, value in postback(99).items() if name != member})


def page(**changes: Any) -> Callable[[HttpScene], Call]:
    return results(page={**postback()["page"], **changes})


def issues(**changes: Any) -> Callable[[HttpScene], Call]:
    return results(issues=[issue(), issue("second", **changes)])


def register(**changes: Any) -> Callable[[HttpScene], Call]:
    return lambda scene: scene.register.with_json(target_request(**changes))


def register_without(member: str) -> Callable[[HttpScene], Call]:
    body = {name: value for name, value in target_request().items() if name != member}
    return lambda scene: scene.register.with_json(body)


def approve(**changes: Any) -> Callable[[HttpScene], Call]:
    return lambda scene: scene.approve.with_json({"target_id": scene.target_id, **changes})


SHAPES = [
    # endpoint 1
    invalid(
        "results: nothing in it",
        lambda scene: scene.results.with_json({}),
        ("/scanRunId", "required"),
        ("/status", "required"),
        ("/page", "required"),
    ),
    invalid("results: no scanRunId", results_without("scanRunId"), ("/scanRunId", "required")),
    invalid("results: no status", results_without("status"), ("/status", "required")),
    invalid("results: no page", results_without("page"), ("/page", "required")),
    invalid("results: no page.url", results(page={}), ("/page/url", "required")),
    invalid("results: scanRunId as text", results(scanRunId=CANARY), ("/scanRunId", "invalid_type")),
    invalid("results: scanRunId as digits in text", results(scanRunId="42"), ("/scanRunId", "invalid_type")),
    invalid("results: scanRunId with a fraction", results(scanRunId=42.5), ("/scanRunId", "invalid_type")),
    invalid("results: scanRunId as 42.0", results(scanRunId=42.0), ("/scanRunId", "invalid_type")),
    invalid("results: scanRunId true", results(scanRunId=True), ("/scanRunId", "invalid_type")),
    invalid("results: scanRunId null", results(scanRunId=None), ("/scanRunId", "null")),
    invalid("results: scanRunId zero", results(scanRunId=0), ("/scanRunId", "out_of_range")),
    invalid("results: scanRunId below zero", results(scanRunId=-1), ("/scanRunId", "out_of_range")),
    invalid("results: scanRunId beyond 63 bits", results(scanRunId=2**63), ("/scanRunId", "out_of_range")),
    invalid("results: status of another type", results(status=1), ("/status", "invalid_type")),
    invalid("results: an unknown status", results(status=CANARY), ("/status", "not_allowed")),
    invalid("results: a status in capitals", results(status="COMPLETED"), ("/status", "not_allowed")),
    invalid("results: page as text", results(page=CANARY), ("/page", "invalid_type")),
    invalid("results: page as a list", results(page=[]), ("/page", "invalid_type")),
    invalid("results: page null", results(page=None), ("/page", "null")),
    invalid("results: page.url of another type", page(url=1), ("/page/url", "invalid_type")),
    invalid("results: page.url without a host", page(url=f"https:///{CANARY}"), ("/page/url", "invalid_url")),
    invalid("results: page.url of another scheme", page(url=f"javascript:{CANARY}"), ("/page/url", "invalid_url")),
    invalid("results: page.url relative", page(url=f"/{CANARY}"), ("/page/url", "invalid_url")),
    invalid(
        "results: page.url with brackets that hold no address", page(url="http://[::::]/"), ("/page/url", "invalid_url")
    ),
    invalid("results: page.url with a host that folds", page(url="http://ex\u2100.com/"), ("/page/url", "invalid_url")),
    invalid("results: page.url too long", page(url=f"https://shop.example/{'a' * 2048}"), ("/page/url", "too_long")),
    invalid("results: page.normalizedUrl no URL", page(normalizedUrl=CANARY), ("/page/normalizedUrl", "invalid_url")),
    invalid("results: page.statusCode as text", page(statusCode="200"), ("/page/statusCode", "invalid_type")),
    invalid("results: page.statusCode out of range", page(statusCode=1000), ("/page/statusCode", "out_of_range")),
    invalid("results: page.pageType of another type", page(pageType={}), ("/page/pageType", "invalid_type")),
    invalid("results: page.pageType too long", page(pageType=CANARY * 10), ("/page/pageType", "too_long")),
    invalid(
        "results: page.responseHeaders as a list", page(responseHeaders=[CANARY]), ("/page/responseHeaders", "invalid_type")
    ),
    invalid("results: artifacts as text", results(artifacts=CANARY), ("/artifacts", "invalid_type")),
    invalid(
        "results: screenshotPath of another type",
        results(artifacts={"screenshotPath": [CANARY]}),
        ("/artifacts/screenshotPath", "invalid_type"),
    ),
    invalid("results: issues as an object", results(issues={CANARY: 1}), ("/issues", "invalid_type")),
    invalid("results: an issue as text", results(issues=[CANARY]), ("/issues/0", "invalid_type")),
    invalid("results: an issue without a name", results(issues=[{CANARY: 1}]), ("/issues/0/title", "required")),
    invalid("results: an issue's title of another type", issues(title=[CANARY]), ("/issues/1/title", "invalid_type")),
    invalid("results: an issue's title too long", issues(title="x" * 501), ("/issues/1/title", "too_long")),
    invalid(
        "results: an issue's description too long", issues(description="x" * 20_001), ("/issues/1/description", "too_long")
    ),
    invalid("results: an issue's url no URL", issues(url=CANARY), ("/issues/1/url", "invalid_url")),
    invalid("results: 501 issues", results(issues=[{"code": "x"}] * 501), ("/issues", "too_many")),
    # endpoint 3
    invalid(
        "register: nothing in it",
        lambda scene: scene.register.with_json({}),
        ("/provider_key", "required"),
        ("/base_url", "required"),
        ("/name", "required"),
    ),
    invalid("register: no provider_key", register_without("provider_key"), ("/provider_key", "required")),
    invalid("register: no base_url", register_without("base_url"), ("/base_url", "required")),
    invalid("register: no name", register_without("name"), ("/name", "required")),
    invalid("register: an unknown provider", register(provider_key=CANARY), ("/provider_key", "not_allowed")),
    invalid("register: provider_key of another type", register(provider_key=1), ("/provider_key", "invalid_type")),
    invalid("register: base_url of another type", register(base_url={"a": CANARY}), ("/base_url", "invalid_type")),
    invalid("register: base_url null", register(base_url=None), ("/base_url", "null")),
    invalid("register: base_url too long", register(base_url="https://a.example/" + "a" * 2048), ("/base_url", "too_long")),
    invalid("register: an unknown mode", register(deployment_mode=CANARY), ("/deployment_mode", "not_allowed")),
    invalid("register: an empty name", register(name=""), ("/name", "too_short")),
    invalid("register: a name of spaces", register(name=" \n "), ("/name", "too_short")),
    invalid("register: a name too long", register(name="x" * 201), ("/name", "too_long")),
    invalid("register: an unknown member", register(**{CANARY: CANARY}), ("", "unknown_member")),
    invalid(
        "register: a secret in the payload", register(secret=CANARY), ("", "unknown_member"), ("/secret", "forbidden_name")
    ),
    # endpoint 4
    invalid("approve: nothing in it", lambda scene: scene.approve.with_json({}), ("/target_id", "required")),
    invalid("approve: target_id null", approve(target_id=None), ("/target_id", "null")),
    invalid("approve: target_id of another type", approve(target_id=7), ("/target_id", "invalid_type")),
    invalid("approve: target_id empty", approve(target_id=""), ("/target_id", "too_short")),
    invalid("approve: target_id absurdly long", approve(target_id="tgt_" + "A" * 5000), ("/target_id", "too_long")),
    invalid(
        "approve: target_id with odd characters", approve(target_id="tgt_';--\u202e\u20ac"), ("/target_id", "unknown_target")
    ),
    invalid("approve: a target that nobody has", approve(target_id=f"tgt_{CANARY}"), ("/target_id", "unknown_target")),
    invalid(
        "approve: another account's target",
        lambda scene: scene.approve.with_json({"target_id": scene.others_target_id}),
        ("/target_id", "unknown_target"),
    ),
    invalid("approve: ticket_digest of another type", approve(ticket_digest=1), ("/ticket_digest", "invalid_type")),
    invalid("approve: ticket_digest too long", approve(ticket_digest="x" * 101), ("/ticket_digest", "too_long")),
    invalid("approve: an unknown member", approve(**{CANARY: CANARY}), ("", "unknown_member")),
    ErrorCase("approve: another ticket_digest", approve(ticket_digest=f"sha256:{CANARY}"), 409, "CONFLICT"),
]


def read(export_id: str) -> Callable[[HttpScene], Call]:
    return lambda scene: Call("GET", f"{EXPORTS}/{export_id}", scene.read.headers)


def approve_of(export_id: str) -> Callable[[HttpScene], Call]:
    return lambda scene: Call("POST", f"{EXPORTS}/{export_id}/approve", scene.approve.headers, scene.approve.body)


#: IDs that do not exist; some are longer than a database column or a URL should be.
STRANGE_IDS = {
    "unknown": "exp_01AAAAAAAAAAAAAAAAAAAAAAAA",
    "no prefix": "01AAAAAAAAAAAAAAAAAAAAAAAA",
    "of a target": "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA",
    "absurdly long": "exp_" + "A" * 7000,
    "with NUL": f"exp_%00{CANARY}",
    "with quotes": "exp_%27%20OR%201=1--",
    "with a line break": "exp_%0d%0aX-Injected:%20" + CANARY,
    "not UTF-8": "exp_%ff%fe",
    "right to left": "exp_%E2%80%AE",
    "with a percent sign that escapes nothing": "exp_%zz%",
    "dots": "..%2f..%2fetc%2fpasswd",
}


def not_found(title: str, call: Callable[[HttpScene], Call]) -> ErrorCase:
    return ErrorCase(title, call, 404, "NOT_FOUND")


PLACES = [
    *(not_found(f"read: an id {name}", read(text)) for name, text in STRANGE_IDS.items()),
    *(not_found(f"approve: an id {name}", approve_of(text)) for name, text in STRANGE_IDS.items()),
    not_found("read: another account's export", lambda scene: read(scene.others_export_id)(scene)),
    not_found("approve: another account's export", lambda scene: approve_of(scene.others_export_id)(scene)),
    not_found("an unknown path", lambda _: Call("GET", f"/{CANARY}", query=f"{CANARY}={CANARY}")),
    not_found("a path that does not decode", lambda _: Call("GET", f"/%zz%ff%00{CANARY}")),
    not_found("the root", lambda _: Call("GET", "/")),
    not_found("a slash behind a path", lambda scene: Call("POST", f"{RESULTS}/", scene.results.headers, scene.results.body)),
    not_found("a path in capitals", lambda scene: Call("POST", RESULTS.upper(), scene.results.headers, scene.results.body)),
    not_found(
        "an export without an id",
        lambda scene: Call("POST", f"{EXPORTS}//approve", scene.approve.headers, scene.approve.body),
    ),
]


def wrong_method(method: str, path: str, allow: str) -> ErrorCase:
    return ErrorCase(f"{method} {path}", lambda _: Call(method, path), 405, "METHOD_NOT_ALLOWED", allow=allow)


METHODS = [
    *(wrong_method(method, RESULTS, "POST, OPTIONS") for method in ("GET", "PUT", "PATCH", "DELETE")),
    *(wrong_method(method, TARGETS, "GET, HEAD, POST, OPTIONS") for method in ("PUT", "DELETE")),
    *(wrong_method(method, f"{EXPORTS}/exp_1/approve", "POST, OPTIONS") for method in ("GET", "DELETE")),
    *(wrong_method(method, f"{EXPORTS}/exp_1", "GET, HEAD, PATCH, OPTIONS") for method in ("POST", "PUT", "DELETE")),
    *(
        wrong_method(method, path, "GET, HEAD, OPTIONS")
        for method in ("POST", "DELETE")
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/page.js", "/docs/nothing")
    ),
]


def header(route: str, name: str, value: str) -> Callable[[HttpScene], Call]:
    routes = {**WRITING_ROUTES, **BEARER_ROUTES}
    return lambda scene: routes[route](scene).without(name).plus((name, value))


MEDIA_TYPES = ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "text/json", f"text/{CANARY}", "json")
#: Accept headers that exclude JSON.
NO_JSON = ("text/html", "image/*", "application/json;q=0", f"text/{CANARY}", "application/json;q=0, text/html")
BAD_KEYS = {"empty": "", "of 256 characters": "k" * 256, "beyond ASCII": "gr\xfcn", "with a tab": "a\tb"}

HEADERS = [
    *(
        ErrorCase(f"{route}: body of {kind}", header(route, "Content-Type", kind), 415, "UNSUPPORTED_MEDIA_TYPE")
        for kind in MEDIA_TYPES
        for route in WRITING_ROUTES
    ),
    *(
        ErrorCase(
            f"{route}: body of no type",
            lambda scene, route=route: WRITING_ROUTES[route](scene).without("Content-Type"),  # type: ignore[misc]  # bound per row
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        )
        for route in WRITING_ROUTES
    ),
    *(
        ErrorCase(f"{route}: compressed", header(route, "Content-Encoding", "gzip"), 415, "UNSUPPORTED_MEDIA_TYPE")
        for route in WRITING_ROUTES
    ),
    *(
        ErrorCase(f"{route}: accepts {accept}", header(route, "Accept", accept), 406, "NOT_ACCEPTABLE")
        for accept in NO_JSON
        for route in (*WRITING_ROUTES, "read")
    ),
    *(
        invalid(f"{route}: a key {name}", header(route, "Idempotency-Key", value), ("", "invalid_key"))
        for name, value in BAD_KEYS.items()
        for route in WRITING_ROUTES
    ),
]

TOO_LARGE = [
    ErrorCase(f"{route}: one byte over the limit", body(route, b" " * (LIMIT_BYTES + 1)), 413, "PAYLOAD_TOO_LARGE")
    for route in WRITING_ROUTES
]


def _with_malformed_body(call: Call) -> Call:
    """Make the body malformed too."""
    return Call(call.method, call.path, call.headers, b"{" + CANARY.encode())


def _with_large_body(call: Call) -> Call:
    return Call(call.method, call.path, call.headers, b" " * (LIMIT_BYTES + 1))


def _as_dry_run(call: Call, asked: str = "true") -> Call:
    return Call(call.method, call.path, call.headers, call.body, query=f"dry_run={asked}")


#: A route without dry runs must not perform the work when one is requested.
DRY_RUNS = [
    invalid("approve: a dry run", lambda scene: _as_dry_run(scene.approve), ("/dry_run", "not_supported")),
    invalid("read: a dry run", lambda scene: _as_dry_run(scene.read), ("/dry_run", "not_supported")),
    invalid(
        "register: perhaps a dry run", lambda scene: _as_dry_run(scene.register, "perhaps"), ("/dry_run", "not_allowed")
    ),
    invalid("results: perhaps a dry run", lambda scene: _as_dry_run(scene.results, ""), ("/dry_run", "not_allowed")),
    invalid(
        "results: a dry run and none",
        lambda scene: _as_dry_run(scene.results, "true&dry_run=false"),
        ("/dry_run", "not_allowed"),
    ),
    invalid("results: a dry run in capitals", lambda scene: _as_dry_run(scene.results, "TRUE"), ("/dry_run", "not_allowed")),
    invalid(
        "approve: perhaps a dry run", lambda scene: _as_dry_run(scene.approve, "perhaps"), ("/dry_run", "not_supported")
    ),
]

#: Two errors in one request: the first check decides the response.
ORDER = [
    ErrorCase(
        "a wrong method before its size",
        lambda _: _with_large_body(Call("DELETE", RESULTS)),
        405,
        "METHOD_NOT_ALLOWED",
        allow="POST, OPTIONS",
    ),
    ErrorCase(
        "size before the token",
        lambda scene: _with_large_body(scene.register.without("Authorization")),
        413,
        "PAYLOAD_TOO_LARGE",
    ),
    ErrorCase(
        "size before the secret",
        lambda scene: _with_large_body(scene.results.without("X-Scanner-Secret")),
        413,
        "PAYLOAD_TOO_LARGE",
    ),
    unauthorized("the token before the body", lambda scene: _with_malformed_body(scene.register.without("Authorization"))),
    unauthorized(
        "the secret before the body", lambda scene: _with_malformed_body(scene.results.without("X-Scanner-Secret"))
    ),
    unauthorized(
        "the token before Content-Type", lambda scene: scene.register.without("Authorization").without("Content-Type")
    ),
    unauthorized("the token before Accept", lambda scene: scene.read.without("Authorization").plus(("Accept", "text/html"))),
    unauthorized("the token before the id", lambda scene: read("exp_%00")(scene).without("Authorization")),
    unauthorized(
        "the token before the key", lambda scene: scene.register.without("Authorization").plus(("Idempotency-Key", ""))
    ),
    forbidden(
        "the account before the body", lambda scene: _with_malformed_body(bearer(scene.register, scene.tokens["poor"]))
    ),
    forbidden(
        "the ability before the body", lambda scene: _with_malformed_body(bearer(scene.approve, scene.tokens["reader"]))
    ),
    forbidden("the ability before the id", lambda scene: bearer(read("exp_nobody")(scene), scene.tokens["writer"])),
    ErrorCase(
        "Content-Type before the body",
        lambda scene: _with_malformed_body(scene.results.without("Content-Type")),
        415,
        "UNSUPPORTED_MEDIA_TYPE",
    ),
    invalid(
        "the body before the id", lambda scene: _with_malformed_body(approve_of("exp_nobody")(scene)), ("", "malformed_json")
    ),
    invalid(
        "the shape before the key",
        lambda scene: scene.approve.with_json({}).plus(("Idempotency-Key", "")),
        ("/target_id", "required"),
    ),
    forbidden(
        "the account before the address", lambda scene: bearer(register(base_url="http://x")(scene), scene.tokens["poor"])
    ),
]

ROWS = [*AUTHENTICATION, *ABILITIES, *SYNTAX, *SHAPES, *PLACES, *METHODS, *HEADERS, *TOO_LARGE, *DRY_RUNS, *ORDER]

CHALLENGE = 'Bearer realm="riskrelay"'


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_an_error_has_its_status_and_code_and_stores_nothing(row: ErrorCase, scene: HttpScene, log_lines: LogLines) -> None:
    call = row.call(scene).plus(("X-Request-Id", "asked.by_the-client.1"))

    answer = call.send(scene.client)

    assert_is_error(answer, row.status, row.code, row.fields)
    assert answer.headers["x-request-id"] == "asked.by_the-client.1"
    assert answer.headers.get("www-authenticate") == (CHALLENGE if row.status == 401 and call.path != RESULTS else None)
    assert answer.headers.get("allow") == row.allow
    assert_nothing_comes_back(answer, scene)
    assert everything_stored() == scene.stored
    assert CANARY not in log_lines.text
    assert not [line for line in log_lines.lines if '"level": "error"' in line]


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
@pytest.mark.parametrize("method", ["FOO", "WEBSOCKET"])
@pytest.mark.parametrize(("path", "allow"), [("/healthz", "GET, HEAD, OPTIONS"), (EXPORTS, "GET, HEAD, POST, OPTIONS")])
def test_an_unknown_method_is_not_allowed_either(method: str, path: str, allow: str, scene: HttpScene) -> None:
    answer = Call(method, path).send(scene.client)
    assert_is_error(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == allow
    assert_is_error(Call(method, f"/{CANARY}").send(scene.client), 404, "NOT_FOUND")


def test_a_refused_dry_run_names_the_values(scene: HttpScene) -> None:
    [problem] = _as_dry_run(scene.results, "maybe").send(scene.client).json["error"]["details"]["fields"]
    assert problem["message"] == "This value is not one of the allowed values: true, 1, false, 0."


#: One row for each kind of error response.
ONE_OF_EACH = list({(row.status, row.code, bool(row.fields)): row for row in ROWS if row.status != 406}.values())


@pytest.mark.parametrize("row", ONE_OF_EACH, ids=lambda row: row.title)
def test_an_error_is_a_problem_document_if_accept_asks_for_it(row: ErrorCase, scene: HttpScene) -> None:
    accept = ("Accept", "application/problem+json, application/json;q=0.5")

    answer = row.call(scene).plus(accept).send(scene.client)

    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == answer.json["status"] == row.status
    assert set(answer.json) == {"type", "title", "status", "code", "errors", "request_id"}
    assert answer.json["code"] == row.code
    assert {(each["path"], each["code"]) for each in answer.json["errors"]} == {
        (each.path, each.code) for each in row.fields
    }
    assert answer.json["request_id"] == answer.headers["x-request-id"]


def assert_nothing_comes_back(answer: Result, scene: HttpScene) -> None:
    text = answer.text + repr(sorted(answer.headers.items()))
    for secret_text in (CANARY, SCANNER_SECRET, scene.customer.token, *scene.tokens.values()):
        assert secret_text not in text


@pytest.mark.parametrize("configured", [None, ""])
@pytest.mark.parametrize("sent", [None, "", "None", CANARY])
def test_without_a_configured_secret_every_scanner_request_is_refused(
    configured: str | None, sent: str | None, scene: HttpScene, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path, scanner_shared_secret=configured)
    client = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
    call = scene.results.without("X-Scanner-Secret")

    answer = (call if sent is None else call.plus(("X-Scanner-Secret", sent))).send(client)

    assert_is_error(answer, 401, "UNAUTHORIZED")


def test_the_log_assertions_can_fail(log_lines: LogLines) -> None:
    """Proves that the log assertions of the rows can fail."""
    logging.getLogger("service").error("a line with %s", CANARY)
    assert CANARY in log_lines.text
    assert '"level": "error"' in log_lines.text
