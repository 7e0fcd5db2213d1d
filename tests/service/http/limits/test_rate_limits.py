"""Rate limits are exact across processes, use a sliding window, report the correct wait, and never cause an outage."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import falcon
import pytest
from falcon.testing import Result, TestClient, create_req
from freezegun import freeze_time
from freezegun.api import FrozenDateTimeFactory
from limits import RateLimitItemPerSecond
from redis import Redis

from schemas.base.errors import RateLimited
from schemas.base.principal import Ability, TokenKind
from schemas.url_policy.policy import parse_networks
from service.app import create_app
from service.http.auth import Bearer
from service.http.client_address import counted_address, counted_network
from service.http.limits.blocked_addresses import BlockedAddresses
from service.http.limits.rate_counters import RateLimitCounters, RateLimitWindow
from service.http.limits.rate_limits import RateLimits
from service.http.request_pipeline import Operation, RequestPipeline
from tests.service.conftest import LogLines
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, environment, make_exports, make_platform_token, make_settings
from tests.support.fakes import FakeMonotonic, FakeResolver, FakeWakeUpQueue, OvertakenLimits
from tests.support.http.raw_http import EXPORTS, JSON, RESULTS, SCANNER, TARGETS, assert_is_error
from tests.support.http.storefront import CLOUD, WEBHOOKS, signature
from tests.support.processes.gunicorn_process import Service
from tests.support.servers.redis_and_postgres import RedisServer, processes_in

# Rate limits do not depend on the database.
pytestmark = on_sqlite

RATE_LIMIT = re.compile(r'"principal";r=(\d+);t=(\d+)')


@dataclass(frozen=True, slots=True)
class LimitDecision:
    """What one response says about the limit."""

    passed: bool
    remaining: int
    seconds: int


class Process:
    """The limits of one process, called as the service calls them."""

    def __init__(self, folder: Path, redis_url: str = "", /, **how: Any) -> None:
        variables = {"REDIS_URL": redis_url, **{name: str(how.pop(name)) for name in list(how) if name.isupper()}}
        self._limits = RateLimits(make_settings(folder, variables), **how)
        self._req = create_req()
        self._req.context.request_id = "req_1"

    def ask(self, principal: str = "user:1") -> LimitDecision:
        """Send one authenticated request."""
        resp, wait_s = falcon.Response(), 0
        try:
            self._limits.spend(self._req, resp, principal)
        except RateLimited as refused:
            wait_s = refused.retry_after_s or 0
        remaining, seconds = rate_limit_of(resp.get_header("RateLimit") or "")
        assert not wait_s or (remaining, seconds) == (0, wait_s)
        return LimitDecision(not wait_s, remaining, seconds)

    def passes(self, count: int, principal: str = "user:1") -> int:
        """Send `count` requests and return how many passed."""
        return sum(self.ask(principal).passed for _ in range(count))

    def fail(self, address: str = "192.0.2.1") -> bool:
        """Fail to authenticate once; return whether the response was still a 401."""
        return self._raises_nothing(self._limits.count_failure, address)

    def is_accepted(self, address: str = "192.0.2.1") -> bool:
        """Return whether requests from the address are accepted."""
        return self._raises_nothing(self._limits.require_unblocked, address)

    def _raises_nothing(self, hook: Callable[[falcon.Request], None], address: str) -> bool:
        self._req.env["REMOTE_ADDR"] = address
        try:
            hook(self._req)
        except RateLimited:
            return False
        return True


def rate_limit_of(header: str) -> tuple[int, int]:
    actual = RATE_LIMIT.fullmatch(header)
    assert actual, header
    return int(actual[1]), int(actual[2])


@pytest.fixture
def frozen() -> Iterator[FrozenDateTimeFactory]:
    """A clock frozen seven seconds after the start of a minute.

    It is far in the future, because counters in memory are deleted by a thread that freezegun does not affect.
    """
    with freeze_time(datetime(2190, 1, 1, 0, 0, 7, tzinfo=UTC)) as factory:
        assert isinstance(factory, FrozenDateTimeFactory)
        yield factory
        # The storage's cleanup threads end by themselves; one that reads the clock while it is unfrozen would fail.
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()


def frozen_clock() -> float:
    """Return the frozen time, read again at each call."""
    return time.time()


# One limit for all processes


def test_a_small_limit_is_exact_over_two_processes(redis: RedisServer, tmp_path: Path) -> None:
    one, two = (Process(tmp_path, redis.url, RATE_LIMIT_PER_MINUTE=7) for _ in range(2))
    actual = [process.ask() for _ in range(10) for process in (one, two)]
    assert [each.passed for each in actual] == [True] * 7 + [False] * 13
    assert [each.remaining for each in actual] == [6, 5, 4, 3, 2, 1, 0] + [0] * 13


def test_a_large_limit_is_exact_across_two_processes_with_many_threads(redis: RedisServer, tmp_path: Path) -> None:
    """Shares are reserved in advance; none is lost or used twice."""
    processes = [Process(tmp_path, redis.url) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        passed = sum(pool.map(lambda number: processes[number % 2].passes(200), range(8)))
    assert passed == 600


def test_the_last_requests_of_a_limit_are_given_out_singly(redis: RedisServer, tmp_path: Path) -> None:
    """A share of ten is no longer available, but single requests are."""
    one, two = (Process(tmp_path, redis.url) for _ in range(2))
    assert one.passes(593) == 593
    # The first process holds seven requests of its sixtieth share; nothing else is left.
    assert two.passes(20) == 0
    assert one.passes(20) == 7


def test_principals_have_separate_limits(redis: RedisServer, tmp_path: Path) -> None:
    process = Process(tmp_path, redis.url, RATE_LIMIT_PER_MINUTE=3)
    assert process.passes(5, "user:1") == 3
    assert process.passes(5, "user:2") == 3
    assert process.passes(5, "scanner") == 3


def test_few_requests_use_redis_and_no_refusal_does(redis: RedisServer, tmp_path: Path) -> None:
    process = Process(tmp_path, redis.url)
    process.ask()
    with Redis.from_url(redis.url) as client:
        client.config_resetstat()
        assert process.passes(99) == 99
        # Ten reservations of ten requests, the first of them before counting began; each reads the window and increments it.
        assert scripts_run(client) == 2 * 9
        assert process.passes(500) == 500
        assert process.passes(1) == 0
        client.config_resetstat()
        assert process.passes(100) == 0
        assert scripts_run(client) == 0


def scripts_run(client: "Redis") -> int:
    actual: dict[str, Any] = client.info("commandstats")
    return int(actual.get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_the_reported_remainder_includes_the_reserved_share(redis: RedisServer, tmp_path: Path) -> None:
    process = Process(tmp_path, redis.url)
    actual = [process.ask() for _ in range(25)]
    assert [each.remaining for each in actual] == list(range(599, 574, -1))
    assert all(58 <= each.seconds <= 60 for each in actual)


# Sliding window


def test_a_burst_over_the_edge_of_a_period_gets_no_second_limit(redis: RedisServer, tmp_path: Path) -> None:
    """A fixed window would allow another sixty requests; a sliding one, only as many as have expired of the first sixty."""
    window_s = 8
    process = Process(tmp_path, redis.url, RATE_LIMIT_PER_MINUTE=60, window_s=window_s)
    began_at = time.monotonic()
    assert process.ask().passed
    # Late in the period, but early enough that a busy machine finishes the burst within it.
    time.sleep(0.8 * window_s)
    assert process.passes(60) == 59
    time.sleep(max(0.0, began_at + window_s + 0.2 - time.monotonic()))
    after = process.passes(60)
    faded_s = time.monotonic() - began_at - window_s
    assert 1 <= after <= faded_s / window_s * 60 + 1


def test_unspent_shares_lapse_with_the_period(frozen: FrozenDateTimeFactory, tmp_path: Path) -> None:
    process = Process(tmp_path, clock=frozen_clock)
    assert [process.ask().remaining for _ in range(2)] == [599, 598]
    frozen.tick(53)
    # A new period: it counts only the new share; all ten requests of the old share count in the previous period.
    assert process.ask().remaining == 600 - 10 - 1


def test_the_wait_that_is_reported_is_enough_for_redis(redis: RedisServer, tmp_path: Path) -> None:
    """A process that remembers no refusal accepts a request after the wait, both early and late in a period."""
    how: Mapping[str, Any] = {"RATE_LIMIT_PER_MINUTE": 4, "window_s": 2}
    refusing = Process(tmp_path, redis.url, **how)
    assert refusing.passes(4) == 4
    # In the first millisecond, the whole period plus the resolution of the clock would round up to three seconds.
    time.sleep(0.01)
    for longest in (2, 1):
        problems = refusing.ask()
        assert not problems.passed
        assert 1 <= problems.seconds <= longest
        time.sleep(problems.seconds)
        assert Process(tmp_path, redis.url, **how).passes(1) == 1
        while refusing.ask().passed:
            pass


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20, 59, 60, 61, 119, 120, 600, 601])
def test_the_wait_that_is_reported_is_exact_to_the_second(frozen: FrozenDateTimeFactory, limit: int, tmp_path: Path) -> None:
    """A request one second earlier is refused, and one at the end of the wait is accepted, six times in a row."""
    process = Process(tmp_path, RATE_LIMIT_PER_MINUTE=limit, clock=frozen_clock)
    for _ in range(6):
        while (actual := process.ask()).passed:
            pass
        frozen.tick(actual.seconds - 1)
        assert actual.seconds == 1 or not process.ask().passed
        frozen.tick(1)
        assert process.ask().passed


def test_a_refused_principal_may_spend_everything_again_later(frozen: FrozenDateTimeFactory, tmp_path: Path) -> None:
    process = Process(tmp_path, RATE_LIMIT_PER_MINUTE=5, clock=frozen_clock)
    assert process.passes(9) == 5
    frozen.tick(120)
    assert process.passes(9) == 5


# Redis unavailable


def test_without_redis_each_process_counts_separately_until_redis_is_available_again(
    redis: RedisServer, tmp_path: Path, log_lines: LogLines
) -> None:
    clock = FakeMonotonic()
    one, two = (Process(tmp_path, redis.url, RATE_LIMIT_PER_MINUTE=5, clock=clock) for _ in range(2))
    assert one.passes(3) == 3
    redis.stop()
    assert (one.passes(9), two.passes(9)) == (5, 5)
    redis.start()
    # The processes do not check yet whether Redis is available again.
    assert (one.passes(9, "user:2"), two.passes(9, "user:2")) == (5, 5)
    clock.now += 5
    assert one.passes(9, "user:3") + two.passes(9, "user:3") == 5
    assert log_lines.text.count("Redis unavailable") == 2
    assert log_lines.text.count("Redis available again") == 2


def test_an_outage_is_logged_at_its_start_and_once_a_minute(tmp_path: Path, log_lines: LogLines) -> None:
    clock = FakeMonotonic()
    process = Process(tmp_path, clock=clock)
    for number in range(50):
        assert process.ask(f"user:{number}").passed
        clock.now += 3
    # 50 requests in 147 seconds.
    assert log_lines.text.count("Redis unavailable") == 3
    assert "ConnectionError" in log_lines.text


def test_a_redis_that_hangs_costs_one_request_a_quarter_of_a_second(redis: RedisServer, tmp_path: Path) -> None:
    process = Process(tmp_path, redis.url)
    assert process.ask("user:0").passed
    with hanging(redis):
        took_s = [timed(lambda number=number: process.ask(f"user:{number}")) for number in range(1, 30)]  # type: ignore[misc]  # bound per request
    assert 0.2 < max(took_s) < 1
    assert sum(each > 0.2 for each in took_s) == 1


def test_one_request_checks_whether_a_hanging_redis_is_back_and_the_others_continue(
    redis: RedisServer, tmp_path: Path
) -> None:
    clock = FakeMonotonic()
    process = Process(tmp_path, redis.url, clock=clock)
    with hanging(redis), ThreadPoolExecutor(8) as pool:
        assert process.ask("user:0").passed
        clock.now += 5
        took_s = list(pool.map(lambda number: timed(lambda: process.ask(f"user:{number}")), range(1, 9)))
    assert sum(each > 0.2 for each in took_s) == 1


def timed(ask: Callable[[], LimitDecision]) -> float:
    began_at = time.monotonic()
    assert ask().passed
    return time.monotonic() - began_at


@contextmanager
def hanging(redis: RedisServer) -> Iterator[None]:
    pids = list(processes_in(redis.folder))
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_redis_that_accepts_no_writes_counts_as_unavailable(
    redis: RedisServer, tmp_path: Path, log_lines: LogLines
) -> None:
    process = Process(tmp_path, redis.url, RATE_LIMIT_PER_MINUTE=5)
    with Redis.from_url(redis.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            assert process.passes(9) == 5
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
    assert log_lines.text.count("Redis unavailable") == 1


#: A period that does not end during the test: it began in 1970.
ENDLESS_S = 10**10


def test_ten_thousand_principals_are_remembered_and_no_more(tmp_path: Path) -> None:
    process = Process(tmp_path, window_s=ENDLESS_S)
    assert process.ask("the first").remaining == 599
    for number in range(9_999):
        process.ask(f"user:{number}")
    assert process.ask("the first").remaining == 598
    for number in range(9_999, 10_001):
        process.ask(f"user:{number}")
    # The principal was removed, with its eight reserved requests; without Redis they were counted nowhere else.
    assert process.ask("the first").remaining != 597


def test_a_flood_of_addresses_does_not_fill_the_memory(tmp_path: Path) -> None:
    process = Process(tmp_path, AUTH_FAILURES_PER_MINUTE=1, window_s=ENDLESS_S)
    addresses = [f"10.{number >> 8}.{number & 255}.1" for number in range(10_010)]
    assert all(process.fail(address) for address in addresses[:10_000])
    # All addresses are remembered up to this point.
    assert not process.fail(addresses[1])
    assert all(process.fail(address) for address in addresses[10_000:])
    assert process.fail(addresses[2])


# Failed authentication


def test_failures_of_an_address_are_counted_across_processes(
    redis: RedisServer, tmp_path: Path, log_lines: LogLines
) -> None:
    one, two = (Process(tmp_path, redis.url) for _ in range(2))
    assert [one.fail() for _ in range(21)] == [True] * 20 + [False]
    assert not one.is_accepted()
    # The other process detects the block at its own next failure.
    assert two.is_accepted()
    assert not two.fail()
    assert not two.is_accepted()
    assert one.is_accepted("192.0.2.2")
    assert two.fail("192.0.2.2")
    assert log_lines.text.count("failed to authenticate too often") == 2


def test_a_blocked_address_is_accepted_after_its_wait(frozen: FrozenDateTimeFactory, tmp_path: Path) -> None:
    process = Process(tmp_path, AUTH_FAILURES_PER_MINUTE=2, clock=frozen_clock)
    assert [process.fail() for _ in range(3)] == [True, True, False]
    frozen.tick(53)
    assert not process.is_accepted()
    frozen.tick(1)
    assert process.is_accepted()
    # One of the two failures has begun to expire: one more failure is accepted, but not a second one.
    assert [process.fail() for _ in range(2)] == [True, False]
    assert not process.is_accepted()


def test_requests_of_a_principal_and_failures_of_an_address_are_counted_separately(
    redis: RedisServer, tmp_path: Path
) -> None:
    process = Process(tmp_path, redis.url, RATE_LIMIT_PER_MINUTE=3, AUTH_FAILURES_PER_MINUTE=3)
    assert process.passes(9, "192.0.2.1") == 3
    assert [process.fail() for _ in range(4)] == [True] * 3 + [False]


class SlowCounters(RateLimitCounters):
    """Counting waits, as with a slow connection to Redis."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_settings(folder).redis_url, 8, time.monotonic)
        self.is_asked = threading.Event()
        self.answers = threading.Event()

    def count(self, item: RateLimitItemPerSecond, kind: str, key: str, share: int) -> tuple[int, RateLimitWindow]:
        self.is_asked.set()
        self.answers.wait(30)
        return super().count(item, kind, key, share)


