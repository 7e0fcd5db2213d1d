"""Checks of `doctor` for the database and Redis, and for what is stored in them.

The checks of the open database share one connection; each makes a few reads.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from bin.checks import machine
from bin.checks.results import CheckResult, Level, failure, ok, warning
from bin.cli.installation import shared_secrets
from runtime.redis_client import connect
from schemas.settings.alert_channels import AlertKind
from schemas.settings.definitions import DeploymentMode, RouteFamily, Settings
from schemas.settings.parsers import HOW_TO_GENERATE, RECOMMENDED_SECRET_BYTES
from schemas.targets.target import RESTORED, TargetStatus
from storage.accounts import accounts, projects
from storage.accounts.account_limits import account_limits
from storage.db import schema_version
from storage.db.engine import is_sqlite, missing_folder
from storage.exports import worker_heartbeats
from storage.maintenance import backup as backup_files
from storage.maintenance import key_rotation, store_health
from storage.maintenance import restore as restoring
from storage.maintenance.store_health import Integrity
from storage.reporting.metrics_snapshot import LATE_S, PAUSED_BY_HAND, MetricsSnapshot
from storage.secrets import key_check
from storage.secrets.integrations import SharedSecrets
from storage.secrets.vault import Vault
from storage.targets import targets as target_rows

#: Enough to check a file of some gigabytes; a larger one is checked in part.
INTEGRITY_CHECK_S: Final = 5.0
#: SQLite checkpoints its log at 4 MiB; a reader that never ends holds a log that is this long.
LONG_LOG_BYTES: Final = 256 * 1024**2
#: Signatures and leases tolerate some seconds; a receiver rejects timestamps five minutes off.
SKEW_S: Final = 2.0
WRONG_CLOCK_S: Final = 60.0
#: A wake-up that takes a tenth of the sweep's period gains little over the sweep.
SLOW_REDIS_S: Final = 0.1
#: Timeout for Redis.
REDIS_WITHIN_S: Final = 2.0
#: If an export is due for longer, probably no worker sends anything.
MUCH_TOO_LATE_S: Final = 3600.0

#: Accounts that use at least this share of a limit are named, at most MAX_NAMED of them.
NEARLY_FULL: Final = 0.9
MAX_NAMED: Final = 10

_SENT_IN_HEADERS: Final = frozenset({"SCANNER_SHARED_SECRET", "EMAIL_WEBHOOK_SECRET"})
_KEEPS_ALL: Final = "noeviction"
_MIB: Final = 1024**2


def fitness() -> CheckResult:
    """Check that the database is RiskRelay's and fully migrated. Raises the driver's errors if it is unavailable."""
    schema = schema_version.inspect()
    if schema.problem:
        message, _, fix = schema.problem.partition("; ")
        return failure("database", message, fix)
    if folder := missing_folder():
        return failure("database", f"The folder {folder} of DATABASE_URL does not exist.", "create it, or set DATABASE_URL")
    if schema.pending:
        message = f"The database is not migrated; pending: {', '.join(schema.pending)}."
        return failure("database", message, "bin/riskrelay migrate")
    return ok("database", f"{'SQLite' if is_sqlite() else 'PostgreSQL'}, migrated")


def sqlite_file() -> Iterator[CheckResult]:
    """Check the integrity of SQLite's file and the size of its write-ahead log."""
    if not is_sqlite():
        return
    found, details = store_health.integrity(INTEGRITY_CHECK_S)
    if found is Integrity.DAMAGED:
        fix = "stop everything, keep a copy of the file, and restore a backup: bin/riskrelay restore FILE"
        yield failure("SQLite", f"The file is damaged: {details}.", fix)
    elif found is Integrity.UNFINISHED:
        yield ok("SQLite", f"No damage found within {INTEGRITY_CHECK_S:g} s; PRAGMA integrity_check checks the whole file.")
    else:
        yield ok("SQLite", "The file is intact.")
    length = store_health.log_bytes()
    if length > LONG_LOG_BYTES:
        fix = "end the process that holds a read transaction, or restart service and workers"
        yield warning("SQLite log", f"The write-ahead log has grown to {length // _MIB:,} MiB.", fix)


def unfinished_restore() -> Iterator[CheckResult]:
    """Check that no restore is incomplete."""
    if restoring.is_unfinished():
        yield failure("restore", restoring.UNFINISHED, restoring.FINISH)


