"""Targets, the providers to choose from, and the results of test events."""

from datetime import datetime
from typing import Any, Final

from marshmallow import fields, validate

from schemas.api import response_fields as field
from schemas.api.response_fields import FINGERPRINT, ResponseSchema, dump
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.settings.definitions import DeploymentMode
from schemas.targets.target import FAILING_AFTER, Target, TargetStatus, as_shown
from schemas.targets.webhook_options import BodyFormat, Signature
from schemas.trackers.registry import provider_keys

_CONNECTED: Final = (
    f"`connected` after a delivery; `failing` if the last attempt or validation did not reach the receiver, or the last "
    f"{FAILING_AFTER} attempts delivered nothing."
)


class TargetSecretResponse(ResponseSchema):
    """The signing secret of a target, or the token of a tracker; never the secret itself."""

    configured = field.truth("Whether the target has a secret.", attribute="has_secret")
    fingerprint = field.text(
        "The fingerprint of the secret.",
        nullable=True,
        pattern=FINGERPRINT,
        attribute="secret_fingerprint",
        example="fp:1f3a5c7e9b0d",
    )


class StandardSecretResponse(ResponseSchema):
    """The Standard Webhooks secret of a target; never the secret itself."""

    configured = field.truth("Whether the target has one.", attribute="has_standard_secret", example=False)
    fingerprint = field.text(
        "The fingerprint of the secret.", nullable=True, pattern=FINGERPRINT, attribute="standard_secret_fingerprint"
    )


class TargetHeaderResponse(ResponseSchema):
    """A header that a target adds to its requests; never its value."""

    name = field.text("The name.", example="X-Team")
    fingerprint = field.text("The fingerprint of the value.", pattern=FINGERPRINT)


class TargetConnectionResponse(ResponseSchema):
    """The state of the connection to a target."""

    status = field.one_of(("unknown", "connected", "failing"), _CONNECTED, attribute="connected_status")
    last_success_at = field.moment("When a delivery last succeeded.", nullable=True)


class LastValidationResponse(ResponseSchema):
    """The latest validation of the target's address."""

    status = field.one_of(("passed", "failed"), "The result.", attribute="validation_status")
    reason = field.text(
        "Why it failed, or that the certificate expires soon. At a tracker, what is refused or missing follows a colon: "
        "`tracker_not_found:project`.",
        nullable=True,
        attribute="validation_reason",
    )
    checked_at = field.moment("When the target was validated.", attribute="validated_at")


class TargetDeliveryResponse(ResponseSchema):
    """The current pace of deliveries to a target."""

    concurrency = field.number("The most requests at once.", example=4)
    failures_in_row = field.number("The number of failed attempts since the last success.")
    max_per_minute = field.number("The configured limit.", nullable=True)
    waits_until = field.moment("No delivery is sent before this time.", nullable=True, attribute="held_until")


class TargetResponse(ResponseSchema):
    """A receiver of tickets."""

    id = field.identifier("tgt", "The target.")
    provider_key = field.one_of(provider_keys(), "Where tickets go: a webhook, or an issue tracker.")
    base_url = field.text(
        "The URL that deliveries are posted to, or a tracker's page. A credential in the query of an older target shows as "
        "`***`.",
        attribute="shown_url",
        example="https://tracker.example.com/hook",
    )
    deployment_mode = field.one_of(
        DeploymentMode, "The deployment mode it is meant for.", example=DeploymentMode.SELF_HOSTED
    )
    name = field.text("The name.", example="Our tracker")
    status = field.one_of(TargetStatus, "The status; exports can be approved for `active` targets only.")
    status_reason = field.text("Why it is not simply `active`.", nullable=True)
    secret = field.inline(TargetSecretResponse, "The signing secret, or the tracker's token.")
    connected = field.inline(TargetConnectionResponse, "Whether deliveries arrive.")
    last_validation = field.inline(
        LastValidationResponse,
        "The latest validation; null until a worker has asked a tracker.",
        present_if="validation_status",
    )
    max_per_minute = field.number("The most delivery attempts a minute; null for no limit.", nullable=True)
    provider_settings = field.free("The settings of the tracker; empty for a webhook.")
    signature = field.one_of(Signature, "What signs deliveries to a webhook.")
    format = field.one_of(BodyFormat, "The form of a delivery's body.")
    events = field.several(
        fields.String(validate=validate.OneOf(ALL_EVENTS)), "The events that it gets about tickets it received.", example=[]
    )
    headers = field.several(TargetHeaderResponse, "The additional headers of deliveries to a webhook.", example=[])
    standard_secret = field.inline(StandardSecretResponse, "The secret of Standard Webhooks.")
    delivery = field.inline(TargetDeliveryResponse, "The current pace of deliveries.")
    created_at = field.moment("When it was created.")


def dump_target(target: Target, now: datetime) -> dict[str, Any]:
    """Return the JSON object of a target as it is at `now`."""
    return dump(TargetResponse, as_shown(target, now))


class ProviderResponse(ResponseSchema):
    """A provider, which determines the kind of a target and its settings."""

    key = field.one_of(provider_keys(), "The `provider_key` of its targets.")
    name = field.text("Its name.", example="Webhook")
    base_url_example = field.text("A `base_url` of a target.", example="https://tracker.example.com/hook")
    settings_schema = field.free("The JSON Schema of its `provider_settings`.")
    secret = field.text(
        "What the secret of a target is, its least scope, and where it is created.",
        example="A random text of at least 8 bytes, which signs deliveries and which your receiver verifies.",
    )


class ProviderListResponse(ResponseSchema):
    """Every provider."""

    items = field.several(ProviderResponse, "The providers: webhooks first, then trackers.")


class PingOutcomeResponse(ResponseSchema):
    """The result of a test event."""

    delivered = field.truth("Whether the receiver responded with 2xx.")
    response_status = field.number("The receiver's HTTP status; null if there was no response.", nullable=True, example=202)
    error_code = field.text("The reason of the failure; `no_worker` if no worker sent it in time.", nullable=True)
    duration_ms = field.number(
        "The duration in milliseconds; null if no worker reported a result.", nullable=True, example=87
    )
