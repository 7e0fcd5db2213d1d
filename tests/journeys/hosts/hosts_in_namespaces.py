"""Hosts as network namespaces: real link failures, and workers that are all process 1 on hosts with the same name.

`bin/check-hosts` runs these tests. They need root, so pytest does not collect them by default: skips would be overlooked.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import pytest

from storage.db import schema_version
from storage.db.drivers.postgresql import LINK_LOST_AFTER_S
from storage.db.engine import close_database, connection, open_database
from tests.support.factories import environment, make_customer, make_exports, make_target
from tests.support.http.raw_http import EXPORTS
from tests.support.processes.hosts import approved_for_each, count_alive, delivered_by, name_of
from tests.support.processes.workers import (
    RISKRELAY,
    ROOT,
    CountingReceiver,
    StartedWorker,
    all_are,
    is_exported,
    wait_until,
)
from tests.support.servers.redis_and_postgres import PostgresServer
from tests.support.servers.redis_servers import PortRedis
from worker.delivery.lease_keeper import DEFER_CLAIMS_FACTOR
from worker.delivery.options import RENEW_S

#: From the address range that is reserved for documentation, so that no real network has it.
SUBNET: Final = "198.51.100.0/24"
HERE: Final = "198.51.100.1"
HERE_IN_HARDWARE: Final = "02:00:00:00:00:01"
#: Starts a command as in a container: as process 1, with a host name that all hosts share.
AS_A_CONTAINER: Final = ("unshare", "--pid", "--uts", "--fork", "--kill-child", "sh", "-c", 'hostname app && exec "$0" "$@"')
AT_ONCE: Final = {"WORKER_CONCURRENCY": "8", "DELIVERY_TIMEOUT_S": "15"}
PAUSE_S: Final = 0.05
AT_ITS_PLUG: Final = "at its plug"
BEHIND_THE_SWITCH: Final = "behind the switch"
#: TCP retransmits after 0.2, 0.4, 0.8 … seconds. After this outage, a reader of the old connection would wait as long again.
DOWN_S: Final = 27.0
#: Enough for a worker that has closed its broken connections, but not for one that waits for TCP.
BACK_WITHIN_S: Final = 15.0


class Namespace:
    """One host: a network namespace with one link to the bridge of this machine, and a folder."""

    def __init__(self, number: int, bridge: str, folder: Path) -> None:
        self.name = f"{bridge}n{number}"
        self.address = f"198.51.100.{10 + number}"
        self.folder = folder / self.name
        self._link = f"{bridge}v{number}"
        self._in_hardware = f"02:00:00:00:01:{number:02x}"
        self._bridge = bridge

    def __enter__(self) -> Self:
        self.folder.mkdir()
        _ip(f"netns add {self.name}")
        _ip(f"link add {self._link} type veth peer name eth0 address {self._in_hardware} netns {self.name}")
        self.up()
        for words in ("link set lo up", f"address add {self.address}/24 dev eth0", "link set eth0 up"):
            _ip(f"-n {self.name} {words}")
        # As with a router in between: TCP can detect that a direct neighbor does not respond, but not a host behind it.
        _ip(f"-n {self.name} neighbour add {HERE} lladdr {HERE_IN_HARDWARE} dev eth0 nud permanent")
        _ip(f"neighbour add {self.address} lladdr {self._in_hardware} dev {self._bridge} nud permanent")
        return self

    def __exit__(self, *_: object) -> None:
        # The link first: a process that hangs in the namespace would keep the namespace and its link.
        _ip(f"link delete {self._link}")
        _ip(f"netns delete {self.name}")

    def down(self, how: str) -> None:
        """Cut the link: at the host's own interface, where the host detects it, or behind the switch, where it cannot."""
        _ip(f"link set {self._link} {'down' if how == AT_ITS_PLUG else 'nomaster'}")

    def up(self) -> None:
        """Restore the link."""
        _ip(f"link set {self._link} master {self._bridge} up")

    def command(self, *words: str) -> tuple[str, ...]:
        """Return the command that runs `words` on this host."""
        return ("ip", "netns", "exec", self.name, *AS_A_CONTAINER, *words)


class Network:
    """The bridge, the servers that listen on it, and the hosts."""

    def __init__(self, folder: Path, postgres: PostgresServer | None = None) -> None:
        self._bridge = f"rr{os.getpid()}"[:9]
        self._folder = folder
        self._stack = ExitStack()
        self._count = 0
        self.postgres, self.redis = postgres or _PostgresOnTheBridge(), PortRedis(also_at=HERE)

    def __enter__(self) -> Self:
        _ip(f"link add {self._bridge} address {HERE_IN_HARDWARE} type bridge")
        self._stack.callback(_ip, f"link delete {self._bridge}")
        _ip(f"address add {HERE}/24 dev {self._bridge}")
        _ip(f"link set {self._bridge} up")
        self._stack.enter_context(self.postgres)
        self._stack.enter_context(self.redis)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self) -> Namespace:
        """Create a host, which exists until the network is removed."""
        self._count += 1
        return self._stack.enter_context(Namespace(self._count, self._bridge, self._folder))