def redis(settings: Settings) -> Iterator[CheckResult]:
    """Check that Redis accepts writes, responds quickly, agrees on the time, and never evicts keys."""
    with connect(settings.redis_url, REDIS_WITHIN_S) as client:
        state = store_health.redis_state(client)
    if isinstance(state, str):
        yield _no_redis(settings, state)
        return
    if state.policy not in {_KEEPS_ALL, ""}:
        fix = f"redis-cli CONFIG SET maxmemory-policy {_KEEPS_ALL}, and the same in redis.conf"
        yield warning("Redis", f"Redis evicts keys when its memory is full (maxmemory-policy {state.policy}).", fix)
    elif state.latency_s > SLOW_REDIS_S:
        fix = "move it closer; deliveries still start with the next sweep"
        yield warning("Redis", f"Redis takes {state.latency_s * 1000:.0f} ms to respond.", fix)
    else:
        yield ok("Redis", f"Redis responds in {state.latency_s * 1000:.1f} ms.")
    yield check_clock(state.skew_s, "Redis")


def database_clock() -> Iterator[CheckResult]:
    """Check that PostgreSQL's clock agrees with this machine's."""
    skew_s = store_health.skew_s()
    if skew_s is not None:
        yield check_clock(skew_s, "the database")


def timeouts() -> Iterator[CheckResult]:
    """Check that sessions have the timeouts that RiskRelay sets; PgBouncer does not pass them on."""
    missing = store_health.missing_timeouts()
    if missing:
        fix = "set it for the user of DATABASE_URL, as docs/scaling.md says"
        yield warning("timeouts", f"PostgreSQL's sessions have no {' and no '.join(missing)}.", fix)


def check_clock(skew_s: float, whose: str) -> CheckResult:
    """Return whether a clock skew of `skew_s` seconds is tolerable."""
    message = f"This machine's clock and that of {whose} differ by {abs(skew_s):.1f} s."
    fix = "synchronize the clocks of all hosts with NTP (timedatectl set-ntp true)"
    if abs(skew_s) > WRONG_CLOCK_S:
        return failure("clock", message, fix)
    return warning("clock", message, fix) if abs(skew_s) > SKEW_S else ok("clock", message)


def heartbeat(figures: MetricsSnapshot, now: datetime) -> CheckResult:
    """Check that a worker is running."""
    if figures.workers:
        return ok("workers", f"{figures.workers} running")
    seen_at = worker_heartbeats.last_seen()
    ago = None if seen_at is None else _span((now - seen_at).total_seconds())
    details = "no heartbeat in the last minutes" if ago is None else f"the last heartbeat was {ago} ago"
    return warning("workers", f"No worker is running: {details}.", "bin/riskrelay work, or make run")


def deliveries(figures: MetricsSnapshot) -> CheckResult:
    """Check how late the oldest due export is."""
    waiting = "1 export is waiting" if figures.waiting == 1 else f"{figures.waiting:,} exports are waiting"
    message = f"{waiting}; the oldest due one is {_span(figures.due_age_s)} late."
    fix = "check that a worker runs (bin/riskrelay work), and its log; start more workers if they are busy"
    if figures.due_age_s > MUCH_TOO_LATE_S:
        return failure("deliveries", message, fix)
    if figures.due_age_s > LATE_S:
        return warning("deliveries", message, fix)
    return ok("deliveries", f"{waiting}; none is late.")


