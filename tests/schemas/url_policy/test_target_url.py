"""The form of a target URL: by tables, and compared with the parsers of HTTP clients."""

from ipaddress import IPv6Address, ip_address

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from urllib3.util import parse_url

from schemas.url_policy.policy import RefusalReason, TargetPolicy, parse_networks, parse_ports
from schemas.url_policy.target_url import MAX_URL_CHARACTERS, TargetAddress, check_url

STRICT = TargetPolicy()
LOOPBACK = TargetPolicy(True, parse_ports("1-65535"), parse_networks("127.0.0.0/8"))
# Everything that an operator can allow, so that only the form of a URL matters.
OPEN = TargetPolicy(True, parse_ports("1-65535"), parse_networks("0.0.0.0/0,::/0"))


def accepted(url: str, policy: TargetPolicy = STRICT) -> TargetAddress:
    target = check_url(url, policy)
    assert isinstance(target, TargetAddress), target
    return target


def reason_for(url: str, policy: TargetPolicy = STRICT) -> str | None:
    verdict = check_url(url, policy)
    return verdict if isinstance(verdict, RefusalReason) else None


ACCEPTED = [
    # Columns: the URL as given; the URL that is used.
    ("https://hooks.example.com", "https://hooks.example.com/"),
    ("HTTPS://Hooks.Example.COM/In?a=B", "https://hooks.example.com/In?a=B"),
    ("https://hooks.example.com./in", "https://hooks.example.com/in"),  # a trailing dot is removed
    ("https://hooks.example.com:443/", "https://hooks.example.com/"),
    ("https://hooks.example.com:8443/", "https://hooks.example.com:8443/"),
    ("https://hooks.example.com?", "https://hooks.example.com/"),
    ("https://hooks.example.com?a=1&b=?/@:", "https://hooks.example.com/?a=1&b=?/@:"),
    ("https://r3---sn-abc.example.com/", "https://r3---sn-abc.example.com/"),  # hyphens that IDNA would reject
    ("https://0x7f.example.com/", "https://0x7f.example.com/"),  # only a number in the last label makes it numeric
    ("https://bücher.example.com/", "https://xn--bcher-kva.example.com/"),
    ("https://xn--bcher-kva.example.com/", "https://xn--bcher-kva.example.com/"),
    ("https://faß.example.com/", "https://xn--fa-hia.example.com/"),  # not fass, which is another host
    (
        "https://\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45\u3002com/",
        "https://example.com/",
    ),  # fullwidth letters, ideographic dot
    ("https://example.com/%7euser/%c3%a9/%2f", "https://example.com/~user/%C3%A9/%2F"),
    ('https://example.com/é "'.replace(" ", ""), "https://example.com/%C3%A9%22"),
    ("https://example.com/a..b/...", "https://example.com/a..b/..."),
    ("https://8.8.8.8/", "https://8.8.8.8/"),
    ("https://[2001:4860:4860:0:0:0:0:8888]/", "https://[2001:4860:4860::8888]/"),
    ("https://[2001:4860:4860::8888]:8443/", "https://[2001:4860:4860::8888]:8443/"),
    ("https://[::ffff:8.8.8.8]/", "https://[::ffff:808:808]/"),
]


@pytest.mark.parametrize(("written", "dialed"), ACCEPTED)
def test_a_safe_url_is_normalized(written: str, dialed: str) -> None:
    assert accepted(written).url == dialed


def test_a_target_url_is_split_into_its_parts() -> None:
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
    ("hooks.example.com:443/in", "scheme_not_allowed"),  # every parser takes the host for a scheme
    ("https:hooks.example.com", "host_missing"),
    ("https:/hooks.example.com", "host_missing"),
    ("https:///hooks.example.com", "host_missing"),  # browsers use the name as host, other parsers do not
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
    ("https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/", "host_numeric"),  # fullwidth digits, known only after mapping
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
    ("https://2606:4700::1/", "port_invalid"),  # without brackets, everything after the first colon is the port
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
def test_an_unsafe_url_is_refused_with_its_reason(url: str, reason: str) -> None:
    assert reason_for(url) == reason


def test_every_refusal_reason_of_a_url_is_in_the_table() -> None:
    of_addresses = {reason for reason in RefusalReason if reason.startswith("address_")}
    elsewhere = {RefusalReason.NAME_NOT_FOUND, RefusalReason.PARSERS_DISAGREE}  # not caused by the form of a URL
    assert {reason for _, reason in REFUSED} >= set(RefusalReason) - of_addresses - elsewhere


def test_settings_allow_http_ports_and_networks() -> None:
    assert accepted("http://example.com/", LOOPBACK).port == 80
    assert accepted("http://127.0.0.1:5000/", LOOPBACK).url == "http://127.0.0.1:5000/"
    assert reason_for("http://10.0.0.1:5000/", LOOPBACK) == "address_private"
    assert reason_for("http://example.com:0/", LOOPBACK) == "port_not_allowed"
    assert reason_for("http://localhost:5000/", LOOPBACK) == "local_suffix"
    assert reason_for("ftp://example.com/", LOOPBACK) == "scheme_not_allowed"


def test_port_zero_is_never_allowed() -> None:
    assert reason_for("https://example.com:0/", TargetPolicy(allowed_ports=((0, 65535),))) == "port_not_allowed"


# --- Comparison with the parsers of HTTP clients -------------------------------

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
        assert isinstance(verdict, TargetAddress | RefusalReason)


@given(urls)
def test_normalizing_a_target_url_twice_changes_nothing(url: str) -> None:
    target = check_url(url, OPEN)
    if isinstance(target, TargetAddress):
        assert check_url(target.url, OPEN) == target
        assert target.url.isascii()


@given(urls)
def test_urllib3_and_requests_connect_to_the_checked_host(url: str) -> None:
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
    except requests.exceptions.InvalidURL:  # it uses IDNA without the mapping: stricter than ours, so harmless
        return None
    return (parse_url(prepared or "").host or "").strip("[]").removesuffix(".")


@given(urls)
def test_requests_finds_the_same_host_in_the_original_url_or_none(url: str) -> None:
    target = check_url(url, OPEN)
    host = host_that_requests_dials(url) if isinstance(target, TargetAddress) else None
    if isinstance(target, TargetAddress) and host is not None:
        literal = isinstance(target.address, IPv6Address)
        assert (ip_address(host) == target.address) if literal else (host == target.host)
