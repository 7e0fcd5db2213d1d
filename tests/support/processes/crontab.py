"""The jobs and variables of `bin/crontab.example`."""

import re
from pathlib import Path
from typing import Final

CRONTAB: Final = (Path(__file__).resolve().parents[3] / "bin" / "crontab.example").read_text(encoding="utf-8")
_VARIABLE: Final = re.compile(r"^([A-Z]+)=(.*)$", re.MULTILINE)
_JOB: Final = re.compile(r"^((?:[*0-9]\S* +){5})(.+)$", re.MULTILINE)


def cron_variables() -> dict[str, str]:
    """Return the variables that the crontab sets."""
    return dict(_VARIABLE.findall(CRONTAB))


def cron_jobs() -> list[tuple[str, str]]:
    """Return the five fields and the command of every job."""
    return _JOB.findall(CRONTAB)
