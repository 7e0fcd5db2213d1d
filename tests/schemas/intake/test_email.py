"""Inbound emails in both formats are converted to one structure, or rejected without repeating submitted text."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base.errors import ValidationFailed
from schemas.base.fields import MAX_ID, MAX_TEXT, MESSAGES
from schemas.content_policy import rules
from schemas.content_policy.checked_form import read_checked
from schemas.exports.tickets.ticket import MAX_TITLE
from schemas.exports.tickets.ticket_text import ticket_for_email
from schemas.intake import email_forms
from schemas.intake.email import Attachment, InboundEmail, first_web_address
from schemas.intake.email_forms import (
    MAX_ATTACHMENTS,
    MAX_FILE_NAME,
    MAX_MESSAGE_ID,
    MAX_NAME,
    MAX_RECIPIENTS,
    MAX_SUBJECT,
    EmailForm,
    inspected,
)
from schemas.intake.mail_headers import Mailbox, mailboxes_in
from tests.support.corpora import CORPORA
from tests.support.factories import plain_email, postmark_email

PAYLOADS = sorted((CORPORA / "email").glob("postmark-inbound-*.json"))

FORM = EmailForm()


def read(body: Any) -> InboundEmail:
    email: InboundEmail = FORM.read(body)
    return email


def problems(body: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        FORM.read(body)
    assert all(each.message.startswith(MESSAGES[each.code].removesuffix(".")) for each in refused.value.problems)
    return sorted((each.path, each.code) for each in refused.value.problems)


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {member: value for member, value in body.items() if member not in names}


def test_the_plain_form_is_read() -> None:
    assert read(plain_email()) == InboundEmail(
        message_id="1@mail.example",
        sender="Jane Doe <jane@mail.example>",
        recipients=("inbox@service.example",),
        subject="The checkout is broken",
        text="The button does nothing on https://shop.example/checkout.",
        attachments=(),
        sent_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        project_id=None,
        recipients_path="/to",
    )


def test_postmarks_form_is_read() -> None:
    assert read(postmark_email()) == InboundEmail(
        message_id="3f1f2b6c-0000-4000-8000-000000000001",
        sender="Jane Doe <jane@mail.example>",
        recipients=("Inbox <inbox@service.example>",),
        subject="The checkout is broken",
        text="The button does nothing on https://shop.example/checkout.",
        attachments=(Attachment("screen.png", "image/png", 8),),
        sent_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        project_id=None,
        recipients_path="/To",
    )


@pytest.mark.skipif(not PAYLOADS, reason=f"no payloads of an email provider in {CORPORA}")
def test_the_payloads_that_postmark_tests_with_are_read() -> None:
    emails = [read(json.loads(payload.read_text())) for payload in PAYLOADS]
    assert len(emails) == 2
    for email in emails:
        assert email.message_id == "00000000-0000-0000-0000-000000000000"
        assert email.sender == "Postmarkapp Support <support@postmarkapp.com>"
        assert email.recipients == (
            "Firstname Lastname <mailbox+SampleHash@inbound.postmarkapp.com>",
            "First Cc <firstcc@postmarkapp.com>",
            "secondCc@postmarkapp.com",
            "First Bcc <firstbcc@postmarkapp.com>",
        )
        assert (email.subject, email.text) == ("Test subject", "This is a test text body.")
        assert email.attachments == (Attachment("test.txt", "text/plain", 45),)
        assert str(email.sent_at).startswith("2023-05-05 21:4")
        assert email.project_id is None  # the address suffix SampleHash names none


@pytest.mark.parametrize(
    "least",
    [
        {"message_id": "1", "from": "a@b.example", "to": "c@d.example"},
        {"MessageID": "1", "From": "a@b.example", "To": "c@d.example"},
        {"MessageID": "1", "From": "a@b.example", "OriginalRecipient": "c@d.example"},
        {"MessageID": "1", "From": "a@b.example", "ToFull": [{"Email": "c@d.example"}]},
        {"MessageID": "1", "FromFull": {"Email": "a@b.example"}, "ToFull": [{"Email": "c@d.example"}]},
        {"MessageID": "1", "From": None, "FromFull": {"Email": "a@b.example"}, "CcFull": [{"Email": "c@d.example"}]},
        {"MessageID": "1", "FromFull": {"Email": "a@b.example"}, "BccFull": [{"Email": "c@d.example"}]},
        {"MessageID": "1", "From": "", "FromFull": {"Email": "a@b.example"}, "To": "c@d.example"},
    ],
)
def test_an_id_a_sender_and_a_recipient_are_enough(least: dict[str, Any]) -> None:
    email = read(least)
    assert (email.message_id, email.sender, email.recipients) == ("1", "a@b.example", ("c@d.example",))
    assert (email.subject, email.text, email.attachments, email.sent_at) == ("", "", (), None)


def test_a_null_member_is_read_like_a_missing_one() -> None:
    optional: tuple[str, ...] = ("subject", "text", "html", "received_at", "attachments")
    assert read(plain_email(**dict.fromkeys(optional))) == read(without(plain_email(), *optional))
    optional = (
        *("FromFull", "To", "ToFull", "Cc", "CcFull", "Bcc", "BccFull", "MailboxHash"),
        *("Subject", "Date", "TextBody", "HtmlBody", "Attachments"),
    )
    assert read(postmark_email(**dict.fromkeys(optional))) == read(without(postmark_email(), *optional))


# --- rejected emails ------------------------------------------------------------

REFUSED = [
    ({}, [("/from", "required"), ("/message_id", "required"), ("/to", "required")]),
    ([], [("", "invalid_type")]),
    ("text", [("", "invalid_type")]),
    (None, [("", "invalid_type")]),
    (without(plain_email(), "message_id"), [("/message_id", "required")]),
    (without(plain_email(), "from"), [("/from", "required")]),
    (without(plain_email(), "to"), [("/to", "required")]),
    (plain_email(message_id=None), [("/message_id", "null")]),
    (plain_email(message_id=7), [("/message_id", "invalid_type")]),
    (plain_email(message_id=" "), [("/message_id", "too_short")]),
    (plain_email(message_id="<>"), [("/message_id", "too_short")]),
    (plain_email(message_id="x" * (MAX_MESSAGE_ID + 1)), [("/message_id", "too_long")]),
    (plain_email(from_=None), [("/from", "null")]),
    (plain_email(from_=["a@b.example"]), [("/from", "invalid_type")]),
    (plain_email(from_="Jane"), [("/from", "invalid_address")]),
    (plain_email(from_=""), [("/from", "invalid_address")]),
    (plain_email(from_="x" * (MAX_TEXT + 1)), [("/from", "too_long")]),
    (plain_email(to=[]), [("/to", "invalid_address")]),
    (plain_email(to=["undisclosed-recipients:;", "Jane"]), [("/to", "invalid_address")]),
    (plain_email(to="undisclosed-recipients:;", from_="Jane"), [("/from", "invalid_address")]),
    (plain_email(from_="undisclosed-recipients:;"), [("/from", "invalid_address")]),
    (plain_email(to=["a@b.example", 7]), [("/to", "invalid_type")]),
    (plain_email(to={"a@b.example": 1}), [("/to", "invalid_type")]),
    (plain_email(to=[""] * (MAX_RECIPIENTS + 1)), [("/to", "too_many")]),
    (plain_email(to=",".join(f"{n}@b.example" for n in range(MAX_RECIPIENTS + 1))), [("/to", "too_many")]),
    (plain_email(to=["x" * (MAX_TEXT // 2)] * 3), [("/to", "too_long")]),
    (plain_email(subject=1), [("/subject", "invalid_type")]),
    (plain_email(subject="x" * (MAX_SUBJECT + 1)), [("/subject", "too_long")]),
    (plain_email(text={}), [("/text", "invalid_type")]),
    (plain_email(text="x" * (MAX_TEXT + 1)), [("/text", "too_long")]),
    (plain_email(html=[]), [("/html", "invalid_type")]),
    (plain_email(text=None, html="<p>" + "x" * (MAX_TEXT + 1)), [("/html", "too_long")]),
    (plain_email(received_at="soon"), [("/received_at", "invalid_timestamp")]),
    (plain_email(received_at=1), [("/received_at", "invalid_type")]),
    (plain_email(attachments={}), [("/attachments", "invalid_type")]),
    (plain_email(attachments=[None]), [("/attachments/0", "null")]),
    (plain_email(attachments=["a.txt"]), [("/attachments/0", "invalid_type")]),
    (plain_email(attachments=[{"name": "x" * (MAX_FILE_NAME + 1)}]), [("/attachments/0/name", "too_long")]),
    (plain_email(attachments=[{"size_bytes": -1}]), [("/attachments/0/size_bytes", "out_of_range")]),
    (plain_email(attachments=[{"size_bytes": 2**63}]), [("/attachments/0/size_bytes", "out_of_range")]),
    (plain_email(attachments=[{}] * (MAX_ATTACHMENTS + 1)), [("/attachments", "too_many")]),
    ({"MessageID": "1"}, [("/From", "required")]),
    ({"MessageID": "1", "From": None, "To": "a@b.example"}, [("/From", "required")]),
    (postmark_email(From=None, FromFull={"Name": "Jane", "Email": "Jane"}), [("/From", "invalid_address")]),
    ({"From": "a@b.example"}, [("/MessageID", "required")]),
    ({"MessageID": "1", "From": "a@b.example"}, [("/To", "invalid_address")]),
    ({"MessageID": "1", "From": "a@b.example", "To": "a:;", "Cc": "Jane"}, [("/To", "invalid_address")]),
    (postmark_email(FromFull={}, From="Jane"), [("/From", "invalid_address")]),
    (postmark_email(FromFull=[]), [("/FromFull", "invalid_type")]),
    (postmark_email(FromFull={"Email": 1}), [("/FromFull/Email", "invalid_type")]),
    (postmark_email(FromFull={"Name": "x" * (MAX_NAME + 1)}), [("/FromFull/Name", "too_long")]),
    (postmark_email(ToFull=[{"MailboxHash": 7}]), [("/ToFull/0/MailboxHash", "invalid_type")]),
    (postmark_email(CcFull=[{}] * (MAX_RECIPIENTS + 1)), [("/CcFull", "too_many")]),
    (postmark_email(TextBody="x" * (MAX_TEXT + 1)), [("/TextBody", "too_long")]),
    (postmark_email(TextBody="", HtmlBody="x" * (MAX_TEXT + 1)), [("/HtmlBody", "too_long")]),
    (postmark_email(Date=5), [("/Date", "invalid_type")]),
    (postmark_email(Attachments=[{"ContentLength": "8"}]), [("/Attachments/0/ContentLength", "invalid_type")]),
]


@pytest.mark.parametrize(("body", "expected"), REFUSED)
def test_problems_have_our_path_and_a_code(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(body) == expected


def test_texts_of_exactly_the_limit_are_kept_whole() -> None:
    longest = "x" * MAX_TEXT
    assert read(plain_email(text=longest)).text == longest
    assert read(plain_email(text="", html=f"<p>{longest}</p>")).text == longest
    assert read(plain_email(subject="s" * MAX_SUBJECT)).subject == "s" * MAX_SUBJECT


def test_unknown_members_are_ignored() -> None:
    assert read({**plain_email(), "headers": {"X": 1}, "password": "x"}) == read(plain_email())
    assert read({**postmark_email(), "RawEmail": "…", "Tag": [1], "message_id": "other"}) == read(postmark_email())


# --- contents -------------------------------------------------------------------


@pytest.mark.parametrize("given_id", ["<1@mail.example>", "1@mail.example", " <1@mail.example> \r\n", "< 1@mail.example >"])
def test_brackets_around_a_message_id_are_no_part_of_it(given_id: str) -> None:
    assert read(plain_email(message_id=given_id)).message_id == "1@mail.example"


@pytest.mark.parametrize(
    "body",
    [
        plain_email(to="undisclosed-recipients:;"),
        plain_email(to=["Undisclosed recipients: ;", " "]),
        {"MessageID": "1", "From": "jane@mail.example", "To": "undisclosed-recipients:;"},
        {"MessageID": "1", "From": "jane@mail.example", "To": "undisclosed-recipients:;", "Cc": "", "ToFull": []},
    ],
)
def test_an_email_may_hide_its_recipients(body: dict[str, Any]) -> None:
    email = read(body)
    assert (email.recipients, email.project_id) == ((), None)
    assert ticket_for_email(email).evidence["recipients"] == []


def test_a_hidden_recipient_of_postmark_still_names_the_project() -> None:
    body = {"MessageID": "1", "From": "jane@mail.example", "To": "undisclosed-recipients:;"}
    assert read({**body, "OriginalRecipient": "inbox+p7@service.example"}).project_id == 7
    assert read({**body, "MailboxHash": "p7"}).project_id == 7


def test_recipients_may_be_an_array_and_each_address_counts_once() -> None:
    to = ["Inbox <inbox@service.example>, b@c.example", "INBOX@service.example", "not an address", "d@e.example"]
    assert read(plain_email(to=to)).recipients == ("Inbox <inbox@service.example>", "b@c.example", "d@e.example")


def test_encoded_words_of_names_and_subjects_are_decoded() -> None:
    email = read(plain_email(from_="=?utf-8?q?J=C3=BCrgen?= <j@mail.example>", subject="=?utf-8?b?w7w=?= =?utf-8?q?_x?="))
    assert (email.sender, email.subject) == ("Jürgen <j@mail.example>", "ü x")


def test_the_text_part_takes_precedence_over_html_and_is_unchanged() -> None:
    text = "  one\r\n\r\n\ttwo <b>three</b> \u200b \x07"
    assert read(plain_email(text=text, html="<p>other")).text == text
    assert read(postmark_email(TextBody=text)).text == text


@pytest.mark.parametrize("text", [None, "", " \r\n\t"])
def test_html_is_used_if_the_text_part_is_empty(text: str | None) -> None:
    html = "<style>p{}</style><p>Hello <b>you</b></p><p>Bye</p>"
    assert read(plain_email(text=text, html=html)).text == "Hello you\n\nBye"
    assert read(postmark_email(TextBody=text, HtmlBody=html)).text == "Hello you\n\nBye"


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 31 Dec 9999 23:59:59 -1200", "x" * 30_000])
def test_an_email_with_an_invalid_date_is_read_without_a_time(date: str) -> None:
    assert read(postmark_email(Date=date)).sent_at is None


@pytest.mark.parametrize(
    ("attachment", "size_bytes"),
    [
        ({"ContentLength": 45, "Content": "AAAA"}, 45),
        ({"ContentLength": None, "Content": None}, None),
        ({"Content": "QUFB"}, None),
        ({}, None),
    ],
)
def test_the_size_of_an_attachment_is_the_reported_one(attachment: dict[str, Any], size_bytes: int | None) -> None:
    assert read(postmark_email(Attachments=[attachment])).attachments == (Attachment("", "", size_bytes),)


def test_the_plain_form_names_attachments_too() -> None:
    given_ = [{"name": "a.txt", "content_type": "text/plain", "size_bytes": 3, "content": "YWJj"}, {"name": None}]
    assert read(plain_email(attachments=given_)).attachments == (
        Attachment("a.txt", "text/plain", 3),
        Attachment("", "", None),
    )


PLUS = [
    (plain_email(to="inbox+p7@service.example"), 7),
    (plain_email(to=["a@b.example", "Inbox <inbox+P12@service.example>"]), 12),
    (plain_email(to="inbox+x+p7@service.example"), 7),
    (plain_email(to="inbox+p007@service.example"), 7),
    (plain_email(to="a+p7@service.example, b+p8@service.example"), 7),
    (plain_email(to=f"inbox+p{'9' * 40}@service.example"), MAX_ID),  # which no project has
    (plain_email(to="p7@service.example"), None),
    (plain_email(to="inbox+p@service.example"), None),
    (plain_email(to="inbox+p7x@service.example"), None),
    (plain_email(to="inbox+p7\u0661@service.example"), None),  # digits that are not ASCII
    (plain_email(from_="jane+p7@mail.example"), None),
    (postmark_email(OriginalRecipient="inbox+p7@service.example"), 7),
    (postmark_email(MailboxHash="p7"), 7),
    (postmark_email(To="inbox+p7@service.example"), 7),
    (postmark_email(ToFull=[{"Email": "inbox+p7@service.example"}]), 7),
    (postmark_email(CcFull=[{"Email": "inbox@service.example", "MailboxHash": "p7"}]), 7),
    (postmark_email(Bcc="inbox+p7@service.example"), 7),
    (postmark_email(To="a+p8@service.example", OriginalRecipient="inbox+p7@service.example"), 7),
    (postmark_email(MailboxHash="SampleHash"), None),
]


@pytest.mark.parametrize(("body", "project_id"), PLUS)
def test_a_recipient_names_a_project_by_plus_addressing(body: dict[str, Any], project_id: int | None) -> None:
    assert read(body).project_id == project_id


# --- checked for forbidden content ----------------------------------------------


def test_text_that_would_be_stored_is_checked_at_its_own_path() -> None:
    plain = plain_email(html="<p>4111<b>1111</b></p>", attachments=[{"name": "a.txt", "content": "YWJj"}])
    assert inspected(FORM.reduced(plain)) == {
        "from": "Jane Doe <jane@mail.example>",
        "to": "inbox@service.example",
        "subject": "The checkout is broken",
        "text": "The button does nothing on https://shop.example/checkout.",
        "html": "41111111",
        "attachments": [{"name": "a.txt"}],
    }
    postmark = postmark_email(Subject="=?utf-8?q?4111?=", Cc='"41\\11" <a@b.example>')
    assert inspected(FORM.reduced(postmark)) == {
        "From": "jane@mail.example",
        "FromFull": "Jane Doe <jane@mail.example>",
        "To": "Inbox <inbox@service.example>",
        "ToFull": ["Inbox <inbox@service.example>"],
        # The decoded text, and the original text where it differs.
        "Cc": '4111 <a@b.example>, "41\\11" <a@b.example>',
        "CcFull": [],
        "Bcc": "",
        "BccFull": [],
        "OriginalRecipient": "inbox@service.example",
        "Subject": "4111",
        "TextBody": "The button does nothing on https://shop.example/checkout.",
        "HtmlBody": "The button does nothing.",
        "Attachments": [{"Name": "screen.png", "ContentType": "image/png"}],
    }


@pytest.mark.parametrize("name", ["from", "to"])
def test_a_password_in_a_url_that_is_read_as_an_address_is_found(name: str) -> None:
    body = plain_email(**{name: "https://ada:Zk3jD92kd0qLw81mV7xB@shop.example/"})
    actual = read(body)
    assert "Zk3jD92kd0qLw81mV7xB@shop.example/" in (actual.sender, *actual.recipients)
    assert [problem.path for problem in rules.find(inspected(FORM.reduced(body)), FORM.member_names())] == [f"/{name}"]


@pytest.mark.parametrize(
    ("body", "parsed"),
    [
        (plain_email(to=["a@b.example", "c@d.example"]), 3),
        # Too long together, so no header of the list is parsed.
        (plain_email(to=["a@b.example, " * 800] * 2), 1),
        (postmark_email(Cc="a@b.example"), 5),
    ],
)
def test_each_address_header_is_parsed_once_with_a_yield_after_each(
    body: dict[str, Any], parsed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def parse(header: str) -> list[Mailbox]:
        steps.append("parsed")
        return mailboxes_in(header)

    monkeypatch.setattr(email_forms, "mailboxes_in", parse)
    with suppress(ValidationFailed):
        read_checked(FORM, body, inspected, lambda: steps.append("checkpoint"))
    assert steps.count("parsed") == parsed
    assert ("parsed", "parsed") not in pairwise(steps)


def test_every_inspected_path_is_made_of_the_forms_names() -> None:
    names = FORM.member_names()
    for body in (plain_email(attachments=[{"name": "a", "content_type": "b"}]), postmark_email()):
        actual = inspected(FORM.reduced(body))
        attachments = actual.get("attachments") or actual["Attachments"]
        assert {*actual, *attachments[0]} <= names


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def spoiled(body: dict[str, Any], data: st.DataObject) -> Any:
    """Replace one or two values of a body, at any depth."""
    body = json.loads(json.dumps(body))
    for _ in range(data.draw(st.integers(1, 2))):
        place: Any = body
        while True:
            name = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
            if not place[name] or not isinstance(place[name], dict | list) or data.draw(st.booleans()):
                place[name] = data.draw(JSON_VALUES)
                break
            place = place[name]
    return body


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_body_is_read_or_refused_and_can_be_inspected(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([plain_email(attachments=[{"name": "a"}]), postmark_email()]))
    body = data.draw(st.one_of(st.just(spoiled(whole, data)), JSON_VALUES))
    json.dumps(inspected(FORM.reduced(body)))
    try:
        email = read(body)
    except ValidationFailed:
        assert problems(body)
    else:
        assert "@" in email.sender
        json.dumps(ticket_for_email(email).record())


# --- its ticket ------------------------------------------------------------------


def test_a_ticket_says_what_was_written_by_whom_and_what_came_with_it() -> None:
    attachments = [{"Name": "a b.png", "ContentType": "image/png", "ContentLength": 8}, {"Name": ""}]
    assert ticket_for_email(read(postmark_email(Attachments=attachments))).record() == {
        "title": "The checkout is broken",
        "description": "The button does nothing on https://shop.example/checkout.\n\n"
        "From: Jane Doe <jane@mail.example>\nReceived: 2026-03-01T12:00:00.000Z\nAttachments: 2: a b.png, without a name",
        "severity": "info",
        "page_url": "https://shop.example/checkout",
        "labels": ["website-risk", "severity:info", "source:email"],
        "evidence": {
            "sender": "Jane Doe <jane@mail.example>",
            "recipients": ["Inbox <inbox@service.example>"],
            "attachments": [
                {"name": "a b.png", "content_type": "image/png", "size_bytes": 8},
                {"name": "", "content_type": "", "size_bytes": None},
            ],
        },
    }


def test_an_empty_email_has_a_ticket_too() -> None:
    ticket = ticket_for_email(read({"message_id": "1", "from": "Jane <a@b.example>", "to": "c@d.example"}))
    assert ticket.title == "Email from Jane <a@b.example>"
    assert ticket.description == "This email has no text.\n\nFrom: Jane <a@b.example>"
    assert ticket.page_url is None


@pytest.mark.parametrize("subject", ["x" * 300, "two\r\n lines", " \t"])
def test_a_title_is_one_line_within_the_limit(subject: str) -> None:
    title = ticket_for_email(read(plain_email(subject=subject))).title
    assert 0 < len(title) <= MAX_TITLE
    assert title == " ".join(title.split())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("shop.example or ftp://shop.example/", None),
        ("see https://shop.example/a?b=c#d.", "https://shop.example/a?b=c#d"),
        ("see (HTTP://shop.example/a), or https://b.example", "HTTP://shop.example/a"),
        ("<https://shop.example/a>", "https://shop.example/a"),
        ("https://shop.example/a_(b).", "https://shop.example/a_(b)"),
        ("[x](https://shop.example/a)", "https://shop.example/a"),
        ("http://, http://[::1, https://shop.example/", "https://shop.example/"),
        ("https://jane:secret@shop.example/ https://shop.example/", "https://shop.example/"),
        (f"https://a.example/{'x' * 3000} https://b.example/", "https://b.example/"),
    ],
)
def test_the_page_is_the_first_web_address_of_the_text(text: str, address: str | None) -> None:
    assert first_web_address(text) == address
