"""The wording of pages: timestamps, durations, counts, statuses, and the notices after an action."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from markupsafe import Markup, escape

from runtime.clock import utc_now
from schemas.base.ticket_event_types import TicketEventType
from schemas.targets.error_help import help_for
from service.console.untrusted_text import visible

#: The notice for each value of `?done=`; other values show no notice.
NOTICES: Final[Mapping[str, str]] = {
    "signed_out": "You are signed out.",
    "approved": "Ticket approved. A worker delivers it.",
    "retried": "Export queued for retry, with a new schedule of attempts.",
    "dismissed": "Ticket dismissed. Find it under Dismissed to restore it.",
    "restored": "Ticket restored. It waits for a decision, unless all its places are fixed.",
    "snoozed": "Ticket snoozed.",
    "split": "Split into one ticket for each place.",
    "edited": "Ticket changed. Check it and approve it.",
    "keys_on": "Keyboard shortcuts are on.",
    "keys_off": "Keyboard shortcuts are off.",
    "bulk_job_begun": "Job started. A worker decides on the tickets.",
    "bulk_job_cancelled": "Job cancelled. What it has decided stays decided.",
    "rule_saved": "Rule saved. It decides on new tickets from now on.",
    "rule_saved_off": "Rule saved. It is off, and decides nothing until you turn it on.",
    "rule_on": "Rule turned on.",
    "rule_off": "Rule turned off.",
    "rule_removed": "Rule removed.",
    "paused": "Target paused. Its approved exports wait.",
    "resumed": "Target resumed. Waiting exports are being sent.",
    "disabled": "Target disabled. Its approved exports fail.",
    "validated": "Validation passed.",
    "validated_off": "Validation passed. The target gets nothing until you resume it.",
    "validated_partly": "The address is allowed. No worker tried the target; start one, then choose Validate.",
    "validation_failed": "Validation failed. Last validation below says what to do.",
    "pinged": "Ping delivered. See Last ping below.",
    "ping_failed": "Ping failed. See Last ping below.",
    "secret_set": "Secret set. The next delivery is signed with it.",
    "target_added": "Target added. Ping it to see whether its receiver accepts signed deliveries.",
    "standard_secret_set": "Standard Webhooks secret set. The next delivery that it signs uses it.",
    "header_set": "Header set. The next delivery has it.",
    "header_removed": "Header removed.",
    "tracker_added": "Target added. Set its token: until then it is inactive.",
    "token_works": "The tracker accepts the token and the settings. Approve a ticket for this target.",
    "token_works_off": "The tracker accepts the token and the settings. The target gets nothing until you resume it.",
    "token_untried": "Token set. No worker tried it; start one, then choose Validate.",
    "token_erased": "Target changed. It leads to another server, so its token was erased: set it again.",
    "target_edited": "Target changed.",
    "target_moved": "Target changed. Waiting exports go to the new URL; ping it to see whether its receiver accepts them.",
    "target_removed": "Target removed, and its secret erased. Its exports stay readable.",
    "recovery_begun": "Recovery started. A worker retries the exports.",
    "recovery_cancelled": "Recovery cancelled. Exports that it has already retried are still delivered.",
    "grouping_set": "Tickets of new findings are set. Tickets that exist stay as they are.",
    "report_uploaded": "Report uploaded. A worker imports it.",
    "link_requested": "If a user has this address, a link is on its way. Open it in this browser within 15 minutes.",
    "session_revoked": "Session revoked.",
    "alert_acknowledged": "Alert acknowledged. It is silent until it occurs again.",
}

#: The keys of the notices of decisions that `restore` can undo.
UNDOABLE: Final = frozenset({"dismissed", "snoozed"})
#: The keys of the notices that report a failure.
FAILURE_NOTICES: Final = frozenset({"validation_failed", "ping_failed", "token_erased"})

#: Why a decision is refused if the ticket differs from the one on the page.
TICKET_CHANGED: Final = "This ticket changed after you opened it: scans added places, or somebody edited it."

#: The statuses of each color: in progress, success, warning, failure. Other statuses are neutral.
_STATUSES: Final = {
    "busy": ("approved", "delivering", "running"),
    "good": ("exported", "active", "connected", "passed", "done", "ok", "alive", "delivered", "fixed", "recovered"),
    "warn": ("retry_scheduled", "paused", "silent", "degraded"),
    "bad": ("failed", "blocked", "disabled", "failing", "unavailable", "not_current", "wrong", "open", "reopened"),
}
_TONES: Final = {value: tone for tone, values in _STATUSES.items() for value in values}

#: Words for values of the API that are hard to understand; other values are shown with spaces in place of underscores.
_WORDS: Final[Mapping[str, str]] = {
    "exported": "delivered",
    "retryable": "temporary failure",
    "exhausted": "last attempt failed",
}
#: Texts for events of an export, by the action of the audit entry.
_EVENTS: Final[Mapping[str, str]] = {
    "prepare": "Prepared",
    "extend": "Places added",
    "join": "Places joined",
    "edit": "Edited",
    "split": "Split",
    "snooze": "Snoozed",
    "wait_for_target": "Waits for its target",
    "approve": "Approved",
    "approve_events": "Events approved",
    "dismiss": "Dismissed",
    "restore": "Restored",
    "claim": "Attempt started",
    "deliver": "Delivered",
    "reschedule": "Retry scheduled",
    "postpone": "Postponed",
    "fail": "Failed",
    "block": "Blocked",
    "withdraw": "Withdrawn",
    "retry": "Queued for retry",
    "redact": "Redacted",
    "label": "Labels added",
    "seen_again": "Seen again",
}
#: Texts for events of a ticket after its delivery.
_TICKET_EVENTS: Final[Mapping[str, str]] = {
    TicketEventType.FIXED: "all places fixed",
    TicketEventType.REOPENED: "open again",
    TicketEventType.UPDATED: "places added or fixed",
    TicketEventType.REDACT: "ticket redacted",
}

#: Units of relative times, in seconds; the script uses the same units.
_UNITS: Final = (("day", "days", 86_400), ("h", "h", 3_600), ("min", "min", 60))
#: An underscore in a code; the underscore of an id, which 26 letters and digits follow, does not match.
_UNDERSCORE: Final = re.compile(r"_(?![0-9A-HJKMNP-TV-Z]{26}\b)")
#: More than the number of statuses, a few dozen. The cache is worthwhile because every row of a list has a status.
_CACHED_STATUSES: Final = 128


def moment(at: datetime | None) -> Markup:
    """Return a `time` element in UTC; the script converts it to the reader's time zone and keeps UTC on hover."""
    if at is None:
        return Markup()
    day, time = at.isoformat()[:19].split("T")
    # No character of a time needs escaping; escaping would take most of a list's rendering time.
    return Markup(f'<time datetime="{day}T{time}Z" title="{day} {time} UTC">{day} {time} UTC</time>')  # noqa: S704 - digits only


