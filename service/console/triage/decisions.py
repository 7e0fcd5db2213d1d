"""The forms of one ticket: approve, retry, dismiss, restore, snooze, split, edit.

After the decision, each form redirects to the page in its field `then`, which is the next ticket of a list. Sending a form
twice has the same effect as sending it once.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar, Final

import falcon

from runtime.clock import utc_now
from schemas.base.errors import Conflict, FieldProblem, TicketChanged, ValidationFailed, WrongStatus
from schemas.base.fields import problem
from schemas.content_policy.checked_form import read_checked
from schemas.exports.record import ApprovalForm, Export, as_shown
from schemas.exports.state_machine import IN_PROGRESS, ExportStatus
from schemas.intake.scanner import SEVERITIES
from schemas.triage.bulk_decisions import CHANGED
from schemas.triage.decision_forms import DismissalForm, DismissalRequest, Edit, EditForm
from service.console.form_fields import Fields, Problems, entries_of, normalize_line_breaks, safe_next, whole_number
from service.console.layout import CONSOLE, Action, ConsolePage, Content, FormPage, PageAction, PageLayout, Redirect
from service.console.preferences import store_shortcuts, store_target
from service.console.sessions import ConsoleUser
from service.console.triage.ticket_view import SNOOZES
from service.console.wording import TICKET_CHANGED, word
from storage.accounts import audit_log
from storage.exports import queries

EXPORT: Final = f"{CONSOLE}/exports/{{export_id}}"
#: Number of newest audit entries in which to search for a decision that an earlier copy of the form has made.
_NEWEST_ENTRIES: Final = 20
#: The field of a form whose page showed a snoozed ticket.
_WAS_SNOOZED: Final = "was_snoozed"


class ExportAction(Action):
    """A decision on one export; `done` is the key of the notice."""

    done: ClassVar[str]
    #: Whether the notice offers to undo the decision.
    can_be_undone: ClassVar[bool] = False
    #: The statuses that the decision leads to. If the export already has one, a form that is sent twice gets the same
    #: response again.
    decided: ClassVar[frozenset[ExportStatus]] = frozenset()

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Decide, then redirect to the requested page or the export. Raises ExportNotFound, Conflict, ValidationFailed."""
        try:
            export = self.decide(user, form, ids["export_id"])
        except Conflict as conflict:
            export = queries.get(ids["export_id"], user.account_id)
            if not self.is_decided(export):
                raise _worded_conflict(export, conflict) from None
        then = safe_next(form.get("then", "")) or f"/exports/{export.id}"
        # Restoring a ticket does not restore a snooze that its dismissal ended.
        can_be_undone = self.can_be_undone and _WAS_SNOOZED not in form
        return Redirect(then, self.done, f"{export.id}.{export.version}" if can_be_undone else None)

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Make the decision, and return the export."""
        raise NotImplementedError

    def is_decided(self, export: Export) -> bool:
        """Return whether the decision has already been made on an export that no longer allows it."""
        return export.status in self.decided


class Approve(ExportAction):
    """Approves an export for a target; the form contains the digest of the ticket that the user saw."""

    path = f"{EXPORT}/approve"
    done = "approved"

    def on_post(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Process the form and store the target as the last one of the project."""
        super().on_post(req, resp, **ids)
        export = queries.get(ids["export_id"], req.context.user.account_id)
        if export.target_id is not None:
            store_target(req, resp, self._layout.gate, export.target_id, [export.project_id])

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Approve the export, then notify the workers."""
        if not form.get("ticket_digest"):
            raise ValidationFailed(problem("/ticket_digest", "required"))
        members: dict[str, Any] = {name: form[name] for name in ("target_id", "ticket_digest") if name in form}
        if "asks_for_events" in form:
            members["events"] = "events" in form
        approval = ApprovalForm().read(members)
        with self._operations.exports.blocking_refused_target(user.principal):
            export = self._operations.exports.approve(export_id, user.principal, approval)
        self._operations.wake_workers()
        return export


class Retry(ExportAction):
    """Retries a failed or blocked export at its target or another one; checks the address of a blocked target again."""

    path = f"{EXPORT}/retry"
    done = "retried"
    decided = frozenset(IN_PROGRESS)

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Make the export due, then notify the workers."""
        target_id = form.get("target_id") or None
        validation = self._operations.exports.check_blocked_target(export_id, user.principal, target_id)
        with self._operations.exports.blocking_refused_target(user.principal):
            export = self._operations.exports.retry(export_id, user.principal, validation, target_id)
        self._operations.wake_workers()
        return export