class _PostgresOnTheBridge(PostgresServer):
    def _initialise(self) -> None:
        super()._initialise()
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET} trust\n")

    def _command(self) -> list[str]:
        listening = "listen_addresses=127.0.0.1"
        return [word.replace(listening, f"{listening},{HERE}") for word in super()._command()]


class Worker(StartedWorker):
    """A worker on a host."""

    def __init__(self, host: Namespace, settings: Mapping[str, str]) -> None:
        self.command = host.command(RISKRELAY, "work")
        changes = {**settings, **AT_ONCE}
        super().__init__(host.folder, changes.pop("DATABASE_URL"), changes.pop("REDIS_URL"), **changes)


class ServiceThere:
    """A service on a host."""

    def __init__(self, host: Namespace, settings: Mapping[str, str]) -> None:
        self._address = host.address
        changes = {**settings, "BIND": f"{host.address}:8000", "WEB_PROCESSES": "1"}
        self._log = (host.folder / "service.log").open("wb")
        self._process = subprocess.Popen(
            host.command(RISKRELAY, "serve"), env=environment(host.folder, **changes), stdout=self._log, stderr=self._log
        )

    def __enter__(self) -> Self:
        wait_until(lambda: self.readiness() == "ok", 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def readiness(self) -> str:
        """Return the response of /readyz, empty if there is none."""
        try:
            return str(self.request("GET", "/readyz")[1]["status"])
        except OSError:
            return ""

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None) -> tuple[int, Any]:
        """Send one request and return the status and body of the response."""
        client = http.client.HTTPConnection(self._address, 8000, timeout=2)
        typed = {"Content-Type": "application/json", **(headers or {})}
        try:
            client.request(method, path, None if body is None else json.dumps(body), typed)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            client.close()


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def database(network: Network) -> Iterator[str]:
    """A new migrated database, opened in this process; yields its URL."""
    url = network.postgres.create_database()
    open_database(url)
    schema_version.migrate()
    network.redis.flush()
    with connection():
        yield url
    close_database()


@pytest.fixture
def settings(network: Network, database: str) -> dict[str, str]:
    """The settings with which a host finds the shared servers."""
    return {
        "DATABASE_URL": database.replace("127.0.0.1", HERE),
        "REDIS_URL": network.redis.url.replace("127.0.0.1", HERE),
        "TARGET_ALLOW_HTTP": "true",
        "TARGET_ALLOWED_PORTS": "1-65535",
        "TARGET_ALLOWED_NETWORKS": SUBNET,
    }


@pytest.fixture
def work(network: Network, settings: dict[str, str]) -> Iterator[Callable[[], tuple[Namespace, Worker]]]:
    """Start workers, each on its own host."""
    with ExitStack() as stack:

        def started() -> tuple[Namespace, Worker]:
            host = network.host()
            return host, stack.enter_context(Worker(host, settings))

        yield started


@pytest.fixture
def receiver(network: Network) -> Iterator[CountingReceiver]:
    with CountingReceiver(host=HERE, pause_s=PAUSE_S) as made:
        yield made


WAITING: Final = """
import sys
from storage.db.engine import OUTAGES, connection, open_database, rows
open_database(sys.argv[1])
with connection():
    print("asking", flush=True)
    try:
        rows("SELECT pg_sleep(60)")
    except OUTAGES:
        print("gave up", flush=True)
"""

Work = Callable[[], tuple[Namespace, Worker]]


def report(line: str) -> None:
    """Print a result for a person who runs these tests by hand."""
    sys.stderr.write(f"    {line}\n")


def url_of(receiver: CountingReceiver) -> str:
    return receiver.url(HERE)


def test_workers_with_the_same_host_name_and_process_id_share_the_work_evenly(
    work: Work, receiver: CountingReceiver
) -> None:
    workers = [work()[1] for _ in range(3)]
    wait_until(lambda: count_alive() == 3)
    names = [name_of(worker) for worker in workers]
    assert {name.rpartition(":")[0] for name in names} == {"worker:app:1"}
    assert len(set(names)) == 3
    ids = approved_for_each(url_of(receiver), targets=30, each=30)
    wait_until(all_are("exported"), 60)
    shares = delivered_by()
    report(f"delivered by each of three: {sorted(shares.values())}")
    assert min(shares[name] for name in names) > len(ids) / 3 / 2
    assert Counter(receiver.keys) == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("how", [AT_ITS_PLUG, BEHIND_THE_SWITCH])
