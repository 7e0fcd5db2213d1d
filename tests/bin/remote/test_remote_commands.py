"""Commands with `--url` have the same effects and output as on the server: each is run on two copies of one database."""

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest
from click.testing import Result

from bin.remote.dispatch import LOCAL, remote_command_of
from runtime.clock import utc_now
from schemas.base.principal import ABILITIES, Ability, TokenKind
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import Topic
from schemas.triage.approval_rules import RuleAction, RuleActionType
from storage.accounts import audit_chain, projects, tokens
from storage.db.engine import close_database, connection, execute, open_database
from storage.secrets.vault import Vault
from tests.docs.names import LEAVES
from tests.support.factories import (
    ENCRYPTION_KEY,
    LOOPBACK,
    NOW,
    Customer,
    environment,
    make_bulk_job,
    make_colleague,
    make_customer,
    make_exports,
    make_failed,
    make_report,
    make_rule,
    make_session,
    make_target,
    make_tracker,
)
from tests.support.http.storefront import receive
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.shell import RemoteShell, Shell
from tests.support.processes.workers import CountingReceiver, WorkerProcess, wait_until
from tests.support.scan_reports import FILES
from tests.support.servers.redis_and_postgres import RedisServer
from tests.support.worker.receipts import deliver

#: Commands that run on the server only.
REFUSED: Final = """
    init, run, serve, work, migrate, sweep, prune, rotate-keys, backup, restore, doctor,
    report write, report add, secret list, secret set scanner, secret set email, secret set storefront, secret set target,
    alert test, alert acknowledge, alert list, compliance run, compliance repeat, compliance export,
    audit export, audit verify
"""
SERVER_ONLY: Final = frozenset(tuple(each.split()) for each in REFUSED.split(","))

