"""`python -m bench.requests.hostile_bodies`: response times of regular clients while others send the most expensive bodies.

The service runs under gunicorn with its own configuration and two processes. For each reader of bodies, a client with the
right secret sends the most expensive body of a megabyte, or of the size that the form allows, twice a second without waiting
for responses. Meanwhile four regular clients read an export, each on a new connection and again 50 ms after the response.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import click

from bench.figures import Extent, Figure, machine, print_figures, write
from bench.load.request_templates import SeededDatabase
from bench.load.slow_connections import ServiceAddress
from bench.requests.slow_clients import PATIENCE_S, PAUSE_S, read_request, run_clients, service
from tests.support.factories import SCANNER_SECRET, capture, cms_diagnostics, plain_email, storefront_diagnostics
from tests.support.http.storefront import ADA, CLOUD, EMAIL_SECRET, SHOP, WEBHOOKS, redact_body, signature

CLIENTS: Final = 4
_EVERY_S: Final = 0.5
#: More requests than two processes can answer before the sender times out.
_MAX_WAITING: Final = 40
_LOAD_S: Final = 3.0
#: After this time, requests with hostile bodies wait in the service.
_START_S: Final = 1.0
#: Longest acceptable response time for a regular client.
_AIM_MS: Final = 300.0
#: The bodies of a quick run: one for each kind of work that yields to other requests.
_QUICK: Final = ("selectors", "texts", "email_html")
PROMISED: Final = ("hostile_bodies_slowest_ms",)

#: Text that the detectors of forbidden content must examine closely, but accept.
_NEARLY_FORBIDDEN: Final = "cookie: authorization curl :// token= secret <html insert eyj %41 &amp; 4111111111111112 "
_SECRETS: Final = {name: value for name, value in CLOUD.items() if name.endswith("_SECRET")}

#: Returns the issues of the postback with this number.
Issues = Callable[[int], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class ExpensiveRequest:
    """A route, its headers, and a function that returns the body of the request with a number."""

    path: str
    headers: Mapping[str, str]
    body: Callable[[int], bytes]


def hostile_requests(seeded: SeededDatabase) -> dict[str, ExpensiveRequest]:
    """Return the most expensive bodies for each reader of bodies."""
    return {**_postbacks(), **_emails(), **_uploads(seeded), **_others(seeded)}


def _postbacks() -> dict[str, ExpensiveRequest]:
    path, headers = "/api/scanner/results", {"X-Scanner-Secret": SCANNER_SECRET}
    issues: dict[str, Issues] = {
        "selectors": _located(".- "),
        "compounds": _located("a>"),
        "names": _located("_a__"),
        "page_urls": _linked("a&"),
        "encoded_urls": _linked("%41"),
        "members": _described(500, **{f"k{number}": 1 for number in range(180)}),
        "texts": _described(1, notes=[*[_NEARLY_FORBIDDEN] * 10_000, "4111 1111 1111 1111"]),
        "descriptions": _described(48, description=_filled(_NEARLY_FORBIDDEN, 19_900)),
    }
    bodies = {name: ExpensiveRequest(path, headers, _postback(each)) for name, each in issues.items()}
    return {**bodies, "dry_run": ExpensiveRequest(f"{path}?dry_run=true", headers, _postback(_located(".a")))}


def _emails() -> dict[str, ExpensiveRequest]:
    changes: dict[str, dict[str, Any]] = {
        "email_text": {"text": _filled("http://a:b@c ", 19_900), "html": ""},
        "email_html": {"text": "", "html": _filled("<b>", 976_000)},
        "email_html_beside_text": {"html": _filled("<p>a", 976_000)},
        "email_headers": {"to": [_filled("a@", 190)] * 100},
        "email_groups": dict.fromkeys(("From", "To", "Cc", "Bcc", "OriginalRecipient"), "a:" + _filled("[a],", 19_990)),
    }
    path, headers = "/api/email/webhook", {"X-Email-Webhook-Secret": EMAIL_SECRET}
    return {name: ExpensiveRequest(path, headers, _email(each)) for name, each in changes.items()}


def _uploads(seeded: SeededDatabase) -> dict[str, ExpensiveRequest]:
    project_id, headers = seeded.customer.project_id, seeded.platform_bearer
    nearly = _filled(_NEARLY_FORBIDDEN, 19_900)
    headings = [{"level": "h1", "text": _filled(_NEARLY_FORBIDDEN, 990)}] * 200
    symptoms = [_filled(_NEARLY_FORBIDDEN, 1990)] * 100
    plugins = [_filled("%41&amp;", 190)] * 200
    captures, cms = "/api/browser-extension/evidence-captures", "/api/cms-plugins/cms-commerce/diagnostics"
    of_cms = {"visible_browser_symptoms": symptoms, "active_plugin_names": plugins}
    of_shop = {"visible_storefront_symptoms": symptoms}
    long_capture = capture(project_id, selected_text=nearly, meta_description=nearly, heading_outline=headings)
    return {
        "capture": ExpensiveRequest(captures, headers, _same(long_capture)),
        "capture_of_names": ExpensiveRequest(captures, headers, _same(capture(project_id, **_many_names()))),
        "cms": ExpensiveRequest(cms, headers, _same(cms_diagnostics(project_id, diagnostics=of_cms))),
        "storefront": ExpensiveRequest(
            "/api/storefront-app/diagnostics", headers, _same(storefront_diagnostics(project_id, diagnostics=of_shop))
        ),
    }


def _others(seeded: SeededDatabase) -> dict[str, ExpensiveRequest]:
    bearer = seeded.customer.bearer
    ticket = {
        "title": "a",
        "description": _filled(_NEARLY_FORBIDDEN, 19_900),
        "evidence": {"notes": [_NEARLY_FORBIDDEN] * 9_000},
    }
    target = {"provider_key": "generic_webhook", "base_url": "https://a.example/", "name": "a", **_many_names()}
    order = json.dumps({**redact_body(ADA), "orders_to_redact": ["a b c"] * 49_000}).encode()
    signed = {
        "X-Platform-Hmac-Sha256": signature(order),
        "X-Platform-Topic": "customers/redact",
        "X-Platform-Shop-Domain": SHOP,
    }
    return {
        "ticket": ExpensiveRequest("/api/ticket-exports", bearer, _same({"ticket": ticket})),
        "target": ExpensiveRequest("/api/ticket-export-targets", bearer, _same(target)),
        "compliance": ExpensiveRequest(WEBHOOKS, signed, lambda _number: order),
    }


@contextmanager
def sending(port: int, hostile: ExpensiveRequest) -> Iterator[Counter[int]]:
    """Send bodies during the block; yield the number of responses by status."""
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with suppress(OSError, http.client.HTTPException):
            headers = {**hostile.headers, "Content-Type": "application/json"}
            connection.request("POST", hostile.path, hostile.body(number), headers)
            statuses[connection.getresponse().status] += 1
        connection.close()

    def keep_sending() -> None:
        # Leaving the executor waits for all responses, so that they do not overlap with the next body.
        with ThreadPoolExecutor(_MAX_WAITING) as threads:
            for number in count(1):
                if over.wait(_EVERY_S):
                    return
                threads.submit(send, number)

    sender = threading.Thread(target=keep_sending, daemon=True)
    sender.start()
    try:
        yield statuses
    finally:
        over.set()
        sender.join()


@click.command(epilog="Example: python -m bench.requests.hostile_bodies --only selectors,email_html")
@click.option("--only", default="", help="Names of bodies, separated by commas.")
def bench(only: str) -> None:
    """Measure regular clients while another client sends hostile bodies."""
    figures = _measured(only.split(",") if only else ())
    print_figures("hostile bodies", figures)
    write("hostile_bodies", {**machine(), **{figure.name: figure.median for figure in figures}})


def measure(extent: Extent) -> list[Figure]:
    """Measure every body; in a quick run one of each kind."""
    return _measured(_QUICK if extent is Extent.QUICK else ())


def _measured(only: Sequence[str]) -> list[Figure]:
    with service(**_SECRETS) as (served, seeded):
        address, request_bytes = ServiceAddress(served.port), read_request(seeded)
        quiet = run_clients(address, request_bytes, CLIENTS, _LOAD_S, PATIENCE_S, PAUSE_S)
        slowest_ms: dict[str, float] = {}
        for name, hostile in hostile_requests(seeded).items():
            if only and name not in only:
                continue
            with sending(served.port, hostile) as statuses:
                time.sleep(_START_S)
                result = run_clients(address, request_bytes, CLIENTS, _LOAD_S, PATIENCE_S, PAUSE_S)
            assert not result.errors, f"{result.errors} requests had no response during {name}."
            slowest_ms[name] = max(result.elapsed_ms)
            by_status = dict(sorted(statuses.items()))
            click.echo(f"{name}: {len(result.elapsed_ms)} regular requests; hostile bodies by status: {by_status}.")
    return [
        Figure("hostile_bodies_quiet_p99_ms", [quiet.percentile_ms(99)], "ms", is_cost=True),
        Figure("hostile_bodies_slowest_ms", [max(slowest_ms.values())], "ms", _AIM_MS, is_cost=True),
        *(
            Figure(f"hostile_bodies_{name}_ms", [elapsed_ms], "ms", _AIM_MS, is_cost=True)
            for name, elapsed_ms in slowest_ms.items()
        ),
    ]


def _postback(issues: Issues) -> Callable[[int], bytes]:
    def body(number: int) -> bytes:
        page = {"url": f"https://shop.example/{number}"}
        return _json({"scanRunId": number, "status": "completed", "page": page, "issues": issues(number)})

    return body


def _email(changes: Mapping[str, Any]) -> Callable[[int], bytes]:
    return lambda number: _json(plain_email(message_id=f"{number}@mail.example", **changes))


def _same(body: Mapping[str, Any]) -> Callable[[int], bytes]:
    request_bytes = _json(body)
    return lambda _number: request_bytes


def _located(part: str) -> Issues:
    """Return issues whose locations of 2,000 characters repeat `part`; the locations differ between bodies."""
    return lambda number: [
        {"code": "a", "title": "b", "location": f"{_filled(part, 1980)}a{number}-{issue}"} for issue in range(480)
    ]


def _linked(part: str) -> Issues:
    """Return issues on pages with URLs of 2,000 characters; the URLs differ between bodies."""
    return lambda number: [
        {"code": "a", "title": "b", "url": f"https://shop.example/?{_filled(part, 1940)}{number}-{issue}"}
        for issue in range(480)
    ]


def _described(count: int, **members: Any) -> Issues:
    return lambda _number: [{"code": f"c{issue}", "title": "b", **members} for issue in range(count)]


def _many_names() -> dict[str, int]:
    return {f"k{number}": 1 for number in range(90_000)}


def _filled(part: str, characters: int) -> str:
    return (part * (characters // len(part) + 1))[:characters]


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


if __name__ == "__main__":
    bench()