def test_a_correct_guess_among_concurrent_ones_waits_for_the_count_of_earlier_failures(tmp_path: Path) -> None:
    """While the failure that exceeds the limit is counted, other requests of the same address have already authenticated."""
    counters = SlowCounters(tmp_path)
    addresses = BlockedAddresses(RateLimitItemPerSecond(1, ENDLESS_S), counters, time.monotonic)
    counters.answers.set()
    addresses.count("192.0.2.1")
    counters.answers.clear()
    counters.is_asked.clear()
    with ThreadPoolExecutor(1) as pool:
        one_too_many = pool.submit(addresses.count, "192.0.2.1")
        assert counters.is_asked.wait(30)
        assert not addresses.is_empty
        addresses.require_still_unblocked("192.0.2.2")
        threading.Timer(0.1, counters.answers.set).start()
        with pytest.raises(RateLimited):
            addresses.require_still_unblocked("192.0.2.1")
        with pytest.raises(RateLimited):
            one_too_many.result()


def test_a_valid_token_among_many_concurrent_guesses_is_not_revealed(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"AUTH_FAILURES_PER_MINUTE": "1"})
    admission = RequestPipeline(1000, OvertakenLimits(settings))
    resource = SimpleNamespace(operations={"GET": Operation(Bearer(TokenKind.API, Ability.READ_EXPORTS))})
    with pytest.raises(RateLimited):
        admission.process_resource(create_req(headers=customer.bearer), falcon.Response(), resource, {})