def test_deliveries_of_a_disconnected_host_are_taken_over_and_it_rejoins_by_itself(
    work: Work, receiver: CountingReceiver, how: str
) -> None:
    (host, lost), *_ = [work() for _ in range(3)]
    wait_until(lambda: count_alive() == 3)
    ids = approved_for_each(url_of(receiver), targets=20, each=30)
    wait_until(lambda: delivered_by()[name_of(lost)] > 10)
    host.down(how)
    cut_at = time.monotonic()
    took_s = wait_until(all_are("exported"), 60)
    before = delivered_by()[name_of(lost)]
    report(f"exported {took_s:.1f} s after the cut, sent twice: {len(receiver.requests) - len(ids)}")
    assert set(receiver.keys) == set(ids)
    time.sleep(max(0.0, DOWN_S - (time.monotonic() - cut_at)))
    host.up()
    back_s = wait_until(lambda: count_alive() == 3, BACK_WITHIN_S)
    report(f"back {back_s:.1f} s after the link, which was down for {DOWN_S:.0f} s")
    time.sleep(DEFER_CLAIMS_FACTOR * RENEW_S)
    new = approved_for_each(url_of(receiver), targets=30, each=30)
    wait_until(all_are("exported"), 60)
    report(f"of {len(new)} new ones it delivered {delivered_by()[name_of(lost)] - before}")
    assert delivered_by()[name_of(lost)] - before > len(new) / 3 / 2


def test_a_query_over_a_cut_link_fails_by_keepalive(network: Network, settings: dict[str, str]) -> None:
    """The request arrived and no packet is in transit. Only a probe (keepalive) shows a host that the peer is gone."""
    host = network.host()
    waiting = subprocess.Popen(
        ("ip", "netns", "exec", host.name, sys.executable, "-c", WAITING, settings["DATABASE_URL"]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with waiting, ExitStack() as stack:
        stack.callback(waiting.kill)
        assert waiting.stdout
        assert waiting.stdout.readline() == "asking\n"
        time.sleep(1)
        host.down(BEHIND_THE_SWITCH)
        took_s = wait_until(lambda: waiting.poll() is not None, 3 * LINK_LOST_AFTER_S)
        report(f"gave up {took_s:.1f} s after the cut")
        assert waiting.stdout.read() == "gave up\n"


def test_a_host_failure_loses_no_delivery_and_a_new_host_takes_its_share(work: Work, receiver: CountingReceiver) -> None:
    (_, dying), *_ = [work() for _ in range(3)]
    wait_until(lambda: count_alive() == 3)
    ids = approved_for_each(url_of(receiver), targets=20, each=35)
    wait_until(lambda: delivered_by()[name_of(dying)] > 20)
    dying.kill()
    # The closed gate keeps exports waiting, so that the new worker has some to send however long its start takes.
    receiver.gate.clear()
    _, new = work()
    receiver.gate.set()
    wait_until(all_are("exported"), 60)
    report(f"sent twice: {len(receiver.requests) - len(ids)}; the new one delivered {delivered_by()[name_of(new)]}")
    assert set(receiver.keys) == set(ids)
    assert delivered_by().total() == len(ids)
    assert delivered_by()[name_of(new)]


def test_a_service_accepts_requests_while_another_is_disconnected(
    network: Network, settings: dict[str, str], work: Work, receiver: CountingReceiver
) -> None:
    work()
    customer = make_customer()
    target = make_target(customer, url_of(receiver))
    [export_id] = make_exports(customer, 1)
    keyed = {**customer.bearer, "Idempotency-Key": "once"}
    cut_off, other = network.host(), network.host()
    with ServiceThere(cut_off, settings) as first, ServiceThere(other, settings) as second:
        path, body = f"{EXPORTS}/{export_id}/approve", {"target_id": target.id}
        reported = first.request("POST", path, keyed, body)
        cut_off.down(BEHIND_THE_SWITCH)
        assert first.readiness() == ""
        assert second.request("POST", path, keyed, body) == reported
        assert reported[0] == 202
        wait_until(is_exported(export_id))
        time.sleep(DOWN_S)
        cut_off.up()
        back_s = wait_until(lambda: first.readiness() == "ok", BACK_WITHIN_S)
        report(f"ready {back_s:.1f} s after the link was back")
        assert first.request("GET", f"{EXPORTS}/{export_id}", customer.bearer)[1]["status"] == "exported"
    assert len(receiver.requests) == 1
