"""Documents `/api/ticket-export-targets`."""

from typing import Any, Final

from schemas.api.targets import PingOutcomeResponse, ProviderListResponse, TargetListResponse, TargetResponse
from service.api.targets import ProvidersResource, TargetResource, TargetsResource
from service.openapi.operations import AT, PAGING, TARGET_ID, OperationDescription, Operations, SuccessResponse, listed

TAG: Final = "Ticket export targets"

TARGET: Final[dict[str, Any]] = {
    "id": TARGET_ID,
    "provider_key": "generic_webhook",
    "base_url": "https://tracker.example.com/hook",
    "deployment_mode": "self-hosted",
    "name": "Our tracker",
    "status": "active",
    "status_reason": None,
    "secret": {"configured": True, "fingerprint": "fp:1f3a5c7e9b0d"},
    "connected": {"status": "unknown", "last_success_at": None},
    "last_validation": None,
    "max_per_minute": None,
    "provider_settings": {},
    "signature": "service",
    "format": "ticket",
    "events": [],
    "headers": [],
    "standard_secret": {"configured": False, "fingerprint": None},
    "delivery": {"concurrency": 4, "failures_in_row": 0, "max_per_minute": None, "waits_until": None},
    "created_at": AT,
}
_PROVIDER: Final = {
    "key": "generic_webhook",
    "name": "Webhook",
    "base_url_example": "https://tracker.example.com/hook",
    "settings_schema": {"type": "object", "properties": {}, "additionalProperties": False},
    "secret": "A random text of at least 8 bytes, which signs deliveries and which your receiver verifies.",
}
_VALIDATED: Final = {**TARGET, "last_validation": {"status": "passed", "reason": None, "checked_at": AT}}

#: Operations on a new target.
_NEXT: Final = (
    "readTicketExportTarget",
    "validateTicketExportTarget",
    "pauseTicketExportTarget",
    "resumeTicketExportTarget",
    "disableTicketExportTarget",
    "editTicketExportTarget",
    "removeTicketExportTarget",
)


def _action(verb: str) -> tuple[str, str]:
    return "POST", f"{TargetResource.path}/{verb}"