def test_concurrent_guesses_get_only_as_many_401_responses_as_the_limit(redis: RedisServer, tmp_path: Path) -> None:
    process = Process(tmp_path, redis.url, AUTH_FAILURES_PER_MINUTE=5, window_s=ENDLESS_S)
    others = [Process(tmp_path, redis.url, AUTH_FAILURES_PER_MINUTE=5, window_s=ENDLESS_S) for _ in range(2)]
    with ThreadPoolExecutor(12) as pool:
        actual = list(pool.map(lambda number: [process, *others][number % 3].fail(), range(60)))
    assert actual.count(True) == 5
    assert not any(each.is_accepted() for each in (process, *others))


def test_a_local_block_continues_while_the_window_of_all_processes_is_full(redis: RedisServer, tmp_path: Path) -> None:
    """Otherwise each process would accept one more guess whenever the window has room for one."""
    clock = FakeMonotonic()
    how: Mapping[str, Any] = {"AUTH_FAILURES_PER_MINUTE": 3, "window_s": ENDLESS_S, "clock": clock}
    one, two = (Process(tmp_path, redis.url, **how) for _ in range(2))
    assert [one.fail() for _ in range(4)] == [True] * 3 + [False]
    assert not two.fail()
    # By the process's clock; Redis uses its own.
    clock.now += 2 * ENDLESS_S
    assert not one.is_accepted()
    assert not two.is_accepted()
    redis.flush()
    assert one.is_accepted() is two.is_accepted() is False
    clock.now += 2 * ENDLESS_S
    assert one.is_accepted() is two.is_accepted() is True
    assert [one.fail() for _ in range(4)] == [True] * 3 + [False]


