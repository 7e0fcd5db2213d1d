"""`riskrelay doctor`: it reports success for a healthy installation, and each check reports its problem when it exists."""

import base64
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from freezegun import freeze_time

from bin.__main__ import riskrelay
from bin.checks import machine, stores
from bin.checks.results import Level
from bin.cli import extras
from runtime.clock import utc_now
from schemas.compliance.requests import Topic
from schemas.targets.target import RESTORED, TargetStatus
from storage.db.engine import close_database, connection, execute, open_database
from storage.exports import worker_heartbeats
from storage.maintenance import backup
from storage.secrets.encrypted_columns import SUBJECT
from storage.secrets.key_check import check_keys
from storage.secrets.vault import Vault, installation_ids
from storage.targets import targets
from tests.support.factories import NOW, environment, make_approved, make_customer, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.storefront import ADA, receive
from tests.support.servers.authorities import CertificateAuthority
from tests.support.servers.redis_and_postgres import REDIS_FAILURES, RedisServer

OLD, NEW = b"A" * 32, b"B" * 32
OTHER_KEY: Final = "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="
_MIB: Final = 1024**2


def respond(peer: Peer, body: bytes) -> None:
    while peer.read():
        peer.answer(200, body)


def healthy(peer: Peer) -> None:
    respond(peer, b'{"status": "ok"}')


class Instance:
    """A healthy installation: a database, a Redis, a service that responds, a worker with a heartbeat, every secret."""

    def __init__(self, folder: Path, url: str, redis: RedisServer, service: LoopbackServer) -> None:
        self.folder = folder
        self.reader: sqlite3.Connection | None = None
        self.stack = ExitStack()
        self.url = url
        self.redis = redis
        self.env_file = folder / ".env"
        self.env_file.write_text("# ours\n")
        self.env_file.chmod(0o600)
        self.data_dir = folder / "data"
        self.data_dir.mkdir(mode=0o700)
        secrets = {"EMAIL_WEBHOOK_SECRET": "e" * 16, "STOREFRONT_WEBHOOK_SECRET": "s" * 16}
        address = service.url().rstrip("/")
        changes = {"DATABASE_URL": url, "REDIS_URL": redis.url, "PUBLIC_BASE_URL": address, **secrets}
        self.environment: dict[str, str | None] = dict(environment(self.data_dir, **changes))
        with self.database():
            check_keys(Vault([OLD]), NOW)
            make_customer()
            worker_heartbeats.beat("worker:here:1:0", utc_now() + timedelta(seconds=5))
            backup.record(utc_now())

    def asked(self, *words: str) -> Result:
        return CliRunner().invoke(riskrelay, ["doctor", *words], env=self.environment)

    def reported(self, exit_code: int = 0) -> dict[str, Any]:
        result = self.asked("--json")
        assert result.exit_code == exit_code, result.output
        reported: dict[str, Any] = json.loads(result.stdout)
        return reported

    @contextmanager
    def database(self) -> Iterator[None]:
        """Open the installation's database during the block."""
        open_database(self.url)
        try:
            with connection():
                yield
        finally:
            close_database()

    @property
    def file(self) -> Path:
        """The file of the SQLite database."""
        return Path(self.url.removeprefix("sqlite:///"))


@pytest.fixture
def service() -> Iterator[LoopbackServer]:
    with LoopbackServer(healthy) as answering:
        yield answering


@pytest.fixture
def instance(
    tmp_path: Path, sqlite_url: str, redis: RedisServer, service: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Instance]:
    monkeypatch.chdir(tmp_path)
    made = Instance(tmp_path, sqlite_url, redis, service)
    yield made
    close_database()
    made.stack.close()
    if made.reader is not None:
        made.reader.close()


