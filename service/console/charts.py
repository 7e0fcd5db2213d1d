"""The geometry of charts in units of the SVG view box; a template draws it.

The template sets classes, the style sheet colors. Every non-zero value is visible: one failure among a million deliveries
is still a line of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.console.wording import count
from storage.exports.delivery_hours import DeliveryHour

WIDTH: Final = 760
HEIGHT: Final = 220
#: Space for the numbers on the left and the hours below.
_LEFT: Final = 64
_RIGHT: Final = 8
_TOP: Final = 12
_BOTTOM: Final = 28
#: The share of its slot that a column fills.
_FILL: Final = 0.72
#: The smallest visible height.
_MIN_HEIGHT: Final = 2.0
#: Maxima of an axis, times a power of ten. All but the first have an integer half.
_MAXIMA: Final = (1, 2, 4, 6, 8, 10)
#: Only every third column has a label, so that labels do not overlap.
_LABEL_EVERY_H: Final = 3


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; y increases downwards."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """One hour: failed attempts on top of delivered ones, each None if zero; `slot` spans the whole height."""

    hour: DeliveryHour
    slot: Box
    delivered: Box | None
    failed: Box | None


@dataclass(frozen=True, slots=True)
class AxisLabel:
    """A label of an axis; that of an hour has its time `at`, so that the script can convert it to the reader's time zone."""

    text: str
    x: float
    y: float
    at: str = ""


@dataclass(frozen=True, slots=True)
class HourlyChart:
    """A chart of hours; each of the `ticks` has a line from `left` to `right`, `hours` label the columns."""

    width: int
    height: int
    left: float
    right: float
    columns: tuple[ChartColumn, ...]
    ticks: tuple[AxisLabel, ...]
    hours: tuple[AxisLabel, ...]


def hourly_chart(hours: Sequence[DeliveryHour]) -> HourlyChart:
    """Return the chart of attempts per hour (UTC), oldest on the left."""
    end = axis_end(max((hour.tally.attempts for hour in hours), default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(hours))
    return HourlyChart(
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        columns=tuple(_column(hour, _LEFT + number * step, step, end) for number, hour in enumerate(hours)),
        ticks=tuple(AxisLabel(count(value), _LEFT - 8, _y(value, end)) for value in _marks(end)),
        hours=tuple(
            AxisLabel(f"{hour.at:%H:%M}", round(_LEFT + (number + 0.5) * step, 1), HEIGHT - 8, f"{hour.at:%Y-%m-%dT%H:%MZ}")
            for number, hour in enumerate(hours)
            if hour.at.hour % _LABEL_EVERY_H == 0
        ),
    )


def axis_end(most: int) -> int:
    """Return the maximum of an axis for values up to `most`: a number such as 20 or 400, at least 1."""
    power = 1
    while most > 10 * power:
        power *= 10
    return next(end * power for end in _MAXIMA if end * power >= most)


def _marks(end: int) -> tuple[int, ...]:
    return (0, end) if end == 1 else (0, end // 2, end)


def _column(hour: DeliveryHour, x: float, step: float, end: int) -> ChartColumn:
    left, width = round(x + step * (1 - _FILL) / 2, 1), round(step * _FILL, 1)
    ground = _y(0, end)
    delivered = _bar(hour.tally.delivered, end, left, width, ground)
    failed = _bar(hour.tally.failed, end, left, width, delivered.y if delivered else ground)
    return ChartColumn(hour, Box(round(x, 1), _TOP, round(step, 1), ground - _TOP), delivered, failed)


def _bar(number: int, end: int, left: float, width: float, ground: float) -> Box | None:
    """Return the bar for a number, or None for zero; `ground` is the y of its lower edge."""
    if not number:
        return None
    height = max(_MIN_HEIGHT, round(_y(0, end) - _y(number, end), 1))
    return Box(left, round(ground - height, 1), width, height)


def _y(value: int, end: int) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / end, 1)
