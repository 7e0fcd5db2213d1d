"""The shape of every response and delivery: it documents the API, and dumps the records of its responses.

Schemas are closed, and tests hold real responses against them: an undocumented member fails, and so does a missing one.
`schemas.exports.record.export_record` builds export records by hand, because a dump costs 130 us per export instead of 23
us, 5 ms per page of a list; the polled record is written as JSON text by `schemas.exports.polled_record`.
"""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import Any, Final

from marshmallow import RAISE, Schema, fields, missing, validate

from schemas.base.console_session import Ended
from schemas.base.timestamps import rfc3339
from schemas.compliance.requests import Topic
from schemas.exports.attempt_record import Trace
from schemas.exports.decisions import DismissalReason
from schemas.exports.handoffs import RECEIVED, Handoff
from schemas.exports.recoveries import RecoveryStatus
from schemas.exports.state_machine import ExportStatus
from schemas.exports.ticket import SOURCE_TYPES
from schemas.intake.diagnostics import SAFE_SCOPES, Diagnostics, Platform
from schemas.intake.evidence import HEADING_LEVELS, Capture
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import SEVERITIES
from schemas.settings.definitions import DeploymentMode
from schemas.targets.target import FAILING_AFTER, Target, TargetStatus, as_shown
from schemas.targets.webhook_options import BodyFormat, Signature
from schemas.trackers.registry import provider_keys
from schemas.triage.approval_rules import ApprovalRule, RuleActionType, StoppedReason

#: 26 characters of a ULID.
ULID: Final = "[0-9A-HJKMNP-TV-Z]{26}"
#: RFC 3339 in UTC, with milliseconds.
MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"
DIGEST: Final = "^sha256:[0-9a-f]{64}$"
FINGERPRINT: Final = "^fp:[0-9a-f]{12}$"

#: The outcomes of an attempt.
OUTCOMES: Final = ("delivered", "retryable", "rejected", "refused", "exhausted")
#: The results of a check of `/readyz`.
FINDINGS: Final = ("ok", "unavailable", "unknown", "not_current", "wrong")


class ResponseSchema(Schema):
    """A closed object of a response."""

    class Meta:
        unknown = RAISE


@cache
def _instance(schema: type[ResponseSchema]) -> ResponseSchema:
    return schema()


def dump(schema: type[ResponseSchema], record: Any) -> dict[str, Any]:
    """Return the JSON object of a record, as `schema` documents it."""
    dumped: dict[str, Any] = _instance(schema).dump(record)
    return dumped


class MomentText(fields.String):
    """An instant, dumped as RFC 3339 in UTC with milliseconds."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        return None if value is None else rfc3339(value)


class Fixed(fields.String):
    """A string that is the same in every record."""

    def __init__(self, value: str, **options: Any) -> None:
        super().__init__(validate=validate.OneOf([value]), **options)
        self._value = value

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = None) -> Any:
        """Return the string, whatever the record is."""
        return self._value


class OptionalInteger(fields.Integer):
    """A number that is absent, not null, where the record has none."""

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = missing) -> Any:
        """Return the number, or nothing to dump."""
        value: Any = super().get_value(obj, attr, accessor, default)
        return missing if value is None else value


class Inline(fields.Nested):
    """An object whose members are attributes of the record itself; null if the attribute `present_if` is None."""

    def __init__(self, schema: type[Schema], present_if: str | None = None, **options: Any) -> None:
        super().__init__(schema, **options)
        self._present_if = present_if

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = None) -> Any:
        """Return the record: the nested schema picks the members."""
        return None if self._present_if is not None and getattr(obj, self._present_if) is None else obj


def _options(
    description: str, is_nullable: bool, is_optional: bool = False, attribute: str | None = None, **metadata: Any
) -> dict[str, Any]:
    named = {} if attribute is None else {"attribute": attribute}
    metadata["description"] = description
    return {"required": not is_optional, "allow_none": is_nullable, "metadata": metadata, **named}


def text(
    description: str,
    *,
    nullable: bool = False,
    optional: bool = False,
    pattern: str | None = None,
    attribute: str | None = None,
) -> fields.String:
    """A string, of the form `pattern`; `attribute` is the record's attribute where it has another name."""
    more = {"pattern": pattern} if pattern else {}
    return fields.String(**_options(description, nullable, optional, attribute, **more))


