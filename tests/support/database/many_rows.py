"""Tables with many rows, made by the database itself: a million exports in seconds, where the verbs would take hours.

The rows are as the verbs leave them, as far as any question of a worker can tell: every constraint holds for them.
"""

from datetime import datetime
from typing import Final

from schemas.base.timestamps import to_ms
from storage.db.engine import database, execute, is_sqlite, transaction
from tests.support.factories import Customer

#: Ids are a prefix and 26 digits, of which these are the first: whatever is counted up to a million million sorts by number.
_LEADING: Final = "0" * 7
_FIRST: Final = 10**18

# The casts give PostgreSQL the types of what it is told; its driver wants a percent sign for itself, so there is no modulo.
_NUMBERS: Final = """
WITH RECURSIVE numbers (n) AS (
    SELECT CAST(? AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < CAST(? AS BIGINT)
)"""
_TARGETS: Final = f"""{_NUMBERS}
INSERT INTO targets (id, account_id, provider_key, base_url, deployment_mode, name, status, connected_status, created_at,
    updated_at, ramp)
SELECT 'tgt_{_LEADING}' || ({_FIRST} + n), CAST(? AS INTEGER), 'generic_webhook', CAST(? AS TEXT), 'self-hosted',
    'Tracker ' || n, CAST(? AS TEXT), 'unknown', 0, 0, 16
FROM numbers"""  # noqa: S608 - our own names and numbers
_EXPORTS: Final = f"""{_NUMBERS}
INSERT INTO exports (id, account_id, source_type, source_id, status, target_id, ticket, ticket_digest, preview_problems,
    body, attempts, attempts_before, schedule_began_at, due_at, version, created_at, approved_at, finished_at)
SELECT 'exp_{_LEADING}' || ({_FIRST} + n), CAST(? AS INTEGER), 'manual', 'note-' || n, CAST(? AS TEXT),
    'tgt_{_LEADING}' || ({_FIRST} + CAST(? AS BIGINT) + n - n / CAST(? AS BIGINT) * CAST(? AS BIGINT)),
    '{{}}', 'sha256:0', '[]', BODY, 0, 0, CAST(? AS BIGINT), CAST(? AS BIGINT) + (n - CAST(? AS BIGINT)) * CAST(? AS BIGINT),
    1, CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT)
FROM numbers"""  # noqa: S608 - our own names and numbers


def many_targets(customer: Customer, first: int, count: int, url: str, status: str = "active") -> list[str]:
    """Store targets at `url`, numbered from `first`, that take as much at once as any may; return their ids."""
    with transaction():
        execute(_TARGETS, (first, first + count, customer.account_id, url, status))
    return [f"tgt_{_LEADING}{_FIRST + number}" for number in range(first, first + count)]


def many_finished(customer: Customer, first: int, count: int, targets: tuple[int, int], now: datetime) -> None:
    """Store exports that are exported, numbered from `first`, for `targets` in turns: the first one's number, how many."""
    _store("exported", customer, (first, count), targets, None, to_ms(now))


def many_waiting(
    customer: Customer,
    first: int,
    count: int,
    targets: tuple[int, int],
    due_at: datetime,
    *,
    every_ms: int = 0,
    body_bytes: int = 100,
) -> None:
    """Store exports that are approved and come due one after the other from `due_at` on, numbered as `many_finished`."""
    _store("approved", customer, (first, count), targets, (to_ms(due_at), every_ms), None, body_bytes)


def export_id(number: int) -> str:
    """Return the id of the export with this number."""
    return f"exp_{_LEADING}{_FIRST + number}"


def checkpoint() -> None:
    """Write the log of so many rows to the database now, so that no measured statement has to."""
    database.execute_sql("PRAGMA wal_checkpoint(TRUNCATE)" if is_sqlite() else "CHECKPOINT")


def analyze() -> None:
    """Update the statistics of the planner, as PostgreSQL does by itself after a while."""
    for table in ("targets", "exports"):
        database.execute_sql(f"ANALYZE {table}")


def _store(
    status: str,
    customer: Customer,
    numbers: tuple[int, int],
    targets: tuple[int, int],
    due: tuple[int, int] | None,
    finished_ms: int | None,
    body_bytes: int = 100,
) -> None:
    (first, count), (due_ms, every_ms) = numbers, due or (None, 0)
    # One value for all: bytes of the wanted length, which no index holds and no question of these tests reads.
    body = f"zeroblob({body_bytes})" if is_sqlite() else f"decode(repeat('00', {body_bytes}), 'hex')"
    at = due_ms or finished_ms
    parameters = (
        customer.account_id,
        status,
        targets[0],
        targets[1],
        targets[1],
        at,
        due_ms,
        first,
        every_ms,
        at,
        at,
        finished_ms,
    )
    with transaction():
        if not is_sqlite():
            # Foreign keys are looked up row by row, which takes longer than everything else; these hold.
            execute("SET LOCAL session_replication_role = replica")
        execute(_EXPORTS.replace("BODY", body), (first, first + count, *parameters))
