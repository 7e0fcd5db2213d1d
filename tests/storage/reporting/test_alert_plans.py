"""The queries that workers run every half minute read no growing table completely."""

from datetime import timedelta
from pathlib import Path
from typing import Final

from schemas.settings.alert_channels import AlertChannel, AlertKind
from storage.db.engine import execute, rows
from storage.reporting import alerts
from storage.reporting.alert_causes import AlertSources
from tests.support.database.query_plans import GROWING, full_scans, statements
from tests.support.factories import NOW, Customer, make_failed, make_target

#: With fewer rows, PostgreSQL would rightly read the whole table.
EXPORTS: Final = 3_000
#: The audit log has few rows here, so PostgreSQL rightly reads it completely.
EXPORTS_TABLES: Final = GROWING - {"audit_entries"}
KINDS: Final = frozenset(AlertKind)


def test_a_comparison_reads_exports_by_index_alone(database: str, customer: Customer, tmp_path: Path) -> None:
    target = make_target(customer)
    make_failed(customer, target.id, EXPORTS, NOW - timedelta(days=30))
    make_failed(customer, target.id, 3)
    execute("ANALYZE")
    sources = AlertSources(KINDS, tmp_path, timedelta(days=7))
    with statements() as found:
        alerts.update(sources, [AlertChannel.SLACK], lambda _id, _alerts: {}, NOW)
        alerts.update(sources, [AlertChannel.SLACK], lambda _id, _alerts: {}, NOW)
    assert rows("SELECT count FROM alerts WHERE kind = 'exports'") == [(1,)]
    assert [each.sql for each in found if full_scans(each, EXPORTS_TABLES)] == []
    assert [each.sql for each in found if "exports" in each.sql]


def test_a_comparison_without_changes_writes_nothing(database: str, customer: Customer, tmp_path: Path) -> None:
    make_failed(customer, make_target(customer).id, 3)
    sources = AlertSources(KINDS, tmp_path, timedelta(days=7))
    alerts.update(sources, [AlertChannel.SLACK], lambda _id, _alerts: {}, NOW)
    with statements() as found:
        alerts.update(sources, [AlertChannel.SLACK], lambda _id, _alerts: {}, NOW + timedelta(minutes=1))
    assert {each.sql.split()[0] for each in found} == {"SELECT"}
