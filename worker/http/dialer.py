"""Open the socket of a connection: resolve once, classify every answer, dial the very address that was classified.

What a kept-alive connection is asked later, whether its name leads to its address still, is asked here as well. All of it
happens within an exchange, its deadline and its timings.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from runtime.dns_resolver import Address, DnsError, DnsFailure, DnsResolver
from schemas.url_policy.addresses import check_addresses
from schemas.url_policy.policy import TargetPolicy
from worker.http.deadline import Exchange, milliseconds

#: How long a kept connection waits for the name servers. Working ones need milliseconds; one that is away must not take the
#: time that the delivery needs.
_CONFIRM_WAIT_S: Final = 1.0


class DialFailed(Exception):
    """No connection was made; `error` names why, `refused` tells that our policy said no."""

    def __init__(self, error: str, *, refused: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Where a name led when it was asked `at` (monotonic); `addresses` is None where nobody answered."""

    at: float
    addresses: frozenset[str] | None

    def holds(self, address: str) -> bool:
        """Tell whether a connection to `address` may go on: it was judged once, and silence takes nothing back."""
        return self.addresses is None or address in self.addresses


class Dialer:
    """Opens the socket of a new connection: resolve once, classify every answer, dial what was classified."""

    def __init__(
        self, policy: TargetPolicy, resolver: DnsResolver, connect_timeout_s: float, confirmed_for_s: float
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._connect_timeout_s = connect_timeout_s
        self.confirmed_for_s = confirmed_for_s

    def dial(self, host: str, port: int, exchange: Exchange) -> tuple[socket.socket, str]:
        """Return a connected socket and the address it is connected to. Raises DialFailed."""
        addresses = self._look_up(host, port, exchange.remaining_s(), exchange)
        resolved_at = time.monotonic()
        connected = self._connect([str(address) for address in addresses], port, exchange)
        exchange.timings = replace(exchange.timings, connect_ms=milliseconds(time.monotonic() - resolved_at))
        return connected

    def confirm(self, host: str, port: int, exchange: Exchange) -> Confirmation:
        """Ask where the name of a kept connection leads now. Raises DialFailed if the policy refuses an answer."""
        at = time.monotonic()
        try:
            addresses = self._look_up(host, port, min(_CONFIRM_WAIT_S, exchange.remaining_s() / 2), exchange)
        except DialFailed as failed:
            if failed.refused:
                raise
            # That there is no such name is an answer too: what was its address may be somebody else's tomorrow.
            return Confirmation(at, frozenset() if failed.error == DnsFailure.NOT_FOUND else None)
        return Confirmation(at, frozenset(str(address) for address in addresses))

    def _look_up(self, host: str, port: int, timeout_s: float, exchange: Exchange) -> Sequence[Address]:
        """Return all addresses of a name, each of which may be dialed."""
        began_at = time.monotonic()
        try:
            addresses = self._resolver.resolve(host, port, timeout_s)
        except DnsError as failed:
            raise DialFailed(failed.reason) from None
        finally:
            dns_ms = (exchange.timings.dns_ms or 0) + milliseconds(time.monotonic() - began_at)
            exchange.timings = replace(exchange.timings, dns_ms=dns_ms)
        refusal = check_addresses(addresses, self._policy)
        if refusal is not None:
            raise DialFailed(refusal.reason, refused=True)
        return addresses

    def _connect(self, addresses: list[str], port: int, exchange: Exchange) -> tuple[socket.socket, str]:
        """Try each address in the resolver's order within the connect timeout and the deadline.

        Each gets its share of what is left, so that a dead IPv6 route leaves time for IPv4.
        """
        until = time.monotonic() + min(self._connect_timeout_s, exchange.remaining_s())
        error = "connect_timeout"
        for number, address in enumerate(addresses):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                return _open(address, port, left_s / (len(addresses) - number)), address
            except TimeoutError:
                error = "connect_timeout"
            except ConnectionRefusedError:
                error = "connect_refused"
            except OSError:
                error = "connect_failed"
        raise DialFailed("deadline_exceeded" if exchange.is_over() else error)


def _open(address: str, port: int, timeout_s: float) -> socket.socket:
    connected = socket.create_connection((address, port), timeout=timeout_s)
    # A second packet would wait 40 ms for the peer's delayed acknowledgement of the first.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
