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
        "The fingerprint of the secret",
        null="if there is none",
        pattern=FINGERPRINT,
        attribute="secret_fingerprint",
        example="fp:1f3a5c7e9b0d",
    )


class StandardSecretResponse(ResponseSchema):
    """The Standard Webhooks secret of a target; never the secret itself."""

    configured = field.truth(
        "Whether the target has a secret for Standard Webhooks.", attribute="has_standard_secret", example=False
    )
    fingerprint = field.text(
        "The fingerprint of the secret",
        null="if there is none",
        pattern=FINGERPRINT,
        attribute="standard_secret_fingerprint",
    )


class TargetHeaderResponse(ResponseSchema):
    """A header that a target adds to its requests; never its value."""

    name = field.text("The name of the header.", example="X-Team")
    fingerprint = field.text("The fingerprint of the header's value.", pattern=FINGERPRINT)


class TargetConnectionResponse(ResponseSchema):
    """The state of the connection to a target."""

    status = field.one_of(("unknown", "connected", "failing"), _CONNECTED, attribute="connected_status")
    last_success_at = field.moment("The time of the last successful delivery", null="before the first")


class LastValidationResponse(ResponseSchema):
    """The latest validation of the target's address."""

    status = field.one_of(("passed", "failed"), "The result of the validation.", attribute="validation_status")
    reason = field.text(
        "Why the validation failed, or that the certificate expires soon; null if there is nothing to "
        "report. For a tracker, the refused or missing part follows a colon: `tracker_not_found:project`.",
        nullable=True,
        attribute="validation_reason",
    )
    checked_at = field.moment("The time of the validation.", attribute="validated_at")


class TargetDeliveryResponse(ResponseSchema):
    """The current pace of deliveries to a target."""

    concurrency = field.number("The current maximum number of simultaneous requests to the target.", example=4)
    failures_in_row = field.number("The number of failed attempts since the last success.")
    max_per_minute = field.number("The maximum number of delivery attempts per minute; null: no limit.", nullable=True)
    waits_until = field.moment(
        "The time until which nothing is delivered to the target",
        null="if the target is not on hold",
        attribute="held_until",
    )


class TargetResponse(ResponseSchema):
    """A receiver of tickets."""

    id = field.identifier("tgt", "The id of the target.")
    provider_key = field.one_of(provider_keys(), "The kind of receiver: a webhook, or an issue tracker.")
    base_url = field.text(
        "The URL that deliveries are posted to; for a tracker, the page of its project. A credential in "
        "the query of an older target is shown as `***`.",
        attribute="shown_url",
        example="https://tracker.example.com/hook",
    )
    deployment_mode = field.one_of(
        DeploymentMode, "The deployment mode that the target is meant for.", example=DeploymentMode.SELF_HOSTED
    )
    name = field.text("The name of the target.", example="Our tracker")
    status = field.one_of(TargetStatus, "The status; exports can be approved only for `active` targets.")
    status_reason = field.text("The reason of the status, or why an `active` target is on hold", null="if there is none")
    secret = field.inline(
        TargetSecretResponse, "Whether the target has its signing secret, or the token of its tracker, and the fingerprint."
    )
    connected = field.inline(TargetConnectionResponse, "Whether deliveries reach the receiver.")
    last_validation = field.inline(
        LastValidationResponse,
        "The latest validation; null for a tracker that was not validated yet.",
        present_if="validation_status",
    )
    max_per_minute = field.number("The maximum number of delivery attempts per minute; null: no limit.", nullable=True)
    provider_settings = field.free("The settings of the tracker; empty for a webhook.")
    signature = field.one_of(Signature, "The signature headers of deliveries to a webhook.")
    format = field.one_of(BodyFormat, "The format of the body of deliveries to a webhook.")
    events = field.several(
        fields.String(validate=validate.OneOf(ALL_EVENTS)),
        "The events that the target receives about tickets that were delivered to it.",
        example=[],
    )
    headers = field.several(
        TargetHeaderResponse, "The additional headers of deliveries to a webhook, without their values.", example=[]
    )
    standard_secret = field.inline(
        StandardSecretResponse, "Whether the target has a secret for Standard Webhooks, and its fingerprint."
    )
    delivery = field.inline(TargetDeliveryResponse, "The current limits of deliveries to the target.")
    created_at = field.moment("The time at which the target was created.")


def dump_target(target: Target, now: datetime) -> dict[str, Any]:
    """Return the JSON object of a target as it is at `now`."""
    return dump(TargetResponse, as_shown(target, now))


class ProviderResponse(ResponseSchema):
    """A provider, which determines the kind of a target and its settings."""

    key = field.one_of(provider_keys(), "The `provider_key` of targets of this provider.")
    name = field.text("The name of the provider.", example="Webhook")
    base_url_example = field.text("An example of a target's `base_url`.", example="https://tracker.example.com/hook")
    settings_schema = field.free("The JSON Schema of a target's `provider_settings`.")
    secret = field.text(
        "The secret that a target needs: what it is, its minimum scope, and where to create it.",
        example="A random text of at least 8 bytes, which signs deliveries and which your receiver verifies.",
    )


class ProviderListResponse(ResponseSchema):
    """Every provider."""

    items = field.several(ProviderResponse, "The providers: webhooks first, then trackers.")


class PingOutcomeResponse(ResponseSchema):
    """The result of a test event."""

    delivered = field.truth("Whether the receiver responded with 2xx.")
    response_status = field.number("The receiver's HTTP status", null="if there was no response", example=202)
    error_code = field.text(
        "The reason of the failure; null on success; `no_worker` if no worker sent the ping in time.", nullable=True
    )
    duration_ms = field.number(
        "The duration of the request in milliseconds", null="if no worker reported a result", example=87
    )
