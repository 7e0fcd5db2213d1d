"""A list of tickets with the open ticket beside it: views, filters and pages, used by the inbox and the deliveries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import falcon

from runtime.clock import utc_now
from schemas.base.errors import ExportNotFound, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability
from schemas.exports.record import Export, as_shown
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import ExportQuery, ExportSort, decode_cursor, encode_cursor, query_from
from service.console.choices import offered_projects, offered_targets
from service.console.layout import CONSOLE, ConsolePage
from service.console.permissions import is_allowed_in
from service.console.preferences import has_shortcuts, last_target_id
from service.console.sessions import ConsoleUser
from service.console.triage.list_address import ListAddress
from service.console.triage.places import row_line
from service.console.triage.ticket_view import SOURCES, ticket_content
from service.console.wording import bounded, count
from storage.accounts.projects import Project
from storage.db import identifiers
from storage.exports import queries
from storage.exports.search import export_list
from storage.exports.search.export_list import MAX_COUNTED, MAX_FACETED
from storage.targets.summaries import TargetSummary

#: Number of rows of a page. Each row has a check box, so the number must stay below the maximum of a form's fields.
PAGE_ROWS: Final = 50
#: Maximum number of rules in their menu; the search finds other rules. Menus of named things, such as projects, have no
#: limit.
MAX_OPTIONS: Final = 20

#: The parameters of a list, in the order of its address.
_PARAMETERS: Final = (
    *("view", "severity", "project_id", "source", "rule", "host", "target_id", "q", "created_after", "created_before"),
    *("sort", "cursor", "export"),
)
_SORTS: Final[Mapping[str, str]] = {
    ExportSort.SEVERITY.value: "severity",
    ExportSort.NEWEST.value: "newest",
    ExportSort.FINDINGS.value: "places",
    ExportSort.OLDEST.value: "oldest",
}


class ListView(NamedTuple):
    """A tab of a list; `narrow` adds the view's conditions to a query with the other filters."""

    key: str
    name: str
    narrow: Callable[[ExportQuery, datetime], ExportQuery]
    #: The decisions on a selection; the main one is the last.
    actions: tuple[str, ...]
    sort: ExportSort
    #: The text after the number of tickets.
    about: str


class TicketRow(NamedTuple):
    """A row of a list; `at`, which it shows, is when the ticket was prepared or when its snooze ends."""

    export: Export
    title: str
    line: str
    href: str
    at: datetime | None
    status: str | None


