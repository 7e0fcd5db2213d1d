"""The tables; a column has a comment if its name is not enough. `storage.db.leases` explains `lease` and `next_run_at`.

`storage.db.migrations` creates the tables; a test compares them with these models on every database.
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

#: The export of a finding if retention deleted its ticket before anybody received it. Not NULL, because NULL stands for all
#: exports that were deleted before migration 0013, even for delivered ones.
NO_EXPORT: Final = ""


def _table_name(model: type[Model]) -> str:
    words = re.findall("[A-Z][a-z]+", model.__name__.removesuffix("Row"))
    # An identity becomes `identities`, a key `keys`.
    return re.sub("(?<!e)y$", "ie", "_".join(words).lower()) + "s"


class BaseModel(Model):
    """A table of the database that this process has open; `ScanRunRow` is a row of `scan_runs`."""

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
    #: The address of a removed user is `removed:` and the id.
    email = TextField(unique=True)
    created_at = TimestampField()
    #: Null: the user may do only what grants with a role allow, in their projects.
    role = EnumField(Role, null=True)
    #: From when on the user's tokens and sessions are refused.
    disabled_at = TimestampField(null=True)
    #: When the user was removed, which disables the user for good and erases the address.
    removed_at = TimestampField(null=True)


class UserIdentityRow(BaseModel):
    """The identity of a user at an issuer of sign-ins."""

    issuer = TextField()
    subject = TextField()
    user = ForeignKeyField(UserRow)
    created_at = TimestampField()

    class Meta:
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
    """A report of a project; a grant may be only for it."""

    id = AutoField()
    project = ForeignKeyField(ProjectRow)
    title = TextField()
    created_at = TimestampField()


class GrantRow(BaseModel):
    """The right of a user to manage a whole project or one report: exactly one of `project` and `report` is set."""

    id = AutoField()
    user = ForeignKeyField(UserRow)
    project = ForeignKeyField(ProjectRow, null=True)
    report = ForeignKeyField(ReportRow, null=True)
    created_at = TimestampField()
    #: NULL: the grant is only for uploads.
    role = EnumField(Role, null=True)


class ScanRunRow(BaseModel):
    """One run of a scanner; the id comes from the scanner."""

    id = BigIntegerField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    status = TextField()
    created_at = TimestampField()
    updated_at = TimestampField()
    #: Whether `ticket_changes` has rows of the run, and when they were last read.
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
    #: The export whose ticket contains the finding. Retention may have deleted it; NO_EXPORT if nobody had received the
    #: ticket.
    export_id = TextField(null=True)
    #: The scanner's page about the rule.
    help_url = TextField(null=True)
    account_id = IntegerField(default=0)
    #: The digest of `schemas.intake.page_url` for the page whose scan first reported the finding.
    page_digest = TextField(default="")
    #: The host of `page_url`.
    host = TextField(default="")
    #: How many scan runs in a row have visited the page without reporting the finding, when it was fixed, and how often it
    #: was reopened.
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
    #: The target's own secret, sealed by the vault; if NULL, WEBHOOK_SECRET signs.
    secret_sealed = BlobField(null=True)
    secret_fingerprint = TextField(null=True)
    #: The settings of a tracker besides its URL and token: a JSON object that only the tracker's module reads.
    provider_settings = TextField(default="{}")
    #: How requests to a webhook are signed, and the form in which they contain the ticket.
    signature = TextField(default="service")
    format = TextField(default="ticket")
    #: The types of events to which the target is subscribed.
    events = JsonField(default=list)
    #: The target's own headers as a sealed JSON object, and each header's name with its fingerprint.
    headers_sealed = BlobField(null=True)
    header_fingerprints = JsonField(default=list)
    #: The sealed secret of Standard Webhooks.
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
    #: Failed validations in a row. The next validation is later with each of them.
    validation_failures = IntegerField(default=0)
    created_at = TimestampField()
    updated_at = TimestampField()
    #: No attempt starts before this time. The reason: the receiver asked to wait, or the target's circuit breaker is open.
    held_until = TimestampField(null=True)
    held_reason = TextField(null=True)
    #: The most concurrent requests, over all workers; a fraction is progress towards the next whole number.
    concurrency = DoubleField(default=16)
    #: The limit during the ramp after a pause; the lower of `concurrency` and `ramp` applies. A new target starts at 4.
    ramp = IntegerField(default=4)
    failures_in_row = IntegerField(default=0)
    #: The first failure after the last success.
    failing_since = TimestampField(null=True)
    #: Attempts since the last success that delivered nothing, including rejected ones; counted up to FAILING_AFTER.
    undelivered_in_row = IntegerField(default=0)
    #: A rate limit over all workers, and the time until which it is used up. In microseconds since 1970, because at a
    #: thousand attempts a second whole milliseconds would lose one in forty.
    max_per_minute = IntegerField(null=True)
    paced_until = TimestampField(timedelta(microseconds=1), null=True)
    #: When a worker may next validate the target's address and certificate: 0 if requested, a day after the last success or
    #: validation, sooner after a failed one, or the end of the lease. NULL: never.
    validation_due_at = TimestampField(null=True)
    #: Since when a client request waits for a validation.
    validation_asked_at = TimestampField(null=True)
    #: The lease of the validating worker; a write under another lease changes nothing.
    validation_lease = TextField(null=True)
    #: When the target was removed: no query finds it afterwards, and its exports keep its id.
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
    #: Attempts that began. Counted when claiming, so that an export that kills its worker is not retried for ever.
    attempts = IntegerField()
    #: Attempts before the last manual retry; the retry schedule counts from here.
    attempts_before = IntegerField()
    schedule_began_at = TimestampField(null=True)
    #: When a worker may next claim the export: at its next attempt, or at the end of the present lease. NULL: never.
    due_at = TimestampField(null=True)
    #: The lease of the present claim; a write with another lease changes nothing.
    lease = TextField(null=True)
    #: Incremented by every change; the ETag.
    version = IntegerField()
    last_attempt_at = TimestampField(null=True)
    last_response_status = IntegerField(null=True)
    last_error_code = TextField(null=True)
    last_duration_ms = IntegerField(null=True)
    provider_ticket_id = TextField(null=True)
    provider_ticket_url = TextField(null=True)
    #: Whether the target may have the ticket although no response confirmed it. A tracker is searched before the next
    #: attempt.
    is_outcome_unknown = BooleanField(default=False)
    created_at = TimestampField()
    approved_at = TimestampField(null=True)
    finished_at = TimestampField(null=True)
    #: When the export was redacted for a compliance request: its ticket is empty and is never sent again.
    redacted_at = TimestampField(null=True)
    #: The ticket's severity as a number, from 0 for `info` to 4 for `critical`, to sort by.
    severity_rank = IntegerField(default=0)
    #: The rule code of the export's findings; NULL for other sources.
    rule = TextField(null=True)
    #: The rule code of a group while new findings with this code join it; in a project, one export at most has each code.
    open_group = TextField(null=True)
    #: How many findings the export has, and how many of them are fixed; NULL for other sources.
    findings_total = IntegerField(null=True)
    findings_fixed = IntegerField(null=True)
    #: The ticket before a person edited it.
    original_ticket = JsonField(null=True)
    #: The reason and the note with which a person or a rule dismissed the export.
    dismissal_reason = TextField(null=True)
    dismissal_note = TextField(null=True)
    #: Since when the export is snoozed, and until when; if NULL, until one of its findings is seen again.
    snoozed_at = TimestampField(null=True)
    snoozed_until = TimestampField(null=True)
    #: The user or the rule that approved the export; both NULL if the operator did. For a prepared export: the rule whose
    #: target it waits for.
    approved_by_user_id = IntegerField(null=True)
    approved_by_rule_id = TextField(null=True)
    #: The ids of all exports of one ticket that was approved for several targets.
    siblings = JsonField(null=True)
    #: The types of events that the approval covers: those to which the target was subscribed at that time.
    events = JsonField(null=True)


class ExportTermRow(BaseModel):
    """A host or the rule code by which an export can be found."""

    account_id = IntegerField()
    #: `host` or `rule`.
    kind = TextField()
    value = TextField()
    export = ForeignKeyField(ExportRow, on_delete="CASCADE")

    class Meta:
        primary_key = CompositeKey("account_id", "kind", "value", "export")


class ExportSearchRow(BaseModel):
    """The words by which an export can be found; SQLite's index of them is the virtual table `export_words`."""

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
    #: Retry-After from the receiver, in seconds.
    retry_after_s = IntegerField(null=True)
    #: The address that was dialed; only for the operator.
    address = TextField(null=True)
    dns_ms = IntegerField(null=True)
    connect_ms = IntegerField(null=True)
    tls_ms = IntegerField(null=True)
    first_byte_ms = IntegerField(null=True)
    total_ms = IntegerField()
    nonce = TextField(null=True)
    worker = TextField()
    #: The beginning of the response body, without content that must never be stored; only for the operator.
    answer = TextField(null=True)
    #: The class of the dialed address: `public`, or the reason why it is not.
    address_class = TextField(null=True)
    #: The values of the signature headers, separated by a space.
    signature = TextField(null=True)
    #: The digest of the bytes that were sent, or of the frozen bytes from which a tracker's issue was made.
    body_sha256 = TextField(null=True)
    #: The digest of the part of the response that was read.
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
    """An event for the target of an exported ticket. Events of one export are delivered in the order of their numbers."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    export = ForeignKeyField(ExportRow, on_delete="CASCADE")
    target = ForeignKeyField(TargetRow)
    number = IntegerField()
    type = EnumField(TicketEventType)
    status = EnumField(TicketEventStatus)
    #: The bytes every attempt sends; erased when the event has ended.
    body = BlobField(null=True)
    #: The attempts that began, and a record of each that ended.
    attempts = IntegerField()
    attempt_records = JsonField()
    error_code = TextField(null=True)
    #: What the event changed at a tracker.
    result = TextField(null=True)
    #: Whether an earlier attempt may have taken effect although no response confirmed it.
    is_outcome_unknown = BooleanField()
    #: When a worker may next claim the event: at its next attempt, or at the end of the present lease. NULL: never.
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
    """A report of a CMS plugin, which names its site's URL, or of the storefront app, which names its shop's domain."""

    id = TextField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    report = ForeignKeyField(ReportRow, null=True)
    platform = TextField()
    site_url = TextField(null=True)
    shop_domain = TextField(null=True)
    shop_name = TextField(null=True)
    granted_scopes = JsonField(null=True)
    #: The version of the plugin or app that sent the report.
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
    """An email that a provider posted: its text, and only names and sizes of its attachments."""

    id = TextField(primary_key=True)
    project = ForeignKeyField(ProjectRow)
    #: A digest of the message id: it identifies a repeated message even after the message was erased.
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
    """A compliance webhook of a storefront: a request that waits, or the record of one that is done."""

    id = TextField(primary_key=True)
    topic = EnumField(Topic)
    shop_domain = TextField()
    #: A digest of the body's signature: without the secret, nobody can guess the body from it. `|` and the id follow if a
    #: later request has the same bytes.
    body_sha256 = TextField(unique=True)
    #: A keyed hash of the person, the same for every request about them in this shop.
    subject_pseudonym = TextField(null=True)
    #: The subject of the request, sealed by the vault; erased when the request is done.
    subject_sealed = BlobField(null=True)
    status = EnumField(ComplianceStatus)
    result = EnumField(ComplianceResult, null=True)
    #: Records found, deleted or anonymized, by table.
    counts = JsonField()
    #: The report of a data request, sealed, for the shop's owner.
    report_sealed = BlobField(null=True)
    #: How often a worker claimed the request, and the kind of error of the last failure.
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
    #: The keyed request for this ping: if it is repeated while the ping runs, it waits for the same ping.
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

    Each worker has its own rows: two workers that update the same row would wait for each other.
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
    #: Paths and codes of the problems, or the reason why a credential was rejected.
    problems = JsonField()
    request_id = TextField()


class WorkerRow(BaseModel):
    """The heartbeat of a worker process; running workers share the targets' concurrency."""

    name = TextField(primary_key=True)
    started_at = TimestampField()
    seen_at = TimestampField()