def test_every_check_of_a_healthy_installation_is_ok(
    tmp_path: Path, database_url: str, redis: RedisServer, service: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    well = Instance(tmp_path, database_url, redis, service)
    reported = well.reported()
    assert [check for check in reported["checks"] if check["status"] != "ok" or check["fix"] is not None] == []
    assert reported["status"] == "ok"
    names = {check["name"] for check in reported["checks"]}
    named = "python, env file, settings, data, disk, bind, base URL, Redis, clock, backups, database, keys, secrets, workers"
    assert names - {"SQLite"} == {*named.split(", "), "deliveries", "targets", "limits", "compliance", "accounts", "egress"}
    shown = well.asked()
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "No problems found.")
    assert len(shown.stdout.splitlines()) == len(reported["checks"]) + 1


# ---- problems of the machine, its files and settings


def env_file_is_open_to_all(instance: Instance) -> None:
    instance.env_file.chmod(0o644)


def env_file_is_missing(instance: Instance) -> None:
    instance.env_file.unlink()


def env_file_is_open_to_its_group(instance: Instance) -> None:
    instance.env_file.chmod(0o640)


def a_setting_is_misspelled(instance: Instance) -> None:
    instance.env_file.write_text("WORKER_PROCESES=2\n")


def the_source_address_is_elsewhere(instance: Instance) -> None:
    instance.environment["EGRESS_BIND"] = "192.0.2.77"


def the_proxy_is_gone(instance: Instance) -> None:
    with LoopbackServer(healthy) as gone:
        instance.environment["EGRESS_PROXY_URL"] = f"http://relay:s3cret@127.0.0.1:{gone.port}"


def the_client_certificate_has_days(instance: Instance, days: int = 3) -> None:
    pair = CertificateAuthority("Company").pair("client.example.com", timedelta(days=days))
    at = pair.index("-----BEGIN PRIVATE")
    instance.environment |= {"TARGET_CLIENT_CERT": pair[:at], "TARGET_CLIENT_KEY": pair[at:]}


def the_client_certificate_has_expired(instance: Instance) -> None:
    the_client_certificate_has_days(instance, -3)


def database_has_no_account(instance: Instance) -> None:
    with instance.database():
        for table in ("tokens", "grants", "projects", "users", "accounts"):
            execute(f"DELETE FROM {table}")  # noqa: S608 - our own names


def default_project_is_gone(instance: Instance) -> None:
    instance.environment["DEFAULT_PROJECT_ID"] = "4711"


def data_dir_is_a_file(instance: Instance) -> None:
    instance.data_dir.rmdir()
    instance.data_dir.write_text("")


def data_dir_is_open(instance: Instance) -> None:
    instance.data_dir.chmod(0o755)


def data_dir_is_missing(instance: Instance) -> None:
    instance.data_dir.rmdir()


def bind_is_open(instance: Instance) -> None:
    instance.environment["BIND"] = "0.0.0.0:8000"


def base_url_is_not_safe(instance: Instance) -> None:
    instance.environment["PUBLIC_BASE_URL"] = str(instance.environment["PUBLIC_BASE_URL"]).replace("127.0.0.1", "0.0.0.0")  # noqa: S104 - requested, not bound


def service_is_down(instance: Instance) -> None:
    with LoopbackServer(healthy) as gone:
        instance.environment["PUBLIC_BASE_URL"] = gone.url().rstrip("/")


def backup_is_old(instance: Instance) -> None:
    made = instance.data_dir / "backups" / "riskrelay.backup"
    made.parent.mkdir()
    made.write_text("")
    at = (utc_now() - timedelta(days=3)).timestamp()
    os.utime(made, (at, at))


def backup_is_old_and_redactions_are_new(instance: Instance) -> None:
    backup_is_old(instance)
    (instance.data_dir / "backups" / "riskrelay.redactions").write_text("")


def no_backup_was_made(instance: Instance) -> None:
    with instance.database():
        execute("UPDATE installation SET backup_at = NULL")


def backup_elsewhere_is_old(instance: Instance) -> None:
    with instance.database():
        backup.record(utc_now() - timedelta(days=3))


def backup_folder_is_empty(instance: Instance) -> None:
    no_backup_was_made(instance)
    (instance.data_dir / "backups").mkdir()


