"""Unresponsive receivers and name servers of some accounts delay no delivery and no registration of other accounts."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from service.app import create_app
from storage.db.engine import release, rows
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.factories import LOOPBACK, Customer, make_approved, make_customer, make_settings, make_target
from tests.support.fakes import FakeWakeUpQueue, HangingNames
from tests.support.http.raw_http import TARGETS
from tests.support.processes.workers import CountingReceiver, wait_until
from tests.support.worker.dispatchers import PATIENCE_S, make_dispatcher
from tests.support.worker.receivers import OPEN, made_client
from worker.delivery.claim_planner import QUICK_SCAN_S
from worker.delivery.dispatcher import Dispatcher

#: How soon a delivery must begin while those of other accounts hang: one second, plus time for a busy machine.
SOON_S: Final = 3.0
#: Longer than a test, so that a thread that waits for a receiver or a name waits until the end.
DEADLINE_S: Final = 60.0
THREADS: Final = 32

Urls = Callable[[int], str]


@contextmanager
def delivering(names: HangingNames) -> Iterator[Dispatcher]:
    """Run a worker's dispatcher with the real HTTP client. At the end, hanging name lookups are released."""
    resolver = DnsResolver(getaddrinfo=names)
    with made_client(OPEN, resolver, DEADLINE_S, connect_timeout_s=DEADLINE_S) as client:
        dispatcher = make_dispatcher(client.post, THREADS, sweep_s=0.5, quick_scan_s=QUICK_SCAN_S)
        dispatcher.start()
        try:
            yield dispatcher
        finally:
            names.release()
            dispatcher.stop()
            assert dispatcher.join(2 * PATIENCE_S)


def hostile_exports(urls: Urls, accounts: int, targets: int, each: int) -> None:
    """Store due exports of other accounts for targets that do not respond."""
    for account in range(accounts):
        customer, first = make_customer(), account * targets
        for number in range(first, first + targets):
            many_targets(customer, number, 1, urls(number))
        many_waiting(customer, first * each, targets * each, (first, targets), utc_now())


def delivered_after_s(customer: Customer, receiver: CountingReceiver, dispatcher: Dispatcher) -> float:
    """Approve an export, wake the dispatcher, and return the seconds until the export arrives."""
    target = make_target(customer, receiver.url())
    release()
    export_id = make_approved(customer, target.id, utc_now())
    threading.Thread(target=dispatcher.deliver_due, args=[PATIENCE_S]).start()
    return wait_until(lambda: receiver.of(export_id))


@pytest.mark.parametrize(("accounts", "targets", "each"), [(1, 48, 3), (1, 1000, 20), (6, 24, 3)])
@pytest.mark.parametrize("hangs", ["names", "receivers"])
def test_hanging_targets_of_other_accounts_do_not_delay_deliveries(
    customer: Customer, accounts: int, targets: int, each: int, hangs: str
) -> None:
    names = HangingNames()
    with CountingReceiver() as silent, CountingReceiver() as receiver:
        silent.gate.clear()

        def url(number: int) -> str:
            return silent.url(f"{number}.{'hanging' if hangs == 'names' else 'silent'}.example")

        hostile_exports(url, accounts, targets, each)
        with delivering(names) as dispatcher:
            wait_until(lambda: len(names.hanging if hangs == "names" else silent.requests) >= min(8, targets))
            time.sleep(0.5)
            waits_s = [delivered_after_s(customer, receiver, dispatcher) for _ in range(5)]
            silent.gate.set()
        assert max(waits_s) < SOON_S, waits_s


def test_receivers_that_stop_responding_on_kept_connections_do_not_delay_other_accounts(customer: Customer) -> None:
    names = HangingNames()
    with CountingReceiver() as silent, CountingReceiver() as receiver:
        hostile_exports(lambda number: silent.url(f"{number}.silent.example"), 1, 48, 40)
        with delivering(names) as dispatcher:
            wait_until(lambda: len(silent.requests) > 200)
            silent.gate.clear()
            time.sleep(1.0)
            waits_s = [delivered_after_s(customer, receiver, dispatcher) for _ in range(5)]
            silent.gate.set()
        assert max(waits_s) < SOON_S, waits_s


def test_a_single_account_uses_every_thread(customer: Customer) -> None:
    with CountingReceiver() as silent:
        silent.gate.clear()
        urls = [silent.url(f"{number}.silent.example") for number in range(40)]
        for number, url in enumerate(urls):
            many_targets(customer, number, 1, url)
        many_waiting(customer, 0, 400, (0, 40), utc_now())
        with delivering(HangingNames()):
            wait_until(lambda: len(silent.requests) == THREADS)
            time.sleep(0.5)
            assert len(silent.requests) == THREADS
            silent.gate.set()
            wait_until(lambda: rows("SELECT COUNT(*) FROM exports WHERE status = 'exported'") == [(400,)])


def test_hanging_dns_names_of_one_account_do_not_delay_registrations_of_another(customer: Customer, tmp_path: Path) -> None:
    hostile, names = make_customer(), HangingNames()
    settings = make_settings(tmp_path, {**LOOPBACK, "CONNECT_TIMEOUT_S": "2"})
    client = TestClient(create_app(settings, FakeWakeUpQueue(), DnsResolver(getaddrinfo=names)))
    release()

    def register(who: Customer, host: str) -> int:
        body = {"provider_key": "generic_webhook", "base_url": f"http://{host}/hook", "name": "Tracker"}
        answer = client.simulate_post(TARGETS, headers=who.bearer, json=body)
        release()
        return answer.status_code

    with ThreadPoolExecutor(48) as pool:
        refused = [pool.submit(register, hostile, f"{number}.hanging.example") for number in range(48)]
        wait_until(lambda: len(names.hanging) >= 8)
        assert [register(customer, f"{number}.working.example") for number in range(5)] == [201] * 5
        assert {each.result() for each in refused} == {422}
        names.release()
