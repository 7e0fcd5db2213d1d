"""Values in wrong or unexpected places come out nowhere: in no response, log line or table.

`KEPT` lists where each member of each form may come out; members without an entry may come out nowhere.
"""

import base64
import html
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import ABILITIES, TokenKind
from schemas.targets.pings import PingResult
from schemas.targets.validations import Validation
from service.app import create_app
from storage.targets import pings, validations
from tests.service.conftest import LogLines
from tests.support.canaries import columns, is_in, numbers_in
from tests.support.factories import Customer, issue, make_customer, make_settings, make_target, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.invalid_payloads import Pointer, Probe, base_calls, changed, fresh, leaves, requests, unnamed_members
from tests.support.http.raw_http import (
    CANARY,
    EXPORTS,
    JSON,
    RESULTS,
    RULES,
    SCANNER,
    TARGETS,
    Call,
    everything_stored,
    prepared,
    target_request,
)
from tests.support.http.specification import CAPTURES, CMS, COMPLIANCE, EMAIL, STOREFRONT, CloudInstallation, make_world
from tests.support.http.storefront import CLOUD

#: Headers that no route reads, and headers that only some routes read.
CARRIERS = (
    "User-Agent",
    "Referer",
    "Cookie",
    "Origin",
    "From",
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Email-Webhook-Secret",
    "X-Platform-Hmac-Sha256",
    "X-Anything",
    "Accept-Language",
    "Range",
    "If-Match",
)

#: A successful request to each route. The scanner's also carries a bearer token, and the others the scanner's secret.
SERVED: dict[str, Callable[[TestClient, Customer], Call]] = {
    "results": lambda _, __: Call(
        "POST", RESULTS, (*SCANNER.items(), *JSON.items(), ("Authorization", f"Bearer {CANARY}"))
    ).with_json({**postback(5), CANARY: CANARY, "page": {**postback()["page"], CANARY: {CANARY: [CANARY]}}}),
    "register": lambda _, customer: Call(
        "POST", TARGETS, (*customer.bearer.items(), *JSON.items(), ("X-Scanner-Secret", CANARY))
    ).with_json(target_request()),
    "approve": lambda client, customer: Call(
        "POST",
        f"{EXPORTS}/{prepared(client)}/approve",
        (*customer.bearer.items(), *JSON.items(), ("X-Scanner-Secret", CANARY)),
    ).with_json({"target_id": make_target(customer).id}),
    "read": lambda client, customer: Call(
        "GET", f"{EXPORTS}/{prepared(client)}", (*customer.bearer.items(), ("If-None-Match", f'"{CANARY}"'))
    ),
    "health": lambda _, __: Call("GET", "/healthz"),
    "readiness": lambda _, __: Call("GET", "/readyz"),
    "unknown": lambda _, __: Call("GET", f"/{CANARY}/{CANARY}"),
}

#: Requests with an invalid value; no part of the value may be stored.
REFUSED: dict[str, Callable[[TestClient, Customer], Call]] = {
    "the scanner's secret": lambda _, __: Call("POST", RESULTS, (("X-Scanner-Secret", CANARY), *JSON.items())).with_json(
        postback()
    ),
    "a token": lambda _, __: Call("GET", f"{EXPORTS}/exp_1", (("Authorization", f"Bearer {CANARY}"),)),
    "an id": lambda _, customer: Call("GET", f"{EXPORTS}/exp_{CANARY}", tuple(customer.bearer.items())),
    "a body": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), *JSON.items()), CANARY.encode()),
    "a title": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(
        postback(issues=[issue(title=CANARY, description=CANARY), issue(title=[CANARY])])
    ),
    "a page": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(
        postback(page={"url": CANARY})
    ),
    "an address": lambda _, customer: Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(
        target_request(f"https://{CANARY}.example.com/{CANARY}?{CANARY}")
    ),
    "a member": lambda _, customer: Call("POST", TARGETS, (*customer.bearer.items(), *JSON.items())).with_json(
        {**target_request(), CANARY: CANARY}
    ),
    "a target": lambda client, customer: Call(
        "POST", f"{EXPORTS}/{prepared(client)}/approve", (*customer.bearer.items(), *JSON.items())
    ).with_json({"target_id": CANARY, "ticket_digest": CANARY}),
    "a key with a refused body": lambda _, customer: Call(
        "POST", TARGETS, (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", CANARY))
    ).with_json({}),
    "a media type": lambda _, __: Call("POST", RESULTS, (*SCANNER.items(), ("Content-Type", f"text/{CANARY}")), b"{}"),
    "an Accept": lambda client, customer: Call(
        "GET", f"{EXPORTS}/{prepared(client)}", (*customer.bearer.items(), ("Accept", f"text/{CANARY}"))
    ),
    "a request id": lambda _, __: Call("GET", "/healthz", (("X-Request-Id", f"{CANARY} {CANARY}"),)),
}

