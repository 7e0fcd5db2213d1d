"""The classes of addresses, by tables and compared with the standard library."""

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.url_policy.addresses import check_addresses, classify
from schemas.url_policy.policy import RefusalReason, TargetPolicy, parse_networks, parse_ports

STRICT = TargetPolicy()
# Everything that an operator can allow, so that only what cannot be allowed is rejected.
OPEN = TargetPolicy(True, parse_ports("1-65535"), parse_networks("0.0.0.0/0,::/0"))


CLASSES = [
    # Columns: the first address of a range; its last; the reason. Public neighbors are tested below.
    ("0.0.0.0", "0.255.255.255", "address_unspecified"),  # noqa: S104  an address to classify, not to bind
    ("10.0.0.0", "10.255.255.255", "address_private"),
    ("100.64.0.0", "100.127.255.255", "address_carrier_nat"),
    ("127.0.0.0", "127.255.255.255", "address_loopback"),
    ("169.254.0.0", "169.254.255.255", "address_link_local"),
    ("172.16.0.0", "172.31.255.255", "address_private"),
    ("192.0.0.0", "192.0.0.255", "address_reserved"),
    ("192.0.2.0", "192.0.2.255", "address_documentation"),
    ("192.31.196.0", "192.31.196.255", "address_reserved"),
    ("192.52.193.0", "192.52.193.255", "address_reserved"),
    ("192.88.99.0", "192.88.99.255", "address_6to4"),
    ("192.168.0.0", "192.168.255.255", "address_private"),
    ("192.175.48.0", "192.175.48.255", "address_reserved"),
    ("198.18.0.0", "198.19.255.255", "address_benchmark"),
    ("198.51.100.0", "198.51.100.255", "address_documentation"),
    ("203.0.113.0", "203.0.113.255", "address_documentation"),
    ("224.0.0.0", "239.255.255.255", "address_multicast"),
    ("240.0.0.0", "255.255.255.254", "address_reserved"),
    ("255.255.255.255", "255.255.255.255", "address_broadcast"),
    ("::", "::", "address_unspecified"),
    ("::1", "::1", "address_loopback"),
    ("::2", "::ffff:ffff", "address_compatible"),
    ("::1:0:0:0", "::fffe:ffff:ffff:ffff", "address_reserved"),
    ("64:ff9b::", "64:ff9b::ffff:ffff", "address_nat64"),
    ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", "address_nat64"),
    ("100::", "100::ffff:ffff:ffff:ffff", "address_reserved"),
    ("100:0:0:1::", "1fff:ffff::", "address_reserved"),
    ("2001::", "2001:0:ffff::", "address_teredo"),
    ("2001:1::1", "2001:1::3", "address_reserved"),
    ("2001:2::", "2001:2:0:ffff::", "address_benchmark"),
    ("2001:3::", "2001:1ff:ffff::", "address_reserved"),
    ("2001:db8::", "2001:db8:ffff::", "address_documentation"),
    ("2002::", "2002:ffff:ffff::", "address_6to4"),
    ("2620:4f:8000::", "2620:4f:8000:ffff::", "address_reserved"),
    ("3ffe::", "3ffe:ffff::", "address_reserved"),
    ("3fff::", "3fff:fff:ffff::", "address_documentation"),
    ("4000::", "fbff:ffff::", "address_reserved"),
    ("5f00::", "5f00:ffff::", "address_reserved"),
    ("fc00::", "fdff:ffff::", "address_private"),
    ("fe00::", "fe7f:ffff::", "address_reserved"),
    ("fe80::", "febf:ffff::", "address_link_local"),
    ("fec0::", "feff:ffff::", "address_private"),
    ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "address_multicast"),
]


@pytest.mark.parametrize(("first", "last", "reason"), CLASSES)
def test_a_special_range_is_refused_from_its_first_to_its_last_address(first: str, last: str, reason: str) -> None:
    assert classify(ip_address(first), STRICT) == reason
    assert classify(ip_address(last), STRICT) == reason


def test_every_refusal_reason_of_an_address_is_in_the_table() -> None:
    of_addresses = {reason for reason in RefusalReason if reason.startswith("address_")}
    assert {reason for *_, reason in CLASSES} == of_addresses - {RefusalReason.ADDRESS_METADATA}


