"""The responses of decisions on many exports."""

from marshmallow import fields, validate

from schemas.api import response_fields as field
from schemas.api.response_fields import ResponseSchema
from schemas.exports.state_machine import ExportStatus
from schemas.triage.bulk_decisions import BulkAction
from schemas.triage.bulk_jobs import BulkJobStatus


class BulkErrorResponse(ResponseSchema):
    """Why an export was left as it is."""

    code = field.text(
        "The reason: an error code such as `NOT_FOUND` or `CONFLICT`, or the code of the invalid field, "
        "such as `preview_not_safe` or `target_not_active`."
    )
    message = field.text("The reason as a sentence.")


class DecisionResultResponse(ResponseSchema):
    """The result for one export: `status` or `error`."""

    id = field.text("The id of the export.")
    status = field.one_of(ExportStatus, "The current status of the export", absent="if there is an `error`")
    error = field.part(BulkErrorResponse, "Why the export was not changed", absent="if there is a `status`")


class BulkResultsResponse(ResponseSchema):
    """The results of one decision on many exports."""

    results = field.several(DecisionResultResponse, "A result for each export, in the order of the request.")
    changed = field.number("The number of exports that the decision changed.")
    skipped = field.number("The number of exports that had the requested state already.")


class BulkJobResponse(ResponseSchema):
    """A job that makes one decision on the exports that matched a filter."""

    id = field.identifier("blk", "The id of the job.")
    action = field.one_of(BulkAction, "The decision.")
    status = field.one_of(
        BulkJobStatus,
        "`running` until every export is processed. The job is cancelled by a request, or if its user or "
        "account loses the right to decide.",
    )
    total = field.number("The number of exports that matched when the job was created.", example=392)
    done = field.number("The number of exports that have been processed.")
    changed = field.number("The number of exports that the decision changed.")
    skipped = field.number("The number of exports that had the requested state already.")
    errors = fields.Dict(
        keys=fields.String(),
        values=fields.Integer(validate=validate.Range(min=1)),
        required=True,
        metadata={
            "description": "The number of exports that were not changed, by error code: the codes of single results; "
            "`changed` for an export that changed after the job was created; `limit_reached`; and "
            "`user_disabled`, `user_lost_ability` or `webhooks_forbidden` for the remaining exports of a "
            "job that was stopped."
        },
    )
    created_at = field.moment("The time at which the job was created.")
    finished_at = field.moment("The time at which the job ended", null="before that")
