"""Uploads of the browser extension, the CMS plugin and the storefront app."""

from dataclasses import asdict
from typing import Any

from marshmallow import fields

from schemas.api.exports import ProviderTicketResponse, SourceResponse
from schemas.api.response_fields import (
    ResponseSchema,
    constant,
    dump,
    identifier,
    moment,
    number,
    one_of,
    part,
    several,
    text,
)
from schemas.exports.handoffs import RECEIVED, Handoff, HandoffStatus
from schemas.intake.diagnostics import SAFE_SCOPES, Diagnostics, Platform
from schemas.intake.evidence import HEADING_LEVELS, Capture


class _HandoffSource(ResponseSchema):
    id = identifier("hof", "The handoff.")
    source = part(SourceResponse, "The capture or the diagnostics.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, if one was named.", nullable=True, minimum=1)


class HandoffResponse(_HandoffSource):
    """The link between an upload, its project, its report and its export."""

    ticket_export_id = identifier("exp", "The prepared export.")
    status = constant(RECEIVED, "It is stored.")
    created_at = moment("When the upload was received.")


class HandoffProgressResponse(_HandoffSource):
    """A handoff and the state of its upload."""

    created_at = moment("When the upload was received.")
    status = one_of(
        HandoffStatus,
        "`received` in the response to the upload; `prepared` until a person or a rule decides; `approved` until it is "
        "`delivered` or has `failed`; `dismissed`; `fixed` once all findings of the delivered ticket are fixed.",
    )
    provider_ticket = part(ProviderTicketResponse, "The ticket at the receiver, if the receiver named one.", optional=True)


class HeadingResponse(ResponseSchema):
    """One heading of a page."""

    level = one_of(HEADING_LEVELS, "The level.")
    text = text("The text.", example="Your cart")


class CaptureResponse(ResponseSchema):
    """A capture of one page."""

    id = identifier("evc", "The capture.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, if one was named.", nullable=True, minimum=1)
    page_url = text("The URL of the page.", example="https://shop.example/cart?step=2")
    page_title = text("The title of the page.", nullable=True)
    selected_text = text("The selected text.", nullable=True)
    meta_description = text("The meta description of the page.", nullable=True)
    canonical_url = text("The canonical URL of the page.", nullable=True)
    heading_outline = several(fields.Nested(HeadingResponse), "The headings of the page, in order.", nullable=True)
    captured_at = moment("When it was captured.", nullable=True)
    extension_version = text("The version of the extension.", nullable=True)
    created_at = moment("When it was received.")


class CaptureUploadResponse(ResponseSchema):
    """An accepted capture."""

    evidence_capture = part(CaptureResponse, "The capture.")
    handoff = part(HandoffResponse, "Its handoff.")


class CmsFactsResponse(ResponseSchema):
    """The diagnostics of a CMS plugin."""

    cms_version = text("The version of the CMS.", nullable=True)
    commerce_plugin_version = text("The version of the commerce plugin.", nullable=True)
    active_theme = text("The active theme.", nullable=True)
    active_plugin_names = several(fields.String(), "The active plugins.", nullable=True)
    checkout_page_url = text("The URL of the checkout page.", nullable=True)
    commerce_plugin_status = text("The status of the commerce plugin.", nullable=True)
    visible_browser_symptoms = several(fields.String(), "Problems that people saw in the browser.", nullable=True)


class CmsDiagnosticResponse(ResponseSchema):
    """Stored diagnostics of a CMS plugin."""

    id = identifier("dia", "The diagnostics.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, if one was named.", nullable=True, minimum=1)
    platform = one_of([Platform.CMS_COMMERCE], "The platform.")
    site_url = text("The URL of the site.", example="https://shop.example/")
    plugin_version = text("The version of the plugin.", nullable=True, attribute="client_version")
    diagnostics = part(CmsFactsResponse, "What the plugin reported.", attribute="reported")
    created_at = moment("When they were received.")


class CmsUploadResponse(ResponseSchema):
    """Accepted diagnostics of a CMS plugin."""

    diagnostic = part(CmsDiagnosticResponse, "The diagnostics.")
    handoff = part(HandoffResponse, "Their handoff.")


class StorefrontFactsResponse(ResponseSchema):
    """The diagnostics of a storefront app."""

    primary_domain = text("The domain that customers use.", nullable=True)
    published_theme_name = text("The published theme.", nullable=True)
    theme_count = number("The number of themes.", nullable=True)
    product_count_bucket = text("The approximate number of products.", nullable=True)
    checkout_profile_status = text("The status of the checkout profile.", nullable=True)
    app_embed_status = text("The status of the app embed.", nullable=True)
    visible_storefront_symptoms = several(fields.String(), "Problems that people saw in the storefront.", nullable=True)


class StorefrontDiagnosticResponse(ResponseSchema):
    """Stored diagnostics of a storefront app."""

    id = identifier("dia", "The diagnostics.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, if one was named.", nullable=True, minimum=1)
    shop_domain = text("The shop.", example="snow.shops.example")
    shop_name = text("The name of the shop.", nullable=True)
    granted_scopes = several(one_of(SAFE_SCOPES, "A scope."), "The scopes that the shop granted.")
    app_version = text("The version of the app.", nullable=True, attribute="client_version")
    diagnostics = part(StorefrontFactsResponse, "What the app reported.", attribute="reported")
    created_at = moment("When they were received.")


class StorefrontUploadResponse(ResponseSchema):
    """Accepted diagnostics of a storefront app."""

    diagnostic = part(StorefrontDiagnosticResponse, "The diagnostics.")
    handoff = part(HandoffResponse, "Their handoff.")


def dump_upload(schema: type[ResponseSchema], upload: Capture | Diagnostics, handoff: Handoff) -> dict[str, Any]:
    """Return the JSON object of a stored upload and its handoff; `schema` is the response of its route."""
    stored = {**asdict(upload), "id": handoff.source.id, "created_at": handoff.created_at}
    return dump(schema, {"evidence_capture": stored, "diagnostic": stored, "handoff": handoff})