def ago(at: datetime | None) -> Markup:
    """Return a `time` element relative to now, such as `12 min ago` or `in 4 min`; its title is the exact time in UTC."""
    if at is None:
        return Markup()
    day, time = at.isoformat()[:19].split("T")
    return Markup(f'<time class="ago" datetime="{day}T{time}Z" title="{day} {time} UTC">{relative(at - utc_now())}</time>')  # noqa: S704 - digits and fixed words


def relative(until: timedelta) -> str:
    """Return a duration from now in its largest unit: `in 4 min`, `3 days ago`, or `now` for less than a minute."""
    left = abs(until.total_seconds())
    for name, plural, size in _UNITS:
        if left >= size:
            number = int(left // size)
            words = f"{number} {name if number == 1 else plural}"
            return f"in {words}" if until.total_seconds() > 0 else f"{words} ago"
    return "now"


@lru_cache(maxsize=_CACHED_STATUSES)
def status(value: str | None) -> Markup:
    """Return a status as a colored word; empty for None."""
    if value is None:
        return Markup()
    return Markup('<span class="status {}">{}</span>').format(_TONES.get(value, "calm"), word(value))


def word(value: str) -> str:
    """Return the console's word for a value of the API."""
    return _WORDS.get(value, value.replace("_", " "))


def event(action: str) -> str:
    """Return a text for an event of an export, such as `Attempt started` for the audit entry `claim`."""
    ticket_event, _, outcome = action.partition("_")
    if ticket_event in _TICKET_EVENTS:
        return f"Event “{_TICKET_EVENTS[ticket_event]}” {outcome or 'prepared'}"
    return _EVENTS.get(action, action.replace("_", " "))


def count(number: int | None) -> str:
    """Return a whole number with narrow spaces between its thousands; empty for None."""
    return "" if number is None else f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def bounded(number: int, most: int) -> str:
    """Return a count that was limited to `most` + 1, such as `1 000+`."""
    return f"{count(most)}+" if number > most else count(number)


def duration(seconds: float | timedelta) -> str:
    """Return a duration in its two largest units: `3 h 12 min`."""
    left = int(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def spaced(text: str) -> str:
    """Return a code with spaces in place of underscores. Ids in the text are unchanged, so that they can be copied."""
    return _UNDERSCORE.sub(" ", text)


def coded(text: str) -> Markup:
    """Return a text with its parts between backticks as code; a text with an odd number of backticks is unchanged."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if number % 2 else part for number, part in enumerate(parts))


#: The filters of templates, by name.
FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "moment": moment,
    "ago": ago,
    "status": status,
    "count": count,
    "duration": duration,
    "cause": lambda code: help_for(code).cause,
    "fix": lambda code: help_for(code).fix,
    "visible": visible,
    "coded": coded,
    "spaced": spaced,
    "word": word,
    "event": event,
}