def identifier(prefix: str, description: str, *, nullable: bool = False) -> fields.String:
    """An id that begins with `prefix`."""
    return text(description, nullable=nullable, pattern=f"^{prefix}_{ULID}$")


def one_of(
    choices: Iterable[str], description: str, *, nullable: bool = False, attribute: str | None = None
) -> fields.String:
    """One of the named strings."""
    names = [str(each) for each in choices]
    return fields.String(validate=validate.OneOf(names), **_options(description, nullable, attribute=attribute))


def constant(value: str, description: str) -> fields.String:
    """The one string that is possible."""
    return Fixed(value, **_options(description, False))


def moment(
    description: str, *, nullable: bool = False, optional: bool = False, attribute: str | None = None
) -> fields.String:
    """An instant as `schemas.base.timestamps` writes it."""
    return MomentText(**_options(description, nullable, optional, attribute, format="date-time", pattern=MOMENT))


def number(
    description: str,
    *,
    nullable: bool = False,
    optional: bool = False,
    minimum: int = 0,
    attribute: str | None = None,
) -> fields.Integer:
    """A whole number."""
    kind = OptionalInteger if optional else fields.Integer
    return kind(validate=validate.Range(min=minimum), **_options(description, nullable, optional, attribute))


def truth(description: str, *, attribute: str | None = None) -> fields.Boolean:
    """True or false."""
    return fields.Boolean(**_options(description, False, attribute=attribute))


def part(
    schema: type[Schema],
    description: str,
    *,
    nullable: bool = False,
    optional: bool = False,
    attribute: str | None = None,
) -> fields.Nested:
    """An object with a schema of its own."""
    return fields.Nested(schema, **_options(description, nullable, optional, attribute))


def inline(schema: type[Schema], description: str, *, present_if: str | None = None) -> fields.Nested:
    """An object whose members are attributes of the record itself."""
    return Inline(schema, present_if, **_options(description, present_if is not None))


def several(
    entry: fields.Field[Any], description: str, *, nullable: bool = False, optional: bool = False
) -> fields.List[Any]:
    """An array."""
    return fields.List(entry, **_options(description, nullable, optional))


def free(description: str) -> fields.Dict:
    """An object of any members."""
    return fields.Dict(**_options(description, False))


class FieldProblemResponse(ResponseSchema):
    """One invalid field."""

    path = text("A JSON Pointer to the field, made of documented names only; empty for the whole body.")
    code = text("The reason: for example `required`, `invalid_url`, a rule of forbidden content, an address check.")
    message = text("The reason as a sentence.")


class ConflictCountsResponse(ResponseSchema):
    """Numbers of a `CONFLICT`: the exports that wait for a target to be removed, or those that a filter matches."""

    approved = number("How many exports are `approved` for the target.", optional=True)
    delivering = number("How many exports are being delivered to it.", optional=True)
    retry_scheduled = number("How many exports are to be retried.", optional=True)
    count = number("How many exports the filter of a bulk decision matches.", optional=True)


class ErrorDetailsResponse(ConflictCountsResponse):
    """Details of an error."""

    fields_ = fields.List(
        fields.Nested(FieldProblemResponse),
        data_key="fields",
        metadata={"description": "Every invalid field, with `VALIDATION_FAILED`.", "minItems": 1},
    )


class ErrorObjectResponse(ResponseSchema):
    """The error."""

    code = text("The error code, for programs; each code has one HTTP status.")
    message = text("The message, for people.")
    details = part(ErrorDetailsResponse, "More about the error; empty if there is nothing more.")
    request_id = text("The request id to report to the operator; the same as `X-Request-Id`.")