CASES = {**SERVED, **REFUSED}


@pytest.mark.parametrize("case", CASES)
def test_a_canary_is_neither_echoed_logged_nor_stored(
    case: str, client: TestClient, customer: Customer, log_lines: LogLines
) -> None:
    call = CASES[case](client, customer)
    call = call.plus(*((name, CANARY) for name in CARRIERS))
    spoiled = Call(call.method, call.path, call.headers, call.body, query=f"{CANARY}={CANARY}&token={CANARY}")

    answer = spoiled.send(client)

    assert (answer.status_code < 300) is ((case in SERVED and case != "unknown") or case == "a request id"), answer.text
    assert CANARY not in answer.text
    assert CANARY not in repr(sorted(answer.headers.items()))
    assert CANARY not in log_lines.text
    assert CANARY not in repr(everything_stored())


def test_no_table_and_no_log_contains_a_secret(
    client: TestClient, customer: Customer, log_lines: LogLines, tmp_path: Path
) -> None:
    export_id, target = prepared(client), make_target(customer)
    headers = (*customer.bearer.items(), *JSON.items(), ("Idempotency-Key", "k"))
    Call("POST", f"{EXPORTS}/{export_id}/approve", headers).with_json({"target_id": target.id}).send(client)
    stored = repr(everything_stored())
    for secret in (customer.token, *SCANNER.values()):
        assert secret not in stored
        assert secret not in log_lines.text


# --- every member, header, name and parameter of every route

_TO: Final = ("exports.ticket", "inbound_emails.recipients")
#: The search words: title, description and URLs.
_WORDS: Final = "export_search.words"
_FROM: Final = ("exports.ticket", "inbound_emails.sender", _WORDS)
_ENCLOSED: Final = ("exports.ticket", "inbound_emails.attachments")
_REPORTED: Final = ("answer", "diagnostics.diagnostics", "exports.ticket", _WORDS)
_IN_TICKET: Final = ("answer", "exports.ticket")
_CAPTURED: Final = (*_IN_TICKET, _WORDS)
_OF_TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "/base_url": ("answer", "targets.base_url"),
    "/name": ("answer", "targets.name"),
}
_OF_NEW_TARGETS: Final[dict[str, tuple[str, ...]]] = {
    **_OF_TARGETS,
    **{
        f"/provider_settings/{name}": ("answer", "targets.provider_settings")
        for name in (
            *("labels/*", "assignees/*", "assignee", "issue_type", "tracker"),
            *(f"priority_by_severity/{severity}" for severity in ("critical", "high", "medium", "low", "info")),
        )
    },
}
_OF_RULES: Final[dict[str, tuple[str, ...]]] = {
    "/name": ("answer", "approval_rules.name"),
    "/match/rule": ("answer", "approval_rules.conditions"),
    "/action/labels/*": ("answer", "approval_rules.action"),
}

_UPLOADED: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    f"POST {CAPTURES}": {
        "/page_url": (*_CAPTURED, "evidence_captures.page_url"),
        "/page_title": (*_CAPTURED, "evidence_captures.page_title"),
        "/selected_text": (*_CAPTURED, "evidence_captures.selected_text"),
        "/meta_description": (*_CAPTURED, "evidence_captures.meta_description"),
        "/canonical_url": (*_CAPTURED, "evidence_captures.canonical_url"),
        "/heading_outline/*/text": (*_CAPTURED, "evidence_captures.heading_outline"),
        "/extension_version": (*_CAPTURED, "evidence_captures.extension_version"),
    },
    f"POST {CMS}": {
        "/site_url": (*_CAPTURED, "diagnostics.site_url"),
        "/plugin_version": (*_CAPTURED, "diagnostics.client_version"),
        "/diagnostics/cms_version": _REPORTED,
        "/diagnostics/commerce_plugin_version": _REPORTED,
        "/diagnostics/active_theme": _REPORTED,
        "/diagnostics/active_plugin_names/*": _REPORTED,
        "/diagnostics/checkout_page_url": _REPORTED,
        "/diagnostics/commerce_plugin_status": _REPORTED,
        "/diagnostics/visible_browser_symptoms/*": _REPORTED,
    },
    f"POST {STOREFRONT}": {
        "/shop_domain": (*_CAPTURED, "diagnostics.shop_domain"),
        "/shop_name": (*_CAPTURED, "diagnostics.shop_name"),
        "/app_version": (*_CAPTURED, "diagnostics.client_version"),
        "/diagnostics/primary_domain": (*_REPORTED, "export_terms.value"),
        "/diagnostics/published_theme_name": _REPORTED,
        "/diagnostics/product_count_bucket": _REPORTED,
        "/diagnostics/checkout_profile_status": _REPORTED,
        "/diagnostics/app_embed_status": _REPORTED,
        "/diagnostics/visible_storefront_symptoms/*": _REPORTED,
    },
}
#: A repeat gets the stored response, with and without a key.
_OF_UPLOADS: Final = {
    route: {place: (*columns, "idempotency_keys.response_body") for place, columns in places.items()}
    for route, places in _UPLOADED.items()
}

