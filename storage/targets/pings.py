"""Pings: asked for by a request, taken by one worker, ended once.

A ping is sent at most once: it is claimed by compare-and-swap, and so is its end. Who asked takes back what no worker took
in time, so that nothing is sent after the client has its answer.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from schemas.base.errors import Conflict
from schemas.base.timestamps import from_ms, to_ms
from schemas.targets.pings import NO_WORKER, STALE_AFTER_S, WORKER_LOST, Ping, PingOrder, PingResult
from schemas.targets.target import PINGABLE, TargetStatus
from storage.accounts.audit_log import append
from storage.db import identifiers
from storage.db.engine import execute, rows, transaction
from storage.targets import targets

_ASK: Final = """
INSERT INTO pings (id, target_id, request_sha256, requested_at) VALUES (?, ?, ?, ?)
ON CONFLICT (request_sha256) DO NOTHING"""

_OLDEST: Final = """
SELECT p.id, p.requested_at, t.id, t.name, t.base_url, t.secret_sealed, t.status
FROM pings p JOIN targets t ON t.id = p.target_id
WHERE p.started_at IS NULL AND p.finished_at IS NULL
ORDER BY p.requested_at LIMIT 1"""

#: How long a keyed request that comes again gets the same ping; its stored answer serves it from then on.
_SHARED_FOR: Final = timedelta(hours=1)

#: Who else might have won: another worker, or the request that took it back.
_IS_WAITING: Final = "started_at IS NULL AND finished_at IS NULL"


def request(target_id: str, account_id: int, now: datetime, actor: str, request_sha256: str | None = None) -> str:
    """Ask for a ping of one of the account's targets and return its id.

    The same keyed request, known by its digest, gets the ping that it asked for before.
    Raises TargetNotFound, Conflict for a target that is disabled or has no secret to sign with.
    """
    ping_id = identifiers.new_id(identifiers.PING, now)
    with transaction():
        target = targets.get(target_id, None, account_id)
        if target.status not in PINGABLE:
            raise Conflict(f"Target {target_id} is {target.status}; ping needs {' or '.join(sorted(PINGABLE))}.")
        if request_sha256 is not None:
            forget = "UPDATE pings SET request_sha256 = NULL WHERE request_sha256 = ? AND requested_at < ?"
            execute(forget, (request_sha256, to_ms(now - _SHARED_FOR)))
        if not execute(_ASK, (ping_id, target_id, request_sha256, to_ms(now))):
            return str(rows("SELECT id FROM pings WHERE request_sha256 = ?", (request_sha256,))[0][0])
        append(now, actor, "ping_target", target_id)
    return ping_id


def get(ping_id: str) -> Ping:
    """Return a ping that was asked for."""
    [(started_at, finished_at, delivered, *met)] = rows(
        "SELECT started_at, finished_at, delivered, response_status, error_code, duration_ms FROM pings WHERE id = ?",
        (ping_id,),
    )
    result = None if finished_at is None else PingResult(bool(delivered), *met)
    return Ping(ping_id, started_at is not None, result)


def latest(target_id: str) -> tuple[datetime, PingResult] | None:
    """Return when a target's newest ping that has ended did so, and what came of it; None where none is kept."""
    found = rows(
        "SELECT finished_at, delivered, response_status, error_code, duration_ms FROM pings "
        "WHERE target_id = ? AND finished_at IS NOT NULL ORDER BY id DESC LIMIT 1",
        (target_id,),
    )
    if not found:
        return None
    [(finished_at, delivered, *met)] = found
    return from_ms(finished_at), PingResult(bool(delivered), *met)


def withdraw(ping_id: str, now: datetime) -> bool:
    """Take back a ping that no worker has begun; tell whether that came in time."""
    return _end(ping_id, PingResult(False, error_code=NO_WORKER), now, _IS_WAITING)


def give_up(ping_id: str, now: datetime) -> bool:
    """Wait no longer for a ping that a worker has begun; tell whether that came before its end."""
    return finish(ping_id, PingResult(False, error_code=WORKER_LOST), now)


def claim_next(now: datetime) -> PingOrder | None:
    """Take the ping that has waited longest; None where none waits. What nobody waits for any more is ended unsent."""
    while found := rows(_OLDEST):
        order, obstacle = _order(found[0], now)
        if obstacle is not None:
            _end(order.id, PingResult(False, error_code=obstacle), now, _IS_WAITING)
        elif _begin(order.id, now):
            return order
    return None


def finish(ping_id: str, result: PingResult, now: datetime) -> bool:
    """Write what came of a ping; False where its end is written already."""
    return _end(ping_id, result, now, "finished_at IS NULL")


def _order(row: tuple[Any, ...], now: datetime) -> tuple[PingOrder, str | None]:
    """Return a waiting ping, and the error code by which it must not be sent."""
    ping_id, requested_at, target_id, name, base_url, sealed, status = row
    order = PingOrder(ping_id, from_ms(requested_at), target_id, name, base_url, None if sealed is None else bytes(sealed))
    if now - order.requested_at > timedelta(seconds=STALE_AFTER_S):
        return order, NO_WORKER
    # It was turned off between the request and this look.
    return order, None if TargetStatus(status) in PINGABLE else f"target_{status}"


def _begin(ping_id: str, now: datetime) -> bool:
    with transaction():
        return bool(execute(f"UPDATE pings SET started_at = ? WHERE id = ? AND {_IS_WAITING}", (to_ms(now), ping_id)))  # noqa: S608 - our own words


def _end(ping_id: str, result: PingResult, now: datetime, condition: str) -> bool:
    with transaction():
        ended = execute(
            "UPDATE pings SET finished_at = ?, delivered = ?, response_status = ?, error_code = ?, duration_ms = ? "  # noqa: S608 - our own words
            f"WHERE id = ? AND {condition}",
            (
                to_ms(now),
                result.delivered,
                result.response_status,
                result.error_code,
                result.duration_ms,
                ping_id,
            ),
        )
    return bool(ended)
