"""The shape of every body that goes out: what the API's description tells of answers and of deliveries.

The bodies themselves are written by the modules of their nouns (`export_record`, `target_record`, …), by hand where it has
to be quick. These schemas are closed, and the tests hold the real answers against them: a member that is not told here
fails, and so does one that is missing.
"""

from collections.abc import Iterable
from typing import Any, Final

from marshmallow import RAISE, Schema, fields, validate

from schemas.base.console_session import Ended
from schemas.compliance.requests import Topic
from schemas.exports.handoffs import RECEIVED
from schemas.exports.recoveries import RecoveryStatus
from schemas.exports.state_machine import ExportStatus
from schemas.exports.ticket import SOURCE_TYPES
from schemas.intake.diagnostics import SAFE_SCOPES, Platform
from schemas.intake.evidence import HEADING_LEVELS
from schemas.intake.scanner import SEVERITIES
from schemas.settings.definitions import DeploymentMode
from schemas.targets.target import PROVIDER_KEYS, TargetStatus

#: 26 characters of a ULID.
ULID: Final = "[0-9A-HJKMNP-TV-Z]{26}"
#: RFC 3339 in UTC, with milliseconds.
MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"
DIGEST: Final = "^sha256:[0-9a-f]{64}$"
FINGERPRINT: Final = "^fp:[0-9a-f]{12}$"

#: What came of an attempt.
OUTCOMES: Final = ("delivered", "retryable", "rejected", "refused", "exhausted")
#: What a check of `/readyz` may find.
FINDINGS: Final = ("ok", "unavailable", "unknown", "not_current", "wrong")


class ResponseSchema(Schema):
    """A closed object of an answer."""

    class Meta:
        unknown = RAISE


def _options(told: str, is_nullable: bool, is_optional: bool, **metadata: Any) -> dict[str, Any]:
    return {"required": not is_optional, "allow_none": is_nullable, "metadata": {"description": told, **metadata}}


def text(told: str, *, nullable: bool = False, optional: bool = False, pattern: str | None = None) -> fields.String:
    """A text, of a form where `pattern` says so."""
    return fields.String(**_options(told, nullable, optional, **({"pattern": pattern} if pattern else {})))


def identifier(prefix: str, told: str, *, nullable: bool = False) -> fields.String:
    """An id that begins with `prefix`."""
    return text(told, nullable=nullable, pattern=f"^{prefix}_{ULID}$")


def one_of(choices: Iterable[str], told: str, *, nullable: bool = False) -> fields.String:
    """One of some words."""
    return fields.String(validate=validate.OneOf([str(each) for each in choices]), **_options(told, nullable, False))


def moment(told: str, *, nullable: bool = False) -> fields.String:
    """An instant as `schemas.base.timestamps` writes it."""
    return fields.String(**_options(told, nullable, False, format="date-time", pattern=MOMENT))


def number(told: str, *, nullable: bool = False, optional: bool = False, minimum: int = 0) -> fields.Integer:
    """A whole number."""
    return fields.Integer(validate=validate.Range(min=minimum), **_options(told, nullable, optional))


def truth(told: str) -> fields.Boolean:
    """True or false."""
    return fields.Boolean(**_options(told, False, False))


def part(schema: type[Schema], told: str, *, nullable: bool = False, optional: bool = False) -> fields.Nested:
    """An object of an own shape."""
    return fields.Nested(schema, **_options(told, nullable, optional))


def several(entry: fields.Field[Any], told: str, *, nullable: bool = False, optional: bool = False) -> fields.List[Any]:
    """An array."""
    return fields.List(entry, **_options(told, nullable, optional))


def free(told: str) -> fields.Dict:
    """An object of somebody else's members."""
    return fields.Dict(**_options(told, False, False))


class FieldProblemResponse(ResponseSchema):
    """One refused member."""

    path = text("A JSON Pointer to the member, made of our own names only; empty for the body as a whole.")
    code = text("Why it is refused: `required`, `invalid_url`, a rule of forbidden content, a verdict on an address.")
    message = text("The same as a sentence.")


class ErrorDetailsResponse(ResponseSchema):
    """More about an error, where there is more."""

    fields_ = fields.List(
        fields.Nested(FieldProblemResponse),
        data_key="fields",
        metadata={"description": "Every member that is refused, with `VALIDATION_FAILED`.", "minItems": 1},
    )


