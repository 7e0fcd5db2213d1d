"""The geometry of charts: round axes, stacked parts, and no value that is too small to see."""

from datetime import timedelta

import pytest

from service.console import charts
from service.console.charts import Box, ChartColumn
from storage.exports.delivery_hours import AttemptCounts, DeliveryHour
from tests.support.factories import NOW

#: Columns: the largest value; the end of the axis.
ENDS = [
    (0, 1),
    (1, 1),
    (2, 2),
    (3, 4),
    (5, 6),
    (7, 8),
    (10, 10),
    (11, 20),
    (41, 60),
    (100, 100),
    (101, 200),
    (999_999, 1_000_000),
    (1_000_001, 2_000_000),
]


def hours(*tallies: AttemptCounts) -> list[DeliveryHour]:
    return [DeliveryHour(NOW + timedelta(hours=number), tally) for number, tally in enumerate(tallies)]


@pytest.mark.parametrize(("most", "end"), ENDS)
def test_an_axis_ends_at_an_even_number(most: int, end: int) -> None:
    assert charts.axis_end(most) == end


def bars(column: ChartColumn) -> dict[str, Box]:
    return {bar.kind: bar for bar in column.bars}


def test_failed_deliveries_are_stacked_on_successful_ones() -> None:
    [column] = charts.hourly_attempts(hours(AttemptCounts(6, 2))).columns
    delivered, failed = bars(column)["good"], bars(column)["bad"]
    ground = column.slot.y + column.slot.height
    assert delivered.y + delivered.height == pytest.approx(ground)
    assert failed.y + failed.height == pytest.approx(delivered.y)
    assert delivered.height == pytest.approx(3 * failed.height, abs=0.2)
    # Eight of eight fill the axis.
    assert failed.y == pytest.approx(column.slot.y, abs=0.2)
    assert column.text == "12:00 UTC: 6 delivered, 2 failed attempts"


def test_one_failure_among_a_million_is_seen() -> None:
    chart = charts.hourly_attempts(hours(AttemptCounts(1_000_000, 1), AttemptCounts()))
    failed = bars(chart.columns[0])["bad"]
    assert failed.height >= 2
    assert failed.y > 0
    assert chart.columns[1].bars == ()


def test_a_day_without_a_delivery_has_axes_all_the_same() -> None:
    chart = charts.hourly_attempts(hours(*[AttemptCounts()] * 24))
    assert [tick.text for tick in chart.ticks] == ["0", "1"]
    assert [name.text for name in chart.labels] == ["12:00", "15:00", "18:00", "21:00", "00:00", "03:00", "06:00", "09:00"]


def test_every_part_is_within_the_chart() -> None:
    chart = charts.hourly_attempts(hours(*[AttemptCounts(number * 37, number % 5) for number in range(24)]))
    parts = [part for column in chart.columns for part in (column.slot, *bars(column).values())]
    assert len(parts) > 60
    assert all(chart.left <= part.x and part.x + part.width <= chart.right + 0.1 for part in parts)
    assert all(part.y >= 0 and part.y + part.height <= chart.height for part in parts)
    assert [tick.text for tick in chart.ticks] == ["0", "500", "1\N{NARROW NO-BREAK SPACE}000"]


def test_days_have_a_label_every_five_days_back_from_today() -> None:
    days = [charts.Stack(NOW + timedelta(days=number), (number, 1, 0)) for number in range(12)]
    series = [charts.Series(kind, f"of {kind}") for kind in ("low", "high", "critical")]
    chart = charts.day_trend(days, series)
    assert [label.text for label in chart.labels] == [f"{day.at.day} {day.at:%b}" for day in (days[1], days[6], days[11])]
    assert chart.columns[3].text.endswith(": 3 of low, 1 of high, 0 of critical")
    assert [bar.kind for bar in chart.columns[3].bars] == ["low", "high"]
