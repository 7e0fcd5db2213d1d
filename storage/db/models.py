"""The tables; a column has a comment where its name is not enough. `storage.db.leases` explains `lease` and `next_run_at`.

`storage.db.migrations` creates them; a test compares both on every database.
"""

import re
from datetime import timedelta
from typing import Final

from peewee import (
    AutoField,
    BigAutoField,
    BigIntegerField,
    BlobField,
    BooleanField,
    CompositeKey,
    DoubleField,
    ForeignKeyField,
    IntegerField,
    Model,
    TextField,
)

from schemas.alerts.alert import AlertState
from schemas.base.console_session import SignInMethod
from schemas.base.principal import Role
from schemas.base.ticket_event_types import TicketEventType
from schemas.compliance.requests import ComplianceResult, ComplianceStatus, Topic
from schemas.exports.recoveries import RecoveryStatus
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket_events import PlaceChange, TicketEventStatus
from schemas.findings.life_cycle import RunOutcome
from schemas.intake.grouping import TicketGrouping
from schemas.intake.report_uploads import ReportUploadStatus, UploadError
from schemas.settings.alert_channels import AlertKind
from schemas.targets.target import TargetStatus
from schemas.triage.approval_rules import StoppedReason, action_from, match_from
from schemas.triage.bulk_decisions import BulkAction
from schemas.triage.bulk_jobs import BulkJobStatus
from storage.db.columns import EnumField, JsonField, TimestampField
from storage.db.engine import database

#: In place of the export of a finding whose ticket retention deleted before anybody got it. Not null: findings whose exports
#: were deleted before migration 0013 have that, also where these were delivered.
NO_EXPORT: Final = ""


def _table_name(model: type[Model]) -> str:
    words = re.findall("[A-Z][a-z]+", model.__name__.removesuffix("Row"))
    return "_".join(words).lower() + "s"


class BaseModel(Model):
    """A table of the one database this process has open; `ScanRunRow` is a row of `scan_runs`."""

    class Meta:
        database = database
        table_function = _table_name


class AccountRow(BaseModel):
    """The owner of projects, targets and exports."""

    id = AutoField()
    name = TextField()
    may_use_webhooks = BooleanField()
    created_at = TimestampField()


class UserRow(BaseModel):
    """A person of an account."""

    id = AutoField()
    account = ForeignKeyField(AccountRow)
    #: Of a removed user: `removed:` and the id.
    email = TextField(unique=True)
    created_at = TimestampField()
    #: Null: the user may do only what grants with a role allow, in their projects.
    role = EnumField(Role, null=True)
    #: Since when the user's tokens and sessions are refused.
    disabled_at = TimestampField(null=True)
    #: When the user was removed: disabled for good, and the address erased.
    removed_at = TimestampField(null=True)


class UserIdentityRow(BaseModel):
    """A user as an issuer of sign-ins knows them."""

    issuer = TextField()
    subject = TextField()
    user = ForeignKeyField(UserRow)
    created_at = TimestampField()

    class Meta:
        table_name = "user_identities"
        primary_key = CompositeKey("issuer", "subject")


class ProjectRow(BaseModel):
    """A website of an account; findings are unique within it."""

    id = AutoField()
    account = ForeignKeyField(AccountRow)
    name = TextField()
    shop_domain = TextField(null=True)
    created_at = TimestampField()
    ticket_grouping = EnumField(TicketGrouping, default=TicketGrouping.FINDING)


class ReportRow(BaseModel):
    """A report of a project; a grant may be for it alone."""

    id = AutoField()
    project = ForeignKeyField(ProjectRow)
    title = TextField()
    created_at = TimestampField()


class GrantRow(BaseModel):
    """The right of a user to manage a whole project or one report: exactly one of both is set."""

    id = AutoField()
    user = ForeignKeyField(UserRow)
    project = ForeignKeyField(ProjectRow, null=True)
    report = ForeignKeyField(ReportRow, null=True)
    created_at = TimestampField()
    #: Null: the grant is for uploads alone.
    role = EnumField(Role, null=True)