class ErrorResponse(ResponseSchema):
    """The body of every error response."""

    error = part(ErrorObjectResponse, "The error.")


class ProblemResponse(ConflictCountsResponse):
    """The error as RFC 9457 problem details, for clients that accept `application/problem+json`."""

    type = one_of(["about:blank"], "Always `about:blank`: the status names the kind of problem.")
    title = text("The message, for people.")
    status = number("The HTTP status.")
    code = text("The error code, for programs.")
    errors = several(fields.Nested(FieldProblemResponse), "Every invalid field.")
    request_id = text("The request id to report to the operator; the same as `X-Request-Id`.")


class SourceResponse(ResponseSchema):
    """The source of an export."""

    type = one_of(SOURCE_TYPES, "The kind of source.")
    id = text("The id of the finding, capture, diagnostics or email; for a ticket prepared by hand, the id it was given.")
    scan_run_id = number("For a finding: the scan run that first reported it.", optional=True)


class TicketResponse(ResponseSchema):
    """The ticket that is reviewed and delivered."""

    title = text("A single line.")
    description = text("The description.")
    severity = one_of(SEVERITIES, "The severity.")
    page_url = text("The URL of the page.", nullable=True)
    labels = several(fields.String(), "The labels.")
    evidence = free("Supporting data from the source.")


class PreviewResponse(ResponseSchema):
    """Whether the ticket can be approved."""

    safe = truth("True if the ticket can be approved.")
    problems = several(fields.Nested(FieldProblemResponse), "Why it cannot be approved.")


class LastAttemptResponse(ResponseSchema):
    """The latest attempt."""

    at = moment("When it began.")
    response_status = number("The receiver's HTTP status; null if there was no response.", nullable=True)
    error_code = text("The reason of the failure; null on success.", nullable=True)
    duration_ms = number("The duration in milliseconds.", nullable=True)


class ProviderTicketResponse(ResponseSchema):
    """The ticket that the receiver created, as the receiver reported it."""

    id = text("The ticket's id at the receiver.", nullable=True)
    url = text("The ticket's URL at the receiver.", nullable=True)


class ExportFindingResponse(ResponseSchema):
    """When, and by how many scan runs, the finding of an export was reported."""

    id = identifier("fnd", "The finding.")
    first_seen_at = moment("When it was first reported.")
    last_seen_at = moment("When it was last reported.")
    times_seen = number("The number of scan runs that reported it.", minimum=1)
    first_scan_run_id = number("The first scan run that reported it.", minimum=1)
    last_scan_run_id = number("The last scan run that reported it.", minimum=1)


class ExportFindingsResponse(ResponseSchema):
    """How many findings an export has."""

    total = number("All findings whose ticket it is.", minimum=1)
    fixed = number("Those that are fixed.")


class DismissalResponse(ResponseSchema):
    """Why an export was dismissed."""

    reason = one_of(DismissalReason, "The reason, if one was named.", nullable=True)
    note = text("The note, if there is one.", nullable=True)
    at = moment("When it was dismissed.", nullable=True)


class ApprovedByResponse(ResponseSchema):
    """Who approved an export."""

    kind = one_of(("user", "rule"), "A user, or an approval rule.")
    id = fields.Raw(
        required=True, metadata={"type": ["integer", "string"], "description": "The user's number, or the rule's id."}
    )
    name = text("The user's address, or the rule's name; null if it was removed.", nullable=True)


