"""`python -m bench.requests.guessing`: whether the time of a rejection depends on how close a guess is.

The guesses have no, a few or nearly all characters in common with the secret. Each repetition tries all of them in random
order and compares each with the first guess, which has nothing in common. Reports the median of these differences and its
95 % confidence interval, by ranks, so that occasional load does not affect it. Another guess with nothing in common is the
control: its difference is this machine's noise. The calls run in this process, where a difference is easiest to detect; a
network adds a thousand times the noise. Started processes are stopped.
"""

import base64
import hmac
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import click
import falcon
from falcon.testing import create_req

from bench import figures
from runtime.clock import utc_now
from schemas.base.errors import Unauthorized
from schemas.base.principal import TokenKind
from service.http.auth import SharedSecret, is_signed
from storage.accounts import tokens
from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database, transaction
from storage.exports import poll_sql
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.support.factories import make_customer, make_exports, make_settings
from tests.support.servers.redis_and_postgres import PostgresServer

#: Calls of one guess per repetition: enough to hide the cost of the clock, few enough for short repetitions.
_CALLS: Final = 10
#: Repetitions that are not counted: they fill caches, and the database plans its statements.
_WARM_UP: Final = 50
#: Half of the normal distribution's 1.96 for 95 %: the ranks of the bounds differ from the median's by this times √n.
_RANKS: Final = 0.98
_HEADER: Final = "X-Scanner-Secret"
_BODY: Final = b'{"shop_domain": "snow.shops.example"}' * 20

Guess = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Difference:
    """How much longer one guess takes than the first one, in microseconds: median and 95 % confidence interval."""

    name: str
    guess: str
    least_us: float
    median_us: float
    most_us: float
    takes_us: float


@click.command(epilog="Example: python -m bench.requests.guessing --turns 500")
@click.option(
    "--turns",
    "repetitions",
    default=3000,
    show_default=True,
    type=click.IntRange(min=100),
    help="How often each guess is compared.",
)
def guessing(repetitions: int) -> None:
    """Compare the time of rejections by how close the guess is."""
    rng = random.Random(7)
    found: list[Difference] = []
    for kind in ("sqlite", "postgresql"):
        with _installation(kind) as folder:
            for name, guesses in _token_guesses(kind).items():
                found += _compared(name, guesses, repetitions, rng)
            if kind == "sqlite":
                for name, guesses in _secret_guesses(folder).items():
                    found += _compared(name, guesses, repetitions, rng)
    click.echo(f"{'refusal':36}{'guess':36}{'takes µs':>9}{'differs by µs':>15}{'95 % between':>20}")
    for each in found:
        between = f"{each.least_us:+.3f} … {each.most_us:+.3f}"
        click.echo(f"{each.name:36}{each.guess:36}{each.takes_us:9.1f}{each.median_us:+15.3f}{between:>20}")
    intervals = {
        f"{each.name}: {each.guess}": [each.least_us, each.median_us, each.most_us, each.takes_us] for each in found
    }
    figures.write("guessing", {**figures.machine(), "turns": repetitions, "microseconds": intervals})


@contextmanager
def _installation(kind: str) -> Iterator[Path]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riskrelay-guessing-")))
        is_sqlite = kind == "sqlite"
        url = f"sqlite:///{folder / 'bench.db'}" if is_sqlite else stack.enter_context(PostgresServer()).create_database()
        open_database(url)
        stack.callback(close_database)
        schema_version.migrate()
        with connection():
            yield folder


def _token_guesses(kind: str) -> dict[str, dict[str, Guess]]:
    """Return the guesses of a token, for requests, for polls, and with a wrong checksum."""
    customer, now = make_customer(), utc_now()
    [export_id] = make_exports(customer, 1)
    revoked = tokens.create(customer.email, TokenKind.API, now)
    tokens.revoke(revoked[0].id, now)
    expired = tokens.create(customer.email, TokenKind.API, now - timedelta(days=2), expires=timedelta(days=1))[1]
    # More tokens, so that the index has digests before and after those of the guesses.
    with transaction():
        for _ in range(1000):
            tokens.create(customer.email, TokenKind.API, now)
    guesses = {
        "shares nothing": _token_like(customer.token, 0),
        "shares nothing (control)": _token_like(customer.token, 0),
        "10 letters right": _token_like(customer.token, 10),
        "all but one letter right": _token_like(customer.token, 30),
        "was revoked": revoked[1],
        "has expired": expired,
    }
    malformed = {name: f"{text[:-1]}{'1' if text[-1] == '0' else '0'}" for name, text in list(guesses.items())[:4]}
    return {
        f"token, {kind}": {name: partial(tokens.principal_for, text, now) for name, text in guesses.items()},
        f"token of a poll, {kind}": {
            f"{name}{where}": partial(poll_sql.poll, text, requested_id, now)
            for name, text in guesses.items()
            for where, requested_id in (("", export_id), (", no export", "exp_nobody"))
            if not where or name == "shares nothing (control)"
        },
        f"token, wrong checksum, {kind}": {
            name: partial(tokens.principal_for, text, now) for name, text in malformed.items()
        },
    }


