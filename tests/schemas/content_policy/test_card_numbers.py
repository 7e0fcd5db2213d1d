"""Card numbers: the number ranges of issuers with their lengths, and the text around the digits."""

from typing import Final

import pytest

from schemas.content_policy.detectors.card_numbers import as_text, found_in

#: The first and last six-digit prefix of an issuer, and the lengths of its numbers.
RANGES: Final = [
    (220000, 220499, (16, 19)),
    (222100, 272099, (16,)),
    (300000, 305999, (14, 16, 19)),
    (309500, 309599, (14, 16, 19)),
    (340000, 349999, (15,)),
    (352800, 358999, (16, 19)),
    (360000, 369999, (14, 16, 19)),
    (370000, 379999, (15,)),
    (380000, 399999, (14, 16, 19)),
    (400000, 499999, (16, 19)),
    (501800, 501999, (16, 18, 19)),
    (502000, 502099, (16, 18, 19)),
    (503800, 503899, (16, 18, 19)),
    (504175, 504175, (16,)),
    (506099, 506198, (16, 19)),
    (506699, 506778, (16,)),
    (507865, 507964, (16, 19)),
    (508500, 508999, (16,)),
    (509000, 509999, (16,)),
    (510000, 559999, (16,)),
    (589300, 589399, (16, 18, 19)),
    (601100, 601199, (16, 19)),
    (606282, 606282, (16, 19)),
    (606985, 608500, (16,)),
    (620000, 629999, (16, 17, 18, 19)),
    (630400, 630499, (16, 18, 19)),
    (636297, 636297, (16,)),
    (636368, 636368, (16,)),
    (637000, 637999, (16,)),
    (644000, 659999, (16, 19)),
    (675900, 675999, (16, 18, 19)),
    (676100, 676399, (16, 18, 19)),
    (979200, 979299, (16,)),
]


def _number(prefix: int, length: int) -> str:
    """Return a number with this prefix and length and a check digit computed by the Luhn algorithm."""
    body = f"{prefix}{'0' * (length - 7)}"
    doubled = (int(digit) * (2 - place % 2) for place, digit in enumerate(reversed(body)))
    return f"{body}{-sum(each // 10 + each % 10 for each in doubled) % 10}"


@pytest.mark.parametrize(
    ("text", "is_card"),
    [
        ("card number 4111-1111-\n1111-1111", True),
        ("4111 1111\n1111 1111", True),
        ("> 4111 1111 1111\r\n> 1111, valid", True),
        ("4111\n1111 1111 1111", True),
        ("4111-1111\n1111-1111", True),
        ("4111 1111\n1111 1112", False),
        ("4111\n1111\n1111\n1111", False),
        ("Prices\n4111 1111\n\n1111 1111", False),
        ("4111 1111 1111 1112\n1111 1111", False),
        ("%B4111111111111111^DOE/JOHN^2512101", True),
        ("%B4111111111111112^DOE/JOHN^2512101", False),
    ],
)
def test_a_card_number_is_found_across_lines_and_in_track_data(text: str, is_card: bool) -> None:
    assert found_in(text) == is_card


@pytest.mark.parametrize(("first", "last", "lengths"), RANGES)
def test_numbers_just_outside_an_issuers_range_are_not_found(first: int, last: int, lengths: tuple[int, ...]) -> None:
    for prefix in (first - 1, first, last, last + 1):
        expected = {length for low, high, each in RANGES if low <= prefix <= high for length in each}
        found = {length for length in range(13, 21) if found_in(f"Card: {_number(prefix, length)}")}
        assert found == expected, prefix


#: Columns: a text; whether it contains a card number. 30112345678996 also has a valid barcode check digit.
AROUND: Final = [
    ("36227206271667", True),
    ("30112345678996", False),
    ("card 30112345678996", True),
    ("Paid with 38520000023237, thanks", True),
    ("order 38520000023237", False),
    ("invoice no. 38520000023237", False),
    ("gtin: 38520000023237", False),
    ("Bestellnummer 38520000023237", False),
    ("Kundennr. 38520000023237", False),
    ("/38520000023237", False),
    ("38520000023237/a", False),
    ("38520000023237.pdf", False),
    ("38520000023237.", True),
    ("38520000023237. Next", True),
    ("order 38520000023237 of the card 38520000023237", True),
    # A label that is too far away belongs to something else.
    (f"order {'x ' * 17}38520000023237", True),
    ("38520000023237 Diners", True),
    ("diners: order 38520000023237", True),
    ("6205500000000000004", True),
    ("page 6205500000000000004", False),
    # 15 or 16 digits without separators need no label, whatever precedes them.
    ("order 4111111111111111", True),
    ("order 378282246310005", True),
    ("+4111111111111111", True),
    ("+378282246310005", False),
    # In a row of a table or a list, commas and digits are next to a number.
    ("1001,4111111111111111,12/27", True),
    ("4111111111111111,12/27,123", True),
    ("[1001,4111111111111111,2027]", True),
    ("VALUES (7,4111111111111111,4)", True),
    ("7,378282246310005,9", True),
    ("10,4111111111111111", True),
    ("1,0,4111111111111111", True),
    ("7,4111-1111-1111-1111", True),
    ("1,4111 1111 1111 1111,12/27", True),
    ("1.4111 1111 1111 1111", True),
    ("4111 1111 1111 1111.50", True),
    ("7,36227206271667", False),
    ("36227206271667,7", False),
    ("card: 7,36227206271667,7", True),
    # Digits of a fraction, and groups of a longer number.
    ("0.4111111111111111", False),
    ("1.4111111111111111", False),
    ("0,4111111111111111", False),
    ("-0,4111111111111111 mm", False),
    ("4111111111111111.5", False),
    ("1.4111.1111.1111.1111", False),
    ("4111.1111.1111.1111.5", False),
    ("4111.1111.1111.1111. 5", True),
    # Groups of an IBAN, and a number with a group before it.
    ("DE44 4111 1111 1111 1111", False),
    ("1111 4111 1111 1111 1111", False),
    ("x 4111 1111 1111 1111", True),
    # 16 digits and a three-digit security code, or one number with 19 digits.
    ("4111 1111 1111 1111 123", True),
    ("4111 1111 1111 1111 1234", True),
    ("4111 1111 1111 1112 123", False),
    ("4000 0000 0000 0000 006", True),
    ("6000 0000 0000 0000", False),
]


@pytest.mark.parametrize(("text", "is_card"), AROUND)
def test_the_text_around_a_number_decides_if_its_length_does_not(text: str, is_card: bool) -> None:
    assert found_in(text) is is_card


@pytest.mark.parametrize(
    ("number", "digits"),
    [
        (10**14 - 1, ()),
        (10**14, ("100000000000000",)),
        (10**16 - 1, ("9999999999999999",)),
        (10**16, ()),
        (4111111111111111.0, ("4111111111111111",)),
        (411111111111111.5, ()),
        (-4111111111111111, ("4111111111111111",)),
    ],
)
def test_a_json_number_of_fifteen_or_sixteen_digits_is_checked_as_a_card_number(
    number: float, digits: tuple[str, ...]
) -> None:
    assert as_text(number) == digits
