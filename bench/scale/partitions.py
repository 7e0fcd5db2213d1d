"""`python -m bench.scale.partitions`: costs and savings of partitions by month with ten million attempts and audit entries.

Two databases of one PostgreSQL have the same rows of half a year: one without partitions, one with a partition for each
month. The product's operations alternate between them, and their writes are rolled back. Then the attempts of a month are
deleted as retention does: the first database is vacuumed afterwards, the second one drops the partition. Needs 25 GB and
15 minutes for ten million rows; started processes are stopped.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any, Final

import click
import psycopg

from bench import figures
from bench.servers.durable_postgres import DurablePostgres
from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.accounts import audit_chain, audit_log
from storage.accounts.audit_log import AuditEntry
from storage.accounts.audit_log_sql import AuditFilter
from storage.db import identifiers, schema_version
from storage.db.bulk_sql import insert_records
from storage.db.engine import close_database, connection, database, execute, open_database, rows
from storage.db.models import AttemptRow
from storage.exports import attempts
from storage.maintenance import partitions_sql
from tests.support.database.query_plans import rolled_back

MONTHS: Final = 6
#: Rows that a dispatcher tick writes under load.
TICK: Final = 64
_BATCH: Final = 100
_CHUNK: Final = 200_000

#: Each table's first partition replaces the table.
_WITHOUT_PARTITIONS: Final = (
    "ALTER SEQUENCE audit_entries_id_seq OWNED BY audit_entries_first.id",
    *(
        statement.format(table)
        for table in ("attempts", "audit_entries")
        for statement in (
            "ALTER TABLE {0} DETACH PARTITION {0}_first",
            "DROP TABLE {0}",
            "ALTER TABLE {0}_first RENAME TO {0}",
        )
    ),
)

_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME: Final = " || ".join(f"substr('{_LETTERS}', 1 + ((ms >> {shift}) & 31)::int, 1)" for shift in range(45, -1, -5))
# Exports get two attempts each and four audit entries; `e` numbers the exports, which are spread evenly over the months.
_EXPORT_ID: Final = f"'exp_' || {_TIME} || upper(substr(md5(e::text), 1, 16))"
_SERIES: Final = "generate_series(%(first)s::int, %(last)s::int)"
_MOMENTS: Final = f"SELECT e, (%(start)s + e * %(step)s::float8)::bigint AS ms FROM {_SERIES} e"  # noqa: S608 - our own names
_EXPORTS: Final = f"SELECT e, ms, {_EXPORT_ID} AS id FROM ({_MOMENTS}) m"  # noqa: S608 - our own names
_ATTEMPTS: Final = f"""
INSERT INTO attempts (id, export_id, number, started_at, outcome, response_status, dns_ms, connect_ms, tls_ms, first_byte_ms,
    total_ms, nonce, worker, answer, address_class, signature, body_sha256, response_sha256, address)
SELECT 'att_' || substr(id, 5, 10) || upper(substr(md5('a' || e || n), 1, 16)), id, n, ms + n * 1000,
    CASE n WHEN 2 THEN 'delivered' ELSE 'retryable' END, CASE n WHEN 2 THEN 201 ELSE 503 END, 1, 2, 3, 40, 50,
    md5('n' || e || n), 'worker:host-1:0001', '{{"id":"ABC-' || e || '","url":"https://tracker.example/ABC-' || e || '"}}',
    'public', 't=1,v1=' || md5('s' || e || n) || md5('t' || e), md5('b' || e) || md5('c' || e),
    md5('r' || e) || md5('q' || e), '203.0.113.7'
FROM ({_EXPORTS}) x CROSS JOIN generate_series(1, 2) n
ORDER BY e, n"""  # noqa: S608 - our own names
_ENTRIES: Final = f"""
INSERT INTO audit_entries (id, at, actor, action, subject_id, status_before, status_after, digest, position, hash)
SELECT e * 4 + n, ms + n * 500, 'worker:host-1:0001', CASE n %% 2 WHEN 0 THEN 'deliver' ELSE 'claim' END, id, 'delivering',
    'exported', CASE n %% 2 WHEN 0 THEN decode(md5('d' || e) || md5('e' || n), 'hex') END,
    CASE WHEN e < %(unchained)s THEN e * 4 + n END,
    CASE WHEN e < %(unchained)s THEN decode(md5('h' || e) || md5('i' || n), 'hex') END