class ScanRunRow(BaseModel):
    """One run of a scanner; the id is the scanner's own."""

    id = BigIntegerField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    status = TextField()
    created_at = TimestampField()
    updated_at = TimestampField()
    #: Whether `ticket_changes` has rows of it, and when they were last read.
    has_changes = BooleanField(default=False)
    changes_read_at = TimestampField(null=True)


class PageResultRow(BaseModel):
    """The result of one scan run for one page; a repeated postback replaces it."""

    id = BigAutoField()
    scan_run = ForeignKeyField(ScanRunRow)
    url = TextField()
    normalized_url = TextField(null=True)
    status_code = IntegerField(null=True)
    page_type = TextField(null=True)
    response_headers = JsonField()
    screenshot_path = TextField(null=True)
    received_at = TimestampField()


class FindingRow(BaseModel):
    """One issue on one page of a project, recognized across scan runs by its fingerprint."""

    id = TextField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    fingerprint = TextField()
    code = TextField()
    title = TextField()
    severity = TextField()
    page_url = TextField()
    location = TextField()
    first_scan_run = ForeignKeyField(ScanRunRow, backref="+")
    last_scan_run = ForeignKeyField(ScanRunRow, backref="+")
    first_seen_at = TimestampField()
    last_seen_at = TimestampField()
    times_seen = IntegerField()
    #: The export whose ticket it belongs to; retention may have deleted it, and leaves NO_EXPORT if nobody got the ticket.
    export_id = TextField(null=True)
    #: The scanner's page about the rule.
    help_url = TextField(null=True)
    account_id = IntegerField(default=0)
    #: The page whose scan reported it first, as `schemas.intake.page_url` identifies pages.
    page_digest = TextField(default="")
    #: Of `page_url`.
    host = TextField(default="")
    #: How many scan runs in a row have visited the page without reporting it; when it was fixed; how often it was reopened.
    missed_runs = IntegerField(default=0)
    fixed_at = TimestampField(null=True)
    times_reopened = IntegerField(default=0)


class FindingSightingRow(BaseModel):
    """One scan run that reported a finding, or visited its page without reporting it."""

    finding = ForeignKeyField(FindingRow)
    scan_run = ForeignKeyField(ScanRunRow)
    seen_at = TimestampField()
    outcome = EnumField(RunOutcome, default=RunOutcome.SEEN)

    class Meta:
        primary_key = CompositeKey("finding", "scan_run")