class ErrorObjectResponse(ResponseSchema):
    """What went wrong."""

    code = text("What to act upon; each code has one status.")
    message = text("A sentence to read.")
    details = part(ErrorDetailsResponse, "Empty where there is no more to say.")
    request_id = text("What to tell the operator; the same as `X-Request-Id`.")


class ErrorResponse(ResponseSchema):
    """The body of every error."""

    error = part(ErrorObjectResponse, "What went wrong.")


class ProblemResponse(ResponseSchema):
    """The same as RFC 9457 problem details, for whoever accepts `application/problem+json`."""

    type = one_of(["about:blank"], "The status says what kind of problem it is.")
    title = text("A sentence to read.")
    status = number("The status of the answer.")
    code = text("What to act upon.")
    errors = several(fields.Nested(FieldProblemResponse), "Every member that is refused.")
    request_id = text("What to tell the operator; the same as `X-Request-Id`.")


class SourceResponse(ResponseSchema):
    """What an export was prepared from."""

    type = one_of(SOURCE_TYPES, "The kind of source.")
    id = text("The id of the finding, capture, diagnostic or email; of a ticket made by hand the id that came with it.")
    scan_run_id = number("Of a finding: the scan run that saw it first.", optional=True)


class TicketResponse(ResponseSchema):
    """What a person reads, and what is delivered."""

    title = text("One line.")
    description = text("As much as is known.")
    severity = one_of(SEVERITIES, "How bad it is.")
    page_url = text("The page it is about.", nullable=True)
    labels = several(fields.String(), "Words to sort tickets by.")
    evidence = free("What the ticket rests on, in the words of its source.")


class PreviewResponse(ResponseSchema):
    """Whether the ticket may be approved."""

    safe = truth("Whether nothing speaks against it.")
    problems = several(fields.Nested(FieldProblemResponse), "What does.")


class LastAttemptResponse(ResponseSchema):
    """The latest attempt."""

    at = moment("When it began.")
    response_status = number("The receiver's status; null where there was no answer.", nullable=True)
    error_code = text("What went wrong; null where nothing did.", nullable=True)
    duration_ms = number("How long it took.", nullable=True)


class ProviderTicketResponse(ResponseSchema):
    """The ticket that the receiver made of it, as the receiver said."""

    id = text("Its id there.", nullable=True)
    url = text("Where it is found there.", nullable=True)


class ExportFindingResponse(ResponseSchema):
    """When and how often the finding of an export was seen."""

    id = identifier("fnd", "The finding.")
    first_seen_at = moment("When it was seen first.")
    last_seen_at = moment("When it was seen last.")
    times_seen = number("By how many scan runs.", minimum=1)
    first_scan_run_id = number("The scan run that saw it first.", minimum=1)
    last_scan_run_id = number("The scan run that saw it last.", minimum=1)


class ExportResponse(ResponseSchema):
    """A ticket on its way to a target."""

    id = identifier("exp", "The export.")
    status = one_of(ExportStatus, "Where it is; `exported`, `failed`, `blocked` and `dismissed` are ends.")
    status_reason = text("Why it is `failed`, `blocked` or `dismissed`, where there is a reason to tell.", nullable=True)
    target_id = identifier("tgt", "The target it was approved for.", nullable=True)
    source = part(SourceResponse, "What it was prepared from.")
    ticket = part(TicketResponse, "What is delivered; frozen by the approval.")
    ticket_digest = text("Names exactly this ticket; an approval may ask for it.", pattern=DIGEST)
    preview = part(PreviewResponse, "Whether it may be approved.")
    attempts = number("How many attempts were begun.")
    next_attempt_at = moment("When it is tried next, while it waits.", nullable=True)
    created_at = moment("When it was prepared.")
    approved_at = moment("When it was approved.", nullable=True)
    finished_at = moment("When it came to an end.", nullable=True)
    retry_after_seconds = number(
        "Whole seconds until the next attempt, exactly while `status` is `retry_scheduled`; the same as `Retry-After`.",
        optional=True,
        minimum=1,
    )
    last_attempt = part(LastAttemptResponse, "Once there was one.", optional=True)
    provider_ticket = part(ProviderTicketResponse, "Once the receiver named one.", optional=True)
    finding = part(ExportFindingResponse, "Where it was prepared from a finding.", optional=True)


