"""The two accepted formats of an inbound email, Postmark's and a plain one; both become an `InboundEmail`.

Address headers, dates and encoded words are parsed with the standard library. A text over its limit is refused, never
truncated. An HTML part is converted to text, and used only if there is no text part. Unknown fields, the raw message, other
headers and the contents of attachments are ignored and never stored.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from marshmallow import Schema, ValidationError, fields, post_load

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.fields import MAX_ID, MAX_TEXT, Array, Form, Integer, LenientForm, MayName, Text, optional, required, typed
from schemas.intake.email import Attachment, InboundEmail
from schemas.intake.html_text import text_of
from schemas.intake.mail_headers import Mailbox, date_from, decoded_words, is_empty_group, mailbox_of, mailboxes_in

#: The longest line that mail servers accept.
MAX_MESSAGE_ID: Final = 998
#: Several folded header lines, more than any subject needs.
MAX_SUBJECT: Final = 2000
#: Maximum length of a name, an address or its tag.
MAX_NAME: Final = 1000
#: Maximum number of recipients of one email.
MAX_RECIPIENTS: Final = 100
#: Maximum number of attachments of one email.
MAX_ATTACHMENTS: Final = 100
#: Twice the limit of file systems.
MAX_FILE_NAME: Final = 500
MAX_CONTENT_TYPE: Final = 255
#: No project id has more digits.
MAX_PROJECT_DIGITS: Final = 18

#: The tag of `anything+p7@…`.
_PROJECT_TAG: Final = re.compile("[pP]([0-9]+)")
#: A body with any of these has Postmark's format.
_POSTMARKS_OWN: Final = frozenset(
    {"MessageID", "From", "FromFull", "To", "ToFull", "OriginalRecipient", "Subject", "TextBody", "HtmlBody"}
)
#: Members that are not searched for forbidden content: ids, dates, sizes and the tag of an address.
_NOT_INSPECTED: Final = frozenset({"message_id", "received_at", "date", "size_bytes", "tag"})


@dataclass(frozen=True, slots=True)
class AddressHeader:
    """An address header and its mailboxes, in a reduced body: a header is parsed once."""

    text: str
    mailboxes: tuple[Mailbox, ...]


class _MessageId(Text):
    """A message id, without angle brackets."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        text: str = super()._deserialize(value, attr, data, **kwargs)
        return text.strip().removeprefix("<").removesuffix(">").strip()


class _Words(Text):
    """The text of a header, with encoded words decoded."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        text: str = super()._deserialize(value, attr, data, **kwargs)
        return decoded_words(text)


class Mailboxes(fields.Field[list[Mailbox]]):
    """An address header, or an array of them if `may_be_array`; entries that are not addresses are dropped.

    `EmailForm.reduced` has parsed the headers, except those that are too long together.
    """

    def __init__(self, *, may_be_array: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.may_be_array = may_be_array

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values."""
        header = {"type": "string", "maxLength": MAX_TEXT}
        several = {"type": "array", "maxItems": MAX_RECIPIENTS, "items": header}
        return {"anyOf": [header, several]} if self.may_be_array else header

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> list[Mailbox]:
        headers = value if self.may_be_array and isinstance(value, list) else [value]
        if len(headers) > MAX_RECIPIENTS:
            raise ValidationError("too_many")
        if not all(isinstance(header, AddressHeader | str) for header in headers):
            raise ValidationError("invalid_type")
        if not all(isinstance(header, AddressHeader) for header in headers):
            raise ValidationError("too_long")
        return [mailbox for header in headers for mailbox in header.mailboxes]


class AnyText(fields.Field[str]):
    """A string of any length that is stored only in part."""

    json_schema: Final = {"type": "string"}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        return typed(value, str)


