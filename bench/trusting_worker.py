"""`python -m bench.trusting_worker BUNDLE`: a worker as `bin/riskrelay work` runs it, but for whom it trusts.

An installation trusts the usual authorities alone, and no setting adds one; so does a worker here but for its client, which
trusts those of the BUNDLE. Only a measurement over TLS on loopback has a use for it.
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