_OF_ACCOUNTS: Final[dict[str, tuple[str, ...]]] = {"/name": ("answer", "accounts.name")}
_OF_PROJECTS: Final[dict[str, tuple[str, ...]]] = {
    "/name": ("answer", "projects.name"),
    "/shop_domain": ("answer", "projects.shop_domain"),
}

#: The places where a member may come out: in the response to its request, and in columns.
KEPT: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    f"POST {RESULTS}": {
        "/page/url": ("page_results.url",),
        "/page/normalizedUrl": ("page_results.normalized_url",),
        "/page/pageType": ("exports.ticket", "page_results.page_type"),
        "/page/responseHeaders/server": ("page_results.response_headers",),
        "/page/responseHeaders/?": ("page_results.response_headers",),
        "/artifacts/screenshotPath": ("exports.ticket", "page_results.screenshot_path"),
        "/issues/*/code": ("export_terms.value", "exports.rule", "exports.ticket", "findings.code", _WORDS),
        "/issues/*/title": ("exports.ticket", "findings.title", _WORDS),
        "/issues/*/severity": ("exports.ticket",),
        "/issues/*/description": ("exports.ticket", _WORDS),
        "/issues/*/location": ("exports.ticket", "findings.location", _WORDS),
        "/issues/*/url": ("exports.ticket", "findings.page_url", _WORDS),
        # Unknown members of an issue are stored as its evidence.
        "/issues/*/helpUrl": ("exports.ticket", "findings.help_url"),
        "/issues/*/nodes/*/target": ("exports.ticket",),
        "/issues/*/nodes/*/?": ("exports.ticket",),
        "/issues/*/?": ("exports.ticket",),
    },
    f"POST {EMAIL}": {
        "/from": _FROM,
        "/to": _TO,
        "/subject": ("exports.ticket", "inbound_emails.subject", _WORDS),
        "/text": ("exports.ticket", "inbound_emails.text", _WORDS),
        "/attachments/*/name": (*_ENCLOSED, _WORDS),
        "/attachments/*/content_type": _ENCLOSED,
        # Postmark's names for the same values. Where these occur twice, the form with the display name is stored.
        "/FromFull/Email": _FROM,
        "/FromFull/Name": _FROM,
        "/To": _TO,
        "/ToFull/*/Email": _TO,
        "/ToFull/*/Name": _TO,
        "/CcFull/*/Email": _TO,
        "/CcFull/*/Name": _TO,
        "/BccFull/*/Email": _TO,
        "/OriginalRecipient": _TO,
        "/Subject": ("exports.ticket", "inbound_emails.subject", _WORDS),
        "/TextBody": ("exports.ticket", "inbound_emails.text", _WORDS),
        "/Attachments/*/Name": (*_ENCLOSED, _WORDS),
        "/Attachments/*/ContentType": _ENCLOSED,
    },
    f"POST {TARGETS}": _OF_NEW_TARGETS,
    f"POST {EXPORTS}": {
        "/ticket/title": _CAPTURED,
        "/ticket/description": _CAPTURED,
        "/ticket/page_url": _CAPTURED,
        "/ticket/labels/*": _IN_TICKET,
        "/ticket/evidence/rule": _IN_TICKET,
        "/ticket/evidence/?": _IN_TICKET,
        "/source/id": ("answer", "exports.source_id"),
    },
    f"PATCH {EXPORTS}/{{export_id}}": {"/title": _CAPTURED, "/description": _CAPTURED, "/labels/*": _IN_TICKET},
    # The results contain the IDs again.
    f"POST {EXPORTS}/bulk": {"/ids/*/id": ("answer",)},
    f"POST {EXPORTS}/{{export_id}}/dismiss": {"/note": ("answer", "exports.dismissal_note")},
    f"PATCH {TARGETS}/{{target_id}}": _OF_TARGETS,
    f"POST {RULES}": _OF_RULES,
    f"PATCH {RULES}/{{rule_id}}": _OF_RULES,
    **_OF_UPLOADS,
    "POST /api/accounts": _OF_ACCOUNTS,
    "PATCH /api/account": _OF_ACCOUNTS,
    "PATCH /api/accounts/{account_id}": _OF_ACCOUNTS,
    "POST /api/projects": _OF_PROJECTS,
    "PATCH /api/projects/{project_id}": _OF_PROJECTS,
    "POST /api/users": {"/email": ("answer", "users.email")},
    "POST /api/tokens": {"/name": ("answer", "tokens.name")},
}
#: Columns that lists show.
_LISTED: Final = ("exports.", "targets.", "accounts.", "projects.", "users.", "tokens.")
#: Headers of all routes: the request ID is returned and logged, and the key is stored to recognize repeats.
KEPT_AROUND: Final = {"header X-Request-Id": ("answer", "log"), "header Idempotency-Key": ("idempotency_keys.key",)}


