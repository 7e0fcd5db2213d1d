"""docs/limits.md matches the code: numbers, settings, tables, and the statements that delete old rows."""

import ast
import importlib
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from gunicorn.config import KNOWN_SETTINGS

from schemas.audit.chain import ChainVerification
from schemas.base.timestamps import to_ms
from schemas.settings.definitions import SETTINGS
from storage.accounts import audit_chain
from storage.db.engine import execute, rows
from storage.db.models import ALL
from tests.support.factories import NOW, Customer, make_exports

ROOT: Final = Path(__file__).resolve().parents[1]
TEXT: Final = (ROOT / "docs" / "limits.md").read_text()
PACKAGES: Final = ("runtime", "schemas", "service", "storage", "worker")

#: Factors of units: bytes, characters, seconds, or pieces.
UNITS: Final = {
    "": 1.0,
    "bytes": 1.0,
    "characters": 1.0,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "s": 1.0,
    "h": 3600.0,
    "days": 86_400.0,
}
#: Settings in hours.
HOURS: Final = {"MAX_AGE_HOURS"}


class LimitRow(NamedTuple):
    """A row of a table: the limit, its value, the name that defines it, and the effect of exceeding it."""

    what: str
    limit: str
    defined_by: str
    beyond: str


def table_rows() -> Iterator[LimitRow]:
    """Yield the rows of every table of limits."""
    lines = iter(TEXT.splitlines())
    for line in lines:
        if line == "| what | limit | defined by | beyond the limit |":
            next(lines)
            for row in takewhile(lambda each: each.startswith("|"), lines):
                yield LimitRow(*(cell.strip() for cell in row.strip("|").split("|")))


ROWS: Final = list(table_rows())


def value_of(limit: str) -> float:
    """Return the number in a cell, in base units."""
    found = re.fullmatch(r"([0-9][0-9,.]*) ?([A-Za-z]*)", limit)
    assert found, limit
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def defined(name: str) -> float:
    """Return the value of a constant, or the default of a setting."""
    defaults = {setting.name: setting.default for setting in SETTINGS}
    if name in defaults:
        return float(defaults[name] or "") * (UNITS["h"] if name in HOURS else 1)
    if name.startswith("gunicorn."):
        [default] = [each.default for each in KNOWN_SETTINGS if each.name == name.removeprefix("gunicorn.")]
        return float(default)
    value = found(name)
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def found(name: str) -> Any:
    """Return the value of a dotted name: a constant of a module, or of a class in it."""
    words = name.split(".")
    [depth] = [depth for depth in range(1, len(words)) if (ROOT.joinpath(*words[:depth])).with_suffix(".py").is_file()]
    value: Any = importlib.import_module(".".join(words[:depth]))
    for word in words[depth:]:
        # Fields of a class whose fields all have defaults.
        value = getattr(value() if isinstance(value, type) else value, word)
    return value


@pytest.mark.parametrize("row", ROWS, ids=[row.defined_by.strip("`") for row in ROWS])
def test_a_limit_equals_its_constant_or_setting(row: LimitRow) -> None:
    name = row.defined_by.removeprefix("`").removesuffix("`")
    if name.startswith("service.server.gunicorn_config."):
        # Importing it would read an installation's settings.
        assert (
            f"\n{name.rpartition('.')[2]} = {value_of(row.limit):g}\n"
            in (ROOT / "service" / "server" / "gunicorn_config.py").read_text()
        )
    else:
        assert value_of(row.limit) == defined(name)


def test_the_page_has_tables_and_no_duplicate_limit() -> None:
    assert len(ROWS) > 80
    assert len({row.defined_by for row in ROWS}) == len(ROWS)


def test_every_setting_that_is_a_limit_is_listed() -> None:
    # Numbers that are not limits.
    others = {"SWEEP_SECONDS", "DEFAULT_PROJECT_ID", "FIXED_AFTER_RUNS", "EVENT_SETTLE_SECONDS", "BACKUP_ALERT_DAYS"}
    numbers = {each.name for each in SETTINGS if re.fullmatch("[0-9]+", each.default or "")} - others
    assert {name for name in numbers if f"`{name}`" not in TEXT} == set()


def test_every_database_table_is_listed() -> None:
    tables = {str(model._meta.table_name) for model in ALL}
    assert {name for name in tables if not re.search(rf"\b{name}\b", TEXT.partition("## Tables")[2])} == set()


def caches() -> Iterator[tuple[str, str | None]]:
    """Yield every `lru_cache`: its module, and the constant that is its size."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lru_cache":
                bounds = [each.value.id for each in node.keywords if isinstance(each.value, ast.Name)]
                yield module, bounds[0] if bounds else None


def test_the_size_of_every_cache_is_listed() -> None:
    named = {row.defined_by.strip("`") for row in ROWS}
    assert [each for each in caches() if f"{each[0]}.{each[1]}" not in named] == []


def statements() -> list[str]:
    """Return the SQL statements of the page."""
    [block] = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    return [each.strip() for each in block.split(";") if each.strip()]


def test_the_sql_statements_delete_old_rows_and_keep_needed_ones(customer: Customer) -> None:
    other_id, export_id = make_exports(customer, 2)
    day = timedelta(days=1)
    moments = [to_ms(NOW - days * day) for days in (800, 800, 100, 800)]
    for run, at in enumerate(moments, 1):
        execute(
            "INSERT INTO scan_runs (id, project_id, status, created_at, updated_at) VALUES (?, ?, 'completed', ?, ?)",
            (run, customer.project_id, at, at),
        )
    for number, at in enumerate(moments[:3]):
        execute(
            "INSERT INTO findings (id, project_id, fingerprint, code, title, severity, page_url, location, "
            "first_scan_run_id, last_scan_run_id, first_seen_at, last_seen_at, times_seen) "
            "VALUES (?, ?, ?, 'c', 't', 'high', 'u', 'l', ?, ?, ?, ?, 1)",
            (f"fnd_{number}", customer.project_id, f"f{number}", number + 1, number + 1, at, at),
        )
    # Run 3 did not report the old findings. Run 4 is old, but kept for the history of a finding.
    for finding, run in (("fnd_0", 3), ("fnd_1", 3), ("fnd_2", 4)):
        execute("INSERT INTO finding_sightings (finding_id, scan_run_id, seen_at) VALUES (?, ?, 0)", (finding, run))
    # A place that joined a group later: the source of its export is another finding.
    execute("UPDATE findings SET export_id = ? WHERE id = 'fnd_0'", (export_id,))
    execute("UPDATE audit_entries SET at = 0 WHERE subject_id <> ?", (export_id,))
    assert audit_chain.extend_to_end() == 0
    execute("INSERT INTO redactions (request_id, table_name, row_id, redacted_at) VALUES ('cpl', 'exports', 'a', 0)")
    first, *others = (statement.replace("days_ago", str(to_ms(NOW - 730 * day))) for statement in statements())
    [(position, hash_)] = rows(first)
    for statement in others:
        execute(statement)
    # The first finding has an export, and the last was seen recently. The second is deleted with its run.
    assert rows("SELECT id FROM findings ORDER BY id") == [("fnd_0",), ("fnd_2",)]
    assert rows("SELECT id FROM scan_runs ORDER BY id") == [(1,), (3,), (4,)]
    assert rows("SELECT COUNT(*) FROM redactions") == [(0,)]
    subjects = {row[0] for row in rows("SELECT subject_id FROM audit_entries")}
    assert export_id in subjects
    assert other_id not in subjects
    assert len(list(audit_chain.lines(ChainVerification({position: bytes(hash_).hex()})))) == len(subjects)