class TargetRow(BaseModel):
    """A ticket export target."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    provider_key = TextField()
    base_url = TextField()
    deployment_mode = TextField()
    name = TextField()
    status = EnumField(TargetStatus)
    status_reason = TextField(null=True)
    #: The target's own secret, sealed by the vault; without one WEBHOOK_SECRET signs.
    secret_sealed = BlobField(null=True)
    secret_fingerprint = TextField(null=True)
    #: What a tracker needs beside its URL and token: a JSON object, which only the tracker's module reads.
    provider_settings = TextField(default="{}")
    #: How requests to a webhook are signed, and in which form they carry the ticket.
    signature = TextField(default="service")
    format = TextField(default="ticket")
    #: The types of events that it asks for.
    events = JsonField(default=list)
    #: The target's own headers as a JSON object, sealed, and each name with its fingerprint.
    headers_sealed = BlobField(null=True)
    header_fingerprints = JsonField(default=list)
    #: The secret of Standard Webhooks, sealed.
    standard_secret_sealed = BlobField(null=True)
    standard_secret_fingerprint = TextField(null=True)
    #: The client certificate and its key in PEM, sealed.
    certificate_sealed = BlobField(null=True)
    certificate_fingerprint = TextField(null=True)
    connected_status = TextField()
    last_success_at = TimestampField(null=True)
    validation_status = TextField(null=True)
    validation_reason = TextField(null=True)
    validated_at = TimestampField(null=True)
    #: Failed validations in a row: the more, the later the next one.
    validation_failures = IntegerField(default=0)
    created_at = TimestampField()
    updated_at = TimestampField()
    #: No attempt starts before. The reason: the receiver asked for it, or its breaker is open.
    held_until = TimestampField(null=True)
    held_reason = TextField(null=True)
    #: The most concurrent requests, over all workers; a fraction is progress towards the next whole number.
    concurrency = DoubleField(default=16)
    #: The ramp after a pause: the lesser of both limits. A new target begins part of the way up.
    ramp = IntegerField(default=4)
    failures_in_row = IntegerField(default=0)
    #: The first failure since the last success.
    failing_since = TimestampField(null=True)
    #: Attempts since the last success that delivered nothing, rejected ones included; counted up to FAILING_AFTER.
    undelivered_in_row = IntegerField(default=0)
    #: A rate limit over all workers, and until when it is used up: in microseconds since 1970, because at a thousand
    #: attempts a second whole milliseconds would lose one in forty.
    max_per_minute = IntegerField(null=True)
    paced_until = TimestampField(timedelta(microseconds=1), null=True)
    #: When a worker may next validate its address and certificate: 0 if requested, a day after its last success or
    #: validation, sooner after a failed one, or the end of the lease. NULL: never.
    validation_due_at = TimestampField(null=True)
    #: Since when a request waits for a validation.
    validation_asked_at = TimestampField(null=True)
    #: The lease of the validating worker; a write under another lease changes nothing.
    validation_lease = TextField(null=True)
    #: When it was removed: it is found no more, and its exports keep its id.
    deleted_at = TimestampField(null=True)


class ExportRow(BaseModel):
    """One ticket for one target. Only `storage.exports.claims_sql`, `transitions` and `transitions_sql` write `status`."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    project = ForeignKeyField(ProjectRow, null=True)
    source_type = TextField()
    source_id = TextField()
    scan_run_id = BigIntegerField(null=True)
    status = EnumField(ExportStatus)
    status_reason = TextField(null=True)
    target = ForeignKeyField(TargetRow, null=True)
    ticket = JsonField()
    ticket_digest = TextField()
    preview_problems = JsonField()
    #: The bytes every attempt sends, frozen at approval.
    body = BlobField(null=True)
    #: Attempts begun; counted when claiming, so that an export that kills its worker is not retried for ever.
    attempts = IntegerField()
    #: Attempts made before the last manual retry; the schedule counts from there.
    attempts_before = IntegerField()
    schedule_began_at = TimestampField(null=True)
    #: When a worker may next claim it: the next attempt, or the end of the present lease. NULL: never.
    due_at = TimestampField(null=True)
    #: The present claim; a write under another lease changes nothing.
    lease = TextField(null=True)
    #: Incremented by every change; the ETag.
    version = IntegerField()
    last_attempt_at = TimestampField(null=True)
    last_response_status = IntegerField(null=True)
    last_error_code = TextField(null=True)
    last_duration_ms = IntegerField(null=True)
    provider_ticket_id = TextField(null=True)
    provider_ticket_url = TextField(null=True)
    #: Whether the target may have the ticket although no response said so: a tracker is searched before the next attempt.
    is_outcome_unknown = BooleanField(default=False)
    created_at = TimestampField()
    approved_at = TimestampField(null=True)
    finished_at = TimestampField(null=True)
    #: When it was redacted for a compliance request: its ticket is empty and it is never sent again.
    redacted_at = TimestampField(null=True)
    #: The ticket's severity as a number, from 0 for `info` to 4 for `critical`, to sort by.
    severity_rank = IntegerField(default=0)
    #: The rule code of its findings; NULL for other sources.
    rule = TextField(null=True)
    #: The rule code of a group while new findings with this code join it; one export of a project has it.
    open_group = TextField(null=True)
    #: How many findings it has, and how many of them are fixed; NULL for other sources.
    findings_total = IntegerField(null=True)
    findings_fixed = IntegerField(null=True)
    #: The ticket before a person edited it.
    original_ticket = JsonField(null=True)
    #: Why and with which note a person or a rule dismissed it.
    dismissal_reason = TextField(null=True)
    dismissal_note = TextField(null=True)
    #: Since when it is snoozed, and until when; NULL: until one of its findings is seen again.
    snoozed_at = TimestampField(null=True)
    snoozed_until = TimestampField(null=True)
    #: The user or the rule that approved it; neither where the operator did. Of a prepared export: the rule for whose target
    #: it waits.
    approved_by_user_id = IntegerField(null=True)
    approved_by_rule_id = TextField(null=True)
    #: The ids of all exports of one ticket that was approved for several targets.
    siblings = JsonField(null=True)
    #: The types of events that its approval covers: those that its target asked for then.
    events = JsonField(null=True)


