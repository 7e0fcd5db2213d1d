"""The menu of the console: its entries, their counts, and one line about the health of the installation.

Every page shows counts and health, so they are cached for a few seconds: counts by account, health for the process. If the
database is unavailable, they are omitted; a page never fails because of its menu.
"""

import json
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.settings.definitions import RouteFamily
from service.api.health import OK, ReadinessChecks
from service.console.health_cards import HealthLine, health_line
from service.console.sessions import ConsoleUser, SessionGate
from service.console.wording import bounded
from service.http import conditional_requests
from service.http.conditional_requests import tagged
from storage.db.engine import OUTAGES
from storage.reporting import menu_counts
from storage.reporting.menu_counts import MAX_IN_MENU

#: How long counts and health are cached. A decision updates the counts at once for the user who made it, and after this time
#: for other users.
COUNTS_S: Final = 3.0
HEALTH_S: Final = 5.0
#: Maximum number of accounts whose counts are cached, a few hundred bytes each.
_MAX_ACCOUNTS: Final = 1000


class MenuItem(NamedTuple):
    """An entry; `path` is relative to the console, `icon` is the name of its icon and, if it `has_count`, of its count."""

    name: str
    path: str
    icon: str
    has_count: bool = False


MENU: Final = (
    MenuItem("Inbox", "/inbox", "inbox", has_count=True),
    MenuItem("Deliveries", "/deliveries", "deliveries", has_count=True),
    MenuItem("Findings", "/findings", "findings", has_count=True),
    MenuItem("Rules", "/rules", "rules", has_count=True),
    MenuItem("Targets", "/targets", "targets", has_count=True),
    MenuItem("Overview", "/overview", "overview"),
    MenuItem("Alerts", "/alerts", "alerts"),
    MenuItem("Integrations", "/integrations", "integrations"),
    MenuItem("Compliance", "/compliance", "compliance"),
    MenuItem("Audit", "/audit", "audit"),
    MenuItem("Queue and workers", "/queue", "queue"),
    MenuItem("Settings", "/settings", "settings"),
)
#: Number of entries in the bar on a phone; the others are under "More".
_IN_BAR: Final = 4
_OVERVIEW_INDEX: Final = 5


class Menu(NamedTuple):
    """The menu of one page; `counts` are texts by icon name, `health` is None if it is unknown."""

    first: tuple[MenuItem, ...]
    rest: tuple[MenuItem, ...]
    installation: tuple[MenuItem, ...]
    counts: Mapping[str, str]
    health: HealthLine | None


class Navigation:
    """Builds the menu, and returns the current counts and health for the scripts of open pages."""

    def __init__(self, checks: ReadinessChecks) -> None:
        self._checks = checks
        self._health: tuple[float, HealthLine, bool] | None = None
        self._counts: dict[int, tuple[float, Mapping[str, int]]] = {}

    def menu(self, user: ConsoleUser, *, may_query: bool = True) -> Menu:
        """Return the user's menu; only from cached values unless it `may_query` the database."""
        counts = self.counts(user, may_query=may_query)
        offered = {item for item in MENU if user.may(item.path)}
        # Without the operator's entries, the menu has no second group.
        split = _OVERVIEW_INDEX if user.may("/settings") else len(MENU)
        first, rest, installation = (
            tuple(item for item in part if item in offered) for part in (MENU[:_IN_BAR], MENU[_IN_BAR:split], MENU[split:])
        )
        shown = {item.icon: _shown(counts.get(item.icon)) for item in MENU if item.has_count}
        return Menu(first, rest, installation, shown, self.health(may_query=may_query))

    def counts(self, user: ConsoleUser, *, may_query: bool = True) -> Mapping[str, int]:
        """Return the counts of the user's account by icon name; empty if they are unknown.

        Also empty for a user whose roles are in single projects, because the counts include all projects.
        """
        if user.principal.projects is not None:
            return {}
        at, counts = self._counts.get(user.account_id, (0.0, {}))
        if not may_query or time.monotonic() - at < COUNTS_S:
            return counts
        self.health()
        if self._health is None or not self._health[2]:
            return {}
        try:
            counts = menu_counts.count(user.account_id, utc_now())._asdict()
        except OUTAGES:
            return {}
        if len(self._counts) >= _MAX_ACCOUNTS:
            self._counts.clear()
        self._counts[user.account_id] = (time.monotonic(), counts)
        return counts

    def clear_counts(self, account_id: int) -> None:
        """Remove the cached counts of an account whose user has just changed something."""
        self._counts.pop(account_id, None)

    def health(self, *, may_query: bool = True) -> HealthLine | None:
        """Return the line about the installation's health; None if it is unknown."""
        known = self._health
        if may_query and (known is None or time.monotonic() - known[0] >= HEALTH_S):
            checks = self._checks.results()
            known = self._health = (time.monotonic(), health_line(checks), checks["schema"] == OK)
        return known[1] if known else None


class LiveCounts:
    """`/console/counts`: the menu's counts and health as JSON, for the script of an open page."""

    path = "/console/counts"
    family = RouteFamily.CONSOLE

    def __init__(self, gate: SessionGate, navigation: Navigation) -> None:
        self._gate = gate
        self._navigation = navigation

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Respond with `{"counts": {NAME: {"number", "text"}}, "health": {"text", "tone"}}`, or with 304."""
        user = self._gate.authenticate(req, resp)
        counts = self._navigation.counts(user)
        health = self._navigation.health()
        shown = {name: {"number": min(number, MAX_IN_MENU), "text": _shown(number)} for name, number in counts.items()}
        body = {"counts": shown, "health": health._asdict() if health else None}
        conditional_requests.send_revalidated(req, resp, tagged(json.dumps(body).encode()), falcon.MEDIA_JSON)


def _shown(number: int | None) -> str:
    """Return a count of the menu as text; empty for zero, so that only entries with work show a number."""
    return bounded(number, MAX_IN_MENU) if number else ""
