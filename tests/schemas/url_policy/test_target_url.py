"""The URL policy and the list of addresses: by table, and against the parsers that dial."""

from ipaddress import IPv6Address, ip_address
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from urllib3.util import parse_url

from schemas.url_policy.target_url import (
    MAX_URL_CHARACTERS,
    Network,
    PortSet,
    RefusalReason,
    TargetAddress,
    TargetPolicy,
    UrlRefusal,
    check_addresses,
    check_url,
    classify,
    parse_networks,
    parse_ports,
)

STRICT = TargetPolicy()
LOOPBACK = TargetPolicy(True, parse_ports("1-65535"), parse_networks("127.0.0.0/8"))
# All that an operator can open, so that only the form decides.
OPEN = TargetPolicy(True, parse_ports("1-65535"), parse_networks("0.0.0.0/0,::/0"))


def accepted(url: str, policy: TargetPolicy = STRICT) -> TargetAddress:
    target = check_url(url, policy)
    assert isinstance(target, TargetAddress), target
    return target


def reason_for(url: str, policy: TargetPolicy = STRICT) -> str | None:
    verdict = check_url(url, policy)
    return verdict.reason if isinstance(verdict, UrlRefusal) else None


ACCEPTED = [
    # as written, as dialled
    ("https://hooks.example.com", "https://hooks.example.com/"),
    ("HTTPS://Hooks.Example.COM/In?a=B", "https://hooks.example.com/In?a=B"),
    ("https://hooks.example.com./in", "https://hooks.example.com/in"),  # one trailing dot is dropped
    ("https://hooks.example.com:443/", "https://hooks.example.com/"),
    ("https://hooks.example.com:8443/", "https://hooks.example.com:8443/"),
    ("https://hooks.example.com?", "https://hooks.example.com/"),
    ("https://hooks.example.com?a=1&b=?/@:", "https://hooks.example.com/?a=1&b=?/@:"),
    (
        "https://r3---sn-abc.example.com/",
        "https://r3---sn-abc.example.com/",
    ),  # hyphens that IDNA would refuse
    (
        "https://0x7f.example.com/",
        "https://0x7f.example.com/",
    ),  # a number only in the last place makes a number
    ("https://bücher.example.com/", "https://xn--bcher-kva.example.com/"),
    ("https://xn--bcher-kva.example.com/", "https://xn--bcher-kva.example.com/"),
    ("https://faß.example.com/", "https://xn--fa-hia.example.com/"),  # not fass: that is another host
    (
        "https://\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45\u3002com/",
        "https://example.com/",
    ),  # wide letters, ideographic dot
    ("https://example.com/%7euser/%c3%a9/%2f", "https://example.com/~user/%C3%A9/%2F"),
    ('https://example.com/é "'.replace(" ", ""), "https://example.com/%C3%A9%22"),
    ("https://example.com/a..b/...", "https://example.com/a..b/..."),
    ("https://8.8.8.8/", "https://8.8.8.8/"),
    ("https://[2001:4860:4860:0:0:0:0:8888]/", "https://[2001:4860:4860::8888]/"),
    ("https://[2001:4860:4860::8888]:8443/", "https://[2001:4860:4860::8888]:8443/"),
    ("https://[::ffff:8.8.8.8]/", "https://[::ffff:808:808]/"),
]


@pytest.mark.parametrize(("written", "dialled"), ACCEPTED)
def test_a_safe_url_is_brought_into_the_form_that_is_dialled(written: str, dialled: str) -> None:
    assert accepted(written).url == dialled


def test_a_target_address_has_its_parts() -> None:
    assert accepted("https://Hooks.example.com:8443/in?a=1") == TargetAddress(
        "https", "hooks.example.com", 8443, "/in?a=1", "https://hooks.example.com:8443/in?a=1", None
    )
    literal = accepted("http://127.0.0.1:5000", LOOPBACK)
    assert (literal.host, literal.port, literal.address) == ("127.0.0.1", 5000, ip_address("127.0.0.1"))
    assert accepted("https://[2606:4700::1]/").host == "2606:4700::1"