class TicketListPage(ConsolePage):
    """A list of tickets with the open ticket beside it; subclasses set the views."""

    views: tuple[ListView, ...]
    page_title: str

    def on_get(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Show the list; if the search text is the id of an export, redirect to that export."""
        searched = str(req.params.get("q", "")).strip()
        if identifiers.is_id(identifiers.EXPORT, searched):
            self._layout.gate.authenticate(req, resp)
            self._layout.redirect(resp, f"/exports/{searched}")
        else:
            super().on_get(req, resp, **ids)

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return one page of the list, its filters, and the open ticket. Raises ValidationFailed."""
        now = utc_now()
        found = read_list(req.params, self.path.removeprefix(CONSOLE), self.views, user, now)
        total = export_list.count(found.query)
        shown = [as_shown(each, now) for each in page_of(found)]
        rows = self.rows(shown[:PAGE_ROWS], found.address, user)
        opened = _open_ticket(req.params.get("export"), rows, user, now)
        known = offered_projects(user, visible=found.query.visible_projects)
        names = {str(each.id): each.name for each in sorted(known, key=_by_name)}
        return {
            "page_title": self.page_title,
            "address": found.address,
            "about": f"{_counted(total)} {found.view.about}",
            "tabs": [_tab(found, view, self.views[0], total, now) for view in self.views],
            "menus": self._menus(found, names, user),
            "shown": rows,
            "total": MAX_COUNTED + 1 if total is None else total,
            "total_text": bounded(MAX_COUNTED + 1 if total is None else total, MAX_COUNTED),
            "bulk_actions": found.view.actions,
            "most_at_once": MAX_COUNTED,
            "is_filtered": found.is_filtered,
            "clear_href": ListAddress(found.address.path, {"view": found.address.params.get("view", "")}).href(),
            "first_href": found.address.href(cursor=None, export=None) if "cursor" in found.address.params else None,
            "next_href": _next(found, shown),
            "is_opened": "export" in found.address.params,
            "has_keys": has_shortcuts(req),
            "in_list": True,
            "export": opened,
            **(_neighbors(opened, rows, found, total, _next(found, shown, is_opened=True)) if opened else {}),
            "project_name": names.get(str(opened.project_id)) if opened else None,
            **(self.ticket(req, opened, user, now) if opened else {}),
        }

    def ticket(self, req: falcon.Request, export: Export, user: ConsoleUser, now: datetime) -> Mapping[str, Any]:
        """Return the variables of the open ticket."""
        return ticket_content(export, user, last_target_id(req, [export.project_id]), self._settings.artifacts_base_url, now)

    def rows(self, exports: Sequence[Export], address: ListAddress, user: ConsoleUser) -> list[TicketRow]:
        """Return the rows of a page of the user's exports."""
        return [self.row(each, address) for each in exports]

    def row(self, export: Export, address: ListAddress) -> TicketRow:
        """Return the row of one export."""
        title = export.ticket.get("title") or "Untitled"
        return TicketRow(export, title, row_line(export), address.href(export=export.id), export.created_at, None)

    def _menus(self, found: "TicketList", names: Mapping[str, str], user: ConsoleUser) -> list[dict[str, Any]]:
        counted: tuple[tuple[str, str, Mapping[str, str]], ...] = (
            ("severity", "Severity", {name: name.capitalize() for name in reversed(SEVERITIES)}),
            ("project_id", "Project", names),
            ("source", "Source", SOURCES),
            ("rule", "Rule", {}),
        )
        facets = export_list.facets(found.query, [name for name, _, _ in counted])
        is_cut = any(sum(each.values()) >= MAX_FACETED for each in facets.values())
        menus = [_menu(found.address, name, label, texts, facets[name], is_cut=is_cut) for name, label, texts in counted]
        if any(view.key in {"moving", "failed", "delivered"} for view in self.views):
            listed = sorted(offered_targets(user), key=_by_name)
            targets = {each.id: f"{each.name} ({each.host})" for each in listed}
            menus.append(_menu(found.address, "target_id", "Target", targets, None))
        return [*menus, _sort_menu(found)]


class TicketList(NamedTuple):
    """A list as described by its address."""

    address: ListAddress
    view: ListView
    #: The filters without those of the view.
    base: ExportQuery
    query: ExportQuery
    sort: ExportSort

    @property
    def is_filtered(self) -> bool:
        """Whether the list has a filter other than its view."""
        return any(name not in {"view", "sort", "export", "cursor"} for name in self.address.params)


def read_list(
    params: Mapping[str, Any], path: str, views: Sequence[ListView], user: ConsoleUser, now: datetime
) -> TicketList:
    """Return the list that the parameters describe, limited to exports that the user may see. Raises ValidationFailed."""
    # A parameter that occurs twice contributes both values.
    texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in params.items()}
    given = {name: texts[name] for name in _PARAMETERS if texts.get(name)}
    address = ListAddress(path, given)
    view = next((each for each in views if each.key == given.get("view", views[0].key)), None)
    if view is None:
        raise ValidationFailed(problem("/view", "not_allowed", ", ".join(each.key for each in views)))
    if given.get("sort", view.sort) not in _SORTS:
        raise ValidationFailed(problem("/sort", "not_allowed", ", ".join(_SORTS)))
    visible = user.principal.projects_with(Ability.READ_EXPORTS)
    base = replace(query_from(given, user.account_id), visible_projects=visible)
    return TicketList(address, view, base, view.narrow(base, now), ExportSort(given.get("sort", view.sort)))


def page_of(found: TicketList) -> list[Export]:
    """Return the exports of the requested page, plus one if there is another page. Raises ValidationFailed."""
    cursor = found.address.params.get("cursor")
    after = None if cursor is None else decode_cursor(found.query, found.sort, cursor)
    if cursor is not None and after is None:
        raise ValidationFailed(problem("/cursor", "invalid_cursor"))
    return export_list.list_page(found.query, found.sort, PAGE_ROWS + 1, after)


def _by_name(named: Project | TargetSummary) -> str:
    return named.name.casefold()


