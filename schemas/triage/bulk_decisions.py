"""One decision on many exports: the request, and the result for each export."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from marshmallow import ValidationError, fields, post_load

from schemas.base.errors import RiskRelayError
from schemas.base.fields import Array, Form, Integer, RecordForm, Text, optional, required
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import digest_text, id_text
from schemas.exports.state_machine import ExportStatus
from schemas.triage.decision_forms import MAX_NOTE, written_note
from schemas.triage.export_filter import ExportFilterForm, ExportQuery

#: Maximum number of exports that one request names: a page of the largest list.
MAX_REFERENCES: Final = 200
#: The error code of an export that changed after a bulk job had been created.
CHANGED: Final = "changed"


class BulkAction(StrEnum):
    """A decision that is made on many exports, with the values of the API."""

    APPROVE = "approve"
    DISMISS = "dismiss"
    RESTORE = "restore"
    RETRY = "retry"


#: The actions that deliver something, for which the account must be allowed to use webhooks.
DELIVERING_ACTIONS: Final = frozenset({BulkAction.APPROVE, BulkAction.RETRY})


@dataclass(frozen=True, slots=True)
class BulkDecision:
    """An action, with the target of approvals, or the reason and the note of dismissals."""

    action: BulkAction
    target_id: str | None = None
    reason: DismissalReason | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ExportReference:
    """An export to decide on, and what the caller saw of it, if given: the digest of its ticket or its version."""

    id: str
    ticket_digest: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """A decision and its exports: the named ones, or the `expected_count` exports that match a filter."""

    decision: BulkDecision
    exports: tuple[ExportReference, ...]
    query: ExportQuery | None = None
    expected_count: int = 0


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """The result for one export: its current status, or why nothing was decided.

    An export that was already in the wanted state has neither a change nor an error.
    """

    id: str
    status: ExportStatus | None = None
    is_changed: bool = False
    error: RiskRelayError | None = None

    @property
    def is_skipped(self) -> bool:
        """Whether the export was already in the wanted state."""
        return self.error is None and not self.is_changed

    @property
    def error_code(self) -> str | None:
        """The code of the first invalid field if there is one, since it names the cause; else the error's."""
        if self.error is None:
            return None
        return self.error.problems[0].code if self.error.problems else self.error.code

    def record(self) -> dict[str, Any]:
        """Return the result as JSON."""
        if self.error is None:
            return {"id": self.id, "status": self.status}
        message = self.error.problems[0].message if self.error.problems else self.error.message
        return {"id": self.id, "error": {"code": self.error_code, "message": message}}


def results_record(results: Sequence[DecisionResult]) -> dict[str, Any]:
    """Return the results of one request as JSON, in their order."""
    return {
        "results": [each.record() for each in results],
        "changed": sum(each.is_changed for each in results),
        "skipped": sum(each.is_skipped for each in results),
    }


class ExportReferenceForm(RecordForm):
    """An export of a bulk decision."""

    makes = ExportReference
    id = id_text(**required("The id of the export."))
    ticket_digest = digest_text(
        "The `ticket_digest` of the ticket that you reviewed; if the ticket has changed since, the result is an error."
    )


class BulkDecisionForm(Form):
    """The body of `POST /api/ticket-exports/bulk`."""

    action = Text(allowed=BulkAction, **required("The decision."))
    target_id = id_text(**optional("With `approve`: the id of an active target of the account."))
    reason = Text(allowed=DismissalReason, **optional("With `dismiss`: the reason."))
    note = Text(max_length=MAX_NOTE, **optional("With `dismiss`: a note for other people."))
    ids = Array(
        ExportReferenceForm,
        at_least=1,
        at_most=MAX_REFERENCES,
        **optional("The exports, each at most once; the results are in the same order."),
    )
    filter = fields.Nested(
        ExportFilterForm,
        **optional("In place of `ids`: the filter of the exports. A job decides on all that match, up to 10,000."),
    )
    expected_count = Integer(
        **optional(
            "With `filter`: the `total` of the list that you reviewed; if another number of exports "
            "matches, the response is 409."
        )
    )

    @post_load
    def _make(self, request: dict[str, Any], **_: Any) -> BulkRequest:
        action = BulkAction(request["action"])
        reason = None if request["reason"] is None else DismissalReason(request["reason"])
        _require_own_members(action, request)
        decision = BulkDecision(action, request["target_id"], reason, written_note(request["note"]))
        references, query, expected_count = request["ids"], request["filter"], request["expected_count"]
        if (references is None) == (query is None) or (references is not None and expected_count is not None):
            raise ValidationError("ids_or_filter")
        if query is not None:
            if expected_count is None:
                raise ValidationError({"expected_count": ["required"]})
            return BulkRequest(decision, (), query, expected_count)
        seen: set[str] = set()
        for index, reference in enumerate(references):
            if reference.id in seen:
                raise ValidationError({"ids": {index: {"id": ["repeated"]}}})
            seen.add(reference.id)
        return BulkRequest(decision, tuple(references))


def _require_own_members(action: BulkAction, request: dict[str, Any]) -> None:
    if action is BulkAction.APPROVE and request["target_id"] is None:
        raise ValidationError({"target_id": ["required"]})
    members = {"target_id": BulkAction.APPROVE, "reason": BulkAction.DISMISS, "note": BulkAction.DISMISS}
    foreign = [name for name, owner in members.items() if request[name] is not None and owner is not action]
    if foreign:
        raise ValidationError({name: ["not_of_this_action"] for name in foreign})