def targets(settings: Settings, figures: MetricsSnapshot) -> Iterator[CheckResult]:
    """Check for targets that receive nothing until somebody acts."""
    restored, by_hand = figures.paused.get(RESTORED, 0), figures.paused.get(PAUSED_BY_HAND, 0)
    blocked, inactive, disabled = (
        figures.targets.get(status, 0) for status in (TargetStatus.BLOCKED, TargetStatus.INACTIVE, TargetStatus.DISABLED)
    )
    one = "bin/riskrelay target resume ID"
    if restored:
        fix = f"{one} for each: --all would resume those paused manually" if by_hand else f"{one}, or --all"
        yield warning("targets", f"{restored} paused since a backup was restored.", f"see docs/backup.md, then: {fix}")
    if by_hand:
        yield warning("targets", f"{by_hand} paused manually.", f"{one}, once the reason for the pause is gone")
    if blocked:
        fix = "fix the status_reason of bin/riskrelay target list, then: bin/riskrelay target resume ID"
        yield warning("targets", f"{blocked} blocked: the address policy, the tracker or the account forbids them.", fix)
    if inactive:
        in_cloud = settings.deployment_mode is DeploymentMode.CLOUD
        # In the cloud mode, the default secret signs only for the operator's account.
        fix = "OPERATOR_ACCOUNT_ID, for that account's webhooks," if in_cloud else "WEBHOOK_SECRET, for webhooks,"
        fix = f"bin/riskrelay secret set target ID, or set {fix} and restart"
        yield warning("targets", f"{inactive} inactive: a webhook has no signing secret, or a tracker no token.", fix)
    if disabled:
        fix = "bin/riskrelay target resume ID once the receiver works, or bin/riskrelay target remove ID"
        yield warning("targets", f"{disabled} disabled: their approved exports fail.", fix)
    if failing := target_rows.count_failing():
        fix = "bin/riskrelay target list names them; bin/riskrelay target ping ID says why"
        yield warning("targets", f"{failing} failing: their last attempts delivered nothing.", fix)
    if not (restored or by_hand or blocked or inactive or disabled or failing):
        yield ok("targets", f"{figures.targets.get(TargetStatus.ACTIVE, 0)} active")


def backups(settings: Settings, now: datetime) -> Iterator[CheckResult]:
    """Check when `backup` made the last backup, unless DATA_DIR/backups has one or ALERTS leaves backups to another tool."""
    if machine.newest_backup(settings) is not None or AlertKind.BACKUP not in settings.alert_kinds:
        return
    made_at, started_at = backup_files.last_recorded()
    if made_at is not None:
        yield machine.check_backup(settings, made_at, "The last backup was made at", now)
    elif started_at is not None and now - started_at > machine.BACKUP_WITHIN:
        yield warning("backups", "No backups: `bin/riskrelay backup` was never run.", machine.back_up(settings))
    else:
        yield ok("backups", "No backups yet; `bin/riskrelay backup FILE` creates one anywhere.")


def first_records(settings: Settings) -> CheckResult:
    """Check that there is an account, and that DEFAULT_PROJECT_ID names a project."""
    if accounts.first_id() is None:
        return failure("accounts", "The database has no account: it is new, or was deleted.", "bin/riskrelay init")
    project_id = settings.default_project_id
    if project_id is not None and not projects.exists(project_id):
        message = f"DEFAULT_PROJECT_ID names project {project_id}, which does not exist."
        return failure("accounts", message, "set it to an id that `bin/riskrelay project list` shows")
    return ok("accounts", "There is an account.")


def operator(settings: Settings) -> Iterator[CheckResult]:
    """Check that an account sees the pages of the installation in the console."""
    named = settings.operator_account_id
    if RouteFamily.CONSOLE not in settings.route_families:
        return
    fix = "set it to an id of: bin/riskrelay account list"
    if named is not None and accounts.find_account(named) is None:
        yield warning("operator", f"OPERATOR_ACCOUNT_ID names account {named}, which does not exist.", fix)
    elif named is None and settings.deployment_mode is DeploymentMode.CLOUD and accounts.are_several():
        message = (
            "OPERATOR_ACCOUNT_ID is not set: no account sees settings, audit, compliance and queue in the console, and "
            "WEBHOOK_SECRET signs for no target."
        )
        yield warning("operator", message, fix)


def limits(settings: Settings, now: datetime) -> Iterator[CheckResult]:
    """Check for accounts that have reached a limit, or nearly."""
    usage = account_limits(settings).usage([each.id for each in accounts.list_page()[::-1]], now)
    full = [
        (account_id, each) for account_id, used in usage.items() for each in used if each.used >= each.limit * NEARLY_FULL
    ]
    for account_id, each in full[:MAX_NAMED]:
        message = f"Account {account_id} uses {each.used} of {each.limit} ({each.limited}); beyond it, requests get 422."
        yield warning("limits", message, f"raise {each.limited}, or see: bin/riskrelay account list")
    if not full:
        yield ok("limits", "Every account is within its limits.")


def compliance(figures: MetricsSnapshot) -> CheckResult:
    """Check for compliance requests past their legal deadline."""
    if figures.compliance_overdue:
        message = f"{figures.compliance_overdue} requests are overdue."
        return failure("compliance", message, "bin/riskrelay compliance run, then: bin/riskrelay compliance list")
    return ok("compliance", "No request is overdue.")


