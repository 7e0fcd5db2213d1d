"""`make soak`, or `python -m soak`: kill processes of a real installation and check that no data is lost.

The exit code is 0 only if nothing is lost, wrong or forbidden, every process exited cleanly, and no resource that must stay
flat grew. Otherwise the folder with logs, database and records is kept.
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
from soak.running import soak, verify_again
from soak.verification.report import SoakReport, print_report

_DATABASES: Final = ("sqlite", "postgresql")
#: The exit code after a signal is this plus the number of the signal, as in a shell.
_SIGNAL_EXIT_BASE: Final = 128


@click.command(
    epilog="Example: python -m soak --exports 20000 --kills 300 --database postgresql --seed 7\n\n"
    "Exit codes: 0 nothing lost, 1 a problem was found, 2 wrong usage."
)
@click.option("--database", type=click.Choice([*_DATABASES, "both"]), default="both", show_default=True)
@click.option("--seconds", type=click.FloatRange(min=1), help="Duration for each database.")
@click.option("--minutes", type=click.FloatRange(min=0.1), help="The same in minutes.")
@click.option("--hours", type=click.FloatRange(min=0.01), help="The same in hours.")
@click.option("--exports", type=click.IntRange(min=1), help="Approvals, for each database.")
@click.option("--kills", type=click.IntRange(min=0), help="Processes to kill, for each database; 0 for an endurance run.")
@click.option("--rate", type=click.FloatRange(min=0.1), help="Approvals per second.")
@click.option("--seed", default=1, show_default=True, help="Determines kills, receiver behaviors and client requests.")
@click.option("--clients", default=6, show_default=True, type=click.IntRange(1, 100))
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 16))
@click.option("--receivers", default=3, show_default=True, type=click.IntRange(1, 16))
@click.option("--trackers", default=1, show_default=True, type=click.IntRange(1, 16), help="Gitea servers.")
@click.option("--targets", default=60, show_default=True, type=click.IntRange(3, 1000))
@click.option(
    "--drain-s",
    "settle_s",
    default=300.0,
    show_default=True,
    help="Time limit for all exports to finish after the last kill.",
)
@click.option("--sample-s", default=10.0, show_default=True, type=click.FloatRange(min=0.5), help="Seconds between samples.")
@click.option("--into", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as JSON, samples included.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Work in this folder and keep it.")
@click.option(
    "--judge",
    "verified",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Verify a kept folder again (SQLite).",
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
    verified: Path | None,
    **others: Any,
) -> None:
    """Kill processes of a real installation and compare what arrived with what was acknowledged."""
    if verified is not None:
        _verify_again(verified)
    signal.signal(signal.SIGTERM, _stop)
    duration_s = seconds or (minutes or 0) * 60 or (hours or 0) * 3600 or None
    duration_s, exports, kills, rate = sizes(duration_s, exports, kills, rate)
    reports = []
    for name in _DATABASES if database == "both" else [database]:
        plan = SoakPlan(name, duration_s=duration_s, exports=exports, kills=kills, rate=rate, **others)
        click.echo(f"{name}: {exports:,} exports and {kills} kills in about {duration_s:g} s", err=True)
        reports.append(_soaked(plan, keep and keep / name))
        if into is not None:
            actual = {**machine(), "command": " ".join(["python -m soak", *sys.argv[1:]])}
            into.write_text(json.dumps({**actual, "runs": [report.record() for report in reports]}, indent=1) + "\n")
    raise SystemExit(0 if all(report.is_clean for report in reports) else 1)


def _soaked(plan: SoakPlan, keep: Path | None) -> SoakReport:
    folder = keep or Path(tempfile.mkdtemp(prefix="riskrelay-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    is_over = False
    try:
        report = soak(plan, folder)
        print_report(report)
        is_over = report.is_clean and keep is None
        return report
    finally:
        if is_over:
            shutil.rmtree(folder)
        else:
            click.echo(f"Logs, database and records: {folder}", err=True)


def _verify_again(folder: Path) -> None:
    findings = verify_again(folder)
    for name in ("lost", "wrong", "forbidden"):
        for sentence in getattr(findings, name):
            click.echo(f"{name}: {sentence}")
    raise SystemExit(0 if findings.is_clean else 1)


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(_SIGNAL_EXIT_BASE + number)


if __name__ == "__main__":
    main()
