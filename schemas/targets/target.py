"""A ticket export target: where tickets are delivered. Its record shows a secret's fingerprint, never the secret."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from marshmallow import ValidationError, post_load, validates, validates_schema

from schemas.base.fields import MAX_URL, Form, Text, WholeNumber
from schemas.settings.definitions import DeploymentMode
from schemas.url_policy.credentials import has_credential, masked

PROVIDER_KEYS: Final = ("generic_webhook",)


class TargetStatus(StrEnum):
    """Whether a target takes deliveries."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    PAUSED = "paused"
    BLOCKED = "blocked"
    DISABLED = "disabled"


#: A target that is not turned off: its exports are sent, or wait until it is resumed.
ENABLED: Final = frozenset({TargetStatus.ACTIVE, TargetStatus.PAUSED})
#: A paused target is tried before it is resumed, and so is a blocked one, which the address policy guards; one that is
#: turned off is left alone, and nothing signs for an inactive one.
PINGABLE: Final = ENABLED | {TargetStatus.BLOCKED}
#: What a resumption leads back from.
RESUMABLE: Final = frozenset({TargetStatus.PAUSED, TargetStatus.BLOCKED, TargetStatus.DISABLED})


#: Holds that a receiver asked for: its target shows as paused until they are over.
RATE_LIMITED: Final = "rate_limited"
RECEIVER_UNAVAILABLE: Final = "receiver_unavailable"
ASKED_FOR: Final = frozenset({RATE_LIMITED, RECEIVER_UNAVAILABLE})
#: A hold of our own: too many failures in a row.
BREAKER_OPEN: Final = "breaker_open"

#: `connected_status` of a target that the last attempt or validation did not reach, or that got no delivery lately.
FAILING: Final = "failing"
#: So many attempts in a row, with no delivery among them, show a target as failing, even if its receiver responds.
FAILING_AFTER: Final = 5

#: Why a target is paused that a backup brought back: what its receiver got meanwhile would be sent again.
RESTORED: Final = "restored"

#: A thousand a second: more than this is no limit any more.
MAX_PER_MINUTE: Final = 60_000


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """What a client asks for."""

    provider_key: str
    base_url: str
    deployment_mode: str | None
    name: str
    max_per_minute: int | None


@dataclass(frozen=True, slots=True)
class TargetEdit:
    """What a client changes in a target: None leaves a member as it is; the limit changes where `sets_limit`."""

    name: str | None = None
    base_url: str | None = None
    sets_limit: bool = False
    max_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A target as it is stored, without its secret; `shown_status` is what it comes to at a moment."""

    id: str
    account_id: int
    provider_key: str
    base_url: str
    deployment_mode: str
    name: str
    status: TargetStatus
    status_reason: str | None
    secret_fingerprint: str | None
    has_own_secret: bool
    connected_status: str
    last_success_at: datetime | None
    validation_status: str | None
    validation_reason: str | None
    validated_at: datetime | None
    created_at: datetime
    held_until: datetime | None
    held_reason: str | None
    concurrency: int
    failures_in_row: int
    max_per_minute: int | None

    @property
    def shown_url(self) -> str:
        """The URL for display: values of parameters that are named like credentials are masked.

        Registration refuses such parameters; targets of earlier versions may have them.
        """
        return masked(self.base_url)

    @property
    def has_secret(self) -> bool:
        """Whether a secret signs for it: its own or the default."""
        return self.secret_fingerprint is not None

    @property
    def is_failing(self) -> bool:
        """Whether its last deliveries failed: see FAILING."""
        return self.connected_status == FAILING

    def is_held(self, now: datetime) -> bool:
        """Return whether nothing is sent at `now` although it is active."""
        return self.status is TargetStatus.ACTIVE and self.held_until is not None and self.held_until > now

    def shown_status(self, now: datetime) -> tuple[TargetStatus, str | None]:
        """Return the status at `now` and why: one whose receiver asked to wait is paused until then."""
        if not self.is_held(now):
            return self.status, self.status_reason
        return (TargetStatus.PAUSED if self.held_reason in ASKED_FOR else self.status), self.held_reason


def host_of(base_url: str) -> str:
    """Return the host that a target's URL leads to, with its port where one is named."""
    return urlsplit(base_url).netloc.rpartition("@")[2]


def place_of(base_url: str) -> str:
    """Return the host and the path that a target's URL leads to, which tell targets apart; no query, which may be long."""
    return host_of(base_url) + urlsplit(base_url).path.rstrip("/")


def _url_field(**options: Any) -> Text:
    description = "The URL that deliveries are posted to: https, a public address, an allowed port."
    return Text(max_length=MAX_URL, metadata={"description": description}, **options)


def _name_field(**options: Any) -> Text:
    return Text(min_length=1, max_length=200, metadata={"description": "The name."}, **options)


def _limit_field(**options: Any) -> WholeNumber:
    description = "The most delivery attempts a minute; null for no limit."
    return WholeNumber(minimum=1, maximum=MAX_PER_MINUTE, metadata={"description": description}, **options)


class _FormWithUrl(Form):
    """A form with `base_url`."""

    @validates("base_url")
    def _has_no_credential(self, url: str, data_key: str) -> None:
        if has_credential(url):
            raise ValidationError("credential_in_query")


class TargetForm(_FormWithUrl):
    """The body of `POST /api/ticket-export-targets`; receiver secrets have no place in it."""

    provider_key = Text(required=True, allowed=PROVIDER_KEYS, metadata={"description": "The kind of receiver."})
    base_url = _url_field(required=True)
    deployment_mode = Text(
        load_default=None,
        allowed=[mode.value for mode in DeploymentMode],
        metadata={"description": "The deployment mode it is meant for; by default that of this installation."},
    )
    name = _name_field(required=True)
    max_per_minute = _limit_field(load_default=None)

    @post_load
    def _make(self, request: dict[str, Any], **_: Any) -> TargetRequest:
        return TargetRequest(**request)


class TargetEditForm(_FormWithUrl):
    """The body of `PATCH /api/ticket-export-targets/{target_id}`: at least one member."""

    name = _name_field()
    base_url = _url_field()
    max_per_minute = _limit_field(allow_none=True)

    @validates_schema(skip_on_field_errors=True)
    def _has_members(self, edited: dict[str, Any], **_: Any) -> None:
        if not edited:
            raise ValidationError("no_members")

    @post_load
    def _make(self, edited: dict[str, Any], **_: Any) -> TargetEdit:
        return TargetEdit(**edited, sets_limit="max_per_minute" in edited)


def as_shown(target: Target, now: datetime) -> Target:
    """Return the target with the status that clients see at `now`, and `held_until` only while nothing is sent to it."""
    status, reason = target.shown_status(now)
    held_until = target.held_until if target.is_held(now) else None
    return replace(target, status=status, status_reason=reason, held_until=held_until)