OPERATIONS: Final[Operations] = {
    ("POST", TargetsResource.path): OperationDescription(
        id="createTicketExportTarget",
        tag=TAG,
        summary="Create a target",
        description="The address is checked at once: https, a public address, an allowed port. An address that is not "
        "allowed, does not resolve or has a parameter named like a credential is rejected on `/base_url` with the reason. "
        "The operator sets the signing secret; without one the target is `inactive`.",
        responses=(SuccessResponse(201, "The target is created.", TargetResponse, TARGET, ("Location",), _NEXT),),
        examples={
            "A target": {
                "provider_key": "generic_webhook",
                "base_url": "https://tracker.example.com/hook",
                "name": "Our tracker",
            },
            "With a rate limit": {
                "provider_key": "generic_webhook",
                "base_url": "https://tracker.example.com/hook",
                "deployment_mode": "self-hosted",
                "name": "Our tracker",
                "max_per_minute": 60,
            },
        },
    ),
    ("GET", TargetsResource.path): OperationDescription(
        id="listTicketExportTargets",
        tag=TAG,
        summary="List targets",
        description="The targets of the token's account, newest first.",
        responses=(listed("targets", TargetListResponse, TARGET),),
        parameters=("TargetStatus", *PAGING),
    ),
    ("GET", ProvidersResource.path): OperationDescription(
        id="listProviders",
        tag=TAG,
        summary="List providers",
        description="Where tickets can go: each with the JSON Schema of its settings and the secret that it needs. The list "
        "is the same for every account and has one page.",
        responses=(SuccessResponse(200, "Every provider.", ProviderListResponse, {"items": [_PROVIDER]}),),
    ),
    ("GET", TargetResource.path): OperationDescription(
        id="readTicketExportTarget",
        tag=TAG,
        summary="Read a target",
        description="Its status, the results of its deliveries, and the fingerprint of its signing secret.",
        responses=(SuccessResponse(200, "The target as it is now.", TargetResponse, TARGET),),
    ),
    ("PATCH", TargetResource.path): OperationDescription(
        id="editTicketExportTarget",
        tag=TAG,
        summary="Edit a target",
        description="Changes the members that the body names. A new `base_url` is checked like a new target's, and the "
        "target starts as a new one: status, validation, holds and failures are those of a target that nothing was sent to. "
        "Exports that wait are sent to the new URL with unchanged bodies; an attempt under way ends at the old one.",
        responses=(SuccessResponse(200, "The target.", TargetResponse, {**TARGET, "max_per_minute": 60}),),
        examples={
            "Another URL": {"base_url": "https://tracker.example.com/hook"},
            "A name and a rate limit": {"name": "Our tracker", "max_per_minute": 60},
            "No rate limit": {"max_per_minute": None},
        },
    ),
    ("DELETE", TargetResource.path): OperationDescription(
        id="removeTicketExportTarget",
        tag=TAG,
        summary="Remove a target",
        description="Removes a target that no export waits for, and erases its secret. While exports wait it is a 409 whose "
        "`details` count them: `approved`, `delivering`, `retry_scheduled`, up to 10,000 together. Finished exports keep "
        "the target's id; a failed one can be retried at another target only.",
        responses=(SuccessResponse(204, "The target is removed; its id is a 404 from now on."),),
        error_codes=("CONFLICT",),
    ),
    _action("validate"): OperationDescription(
        id="validateTicketExportTarget",
        tag=TAG,
        summary="Validate a target",
        description="Checks the URL and its addresses; a worker connects and checks the certificate. Nothing "
        "is sent. An address that the policy refuses blocks an active or paused target; anything else that fails "
        "turns nothing off, but prevents approvals until a validation passes or a delivery succeeds. Where no worker takes "
        "it up within 5 s, the result is that of policy and name alone, and an earlier failure to connect remains.",
        responses=(SuccessResponse(200, "The target, with the result in `last_validation`.", TargetResponse, _VALIDATED),),
    ),
    _action("ping"): OperationDescription(
        id="pingTicketExportTarget",
        tag=TAG,
        summary="Send a test event",
        description="A worker sends one signed `target.ping`; the response has its result. A target of a tracker is "
        "validated there instead, and nothing is created. An inactive or disabled target is a 409.",
        responses=(
            SuccessResponse(
                200,
                "What came of it.",
                PingOutcomeResponse,
                {"delivered": True, "response_status": 202, "error_code": None, "duration_ms": 87},
            ),
        ),
        error_codes=("CONFLICT",),
    ),
    _action("pause"): OperationDescription(
        id="pauseTicketExportTarget",
        tag=TAG,
        summary="Pause a target",
        description="Its exports wait. Pausing a paused target changes nothing; a target that is neither active nor paused "
        "is a 409.",
        responses=(
            SuccessResponse(200, "The target.", TargetResponse, {**TARGET, "status": "paused", "status_reason": "client"}),
        ),
        error_codes=("CONFLICT",),
    ),
    _action("resume"): OperationDescription(
        id="resumeTicketExportTarget",
        tag=TAG,
        summary="Resume a target",
        description="Reactivates a `paused`, `blocked` or `disabled` target, and ends a hold that the receiver asked for "
        "and an open breaker. The address is checked again: an unsafe one is refused on `/base_url`. What a tracker's "
        "refusal blocked is `approved` again.",
        responses=(SuccessResponse(200, "The target; its exports go on.", TargetResponse, _VALIDATED),),
        error_codes=("CONFLICT",),
    ),
    _action("disable"): OperationDescription(
        id="disableTicketExportTarget",
        tag=TAG,
        summary="Disable a target",
        description="The target accepts no approvals. Waiting exports become `failed` with the reason `target_disabled`.",
        responses=(
            SuccessResponse(200, "The target.", TargetResponse, {**TARGET, "status": "disabled", "status_reason": "client"}),
        ),
        error_codes=("CONFLICT",),
    ),
}