def test_an_address_is_blocked_again_by_the_failure_that_fills_the_window(
    frozen: FrozenDateTimeFactory, tmp_path: Path
) -> None:
    process = Process(tmp_path, AUTH_FAILURES_PER_MINUTE=2, clock=frozen_clock)
    assert [process.fail() for _ in range(3)] == [True, True, False]
    frozen.tick(54)
    assert process.is_accepted()
    assert process.fail()
    assert not process.is_accepted()
    # A minute after the last failure, all failures have expired.
    frozen.tick(180)
    assert process.is_accepted()
    assert [process.fail() for _ in range(3)] == [True, True, False]


PROXIES = "10.0.0.0/8,127.0.0.1/32,fd00::/8"

ADDRESSES = [
    # the peer itself
    ("192.0.2.1", "", "", "192.0.2.1"),
    ("2001:db8:1:2:3:4:5:6", "", "", "2001:db8:1:2::/64"),  # one subscriber has a whole /64
    ("2001:db8:1:2::1", "", "", "2001:db8:1:2::/64"),
    ("2001:db8:1:3::1", "", "", "2001:db8:1:3::/64"),
    ("fe80::1%eth0", "", "", "fe80::/64"),
    ("::ffff:192.0.2.1", "", "", "192.0.2.1"),  # a socket for IPv4 and IPv6
    ("", "", "", "local"),  # a Unix socket
    ("", "203.0.113.9", PROXIES, "local"),
    # an untrusted peer can send any header
    ("192.0.2.1", "203.0.113.9", "", "192.0.2.1"),
    ("192.0.2.1", "203.0.113.9", PROXIES, "192.0.2.1"),
    # one proxy
    ("10.0.0.1", "203.0.113.9", PROXIES, "203.0.113.9"),
    ("::ffff:10.0.0.1", "203.0.113.9", PROXIES, "203.0.113.9"),
    ("fd00::1", "2001:db8:1:2::9", PROXIES, "2001:db8:1:2::/64"),
    ("10.0.0.1", "", PROXIES, "10.0.0.1"),  # a request of the proxy itself
    ("10.0.0.1", "203.0.113.9:4711", PROXIES, "203.0.113.9"),  # some proxies add the port
    ("10.0.0.1", "[2001:db8:1:2::9]:4711", PROXIES, "2001:db8:1:2::/64"),
    ("10.0.0.1", "::ffff:203.0.113.9", PROXIES, "203.0.113.9"),
    # the client's own value is to the left of the proxy's
    ("10.0.0.1", "198.51.100.7, 203.0.113.9", PROXIES, "203.0.113.9"),
    ("10.0.0.1", "10.0.0.9, 203.0.113.9", PROXIES, "203.0.113.9"),
    ("10.0.0.1", "nonsense, 203.0.113.9", PROXIES, "203.0.113.9"),
    # several proxies
    ("10.0.0.1", "203.0.113.9, 10.0.0.2", PROXIES, "203.0.113.9"),
    ("10.0.0.1", "198.51.100.7, 203.0.113.9,10.0.0.3 , 10.0.0.2", PROXIES, "203.0.113.9"),
    ("10.0.0.1", "10.0.0.3, 10.0.0.2", PROXIES, "10.0.0.3"),  # a client within the trusted network
    # an invalid address ends the search
    ("10.0.0.1", "203.0.113.9, nonsense, 10.0.0.2", PROXIES, "10.0.0.2"),
    ("10.0.0.1", "unknown", PROXIES, "10.0.0.1"),
    ("10.0.0.1", "203.0.113.9,", PROXIES, "10.0.0.1"),
    ("10.0.0.1", "203.0.113.0/24", PROXIES, "10.0.0.1"),
    ("10.0.0.1", "gr\xfcn", PROXIES, "10.0.0.1"),
]


