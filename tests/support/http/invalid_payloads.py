"""Requests with a canary in one place each: in a member of a form, an unknown member, a header, a parameter or a path.

The routes are read from the application, and the members from valid bodies in this module. New routes are therefore
included. `unnamed_members` returns members of forms that are in none of the bodies.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Final
from urllib.parse import urlsplit

from falcon.inspect import inspect_routes

from schemas.trackers.registry import TRACKERS
from schemas.triage.approval_rules import RuleAction, RuleActionType, RuleMatch
from service.app import App
from tests.support.canaries import numbered
from tests.support.factories import (
    capture,
    cms_diagnostics,
    issue,
    make_colleague,
    make_exports,
    make_project,
    make_rule,
    make_target,
    plain_email,
    postback,
    postmark_email,
    storefront_diagnostics,
)
from tests.support.http.raw_http import (
    EXPORTS,
    JSON,
    RECOVERIES,
    RESULTS,
    RULES,
    TARGETS,
    Call,
    is_of_the_console,
    target_request,
)
from tests.support.http.request_bodies import BY_HAND
from tests.support.http.specification import (
    CAPTURES,
    CMS,
    COMPLIANCE,
    EMAIL,
    EMAIL_SECRET,
    HANDOFF,
    SHOP,
    STOREFRONT,
    CloudInstallation,
    signed,
)
from tests.support.http.storefront import ADA, data_request_body, redact_body, shop_body
from tests.support.trackers.settings import every_setting

Pointer = tuple[str | int, ...]

#: Headers that RiskRelay, the framework, the server, a proxy or a tracer may read.
HEADERS: Final = (
    *("User-Agent", "Referer", "Cookie", "Origin", "From", "Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host"),
    *("X-Forwarded-Proto", "X-Real-IP", "X-Anything", "Accept-Language", "Accept-Charset", "Range", "If-Match", "If-Range"),
    *("If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "Date", "Pragma", "Cache-Control", "Max-Forwards"),
    *("Proxy-Authorization", "Traceparent", "Tracestate", "Baggage", "Sentry-Trace", "X-B3-TraceId", "X-Amzn-Trace-Id"),
    *("X-Http-Method-Override", "Content-Language", "Content-Location", "Content-Disposition", "Digest", "Signature"),
    *("X-Scanner-Secret", "X-Email-Webhook-Secret", "X-Platform-Topic", "X-Platform-Shop-Domain", "X-Service-Signature"),
    *("X-Api-Key", "X-Csrf-Token", "Last-Event-Id", "Prefer", "Want-Digest", "Webhook-Id", "Webhook-Signature"),
)
#: Headers whose invalid values are rejected; each is sent in a request of its own.
DECIDING: Final = ("Accept", "Content-Type", "Content-Encoding", "Authorization", "X-Platform-Hmac-Sha256")

_WITH_BODY: Final = frozenset({"POST", "PATCH"})
_RULE_MATCH: Final = {
    "project_id": 1,
    "severity_at_least": "high",
    "sources": ["finding"],
    "rule": "csp-*",
    "page_path": "/checkout/*",
}
_EDIT: Final = {
    "title": "A title",
    "description": "A description",
    "severity": "high",
    "labels": ["later"],
    "ticket_digest": None,
}
_FILTER: Final = {
    "status": "prepared",
    "severity": "high",
    "project_id": "1",
    "source": "finding",
    "rule": "csp",
    "target_id": "tgt_01KJM8A1Z8Q4R2S6T0V8W3X5Y7",
    "host": "shop.example",
    "q": "checkout",
    "created_after": "2026-01-01T00:00:00Z",
    "created_before": "2026-02-01T00:00:00Z",
}
#: A target of each tracker, with every setting.
_TRACKERS: Final = [
    {
        "provider_key": key,
        "base_url": f"https://tracker.example.com{urlsplit(tracker.base_url_example).path}",
        "name": "Shop",
        "provider_settings": every_setting(key),
    }
    for key, tracker in TRACKERS.items()
]
_ISSUE: Final = {**issue(), "url": "https://shop.example/", "helpUrl": "https://rules.example/", "nodes": [{"target": "a"}]}
_HEADED: Final = {**postback()["page"], "responseHeaders": {"server": "nginx"}, "rules": ["img-alt", "csp*"]}
#: The attachments of an email in the plain form. `_ENCLOSED` has them in Postmark's form.
_ATTACHED: Final = [{"name": "a.png", "content_type": "image/png", "size_bytes": 8}]
_ENCLOSED: Final = [{"Name": "b.png", "Content": "iVBORw0KGgo=", "ContentType": "image/png", "ContentLength": 8}]
_REACHED: Final = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")


@dataclass(frozen=True, slots=True)
class Probe:
    """A request with the canary `number` in one place. `place` names the route and the member, with `*` for list indexes."""

    place: str
    number: int
    call: Call


def unnamed_members(app: App, world: CloudInstallation) -> dict[str, set[str]]:
    """Return, by route, the members of forms that are in no request of this module."""
    lacking: dict[str, set[str]] = {}
    for method, route, operation in _operations(app, world):
        reported = {name for call in _calls(world, method, route) for name in _names(call.body)}
        members = operation.form.member_names() if operation.form else frozenset()
        if unnamed := {*members} - reported:
            lacking[f"{method} {route}"] = unnamed
    return lacking


def requests(app: App, world: CloudInstallation) -> Iterator[Probe]:
    """Yield every request with a canary in one place, each with a different number."""
    numbers = iter(range(1, 100_000))
    for method, route, operation in _operations(app, world):
        for which, base in enumerate(_calls(world, method, route)):
            name = f"{method} {route}"
            if which == 0:
                around = _around(name, base, numbers)
                yield from (replace(each, call=_of_a_new_row(name, each.call, world)) for each in around)
            for place, spoiled, number in _within(route, base, numbers):
                call = _of_a_new_row(name, spoiled, world)
                if operation.has_dry_run:
                    dry = next(numbers)
                    yield Probe(f"{name} dry {place}", dry, _dry(_renumbered(call, dry), route))
                yield Probe(f"{name} {place}", number, _resigned(route, call))
    for method, path in (("GET", "/{}"), ("POST", "/api/{}"), ("GET", "/api/ticket-exports/{}/{}"), ("PUT", "/{}")):
        number = next(numbers)
        yield Probe(f"{method} nowhere", number, Call(method, path.replace("{}", numbered(number))))


def _new_export(world: CloudInstallation) -> str:
    return make_exports(world.customer, 1)[0]


def _new_target(world: CloudInstallation) -> str:
    return make_target(world.customer).id


def _new_rule(world: CloudInstallation) -> str:
    return make_rule(world.customer, RuleAction(RuleActionType.LABEL, labels=("later",)), RuleMatch(rule="none")).id


#: By route, the parameter of its path and the function that stores a row and returns its id.
_NEW_ROWS: Final[Mapping[str, tuple[str, Callable[[CloudInstallation], str]]]] = {
    f"PATCH {EXPORTS}/{{export_id}}": ("export_id", _new_export),
    f"POST {EXPORTS}/{{export_id}}/dismiss": ("export_id", _new_export),
    f"POST {EXPORTS}/{{export_id}}/snooze": ("export_id", _new_export),
    f"PATCH {TARGETS}/{{target_id}}": ("target_id", _new_target),
    f"DELETE {TARGETS}/{{target_id}}": ("target_id", _new_target),
    f"PATCH {RULES}/{{rule_id}}": ("rule_id", _new_rule),
    f"DELETE {RULES}/{{rule_id}}": ("rule_id", _new_rule),
    "PATCH /api/projects/{project_id}": ("project_id", lambda world: str(make_project(world.customer))),
    "DELETE /api/users/{user_id}": ("user_id", lambda world: str(make_colleague(world.customer).user_id)),
}


def _of_a_new_row(name: str, call: Call, world: CloudInstallation) -> Call:
    """Return the request for a new row if its route changes or deletes the row, otherwise the same request."""
    if name not in _NEW_ROWS:
        return call
    id_name, make = _NEW_ROWS[name]
    known = getattr(world, id_name, str(world.customer.project_id))
    return replace(call, path=call.path.replace(known, make(world)))


def base_calls(app: App, world: CloudInstallation) -> Iterator[tuple[str, Call]]:
    """Yield the route and the request of every valid request."""
    for method, route, _ in _operations(app, world):
        for call in _calls(world, method, route):
            yield route, call


def leaves(value: Any, pointer: Pointer = ()) -> Iterator[tuple[Pointer, Any]]:
    """Yield the scalars and empty containers in a JSON value, each with its pointer."""
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*pointer, key))
    else:
        yield pointer, value


def changed(value: Any, pointer: Pointer, to: Any) -> Any:
    """Return a copy of a JSON value with the value `to` at a pointer."""
    if not pointer:
        return to
    copy = deepcopy(value)
    *parents, last = pointer
    inner = copy
    for step in parents:
        inner = inner[step]
    inner[last] = to
    return copy


def _around(name: str, base: Call, numbers: Iterator[int]) -> Iterator[Probe]:
    """Yield requests with a canary outside the members of the body.

    One request has it in most headers. Each header of DECIDING, the query and each id in the path have their own request.
    """
    number = next(numbers)
    word = numbered(number)
    taken = {header.lower() for header, _ in base.headers}
    headers = tuple((header, word) for header in HEADERS if header.lower() not in taken)
    cookies = (("Cookie", f"session={word}"), ("X-" + word, word))
    yield Probe(f"{name} headers", number, replace(base.plus(*headers, *cookies), query=f"{word}={word}&token={word}"))
    for header in DECIDING:
        number = next(numbers)
        value = f"Bearer {numbered(number)}" if header == "Authorization" else f"text/{numbered(number)}"
        yield Probe(f"{name} header {header}", number, base.without(header).plus((header, value)))
    for header in ("X-Request-Id", "Idempotency-Key"):
        number = next(numbers)
        yield Probe(f"{name} header {header}", number, base.plus((header, numbered(number))))
        number = next(numbers)
        # A value that is rejected or replaced, because it is not ASCII.
        yield Probe(f"{name} header {header}, unfit", number, base.plus((header, f"{numbered(number)} \xe9")))
    for parameters in (("cursor", "limit", "status", "source"), ("dry_run",)):
        number = next(numbers)
        query = "&".join(f"{parameter}={numbered(number)}" for parameter in parameters)
        yield Probe(f"{name} ?{parameters[0]}", number, replace(base, query=query))
    for step in re.findall(r"(?:blk|exp|hof|rec|rul|ses|tgt)_[0-9A-Z]{26}", base.path):
        number = next(numbers)
        for known in (step[:4], ""):
            path = base.path.replace(step, f"{known}{numbered(number)}")
            yield Probe(f"{name} id in the path", number, replace(base, path=path))
    if base.method in _WITH_BODY:
        # Each route gets some of the bodies, starting at a different one, so that a few routes cover all.
        for kind, form in islice(cycle(_BODIES.items()), number % len(_BODIES), number % len(_BODIES) + _BODIES_EACH):
            number = next(numbers)
            yield Probe(f"{name} body {kind}", number, replace(base, body=form.replace("{}", numbered(number)).encode()))


_BODIES_EACH: Final = 4
#: Bodies that are rejected before their members are validated.
_BODIES: Final = {
    "text": "{}",
    "cut": '{"{}": "{}',
    "repeated names": '{"{}": 1, "{}": 2}',
    "more behind it": '{} {"{}": 1}',
    "text of JSON": '"{}"',
    "list": '["{}"]',
    "no number": '{"{}": NaN, "b": {}}',
    "half a pair": '{"{}": "\\ud800"}',
    "form": "{}={}&b={}",
    "parts": '--{}\r\nContent-Disposition: form-data; name="{}"; filename="{}"\r\n\r\n{}\r\n--{}--\r\n',
    "zero": '{"{}": "\\u0000"}',
}


def _within(route: str, base: Call, numbers: Iterator[int]) -> Iterator[tuple[str, Call, int]]:
    """Yield requests with a canary as the value of each member, and as an unknown member of each object."""
    if not base.body:
        return
    sample = json.loads(base.body)
    for pointer, old in leaves(sample):
        number = next(numbers)
        body = fresh(route, sample, number)
        yield _written(pointer), base.with_json(changed(body, pointer, _shaped(old, numbered(number)))), number
    for pointer, _ in _objects(sample):
        number = next(numbers)
        body = fresh(route, sample, number)
        more = {**_at(body, pointer), numbered(number): {numbered(number): [numbered(number)]}}
        yield f"{_written(pointer)}/?", base.with_json(changed(body, pointer, more)), number


def fresh(route: str, body: Any, number: int) -> Any:
    """Return a body that is unique by `number`: a repeated finding, email or upload would not be stored."""
    if route == RESULTS:
        known = {"code": f"rule-{number}"}
        issues = [{**each, **known} for each in body["issues"]]
        return {**body, "issues": issues, "page": {**body["page"], "url": f"https://shop.example/{number}"}}
    if route == EMAIL:
        name = "message_id" if "message_id" in body else "MessageID"
        return {**body, name: f"<{number}@mail.example>"}
    if route == CAPTURES:
        return {**body, "selected_text": f"Text {number}"}
    if route in {CMS, STOREFRONT}:
        theme = "active_theme" if route == CMS else "published_theme_name"
        return {**body, "diagnostics": {**body["diagnostics"], theme: f"Theme {number}"}}
    if route == "/api/users":
        return {**body, "email": f"ada{number}@shop.example"}
    return body


def _shaped(old: Any, word: str) -> Any:
    """Return the canary in the format of the value that it replaces (URL, address, host), so that it can be valid."""
    if not isinstance(old, str):
        return word
    if old.startswith("http"):
        return f"{old.rstrip('/')}/{word}?{word}={word}"
    if "@" in old:
        return re.sub(r"[\w.-]+@", f"{word}@", old)
    if _REACHED.fullmatch(old) and not old[0].isdecimal():
        return f"{word}.{old}"
    return word


def _renumbered(call: Call, number: int) -> Call:
    return replace(call, body=re.sub(rb"cnry\d{5}yrnc", numbered(number).encode(), call.body))


def _dry(call: Call, route: str) -> Call:
    return replace(_resigned(route, call), query="dry_run=true")


def _resigned(route: str, call: Call) -> Call:
    return signed(call) if route == COMPLIANCE else call


def _objects(value: Any, pointer: Pointer = ()) -> Iterator[tuple[Pointer, dict[str, Any]]]:
    if isinstance(value, dict):
        yield pointer, value
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _objects(value[key], (*pointer, key))


def _at(value: Any, pointer: Pointer) -> Any:
    for step in pointer:
        value = value[step]
    return value


def _written(pointer: Pointer) -> str:
    return "".join("/*" if isinstance(step, int) else f"/{step}" for step in pointer)


def _names(body: bytes) -> Iterator[str]:
    for _, members in _objects(json.loads(body) if body else None):
        yield from members


def _operations(app: App, world: CloudInstallation) -> Iterator[tuple[str, str, Any]]:
    """Yield the method, route and operation of each route outside the console. Open routes have the operation `_Open`."""
    for route in inspect_routes(app):
        if is_of_the_console(route.path):
            continue
        found = app._router.find(_reached(route.path, world))
        resource = found[0] if found else None
        for method in sorted(each.method for each in route.methods if not each.internal and each.method != "HEAD"):
            yield method, route.path, getattr(resource, "operations", {}).get(method, _Open())


@dataclass(frozen=True, slots=True)
class _Open:
    """The operation of a route without authentication and without a body."""

    form: None = None
    has_dry_run: bool = False


def _reached(route: str, world: CloudInstallation) -> str:
    ids = {"export_id": world.export_id, "target_id": world.target_id, "recovery_id": world.recovery_id}
    ids["rule_id"], ids["job_id"] = world.rule_id, world.job_id
    ids["project_id"], ids["finding_id"] = str(world.customer.project_id), world.finding_id
    for name in ("account_id", "user_id", "grant_id", "token_id", "scan_run_id", "compliance_id"):
        ids[name] = getattr(world, name)
    return route.format(**ids, session_id=world.session_id, handoff_id=world.handoff_id, file="index.css")


def _calls(world: CloudInstallation, method: str, route: str) -> list[Call]:
    """Return valid requests to a route, one for each kind of body that it accepts. A POST or PATCH without any has `{}`."""
    path, tokens = _reached(route, world), (world.customer.token, world.platform_token)
    headers = {**_credentials(route, *tokens), **(JSON if method in _WITH_BODY else {}), "Accept": "application/json"}
    bodies = _bodies(world).get(route, [{}]) if method in _WITH_BODY else []
    call = Call(method, path, tuple(headers.items()))
    return [_resigned(route, _topical(route, call.with_json(body), body)) for body in bodies] or [call]


def _credentials(route: str, token: str, platform_token: str) -> Mapping[str, str]:
    if route in {CAPTURES, CMS, STOREFRONT, HANDOFF}:
        return {"Authorization": f"Bearer {platform_token}"}
    secrets = {RESULTS: {"X-Scanner-Secret": "scanner-secret-for-tests"}, EMAIL: {"X-Email-Webhook-Secret": EMAIL_SECRET}}
    return secrets.get(route, {"Authorization": f"Bearer {token}"})


def _topical(route: str, call: Call, body: Any) -> Call:
    if route != COMPLIANCE:
        return call
    topics = {"orders_to_redact": "customers/redact", "orders_requested": "customers/data_request"}
    topic = next((topics[name] for name in topics if name in body), "shop/redact")
    return call.plus(("X-Platform-Topic", topic), ("X-Platform-Shop-Domain", SHOP))


def _bodies(world: CloudInstallation) -> dict[str, list[Any]]:
    project_id, report = world.customer.project_id, {"report_id": world.report_id}
    mailbox = {"Email": "bob@mail.example", "Name": "Bob", "MailboxHash": ""}
    actions = [
        {"type": "approve", "target_id": world.target_id},
        {"type": "dismiss", "reason": "test"},
        {"type": "label", "labels": ["later"]},
    ]
    return {
        RESULTS: [postback(42, issues=[_ISSUE], page=_HEADED)],
        EMAIL: [
            plain_email(attachments=_ATTACHED, cc="Bob <bob@mail.example>"),
            postmark_email(CcFull=[mailbox], BccFull=[mailbox], Attachments=[*postmark_email()["Attachments"], *_ENCLOSED]),
        ],
        TARGETS: [
            target_request(max_per_minute=60, signature="service", format="cloudevents", events=["ticket.fixed"]),
            *_TRACKERS,
        ],
        EXPORTS: [{**BY_HAND, "project_id": project_id}],
        f"{EXPORTS}/{{export_id}}/approve": [
            {"target_id": world.target_id, "ticket_digest": "sha256:" + "0" * 64, "events": True},
            {"target_ids": [world.target_id, "tgt_01KJM8A1Z8Q4R2S6T0V8W3X5Y7"]},
        ],
        f"{EXPORTS}/{{export_id}}/retry": [{"target_id": world.target_id}],
        f"{EXPORTS}/{{export_id}}": [_EDIT],
        f"{EXPORTS}/{{export_id}}/dismiss": [{"reason": "test", "note": "A trial"}],
        f"{EXPORTS}/{{export_id}}/snooze": [{"until": "2999-01-01T00:00:00Z"}],
        f"{EXPORTS}/bulk": [
            {
                "action": "dismiss",
                "reason": "test",
                "note": "A trial",
                "ids": [{"id": world.export_id, "ticket_digest": "a"}],
            },
            {"action": "approve", "target_id": world.target_id, "filter": _FILTER, "expected_count": 1},
        ],
        f"{TARGETS}/{{target_id}}": [
            {"name": "Tracker", "base_url": "https://tracker.example.com/new", "max_per_minute": 60},
            {"provider_settings": {}, "signature": "service", "format": "ticket", "events": []},
        ],
        "/api/projects": [
            {"name": "Shop", "shop_domain": SHOP, "ticket_grouping": "rule", "account_id": int(world.account_id)}
        ],
        "/api/projects/{project_id}": [{"name": "Shop", "shop_domain": SHOP, "ticket_grouping": "rule"}],
        "/api/account": [{"name": "Example Ltd"}],
        "/api/accounts": [{"name": "Example Ltd", "may_use_webhooks": True}],
        "/api/accounts/{account_id}": [{"name": "Example Ltd", "may_use_webhooks": True}],
        "/api/users": [{"email": "ada@shop.example", "role": "triager", "account_id": int(world.account_id)}],
        "/api/users/{user_id}": [{"role": "triager", "state": "active"}],
        "/api/grants": [
            {"user_id": int(world.user_id), "project_id": project_id, "role": "viewer"},
            {"user_id": int(world.user_id), **report},
        ],
        "/api/tokens": [
            {
                "user_id": int(world.user_id),
                "kind": "api",
                "abilities": ["findings:read"],
                "name": "A trial",
                "expires_at": "2999-01-01T00:00:00Z",
            }
        ],
        "/api/scan-runs": [{"project_id": project_id, "id": 4_711}],
        RULES: [{"name": "A rule", "enabled": True, "match": _RULE_MATCH, "action": each} for each in actions],
        f"{RULES}/{{rule_id}}": [
            {"name": "A rule", "enabled": False, "match": _RULE_MATCH, "action": each} for each in actions
        ],
        RECOVERIES: [{"target_id": world.target_id, "since": "24h"}],
        CAPTURES: [{**capture(project_id), **report}],
        CMS: [{**cms_diagnostics(project_id), **report}],
        STOREFRONT: [{**storefront_diagnostics(project_id), **report}],
        COMPLIANCE: [redact_body(ADA, SHOP), data_request_body(ADA, SHOP), shop_body(SHOP)],
    }
