"""`doctor`: one line a check, each with what to do where not all is well. It changes nothing.

With wrong settings it tells every mistake and checks what needs none of them; without a database what needs no database.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Final

import click

from bin.checks import machine, stores
from bin.checks.results import Finding, Level, failure, ok, warning, worst
from bin.cli.records import json_option, print_record
from runtime.clock import utc_now
from schemas.settings.definitions import InvalidSettings, Settings, find_env_file, load_settings, strange_names
from storage.db.engine import OUTAGES, close_database, connection, location_hint, open_database, outage_reason
from storage.reporting import metrics_snapshot
from storage.reporting.metrics_snapshot import MetricsSnapshot

Checked = Finding | Iterable[Finding]

#: What needs the settings alone, in the order of the report.
MACHINE: Final[dict[str, Callable[[Settings, datetime], Checked]]] = {
    "data": lambda settings, _: machine.data_dir(settings),
    "disk": lambda settings, _: machine.disk(settings),
    "bind": lambda settings, _: machine.bind(settings),
    "base URL": lambda settings, _: machine.base_url(settings),
    "Redis": lambda settings, _: stores.redis(settings),
    "backups": machine.backups,
}
#: What asks a database that is ours and migrated.
DATABASE: Final[dict[str, Callable[[Settings, MetricsSnapshot, datetime], Checked]]] = {
    "SQLite": lambda *_: stores.sqlite_file(),
    "restore": lambda *_: stores.restored(),
    "clock": lambda *_: stores.database_clock(),
    "keys": lambda settings, *_: stores.keys(settings),
    "secrets": lambda settings, *_: stores.secrets(settings),
    "workers": lambda _, figures, now: stores.heartbeat(figures, now),
    "deliveries": lambda _, figures, __: stores.deliveries(figures),
    "targets": lambda _, figures, __: stores.targets(figures),
    "operator": lambda settings, *_: stores.operator(settings),
    "compliance": lambda _, figures, __: stores.compliance(figures),
}


@click.command(
    epilog="Example: riskrelay doctor --json\n\n"
    "Exit codes: 0 all is well, warnings included, 1 something failed, 2 wrong settings."
)
@json_option
def doctor(as_json: bool) -> None:
    """Check this installation and print a fix for each problem."""
    found: list[Finding] = []
    has_settings = True
    for each in examined():
        found.append(each)
        has_settings = has_settings and not (each.name == "settings" and each.level is Level.FAILURE)
        if not as_json:
            click.echo(_line(each))
    if as_json:
        print_record({"status": worst(found).value, "checks": [each.record() for each in found]}, as_json)
    else:
        click.echo(_conclusion(found))
    if worst(found) is Level.FAILURE:
        raise SystemExit(1 if has_settings else 2)


def examined() -> Iterator[Finding]:
    """Check everything; yields what each check found as soon as it is known."""
    env_file = find_env_file()
    yield machine.python(sys.version_info[:3], platform.python_version())
    yield machine.env_file(env_file, os.geteuid())
    try:
        settings = load_settings(env_file)
    except InvalidSettings as wrong:
        for name, told in sorted(wrong.mistakes.items()):
            fix = f"correct it in {env_file} or in the environment"
            if name == str(env_file):  # .env as a whole: most often it is another user's, as it should be
                fix = "run this as the user that it belongs to; it is lines of NAME=value in UTF-8"
            yield failure("settings", f"{name}: {' '.join(told)}", fix)
        return
    yield from _told("settings", _settings)
    for name, check in MACHINE.items():
        yield from _told(name, partial(check, settings, utc_now()))
    yield from _examined_database(settings)


def _settings() -> Iterator[Finding]:
    strange = strange_names()
    for name, meant in strange.items():
        fix = f"did you mean {meant}?" if meant else "remove it, if nothing else reads it"
        yield warning("settings", f".env sets {name!r}, which is no setting of RiskRelay.", fix)
    if not strange:
        yield ok("settings", "Every setting is fit.")


def _examined_database(settings: Settings) -> Iterator[Finding]:
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
                yield from _told(name, partial(check, settings, figures, now))
    except OUTAGES as away:
        yield failure("database", f"The database is away, locked or full: {outage_reason(away)}.", f"see {location_hint()}")
    finally:
        close_database()


def _told(name: str, check: Callable[[], Checked]) -> list[Finding]:
    """Return what a check found; one that breaks is told and ends nothing."""
    try:
        found = check()
        return [found] if isinstance(found, Finding) else list(found)
    except OUTAGES:
        raise
    except Exception as broken:  # noqa: BLE001 - a doctor that faints at one symptom sees no other
        fix = "see the other checks; where they are well, this is a bug"
        return [failure(name, f"This could not be looked at ({type(broken).__name__}).", fix)]


def _line(found: Finding) -> str:
    remedy = f" Fix: {found.fix}" if found.fix else ""
    return f"{found.level.value:8} {found.name:11} {found.message}{remedy}"


def _conclusion(found: list[Finding]) -> str:
    counts = {level: sum(each.level is level for each in found) for level in (Level.FAILURE, Level.WARNING)}
    if not any(counts.values()):
        return "All is well."
    return f"{counts[Level.FAILURE]} failed, {counts[Level.WARNING]} to be seen to."
