"""`python -m bench.scale.console`: response time of each page of the console with a million exports.

One service process on a database filled by `bench.scale.console_rows`; a signed-in client reads each page repeatedly over
one connection, as a browser does. Reports the median and the 95th percentile to the last byte, in milliseconds, and the
bound of each page.
"""

import http.client
import time
from collections.abc import Mapping
from statistics import median, quantiles
from typing import Final
from urllib.parse import urlencode

import click

from bench import figures
from bench.scale.console_rows import fill
from bench.servers.crowd import crowd
from bench.servers.serving import serving
from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from storage.accounts import tokens
from tests.support.factories import Customer

#: What the product is held to, at the median.
WANTED_MS: Final = 50.0
#: Templates are compiled when they are first shown, and caches of the database are cold.
_WARM: Final = 5
_ORIGIN: Final = "http://risk.example.com"
_BROWSER: Final = {"User-Agent": "Mozilla/5.0 (bench)"}


@click.command(epilog="Example: python -m bench.scale.console --exports 100000 --database sqlite")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--exports", default=1_000_000, show_default=True, type=click.IntRange(min=1000), help="How many there are.")
@click.option("--looks", default=50, show_default=True, type=click.IntRange(min=10), help="At each page.")
def bench(database: str, exports: int, looks: int) -> None:
    """Measure every page of the console over many exports."""
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        measured[name] = _measured(name, exports, looks)
        lines = {page: (took["median_ms"], took["p95_ms"], f"< {WANTED_MS:g}") for page, took in measured[name].items()}
        figures.table(name, ("median ms", "p95 ms", "wanted"), lines)
    figures.write("console", {**figures.machine(), "exports": exports, "looks": looks, **measured})


def _measured(database: str, exports: int, looks: int) -> dict[str, dict[str, float]]:
    settings = {"WEB_PROCESSES": "1", "PUBLIC_BASE_URL": _ORIGIN, "RATE_LIMIT_PER_MINUTE": "1000000"}
    with crowd(database, **settings) as installation:
        export_id, target_id = fill(installation.customer, exports, utc_now())
        token = _token(installation.customer)
        with serving("service.wsgi:app", installation.env) as served:
            link = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            headers = {**_BROWSER, "Cookie": _signed_in(link, token)}
            return {page: _took(link, page, headers, looks) for page in pages(export_id, target_id)}


def pages(export_id: str, target_id: str) -> list[str]:
    """Return every page that is looked at, filtered lists among them."""
    triage = ("inbox", "deliveries", "findings", "recoveries", "compliance", "audit")
    lists = (*triage, "exports", "targets", "integrations", "queue", "settings")
    filtered = ("exports?status=failed", "exports?status=prepared", "exports?source=manual", f"audit?subject={export_id}")
    named = ["overview", *lists, "sessions", *filtered, f"exports/{export_id}", f"targets/{target_id}"]
    return [f"/console/{name}".rstrip("/") for name in named]


def _token(customer: Customer) -> str:
    return tokens.create(customer.email, TokenKind.API, utc_now(), (Ability.CONSOLE,), "bench")[1]


def _signed_in(link: http.client.HTTPConnection, token: str) -> str:
    """Sign in and return the cookie."""
    form = {**_BROWSER, "Origin": _ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}
    link.request("POST", "/console/sign-in", urlencode({"token": token}), form)
    answer = link.getresponse()
    answer.read()
    assert answer.status == 303, answer.status
    return (answer.headers["Set-Cookie"] or "").partition(";")[0]


def _took(link: http.client.HTTPConnection, page: str, headers: Mapping[str, str], looks: int) -> dict[str, float]:
    took_ms: list[float] = []
    for number in range(_WARM + looks):
        began = time.perf_counter()
        link.request("GET", page, headers=dict(headers))
        answer = link.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{page} was answered with {answer.status}."
        if number >= _WARM:
            took_ms.append((time.perf_counter() - began) * 1000)
    return {"median_ms": round(median(took_ms), 1), "p95_ms": round(quantiles(took_ms, n=20)[-1], 1), "bytes": len(body)}


if __name__ == "__main__":
    bench()
