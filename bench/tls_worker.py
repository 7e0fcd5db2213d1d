"""`python -m bench.tls_worker BUNDLE`: a worker like that of `bin/riskrelay work`, with other certificate authorities.

An installation trusts the usual authorities, and no setting adds one. This worker's client trusts those of the BUNDLE
instead. Used only to measure TLS on loopback.
"""

import sys

from bin.cli.installation import daemon_settings
from runtime.dns_resolver import DnsResolver
from schemas.settings.definitions import Settings
from worker import daemon
from worker.http.client import HttpClient


def _client(settings: Settings, connections: int) -> HttpClient:
    """Wire a client as `worker.composition.compose_client` does."""
    return HttpClient(
        policy=settings.target_policy,
        resolver=DnsResolver(),
        deadline_s=settings.delivery_timeout_s,
        connect_timeout_s=settings.connect_timeout_s,
        connections=connections,
        verify=sys.argv[1],
    )


if __name__ == "__main__":
    # The one thing in which this worker differs.
    daemon.compose_client = _client  # type: ignore[attr-defined]  # imported there, not exported
    raise SystemExit(daemon.run(daemon_settings()))
