"""Which texts mention a person and which do not, as tables; the LIKE patterns miss none of the mentions."""

import re
import time
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.compliance.requests import MAX_ORDERS, Subject
from schemas.compliance.subject_matching import MAX_PATTERNS, Mentions

#: Milliseconds are usual; the machine may be busy.
LONG_S: Final = 2.0

EMAIL: Final = Subject(email="John.Doe@example.com")
ID: Final = Subject(customer_id="191167")
ORDERS: Final = Subject(order_ids=("299938", "A-17", "gid://shop/Order/4711", "#88-b", "Größe9", "--"))
US: Final = Subject(phone="555-625-1199")
US_ABROAD: Final = Subject(phone="+1 (555) 625-1199")
GERMAN: Final = Subject(phone="0170 1234567")
BRITISH: Final = Subject(phone="+44 (0)20 7946 0958")
SHORT: Final = Subject(phone="4711")

#: Columns: a person; a text that mentions this person.
MEANT: Final = [
    (EMAIL, "john.doe@example.com"),
    (EMAIL, "JOHN.DOE@EXAMPLE.COM wrote"),
    (EMAIL, "<john.doe@example.com>"),
    (EMAIL, "mailto:john.doe@example.com?subject=x"),
    (EMAIL, "Write to john.doe@example.com."),
    (EMAIL, "...john.doe@example.com, please"),
    (EMAIL, "_john.doe@example.com_"),
    (EMAIL, "-john.doe@example.com-"),
    (EMAIL, "https://shop.example/?email=john.doe%40example.com&x=1"),
    (EMAIL, "https://shop.example/john.doe@example.com/orders"),
    (EMAIL, "john.doe&#64;example.com"),
    (EMAIL, "john.doe&commat;example.com"),
    (ID, "191167"),
    (ID, "customer_191167"),
    (ID, "/customers/191167/orders"),
    (ID, "id=191167&x"),
    (ID, "gid://shop/Customer/191167"),
    (ID, "№191167."),
    (ORDERS, "Order #299938 is late"),
    (ORDERS, "order a-17"),
    (ORDERS, "order%20A-17"),
    (ORDERS, "order_A-17_late"),
    (ORDERS, "see gid://shop/order/4711."),
    (ORDERS, "gid%3A%2F%2Fshop%2FOrder%2F4711"),
    (ORDERS, "gid://shop/gid://shop/Order/4711/x"),
    (ORDERS, "the #88-B"),
    (ORDERS, "GRÖSSE9 and größe9"),
    (ORDERS, "a -- b"),
    (ORDERS, "a---"),
    (US, "555-625-1199"),
    (US, "(555) 625 1199"),
    (US, "555.625.1199"),
    (US, "5556251199"),
    (US, "tel:+15556251199"),
    (US, "001 555 625 1199"),
    (US, "15556251199"),
    (US, "+1-555-625-1199"),
    (US_ABROAD, "555-625-1199"),
    (US_ABROAD, "+15556251199"),
    (US_ABROAD, "15556251199"),
    (GERMAN, "0170/1234567"),
    (GERMAN, "+49 170 1234567"),
    (GERMAN, "+49 (0)170 1234567"),
    (GERMAN, "0049 170 12 34 567"),
    (GERMAN, "0170\u00a0123\u2013456\u20117"),
    (BRITISH, "020 7946 0958"),
    (BRITISH, "+442079460958"),
    (BRITISH, "+44 (0)20 7946 0958"),
    # The same digits with another country code: better too many matches than too few.
    (BRITISH, "+49 20 7946 0958"),
    (SHORT, "extension 4711"),
]

