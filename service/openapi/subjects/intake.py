"""Documents intake: scanner results, emails, the storefront's compliance webhooks."""

from typing import Any, Final

from schemas.api.intake import ComplianceResponse, EmailResponse, PostbackResponse
from service.openapi.operations import Operations, SuccessResponse, operation

_POSTBACK: Final[dict[str, Any]] = {
    "scanRunId": 42,
    "status": "completed",
    "page": {
        "url": "https://shop.example/",
        "normalizedUrl": "https://shop.example/",
        "statusCode": 200,
        "pageType": "home",
        "responseHeaders": {"content-type": "text/html"},
    },
    "artifacts": {"screenshotPath": "artifacts/42/home.png"},
    "issues": [
        {
            "code": "image-alt",
            "title": "Image without alternative text",
            "severity": "serious",
            "description": "Screen readers cannot tell what the picture shows.",
            "location": "main > img.hero",
        }
    ],
}
_PLAIN: Final[dict[str, Any]] = {
    "message_id": "<1@mail.example>",
    "from": "Jane Doe <jane@mail.example>",
    "to": "inbox@service.example",
    "subject": "The checkout is broken",
    "text": "The button does nothing on https://shop.example/checkout.",
    "received_at": "2026-03-01T12:00:00Z",
}
_POSTMARK: Final[dict[str, Any]] = {
    "MessageID": "3f1f2b6c-0000-4000-8000-000000000001",
    "From": "jane@mail.example",
    "FromFull": {"Email": "jane@mail.example", "Name": "Jane Doe", "MailboxHash": ""},
    "To": "inbox@service.example",
    "ToFull": [{"Email": "inbox@service.example", "Name": "Inbox", "MailboxHash": ""}],
    "Subject": "The checkout is broken",
    "Date": "Sun, 1 Mar 2026 13:00:00 +0100",
    "TextBody": "The button does nothing on https://shop.example/checkout.",
    "Attachments": [{"Name": "screen.png", "Content": "iVBORw0KGgo=", "ContentType": "image/png", "ContentLength": 8}],
}
_CUSTOMER: Final = {"id": 191167, "email": "john@mail.example", "phone": "555-625-1199"}

OPERATIONS: Final[Operations] = {
    "POST /api/scanner/results": operation(
        "postScannerResults",
        "Post one page of a scan run",
        "Stores the page and its findings. Each new finding prepares an export; in a project that groups "
        "by rule, findings of one rule share an export while it is prepared. Known findings prepare "
        "nothing. Only the statuses `completed` and `partial` create findings. Unknown fields are ignored "
        "and not stored, except those of an issue: they are stored as evidence, up to 8 KiB.",
        SuccessResponse(202, "The page is stored.", PostbackResponse),
        examples={
            "One issue": _POSTBACK,
            "Minimal": {"scanRunId": 42, "status": "running", "page": {"url": "https://shop.example/"}},
        },
    ),
    "POST /api/email/webhook": operation(
        "postEmail",
        "Post an inbound email",
        "Accepts emails in the inbound format of Postmark, or in a plain format. Each message id is "
        "accepted once per project. The plus address of a recipient (`anything+p7@…`) names the project; "
        "without one, the email belongs to the default project of the installation.",
        SuccessResponse(202, "The email is stored.", EmailResponse),
        examples={"Plain": _PLAIN, "Postmark": _POSTMARK},
        # Returned if EMAIL_ALLOWED_NETWORKS does not contain the client's network.
        error_codes=("FORBIDDEN",),
    ),
    "POST /api/storefront-app/webhooks/compliance": operation(
        "storefront-app.webhooks.compliance",
        "Request a person's data, or its erasure",
        "The storefront platform's webhooks. RiskRelay checks in this order: a secret is configured "
        "(otherwise 503), the signature matches the raw body (otherwise 401), topic and shop are valid and "
        "the body matches both headers (otherwise 422). A worker processes the request within 30 days. A "
        "repeated webhook does not create another request.",
        SuccessResponse(204, "The request is stored."),
        dry_run_response=SuccessResponse(200, "With `dry_run`: the record that would be stored.", ComplianceResponse),
        error_codes=("SIGNATURE_INVALID",),
        parameters=("Topic", "ShopDomain"),
        examples={
            "customers/redact": {
                "shop_domain": "snow.shops.example",
                "customer": _CUSTOMER,
                "orders_to_redact": [299938, 280263],
            },
            "customers/data_request": {
                "shop_domain": "snow.shops.example",
                "customer": _CUSTOMER,
                "orders_requested": [299938],
                "data_request": {"id": 9999},
            },
            "shop/redact": {"shop_domain": "snow.shops.example"},
        },
    ),
}
