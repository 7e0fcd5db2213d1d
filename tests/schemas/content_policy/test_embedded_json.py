"""JSON within a text: the minimum length of the values of forbidden names, cookie jars, and order records."""

from typing import Final

import pytest

from schemas.content_policy.detectors.embedded_json import COOKIE_FIELDS, has_forbidden_names, has_order_record

VALUES: Final = [
    # Columns: the value of a forbidden name; whether it counts.
    ('"ab"', True),
    ('"a"', False),
    ('" a "', False),
    ('"Passwort"', False),
    ('"<token>"', False),
    ('"string"', False),
    ('"^3.0.5"', False),
    ('"3.0.5 or so"', True),
    ("123", True),
    ("-123", True),
    ("12", False),
    ("true", False),
    ("null", False),
    ("[]", False),
    ("{}", False),
    ('["ab"]', True),
    ('["<token>"]', False),
    ('["Passwort", "abc"]', True),
    ("[123]", True),
    ("[12]", False),
    ('{"value": "abc"}', True),
    ('{"type": "string"}', False),
    ('{}, "other": "abc"', False),
    ('[], "other": {"name": "abc"}', False),
    ('[ ], "other": "abc"', False),
    ('["<token>"], "other": {"name": "abc"}', True),  # up to the next closing brace
    (f'[{" " * 239}"abc"]', False),  # beyond the distance that is searched
    (f'[{" " * 15}"abc"]', True),
]


@pytest.mark.parametrize(("value", "holds"), VALUES)
def test_a_forbidden_name_counts_with_a_value(value: str, holds: bool) -> None:
    assert has_forbidden_names(f'{{"api_key": {value}}}') is holds
    assert has_forbidden_names(f'{{"user": {{"api_key": {value}') is holds
    assert not has_forbidden_names(f'{{"api_kind": {value}}}')


def test_a_value_in_another_joined_text_does_not_count_for_a_name() -> None:
    assert not has_forbidden_names('{"api_key": [\0"abc"]}')


@pytest.mark.parametrize("name", ["domain", "httpOnly", "hostOnly", "expirationDate", "SameSite", "storeId"])
def test_a_name_and_a_value_with_a_field_of_a_cookie_are_a_cookie(name: str) -> None:
    assert has_forbidden_names(f'{{"name": "sid", "value": "8f14e45f", "{name}": 1}}')
    assert not has_forbidden_names(f'{{"name": "sid", "{name}": 1}}')
    assert not has_forbidden_names(f'{{"value": "8f14e45f", "{name}": 1}}')
    assert not has_forbidden_names(f'{{"name": "sid", "value": "8f14e45f", "my{name}": 1}}')
    assert not has_forbidden_names(f'{{"name": "sid", "value": "8f14e45f", "of": {{"{name}": 1}}}}')
    assert not has_forbidden_names(f'[{{"name": "sid", "value": "8f14e45f"}}, {{"{name}": 1}}]')
    assert not has_forbidden_names(f'{{"name": "sid", "value": "8f14e45f"\0"{name}": 1}}')
    assert name.lower() in COOKIE_FIELDS


ORDERS: Final = [
    ('{"email": "ann@shop.example", "total": 5}', True),
    ('{"email": "ann@shop.example", "total": "12.50"}', True),
    ('{"email": "ann@shop.example"}, {"total": 5}', False),
    ('{"email": "ann@shop.example", "of": {"total": 5}}', False),
    ('{"of": {"total": 5}, "email": "ann@shop.example"}', False),
    ('{"of": {"a": {}}, "email": "ann@shop.example", "total": 5}', True),
    ('{"email": "ann@shop.example"\0"total": 5}', False),
    ('"email": "ann@shop.example", "total": 5}', True),  # cut off at the start
    ('}} {"email": "ann@shop.example", "total": 5', True),
    ('{"email": "E-Mail", "total": 5}', False),
    ('{"email": ["ann@shop.example"], "total": 5}', False),
    ('{"email": "ann@shop.example", "total": null}', False),
    ('{"email": "ann@shop.example", "total": [5]}', False),
    ('{"email": "ann@shop.example", "address": {"street": "x"}}', True),
    ('{"email": "ann@shop.example", "address": ["High Street 1"]}', True),
    ('{"email": "ann@shop.example", "address": {}}', False),
    ('{"email": "ann@shop.example", "address": {"type": "string"}}', False),
    ('{"email": "ann@shop.example", "items": [{"sku": "A-1"}]}', True),
    ('{"email": "ann@shop.example", "line_items": [{"title": "Tee", "quantity": 2}]}', True),
    ('{"order_items": [{"name": "Tee", "qty": 1}], "total": "12.50"}', True),
    ('{"email": "ann@shop.example", "items": [{"title": "A"}]}', False),
    ('{"email": "ann@shop.example", "sku": "A-1"}', False),
    ('{"items": [{"sku": "A-1", "email": "ann@shop.example"}]}', False),
    ('{"customer": {"name": "Ann Example", "email": "ann@shop.example"}}', True),
    ('{"author": {"name": "Ann Example", "email": "ann@shop.example"}}', False),
    ('{"customer": {"name": "Ann Example"}, "email": "ann@shop.example"}', True),
    ('{"total": "12.50", "billing": {"email": "ann@shop.example"}, "status": "done"}', True),
    ('{"customer": {"name": "Ann Example"}, "of": {"email": "ann@shop.example"}}', False),
    ('{"author": {"name": "Ann Example"}, "email": "ann@shop.example"}', False),
    ('{"customer": {"name": "name"}, "email": "ann@shop.example"}', False),
    ('{"@type": "Shop", "customer": {"name": "Ann Example"}, "email": "ann@shop.example"}', False),
    ('{"@type": "LocalBusiness", "email": "ann@shop.example", "total": 5}', False),
    ('{"@type": "Order", "email": "ann@shop.example", "total": 5}', True),
    ('{"@type": 7, "email": "ann@shop.example", "total": 5}', True),
    ('{"of": {"@type": "Shop"}, "email": "ann@shop.example", "total": 5}', True),
]


@pytest.mark.parametrize(("text", "is_order"), ORDERS)
def test_an_object_with_two_parts_of_an_order_is_an_order_record(text: str, is_order: bool) -> None:
    assert has_order_record(text) is is_order
    assert has_order_record(f"The answer was {text}") is is_order