class FormDecision(ExportAction, PageAction):
    """A decision whose form has fields; if the form is refused, the page of the export shows it again."""

    def __init__(self, page: type[ConsolePage], layout: PageLayout) -> None:
        super().__init__(layout)
        self.page = page

    def refused(self, form: Fields, problems: Problems, **ids: str) -> Mapping[str, Any]:
        """Return the refused form with the entered texts; sent again, it still leads to the next ticket of its list."""
        return {**super().refused(form, problems, **ids), "then": safe_next(form.get("then", ""))}


class Dismiss(FormDecision):
    """Dismisses a prepared export with a reason and a note."""

    path = f"{EXPORT}/dismiss"
    done = "dismissed"
    can_be_undone = True
    fields = ("reason", "note")
    text_fields: ClassVar = {"note": "Note"}

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Dismiss the export."""
        given = {name: normalize_line_breaks(form[name]) for name in self.fields if form.get(name, "").strip()}
        dismissal: DismissalRequest = read_checked(DismissalForm(), given)
        # The digest prevents a dismissal of places that were added after the user opened the ticket.
        digest = form.get("ticket_digest") or None
        return self._operations.exports.dismiss(export_id, user.principal, dismissal.reason, dismissal.note, digest)


class Restore(ExportAction):
    """Restores a dismissed export, or ends a snooze; an undo form contains the export's version after the decision."""

    path = f"{EXPORT}/restore"
    done = "restored"

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Restore the export. Raises Conflict for an undo of a decision that is not the latest one."""
        try:
            return self._operations.exports.restore(export_id, user.principal, whole_number(form.get("version", "")))
        except ValidationFailed as failed:
            if CHANGED in {each.code for each in failed.problems}:
                raise Conflict("The ticket changed after the decision that you want to undo; nothing was undone.") from None
            raise


class SnoozeTicket(FormDecision):
    """Snoozes a prepared export for some days, until the end of a date, or until one of its findings is seen again."""

    path = f"{EXPORT}/snooze"
    done = "snoozed"
    can_be_undone = True
    fields = ("days", "date")

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Snooze the export.

        Raises ValidationFailed for an export without findings that is snoozed until it is seen again: it never is.
        """
        until = _snoozed_until(form, utc_now())
        if until is None and queries.get(export_id, user.account_id).findings is None:
            raise ValidationFailed(FieldProblem("/days", "not_allowed", "No scan reports this ticket again. Choose a time."))
        return self._operations.exports.snooze(export_id, user.principal, until)

    def refused(self, form: Fields, problems: Problems, **ids: str) -> Mapping[str, Any]:
        """Return the refused form with the entered texts; a problem of the end time is shown at the date field."""
        at_fields = [replace(each, path="/date") if each.path == "/until" else each for each in problems]
        return super().refused(form, at_fields, **ids)


class Split(ExportAction):
    """Splits a group into one export for each finding."""

    path = f"{EXPORT}/split"
    done = "split"

    def decide(self, user: ConsoleUser, form: Fields, export_id: str) -> Export:
        """Split the export, and return the one that keeps the first finding."""
        ids = self._operations.exports.split(export_id, user.principal)
        return queries.get(ids[0], user.account_id)

    def is_decided(self, export: Export) -> bool:
        """Return whether the audit log contains the split: a ticket that was split looks like one that never was a group."""
        return any(entry.action == "split" for entry in audit_log.list_for_subject(export.id, _NEWEST_ENTRIES))