def backup_folder_has_redactions_only(instance: Instance) -> None:
    backup_folder_is_empty(instance)
    (instance.data_dir / "backups" / "riskrelay.redactions").write_text("")


# ---- problems of the database and of Redis


def redis_is_stopped(instance: Instance) -> None:
    instance.redis.stop()


def redis_cannot_write(instance: Instance) -> None:
    def refuse(peer: Peer) -> None:
        while commands := peer.connection.recv(65536).count(b"*"):
            peer.send(b"-MISCONF Errors writing to the AOF file: No space left on device\r\n" * commands)

    instance.stack.enter_context(full := LoopbackServer(refuse))
    instance.environment["REDIS_URL"] = f"redis://127.0.0.1:{full.port}/0"


def redis_is(failure: str) -> Callable[[Instance], None]:
    fail, repair = REDIS_FAILURES[failure]

    def prepare(instance: Instance) -> None:
        fail(instance.redis)
        instance.stack.callback(repair, instance.redis)

    return prepare


def embedded_redis_is_stopped(instance: Instance) -> None:
    instance.environment["REDIS_URL"] = None


def database_is_unavailable(instance: Instance) -> None:
    instance.environment["DATABASE_URL"] = "postgresql://nobody:secret-password@127.0.0.1:1/none"


def database_is_not_migrated(instance: Instance) -> None:
    instance.environment["DATABASE_URL"] = f"sqlite:///{instance.folder}/new.db"


def folder_is_missing(instance: Instance) -> None:
    instance.environment["DATABASE_URL"] = f"sqlite:///{instance.folder}/none/riskrelay.db"


def database_is_newer(instance: Instance) -> None:
    with closing(sqlite3.connect(instance.file)) as ours, ours:
        ours.execute("INSERT INTO schema_migrations (name, applied) VALUES ('9999_the_future', 1)")


def database_is_foreign(instance: Instance) -> None:
    with closing(sqlite3.connect(instance.folder / "other.db")) as other, other:
        other.execute("CREATE TABLE songs (title TEXT)")
    instance.environment["DATABASE_URL"] = f"sqlite:///{instance.folder}/other.db"


def database_is_no_database(instance: Instance) -> None:
    (instance.folder / "letter.db").write_text("Dear Ada, " * 100)
    instance.environment["DATABASE_URL"] = f"sqlite:///{instance.folder}/letter.db"


def file_is_damaged(instance: Instance) -> None:
    with closing(sqlite3.connect(instance.file)) as ours:
        filling = [(1, "x" * 400)] * 500
        ours.executemany("INSERT INTO audit_entries (at, actor, action, subject_id) VALUES (?, 'a', 'b', ?)", filling)
        ours.commit()
        ours.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(page_bytes,)] = ours.execute("PRAGMA page_size")
    length = instance.file.stat().st_size
    with instance.file.open("r+b") as file:
        file.seek(length - 20 * page_bytes)
        file.write(b"\xff" * 10 * page_bytes)


def log_is_long(instance: Instance) -> None:
    # Closing the last connection would delete the write-ahead log; an open reader keeps it.
    instance.reader = sqlite3.connect(instance.file)
    instance.reader.execute("SELECT COUNT(*) FROM workers").fetchall()
    os.truncate(f"{instance.file}-wal", 300 * _MIB)


def no_worker_is_alive(instance: Instance) -> None:
    with instance.database():
        execute("DELETE FROM workers")


def a_worker_died_an_hour_ago(instance: Instance) -> None:
    with instance.database():
        execute("UPDATE workers SET seen_at = seen_at - 3600000")


def an_export_is(late: timedelta) -> Callable[[Instance], None]:
    def make_late(instance: Instance) -> None:
        with instance.database():
            customer = make_customer()
            make_approved(customer, make_target(customer).id, utc_now() - late)

    return make_late


