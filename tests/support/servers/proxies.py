"""A real HTTP proxy, tinyproxy, on a loopback port."""

import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.settings.egress import EgressProxy, parse_proxy
from tests.support.processes.workers import wait_until
from tests.support.servers.redis_and_postgres import free_port
from tests.support.servers.runtimes import runtime


@dataclass(frozen=True, slots=True)
class Tinyproxy:
    """A running proxy."""

    port: int
    log: Path

    def at(self, credentials: str = "") -> EgressProxy:
        """Return the proxy as the product parses it from a setting; `credentials` is USER:PASSWORD."""
        proxy = parse_proxy(self.url(credentials))
        assert proxy is not None
        return proxy

    def url(self, credentials: str = "") -> str:
        """Return the proxy's URL; `credentials` is USER:PASSWORD."""
        return f"http://{credentials}{'@' if credentials else ''}127.0.0.1:{self.port}"

    def tunnels(self) -> list[str]:
        """Return the destination HOST:PORT of each requested tunnel."""
        return re.findall(r": CONNECT (\S+) HTTP", self.log.read_text())


@contextmanager
def tinyproxy(folder: Path, ports: Sequence[int] = (), credentials: str | None = None) -> Iterator[Tinyproxy]:
    """Run a proxy. `ports` limits the ports of its tunnels; `credentials`, a user and a password, limits its clients."""
    port, log, config = free_port(), folder / "tinyproxy.log", folder / "tinyproxy.conf"
    lines = [f"Port {port}", "Listen 127.0.0.1", "Allow 127.0.0.1", "Timeout 30", "LogLevel Connect", f'LogFile "{log}"']
    lines += [f"ConnectPort {each}" for each in ports]
    lines += [f"BasicAuth {credentials}"] if credentials else []
    config.write_text("\n".join([*lines, ""]))
    process = subprocess.Popen([runtime("tinyproxy"), "-d", "-c", config], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port))
        yield Tinyproxy(port, log)
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