#: Columns: a person; a text that mentions somebody else.
NOT_MEANT: Final = [
    (EMAIL, "bigjohn.doe@example.com"),
    (EMAIL, "big.john.doe@example.com"),
    (EMAIL, "x+john.doe@example.com"),
    (EMAIL, "john.doe@example.com.au"),
    (EMAIL, "john.doe@example.community"),
    (EMAIL, "john.doe@example.com-shop.de"),
    (EMAIL, "johnxdoe@example.com"),
    (EMAIL, "john.doe@example.org"),
    (EMAIL, "john.doe at example.com"),
    (ID, "1911670"),
    (ID, "0191167"),
    (ID, "a191167"),
    (ID, "191167b"),
    (ID, "19116 7"),
    (ID, "é191167"),
    (ORDERS, "2999380"),
    (ORDERS, "BA-17"),
    (ORDERS, "A-170"),
    (ORDERS, "A_17"),
    (ORDERS, "A - 17"),
    (ORDERS, "xgid://shop/Order/4711"),
    (ORDERS, "gid://shop/Order/47110"),
    (ORDERS, "gid://shop/Order/ 4711"),
    (ORDERS, "a#88-b"),
    (ORDERS, "88-b"),
    (ORDERS, "a--b"),
    (US, "555-625-11990"),
    (US, "5555-625-1199"),
    (US, "415-625-1199"),
    (US, "625-1199"),
    (US, "2026-03-01T12:00:00Z 55562511"),
    (US_ABROAD, "2 555-625-11990"),
    (GERMAN, "0171 1234567"),
    (GERMAN, "017012345678"),
    (BRITISH, "020 7946 0959"),
    (SHORT, "47110"),
    (Subject(), "anybody 191167 john.doe@example.com"),
]


@pytest.mark.parametrize(("subject", "text"), MEANT)
def test_texts_that_mention_the_person_are_found(subject: Subject, text: str) -> None:
    mentions = Mentions(subject)
    assert mentions.in_text(text)
    assert may_match(mentions, text)


@pytest.mark.parametrize(("subject", "text"), NOT_MEANT)
def test_texts_that_mention_another_person_are_not_found(subject: Subject, text: str) -> None:
    assert not Mentions(subject).in_text(text)


def may_match(mentions: Mentions, text: str) -> bool:
    """Return whether the LIKE patterns match a row with this text, as in both databases."""
    if mentions.patterns is None:
        return True
    actual = [".*".join(map(re.escape, pattern.split("%"))) for pattern in mentions.patterns]
    return any(re.fullmatch(each, text.lower(), re.DOTALL) for each in actual)


def test_one_identifier_of_a_person_is_sufficient_for_a_match() -> None:
    everything = Mentions(Subject("191167", "john@example.com", "555-625-1199", ("299938",)), ["snow.shops.example"])
    for text in ("191167", "john@example.com", "(555) 6251199", "299938", "https://www.snow.shops.example/x"):
        assert everything.in_text(f"x {text} x"), text
    assert not everything.in_text("x 191168 y")


def test_json_is_searched_by_its_names_and_values_and_reported_by_path() -> None:
    value = {"a": [{"b": "for john@example.com"}, 191167, None, True], "191167": {"deep": 1}, "c": "nobody", "d": 1911670}
    found = Mentions(Subject("191167", "john@example.com")).in_value("reported", value)
    assert found == {"reported/a/0/b": "for john@example.com", "reported/a/1": "191167", "reported/191167": "191167"}


def test_identifiers_are_found_within_composed_names() -> None:
    mentions = Mentions(Subject("191167", "john@example.com", "555-625-1199"))
    for name in ("order191167x", "capture-john@example.com", "call5556251199again", "for:john%40example.com"):
        assert mentions.in_name(name), name
    assert not mentions.in_name("order191168x")


def test_a_short_id_is_found_in_a_composed_name_as_a_whole_word_only() -> None:
    mentions = Mentions(Subject(customer_id="52"))
    assert mentions.in_name("order-52")
    assert not mentions.in_name("3f1c7a52-aaaa-4bbb-8ccc-520000000000")


