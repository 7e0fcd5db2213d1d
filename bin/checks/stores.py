"""Checks of `doctor` that ask the database and Redis: are they there and well, and what waits in them.

The checks of the open database are asked in one connection, one after the other; each is a few reads.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from bin.checks.results import Finding, Level, failure, ok, warning
from runtime.redis_client import connect
from schemas.settings.definitions import DeploymentMode, RouteFamily, Settings
from schemas.settings.parsers import ENOUGH_SECRET_BYTES, HOW_TO_MAKE_ONE
from schemas.targets.target import RESTORED, TargetStatus
from storage.accounts import accounts
from storage.db import schema_version
from storage.db.engine import is_sqlite
from storage.exports import worker_heartbeats
from storage.maintenance import key_rotation, store_health
from storage.maintenance import restore as restoring
from storage.maintenance.store_health import Wholeness
from storage.reporting.metrics_snapshot import PAUSED_BY_HAND, MetricsSnapshot
from storage.secrets import key_check
from storage.secrets.integrations import SharedSecrets
from storage.secrets.vault import Vault

#: A file of some gigabytes is looked through in this time; a larger one as far as it goes.
LOOK_FOR_S: Final = 5.0
#: SQLite empties its log at 4 MiB; one this long is held by a reader that does not end.
LONG_LOG_BYTES: Final = 256 * 1024**2
#: Signatures and leases bear some seconds; a receiver refuses what is five minutes off.
SKEW_S: Final = 2.0
WRONG_CLOCK_S: Final = 60.0
#: A wake-up is worth less than the sweep when it takes a tenth of the sweep's period.
SLOW_REDIS_S: Final = 0.1
#: Redis is asked as long as an operator waits without wondering.
REDIS_WITHIN_S: Final = 2.0
#: A worker sends within a second of the due time, a busy one within minutes.
LATE_S: Final = 300.0
MUCH_TOO_LATE_S: Final = 3600.0

_KEEPS_ALL: Final = "noeviction"
_MIB: Final = 1024**2


def fitness() -> Finding:
    """Is it our database, of this version, with every migration? Raises what the driver raises where it is away."""
    standing = schema_version.inspect()
    if standing.problem:
        said, _, fix = standing.problem.partition("; ")
        return failure("database", said, fix)
    if standing.pending:
        told = f"The database is not migrated; pending: {', '.join(standing.pending)}."
        return failure("database", told, "bin/riskrelay migrate")
    return ok("database", f"{'SQLite' if is_sqlite() else 'PostgreSQL'}, migrated")


def sqlite_file() -> Iterator[Finding]:
    """Is SQLite's file whole, and is its log emptied now and then?"""
    if not is_sqlite():
        return
    found, said = store_health.wholeness(LOOK_FOR_S)
    if found is Wholeness.DAMAGED:
        fix = "stop everything, keep a copy of the file, and restore a backup: bin/riskrelay restore FILE"
        yield failure("SQLite", f"The file is damaged: {said}.", fix)
    elif found is Wholeness.UNFINISHED:
        yield ok("SQLite", f"No damage found within {LOOK_FOR_S:g} s; PRAGMA integrity_check looks through all of it.")
    else:
        yield ok("SQLite", "The file is whole.")
    length = store_health.log_bytes()
    if length > LONG_LOG_BYTES:
        fix = "end what keeps the file open to read, or restart service and workers"
        yield warning("SQLite log", f"The write-ahead log has grown to {length // _MIB:,} MiB.", fix)


def restored() -> Iterator[Finding]:
    """Was a restore cut off?"""
    if restoring.is_unfinished():
        yield failure("restore", restoring.UNFINISHED, restoring.FINISH)


def redis(settings: Settings) -> Iterator[Finding]:
    """Does Redis answer, soon, with our time, and does it keep what it is given?"""
    with connect(settings.redis_url, REDIS_WITHIN_S) as client:
        state = store_health.redis_state(client)
    if isinstance(state, str):
        yield _no_redis(settings, state)
        return
    if state.policy != _KEEPS_ALL:
        fix = f"redis-cli CONFIG SET maxmemory-policy {_KEEPS_ALL}, and the same in redis.conf"
        yield warning("Redis", f"Redis drops keys when its memory is full (maxmemory-policy {state.policy}).", fix)
    elif state.latency_s > SLOW_REDIS_S:
        fix = "bring it nearer; deliveries still start with the next sweep"
        yield warning("Redis", f"Redis takes {state.latency_s * 1000:.0f} ms to answer.", fix)
    else:
        yield ok("Redis", f"Redis answers in {state.latency_s * 1000:.1f} ms.")
    yield judged_clock(state.skew_s, "Redis")


