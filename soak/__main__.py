"""`make soak`, or `python -m soak`: kill a real installation again and again, and see whether anything is lost.

Exit code 0 only where nothing is lost, wrong or forbidden, every process ended in order, and nothing that was to stay flat
grew. Otherwise its folder stays, with logs, database and ledger.
"""

import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from bench.figures import machine
from soak.plan import SoakPlan, sizes
from soak.reporting import SoakReport, tell
from soak.running import judge_again, soak

_DATABASES: Final = ("sqlite", "postgresql")
#: What a shell says of a program that a signal ended.
_BY_A_SIGNAL: Final = 128


@click.command(
    epilog="Example: python -m soak --exports 20000 --kills 300 --database postgresql --seed 7\n\n"
    "Exit codes: 0 nothing lost, 1 something to look at, 2 wrong usage."
)
@click.option("--database", type=click.Choice([*_DATABASES, "both"]), default="both", show_default=True)
@click.option("--seconds", type=click.FloatRange(min=1), help="How long each database is soaked.")
@click.option("--minutes", type=click.FloatRange(min=0.1), help="The same in minutes.")
@click.option("--hours", type=click.FloatRange(min=0.01), help="The same in hours.")
@click.option("--exports", type=click.IntRange(min=1), help="How many are approved, for each database.")
@click.option(
    "--kills", type=click.IntRange(min=0), help="How many processes are killed, for each database; 0 for endurance."
)
@click.option("--rate", type=click.FloatRange(min=0.1), help="Approvals a second.")
@click.option("--seed", default=1, show_default=True, help="Decides the order of kills, the moods and what clients do.")
@click.option("--clients", default=6, show_default=True, type=click.IntRange(1, 100))
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16))
@click.option("--receivers", default=3, show_default=True, type=click.IntRange(1, 16))
@click.option("--targets", default=60, show_default=True, type=click.IntRange(3, 1000))
@click.option("--drain-s", default=300.0, show_default=True, help="How long everything may take to end after the last kill.")
@click.option("--sample-s", default=10.0, show_default=True, type=click.FloatRange(min=0.5), help="Between two samples.")
@click.option("--into", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as JSON, samples included.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Work in this folder, and keep it.")
@click.option(
    "--judge",
    "judged",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Judge a kept folder again (SQLite).",
)
def main(
    database: str,
    seconds: float | None,
    minutes: float | None,
    hours: float | None,
    exports: int | None,
    kills: int | None,
    rate: float | None,
    into: Path | None,
    keep: Path | None,
    judged: Path | None,
    **others: Any,
) -> None:
    """Kill a real installation again and again, and hold what arrived against what was acknowledged."""
    if judged is not None:
        _judge_again(judged)
    signal.signal(signal.SIGTERM, _stop)
    duration_s = seconds or (minutes or 0) * 60 or (hours or 0) * 3600 or None
    duration_s, exports, kills, rate = sizes(duration_s, exports, kills, rate)
    reports = []
    for name in _DATABASES if database == "both" else [database]:
        plan = SoakPlan(name, duration_s=duration_s, exports=exports, kills=kills, rate=rate, **others)
        click.echo(f"{name}: {exports:,} exports and {kills} kills in about {duration_s:g} s", err=True)
        reports.append(_soaked(plan, keep and keep / name))
        if into is not None:
            told = {**machine(), "command": " ".join(["python -m soak", *sys.argv[1:]])}
            into.write_text(json.dumps({**told, "runs": [report.record() for report in reports]}, indent=1) + "\n")
    raise SystemExit(0 if all(report.is_clean for report in reports) else 1)


def _soaked(plan: SoakPlan, keep: Path | None) -> SoakReport:
    folder = keep or Path(tempfile.mkdtemp(prefix="riskrelay-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    is_over = False
    try:
        report = soak(plan, folder)
        tell(report)
        is_over = report.is_clean and keep is None
        return report
    finally:
        if is_over:
            shutil.rmtree(folder)
        else:
            click.echo(f"Logs, database and ledger: {folder}", err=True)


def _judge_again(folder: Path) -> None:
    findings = judge_again(folder)
    for name in ("lost", "wrong", "forbidden"):
        for sentence in getattr(findings, name):
            click.echo(f"{name}: {sentence}")
    raise SystemExit(0 if findings.is_clean else 1)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(_BY_A_SIGNAL + number)


if __name__ == "__main__":
    main()
