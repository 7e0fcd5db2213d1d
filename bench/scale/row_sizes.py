"""`python -m bench.scale.row_sizes`: bytes per row, with indexes, of each table that only grows.

Creates ten thousand rows with values of ordinary lengths on SQLite and on PostgreSQL. docs/limits.md shows the figures.
"""

import tempfile
from pathlib import Path
from typing import Final

import click

from bench.figures import print_table
from storage.accounts import audit_chain
from storage.db import schema_version
from storage.db.engine import close_database, connection, database, execute, is_sqlite, open_database, transaction
from tests.support.factories import make_customer
from tests.support.servers.redis_and_postgres import PostgresServer

ROWS: Final = 10_000
#: Ids of the real length, a prefix and 26 digits, so that rows and indexes have their real size.
_NUMBERS: Final = (
    f"WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {ROWS}), "  # noqa: S608 - our own numbers
    "r (n, id) AS (SELECT n, '01K0000000' || (1000000000000000 + n) FROM n) "
)
_MADE: Final = {
    "scan_runs": "(id, project_id, status, created_at, updated_at) "
    "SELECT n, 1, 'completed', 1760000000000 + n, 1760000000000 + n FROM r",
    "findings": "(id, project_id, fingerprint, code, title, severity, page_url, location, first_scan_run_id, "
    "last_scan_run_id, first_seen_at, last_seen_at, times_seen, account_id, host, page_digest, export_id) "
    "SELECT 'fnd_' || id, 1, "
    "'0123456789abcdef0123456789abcdef0123456789abcdef' || (1000000000000000 + n), 'image-alt', "
    "'Images must have alternative text', 'high', 'https://shop.example/products/a-product-' || n, "
    "'main > section.hero > img.banner', n, n, 1760000000000, 1760000000000, 1, 1, 'shop.example', "
    "'0123456789abcdef' || (1000000000000000 + n), 'exp_' || id FROM r",
    # Two of five have a digest.
    "audit_entries": "(at, actor, action, subject_id, status_before, status_after, account_id, digest) "
    "SELECT 1760000000000 + n, 'worker:host-1:4711', 'deliver', 'exp_' || id, 'delivering', 'exported', 1, "
    "CASE WHEN n - n / 5 * 5 < 2 THEN CAST('0123456789abcdef0123456789abcdef' AS {blob}) END FROM r",
    "redactions": "(request_id, table_name, row_id, redacted_at) "
    "SELECT 'cpl_' || id, 'exports', 'exp_' || id, 1760000000000 + n FROM r",
    "compliance_requests": "(id, topic, shop_domain, body_sha256, subject_pseudonym, status, result, counts, attempts, "
    "due_at, created_at, finished_at) SELECT 'cpl_' || id, 'customers/redact', 'a-shop.example', "
    "'0123456789abcdef0123456789abcdef0123456789abcdef' || (1000000000000000 + n), '0123456789abcdef' || "
    "(1000000000000000 + n), 'done', 'redacted', '{\"exports\": 2}', 1, 1760000000000, 1760000000000, 1760000000000 FROM r",
}


def bench_one(url: str) -> dict[str, float | str | None]:
    """Return the bytes per row of each table in a new database at `url`."""
    open_database(url)
    schema_version.migrate()
    with connection():
        make_customer()
        found: dict[str, float | str | None] = {name: _bytes_per_row(name) for name in _MADE}
    close_database()
    return found


def _bytes_per_row(name: str) -> float:
    before = _size(name)
    with transaction():
        execute(_made(name))
    if name == "audit_entries":
        audit_chain.extend_to_end()
        if not is_sqlite():
            # Chaining replaces rows. Their old versions do not count, since autovacuum makes their space reusable.
            database.execute_sql("VACUUM FULL audit_entries")
    return round((_size(name) - before) / ROWS)


def _made(name: str) -> str:
    # INSERT before WITH: both databases accept this order.
    columns, _, select = _MADE[name].partition(") SELECT ")
    made = f"INSERT INTO {name} {columns}) {_NUMBERS}SELECT {select}"
    return made.replace("{blob}", "BLOB" if is_sqlite() else "BYTEA")


def _size(name: str) -> int:
    if is_sqlite():
        [(pages,)], [(size,)] = (database.execute_sql(f"PRAGMA {each}").fetchall() for each in ("page_count", "page_size"))
        return int(pages) * int(size)
    # Without the partitions, the size of a partitioned table is 0; the tree of any other table is empty.
    partitions = "SELECT SUM(pg_total_relation_size(relid)) FROM pg_partition_tree(%s)"
    size = f"SELECT pg_total_relation_size(%s) + COALESCE(({partitions}), 0)"
    return int(database.execute_sql(size, (name, name)).fetchone()[0])


@click.command(epilog="Example: python -m bench.scale.row_sizes")
def bench() -> None:
    """Measure both databases."""
    with tempfile.TemporaryDirectory(prefix="riskrelay-bench-") as folder, PostgresServer() as server:
        sqlite = bench_one(f"sqlite:///{Path(folder) / 'riskrelay.db'}")
        postgres = bench_one(server.create_database())
    print_table("bytes a row", ["SQLite", "PostgreSQL"], {name: [sqlite[name], postgres[name]] for name in _MADE})


if __name__ == "__main__":
    bench()
