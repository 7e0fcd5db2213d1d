"""`riskrelay target`, as an operator runs it: validations, pings, rate limits and resumptions, mostly without a worker."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.targets.error_help import help_for
from schemas.targets.target import MAX_PER_MINUTE
from storage.db.engine import close_database, execute, rows
from storage.exports import worker_heartbeats
from storage.targets import pings, targets, validations
from tests.support.database.databases import on_sqlite
from tests.support.factories import LOOPBACK, NOW, make_approved, make_customer, make_target
from tests.support.fakes import LoopbackServer, Peer
from tests.support.processes.shell import Shell
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.redis_and_postgres import RedisServer

# The output of commands does not depend on the database.
pytestmark = on_sqlite


class TargetShell(Shell):
    """Runs `target` commands in its own installation, which allows loopback targets."""

    verb = ("target",)

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        super().__init__(folder, url, **{"DELIVERY_TIMEOUT_S": "1.5", **LOOPBACK, **settings})

    def stored(self) -> list[tuple[Any, ...]]:
        """Return every row of the targets and of the audit log."""
        with self.database():
            return [*rows("SELECT * FROM targets ORDER BY id"), *rows("SELECT * FROM audit_entries ORDER BY id")]

    def make_targets(self, *urls: str) -> list[str]:
        """Store targets of one account, the oldest first; return their ids."""
        with self.database():
            customer = make_customer()
            return [make_target(customer, url).id for url in urls]


@pytest.fixture
def shell(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TargetShell]:
    monkeypatch.chdir(tmp_path)
    yield TargetShell(tmp_path, database_url)
    close_database()


def answering(status: int) -> Callable[[Peer], None]:
    def behave(peer: Peer) -> None:
        while peer.read():
            peer.answer(status, b"{}")

    return behave


def silent(peer: Peer) -> None:
    peer.read()
    peer.wait()


# ---- validate


def test_without_a_worker_the_command_validates_itself_and_records_nothing(shell: TargetShell) -> None:
    requests = []
    with LoopbackServer(silent) as gone:
        refusing = gone.url()
    with LoopbackServer(lambda peer: requests.append(peer.read())) as server:
        urls = (server.url(), refusing, "http://10.20.30.40/hook")
        up, down, unsafe = shell.make_targets(*urls)
        before = shell.stored()
        for target_id, reason in ((up, None), (down, "connect_refused"), (unsafe, "address_private")):
            record = shell.json("validate", target_id, exit_code=0 if reason is None else 1)
            status = "passed" if reason is None else "failed"
            assert record["checked"] == {"by": "command", "status": status, "reason": reason}
            assert (record["status"], record["connected"]["status"]) == ("active", "unknown")
        # The server counts connections in another thread.
        wait_until(lambda: server.connections == 1)
        reported = shell.run("validate", unsafe)
    assert (reported.exit_code, "address_private" in reported.stdout) == (1, True)
    assert "no worker responded" in reported.stderr
    assert requests in ([], [None])
    assert shell.stored() == before


STRICT: Final = {"TARGET_ALLOW_HTTP": "false", "TARGET_ALLOWED_NETWORKS": "", "TARGET_ALLOWED_PORTS": "443"}


@pytest.mark.parametrize("is_strict_shell", [True, False], ids=["strict shell", "strict worker"])
def test_a_running_worker_validates_with_its_own_settings_instead_of_those_of_the_shell(
    tmp_path: Path, database_url: str, redis: RedisServer, is_strict_shell: bool
) -> None:
    shell = TargetShell(tmp_path, database_url, REDIS_URL=redis.url, **(STRICT if is_strict_shell else {}))
    with (
        LoopbackServer(answering(200)) as server,
        WorkerProcess(tmp_path / "worker", database_url, redis.url, **({} if is_strict_shell else STRICT)) as worker,
    ):
        [target_id] = shell.make_targets(server.url())
        record = shell.json("validate", target_id, exit_code=0 if is_strict_shell else 1)
        ping = shell.run("ping", target_id)
        assert worker.process.poll() is None
    reason = None if is_strict_shell else "scheme_not_allowed"
    status = "passed" if is_strict_shell else "failed"
    assert record["checked"] == {"by": "worker", "status": status, "reason": reason}
    assert record["status"] == ("active" if is_strict_shell else "blocked")
    assert ping.exit_code == (0 if is_strict_shell else 1)
    with shell.database():
        found = rows("SELECT actor, reason FROM audit_entries WHERE action = 'validate_target'")
    assert [(actor.partition(":")[0], why) for actor, why in found] == [("worker", reason or "passed")]


def test_if_no_worker_responds_in_time_the_command_validates_itself_and_records_nothing(shell: TargetShell) -> None:
    with LoopbackServer(answering(200)) as server:
        [target_id] = shell.make_targets(server.url())
        with shell.database():
            worker_heartbeats.beat("worker:elsewhere:1:0", utc_now() + timedelta(seconds=5))
        before = shell.json("show", target_id)
        record = shell.json("validate", target_id)
        assert record["checked"] == {"by": "command", "status": "passed", "reason": None}
        assert shell.json("show", target_id) == before
    with shell.database():
        assert rows("SELECT validation_asked_at FROM targets") == [(None,)]
        assert rows("SELECT action FROM audit_entries WHERE action = 'validate_target'") == []


# ---- ping

# the receiver's behavior, the printed result, the exit code
PINGED = [
    (answering(202), (True, 202, None), 0),
    (answering(401), (False, 401, "receiver_unauthorized"), 1),
    (silent, (False, None, "deadline_exceeded"), 1),
]


@pytest.mark.parametrize(("behave", "reported", "exit_code"), PINGED)
def test_a_ping_prints_its_result_with_the_fix_and_records_nothing(
    shell: TargetShell, behave: Callable[[Peer], None], reported: tuple[Any, ...], exit_code: int
) -> None:
    with LoopbackServer(behave) as server:
        [target_id] = shell.make_targets(server.url())
        printed = shell.json("ping", target_id, exit_code=exit_code)
        assert server.connections == 1
        explanation = help_for(reported[2]).fix if reported[2] else ""
        assert explanation in shell.run("ping", target_id).stdout
    assert list(printed) == ["delivered", "response_status", "error_code", "duration_ms"]
    assert (printed["delivered"], printed["response_status"], printed["error_code"]) == reported
    assert printed["duration_ms"] >= 0
    # A ping that no worker has sent is not recorded.
    assert shell.json("show", target_id)["connected"]["status"] == "unknown"
    with shell.database():
        assert rows("SELECT COUNT(*) FROM pings") == [(0,)]


def test_a_ping_claimed_by_a_worker_without_a_result_is_reported_as_lost(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker claims every ping at once, and never reports a result."""
    monkeypatch.chdir(tmp_path)
    shell = TargetShell(tmp_path, sqlite_url)
    [target_id] = shell.make_targets("https://tracker.example.com/hook")
    with shell.database():
        worker_heartbeats.beat("worker:here:1:0", utc_now())
        execute("CREATE TRIGGER taken AFTER INSERT ON pings BEGIN UPDATE pings SET started_at = 1; END")
    printed = shell.json("ping", target_id, exit_code=1)
    assert printed == {"delivered": False, "response_status": None, "error_code": "worker_lost", "duration_ms": None}