class ExportResponse(ResponseSchema):
    """A ticket and its delivery to a target."""

    id = identifier("exp", "The export.")
    status = one_of(ExportStatus, "The status; `exported`, `failed`, `blocked` and `dismissed` change only by a request.")
    status_reason = text(
        "The reason of the status `failed`, `blocked` or `dismissed`, if there is one; `target_paused` or `target_inactive` "
        "while the export waits for such a target.",
        nullable=True,
    )
    target_id = identifier("tgt", "The target it was approved for.", nullable=True)
    source = part(SourceResponse, "The source of the export.")
    ticket = part(TicketResponse, "The ticket; the approval freezes it.")
    ticket_digest = text("The digest of exactly this ticket; an approval can require it.", pattern=DIGEST)
    preview = part(PreviewResponse, "Whether the ticket can be approved.")
    attempts = number("The number of attempts that have begun.")
    next_attempt_at = moment(
        "When the next attempt is due; null if none is, or while the target is paused or inactive.", nullable=True
    )
    created_at = moment("When it was prepared.")
    approved_at = moment("When it was approved.", nullable=True)
    finished_at = moment("When it reached a final status.", nullable=True)
    project_id = number("The project, if it belongs to one.", nullable=True, minimum=1)
    severity = one_of(SEVERITIES, "The severity of the ticket.")
    rule = text("The rule code of its findings; null for other sources.", nullable=True)
    findings = part(ExportFindingsResponse, "Its findings; null for other sources.", nullable=True)
    edited = truth("Whether a person edited the ticket.")
    retry_after_seconds = number(
        "Whole seconds until the next attempt, 60 if its time is unknown; equal to `Retry-After`. Present while `status` is "
        "`retry_scheduled`, or `approved` for a target that is on hold.",
        optional=True,
        minimum=1,
    )
    last_attempt = part(LastAttemptResponse, "The latest attempt; absent before the first.", optional=True)
    provider_ticket = part(ProviderTicketResponse, "The ticket at the receiver, if the receiver named one.", optional=True)
    finding = part(ExportFindingResponse, "The finding, if the export was prepared from one.", optional=True)
    dismissal = part(DismissalResponse, "Why it was dismissed; present while `status` is `dismissed`.", optional=True)
    snoozed_until = moment(
        "Present while it is snoozed: until when, or null until one of its findings is seen again.",
        nullable=True,
        optional=True,
    )
    approved_by = part(ApprovedByResponse, "Who approved it; absent if the operator did.", optional=True)
    siblings = several(
        identifier("exp", "An export."), "All exports of this ticket, if it was approved for several targets.", optional=True
    )
    original_ticket = part(
        TicketResponse, "The ticket before a person edited it; absent in lists and while `edited` is false.", optional=True
    )


class AttemptDurationsResponse(ResponseSchema):
    """The duration of each phase of an attempt, in milliseconds; null for a phase that was not reached."""

    dns_ms = number("Name resolution.", nullable=True)
    connect_ms = number("TCP connection.", nullable=True)
    tls_ms = number("TLS handshake.", nullable=True)
    first_byte_ms = number("From the request to the first byte of the response.", nullable=True)
    total_ms = number("The whole attempt.", nullable=True)


class AttemptResponse(ResponseSchema):
    """One signed POST of one export."""

    id = identifier("att", "The attempt; the receiver got it as `X-Request-Id`.")
    number_ = fields.Integer(
        required=True,
        data_key="number",
        attribute="number",
        validate=validate.Range(min=1),
        metadata={"description": "The number of the attempt, from 1."},
    )
    started_at = moment("When it began.")
    outcome = one_of(OUTCOMES, "The outcome.")
    response_status = number("The receiver's HTTP status; null if there was no response.", nullable=True)
    error_code = text("The reason of the failure; null on success.", nullable=True)
    retry_after_seconds = number("The receiver's `Retry-After`, in seconds.", nullable=True, attribute="retry_after_s")
    durations = part(AttemptDurationsResponse, "The duration of each phase.", attribute="timings")


def dump_trace(trace: Trace) -> dict[str, Any]:
    """Return the JSON object of an attempt as the operator sees it, with what clients do not see."""
    own = {"address": trace.address, "nonce": trace.nonce, "worker": trace.worker, "answer": trace.answer}
    return {**dump(AttemptResponse, trace.attempt), **own}