def keys(settings: Settings) -> CheckResult:
    """Check that the keys decrypt every secret, and whether older keys are still needed."""
    vault, count = Vault(settings.encryption_keys), len(settings.encryption_keys)
    if not count:
        fix = "bin/riskrelay init" if key_check.canary() is None else "restore the .env or the keys of this database"
        return failure("keys", "ENCRYPTION_KEYS is not set.", fix)
    canary = key_check.canary()
    if canary is not None and not key_check.opens(canary, vault):
        message = "ENCRYPTION_KEYS cannot decrypt the secrets of this installation."
        return failure("keys", message, "restore the key that encrypted them, or the DATABASE_URL that belongs to this key")
    found = key_rotation.survey(vault)
    if found.unreadable:
        message = f"No key decrypts {len(found.unreadable)} values."
        fix = "list them with bin/riskrelay rotate-keys --dry-run; restore their key or set them again"
        return failure("keys", message, fix)
    if found.outdated or (canary is not None and not key_check.is_current(canary, vault)):
        return warning("keys", f"Some of the {count} keys are older and still needed.", "bin/riskrelay rotate-keys")
    return ok("keys", "one key" if count == 1 else f"{count} keys; only older backups need the older ones")


#: Integration -> its setting, its route family, and the effect of a missing secret.
_EFFECTS: Final = {
    "scanner": ("SCANNER_SHARED_SECRET", RouteFamily.SCANNER, "scanner postbacks get 401"),
    "email": ("EMAIL_WEBHOOK_SECRET", RouteFamily.EMAIL, "inbound email gets 401"),
    "storefront": ("STOREFRONT_WEBHOOK_SECRET", RouteFamily.HANDOFFS, "compliance webhooks get 503"),
}


def secrets(settings: Settings) -> Iterator[CheckResult]:
    """Check for missing, short and unusable secrets, with the effect of each."""
    yield from [*_secret_problems(settings)] or [ok("secrets", "All required secrets are set.")]


def _secret_problems(settings: Settings) -> Iterator[CheckResult]:
    for state in SharedSecrets(settings, Vault(settings.encryption_keys)).states():
        name, family, effect = _EFFECTS[state.name]
        if not state.configured and family in settings.route_families:
            yield warning("secrets", f"{name} is not set: {effect}.", f"set it, or: bin/riskrelay secret set {state.name}")
    if settings.webhook_secret is None:
        message = "WEBHOOK_SECRET is not set: targets without their own secret are inactive."
        yield warning("secrets", message, "set it, or set one per target: bin/riskrelay secret set target ID")
    # Only secrets of the environment: the length of the others is encrypted, and was checked when they were set.
    for name, secret in shared_secrets(settings).items():
        if len(secret.encode()) < RECOMMENDED_SECRET_BYTES:
            message = f"{name} is shorter than {RECOMMENDED_SECRET_BYTES} bytes."
            yield warning("secrets", message, f"set a longer one; {HOW_TO_GENERATE}")
        # A file may have a second line.
        if name in _SENT_IN_HEADERS and (secret != secret.strip(" \t\r\n") or "\n" in secret or "\r" in secret):
            message = (
                f"{name} has several lines, or white space at its beginning or end. No header can contain it, so every "
                "request gets 401."
            )
            yield warning("secrets", message, "write it as one line, without white space around it")


#: Errors of a Redis that runs, and what to do. Without a class of its own, the usual one is that it cannot write its file.
_REFUSALS: Final = {
    "NoPermissionError": "allow the user of REDIS_URL all commands on keys that begin with riskrelay: and rq:",
    "OutOfMemoryError": "raise its maxmemory",
    "ReadOnlyError": "name the primary in REDIS_URL, not a replica",
    "ResponseError": "free space on its disk, or correct the database number in REDIS_URL; its log says why",
}


def _no_redis(settings: Settings, why: str) -> CheckResult:
    if fix := _REFUSALS.get(why):
        level = Level.WARNING if settings.redis_embedded else Level.FAILURE
        return CheckResult("Redis", level, f"Redis refuses commands ({why}).", fix)
    if settings.redis_embedded:
        return warning("Redis", "The embedded Redis is not running.", "make run")
    message = f"Redis does not respond ({why}); deliveries start with the next sweep."
    return CheckResult("Redis", Level.FAILURE, message, "start it, or correct REDIS_URL")


def _span(seconds: float) -> str:
    """Format a duration: 40 s, 12 min, 3 h."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