REFUSED = [
    ("", "scheme_missing"),
    ("hooks.example.com/in", "scheme_missing"),
    ("//hooks.example.com/in", "scheme_missing"),
    ("http://hooks.example.com/", "scheme_not_allowed"),
    ("ftp://hooks.example.com/", "scheme_not_allowed"),
    ("file:///etc/passwd", "scheme_not_allowed"),
    ("hooks.example.com:443/in", "scheme_not_allowed"),  # to every parser the host is a scheme here
    ("https:hooks.example.com", "host_missing"),
    ("https:/hooks.example.com", "host_missing"),
    ("https:///hooks.example.com", "host_missing"),  # browsers dial the name, others none
    ("https://:443/", "host_missing"),
    ("https://?a=1", "host_missing"),
    ("https://user:password@example.com/", "userinfo"),
    ("https://@example.com/", "userinfo"),
    ("https://example.com:443@169.254.169.254/", "userinfo"),
    ("https://example.com/#", "fragment"),
    ("https://example.com#@169.254.169.254/", "fragment"),
    ("https://example.com\\@169.254.169.254/", "backslash"),
    ("https://example.com/a\\b", "backslash"),
    ("https://example.com/\n", "control_character"),
    ("https://exam\tple.com/", "control_character"),
    ("https://example.com/\x00", "control_character"),
    ("https://example.com/\x85", "control_character"),
    ("https://example.com/\u2028", "control_character"),
    ("https://example.com/\ud800", "control_character"),
    (" https://example.com/", "whitespace"),
    ("https://example.com/a b", "whitespace"),
    ("https://example.com/\u00a0", "whitespace"),
    ("https://exam\u200bple.com/", "zero_width"),
    ("https://exam\u00adple.com/", "zero_width"),  # soft hyphen
    ("https://example.com/\u202egnp.exe", "zero_width"),  # right-to-left override
    ("https://exam\ufe0fple.com/", "zero_width"),  # variation selector
    ("https://exam\u3164ple.com/", "zero_width"),  # Hangul filler
    ("https://%65xample.com/", "host_percent_encoded"),
    ("https://127%2e0.0.1/", "host_percent_encoded"),
    ("https://[fe80::1%25eth0]/", "zone_id"),
    ("https://[fe80::1%eth0]/", "zone_id"),
    ("https://2130706433/", "host_numeric"),
    ("https://0x7f000001/", "host_numeric"),
    ("https://0X7F000001/", "host_numeric"),
    ("https://017700000001/", "host_numeric"),
    ("https://127.1/", "host_numeric"),
    ("https://127.0.1/", "host_numeric"),
    ("https://0177.0.0.1/", "host_numeric"),
    ("https://127.0.0.01/", "host_numeric"),
    ("https://0x7f.0.0.0x1/", "host_numeric"),
    ("https://127.0.0.1./", "host_numeric"),
    ("https://256.1.1.1/", "host_numeric"),
    ("https://1.2.3.4.5/", "host_numeric"),
    ("https://example.0x/", "host_numeric"),
    (
        "https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
        "host_numeric",
    ),  # wide digits: only the mapping shows the number
    ("https://\u2460\u2461\u2466.0.0.\u2460/", "host_numeric"),
    ("https://\u0661\u0662\u0667.0.0.1/", "host_not_idna"),
    ("https://xn--a.example.com/", "host_not_idna"),
    ("https://\u2100.example.com/", "host_not_idna"),  # one character that maps to a/c
    ("https://example.com\u2488/", "host_not_idna"),  # one character that maps to a digit and a dot
    ("https://a\u0338.example.com:x/", "port_invalid"),
    ("https://example..com/", "host_invalid"),
    ("https://.example.com/", "host_invalid"),
    ("https://example.com../", "host_invalid"),
    ("https://-a.example.com/", "host_invalid"),
    ("https://a-.example.com/", "host_invalid"),
    ("https://a_b.example.com/", "host_invalid"),
    ("https://a,b.example.com/", "host_invalid"),
    ("https://*.example.com/", "host_invalid"),
    (f"https://{'a' * 64}.example.com/", "host_invalid"),
    (f"https://{'a.' * 130}com/", "host_invalid"),
    ("https://[::1/", "host_invalid"),
    ("https://[]/", "host_invalid"),
    ("https://[127.0.0.1]/", "host_invalid"),
    ("https://[v1.a]/", "host_invalid"),
    ("https://[2606:4700::1]x/", "host_invalid"),
    ("https://2606:4700::1/", "port_invalid"),  # without brackets all after the first colon is a port
    ("https://receiver/", "single_label"),
    ("https://com./", "single_label"),
    ("https://localhost/", "local_suffix"),
    ("https://LOCALHOST./", "local_suffix"),
    ("https://a.localhost/", "local_suffix"),
    ("https://printer.local/", "local_suffix"),
    ("https://metadata.google.internal/", "local_suffix"),
    ("https://nas.lan/", "local_suffix"),
    ("https://nas.home.arpa/", "local_suffix"),
    ("https://receiver.test/", "local_suffix"),
    ("https://nas.\uff4c\uff41\uff4e/", "local_suffix"),
    ("https://example.com:/", "port_invalid"),
    ("https://example.com:0443/", "port_invalid"),
    ("https://example.com:+443/", "port_invalid"),
    ("https://example.com:\uff14\uff14\uff13/", "port_invalid"),
    ("https://example.com:65536/", "port_invalid"),
    ("https://example.com:443:443/", "port_invalid"),
    ("https://example.com:0/", "port_not_allowed"),
    ("https://example.com:22/", "port_not_allowed"),
    ("https://example.com//169.254.169.254/", "path_invalid"),
    ("https://example.com/a/../b", "path_invalid"),
    ("https://example.com/a/%2e%2E/b", "path_invalid"),
    ("https://example.com/%", "path_invalid"),
    ("https://example.com/?a=%zz", "path_invalid"),
    ("https://127.0.0.1/", "address_loopback"),
    ("https://[::1]/", "address_loopback"),
    ("https://[::ffff:127.0.0.1]/", "address_loopback"),
    ("https://10.1.2.3/", "address_private"),
    ("https://169.254.169.254/", "address_metadata"),
    (f"https://example.com/{'a' * MAX_URL_CHARACTERS}", "too_long"),
    (f"https://example.com/{'é' * 1000}", "too_long"),  # in the form that is sent
]