class ExportTermRow(BaseModel):
    """A host or the rule code by which an export is found."""

    account_id = IntegerField()
    #: `host` or `rule`.
    kind = TextField()
    value = TextField()
    export = ForeignKeyField(ExportRow, on_delete="CASCADE")

    class Meta:
        primary_key = CompositeKey("account_id", "kind", "value", "export")


class ExportSearchRow(BaseModel):
    """The words by which an export is found; SQLite's index of them is the virtual table `export_words`."""

    id = BigAutoField()
    export = ForeignKeyField(ExportRow, unique=True, on_delete="CASCADE")
    #: `@` and the account's id, then words as `schemas.triage.search_words` forms them, separated by spaces.
    words = TextField()

    class Meta:
        table_name = "export_search"


class AttemptRow(BaseModel):
    """One signed POST of one export. At most one of an export's attempts is `delivered`."""

    id = TextField(primary_key=True)
    export = ForeignKeyField(ExportRow)
    number = IntegerField()
    started_at = TimestampField()
    outcome = TextField()
    response_status = IntegerField(null=True)
    error_code = TextField(null=True)
    #: The receiver's Retry-After, in seconds.
    retry_after_s = IntegerField(null=True)
    #: The address that was dialed; for the operator alone.
    address = TextField(null=True)
    dns_ms = IntegerField(null=True)
    connect_ms = IntegerField(null=True)
    tls_ms = IntegerField(null=True)
    first_byte_ms = IntegerField(null=True)
    total_ms = IntegerField()
    nonce = TextField(null=True)
    worker = TextField()
    #: The beginning of the response body, without content that must never be stored; for the operator alone.
    answer = TextField(null=True)
    #: The class of the dialed address: `public`, or why it is not.
    address_class = TextField(null=True)
    #: The values of the signature headers, separated by a space.
    signature = TextField(null=True)
    #: Of the bytes that were sent, or of the frozen bytes that an issue was made from.
    body_sha256 = TextField(null=True)
    #: Of the part of the response that was read.
    response_sha256 = TextField(null=True)


class TicketChangeRow(BaseModel):
    """What a scan run changed in a finding of an approved export, until an event reports it."""

    scan_run = ForeignKeyField(ScanRunRow, on_delete="CASCADE")
    export = ForeignKeyField(ExportRow, on_delete="CASCADE")
    finding_id = TextField()
    change = EnumField(PlaceChange)
    changed_at = TimestampField()

    class Meta:
        primary_key = CompositeKey("scan_run", "export", "finding_id")


