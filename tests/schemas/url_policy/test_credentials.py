"""Credentials in URLs: parameters are found in any spelling, and their values are masked, like user names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.url_policy.credentials import has_credential, masked

HOOK = "https://tracker.example.com/hook"

NAMES = [
    *("token", "key", "api_key", "apikey", "auth", "sig", "signature", "secret", "password", "access_token"),
    *("TOKEN", "Api-Key", "apiKey", "APIKey", "api.key", "api_key_2", "accessToken", "ACCESS_TOKEN", "client-secret"),
    *("X-Amz-Signature", "X-Amz-Credential", "webhook_sig", "hook[token]", "jwt", "pwd", "user_pass", "subscription-key"),
    *("t%6Fken", "%74%6f%6b%65%6e", "t%256Fken", "api%5Fkey", "api+key", "%EF%BD%94oken"),
]

HARMLESS = [
    *("", "?", "?project=7&page=2", "?monkey=1", "?keyword=a", "?sort_key=name", "?ticket_key=SHOP", "?design=new"),
    *("?signal=1", "?assignee=jane", "?author=jane", "?authority=a", "?tokenizer=a", "?compass=n", "?passage=1"),
    *("?secretary=b", "?v=token", "?kind=password", "/token/secret", "/api-key/abc", "?=token", "?a=1;b=2"),
    "?next=https%3A%2F%2Fa.example%2F",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_that_is_named_like_a_credential_is_found_and_masked(name: str) -> None:
    for before in ("?", "?a=1&", "?a=1;", ";"):
        url = f"{HOOK}{before}{name}=s3cr3t-value&z=1"
        assert has_credential(url), url
        assert "s3cr3t-value" not in masked(url)
        assert masked(url).startswith(f"{HOOK}{before}")
        assert masked(url).endswith(f"{name}=***&z=1")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://bob:hunter2@t.example/a?b=1", "https://***@t.example/a?b=1"),
        (" https://bob:hunter2@@t.example", " https://***@t.example"),
        ("//bob@t.example/x", "//***@t.example/x"),
        ("https://t.example/a@b?c=d@e", "https://t.example/a@b?c=d@e"),
    ],
)
def test_a_user_before_the_host_is_masked(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("query", HARMLESS)
def test_similar_names_that_are_no_credentials_pass(query: str) -> None:
    assert not has_credential(HOOK + query)
    assert masked(HOOK + query) == HOOK + query


@pytest.mark.parametrize("query", ["?token", "?token=", "?a=1&token"])
def test_a_credential_without_a_value_is_found_by_its_name(query: str) -> None:
    assert has_credential(HOOK + query)


@pytest.mark.parametrize("query", ["?next=https://a.example/?token=abc", "?next=https%3A%2F%2Fa.example%2F%3Ftoken%3Dabc"])
def test_a_credential_in_a_url_within_the_url_is_found_and_masked(query: str) -> None:
    assert has_credential(HOOK + query)
    assert "abc" not in masked(HOOK + query)


@pytest.mark.parametrize("part", ["?a=", "?a=%3F", "&a", "?a=1&b=?c="])
def test_masking_nested_urls_is_idempotent_and_too_deep_ones_count_as_credentials(part: str) -> None:
    url = HOOK + part * (2_000 // len(part))
    assert masked(masked(url)) == masked(url)
    assert has_credential(HOOK + "?a=" * 500)


@given(st.text("?&;=%+tokenkey_-.A0", max_size=60))
def test_no_credential_is_found_after_values_are_masked(query: str) -> None:
    once = masked(f"{HOOK}?{query}")
    assert masked(once) == once
