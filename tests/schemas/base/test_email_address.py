"""Which texts are accepted as one email address."""

import pytest

from schemas.base.email_address import is_email_address


@pytest.mark.parametrize(
    "text",
    [
        "ada@example.com",
        "admin@localhost",
        "o'brien+risk.relay@mail.example.co.uk",
        "1@2.example",
        "j\u00f6rg@b\u00fccher.example",
        "a@xn--bcher-kva.example",
        f"{'a' * 64}@example.com",
    ],
)
def test_a_valid_email_address_is_accepted(text: str) -> None:
    assert is_email_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ada",
        "@example.com",
        "ada@",
        "ada@@example.com",
        "ada@example..com",
        "ada..b@example.com",
        ".ada@example.com",
        "ada.@example.com",
        "ada@-example.com",
        "ada@example-.com",
        "ada@example.com.",
        "ada@example.com\n",
        " ada@example.com",
        "ada@exam ple.com",
        "ada@example.com,bob@example.com",
        "Ada <ada@example.com>",
        "mailto:ada@example.com",
        "ada@[192.0.2.1]",
        "a\u202eda@example.com",
        "ada\0@example.com",
        f"{'a' * 65}@example.com",
        f"ada@{'.'.join(['label'] * 50)}",
    ],
)
def test_text_that_is_no_email_address_is_rejected(text: str) -> None:
    assert not is_email_address(text)
