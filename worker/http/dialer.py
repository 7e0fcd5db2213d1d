"""Opens the socket of a connection: resolves once, classifies every address, dials an address that was classified.

Whether the name of a kept connection still resolves to its address is checked here as well. All of it happens within an
exchange, under its deadline and in its timings.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runtime.dns_resolver import DnsError, DnsFailure, DnsResolver
from schemas.settings.egress import DIRECT, Egress
from schemas.url_policy.addresses import check_addresses
from schemas.url_policy.policy import Address, TargetPolicy
from worker.http.connector import Connector
from worker.http.deadline import Exchange, milliseconds
from worker.http.errors import TargetRefused, TransportError, transport_error

#: How long a kept connection waits for the name servers. They respond in milliseconds; an outage of name servers must not
#: use up the time that the delivery needs.
_CONFIRM_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The resolution of a name at `at` (monotonic); `addresses` is None if the name servers did not answer."""

    at: float
    addresses: frozenset[str] | None

    def covers(self, address: str) -> bool:
        """Return whether a connection to `address` may be reused; if the name servers did not answer, it may."""
        return self.addresses is None or address in self.addresses


class Dialer:
    """Opens sockets to addresses that the policy allows, as `egress` says.

    A kept connection is used for `confirmed_for_s` seconds before its name is resolved again.
    """

    def __init__(self, policy: TargetPolicy, resolver: DnsResolver, confirmed_for_s: float, egress: Egress = DIRECT) -> None:
        self._policy = policy
        self._resolver = resolver
        self._connector = Connector(resolver, egress)
        self.confirmed_for_s = confirmed_for_s

    def dial(self, host: str, port: int, exchange: Exchange) -> tuple[socket.socket, str]:
        """Return a connected socket and the address it is connected to. Raises TransportError."""
        addresses = self._resolve(host, port, exchange.remaining_s(), exchange)
        resolved_at = time.monotonic()
        connected = self._connector.connect(addresses, port, exchange)
        exchange.connect_ms = milliseconds(time.monotonic() - resolved_at)
        return connected

    def confirm(self, host: str, port: int, exchange: Exchange) -> Confirmation:
        """Resolve the name of a kept connection again. Raises TargetRefused if the policy forbids an address."""
        at = time.monotonic()
        try:
            addresses = self._resolve(host, port, min(_CONFIRM_WAIT_S, exchange.remaining_s() / 2), exchange)
        except TargetRefused:
            raise
        except TransportError as failed:
            # "The name does not exist" is an answer too: its former address may soon belong to another owner.
            return Confirmation(at, frozenset() if failed.error == DnsFailure.NOT_FOUND else None)
        return Confirmation(at, frozenset(str(address) for address in addresses))

    def _resolve(self, host: str, port: int, timeout_s: float, exchange: Exchange) -> Sequence[Address]:
        """Return all addresses of a name, each of which may be dialed."""
        began_at = time.monotonic()
        try:
            addresses = self._resolver.resolve(host, port, timeout_s, exchange.account_id)
        except DnsError as failed:
            raise transport_error(failed.reason) from None
        finally:
            exchange.dns_ms = (exchange.dns_ms or 0) + milliseconds(time.monotonic() - began_at)
        refusal = check_addresses(addresses, self._policy)
        if refusal is not None:
            raise TargetRefused(refusal)
        return addresses