class TicketEventRow(BaseModel):
    """One event for the target of an exported ticket; those of one export are delivered in the order of their numbers."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    export = ForeignKeyField(ExportRow, on_delete="CASCADE")
    target = ForeignKeyField(TargetRow)
    number = IntegerField()
    type = EnumField(TicketEventType)
    status = EnumField(TicketEventStatus)
    #: The bytes every attempt sends; erased when the event has ended.
    body = BlobField(null=True)
    #: Attempts begun, and the record of each that ended.
    attempts = IntegerField()
    attempt_records = JsonField()
    error_code = TextField(null=True)
    #: What was done at a tracker.
    result = TextField(null=True)
    #: Whether an earlier attempt may have been applied although no response said so.
    is_outcome_unknown = BooleanField()
    #: When a worker may next claim it: the next attempt, or the end of the present lease. NULL: never.
    due_at = TimestampField(null=True)
    lease = TextField(null=True)
    created_at = TimestampField()
    finished_at = TimestampField(null=True)


class EvidenceCaptureRow(BaseModel):
    """Evidence that a person captured with the browser extension."""

    id = TextField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    report = ForeignKeyField(ReportRow, null=True)
    page_url = TextField()
    page_title = TextField(null=True)
    selected_text = TextField(null=True)
    meta_description = TextField(null=True)
    canonical_url = TextField(null=True)
    heading_outline = JsonField(null=True)
    captured_at = TimestampField(null=True)
    extension_version = TextField(null=True)
    created_at = TimestampField()


class DiagnosticRow(BaseModel):
    """A report of a CMS plugin or the storefront app about its site; a plugin names the site, the app its shop."""

    id = TextField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    report = ForeignKeyField(ReportRow, null=True)
    platform = TextField()
    site_url = TextField(null=True)
    shop_domain = TextField(null=True)
    shop_name = TextField(null=True)
    granted_scopes = JsonField(null=True)
    #: The version of the plugin or app that sent it.
    client_version = TextField(null=True)
    diagnostics = JsonField()
    created_at = TimestampField()


class HandoffRow(BaseModel):
    """Ties an uploaded capture or diagnostic to its project, its report and the export that it prepared."""

    id = TextField(primary_key=True)
    source_type = TextField()
    source_id = TextField(unique=True)
    project = ForeignKeyField(ProjectRow)
    report = ForeignKeyField(ReportRow, null=True)
    user = ForeignKeyField(UserRow)
    export = ForeignKeyField(ExportRow, unique=True)
    status = TextField()
    created_at = TimestampField()


class InboundEmailRow(BaseModel):
    """An email that a provider posted: its text, and its attachments by name and size alone."""

    id = TextField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    #: A digest of the message id, which identifies a repeat even after the message was erased.
    message_sha256 = TextField()
    sender = TextField()
    recipients = JsonField()
    subject = TextField()
    text = TextField()
    attachments = JsonField()
    sent_at = TimestampField(null=True)
    export = ForeignKeyField(ExportRow, unique=True)
    created_at = TimestampField()


class ComplianceRequestRow(BaseModel):
    """A storefront's compliance webhook: a request that waits, or the ledger's entry of one that is done."""

    id = TextField(primary_key=True)
    topic = EnumField(Topic)
    shop_domain = TextField()
    #: A digest of the body's signature: nobody can guess bodies from it without the secret. Rows of earlier versions have
    #: the plain digest of the body until it arrives again. `|` and the id follow where a later request has the same bytes.
    body_sha256 = TextField(unique=True)
    #: A keyed hash of the person, the same for every request about them in this shop.
    subject_pseudonym = TextField(null=True)
    #: Its subject, sealed by the vault; erased when it is done.
    subject_sealed = BlobField(null=True)
    status = EnumField(ComplianceStatus)
    result = EnumField(ComplianceResult, null=True)
    #: Records found, deleted or anonymised, by table.
    counts = JsonField()
    #: The report of a data request, sealed, for the shop's owner.
    report_sealed = BlobField(null=True)
    #: How often a worker claimed it, and the kind of error of the last failure.
    attempts = IntegerField()
    last_error = TextField(null=True)
    lease = TextField(null=True)
    #: The legal deadline.
    due_at = TimestampField()
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()
    finished_at = TimestampField(null=True)


class PingRow(BaseModel):
    """A test event that a client requested; a worker sends it and the service waits for the result."""

    id = TextField(primary_key=True)
    target = ForeignKeyField(TargetRow)
    #: The keyed request that asked for it: a repeat meanwhile waits for the same ping.
    request_sha256 = TextField(null=True, unique=True)
    requested_at = TimestampField()
    started_at = TimestampField(null=True)
    finished_at = TimestampField(null=True)
    delivered = BooleanField(null=True)
    response_status = IntegerField(null=True)
    error_code = TextField(null=True)
    duration_ms = IntegerField(null=True)


class DeliveryHourRow(BaseModel):
    """The counts of one worker's attempts at a target in one hour; charts add these up instead of attempts.

    Each worker has rows of its own, since two that counted in one would wait for each other.
    """

    target = ForeignKeyField(TargetRow)
    #: The start of the hour.
    hour_at = TimestampField()
    worker = TextField()
    delivered = IntegerField()
    failed = IntegerField()

    class Meta:
        primary_key = CompositeKey("target", "hour_at", "worker")


class InboundRefusalRow(BaseModel):
    """The last rejection of an inbound source, without any of the submitted content."""

    source = TextField(primary_key=True)
    refused_at = TimestampField()
    status = IntegerField()
    code = TextField()
    #: Paths and codes of its problems, or why a credential was rejected.
    problems = JsonField()
    request_id = TextField()


class WorkerRow(BaseModel):
    """The heartbeat of a worker process; living workers share the targets' concurrency."""

    name = TextField(primary_key=True)
    started_at = TimestampField()
    seen_at = TimestampField()