def _token_like(token: str, right: int) -> str:
    """Return a well-formed token whose first `right` characters are those of `token`, and whose next character differs."""
    while True:
        made = tokens._new_text()
        random_part = (token[:right] + made[right:])[: len(tokens.PREFIX) + tokens._RANDOM_DIGITS]
        if right < len(tokens.PREFIX) or random_part[right] != token[right]:
            return random_part + tokens._checksum(random_part[len(tokens.PREFIX) :])


def _secret_guesses(folder: Path) -> dict[str, dict[str, Guess]]:
    right = "3f9c1e77b0a24d5c8e6f1029384756aabbccddee"
    settings = make_settings(folder, {"SCANNER_SHARED_SECRET": right})
    check = SharedSecret(_HEADER, Integration.SCANNER, SharedSecrets(settings, Vault(settings.encryption_keys)))
    guesses = {
        "shares nothing": "z" * len(right),
        "shares nothing (control)": "y" * len(right),
        "10 letters right": right[:10] + "z" * (len(right) - 10),
        "30 letters right": right[:30] + "z" * (len(right) - 30),
        "all but one letter right": right[:-1] + "z",
        "one letter alone": "z",
        "twice as long": "z" * 2 * len(right),
    }
    tag = base64.b64encode(hmac.digest(right.encode(), _BODY, "sha256")).decode()
    signed = {
        "shares nothing": "".join("A" if letter != "A" else "B" for letter in tag[:-2]) + "A=",
        "shares nothing (control)": "".join("C" if letter != "C" else "D" for letter in tag[:-2]) + "A=",
        "10 letters right": tag[:10] + "A" * 33 + "=",
        "30 letters right": tag[:30] + "A" * 13 + "=",
        "all but one letter right": ("A" if tag[0] != "A" else "B") + tag[1:],
    }
    return {
        "scanner's secret": {name: _rejected(check, create_req(headers={_HEADER: text})) for name, text in guesses.items()},
        "storefront's signature": {name: partial(is_signed, _BODY, text, right.encode()) for name, text in signed.items()},
    }


def _rejected(check: SharedSecret, req: falcon.Request) -> Guess:
    def guess() -> None:
        try:
            check(req)
        except Unauthorized:
            return
        raise AssertionError("A wrong secret was accepted.")

    return guess


def _compared(name: str, guesses: Mapping[str, Guess], repetitions: int, rng: random.Random) -> list[Difference]:
    samples: dict[str, list[float]] = {guess: [] for guess in guesses}
    order = list(guesses)
    for repetition in range(_WARM_UP + repetitions):
        rng.shuffle(order)
        for guess in order:
            elapsed_us = _timed_us(guesses[guess])
            if repetition >= _WARM_UP:
                samples[guess].append(elapsed_us)
    first, *others = guesses
    differences = {guess: [a - b for a, b in zip(samples[guess], samples[first], strict=True)] for guess in others}
    control = [Difference(name, first, 0, 0, 0, median(samples[first]))]
    return control + [
        Difference(name, guess, *_interval(each), median(samples[guess])) for guess, each in differences.items()
    ]


def _timed_us(guess: Guess) -> float:
    began = time.perf_counter_ns()
    for _ in range(_CALLS):
        guess()
    return (time.perf_counter_ns() - began) / _CALLS / 1000


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower bound, the median and the upper bound of its 95 % confidence interval."""
    ranked, distance = sorted(values), math.ceil(_RANKS * math.sqrt(len(values)))
    middle = len(ranked) // 2
    return ranked[middle - distance], median(ranked), ranked[middle + distance]


if __name__ == "__main__":
    guessing()