class _ReceivedAt(AnyText):
    """An RFC 3339 timestamp, or the date of a mail header."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        moment = date_from(super()._deserialize(value, attr, data, **kwargs))
        if moment is None:
            raise ValidationError("invalid_timestamp")
        return moment


class _PlainAttachmentForm(LenientForm):
    name = Text(max_length=MAX_FILE_NAME, **optional("The name of the file."))
    content_type = Text(max_length=MAX_CONTENT_TYPE, **optional("The media type of the file."))
    size_bytes = Integer(**optional("The size of the file in bytes."))

    @post_load
    def _make(self, data: dict[str, Any], **_: Any) -> Attachment:
        return Attachment(data["name"] or "", data["content_type"] or "", data["size_bytes"])


class _FormatForm(LenientForm):
    """A format, with its names of the sender, the HTML part and the recipients' headers; the first one always exists."""

    sender_name: ClassVar[str]
    html_name: ClassVar[str]
    recipient_names: ClassVar[tuple[str, ...]]

    def reduced(self, value: Any, checkpoint: Checkpoint = no_checkpoint) -> Any:
        """Return a body with its HTML part reduced to its text, and with its address headers parsed."""
        headers = (self.sender_name, *self.recipient_names)
        reduced = {name: _parsed(value[name], checkpoint) for name in headers if name in value}
        if isinstance(html := value.get(self.html_name), str):
            reduced[self.html_name] = text_of(html, checkpoint)
        return {**value, **reduced}

    def email(
        self,
        data: Mapping[str, Any],
        submitted: Mapping[str, Any],
        senders: Iterable[Mailbox],
        recipients: Iterable[Mailbox],
        tags: Iterable[str],
        sent_at: datetime | None,
    ) -> InboundEmail:
        """Return the email. Only if the sender hid the recipients, there may be none. Raises ValidationError."""
        sender = next(iter(senders), None)
        first: dict[str, Mailbox] = {}
        for mailbox in recipients:
            first.setdefault(mailbox.address.lower(), mailbox)
        refused = {} if sender else {self.sender_name: ["invalid_address"]}
        if len(first) > MAX_RECIPIENTS:
            refused[self.recipient_names[0]] = ["too_many"]
        elif not first and not _are_hidden(submitted.get(name) for name in self.recipient_names):
            refused[self.recipient_names[0]] = ["invalid_address"]
        if sender is None or refused:
            raise ValidationError(refused)
        return InboundEmail(
            message_id=data["message_id"],
            sender=sender.shown,
            recipients=tuple(mailbox.shown for mailbox in first.values()),
            subject=data["subject"] or "",
            text=_text(data["text"], data["html"], self.html_name),
            attachments=tuple(data["attachments"] or ()),
            sent_at=sent_at,
            project_id=_project(tags),
            recipients_path=f"/{self.recipient_names[0]}",
        )


class _PlainForm(_FormatForm):
    sender_name, html_name, recipient_names = "from", "html", ("to",)
    message_id = _MessageId(
        max_length=MAX_MESSAGE_ID, min_length=1, **required("The email's `Message-ID`; accepted once per project.")
    )
    sender = Mailboxes(data_key="from", **required("The sender's mailbox."))
    recipients = Mailboxes(data_key="to", may_be_array=True, **required("The recipients' mailboxes."))
    subject = _Words(max_length=MAX_SUBJECT, **optional("The subject; encoded words are decoded."))
    text = Text(**optional("The text part."))
    html = AnyText(**optional("The HTML part; used only if there is no text."))
    received_at = _ReceivedAt(
        **optional("The time at which the email was received: RFC 3339, or a date as in mail headers.")
    )
    attachments = Array(
        _PlainAttachmentForm, at_most=MAX_ATTACHMENTS, **optional("The attachments; their contents are not stored.")
    )

    @post_load(pass_original=True)
    def _make(self, data: dict[str, Any], submitted: dict[str, Any], **_: Any) -> InboundEmail:
        recipients = data["recipients"]
        tags = (mailbox.tag for mailbox in recipients)
        return self.email(data, submitted, data["sender"], recipients, tags, data["received_at"])


class _PostmarkMailboxForm(LenientForm):
    """A mailbox as Postmark parses it; `MailboxHash` is the tag of the address."""

    address = Text(data_key="Email", max_length=MAX_NAME, **optional("The email address."))
    name = Text(data_key="Name", max_length=MAX_NAME, **optional("The name before the address."))
    tag = Text(data_key="MailboxHash", max_length=MAX_NAME, **optional("The tag after `+` in the address."))

    @post_load
    def _make(self, data: dict[str, Any], **_: Any) -> tuple[Mailbox | None, str]:
        return mailbox_of(data["name"] or "", data["address"] or ""), data["tag"] or ""


