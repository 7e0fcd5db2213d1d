"""The client address: failed authentications are counted for it, and email webhooks may be limited to some networks.

Only entries of `X-Forwarded-For` that a trusted proxy wrote are used.
"""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import falcon

from schemas.url_policy.policy import Address, Network

#: The prefix length of one subscriber, who can use every address within the prefix.
_IPV6_PREFIX: Final = 64
#: The prefix lengths of one network, whose customer can use many addresses or many subnets.
_IPV4_NETWORK: Final = 24
_IPV6_NETWORK: Final = 48
#: The key of unix socket peers, which have no address and count as one client.
_NO_ADDRESS: Final = "local"


def counted_address(req: falcon.Request, trusted_proxies: tuple[Network, ...]) -> str:
    """Return the key of a client's address: an IPv4 address, a /64 of IPv6, or one key for all unix socket peers."""
    address = client_address(req, trusted_proxies)
    if address is None:
        return _NO_ADDRESS
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)


def counted_network(req: falcon.Request, trusted_proxies: tuple[Network, ...]) -> str:
    """Return the key of a client's network: a /24 of IPv4, a /48 of IPv6, or one key for all unix socket peers."""
    address = client_address(req, trusted_proxies)
    if address is None:
        return _NO_ADDRESS
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _IPV6_NETWORK), strict=False))
    return str(IPv4Network((int(address), _IPV4_NETWORK), strict=False))


def client_address(req: falcon.Request, trusted_proxies: tuple[Network, ...]) -> Address | None:
    """Return the client's address; None for peers of a unix socket.

    `X-Forwarded-For` is read from the right as long as a trusted proxy wrote the entry: the client's address is the first
    that is not a trusted proxy, or the last one before an entry that is not an address.
    """
    nearest = _parsed(req.env.get("REMOTE_ADDR", ""))
    if nearest is None:
        return None
    for entry in reversed((req.get_header("X-Forwarded-For") or "").split(",")):
        farther = _parsed(entry) if is_in(nearest, trusted_proxies) else None
        if farther is None:
            break
        nearest = farther
    return nearest


def is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    """Return whether one of the networks contains the address."""
    return any(address in network for network in networks)


def _parsed(entry: str) -> Address | None:
    """Parse an address, with or without a port; an IPv4-mapped IPv6 address becomes IPv4."""
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