def test_if_like_cannot_select_rows_all_rows_are_read() -> None:
    assert Mentions(Subject(email="用户@例子.广告")).patterns is None
    assert Mentions(Subject(order_ids=tuple(map(str, range(MAX_PATTERNS + 1))))).patterns is None
    assert Mentions(Subject(order_ids=("1", "2"))).patterns == ("%1%", "%2%")
    assert Mentions(Subject()).patterns == ()
    assert Mentions(Subject(email="用户@例子.广告")).in_text("an 用户@例子.广告 wrote")


@given(
    st.builds(
        Subject,
        customer_id=st.none() | st.text(min_size=1, max_size=20).filter(str.strip),
        email=st.none() | st.emails(),
        phone=st.none() | st.text("0123456789+-() ", max_size=20).filter(str.strip),
    ),
    st.text(max_size=50),
)
def test_the_customer_id_and_email_of_any_subject_are_found_and_any_text_can_be_searched(
    subject: Subject, text: str
) -> None:
    mentions = Mentions(subject)
    mentions.in_text(text)
    mentions.in_name(text)
    for shown in filter(None, (subject.customer_id, subject.email)):
        assert mentions.in_text(f'"{shown}"'), shown


@pytest.mark.parametrize("written", ["&#", "%26%23", "&#x", "&#0"])
def test_a_character_reference_of_thousands_of_digits_does_not_hide_an_address(written: str) -> None:
    text = f"{written}{'9' * 5000}; john.doe@example.com and john.roe&#64;example.com"
    mentions = Mentions(Subject(email="john.roe@example.com"))
    assert mentions.in_text(text)
    assert mentions.in_value("content", {"note": text})
    assert not Mentions(Subject(email="jane@example.com")).in_name(text)


@pytest.mark.parametrize("part", ["5", "john.doe@", "a.", "%", "5-", "&#", "+1 ", "0 ", "1000001"])
def test_any_text_is_searched_quickly(part: str) -> None:
    text, orders = part * (20_000 // len(part)), tuple(map(str, range(1_000_000, 1_000_090)))
    mentions = Mentions(Subject("191167", "john.doe@example.com", "+1 555 555 5555", orders))
    began = time.process_time()
    mentions.in_text(text)
    assert time.process_time() - began < LONG_S


@pytest.mark.parametrize("made", ["{}", "gid://shop/Order/{}", "{}-b", "shop-order-{}"])
def test_the_time_for_a_text_does_not_depend_on_the_number_of_ids(made: str) -> None:
    # IDs without a common part, since an expression of all of them is slowest.
    orders = [made.format(f"{number * 2_654_435_761 % 2**32:08x}") for number in range(1, MAX_ORDERS + 1)]
    few, many = Mentions(Subject(order_ids=tuple(orders[:100]))), Mentions(Subject(order_ids=tuple(orders)))
    text = "Order 700000001-b of gid://shop/Order/17 is A-18-b. " * 50

    def spent(mentions: Mentions) -> float:
        began = time.process_time()
        assert not any(mentions.in_text(text) or mentions.in_name(text[:255]) for _ in range(10))
        return time.process_time() - began

    assert many.in_text(f"{text} {orders[-1]}")
    assert many.in_name(f"order{orders[-1]}x")
    # Five hundred times as many IDs.
    assert spent(many) < 20 * max(spent(few), 0.001)


@pytest.mark.parametrize("made", ["gid://shop/Order/{}", "{}-b", "#{}", "b_{} b"])
def test_an_id_of_several_parts_is_found_among_many(made: str) -> None:
    orders = [made.format(number) for number in range(1, 1000)]
    mentions = Mentions(Subject(order_ids=tuple(orders)))
    assert mentions.in_text(f"Order {made.format(999)}, of 1000")
    assert mentions.in_text(f"{made.format(77777)} {made.format(77)}")
    assert not mentions.in_text(f"Order x{made.format('9a9')}, {made.format(77777)}")
