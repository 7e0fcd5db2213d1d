"""How values read on a page: moments, durations, counts, statuses; and what a page says after something was done."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from markupsafe import Markup

from service.console.error_help import told
from service.console.untrusted_text import visible

#: What `?done=` may say; anything else says nothing.
NOTICES: Final[Mapping[str, str]] = {
    "signed_out": "You are signed out.",
    "approved": "Approved. A worker delivers it.",
    "retried": "Retried. It is due now, with a fresh schedule of attempts.",
    "dismissed": "Dismissed. It will never be sent.",
    "paused": "Paused. What is approved for it waits.",
    "resumed": "Resumed. What waited is being sent.",
    "disabled": "Disabled. What was approved for it fails visibly.",
    "validated": "Validated: it passed.",
    "validation_failed": "The validation failed. Why stands below, as last validation.",
    "pinged": "The ping was delivered. It stands below, as last ping.",
    "ping_failed": "The ping was not delivered. Why stands below, as last ping.",
    "secret_set": "The new secret signs from the next delivery on.",
    "recovery_begun": "The recovery has begun; a worker carries it out.",
    "recovery_cancelled": "Cancelled. What is put back already stays so.",
    "session_revoked": "That session has ended.",
}

#: Which of them are no good news.
BAD_NEWS: Final = frozenset({"validation_failed", "ping_failed"})

#: A colour beside the word: what waits, what works, what is over, what needs somebody.
TONES: Final[Mapping[str, str]] = {
    "prepared": "calm",
    "approved": "busy",
    "delivering": "busy",
    "retry_scheduled": "warn",
    "exported": "good",
    "failed": "bad",
    "blocked": "bad",
    "dismissed": "calm",
    "active": "good",
    "inactive": "calm",
    "paused": "warn",
    "disabled": "bad",
    "connected": "good",
    "failing": "bad",
    "unknown": "calm",
    "passed": "good",
    "running": "busy",
    "done": "good",
    "cancelled": "calm",
    "ok": "good",
    "unavailable": "bad",
    "not_current": "bad",
    "wrong": "bad",
    "alive": "good",
    "silent": "warn",
    "degraded": "warn",
    "delivered": "good",
    "open": "bad",
}

#: There are a few dozen, and a list has one in every row.
_STATUSES_KEPT: Final = 128


def moment(at: datetime | None) -> Markup:
    """Return a moment as a `time` element in UTC; the script shows it in the reader's zone, and UTC on hover."""
    if at is None:
        return Markup('<span class="none">never</span>')
    day, time = at.isoformat()[:19].split("T")
    # Nothing here is to be escaped, and to have it looked through would take most of a list's time.
    return Markup(f'<time datetime="{day}T{time}Z" title="{day} {time} UTC">{day} {time} UTC</time>')  # noqa: S704 - digits alone


@lru_cache(maxsize=_STATUSES_KEPT)
def status(value: str | None) -> Markup:
    """Return a status as a word in its colour; the word alone says it."""
    if value is None:
        return Markup('<span class="none">none</span>')
    return Markup('<span class="status {}">{}</span>').format(TONES.get(value, "calm"), value.replace("_", " "))


def count(number: int) -> str:
    """Return a whole number with thin spaces between its thousands."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def bounded(number: int, most: int) -> str:
    """Return a count that went no further than one beyond `most`."""
    return f"{count(most)}+" if number > most else count(number)


def span(seconds: float | timedelta | None) -> str:
    """Return a duration in the two largest units that it has: `3 h 12 min`."""
    if seconds is None:
        return "none"
    left = int(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


#: By the names that templates know them by.
FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "moment": moment,
    "status": status,
    "count": count,
    "span": span,
    "why": lambda code: told(code).why,
    "to_do": lambda code: told(code).to_do,
    "visible": visible,
}
