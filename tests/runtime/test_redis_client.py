"""Every form of a Redis URL connects with its password and certificate, never without them, and shows no password."""

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from runtime import redis_client
from runtime.wake_up_queue import WakeUpQueue
from tests.support.processes.workers import wait_until
from tests.support.servers.redis_servers import ENCODED, PASSWORD, SERVICE, PortRedis, SentinelServer, redis_with_sentinels
from tests.support.servers.relays import CuttableRelay
from tests.support.worker.receivers import make_certificate

#: More time than two Sentinels and a server need together on a busy machine.
SOON_S: Final = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[PortRedis]:
    with PortRedis() as started:
        yield started


@dataclass(frozen=True, slots=True)
class Authority:
    """`file` is the path of the certificate that clients trust, `context` the TLS context of servers at 127.0.0.1."""

    context: ssl.SSLContext
    file: str


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(*make_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1"))


@pytest.fixture(scope="module")
def tls_port(server: PortRedis, authority: Authority) -> Iterator[int]:
    """The port at which the server is reached over TLS, in addition to its plain port."""
    with CuttableRelay(("127.0.0.1", server.port), authority.context) as relay:
        yield relay.port


@pytest.fixture(scope="module")
def open_sentinel(server: PortRedis) -> Iterator[SentinelServer]:
    """A Sentinel without a password, as most are."""
    with SentinelServer(server.port, quorum=1) as started:
        wait_until(lambda: started.state()["flags"] == "master")
        yield started


@pytest.fixture(scope="module")
def closed_sentinel(server: PortRedis) -> Iterator[SentinelServer]:
    """A Sentinel that requires the same password as its servers."""
    with SentinelServer(server.port, quorum=1, password=PASSWORD) as started:
        wait_until(lambda: started.state()["flags"] == "master")
        yield started


@pytest.fixture
def url(request: pytest.FixtureRequest, server: PortRedis, authority: Authority) -> str:
    """The server's URL in the form that the test selects."""
    port: Callable[[str], int] = lambda name: request.getfixturevalue(name).port  # noqa: E731 - started where it is needed
    forms: dict[str, Callable[[], str]] = {
        "password": lambda: f"redis://:{ENCODED}@127.0.0.1:{server.port}/0",
        "user and password": lambda: f"redis://riskrelay:{ENCODED}@127.0.0.1:{server.port}",
        "socket": lambda: f"unix://:{ENCODED}@{server.folder}/redis.sock",
        "socket and user": lambda: f"unix://riskrelay:{ENCODED}@{server.folder}/redis.sock?db=1",
        "tls": lambda: (
            f"rediss://:{ENCODED}@127.0.0.1:{request.getfixturevalue('tls_port')}/0?ssl_ca_certs={authority.file}"
        ),
        "sentinel": lambda: f"redis+sentinel://:{ENCODED}@127.0.0.1:{port('open_sentinel')}/{SERVICE}",
        "sentinel and user": lambda: f"redis+sentinel://riskrelay:{ENCODED}@127.0.0.1:{port('open_sentinel')}/{SERVICE}/1",
        "closed sentinel": lambda: f"redis+sentinel://:{ENCODED}@127.0.0.1:{port('closed_sentinel')}/{SERVICE}",
        # no Sentinel listens at the first address
        "one sentinel of two": lambda: (
            f"redis+sentinel://:{ENCODED}@127.0.0.1:1,127.0.0.1:{port('open_sentinel')}/{SERVICE}"
        ),
    }
    return forms[request.param]()


FORMS: Final = (
    "password",
    "user and password",
    "socket",
    "socket and user",
    "tls",
    "sentinel",
    "sentinel and user",
    "closed sentinel",
    "one sentinel of two",
)


@pytest.mark.parametrize("url", FORMS, indirect=True)
def test_every_url_form_connects_and_shows_no_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), redis_client.connect(url, most_connections=4) as client:
        assert WakeUpQueue(client).notify()
        shown = [repr(client), repr(client.connection_pool), caplog.text]
    for secret in (PASSWORD, ENCODED):
        assert not [each for each in shown if secret in each]


