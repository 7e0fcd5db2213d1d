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

from bench.figures import Extent, Figure, machine, tell, write
from bench.load.questions import SeededDatabase
from bench.load.slow_connections import ServiceAddress
from bench.requests.slow_clients import PATIENCE_S, PAUSE_S, ask, read_of, service
from tests.support.factories import SCANNER_SECRET, capture, cms_diagnostics, plain_email, storefront_diagnostics
from tests.support.http.storefront import ADA, CLOUD, EMAIL_SECRET, SHOP, WEBHOOKS, redact_body, signature

CLIENTS: Final = 4
_EVERY_S: Final = 0.5
#: More than two processes answer before a sender gives up.
_MAX_WAITING: Final = 40
_ASK_S: Final = 3.0
#: Until hostile bodies wait.
_SETTLE_S: Final = 1.0
#: The most that a regular client may wait.
_AIM_MS: Final = 300.0
#: What a quick measurement is made of: one body for each kind of work that yields.
_QUICK: Final = ("selectors", "texts", "email_html")
PROMISED: Final = ("hostile_bodies_slowest_ms",)

_NEARLY: Final = "cookie: authorization curl :// token= secret <html insert eyj %41 &amp; 4111111111111112 "
_SECRETS: Final = {name: value for name, value in CLOUD.items() if name.endswith("_SECRET")}

#: The issues of a postback by its number.
Issues = Callable[[int], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class ExpensiveRequest:
    """A route, its headers, and the body of each request by its number."""

    path: str
    headers: Mapping[str, str]
    body: Callable[[int], bytes]


def hostile_requests(seeded: SeededDatabase) -> dict[str, ExpensiveRequest]:
    """Return the most expensive bodies of each reader."""
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
        "texts": _described(1, notes=[*[_NEARLY] * 10_000, "4111 1111 1111 1111"]),
        "descriptions": _described(48, description=_filled(_NEARLY, 19_900)),
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
    nearly = _filled(_NEARLY, 19_900)
    headings = [{"level": "h1", "text": _filled(_NEARLY, 990)}] * 200
    symptoms = [_filled(_NEARLY, 1990)] * 100
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
    ticket = {"title": "a", "description": _filled(_NEARLY, 19_900), "evidence": {"notes": [_NEARLY] * 9_000}}
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
    """Send bodies for as long as this lasts; yields how often each status came."""
    answers: Counter[int] = Counter()
    over = threading.Event()

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with suppress(OSError, http.client.HTTPException):
            headers = {**hostile.headers, "Content-Type": "application/json"}
            connection.request("POST", hostile.path, hostile.body(number), headers)
            answers[connection.getresponse().status] += 1
        connection.close()

    def keep_sending() -> None:
        # Ends when all are answered, so that the next body is measured alone.
        with ThreadPoolExecutor(_MAX_WAITING) as threads:
            for number in count(1):
                if over.wait(_EVERY_S):
                    return
                threads.submit(send, number)

    sender = threading.Thread(target=keep_sending, daemon=True)
    sender.start()
    try:
        yield answers
    finally:
        over.set()
        sender.join()


@click.command(epilog="Example: python -m bench.requests.hostile_bodies --only selectors,email_html")
@click.option("--only", default="", help="Names of bodies, with commas between them.")
def bench(only: str) -> None:
    """Measure ordinary clients beside one that sends hostile bodies."""
    figures = _measured(only.split(",") if only else ())
    tell("hostile bodies", figures)
    write("hostile_bodies", {**machine(), **{figure.name: figure.median for figure in figures}})


def measure(extent: Extent) -> list[Figure]:
    """Measure every body, or one of each kind."""
    return _measured(_QUICK if extent is Extent.QUICK else ())


def _measured(only: Sequence[str]) -> list[Figure]:
    with service(**_SECRETS) as (served, seeded):
        place, sent = ServiceAddress(served.port), read_of(seeded)
        quiet = ask(place, sent, CLIENTS, _ASK_S, PATIENCE_S, PAUSE_S)
        slowest_ms: dict[str, float] = {}
        for name, hostile in hostile_requests(seeded).items():
            if only and name not in only:
                continue
            with sending(served.port, hostile) as answers:
                time.sleep(_SETTLE_S)
                met = ask(place, sent, CLIENTS, _ASK_S, PATIENCE_S, PAUSE_S)
            assert not met.errors, f"{met.errors} requests beside {name} had no response."
            slowest_ms[name] = max(met.took_ms)
            click.echo(
                f"{name}: asked {len(met.took_ms)} times; hostile bodies were answered {dict(sorted(answers.items()))}."
            )
    return [
        Figure("hostile_bodies_quiet_p99_ms", [quiet.percentile_ms(99)], "ms", is_cost=True),
        Figure("hostile_bodies_slowest_ms", [max(slowest_ms.values())], "ms", _AIM_MS, is_cost=True),
        *(
            Figure(f"hostile_bodies_{name}_ms", [took_ms], "ms", _AIM_MS, is_cost=True)
            for name, took_ms in slowest_ms.items()
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
    sent = _json(body)
    return lambda _number: sent


def _located(part: str) -> Issues:
    """Return issues at locations of 2,000 characters of as many parts as possible, other ones in each body."""
    return lambda number: [
        {"code": "a", "title": "b", "location": f"{_filled(part, 1980)}a{number}-{issue}"} for issue in range(480)
    ]


def _linked(part: str) -> Issues:
    """Return issues on pages with URLs of 2,000 characters, other ones in each body."""
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