@pytest.mark.parametrize(("url", "reason"), REFUSED)
def test_an_unsafe_url_is_refused_by_name(url: str, reason: str) -> None:
    assert reason_for(url) == reason


def test_every_reason_of_a_url_has_a_row() -> None:
    of_addresses = {reason for reason in RefusalReason if reason.startswith("address_")}
    elsewhere = {
        RefusalReason.NAME_NOT_FOUND,
        RefusalReason.PARSERS_DISAGREE,
    }  # a net without a known catch
    assert {reason for _, reason in REFUSED} >= set(RefusalReason) - of_addresses - elsewhere


def test_the_operator_opens_http_ports_and_networks() -> None:
    assert accepted("http://example.com/", LOOPBACK).port == 80
    assert accepted("http://127.0.0.1:5000/", LOOPBACK).url == "http://127.0.0.1:5000/"
    assert reason_for("http://10.0.0.1:5000/", LOOPBACK) == "address_private"
    assert reason_for("http://example.com:0/", LOOPBACK) == "port_not_allowed"
    assert reason_for("http://localhost:5000/", LOOPBACK) == "local_suffix"
    assert reason_for("ftp://example.com/", LOOPBACK) == "scheme_not_allowed"


def test_port_zero_stays_shut_whatever_the_policy_says() -> None:
    assert reason_for("https://example.com:0/", TargetPolicy(allowed_ports=((0, 65535),))) == "port_not_allowed"


