"""Decisions on many tickets: a summary before the decision, the results after it, and the progress of a job."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import falcon

from runtime.clock import utc_now
from schemas.base.errors import FieldProblem, Forbidden, ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import Ability
from schemas.content_policy.checked_form import read_checked
from schemas.exports.record import Export
from schemas.exports.state_machine import Transition, allows
from schemas.intake.scanner import SEVERITIES
from schemas.triage.bulk_decisions import BulkDecisionForm, BulkRequest, DecisionResult
from schemas.triage.bulk_jobs import BulkJobStatus, CountDiffers
from service.console.choices import MAX_TARGETS
from service.console.form_fields import Fields, by_path, normalize_line_breaks, safe_next, whole_number
from service.console.layout import CONSOLE, Action, ConsolePage, ConsoleRoute, PageLayout, Redirect, RefusedForm
from service.console.permissions import is_allowed_in
from service.console.preferences import last_target_id, store_target
from service.console.sessions import ConsoleUser
from service.console.triage.deliveries import DELIVERIES, DELIVERY_VIEWS
from service.console.triage.inbox import INBOX, INBOX_VIEWS
from service.console.triage.ticket_list import ListView, TicketList, page_of, read_list
from service.console.triage.ticket_view import REASONS, chosen_target
from service.console.wording import count
from service.http.error_responses import STATUS
from storage.accounts import projects
from storage.db import identifiers
from storage.exports import queries
from storage.exports.search import export_list
from storage.targets import summaries

JOB: Final = f"{CONSOLE}/bulk-jobs/{{job_id}}"
#: Placeholder for the `ids` of a job, whose form needs only the decision.
_ALL_IDS: Final = {"id": "all"}
#: Some servers and proxies accept no request line longer than 4 KB. If the address of a job exceeds this, it omits
#: the list's filters.
_MAX_ADDRESS: Final = 3500
#: Maximum number of titles in the summary of all matching tickets.
FEW_TITLES: Final = 10

_VIEWS: Final[Mapping[str, Sequence[ListView]]] = {INBOX: INBOX_VIEWS, DELIVERIES: DELIVERY_VIEWS}
_MEANINGS: Final[Mapping[str, str]] = {
    "approve": "Each ticket is frozen as it is and sent to the target. This cannot be undone once it was sent.",
    "dismiss": (
        "Dismissed tickets are not sent. You can restore them. If the reason is “False positive” or “Won't fix”, what later "
        "scans find of the rule of a ticket joins it and is not sent either; with another reason, that makes a new ticket."
    ),
    "restore": "Restored tickets wait in the inbox again.",
    "retry": "Each export gets a new schedule of attempts at its target.",
}
_DONE: Final[Mapping[str, str]] = {
    "approve": "approved",
    "dismiss": "dismissed",
    "restore": "restored",
    "retry": "queued for retry",
}


class _BulkForm(ConsoleRoute):
    """A form for a list's selection: checks the user and the form; the response is a page of its own."""

    verb: ClassVar[str]

    def __init__(self, list_path: str, layout: PageLayout) -> None:
        super().__init__(layout)
        self.path = f"{CONSOLE}{list_path}/{self.verb}"
        self._list_path = list_path

    def listed(self, form: Fields, user: ConsoleUser) -> TicketList:
        """Return the list in which the user made the selection."""
        params = dict(parse_qsl(urlsplit(self.then(form)).query))
        return read_list(params, self._list_path, _VIEWS[self._list_path], user, utc_now())

    def then(self, form: Fields) -> str:
        """Return the list's address. Raises ValidationFailed for the path of another list.

        Without the filters of its own list, more tickets would match.
        """
        path = safe_next(form.get("then", self._list_path))
        if urlsplit(path).path != self._list_path:
            raise ValidationFailed(problem("/then", "not_allowed", self._list_path))
        return path

    def summary(self, req: falcon.Request, user: ConsoleUser, form: Fields) -> dict[str, Any]:
        """Return the variables of the summary page. Raises ValidationFailed, Forbidden."""
        action = _action(form)
        listed = self.listed(form, user)
        is_all, picked = form.get("all") == "yes", _picked(form)
        if is_all and user.principal.projects is not None:
            raise Forbidden("To decide on all that match, you need a role in the whole account. Select tickets instead.")
        if is_all:
            number = export_list.count(listed.query)
            if number is None:
                raise ValidationFailed(problem("/filter", "too_many_matches", f"{export_list.MAX_COUNTED:,}"))
            by_severity = export_list.count_by_severity(listed.query)
            titles = export_list.list_page(listed.query, listed.sort, FEW_TITLES)
            project_ids = _projects_of_all(listed)
        else:
            titles = _decidable(action, picked, listed, user)
            number, by_severity = len(titles), Counter(each.severity for each in titles)
            project_ids = {each.project_id for each in titles}
        offered = summaries.list_approvable(user.account_id, MAX_TARGETS) if action == "approve" else []
        last = form.get("target_id") or last_target_id(req, project_ids)
        return {
            "action": action,
            "is_all": is_all,
            "number": number,
            "number_text": count(number),
            "picked": {name: digest for name, digest in picked.items() if name in {known.id for known in titles}},
            "gone": 0 if is_all else len(picked) - number,
            # If more tickets match, only this many of the newest are counted.
            "most_counted": export_list.MAX_FACETED,
            "by_severity": {name: by_severity[name] for name in reversed(SEVERITIES) if by_severity.get(name)},
            "titles": titles,
            "projects": projects.list_page(user.account_id, visible=[each for each in project_ids if each is not None]),
            "meaning": _MEANINGS[action],
            "list_path": self._list_path,
            "then": self.then(form),
            "offered": offered,
            "chosen_target_id": chosen_target(offered, last),
            "reasons": REASONS,
        }