class AttemptDurationsResponse(ResponseSchema):
    """How long each part of an attempt took, in milliseconds; null for a part that was never reached."""

    dns_ms = number("The lookup of the name.", nullable=True)
    connect_ms = number("The connection.", nullable=True)
    tls_ms = number("The TLS handshake.", nullable=True)
    first_byte_ms = number("From the request to the first byte of the answer.", nullable=True)
    total_ms = number("Everything.", nullable=True)


class AttemptResponse(ResponseSchema):
    """One signed POST of one export."""

    id = identifier("att", "The attempt; the receiver saw it as `X-Request-Id`.")
    number_ = fields.Integer(
        required=True, data_key="number", validate=validate.Range(min=1), metadata={"description": "Counted from 1."}
    )
    started_at = moment("When it began.")
    outcome = one_of(OUTCOMES, "What came of it.")
    response_status = number("The receiver's status; null where there was no answer.", nullable=True)
    error_code = text("What went wrong; null where nothing did.", nullable=True)
    retry_after_seconds = number("The receiver's `Retry-After` as it was understood.", nullable=True)
    durations = part(AttemptDurationsResponse, "How long each part took.")


class TargetSecretResponse(ResponseSchema):
    """What signs for a target, never the secret itself."""

    configured = truth("Whether there is one.")
    fingerprint = text("Tells secrets apart.", nullable=True, pattern=FINGERPRINT)


class TargetConnectionResponse(ResponseSchema):
    """Whether deliveries arrive."""

    status = one_of(("unknown", "connected", "failing"), "How the latest delivery fared.")
    last_success_at = moment("When one arrived last.", nullable=True)


class LastValidationResponse(ResponseSchema):
    """What the latest look at the target's address found."""

    status = one_of(("passed", "failed"), "Whether anything speaks against it.")
    reason = text("What does, or that the certificate expires soon.", nullable=True)
    checked_at = moment("When it was looked at.")


class TargetDeliveryResponse(ResponseSchema):
    """How deliveries to a target are paced at the moment."""

    concurrency = number("How many requests it may have open at once.")
    failures_in_row = number("How many attempts have failed since the last success.")
    max_per_minute = number("The limit that was asked for.", nullable=True)
    waits_until = moment("Nothing is sent before.", nullable=True)


class TargetResponse(ResponseSchema):
    """Where tickets are delivered."""

    id = identifier("tgt", "The target.")
    provider_key = one_of(PROVIDER_KEYS, "What kind of receiver it is.")
    base_url = text("Where deliveries are posted to.")
    deployment_mode = one_of(DeploymentMode, "The kind of installation it is meant for.")
    name = text("What people call it.")
    status = one_of(TargetStatus, "Only `active` and `paused` targets can be approved for.")
    status_reason = text("Why it is not simply active.", nullable=True)
    secret = part(TargetSecretResponse, "What signs for it.")
    connected = part(TargetConnectionResponse, "Whether deliveries arrive.")
    last_validation = part(LastValidationResponse, "Null until it was looked at.", nullable=True)
    delivery = part(TargetDeliveryResponse, "How deliveries are paced.")
    created_at = moment("When it was made.")


class PingOutcomeResponse(ResponseSchema):
    """What came of a test event."""

    delivered = truth("Whether the receiver answered 2xx.")
    response_status = number("Its status; null where there was no answer.", nullable=True)
    error_code = text("What went wrong; `no_worker` where none took it up.", nullable=True)
    duration_ms = number("How long it took; null where nothing was tried.", nullable=True)


class RecoveryResponse(ResponseSchema):
    """What failed at a target, put back on its way by hand."""

    id = identifier("rec", "The recovery.")
    target_id = identifier("tgt", "The target.")
    since = moment("What failed or was blocked then or later is put back.")
    status = one_of(RecoveryStatus, "`running` until all are put back, or it is cancelled.")
    total = number("How many exports were found when it began; more, where others fail meanwhile.")
    done = number("How many of them are on their way again.")
    created_at = moment("When it was asked for.")
    finished_at = moment("When it ended.", nullable=True)


class FindingCountsResponse(ResponseSchema):
    """What a postback's issues came to."""

    new = number("Not seen before; each prepares an export.")
    seen = number("Known already.")


class PostbackResponse(ResponseSchema):
    """A postback was taken."""

    scan_run_id = number("The scan run it belongs to.", minimum=1)
    status = one_of(["accepted"], "It is stored.")
    findings = part(FindingCountsResponse, "What its issues came to.")
    ticket_exports = several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}), "The exports that were prepared, one for each new finding."
    )


