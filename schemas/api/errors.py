"""The body of an error response, and the problems of fields."""

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.response_fields import ResponseSchema


class FieldProblemResponse(ResponseSchema):
    """One invalid field."""

    path = field.text("A JSON Pointer to the field, made of documented names only; empty for the whole body.")
    code = field.text("The reason: for example `required`, `invalid_url`, a rule of forbidden content, an address check.")
    message = field.text("The reason as a sentence.")


class ConflictCountsResponse(ResponseSchema):
    """Numbers of a `CONFLICT`: the exports that block the removal of a target, or those that a filter matches."""

    approved = field.number("How many exports are `approved` for the target.", optional=True)
    delivering = field.number("How many exports are being delivered to it.", optional=True)
    pending_events = field.number("How many events wait for it.", optional=True)
    retry_scheduled = field.number("How many exports are to be retried.", optional=True)
    count = field.number("How many exports the filter of a bulk decision matches.", optional=True)


class ErrorDetailsResponse(ConflictCountsResponse):
    """Details of an error."""

    fields_ = fields.List(
        fields.Nested(FieldProblemResponse),
        data_key="fields",
        metadata={"description": "Every invalid field, with `VALIDATION_FAILED`.", "minItems": 1},
    )


class ErrorObjectResponse(ResponseSchema):
    """The error."""

    code = field.text("The error code, for programs; each code has one HTTP status.")
    message = field.text("The message, for people.")
    details = field.part(ErrorDetailsResponse, "More about the error; empty if there is nothing more.")
    request_id = field.text("The request id to report to the operator; the same as `X-Request-Id`.")


class ErrorResponse(ResponseSchema):
    """The body of every error response."""

    error = field.part(ErrorObjectResponse, "The error.")


class ProblemResponse(ConflictCountsResponse):
    """The error as RFC 9457 problem details, for clients that accept `application/problem+json`."""

    type = field.one_of(["about:blank"], "Always `about:blank`: the status names the kind of problem.")
    title = field.text("The message, for people.")
    status = field.number("The HTTP status.")
    code = field.text("The error code, for programs.")
    errors = field.several(FieldProblemResponse, "Every invalid field.")
    request_id = field.text("The request id to report to the operator; the same as `X-Request-Id`.")
