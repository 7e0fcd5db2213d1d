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
#: The results of the last `make bench`; git ignores the file.
LATEST: Final = _HERE / "latest.json"
#: Repetitions of a measurement agree in fewer digits than this.
_SIGNIFICANT_DIGITS: Final = 4


class Extent(Enum):
    """Whether to run a whole measurement, or only a part, so that all measurements together take a few minutes."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its key in the JSON, the value of each repetition in `unit` (`x` for a ratio), and its aim.

    `aim` is the smallest acceptable value, or the largest if `is_cost`. No values: it cannot be measured on this machine.
    """

    name: str
    values: Sequence[float]
    unit: str
    aim: float | None = None
    is_cost: bool = False

    @property
    def median(self) -> float | None:
        """Return the median of all repetitions; None without values."""
        return median(self.values) if self.values else None

    @property
    def is_met(self) -> bool | None:
        """Return whether the median meets the aim; None without an aim or without values."""
        if self.aim is None or self.median is None:
            return None
        return self.median <= self.aim if self.is_cost else self.median >= self.aim


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float], aim: float | None = None) -> Figure:
    """Return the ratio ours ÷ theirs of each repetition: the two were measured alternately, one right after the other."""
    return Figure(name, [our / their for our, their in zip(ours, theirs, strict=True)], "x", aim)


def flat(figures: Iterable[Figure], promised: Iterable[str]) -> dict[str, float | None]:
    """Return the rounded medians by name; None for promised names that were not measured."""
    found = {figure.name: _rounded(figure.median) for figure in figures}
    return {**dict.fromkeys(promised), **found}


def machine() -> dict[str, Any]:
    """Return the conditions that affect the figures: Python version, cores, load average."""
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def write(name: str, figures: Mapping[str, Any]) -> None:
    """Write figures to bench/latest_NAME.json."""
    _write_json(_HERE / f"latest_{name}.json", figures)


def write_latest(figures: Mapping[str, Any], path: Path = LATEST) -> None:
    """Write the results of `make bench`."""
    _write_json(path, figures)


def print_table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | str | None]]) -> None:
    """Print a row of figures for each name."""
    width = max(len(title), *(len(name) for name in rows))
    widths = [max(len(column), 9) for column in columns]
    click.echo("  ".join([f"{title:{width}}", *(f"{column:>{size}}" for column, size in zip(columns, widths, strict=True))]))
    for name, figures in rows.items():
        cells = [f"{_formatted(figure):>{size}}" for figure, size in zip(figures, widths, strict=True)]
        click.echo("  ".join([f"{name:{width}}", *cells]))
    click.echo()


def print_figures(title: str, figures: Sequence[Figure]) -> None:
    """Print the median, the lowest and the highest value, and the aim of each figure, and whether the aim is met."""
    if figures:
        print_table(
            title, ("median", "lowest", "highest", "unit", "aim", ""), {figure.name: _row(figure) for figure in figures}
        )


def _row(figure: Figure) -> list[float | str | None]:
    lowest, highest = (min(figure.values), max(figure.values)) if figure.values else (None, None)
    aim = None if figure.aim is None else f"{'at most' if figure.is_cost else 'at least'} {figure.aim:,g}"
    met = {True: "met", False: "missed", None: ""}[figure.is_met]
    return [figure.median, lowest, highest, figure.unit, aim, met]


def _write_json(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else float(f"{figure:.{_SIGNIFICANT_DIGITS}g}")


def _formatted(figure: float | str | None) -> str:
    if figure is None:
        return "-"
    if isinstance(figure, str):
        return figure
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