class ReviewSelection(_BulkForm):
    """Shows a summary of a decision on a selection, before the decision."""

    verb = "review"

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Show the summary."""
        user, form = self._submitted(req, resp, {})
        self._layout.render(req, resp, "review.html", self.summary(req, user, form), user)


class DecideSelection(_BulkForm):
    """Decides on a selection: at once for checked tickets, as a job for all matching tickets. Then shows the result."""

    verb = "decide"
    text_fields: ClassVar = {"note": "Note"}

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Decide, or show the summary again with the reasons of the refusal."""
        user, form = self._submitted(req, resp, {})
        try:
            self._decide(req, resp, user, form)
        except (ValidationFailed, CountDiffers) as failed:
            content = self.summary(req, user, form)
            differs = FieldProblem("/expected_count", failed.code, f"{content['number_text']} match now: check them.")
            again = RefusedForm(self.verb, form, by_path(failed.problems or (differs,)))
            resp.status = falcon.code_to_http_status(STATUS[failed.code])
            self._layout.render(req, resp, "review.html", {**content, "refused": again}, user)

    def _decide(self, req: falcon.Request, resp: falcon.Response, user: ConsoleUser, form: Fields) -> None:
        """Decide, and show the results or redirect to the job. Raises ValidationFailed, CountDiffers."""
        action, listed, is_all = _action(form), self.listed(form, user), form.get("all") == "yes"
        ids = [_ALL_IDS] if is_all else [{"id": name, "ticket_digest": digest} for name, digest in _picked(form).items()]
        request: BulkRequest = read_checked(BulkDecisionForm(), {**_decision(action, form), "ids": ids})
        with self._operations.exports.blocking_refused_target(user.principal):
            if is_all:
                expected = whole_number(form.get("expected_count", "")) or 0
                job = self._operations.bulk.begin_job(request.decision, listed.query, expected, user.principal)
                self._layout.redirect(resp, _job_address(job.id, listed.address.filtered()), done="bulk_job_begun")
            else:
                results = self._operations.bulk.decide(request.decision, request.exports, user.principal)
        self._operations.wake_workers()
        self._layout.navigation.clear_counts(user.account_id)
        if request.decision.target_id is not None:
            store_target(req, resp, self._layout.gate, request.decision.target_id, self._project_ids(listed, form, user))
        if not is_all:
            content = {"done": _DONE[action], "results": results, "titles": _titles(results, user), "then": self.then(form)}
            self._layout.render(req, resp, "bulk_results.html", content, user)

    def _project_ids(self, listed: TicketList, form: Fields, user: ConsoleUser) -> set[int | None]:
        """Return the projects of the selected tickets."""
        if form.get("all") == "yes":
            return _projects_of_all(listed)
        return {each.project_id for each in queries.list_named([*_picked(form)], user.account_id)}