class TargetSecretResponse(ResponseSchema):
    """The secret of a target that signs for it, or the token of a tracker; never the secret itself."""

    configured = truth("Whether the target has a secret.", attribute="has_secret")
    fingerprint = text("The fingerprint of the secret.", nullable=True, pattern=FINGERPRINT, attribute="secret_fingerprint")


_CONNECTED: Final = (
    f"`connected` after a delivery; `failing` if the last attempt or validation did not reach the receiver, or the last "
    f"{FAILING_AFTER} attempts delivered nothing."
)


class StandardSecretResponse(ResponseSchema):
    """The Standard Webhooks secret of a target; never the secret itself."""

    configured = truth("Whether the target has one.", attribute="has_standard_secret")
    fingerprint = text(
        "The fingerprint of the secret.", nullable=True, pattern=FINGERPRINT, attribute="standard_secret_fingerprint"
    )


class TargetHeaderResponse(ResponseSchema):
    """A header that a target adds to its requests; never its value."""

    name = text("The name.")
    fingerprint = text("The fingerprint of the value.", pattern=FINGERPRINT)


class TargetConnectionResponse(ResponseSchema):
    """Whether deliveries arrive."""

    status = one_of(("unknown", "connected", "failing"), _CONNECTED, attribute="connected_status")
    last_success_at = moment("When a delivery last succeeded.", nullable=True)


class LastValidationResponse(ResponseSchema):
    """The latest validation of the target's address."""

    status = one_of(("passed", "failed"), "The result.", attribute="validation_status")
    reason = text(
        "Why it failed, or that the certificate expires soon. At a tracker, what is refused or missing follows a colon: "
        "`tracker_not_found:project`.",
        nullable=True,
        attribute="validation_reason",
    )
    checked_at = moment("When the target was validated.", attribute="validated_at")


class TargetDeliveryResponse(ResponseSchema):
    """The current pace of deliveries to a target."""

    concurrency = number("The most requests at once.")
    failures_in_row = number("The number of failed attempts since the last success.")
    max_per_minute = number("The configured limit.", nullable=True)
    waits_until = moment("No delivery is sent before this time.", nullable=True, attribute="held_until")


class TargetResponse(ResponseSchema):
    """A receiver of tickets."""

    id = identifier("tgt", "The target.")
    provider_key = one_of(provider_keys(), "Where tickets go: a webhook, or an issue tracker.")
    base_url = text(
        "The URL that deliveries are posted to, or a tracker's page. A credential in the query of an older target shows as "
        "`***`.",
        attribute="shown_url",
    )
    deployment_mode = one_of(DeploymentMode, "The deployment mode it is meant for.")
    name = text("The name.")
    status = one_of(TargetStatus, "The status; exports can be approved for `active` targets only.")
    status_reason = text("Why it is not simply `active`.", nullable=True)
    secret = inline(TargetSecretResponse, "The signing secret, or the tracker's token.")
    connected = inline(TargetConnectionResponse, "Whether deliveries arrive.")
    last_validation = inline(
        LastValidationResponse,
        "The latest validation; null until a worker has asked a tracker.",
        present_if="validation_status",
    )
    max_per_minute = number("The most delivery attempts a minute; null for no limit.", nullable=True)
    provider_settings = free("The settings of the tracker; empty for a webhook.")
    signature = one_of(Signature, "What signs deliveries to a webhook.")
    format = one_of(BodyFormat, "The form of a delivery's body.")
    headers = several(fields.Nested(TargetHeaderResponse), "The headers that deliveries to a webhook have besides ours.")
    standard_secret = inline(StandardSecretResponse, "The secret of Standard Webhooks.")
    delivery = inline(TargetDeliveryResponse, "The current pace of deliveries.")
    created_at = moment("When it was created.")


def dump_target(target: Target, now: datetime) -> dict[str, Any]:
    """Return the JSON object of a target as it is at `now`."""
    return dump(TargetResponse, as_shown(target, now))