class EmailResponse(ResponseSchema):
    """An email was taken."""

    id = identifier("eml", "The email.")
    status = one_of(["accepted"], "It is stored.")
    duplicate = truth("Whether it had come before.")


class ComplianceResponse(ResponseSchema):
    """What a dry run of a compliance webhook tells."""

    status = one_of(["accepted"], "It would be stored, or is there already.")
    duplicate = truth("Whether it had come before.")
    topic = one_of(Topic, "What is asked for.")
    shop_domain = text("The shop that asks, as it is compared.")
    due_at = moment("By when it would have to be done; null for a duplicate.", nullable=True)


class HeadingResponse(ResponseSchema):
    """One heading of a page."""

    level = one_of(HEADING_LEVELS, "How deep it stands.")
    text = text("What it says.")


class HandoffResponse(ResponseSchema):
    """What ties an upload to its project, its report and its export."""

    id = identifier("hof", "The handoff.")
    source = part(SourceResponse, "The capture or the diagnostic.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, where one was named.", nullable=True, minimum=1)
    ticket_export_id = identifier("exp", "The export that was prepared from it.")
    status = one_of([RECEIVED], "It is stored.")
    created_at = moment("When it came.")


class CaptureResponse(ResponseSchema):
    """What a person captured on one page."""

    id = identifier("evc", "The capture.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, where one was named.", nullable=True, minimum=1)
    page_url = text("The page.")
    page_title = text("Its title.", nullable=True)
    selected_text = text("What was selected.", nullable=True)
    meta_description = text("Its description.", nullable=True)
    canonical_url = text("What the page calls itself.", nullable=True)
    heading_outline = several(fields.Nested(HeadingResponse), "Its headings in their order.", nullable=True)
    captured_at = moment("When it was captured.", nullable=True)
    extension_version = text("The version of the extension.", nullable=True)
    created_at = moment("When it came.")


class CaptureUploadResponse(ResponseSchema):
    """A capture was taken."""

    evidence_capture = part(CaptureResponse, "The capture.")
    handoff = part(HandoffResponse, "Its handoff.")


class CmsFactsResponse(ResponseSchema):
    """What a CMS plugin sees of its site."""

    cms_version = text("The version of the CMS.", nullable=True)
    commerce_plugin_version = text("The version of the shop's plugin.", nullable=True)
    active_theme = text("The theme.", nullable=True)
    active_plugin_names = several(fields.String(), "The plugins that are on.", nullable=True)
    checkout_page_url = text("Where customers pay.", nullable=True)
    commerce_plugin_status = text("How the shop's plugin fares.", nullable=True)
    visible_browser_symptoms = several(fields.String(), "What somebody saw go wrong.", nullable=True)


class CmsDiagnosticResponse(ResponseSchema):
    """What a CMS plugin told."""

    id = identifier("dia", "The diagnostic.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, where one was named.", nullable=True, minimum=1)
    platform = one_of([Platform.CMS_COMMERCE], "Where it comes from.")
    site_url = text("The site.")
    plugin_version = text("The version of the plugin.", nullable=True)
    diagnostics = part(CmsFactsResponse, "What it sees.")
    created_at = moment("When it came.")


class CmsUploadResponse(ResponseSchema):
    """A CMS plugin's diagnostics were taken."""

    diagnostic = part(CmsDiagnosticResponse, "The diagnostic.")
    handoff = part(HandoffResponse, "Its handoff.")


class StorefrontFactsResponse(ResponseSchema):
    """What the app sees of its storefront."""

    primary_domain = text("The domain that customers see.", nullable=True)
    published_theme_name = text("The theme.", nullable=True)
    theme_count = number("How many themes there are.", nullable=True)
    product_count_bucket = text("About how many products.", nullable=True)
    checkout_profile_status = text("How the checkout fares.", nullable=True)
    app_embed_status = text("Whether the app is embedded.", nullable=True)
    visible_storefront_symptoms = several(fields.String(), "What somebody saw go wrong.", nullable=True)


class StorefrontDiagnosticResponse(ResponseSchema):
    """What a storefront app told."""

    id = identifier("dia", "The diagnostic.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, where one was named.", nullable=True, minimum=1)
    shop_domain = text("The shop.")
    shop_name = text("Its name.", nullable=True)
    granted_scopes = several(one_of(SAFE_SCOPES, "A scope."), "What the shop has granted.")
    app_version = text("The version of the app.", nullable=True)
    diagnostics = part(StorefrontFactsResponse, "What it sees.")
    created_at = moment("When it came.")