#: Commands in order, with placeholders for the ids of their objects. Each row has its own objects.
ROWS: Final = """
    target list | target show {target} | target show tgt_0 | target show 'a b' | target show ''
    target add generic_webhook http://127.0.0.1:9/hook --name Ours --event fixed --max-per-minute 3
    target add github https://example.com
    target add gitea http://127.0.0.1:9/acme/shop --label risk --setting odd=1
    target set {target} --name Other --url http://127.0.0.1:9/other --format cloudevents
    target set {tracker} --setting repository=acme/other | target set {target} --signature nonsense | target set {target}
    target pause {target} | target resume {target} | target disable {target} | target resume {target} | target resume tgt_0
    target pause {target} | target resume --all | target resume | target resume {target} --all
    target limit {target} --max-per-minute 30 | target limit {target} --max-per-minute none
    target remove {target} | target remove {used}
    export list --limit 3 | export list --status failed,blocked | export list --severity low
    export list --search name --sort created_at --limit 2 | export list --created-after soon | export list --all --limit 1
    export list --target {used} --project {project} --source manual --rule none --host shop.example
    export list --target bogus | export list --source bogus | export dismiss --severity bogus --yes
    account add '' | project add '' --account {account} | token create --user {email} --name {long}
    export show {prepared} | export show {exported} | export show exp_0 | export open {exported} | export open {prepared}
    export attempts {exported} | export attempts {prepared}
    export prepare --title 'The total is wrong' --severity high --page-url https://shop.example/cart --source-id n-1
    export prepare | export prepare --title x --severity odd
    export approve {prepared} --target {used} | export approve {prepared} --target tgt_0
    export approve exp_0 --target {used} | export approve {prepared}
    export approve {prepared} --target {used},{other} | export approve --target {used}
    export approve {prepared} --target {used} --severity high
    export dismiss {prepared} --reason false_positive --note Decoration | export restore {prepared} | export restore {failed}
    export snooze {prepared} --until 2999-01-01 | export restore {prepared} | export snooze {prepared} --until-seen
    export snooze {prepared} | export snooze {prepared} --until 2001-01-01
    export edit {prepared} --title New --severity low --label one --label two | export show {prepared}
    export edit {prepared} | export edit {prepared} --title Unequalled | export list --search unequalled
    export split {prepared}
    export retry {failed} | export retry {failed} | export retry {prepared} | export retry {blocked} --target {other}
    export bulk --list | export bulk --show {job} | export bulk --cancel {job} | export bulk --show blk_0 | export bulk
    export recover --list | export recover --show rcv_0 | export recover | export recover --target {used}
    rule add Minor --severity info --dismiss wont_fix --disabled | rule add Odd --label a --dismiss other
    rule list | rule list --limit 1 | rule show {rule} | rule show rul_0 | rule test {rule}
    rule set {rule} --name Other --disable --severity high --dismiss wont_fix | rule set {rule} | rule remove {rule}
    receipt show {exported} | receipt show {prepared}
    audit list --limit 1 --created-before 2026-01-01T00:00:00Z | audit list --object {exported} | audit list --action nothing
    audit list --actor operator --account {account} --created-after soon | audit list --account 99
    audit list --actor '' | audit list --action {long} | audit list --object ''
    compliance list | compliance show {request} | compliance show cpl_0
    session list | session list --user {email} | session revoke {session} | session revoke ses_0 | session revoke
    session revoke --user {email} | session revoke --user {email} | session list --user nobody@example.com
    session revoke --user nobody@example.com
    account add 'Example Ltd' | account list
    account add Careful --no-webhooks | account set {new} --webhooks on | account set 99 --webhooks off
    user add {mail} --account {account} --role triager | user add {mail} --account {account} | user set {mail} --role none
    user list | user set nobody@example.com --role viewer | user add {mail} --account 99
    user add {mail} --account {account} | user disable {mail} | user disable {mail} | user enable {mail} | user remove {mail}
    user remove nobody@example.com | user remove {mail}
    project add Shop --account {account} --shop-domain shop.example | project add Shop --account 99 | project list
    project set {project} --ticket-grouping finding | project set 99 --ticket-grouping rule
    scan-run add --project {project} --id {number} | scan-run add --project {project} | scan-run add --project 99
    user add {mail} --account {account} | grant add --user {mail} --project {project} --role viewer
    grant list --user {email} | grant list --user nobody@example.com
    user add {mail} --account {account} | grant add --user {mail} --project {project} | user disable {mail} | grant list
    grant add --user {email} --project {project} | grant add --user {email} --project {project} --role owner | grant list
    grant add --user {email} --report {report} | grant remove --user {email} --report {report} | grant remove 99
    grant add --user {email} --project 99 | grant add --user nobody@example.com --project {project}
    grant add --user {email} | grant add --user {email} --report {report} --role viewer
    grant remove --user {email} --project {project} | grant remove --user {email} --project {project} | grant remove
    token create --user {email} --ability console --name Desk --expires-days 7 | token list | token revoke 99
    user add {mail} --account {account} | token create --user {mail} | token create --user {mail} --kind platform
    token revoke --user {mail} | token revoke --user {mail} | token revoke | token create --user nobody@example.com
    user add {mail} --account 1 --role viewer | token create --user {mail} | token create --user {mail} --kind platform
    user add {mail} --account {account} --role none | token create --user {mail}
    user add {mail} --account 1 --role none | grant add --user {mail} --project 1 --role triager | token create --user {mail}
"""
#: Options that a command needs only on the server.
OWN: Final[dict[tuple[str, ...], tuple[str, str]]] = {
    ("export", "prepare"): ("--account", "{account}"),
    ("target", "add"): ("--account", "{account}"),
    ("rule", "add"): ("--user", "{email}"),
}
#: An id that does not exist. Its error messages differ for operators and clients.
ABSENT_NUMBER: Final = "99"
#: By command, the fields that the API does not return. `shown` also removes `approved_by`, which the API has for users only.
ABSENT: Final[dict[tuple[str, ...], set[str]]] = {
    ("grant", "remove"): {"user_state"},
    ("compliance", "show"): {"recipients"},
    ("export", "attempts"): {"address", "nonce", "worker", "answer"},
}
_ID: Final = re.compile(r"\b([a-z]{3})_[0-9A-HJKMNP-TV-Z]{26}\b")
_TIME: Final = re.compile(r"20\d\d-\d\d-\d\dT[0-9:.]+Z")
#: The value of a new token in the output.
_TOKEN: Final = re.compile(r'"token": "[^"]+"')
#: The field that shows who paused a target.
_ACTOR: Final = re.compile(r'"status_reason": "(client|operator)"')


