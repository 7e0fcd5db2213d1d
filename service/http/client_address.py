"""Which address failed authentications are counted for: the client's, as far as trusted proxies tell it.

An IPv4 address counts whole, an IPv6 address by what one subscriber is given. What a client writes into `X-Forwarded-For`
itself is never believed.
"""

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

import falcon

from schemas.url_policy.policy import Address, Network

#: What one subscriber is given; within it addresses cost nothing.
_IPV6_PREFIX: Final = 64
#: Peers of a unix socket have no address and count as one.
_NO_ADDRESS: Final = "local"


def counted_address(req: falcon.Request, trusted_proxies: tuple[Network, ...]) -> str:
    """Return what a client's address counts as: IPv4 whole, IPv6 by /64, a unix socket's peers as one.

    `X-Forwarded-For` is believed from the right for as long as a trusted proxy wrote it: the client's address is the first
    that is no trusted proxy's, or the last one before an entry that is no address.
    """
    nearest = _parsed(req.env.get("REMOTE_ADDR", ""))
    if nearest is None:
        return _NO_ADDRESS
    for entry in reversed((req.get_header("X-Forwarded-For") or "").split(",")):
        farther = _parsed(entry) if _is_in(nearest, trusted_proxies) else None
        if farther is None:
            break
        nearest = farther
    return _by_prefix(nearest) if isinstance(nearest, IPv6Address) else str(nearest)


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _parsed(entry: str) -> Address | None:
    """Read an address, also one with a port as some proxies write it; IPv4 within IPv6 is IPv4."""
    text = entry.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _by_prefix(address: IPv6Address) -> str:
    host_bits = address.max_prefixlen - _IPV6_PREFIX
    return str(IPv6Network((int(address) >> host_bits << host_bits, _IPV6_PREFIX)))