CLASSES = [
    # the first address of a range, its last, and the reason; neighbours that are public are tested below
    ("0.0.0.0", "0.255.255.255", "address_unspecified"),  # noqa: S104  an address to judge, not to bind
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


def test_every_reason_of_an_address_has_a_row() -> None:
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
def test_a_public_address_may_be_dialled(address: str) -> None:
    assert classify(ip_address(address), STRICT) is None


METADATA = [
    "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "fd00:ec2::254", "fd20:ce::254",
    "fe80::a9fe:a9fe%eth0",  # a zone makes it no other address
    "::ffff:169.254.169.254",  # mapped
    "::169.254.169.254",  # compatible
    "::ffff:0:169.254.169.254",  # translated
    "64:ff9b::169.254.169.254",  # NAT64
    "64:ff9b:1::169.254.169.254",  # local NAT64, the four places that RFC 6052 has for it
    "64:ff9b:1:abcd:0:5431:a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:aba9:fe:a9fe::",
    "64:ff9b:1:abcd:a9:fea9:fe00:0",
    "2002:a9fe:a9fe::1",  # 6to4
    "2001:0:a9fe:a9fe::1",  # Teredo, the server
    "2001:0:102:304::5601:5601",  # Teredo, the client with its bits turned
]  # fmt: skip


@pytest.mark.parametrize("address", METADATA)
@pytest.mark.parametrize("policy", [STRICT, OPEN], ids=["strict", "open"])
def test_metadata_stays_shut_in_every_dress_even_where_the_network_is_open(address: str, policy: TargetPolicy) -> None:
    assert classify(ip_address(address), policy) == RefusalReason.ADDRESS_METADATA


OPENED = [
    # networks, address, verdict
    ("127.0.0.0/8", "127.0.0.1", None),
    ("127.0.0.0/8", "::ffff:127.0.0.1", None),  # the very same socket
    ("127.0.0.0/8", "::1", "address_loopback"),
    ("::1/128", "::1", None),
    ("10.0.0.0/8,fd00::/8", "fd12::1", None),
    ("10.0.0.0/8", "11.0.0.1", None),
    ("10.0.0.0/8", "192.168.0.1", "address_private"),
    ("::ffff:0:0/96", "::ffff:10.0.0.1", "address_private"),  # a mapped address counts as the one inside only
    ("64:ff9b::/96", "64:ff9b::8.8.8.8", None),
    ("64:ff9b::/96", "64:ff9b::10.0.0.1", "address_private"),  # the gateway would lead into the network
    ("64:ff9b::/96,10.0.0.0/8", "64:ff9b::10.0.0.1", None),
    ("2002::/16", "2002:7f00:1::", "address_loopback"),
    ("::/0,0.0.0.0/0", "0.0.0.0", "address_unspecified"),  # noqa: S104  no host's address: nothing opens it
    ("::/0,0.0.0.0/0", "::", "address_unspecified"),
    ("::/0,0.0.0.0/0", "224.0.0.1", "address_multicast"),
    ("::/0,0.0.0.0/0", "ff02::1", "address_multicast"),
    ("::/0,0.0.0.0/0", "255.255.255.255", "address_broadcast"),
    ("::/0,0.0.0.0/0", "5f00::1", None),
]


@pytest.mark.parametrize(("networks", "address", "reason"), OPENED)
def test_the_operators_networks_open_what_they_name(networks: str, address: str, reason: str | None) -> None:
    policy = TargetPolicy(allowed_networks=parse_networks(networks))
    assert classify(ip_address(address), policy) == reason


def test_one_bad_answer_refuses_all() -> None:
    good, bad = ip_address("8.8.8.8"), ip_address("192.168.0.1")
    assert check_addresses([good, ip_address("2606:4700::1111")], STRICT) is None
    assert check_addresses([good, bad], STRICT) == UrlRefusal(RefusalReason.ADDRESS_PRIVATE)
    assert check_addresses([bad, good], STRICT) == UrlRefusal(RefusalReason.ADDRESS_PRIVATE)


def test_no_answer_is_no_permission() -> None:
    assert check_addresses([], OPEN) == UrlRefusal(RefusalReason.NAME_NOT_FOUND)


PORTS = [
    ("443", ((443, 443),)),
    ("443,8443,8000-8999", ((443, 443), (8443, 8443), (8000, 8999))),
    (" 443 , 8000 - 8999 ", ((443, 443), (8000, 8999))),
    ("1-65535", ((1, 65535),)),
]


@pytest.mark.parametrize(("text", "ports"), PORTS)
def test_ports_are_read(text: str, ports: PortSet) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize(
    "text",
    ["", "443,", "0", "0-10", "65536", "-1", "10-", "20-10", "https", "4 43", "\uff14\uff14\uff13", "1-2-3"],
)
def test_a_wrong_port_is_named(text: str) -> None:
    entry = next(part.strip() for part in reversed(text.split(",")))
    with pytest.raises(ValueError, match=r"is not (a port|within)") as caught:
        parse_ports(text)
    assert repr(entry) in str(caught.value)


NETWORKS = [
    ("", []),
    ("127.0.0.0/8", ["127.0.0.0/8"]),
    ("10.0.0.0/8, fd00::/8", ["10.0.0.0/8", "fd00::/8"]),
    ("192.168.1.7", ["192.168.1.7/32"]),
]


@pytest.mark.parametrize(("text", "networks"), NETWORKS)
def test_networks_are_read(text: str, networks: list[str]) -> None:
    read: tuple[Network, ...] = parse_networks(text)
    assert [str(network) for network in read] == networks


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "intranet", "10.0.0.0/8,,", "10.0.0.0/8;fd00::/8"])
def test_a_wrong_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network such as"):
        parse_networks(text)


