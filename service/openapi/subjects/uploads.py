"""Documents the uploads of the extension, the plugin and the storefront app, and their handoffs."""

from typing import Final

from schemas.api.uploads import CaptureUploadResponse, CmsUploadResponse, HandoffProgressResponse, StorefrontUploadResponse
from service.openapi.examples import AT
from service.openapi.operations import NOT_MODIFIED, Operations, SuccessResponse, operation

_COMMON: Final = (
    " The token's user must manage the project, or the report if the body names one. The response is the same 403 for a "
    "project that the user does not manage, that belongs to another account, or that does not exist. Unknown fields are "
    "rejected at any depth. Without an `Idempotency-Key`, an upload that repeats another one within a day gets the first "
    "response again: the same text on the same page of the same project and report."
)

OPERATIONS: Final[Operations] = {
    "POST /api/browser-extension/evidence-captures": operation(
        "browser-extension.evidence-captures.store",
        "Upload a capture of a page",
        "Stores a capture of the browser extension and prepares an export from it." + _COMMON,
        SuccessResponse(201, "The capture is stored and its export prepared.", CaptureUploadResponse),
        examples={
            "Complete": {
                "project_id": 1,
                "page_url": "https://shop.example/cart?step=2",
                "page_title": "Your cart",
                "selected_text": "The total is missing.",
                "meta_description": "Everything you chose.",
                "canonical_url": "https://shop.example/cart",
                "heading_outline": [{"level": "h1", "text": "Your cart"}, {"level": "h2", "text": "Delivery"}],
                "captured_at": AT,
                "extension_version": "1.4.0",
            }
        },
    ),
    "POST /api/cms-plugins/cms-commerce/diagnostics": operation(
        "cms-plugins.cms-commerce.diagnostics.store",
        "Upload a CMS plugin's diagnostics",
        "Stores the plugin's diagnostics and prepares an export from them." + _COMMON,
        SuccessResponse(201, "The diagnostics are stored and their export prepared.", CmsUploadResponse),
        examples={
            "Complete": {
                "project_id": 1,
                "platform": "cms_commerce",
                "site_url": "https://shop.example/",
                "plugin_version": "2.0.1",
                "diagnostics": {
                    "cms_version": "6.8",
                    "commerce_plugin_version": "9.3.1",
                    "active_theme": "Storefront Light",
                    "active_plugin_names": ["Forms", "Cache"],
                    "checkout_page_url": "https://shop.example/checkout",
                    "commerce_plugin_status": "active",
                    "visible_browser_symptoms": ["The pay button does nothing."],
                },
            }
        },
    ),
    "POST /api/storefront-app/diagnostics": operation(
        "storefront-app.diagnostics.store",
        "Upload a storefront app's diagnostics",
        "Stores the app's diagnostics and prepares an export from them. A shop other than the project's is "
        "rejected." + _COMMON,
        SuccessResponse(201, "The diagnostics are stored and their export prepared.", StorefrontUploadResponse),
        examples={
            "Complete": {
                "project_id": 1,
                "shop_domain": "snow.shops.example",
                "shop_name": "Snow",
                "granted_scopes": ["read_content", "read_themes"],
                "app_version": "3.1",
                "diagnostics": {
                    "primary_domain": "www.snow.example",
                    "published_theme_name": "Dawn",
                    "theme_count": 3,
                    "product_count_bucket": "100-500",
                    "checkout_profile_status": "published",
                    "app_embed_status": "enabled",
                    "visible_storefront_symptoms": ["The price is missing."],
                },
            }
        },
    ),
    "GET /api/handoffs/{handoff_id}": operation(
        "readHandoff",
        "Poll a handoff",
        "Reads the state of an upload. The token needs the ability that the upload needed, and its user must still manage "
        "the project or report. Send `If-None-Match`: a 304 costs little. After `delivered`, `failed` or `dismissed`, the "
        "status changes only by another decision of a person, or to `fixed`.",
        SuccessResponse(200, "The handoff as it is now.", HandoffProgressResponse, headers=("ETag",)),
        NOT_MODIFIED,
    ),
}
