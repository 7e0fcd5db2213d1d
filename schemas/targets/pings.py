"""A ping: a signed test event to one target. A client asks for it, a worker sends it, the client hears what came of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.base.strict_json import canonical
from schemas.base.timestamps import rfc3339

BODY_VERSION: Final = 1

#: How long a request waits for a worker to take its ping; a worker that is there looks at least once a second.
BEGIN_WITHIN_S: Final = 5.0
#: A ping that nobody took back within this time has nobody waiting for it: its request died. Longer than the wait by what
#: the clocks of two machines may differ.
STALE_AFTER_S: Final = 30.0

#: Why nothing came of a ping, beside the error codes of deliveries: no worker took it in time.
NO_WORKER: Final = "no_worker"
#: A worker took it and was not heard of again; an attempt of an export that ends so has the same code.
WORKER_LOST: Final = "worker_lost"


@dataclass(frozen=True, slots=True)
class PingOrder:
    """A ping as a worker takes it."""

    id: str
    requested_at: datetime
    target_id: str
    target_name: str
    base_url: str
    secret_sealed: bytes | None


@dataclass(frozen=True, slots=True)
class PingResult:
    """What came of a ping; `duration_ms` is None where nothing was tried."""

    delivered: bool
    response_status: int | None = None
    error_code: str | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping as its request sees it: `result` is None until it has ended."""

    id: str
    has_begun: bool
    result: PingResult | None

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self.result is not None


def ping_body(order: PingOrder) -> bytes:
    """Return the bytes a receiver gets."""
    return canonical(
        {
            "id": order.id,
            "type": "target.ping",
            "version": BODY_VERSION,
            "created_at": rfc3339(order.requested_at),
            "target": {"id": order.target_id, "name": order.target_name},
        }
    )
