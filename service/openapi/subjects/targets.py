"""Documents `/api/ticket-export-targets`."""

from typing import Final

from schemas.api.targets import PingOutcomeResponse, ProviderListResponse, TargetResponse
from service.openapi.operations import Operations, Record, SuccessResponse, operation

TARGET_URL: Final = "https://tracker.example.com/hook"
_TARGET: Final = Record("target", TargetResponse, "TicketExportTarget")

OPERATIONS: Final[Operations] = {
    "POST /api/ticket-export-targets": _TARGET.operation(
        "create",
        "Creates a target. Its URL is checked at once: https, a public address, an allowed port. A URL that is not allowed, "
        "does not resolve, or has a parameter named like a credential is rejected on `/base_url` with the reason. The "
        "operator sets the signing secret; without one the target is `inactive`.",
        _TARGET.created("The target is created."),
        examples={
            "A target": {"provider_key": "generic_webhook", "base_url": TARGET_URL, "name": "Our tracker"},
            "With a rate limit": {
                "provider_key": "generic_webhook",
                "base_url": TARGET_URL,
                "deployment_mode": "self-hosted",
                "name": "Our tracker",
                "max_per_minute": 60,
            },
        },
    ),
    "GET /api/ticket-export-targets": _TARGET.listed("The targets of the token's account, newest first.", "TargetStatus"),
    "GET /api/providers": operation(
        "listProviders",
        "List providers",
        "The kinds of receivers, each with the JSON Schema of its settings and the secret that it needs. "
        "The list is the same for every account and has one page.",
        SuccessResponse(200, "Every provider.", ProviderListResponse),
    ),
    "GET /api/ticket-export-targets/{target_id}": _TARGET.read(
        "Reads a target with its status, the results of its deliveries, and the fingerprint of its signing secret.",
        "The target as it is now.",
    ),
    "PATCH /api/ticket-export-targets/{target_id}": _TARGET.operation(
        "edit",
        "Changes the fields in the body. A new `base_url` is checked like the URL of a new target. Status, "
        "validation, holds and failures then become those of a new target. Exports that wait are sent to "
        "the new URL with unchanged bodies; a running attempt ends at the old one.",
        _TARGET.response(),
        examples={
            "Another URL": {"base_url": TARGET_URL},
            "A name and a rate limit": {"name": "Our tracker", "max_per_minute": 60},
            "No rate limit": {"max_per_minute": None},
        },
    ),
    "DELETE /api/ticket-export-targets/{target_id}": _TARGET.operation(
        "remove",
        "Removes a target that no export waits for, and erases its secret. While exports wait, the response is 409, and its "
        "`details` count them: `approved`, `delivering`, `retry_scheduled`, up to 10,000 together. Finished exports keep "
        "the target's id; a failed one can be retried only at another target.",
        SuccessResponse(204, "The target is removed; requests for its id get 404 from now on."),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-export-targets/{target_id}/validate": _TARGET.operation(
        "validate",
        "Checks the URL and its addresses; a worker connects and checks the certificate. Nothing is sent. If the policy "
        "refuses an address, an active or paused target becomes blocked. Any other failure does not change the status, but "
        "prevents approvals until a validation passes or a delivery succeeds. If no worker starts within 5 s, the result "
        "covers only the URL policy and DNS, and an earlier failure to connect remains.",
        _TARGET.response("The target, with the result in `last_validation`."),
    ),
    "POST /api/ticket-export-targets/{target_id}/ping": operation(
        "pingTicketExportTarget",
        "Send a test event",
        "A worker sends one signed `target.ping`; the response has the result. A target of a tracker is validated instead, "
        "and nothing is created there. If the target is inactive or disabled, the response is 409.",
        SuccessResponse(200, "The result of the ping.", PingOutcomeResponse),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-export-targets/{target_id}/pause": _TARGET.operation(
        "pause",
        "Pauses deliveries; exports for the target wait. Pausing a paused target changes nothing. If the "
        "target is neither active nor paused, the response is 409.",
        _TARGET.response(),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-export-targets/{target_id}/resume": _TARGET.operation(
        "resume",
        "Reactivates a `paused`, `blocked` or `disabled` target, ends a hold that the receiver requested, "
        "and closes an open circuit breaker. The address is checked again: an unsafe one is rejected on "
        "`/base_url`. Exports that became blocked because the tracker refused them are `approved` again.",
        _TARGET.response("The target; its exports are delivered again."),
        error_codes=("CONFLICT",),
    ),
    "POST /api/ticket-export-targets/{target_id}/disable": _TARGET.operation(
        "disable",
        "The target accepts no approvals. Waiting exports become `failed` with the reason `target_disabled`.",
        _TARGET.response(),
        error_codes=("CONFLICT",),
    ),
}