class ProviderResponse(ResponseSchema):
    """Where tickets can go."""

    key = one_of(provider_keys(), "The `provider_key` of its targets.")
    name = text("Its name.")
    base_url_example = text("A `base_url` of a target.")
    settings_schema = free("The JSON Schema of its `provider_settings`.")
    secret = text("What the secret of a target is, its least scope, and where it is created.")


class PingOutcomeResponse(ResponseSchema):
    """The result of a test event."""

    delivered = truth("Whether the receiver responded with 2xx.")
    response_status = number("The receiver's HTTP status; null if there was no response.", nullable=True)
    error_code = text("The reason of the failure; `no_worker` if no worker sent it in time.", nullable=True)
    duration_ms = number("The duration in milliseconds; null if nothing was sent.", nullable=True)


class ProjectResponse(ResponseSchema):
    """A website of the account."""

    id = number("The project.", minimum=1)
    name = text("Its name.")
    shop_domain = text("The storefront's domain, if it is a storefront.", nullable=True)
    ticket_grouping = one_of(
        TicketGrouping, "How new findings become tickets: one for all findings of a `rule`, or one for each `finding`."
    )
    created_at = moment("When it was created.")


class RecoveryResponse(ResponseSchema):
    """A job that redelivers what failed at a target."""

    id = identifier("rec", "The recovery.")
    target_id = identifier("tgt", "The target.")
    since = moment("Exports that failed or were blocked at this time or later are redelivered.")
    status = one_of(RecoveryStatus, "`running` until every export is due again, or the recovery is cancelled.")
    total = number(
        "The number of exports found: at first among the newest 10,000 of the target that failed. It grows as more are "
        "found, and is exact once the recovery is `done`."
    )
    done = number("The number of exports that are due again.")
    created_at = moment("When it was requested.")
    finished_at = moment("When it ended.", nullable=True)


class RuleMatchResponse(ResponseSchema):
    """What an export must match; absent members match every export."""

    project_id = number("The project.", optional=True, minimum=1)
    severity_at_least = text("This severity or a higher one.", optional=True)
    sources = several(fields.String(), "Any of these sources.", optional=True)
    rule = text("A glob for the rule code.", optional=True)
    page_path = text("A glob for the path of every page.", optional=True)


class RuleActionResponse(ResponseSchema):
    """What a rule does."""

    type = one_of(RuleActionType, "What is done.")
    target_id = text("The target, to `approve`.", optional=True)
    reason = text("The reason, to `dismiss`.", optional=True)
    labels = several(fields.String(), "The labels that are added, to `label`.", optional=True)


class RuleAuthorResponse(ResponseSchema):
    """The user whom a rule acts for."""

    id = number("The user.", attribute="author_id", minimum=1)
    email = text("The user's address.", attribute="author")


class ApprovalRuleResponse(ResponseSchema):
    """A rule that decides on exports when they are prepared or extended."""

    id = identifier("rul", "The rule.")
    name = text("The name.")
    enabled = truth("Whether it decides; false once it stopped.")
    match = part(RuleMatchResponse, "What an export must match.")
    action = part(RuleActionResponse, "What is done with an export that matches.")
    author = inline(RuleAuthorResponse, "The user who decided last what it does; it stops when the user may not do so.")
    stopped_reason = one_of(StoppedReason, "Why it stopped by itself; null if it did not.", nullable=True)
    created_at = moment("When it was created; of several rules that match, the oldest decides.")
    updated_at = moment("When it was last changed, or stopped.")


def dump_rule(rule: ApprovalRule) -> dict[str, Any]:
    """Return the record of a rule."""
    record = {name: getattr(rule, name) for name in rule.__slots__}
    return dump(ApprovalRuleResponse, {**record, "match": rule.match.record(), "action": rule.action.record()})


