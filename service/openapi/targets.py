"""`/api/ticket-export-targets` in words."""

from typing import Any, Final

from schemas.api.responses import PingOutcome, Target, TargetList
from service.api.targets import TicketExportTarget, TicketExportTargets
from service.openapi.operations import AT, PAGING, TARGET_ID, Described, Good, Operations, listed

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
    "delivery": {"concurrency": 4, "failures_in_row": 0, "max_per_minute": None, "waits_until": None},
    "created_at": AT,
}
_VALIDATED: Final = {**TARGET, "last_validation": {"status": "passed", "reason": None, "checked_at": AT}}

#: What may follow a target that is made.
_NEXT: Final = (
    "readTicketExportTarget",
    "validateTicketExportTarget",
    "pauseTicketExportTarget",
    "resumeTicketExportTarget",
    "disableTicketExportTarget",
)


def _action(verb: str) -> tuple[str, str]:
    return "POST", f"{TicketExportTarget.path}/{verb}"


OPERATIONS: Final[Operations] = {
    ("POST", TicketExportTargets.path): Described(
        id="createTicketExportTarget",
        tag=TAG,
        summary="Make a target",
        description="Its address is checked at once: https, a public address, an allowed port. What may not be "
        "dialled, or cannot be resolved, is refused on `/base_url` with the reason. The secret that signs for it is "
        "set by the operator, never here; without any the target is `inactive`.",
        answers=(Good(201, "The target is made.", Target, TARGET, ("Location",), _NEXT),),
        examples={
            "A target": {
                "provider_key": "generic_webhook",
                "base_url": "https://tracker.example.com/hook",
                "name": "Our tracker",
            },
            "With a pace": {
                "provider_key": "generic_webhook",
                "base_url": "https://tracker.example.com/hook",
                "deployment_mode": "self-hosted",
                "name": "Our tracker",
                "max_per_minute": 60,
            },
        },
    ),
    ("GET", TicketExportTargets.path): Described(
        id="listTicketExportTargets",
        tag=TAG,
        summary="List targets",
        description="The targets of the token's account, the newest first.",
        answers=(listed("targets", TargetList, TARGET),),
        parameters=("TargetStatus", *PAGING),
    ),
    ("GET", TicketExportTarget.path): Described(
        id="readTicketExportTarget",
        tag=TAG,
        summary="Read a target",
        description="Its state, how deliveries fare, and the fingerprint of the secret that signs for it.",
        answers=(Good(200, "The target as it is now.", Target, TARGET),),
    ),
    _action("validate"): Described(
        id="validateTicketExportTarget",
        tag=TAG,
        summary="Check a target's address now",
        description="Checks the URL and its addresses, and has a worker connect and look at the certificate; nothing "
        "is sent. An address that the policy refuses blocks an active or paused target; anything else that fails "
        "turns nothing off. Where no worker takes it up within 5 s, the result is that of policy and name alone.",
        answers=(Good(200, "The target, with what was found in `last_validation`.", Target, _VALIDATED),),
    ),
    _action("ping"): Described(
        id="pingTicketExportTarget",
        tag=TAG,
        summary="Send a test event",
        description="Has a worker send one signed `target.ping`, once, and waits for what comes of it. An inactive or "
        "disabled target is a 409.",
        answers=(
            Good(
                200,
                "What came of it.",
                PingOutcome,
                {"delivered": True, "response_status": 202, "error_code": None, "duration_ms": 87},
            ),
        ),
        refusals=("CONFLICT",),
    ),
    _action("pause"): Described(
        id="pauseTicketExportTarget",
        tag=TAG,
        summary="Pause a target",
        description="Its exports wait. Pausing a paused one changes nothing; one that is neither active nor paused is "
        "a 409.",
        answers=(Good(200, "The target.", Target, {**TARGET, "status": "paused", "status_reason": "client"}),),
        refusals=("CONFLICT",),
    ),
    _action("resume"): Described(
        id="resumeTicketExportTarget",
        tag=TAG,
        summary="Resume a target",
        description="Leads back from `paused`, `blocked` and `disabled`, and ends a pause that the receiver asked for "
        "and an open breaker. The address is checked again: an unsafe one is refused on `/base_url`.",
        answers=(Good(200, "The target; its exports go on.", Target, _VALIDATED),),
        refusals=("CONFLICT",),
    ),
    _action("disable"): Described(
        id="disableTicketExportTarget",
        tag=TAG,
        summary="Disable a target",
        description="It takes nothing more. What waits for it ends as `failed` with the reason `target_disabled`.",
        answers=(Good(200, "The target.", Target, {**TARGET, "status": "disabled", "status_reason": "client"}),),
        refusals=("CONFLICT",),
    ),
}