def test_the_command_does_not_send_waiting_pings_of_other_clients(shell: TargetShell) -> None:
    with LoopbackServer(answering(503)) as theirs, LoopbackServer(answering(200)) as ours:
        other, own = shell.make_targets(theirs.url(), ours.url())
        with shell.database():
            ping_id = pings.request(other, targets.get(other, None).account_id, utc_now(), "user:1")
        assert shell.json("ping", own)["response_status"] == 200
        with shell.database():
            assert pings.get(ping_id).has_begun is False
        assert theirs.connections == 0


def test_a_disabled_or_unknown_target_is_not_pinged(shell: TargetShell) -> None:
    [target_id] = shell.make_targets("https://tracker.example.com/hook")
    shell.json("disable", target_id)
    refused = shell.run("ping", target_id)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "is disabled; ping needs" in refused.stderr
    for verb in ("ping", "validate", "resume"):
        assert "no such ticket export target" in shell.run(verb, "tgt_none").stderr


# ---- limit


def test_limit_sets_and_removes_a_rate_limit(shell: TargetShell) -> None:
    [target_id] = shell.make_targets("https://tracker.example.com/hook")
    assert shell.json("limit", target_id, "--max-per-minute", "30")["delivery"]["max_per_minute"] == 30
    assert shell.json("limit", target_id, "--max-per-minute", "none")["delivery"]["max_per_minute"] is None