FROM ({_EXPORTS}) x CROSS JOIN generate_series(1, 4) n
ORDER BY e, n"""  # noqa: S608 - our own names


@click.command(epilog="Example: python -m bench.scale.partitions --rows 1000000")
@click.option(
    "--rows", "count", default=10_000_000, show_default=True, type=click.IntRange(min=20_000), help="Of each table."
)
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(min=1), help="Times that the two alternate.")
def bench(count: int, rounds: int) -> None:
    """Measure both tables whole and by month."""
    now = utc_now()
    results: dict[str, Any] = {**figures.machine(), "rows": count}
    with DurablePostgres() as server:
        urls = {"whole": server.create_database(), "by month": server.create_database()}
        for name, url in urls.items():
            with _opened(url):
                _make(name, now)
            results[f"{name}: filled in s"] = _timed(partial(_fill, url, count, now))
        results["ms"] = _alternated(urls, rounds, now)
        results["MB"] = {name: _sizes(url) for name, url in urls.items()}
        results["month"] = _without_a_month(urls, now)
    click.echo(json.dumps(results, indent=1))
    figures.write("partitions", results)


@contextmanager
def _opened(url: str) -> Iterator[None]:
    open_database(url)
    with connection():
        yield
    close_database()


def _make(name: str, now: datetime) -> None:
    """Create the tables: without partitions, or with one for each of the last months."""
    schema_version.migrate()
    if name == "whole":
        for statement in _WITHOUT_PARTITIONS:
            database.execute_sql(statement)
    else:
        for table in ("attempts", "audit_entries"):
            database.execute_sql(f"DROP TABLE {table}_first")
        first = now - timedelta(days=31 * MONTHS)
        for days in (0, 100, 31 * MONTHS):
            partitions_sql.maintain(first + timedelta(days=days), first - timedelta(days=366))


def _fill(url: str, count: int, now: datetime) -> None:
    """Store `count` attempts and `count` audit entries of exports, ordered by time, without foreign key checks."""
    start = to_ms(now - timedelta(days=30 * MONTHS))
    with psycopg.connect(url, autocommit=True) as filling:
        filling.execute("SET synchronous_commit = off; SET session_replication_role = replica")
        for statement, of_each in ((_ATTEMPTS, 2), (_ENTRIES, 4)):
            exports = count // of_each
            common = {"start": start, "step": (to_ms(now) - start) / exports, "unchained": exports - 5_000}
            for first in range(0, exports, _CHUNK):
                filling.execute(statement, {**common, "first": first, "last": min(first + _CHUNK, exports) - 1})
        filling.execute("SELECT setval('audit_entries_id_seq', (SELECT max(id) FROM audit_entries))")
        for statement in ("VACUUM (ANALYZE) attempts", "VACUUM (ANALYZE) audit_entries", "CHECKPOINT"):
            filling.execute(statement)


def _alternated(urls: Mapping[str, str], rounds: int, now: datetime, times: int = 30) -> dict[str, dict[str, float]]:
    """Run every operation alternately on both databases; return medians in ms."""
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, url in urls.items():
            with _opened(url):
                for operation, work in _operations(now).items():
                    # Without the first 8 runs, in which PostgreSQL plans the statements.
                    timings = [_rolled_back_ms(work) for _ in range(times)][8:]
                    taken.setdefault(operation, {}).setdefault(name, []).extend(timings)
    return {operation: {name: median(each) for name, each in of.items()} for operation, of in taken.items()}


def _operations(now: datetime) -> dict[str, Callable[[], object]]:
    ids = cycle(
        [row[0] for row in rows("SELECT export_id FROM attempts TABLESAMPLE SYSTEM (0.5) WHERE number = 1 LIMIT 5000")]
    )
    execute("SET session_replication_role = replica")
    latest = audit_log.list_matching(AuditFilter(), 50, None)[-1].id
    return {
        "insert attempts": lambda: insert_records(AttemptRow, _new_attempts(now)),
        "append entries": lambda: audit_log.append_all(
            [AuditEntry(to_ms(now), "worker", "claim", f"exp_{n}", "approved", "delivering") for n in range(TICK)]
        ),
        "attempts of an export": lambda: attempts.list_details(next(ids)),
        "erase an attempt's response": lambda: (
            AttemptRow.update(answer=None).where(AttemptRow.export == next(ids)).execute()
        ),
        "newest page of the audit log": lambda: audit_log.list_matching(AuditFilter(), 50, None),
        "older page": lambda: audit_log.list_matching(AuditFilter(), 50, latest // 2),
        "entries of a record": lambda: audit_log.list_for_subject(next(ids), 50),
        "chain of 500 entries": audit_chain.extend,
        "look for entries to chain": audit_chain.has_unchained,
        f"delete attempts of {_BATCH} exports": lambda: (
            AttemptRow.delete().where(AttemptRow.export.in_([next(ids) for _ in range(_BATCH)])).execute()
        ),
    }


def _new_attempts(now: datetime) -> list[dict[str, Any]]:
    at = to_ms(now)
    return [
        {
            "id": identifiers.new_id(identifiers.ATTEMPT, now),
            "export_id": identifiers.new_id(identifiers.EXPORT, now),
            "number": 1,
            "started_at": at,
            "outcome": "delivered",
            "response_status": 201,
            "total_ms": 50,
            "nonce": "0" * 32,
            "worker": "worker:host-1:0001",
            "signature": "0" * 100,
            "body_sha256": "0" * 64,
            "response_sha256": "0" * 64,
        }
        for _ in range(TICK)
    ]


def _rolled_back_ms(work: Callable[[], object]) -> float:
    with rolled_back():
        return _timed(work) * 1000
    raise AssertionError


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _sizes(url: str) -> dict[str, dict[str, float]]:
    """Return the MB of heap and indexes of each table and partition."""
    with _opened(url):
        found = rows(
            "SELECT c.relname, pg_table_size(c.oid) / 1e6, pg_indexes_size(c.oid) / 1e6 FROM pg_class c "
            "WHERE c.relname ~ '^(attempts|audit_entries)' AND c.relkind = 'r' ORDER BY 1"
        )
    return {name: {"heap": round(float(heap)), "indexes": round(float(indexes))} for name, heap, indexes in found}


def _without_a_month(urls: Mapping[str, str], now: datetime) -> dict[str, float]:
    """Delete the attempts of the first whole month from both databases; return durations and sizes."""
    month = (now - timedelta(days=30 * (MONTHS - 1))).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (month + timedelta(days=31)).replace(day=1).astimezone(UTC)
    bounds = [identifiers.first_id(identifiers.EXPORT, each) for each in (month, after)]
    results: dict[str, float] = {}
    for name, url in urls.items():
        with _opened(url):
            found = [
                row[0]
                for row in rows(
                    "SELECT export_id FROM attempts WHERE export_id >= ? AND export_id < ? AND number = 1", bounds
                )
            ]
            results["exports"] = len(found)
            results[f"{name}: delete s"] = _timed(partial(_delete_in_batches, found))
            if name == "whole":
                results[f"{name}: vacuum s"] = _timed(lambda: database.execute_sql("VACUUM attempts"))
            else:
                table = f"attempts_{month:%Y_%m}"
                results[f"{name}: drop s"] = _timed(partial(partitions_sql.maintain, now, after))
                assert table not in {each.name for each in partitions_sql.partitions("attempts")}
        results[f"{name}: MB after"] = sum(sum(each.values()) for each in _sizes(url).values())
    return results


def _delete_in_batches(found: list[str]) -> None:
    for first in range(0, len(found), _BATCH):
        AttemptRow.delete().where(AttemptRow.export.in_(found[first : first + _BATCH])).execute()


if __name__ == "__main__":
    bench()
