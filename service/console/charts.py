"""Computes the geometry of charts in units of the SVG view box; a template draws them.

The template sets classes, and the style sheet defines their colors. Every non-zero value is visible: one failure among a
million deliveries still has a bar of its own.
"""

from collections.abc import Mapping, Sequence
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
    """A rectangle, such as the bar of a number; y increases downwards. `kind` is its class in the style sheet."""

    kind: str
    x: float
    y: float
    width: float
    height: float


class ChartColumn(NamedTuple):
    """One hour or day: its numbers as text, and a bar for each number above zero. `slot` spans the whole height."""

    text: str
    slot: Box
    bars: tuple[Box, ...]


class AxisLabel(NamedTuple):
    """A label of an axis; for an hour, `at` is its time, which the script converts to the reader's time zone."""

    text: str
    x: float
    y: float
    at: str = ""


class ChartedTrend(NamedTuple):
    """Numbers by hour or day, oldest first, with their stacked columns.

    Each of the `ticks` has a line from `left` to `right`.
    """

    series: Sequence[Series]
    stacks: Sequence[Stack]
    columns: Sequence[ChartColumn]
    ticks: Sequence[AxisLabel]
    labels: Sequence[AxisLabel]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT

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
    labeled = days[(len(days) - 1) % every :: every]
    return _charted(days, series, "%d %b", {day.at: (f"{day.at.day} {day.at:%b}", "") for day in labeled})


def hourly_attempts(hours: Sequence[DeliveryHour]) -> ChartedTrend:
    """Return the delivered and failed attempts of each hour (UTC)."""
    labeled = [hour.at for hour in hours if hour.at.hour % _LABEL_EVERY_H == 0]
    return _charted(
        _attempts(hours), DELIVERIES, "%H:%M UTC", {at: (f"{at:%H:%M}", f"{at:%Y-%m-%dT%H:%MZ}") for at in labeled}
    )


def daily_attempts(days: Sequence[DeliveryHour]) -> ChartedTrend:
    """Return the delivered and failed attempts of each day (UTC)."""
    return day_trend(_attempts(days), DELIVERIES)


def axis_end(most: int) -> int:
    """Return the maximum of an axis for values up to `most`: a round number such as 20 or 400, at least 1."""
    power = 1
    while most > 10 * power:
        power *= 10
    return next(end * power for end in _MAXIMA if end * power >= most)


def _attempts(counted: Sequence[DeliveryHour]) -> list[Stack]:
    return [Stack(each.at, (each.tally.delivered, each.tally.failed)) for each in counted]


def _charted(
    stacks: Sequence[Stack], series: Sequence[Series], time: str, labels: Mapping[datetime, tuple[str, str]]
) -> ChartedTrend:
    """Return stacked columns with their axes; `labels` are the text and the time of the labels below columns."""
    end = axis_end(max((sum(stack.numbers) for stack in stacks), default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(stacks))
    edges = [(_LEFT + number * step, stack) for number, stack in enumerate(stacks)]
    marks = (0, end) if end == 1 else (0, end // 2, end)
    return ChartedTrend(
        series,
        stacks,
        [_column(stack, series, time, x, step, end) for x, stack in edges],
        [AxisLabel(count(value), _LEFT - 6, _y(value, end)) for value in marks],
        [
            AxisLabel(labels[stack.at][0], round(x + step / 2, 1), HEIGHT - 6, labels[stack.at][1])
            for x, stack in edges
            if stack.at in labels
        ],
    )


def _column(stack: Stack, series: Sequence[Series], time: str, x: float, step: float, end: int) -> ChartColumn:
    """Return the column that begins at `x`; `end` is the maximum of the axis."""
    left, width = round(x + step * (1 - _FILL) / 2, 1), round(step * _FILL, 1)
    ground = floor = _y(0, end)
    bars: list[Box] = []
    for (kind, _), number in zip(series, stack.numbers, strict=True):
        if number:
            height = max(_MIN_HEIGHT, round(ground - _y(number, end), 1))
            floor = round(floor - height, 1)
            bars.append(Box(kind, left, floor, width, height))
    numbers = ", ".join(f"{count(number)} {name}" for (_, name), number in zip(series, stack.numbers, strict=True))
    slot = Box("slot", round(x, 1), _TOP, round(step, 1), ground - _TOP)
    return ChartColumn(f"{stack.at.strftime(time)}: {numbers}", slot, tuple(bars))


def _y(value: int, end: int) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / end, 1)