class RuleTestResponse(ResponseSchema):
    """What a rule would have matched in the last 30 days."""

    matched = number("The number of exports that match, of any status.")
    examined = number("The number of exports that were compared: all of the last 30 days, the newest 50,000 at most.")
    examples = several(identifier("exp", "An export."), "The newest that match, up to 20.")


class FindingCountsResponse(ResponseSchema):
    """The findings of a postback."""

    new = number("Findings reported for the first time; each prepares an export or joins a group.")
    seen = number("Findings that were known.")


class PostbackResponse(ResponseSchema):
    """An accepted postback."""

    scan_run_id = number("The scan run.", minimum=1)
    status = constant("accepted", "It is stored.")
    findings = inline(FindingCountsResponse, "Its findings.")
    ticket_exports = several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}), "The exports that this postback prepared or extended."
    )


class SplitResponse(ResponseSchema):
    """The exports of a group that was split."""

    ticket_exports = several(
        fields.String(metadata={"pattern": f"^exp_{ULID}$"}), "The group's own export, then one for each other finding."
    )


class EmailResponse(ResponseSchema):
    """An accepted email."""

    id = identifier("eml", "The email.")
    status = constant("accepted", "It is stored.")
    duplicate = truth("Whether it was stored before.", attribute="is_duplicate")


class ComplianceResponse(ResponseSchema):
    """The response to a dry run of a compliance webhook."""

    status = constant("accepted", "It would be stored, or is stored already.")
    duplicate = truth("Whether it was stored before.")
    topic = one_of(Topic, "The topic.")
    shop_domain = text("The shop, in the form that is compared.")
    due_at = moment("The legal deadline; null for a duplicate.", nullable=True)


class HeadingResponse(ResponseSchema):
    """One heading of a page."""

    level = one_of(HEADING_LEVELS, "The level.")
    text = text("The text.")


class HandoffResponse(ResponseSchema):
    """The link between an upload, its project, its report and its export."""

    id = identifier("hof", "The handoff.")
    source = part(SourceResponse, "The capture or the diagnostics.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, if one was named.", nullable=True, minimum=1)
    ticket_export_id = identifier("exp", "The prepared export.")
    status = constant(RECEIVED, "It is stored.")
    created_at = moment("When the upload was received.")


class CaptureResponse(ResponseSchema):
    """A capture of one page."""

    id = identifier("evc", "The capture.")
    project_id = number("The project.", minimum=1)
    report_id = number("The report, if one was named.", nullable=True, minimum=1)
    page_url = text("The URL of the page.")
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
    site_url = text("The URL of the site.")
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
    shop_domain = text("The shop.")
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


class HealthResponse(ResponseSchema):
    """The process responds."""

    status = constant("ok", "Always `ok`.")
    installation = text("An identifier of the installation, by which `doctor` recognizes it.", nullable=True)


class ReadinessChecksResponse(ResponseSchema):
    """The checks of the service's dependencies."""

    database = one_of(FINDINGS, "The database.")
    disk = one_of(("ok", "low", "full"), "The disk of the database and of DATA_DIR; on a full one nothing is stored.")
    schema = one_of(FINDINGS, "The version of the database schema.")
    keys = one_of(FINDINGS, "Whether ENCRYPTION_KEYS decrypts the database's secrets.")
    redis = one_of(FINDINGS, "Redis; without it deliveries are delayed.")
    workers = one_of(FINDINGS, "Whether a worker was seen in the last seconds.")


class ReadinessResponse(ResponseSchema):
    """The state of the installation."""

    status = one_of(("ok", "degraded", "unavailable"), "`degraded`: requests are accepted, deliveries are delayed.")
    checks = part(ReadinessChecksResponse, "Each check.")


class TicketExportEventExport(ResponseSchema):
    """The export of a delivery."""

    id = identifier("exp", "The export.")
    target_id = identifier("tgt", "The target.")
    source = part(SourceResponse, "The source of the export.")