class _PostmarkAttachmentForm(_PlainAttachmentForm):
    name = Text(data_key="Name", max_length=MAX_FILE_NAME, **optional("The name of the file."))
    content_type = Text(data_key="ContentType", max_length=MAX_CONTENT_TYPE, **optional("The media type of the file."))
    size_bytes = Integer(data_key="ContentLength", **optional("The size of the file in bytes."))


def _several_mailboxes(data_key: str, description: str) -> Array:
    return Array(_PostmarkMailboxForm, at_most=MAX_RECIPIENTS, data_key=data_key, **optional(description))


class _PostmarkForm(_FormatForm):
    sender_name, html_name, recipient_names = "From", "HtmlBody", ("To", "Cc", "Bcc", "OriginalRecipient")
    message_id = _MessageId(
        data_key="MessageID",
        max_length=MAX_MESSAGE_ID,
        min_length=1,
        **required("Postmark's id of the email; accepted once per project."),
    )
    sender = Mailboxes(data_key="From", **optional("The sender's mailbox; required unless `FromFull` has an address."))
    sender_full = fields.Nested(
        _PostmarkMailboxForm, data_key="FromFull", **optional("The sender's mailbox, parsed by Postmark.")
    )
    to = Mailboxes(data_key="To", **optional("The recipients' mailboxes."))
    to_full = _several_mailboxes("ToFull", "The recipients' mailboxes, parsed by Postmark.")
    cc = Mailboxes(data_key="Cc", **optional("The Cc mailboxes."))
    cc_full = _several_mailboxes("CcFull", "The Cc mailboxes, parsed by Postmark.")
    bcc = Mailboxes(data_key="Bcc", **optional("The Bcc mailboxes."))
    bcc_full = _several_mailboxes("BccFull", "The Bcc mailboxes, parsed by Postmark.")
    original = Mailboxes(data_key="OriginalRecipient", **optional("The recipient that the email was sent to."))
    tag = Text(data_key="MailboxHash", **optional("The tag after `+` in the address of `OriginalRecipient`."))
    subject = _Words(data_key="Subject", max_length=MAX_SUBJECT, **optional("The subject."))
    text = Text(data_key="TextBody", **optional("The text part."))
    html = AnyText(data_key="HtmlBody", **optional("The HTML part; used only if there is no text."))
    date = AnyText(data_key="Date", **optional("The date in the email's header, which the sender sets."))
    attachments = Array(
        _PostmarkAttachmentForm,
        at_most=MAX_ATTACHMENTS,
        data_key="Attachments",
        **optional("The attachments; their contents are not stored."),
    )

    @post_load(pass_original=True)
    def _make(self, data: dict[str, Any], submitted: dict[str, Any], **_: Any) -> InboundEmail:
        fuller = [each for name in ("to_full", "cc_full", "bcc_full") for each in data[name] or ()]
        written = [each for name in ("to", "cc", "bcc", "original") for each in data[name] or ()]
        # Mailboxes with names come first: of two with the same address, the first one is kept.
        addressed = [mailbox for mailbox, _ in fuller if mailbox] + written
        if data["sender"] is None and data["sender_full"] is None:
            raise ValidationError("required", "From")
        from_full = [mailbox for mailbox, _ in [data["sender_full"] or (None, "")] if mailbox]
        # The recipient that the webhook is for comes first.
        tags = [mailbox.tag for mailbox in data["original"] or ()] + [data["tag"] or ""]
        tags += [tag for _, tag in fuller] + [mailbox.tag for mailbox in addressed]
        # The Date header comes from the sender's clock and may be wrong; the email is accepted anyway.
        sent_at = date_from(data["date"] or "")
        return self.email(data, submitted, from_full + (data["sender"] or []), addressed, tags, sent_at)


_PLAIN: Final = _PlainForm()
_POSTMARK: Final = _PostmarkForm()