class BulkJobPage(ConsolePage):
    """Shows the progress of one job."""

    path = JOB
    template = "bulk_job.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **ids: str) -> Mapping[str, Any]:
        """Return the job. Raises NotFound."""
        job = self._operations.bulk.job(ids["job_id"], user.principal)
        then = safe_next(req.get_param("then") or "")
        return {"job": job, "is_running": job.status is BulkJobStatus.RUNNING, "then": then}


class CancelBulkJob(Action):
    """Cancels a running job; its earlier decisions remain."""

    path = f"{JOB}/cancel"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Cancel the job. Raises NotFound."""
        job = self._operations.bulk.cancel(ids["job_id"], user.principal)
        return Redirect(_job_address(job.id, safe_next(form.get("then", ""))), "bulk_job_cancelled")


def _projects_of_all(listed: TicketList) -> set[int | None]:
    """Return the projects of all matching tickets, of many those of the newest; `{None}` if no ticket has a project."""
    chosen = listed.query.project_ids or map(int, export_list.facets(listed.query, ["project_id"])["project_id"])
    return {*chosen} or {None}


def _decision(action: str, form: Fields) -> dict[str, Any]:
    """Return the decision of a form as members of the API's body, without the fields of other actions."""
    names = {"approve": ("target_id",), "dismiss": ("reason", "note")}.get(action, ())
    return {"action": action, **{name: normalize_line_breaks(form[name]) for name in names if form.get(name, "").strip()}}


def _job_address(job_id: str, then: str) -> str:
    """Return the address of a job's page with the list to return to; without that list if the address would be too long."""
    address = f"/bulk-jobs/{job_id}?{urlencode({'then': then})}"
    return address if then and len(address) <= _MAX_ADDRESS else f"/bulk-jobs/{job_id}"


def _titles(results: Sequence[DecisionResult], user: ConsoleUser) -> dict[str, str]:
    """Return the titles of the tickets that were not decided, by id, if the user may see them."""
    found = queries.list_named([each.id for each in results if each.error], user.account_id)
    return {
        each.id: each.ticket.get("title") or each.id
        for each in found
        if is_allowed_in(each.project_id, Ability.READ_EXPORTS, user.principal)
    }


def _action(form: Mapping[str, Any]) -> str:
    action = str(form.get("action", ""))
    if action not in _MEANINGS:
        raise ValidationFailed(problem("/action", "not_allowed", ", ".join(_MEANINGS)))
    return action


def _picked(form: Fields) -> dict[str, str]:
    """Return the ids of the checked tickets, with the digests that the user saw."""
    return {name: value for name, value in form.items() if identifiers.is_id(identifiers.EXPORT, name)}


def _decidable(action: str, picked: Collection[str], listed: TicketList, user: ConsoleUser) -> list[Export]:
    """Return the picked tickets on which the decision is still possible, in the order of the list."""
    shown = [each for each in page_of(listed) if each.id in picked]
    # New tickets may have moved picked ones to the next page.
    moved = queries.list_named([*({*picked} - {each.id for each in shown})], user.account_id)
    visible = listed.query.visible_projects
    return [
        each
        for each in (*shown, *moved)
        if allows(Transition(action), each.status) and (visible is None or each.project_id in visible)
    ]
