"""An inbound email: its text, and the name, type and size of its attachments.

`email_forms` reads the two formats of a webhook.
"""

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.base.fields import is_page_url

_WEB_ADDRESS: Final = re.compile(r"""https?://[^\s<>"'`]++""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Attachment:
    """The metadata of an attachment; its content is not stored."""

    name: str
    content_type: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class InboundEmail:
    """One valid email; a mailbox is `Name <address>` or `address`."""

    message_id: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    text: str
    attachments: tuple[Attachment, ...]
    sent_at: datetime | None
    #: The project in the plus address of a recipient.
    project_id: int | None
    #: The recipients' field in the provider's format, for error messages.
    recipients_path: str


@dataclass(frozen=True, slots=True)
class EmailAccepted:
    """The id of an accepted email, and whether it is a repeat."""

    id: str
    is_duplicate: bool


def attachment_records(email: InboundEmail) -> list[dict[str, Any]]:
    """Return the attachments as JSON."""
    return [asdict(attachment) for attachment in email.attachments]


def first_web_address(text: str) -> str | None:
    """Return the first http or https URL in a text without a user, and without the punctuation after it."""
    addresses = map(_without_punctuation, _WEB_ADDRESS.findall(text))
    return next((each for each in addresses if is_page_url(each) and "@" not in urlsplit(each).netloc), None)


def _without_punctuation(address: str) -> str:
    """Drop punctuation and closing brackets after the URL, except one round bracket that opens within the URL."""
    bare = address.rstrip(".,;:!?)]}")
    is_open = bare.count("(") > bare.count(")") and address.startswith(")", len(bare))
    return f"{bare})" if is_open else bare