class RecoveryRow(BaseModel):
    """A recovery: the failed exports of one target, made due again on request, a batch at a time."""

    id = TextField(primary_key=True)
    target = ForeignKeyField(TargetRow)
    #: Exports that failed or were blocked since this time are made due.
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
    #: The reason why the rule stopped automatically.
    stopped_reason = EnumField(StoppedReason, null=True)
    created_at = TimestampField()
    updated_at = TimestampField()


class BulkJobRow(BaseModel):
    """One decision on all exports that matched a filter, made by a worker a batch at a time."""

    id = TextField(primary_key=True)
    account = ForeignKeyField(AccountRow)
    #: The user who created the job; NULL for the operator.
    user = ForeignKeyField(UserRow, null=True)
    action = EnumField(BulkAction)
    #: The parameters of the action: the target, or the reason and the note.
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
    #: No foreign key: an erasure may delete the run, and the import then registers the run again.
    scan_run_id = BigIntegerField()
    status = EnumField(ReportUploadStatus)
    #: The number of postbacks; NULL until a worker has read the report.
    total = IntegerField(null=True)
    done = IntegerField()
    new_findings = IntegerField()
    seen_findings = IntegerField()
    tickets = IntegerField()
    refused = IntegerField()
    #: URL and reason of each refused or skipped result.
    left_out = JsonField()
    error = EnumField(UploadError, null=True)
    actor = TextField()
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()
    finished_at = TimestampField(null=True)
    #: The report, sealed by the vault; erased when the import ends. This is the last column, so that reading a row does not
    #: read the pages of the report.
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
    """A console session for an API token or a user, until it ends, is idle for too long or is no longer allowed."""

    id = TextField(primary_key=True)
    #: The token that was used to sign in; NULL if `user` signed in by another method.
    token = ForeignKeyField(TokenRow, null=True)
    #: The digest of the secret in the browser's cookie.
    secret_sha256 = TextField(unique=True)
    #: The digest of the browser's User-Agent: a cookie that another browser sends was stolen.
    browser_sha256 = TextField()
    created_at = TimestampField()
    #: Updated once a minute at most, so that most requests cost no write.
    seen_at = TimestampField()
    ended_at = TimestampField(null=True)
    #: signed_out, revoked, crowded_out, another_browser or restored.
    ended_reason = TextField(null=True)
    user = ForeignKeyField(UserRow, null=True)
    method = EnumField(SignInMethod, default=SignInMethod.TOKEN)
    #: The digest of a secret that opens only one session: the state of an OpenID Connect sign-in, or a link.
    sign_in_sha256 = TextField(null=True, unique=True)
    #: The sealed ID token, which signs out at its issuer; erased when the session ends.
    id_token_sealed = BlobField(null=True)


