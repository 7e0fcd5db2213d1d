"""The body of an error response, and the problems of fields."""

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.response_fields import ResponseSchema


class FieldProblemResponse(ResponseSchema):
    """One invalid field."""

    path = field.text("A JSON Pointer to the field, which contains documented names only; empty for the whole body.")
    code = field.text(
        "The code of the reason: for example `required`, `invalid_url`, a rule of forbidden content, or an address check."
    )
    message = field.text("The reason as a sentence.")


class ConflictCountsResponse(ResponseSchema):
    """Numbers of a `CONFLICT`: the exports that block the removal of a target, or those that a filter matches."""

    approved = field.number("The number of exports that are `approved` for the target.", optional=True)
    delivering = field.number("The number of exports that are being delivered to the target.", optional=True)
    pending_events = field.number("The number of events that wait for the target.", optional=True)
    retry_scheduled = field.number("The number of exports for the target that are to be retried.", optional=True)
    count = field.number("The number of exports that match the filter of a bulk decision.", optional=True)


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
    message = field.text("The error as a sentence, for people.")
    details = field.part(ErrorDetailsResponse, "Details of the error; empty if there are none.")
    request_id = field.text("The id of the request, equal to `X-Request-Id`; report it to the operator.")


class ErrorResponse(ResponseSchema):
    """The body of every error response."""

    error = field.part(ErrorObjectResponse, "The error.")


class ProblemResponse(ConflictCountsResponse):
    """The error as RFC 9457 problem details, for clients that accept `application/problem+json`."""

    type = field.one_of(["about:blank"], "Always `about:blank`: the status names the kind of problem.")
    title = field.text("The error as a sentence, for people.")
    status = field.number("The HTTP status.")
    code = field.text("The error code, for programs.")
    errors = field.several(FieldProblemResponse, "Every invalid field.")
    request_id = field.text("The id of the request, equal to `X-Request-Id`; report it to the operator.")