@pytest.mark.parametrize("typed", ["0", "-1", "+5", "1.5", "None", "", str(MAX_PER_MINUTE + 1)])
def test_an_invalid_rate_limit_is_wrong_usage(shell: TargetShell, typed: str) -> None:
    [target_id] = shell.make_targets("https://tracker.example.com/hook")
    result = shell.run("limit", target_id, f"--max-per-minute={typed}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("Invalid value for '--max-per-minute': Use a whole number from 1 to 60000, or none.\n")
    assert shell.run("limit", target_id).exit_code == 2


# ---- resume

PRIVATE = "http://10.20.30.40/hook"

# the status before, the target's URL, and the message or the status afterwards
RESUMED = [
    ("blocked", PRIVATE, "stays blocked: address_private. The host has an address that is not public;"),
    ("paused", PRIVATE, "stays paused: address_private. The host has an address that is not public;"),
    ("disabled", PRIVATE, "stays disabled: address_private. The host has an address that is not public;"),
    ("blocked", "http://127.0.0.1:9/hook", "active"),  # this network has been allowed meanwhile
    ("blocked", "http://nobody.example.com/hook", "stays blocked: dns_"),  # the name cannot be resolved
    # These statuses were not caused by the address, and the next delivery checks the address again.
    ("paused", "http://nobody.example.com/hook", "active"),
    ("disabled", "http://nobody.example.com/hook", "active"),
]


@pytest.mark.parametrize(("status", "url", "reported"), RESUMED)
def test_a_target_is_resumed_only_if_its_url_is_allowed(shell: TargetShell, status: str, url: str, reported: str) -> None:
    [target_id] = shell.make_targets(url)
    with shell.database():
        execute("UPDATE targets SET status = ?", (status,))
    if reported == "active":
        assert shell.json("resume", target_id)["status"] == "active"
    else:
        assert reported in shell.refused("resume", target_id)
        assert shell.json("show", target_id)["status"] == status


def test_a_resumption_records_no_validation_and_requests_one_from_a_worker(shell: TargetShell) -> None:
    [target_id] = shell.make_targets("http://127.0.0.1:9/hook")
    with shell.database():
        execute("UPDATE targets SET status = 'blocked', validation_status = 'failed', validation_reason = 'address_private'")
    record = shell.json("resume", target_id)
    assert (record["status"], record["last_validation"]["reason"]) == ("active", "address_private")
    with shell.database():
        assert rows("SELECT validation_due_at FROM targets") == [(0,)]
        assert rows("SELECT action FROM audit_entries WHERE action = 'validate_target'") == []


def test_resume_all_skips_and_reports_targets_with_forbidden_addresses(shell: TargetShell) -> None:
    unsafe, fine = shell.make_targets(PRIVATE, "http://127.0.0.1:9/hook")
    with shell.database():
        execute("UPDATE targets SET status = 'paused'")
    reported = shell.run("resume", "--all", "--json")
    assert (reported.exit_code, [record["id"] for record in json.loads(reported.stdout)]) == (1, [fine])
    assert f"Target {unsafe} stays paused: address_private" in reported.stderr
    assert "(TARGET_ALLOWED_NETWORKS)" in reported.stderr
    reported = shell.run("resume", "--all")
    assert (reported.exit_code, reported.stdout) == (1, "No target was resumed.\n")


# ---- resume --all


def test_resume_all_resumes_every_paused_target(shell: TargetShell) -> None:
    first, second, active, disabled = shell.make_targets(*["https://tracker.example.com/hook"] * 4)
    with shell.database():
        for target_id in (first, second):
            targets.change_status(target_id, "pause", NOW, "operator", "restored")
        targets.change_status(disabled, "disable", NOW, "operator")
    records = shell.json("resume", "--all")
    assert [(record["id"], record["status"]) for record in records] == [(second, "active"), (first, "active")]
    assert shell.json("show", disabled)["status"] == "disabled"
    assert shell.json("show", active)["status"] == "active"
    assert shell.json("resume", "--all") == []
    assert "No target is paused." in shell.run("resume", "--all").stdout


def test_a_pause_requested_by_a_receiver_ends_only_if_its_target_is_named(shell: TargetShell) -> None:
    [target_id] = shell.make_targets("https://tracker.example.com/hook")
    until = to_ms(utc_now() + timedelta(hours=1))
    with shell.database():
        execute("UPDATE targets SET held_until = ?, held_reason = 'rate_limited'", (until,))
    assert shell.json("show", target_id)["status"] == "paused"
    assert shell.json("resume", "--all") == []
    assert shell.json("show", target_id)["status"] == "paused"
    assert shell.json("resume", target_id)["status"] == "active"


def test_resume_all_reports_targets_without_a_secret_and_resumes_the_rest(shell: TargetShell) -> None:
    with_secret, without = shell.make_targets(*["https://tracker.example.com/hook"] * 2)
    shell.environment["WEBHOOK_SECRET"] = None
    with shell.database():
        execute("UPDATE targets SET status = 'paused'")
        execute("UPDATE targets SET secret_sealed = ?, secret_fingerprint = 'fp' WHERE id = ?", (b"x", with_secret))
    result = shell.run("resume", "--all", "--json")
    assert result.exit_code == 1
    assert [record["id"] for record in json.loads(result.stdout)] == [with_secret]
    assert f"Target {without} has no secret" in result.stderr


def test_resume_needs_either_a_target_or_all(shell: TargetShell) -> None:
    for words in ((), ("tgt_x", "--all")):
        result = shell.run("resume", *words)
        assert result.exit_code == 2
        assert "either a target id or --all" in result.stderr


# ---- add, set, remove


def test_a_target_is_added_with_the_default_secret_and_validated_by_a_worker(shell: TargetShell) -> None:
    with shell.database():
        account_id = str(make_customer().account_id)
    url = "http://127.0.0.1:9/hook"
    given = ("Our tracker", "--url", url, "--account", account_id, "--max-per-minute", "30")
    made = shell.json("add", *given)
    assert (made["name"], made["base_url"], made["status"], made["max_per_minute"]) == ("Our tracker", url, "active", 30)
    with shell.database():
        assert rows("SELECT actor, action FROM audit_entries WHERE subject_id = ? ORDER BY id", (made["id"],)) == [
            ("operator", "create_target"),
            ("operator", "ask_validation"),
        ]
        job = validations.claim_next(utc_now(), 6)
    assert job is not None
    assert job.target_id == made["id"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("Tracker", "--url", "http://10.20.30.40/", "--account", "1"), "/base_url"),
        (("Tracker", "--url", "http://127.0.0.1:9/?token=s3cr3t", "--account", "1"), "credential"),
        ((" ", "--url", "http://127.0.0.1:9/", "--account", "1"), "/name"),
        (("Tracker", "--url", "http://127.0.0.1:9/", "--account", "99"), "There is no account 99"),
    ],
)
def test_an_invalid_target_is_refused_and_not_added(shell: TargetShell, given: tuple[str, ...], reason: str) -> None:
    with shell.database():
        assert make_customer().account_id == 1
    before = shell.stored()
    refusal = shell.refused("add", *given)
    assert reason in refusal
    assert "s3cr3t" not in refusal
    assert shell.stored() == before


