"""Uploads of the browser extension, the CMS plugin and the storefront app."""

from dataclasses import asdict
from typing import Any

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.exports import ProviderTicketResponse, SourceResponse
from schemas.api.response_fields import ResponseSchema, dump
from schemas.exports.handoffs import RECEIVED, Handoff, HandoffStatus
from schemas.intake.diagnostics import SAFE_SCOPES, Diagnostics, Platform
from schemas.intake.evidence import HEADING_LEVELS, Capture


class _HandoffSource(ResponseSchema):
    id = field.identifier("hof", "The id of the handoff.")
    source = field.part(
        SourceResponse,
        "The type and the id of the capture or the diagnostics.",
        example={"type": "evidence_capture", "id": "evc_01KJM8AV0G3T0M3Q9V6W2Y5Z7A"},
    )
    project_id = field.number("The id of the project.", minimum=1)
    report_id = field.number("The id of the report", null="if the upload names none", minimum=1)


class HandoffResponse(_HandoffSource):
    """The link between an upload, its project, its report and its export."""

    ticket_export_id = field.identifier("exp", "The id of the prepared export.")
    status = field.constant(RECEIVED, "Always `received`: the upload is stored.")
    created_at = field.moment("The time at which the upload was received.")


class HandoffProgressResponse(_HandoffSource):
    """A handoff and the state of its upload."""

    created_at = field.moment("The time at which the upload was received.")
    status = field.one_of(
        HandoffStatus,
        "`received` in the response to the upload. `prepared` until a person or a rule decides. `approved` until the ticket "
        "is `delivered` or has `failed`. `dismissed`. `fixed` after all findings of the delivered ticket are fixed.",
    )
    provider_ticket = field.part(
        ProviderTicketResponse, "The ticket at the receiver", absent="if the receiver returned neither its id nor its URL"
    )


class HeadingResponse(ResponseSchema):
    """One heading of a page."""

    level = field.one_of(HEADING_LEVELS, "The level of the heading.")
    text = field.text("The text of the heading.", example="Your cart")


class CaptureResponse(ResponseSchema):
    """A capture of one page."""

    id = field.identifier("evc", "The id of the capture.")
    project_id = field.number("The id of the project.", minimum=1)
    report_id = field.number("The id of the report", null="if the upload names none", minimum=1)
    page_url = field.text("The URL of the page.", example="https://shop.example/cart?step=2")
    page_title = field.text("The title of the page.", nullable=True)
    selected_text = field.text("The selected text.", nullable=True)
    meta_description = field.text("The meta description of the page.", nullable=True)
    canonical_url = field.text("The canonical URL of the page.", nullable=True)
    heading_outline = field.several(HeadingResponse, "The headings of the page, in order.", nullable=True)
    captured_at = field.moment("The time at which the page was captured.", nullable=True)
    extension_version = field.text("The version of the extension.", nullable=True)
    created_at = field.moment("The time at which the capture was received.")


class CaptureUploadResponse(ResponseSchema):
    """An accepted capture."""

    evidence_capture = field.part(CaptureResponse, "The capture.")
    handoff = field.part(HandoffResponse, "The handoff of the capture.")


class CmsFactsResponse(ResponseSchema):
    """The diagnostics of a CMS plugin."""

    cms_version = field.text("The version of the CMS.", nullable=True)
    commerce_plugin_version = field.text("The version of the commerce plugin.", nullable=True)
    active_theme = field.text("The name of the active theme.", nullable=True)
    active_plugin_names = field.several(fields.String(), "The names of the active plugins.", nullable=True)
    checkout_page_url = field.text("The URL of the checkout page.", nullable=True)
    commerce_plugin_status = field.text("The status of the commerce plugin.", nullable=True)
    visible_browser_symptoms = field.several(fields.String(), "Problems that people saw in the browser.", nullable=True)


class CmsDiagnosticResponse(ResponseSchema):
    """Stored diagnostics of a CMS plugin."""

    id = field.identifier("dia", "The id of the diagnostics.")
    project_id = field.number("The id of the project.", minimum=1)
    report_id = field.number("The id of the report", null="if the upload names none", minimum=1)
    platform = field.one_of([Platform.CMS_COMMERCE], "The key of the platform.")
    site_url = field.text("The URL of the site.", example="https://shop.example/")
    plugin_version = field.text("The version of the plugin.", nullable=True, attribute="client_version")
    diagnostics = field.part(CmsFactsResponse, "The data that the plugin reported.", attribute="reported")
    created_at = field.moment("The time at which the diagnostics were received.")


class CmsUploadResponse(ResponseSchema):
    """Accepted diagnostics of a CMS plugin."""

    diagnostic = field.part(CmsDiagnosticResponse, "The diagnostics.")
    handoff = field.part(HandoffResponse, "The handoff of the diagnostics.")


class StorefrontFactsResponse(ResponseSchema):
    """The diagnostics of a storefront app."""

    primary_domain = field.text("The domain that customers use.", nullable=True)
    published_theme_name = field.text("The name of the published theme.", nullable=True)
    theme_count = field.number("The number of themes.", nullable=True)
    product_count_bucket = field.text("The approximate number of products.", nullable=True)
    checkout_profile_status = field.text("The status of the checkout profile.", nullable=True)
    app_embed_status = field.text("The status of the app embed.", nullable=True)
    visible_storefront_symptoms = field.several(
        fields.String(), "Problems that people saw in the storefront.", nullable=True
    )


class StorefrontDiagnosticResponse(ResponseSchema):
    """Stored diagnostics of a storefront app."""

    id = field.identifier("dia", "The id of the diagnostics.")
    project_id = field.number("The id of the project.", minimum=1)
    report_id = field.number("The id of the report", null="if the upload names none", minimum=1)
    shop_domain = field.text("The domain of the shop.", example="snow.shops.example")
    shop_name = field.text("The name of the shop.", nullable=True)
    granted_scopes = field.several(field.one_of(SAFE_SCOPES, "A scope."), "The scopes that the shop granted.")
    app_version = field.text("The version of the app.", nullable=True, attribute="client_version")
    diagnostics = field.part(StorefrontFactsResponse, "The data that the app reported.", attribute="reported")
    created_at = field.moment("The time at which the diagnostics were received.")


class StorefrontUploadResponse(ResponseSchema):
    """Accepted diagnostics of a storefront app."""

    diagnostic = field.part(StorefrontDiagnosticResponse, "The diagnostics.")
    handoff = field.part(HandoffResponse, "The handoff of the diagnostics.")


def dump_upload(schema: type[ResponseSchema], upload: Capture | Diagnostics, handoff: Handoff) -> dict[str, Any]:
    """Return the JSON object of a stored upload and its handoff; `schema` is the response of its route."""
    stored = {**asdict(upload), "id": handoff.source.id, "created_at": handoff.created_at}
    return dump(schema, {"evidence_capture": stored, "diagnostic": stored, "handoff": handoff})
