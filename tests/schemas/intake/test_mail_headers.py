"""Mail headers are read as mail programs write them, equally in every version of Python, and no text causes an error."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.intake.mail_headers import MAX_ADDRESS, date_from, decoded_words, is_empty_group, mailboxes_in

MAILBOXES = [
    ("a@b.example", ["a@b.example"]),
    ("Jane <a@b.example>", ["Jane <a@b.example>"]),
    ('"Doe, Jane" <a@b.example>', ["Doe, Jane <a@b.example>"]),
    ("a@b.example, Jane <c@d.example>", ["a@b.example", "Jane <c@d.example>"]),
    ("a@b.example (Jane)", ["Jane <a@b.example>"]),
    ("=?utf-8?q?J=C3=BCrgen?= <a@b.example>", ["Jürgen <a@b.example>"]),
    ("=?utf-8?q?Doe=2C_Jane?= <a@b.example>", ["Doe, Jane <a@b.example>"]),
    ("Jane\r\n Doe <a@b.example>", ["Jane Doe <a@b.example>"]),
    ('"Jane \\"J\\" Doe" <a@b.example>', ['Jane "J" Doe <a@b.example>']),
    ("Friends: a@b.example, Jane <c@d.example>;", ["a@b.example", "Jane <c@d.example>"]),
    ("a@b.example, ", ["a@b.example"]),
    ("用户@例子.example", ["用户@例子.example"]),
    # an @ in the name is part of the name, which is never taken for the address
    ("a@b.example <a@b.example>", ["a@b.example"]),
    ("boss@bank.example <evil@b.example>", ["boss@bank.example <evil@b.example>"]),
    ("[boss@bank.example] <evil@b.example>", ["[boss@bank.example] <evil@b.example>"]),
    # common violations of the syntax
    ("[Shop] Support <a@b.example>", ["[Shop] Support <a@b.example>"]),
    ("[Shop] <a@b.example>, [Bank] <c@d.example>", ["[Shop] <a@b.example>", "[Bank] <c@d.example>"]),
    ("c@d.example, [Shop] Support <a@b.example>", ["c@d.example", "[Shop] Support <a@b.example>"]),
    ("Ada :) <a@b.example>", ["Ada :) <a@b.example>"]),
    ("Ada (Shop <a@b.example>", ["Ada (Shop <a@b.example>"]),
    ("Ada\\Bob] <a@b.example>", ["Ada\\Bob] <a@b.example>"]),
    ("a@b.example; c@d.example", ["a@b.example", "c@d.example"]),
    ("a@b.example; Jane <c@d.example>;", ["a@b.example", "Jane <c@d.example>"]),
    ('"Doe; Jane" <a@b.example>;c@d.example', ["Doe; Jane <a@b.example>", "c@d.example"]),
    ("Ada :) <a@b.example>; c@d.example", ["Ada :) <a@b.example>", "c@d.example"]),
    ("Ada :) <a@b.example>, Friends: Jane <c@d.example>;", ["Ada :) <a@b.example>", "Jane <c@d.example>"]),
    ("Sales: Berlin <a@b.example>", ["Berlin <a@b.example>"]),
    # no address, or an ambiguous one
    ("", []),
    ("<>", []),
    ("MAILER-DAEMON", []),
    ("undisclosed-recipients:;", []),
    ("@b.example", []),
    ("a@", []),
    ("a@b.example c@d.example", []),
    ("a@b.example)c@d.example", []),
    ("a@b.example(<c@d.example>", []),
    ('a@b.example via "Jane" <c@d.example>', []),
    ("Jane (boss@bank.example <evil@b.example>", []),
    ("Ada (Shop <a@b.example>, c@d.example)", []),
    ("Friends: a@b.example; c@d.example", []),
    ("a; b", []),
    ("a\x07@b.example", []),
    (f"{'a' * MAX_ADDRESS}@b.example", []),
    ("(" * 5000 + "a@b.example", []),
    ("a:" * 5000 + "a@b.example", []),
]


@pytest.mark.parametrize(("header", "shown"), MAILBOXES)
def test_an_address_header_is_read(header: str, shown: list[str]) -> None:
    assert [mailbox.shown for mailbox in mailboxes_in(header)] == shown


@pytest.mark.parametrize(
    ("header", "is_empty"),
    [
        ("undisclosed-recipients:;", True),
        ("Undisclosed recipients: ;", True),
        ('"undisclosed-recipients" : ; \r\n', True),
        ("", False),
        (":;", False),
        ("undisclosed-recipients", False),
        ("undisclosed-recipients:", False),
        ("undisclosed-recipients:;;", False),
        ("Friends: a@b.example;", False),
        ("a@b.example:;", False),
        ("a:;, b:;", False),
    ],
)
def test_a_group_without_a_mailbox_hides_its_recipients(header: str, is_empty: bool) -> None:
    assert is_empty_group(header) is is_empty
    assert mailboxes_in(header) == [] or not is_empty


@pytest.mark.parametrize(
    ("address", "tag"),
    [
        ("a+p7@b.example", "p7"),
        ("a+b+p7@b.example", "p7"),
        ("p7@b.example", ""),  # a name, not a tag
        ("a+@b.example", ""),
        ("a@b+p7.example", ""),
    ],
)
def test_the_tag_of_an_address_follows_its_last_plus(address: str, tag: str) -> None:
    assert [mailbox.tag for mailbox in mailboxes_in(address)] == [tag]


WORDS = [
    ("plain = ? text", "plain = ? text"),
    ("=?utf-8?b?w7w=?=", "ü"),
    ("=?UTF-8?B?w7w?=", "ü"),  # the padding is missing
    ("Gr=?iso-8859-1?q?=FC?=n", "Grün"),
    ("=?utf-8?q?a_b?= =?utf-8?q?_c?=", "a b c"),  # white space between encoded words is ignored
    ("=?utf-8?q?=C3?=\r\n =?utf-8?q?=BC?= x", "ü x"),  # a character divided between two encoded words
    ("=?windows-1252?q?=80?= 5", "€ 5"),
    ("=?utf-8?q?=FF?=", "\ufffd"),
    ("=?utf-8?b?AA==?=", "\ufffd"),  # NUL
    # invalid encoded words are kept
    ("=?utf-8?b?a?=", "=?utf-8?b?a?="),
    ("=?cp9999?q?x?=", "=?cp9999?q?x?="),
    ("=?rot13?q?x?=", "=?rot13?q?x?="),
    ("=?utf-8?x?a?=", "=?utf-8?x?a?="),
]


@pytest.mark.parametrize(("text", "read"), WORDS)
def test_encoded_words_are_decoded_and_nothing_else(text: str, read: str) -> None:
    assert decoded_words(text) == read


DATES = [
    ("Fri, 5 May 2023 17:41:16 -0400", datetime(2023, 5, 5, 21, 41, 16, tzinfo=UTC)),
    ("5 May 2023 17:41:16 GMT", datetime(2023, 5, 5, 17, 41, 16, tzinfo=UTC)),
    ("Fri, 5 May 2023 17:41:16 -0000", datetime(2023, 5, 5, 17, 41, 16, tzinfo=UTC)),  # no time zone: treated as UTC
    ("2026-03-01T12:00:00.5+01:00", datetime(2026, 3, 1, 11, 0, 0, 500_000, tzinfo=UTC)),
    ("", None),
    ("yesterday", None),
    ("Fri, 31 Feb 2023 17:41:16 +0000", None),
    ("Fri, 31 Dec 9999 23:59:59 -1200", None),  # the year 10000
    ("Fri, 5 May 2023 17:41:16 +9999", None),
    ("Fri, 5 May 99999999999999999999 17:41:16 +0000", None),
    ("Fri, 5 May 2023 17:41:16 +0000" + " " * 100, None),
]


@pytest.mark.parametrize(("text", "moment"), DATES)
def test_a_date_is_read_or_none(text: str, moment: datetime | None) -> None:
    assert date_from(text) == moment


MARKS = st.sampled_from(
    [*'",;:()<>@[]\\ .', "=?utf-8?q?", "?=", "=?utf-8?b?", "\r\n ", "a@b.example", "May", "+0000", "2023"]
)


@given(
    st.lists(
        st.one_of(MARKS, MARKS, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))), max_size=40
    )
)
def test_every_text_results_in_text_that_every_database_accepts(pieces: list[str]) -> None:
    text = "".join(pieces)
    moment, read = date_from(text), decoded_words(text)
    shown = [mailbox.shown for mailbox in mailboxes_in(text)]
    assert moment is None or moment.tzinfo is UTC
    assert "\0" not in read
    assert read.encode().decode() == read
    assert [each for each in shown if "\0" in each or "\n" in each or "@" not in each] == []


@given(
    st.sampled_from(["utf-8", "us-ascii", "gb18030", "big5", "euc-jp", "iso-2022-jp", "iso-2022-kr", "shift_jis", "koi8-r"]),
    st.binary(max_size=30),
)
def test_encoded_bytes_become_text_that_every_database_accepts(charset: str, encoded: bytes) -> None:
    word = "".join(f"={byte:02X}" for byte in encoded)
    read = decoded_words(f"=?{charset}?q?{word}?=")
    assert "\0" not in read
    assert read.encode().decode() == read


@pytest.mark.parametrize(
    "piece",
    [
        '"',
        "<",
        "(",
        ")",
        ",",
        "@",
        "\\",
        "[",
        ":",
        ";",
        "a@b,",
        "a b ",
        "=?utf-8?q?",
        "=?utf-8?q?a?= ",
        "<a@",
        "[]",
        " ",
        "[a] <a@b.example>;",
        "a; ",
        "a[",
        "(a<",
    ],
)
def test_the_longest_header_is_read_quickly(piece: str) -> None:
    header = piece * (20_000 // len(piece))
    began = time.process_time()
    for text in (header, f"x <a@b.example> {header}", f'"{header}', f"a:{header}", f":{header}"):
        mailboxes_in(text)
        is_empty_group(text)
        decoded_words(text)
    # It takes a fifth of a second at most.
    assert time.process_time() - began < 5


def test_a_group_of_too_many_mailboxes_is_read_without_mailboxes() -> None:
    named, plain = '"Doe, J. [Shop]" <jane.doe@mail.shop.example>', "a@b.example"
    assert len(mailboxes_in(f"Friends: {', '.join([named] * 100)};")) == 100
    # The standard library takes quadratic time for the mailboxes of a group.
    assert mailboxes_in(f"Friends: {', '.join([plain] * 1500)};") == []
    assert len(mailboxes_in(", ".join([plain] * 1500))) == 1500


@pytest.mark.parametrize("piece", ["=?utf-8?q?a?= ", "=?utf-8?b?YQ==?=", "=?utf-8?q?a?=x"])
def test_a_body_full_of_encoded_words_is_read_quickly(piece: str) -> None:
    body = piece * (2**20 // len(piece))
    began = time.process_time()
    decoded_words(body)
    # It takes a second at most; decoding all words together took twenty.
    assert time.process_time() - began < 5
