"""The commands, as an operator runs them: their output, their errors, their exit codes."""

import errno
import json
import socket
from base64 import b64encode
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bin.__main__ import _print_bug
from bin.cli.records import SHOWN
from runtime.clock import utc_now
from schemas.base.principal import ABILITIES, DEFAULT_ABILITIES, TokenKind
from schemas.base.timestamps import to_ms
from schemas.exports.record import Approval
from schemas.intake.scanner import PostbackForm
from schemas.intake.sources import InboundSource, Rejection
from storage.db import migrations, schema_version
from storage.db.engine import close_database, connection, execute, open_database, rows, transaction
from storage.exports import transitions
from storage.intake import rejections
from storage.targets import targets
from tests.support.factories import (
    ENCRYPTION_KEY,
    LOOPBACK_POLICY,
    NOW,
    Customer,
    make_customer,
    make_exports,
    make_target,
    postback,
    record_postback,
)
from tests.support.processes.shell import Shell
from tests.support.servers.redis_and_postgres import PostgresServer


def shell_in(folder: Path) -> Shell:
    """Return a shell for an installation whose database is in its folder."""
    return Shell(folder, f"sqlite:///{folder / 'riskrelay.db'}")


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder, with a migrated database and no Redis."""
    monkeypatch.chdir(tmp_path)
    made = shell_in(tmp_path)
    assert made.url == sqlite_url
    return made


@pytest.fixture
def customer_id(shell: Shell) -> Customer:
    open_database(shell.url)
    with connection():
        customer = make_customer()
    close_database()
    return customer


@pytest.fixture
def target_id(shell: Shell, customer_id: Customer) -> str:
    open_database(shell.url)
    with connection():
        target = make_target(customer_id)
    close_database()
    return target.id


@pytest.fixture
def export_id(shell: Shell, customer_id: Customer) -> str:
    open_database(shell.url)
    with connection():
        form: Any = PostbackForm()
        result = record_postback(form.read(postback()), customer_id.project_id, NOW)
    close_database()
    return result.ticket_exports[0]


def test_accounts_users_projects_and_grants_are_created_from_the_command_line(shell: Shell) -> None:
    account = shell.json("account", "add", "Example Ltd")
    assert account == {"id": 1, "name": "Example Ltd", "webhooks": True}
    user = shell.json("user", "add", "ada@example.com", "--account", "1")
    assert user == {"id": 1, "email": "ada@example.com", "account_id": 1, "role": "owner", "state": "active"}
    project = shell.json("project", "add", "Shop", "--account", "1", "--shop-domain", "shop.example")
    known = {"id": 1, "name": "Shop", "account_id": 1, "shop_domain": "shop.example", "created_at": project["created_at"]}
    assert project == {**known, "ticket_grouping": "rule"}
    assert shell.json("project", "set", "1", "--ticket-grouping", "finding") == {**known, "ticket_grouping": "finding"}
    assert shell.json("report", "add", "Spring", "--project", "1") == {"id": 1, "title": "Spring", "project_id": 1}
    assert shell.json("scan-run", "add", "--project", "1", "--id", "42")["id"] == 42
    assert shell.json("scan-run", "add", "--project", "1")["id"] == 43
    assert shell.json("grant", "add", "--user", "ada@example.com", "--project", "1")["project_id"] == 1
    assert shell.json("grant", "add", "--user", "ada@example.com", "--report", "1")["report_id"] == 1
    limits = {"findings": 1_000_000, "waiting_exports": 500_000, "targets": 1000, "uploads_24h": 50_000}
    stored = {name: {"used": 0, "limit": limit} for name, limit in limits.items()}
    assert shell.json("account", "list") == [{**account, **stored}]
    assert shell.json("user", "list") == [user]
    assert shell.json("project", "list") == [{**project, "ticket_grouping": "finding"}]


def test_the_account_option_is_needed_only_with_several_accounts(shell: Shell) -> None:
    commands = [("user", "add", "ada@example.com"), ("project", "add", "Shop"), ("export", "prepare", "--title", "x")]
    for words in commands:
        assert "There is no account. `account add` creates one." in shell.refused(*words)
    account = shell.json("account", "add", "Example Ltd")["id"]
    user, project, _ = (shell.json(*words) for words in commands)
    assert user["account_id"] == project["account_id"] == account
    shell.json("account", "add", "Another")
    for words in commands:
        assert "There are 2 accounts; use --account" in shell.refused(*words)


def test_the_shop_domain_of_a_project_is_validated_and_normalized(shell: Shell, customer_id: Customer) -> None:
    words = ("project", "add", "Shop", "--account", str(customer_id.account_id), "--shop-domain")
    assert shell.json(*words, "B\u00dcCHER.Example.")["shop_domain"] == "xn--bcher-kva.example"
    for wrong in ("https://shop.example", "shop", "shop.example:443", ""):
        result = shell.run(*words, wrong)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "not a valid shop domain" in result.stderr


@pytest.mark.parametrize("wrong", ["", "ada", "ada@", "@example.com", "ada@example.com ", "Ada <a@b.example>", "\x1bada@x"])
def test_an_invalid_email_address_of_a_user_is_wrong_usage(shell: Shell, customer_id: Customer, wrong: str) -> None:
    before = shell.json("user", "list")
    result = shell.run("user", "add", wrong, "--account", str(customer_id.account_id))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not an email address; use the form ada@example.com" in result.stderr
    assert shell.json("user", "list") == before


def test_an_account_can_be_added_without_webhooks(shell: Shell) -> None:
    assert shell.json("account", "add", "Careful", "--no-webhooks")["webhooks"] is False


def test_webhooks_of_an_account_are_turned_off_and_on(shell: Shell) -> None:
    shell.json("account", "add", "Example Ltd")
    assert shell.json("account", "set", "1", "--webhooks", "off") == {"id": 1, "name": "Example Ltd", "webhooks": False}
    assert shell.json("account", "set", "1", "--webhooks", "on")["webhooks"] is True
    assert "no account 2" in shell.refused("account", "set", "2", "--webhooks", "off")
    for words in (("1",), ("1", "--webhooks", "maybe"), ("x", "--webhooks", "on")):
        assert shell.run("account", "set", *words).exit_code == 2


def test_a_user_is_disabled_enabled_and_removed(shell: Shell, customer_id: Customer) -> None:
    email = customer_id.email
    for command, state in (("disable", "disabled"), ("enable", "active")):
        assert shell.json("user", command, email)["state"] == state
    assert [user["state"] for user in shell.json("user", "list")] == ["active"]
    removed = shell.json("user", "remove", email)
    erased = {"id": customer_id.user_id, "email": None, "account_id": customer_id.account_id}
    expected = {**erased, "role": "owner", "state": "removed"}
    assert (removed, shell.json("user", "list"), shell.json("grant", "list")) == (expected, [expected], [])
    for command in ("disable", "enable", "remove"):
        refused = shell.refused("user", command, email)
        assert "There is no user with this email" in refused
        assert email not in refused


def test_the_case_of_an_email_does_not_matter(shell: Shell, customer_id: Customer) -> None:
    email, typed = customer_id.email, customer_id.email.upper()
    assert [each["user"] for each in shell.json("grant", "list", "--user", typed)] == [email]
    assert shell.json("grant", "remove", "--user", typed, "--project", str(customer_id.project_id))["user"] == email
    assert shell.json("session", "list", "--user", typed) == shell.json("session", "revoke", "--user", typed) == []
    assert [each["user"] for each in shell.json("token", "revoke", "--user", typed)] == [email]
    assert shell.json("user", "disable", typed)["email"] == email
    assert shell.json("user", "remove", typed)["state"] == "removed"


def test_grants_are_listed_and_withdrawn(shell: Shell, customer_id: Customer) -> None:
    email, project = customer_id.email, str(customer_id.project_id)
    shell.json("report", "add", "Spring", "--project", project)
    shell.json("grant", "add", "--user", email, "--report", "1")
    shell.json("user", "disable", email)
    [of_project, of_report] = shell.json("grant", "list", "--user", email)
    shown = {"user": email, "user_state": "disabled"}
    assert of_project == {"id": 1, **shown, "project_id": customer_id.project_id, "report_id": None, "role": None}
    assert of_report == {"id": 2, **shown, "project_id": None, "report_id": 1, "role": None}
    assert shell.json("grant", "remove", "--user", email, "--report", "1") == of_report
    assert "no such grant" in shell.refused("grant", "remove", "--user", email, "--report", "1")
    assert shell.json("grant", "remove", "1") == of_project
    assert "no grant 1" in shell.refused("grant", "remove", "1")
    assert shell.json("grant", "list") == []
    for words in ((), ("1", "--user", email, "--project", project), ("--user", email), ("1", "--project", project)):
        assert shell.run("grant", "remove", *words).exit_code == 2
    nobody = ("--user", "nobody@example.com")
    assert "no user with this email" in shell.refused("grant", "list", *nobody)
    assert "no user with this email" in shell.refused("grant", "remove", "--project", "1", *nobody)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("user", "add", "a@example.com", "--account", "9"), "no account 9"),
        (("project", "add", "Shop", "--account", "9"), "no account 9"),
        (("report", "add", "Spring", "--project", "9"), "no project 9"),
        (("scan-run", "add", "--project", "9"), "no project 9"),
        (("grant", "add", "--user", "nobody@example.com", "--project", "1"), "no user"),
        (("token", "create", "--user", "nobody@example.com"), "no user"),
        (("token", "revoke", "9"), "no token 9"),
        (("token", "revoke", "--user", "nobody@example.com"), "no user"),
        (("target", "show", "tgt_none"), "no such ticket export target"),
        (("target", "pause", "tgt_none"), "no such ticket export target"),
        (("export", "show", "exp_none"), "no such ticket export"),
        (("export", "approve", "exp_none", "--target", "tgt_none"), "no such ticket export"),
        (("export", "dismiss", "exp_none"), "no such ticket export"),
        (("export", "retry", "exp_none"), "no such ticket export"),
    ],
)
def test_an_unknown_object_is_reported_in_one_line(shell: Shell, words: tuple[str, ...], reported: str) -> None:
    assert reported in shell.refused(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("export", "list", "--account", "9" * 30),
        ("export", "list", "--limit", "9" * 30),
        ("export", "prepare", "--title", "Late", "--account", "9" * 30),
        ("user", "add", "ada@example.com", "--account", "9" * 30),
        ("project", "add", "Shop", "--account", "9" * 30),
        ("report", "add", "Spring", "--project", "9" * 30),
        ("scan-run", "add", "--project", "9" * 30),
        ("grant", "add", "--user", "ada@example.com", "--project", "9" * 30),
        ("grant", "add", "--user", "ada@example.com", "--report", "9" * 30),
        ("token", "create", "--user", "ada@example.com", "--expires-days", "9" * 30),
        ("token", "revoke", "9" * 30),
        ("sweep", "--limit", "9" * 30),
        ("compliance", "run", "--limit", "9" * 30),
    ],
)
def test_a_number_beyond_the_integers_of_the_database_is_wrong_usage(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell.run(*words)
    assert result.exit_code == 2, result.output
    assert "is not in the range" in result.output


def test_a_duplicate_is_reported_in_one_line(shell: Shell, customer_id: Customer) -> None:
    account = str(customer_id.account_id)
    assert "belongs to a user already" in shell.refused("user", "add", customer_id.email, "--account", account)
    grant = ("grant", "add", "--user", customer_id.email, "--project", str(customer_id.project_id))
    assert "exists already" in shell.refused(*grant)
    shell.json("scan-run", "add", "--project", str(customer_id.project_id), "--id", "7")
    run = ("scan-run", "add", "--project", str(customer_id.project_id), "--id", "7")
    assert "Scan run 7 exists already" in shell.refused(*run)


def test_a_grant_needs_either_a_project_or_a_report(shell: Shell, customer_id: Customer) -> None:
    for words in ((), ("--project", "1", "--report", "1")):
        result = shell.run("grant", "add", "--user", customer_id.email, *words)
        assert result.exit_code == 2
        assert "either --project or --report" in result.stderr


def test_a_token_is_printed_alone_and_once(shell: Shell, customer_id: Customer) -> None:
    created = shell.run("token", "create", "--user", customer_id.email, "--name", "ci")
    text = created.stdout.strip()
    assert created.exit_code == 0
    assert text.startswith("rrt_")
    assert "\n" not in text
    assert text not in shell.run("token", "list").output
    assert text not in shell.run("token", "list", "--json").output


def test_creating_a_token_reports_the_limits_of_its_users_role(shell: Shell, customer_id: Customer) -> None:
    words = ("token", "create", "--user", customer_id.email, "--ability", "ticket-exports:read", "--ability")
    assert "limits" not in shell.run(*words, "ticket-exports:approve").stderr
    shell.run("user", "set", customer_id.email, "--role", "viewer")
    limited = shell.run(*words, "ticket-exports:approve")
    assert limited.stderr.splitlines()[0] == "The role of this user limits the token to: ticket-exports:read"
    assert limited.stdout.startswith("rrt_")
    nothing = shell.run("token", "create", "--user", customer_id.email, "--ability", "ticket-exports:approve")
    assert nothing.stderr.splitlines()[0] == "The role of this user limits the token to: nothing"
    uploads = shell.run("token", "create", "--user", customer_id.email, "--kind", "platform")
    assert "limits" not in uploads.stderr


def test_a_token_can_be_limited_listed_and_revoked(shell: Shell, customer_id: Customer) -> None:
    words = ("--ability", "ticket-exports:read", "--expires-days", "30")
    made = shell.json("token", "create", "--user", customer_id.email, *words)
    assert made["abilities"] == ["ticket-exports:read"]
    assert made["expires_at"] is not None
    assert shell.json("token", "revoke", str(made["id"]))["revoked_at"] is not None
    listed = {record["id"]: record for record in shell.json("token", "list")}
    assert listed[made["id"]]["revoked_at"] is not None


def test_all_tokens_of_a_user_are_revoked_by_email(shell: Shell, customer_id: Customer) -> None:
    made = shell.json("token", "create", "--user", customer_id.email)
    revoked = shell.json("token", "revoke", "--user", customer_id.email)
    assert made["id"] in [record["id"] for record in revoked]
    assert all(record["revoked_at"] is not None for record in shell.json("token", "list"))
    assert "has no valid token" in shell.run("token", "revoke", "--user", customer_id.email).output
    for words in ((), (str(made["id"]), "--user", customer_id.email)):
        assert shell.run("token", "revoke", *words).exit_code == 2


def test_the_default_abilities_of_a_token_do_not_include_the_console(shell: Shell, customer_id: Customer) -> None:
    for kind in TokenKind:
        made = shell.json("token", "create", "--user", customer_id.email, "--kind", kind.value)
        assert made["abilities"] == [ability.value for ability in DEFAULT_ABILITIES[kind]]
        assert "console" not in made["abilities"]


def test_a_token_cannot_have_abilities_of_the_other_kind(shell: Shell, customer_id: Customer) -> None:
    foreign = ABILITIES[TokenKind.PLATFORM][0].value
    assert foreign in shell.refused("token", "create", "--user", customer_id.email, "--ability", foreign)


@pytest.mark.parametrize("typed", ["s3cret-1", "s3cret-1\n", "s3cret-1\r\n"])
def test_a_secret_is_read_from_standard_input_without_its_newline(shell: Shell, typed: str, target_id: str) -> None:
    plain = shell.json("secret", "set", "scanner", standard_input="s3cret-1")["fingerprint"]
    assert shell.json("secret", "set", "scanner", standard_input=typed)["fingerprint"] == plain
    result = shell.run("secret", "set", "target", target_id, standard_input=typed)
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert plain in result.stdout


def test_webhook_headers_are_read_from_standard_input_and_listed_as_fingerprints(shell: Shell, target_id: str) -> None:
    words = ("secret", "set", "target", target_id, "--header", "Authorization")
    made = shell.json(*words, standard_input="Bearer s3cret-1\n")
    assert (made["header"], made["fingerprint"][:3]) == ("Authorization", "fp:")
    shown = {"name": "Authorization", "fingerprint": made["fingerprint"]}
    assert shell.json("target", "show", target_id)["headers"] == [shown]
    listed = {each["name"]: each["fingerprint"] for each in shell.json("secret", "list")}
    assert listed[f"{target_id} header Authorization"] == made["fingerprint"]
    assert "s3cret" not in shell.run("secret", "list").output
    assert shell.json(*words, "--remove")["removed"] is True
    assert shell.json("target", "show", target_id)["headers"] == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("Host", "x", "/name: RiskRelay or HTTP itself sets this header"),
        ("X Api", "x", "/name: A header name has"),
        ("X-Api-Key", "s3cret\ns3cret", "/value: A header value is one line"),
        ("X-Api-Key", "", "/value: A header value is one line"),
    ],
)
def test_an_invalid_header_is_refused_with_the_reason_and_changes_nothing(
    shell: Shell, target_id: str, name: str, value: str, reason: str
) -> None:
    reported = shell.refused("secret", "set", "target", target_id, "--header", name, standard_input=value)
    assert reason in reported
    assert "s3cret" not in reported
    assert shell.json("target", "show", target_id)["headers"] == []


def test_standard_webhooks_signatures_need_their_own_secret(shell: Shell, target_id: str) -> None:
    change = ("target", "set", target_id, "--signature", "both", "--format", "cloudevents")
    assert "secret set target ID --standard-webhooks" in shell.refused(*change)
    secret = f"whsec_{b64encode(b's3cret-' * 5).decode()}"
    words = ("secret", "set", "target", target_id, "--standard-webhooks")
    assert "24 to 64 random bytes" in shell.refused(*words, standard_input="whsec_s3cret")
    fingerprint = shell.json(*words, standard_input=f"{secret}\n")["fingerprint"]
    changed = shell.json(*change)
    assert (changed["signature"], changed["format"]) == ("both", "cloudevents")
    assert changed["standard_secret"] == {"configured": True, "fingerprint": fingerprint}
    assert "target set ID --signature service" in shell.refused(*words, "--remove")
    shell.json("target", "set", target_id, "--signature", "service")
    assert shell.json(*words, "--remove")["removed"] is True


@pytest.mark.parametrize("options", [("--remove",), ("--header", "X-A", "--standard-webhooks")])
def test_conflicting_secret_options_are_wrong_usage(shell: Shell, target_id: str, options: tuple[str, ...]) -> None:
    assert shell.run("secret", "set", "target", target_id, *options, standard_input="x").exit_code == 2


@pytest.mark.parametrize("typed", ["", "\n", "two\nlines", "nul\0", "x" * 5000])
def test_an_invalid_secret_is_refused_and_changes_nothing(shell: Shell, typed: str) -> None:
    before = shell.json("secret", "list")
    assert "one line" in shell.refused("secret", "set", "scanner", standard_input=typed)
    assert shell.json("secret", "list") == before


def test_a_secret_that_is_too_short_is_refused_with_the_fix_and_changes_nothing(shell: Shell, target_id: str) -> None:
    before = shell.json("secret", "list")
    for words in (["scanner"], ["target", target_id]):
        for typed in ("abcde", "hunter2\n"):
            reported = shell.refused("secret", "set", *words, standard_input=typed)
            assert "A secret must have at least 8 bytes; `openssl rand -hex 32` prints one." in reported
            assert typed.strip() not in reported
    assert shell.json("secret", "list") == before


def test_secrets_are_listed_as_fingerprints(shell: Shell, target_id: str) -> None:
    shell.json("secret", "set", "email", standard_input="from-the-operator")
    shell.json("secret", "set", "target", target_id, standard_input="of-the-target")
    listed = {record["name"]: record for record in shell.json("secret", "list")}
    assert listed["scanner"]["source"] == "environment"
    assert listed["email"]["source"] == "database"
    assert listed["storefront"] == {
        "name": "storefront",
        "configured": False,
        "source": None,
        "fingerprint": None,
        "connected": "unknown",
        "last_validation": None,
        "last_accepted_at": None,
        "last_refused_at": None,
        "last_refusal": None,
    }
    assert listed[target_id].keys() == listed["storefront"].keys()
    assert listed[target_id]["source"] == "database"
    assert listed[target_id]["connected"] == "unknown"
    assert listed[target_id]["last_validation"] == "passed"
    printed = shell.run("secret", "list").output
    for secret in ("from-the-operator", "of-the-target", str(shell.environment["SCANNER_SHARED_SECRET"])):
        assert secret not in printed


def test_the_list_shows_the_last_accepted_and_last_refused_request_of_an_integration(
    shell: Shell, customer_id: Customer
) -> None:
    def scanner() -> dict[str, Any]:
        [record] = [record for record in shell.json("secret", "list") if record["name"] == "scanner"]
        return {name: value for name, value in record.items() if name.startswith(("last_", "connected"))}

    def refused(at: datetime) -> None:
        with shell.database():
            rejections.record([Rejection(InboundSource.SCANNER, at, 401, "UNAUTHORIZED", (), "req_of_the_log")])

    refused(NOW - timedelta(days=1))
    expected = {"last_validation": None, "last_refused_at": "2026-02-28T12:00:00.000Z", "last_refusal": "UNAUTHORIZED"}
    assert scanner() == {**expected, "connected": "failing", "last_accepted_at": None}
    with shell.database():
        form: Any = PostbackForm()
        record_postback(form.read(postback()), customer_id.project_id, NOW)
    expected["last_accepted_at"] = "2026-03-01T12:00:00.000Z"
    assert scanner() == {**expected, "connected": "connected"}
    refused(NOW + timedelta(minutes=1))
    assert scanner() == {**expected, "connected": "failing", "last_refused_at": "2026-03-01T12:01:00.000Z"}


def test_a_target_without_a_secret_is_listed_as_not_configured(shell: Shell, target_id: str) -> None:
    shell.environment["WEBHOOK_SECRET"] = None
    listed = {record["name"]: record for record in shell.json("secret", "list")}
    assert (listed[target_id]["configured"], listed[target_id]["source"]) == (False, None)


def test_a_target_is_listed_shown_paused_resumed_and_disabled(shell: Shell, target_id: str) -> None:
    assert [record["id"] for record in shell.json("target", "list")] == [target_id]
    for _ in range(2):
        assert shell.json("target", "pause", target_id)["status"] == "paused"
    assert shell.json("target", "show", target_id)["status_reason"] == "operator"
    assert shell.json("target", "resume", target_id)["status"] == "active"
    assert shell.json("target", "disable", target_id)["status"] == "disabled"
    assert "pause needs the status active" in shell.refused("target", "pause", target_id)


def test_a_target_without_a_secret_is_not_resumed(shell: Shell, target_id: str) -> None:
    shell.json("target", "disable", target_id)
    shell.environment["WEBHOOK_SECRET"] = None
    assert "no secret" in shell.refused("target", "resume", target_id)
    shell.json("secret", "set", "target", target_id, standard_input="its very own")
    assert shell.json("target", "resume", target_id)["status"] == "active"


def test_an_export_is_listed_shown_and_approved_without_redis(shell: Shell, export_id: str, target_id: str) -> None:
    listed = shell.json("export", "list")
    assert [record["id"] for record in listed] == [export_id]
    assert shell.json("export", "show", export_id)["status"] == "prepared"
    assert shell.json("export", "show", export_id)["finding"]["times_seen"] == 1
    assert shell.json("export", "approve", export_id, "--target", target_id)["status"] == "approved"
    assert "approved" in shell.refused("export", "dismiss", export_id)


def test_an_export_is_not_approved_for_a_target_that_is_paused_or_whose_url_is_refused(
    shell: Shell, export_id: str, target_id: str
) -> None:
    shell.json("target", "pause", target_id)
    refused = shell.refused("export", "approve", export_id, "--target", target_id)
    assert "/target_id: This target is paused (operator)." in refused
    assert "`target resume`" in refused
    shell.json("target", "resume", target_id)
    shell.environment["TARGET_ALLOWED_PORTS"] = "8443"
    refused = shell.refused("export", "approve", export_id, "--target", target_id)
    assert "(port_not_allowed); nothing was changed" in refused
    of_all = shell.refused("export", "approve", "--target", target_id, "--status", "prepared", "--yes")
    assert of_all == refused
    assert "correct TARGET_ALLOWED_PORTS" in refused
    # The settings of this shell must not block a target that the service's settings allow.
    assert shell.json("target", "show", target_id)["status"] == "active"
    assert shell.json("export", "show", export_id)["status"] == "prepared"


def test_exports_are_listed_for_every_account_or_a_given_one(shell: Shell, export_id: str) -> None:
    assert [record["id"] for record in shell.json("export", "list", "--account", "1")] == [export_id]
    assert shell.json("export", "list", "--account", "2") == []
    assert set(shell.json("export", "list")[0]) == set(shell.json("export", "show", export_id))


def test_a_truncated_list_of_exports_shows_the_total_and_how_to_list_more(
    shell: Shell, customer_id: Customer, export_id: str
) -> None:
    with shell.database():
        ids = make_exports(customer_id, SHOWN)
    shown = shell.run("export", "list").stdout.splitlines()
    assert (len(shown), shown[-1]) == (SHOWN + 2, "Showing the first 50 of 51. To list more: --limit N or --all.")
    assert len(shell.run("export", "list", "--all").stdout.splitlines()) == SHOWN + 2
    assert len(shell.run("export", "list", "--limit", "51").stdout.splitlines()) == SHOWN + 2
    assert shell.run("export", "list", "--limit", "2", "--status", "prepared").stdout.endswith(
        "Showing the first 2 of 51. To list more: --limit N or --all.\n"
    )
    assert [record["id"] for record in shell.json("export", "list")] == [*reversed(ids), export_id]
    assert shell.run("export", "list", "--all", "--limit", "1").exit_code == 2


def test_exports_are_listed_by_status_severity_project_and_target(shell: Shell, export_id: str, target_id: str) -> None:
    def listed(*options: str) -> int:
        return len(shell.json("export", "list", *options))

    record = shell.json("export", "approve", export_id, "--target", target_id)
    severity = record["ticket"]["severity"]
    every = ("--status", "prepared,approved", "--severity", f"info,{severity}", "--project", "1", "--target", target_id)
    assert listed(*every) == 1
    for options in (("--status", "failed"), ("--project", "2,3"), ("--target", f"tgt_{'0' * 26}"), ("--severity", "low")):
        assert listed(*every, *options) == 0
    word = record["ticket"]["title"].split()[0].upper()
    assert listed("--search", word, "--created-after", "2020-01-01T00:00:00Z", "--sort", "-severity") == 1
    for options in (("--search", "nowhere"), ("--host", "other.example"), ("--rule", "x"), ("--source", "inbound_email")):
        assert listed(*options) == 0
    for options in (("--search", "!"), ("--created-before", "soon"), ("--source", "x"), ("--sort", "x")):
        assert shell.run("export", "list", *options).exit_code != 0
    assert shell.run("export", "list", "--status", "failed").stdout == "No exports match.\n"
    wrong = shell.run("export", "list", "--status", "failed,lost")
    assert (wrong.exit_code, "--status: " in wrong.stderr) == (2, True)


def test_a_prepared_export_is_dismissed_and_restored(shell: Shell, export_id: str, target_id: str) -> None:
    dismissed = shell.json("export", "dismiss", export_id, "--reason", "wont_fix", "--note", "Next year.")
    assert dismissed["status"] == "dismissed"
    assert (dismissed["dismissal"]["reason"], dismissed["dismissal"]["note"]) == ("wont_fix", "Next year.")
    assert "dismissed" in shell.refused("export", "approve", export_id, "--target", target_id)
    assert "dismissed" in shell.refused("export", "retry", export_id)
    assert "dismissed" in shell.refused("export", "dismiss", export_id, "--reason", "other")
    assert shell.json("export", "restore", export_id)["status"] == "prepared"
    assert "/note" in shell.refused("export", "dismiss", export_id, "--note", "password: Hunter2Hunter2!")
    assert shell.run("export", "dismiss", export_id, "--reason", "boring").exit_code == 2


def test_a_prepared_export_is_snoozed_and_woken(shell: Shell, export_id: str) -> None:
    assert shell.json("export", "snooze", export_id, "--until", "2126-03-01")["snoozed_until"] == "2126-03-01T00:00:00.000Z"
    assert shell.json("export", "snooze", export_id, "--until-seen")["snoozed_until"] is None
    later = shell.json("export", "snooze", export_id, "--until", "14d")["snoozed_until"]
    assert timedelta(days=13) < datetime.fromisoformat(later) - utc_now() <= timedelta(days=14)
    assert "snoozed_until" not in shell.json("export", "restore", export_id)
    assert "/until" in shell.refused("export", "snooze", export_id, "--until", "2020-01-01")
    for options in ((), ("--until", "14d", "--until-seen"), ("--until", "soon"), ("--until", "99999999999d")):
        assert shell.run("export", "snooze", export_id, *options).exit_code == 2


def test_a_prepared_ticket_is_edited(shell: Shell, export_id: str, tmp_path: Path) -> None:
    digest = shell.json("export", "show", export_id)["ticket_digest"]
    file = tmp_path / "description.txt"
    file.write_text("Name the field.\nSee the guide.\n")
    options = ("--title", "A title", "--severity", "low", "--label", "a11y", "--label", "form")
    described = ("--description-file", str(file), "--ticket-digest", digest)
    edited = shell.json("export", "edit", export_id, *options, *described)
    ticket = edited["ticket"]
    assert (ticket["title"], ticket["severity"], ticket["labels"]) == ("A title", "low", ["a11y", "form"])
    assert ticket["description"] == "Name the field.\nSee the guide."
    assert edited["edited"] is True
    assert "digest" in shell.refused("export", "edit", export_id, "--title", "Another", "--ticket-digest", digest)
    assert "no member to change" in shell.refused("export", "edit", export_id)
    file.write_bytes(b"\xff")
    assert "not UTF-8" in shell.refused("export", "edit", export_id, "--description-file", str(file))


def test_an_export_is_approved_for_several_targets_and_retried_at_another(
    shell: Shell, export_id: str, target_id: str, customer_id: Customer
) -> None:
    open_database(shell.url)
    with connection():
        other, last = make_target(customer_id).id, make_target(customer_id).id
    close_database()
    found = shell.json("export", "approve", export_id, "--target", f"{target_id}, {other}")
    assert [each["target_id"] for each in found] == [target_id, other]
    assert "is approved" in shell.refused("export", "approve", export_id, "--target", f"{target_id},{last}")
    assert "/target_ids/1" in shell.refused("export", "approve", export_id, "--target", f"{target_id},{target_id}")
    open_database(shell.url)
    with connection():
        execute("UPDATE exports SET status = 'failed', due_at = NULL, finished_at = 1 WHERE id = ?", (export_id,))
    close_database()
    assert "/target_id" in shell.refused("export", "retry", export_id, "--target", "tgt_none")
    moved = shell.json("export", "retry", export_id, "--target", last)
    assert (moved["status"], moved["target_id"]) == ("approved", last)


def test_an_unknown_target_is_reported_as_an_error_of_its_field(shell: Shell, export_id: str) -> None:
    assert "/target_id" in shell.refused("export", "approve", export_id, "--target", "tgt_none")


def test_a_table_contains_no_control_characters_of_a_sender(shell: Shell, customer_id: Customer) -> None:
    open_database(shell.url)
    with connection():
        issue = {"code": "x", "title": "Red \x1b[31malert\x07"}
        form: Any = PostbackForm()
        record_postback(form.read(postback(issues=[issue])), customer_id.project_id, NOW)
    close_database()
    printed = shell.run("export", "list").stdout
    assert printed.splitlines()[0].split() == ["id", "status", "status_reason", "attempts", "severity", "title"]
    assert "\x1b" not in printed
    assert "\x07" not in printed


def test_a_sweep_wakes_workers_only_for_due_or_ending_exports(
    shell: Shell, export_id: str, target_id: str, customer_id: Customer
) -> None:
    assert shell.json("sweep") == {"due": 0, "notified": False}
    open_database(shell.url)
    with connection():
        transitions.approve(export_id, customer_id.account_id, Approval(target_id, None), NOW, "user:1", LOOPBACK_POLICY)
    close_database()
    assert shell.json("sweep", "--dry-run") == {"due": 1, "notified": False}
    away = shell.run("sweep", "--json")
    assert (away.exit_code, json.loads(away.stdout)) == (1, {"due": 1, "notified": False})
    # Exports that wait for a disabled target must be ended, although they are not due.
    open_database(shell.url)
    with connection():
        execute("UPDATE exports SET status = 'retry_scheduled', due_at = ?", (to_ms(NOW + timedelta(days=365)),))
    close_database()
    assert shell.json("sweep") == {"due": 0, "notified": False}
    shell.json("target", "disable", target_id)
    away = shell.run("sweep", "--json")
    assert (away.exit_code, json.loads(away.stdout)) == (1, {"due": 0, "notified": False})


def test_migrate_prints_pending_and_executed_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = shell_in(tmp_path)
    pending = shell.run("migrate", "--check")
    names = sorted(path.stem for path in Path(migrations.__path__[0]).glob("0*.py"))
    assert (pending.exit_code, pending.stdout) == (1, "".join(f"pending: {name}\n" for name in names))
    assert shell.run("migrate").stdout == "".join(f"ran: {name}\n" for name in names)
    assert shell.run("migrate").stdout == "The schema is up to date.\n"
    assert shell.run("migrate", "--check").exit_code == 0


def test_migrate_prints_migrations_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = shell_in(tmp_path / "data")
    pending = shell.run("migrate", "--check", "--json")
    assert (pending.exit_code, json.loads(pending.stdout)) == (1, {"pending": schema_version.known()})
    assert shell.json("migrate") == {"ran": schema_version.known()}
    assert shell.json("migrate") == {"ran": []}
    assert shell.json("migrate", "--check") == {"pending": []}


def test_migrate_check_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shell_in(tmp_path / "data").run("migrate", "--check").exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_every_command_refuses_a_database_of_a_newer_version(shell: Shell) -> None:
    open_database(shell.url)
    with connection():
        execute("INSERT INTO schema_migrations (name, applied) VALUES ('0999_to_come', '2030-01-01')")
    close_database()
    for words in (("serve",), ("work",), ("run",), ("migrate",), ("migrate", "--check"), ("account", "list"), ("init",)):
        assert "newer RiskRelay (0999_to_come); install that version" in shell.refused(*words)
    assert not Path(".env").exists()


def test_an_invalid_database_file_is_reported_in_one_line(shell: Shell) -> None:
    Path(shell.url.removeprefix("sqlite:///")).write_bytes(b"no database " * 500)
    for words in (("serve",), ("work",), ("run",), ("migrate",), ("migrate", "--check"), ("account", "list"), ("init",)):
        assert "file is not a database; restore a backup" in shell.refused(*words)


def test_a_damaged_database_is_reported_in_one_line(shell: Shell, customer_id: Customer) -> None:
    path = Path(shell.url.removeprefix("sqlite:///"))
    open_database(shell.url)
    with connection():
        [(page,)] = rows("SELECT rootpage FROM sqlite_master WHERE name = 'accounts'")
        [(size,)] = rows("PRAGMA page_size")
    close_database()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    assert "The database is damaged (database disk image is malformed); restore a backup" in shell.refused("account", "list")


def test_a_damaged_page_that_a_list_reaches_later_is_reported_in_one_line(shell: Shell) -> None:
    path, names = Path(shell.url.removeprefix("sqlite:///")), [f"{number:0200}" for number in range(200)]
    with shell.database(), transaction():
        for name in names:
            execute("INSERT INTO accounts (name, may_use_webhooks, created_at) VALUES (?, TRUE, 0)", (name,))
        [(size,)] = rows("PRAGMA page_size")
    with path.open("r+b") as file:
        # The page of the oldest account; the newest is read first.
        file.seek(path.read_bytes().index(names[0].encode()) // size * size)
        file.write(b"\xff" * size)
    assert "The database is damaged (database disk image is malformed); restore a backup" in shell.refused("account", "list")


def test_a_database_that_is_not_migrated_is_reported_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "bin/riskrelay migrate" in shell_in(tmp_path).refused("account", "list")


def test_an_unavailable_database_is_reported_in_one_line(shell: Shell) -> None:
    shell.environment["DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"
    assert "database is unavailable" in shell.refused("account", "list")


def test_all_invalid_settings_are_reported_at_once_with_exit_code_2(shell: Shell) -> None:
    wrong = {"BIND": "nowhere", "WORKER_PROCESSES": "0", "RETRY_SCHEDULE": "soon", "ENCRYPTION_KEYS": "short"}
    shell.environment.update(wrong)
    result = shell.run("account", "list")
    assert result.exit_code == 2
    for name in wrong:
        assert f"{name}:" in result.stderr
    assert "nowhere" not in result.stderr


def test_init_creates_a_working_installation_and_prints_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = shell_in(tmp_path)
    for name in ("ENCRYPTION_KEYS", "SCANNER_SHARED_SECRET", "WEBHOOK_SECRET"):
        shell.environment[name] = None
    made = shell.run("init")
    assert made.exit_code == 0, made.output
    settings = (tmp_path / ".env").read_text()
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "first-token").stat().st_mode & 0o777 == 0o600
    token = (tmp_path / "first-token").read_text().strip()
    assert token not in made.output
    assert not any(line.partition("=")[2] in made.output for line in settings.splitlines() if "SECRET=" in line)
    [first] = shell.json("token", "list")
    assert (first["name"], "console" in first["abilities"]) == ("first", True)
    assert "already exists" in shell.refused("init")
    assert (tmp_path / ".env").read_text() == settings


def test_init_sets_the_default_project_to_the_one_it_created(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = shell_in(tmp_path)
    url = postgres_server.create_database()
    shell.environment["DATABASE_URL"] = url
    assert shell.run("migrate").exit_code == 0
    # A rollback does not reset sequences: a failed `init` leaves this state.
    with psycopg.connect(url, autocommit=True) as connected:
        connected.execute("SELECT nextval('projects_id_seq')")
    assert shell.run("init").exit_code == 0
    assert "DEFAULT_PROJECT_ID=2\n" in (tmp_path / ".env").read_text()
    assert [project["id"] for project in shell.json("project", "list")] == [2]


def test_init_reports_an_env_file_that_cannot_be_written(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    # Not even root can create a file there.
    shell.environment["RISKRELAY_ENV_FILE"] = "/proc/self/.env"
    assert "/.env cannot be written" in shell.refused("init")


def test_init_continues_after_the_first_token_could_not_be_written(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    (tmp_path / "first-token").mkdir()
    assert "first-token cannot be written" in shell.refused("init")
    assert shell.json("account", "list") == []
    (tmp_path / "first-token").rmdir()
    assert shell.run("init").exit_code == 0
    assert len(shell.json("token", "list")) == 1


def test_init_keeps_the_keys_if_it_is_unknown_whether_the_database_committed(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    shell = shell_in(tmp_path)
    url = shell.environment["DATABASE_URL"] = postgres_server.create_database()
    assert shell.run("migrate").exit_code == 0
    with psycopg.connect(url, autocommit=True) as connected:
        connected.execute(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        # A deferred trigger runs during the commit.
        connected.execute(
            "CREATE CONSTRAINT TRIGGER lost AFTER INSERT ON accounts DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION lose()"
        )
        assert "The database is unavailable" in shell.refused("init")
        connected.execute("DROP FUNCTION lose CASCADE")
    kept = (tmp_path / ".env").read_text()
    assert shell.run("init").exit_code == 0
    assert (tmp_path / ".env").read_text().splitlines()[:-1] == kept.splitlines()[:-1]
    assert len(shell.json("token", "list")) == 1


def test_init_writes_no_setting_that_the_environment_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shell_in(tmp_path).run("init").exit_code == 0
    written = {line.partition("=")[0] for line in (tmp_path / ".env").read_text().splitlines() if "=" in line}
    assert written == {"EMAIL_WEBHOOK_SECRET", "STOREFRONT_WEBHOOK_SECRET", "DEFAULT_PROJECT_ID"}


def test_init_lists_the_settings_that_only_this_environment_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = shell_in(tmp_path)
    shell.environment |= {"WEBHOOK_SECRET": None, "WEBHOOK_SECRET_FILE": str(tmp_path / "secret")}
    (tmp_path / "secret").write_text("whsec_from_a_file_0123456789")
    [reported] = [line for line in shell.run("init").stdout.splitlines() if line.startswith("Set in the environment")]
    names = reported.partition(": ")[2].partition(".")[0].split(", ")
    assert {"DATA_DIR", "ENCRYPTION_KEYS", "WEBHOOK_SECRET"} <= set(names)
    assert "EMAIL_WEBHOOK_SECRET" not in names
    assert "whsec_from_a_file" not in reported


def test_init_completes_an_old_env_file_on_an_empty_database_and_changes_no_secret(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    shell = shell_in(tmp_path)
    env_file = tmp_path / ".env"
    assert shell.run("init").exit_code == 0
    (tmp_path / "riskrelay.db").unlink()
    before = env_file.read_text()
    completed = shell.run("init")
    assert (completed.exit_code, "created the first account" in completed.stdout) == (0, True), completed.output
    assert env_file.read_text() == before
    assert (tmp_path / "first-token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "first-token").read_text().strip() not in completed.output
    assert [record["name"] for record in shell.json("token", "list")] == ["first"]
    assert "already exists" in shell.refused("init")
    # If the project gets another id, one line of `.env` changes.
    url = postgres_server.create_database()
    shell.environment["DATABASE_URL"] = url
    assert shell.run("migrate").exit_code == 0
    with psycopg.connect(url, autocommit=True) as connected:
        connected.execute("SELECT nextval('projects_id_seq')")
    assert shell.run("init").exit_code == 0
    assert env_file.read_text() == before.replace("DEFAULT_PROJECT_ID=1", "DEFAULT_PROJECT_ID=2")
    assert [project["id"] for project in shell.json("project", "list")] == [2]


def test_init_adds_the_secrets_that_an_env_file_lacks(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    env_file = tmp_path / ".env"
    for name in ("ENCRYPTION_KEYS", "SCANNER_SHARED_SECRET", "WEBHOOK_SECRET"):
        shell.environment[name] = None
    env_file.write_text("WEBHOOK_SECRET=mine-and-kept-0123456789\nWEB_PROCESSES=1")
    env_file.chmod(0o640)
    completed = shell.run("init")
    assert completed.exit_code == 0, completed.output
    lines = dict(line.split("=", 1) for line in env_file.read_text().splitlines())
    assert {**lines, "WEBHOOK_SECRET": "mine-and-kept-0123456789", "WEB_PROCESSES": "1", "DEFAULT_PROJECT_ID": "1"} == lines
    assert {"ENCRYPTION_KEYS", "SCANNER_SHARED_SECRET", "EMAIL_WEBHOOK_SECRET", "STOREFRONT_WEBHOOK_SECRET"} < {*lines}
    assert env_file.stat().st_mode & 0o777 == 0o600
    assert not any(value in completed.output for name, value in lines.items() if name.endswith(("SECRET", "KEYS")))


@pytest.mark.parametrize("name", ["ENCRYPTION_KEYS", "WEBHOOK_SECRET"])
def test_init_keeps_the_env_file_value_of_an_empty_variable(tmp_path: Path, name: str) -> None:
    shell = shell_in(tmp_path)
    env_file = tmp_path / ".env"
    shell.environment |= {name: "", f"{name}_FILE": ""}
    env_file.write_text(f"{name}={ENCRYPTION_KEY}\n")
    env_file.chmod(0o600)
    assert shell.run("init").exit_code == 0
    lines = env_file.read_text().splitlines()
    assert [line for line in lines if line.startswith(f"{name}=")] == [f"{name}={ENCRYPTION_KEY}"]


def test_init_generates_the_value_of_an_empty_variable(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    shell.environment |= {"ENCRYPTION_KEYS": "", "WEBHOOK_SECRET": "", "WEBHOOK_SECRET_FILE": ""}
    assert shell.run("init").exit_code == 0
    lines = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines() if line[0] != "#")
    assert lines["ENCRYPTION_KEYS"]
    assert lines["WEBHOOK_SECRET"]


def test_init_prints_the_correct_project_id_for_the_environment(tmp_path: Path) -> None:
    shell = shell_in(tmp_path)
    (tmp_path / ".env").touch()
    shell.environment["DEFAULT_PROJECT_ID"] = "7"
    completed = shell.run("init")
    assert completed.exit_code == 0, completed.output
    assert "Set DEFAULT_PROJECT_ID=1 in the environment" in completed.stdout


def test_init_refuses_a_database_that_has_accounts_and_writes_nothing(shell: Shell, customer_id: Customer) -> None:
    assert "already has accounts" in shell.refused("init")
    assert not Path(".env").exists()


def test_the_number_of_worker_processes_is_limited(shell: Shell) -> None:
    refused = shell.run("work", "--processes", "1001")
    assert refused.exit_code == 2
    assert "1001 is not in the range 1<=x<=1000" in refused.stderr


def test_long_running_commands_need_encryption_keys(shell: Shell) -> None:
    for shell.environment["ENCRYPTION_KEYS"] in ("", None):
        for verb in ("serve", "work", "run"):
            refused = shell.run(verb)
            assert refused.exit_code == 2
            assert "ENCRYPTION_KEYS: set neither in the environment nor in" in refused.stderr


@pytest.mark.parametrize(
    ("words", "hint"), [(("token", "lst"), "Did you mean 'list'?"), (("targets", "list"), "Did you mean 'target'?")]
)
def test_an_unknown_command_suggests_a_similar_one(shell: Shell, words: tuple[str, ...], hint: str) -> None:
    refused = shell.run(*words)
    assert refused.exit_code == 2
    assert hint in refused.stderr


def test_a_folder_as_env_file_is_refused(shell: Shell, tmp_path: Path) -> None:
    shell.environment["RISKRELAY_ENV_FILE"] = str(tmp_path)
    refused = shell.run("account", "list")
    assert refused.exit_code == 2
    assert "Is not a file." in refused.stderr


def test_generate_and_limit_together_are_wrong_usage(shell: Shell) -> None:
    assert shell.run("rotate-keys", "--generate", "--limit", "4").exit_code == 2


def test_commands_write_to_the_migrated_database(shell: Shell, target_id: str) -> None:
    open_database(shell.url)
    with connection():
        assert schema_version.is_current()
        assert [target.id for target in targets.list_all(None)] == [target_id]
    close_database()


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (OSError(errno.ENOSPC, "secret row", "/a/place"), "OSError: No space left on device"),
        (PermissionError(errno.EACCES, "secret row", "/a/place"), "PermissionError: Permission denied"),
        (OSError("secret row"), "OSError"),  # not a number
        (socket.gaierror(socket.EAI_NONAME, "secret row"), "gaierror"),  # with its own digits
        (KeyError("secret row"), "KeyError"),
    ],
)
def test_an_unexpected_error_shows_only_its_type_and_the_system_error_text(
    error: Exception, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_bug(type(error), error, None)
    complaint = capsys.readouterr().err
    assert complaint.endswith(f"riskrelay: unexpected error ({reported}); see the lines above.\n")
    assert "/a/place" not in complaint
    assert "secret row" not in complaint