def database_clock() -> Iterator[Finding]:
    """Does PostgreSQL's clock show our time?"""
    skew_s = store_health.skew_s()
    if skew_s is not None:
        yield judged_clock(skew_s, "the database")


def judged_clock(skew_s: float, whose: str) -> Finding:
    """Say whether two clocks that differ by `skew_s` seconds are near enough."""
    told = f"This machine's clock and that of {whose} differ by {abs(skew_s):.1f} s."
    fix = "let an NTP client set the clocks of all hosts (timedatectl set-ntp true)"
    if abs(skew_s) > WRONG_CLOCK_S:
        return failure("clock", told, fix)
    return warning("clock", told, fix) if abs(skew_s) > SKEW_S else ok("clock", told)


def heartbeat(figures: MetricsSnapshot, now: datetime) -> Finding:
    """Is there a worker?"""
    if figures.workers:
        return ok("workers", f"{figures.workers} alive")
    seen_at = worker_heartbeats.last_seen()
    told = "no sign of one within the last minutes" if seen_at is None else f"the last was seen {_ago(seen_at, now)} ago"
    return warning("workers", f"No worker is alive: {told}.", "bin/riskrelay work, or make run")


def deliveries(figures: MetricsSnapshot) -> Finding:
    """How late is the oldest export that could have been sent?"""
    told = f"{figures.waiting:,} exports wait; the oldest due one is {_span(figures.due_age_s)} late."
    fix = "see that a worker runs (bin/riskrelay work) and what its log says; start more where they are busy"
    if figures.due_age_s > MUCH_TOO_LATE_S:
        return failure("deliveries", told, fix)
    if figures.due_age_s > LATE_S:
        return warning("deliveries", told, fix)
    return ok("deliveries", f"{figures.waiting:,} exports wait; none of them is late.")


def targets(figures: MetricsSnapshot) -> Iterator[Finding]:
    """Is there a target that nothing is sent to until somebody sees to it?"""
    restored, by_hand = figures.paused.get(RESTORED, 0), figures.paused.get(PAUSED_BY_HAND, 0)
    blocked, inactive = figures.targets.get(TargetStatus.BLOCKED, 0), figures.targets.get(TargetStatus.INACTIVE, 0)
    all_of_them = "bin/riskrelay target resume --all"
    if restored:
        yield warning("targets", f"{restored} wait since a backup was restored.", f"see docs/backup.md, then: {all_of_them}")
    if by_hand:
        yield warning("targets", f"{by_hand} paused by hand.", f"bin/riskrelay target resume ID, or: {all_of_them}")
    if blocked:
        fix = "bin/riskrelay target list tells why; mend it, or TARGET_ALLOWED_…, then: bin/riskrelay target resume ID"
        yield warning("targets", f"{blocked} blocked: the address may not be delivered to.", fix)
    if inactive:
        fix = "bin/riskrelay secret set target ID, or set WEBHOOK_SECRET"
        yield warning("targets", f"{inactive} inactive: no secret signs for them.", fix)
    if not (restored or by_hand or blocked or inactive):
        active, disabled = figures.targets.get(TargetStatus.ACTIVE, 0), figures.targets.get(TargetStatus.DISABLED, 0)
        yield ok("targets", f"{active} active, {disabled} disabled")


def operator(settings: Settings) -> Iterator[Finding]:
    """Is there somebody to whom the console shows the installation itself?"""
    named = settings.operator_account_id
    if RouteFamily.CONSOLE not in settings.route_families:
        return
    fix = "set it to an id of: bin/riskrelay account list"
    if named is not None and not accounts.exists(named):
        yield warning("operator", f"OPERATOR_ACCOUNT_ID names account {named}, which is not there.", fix)
    elif named is None and settings.deployment_mode is DeploymentMode.CLOUD and accounts.are_several():
        told = "OPERATOR_ACCOUNT_ID names no account: the console shows nobody settings, audit, compliance and queue."
        yield warning("operator", told, fix)


