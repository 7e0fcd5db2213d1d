"""docs/limits.md: every number is the code's, every setting and table is there, and what shortens tables does so."""

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

from schemas.base.timestamps import to_ms
from schemas.settings.definitions import SETTINGS
from storage.db.engine import execute, rows
from storage.db.models import ALL
from tests.support.factories import NOW, Customer, make_exports

ROOT: Final = Path(__file__).resolve().parents[1]
TEXT: Final = (ROOT / "docs" / "limits.md").read_text()
ROOMS: Final = ("runtime", "schemas", "service", "storage", "worker")

#: What a unit comes to in bytes, characters, seconds, or pieces.
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
#: Settings that count hours.
HOURS: Final = {"MAX_AGE_HOURS"}


class Row(NamedTuple):
    """A line of a list: what is bounded, how much, where the number stands."""

    what: str
    limit: str
    held_by: str
    beyond: str


def listed() -> Iterator[Row]:
    """Yield the lines of every list of limits."""
    lines = iter(TEXT.splitlines())
    for line in lines:
        if line == "| what | limit | defined by | beyond the limit |":
            next(lines)
            for told in takewhile(lambda each: each.startswith("|"), lines):
                yield Row(*(cell.strip() for cell in told.strip("|").split("|")))


ROWS: Final = list(listed())


def told(limit: str) -> float:
    """Return the number that a cell tells."""
    found = re.fullmatch(r"([0-9][0-9,.]*) ?([A-Za-z]*)", limit)
    assert found, limit
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def held(name: str) -> float:
    """Return the number that stands in the code under a name, or that a setting has by default."""
    defaults = {setting.name: setting.default for setting in SETTINGS}
    if name in defaults:
        return float(defaults[name] or "") * (UNITS["h"] if name in HOURS else 1)
    if name.startswith("gunicorn."):
        [default] = [each.default for each in KNOWN_SETTINGS if each.name == name.removeprefix("gunicorn.")]
        return float(default)
    value = found(name)
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def found(name: str) -> Any:
    """Return what a dotted name stands for: a constant of a module, or of a class in it."""
    words = name.split(".")
    [depth] = [depth for depth in range(1, len(words)) if (ROOT.joinpath(*words[:depth])).with_suffix(".py").is_file()]
    value: Any = importlib.import_module(".".join(words[:depth]))
    for word in words[depth:]:
        # A class that is all defaults stands for an instance of it.
        value = getattr(value() if isinstance(value, type) else value, word)
    return value


@pytest.mark.parametrize("row", ROWS, ids=[row.held_by.strip("`") for row in ROWS])
def test_a_limit_is_what_the_code_says(row: Row) -> None:
    name = row.held_by.removeprefix("`").removesuffix("`")
    if name.startswith("service.server.gunicorn_config."):
        # To import it is to read the settings of an installation.
        assert (
            f"\n{name.rpartition('.')[2]} = {told(row.limit):g}\n"
            in (ROOT / "service" / "server" / "gunicorn_config.py").read_text()
        )
    else:
        assert told(row.limit) == held(name)


def test_there_are_lists_to_compare_and_no_limit_stands_twice() -> None:
    assert len(ROWS) > 80
    assert len({row.held_by for row in ROWS}) == len(ROWS)


def test_every_setting_that_bounds_something_is_there() -> None:
    # What has a number without being a bound on what others send: when to look, when to try again, what to call oneself.
    others = {"SWEEP_SECONDS", "DEFAULT_PROJECT_ID"}
    numbers = {each.name for each in SETTINGS if re.fullmatch("[0-9]+", each.default or "")} - others
    assert {name for name in numbers if f"`{name}`" not in TEXT} == set()


def test_every_table_is_among_those_that_shrink_or_are_named_with_their_size() -> None:
    tables = {str(model._meta.table_name) for model in ALL}
    assert {name for name in tables if not re.search(rf"\b{name}\b", TEXT.partition("## Tables")[2])} == set()


def remembering() -> Iterator[tuple[str, str | None]]:
    """Yield every function that is remembered by what it was given: its module, and the constant that bounds it."""
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lru_cache":
                bounds = [each.value.id for each in node.keywords if isinstance(each.value, ast.Name)]
                yield module, bounds[0] if bounds else None


def test_whatever_is_remembered_is_bounded_by_a_constant_that_is_in_the_list() -> None:
    named = {row.held_by.strip("`") for row in ROWS}
    assert [each for each in remembering() if f"{each[0]}.{each[1]}" not in named] == []


def statements() -> list[str]:
    """Return what shortens tables, as it stands on the page."""
    [block] = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    return [each.strip() for each in block.split(";") if each.strip()]


def test_the_statements_on_the_page_remove_what_is_old_and_keep_what_is_needed(customer: Customer) -> None:
    export_id, other_id = make_exports(customer, 2)
    day = timedelta(days=1)
    for number, seen_at in enumerate((NOW - 800 * day, NOW - 800 * day, NOW - 100 * day)):
        run, at = number + 1, to_ms(seen_at)
        execute("INSERT INTO scan_runs VALUES (?, ?, 'completed', ?, ?)", (run, customer.project_id, at, at))
        execute(
            "INSERT INTO findings (id, project_id, fingerprint, code, title, severity, page_url, location, "
            "first_scan_run_id, last_scan_run_id, first_seen_at, last_seen_at, times_seen) "
            "VALUES (?, ?, ?, 'c', 't', 'high', 'u', 'l', ?, ?, ?, ?, 1)",
            (f"fnd_{number}", customer.project_id, f"f{number}", run, run, at, at),
        )
    execute("UPDATE exports SET source_type = 'finding', source_id = 'fnd_0' WHERE id = ?", (export_id,))
    execute("UPDATE audit_entries SET at = 0 WHERE subject_id = ?", (other_id,))
    execute("INSERT INTO redactions (request_id, table_name, row_id, redacted_at) VALUES ('cpl', 'exports', 'a', 0)")
    for statement in statements():
        execute(statement.replace("days_ago", str(to_ms(NOW - 730 * day))))
    # The first one has an export, the last one was seen lately; the run of the second goes with it.
    assert rows("SELECT id FROM findings ORDER BY id") == [("fnd_0",), ("fnd_2",)]
    assert rows("SELECT id FROM scan_runs ORDER BY id") == [(1,), (3,)]
    assert rows("SELECT COUNT(*) FROM redactions") == [(0,)]
    told_of = {row[0] for row in rows("SELECT subject_id FROM audit_entries")}
    assert export_id in told_of
    assert other_id not in told_of