def _next(found: TicketList, shown: Sequence[Export], *, is_opened: bool = False) -> str | None:
    """Return the address of the next page; if `is_opened`, with its first ticket open, which has already been read."""
    if len(shown) <= PAGE_ROWS:
        return None
    position = export_list.position_of(shown[PAGE_ROWS - 1], found.sort)
    export_id = shown[PAGE_ROWS].id if is_opened else None
    return found.address.href(cursor=encode_cursor(found.query, found.sort, position), export=export_id)


def _open_ticket(export_id: Any, rows: Sequence[TicketRow], user: ConsoleUser, now: datetime) -> Export | None:
    """Return the requested ticket, even if it has left the list since; otherwise the first ticket of the list."""
    listed = {row.export.id: row.export for row in rows}
    if isinstance(export_id, str) and export_id in listed:
        return listed[export_id]
    if isinstance(export_id, str):
        try:
            export = queries.get(export_id, user.account_id)
        except ExportNotFound:
            pass
        else:
            if is_allowed_in(export.project_id, Ability.READ_EXPORTS, user.principal):
                return as_shown(export, now)
    return rows[0].export if rows else None


def _neighbors(
    export: Export, rows: Sequence[TicketRow], found: TicketList, total: int | None, after_last: str | None
) -> dict[str, Any]:
    """Return the links to the previous and the next ticket, and the page to show after a decision.

    `after_last` is the link that follows the last row.
    """
    ids = [row.export.id for row in rows]
    at = ids.index(export.id) if export.id in ids else None
    before = rows[at - 1].href if at else None
    after = None if at is None else rows[at + 1].href if at + 1 < len(rows) else after_last
    return {
        "previous_href": before,
        "next_ticket_href": after,
        "here": found.address.href(export=export.id),
        "then": after or before or found.address.href(export=None),
        "position": f"{at + 1} of {_counted(total)}" if at is not None and "cursor" not in found.address.params else None,
    }


def _tab(found: TicketList, view: ListView, first: ListView, total: int | None, now: datetime) -> dict[str, Any]:
    number = total if view is found.view else export_list.count(view.narrow(found.base, now))
    key = None if view is first else view.key
    href, is_current = found.address.filtered(view=key), view is found.view
    return {"name": view.name, "href": href, "number": _counted(number), "is_current": is_current}


def _menu(
    address: ListAddress,
    name: str,
    label: str,
    texts: Mapping[str, str],
    counts: Mapping[str, int] | None,
    *,
    is_cut: bool = False,
) -> dict[str, Any]:
    """Return the menu of a filter; without `texts`, its options are the counted values.

    An option is its text, its address, the number of tickets with the value, and whether it is chosen.

    If `is_cut`, only the newest tickets were counted, so a value that only older tickets have is offered without a number.
    """
    chosen = address.values(name)
    values = [*texts, *(each for each in counts or {} if each not in texts)]
    if counts is not None and not is_cut:
        values = [each for each in values if each in counts or each in chosen]
    if not texts:
        # The chosen values come first, so that the user can remove them.
        values = sorted({*values, *chosen}, key=lambda each: (each not in chosen, -(counts or {}).get(each, 0), each))
        values = values[:MAX_OPTIONS]
    numbers = {each: count(number) + ("+" if is_cut else "") for each, number in (counts or {}).items()}
    zero = None if counts is None or is_cut else count(0)
    options = [
        (texts.get(each, each), address.toggled(name, each), numbers.get(each, zero), each in chosen) for each in values
    ]
    named = [texts.get(each, each) for each in chosen]
    text = "all" if not named else named[0] if len(named) == 1 else f"{len(named)} chosen"
    all_href = address.filtered(**{name: None}) if chosen else None
    return {"label": label, "text": text, "options": options, "all_href": all_href}


def _sort_menu(found: TicketList) -> dict[str, Any]:
    options = [
        (text, found.address.filtered(sort=None if value == found.view.sort else value), None, value == found.sort)
        for value, text in _SORTS.items()
    ]
    return {"label": "Sort", "text": _SORTS[found.sort], "options": options, "all_href": None}


def _counted(number: int | None) -> str:
    return bounded(MAX_COUNTED + 1 if number is None else number, MAX_COUNTED)


def waiting(query: ExportQuery, now: datetime) -> ExportQuery:
    """Return the query of exports that wait for a decision."""
    return query.waiting_for_decision(now)


def snoozed(query: ExportQuery, now: datetime) -> ExportQuery:
    """Return the query of snoozed exports."""
    return replace(query.waiting_for_decision(now), is_snoozed=True, is_fixed=None)
