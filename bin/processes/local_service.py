"""Requests to the service on this machine, without a proxy."""

from typing import Final
from urllib.request import ProxyHandler, build_opener

#: Ignores the proxy of the environment, which cannot reach this machine's service.
DIRECTLY: Final = build_opener(ProxyHandler({}))


def local_url(bind: str) -> str:
    """Return the local URL of a service that listens at `bind` (HOST:PORT)."""
    host, _, port = bind.rpartition(":")
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - only compared, not bound
    return f"http://{reachable}:{port}"
