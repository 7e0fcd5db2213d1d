"""An inbound email: the text that a provider received, and its attachments by name, type and size alone.

How one comes in, in two forms, stands in `email_forms`.
"""

import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from marshmallow import ValidationError

from schemas.base.fields import WebUrl

_WEB_ADDRESS: Final = re.compile(r"""https?://[^\s<>"'`]++""", re.IGNORECASE)
_WEB_URL: Final = WebUrl()


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is known of an attachment; its contents are not kept."""

    name: str
    content_type: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class InboundEmail:
    """One email, checked; a mailbox reads `Name <address>`, or `address` alone."""

    message_id: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    text: str
    attachments: tuple[Attachment, ...]
    sent_at: datetime | None
    #: The project that a recipient names by plus-addressing.
    project_id: int | None
    #: Where the recipients stand in the provider's form, for a refusal to name.
    recipients_path: str


@dataclass(frozen=True, slots=True)
class EmailAccepted:
    """What became of an email: the id it has now, and whether it had it before."""

    id: str
    is_duplicate: bool


def email_answer(accepted: EmailAccepted) -> dict[str, object]:
    """Return the body of the 202."""
    return {"id": accepted.id, "status": "accepted", "duplicate": accepted.is_duplicate}


def attachment_records(email: InboundEmail) -> list[dict[str, Any]]:
    """Return the attachments as JSON."""
    return [asdict(attachment) for attachment in email.attachments]


def first_web_address(text: str) -> str | None:
    """Return the first http or https URL in a text, without the punctuation behind it and without one that has a user."""
    for found in _WEB_ADDRESS.finditer(text):
        with suppress(ValidationError):
            address: str = _WEB_URL.deserialize(_without_punctuation(found[0]))
            if "@" not in urlsplit(address).netloc:
                return address
    return None


def _without_punctuation(address: str) -> str:
    """Drop what ends a sentence or closes a bracket around the address, but not a bracket that opened within."""
    bare = address.rstrip(".,;:!?)]}")
    is_open = bare.count("(") > bare.count(")") and address.startswith(")", len(bare))
    return f"{bare})" if is_open else bare
