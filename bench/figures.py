"""What a measurement found: a table on the terminal, and all of it as JSON beside this package."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

_HERE: Final = Path(__file__).parent


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
