"""Field names: which are forbidden, and which are parts of an order record."""

from typing import Final

import pytest

from schemas.content_policy.field_names import FORBIDDEN_NAMES, OrderPart, describes_page, is_item_field, meaning

FORBIDDEN: Final = (
    "password passwd passphrase secret client_secret api_key access_token refresh_token auth_token private_key credentials"
    " authorization cookie cookies set_cookie session_id local_storage session_storage card_number cvv cvc card_expiry iban"
    " full_html raw_html page_html html_export database_dump sql_dump order_items line_items billing_address"
    " shipping_address"
)
CUSTOMERS: Final = "customer buyer client purchaser recipient consignee billing shipping delivery"
#: `*` stands for each word in CUSTOMERS.
PARTS: Final = {
    OrderPart.NAME: "*_name *_full_name *_first_name *_last_name",
    OrderPart.EMAIL: "email email_address e_mail contact_email *_email",
    OrderPart.ADDRESS: "address address_1 address_line_1 street street_address postal_address home_address *_address",
    OrderPart.TOTAL: "total total_price total_amount total_paid order_total grand_total cart_total subtotal subtotal_price"
    " amount_paid amount_due order_amount invoice_total current_total_price",
    OrderPart.LINE_ITEMS: "line_items order_items items lines products ordered_items cart_items purchased_items order_lines",
}
NAMES_OF_PARTS: Final = [
    (part, name.replace("*", customer))
    for part, names in PARTS.items()
    for name in names.split()
    for customer in (CUSTOMERS.split() if "*" in name else [""])
]


def test_exactly_these_names_are_forbidden() -> None:
    assert {*FORBIDDEN_NAMES} == {*FORBIDDEN.split()}


@pytest.mark.parametrize(("part", "name"), NAMES_OF_PARTS)
def test_a_name_of_a_part_of_an_order_is_known_in_every_spelling(part: OrderPart, name: str) -> None:
    pascal = "".join(word.title() for word in name.split("_"))
    spellings = [name, name.upper(), name.replace("_", "-"), pascal, pascal[0].lower() + pascal[1:]]
    assert {spelling: meaning(spelling).part for spelling in spellings} == dict.fromkeys(spellings, part)


@pytest.mark.parametrize("name", ["name", "full_name", "supplier_name", "total_count", "emails", "item", "streets", ""])
def test_another_name_is_no_part_of_an_order(name: str) -> None:
    assert meaning(name) == (None, None, False)


@pytest.mark.parametrize(
    "name", ["price", "unit_price", "quantity", "qty", "SKU", "productId", "variant_id", "line-price", "line_total"]
)
def test_a_field_of_a_purchased_item_makes_line_items(name: str) -> None:
    assert is_item_field(name)
    assert not is_item_field(f"{name}_label")


@pytest.mark.parametrize("name", ["customer", "Buyer", "purchaser", "consignee", "billing"])
def test_a_customer_is_known_by_the_name_of_its_object(name: str) -> None:
    assert meaning(name).is_customer
    assert not meaning(f"{name}_group").is_customer


@pytest.mark.parametrize("name", ["client", "recipient", "shipping", "delivery", "author"])
def test_an_object_that_need_not_be_a_person_is_no_customer(name: str) -> None:
    assert not meaning(name).is_customer


@pytest.mark.parametrize(
    ("kind", "is_of_page"),
    [("Order", False), ("INVOICE", False), ("ParcelDelivery", False), ("Product", True), ("", True), (["Order"], True)],
)
def test_structured_data_of_a_page_is_known_by_its_type(kind: object, is_of_page: bool) -> None:
    assert describes_page(kind) is is_of_page


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        (f"{'x' * 100}_customer_password", "password"),
        ("a_b_c_d_client_secret", "client_secret"),
        ("anOAuthAccessToken", "access_token"),
        ("HTTPCookie", "cookie"),
        (f"secret_{'x' * 80}", None),
    ],
)
def test_the_last_words_of_a_long_name_decide(name: str, forbidden: str | None) -> None:
    assert meaning(name).forbidden == forbidden