class AnyLookup(FakeResolver):
    """Resolves every name to one public address."""

    def resolve(self, host: str, port: int, timeout_s: float, account_id: int | None = None) -> Any:
        self.table[host] = ["93.184.215.14"]
        return super().resolve(host, port, timeout_s, account_id)


def _run_worker() -> object:
    """Do what a request waits for: send a ping, or validate a target."""
    order, job = pings.claim_next(utc_now()), validations.claim_next(utc_now(), lease_s=30)
    return (
        order and pings.finish(order.id, PingResult(delivered=True, response_status=202), utc_now()),
        job and validations.finish(job, Validation(), utc_now(), "worker:test"),
    )


@pytest.fixture(scope="module")
def world(module_database: Path) -> CloudInstallation:
    """One installation per database, with every route, for all requests."""
    customer, wake_ups = make_customer(abilities=tuple(ABILITIES[TokenKind.API])), FakeWakeUpQueue(_run_worker)
    unlimited = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}
    own = {"DEFAULT_PROJECT_ID": str(customer.project_id), "OPERATOR_ACCOUNT_ID": str(customer.account_id)}
    actual = make_settings(module_database, {**CLOUD, **unlimited, **own})
    return make_world(actual, TestClient(create_app(actual, wake_ups, AnyLookup({}))), wake_ups, customer)


def allowed_places(spoiled: Probe) -> set[str]:
    """Return the places where the value of an accepted request may come out."""
    method, route, *rest = spoiled.place.split(" ")
    place = " ".join(rest)
    if place.startswith("dry "):
        return {"answer"} & {*KEPT.get(f"{method} {route}", {}).get(place.removeprefix("dry "), ())}
    return {*KEPT_AROUND.get(place, ()), *KEPT.get(f"{method} {route}", {}).get(place, ())}


def test_the_requests_of_this_test_contain_every_member_of_every_schema(world: CloudInstallation) -> None:
    assert unnamed_members(world.client.app, world) == {}


