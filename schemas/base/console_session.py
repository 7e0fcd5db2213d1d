"""A console session: its user, how the user signed in, its times, and why it ended."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.base.principal import TokenPrincipal


class SignInMethod(StrEnum):
    """How the user of a session signed in."""

    TOKEN = "token"  # noqa: S105 - a kind of credential, not one
    OPENID_CONNECT = "openid_connect"
    EMAIL_LINK = "email_link"


class SessionEndReason(StrEnum):
    """Why a session is not valid."""

    #: The session does not exist.
    UNKNOWN = "unknown"
    IDLE = "idle"
    TOO_OLD = "too_old"
    SIGNED_OUT = "signed_out"
    REVOKED = "revoked"
    #: The session's token, or its user with the same sign-in method, has the maximum number of newer sessions.
    REPLACED = "crowded_out"
    #: The session's token was revoked, has expired or no longer has the required ability.
    TOKEN_INVALID = "token_over"  # noqa: S105 - a kind of credential, not one
    #: The user signed in without a token and no longer has a role that includes the console.
    USER_INVALID = "user_over"
    #: The cookie came from another browser.
    ANOTHER_BROWSER = "another_browser"
    #: The session was restored from a backup.
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Session:
    """A session with its user; `ended` is set once it has ended."""

    id: str
    principal: TokenPrincipal
    email: str
    account_name: str
    #: None for a user who signed in without a token.
    token_name: str | None
    method: SignInMethod
    created_at: datetime
    seen_at: datetime
    ended_at: datetime | None = None
    ended: SessionEndReason | None = None
