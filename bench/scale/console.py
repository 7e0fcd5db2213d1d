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
from bench.servers.empty_installation import empty_installation
from bench.servers.serving import serving
from runtime.clock import utc_now
from schemas.base.principal import Ability, TokenKind
from storage.accounts import tokens
from tests.support.factories import Customer

#: The product's bound for the median.
BOUND_MS: Final = 50.0
#: Requests that are not counted: templates are compiled at first use, and the database's caches are cold.
_WARM_UP: Final = 5
_ORIGIN: Final = "http://risk.example.com"
_BROWSER: Final = {"User-Agent": "Mozilla/5.0 (bench)"}


@click.command(epilog="Example: python -m bench.scale.console --exports 100000 --database sqlite")
@click.option("--database", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--exports", default=1_000_000, show_default=True, type=click.IntRange(min=1000), help="How many there are.")
@click.option("--looks", "repetitions", default=50, show_default=True, type=click.IntRange(min=10), help="At each page.")
def bench(database: str, exports: int, repetitions: int) -> None:
    """Measure every page of the console over many exports."""
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for name in ["sqlite", "postgresql"] if database == "both" else [database]:
        measured[name] = _measured(name, exports, repetitions)
        lines = {page: (times["median_ms"], times["p95_ms"], f"< {BOUND_MS:g}") for page, times in measured[name].items()}
        figures.print_table(name, ("median ms", "p95 ms", "bound"), lines)
    figures.write("console", {**figures.machine(), "exports": exports, "looks": repetitions, **measured})


def _measured(database: str, exports: int, repetitions: int) -> dict[str, dict[str, float]]:
    settings = {"WEB_PROCESSES": "1", "PUBLIC_BASE_URL": _ORIGIN, "RATE_LIMIT_PER_MINUTE": "1000000"}
    with empty_installation(database, **settings) as installation:
        export_id, target_id = fill(installation.customer, exports, utc_now())
        token = _token(installation.customer)
        with serving("service.wsgi:app", installation.env) as served:
            link = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            headers = {**_BROWSER, "Cookie": _signed_in(link, token)}
            return {page: _times(link, page, headers, repetitions) for page in pages(export_id, target_id)}


def pages(export_id: str, target_id: str) -> list[str]:
    """Return the paths of all measured pages, including filtered lists."""
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
    response = link.getresponse()
    response.read()
    assert response.status == 303, response.status
    return (response.headers["Set-Cookie"] or "").partition(";")[0]


def _times(link: http.client.HTTPConnection, page: str, headers: Mapping[str, str], repetitions: int) -> dict[str, float]:
    elapsed_ms: list[float] = []
    for number in range(_WARM_UP + repetitions):
        began = time.perf_counter()
        link.request("GET", page, headers=dict(headers))
        response = link.getresponse()
        body = response.read()
        assert response.status == 200, f"{page} returned {response.status}."
        if number >= _WARM_UP:
            elapsed_ms.append((time.perf_counter() - began) * 1000)
    return {
        "median_ms": round(median(elapsed_ms), 1),
        "p95_ms": round(quantiles(elapsed_ms, n=20)[-1], 1),
        "bytes": len(body),
    }


if __name__ == "__main__":
    bench()
