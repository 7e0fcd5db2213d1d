"""Header names and values that a target may add, and secrets of Standard Webhooks."""

from base64 import b64encode

import pytest

from schemas.targets.webhook_options import credentials_of, header_name_fault, header_value_fault, standard_key


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "x-gitlab-token", "Cookie", "X-Services", "Contents", "a" * 64]
)
def test_ordinary_header_names_are_allowed(name: str) -> None:
    assert header_name_fault(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Host",
            "Content-Type",
            "content-length",
            "Content-Encoding",
            "User-Agent",
            "X-Service-Signature",
            "X-SERVICE-new",
        ),
        *("X-Request-Id", "Idempotency-Key", "webhook-id", "Webhook-Signature", "Accept-Encoding", "Transfer-Encoding"),
        *("Connection", "Keep-Alive", "Proxy-Authorization", "TE", "Trailer", "Upgrade", "Expect", "ce-id"),
    ],
)
def test_names_that_requests_or_connections_use_are_reserved(name: str) -> None:
    assert header_name_fault(name) == "header_reserved"


@pytest.mark.parametrize(
    "name", ["", "X Api", "X-Api:", "X-Api\r\nHost", "Größe", "X-\N{KELVIN SIGN}ey", "a" * 65, "X-Api\n"]
)
def test_an_invalid_header_name_is_rejected(name: str) -> None:
    assert header_name_fault(name) == "invalid_header_name"


@pytest.mark.parametrize("value", ["7", "Bearer abc", "Basic dXNlcjpwYXNz", 'a, b; c="d"', "x" * 4096])
def test_one_line_of_printable_ascii_is_a_valid_header_value(value: str) -> None:
    assert header_value_fault(value) is None


@pytest.mark.parametrize("value", ["", " ", " x", "x ", "a\nb", "a\r", "tab\tbed", "é", "\x7f", "x" * 4097, "x\n"])
def test_other_texts_are_invalid_header_values(value: str) -> None:
    assert header_value_fault(value) == "invalid_header_value"


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_standard_secret_holds_24_to_64_bytes(size: int) -> None:
    key = bytes(range(size))
    assert standard_key(f"whsec_{b64encode(key).decode()}") == key


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        b64encode(bytes(32)).decode(),
        f"whsec_{b64encode(bytes(23)).decode()}",
        f"whsec_{b64encode(bytes(65)).decode()}",
        f"whsec_{b64encode(bytes(32)).decode()[:-1]}",
        f"whsec_{b64encode(bytes(24)).decode()}\n",
        "whsec_" + "é" * 32,
        "whsec_" + "-_" * 16,
        f"WHSEC_{b64encode(bytes(24)).decode()}",
    ],
)
def test_invalid_standard_secrets_are_rejected(secret: str) -> None:
    assert standard_key(secret) is None


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        ("key-1", ("key-1",)),
        ("Bearer abc", ("Bearer abc", "abc")),
        ("Basic dXNlcjpwYXNz", ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz", "user:pass", "pass")),
        ("basic !", ("basic !", "!")),
        ("Basic /w==", ("Basic /w==", "/w==")),
    ],
)
def test_every_part_of_a_value_that_authenticates_is_secret(value: str, secrets: tuple[str, ...]) -> None:
    assert tuple(part for part in credentials_of(value) if part) == secrets
