"""REDIS_URL: every form is read as intended, and an invalid URL is rejected without repeating any part of it."""

import pytest
from marshmallow import ValidationError

from schemas.settings.redis_url import RedisUrl, parse_redis_url


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("redis://cache", RedisUrl((("cache", 6379),))),
        ("redis://cache/", RedisUrl((("cache", 6379),))),
        ("redis://10.0.0.7:7000/2", RedisUrl((("10.0.0.7", 7000),), database=2)),
        ("redis://[2001:db8::7]:7000", RedisUrl((("2001:db8::7", 7000),))),
        ("redis://cache?db=3", RedisUrl((("cache", 6379),), database=3)),
        # a password alone, and a user with a password; both percent-encoded
        ("redis://:s3cret@cache", RedisUrl((("cache", 6379),), password="s3cret")),
        ("redis://us%3Aer:p%40%2F%25@cache", RedisUrl((("cache", 6379),), username="us:er", password="p@/%")),
        # the last @ separates them, as in other parsers
        ("redis://:a@b@cache", RedisUrl((("cache", 6379),), password="a@b")),
        # a bracket in a password does not begin an IPv6 address
        ("redis://:a[b@cache", RedisUrl((("cache", 6379),), password="a[b")),
        # a plus sign is not a space
        ("redis://:a+b@cache", RedisUrl((("cache", 6379),), password="a+b")),
        ("rediss://cache:6380/1", RedisUrl((("cache", 6380),), database=1, is_tls=True)),
        (
            "rediss://cache?ssl_ca_certs=/etc/ca%20s.pem",
            RedisUrl((("cache", 6379),), is_tls=True, tls_files={"ssl_ca_certs": "/etc/ca s.pem"}),
        ),
        ("unix:///run/my%20redis.sock", RedisUrl(socket="/run/my redis.sock")),
        (
            "unix://u:s3cret@/run/redis.sock?db=4",
            RedisUrl(socket="/run/redis.sock", database=4, username="u", password="s3cret"),
        ),
        # Sentinels: the port and the database may be omitted
        ("redis+sentinel://a:1,b,[::1]:3/main", RedisUrl((("a", 1), ("b", 26379), ("::1", 3)), service="main")),
        (
            "redis+sentinel://u:s3cret@a,b/main/5",
            RedisUrl((("a", 26379), ("b", 26379)), service="main", database=5, username="u", password="s3cret"),
        ),
        ("rediss+sentinel://a/main", RedisUrl((("a", 26379),), service="main", is_tls=True)),
    ],
)
def test_each_form_of_url_is_read_as_intended(text: str, meant: RedisUrl) -> None:
    assert parse_redis_url(text) == meant


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("http://:hunter2@cache", "starts with"),
        ("redis:hunter2@cache", "starts with"),
        ("hunter2", "starts with"),
        # in a password, these characters must be percent-encoded
        ("redis://:hunt/er2@cache", "%2F"),
        ("redis://:hunt?er2@cache", "%3F"),
        ("redis://:99?hunter2=1@cache", "%3F"),
        ("redis://:hunt#er2@cache", "%23"),
        ("redis://hunter2@cache", "needs a password"),
        ("redis://", "HOST"),
        ("redis://:hunter2@", "HOST"),
        ("redis://:6379", "HOST"),
        ("redis://cache:hunter2", "HOST"),
        ("redis://cache:0", "HOST"),
        ("redis://cache:65536", "HOST"),
        ("redis://cache:-1", "HOST"),
        ("redis://my cache", "HOST"),
        ("redis://a,b", "Sentinels"),
        ("redis://cache/hunter2", "number"),
        ("redis://cache/-1", "number"),
        ("redis://cache/1/2", "Nothing follows"),
        ("redis://cache/1?db=2", "once"),
        ("redis://cache?db=1&db=2", "once each"),
        ("redis://cache?db=hunter2", "number"),
        # a URL must not change timeouts or disable certificate verification
        ("redis://cache?socket_timeout=60", "once each: db"),
        ("redis://cache?password=hunter2", "once each: db"),
        ("redis://cache?ssl_ca_certs=/etc/ca.pem", "once each: db"),
        ("rediss://cache?ssl_cert_reqs=none", "ssl_ca_certs"),
        ("unix://", "whole path"),
        ("unix:///", "whole path"),
        ("unix://relative/path", "whole path"),
        ("redis+sentinel://a:26379", "Name the service"),
        ("redis+sentinel://a:26379/", "Name the service"),
        ("redis+sentinel://a,,b/main", "HOST"),
        ("redis+sentinel://a/main/hunter2", "number"),
        ("redis+sentinel://a/main/1/2", "Nothing follows"),
    ],
)
def test_an_invalid_url_is_rejected_without_being_quoted(text: str, reported: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_redis_url(text)
    assert reported in str(refused.value)
    assert "hunt" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_the_text_of_a_redis_url_shows_no_password() -> None:
    assert "hunter2" not in repr(parse_redis_url("redis://someone:hunter2@cache"))
    assert "someone" not in repr(parse_redis_url("redis://someone:hunter2@cache"))