def a_target_is(status: TargetStatus, reason: str | None) -> Callable[[Instance], None]:
    def turn(instance: Instance) -> None:
        with instance.database():
            target_id = make_target(make_customer()).id
            execute("UPDATE targets SET status = ?, status_reason = ? WHERE id = ?", (status.value, reason, target_id))

    return turn


def a_target_is_failing(instance: Instance) -> None:
    with instance.database():
        execute("UPDATE targets SET connected_status = 'failing' WHERE id = ?", (make_target(make_customer()).id,))


def a_target_is_inactive_in_the_cloud(instance: Instance) -> None:
    a_target_is(TargetStatus.INACTIVE, "no_secret")(instance)
    instance.environment["DEPLOYMENT_MODE"] = "cloud"


def a_request_is_overdue(instance: Instance) -> None:
    with instance.database():
        receive(Topic.CUSTOMER_REDACT, Vault([OLD]), ADA)
        execute("UPDATE compliance_requests SET due_at = 0")


# ---- problems of keys and secrets


def no_key_is_set(instance: Instance) -> None:
    instance.environment["ENCRYPTION_KEYS"] = None


def key_is_foreign(instance: Instance) -> None:
    instance.environment["ENCRYPTION_KEYS"] = OTHER_KEY


def older_key_is_needed(instance: Instance) -> None:
    instance.environment["ENCRYPTION_KEYS"] = f"{OTHER_KEY},{instance.environment['ENCRYPTION_KEYS']}"


def a_secret_is_short(instance: Instance) -> None:
    instance.environment["WEBHOOK_SECRET"] = "fifteen letters"


def a_secret_is(name: str, value: str) -> Callable[[Instance], None]:
    def give(instance: Instance) -> None:
        instance.environment[name] = value

    return give


def a_secret_opens_with_no_key(instance: Instance) -> None:
    with instance.database():
        targets.set_secret(make_target(make_customer()).id, "s", Vault([NEW]), NOW)


def unset(name: str) -> Callable[[Instance], None]:
    def forget(instance: Instance) -> None:
        instance.environment[name] = None

    return forget


def targets_are_limited_to(limit: str) -> Callable[[Instance], None]:
    def use(instance: Instance) -> None:
        with instance.database():
            make_target(make_customer())
        instance.environment["MAX_TARGETS_PER_ACCOUNT"] = limit

    return use


def operators_account_is(named: str) -> Callable[[Instance], None]:
    def name(instance: Instance) -> None:
        with instance.database():
            make_customer()
        instance.environment.update(DEPLOYMENT_MODE="cloud", OPERATOR_ACCOUNT_ID=named)

    return name


