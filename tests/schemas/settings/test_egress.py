"""The proxy and the source addresses of connections to targets."""

from base64 import b64decode
from ipaddress import ip_address

import pytest
from marshmallow import ValidationError

from schemas.settings.egress import Egress, EgressProxy, parse_proxy, parse_sources


def test_a_proxy_has_a_host_a_port_and_perhaps_credentials() -> None:
    assert parse_proxy("http://proxy.example.com:3128") == EgressProxy("proxy.example.com", 3128)
    assert parse_proxy("http://[2001:db8::1]:3128/") == EgressProxy("2001:db8::1", 3128)
    proxy = parse_proxy("http://relay:p%40ss%3Aword@127.0.0.1:8080")
    assert proxy is not None
    assert proxy.authorization is not None
    assert b64decode(proxy.authorization.removeprefix("Basic ")) == b"relay:p@ss:word"
    assert "Basic" not in repr(proxy)


@pytest.mark.parametrize(
    "url",
    [
        "https://s3cret@proxy:3128",
        "socks5://s3cret@proxy:1080",
        "http://s3cret@proxy",
        "http://s3cret@proxy:0",
        "http://s3cret@proxy:99999",
        "http://s3cret@:3128",
        "http://s3cret@proxy:3128/path",
        "http://s3cret@proxy:3128?x",
        "http://s3cret@proxy:3128#x",
        "http://s3cret @proxy:3128",
        "http://[s3cret:3128",
        "s3cret@proxy:3128",
    ],
)
def test_another_url_is_refused_and_never_quoted(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_proxy(url)
    assert "Use http://HOST:PORT" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_source_addresses_are_at_most_one_of_each_family() -> None:
    assert parse_sources("") == ()
    assert parse_sources("192.0.2.10, 2001:db8::10") == (ip_address("192.0.2.10"), ip_address("2001:db8::10"))
    for text in ("192.0.2.10,192.0.2.11", "::", "192.0.2.0/24", "eth0", "192.0.2.10:80"):
        with pytest.raises(ValidationError, match="Use an IPv4 address"):
            parse_sources(text)


def test_a_certificate_is_used_only_for_its_accounts() -> None:
    assert Egress(certificate="pair").certificate_for(7) == "pair"
    assert Egress(certificate="pair", certificate_accounts=frozenset({7})).certificate_for(7) == "pair"
    assert Egress(certificate="pair", certificate_accounts=frozenset({7})).certificate_for(8) is None
    assert Egress(certificate="pair", certificate_accounts=frozenset()).certificate_for(None) is None
