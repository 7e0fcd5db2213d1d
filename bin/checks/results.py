"""What a check of `doctor` finds: how well something is, in one sentence, and what to type or to change where it is not."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How well it is; in the order of growing concern."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `fix` is there where not all is well."""

    name: str
    level: Level
    message: str
    fix: str | None = None

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"name": self.name, "status": self.level.value, "message": self.message, "fix": self.fix}


def ok(name: str, message: str) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, message)


def warning(name: str, message: str, fix: str) -> Finding:
    """It works, and should be seen to."""
    return Finding(name, Level.WARNING, message, fix)


def failure(name: str, message: str, fix: str) -> Finding:
    """It does not work, or will not for long."""
    return Finding(name, Level.FAILURE, message, fix)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the greatest concern among them."""
    levels = {each.level for each in findings}
    return next((level for level in reversed(Level) if level in levels), Level.OK)
