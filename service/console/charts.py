"""Computes the geometry of charts in units of the SVG view box; a template draws them.

The template sets classes, and the style sheet defines their colors. Every non-zero value is visible: one failure among a
million deliveries still has a bar of its own.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from service.console.wording import count
from storage.exports.delivery_hours import DeliveryHour
from storage.reporting.finding_trends import FindingDay

WIDTH: Final = 560
HEIGHT: Final = 180
#: Margins for the numbers on the left and the times below.
_LEFT: Final = 44
_RIGHT: Final = 16
_TOP: Final = 10
_BOTTOM: Final = 22
#: The share of its slot's width that a column fills.
_FILL: Final = 0.72
#: The smallest height at which a bar is visible.
_MIN_HEIGHT: Final = 2.0
#: The possible maxima of an axis, before multiplication by a power of ten. Half of each is an integer, except for 1.
_MAXIMA: Final = (1, 2, 4, 6, 8, 10)
#: Only every third hour or fifth day has a label, so that labels do not overlap.
_LABEL_EVERY_H: Final = 3
_LABEL_EVERY_DAYS: Final = 5
_MAX_DAY_LABELS: Final = 6


class Series(NamedTuple):
    """One kind of number that every column has; `kind` is its class in the style sheet."""

    kind: str
    name: str


class Stack(NamedTuple):
    """The numbers of one hour or day, in the order of the series."""

    at: datetime
    numbers: tuple[int, ...]


#: The parts of a column of findings, lowest first, and the severities that each part adds up.
SEVERITY_SERIES: Final = (Series("low", "medium and lower"), Series("high", "high"), Series("critical", "critical"))
_PARTS: Final = (("info", "low", "medium"), ("high",), ("critical",))
#: The parts of a column of deliveries, lowest first.
DELIVERIES: Final = (Series("good", "delivered"), Series("bad", "failed attempts"))


class Box(NamedTuple):
    """A rectangle; y increases downwards."""

    x: float
    y: float
    width: float
    height: float


class ChartBar(NamedTuple):
    """The bar of one non-zero number in a column."""

    kind: str
    box: Box


class ChartColumn(NamedTuple):
    """One hour or day: its numbers as text, and a stack of bars. `slot` spans the whole height."""

    text: str
    slot: Box
    bars: tuple[ChartBar, ...]


class AxisLabel(NamedTuple):
    """A label of an axis; for an hour, `at` is its time, which the script converts to the reader's time zone."""

    text: str
    x: float
    y: float
    at: str = ""


class ColumnChart(NamedTuple):
    """A chart of columns in time, oldest on the left; each of the `ticks` has a line from `left` to `right`."""

    width: int
    height: int
    left: float
    right: float
    columns: tuple[ChartColumn, ...]
    ticks: tuple[AxisLabel, ...]
    labels: tuple[AxisLabel, ...]


class ChartedTrend(NamedTuple):
    """Numbers by hour or day, oldest first, with their chart."""

    series: Sequence[Series]
    stacks: Sequence[Stack]
    chart: ColumnChart

    @property
    def totals(self) -> list[int]:
        """The sum of each series over all hours or days."""
        return [sum(stack.numbers[place] for stack in self.stacks) for place in range(len(self.series))]


def severity_trend(days: Sequence[FindingDay]) -> ChartedTrend:
    """Return the number of findings that were not fixed at the end of each day, by severity."""
    stacks = [Stack(day.at, tuple(sum(day.unfixed.get(each, 0) for each in part) for part in _PARTS)) for day in days]
    return day_trend(stacks, SEVERITY_SERIES)


def day_trend(days: Sequence[Stack], series: Sequence[Series]) -> ChartedTrend:
    """Return the numbers of days (UTC) with a chart.

    Today and every fifth day before it have a label; in a chart of 90 days every 15th.
    """
    every = max(_LABEL_EVERY_DAYS, len(days) // _MAX_DAY_LABELS)
    labeled = [(len(days) - 1 - number) % every == 0 for number in range(len(days))]
    return ChartedTrend(series, days, _chart(days, series, "%d %b", labeled, is_hourly=False))


def hourly_attempts(hours: Sequence[DeliveryHour]) -> ChartedTrend:
    """Return the delivered and failed attempts of each hour (UTC)."""
    stacks = _attempts(hours)
    labeled = [stack.at.hour % _LABEL_EVERY_H == 0 for stack in stacks]
    return ChartedTrend(DELIVERIES, stacks, _chart(stacks, DELIVERIES, "%H:%M UTC", labeled, is_hourly=True))


def daily_attempts(days: Sequence[DeliveryHour]) -> ChartedTrend:
    """Return the delivered and failed attempts of each day (UTC)."""
    return day_trend(_attempts(days), DELIVERIES)


def _attempts(counted: Sequence[DeliveryHour]) -> list[Stack]:
    return [Stack(each.at, (each.tally.delivered, each.tally.failed)) for each in counted]


def _chart(
    stacks: Sequence[Stack], series: Sequence[Series], time: str, labeled: Sequence[bool], *, is_hourly: bool
) -> ColumnChart:
    """Return stacked columns with their axes; the columns that are `labeled` have a label below."""
    end = axis_end(max((sum(stack.numbers) for stack in stacks), default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(stacks))
    labels = [
        AxisLabel(
            f"{stack.at:%H:%M}" if is_hourly else f"{stack.at.day} {stack.at:%b}",
            round(_LEFT + (number + 0.5) * step, 1),
            HEIGHT - 6,
            f"{stack.at:%Y-%m-%dT%H:%MZ}" if is_hourly else "",
        )
        for number, stack in enumerate(stacks)
        if labeled[number]
    ]
    return ColumnChart(
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        columns=tuple(_column(stack, series, time, _LEFT + number * step, step, end) for number, stack in enumerate(stacks)),
        ticks=tuple(AxisLabel(count(value), _LEFT - 6, _y(value, end)) for value in _marks(end)),
        labels=tuple(labels),
    )


def axis_end(most: int) -> int:
    """Return the maximum of an axis for values up to `most`: a round number such as 20 or 400, at least 1."""
    power = 1
    while most > 10 * power:
        power *= 10
    return next(end * power for end in _MAXIMA if end * power >= most)


def _marks(end: int) -> tuple[int, ...]:
    return (0, end) if end == 1 else (0, end // 2, end)


def _column(stack: Stack, series: Sequence[Series], time: str, x: float, step: float, end: int) -> ChartColumn:
    """Return the column that begins at `x`; `end` is the maximum of the axis."""
    left, width = round(x + step * (1 - _FILL) / 2, 1), round(step * _FILL, 1)
    ground = floor = _y(0, end)
    bars: list[ChartBar] = []
    for (kind, _), number in zip(series, stack.numbers, strict=True):
        if number:
            bars.append(ChartBar(kind, _bar(number, end, left, width, floor)))
            floor = bars[-1].box.y
    numbers = ", ".join(f"{count(number)} {name}" for (_, name), number in zip(series, stack.numbers, strict=True))
    slot = Box(round(x, 1), _TOP, round(step, 1), ground - _TOP)
    return ChartColumn(f"{stack.at.strftime(time)}: {numbers}", slot, tuple(bars))


def _bar(number: int, end: int, left: float, width: float, ground: float) -> Box:
    """Return the bar for a non-zero number; `ground` is the y of its lower edge."""
    height = max(_MIN_HEIGHT, round(_y(0, end) - _y(number, end), 1))
    return Box(left, round(ground - height, 1), width, height)


def _y(value: int, end: int) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / end, 1)
