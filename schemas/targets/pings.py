"""A ping: a signed test event to one target. A client requests it, a worker sends it, and the response has the result."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.base.strict_json import canonical
from schemas.base.timestamps import format_rfc3339
from schemas.targets.delivery_options import DEFAULT_OPTIONS, DeliveryOptions

BODY_VERSION: Final = 1

#: How long a request waits for a worker to claim its ping; a running worker checks at least once a second.
BEGIN_WITHIN_S: Final = 5.0
#: A ping older than this is not sent, because no request waits for it. The time exceeds BEGIN_WITHIN_S by the possible
#: difference of two machines' clocks.
STALE_AFTER_S: Final = 30.0

#: Error code of a ping: no worker claimed it in time.
NO_WORKER: Final = "no_worker"
#: Error code of a ping: a worker claimed it and died. An attempt of an export that ends like this has the same code.
WORKER_LOST: Final = "worker_lost"


@dataclass(frozen=True, slots=True)
class PingJob:
    """A ping that a worker claimed."""

    id: str
    requested_at: datetime
    target_id: str
    account_id: int
    target_name: str
    base_url: str
    secret_sealed: bytes | None
    options: DeliveryOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class PingResult:
    """The result of a ping; `duration_ms` is None if no worker reported one."""

    delivered: bool
    response_status: int | None = None
    error_code: str | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping as its request reads it: `result` is None until it has ended."""

    id: str
    has_begun: bool
    result: PingResult | None

    @property
    def is_over(self) -> bool:
        """Return whether the ping has ended."""
        return self.result is not None


def ping_body(order: PingJob) -> bytes:
    """Return the bytes a receiver gets."""
    return canonical(
        {
            "id": order.id,
            "type": "target.ping",
            "version": BODY_VERSION,
            "created_at": format_rfc3339(order.requested_at),
            "target": {"id": order.target_id, "name": order.target_name},
        }
    )