class RecoveryRow(BaseModel):
    """A recovery: the failed exports of one target, made due again on request, a batch at a time."""

    id = TextField(primary_key=True)
    target = ForeignKeyField(TargetRow)
    #: Exports that failed or were blocked since then are made due.
    since = TimestampField()
    status = EnumField(RecoveryStatus)
    total = IntegerField()
    done = IntegerField()
    #: The last export examined; its batch and the progress commit together.
    after_id = TextField()
    actor = TextField()
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()
    finished_at = TimestampField(null=True)

    class Meta:
        table_name = "recoveries"


class ApprovalRuleRow(BaseModel):
    """A rule that approves, dismisses or labels exports when they are prepared."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    name = TextField()
    enabled = BooleanField()
    #: What an export must match.
    conditions = JsonField(match_from)
    action = JsonField(action_from)
    author = ForeignKeyField(UserRow)
    #: Why it stopped by itself.
    stopped_reason = EnumField(StoppedReason, null=True)
    created_at = TimestampField()
    updated_at = TimestampField()


class BulkJobRow(BaseModel):
    """One decision on all exports that matched a filter, made by a worker a batch at a time."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    #: The user who asked for it; NULL for the operator.
    user = ForeignKeyField(UserRow, null=True)
    action = EnumField(BulkAction)
    #: The target, or the reason and the note.
    options = JsonField()
    status = EnumField(BulkJobStatus)
    total = IntegerField()
    done = IntegerField()
    changed = IntegerField()
    skipped = IntegerField()
    #: How many exports failed with each error code.
    errors = JsonField()
    actor = TextField()
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()
    finished_at = TimestampField(null=True)


class ReportUploadRow(BaseModel):
    """A scanner's report file that a user uploaded; a worker imports it a postback at a time."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    project = ForeignKeyField(ProjectRow)
    user = ForeignKeyField(UserRow)
    file_name = TextField()
    format = TextField()
    #: No foreign key: an erasure may delete the run, and the import registers it again.
    scan_run_id = BigIntegerField()
    status = EnumField(ReportUploadStatus)
    #: Postbacks; NULL until a worker has read the report.
    total = IntegerField(null=True)
    done = IntegerField()
    new_findings = IntegerField()
    seen_findings = IntegerField()
    tickets = IntegerField()
    refused = IntegerField()
    #: URL and reason of what was refused or skipped.
    left_out = JsonField()
    error = EnumField(UploadError, null=True)
    actor = TextField()
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()
    finished_at = TimestampField(null=True)
    #: The report, sealed by the vault; erased when the import ends. The last column: rows are read without its pages.
    content_sealed = BlobField(null=True)


class BulkJobItemRow(BaseModel):
    """An export that matched when a job was created, and its version then."""

    job = ForeignKeyField(BulkJobRow)
    position = IntegerField()
    export = ForeignKeyField(ExportRow)
    version = IntegerField()

    class Meta:
        primary_key = CompositeKey("job", "position")


class TokenRow(BaseModel):
    """An API or platform token; only its SHA-256 is stored."""

    id = AutoField()
    user = ForeignKeyField(UserRow)
    kind = TextField()
    name = TextField()
    abilities = JsonField()
    token_sha256 = TextField(unique=True)
    created_at = TimestampField()
    expires_at = TimestampField(null=True)
    revoked_at = TimestampField(null=True)


class ConsoleSessionRow(BaseModel):
    """A console session: it acts for an API token, or for a user, until it is idle for too long, ended or not allowed."""

    id = TextField(primary_key=True)
    #: The token that was used to sign in; NULL where `user` signed in by another method.
    token = ForeignKeyField(TokenRow, null=True)
    #: Of the secret in the browser's cookie.
    secret_sha256 = TextField(unique=True)
    #: Of the browser's User-Agent: a cookie from another browser was stolen.
    browser_sha256 = TextField()
    created_at = TimestampField()
    #: Written once a minute at most, so that most reads cost no write.
    seen_at = TimestampField()
    ended_at = TimestampField(null=True)
    #: signed_out, revoked, crowded_out, another_browser or restored.
    ended_reason = TextField(null=True)
    user = ForeignKeyField(UserRow, null=True)
    method = EnumField(SignInMethod, default=SignInMethod.TOKEN)
    #: Of what may be used for one session only: the state of an OpenID Connect sign-in, or a link.
    sign_in_sha256 = TextField(null=True, unique=True)
    #: The ID token, sealed, to sign out at its issuer; erased when the session ends.
    id_token_sealed = BlobField(null=True)


class SignInLinkRow(BaseModel):
    """A one-time link for the console that was requested; deleted when it is used."""

    id = TextField(primary_key=True)
    #: Of the secrets in the link, and in the cookie of the browser that asked for it.
    token_sha256 = TextField(unique=True)
    browser_sha256 = TextField()
    #: The address and the link's secret, sealed; erased when the mail is sent.
    mail_sealed = BlobField(null=True)
    #: The user with that address, from when a worker looked.
    user = ForeignKeyField(UserRow, null=True)
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()


class IntegrationSecretRow(BaseModel):
    """A shared secret set by an operator; it overrides the environment's."""

    name = TextField(primary_key=True)
    secret_sealed = BlobField()
    secret_fingerprint = TextField()
    updated_at = TimestampField()


