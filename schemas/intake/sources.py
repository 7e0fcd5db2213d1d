"""Inbound sources, and the last rejection of each, without any submitted value."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class InboundSource(StrEnum):
    """A kind of sender, with its name in the documentation."""

    SCANNER = "scanner"
    EMAIL = "email"
    BROWSER_EXTENSION = "browser-extension"
    CMS_PLUGIN = "cms-plugin"
    STOREFRONT_APP = "storefront-app"
    COMPLIANCE = "compliance"


class CredentialFault(StrEnum):
    """Why a credential was rejected; for the operator only, since clients get the same response for all."""

    NOT_CONFIGURED = "not_configured"
    MISSING = "missing"
    TWICE = "twice"
    WRONG = "wrong"
    WRONG_KIND = "wrong_kind"
    LACKS_ABILITY = "lacks_ability"
    OTHER_NETWORK = "other_network"


@dataclass(frozen=True, slots=True)
class RejectedField:
    """One invalid field: a JSON Pointer of our own names, or a header's name, and a code."""

    path: str
    code: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected request of a source; the log has it under `request_id`."""

    source: InboundSource
    at: datetime
    status: int
    code: str
    fields: tuple[RejectedField, ...]
    request_id: str


def connected_status(accepted_at: datetime | None, rejection: Rejection | None) -> str:
    """Return `connected` if a source's newest known request was accepted, `failing` if it was rejected, else `unknown`."""
    if rejection is not None and (accepted_at is None or rejection.at > accepted_at):
        return "failing"
    return "unknown" if accepted_at is None else "connected"
