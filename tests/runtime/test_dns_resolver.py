"""Name lookups have a deadline and a limit on threads, also under gevent, and do not delay the exit of the process."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from runtime.dns_resolver import DnsError, DnsFailure, DnsResolver
from tests.support.processes.workers import wait_until

ROOT = Path(__file__).parents[2]


def row(address: str, family: int | None = None) -> tuple[Any, ...]:
    inet = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family or inet, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 443))


class FakeGetAddrInfo:
    """Replaces getaddrinfo: returns or raises what its table holds, and blocks on some names until `free` is set."""

    def __init__(self, table: dict[str, Any], hanging: Sequence[str] = ()) -> None:
        self.table = table
        self.hanging = set(hanging)
        self.asked: list[str] = []
        self.running = 0
        self.most_running = 0
        self.free = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, host: str, port: int, **hints: int) -> Sequence[tuple[Any, ...]]:
        assert hints == {"type": socket.SOCK_STREAM}
        with self._lock:
            self.asked.append(host)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if host in self.hanging:
                assert self.free.wait(30)
            return self._answer(host)
        finally:
            with self._lock:
                self.running -= 1

    def _answer(self, host: str) -> Sequence[tuple[Any, ...]]:
        answer = self.table[host]
        if isinstance(answer, Exception):
            raise answer
        return [row(address) for address in answer]

    def wait_until_asked(self, times: int) -> None:
        wait_until(lambda: len(self.asked) >= times)


@contextmanager
def callers(resolver: DnsResolver, hosts: Sequence[str], timeout_s: float = 20) -> Iterator[list[Any]]:
    """Resolve each host on its own thread; `results` is complete after the block."""
    results: list[Any] = []
    with ThreadPoolExecutor(max_workers=max(len(hosts), 1)) as pool:
        futures = [pool.submit(outcome, resolver, host, timeout_s) for host in hosts]
        yield results
    results.extend(future.result() for future in futures)


def outcome(resolver: DnsResolver, host: str, timeout_s: float = 5, account_id: int | None = None) -> list[str] | DnsFailure:
    try:
        return [str(address) for address in resolver.resolve(host, 443, timeout_s, account_id)]
    except DnsError as failed:
        return failed.reason


def test_a_name_is_resolved_to_all_its_addresses_in_order_and_once_each() -> None:
    table = {"example.com": ["192.0.2.7", "2001:db8::7", "192.0.2.7", "192.0.2.3"]}
    resolver = DnsResolver(getaddrinfo=FakeGetAddrInfo(table))
    expected = tuple(map(ip_address, ["192.0.2.7", "2001:db8::7", "192.0.2.3"]))
    assert resolver.resolve("example.com", 443, 5) == expected


def test_the_resolver_of_the_system_is_used_by_default() -> None:
    addresses = DnsResolver().resolve("localhost", 443, 5)
    assert addresses
    assert all(address.is_loopback for address in addresses)


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7"])
def test_a_literal_address_needs_no_lookup(host: str) -> None:
    fake = FakeGetAddrInfo({})
    assert DnsResolver(getaddrinfo=fake).resolve(host, 443, 0) == (ip_address(host),)
    assert fake.asked == []


FAILURES = [
    (socket.gaierror(socket.EAI_NONAME, "unknown"), DnsFailure.NOT_FOUND),
    (socket.gaierror(socket.EAI_NODATA, "no address"), DnsFailure.NOT_FOUND),
    ([], DnsFailure.NOT_FOUND),
    (socket.gaierror(socket.EAI_AGAIN, "temporary"), DnsFailure.FAILED),  # the server is unreachable: the name may exist
    (socket.gaierror(socket.EAI_FAIL, "refused"), DnsFailure.FAILED),
    (OSError(24, "too many open files"), DnsFailure.FAILED),
    (UnicodeError("label too long"), DnsFailure.FAILED),
    (MemoryError(), DnsFailure.FAILED),
]


@pytest.mark.parametrize(("answer", "reason"), FAILURES, ids=repr)
def test_a_failure_is_reported_with_its_reason(answer: Any, reason: DnsFailure) -> None:
    assert outcome(DnsResolver(getaddrinfo=FakeGetAddrInfo({"example.com": answer})), "example.com") == reason


def test_the_failure_reasons_are_the_dns_error_codes_of_attempts() -> None:
    assert set(DnsFailure) == {"dns_not_found", "dns_timeout", "dns_failed", "dns_overloaded"}


def test_addresses_of_other_families_are_ignored() -> None:
    resolver = DnsResolver(getaddrinfo=lambda *_, **__: [row("ignored", socket.AF_UNIX), row("192.0.2.7")])
    assert outcome(resolver, "example.com") == ["192.0.2.7"]


def test_a_lookup_with_a_hanging_resolver_ends_at_its_timeout() -> None:
    fake = FakeGetAddrInfo({"slow.example": [], "quick.example": ["192.0.2.7"]}, hanging=["slow.example"])
    resolver = DnsResolver(getaddrinfo=fake)
    started = time.monotonic()
    assert outcome(resolver, "slow.example", timeout_s=0.2) == DnsFailure.TIMEOUT
    assert 0.2 <= time.monotonic() - started < 2
    assert outcome(resolver, "quick.example") == ["192.0.2.7"]
    fake.free.set()


def test_concurrent_lookups_of_a_name_share_one_thread() -> None:
    fake = FakeGetAddrInfo({"slow.example": ["192.0.2.7"]}, hanging=["slow.example"])
    resolver = DnsResolver(max_workers=2, max_waiting=1, getaddrinfo=fake)
    with callers(resolver, ["slow.example"] * 20) as results:
        fake.wait_until_asked(1)
        assert outcome(resolver, "slow.example", timeout_s=0.1) == DnsFailure.TIMEOUT
        fake.free.set()
    assert results == [["192.0.2.7"]] * 20
    assert len(fake.asked) <= 20  # a caller that arrives after the response starts a new lookup
    assert fake.most_running == 1


def test_a_lookup_result_is_not_cached() -> None:
    fake = FakeGetAddrInfo({"example.com": ["192.0.2.7"]})
    resolver = DnsResolver(getaddrinfo=fake)
    assert outcome(resolver, "example.com") == ["192.0.2.7"]
    fake.table["example.com"] = ["192.0.2.8"]
    assert outcome(resolver, "example.com") == ["192.0.2.8"]


def test_concurrent_lookups_are_limited_by_the_number_of_threads() -> None:
    names = [f"{number}.example" for number in range(30)]
    fake = FakeGetAddrInfo({name: ["192.0.2.7"] for name in names}, hanging=names)
    resolver = DnsResolver(max_workers=3, max_waiting=30, getaddrinfo=fake)
    with callers(resolver, names) as results:
        fake.wait_until_asked(3)
        time.sleep(0.1)
        assert len(fake.asked) == 3
        fake.free.set()
    assert results == [["192.0.2.7"]] * 30
    assert fake.most_running == 3


def test_a_lookup_is_refused_at_once_if_too_many_names_are_waiting() -> None:
    names = ["a.example", "b.example", "c.example"]
    fake = FakeGetAddrInfo({name: ["192.0.2.7"] for name in [*names, "d.example"]}, hanging=names)
    resolver = DnsResolver(max_workers=1, max_waiting=2, getaddrinfo=fake)
    assert [outcome(resolver, name, timeout_s=0.05) for name in names] == [DnsFailure.TIMEOUT] * 3
    started = time.monotonic()
    assert outcome(resolver, "d.example", timeout_s=10) == DnsFailure.OVERLOADED
    assert time.monotonic() - started < 5
    fake.free.set()
    wait_until(lambda: outcome(resolver, "d.example") == ["192.0.2.7"])


def test_a_name_whose_callers_timed_out_is_not_looked_up() -> None:
    fake = FakeGetAddrInfo({"slow.example": [], "left.example": [], "next.example": ["192.0.2.7"]}, ["slow.example"])
    resolver = DnsResolver(max_workers=1, getaddrinfo=fake)
    assert outcome(resolver, "slow.example", timeout_s=0.05) == DnsFailure.TIMEOUT
    assert outcome(resolver, "left.example", timeout_s=0.05) == DnsFailure.TIMEOUT
    with callers(resolver, ["next.example"]) as results:
        time.sleep(0.1)  # until the deadline of left.example has certainly passed
        fake.free.set()
    assert results == [["192.0.2.7"]]
    assert fake.asked == ["slow.example", "next.example"]


def test_hanging_lookups_of_one_account_leave_threads_for_other_accounts() -> None:
    hanging = [f"{number}.hanging.example" for number in range(30)]
    table = {name: ["192.0.2.7"] for name in hanging}
    fake = FakeGetAddrInfo({**table, "quick.example": ["192.0.2.8"]}, hanging)
    resolver = DnsResolver(max_workers=4, max_waiting=20, getaddrinfo=fake)
    # More lookups than one account may have: 4 block threads, 20 wait, and the other 6 are refused at once.
    for number, name in enumerate(hanging):
        expected = DnsFailure.TIMEOUT if number < 24 else DnsFailure.OVERLOADED
        assert outcome(resolver, name, timeout_s=0.01, account_id=1) == expected
    assert [outcome(resolver, "quick.example", account_id=2) for _ in range(3)] == [["192.0.2.8"]] * 3
    # Each further account whose lookups hang takes one more thread, of the 16 that are reserved for further accounts.
    for account_id in range(3, 18):
        assert outcome(resolver, hanging[account_id], timeout_s=0.01, account_id=account_id) == DnsFailure.TIMEOUT
    assert outcome(resolver, "quick.example", account_id=2) == ["192.0.2.8"]
    assert fake.most_running == 20
    fake.free.set()
    wait_until(lambda: fake.running == 0)
    assert outcome(resolver, "quick.example", account_id=1) == ["192.0.2.8"]


def test_a_waiting_lookup_of_one_account_does_not_delay_the_same_name_of_another() -> None:
    fake = FakeGetAddrInfo({"slow.example": [], "shared.example": ["192.0.2.7"]}, ["slow.example"])
    resolver = DnsResolver(max_workers=1, getaddrinfo=fake)
    assert outcome(resolver, "slow.example", timeout_s=0.01, account_id=1) == DnsFailure.TIMEOUT
    assert outcome(resolver, "shared.example", timeout_s=0.01, account_id=1) == DnsFailure.TIMEOUT
    assert outcome(resolver, "shared.example", account_id=2) == ["192.0.2.7"]
    fake.free.set()


def test_threads_end_if_no_lookup_is_waiting() -> None:
    resolver = DnsResolver(getaddrinfo=FakeGetAddrInfo({"example.com": ["192.0.2.7"]}))
    assert outcome(resolver, "example.com") == ["192.0.2.7"]
    wait_until(lambda: not any(thread.name == "name-lookup" for thread in threading.enumerate()))


def run_script(script: str, timeout_s: float = 30) -> str:
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_hanging_lookup_does_not_delay_the_exit() -> None:
    started = time.monotonic()
    printed = run_script(
        """
