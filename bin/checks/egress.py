"""Checks of `doctor` for connections to targets: the proxy, the source addresses, the client certificate."""

import socket
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from cryptography.x509 import load_pem_x509_certificate

from bin.checks.results import CheckResult, failure, ok, warning
from schemas.settings.definitions import Settings
from schemas.targets.validations import EXPIRES_SOON_DAYS

_CONNECT_WITHIN_S: Final = 2.0


def egress(settings: Settings, now: datetime) -> Iterator[CheckResult]:
    """Check what connections to targets need on this host; deliveries connect from the hosts of workers."""
    yield from [*_problems(settings, now)] or [ok("egress", _described(settings))]


def _problems(settings: Settings, now: datetime) -> Iterator[CheckResult]:
    for source in settings.egress_sources:
        try:
            with socket.socket(socket.AF_INET if source.version == 4 else socket.AF_INET6) as trial:
                trial.bind((str(source), 0))
        except OSError:
            fix = "correct EGRESS_BIND; on the hosts of workers it must be a local address"
            yield warning("egress", f"This host does not have the address {source} of EGRESS_BIND.", fix)
    if proxy := settings.egress_proxy:
        try:
            socket.create_connection((proxy.host, proxy.port), timeout=_CONNECT_WITHIN_S).close()
        except OSError:
            message = f"No connection to the proxy of EGRESS_PROXY_URL, host {proxy.host}, port {proxy.port}."
            yield warning("egress", message, "start the proxy, or correct EGRESS_PROXY_URL; workers connect to it")
    if settings.target_client_cert:
        until = load_pem_x509_certificate(settings.target_client_cert.encode()).not_valid_after_utc
        fix = "renew it and restart the workers"
        if until <= now:
            yield failure("egress", f"The certificate of TARGET_CLIENT_CERT expired on {until:%Y-%m-%d}.", fix)
        elif until - now < timedelta(days=EXPIRES_SOON_DAYS):
            yield warning("egress", f"The certificate of TARGET_CLIENT_CERT expires on {until:%Y-%m-%d}.", fix)


def _described(settings: Settings) -> str:
    how = "through the proxy of EGRESS_PROXY_URL" if settings.egress_proxy else "directly"
    return f"Workers connect to targets {how}."
