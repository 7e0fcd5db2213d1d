"""`/console/targets`: the account's targets with their delivery statistics, and a page for each target."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import falcon

from runtime.clock import utc_now
from schemas.exports.recoveries import parse_past
from schemas.targets.providers import PROVIDERS
from schemas.targets.target import BREAKER_OPEN, ENABLED, PINGABLE, RESUMABLE, Target, TargetStatus, place_of
from service.console import charts
from service.console.layout import CONSOLE, ConsolePage, list_content
from service.console.sessions import ConsoleUser
from service.console.targets.provider_settings import setting_inputs, shown_settings, typed_settings
from service.console.untrusted_text import safe_link
from service.http.paging import read_page
from storage.db import identifiers
from storage.exports import delivery_hours, queries, recoveries
from storage.reporting.dashboard_queries import MAX_COUNTED
from storage.targets import pings, targets

TARGETS: Final = f"{CONSOLE}/targets"
TARGET: Final = f"{TARGETS}/{{target_id}}"

#: Maximum number of recoveries on the page of a target; the list of recoveries has all of them.
_RECENT: Final = 5
#: The time windows of the recovery form, in addition to an entered start time; the second one is preselected.
_WINDOWS: Final = (("1h", "the last hour"), ("24h", "the last 24 hours"), ("7d", "the last 7 days"))


class TargetsPage(ConsolePage):
    """Lists the account's targets, newest first, with the failure rate of the last day."""

    path = TARGETS
    template = "targets.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the targets."""
        page = read_page(req, identifiers.TARGET, {"status": tuple(TargetStatus)})
        status = TargetStatus(page.filters["status"]) if "status" in page.filters else None
        now, default = utc_now(), self._operations.targets.default_secret
        found = targets.list_page(user.account_id, default, page.fetch_limit, now, page.before, status)
        shown = found[: page.limit]
        return {
            **list_content(page, found),
            "shown": [(target, place_of(target.shown_url)) for target in shown],
            "days": delivery_hours.count_last_day([target.id for target in shown], now),
            "statuses": tuple(TargetStatus),
            "providers": PROVIDERS,
            "at": now,
        }


#: The events that a webhook can subscribe to, with their names.
EVENT_NAMES: Final = (
    ("ticket.updated", "Places added or fixed"),
    ("ticket.fixed", "All places fixed"),
    ("ticket.reopened", "A fixed place is open again"),
    ("ticket.redact", "The ticket must be erased"),
)


class TargetPage(ConsolePage):
    """Shows one target; `?since=` adds a time window to the recovery form."""

    path = TARGET
    template = "target.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the target with its statistics and possible actions. Raises TargetNotFound, ValidationFailed."""
        target, now = self._operations.targets.get(ids["target_id"], user.principal), utc_now()
        since = req.get_param("since")
        found = PROVIDERS[target.provider_key]
        return {
            "target": target,
            "place": place_of(target.shown_url),
            "provider": found,
            "link": safe_link(target.base_url) if target.is_tracker else None,
            "inputs": setting_inputs(found, typed_settings(target.provider_settings)),
            "shown_fields": shown_fields(target),
            "shown_options": shown_options(target),
            "settings": list(shown_settings(target.provider_settings)),
            "at": now,
            "hours": charts.hourly_attempts(delivery_hours.hours(target.id, now)),
            "waiting": queries.count_waiting(target.id, MAX_COUNTED + 1),
            "most": MAX_COUNTED,
            "windows": _windows(target.id, since, now),
            "entered_since": since or "",
            "recoveries": recoveries.list_page(limit=_RECENT, target_id=target.id),
            "ping": pings.latest(target.id),
            "last_error": queries.last_error_of(target.id) if target.is_failing else None,
            "may": _may(target, now),
            "breaker_open": BREAKER_OPEN,
            "event_choices": EVENT_NAMES,
        }


def shown_fields(target: Target) -> dict[str, str]:
    """Return the fields of the form that edits a target, with their current values."""
    limit = "" if target.max_per_minute is None else str(target.max_per_minute)
    inputs = setting_inputs(PROVIDERS[target.provider_key], typed_settings(target.provider_settings))
    own = {"name": target.name, "base_url": target.shown_url, "max_per_minute": limit}
    return own | {each.name: each.value for each in inputs}


def shown_options(target: Target) -> dict[str, str]:
    """Return the options of a webhook as its form sends them back, with spaces between the events."""
    return {"signature": target.signature, "format": target.format, "events": " ".join(target.events)}


def _windows(target_id: str, entered: str | None, now: datetime) -> list[tuple[str, str, int]]:
    """Return the time windows of the recovery form: start, name (empty for an entered start), number of exports."""
    offered = [*_WINDOWS, *([(entered, "")] if entered else [])]
    moments = [parse_past(since, now) for since, _ in offered]
    counts = queries.count_recoverable_since(target_id, moments, MAX_COUNTED + 1)
    return [(since, name, count) for (since, name), count in zip(offered, counts, strict=True)]


def _may(target: Target, now: datetime) -> Mapping[str, bool]:
    """Return for each action whether the target's current state allows it."""
    return {
        "ping": target.status in PINGABLE,
        "pause": target.status is TargetStatus.ACTIVE,
        "resume": target.status in RESUMABLE or target.is_held(now),
        "disable": target.status is not TargetStatus.DISABLED,
        "recover": target.status in ENABLED,
    }