class SignInLinkRow(BaseModel):
    """A one-time link for the console that was requested; deleted when it is used."""

    id = TextField(primary_key=True)
    #: The digests of the secrets in the link, and in the cookie of the browser that requested it.
    token_sha256 = TextField(unique=True)
    browser_sha256 = TextField()
    #: The address and the link's secret, sealed; erased when the email is sent.
    mail_sealed = BlobField(null=True)
    #: The user with that address; set when a worker has searched for it.
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
    """One entry of the audit log, appended and never changed; a worker assigns its position in the chain."""

    id = BigAutoField()
    at = TimestampField()
    actor = TextField()
    action = TextField()
    subject_id = TextField()
    status_before = TextField(null=True)
    status_after = TextField(null=True)
    reason = TextField(null=True)
    #: SHA-256 of the approved ticket, of the record of an attempt, or of an event's body.
    digest = BlobField(null=True)
    #: The position in the hash chain and the hash there; NULL until a worker has chained the entry.
    position = BigIntegerField(null=True)
    hash = BlobField(null=True)
    #: The account of the record, or else of the actor. No foreign key, because every writer would have to check it.
    account_id = IntegerField(null=True)


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
    """A row that a compliance request erased or redacted, identified only by its id; after a restore it is erased again."""

    id = BigAutoField()
    request_id = TextField()
    table_name = TextField()
    row_id = TextField()
    redacted_at = TimestampField()