# --- Against the parsers that dial ---------------------------------------------

hosts = st.one_of(
    st.from_regex(r"[a-zA-Z0-9_.-]{1,20}\.(com|example|0x1|1|\uff43\uff4f\uff4d)\.?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.ip_addresses(v=6).map(lambda address: f"[{address.exploded.upper()}]"),
    st.text(min_size=1, max_size=12).map(lambda text: f"{text}.com"),
    st.text("bücherß\u3002\uff0e\u2460\u2100\uff41-xn", min_size=1, max_size=12).map(lambda text: f"{text}.com"),
)
tails = st.one_of(
    st.just(""),
    st.text(max_size=20).map(lambda text: f"/{text}"),
    st.text("/.%2eE?&=;:@!'()[]{}|^`\"<>~é", max_size=20).map(lambda text: f"/{text}"),
    st.text(max_size=10).map(lambda text: f"?{text}"),
)
ports = st.just("") | st.integers(-1, 70_000).map(lambda port: f":{port}")
urls = st.builds("{}://{}{}{}".format, st.sampled_from(["https", "http", "HTTPS"]), hosts, ports, tails)


@given(st.text() | urls | st.text("htps:/@[]%#?\\.0x127a ", max_size=30))
def test_any_text_is_a_target_or_a_refusal(url: str) -> None:
    for policy in (STRICT, OPEN):
        verdict = check_url(url, policy)
        assert isinstance(verdict, TargetAddress | UrlRefusal)


@given(urls)
def test_the_form_that_is_dialled_is_its_own_normal_form(url: str) -> None:
    target = check_url(url, OPEN)
    if isinstance(target, TargetAddress):
        assert check_url(target.url, OPEN) == target
        assert target.url.isascii()


@given(urls)
def test_urllib3_and_requests_dial_the_host_that_was_judged(url: str) -> None:
    target = check_url(url, OPEN)
    if isinstance(target, TargetAddress):
        read = parse_url(target.url)
        assert (read.scheme, (read.host or "").strip("[]"), read.auth) == (target.scheme, target.host, None)
        assert (read.port or {"http": 80, "https": 443}[target.scheme]) == target.port
        assert read.request_uri == target.path_and_query
        assert requests.Request("POST", target.url).prepare().url == target.url


def host_that_requests_dials(url: str) -> str | None:
    try:
        prepared = requests.Request("POST", url).prepare().url
    except requests.exceptions.InvalidURL:  # it knows IDNA without the mapping: stricter than ours, so no danger
        return None
    return (parse_url(prepared or "").host or "").strip("[]").removesuffix(".")


@given(urls)
def test_requests_finds_the_same_host_in_what_was_typed_or_none(url: str) -> None:
    target = check_url(url, OPEN)
    host = host_that_requests_dials(url) if isinstance(target, TargetAddress) else None
    if isinstance(target, TargetAddress) and host is not None:
        literal = isinstance(target.address, IPv6Address)
        assert (ip_address(host) == target.address) if literal else (host == target.host)


@given(st.ip_addresses())
def test_what_the_standard_library_calls_private_is_never_dialled(address: Any) -> None:
    refused = address.is_private or address.is_multicast or address.is_link_local or address.is_unspecified
    if refused and not getattr(address, "ipv4_mapped", None):
        assert classify(address, STRICT) is not None