def compliance(figures: MetricsSnapshot) -> Finding:
    """Is a compliance request later than the law allows?"""
    if figures.compliance_overdue:
        told = f"{figures.compliance_overdue} requests are overdue."
        return failure("compliance", told, "bin/riskrelay compliance run, then: bin/riskrelay compliance list")
    return ok("compliance", "No request is overdue.")


def keys(settings: Settings) -> Finding:
    """Do the keys open what is sealed, and are older ones still needed?"""
    vault, count = Vault(settings.encryption_keys), len(settings.encryption_keys)
    if not count:
        return failure("keys", "ENCRYPTION_KEYS is not set.", "bin/riskrelay init, or put back the key of this database")
    canary = key_check.canary()
    if canary is not None and not key_check.opens(canary, vault):
        told = "ENCRYPTION_KEYS does not open what this installation has sealed."
        return failure("keys", told, "put back the key that sealed it, or the DATABASE_URL that belongs to this key")
    found = key_rotation.survey(vault)
    if found.unreadable:
        told = f"{len(found.unreadable)} sealed values open with no key."
        return failure("keys", told, "bin/riskrelay rotate-keys --dry-run names them; put back their key or set them anew")
    if found.outdated or (canary is not None and not key_check.is_current(canary, vault)):
        return warning("keys", f"Older keys of {count} are still needed.", "bin/riskrelay rotate-keys")
    told = "one key" if count == 1 else f"{count} keys; the older ones are needed for nothing but older backups"
    return ok("keys", told)


#: What does not work without a secret: its setting, the family of routes, the effect.
_EFFECTS: Final = {
    "scanner": ("SCANNER_SHARED_SECRET", RouteFamily.SCANNER, "scanner postbacks are refused (401)"),
    "email": ("EMAIL_WEBHOOK_SECRET", RouteFamily.EMAIL, "inbound email is refused (401)"),
    "storefront": ("STOREFRONT_WEBHOOK_SECRET", RouteFamily.HANDOFFS, "compliance webhooks are refused (503)"),
}


def secrets(settings: Settings) -> Iterator[Finding]:
    """Is a secret missing or short, and what does not work without it?"""
    missing = [
        warning("secrets", f"{name} is not set: {effect}.", f"set it, or: bin/riskrelay secret set {state.name}")
        for state in SharedSecrets(settings, Vault(settings.encryption_keys)).states()
        for name, family, effect in (_EFFECTS[state.name],)
        if not state.configured and family in settings.route_families
    ]
    if settings.webhook_secret is None:
        told = "WEBHOOK_SECRET is not set: targets without a secret of their own are inactive."
        missing.append(warning("secrets", told, "set it, or give each one its own: bin/riskrelay secret set target ID"))
    told_of = [*missing, *_short_secrets(settings)]
    yield from told_of or [ok("secrets", "Every secret that is needed is set.")]


def _short_secrets(settings: Settings) -> list[Finding]:
    """Tell which of the environment's secrets are short; how long others are is sealed with them."""
    given = {
        "SCANNER_SHARED_SECRET": settings.scanner_shared_secret,
        "EMAIL_WEBHOOK_SECRET": settings.email_webhook_secret,
        "STOREFRONT_WEBHOOK_SECRET": settings.storefront_webhook_secret,
        "WEBHOOK_SECRET": settings.webhook_secret,
    }
    return [
        warning("secrets", f"{name} has less than {ENOUGH_SECRET_BYTES} bytes.", f"set another one; {HOW_TO_MAKE_ONE}")
        for name, secret in given.items()
        if secret is not None and len(secret.encode()) < ENOUGH_SECRET_BYTES
    ]


def _no_redis(settings: Settings, why: str) -> Finding:
    if settings.redis_embedded:
        return warning("Redis", "The embedded Redis is not running; it is a part of `make run`.", "make run")
    told = f"Redis does not answer ({why}); deliveries start with the next sweep."
    return Finding("Redis", Level.FAILURE, told, "start it, or correct REDIS_URL")


def _ago(moment: datetime, now: datetime) -> str:
    return _span((now - moment).total_seconds())


def _span(seconds: float) -> str:
    """Return a span as a person says it: 40 s, 12 min, 3 h."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