class EmailForm(Form):
    """The body of `POST /api/email/webhook`, in either form."""

    #: The form of each format.
    forms: tuple[Form, ...] = (_PLAIN, _POSTMARK)

    def reduced(self, value: Any, checkpoint: Checkpoint = no_checkpoint) -> Any:
        """Return a body with its HTML part reduced to its text, and with its address headers parsed."""
        return _format_of(value).reduced(value, checkpoint) if isinstance(value, dict) else value

    def read_reduced(self, value: Any, may_name: MayName = lambda _: False) -> Any:
        """Return a reduced body as an InboundEmail. Raises ValidationFailed with every problem."""
        return _format_of(value).read_reduced(value, may_name)

    def member_names(self) -> frozenset[str]:
        """Return the field names of both formats."""
        return _PLAIN.member_names() | _POSTMARK.member_names()


def inspected(value: Any) -> dict[str, Any]:
    """Return the parts of a reduced body that would be stored, each at its own path, to be checked for forbidden content.

    HTML is checked as the text that it was reduced to, even if the text part is used: the HTML of an email is not a
    forbidden page, but a card number may be spread over its tags. A mailbox is checked as a text, not as an object with a
    name and an address.
    """
    return _shown_members(_format_of(value), value)


def _shown_members(form: Schema, value: Any) -> dict[str, Any]:
    names = {each.data_key or name: each for name, each in form.fields.items() if name not in _NOT_INSPECTED}
    return {name: _shown(names[name], value[name]) for name in names if name in value} if isinstance(value, dict) else {}


def _shown(declared: fields.Field[Any], value: Any) -> Any:
    """Return the text of a value that would be stored; None for one of another type."""
    if isinstance(value, list) and isinstance(declared, Array | Mailboxes):
        # Nothing of an array over the limit is stored.
        entry = declared.inner if isinstance(declared, Array) else declared
        return [_shown(entry, each) for each in value] if len(value) <= max(MAX_RECIPIENTS, MAX_ATTACHMENTS) else []
    if isinstance(value, AddressHeader):
        # Also as it was written: of a URL with a password, the parser keeps only an address.
        read = ", ".join(mailbox.shown for mailbox in value.mailboxes)
        return value.text if read == value.text else f"{read}, {value.text}"
    if isinstance(declared, fields.Nested):
        members = _shown_members(declared.schema, value)
        if not isinstance(declared.schema, _PostmarkMailboxForm):
            return members
        return f"{decoded_words(members.get('Name') or '')} <{members.get('Email') or ''}>" if members else None
    if not isinstance(value, str) or isinstance(declared, Array | Mailboxes):
        return None
    return decoded_words(value) if isinstance(declared, _Words) else value


def _format_of(value: Any) -> _FormatForm:
    return _POSTMARK if isinstance(value, dict) and not _POSTMARKS_OWN.isdisjoint(value) else _PLAIN


def _are_hidden(headers: Iterable[Any]) -> bool:
    """Return whether address headers name no recipient on purpose: each that is not empty is an empty group."""
    each_header = (header for several in headers for header in (several if isinstance(several, list) else [several]))
    given = [header.text for header in each_header if header and header.text.strip()]
    return bool(given) and all(map(is_empty_group, given))


def _text(text: str | None, html: str | None, html_name: str) -> str:
    """Return the text part, or else the reduced HTML part. Raises ValidationError if it is too long."""
    if text and not text.isspace():
        return text
    if len(html or "") > MAX_TEXT:
        raise ValidationError("too_long", html_name)
    return html or text or ""


def _project(tags: Iterable[str]) -> int | None:
    """Return the project id of the first tag; a tag that is too long for an id matches no project."""
    for tag in tags:
        if found := _PROJECT_TAG.fullmatch(tag):
            return int(found[1]) if len(found[1]) <= MAX_PROJECT_DIGITS else MAX_ID
    return None


def _parsed(value: Any, checkpoint: Checkpoint) -> Any:
    """Return the address header, or those in an array, parsed; over the limits they stay texts, which the form refuses."""
    headers = value if isinstance(value, list) else [value]
    texts = [header for header in headers if isinstance(header, str)]
    if len(headers) > MAX_RECIPIENTS or sum(map(len, texts)) > MAX_TEXT:
        return value
    parsed = []
    for header in headers:
        parsed.append(AddressHeader(header, tuple(mailboxes_in(header))) if isinstance(header, str) else header)
        checkpoint()
    return parsed if isinstance(value, list) else parsed[0]
