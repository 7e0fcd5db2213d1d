"""Two real workers send one chat message when a target is down and one when it has recovered, and log no secret."""

from collections.abc import Callable
from typing import Final

from schemas.targets.target import Target
from storage.db.engine import execute, rows
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.servers.authorities import CertificateAuthority

HOST: Final = "127.0.0.1"


def test_two_workers_send_one_message_when_an_alert_opens_and_one_when_it_ends(
    target: Target, start: Callable[..., WorkerProcess]
) -> None:
    received: list[ReceivedRequest] = []

    def behave(peer: Peer) -> None:
        while request := peer.read():
            received.append(request)
            peer.answer(200, b"ok")

    authority = CertificateAuthority("the company")
    execute("UPDATE targets SET status = 'disabled', status_reason = 'receiver_gone' WHERE id = ?", (target.id,))
    with LoopbackServer(behave, authority.server(HOST)) as chat:
        settings = {
            "ALERTS": "target",
            "ALERT_SLACK_URL": chat.url(HOST, "/services/s3cr3t-token"),
            "TARGET_CA": authority.pem,
            "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
            "TARGET_ALLOWED_PORTS": str(chat.port),
        }
        with start(**settings) as first, start(**settings) as second:
            wait_until(lambda: received)
            wait_until(lambda: first.has_logged("worker started") and second.has_logged("worker started"))
            wait_until(lambda: rows("SELECT 1 FROM alert_messages") == [])
            logged = str(first.log_lines) + str(second.log_lines)
        execute("UPDATE targets SET status = 'active', status_reason = NULL")
        execute("UPDATE alerts SET sent_at = sent_at - 3600000")
        with start(**settings), start(**settings):
            wait_until(lambda: len(received) > 1)
            wait_until(lambda: rows("SELECT 1 FROM alert_messages") == [])
    assert [b"Target disabled" in each.body for each in received] == [True, False]
    assert b"Over: target disabled" in received[1].body
    assert "alert sent" in logged
    assert "s3cr3t" not in logged