PUBLIC = [
    "1.0.0.0", "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
    "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
    "191.255.255.255", "192.0.1.0", "192.0.3.0", "192.31.195.255", "192.88.98.255", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "203.0.112.255", "203.0.114.0", "223.255.255.255",
    "2000::", "2001:200::", "2001:4860:4860::8888", "2001:db7:ffff::", "2001:db9::", "2003::",
    "2606:4700::1111", "3ffd:ffff::", "3fff:1000::", "::ffff:8.8.8.8", "::ffff:1.1.1.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_connections_to_a_public_address_are_allowed(address: str) -> None:
    assert classify(ip_address(address), STRICT) is None


METADATA = [
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "fd00:ec2::254", "fd20:ce::254",
    "fe80::a9fe:a9fe%eth0",  # the zone does not change the address
    "::ffff:169.254.169.254",  # mapped
    "::169.254.169.254",  # compatible
    "::ffff:0:169.254.169.254",  # translated
    "64:ff9b::169.254.169.254",  # NAT64
    "64:ff9b:1::169.254.169.254",  # local-use NAT64, with the four prefix lengths of RFC 6052
    "64:ff9b:1:abcd:0:5431:a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:aba9:fe:a9fe::",
    "64:ff9b:1:abcd:a9:fea9:fe00:0",
    "2002:a9fe:a9fe::1",  # 6to4
    "2001:0:a9fe:a9fe::1",  # Teredo, the server's address
    "2001:0:102:304::5601:5601",  # Teredo, the client's address with inverted bits
]  # fmt: skip


@pytest.mark.parametrize("address", METADATA)
@pytest.mark.parametrize("policy", [STRICT, OPEN], ids=["strict", "open"])
def test_metadata_addresses_are_refused_in_every_notation_even_in_allowed_networks(
    address: str, policy: TargetPolicy
) -> None:
    assert classify(ip_address(address), policy) == RefusalReason.ADDRESS_METADATA


OPENED = [
    # Columns: allowed networks; an address; the verdict.
    ("127.0.0.0/8", "127.0.0.1", None),
    ("127.0.0.0/8", "::ffff:127.0.0.1", None),  # the same socket
    ("127.0.0.0/8", "::1", "address_loopback"),
    ("::1/128", "::1", None),
    ("10.0.0.0/8,fd00::/8", "fd12::1", None),
    ("10.0.0.0/8", "11.0.0.1", None),
    ("10.0.0.0/8", "192.168.0.1", "address_private"),
    ("::ffff:0:0/96", "::ffff:10.0.0.1", "address_private"),  # a mapped address counts only as the embedded one
    ("64:ff9b::/96", "64:ff9b::8.8.8.8", None),
    ("64:ff9b::/96", "64:ff9b::10.0.0.1", "address_private"),  # the gateway would lead into the private network
    ("64:ff9b::/96,10.0.0.0/8", "64:ff9b::10.0.0.1", None),
    ("2002::/16", "2002:7f00:1::", "address_loopback"),
    ("::/0,0.0.0.0/0", "0.0.0.0", "address_unspecified"),  # noqa: S104  not a host's address, so nothing allows it
    ("::/0,0.0.0.0/0", "::", "address_unspecified"),
    ("::/0,0.0.0.0/0", "224.0.0.1", "address_multicast"),
    ("::/0,0.0.0.0/0", "ff02::1", "address_multicast"),
    ("::/0,0.0.0.0/0", "255.255.255.255", "address_broadcast"),
    ("::/0,0.0.0.0/0", "5f00::1", None),
]


@pytest.mark.parametrize(("networks", "address", "reason"), OPENED)
def test_allowed_networks_allow_exactly_their_addresses(networks: str, address: str, reason: str | None) -> None:
    policy = TargetPolicy(allowed_networks=parse_networks(networks))
    assert classify(ip_address(address), policy) == reason


def test_one_refused_address_refuses_the_whole_name() -> None:
    good, bad = ip_address("8.8.8.8"), ip_address("192.168.0.1")
    assert check_addresses([good, ip_address("2606:4700::1111")], STRICT) is None
    assert check_addresses([good, bad], STRICT) is RefusalReason.ADDRESS_PRIVATE
    assert check_addresses([bad, good], STRICT) is RefusalReason.ADDRESS_PRIVATE


def test_a_name_without_addresses_is_refused() -> None:
    assert check_addresses([], OPEN) is RefusalReason.NAME_NOT_FOUND


@given(st.ip_addresses())
def test_no_connection_is_made_to_addresses_that_the_standard_library_calls_private(address: Any) -> None:
    refused = address.is_private or address.is_multicast or address.is_link_local or address.is_unspecified
    if refused and not getattr(address, "ipv4_mapped", None):
        assert classify(address, STRICT) is not None
