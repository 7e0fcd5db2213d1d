"""`riskrelay alert`: tests each channel, lists and acknowledges alerts; `sweep` detects that no worker runs."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.base.timestamps import from_ms
from storage.db.engine import close_database, rows
from storage.exports import worker_heartbeats
from storage.reporting.alerts import MAX_OPEN
from tests.support.factories import make_alert, make_customer
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.processes.shell import Shell
from tests.support.servers.authorities import CertificateAuthority

HOST: Final = "127.0.0.1"
SECRET_PATH: Final = "/services/T0/B0/s3cr3t-token"


class Chats:
    """Two chats on one server: one accepts messages, the other rejects them."""

    def __init__(self) -> None:
        self.received: list[ReceivedRequest] = []

    def __call__(self, peer: Peer) -> None:
        while request := peer.read():
            self.received.append(request)
            is_known = SECRET_PATH in request.line
            peer.answer(200 if is_known else 404, b"ok" if is_known else b"no_service")


@pytest.fixture
def chats() -> Chats:
    return Chats()


@pytest.fixture
def shell(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, chats: Chats) -> Iterator[Shell]:
    """An installation with a working channel."""
    monkeypatch.chdir(tmp_path)
    authority = CertificateAuthority("the company")
    with LoopbackServer(chats, authority.server(HOST)) as server:
        settings = {
            "ALERT_SLACK_URL": server.url(HOST, SECRET_PATH),
            "TARGET_CA": authority.pem,
            "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
            "TARGET_ALLOWED_PORTS": str(server.port),
            "ALERTS": "worker,target",
        }
        yield Shell(tmp_path, sqlite_url, **settings)
    close_database()


def test_alert_test_sends_a_message_to_every_channel_and_prints_its_response(shell: Shell, chats: Chats) -> None:
    assert shell.json("alert", "test") == {"slack": "HTTP 200 ok"}
    [request] = chats.received
    assert "Test of a channel for alerts" in request.body.decode()


def test_a_failing_channel_is_reported_without_its_url(shell: Shell, chats: Chats) -> None:
    shell.environment["ALERT_DISCORD_URL"] = f"{shell.environment['ALERT_SLACK_URL']}".replace("s3cr3t", "other-s3cr3t")
    result = shell.run("alert", "test")
    assert result.exit_code == 1
    assert [line.split(maxsplit=1) for line in result.stdout.splitlines()] == [
        ["slack", "HTTP 200 ok"],
        ["discord", "HTTP 404 no_service"],
    ]
    assert result.stderr == "riskrelay: Not sent: discord.\n"
    assert "s3cr3t" not in result.output


def test_alert_test_without_a_configured_channel_is_wrong_usage(shell: Shell) -> None:
    del shell.environment["ALERT_SLACK_URL"]
    result = shell.run("alert", "test")
    assert result.exit_code == 2
    assert "No channel is configured" in result.output


def test_alerts_are_listed_and_acknowledged(shell: Shell) -> None:
    assert shell.run("alert", "list").stdout == "There are no alerts.\n"
    with shell.database():
        customer = make_customer()
        over, opened = make_alert(customer, 1, "recovered"), make_alert(customer, 2)
    assert shell.run("alert", "acknowledge", opened).exit_code == 0
    first, second = shell.json("alert", "list")
    assert (first["id"], first["alert"]) == (opened, "Target fails: Tracker (tracker.example.com)")
    assert (first["acknowledged_by"], second["id"]) == ("operator", over)
    assert "Target fails" in shell.run("alert", "list").stdout
    assert shell.refused("alert", "acknowledge", "alr_none").startswith("riskrelay: There is no such alert")


def test_every_open_alert_is_listed(shell: Shell) -> None:
    with shell.database():
        customer = make_customer()
        ids = {make_alert(customer, number) for number in range(MAX_OPEN + 1)}
    assert {each["id"] for each in shell.json("alert", "list")} == ids


def test_json_lists_all_recovered_alerts_and_a_table_the_newest_hundred(shell: Shell) -> None:
    with shell.database():
        customer = make_customer()
        ids = [make_alert(customer, number, "recovered") for number in range(101)]
    assert [each["id"] for each in shell.json("alert", "list")] == ids[::-1]
    table = shell.run("alert", "list").stdout
    assert ids[1] in table
    assert ids[0] not in table


def test_sweeps_send_one_alert_if_no_worker_is_running(shell: Shell, chats: Chats) -> None:
    with shell.database():
        worker_heartbeats.beat("worker:here:1:ab", utc_now() - timedelta(minutes=5))
    assert shell.json("sweep", "--dry-run")["due"] == 0
    assert chats.received == []
    for _ in range(2):
        assert shell.json("sweep") == {"due": 0, "notified": False}
    [request] = chats.received
    assert "No worker is running" in request.body.decode()
    with shell.database():
        assert rows("SELECT kind, state FROM alerts") == [("worker", "open")]


def test_a_backup_records_its_time_in_the_database(shell: Shell, tmp_path: Path) -> None:
    taken = shell.json("backup", str(tmp_path / "a.backup"))
    with shell.database():
        [(backup_at,)] = rows("SELECT backup_at FROM installation")
    assert abs(datetime.fromisoformat(taken["taken_at"]) - from_ms(backup_at)) < timedelta(milliseconds=2)
