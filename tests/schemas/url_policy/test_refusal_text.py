"""Messages about rejected URLs name what is allowed and the setting that decides this."""

import pytest

from schemas.url_policy.policy import NEVER_ALLOWED, RefusalReason, TargetPolicy, parse_ports
from schemas.url_policy.refusal_text import refusal_text

POLICY = TargetPolicy(allowed_ports=parse_ports("443,8000-8999"))
_LOOKUPS = ("dns_timeout", "dns_failed", "dns_not_found", "dns_overloaded")


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        (RefusalReason.SCHEME_NOT_ALLOWED, ("https", "TARGET_ALLOW_HTTP")),
        (RefusalReason.PORT_NOT_ALLOWED, ("443, 8000-8999", "TARGET_ALLOWED_PORTS")),
        (RefusalReason.ADDRESS_PRIVATE, ("TARGET_ALLOWED_NETWORKS",)),
        (RefusalReason.ADDRESS_LOOPBACK, ("TARGET_ALLOWED_NETWORKS",)),
        (RefusalReason.SINGLE_LABEL, ("public DNS", "IP address")),
        (RefusalReason.LOCAL_SUFFIX, ("public DNS", "IP address")),
        ("dns_timeout", ("DNS",)),
        (RefusalReason.SCHEME_MISSING, ("https://",)),
        (RefusalReason.USERINFO, ("user", "password")),
        (RefusalReason.FRAGMENT, ("#",)),
        (RefusalReason.WHITESPACE, ("space",)),
        (RefusalReason.PORT_INVALID, ("65535",)),
        (RefusalReason.HOST_NUMERIC, ("host",)),
    ],
)
def test_a_message_names_the_allowed_values_and_the_setting(reason: str, named: tuple[str, ...]) -> None:
    text = refusal_text(reason, POLICY)

    assert all(each in text for each in named)


@pytest.mark.parametrize("reason", sorted(NEVER_ALLOWED))
def test_the_message_about_an_address_that_no_setting_allows_names_no_setting(reason: RefusalReason) -> None:
    assert "TARGET_" not in refusal_text(reason, POLICY)


def test_allowed_http_is_not_suggested_again() -> None:
    assert "TARGET_ALLOW_HTTP" not in refusal_text(RefusalReason.SCHEME_NOT_ALLOWED, TargetPolicy(allow_http=True))


def test_every_reason_has_a_sentence() -> None:
    """The console and the commands show only the sentence, so it must not refer to the code."""
    texts = [refusal_text(reason, POLICY) for reason in (*RefusalReason, *_LOOKUPS)]
    assert all(text.endswith(".") and "`code`" not in text for text in texts)
