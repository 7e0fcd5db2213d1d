"""The health of the installation: a card for each `/readyz` check on the overview, and one line for every page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from service.api.health import NOT_CURRENT, OK, UNAVAILABLE, UNKNOWN, VITAL
from storage.db.disk_space import DiskState

_NAMES: Final = {
    "database": "Database",
    "disk": "Disk",
    "schema": "Schema",
    "keys": "Encryption keys",
    "redis": "Redis",
    "workers": "Workers",
}
#: Users who are not the operator see this instead of a command.
_CONTACT_OPERATOR: Final = "Contact the operator of this installation."
_DOCTOR: Final = "bin/riskrelay doctor"

#: The meaning of each status, and the command that helps, by check and status.
_MEANING: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("database", OK): ("Responding.", ""),
    ("database", UNAVAILABLE): ("Not responding. Nothing is accepted or delivered.", _DOCTOR),
    ("disk", OK): ("Has room.", ""),
    ("disk", DiskState.LOW): ("Little space is left. Free space before nothing can be stored.", _DOCTOR),
    ("disk", DiskState.FULL): ("Full. Reading works; nothing is accepted or delivered until space is free.", _DOCTOR),
    ("schema", OK): ("Up to date.", ""),
    ("schema", NOT_CURRENT): ("Belongs to another version. Nothing is accepted.", "bin/riskrelay migrate"),
    ("keys", OK): ("Match the stored secrets.", ""),
    ("keys", "wrong"): ("Cannot decrypt the stored secrets. Restore the key that encrypted them.", _DOCTOR),
    ("redis", OK): ("Responding.", ""),
    ("redis", UNAVAILABLE): ("Not responding. Nothing is lost: workers send due exports in their next sweep.", _DOCTOR),
    ("workers", OK): ("At least one is running.", ""),
    ("workers", UNAVAILABLE): ("None is running. Approved exports wait.", "bin/riskrelay work"),
}
_UNCHECKED: Final = ("Not checked. Fix the other failed checks first.", "")


#: Failed checks in a few words. A check that did not run has no entry.
_FAILURES: Final[Mapping[tuple[str, str], str]] = {
    ("database", UNAVAILABLE): "Database not responding",
    ("disk", DiskState.LOW): "Disk nearly full",
    ("disk", DiskState.FULL): "Disk full",
    ("schema", NOT_CURRENT): "Schema out of date",
    ("keys", "wrong"): "Wrong encryption keys",
    ("redis", UNAVAILABLE): "Redis not responding",
    ("workers", UNAVAILABLE): "No worker running",
}


class HealthLine(NamedTuple):
    """The results of all checks in one line; `tone` is the color class of a status."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class HealthCard:
    """A check with its status and meaning. For a problem, the operator sees a `command`, and other users see `advice`."""

    name: str
    status: str
    meaning: str
    command: str = ""
    advice: str = ""


def health_cards(checks: Mapping[str, str], *, is_operator: bool) -> list[HealthCard]:
    """Return a card for each check, in the order of `checks`."""
    return [_card(check, status, is_operator) for check, status in checks.items()]


def health_line(checks: Mapping[str, str]) -> HealthLine:
    """Return the first problem and the number of other problems, or a text that there are none."""
    failures = [(check, _FAILURES[check, status]) for check, status in checks.items() if (check, status) in _FAILURES]
    if not failures:
        return HealthLine("All systems ok", "good")
    is_vital = any(check in VITAL and checks[check] != DiskState.LOW for check, _ in failures)
    more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
    return HealthLine(failures[0][1] + more, "bad" if is_vital else "warn")


def _card(check: str, status: str, is_operator: bool) -> HealthCard:
    meaning, command = _UNCHECKED if status == UNKNOWN else _MEANING[check, status]
    if is_operator or not command:
        return HealthCard(_NAMES[check], status, meaning, command)
    return HealthCard(_NAMES[check], status, meaning, advice=_CONTACT_OPERATOR)
