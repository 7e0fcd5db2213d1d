"""What a measurement found: its median, its spread and its aim, as a table on the terminal and as JSON beside this package."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

_HERE: Final = Path(__file__).parent


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
        """Tell whether the median reaches the aim; None where there is no aim, or nothing was measured."""
        if self.aim is None or self.median is None:
            return None
        return self.median <= self.aim if self.is_cost else self.median >= self.aim


def machine() -> dict[str, Any]:
    """Return what the figures depend on and do not measure."""
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def write(name: str, figures: Mapping[str, Any]) -> None:
    """Keep figures as bench/latest_NAME.json."""
    (_HERE / f"latest_{name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | str | None]]) -> None:
    """Print a row of figures for each name."""
    width = max(len(title), *(len(name) for name in rows))
    widths = [max(len(column), 9) for column in columns]
    click.echo("  ".join([f"{title:{width}}", *(f"{column:>{size}}" for column, size in zip(columns, widths, strict=True))]))
    for name, figures in rows.items():
        told = [f"{_told(figure):>{size}}" for figure, size in zip(figures, widths, strict=True)]
        click.echo("  ".join([f"{name:{width}}", *told]))
    click.echo()


def _told(figure: float | str | None) -> str:
    if figure is None:
        return "-"
    if isinstance(figure, str):
        return figure
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
