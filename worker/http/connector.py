"""Connects to an address of a target: directly, or through the installation's proxy, from its source addresses.

The addresses have passed the policy. The address of the proxy is the operator's, and no policy applies to it.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final

from runtime.dns_resolver import DnsError, DnsResolver
from schemas.settings.egress import Egress, EgressProxy, Sources, source_for
from schemas.url_policy.policy import Address
from worker.http.deadline import Exchange
from worker.http.errors import TransportError, transport_error
from worker.http.proxy_tunnel import ProxyGatewayError, open_tunnel

#: The constant of Linux; Python defines it since 3.12.
_IP_BIND_ADDRESS_NO_PORT: Final = 24


class Connector:
    """Opens sockets that lead to addresses, as `egress` says."""

    def __init__(self, resolver: DnsResolver, egress: Egress) -> None:
        self._resolver = resolver
        self._egress = egress

    def connect(self, addresses: Sequence[Address], port: int, exchange: Exchange) -> tuple[socket.socket, str]:
        """Try each address in the resolver's order within the connect timeout and the deadline.

        Returns the socket and the address that it leads to. Raises TransportError.
        """
        until = time.monotonic() + min(exchange.connect_timeout_s, exchange.remaining_s())
        if self._egress.proxy is None:
            addresses = _with_source(addresses, self._egress.sources)
        error = "connect_timeout" if addresses else "source_address_unavailable"
        for address, own_until in _with_deadlines(addresses, until):
            try:
                return self._reach(address, port, own_until), str(address)
            except TimeoutError:
                error = "connect_timeout"
            except ConnectionRefusedError:
                error = "connect_refused"
            except ProxyGatewayError:
                error = "proxy_connect_failed"
            except TransportError:
                raise
            except OSError:
                error = "connect_failed"
        raise transport_error("deadline_exceeded" if exchange.is_over() else error)

    def _reach(self, address: Address, port: int, until: float) -> socket.socket:
        """Return a socket that leads to an address, through the proxy if there is one."""
        proxy = self._egress.proxy
        if proxy is None:
            return _open(address, port, until, self._egress.sources)
        connected = self._open_proxy(proxy, until)
        try:
            open_tunnel(connected, proxy, str(address), port, until)
        except ConnectionError:
            connected.close()
            raise transport_error("proxy_bad_answer") from None
        except BaseException:
            connected.close()
            raise
        return connected

    def _open_proxy(self, proxy: EgressProxy, until: float) -> socket.socket:
        """Return a socket to the proxy. Raises TransportError."""
        try:
            addresses = self._resolver.resolve(proxy.host, proxy.port, max(0.0, until - time.monotonic()))
        except DnsError:
            raise transport_error("proxy_unreachable") from None
        reachable = _with_source(addresses, self._egress.sources)
        for address, own_until in _with_deadlines(reachable, until):
            try:
                return _open(address, proxy.port, own_until, self._egress.sources)
            except TransportError:
                raise
            except OSError:
                continue
        raise transport_error("proxy_unreachable" if reachable else "source_address_unavailable")


def _with_deadlines(addresses: Sequence[Address], until: float) -> Iterator[tuple[Address, float]]:
    """Yield each address with its share of the time that is left, so that a dead IPv6 route leaves time for IPv4."""
    for number, address in enumerate(addresses):
        now = time.monotonic()
        if now >= until:
            return
        yield address, now + (until - now) / (len(addresses) - number)


def _with_source(addresses: Sequence[Address], sources: Sources) -> Sequence[Address]:
    """Return the addresses of the families that have a source address, or all addresses without fixed sources."""
    return [each for each in addresses if source_for(each, sources)] if sources else addresses


def _open(address: Address, port: int, until: float, sources: Sources) -> socket.socket:
    """Return a socket that is connected to an address by the time `until`. Raises OSError."""
    connected = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        if sources:
            _bind(connected, source_for(address, sources))
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connected.settimeout(left_s)
        connected.connect((str(address), port))
        # A second packet would wait 40 ms for the peer's delayed acknowledgement of the first.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connected.close()
        raise
    return connected


def _bind(connected: socket.socket, source: Address | None) -> None:
    # The kernel chooses the source port once it knows the destination: one port serves connections to many destinations.
    connected.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    try:
        connected.bind((str(source), 0))
    except OSError:
        raise transport_error("source_address_unavailable") from None
