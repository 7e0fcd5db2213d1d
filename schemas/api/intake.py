"""What senders get: postbacks, emails and compliance webhooks."""

from marshmallow import fields

from schemas.api.response_fields import (
    ULID,
    ResponseSchema,
    constant,
    identifier,
    inline,
    moment,
    number,
    one_of,
    several,
    text,
    truth,
)
from schemas.compliance.requests import Topic


class FindingCountsResponse(ResponseSchema):
    """The findings of a postback."""

    new = number("Findings reported for the first time; each prepares an export or joins a group.", example=1)
    seen = number("Findings that were known and open.")
    fixed = number("Findings of the page that enough runs have not reported now.")
    reopened = number("Findings that were fixed and are reported again.")


class PostbackResponse(ResponseSchema):
    """An accepted postback."""

    scan_run_id = number("The scan run.", minimum=1, example=42)
    status = constant("accepted", "It is stored.")
    findings = inline(FindingCountsResponse, "Its findings.")
    ticket_exports = several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}), "The exports that this postback prepared or extended."
    )


class EmailResponse(ResponseSchema):
    """An accepted email."""

    id = identifier("eml", "The email.")
    status = constant("accepted", "It is stored.")
    duplicate = truth("Whether it was stored before.", attribute="is_duplicate", example=False)


class ComplianceResponse(ResponseSchema):
    """The response to a dry run of a compliance webhook."""

    status = constant("accepted", "It would be stored, or is stored already.")
    duplicate = truth("Whether it was stored before.", example=False)
    topic = one_of(Topic, "The topic.")
    shop_domain = text("The shop, in the form that is compared.", example="snow.shops.example")
    due_at = moment("The legal deadline; null for a duplicate.", nullable=True)
