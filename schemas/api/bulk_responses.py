"""The responses of decisions on many exports."""

from marshmallow import fields, validate

from schemas.api.responses import ResponseSchema, number, several, text
from schemas.exports.state_machine import ExportStatus


class BulkErrorResponse(ResponseSchema):
    """Why an export was left as it is."""

    code = text(
        "The reason: an error code such as `NOT_FOUND` or `CONFLICT`, or that of the invalid field, such as "
        "`preview_not_safe` or `target_not_active`."
    )
    message = text("The reason as a sentence.")


class DecisionResultResponse(ResponseSchema):
    """The result for one export: `status` or `error`."""

    id = text("The export.")
    status = fields.String(
        validate=validate.OneOf([each.value for each in ExportStatus]),
        metadata={"description": "The status that it has now."},
    )
    error = fields.Nested(BulkErrorResponse, metadata={"description": "Why it was left as it is."})


class BulkResultsResponse(ResponseSchema):
    """The results of one decision on many exports."""

    results = several(fields.Nested(DecisionResultResponse), "A result for each export, in the order of the request.")
    changed = number("The number of exports that the decision changed.")
    skipped = number("The number of exports that were in the wanted state already.")
