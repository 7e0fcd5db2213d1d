"""The health of the installation: a card for each `/readyz` check on the overview, and one line for every page."""

from collections.abc import Mapping
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
#: The commands that help if a check fails; for the other checks, `doctor`.
_COMMANDS: Final = {"schema": "bin/riskrelay migrate", "workers": "bin/riskrelay work"}

#: The meaning of each status, by check and status.
_MEANING: Final[Mapping[tuple[str, str], str]] = {
    ("database", OK): "Responding.",
    ("database", UNAVAILABLE): "Not responding. Nothing is accepted or delivered.",
    ("disk", OK): "Has room.",
    ("disk", DiskState.LOW): "Little space is left. Free space before nothing can be stored.",
    ("disk", DiskState.FULL): "Full. Reading works; nothing is accepted or delivered until space is free.",
    ("schema", OK): "Up to date.",
    ("schema", NOT_CURRENT): "Belongs to another version. Nothing is accepted.",
    ("keys", OK): "Match the stored secrets.",
    ("keys", "wrong"): "Cannot decrypt the stored secrets. Restore the key that encrypted them.",
    ("redis", OK): "Responding.",
    ("redis", UNAVAILABLE): "Not responding. Nothing is lost: workers send due exports in their next sweep.",
    ("workers", OK): "At least one is running.",
    ("workers", UNAVAILABLE): "None is running. Approved exports wait.",
}


class HealthLine(NamedTuple):
    """The results of all checks in one line; `tone` is the color class of a status."""

    text: str
    tone: str


class HealthCard(NamedTuple):
    """A check with its status and meaning. For a problem, `advice` is the fix, with a command for the operator."""

    name: str
    status: str
    meaning: str
    advice: str = ""


def health_cards(checks: Mapping[str, str], *, is_operator: bool) -> list[HealthCard]:
    """Return a card for each check, in the order of `checks`."""
    return [_card(check, status, is_operator) for check, status in checks.items()]


def health_line(checks: Mapping[str, str]) -> HealthLine:
    """Return the first problem and the number of other problems, or a text that there are none."""
    # A check that did not run is no problem by itself.
    failed = [check for check, status in checks.items() if status not in {OK, UNKNOWN}]
    if not failed:
        return HealthLine("All systems ok", "good")
    is_vital = any(check in VITAL and checks[check] != DiskState.LOW for check in failed)
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    first = f"{_NAMES[failed[0]]} {checks[failed[0]].replace('_', ' ')}"
    return HealthLine(first + more, "bad" if is_vital else "warn")


def _card(check: str, status: str, is_operator: bool) -> HealthCard:
    if status == UNKNOWN:
        return HealthCard(_NAMES[check], status, "Not checked. Fix the other failed checks first.")
    command = _COMMANDS.get(check, "bin/riskrelay doctor")
    advice = f"Run `{command}` on the server." if is_operator else "Contact the operator of this installation."
    return HealthCard(_NAMES[check], status, _MEANING[check, status], "" if status == OK else advice)
