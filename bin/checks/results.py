"""The result of a check of `doctor`: a level, one sentence, and the fix."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How serious a result is, least serious first."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; `fix` is None only for OK."""

    name: str
    level: Level
    message: str
    fix: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {"name": self.name, "status": self.level.value, "message": self.message, "fix": self.fix}


def ok(name: str, message: str) -> CheckResult:
    """Return a result without a problem."""
    return CheckResult(name, Level.OK, message)


def warning(name: str, message: str, fix: str) -> CheckResult:
    """Return a result for something that works and needs attention."""
    return CheckResult(name, Level.WARNING, message, fix)


def failure(name: str, message: str, fix: str) -> CheckResult:
    """Return a result for something that does not work, or will soon stop."""
    return CheckResult(name, Level.FAILURE, message, fix)


def worst(results: Iterable[CheckResult]) -> Level:
    """Return the most serious level."""
    levels = {each.level for each in results}
    return next((level for level in reversed(Level) if level in levels), Level.OK)