class StorefrontUploadResponse(ResponseSchema):
    """A storefront app's diagnostics were taken."""

    diagnostic = part(StorefrontDiagnosticResponse, "The diagnostic.")
    handoff = part(HandoffResponse, "Its handoff.")


class HealthResponse(ResponseSchema):
    """The process answers."""

    status = one_of(["ok"], "Always the same.")


class ReadinessChecksResponse(ResponseSchema):
    """What the service depends on."""

    database = one_of(FINDINGS, "Whether it answers.")
    schema = one_of(FINDINGS, "Whether it is of this version.")
    keys = one_of(FINDINGS, "Whether ENCRYPTION_KEYS open what it holds.")
    redis = one_of(FINDINGS, "Whether it answers; without it everything is delivered later.")
    workers = one_of(FINDINGS, "Whether any was seen in the last seconds.")


class ReadinessResponse(ResponseSchema):
    """How the installation fares."""

    status = one_of(("ok", "degraded", "unavailable"), "`degraded` takes everything in and delivers it later.")
    checks = part(ReadinessChecksResponse, "Each thing that was looked at.")


class TicketExportEventExport(ResponseSchema):
    """Which export a delivery is of."""

    id = identifier("exp", "The export.")
    target_id = identifier("tgt", "The target.")
    source = part(SourceResponse, "What it was prepared from.")


class TicketExportEvent(ResponseSchema):
    """The body of a delivery: the same bytes for every attempt."""

    id = identifier("exp", "The export; `Idempotency-Key` says the same.")
    type = one_of(["ticket.export"], "What it is.")
    version = number("Of this form.", minimum=1)
    created_at = moment("When it was approved.")
    export = part(TicketExportEventExport, "Which export it is.")
    ticket = part(TicketResponse, "The ticket as it was approved.")


class TargetPingEventTarget(ResponseSchema):
    """Which target a test event goes to."""

    id = identifier("tgt", "The target.")
    name = text("What people call it.")


class TargetPingEvent(ResponseSchema):
    """The body of a test event: answer 2xx, and make no ticket of it."""

    id = identifier("png", "The ping; `Idempotency-Key` and `X-Request-Id` say the same.")
    type = one_of(["target.ping"], "What it is.")
    version = number("Of this form.", minimum=1)
    created_at = moment("When it was asked for.")
    target = part(TargetPingEventTarget, "Which target it goes to.")


_NEXT: Final = "Take it as `?cursor=` for what follows; null on the last page."


class ConsoleSessionResponse(ResponseSchema):
    """Somebody who is signed in at the console."""

    id = identifier("ses", "The session; it opens nothing.")
    user = text("Who signed in, by the email.")
    token_id = number("With which token.", minimum=1)
    token_name = text("What that is called.")
    created_at = moment("Since when.")
    seen_at = moment("When they looked at something last, to the minute.")
    ended_at = moment("When somebody ended it.", nullable=True)
    ended_reason = one_of(
        [Ended.SIGNED_OUT, Ended.REVOKED, Ended.CROWDED_OUT, Ended.ANOTHER_BROWSER, Ended.RESTORED],
        "Why it was ended.",
        nullable=True,
    )


class ExportListResponse(ResponseSchema):
    """A page of exports."""

    items = several(fields.Nested(ExportResponse), "The newest first.")
    next_cursor = text(_NEXT, nullable=True)


class AttemptListResponse(ResponseSchema):
    """A page of attempts."""

    items = several(fields.Nested(AttemptResponse), "The newest first.")
    next_cursor = text(_NEXT, nullable=True)


class TargetListResponse(ResponseSchema):
    """A page of targets."""

    items = several(fields.Nested(TargetResponse), "The newest first.")
    next_cursor = text(_NEXT, nullable=True)


class RecoveryListResponse(ResponseSchema):
    """A page of recoveries."""

    items = several(fields.Nested(RecoveryResponse), "The newest first.")
    next_cursor = text(_NEXT, nullable=True)


class ConsoleSessionListResponse(ResponseSchema):
    """A page of sessions."""

    items = several(fields.Nested(ConsoleSessionResponse), "The newest first.")
    next_cursor = text(_NEXT, nullable=True)
