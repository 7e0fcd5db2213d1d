"""A ticket export target: where tickets are delivered. Its record shows a secret's fingerprint, never the secret."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.targets.webhook_options import BodyFormat, Signature
from schemas.trackers.registry import GENERIC_WEBHOOK
from schemas.url_policy.credentials import masked


class TargetStatus(StrEnum):
    """Whether a target takes deliveries."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    PAUSED = "paused"
    BLOCKED = "blocked"
    DISABLED = "disabled"


#: The statuses of a target that is not turned off: its exports are sent, or wait until it is resumed.
ENABLED: Final = frozenset({TargetStatus.ACTIVE, TargetStatus.PAUSED})
#: Operators ping a paused or blocked target before they resume it; the address policy applies to the ping. A disabled target
#: gets no requests, and no secret signs for an inactive one.
PINGABLE: Final = ENABLED | {TargetStatus.BLOCKED}
#: The statuses that `resume` may start from.
RESUMABLE: Final = frozenset({TargetStatus.PAUSED, TargetStatus.BLOCKED, TargetStatus.DISABLED})


#: The reasons of holds that a receiver asked for: its target shows as paused until the hold ends.
RATE_LIMITED: Final = "rate_limited"
RECEIVER_UNAVAILABLE: Final = "receiver_unavailable"
PAUSES_BY_RECEIVER: Final = frozenset({RATE_LIMITED, RECEIVER_UNAVAILABLE})
#: The reason of a hold by the circuit breaker: too many failures in a row.
BREAKER_OPEN: Final = "breaker_open"

#: `connected_status` of a target that the last attempt or validation did not reach, or that got no delivery lately.
FAILING: Final = "failing"
#: Consecutive attempts without a delivery after which a target is shown as failing, even if its receiver responds.
FAILING_AFTER: Final = 5

#: `status_reason` of a target that a restore paused: its receiver may already have tickets that the backup would send again.
RESTORED: Final = "restored"

#: A thousand per second; a higher limit would have no effect.
MAX_PER_MINUTE: Final = 60_000


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """A client's request for a new target."""

    provider_key: str
    base_url: str
    deployment_mode: str | None
    name: str
    max_per_minute: int | None
    provider_settings: Mapping[str, Any] = field(default_factory=dict)
    signature: str = Signature.SERVICE.value
    format: str = BodyFormat.TICKET.value
    events: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TargetEdit:
    """A client's changes of a target: None leaves a member as it is; the limit changes if `sets_limit` is true.

    `provider_settings` replace all settings; `service.operations.targets` validates them.
    """

    name: str | None = None
    base_url: str | None = None
    sets_limit: bool = False
    max_per_minute: int | None = None
    provider_settings: Mapping[str, Any] | None = None
    signature: str | None = None
    format: str | None = None
    events: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class TargetHeader:
    """A header that a target adds to its requests, without its value."""

    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Target:
    """A target as it is stored, without its secret; `shown_status` returns its status at a moment."""

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
    provider_settings: Mapping[str, Any] = field(default_factory=dict)
    signature: str = Signature.SERVICE.value
    format: str = BodyFormat.TICKET.value
    events: Sequence[str] = ()
    headers: tuple[TargetHeader, ...] = ()
    standard_secret_fingerprint: str | None = None

    @property
    def is_tracker(self) -> bool:
        """Whether the target is a tracker, which gets tickets through its own API; a webhook gets signed deliveries."""
        return self.provider_key != GENERIC_WEBHOOK

    @property
    def shown_url(self) -> str:
        """The URL for display: values of parameters that are named like credentials are masked.

        Registration refuses such parameters; targets of earlier versions may have them.
        """
        return masked(self.base_url)

    @property
    def has_secret(self) -> bool:
        """Whether the target has a secret that signs for it: its own or the default."""
        return self.secret_fingerprint is not None

    @property
    def has_standard_secret(self) -> bool:
        """Whether the target has a secret of Standard Webhooks."""
        return self.standard_secret_fingerprint is not None

    @property
    def is_failing(self) -> bool:
        """Whether the target's last deliveries failed: see FAILING."""
        return self.connected_status == FAILING

    def is_held(self, now: datetime) -> bool:
        """Return whether nothing is sent at `now` although the target is active."""
        return self.status is TargetStatus.ACTIVE and self.held_until is not None and self.held_until > now

    def shown_status(self, now: datetime) -> tuple[TargetStatus, str | None]:
        """Return the status at `now` and its reason: a target whose receiver asked to wait is paused until then."""
        if not self.is_held(now):
            return self.status, self.status_reason
        return (TargetStatus.PAUSED if self.held_reason in PAUSES_BY_RECEIVER else self.status), self.held_reason


def host_of(base_url: str) -> str:
    """Return the host of a target's URL, with its port if the URL names one."""
    return urlsplit(base_url).netloc.rpartition("@")[2]


def place_of(base_url: str) -> str:
    """Return the host and path of a target's URL, which identify it in lists; without the query, which may be long."""
    return host_of(base_url) + urlsplit(base_url).path.rstrip("/")


def as_shown(target: Target, now: datetime) -> Target:
    """Return the target with the status that clients see at `now`, and `held_until` only while nothing is sent to it."""
    status, reason = target.shown_status(now)
    held_until = target.held_until if target.is_held(now) else None
    return replace(target, status=status, status_reason=reason, held_until=held_until)
