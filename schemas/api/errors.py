"""The body of an error response, and the problems of fields."""

from marshmallow import fields

from schemas.api.response_fields import ResponseSchema, number, one_of, part, several, text


class FieldProblemResponse(ResponseSchema):
    """One invalid field."""

    path = text("A JSON Pointer to the field, made of documented names only; empty for the whole body.")
    code = text("The reason: for example `required`, `invalid_url`, a rule of forbidden content, an address check.")
    message = text("The reason as a sentence.")


class ConflictCountsResponse(ResponseSchema):
    """Numbers of a `CONFLICT`: the exports that wait for a target to be removed, or those that a filter matches."""

    approved = number("How many exports are `approved` for the target.", optional=True)
    delivering = number("How many exports are being delivered to it.", optional=True)
    pending_events = number("How many events wait for it.", optional=True)
    retry_scheduled = number("How many exports are to be retried.", optional=True)
    count = number("How many exports the filter of a bulk decision matches.", optional=True)


class ErrorDetailsResponse(ConflictCountsResponse):
    """Details of an error."""

    fields_ = fields.List(
        fields.Nested(FieldProblemResponse),
        data_key="fields",
        metadata={"description": "Every invalid field, with `VALIDATION_FAILED`.", "minItems": 1},
    )


class ErrorObjectResponse(ResponseSchema):
    """The error."""

    code = text("The error code, for programs; each code has one HTTP status.")
    message = text("The message, for people.")
    details = part(ErrorDetailsResponse, "More about the error; empty if there is nothing more.")
    request_id = text("The request id to report to the operator; the same as `X-Request-Id`.")


class ErrorResponse(ResponseSchema):
    """The body of every error response."""

    error = part(ErrorObjectResponse, "The error.")


class ProblemResponse(ConflictCountsResponse):
    """The error as RFC 9457 problem details, for clients that accept `application/problem+json`."""

    type = one_of(["about:blank"], "Always `about:blank`: the status names the kind of problem.")
    title = text("The message, for people.")
    status = number("The HTTP status.")
    code = text("The error code, for programs.")
    errors = several(fields.Nested(FieldProblemResponse), "Every invalid field.")
    request_id = text("The request id to report to the operator; the same as `X-Request-Id`.")
