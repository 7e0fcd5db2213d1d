"""The geometry of charts, as frozen values in the units of a chart's own box; a template draws them as SVG.

No colour, no script, no style: classes say what a part stands for. Whatever is there can be seen: one failure among a
million deliveries keeps a line of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.console.wording import count
from storage.exports.delivery_hours import DeliveryHour

WIDTH: Final = 760
HEIGHT: Final = 220
#: Room for the numbers on the left and the hours below.
_LEFT: Final = 64
_RIGHT: Final = 8
_TOP: Final = 12
_BOTTOM: Final = 28
#: The part of a column's place that it fills.
_FILLED: Final = 0.72
#: Less could not be seen.
_LEAST_HEIGHT: Final = 2.0
#: What an axis may end at, times a power of ten; the half of each but the first is whole.
_ENDS: Final = (1, 2, 4, 6, 8, 10)
#: An hour's name stands below every third column; more would run into each other.
_NAMED_EVERY: Final = 3


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """An hour: what was delivered stands below what failed, None where that is nothing; `place` spans the whole height."""

    hour: DeliveryHour
    place: Box
    delivered: Box | None
    failed: Box | None


@dataclass(frozen=True, slots=True)
class Tick:
    """A name on an axis, and where it stands; an hour's has its moment, so that a reader's zone may name it."""

    text: str
    x: float
    y: float
    at: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of hours: its box, columns and axes; `ticks` go with lines from `left` to `right`."""

    width: int
    height: int
    left: float
    right: float
    columns: tuple[Column, ...]
    ticks: tuple[Tick, ...]
    names: tuple[Tick, ...]


def of_hours(hours: Sequence[DeliveryHour]) -> Chart:
    """Return the chart of attempts by the hour, the oldest on the left; the hours are those of UTC."""
    end = axis_end(max((hour.tally.attempts for hour in hours), default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(hours))
    return Chart(
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        columns=tuple(_column(hour, _LEFT + number * step, step, end) for number, hour in enumerate(hours)),
        ticks=tuple(Tick(count(value), _LEFT - 8, _y(value, end)) for value in _marks(end)),
        names=tuple(
            Tick(f"{hour.at:%H:%M}", round(_LEFT + (number + 0.5) * step, 1), HEIGHT - 8, f"{hour.at:%Y-%m-%dT%H:%MZ}")
            for number, hour in enumerate(hours)
            if hour.at.hour % _NAMED_EVERY == 0
        ),
    )


def axis_end(most: int) -> int:
    """Return where an axis ends that has room for `most`: a round number, at least 1."""
    power = 1
    while most > 10 * power:
        power *= 10
    return next(end * power for end in _ENDS if end * power >= most)


def _marks(end: int) -> tuple[int, ...]:
    return (0, end) if end == 1 else (0, end // 2, end)


def _column(hour: DeliveryHour, x: float, step: float, end: int) -> Column:
    left, width = round(x + step * (1 - _FILLED) / 2, 1), round(step * _FILLED, 1)
    ground = _y(0, end)
    delivered = _part(hour.tally.delivered, end, left, width, ground)
    failed = _part(hour.tally.failed, end, left, width, delivered.y if delivered else ground)
    return Column(hour, Box(round(x, 1), _TOP, round(step, 1), ground - _TOP), delivered, failed)


def _part(number: int, end: int, left: float, width: float, ground: float) -> Box | None:
    """Return a part that stands on `ground`."""
    if not number:
        return None
    height = max(_LEAST_HEIGHT, round(_y(0, end) - _y(number, end), 1))
    return Box(left, round(ground - height, 1), width, height)


def _y(value: int, end: int) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / end, 1)