class AlertRow(BaseModel):
    """A problem that exists or existed, one row for each cause; the alert opens again when the cause occurs again."""

    id = TextField(primary_key=True)
    #: Identifies the cause: the same value while it persists, and when it occurs again.
    cause = TextField(unique=True)
    kind = EnumField(AlertKind)
    state = EnumField(AlertState)
    #: The account of the target or rule that the alert is about; NULL for the installation.
    account = ForeignKeyField(AccountRow, null=True)
    subject_id = TextField(null=True)
    #: Names, counts and reasons for the text.
    details = JsonField()
    first_at = TimestampField()
    last_at = TimestampField()
    count = IntegerField()
    #: When the last message about the alert was queued, and the alert's state in it.
    sent_at = TimestampField(null=True)
    sent_state = EnumField(AlertState, null=True)
    acknowledged_at = TimestampField(null=True)
    acknowledged_by = TextField(null=True)


class AlertMessageRow(BaseModel):
    """A message for one channel. The row is deleted when the message is sent."""

    id = TextField(primary_key=True)
    channel = TextField()
    body = JsonField()
    #: How often a worker claimed the message.
    attempts = IntegerField()
    lease = TextField(null=True)
    next_run_at = TimestampField(null=True)
    created_at = TimestampField()


ALL: tuple[type[BaseModel], ...] = tuple(BaseModel.__subclasses__())
