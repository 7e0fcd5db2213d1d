"""Opens the socket of a connection: resolves once, classifies every address, dials an address that was classified.

It connects directly, or through the installation's proxy, from its source addresses. The address of the proxy is the
operator's, and no policy applies to it.

Whether the name of a kept connection still resolves to its address is checked here as well. All of it happens within an
exchange, under its deadline and in its timings.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from runtime.dns_resolver import DnsError, DnsFailure, DnsResolver
from schemas.settings.egress import Egress, EgressProxy, Sources, source_for
from schemas.url_policy.addresses import check_addresses
from schemas.url_policy.policy import Address, TargetPolicy
from worker.http.deadline import Exchange, milliseconds
from worker.http.errors import TargetRefused, TransportError, transport_error
from worker.http.proxy_tunnel import ProxyGatewayError, open_tunnel

#: How long a kept connection waits for the name servers. They respond in milliseconds; an outage of name servers must not
#: use up the time that the delivery needs.
_CONFIRM_WAIT_S: Final = 1.0
#: The constant of Linux; Python defines it since 3.12.
_IP_BIND_ADDRESS_NO_PORT: Final = 24

#: When a name was resolved (monotonic), and its addresses; None if the name servers did not answer: then a kept connection
#: may be reused.
Confirmation: TypeAlias = tuple[float, frozenset[str] | None]


class Dialer:
    """Opens sockets to addresses that the policy allows, as `egress` says.

    A kept connection is used for `confirmed_for_s` seconds before its name is resolved again.
    """

    def __init__(self, policy: TargetPolicy, resolver: DnsResolver, confirmed_for_s: float, egress: Egress) -> None:
        self._policy = policy
        self._resolver = resolver
        self._egress = egress
        self.confirmed_for_s = confirmed_for_s

    def dial(self, host: str, port: int, exchange: Exchange) -> tuple[socket.socket, str]:
        """Return a connected socket and the address it is connected to. Raises TransportError."""
        addresses = self._resolve(host, port, exchange.remaining_s(), exchange)
        resolved_at = time.monotonic()
        connected = self._connect(addresses, port, exchange)
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
            return at, frozenset() if failed.error == DnsFailure.NOT_FOUND else None
        return at, frozenset(str(address) for address in addresses)

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

    def _connect(self, addresses: Sequence[Address], port: int, exchange: Exchange) -> tuple[socket.socket, str]:
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