class TicketExportEvent(ResponseSchema):
    """The body of a delivery: the same bytes in every attempt."""

    id = identifier("exp", "The export; equal to `Idempotency-Key`.")
    type = one_of(["ticket.export"], "The type of the event.")
    version = number("The version of this format.", minimum=1)
    created_at = moment("When the export was approved.")
    export = part(TicketExportEventExport, "The export.")
    ticket = part(TicketResponse, "The ticket as it was approved.")


class TargetPingEventTarget(ResponseSchema):
    """The target of a test event."""

    id = identifier("tgt", "The target.")
    name = text("The name of the target.")


class TargetPingEvent(ResponseSchema):
    """The body of a test event: respond with 2xx, and create no ticket."""

    id = identifier("png", "The ping; equal to `Idempotency-Key` and `X-Request-Id`.")
    type = one_of(["target.ping"], "The type of the event.")
    version = number("The version of this format.", minimum=1)
    created_at = moment("When the ping was requested.")
    target = part(TargetPingEventTarget, "The target.")


class ConsoleSessionResponse(ResponseSchema):
    """A session at the console."""

    id = identifier("ses", "The session; this id is not a credential.")
    user = text("The email address of the user.", attribute="email")
    token_id = number("The token that was used to sign in.", minimum=1, attribute="principal.token_id")
    token_name = text("The name of that token.")
    created_at = moment("When the user signed in.")
    seen_at = moment("When the session was last used, to the minute.")
    ended_at = moment("When it was ended.", nullable=True)
    ended_reason = one_of(
        [Ended.SIGNED_OUT, Ended.REVOKED, Ended.CROWDED_OUT, Ended.ANOTHER_BROWSER, Ended.RESTORED],
        "Why it was ended.",
        nullable=True,
        attribute="ended",
    )


_NEXT_CURSOR: Final = "The `cursor` of the next page; null on the last page."


def _counts(of: str) -> fields.Dict:
    return fields.Dict(keys=fields.String(), values=fields.Integer(), **_options(f"How many exports each {of} has.", False))


class ExportFacetsResponse(ResponseSchema):
    """How many exports there are with each value, by all filters but its own: of the newest 5,000 that match."""

    status = _counts("status")
    severity = _counts("severity")
    project_id = _counts("project")
    source = _counts("source")
    rule = _counts("rule code")


class ExportListResponse(ResponseSchema):
    """A page of exports."""

    items = several(fields.Nested(ExportResponse), "The exports, in the order of `sort`.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)
    total = number("How many exports match on all pages; null if more than 10,000 do.", nullable=True)
    facets = part(ExportFacetsResponse, "Present with `facets=true`.", optional=True)


class SiblingExportsResponse(ResponseSchema):
    """The exports of one ticket for several targets."""

    items = several(fields.Nested(ExportResponse), "The exports, in the order of the targets.")


class AttemptListResponse(ResponseSchema):
    """A page of attempts."""

    items = several(fields.Nested(AttemptResponse), "The attempts, newest first.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)


class ProviderListResponse(ResponseSchema):
    """Every provider."""

    items = several(fields.Nested(ProviderResponse), "The providers: webhooks first, then trackers.")


class TargetListResponse(ResponseSchema):
    """A page of targets."""

    items = several(fields.Nested(TargetResponse), "The targets, newest first.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)


class ProjectListResponse(ResponseSchema):
    """A page of projects."""

    items = several(fields.Nested(ProjectResponse), "The projects, newest first.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)


class RecoveryListResponse(ResponseSchema):
    """A page of recoveries."""

    items = several(fields.Nested(RecoveryResponse), "The recoveries, newest first.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)


class ApprovalRuleListResponse(ResponseSchema):
    """A page of approval rules."""

    items = several(fields.Nested(ApprovalRuleResponse), "The rules, newest first.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)


class ConsoleSessionListResponse(ResponseSchema):
    """A page of sessions."""

    items = several(fields.Nested(ConsoleSessionResponse), "The sessions, newest first.")
    next_cursor = text(_NEXT_CURSOR, nullable=True)
