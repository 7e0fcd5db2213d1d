"""Results of a measurement: medians, spread and aims, as tables on the terminal and as JSON beside this package."""

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

_HERE: Final = Path(__file__).parent
#: What `make bench` found last; not tracked.
LATEST: Final = _HERE / "latest.json"
#: More digits than any of these figures is worth.
_DIGITS: Final = 4


class Extent(Enum):
    """How much of a measurement is made: all of it, or what fits into a few minutes with everything else."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure by its flat name: what each round gave, in `unit` (`x` for a ratio), and what it ought to be.

    `aim` is the least it should be, or the most where `is_cost`; no values mean that it could not be measured here.
    """

    name: str
    values: Sequence[float]
    unit: str
    aim: float | None = None
    is_cost: bool = False

    @property
    def median(self) -> float | None:
        """Return the median of all rounds; None where there was none."""
        return median(self.values) if self.values else None

    @property
    def is_met(self) -> bool | None:
        """Return whether the median reaches the aim; None where there is no aim, or nothing was measured."""
        if self.aim is None or self.median is None:
            return None
        return self.median <= self.aim if self.is_cost else self.median >= self.aim


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float], aim: float | None = None) -> Figure:
    """Return ours ÷ theirs for each repetition: alternating measurements are compared within their repetition."""
    return Figure(name, [one / other for one, other in zip(ours, theirs, strict=True)], "x", aim)


def flat(figures: Iterable[Figure], promised: Iterable[str]) -> dict[str, float | None]:
    """Return the medians by name, to a few digits; None for what was promised and not measured."""
    found = {figure.name: _rounded(figure.median) for figure in figures}
    return {**dict.fromkeys(promised), **found}


def machine() -> dict[str, Any]:
    """Return what the figures depend on and do not measure."""
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def write(name: str, figures: Mapping[str, Any]) -> None:
    """Keep figures as bench/latest_NAME.json."""
    _keep(_HERE / f"latest_{name}.json", figures)


def write_latest(figures: Mapping[str, Any], path: Path = LATEST) -> None:
    """Keep what `make bench` found."""
    _keep(path, figures)


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | str | None]]) -> None:
    """Print a row of figures for each name."""
    width = max(len(title), *(len(name) for name in rows))
    widths = [max(len(column), 9) for column in columns]
    click.echo("  ".join([f"{title:{width}}", *(f"{column:>{size}}" for column, size in zip(columns, widths, strict=True))]))
    for name, figures in rows.items():
        cells = [f"{_formatted(figure):>{size}}" for figure, size in zip(figures, widths, strict=True)]
        click.echo("  ".join([f"{name:{width}}", *cells]))
    click.echo()


def tell(title: str, figures: Sequence[Figure]) -> None:
    """Print the median of each figure, how far its rounds lay apart, its aim, and whether it is met."""
    if figures:
        table(title, ("median", "lowest", "highest", "unit", "aim", ""), {figure.name: _row(figure) for figure in figures})


def _row(figure: Figure) -> list[float | str | None]:
    lowest, highest = (min(figure.values), max(figure.values)) if figure.values else (None, None)
    aim = None if figure.aim is None else f"{'at most' if figure.is_cost else 'at least'} {figure.aim:,g}"
    met = {True: "met", False: "missed", None: ""}[figure.is_met]
    return [figure.median, lowest, highest, figure.unit, aim, met]


def _keep(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else float(f"{figure:.{_DIGITS}g}")


def _formatted(figure: float | str | None) -> str:
    if figure is None:
        return "-"
    if isinstance(figure, str):
        return figure
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