class IdempotencyKeyRow(BaseModel):
    """A keyed request and its response; unique per principal, method, route and key."""

    id = BigAutoField()
    principal = TextField()
    method = TextField()
    route = TextField()
    key = TextField()
    payload_sha256 = TextField()
    response_status = IntegerField(null=True)
    response_headers = JsonField(null=True)
    response_body = TextField(null=True)
    created_at = TimestampField()


class AuditEntryRow(BaseModel):
    """One entry of the audit log, appended and never changed; a worker gives it its place in the chain."""

    id = BigAutoField()
    at = TimestampField()
    actor = TextField()
    action = TextField()
    subject_id = TextField()
    status_before = TextField(null=True)
    status_after = TextField(null=True)
    reason = TextField(null=True)
    #: SHA-256 of what was decided or done: of the ticket that was approved, of the record of the attempt.
    digest = BlobField(null=True)
    #: The place in the chain and the hash there; NULL until a worker has chained it.
    position = BigIntegerField(null=True)
    hash = BlobField(null=True)
    #: The account of the record, else of the actor; no foreign key, which every writer would have to check.
    account_id = IntegerField(null=True)

    class Meta:
        table_name = "audit_entries"


class InstallationRow(BaseModel):
    """This installation itself: one row."""

    id = IntegerField(primary_key=True)
    #: A known text sealed by the first key; a key that cannot open it belongs to another installation.
    key_canary = BlobField()
    created_at = TimestampField()
    #: When `backup` last made a backup.
    backup_at = TimestampField(null=True)

    class Meta:
        table_name = "installation"


class RedactionRow(BaseModel):
    """A row that a compliance request erased or redacted, by its id alone; after a restore it is erased again."""

    id = BigAutoField()
    request_id = TextField()
    table_name = TextField()
    row_id = TextField()
    redacted_at = TimestampField()


class AlertRow(BaseModel):
    """Something that is or was wrong, one row for each cause; it opens again when the cause occurs again."""

    id = TextField(primary_key=True)
    #: The same while the cause persists, and when it occurs again.
    cause = TextField(unique=True)
    kind = EnumField(AlertKind)
    state = EnumField(AlertState)
    #: The account whose target or rule it is about; NULL for the installation.
    account = ForeignKeyField(AccountRow, null=True)
    subject_id = TextField(null=True)
    #: Names, counts and reasons for the text.
    details = JsonField()
    first_at = TimestampField()
    last_at = TimestampField()
    count = IntegerField()
    #: When the last message about it was queued, and the state that it had.
    sent_at = TimestampField(null=True)
    sent_state = EnumField(AlertState, null=True)
    acknowledged_at = TimestampField(null=True)
    acknowledged_by = TextField(null=True)


class AlertMessageRow(BaseModel):
    """A message for one channel until it is sent; then the row is deleted."""

    id = TextField(primary_key=True)
    channel = TextField()
    body = JsonField()
    #: How often a worker claimed it.
    attempts = IntegerField()
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()


#: Every table.
ALL: tuple[type[BaseModel], ...] = tuple(BaseModel.__subclasses__())
