"""`doctor`: one line per check, with the fix for each problem. It changes nothing.

With invalid settings it reports every mistake and runs the checks that need none; likewise without a database.
"""

import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Final

import click

from bin.checks import machine, stores
from bin.checks.egress import egress
from bin.checks.results import CheckResult, Level, failure, ok, warning, worst
from bin.cli import extras
from bin.cli.output import counted, echo
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from schemas.settings.definitions import InvalidSettings, Settings, find_env_file, load_settings, unknown_names
from storage.db.engine import OUTAGES, close_database, connection, location_hint, open_database, outage_reason
from storage.reporting import metrics_snapshot
from storage.reporting.metrics_snapshot import MetricsSnapshot

Checked = CheckResult | Iterable[CheckResult]

#: Checks that need only the settings, in the order of the report.
MACHINE: Final[dict[str, Callable[[Settings, datetime], Checked]]] = {
    "data": lambda settings, _: machine.data_dir(settings),
    "disk": lambda settings, _: machine.disk(settings),
    "bind": lambda settings, _: machine.bind(settings),
    "base URL": lambda settings, _: machine.base_url(settings),
    "Redis": lambda settings, _: stores.redis(settings),
    "egress": egress,
    "backups": machine.backups,
}
#: Checks that need the migrated database.
DATABASE: Final[dict[str, Callable[[Settings, MetricsSnapshot, datetime], Checked]]] = {
    "SQLite": lambda *_: stores.sqlite_file(),
    "restore": lambda *_: stores.unfinished_restore(),
    "clock": lambda *_: stores.database_clock(),
    "timeouts": lambda *_: stores.timeouts(),
    "accounts": lambda settings, *_: stores.first_records(settings),
    "keys": lambda settings, *_: stores.keys(settings),
    "secrets": lambda settings, *_: stores.secrets(settings),
    "backups": lambda settings, _, now: stores.backups(settings, now),
    "workers": lambda _, figures, now: stores.heartbeat(figures, now),
    "deliveries": lambda _, figures, __: stores.deliveries(figures),
    "targets": lambda settings, figures, _: stores.targets(settings, figures),
    "operator": lambda settings, *_: stores.operator(settings),
    "limits": lambda settings, _, now: stores.limits(settings, now),
    "compliance": lambda _, figures, __: stores.compliance(figures),
}


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check this installation and print a fix for each problem.

    Example: riskrelay doctor --json

    Exit codes: 0 no failures (warnings are possible), 1 failures, 2 wrong settings.
    """
    found: list[CheckResult] = []
    for each in run_checks():
        found.append(each)
        if not as_json:
            echo(_line(each))
    if as_json:
        print_record({"status": worst(found).value, "checks": [each.record() for each in found]}, as_json)
    else:
        echo(_conclusion(found))
    failed = {each.name for each in found if each.level is Level.FAILURE}
    if failed:
        raise SystemExit(2 if "settings" in failed else 1)


def run_checks() -> Iterator[CheckResult]:
    """Run every check; yields each result as soon as it is known."""
    env_file = find_env_file()
    yield machine.python(sys.version_info[:3], platform.python_version())
    yield from _run("env file", partial(machine.env_file, env_file))
    try:
        settings = load_settings(env_file)
    except InvalidSettings as wrong:
        for name, mistakes in sorted(wrong.mistakes.items()):
            fix = f"correct it in {env_file} or in the environment"
            if name == str(env_file):  # .env as a whole: unreadable, or another user can change it
                fix = "run this as the owner of the file, which nobody else may change; each line is NAME=value, in UTF-8"
            yield failure("settings", f"{name}: {' '.join(mistakes)}", fix)
        return
    yield from _run("settings", partial(_settings, settings))
    for name, check in MACHINE.items():
        yield from _run(name, partial(check, settings, utc_now()))
    yield from _check_database(settings)


def _settings(settings: Settings) -> Iterator[CheckResult]:
    lacking, unknown = extras.missing(settings), unknown_names()
    for name, problems in lacking.items():
        yield failure("settings", f"{name}: {' '.join(problems)}", "run that, or unset it")
    for name, meant in unknown.items():
        fix = f"did you mean {meant}?" if meant else "remove it, if nothing else reads it"
        yield warning("settings", f".env sets {name!r}, which is not a setting of RiskRelay.", fix)
    if not (lacking or unknown):
        yield ok("settings", "All settings are valid.")


def _check_database(settings: Settings) -> Iterator[CheckResult]:
    open_database(settings.database_url)
    try:
        fitness = stores.fitness()
        yield fitness
        if fitness.level is not Level.OK:
            return
        with connection():
            now = utc_now()
            figures = metrics_snapshot.take_snapshot(now, None)
            for name, check in DATABASE.items():
                yield from _run(name, partial(check, settings, figures, now))
    except OUTAGES as outage:
        yield failure(
            "database", f"The database is unavailable, locked or full: {outage_reason(outage)}.", f"check {location_hint()}"
        )
    finally:
        close_database()


def _run(name: str, check: Callable[[], Checked]) -> list[CheckResult]:
    """Run a check; one that raises is a failure and does not stop the others."""
    try:
        found = check()
        return [found] if isinstance(found, CheckResult) else list(found)
    except OUTAGES:
        raise
    except PermissionError as refused:
        return [failure(name, f"This user may not access {refused.filename}.", "run this as the owner of the installation")]
    except Exception as broken:  # noqa: BLE001 - a bug in one check must not hide the results of the others
        fix = "see the other checks; if they are ok, this is a bug"
        return [failure(name, f"The check failed ({type(broken).__name__}).", fix)]


def _line(found: CheckResult) -> str:
    fix = f" Fix: {found.fix}" if found.fix else ""
    return f"{found.level.value:8} {found.name:11} {found.message}{fix}"


def _conclusion(found: list[CheckResult]) -> str:
    failures, warnings = (sum(each.level is level for each in found) for level in (Level.FAILURE, Level.WARNING))
    if not (failures or warnings):
        return "No problems found."
    return f"{counted(failures, 'failure')}, {counted(warnings, 'warning')}."