def path_of(words: list[str]) -> tuple[str, ...]:
    return next(tuple(words[:length]) for length in (3, 2, 1) if tuple(words[:length]) in LEAVES)


def rows() -> list[str]:
    return [line.strip() for line in ROWS.strip().splitlines()]


class Sides(NamedTuple):
    """A shell on the server (`here`) and one on another host (`there`); `objects` has the same ids for both."""

    here: Shell
    there: Shell
    objects: Iterator[dict[str, Any]]


def make_world(count: int) -> tuple[str, list[dict[str, Any]]]:
    """Store a customer and objects for `count` rows; return the token and the objects."""
    customer = make_customer(abilities=ABILITIES[TokenKind.API])
    target = make_target(customer, "http://127.0.0.1:9/")
    exported = deliver(customer, target_id=target.id)
    execute("UPDATE exports SET provider_ticket_url = 'https://tracker.example.com/7' WHERE id = ?", (exported,))
    projects.add_scan_run(customer.project_id, NOW, 42)
    held = (to_ms(utc_now() + timedelta(hours=1)), make_target(customer, "http://127.0.0.1:9/").id)
    execute("UPDATE targets SET held_reason = 'rate_limited', held_until = ? WHERE id = ?", held)
    shared = {
        "account": customer.account_id,
        "email": customer.email,
        "project": customer.project_id,
        "exported": exported,
        "job": make_bulk_job(customer),
        "request": receive(Topic.SHOP_REDACT, Vault([b64decode(ENCRYPTION_KEY)])),
        "new": make_customer().account_id,
        "session": next(iter([make_session(customer) for _ in range(3)])),
    }
    return customer.token, [
        {
            **shared,
            "mail": f"ada{number}@example.com",
            "number": 100 + number,
            "long": "x" * 201,
            "report": make_report(customer.project_id),
            "target": make_target(customer, "http://127.0.0.1:9/").id,
            "used": target.id,
            "other": make_target(customer, "http://127.0.0.1:9/").id,
            "tracker": make_tracker(customer, "http://127.0.0.1:9/acme/shop"),
            "prepared": make_exports(customer, 1)[0],
            "failed": make_failed(customer, target.id)[0],
            "blocked": make_failed(customer, target.id, status="blocked")[0],
            "rule": make_rule(customer, RuleAction(RuleActionType.LABEL, labels=("a",))).id,
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def sides(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    here, there, elsewhere = (tmp_path_factory.mktemp(name) for name in ("here", "there", "elsewhere"))
    shutil.copyfile(migrated_sqlite, here / "riskrelay.db")
    shell = Shell(here, f"sqlite:///{here}/riskrelay.db", **LOOPBACK, RATE_LIMIT_PER_MINUTE="100000")
    with shell.database():
        token, objects = make_world(len(rows()))
        audit_chain.extend_to_end()
    shutil.copyfile(here / "riskrelay.db", there / "riskrelay.db")
    settings = {**shell.for_processes(), "DATA_DIR": str(there), "DATABASE_URL": f"sqlite:///{there}/riskrelay.db"}
    with Service(settings) as service:
        yield Sides(shell, RemoteShell(elsewhere, f"http://127.0.0.1:{service.port}", token), iter(objects))


def shown(result: Result, path: tuple[str, ...]) -> Any:
    """Return a command's output without values that differ between runs, and without fields that the API does not return."""
    text = _TOKEN.sub('"token": ""', _ACTOR.sub('"status_reason": ""', _TIME.sub("<time>", _ID.sub(r"\1_*", result.stdout))))
    try:
        printed = json.loads(text)
    except ValueError:
        return text, result.stderr
    records = printed if isinstance(printed, list) else [printed]
    for record in records:
        for name in {"approved_by", *ABSENT.get(path, ())}:
            record.pop(name, None)
    return printed, result.stderr


@pytest.mark.parametrize("row", rows())
def test_a_command_prints_the_same_remotely_as_on_the_server(row: str, sides: Sides) -> None:
    names = next(sides.objects)
    for line in row.split(" | "):
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line.format(**names))]
        path = path_of(words)
        own = [each.format(**names) for each in OWN.get(path, ())]
        as_json = ["--json"] if any("--json" in each.opts for each in LEAVES[path].options) else []
        here = sides.here.run(*words, *own, *as_json)
        there = sides.there.run(*words, *as_json)
        assert (there.exit_code, there.stdout == "") == (here.exit_code, here.stdout == ""), line
        if ABSENT_NUMBER in words and there.exit_code:
            assert there.stderr.startswith("riskrelay: "), line
        else:
            assert shown(there, path) == shown(here, path), line


@pytest.fixture
def customer(sqlite_url: str, tmp_path: Path) -> Iterator[Customer]:
    open_database(sqlite_url)
    with connection():
        yield make_customer()
    close_database()


@pytest.fixture
def remote(sqlite_url: str, tmp_path: Path, redis: RedisServer, customer: Customer) -> Iterator[RemoteShell]:
    """A shell on another host, for an installation with a worker."""
    settings = environment(tmp_path, DATABASE_URL=sqlite_url, REDIS_URL=redis.url, **LOOPBACK)
    with Service(settings) as service, WorkerProcess(tmp_path / "data", sqlite_url, redis.url):
        yield RemoteShell(tmp_path / "elsewhere", f"http://127.0.0.1:{service.port}", customer.token)


def test_remote_commands_wait_for_the_results_of_workers(
    remote: RemoteShell, customer: Customer, receiver: CountingReceiver
) -> None:
    target_id = remote.json("target", "add", "generic_webhook", receiver.url())["id"]
    validated = remote.json("target", "validate", target_id)
    assert validated["checked"] == {"by": "worker", "status": "passed", "reason": None}
    assert remote.json("target", "ping", target_id)["delivered"] is True
    ids = make_exports(customer, 3)
    [other_id] = make_exports(customer, 1)
    execute("UPDATE exports SET severity_rank = 0 WHERE id = ?", (other_id,))
    asked = remote.run("export", "approve", "--target", target_id, "--severity", "high", standard_input="n\n")
    assert (asked.exit_code, asked.stdout) == (1, "")
    assert "3 exports match: 3 high.\nApprove them for target" in asked.stderr
    job = remote.json("export", "approve", "--target", target_id, "--severity", "high", "--yes")
    assert (job["status"], job["total"], job["changed"]) == ("done", 3, 3)
    wait_until(lambda: len(remote.json("export", "list", "--status", "exported")) == 3)
    assert {request.headers["idempotency-key"] for request in receiver.requests} >= {*ids}
    failed = make_failed(customer, target_id, finished_at=utc_now())
    recovery = remote.json("export", "recover", "--target", target_id, "--since", "1d")
    assert (recovery["status"], recovery["done"]) == ("done", 1)
    wait_until(lambda: remote.json("export", "show", failed[0])["status"] == "exported")
    assert remote.json("export", "bulk", "--show", job["id"]) == job
    assert remote.json("export", "recover", "--show", recovery["id"]) == recovery
    silent_id = remote.json("target", "add", "generic_webhook", "http://127.0.0.1:1/hook")["id"]
    for command in ("ping", "validate"):
        result = remote.run("target", command, silent_id)
        assert result.exit_code == 1
        assert "connect_refused" in result.stdout
        assert "nothing listens" in result.stdout.lower(), result.stdout


def test_a_command_can_end_its_own_token(remote: RemoteShell, customer: Customer, tmp_path: Path) -> None:
    def manager(of: Customer) -> tuple[int, RemoteShell]:
        made, text = tokens.create(of.email, TokenKind.API, utc_now(), (Ability.MANAGE_ACCOUNT,))
        return made.id, RemoteShell(tmp_path, remote.verb[1], text)

    own_id, shell = manager(customer)
    assert shell.json("token", "revoke", str(own_id))["revoked_at"] is not None
    own_id, shell = manager(customer)
    revoked = shell.json("token", "revoke", "--user", customer.email)
    assert [each["id"] for each in revoked][-1] == own_id
    assert "Authentication failed" in shell.refused("token", "list")
    assert "Authentication failed" in remote.refused("export", "list")
    colleague = make_colleague(customer)
    removed = manager(colleague)[1].json("user", "remove", colleague.email)
    assert (removed["id"], removed["email"], removed["state"]) == (colleague.user_id, None, "removed")


def test_a_table_of_the_audit_log_reports_that_there_are_more_entries(sides: Sides) -> None:
    tables = [side.run("audit", "list", "--limit", "3").stdout.splitlines() for side in (sides.here, sides.there)]
    expected = "Showing the newest 3; there are more. To list more: --limit N."
    assert [(len(table), table[-1]) for table in tables] == [(5, expected)] * 2
    for side in (sides.here, sides.there):
        assert "there are more" not in side.run("audit", "list", "--limit", "1000").stdout
    assert len(sides.there.json("audit", "list", "--limit", "3")) == 3


def test_options_that_the_token_determines_are_refused(sides: Sides) -> None:
    for words in (("rule", "add", "Minor", "--label", "a", "--user", "a@b.example"), ("export", "list", "--account", "1")):
        refused = sides.there.run(*words)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{words[-2]} is not available with --url: the token decides." in refused.stderr


def test_an_empty_filter_value_is_wrong_usage(sides: Sides) -> None:
    """In a script, the value can be an unset variable. The command must then not list all targets."""
    for side in (sides.here, sides.there):
        refused = side.run("export", "list", "--target", "")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "Error: --target: " in refused.stderr


def test_users_and_projects_are_added_to_the_account_of_the_token_by_default(sides: Sides) -> None:
    for words in (("user", "add", "bert@example.com"), ("project", "add", "Bert's")):
        assert sides.there.json(*words)["account_id"] == sides.here.json(*words, "--account", "1")["account_id"] == 1


def test_a_remotely_added_tracker_gets_its_token_only_on_the_server(sides: Sides) -> None:
    added = sides.there.run("target", "add", "gitea", "http://127.0.0.1:9/acme/x", "--json", standard_input="a-token\n")
    made = json.loads(added.stdout)
    assert (made["status"], made["secret"]["configured"]) == ("inactive", False)
    assert f"set it on the server with `riskrelay secret set target {made['id']}`" in added.stderr
    assert sides.there.json("target", "remove", made["id"]) == {"id": made["id"], "removed": True}


def test_a_scan_report_is_imported_through_the_url(sides: Sides) -> None:
    imported = sides.there.json("import-scan", "--format", "zap", str(FILES["zap"]), "--scan-run", "42", "--dry-run")
    assert imported["dry_run"] is True
    assert imported["findings"]["new"] > 0


@pytest.mark.parametrize("path", sorted(SERVER_ONLY), ids=" ".join)
def test_a_server_only_command_refuses_a_url(path: tuple[str, ...], tmp_path: Path) -> None:
    arguments = [each for each in LEAVES[path].command.params if each.required]
    words = [word for each in arguments for word in (*each.opts[: isinstance(each, click.Option)], _value_of(each))]
    shell = RemoteShell(tmp_path, "https://relay.example.com", "a-token")
    result = shell.run(*path, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"`{' '.join(path)}` runs on the server: without --url." in result.stderr
    assert ("Secrets are never sent over the API." in result.stderr) == (path[0] == "secret")


def _value_of(parameter: click.Parameter) -> str:
    if isinstance(parameter.type, click.Path):
        return __file__
    return parameter.type.choices[0] if isinstance(parameter.type, click.Choice) else "1"


def test_every_command_is_tested_remotely_or_listed_as_server_only() -> None:
    tested = {path_of(line.split()) for row in rows() for line in row.split(" | ")}
    # Another test runs these, with a worker.
    tested |= {("target", "validate"), ("target", "ping")}
    remote = {path for path in LEAVES if remote_command_of(path)}
    assert {*LEAVES} - remote - SERVER_ONLY - LOCAL == {("import-scan",)}
    assert not remote & (SERVER_ONLY | LOCAL)
    assert remote - tested == set()
