"""The responses to senders of postbacks, emails and compliance webhooks."""

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.response_fields import ULID, ResponseSchema
from schemas.compliance.requests import Topic


class FindingCountsResponse(ResponseSchema):
    """The findings of a postback."""

    new = field.number(
        "The number of findings reported for the first time; each prepares an export or joins a group.", example=1
    )
    seen = field.number("The number of findings that were known and open.")
    fixed = field.number("The number of findings of this page that became fixed: enough scan runs have not reported them.")
    reopened = field.number("The number of findings that were fixed and are reported again.")


class PostbackResponse(ResponseSchema):
    """An accepted postback."""

    scan_run_id = field.number("The id of the scan run.", minimum=1, example=42)
    status = field.constant("accepted", "Always `accepted`: the page is stored.")
    findings = field.inline(FindingCountsResponse, "The numbers of new, seen, fixed and reopened findings of the page.")
    ticket_exports = field.several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}),
        "The ids of the exports that this postback prepared or extended.",
    )


class EmailResponse(ResponseSchema):
    """An accepted email."""

    id = field.identifier("eml", "The id of the email.")
    status = field.constant("accepted", "Always `accepted`: the email is stored.")
    duplicate = field.truth("Whether the email had been stored before.", attribute="is_duplicate", example=False)


class ComplianceResponse(ResponseSchema):
    """The response to a dry run of a compliance webhook."""

    status = field.constant("accepted", "Always `accepted`: the request would be stored, or is stored already.")
    duplicate = field.truth("Whether the request had been stored before.", example=False)
    topic = field.one_of(Topic, "The topic of the request.")
    shop_domain = field.text("The domain of the shop, normalized.", example="snow.shops.example")
    due_at = field.moment("The legal deadline", null="for a duplicate")
