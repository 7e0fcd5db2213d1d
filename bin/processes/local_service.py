"""Our own service as it is reached from this machine: where it listens, past the proxy that leads out of here."""

from typing import Final
from urllib.request import ProxyHandler, build_opener

#: Without the proxy that the environment may name: it would answer for the service, or hide it.
DIRECTLY: Final = build_opener(ProxyHandler({}))


def local_url(bind: str) -> str:
    """Return where a service that listens at `bind` (HOST:PORT) is for somebody on this machine."""
    host, _, port = bind.rpartition(":")
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - not bound here, only asked
    return f"http://{reachable}:{port}"