# the function that causes the problem; the check that reports it, its level, a part of its message, a part of its fix
PROBLEMS: Final[list[tuple[Callable[[Instance], None], str, str, str, str]]] = [
    (env_file_is_open_to_all, "env file", "failure", "0644", "chmod 600"),
    (env_file_is_missing, "env file", "warning", "RISKRELAY_ENV_FILE names", "bin/riskrelay init"),
    (env_file_is_open_to_its_group, "env file", "warning", "0640", "chmod 600"),
    (the_source_address_is_elsewhere, "egress", "warning", "does not have the address 192.0.2.77", "correct EGRESS_BIND"),
    (the_proxy_is_gone, "egress", "warning", "No connection to the proxy of EGRESS_PROXY_URL, host 127.0.0.1", "start"),
    (the_client_certificate_has_days, "egress", "warning", "TARGET_CLIENT_CERT expires on", "renew it"),
    (the_client_certificate_has_expired, "egress", "failure", "TARGET_CLIENT_CERT expired on", "renew it"),
    (database_has_no_account, "accounts", "failure", "The database has no account", "bin/riskrelay init"),
    (default_project_is_gone, "accounts", "failure", "DEFAULT_PROJECT_ID names project 4711", "project list"),
    (a_setting_is_misspelled, "settings", "warning", "WORKER_PROCESES", "WORKER_PROCESSES?"),
    (data_dir_is_a_file, "data", "failure", "is not writable", "another DATA_DIR"),
    (data_dir_is_open, "data", "warning", "accessible to every user (mode 0755)", "chmod 700"),
    (data_dir_is_missing, "data", "warning", "does not exist yet", "make run"),
    (bind_is_open, "bind", "warning", "not https", "BIND=127.0.0.1:8000"),
    (base_url_is_not_safe, "base URL", "warning", "unencrypted", "https"),
    (service_is_down, "base URL", "warning", "refused", "bin/riskrelay serve); if it runs, set BIND or"),
    (backup_is_old, "backups", "warning", "The newest", "/backups/'; "),
    (backup_is_old_and_redactions_are_new, "backups", "warning", "The newest", "/backups/'; "),
    (no_backup_was_made, "backups", "warning", "was never run", "bin/riskrelay backup '/"),
    (backup_elsewhere_is_old, "backups", "warning", "The last backup", "bin/riskrelay backup '/"),
    (backup_folder_is_empty, "backups", "warning", "No backups", "bin/riskrelay backup '/"),
    (backup_folder_has_redactions_only, "backups", "warning", "No backups", "bin/riskrelay backup '/"),
    (redis_is_stopped, "Redis", "failure", "does not respond", "REDIS_URL"),
    (redis_cannot_write, "Redis", "failure", "refuses commands", "free space"),
    (redis_is("full"), "Redis", "failure", "refuses commands (OutOfMemoryError)", "maxmemory"),
    (redis_is("read-only"), "Redis", "failure", "refuses commands (ReadOnlyError)", "the primary"),
    (embedded_redis_is_stopped, "Redis", "warning", "not running", "make run"),
    (database_is_unavailable, "database", "failure", "refused", "DATABASE_URL"),
    (database_is_not_migrated, "database", "failure", "0001_initial_tables", "bin/riskrelay migrate"),
    (folder_is_missing, "database", "failure", "/none of DATABASE_URL does not exist", "create it"),
    (database_is_newer, "database", "failure", "9999_the_future", "install that version"),
    (database_is_foreign, "database", "failure", "songs", "DATABASE_URL"),
    (database_is_no_database, "database", "failure", "not a database", "restore a backup"),
    (file_is_damaged, "SQLite", "failure", "damaged", "bin/riskrelay restore"),
    (log_is_long, "SQLite log", "warning", "300 MiB", "restart"),
    (no_worker_is_alive, "workers", "warning", "No worker is running", "bin/riskrelay work"),
    (a_worker_died_an_hour_ago, "workers", "warning", "60 min ago", "bin/riskrelay work"),
    (
        an_export_is(timedelta(minutes=20)),
        "deliveries",
        "warning",
        "1 export is waiting; the oldest due one is 20 min late",
        "bin/riskrelay work",
    ),
    (an_export_is(timedelta(hours=5)), "deliveries", "failure", "5 h late", "bin/riskrelay work"),
    (a_target_is(TargetStatus.PAUSED, "operator"), "targets", "warning", "1 paused manually", "target resume"),
    (a_target_is(TargetStatus.PAUSED, RESTORED), "targets", "warning", "restored", "target resume ID, or --all"),
    (a_target_is(TargetStatus.BLOCKED, "tracker_token_rejected"), "targets", "warning", "1 blocked", "status_reason"),
    (a_target_is(TargetStatus.DISABLED, "failing_for_days"), "targets", "warning", "1 disabled", "target resume ID"),
    (a_target_is(TargetStatus.INACTIVE, "no_secret"), "targets", "warning", "1 inactive", "secret set target"),
    (a_target_is_failing, "targets", "warning", "1 failing", "target ping ID"),
    (a_target_is_inactive_in_the_cloud, "targets", "warning", "1 inactive", "or set OPERATOR_ACCOUNT_ID"),
    (a_request_is_overdue, "compliance", "failure", "1 requests are overdue", "compliance run"),
    (no_key_is_set, "keys", "failure", "not set", "restore the .env"),
    (key_is_foreign, "keys", "failure", "cannot decrypt", "restore the key"),
    (older_key_is_needed, "keys", "warning", "still needed", "bin/riskrelay rotate-keys"),
    (a_secret_opens_with_no_key, "keys", "failure", "No key decrypts 1 values", "rotate-keys --dry-run"),
    (unset("SCANNER_SHARED_SECRET"), "secrets", "warning", "SCANNER_SHARED_SECRET", "secret set scanner"),
    (unset("EMAIL_WEBHOOK_SECRET"), "secrets", "warning", "EMAIL_WEBHOOK_SECRET", "secret set email"),
    (unset("WEBHOOK_SECRET"), "secrets", "warning", "targets without their own secret", "secret set target"),
    (operators_account_is("999"), "operator", "warning", "names account 999, which does not exist", "account list"),
    (operators_account_is(""), "operator", "warning", "WEBHOOK_SECRET signs for no target", "account list"),
    (targets_are_limited_to("1"), "limits", "warning", "uses 1 of 1 (MAX_TARGETS_PER_ACCOUNT)", "raise MAX_TARGETS"),
    (
        a_secret_is("SCANNER_SHARED_SECRET", "the first line\nthe second"),
        "secrets",
        "warning",
        "several lines",
        "as one line",
    ),
    (
        a_secret_is("EMAIL_WEBHOOK_SECRET", "a secret and a space "),
        "secrets",
        "warning",
        "every request gets 401",
        "one line",
    ),
    (a_secret_is_short, "secrets", "warning", "WEBHOOK_SECRET is shorter than 16 bytes", "openssl rand"),
]