import time
from runtime.dns_resolver import DnsResolver, DnsError
try:
    DnsResolver(getaddrinfo=lambda *_, **__: time.sleep(600)).resolve("slow.example", 443, 0.1)
except DnsError as failed:
    print(failed.reason)
"""
    )
    assert printed == "dns_timeout\n"
    assert time.monotonic() - started < 20


def test_under_gevent_other_greenlets_continue_during_a_lookup() -> None:
    """The resolver is the real one; the lookup blocks a real thread, as in gevent's own resolver."""
    printed = run_script(
        """
from gevent import monkey
monkey.patch_all()
import gevent, socket, time
from gevent import get_hub
from runtime.dns_resolver import DnsResolver, DnsError
really_sleep = monkey.get_original("time", "sleep")
def slow(host, port, **hints):
    get_hub().threadpool.apply(really_sleep, (0.5,))
    return socket.getaddrinfo(host, port, **hints)
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.01)
gevent.spawn(tick)
resolver = DnsResolver(getaddrinfo=slow)
asking = [gevent.spawn(resolver.resolve, "localhost", 443, 5) for _ in range(50)]
gevent.joinall(asking, raise_error=True)
print(all(asked.value[0].is_loopback for asked in asking), ticks > 10)
try:
    resolver.resolve("localhost", 443, 0.1)
except DnsError as failed:
    print(failed.reason)
print(DnsResolver().resolve("localhost", 443, 5)[0].is_loopback)
"""
    )
    assert printed == "True True\ndns_timeout\nTrue\n"
