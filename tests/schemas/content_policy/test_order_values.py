"""Order records: which values count as parts of an order, and objects that only mention the fields."""

from typing import Any, Final

import pytest

from schemas.content_policy.detectors.embedded_json import has_order_record
from schemas.content_policy.detectors.order_values import is_order_record

MAIL: Final = "a@b.example"


@pytest.mark.parametrize("name", ["price", "quantity", "SKU", "productId"])
def test_a_list_of_purchased_items_counts_as_line_items(name: str) -> None:
    assert is_order_record({"email": MAIL, "items": [{name: 1}]})


@pytest.mark.parametrize("name", ["customer", "Buyer", "purchaser", "consignee", "billing"])
def test_the_fields_of_a_customer_count_as_those_of_its_order(name: str) -> None:
    assert is_order_record({name: {"name": "Ann", "email": MAIL}})
    assert not is_order_record({name: {"name": "required", "email": "required"}})
    assert not is_order_record({name: {"name": True, "email": 3}})


def test_a_single_letter_counts_as_the_name_of_a_customer() -> None:
    assert is_order_record({"email": MAIL, "customer_name": "A"})
    assert not is_order_record({"email": MAIL, "customer_name": "?"})


@pytest.mark.parametrize("name", ["client", "recipient", "shipping", "delivery", "author"])
def test_the_fields_of_an_object_that_need_not_be_a_person_count_for_nothing(name: str) -> None:
    assert not is_order_record({name: {"name": "Ann", "email": MAIL}})


@pytest.mark.parametrize("held", [None, "", [], {}])
def test_an_empty_field_is_no_part_of_an_order(held: object) -> None:
    assert not is_order_record({"email": MAIL, "total": held})
    assert not is_order_record({"email": held, "total": 5})
    assert not is_order_record({"customer": {"name": "Ann", "email": held}})


@pytest.mark.parametrize("items", [{"price": 1}, [], ["price"], [{}], [[{"price": 1}]], "price"])
def test_only_a_list_of_objects_is_line_items(items: object) -> None:
    assert not is_order_record({"email": MAIL, "items": items})


VALUES: Final[list[tuple[str, Any, bool]]] = [
    # Columns: the name of a field; its value; whether the value makes it a part of an order.
    ("address", "1 High Street", True),
    ("address", " 1 High Street ", True),
    ("address", "High Street", True),
    ("address", "required", False),
    ("address", "input#address", False),
    ("address", "192.0.2.1", False),
    ("address", False, False),
    ("address", True, False),
    ("address", 2, False),
    ("address", ["1 High Street"], True),
    ("address", ["is required"], False),
    ("address", {"street": "High Street"}, True),
    ("address", {"zip": 10115}, True),
    ("address", [{"street": "High Street"}], True),
    ("address", {"required": True, "pattern": None}, False),
    ("address", {"type": "string", "maxLength": 100}, False),
    ("address", {"type": ["string", "null"], "maxLength": 100}, False),
    ("address", {"type": "home", "street": "High Street"}, True),
    ("customer_name", "Ann", True),
    ("customer_name", "#name-2", False),
    ("customer_name", {"first": "Ann"}, True),
    ("customer_name", 7, False),
    ("total", 0, True),
    ("total", 12.5, True),
    ("total", "12.50 EUR", True),
    ("total", "5", True),
    ("total", "0.00", True),
    ("total", "<total>", False),
    ("total", {"amount": 12.5, "currency": "EUR"}, True),
    ("total", True, False),
    ("total", "Summe", False),
    ("total", {"type": "number", "minimum": 0}, False),
]


@pytest.mark.parametrize(("name", "value", "is_part"), VALUES)
def test_the_value_decides_whether_a_field_is_a_part_of_an_order(name: str, value: Any, is_part: bool) -> None:
    assert is_order_record({"email": MAIL, name: value}) is is_part
    # Values of a form, a count or a rule do not make the email address a part either.
    for other in ("required", "input#email", False, 3, ["is required"], {"type": "string"}):
        assert not is_order_record({"email": other, name: value})


@pytest.mark.parametrize("mail", [MAIL, f"Ann Example <{MAIL}>", [MAIL], {"value": MAIL}])
def test_an_email_address_is_found_behind_a_name_in_a_list_and_in_an_object(mail: Any) -> None:
    assert is_order_record({"email": mail, "total": 5})


@pytest.mark.parametrize(
    "text",
    ['{"email": "required", "address": "required"}', '{"email": false, "address": false}', '{"email": 3, "address": 2}'],
)
def test_json_within_a_text_is_checked_equally(text: str) -> None:
    assert not has_order_record(text)