@pytest.mark.parametrize(
    ("mode", "accounts", "named"),
    [
        # The first account is the operator's.
        ("self-hosted", 2, ""),
        # There is no other account yet.
        ("cloud", 1, ""),
        ("cloud", 2, "2"),
        # This mode does not use the setting.
        ("webhook-only", 2, "999"),
    ],
)
def test_no_operator_account_is_required_where_none_is_used_or_one_exists(
    mode: str, accounts: int, named: str, instance: Instance
) -> None:
    with instance.database():
        for _ in range(accounts - 1):
            make_customer()
    instance.environment.update(DEPLOYMENT_MODE=mode, OPERATOR_ACCOUNT_ID=named)
    assert "operator" not in {check["name"] for check in instance.reported()["checks"]}


@pytest.mark.parametrize(
    ("cause", "name", "level", "message", "fix"), PROBLEMS, ids=[f"{number}-{row[1]}" for number, row in enumerate(PROBLEMS)]
)
def test_a_problem_is_reported_with_its_fix(
    instance: Instance, cause: Callable[[Instance], None], name: str, level: str, message: str, fix: str
) -> None:
    cause(instance)
    reported = instance.reported(exit_code=1 if level == "failure" else 0)
    assert reported["status"] == level
    [found] = [check for check in reported["checks"] if check["name"] == name and check["status"] == level]
    assert message in found["message"]
    assert fix in found["fix"]
    assert "secret-password" not in json.dumps(reported)
    lines = instance.asked().stdout.splitlines()
    assert any(line.startswith(f"{level:8} {name:11} ") and f"Fix: {found['fix']}" in line for line in lines)
    assert re.fullmatch(r"\d failures?, \d warnings?\.", lines[-1])


def test_the_fix_for_restored_targets_does_not_resume_manually_paused_ones(instance: Instance) -> None:
    a_target_is(TargetStatus.PAUSED, RESTORED)(instance)
    a_target_is(TargetStatus.PAUSED, "operator")(instance)
    fixes = [check["fix"] for check in instance.reported()["checks"] if check["fix"]]
    assert ["for each: --all would resume those paused manually" in fix for fix in fixes] == [True, False]
    assert all("target resume ID" in fix for fix in fixes)


