"""Statements over many rows: rows are stored unchanged, and any number of rows takes few statements and SQL texts."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.db.bulk_sql import execute_over, rows_over
from storage.db.engine import close_database, execute, is_sqlite, open_database, rows
from tests.support.database.query_plans import statements

#: Includes the size of a tick, and more rows than the longest list for SQLite.
COUNTS: Final = [1, 2, 3, 7, 8, 63, 64, 65, 100, 500, 1025]
TELL: Final = "WITH r (number, name) AS ({rows}) SELECT number, name, ? FROM r"
TYPES: Final = ("BIGINT", "TEXT")


@pytest.mark.parametrize("count", COUNTS)
def test_every_row_arrives_once_and_in_order(database: str, count: int) -> None:
    values = [(2**40 + number, f"name {number}") for number in range(count)]
    assert rows_over(TELL, TYPES, values, (1,)) == [(*value, 1) for value in values]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " padded ",
        "NULL",
        "null",
        'a "quoted" word',
        'ends with "',
        "back\\slash",
        "ends with \\",
        '\\"',
        "{braces, and} commas",
        "100% of {rows}, ? and %s",
        "line\nbreak\tand tab",
        "Ünïcode ☃ 𝄞",
        "'single'; --",
    ],
)
def test_any_text_is_stored_unchanged(database: str, text: str) -> None:
    assert rows_over(TELL, TYPES, [(1, text), (2, text)], (0,)) == [(1, text, 0), (2, text, 0)]


def test_missing_values_are_null_in_any_column_and_row(database: str) -> None:
    assert rows_over(TELL, TYPES, [(None, None), (None, None)], (0,)) == [(None, None, 0)] * 2
    assert rows_over(TELL, TYPES, [(None, "a"), (-5, None)], (0,)) == [(None, "a", 0), (-5, None, 0)]


def test_a_fraction_arrives_to_its_last_digit(database: str) -> None:
    numbers = [0.1 + 0.2, 15.999999999999998, 16.0, 1e-300]
    found = rows_over(
        "WITH r (number) AS ({rows}) SELECT number FROM r", ("DOUBLE PRECISION",), [(each,) for each in numbers]
    )
    assert [number for (number,) in found] == numbers


#: Characters with a meaning in PostgreSQL's text format of arrays, and any other text.
texts = st.text(alphabet="\\\",{}NULnul \n\t\r\x0b'") | st.text(
    st.characters(exclude_characters="\x00", exclude_categories=["Cs"])
)
values = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | texts,
    st.none() | st.floats(allow_nan=False),
    st.none() | st.binary(),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(values, min_size=1, max_size=5))
def test_any_row_is_stored_unchanged(
    module_database: Path, stored: list[tuple[int | None, str | None, float | None, bytes | None]]
) -> None:
    types = ("BIGINT", "TEXT", "DOUBLE PRECISION", "BYTEA")
    assert rows_over("WITH r (a, b, c, d) AS ({rows}) SELECT a, b, c, d FROM r", types, stored) == stored


def test_values_that_an_array_cannot_hold_are_refused(postgres_url: str) -> None:
    """As text, it would be stored in Python's notation."""
    open_database(postgres_url)
    with pytest.raises(TypeError, match="list"):
        rows_over(TELL, TYPES, [(1, ["sealed"])], (0,))
    close_database()


def test_an_update_of_many_rows_is_executed_for_each(database: str) -> None:
    numbers = [(f"name {number}",) for number in range(400)]
    execute("CREATE TEMPORARY TABLE kept (name TEXT)")
    try:
        execute_over("INSERT INTO kept (name) {rows}", ("TEXT",), numbers[:300])
        execute_over(
            "WITH r (name) AS ({rows}) DELETE FROM kept WHERE name IN (SELECT name FROM r)", ("TEXT",), numbers[200:]
        )
        assert rows("SELECT name FROM kept ORDER BY rowid" if is_sqlite() else "SELECT name FROM kept") == numbers[:200]
    finally:
        execute("DROP TABLE kept")


def test_an_empty_list_of_rows_runs_no_statement(database: str) -> None:
    with statements() as found:
        execute_over("INSERT INTO nowhere {rows}", TYPES, [])
        assert rows_over(TELL, TYPES, [], (0,)) == []
    assert found == []


def test_any_number_of_rows_runs_few_statements_with_few_distinct_texts(database: str) -> None:
    """Each SQL text is planned once per connection, and SQLite's driver caches only 128 texts of all statements."""
    with statements() as found:
        for count in range(1, 501):
            rows_over(TELL, TYPES, [(number, "") for number in range(count)], (0,))
    texts = {each.sql for each in found}
    assert len(texts) == (7 if is_sqlite() else 1)
    assert len(found) <= 500 * (8 if is_sqlite() else 1)


def test_no_list_makes_sqlite_read_a_whole_table(sqlite_url: str) -> None:
    """For long lists of values, SQLite may build a Bloom filter of all rows, although an index contains them."""
    open_database(sqlite_url)
    execute("CREATE TEMPORARY TABLE many (number BIGINT UNIQUE, state TEXT)")
    execute_over("INSERT INTO many {rows}", TYPES, [(number, "open") for number in range(20_000)])
    execute("ANALYZE many")
    sql = """
        WITH r (number, state) AS ({rows}) UPDATE many SET state = ? FROM r
        WHERE many.number = r.number AND many.state = 'open'"""
    with statements() as found:
        execute_over(sql, TYPES, [(number, "open") for number in range(500)], ("closed",))
    plans = [str(step) for each in found for step in rows(f"EXPLAIN QUERY PLAN {each.sql}", each.parameters)]
    close_database()
    assert [step for step in plans if "BLOOM" in step] == []
    assert any("SEARCH many" in step for step in plans)
