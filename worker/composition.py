"""Wires the worker's parts from settings: the client of receivers, the dispatcher, the background tasks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from runtime import error_reports, tracing
from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.base.errors import NoEncryptionKey, WrongEncryptionKey
from schemas.settings.definitions import RouteFamily, Settings
from schemas.settings.egress import Egress
from schemas.targets.validations import Validation
from storage.accounts.account_limits import account_limits
from storage.db.engine import DAMAGE, OUTAGES, close_database, connection, open_database
from storage.db.shared_clock import SharedClock
from storage.exports import worker_heartbeats
from storage.exports.rules.rule_evaluation import ApprovalRules
from storage.intake.options import IntakeOptions
from storage.maintenance.retention import cutoffs
from storage.reporting.alert_causes import AlertSources
from storage.secrets.default_secret import DefaultSecret, served_accounts
from storage.secrets.vault import Vault
from storage.targets.validations import ValidationJob
from worker.background import (
    alerts,
    approval_rules,
    audit_chain,
    compliance,
    pings,
    retention,
    sign_in_links,
    ticket_events,
    validations,
)
from worker.background.account_tasks import AT_ONCE, LEASE_MARGIN_S, AccountTask
from worker.background.alert_channels import AlertSender, send_email
from worker.background.batches import batch_task, report_uploads
from worker.background.tasks import BackgroundTask, TaskThread
from worker.delivery.attempt import AttemptOptions, AttemptRunner
from worker.delivery.clock_guard import ClockGuard
from worker.delivery.dispatcher import Dispatcher
from worker.delivery.options import LEASE_S, RENEW_S, DispatcherOptions
from worker.delivery.outcomes import Schedule
from worker.http.client import HttpClient
from worker.http.signed_request import SignedPost, open_certificate
from worker.metrics import Attempts
from worker.trackers.runner import TrackerRunner

#: Shorter than the lock wait of API requests (5 s): a worker that waits 5 s before it renews a lease could lose the lease.
LOCK_WAIT_S: Final = LEASE_S - 2 * RENEW_S

Now = Callable[[], datetime]


@contextmanager
def worker_process(settings: Settings) -> Iterator[SharedClock]:
    """Open what a worker process needs, yield its clock, and close everything again.

    The clock is compared with the database's if the database is available; the dispatcher compares again later.
    """
    error_reports.configure(settings, "worker")
    tracing.configure(settings, "worker")
    open_database(settings.database_url, LOCK_WAIT_S)
    clock = SharedClock(utc_now)
    try:
        with suppress(*OUTAGES, *DAMAGE), connection():
            clock.compare()
        yield clock
    finally:
        close_database()
        # A forked child of RQ ends without its exit handlers.
        tracing.close()
        error_reports.close()


def compose_client(settings: Settings, connections: int) -> HttpClient:
    """Return an HTTP client of receivers that keeps up to `connections` connections to each."""
    return HttpClient(
        policy=settings.target_policy,
        resolver=DnsResolver(),
        deadline_s=settings.delivery_timeout_s,
        connect_timeout_s=settings.connect_timeout_s,
        connections=connections,
        egress=egress_of(settings),
    )


def egress_of(settings: Settings) -> Egress:
    """Return the egress settings for connections to targets."""
    return Egress(
        settings.target_ca,
        settings.client_certificate,
        served_accounts(settings),
        settings.egress_proxy,
        settings.egress_sources,
    )


def compose_dispatcher(settings: Settings, clock: SharedClock, client: HttpClient, attempts: Attempts) -> Dispatcher:
    """Return a dispatcher that corrects `clock` and counts `attempts`; the database must be open."""
    schedule = Schedule(settings.retry_schedule_s, settings.max_age)
    vault = Vault(settings.encryption_keys)
    attempt_options = AttemptOptions(DefaultSecret.of(settings, vault), schedule, clock.now)
    runner = AttemptRunner(client.post, vault, attempt_options, TrackerRunner(client, vault, _console_base(settings)))
    name, threads = worker_name(), settings.worker_concurrency
    options = DispatcherOptions(
        name, threads, settings.sweep_s, clock.now, compare_clocks=clock.compare, count=attempts.count
    )
    return Dispatcher(runner, options)


def compose_background_tasks(settings: Settings, clock: SharedClock) -> list[TaskThread]:
    """Return the threads of all background tasks.

    They use the dispatcher's clock, because they have leases too, and delete by age.
    """
    now, vault = clock.now, Vault(settings.encryption_keys)
    ping = compose_ping_task(settings, AT_ONCE, now)
    validation = compose_validation_task(settings, AT_ONCE, now)
    event_options = compose_event_options(settings, now)
    senders = _senders(settings, AT_ONCE)
    events = ticket_events.EventTask(*senders, event_options, ClockGuard(now, clock.compare))
    wake_ups = WakeUpQueue(connect(settings.redis_url))
    applied_rules, limits = ApprovalRules(settings.target_policy, wake_ups.notify), account_limits(settings)
    bulk_job = batch_task.bulk_job_task(wake_ups, settings.target_policy, limits, now)
    intake_options = IntakeOptions(limits, applied_rules, settings.fixed_after_runs)
    report_upload = report_uploads.ReportUploadTask(vault, intake_options, now)
    expired = partial(cutoffs, retention=settings.retention, idempotency_ttl=settings.idempotency_ttl)
    deletion = retention.RetentionTask(expired, worker_name(), now, ClockGuard(now, clock.compare))
    # Tasks that only look for work share a thread, and so do those that work in small batches.
    threads = [
        TaskThread(
            AccountTask("pings", ping.claim, ping.send, pings.POLL_S),
            AccountTask("validations", validation.claim, validation.validate, validations.POLL_S),
            AccountTask("ticket-events", events.claim, events.send, ticket_events.POLL_S),
            BackgroundTask("event-forming", partial(ticket_events.form_events, event_options), ticket_events.POLL_S),
            BackgroundTask(
                "approval-rules", partial(approval_rules.decide_waiting, applied_rules, now), approval_rules.POLL_S
            ),
        ),
        TaskThread(
            BackgroundTask("recoveries", batch_task.recovery_task(wake_ups, now).run_once, batch_task.POLL_S),
            BackgroundTask("bulk_jobs", bulk_job.run_once, batch_task.POLL_S),
        ),
        TaskThread(
            BackgroundTask(
                "audit-chain", audit_chain.AuditChainTask(now).run_once, audit_chain.POLL_S, takes_wake_ups=False
            ),
            BackgroundTask("retention", deletion.run_once, retention.POLL_S, takes_wake_ups=False),
        ),
        TaskThread(
            BackgroundTask("compliance", compliance.ComplianceTask(vault, worker_name(), now).run_once, compliance.POLL_S)
        ),
        TaskThread(BackgroundTask("report_uploads", report_upload.run_once, report_uploads.POLL_S)),
    ]
    if (alert := compose_alert_task(settings, now)) is not None:
        threads.append(TaskThread(BackgroundTask("alerts", alert.run_once, alerts.POLL_S, takes_wake_ups=False)))
    if settings.console_sign_in_links:
        page, send = f"{settings.public_base_url}/console/sign-in/link", partial(send_email, settings)
        links = sign_in_links.SignInLinkTask(vault, send, settings.alert_email_from, page, now)
        threads.append(TaskThread(BackgroundTask("sign-in-links", links.run_once, sign_in_links.POLL_S)))
    return threads


def compose_alert_task(settings: Settings, now: Now = utc_now) -> alerts.AlertTask | None:
    """Return the task that finds causes of alerts and sends messages; None without a channel."""
    channels = settings.alert_channels
    if not channels:
        return None
    backup_after = timedelta(days=settings.backup_alert_days)
    sources = AlertSources(settings.alert_kinds, settings.data_dir, backup_after)
    sender = AlertSender(settings, compose_client(settings, 1))
    base = _console_base(settings)
    console = None if base is None else f"{base}/console"
    return alerts.AlertTask(sources, channels, sender.send, console, now)


def compose_ping_task(settings: Settings, at_once: int, now: Now = utc_now) -> pings.PingTask:
    """Return the task that sends pings, for `at_once` threads."""
    signed_post, trackers = _senders(settings, at_once)
    return pings.PingTask(signed_post, worker_name(), now, trackers)


def compose_event_options(settings: Settings, now: Now = utc_now) -> ticket_events.EventOptions:
    """Return the options for forming and sending events."""
    return ticket_events.EventOptions(
        Schedule(settings.retry_schedule_s, settings.max_age),
        settings.event_settle_s,
        settings.delivery_timeout_s + LEASE_MARGIN_S,
        worker_name(),
        now,
        _console_base(settings),
    )


def compose_validation_task(settings: Settings, at_once: int, now: Now = utc_now) -> validations.ValidationTask:
    """Return the task that validates targets, for `at_once` threads."""
    client, vault = compose_client(settings, at_once), Vault(settings.encryption_keys)

    def inspect(due: ValidationJob) -> Validation:
        try:
            certificate = open_certificate(vault.open, due.target_id, due.options)
        except (NoEncryptionKey, WrongEncryptionKey):
            return Validation(reason="secret_unreadable")
        return client.inspect(due.base_url, due.account_id, certificate)

    trackers = TrackerRunner(client, vault, _console_base(settings))
    lease_s = settings.delivery_timeout_s + LEASE_MARGIN_S
    return validations.ValidationTask(inspect, worker_name(), now, lease_s, trackers)


def worker_name() -> str:
    """Return the name of this worker process, unique among all hosts."""
    return worker_heartbeats.process_name("worker")


def _senders(settings: Settings, at_once: int) -> tuple[SignedPost, TrackerRunner]:
    """Return the senders to webhooks and to trackers, for `at_once` threads."""
    client, vault = compose_client(settings, at_once), Vault(settings.encryption_keys)
    signed_post = SignedPost(client.post, vault, DefaultSecret.of(settings, vault))
    return signed_post, TrackerRunner(client, vault, _console_base(settings))


def _console_base(settings: Settings) -> str | None:
    """Return the base URL of the console; None if the installation does not serve it."""
    return settings.public_base_url if RouteFamily.CONSOLE in settings.route_families else None
