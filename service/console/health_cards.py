"""The lights of the overview: what each check of `/readyz` came to, what that means, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.api.health import NOT_CURRENT, OK, UNAVAILABLE, UNKNOWN

_NAMES: Final = {
    "database": "Database",
    "schema": "Schema",
    "keys": "Encryption keys",
    "redis": "Redis",
    "workers": "Workers",
}
#: Whoever may not type commands there.
_TELL: Final = "Tell whoever runs this installation."
_DOCTOR: Final = "bin/riskrelay doctor"

#: What it means, and the command that helps, by check and what it came to.
_MEANING: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("database", OK): ("It answers.", ""),
    ("database", UNAVAILABLE): ("It does not answer: nothing is taken in and nothing is sent.", _DOCTOR),
    ("schema", OK): ("It is up to date.", ""),
    ("schema", NOT_CURRENT): ("It belongs to another version: nothing is taken in.", "bin/riskrelay migrate"),
    ("keys", OK): ("They decrypt what is stored.", ""),
    ("keys", "wrong"): ("They do not decrypt what is stored: put back the key that encrypted it.", _DOCTOR),
    ("redis", OK): ("It answers.", ""),
    ("redis", UNAVAILABLE): ("It does not answer. Nothing is lost: what is due is sent with the next sweep.", _DOCTOR),
    ("workers", OK): ("At least one is running.", ""),
    ("workers", UNAVAILABLE): ("None is running: what is approved waits.", "bin/riskrelay work"),
}
_NOT_ASKED: Final = ("It could not be looked at; see to the others first.", "")


@dataclass(frozen=True, slots=True)
class Light:
    """A check: its name, what it came to, what that means; `command` helps who may type it, `told` the others."""

    name: str
    status: str
    meaning: str
    command: str = ""
    told: str = ""


def lights(found: Mapping[str, str], *, is_operator: bool) -> list[Light]:
    """Return a light for each check, in their order."""
    return [_light(check, status, is_operator) for check, status in found.items()]


def _light(check: str, status: str, is_operator: bool) -> Light:
    meaning, command = _NOT_ASKED if status == UNKNOWN else _MEANING[check, status]
    if is_operator or not command:
        return Light(_NAMES[check], status, meaning, command)
    return Light(_NAMES[check], status, meaning, told=_TELL)