@pytest.mark.parametrize("url", FORMS, indirect=True)
def test_a_wrong_or_missing_password_prevents_the_connection(url: str, caplog: pytest.LogCaptureFixture) -> None:
    for changed in (url.replace(ENCODED, "hunter2"), url.replace(f"riskrelay:{ENCODED}@", "").replace(f":{ENCODED}@", "")):
        assert changed != url
        with caplog.at_level(logging.DEBUG), redis_client.connect(changed) as client:
            assert WakeUpQueue(client).notify() is False
    assert "hunter2" not in caplog.text
    assert "Redis unavailable" in caplog.text


def test_a_connection_does_not_read_the_clients_metadata_again(server: PortRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "from_name", lambda name: pytest.fail(f"metadata of {name} was read"))
    with redis_client.connect(server.url) as client:
        assert client.ping()


def test_databases_of_one_server_are_separate(server: PortRedis) -> None:
    with redis_client.connect(server.url) as first, redis_client.connect(server.url.replace("/0", "/5")) as other:
        other.set("only here", 1)
        assert first.get("only here") is None


def test_redis_certificates_are_verified(tls_port: int, authority: Authority, tmp_path: Path) -> None:
    _, foreign = make_certificate(tmp_path, "127.0.0.1")
    known, user = f"?ssl_ca_certs={authority.file}", f"rediss://:{ENCODED}@"
    refused = {
        "an authority that the system does not know": f"{user}127.0.0.1:{tls_port}",
        "an authority that did not sign it": f"{user}127.0.0.1:{tls_port}?ssl_ca_certs={foreign}",
        "a file that is not there": f"{user}127.0.0.1:{tls_port}?ssl_ca_certs={tmp_path}/none.pem",
        "a host that it does not name": f"{user}localhost:{tls_port}{known}",
    }
    for what, url in refused.items():
        with redis_client.connect(url) as client, pytest.raises(RedisConnectionError):
            assert not client.ping(), what
    with redis_client.connect(f"{user}127.0.0.1:{tls_port}{known}") as client:
        assert client.ping()


def test_sentinels_are_reached_over_tls(authority: Authority) -> None:
    # The Sentinel monitors the relay's port, so it reports this port to clients.
    with (
        PortRedis() as master,
        CuttableRelay(("127.0.0.1", master.port), authority.context) as to_master,
        SentinelServer(to_master.port, quorum=1) as sentinel,
        CuttableRelay(("127.0.0.1", sentinel.port), authority.context) as to_sentinel,
    ):
        wait_until(lambda: sentinel.state()["flags"] == "master")
        url = f"rediss+sentinel://:{ENCODED}@127.0.0.1:{to_sentinel.port}/{SERVICE}"
        with redis_client.connect(f"{url}?ssl_ca_certs={authority.file}") as client:
            assert client.ping()
        with redis_client.connect(url) as client, pytest.raises(RedisConnectionError):
            client.ping()


def test_silent_sentinels_delay_a_call_no_longer_than_a_silent_server(server: PortRedis) -> None:
    with CuttableRelay(("127.0.0.1", 1)) as silent:
        silent.cut()
        places = ",".join([f"127.0.0.1:{silent.port}"] * 3)
        with redis_client.connect(f"redis+sentinel://:{ENCODED}@{places}/{SERVICE}") as client:
            began = time.monotonic()
            assert WakeUpQueue(client).notify() is False
            assert time.monotonic() - began < SOON_S


def test_a_notification_fails_if_no_sentinel_knows_the_service(open_sentinel: SentinelServer) -> None:
    with redis_client.connect(f"redis+sentinel://127.0.0.1:{open_sentinel.port}/another") as client:
        assert WakeUpQueue(client).notify() is False


def test_clients_switch_from_a_frozen_master_to_the_new_one() -> None:
    with redis_with_sentinels(wait_until, sentinels=1) as all_of_it, redis_client.connect(all_of_it.url) as client:
        wake_ups = WakeUpQueue(client)
        assert wake_ups.notify()
        first = all_of_it.master()
        first.suspend()
        assert wake_ups.notify() is False
        wait_until(wake_ups.notify, 20)
        assert all_of_it.master() is not first
        first.resume()
