"""Backup and restore: under load, after a redaction, after a kill. Nothing is delivered before targets are resumed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.compliance.requests import ComplianceResult, Topic
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows
from storage.exports import queries
from storage.maintenance import restore as restoring
from tests.support.database.databases import on_sqlite
from tests.support.database.many_rows import many_targets, many_waiting
from tests.support.factories import make_approved, make_customer, make_target
from tests.support.http.storefront import (
    ADA,
    BOB,
    PersonDataSeeder,
    ShopCustomer,
    cloud_client,
    give_shop,
    plant_captures,
    receive,
    stored,
    traces_of,
)
from tests.support.processes.backups import VAULT, CommandResult, CommandRunner, Contents, store_key_check
from tests.support.processes.workers import ROOT, CountingReceiver, WorkerProcess, all_are, wait_until
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer
from tests.support.worker.compliance_work import run_compliance_tasks

OTHER_SHOP: Final = "sun.shops.example"
CLEO: Final = ShopCustomer(88191169, "cleo.canary@mail.example", "+1 555 625 1201", (770299940, 770280265))
#: With bodies of this size, a copy takes long enough for other processes to write meanwhile.
HEAVY: Final = {"count": 1500, "body_bytes": 20_000}


@pytest.fixture
def operator(database_url: str, tmp_path: Path) -> CommandRunner:
    """Runs commands in an installation whose keys are checked."""
    made = CommandRunner(tmp_path / "here", database_url)
    with made.database():
        store_key_check()
    return made


@pytest.fixture
def elsewhere(database_url: str, tmp_path: Path, postgres_server: PostgresServer) -> CommandRunner:
    """Runs commands on another machine, with the same keys and without a database."""
    folder = tmp_path / "elsewhere"
    is_sqlite = database_url.startswith("sqlite")
    return CommandRunner(folder, f"sqlite:///{folder}/riskrelay.db" if is_sqlite else postgres_server.create_database())


def run_killed_at(operator: CommandRunner, point: str, *words: str | Path) -> CommandResult:
    """Run a command that is killed at a point."""
    command = [sys.executable, "-P", "-m", "tests.journeys.data.crashing_command", point, *map(str, words)]
    env = {**operator.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=operator.folder, env=env, capture_output=True, text=True, check=False, timeout=100)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def without_what_a_restore_changes(contents: Contents) -> Contents:
    """Return the contents without the rows that a restore changes: heartbeats, targets, sessions, and its audit entries."""
    kept = {table: lines for table, lines in contents.items() if table not in {"workers", "targets", "console_sessions"}}
    noted = {"pause_target", "end_session", "begin_restore", "restore"}
    return kept | {"audit_entries": [row for row in contents["audit_entries"] if row[3] not in noted]}


# --- under load


@contextmanager
def busy_writers(url: str, count: int) -> Iterator[None]:
    """Run `count` processes that write to a database during the block."""
    command = [sys.executable, "-P", "-m", "tests.journeys.data.busy_writer", url]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
        yield
        assert [writer.poll() for writer in writers] == [None] * count
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


def test_a_backup_under_load_is_consistent_and_does_not_block_writers(
    operator: CommandRunner, elsewhere: CommandRunner
) -> None:
    with operator.database():
        customer = make_customer()
        [target_id] = many_targets(customer, 0, 1, "https://tracker.example.com/hook")
        many_waiting(customer, 0, targets=(0, 1), due_at=utc_now(), **HEAVY)
        with busy_writers(operator.url, 2):
            before = rows("SELECT COUNT(*) FROM accounts")[0][0]
            done = operator.run_in_subprocess("backup", "taken.backup")
            after = rows("SELECT COUNT(*) FROM accounts")[0][0]
        assert done.exit_code == 0, done.stderr
        assert after - before > 10
    live = operator.contents()
    file = operator.folder / "taken.backup"
    assert elsewhere.json("restore", file)["exports"] == HEAVY["count"]
    found = elsewhere.contents()
    assert before <= len(found["accounts"]) <= after
    # The backup contains complete transactions: each account has its project.
    assert len(found["accounts"]) == len(found["projects"])
    assert {*found["accounts"]} <= {*live["accounts"]}
    assert {*found["projects"]} <= {*live["projects"]}
    assert found["exports"] == live["exports"]
    with elsewhere.database():
        assert rows("SELECT id, status, status_reason FROM targets") == [(target_id, "paused", "restored")]


def test_a_restored_database_equals_the_one_that_was_backed_up(operator: CommandRunner, elsewhere: CommandRunner) -> None:
    with operator.database():
        customer = give_shop(make_customer())
        client = cloud_client(operator.folder)
        PersonDataSeeder(client, customer).plant(ADA)
        receive(Topic.DATA_REQUEST, VAULT, ADA)
        run_compliance_tasks(VAULT)
        receive(Topic.CUSTOMER_REDACT, VAULT, BOB)
        execute("UPDATE compliance_requests SET next_run_at = 1 WHERE next_run_at IS NOT NULL")
    before = operator.contents()
    file = operator.backed_up()
    elsewhere.json("restore", file)
    after = elsewhere.contents()
    waiting = [row for row in before["compliance_requests"] if "received" in row]
    assert len(waiting) == 1
    for table, lines in without_what_a_restore_changes(before).items():
        found = without_what_a_restore_changes(after)[table]
        if table == "compliance_requests":
            # The pending request is due at once after the restore, so its row may differ.
            assert [row for row in found if "done" in row] == [row for row in lines if "done" in row]
            assert [row[0] for row in found] == [row[0] for row in lines]
        else:
            assert found == lines, table
    with elsewhere.database():
        run_compliance_tasks(VAULT)
        assert {line.result for line in compliance_requests.list_all()} == {
            ComplianceResult.REPORTED,
            ComplianceResult.REDACTED,
        }


# --- redactions


def plant_data(operator: CommandRunner) -> list[str]:
    """Store data of two persons in one shop, and of a third person in another shop; return the traces of the second."""
    with operator.database():
        client = cloud_client(operator.folder)
        planter = PersonDataSeeder(client, give_shop(make_customer()))
        planter.plant(ADA)
        planter.plant(BOB)
        receive(Topic.DATA_REQUEST, VAULT, ADA)
        run_compliance_tasks(VAULT)
        PersonDataSeeder(client, give_shop(make_customer(), OTHER_SHOP)).plant(CLEO, OTHER_SHOP)
        assert traces_of(ADA, stored()) == list(ADA.traces)
        return traces_of(BOB, stored())


def plant_captures_only(operator: CommandRunner) -> list[str]:
    """Store the same data as `plant_data`, but only in captures."""
    with operator.database():
        customer = give_shop(make_customer())
        make_target(customer)
        for person in (ADA, BOB):
            plant_captures(customer, person, 3)
        receive(Topic.DATA_REQUEST, VAULT, ADA)
        run_compliance_tasks(VAULT)
        plant_captures(give_shop(make_customer(), OTHER_SHOP), CLEO, 3)
        assert traces_of(ADA, stored())
        return traces_of(BOB, stored())


def erase(operator: CommandRunner) -> None:
    """Erase a person and the other shop. A data request of another person is pending."""
    with operator.database():
        receive(Topic.CUSTOMER_REDACT, VAULT, ADA)
        receive(Topic.SHOP_REDACT, VAULT, shop=OTHER_SHOP)
        run_compliance_tasks(VAULT)
        receive(Topic.DATA_REQUEST, VAULT, BOB)
        assert traces_of(ADA, stored()) == traces_of(CLEO, stored()) == []


def assert_erased(operator: CommandRunner, redactions: int, traces_of_bob: list[str]) -> None:
    """Check that the person is erased at once, the other shop once a worker runs, and no other person."""
    with operator.database():
        assert traces_of(ADA, stored()) == []
        assert traces_of(BOB, stored()) == traces_of_bob != []
        assert rows("SELECT COUNT(*) FROM redactions") == [(redactions,)]
        assert rows("SELECT COUNT(*) FROM compliance_requests WHERE report_sealed IS NOT NULL") == [(0,)]
        statuses = {
            line.topic: line.status.value for line in compliance_requests.list_all() if line.shop_domain == OTHER_SHOP
        }
        assert statuses == {Topic.SHOP_REDACT: "received"}
        run_compliance_tasks(VAULT)
        assert traces_of(CLEO, stored()) == []
        assert traces_of(BOB, stored()) == traces_of_bob != []
        assert rows("SELECT COUNT(*) FROM compliance_requests WHERE status = 'received'") == [(0,)]
        assert rows("SELECT COUNT(*) FROM compliance_requests WHERE report_sealed IS NOT NULL") == [(1,)]


def count_redactions(operator: CommandRunner) -> int:
    with operator.database():
        return int(rows("SELECT COUNT(*) FROM redactions")[0][0])


def test_a_restore_repeats_erasures_made_after_the_backup(operator: CommandRunner) -> None:
    traces_of_bob = plant_data(operator)
    file = operator.backed_up()
    erase(operator)
    count = count_redactions(operator)
    record = operator.json("restore", file, "--replace")
    assert record["redactions_repeated"] == count
    # Both finished requests and the pending one are taken over. The shop's request and the pending one are open again.
    assert (record["requests_taken_over"], record["requests_open_again"]) == (3, 2)
    assert_erased(operator, count, traces_of_bob)
    assert not list((operator.folder / "data").glob("restoring*"))


def test_a_restore_on_a_new_machine_repeats_erasures_from_the_redactions_file(
    operator: CommandRunner, elsewhere: CommandRunner
) -> None:
    traces_of_bob = plant_data(operator)
    file, redactions = operator.backed_up(), operator.folder / "redactions"
    erase(operator)
    count = count_redactions(operator)
    assert operator.run("compliance", "export", redactions).exit_code == 0
    assert traces_of(ADA, redactions.read_text().lower()) == []
    assert elsewhere.json("restore", file, "--redactions", redactions)["redactions_repeated"] == count
    assert_erased(elsewhere, count, traces_of_bob)


def test_a_backup_contains_no_data_that_was_erased_before(operator: CommandRunner) -> None:
    plant_data(operator)
    with operator.database():
        # Long enough to fill overflow pages, which become free pages after a change or a deletion.
        execute("UPDATE evidence_captures SET selected_text = ?", (f"{ADA.email} " * 800,))
    erase(operator)
    file = operator.backed_up()
    if operator.url.startswith("sqlite"):
        held = file.read_bytes().lower()
        assert [trace for trace in ADA.traces if trace.encode() in held] == []
        assert BOB.email.encode() in held
    assert not [each for each in file.parent.iterdir() if each.name not in {"data", file.name}]


# --- kills


@on_sqlite
@pytest.mark.parametrize("point", ["backup: within the copy", "backup: before its name"])
def test_a_killed_backup_leaves_only_a_hidden_partial_file_that_the_next_one_deletes(
    operator: CommandRunner, point: str
) -> None:
    (operator.folder / "backups").mkdir()
    assert run_killed_at(operator, point, "backup", "backups").exit_code == -9
    [left] = (operator.folder / "backups").iterdir()
    assert left.name.startswith(".")
    record = operator.json("backup", operator.folder / "backups")
    assert [str(each) for each in (operator.folder / "backups").iterdir()] == [record["file"]]


def is_unfinished(operator: CommandRunner) -> bool:
    with operator.database():
        return restoring.is_unfinished()


@pytest.mark.parametrize(
    ("database_url", "point"),
    [
        ("sqlite", "sqlite: beside"),
        ("sqlite", "sqlite: half prepared"),
        ("sqlite", "sqlite: prepared"),
        ("sqlite", "sqlite: aside"),
        ("sqlite", "sqlite: within the last copy"),
        ("postgresql", "postgresql: saved"),
        ("postgresql", "postgresql: before the commit"),
        ("postgresql", "postgresql: committed"),
        ("postgresql", "postgresql: half prepared"),
    ],
    indirect=["database_url"],
)
def test_a_killed_restore_leaves_the_old_database_or_one_that_cannot_deliver(operator: CommandRunner, point: str) -> None:
    traces_of_bob = plant_captures_only(operator)
    file = operator.backed_up()
    erase(operator)
    count, before = count_redactions(operator), operator.contents()
    assert run_killed_at(operator, point, "restore", file, "--replace").exit_code == -9
    is_replaced = operator.contents() != before
    assert is_replaced == (point in {"postgresql: committed", "postgresql: half prepared"})
    if is_replaced:
        with operator.database():
            assert rows("SELECT COUNT(*) FROM targets WHERE status = 'active'") == [(0,)]
        for verb in ("work", "serve", "run"):
            assert "A restore was cut off" in operator.run_in_subprocess(verb).stderr
        reported = operator.run("doctor", "--json")
        assert reported.exit_code == 1
        assert [each["name"] for each in json.loads(reported.stdout)["checks"] if "cut off" in each["message"]] == [
            "restore"
        ]
    assert is_unfinished(operator) == is_replaced
    assert operator.run("restore", file, "--replace").exit_code == 0
    assert not is_unfinished(operator)
    assert_erased(operator, count, traces_of_bob)
    assert not list((operator.folder / "data").glob("restoring*"))
    if operator.url.startswith("sqlite"):
        path = Path(operator.url.removeprefix("sqlite:///"))
        assert not list(path.parent.glob(f"{path.name}.restoring*"))


# --- deliveries


def test_a_restored_installation_delivers_only_after_resume_and_with_the_same_keys(
    operator: CommandRunner, redis: RedisServer, receiver: CountingReceiver, tmp_path: Path
) -> None:
    def started() -> WorkerProcess:
        return WorkerProcess(tmp_path / "worker", operator.url, redis.url)

    with operator.database():
        customer = make_customer()
        target = make_target(customer, receiver.url())
        made = [make_approved(customer, target.id, utc_now()) for _ in range(3)]
        disabled = make_target(customer, receiver.url())
        execute("UPDATE targets SET status = 'disabled' WHERE id = ?", (disabled.id,))
    file = operator.backed_up()
    with operator.database(), started() as worker:
        wait_until(all_are("exported"))
        worker.signal()
        assert worker.wait() == 0
    sent = {export_id: receiver.of(export_id)[0].body for export_id in made}
    operator.json("restore", file, "--replace")
    with operator.database():
        assert dict(rows("SELECT status, status_reason FROM targets")) == {"paused": "restored", "disabled": None}
        assert {queries.get(export_id).status.value for export_id in made} == {"approved"}
        new = make_approved(customer, make_target(customer, receiver.url()).id, utc_now())
        with started():
            # The worker delivers, and scans for due exports repeatedly.
            wait_until(lambda: queries.get(new).status == "exported")
            later = make_approved(customer, str(queries.get(new).target_id), utc_now())
            wait_until(lambda: queries.get(later).status == "exported")
            assert [len(receiver.of(export_id)) for export_id in made] == [1, 1, 1]
            reported = operator.run_in_subprocess("target", "resume", "--all", "--json")
            assert reported.exit_code == 0, reported.stderr
            assert target.id in reported.stdout
            assert disabled.id not in reported.stdout
            wait_until(all_are("exported"))
    for export_id in made:
        first, second = receiver.of(export_id)
        assert second.headers["idempotency-key"] == first.headers["idempotency-key"] == export_id
        assert second.body == first.body == sent[export_id]
