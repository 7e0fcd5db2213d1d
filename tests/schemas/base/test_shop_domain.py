"""A shop's domain has exactly one normalized form, and texts that are not domains have none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base.shop_domain import MAX_HOST, normalized_shop_domain

LONGEST = ".".join(["a" * 63] * 3 + ["b" * 61])


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("shop.example", "shop.example"),
        ("Shop.EXAMPLE", "shop.example"),
        ("shop.example.", "shop.example"),  # a trailing dot does not change the name
        ("my-store.shops.example", "my-store.shops.example"),
        ("1st.example", "1st.example"),
        ("r3---sn.example", "r3---sn.example"),  # hyphens in third and fourth place, as in existing domains
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("店舗。example", "xn--hxt330f.example"),  # the ideographic full stop counts as a dot
        ("\uff53\uff48\uff4f\uff50.example", "shop.example"),  # fullwidth letters count as letters
        (LONGEST, LONGEST),  # 253 characters
        (f"{LONGEST}.", LONGEST),
    ],
)
def test_a_shop_domain_has_one_form(written: str, normal: str) -> None:
    assert normalized_shop_domain(written) == normal


@pytest.mark.parametrize(
    "written",
    [
        "",
        ".",
        "..",
        "shop",  # one label
        "shop.",
        ".example",
        "shop..example",
        "shop.example..",
        "https://shop.example",  # a URL
        "//shop.example",
        "shop.example/",
        "shop.example/cart",
        "shop.example?x",
        "shop.example#x",
        "shop.example:443",  # a port
        "me@shop.example",  # userinfo
        " shop.example",
        "shop.example\n",
        "shop .example",
        "shop\t.example",
        "shop\x7f.example",
        "sh_op.example",
        "*.example",
        "-shop.example",
        "shop-.example",
        "shop.example%00",
        "shop\\.example",
        f"{'a' * 64}.example",  # a label of 64 characters
        f"{LONGEST}a",  # 254 characters
        "127.0.0.1",
        "shop.1",
        "shop.0x7f",
        "\uff11\uff12\uff17.0.0.1",  # fullwidth digits count as digits
        "[::1]",
        "xn--.example",
        "xn--ls8h.example",  # Punycode of an emoji, which IDNA does not allow
        "☃/.example",
        "a\u200bb.\u200b",
        "\u202eshop.example",
        "ü" * 300 + ".example",
    ],
)
def test_other_texts_have_no_normalized_form(written: str) -> None:
    assert normalized_shop_domain(written) is None


@given(st.text(max_size=MAX_HOST + 10) | st.text("a.-xn:/@ü。\uff11", max_size=20))
def test_any_text_has_one_normalized_shop_domain_or_none(text: str) -> None:
    normal = normalized_shop_domain(text)
    assert normal is None or (normalized_shop_domain(normal) == normal and len(normal) <= MAX_HOST)