def test_all_invalid_settings_are_reported_and_checks_that_need_settings_are_skipped(instance: Instance) -> None:
    instance.environment |= {"BIND": "nowhere", "WORKER_PROCESSES": "0"}
    reported = instance.reported(exit_code=2)
    assert [check["message"].partition(":")[0] for check in reported["checks"] if check["status"] == "failure"] == [
        "BIND",
        "WORKER_PROCESSES",
    ]
    assert {check["name"] for check in reported["checks"]} == {"python", "env file", "settings"}
    assert "nowhere" not in json.dumps(reported)


def test_a_missing_package_that_a_setting_needs_is_reported(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    instance.environment["SENTRY_DSN"] = "https://key@sentry.example/42"
    monkeypatch.setattr(extras, "_is_installed", lambda _module: False)
    [found] = [check for check in instance.reported(exit_code=2)["checks"] if check["name"] == "settings"]
    assert (found["status"], "make setup EXTRAS=1" in found["message"]) == ("failure", True)


def test_the_fix_for_an_unreadable_env_file_is_to_run_as_its_owner(instance: Instance) -> None:
    Path(".env").write_bytes(b"BIND=\xff\n")
    [found] = [check for check in instance.reported(exit_code=2)["checks"] if check["name"] == "settings"]
    assert "Cannot be read" in found["message"]
    assert found["fix"].startswith("run this as the owner of the file")


def test_a_missing_secret_is_reported_only_if_a_route_needs_it(instance: Instance) -> None:
    instance.environment |= {"STOREFRONT_WEBHOOK_SECRET": None}
    assert instance.reported()["status"] == "ok"
    instance.environment |= {"DEPLOYMENT_MODE": "cloud"}
    assert [check["message"][:25] for check in instance.reported()["checks"] if check["fix"]] == [
        "STOREFRONT_WEBHOOK_SECRET"
    ]


def test_a_redis_user_without_the_right_to_read_settings_is_sufficient(instance: Instance) -> None:
    """Managed servers have such users."""
    instance.redis.execute("ACL", "SETUSER", "limited", "on", ">a-password", "~*", "+@all", "-@dangerous", "-@admin")
    instance.stack.callback(instance.redis.execute, "ACL", "DELUSER", "limited")
    instance.environment["REDIS_URL"] = instance.redis.url.replace("unix://", "unix://limited:a-password@")
    assert [check for check in instance.reported()["checks"] if check["fix"]] == []


def test_a_redis_that_evicts_keys_is_reported(instance: Instance) -> None:
    instance.redis.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        [found] = [check for check in instance.reported()["checks"] if check["fix"]]
    finally:
        instance.redis.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert (found["name"], found["status"]) == ("Redis", "warning")
    assert "allkeys-lru" in found["message"]
    assert "noeviction" in found["fix"]


# the deviation of a clock, and the level of the check
SKEWS = [(10.0, "warning"), (-10.0, "warning"), (90.0, "failure")]


@pytest.mark.parametrize(("skew_s", "level"), SKEWS)
def test_clock_skew_is_reported_by_its_size(
    tmp_path: Path,
    postgres_url: str,
    redis: RedisServer,
    service: LoopbackServer,
    monkeypatch: pytest.MonkeyPatch,
    skew_s: float,
    level: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    instance = Instance(tmp_path, postgres_url, redis, service)
    with freeze_time(utc_now() + timedelta(seconds=skew_s), tick=True):
        reported = instance.reported(exit_code=1 if level == "failure" else 0)
    clocks = [check for check in reported["checks"] if check["name"] == "clock"]
    assert [check["status"] for check in clocks] == [level, level]
    assert ["of Redis" in clocks[0]["message"], "of the database" in clocks[1]["message"]] == [True, True]


# by deviation of a clock in seconds, and by free bytes
def test_levels_of_clock_disk_and_python_checks_change_at_their_limits() -> None:
    clock = [stores.check_clock(skew_s, "Redis").level for skew_s in (0.0, -1.9, 2.1, -59.0, 61.0)]
    assert clock == [Level.OK, Level.OK, Level.WARNING, Level.WARNING, Level.FAILURE]
    disk = [machine.check_free_space(Path("/data"), mib * _MIB).level for mib in (2048, 1024, 1023, 100, 99)]
    assert disk == [Level.OK, Level.OK, Level.WARNING, Level.WARNING, Level.FAILURE]
    versions = [machine.python(version, "x").level for version in ((3, 10, 14), (3, 11, 0), (3, 14, 2))]
    assert versions == [Level.FAILURE, Level.OK, Level.OK]


def test_an_env_file_writable_by_others_is_reported_with_the_chmod_command(instance: Instance) -> None:
    instance.env_file.chmod(0o666)
    reported = instance.reported(exit_code=2)
    found = {check["name"]: check for check in reported["checks"] if check["status"] == "failure"}
    assert {*found} == {"env file", "settings"}
    assert "has mode 0666" in found["env file"]["message"]
    assert found["env file"]["fix"] == f"check its lines, then run: chmod go-w {instance.env_file}"


def silent(peer: Peer) -> None:
    peer.read()
    peer.wait()


def dripping(peer: Peer) -> None:
    peer.read()
    peer.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    peer.drip(b"x" * 1000)


def another(peer: Peer) -> None:
    peer.read()
    peer.answer(200, b"<html>It works!</html>")


def no_http(peer: Peer) -> None:
    peer.read()
    peer.send(b"SSH-2.0-OpenSSH_9.2\r\n")


def deep(peer: Peer) -> None:
    peer.read()
    peer.answer(200, b"[" * 1024)


def missing(peer: Peer) -> None:
    peer.read()
    peer.answer(404, b"{}")


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (silent, "0.3 s"),
        (dripping, "0.3 s"),
        (another, "not RiskRelay"),
        (deep, "not RiskRelay"),
        (no_http, "not RiskRelay"),
        (missing, "404"),
    ],
    ids=["silent", "dripping", "another", "deep", "no HTTP", "missing"],
)
def test_a_health_check_response_of_another_server_is_reported(behave: Callable[[Peer], None], why: str) -> None:
    with LoopbackServer(behave) as server:
        assert why in str(machine.health_problem(f"{server.url()}healthz", 0.3))


