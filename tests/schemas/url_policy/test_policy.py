"""The operator's lists of ports and networks."""

import pytest
from marshmallow import ValidationError

from schemas.url_policy.policy import Network, PortSet, parse_networks, parse_ports

PORTS = [
    ("443", ((443, 443),)),
    ("443,8443,8000-8999", ((443, 443), (8443, 8443), (8000, 8999))),
    (" 443 , 8000 - 8999 ", ((443, 443), (8000, 8999))),
    ("1-65535", ((1, 65535),)),
]


@pytest.mark.parametrize(("text", "ports"), PORTS)
def test_valid_ports_are_read(text: str, ports: PortSet) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize(
    "text", ["", "443,", "0", "0-10", "65536", "-1", "10-", "20-10", "https", "4 43", "\uff14\uff14\uff13", "1-2-3"]
)
def test_an_invalid_port_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="Use comma-separated ports or ranges"):
        parse_ports(text)


NETWORKS = [
    ("", []),
    ("127.0.0.0/8", ["127.0.0.0/8"]),
    ("10.0.0.0/8, fd00::/8", ["10.0.0.0/8", "fd00::/8"]),
    ("192.168.1.7", ["192.168.1.7/32"]),
]


@pytest.mark.parametrize(("text", "networks"), NETWORKS)
def test_valid_networks_are_read(text: str, networks: list[str]) -> None:
    read: tuple[Network, ...] = parse_networks(text)
    assert [str(network) for network in read] == networks


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "intranet", "10.0.0.0/8,,", "10.0.0.0/8;fd00::/8"])
def test_an_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="Use comma-separated networks"):
        parse_networks(text)