def test_set_changes_only_the_given_fields(shell: TargetShell) -> None:
    [target_id] = shell.make_targets("http://127.0.0.1:9/")
    assert shell.json("set", target_id, "--name", "Other")["name"] == "Other"
    limited = shell.json("set", target_id, "--max-per-minute", "30")
    assert (limited["name"], limited["max_per_minute"]) == ("Other", 30)
    moved = shell.json("set", target_id, "--url", "http://127.0.0.1:10/", "--max-per-minute", "none")
    assert (moved["base_url"], moved["max_per_minute"]) == ("http://127.0.0.1:10/", None)
    before = shell.stored()
    assert "/base_url" in shell.refused("set", target_id, "--url", "http://10.20.30.40/")
    assert shell.run("set", target_id).exit_code == 2
    assert shell.stored() == before


def test_a_target_is_removed_only_if_no_export_waits_for_it(shell: TargetShell) -> None:
    with shell.database():
        customer = make_customer()
        busy, idle = (make_target(customer, "http://127.0.0.1:9/") for _ in range(2))
        make_approved(customer, busy.id)
    assert "(1 approved)" in shell.refused("remove", busy.id)
    assert shell.json("remove", idle.id) == {"id": idle.id, "removed": True}
    assert "There is no such ticket export target" in shell.refused("remove", idle.id)
    assert [each["id"] for each in shell.json("list")] == [busy.id]