def test_another_installation_at_the_same_address_is_recognized(instance: Instance) -> None:
    instance.environment["ENCRYPTION_KEYS"] = ",".join(base64.b64encode(key).decode() for key in (NEW, OLD))
    newer, older = installation_ids([NEW, OLD], str(instance.url))
    [elsewhere] = installation_ids([OLD], "sqlite:////srv/elsewhere/riskrelay.db")
    # It is also recognized before the restart with a new key, and for a version or a service that does not publish an id.
    published: dict[str | None, int] = {newer: 0, older: 0, None: 0, "0" * 16: 1, elsewhere: 1}
    for installation, exit_code in published.items():
        body = json.dumps({"status": "ok", "installation": installation}).encode()
        with LoopbackServer(partial(respond, body=body)) as server:
            instance.environment["PUBLIC_BASE_URL"] = server.url().rstrip("/")
            found = instance.reported(exit_code)
        [check] = [each for each in found["checks"] if each["name"] == "base URL"]
        assert ("Another installation of RiskRelay responds" in check["message"]) is bool(exit_code)


def test_proxy_settings_of_the_environment_are_ignored(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert instance.reported()["status"] == "ok"


def test_a_check_that_raises_does_not_stop_the_other_checks(instance: Instance) -> None:
    with instance.database():
        request_id = receive(Topic.CUSTOMER_REDACT, Vault([OLD]), ADA)
        nobody = Vault([OLD]).seal("not a subject", SUBJECT.context(request_id))
        execute("UPDATE compliance_requests SET subject_sealed = ?", (nobody,))
    reported = instance.reported(exit_code=1)
    [found] = [check for check in reported["checks"] if check["status"] == "failure"]
    assert (found["name"], found["message"].startswith("The check failed")) == ("keys", True)
    assert reported["checks"][-1]["name"] == "compliance"
