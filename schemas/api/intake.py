"""The responses to senders of postbacks, emails and compliance webhooks."""

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.response_fields import ULID, ResponseSchema
from schemas.compliance.requests import Topic


class FindingCountsResponse(ResponseSchema):
    """The findings of a postback."""

    new = field.number("Findings reported for the first time; each prepares an export or joins a group.", example=1)
    seen = field.number("Findings that were known and open.")
    fixed = field.number("Findings of the page that enough runs have not reported now.")
    reopened = field.number("Findings that were fixed and are reported again.")


class PostbackResponse(ResponseSchema):
    """An accepted postback."""

    scan_run_id = field.number("The scan run.", minimum=1, example=42)
    status = field.constant("accepted", "It is stored.")
    findings = field.inline(FindingCountsResponse, "Its findings.")
    ticket_exports = field.several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}), "The exports that this postback prepared or extended."
    )


class EmailResponse(ResponseSchema):
    """An accepted email."""

    id = field.identifier("eml", "The email.")
    status = field.constant("accepted", "It is stored.")
    duplicate = field.truth("Whether it was stored before.", attribute="is_duplicate", example=False)


class ComplianceResponse(ResponseSchema):
    """The response to a dry run of a compliance webhook."""

    status = field.constant("accepted", "It would be stored, or is stored already.")
    duplicate = field.truth("Whether it was stored before.", example=False)
    topic = field.one_of(Topic, "The topic.")
    shop_domain = field.text("The shop, in the form that is compared.", example="snow.shops.example")
    due_at = field.moment("The legal deadline; null for a duplicate.", nullable=True)