@pytest.mark.parametrize(("peer", "forwarded", "trusted", "expected"), ADDRESSES)
def test_an_address_is_counted_by_the_value_in_the_table(peer: str, forwarded: str, trusted: str, expected: str) -> None:
    req = create_req(headers={"X-Forwarded-For": forwarded} if forwarded else None)
    req.env["REMOTE_ADDR"] = peer
    assert counted_address(req, parse_networks(trusted)) == expected


@pytest.mark.parametrize(
    ("peer", "expected"), [("203.0.113.9", "203.0.113.0/24"), ("2001:db8:1:2::3", "2001:db8:1::/48"), ("", "local")]
)
def test_a_network_is_counted_by_the_value_in_the_table(peer: str, expected: str) -> None:
    req = create_req()
    req.env["REMOTE_ADDR"] = peer
    assert counted_network(req, ()) == expected


def test_a_header_for_each_proxy_is_read_like_one_list() -> None:
    """WSGI joins repeated headers in their order."""
    headers = [("X-Forwarded-For", "198.51.100.7"), ("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "10.0.0.2")]
    req = create_req(headers=headers, remote_addr="10.0.0.1")
    assert counted_address(req, parse_networks(PROXIES)) == "203.0.113.9"


# Through the HTTP interface


@dataclass
class LimitedClient:
    """The application and a customer who sends requests to it."""

    client: TestClient
    customer: Customer
    export_id: str

    def read(self, address: str = "192.0.2.1", **headers: str) -> Result:
        """Poll with a valid token, unless another Authorization header is given."""
        return self.ask("GET", f"{EXPORTS}/{self.export_id}", {**self.customer.bearer, **headers}, address)

    def fail(self, address: str = "192.0.2.1", **headers: str) -> Result:
        """Poll without a token."""
        return self.ask("GET", f"{EXPORTS}/{self.export_id}", headers, address)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], address: str = "192.0.2.1", body: bytes | None = None
    ) -> Result:
        """Send any request from an address; underscores in header names become hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.simulate_request(method, path, headers=named, body=body, remote_addr=address)


@pytest.fixture
def open_client(customer: Customer, tmp_path: Path) -> Callable[..., LimitedClient]:
    """Return a function that creates an application with the given settings and with limits created by `make`."""
    [export_id] = make_exports(customer, 1)

    def opened(make: Callable[..., RateLimits] = RateLimits, **changes: str) -> LimitedClient:
        settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id), **changes})
        app = create_app(settings, FakeWakeUpQueue(), FakeResolver({}), make(settings))
        return LimitedClient(TestClient(app), customer, export_id)

    return opened


OpenClient = Callable[..., LimitedClient]


def test_every_response_to_an_authenticated_caller_has_the_rate_limit_headers(open_client: OpenClient) -> None:
    client = open_client()
    bearer, typed = client.customer.bearer, {**client.customer.bearer, **JSON}
    answers = [
        client.read(),
        client.read(If_None_Match="*"),
        client.read(Accept="text/html"),
        client.ask("GET", f"{EXPORTS}/exp_nobody", bearer),
        client.ask("POST", TARGETS, typed, body=b"{"),
        client.ask("POST", TARGETS, typed, body=b"{}"),
        client.ask("POST", TARGETS, bearer, body=b"{}"),
    ]
    assert [answer.status_code for answer in answers] == [200, 304, 406, 404, 422, 422, 415]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"principal";q=600;w=60'}
    actual = [rate_limit_of(answer.headers["ratelimit"]) for answer in answers]
    assert [remaining for remaining, _ in actual] == [599, 598, 597, 596, 595, 594, 593]
    assert all(1 <= seconds <= 60 for _, seconds in actual)


def test_the_scanner_has_a_rate_limit_of_its_own(open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="2")
    actual = [client.ask("POST", RESULTS, {**SCANNER, **JSON}, body=b"{}") for _ in range(3)]
    assert [answer.status_code for answer in actual] == [422, 422, 429]
    assert client.read().status_code == 200


def test_forbidden_requests_count_against_the_rate_limit(open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="2")
    token = make_platform_token(client.customer)
    actual = [client.read(Authorization=f"Bearer {token}") for _ in range(3)]
    assert [answer.status_code for answer in actual] == [403, 403, 429]
    assert rate_limit_of(actual[0].headers["ratelimit"])[0] == 1


def test_a_signed_webhook_with_unknown_headers_counts_against_the_rate_limit(open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="2", **CLOUD)
    signed = {"X-Platform-Hmac-Sha256": signature(b"{}"), "X-Platform-Topic": "orders/create", **JSON}
    actual = [client.ask("POST", WEBHOOKS, signed, body=b"{}").status_code for _ in range(3)]
    assert actual == [422, 422, 429]


def test_responses_to_unauthenticated_callers_have_no_rate_limit_headers(open_client: OpenClient) -> None:
    client = open_client()
    answers = [client.fail(), client.ask("GET", "/healthz", {}), client.ask("GET", "/nowhere", client.customer.bearer)]
    assert [answer.status_code for answer in answers] == [401, 200, 404]
    assert not [name for answer in answers for name in answer.headers if name.startswith("ratelimit")]


def test_requests_over_the_limit_get_429_with_retry_after(open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="3")
    assert [client.read().status_code for _ in range(3)] == [200] * 3
    refused = client.read()
    assert_is_error(refused, 429, "RATE_LIMITED")
    remaining, seconds = rate_limit_of(refused.headers["ratelimit"])
    assert (remaining, str(seconds)) == (0, refused.headers["retry-after"])
    assert 1 <= seconds <= 60
    assert refused.headers["ratelimit-policy"] == '"principal";q=3;w=60'
    assert refused.json["error"]["message"] == (
        "Too many requests: RATE_LIMIT_PER_MINUTE is 3 a minute. Retry after the number of seconds in Retry-After."
    )


def test_the_response_to_a_blocked_address_names_the_setting(open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="2")
    answers = [client.fail() for _ in range(3)]
    assert [answer.status_code for answer in answers] == [401, 401, 429]
    assert "AUTH_FAILURES_PER_MINUTE is 2 a minute" in answers[-1].json["error"]["message"]


def test_a_problem_document_names_the_wait_too(open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="1")
    client.read()
    refused = client.read(Accept="application/problem+json")
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.status_code, refused.json["status"], refused.json["code"]) == (429, 429, "RATE_LIMITED")
    assert int(refused.headers["retry-after"]) >= 1


def test_health_is_never_limited(open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="1", AUTH_FAILURES_PER_MINUTE="1")
    assert [client.fail().status_code for _ in range(2)] == [401, 429]
    assert {client.ask("GET", "/healthz", {}).status_code for _ in range(30)} == {200}


def test_a_blocked_address_is_refused_even_with_a_valid_token_and_other_addresses_are_not(open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="3")
    assert [client.fail().status_code for _ in range(3)] == [401] * 3
    assert client.read().status_code == 200
    refused = client.fail()
    assert_is_error(refused, 429, "RATE_LIMITED")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "www-authenticate" not in refused.headers
    with_the_right_token = client.read()
    assert_is_error(with_the_right_token, 429, "RATE_LIMITED")
    assert 1 <= int(with_the_right_token.headers["retry-after"]) <= 60
    assert not [name for name in with_the_right_token.headers if name.startswith("ratelimit")]
    assert client.ask("POST", RESULTS, {**SCANNER, **JSON}, body=b"{}").status_code == 429
    assert client.read("192.0.2.2").status_code == 200
    assert client.fail("192.0.2.2").status_code == 401


def test_successes_and_other_credentials_do_not_reset_the_count(open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="3")
    actual = [
        client.fail(),
        client.read(),
        client.read(Authorization="Bearer nonsense"),
        client.read(),
        client.ask("POST", RESULTS, {"X-Scanner-Secret": "wrong", **JSON}, body=b"{}"),
        client.read(),
        client.fail(),
    ]
    assert [answer.status_code for answer in actual] == [401, 200, 401, 200, 401, 200, 429]


def test_every_kind_of_failed_authentication_is_counted(open_client: OpenClient) -> None:
    """A wrong or missing token, a wrong secret of any kind or a wrong signature, with any method that authenticates."""
    client = open_client(AUTH_FAILURES_PER_MINUTE="9", **CLOUD)
    poll, wrong = f"{EXPORTS}/{client.export_id}", {"Authorization": "Bearer nonsense"}
    guesses = [
        client.ask("GET", poll, wrong),
        client.ask("HEAD", poll, wrong),
        client.ask("GET", f"{EXPORTS}/exp_nobody", wrong),
        client.ask("GET", TARGETS, {}),
        client.ask("POST", TARGETS, wrong, body=b"{"),
        client.ask("POST", RESULTS, {"X-Scanner-Secret": "wrong"}, body=b"{}"),
        client.ask("POST", "/api/email/webhook", {"X-Email-Webhook-Secret": "wrong"}, body=b"{}"),
        client.ask("POST", WEBHOOKS, {"X-Platform-Hmac-Sha256": signature(b"[]")}, body=b"{}"),
        client.ask("POST", WEBHOOKS, {}, body=b"{}"),
        client.ask("POST", WEBHOOKS, {"X-Platform-Hmac-Sha256": "none"}, body=b"{}"),
    ]
    assert [answer.status_code for answer in guesses] == [401] * 9 + [429]
    right = {"X-Platform-Hmac-Sha256": signature(b"{}"), "X-Platform-Topic": "shop/redact", **JSON}
    assert client.ask("POST", WEBHOOKS, right, body=b"{}").status_code == 429


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_blocks_no_address(site: str, open_client: OpenClient) -> None:
    """Browsers name the requesting site in a header that pages cannot change, and such a page cannot send a credential."""
    client = open_client(AUTH_FAILURES_PER_MINUTE="1", **CLOUD)
    assert [client.fail(Sec_Fetch_Site=site).status_code for _ in range(3)] == [401] * 3
    storefront = [client.ask("POST", WEBHOOKS, {"Sec-Fetch-Site": site}, body=b"{}").status_code for _ in range(3)]
    assert storefront == [401] * 3
    guess = {"Authorization": "Bearer nonsense", "Sec_Fetch_Site": site}
    assert [client.fail(**guess).status_code for _ in range(2)] == [401, 429]


@pytest.mark.parametrize("site", ["none", "same-origin", "else"])
def test_failed_requests_of_browsers_that_are_not_cross_site_are_counted(site: str, open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="1")
    assert [client.fail(Sec_Fetch_Site=site).status_code for _ in range(2)] == [401, 429]


def test_a_forbidden_request_is_no_failed_authentication(open_client: OpenClient) -> None:
    """A token without the required permission is still valid, so the request is not a guess."""
    client = open_client(AUTH_FAILURES_PER_MINUTE="1", DEPLOYMENT_MODE="cloud")
    path = "/api/browser-extension/evidence-captures"
    answers = [client.ask("POST", path, {**client.customer.bearer, **JSON}, body=b"{}") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [403] * 3
    assert client.fail().status_code == 401


def test_an_untrusted_peer_cannot_change_its_address(open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="3", TRUSTED_PROXIES="10.0.0.0/8")
    actual = [client.fail(X_Forwarded_For=f"203.0.113.{number}").status_code for number in range(5)]
    assert actual == [401, 401, 401, 429, 429]


def test_clients_behind_a_trusted_proxy_are_counted_separately(open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="3", TRUSTED_PROXIES="10.0.0.0/8")
    guesser, other = (f"198.51.100.{number}, 203.0.113.{number}, 10.0.0.2" for number in (1, 2))
    assert [client.fail("10.0.0.1", X_Forwarded_For=guesser).status_code for _ in range(4)] == [401] * 3 + [429]
    assert client.read("10.0.0.1", X_Forwarded_For=guesser).status_code == 429
    assert client.read("10.0.0.1", X_Forwarded_For=other).status_code == 200
    assert client.fail("10.0.0.1", X_Forwarded_For=other).status_code == 401
    assert client.fail("203.0.113.1").status_code == 429


def test_ipv6_addresses_of_one_64_bit_network_are_counted_together(open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="3")
    actual = [client.fail(f"2001:db8:1:2::{number:x}").status_code for number in range(1, 6)]
    assert actual == [401, 401, 401, 429, 429]
    assert client.read("2001:db8:1:2:ffff::1").status_code == 429
    assert client.fail("2001:db8:1:3::1").status_code == 401


def test_a_block_ends_at_the_reported_time(frozen: FrozenDateTimeFactory, open_client: OpenClient) -> None:
    client = open_client(lambda settings: RateLimits(settings, clock=frozen_clock), AUTH_FAILURES_PER_MINUTE="2")
    [*_, refused] = [client.fail() for _ in range(3)]
    wait_s = int(refused.headers["retry-after"])
    frozen.tick(wait_s - 1)
    assert (client.read().status_code, client.read().headers["retry-after"]) == (429, "1")
    frozen.tick(1)
    assert client.read().status_code == 200


@pytest.mark.parametrize("limit", [50, 300])
def test_the_processes_of_a_real_service_share_one_limit(
    limit: int, sqlite_url: str, redis: RedisServer, customer: Customer, tmp_path: Path
) -> None:
    """Two processes under gevent, 20 concurrent clients; limits above 120 are reserved in shares."""
    [export_id] = make_exports(customer, 1)
    settings = environment(tmp_path, DATABASE_URL=sqlite_url, REDIS_URL=redis.url, RATE_LIMIT_PER_MINUTE=str(limit))
    with Service(settings) as service, ThreadPoolExecutor(20) as pool:
        path = f"{EXPORTS}/{export_id}"
        answers = list(pool.map(lambda _: service.request("GET", path, customer.bearer), range(2 * limit)))
    actual = Counter(answer.status for answer in answers)
    # An idle process may keep requests that it has reserved.
    assert actual[200] + actual[429] == 2 * limit
    assert limit - limit // 60 <= actual[200] <= limit
    assert {answer.headers["retry-after"].isdecimal() for answer in answers if answer.status == 429} == {True}


@dataclass(frozen=True, slots=True)
class TwoErrors:
    """A request with two errors, and the check that must reject it."""

    title: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int


HUGE = b" " * 2048
NO_TOKEN = {"Authorization": "Bearer nonsense"}

#: Sent by a principal that has used up its limit.
SPENT = [
    TwoErrors("an unknown path comes first", "GET", "/nowhere", {}, b"", 404),
    TwoErrors("a wrong method comes first", "PUT", TARGETS, {}, b"", 405),
    TwoErrors("the size comes first", "POST", TARGETS, JSON, HUGE, 413),
    TwoErrors("authentication comes first", "GET", f"{EXPORTS}/exp_nobody", NO_TOKEN, b"", 401),
    TwoErrors("the limit comes before Accept", "GET", f"{EXPORTS}/exp_nobody", {"Accept": "text/html"}, b"", 429),
    TwoErrors("the limit comes before Content-Type", "POST", TARGETS, {"Content-Type": "text/plain"}, b"{}", 429),
    TwoErrors("the limit comes before the JSON", "POST", TARGETS, JSON, b"{", 429),
    TwoErrors("the limit comes before the shape", "POST", TARGETS, JSON, b"{}", 429),
    TwoErrors("the limit comes before the key", "POST", TARGETS, {**JSON, "Idempotency-Key": "x" * 300}, b"{}", 429),
    TwoErrors("the limit comes before the id", "GET", f"{EXPORTS}/exp_nobody", {}, b"", 429),
]

#: Sent from a blocked address.
BLOCKED = [
    TwoErrors("an unknown path comes first", "GET", "/nowhere", {}, b"", 404),
    TwoErrors("a wrong method comes first", "PUT", TARGETS, {}, b"", 405),
    TwoErrors("the size comes first", "POST", TARGETS, JSON, HUGE, 413),
    TwoErrors("the block comes before authentication", "GET", f"{EXPORTS}/exp_nobody", NO_TOKEN, b"", 429),
    TwoErrors("the block comes before Accept", "GET", f"{EXPORTS}/exp_nobody", {"Accept": "text/html"}, b"", 429),
    TwoErrors("the block comes before the JSON", "POST", TARGETS, JSON, b"{", 429),
]


@pytest.mark.parametrize("both", SPENT, ids=lambda both: both.title)
def test_the_rate_limit_is_checked_in_the_documented_order(both: TwoErrors, open_client: OpenClient) -> None:
    client = open_client(RATE_LIMIT_PER_MINUTE="1", MAX_BODY_BYTES="1024")
    assert client.read().status_code == 200
    headers = {**client.customer.bearer, **both.headers}
    assert client.ask(both.method, both.path, headers, body=both.body or None).status_code == both.status


@pytest.mark.parametrize("both", BLOCKED, ids=lambda both: both.title)
def test_the_address_block_is_checked_in_the_documented_order(both: TwoErrors, open_client: OpenClient) -> None:
    client = open_client(AUTH_FAILURES_PER_MINUTE="1", MAX_BODY_BYTES="1024")
    assert [client.fail().status_code for _ in range(2)] == [401, 429]
    headers = {**client.customer.bearer, **both.headers}
    assert client.ask(both.method, both.path, headers, body=both.body or None).status_code == both.status
