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
        "The reason: an error code such as `NOT_FOUND` or `CONFLICT`, or that of the invalid field, such as "
        "`preview_not_safe` or `target_not_active`."
    )
    message = field.text("The reason as a sentence.")


class DecisionResultResponse(ResponseSchema):
    """The result for one export: `status` or `error`."""

    id = field.text("The export.")
    status = field.one_of(ExportStatus, "The current status.", optional=True)
    error = field.part(BulkErrorResponse, "Why it was left as it is.", optional=True)


class BulkResultsResponse(ResponseSchema):
    """The results of one decision on many exports."""

    results = field.several(DecisionResultResponse, "A result for each export, in the order of the request.")
    changed = field.number("The number of exports that the decision changed.")
    skipped = field.number("The number of exports that were in the wanted state already.")


class BulkJobResponse(ResponseSchema):
    """A job that makes one decision on the exports that matched a filter."""

    id = field.identifier("blk", "The job.")
    action = field.one_of(BulkAction, "The decision.")
    status = field.one_of(
        BulkJobStatus,
        "`running` until every export is processed. A request cancels the job, and so does a lost right of its user or "
        "account.",
    )
    total = field.number("The number of exports that matched when the job was created.", example=392)
    done = field.number("The number of exports that are processed.")
    changed = field.number("The number of exports that the decision changed.")
    skipped = field.number("The number of exports that were in the wanted state already.")
    errors = fields.Dict(
        keys=fields.String(),
        values=fields.Integer(validate=validate.Range(min=1)),
        required=True,
        metadata={
            "description": "How many exports were left as they are, by error code: those of single results, `changed` for "
            "an export that changed after the job had been created, `limit_reached`, and `user_disabled`, "
            "`user_lost_ability` or `webhooks_forbidden` for the rest of a job that was stopped."
        },
    )
    created_at = field.moment("When it was requested.")
    finished_at = field.moment("When it ended.", nullable=True)
