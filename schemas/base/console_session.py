"""A session at the console: who is signed in with which token, since when, and how a session ends."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.base.principal import TokenPrincipal


class Ended(StrEnum):
    """Why a session is over, or none."""

    #: There is no such session.
    UNKNOWN = "unknown"
    IDLE = "idle"
    TOO_OLD = "too_old"
    SIGNED_OUT = "signed_out"
    REVOKED = "revoked"
    #: Its token has as many newer ones as it may have.
    CROWDED_OUT = "crowded_out"
    #: Its token was revoked, has expired or has not the ability any more.
    TOKEN_OVER = "token_over"  # noqa: S105 - the word for it
    #: The cookie came from another browser than it was given to.
    ANOTHER_BROWSER = "another_browser"
    #: A backup brought it back.
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Session:
    """A session with who it stands for; what ended it is there once somebody did."""

    id: str
    principal: TokenPrincipal
    email: str
    account_name: str
    token_name: str
    created_at: datetime
    seen_at: datetime
    ended_at: datetime | None = None
    ended: Ended | None = None