class EditPage(FormPage):
    """Edits the ticket of a prepared export, with the original beside it; a refused form keeps the entered texts."""

    path = f"{EXPORT}/edit"
    template = "edit.html"
    text_fields: ClassVar = {"title": "Title", "description": "Description", "labels": "Labels, one a line"}

    def form(self, req: falcon.Request, user: ConsoleUser, typed: Fields | None, problems: Problems, **ids: str) -> Content:
        """Return the ticket, or the entered texts. Raises ExportNotFound, Conflict for an export that is not prepared."""
        export = _prepared(ids["export_id"], user)
        # If another user has saved a change since, the page shows that user's text, which the entered text would replace.
        is_stale = any(each.code == "ticket_changed" for each in problems)
        digest = export.ticket_digest if typed is None else typed.get("ticket_digest", "")
        return {
            # A refused form gets the current digest only if the page says that the ticket changed and shows the current one.
            "ticket_digest": export.ticket_digest if is_stale else digest,
            "export": export,
            "parts": dict(export.ticket) if typed is None else _parts(typed),
            "then": safe_next((req.get_param("then") or "") if typed is None else typed.get("then", "")),
            "problems": {f"/{each.path.strip('/').partition('/')[0]}": each for each in problems},
            "is_stale": is_stale,
            "original": export.ticket if is_stale else export.original_ticket or export.ticket,
            "severities": tuple(reversed(SEVERITIES)),
        }

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Change the ticket. Raises ExportNotFound, ValidationFailed, and Conflict for an export that is not prepared."""
        export = _prepared(ids["export_id"], user)
        digest = form.get("ticket_digest") or None
        is_stale = digest not in {None, export.ticket_digest}
        # If a form is sent twice, the second one has an old digest, but the ticket already has the entered texts.
        if changed := _changed(_parts(form), export.ticket):
            edit: Edit = read_checked(EditForm(), {**changed, "ticket_digest": digest})
            if is_stale:
                raise ValidationFailed(problem("/ticket_digest", "ticket_changed"))
            self._operations.exports.edit(export.id, user.principal, edit)
        return Redirect(safe_next(form.get("then", "")) or f"/exports/{export.id}", "edited")


class Shortcuts(Action):
    """Turns the keyboard shortcuts of a browser on or off."""

    def __init__(self, choice: str, layout: PageLayout) -> None:
        super().__init__(layout)
        self.path = f"{CONSOLE}/shortcuts/{choice}"
        self._choice = choice

    def on_post(self, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        """Process the form and store the choice."""
        super().on_post(req, resp, **ids)
        store_shortcuts(req, resp, self._layout.gate, are_on=self._choice == "on")

    def act(self, user: ConsoleUser, form: Fields, **_ids: str) -> Redirect:
        """Return the page that contained the form."""
        return Redirect(safe_next(form.get("then", "")) or "/inbox", f"keys_{self._choice}")


def _snoozed_until(form: Fields, now: datetime) -> datetime | None:
    """Return the end of a snooze; None for a snooze without an end. Raises ValidationFailed.

    For a date, this is the last moment of the day.
    """
    if form.get("date"):
        try:
            return datetime.combine(datetime.fromisoformat(form["date"]), time.max, UTC)
        except ValueError:
            raise ValidationFailed(FieldProblem("/date", "invalid_type", "Enter a date, such as 2026-03-01.")) from None
    days = form.get("days", "")
    if days not in SNOOZES:
        raise ValidationFailed(problem("/days", "not_allowed", ", ".join(filter(None, SNOOZES))))
    return now + timedelta(days=int(days)) if days else None


def _prepared(export_id: str, user: ConsoleUser) -> Export:
    export = as_shown(queries.get(export_id, user.account_id), utc_now())
    if export.status is not ExportStatus.PREPARED:
        raise _worded_conflict(export, WrongStatus())
    return export


def _worded_conflict(export: Export, conflict: Conflict) -> Conflict:
    """Return `conflict`; if it is about the export's status or ticket, return a conflict with the console's text instead."""
    if export.status is not ExportStatus.PREPARED and isinstance(conflict, WrongStatus | TicketChanged):
        return WrongStatus(f"This ticket has the status “{word(export.status.value)}” now. Nothing was changed.")
    return WrongStatus(f"{TICKET_CHANGED} Nothing was changed.") if isinstance(conflict, TicketChanged) else conflict


def _parts(form: Fields) -> dict[str, Any]:
    """Return the parts of a ticket from a form, with line feeds instead of CR LF, and one label per line."""
    lines = {name: normalize_line_breaks(form.get(name, "")) for name in ("title", "description", "severity", "labels")}
    return {**lines, "labels": entries_of(lines["labels"])}


def _changed(parts: Mapping[str, Any], ticket: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a form that the user changed; the other parts of the ticket stay exactly as they are.

    A ticket that RiskRelay wrote may have parts that no form accepts, such as a text that its facts made too long.
    """
    shown = _parts({**ticket, "labels": "\n".join(ticket.get("labels") or ())})
    return {name: part for name, part in parts.items() if part != shown[name]}