def test_each_submitted_value_is_returned_only_by_the_documented_routes(
    world: CloudInstallation, log_lines: LogLines
) -> None:
    sent: dict[int, Probe] = {}
    accepted: set[int] = set()
    invalid: set[int] = set()
    #: Values of earlier requests that lists and records returned.
    read: set[int] = set()
    seen: dict[int, set[str]] = defaultdict(set)
    for spoiled in requests(world.client.app, world):
        answer = spoiled.call.send(world.client)
        sent[spoiled.number] = spoiled
        assert answer.status_code < 500, (spoiled.place, answer.text)
        if answer.status_code < 300:
            accepted.add(spoiled.number)
        if answer.status_code == 422:
            invalid.add(spoiled.number)
        text = numbers_in(f"{answer.text} {sorted(answer.headers.items())}".encode())
        read |= text - {spoiled.number}
        if spoiled.number in text:
            seen[spoiled.number].add("answer")
    stored = {name: numbers_in(data) for name, data in columns().items()}
    for place, numbers in {**stored, "log": numbers_in(log_lines.text.encode())}.items():
        for number in numbers:
            seen[number].add(place)

    wanted = {}
    for number, spoiled in sent.items():
        # A request ID is always returned and logged; a key is stored only if the request succeeds.
        is_reported = number in accepted or spoiled.place.endswith("header X-Request-Id")
        without_work = spoiled.call.method in {"GET", "DELETE"} or COMPLIANCE in spoiled.place
        is_key = spoiled.place.endswith("header Idempotency-Key")
        wanted[number] = allowed_places(spoiled) if is_reported and not (is_key and without_work) else set()
        if number in invalid and spoiled.place.endswith("/?"):
            # The error message repeats the name of an unknown field if it is an ordinary identifier.
            wanted[number] = {"answer"}
    wrong = {sent[number].place: (seen[number], places) for number, places in wanted.items() if seen[number] != places}
    assert wrong == {}
    # And every row of the table occurred.
    met = {spoiled.place for number, spoiled in sent.items() if number in accepted}
    assert [f"{route} {place}" for route, places in KEPT.items() for place in places if f"{route} {place}" not in met] == []

    # Lists and records return only values of the columns that they show.
    shown = [numbers for name, numbers in stored.items() if name.startswith(_LISTED)]
    readable = set().union(*shown)
    assert read <= readable
    for path in (EXPORTS, TARGETS, "/metrics"):
        call = Call("GET", path, tuple(world.customer.bearer.items()), query="" if path == "/metrics" else "limit=200")
        text = numbers_in(call.send(world.client).text.encode())
        assert text <= (set() if path == "/metrics" else readable)
        assert bool(text) is (path != "/metrics")


#: Forbidden content, and the secret in it; afterwards the secret is searched for in any encoding.
SECRET: Final = "Zk3jD92kd0qLw81mV7xB"
_CARD: Final = "4242 4242 4242 4242"
_JWT: Final = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJaazNqRDkya2QwIn0.c2lnbmF0dXJlLVprM2pEOTJrZDBxTHc"
_KEY: Final = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET * 4}\n-----END RSA PRIVATE KEY-----"
FORBIDDEN: Final = {
    "a token": (f"ghp_{SECRET}Abcdefgh01234567", SECRET),
    "a card": (_CARD, _CARD),
    "a JWT": (_JWT, _JWT),
    "a private key": (_KEY, SECRET),
    "a cookie": (f"Cookie: session={SECRET}", SECRET),
    "an authorization": (f"Authorization: Bearer {SECRET}", SECRET),
    "a password": (f'password = "{SECRET}"', SECRET),
    "a URL with a password": (f"https://ada:{SECRET}@shop.example/", SECRET),
    "percent": (quote(f"Authorization: Bearer {SECRET}"), SECRET),
    "base64": (base64.b64encode(f"Authorization: Bearer {SECRET}".encode()).decode(), SECRET),
    "HTML": (html.escape(f'password="{SECRET}"'), SECRET),
}


def texts(world: CloudInstallation) -> Iterator[tuple[str, Callable[[str], Call]]]:
    """Yield, for every text of every body, its route and a function that replaces it. Compliance requests differ."""
    for number, (route, base) in enumerate(base_calls(world.client.app, world)):
        if route == COMPLIANCE or not base.body:
            continue
        body = fresh(route, base.json, number)
        for pointer, old in leaves(body):
            if isinstance(old, str):
                yield route, partial(_with_text, base, body, pointer)


def _with_text(base: Call, body: Any, pointer: Pointer, text: str) -> Call:
    return base.with_json(changed(body, pointer, text))


def test_forbidden_content_is_rejected_in_every_text_and_appears_nowhere(
    world: CloudInstallation, log_lines: LogLines
) -> None:
    kinds = cycle(FORBIDDEN.values())
    for route, spoil in texts(world):
        text, secret = next(kinds)
        answer = spoil(text).send(world.client)
        # Only the stored parts of an email are searched, not its headers and attachments.
        assert answer.status_code == 422 or (route == EMAIL and answer.status_code == 202), (route, text, answer.text)
        assert not is_in(f"{answer.text} {answer.headers}".encode(), secret), (route, text)
    for secret in {secret for _, secret in FORBIDDEN.values()}:
        assert not is_in(log_lines.text.encode(), secret)
        assert [name for name, data in columns().items() if is_in(data, secret)] == []
