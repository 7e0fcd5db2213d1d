"""Health cards of the overview: the status of each `/readyz` check, what it means, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.api.health import NOT_CURRENT, OK, UNAVAILABLE, UNKNOWN
from storage.db.disk_space import DiskState

_NAMES: Final = {
    "database": "Database",
    "disk": "Disk",
    "schema": "Schema",
    "keys": "Encryption keys",
    "redis": "Redis",
    "workers": "Workers",
}
#: Shown instead of a command to users who are not the operator.
_CONTACT_OPERATOR: Final = "Contact the operator of this installation."
_DOCTOR: Final = "bin/riskrelay doctor"

#: The meaning and the command that helps, by check and status.
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


@dataclass(frozen=True, slots=True)
class HealthCard:
    """A check with its status and meaning; a problem has a `command` for the operator and `advice` for other users."""

    name: str
    status: str
    meaning: str
    command: str = ""
    advice: str = ""


def health_cards(checks: Mapping[str, str], *, is_operator: bool) -> list[HealthCard]:
    """Return a card for each check, in the order of `checks`."""
    return [_card(check, status, is_operator) for check, status in checks.items()]


def _card(check: str, status: str, is_operator: bool) -> HealthCard:
    meaning, command = _UNCHECKED if status == UNKNOWN else _MEANING[check, status]
    if is_operator or not command:
        return HealthCard(_NAMES[check], status, meaning, command)
    return HealthCard(_NAMES[check], status, meaning, advice=_CONTACT_OPERATOR)
