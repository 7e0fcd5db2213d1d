"""Requests of remote commands: the token, hostile servers, outages, retries."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from bin.api_client import client
from bin.api_client.client import ApiClient
from bin.api_client.retrying_session import MAX_RESPONSE_BYTES
from bin.remote import dispatch, exports
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.processes.shell import RemoteShell
from tests.support.servers.authorities import CertificateAuthority
from tests.support.servers.redis_and_postgres import free_port
from tests.support.worker.receivers import DRIPPED_BODIES, always, drip_body_of, drip_headers, say_nothing

TOKEN: Final = "rrt_" + "s3cret" * 6
ROOT: Final = Path(__file__).resolve().parents[3]
TARGET: Final = {"id": "tgt_1", "name": "Ours", "status": "active"}


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Retry once without a pause, with a deadline of one second. The credentials file is in the test's folder."""
    monkeypatch.setattr(dispatch, "ApiClient", partial(ApiClient, pauses_s=(0.0,), deadline_s=1.0))
    monkeypatch.setenv("RISKRELAY_CREDENTIALS", str(tmp_path / "credentials"))


def refused(tmp_path: Path, url: str, *words: str, token: str = TOKEN, exit_code: int = 1) -> str:
    """Run a command that must fail; return its error output, which must not contain the token."""
    result = RemoteShell(tmp_path, url, token).run(*(words or ("target", "show", "tgt_1")))
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
    assert TOKEN not in result.stderr
    assert isinstance(result.exception, SystemExit), result.exception
    assert exit_code == 2 or len(result.stderr.splitlines()) == 1
    return result.stderr


def respond(responses: list[tuple[int, Any, dict[str, str]]], asked: list[ReceivedRequest]) -> Callable[[Peer], None]:
    """Return a behavior that sends the responses in order, one for each request, and records the requests in `asked`."""

    def behave(peer: Peer) -> None:
        while request := peer.read():
            asked.append(request)
            status, body, headers = responses.pop(0)
            peer.answer(status, body if isinstance(body, bytes) else json.dumps(body).encode(), **headers)

    return behave


# --- the token


def test_the_token_is_sent_in_a_header_and_nowhere_else(tmp_path: Path) -> None:
    asked: list[ReceivedRequest] = []
    with LoopbackServer(respond([(200, TARGET, {})], asked)) as server:
        assert RemoteShell(tmp_path, server.url(path=""), TOKEN).json("target", "show", "tgt_1") == TARGET
    assert asked[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert asked[0].line == "GET /api/ticket-export-targets/tgt_1 HTTP/1.1"


def test_the_url_may_have_a_path(tmp_path: Path) -> None:
    asked: list[ReceivedRequest] = []
    with LoopbackServer(respond([(200, TARGET, {})], asked)) as server:
        assert RemoteShell(tmp_path, server.url(path="/relay/"), TOKEN).json("target", "show", "tgt_1") == TARGET
    assert asked[0].line == "GET /relay/api/ticket-export-targets/tgt_1 HTTP/1.1"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://relay.example.com", "http would send the token unencrypted"),
        ("ftp://relay.example.com", "Use a URL such as https://relay.example.com"),
        ("https://user:password@relay.example.com", "Use a URL such as"),
        ("relay.example.com", "Use a URL such as"),
        ("https://relay.example.com/?x=1", "Use a URL such as"),
    ],
)
def test_an_unsafe_or_invalid_url_is_refused(url: str, error: str, tmp_path: Path) -> None:
    assert error in refused(tmp_path, url, exit_code=2)


@pytest.mark.parametrize("token", ["with space", "täken", "line\nbreak"])
def test_a_token_with_invalid_characters_is_refused_and_not_shown(token: str, tmp_path: Path) -> None:
    message = refused(tmp_path, "https://relay.example.com", token=token)
    assert "The token contains a character that no token has" in message
    assert token not in message


def test_no_process_argument_contains_the_token(tmp_path: Path) -> None:
    with LoopbackServer(say_nothing) as server:
        environment = {**os.environ, "RISKRELAY_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "bin", "--url", server.url(path=""), "target", "list"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                while not server.connections:
                    assert process.poll() is None
                    time.sleep(0.02)
                assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            finally:
                process.kill()
            assert TOKEN.encode() not in process.communicate()[0]


# --- the credentials file


def test_an_unknown_home_folder_is_treated_as_a_missing_credentials_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the case in a container that runs with an arbitrary user id."""
    monkeypatch.setenv("RISKRELAY_CREDENTIALS", "~no-such-user/credentials")
    reported = refused(tmp_path, "http://127.0.0.1:1", token="", exit_code=2)
    assert "set RISKRELAY_TOKEN, or add a line `URL TOKEN` to ~no-such-user/credentials" in reported


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.touch(mode=0o600)
    return path


def test_the_token_of_the_url_is_read_from_the_credentials_file(tmp_path: Path, file: Path) -> None:
    asked: list[ReceivedRequest] = []
    with LoopbackServer(respond([(200, TARGET, {})], asked)) as server:
        url = server.url(path="")
        file.write_text(f"# tokens\n\nhttps://other.example.com other-token\n{url.upper()}/ {TOKEN}\n")
        assert RemoteShell(tmp_path, url, "").json("target", "show", "tgt_1") == TARGET
    assert asked[0].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o755])
def test_a_credentials_file_that_other_users_can_read_is_refused(mode: int, tmp_path: Path, file: Path) -> None:
    file.write_text(f"https://relay.example.com {TOKEN}\n")
    file.chmod(mode)
    assert f"run: chmod 600 {file}" in refused(tmp_path, "https://relay.example.com", token="")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (TOKEN, "line 1: use the form `URL TOKEN`"),
        (f"# x\nurl {TOKEN} x", "line 2: use the form"),
        (b"\xff", "line 1: use the form"),
    ],
)
def test_an_invalid_credentials_file_is_refused(content: str | bytes, error: str, tmp_path: Path, file: Path) -> None:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert error in refused(tmp_path, "https://relay.example.com", token="")


def test_without_a_token_the_message_names_its_sources(tmp_path: Path, file: Path) -> None:
    file.write_text(f"https://other.example.com {TOKEN}\n")
    message = refused(tmp_path, "https://relay.example.com", token="", exit_code=2)
    assert "set RISKRELAY_TOKEN, or add a line `URL TOKEN` to" in message


# --- behaviors of servers


def test_errors_are_printed_with_the_message_of_the_api(tmp_path: Path) -> None:
    problem = {"path": "/name", "code": "required", "message": "Required.\u202e"}
    error = {"code": "VALIDATION_FAILED", "message": "Validation\nfailed", "details": {"fields": [problem]}}
    with LoopbackServer(always(422, json.dumps({"error": error}).encode())) as server:
        message = refused(tmp_path, server.url(path=""), "target", "pause", "tgt_1")
    assert message == "riskrelay: Validation failed: /name: Required.\\u202e\n"


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with LoopbackServer(always()) as other, LoopbackServer(always(307, b"", Location=other.url())) as server:
        assert "Redirects are not followed: set --url to the URL" in refused(tmp_path, server.url(path=""))
        assert other.connections == 0


def test_an_untrusted_certificate_ends_the_command(tmp_path: Path) -> None:
    context = CertificateAuthority("Ours").server("localhost")
    with LoopbackServer(always(200, json.dumps(TARGET).encode()), tls=context) as server:
        message = refused(tmp_path, f"https://localhost:{server.port}")
    assert "its certificate is not trusted" in message
    assert server.connections == 1


def test_the_certificate_bundle_of_the_environment_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *more, **named: resolve("127.0.0.1", *more, **named))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    authority = CertificateAuthority("Ours")
    bundle = tmp_path / "authority.pem"
    bundle.write_text(authority.pem)
    context = authority.server("relay.example.com")
    with LoopbackServer(always(200, json.dumps(TARGET).encode()), tls=context) as server:
        url = f"https://relay.example.com:{server.port}"
        assert "its certificate is not trusted" in refused(tmp_path, url)
        shell = RemoteShell(tmp_path, url, TOKEN, REQUESTS_CA_BUNDLE=str(bundle))
        assert shell.json("target", "show", "tgt_1") == TARGET


def test_a_refused_connection_is_reported_in_one_line(tmp_path: Path) -> None:
    assert "did not respond as it should, also not later: no connection." in refused(
        tmp_path, f"http://127.0.0.1:{free_port()}"
    )


def drip_json(peer: Peer) -> None:
    """Send a valid response so slowly that it takes a minute."""
    peer.read()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    peer.drip(b" " * 1000)


SLOW: Final = {
    "silent": say_nothing,
    "headers": drip_headers,
    "json": drip_json,
    **{name: drip_body_of(head) for name, head in DRIPPED_BODIES.items()},
}


@pytest.mark.parametrize("behave", SLOW.values(), ids=SLOW)
def test_a_request_to_a_slow_server_ends_at_the_deadline(behave: Callable[[Peer], None], tmp_path: Path) -> None:
    began = time.monotonic()
    with LoopbackServer(behave) as server:
        assert "sent no complete response in time" in refused(tmp_path, server.url(path=""))
        assert server.connections == 1
    assert time.monotonic() - began < 5


def test_a_response_is_read_up_to_the_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "ApiClient", partial(ApiClient, pauses_s=(0.0,), deadline_s=30.0))
    sent = 0
    piece = b"[" * 1024**2

    def behave(peer: Peer) -> None:
        nonlocal sent
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.send(piece)
            sent += len(piece)

    with LoopbackServer(behave) as server:
        assert "sent more than 64 MiB" in refused(tmp_path, server.url(path=""))
    assert sent < MAX_RESPONSE_BYTES + 16 * 1024**2


def test_a_list_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_PAGES", 3)
    page = json.dumps({"items": [TARGET], "next_cursor": "x", "total": None}).encode()
    with LoopbackServer(always(200, page)) as server:
        assert "is not from RiskRelay" in refused(tmp_path, server.url(path=""), "target", "list")


BODIES: Final = (b"", b"<html>", b"\xff{", b"[]", b"null", b'"x"', b"{}", b"[" * 100_000, b'{"id": NaN', b"9" * 5000)


@pytest.mark.parametrize("status", [200, 204, 299, 302, 304, 400, 401, 404, 418, 500])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:9]))
def test_a_response_of_another_server_is_refused(status: int, body: bytes, tmp_path: Path) -> None:
    with LoopbackServer(always(status, b"" if status in {204, 304} else body)) as server:
        assert "--url" in refused(tmp_path, server.url(path=""))


LISTS: Final[dict[str, Any]] = {"no items": {"next_cursor": None}, "no cursor": {"items": []}}


@pytest.mark.parametrize("page", LISTS.values(), ids=LISTS)
def test_an_invalid_list_response_is_refused(page: Any, tmp_path: Path) -> None:
    with LoopbackServer(always(200, json.dumps(page).encode())) as server:
        assert "--url" in refused(tmp_path, server.url(path=""), "target", "list")


#: A response that every command accepts.
ANY_RECORD: Final[dict[str, Any]] = {
    **TARGET,
    "id": "exp_1",
    "status": "done",
    "target_id": None,
    "provider_key": "linear",
    "provider_settings": {"status": {}},
    "provider_ticket": {"id": "1", "url": "https://tracker.example.com/1"},
    "ticket": {"title": "T", "severity": "high"},
    "last_validation": {"status": "passed", "reason": None},
    "error_code": None,
    "delivered": True,
    "may_use_webhooks": True,
    "token": "rrt_1",
    "kind": "user",
    "state": "active",
    "user_id": 1,
    "abilities": [],
    **dict.fromkeys(("user", "created_at", "expires_at", "revoked_at", "due_at", "role", "project_id")),
    "report_id": 7,
    "facets": {"severity": {"high": 1}},
    "total": 1,
    "usage": {name: {"used": 1, "limit": 2} for name in ("findings", "waiting_exports", "targets", "uploads_24h")},
}
ANY_RESPONSE: Final = {**ANY_RECORD, "items": [ANY_RECORD], "next_cursor": None}
#: The members of a response that each command reads. A dot leads into an object, or into the first object of a list.
FIELDS_READ: Final = {
    "account list": "items.usage items.usage.targets items.usage.targets.used",
    "grant list": "items.id items.user_id items.state",
    "grant remove 1": "id",
    "grant remove --user a@example.com --report 7": "items items.id items.report_id",
    "token create --user a@example.com": "items.id token",
    "compliance list": "items.status",
    "target set tgt_1 --setting labels.part=x": "provider_settings provider_key",
    "target resume --all": "items.id",
    "target validate tgt_1": "last_validation last_validation.status last_validation.reason",
    "target ping tgt_1": "error_code",
    "export list": "items next_cursor items.ticket items.ticket.title",
    "export list --limit 1": "total",
    "export show exp_1": "target_id id",
    "export open exp_1": "provider_ticket provider_ticket.url status",
    "export approve exp_1 --target tgt_1 --target tgt_2": "items items.id",
    "export dismiss --severity high": "total facets facets.severity facets.severity.high",
    "export dismiss --severity high --yes": "id status",
    "export recover --target tgt_1 --since 7d": "id status",
    "session revoke --user a@example.com": "items.id items.user",
}


def without(response: Any, place: str) -> Any:
    """Return a response without the member at `place`."""
    if isinstance(response, list):
        return [without(response[0], place)]
    name, _, rest = place.partition(".")
    others = {each: response[each] for each in response if each != name}
    return {**others, name: without(response[name], rest)} if rest else others


@pytest.mark.parametrize(
    ("command", "place"), [(each, place) for each in FIELDS_READ for place in FIELDS_READ[each].split()]
)
def test_a_missing_response_field_is_reported_without_a_traceback(command: str, place: str, tmp_path: Path) -> None:
    response: Any = ANY_RESPONSE

    def behave(peer: Peer) -> None:
        while request := peer.read():
            is_removal = request.line.startswith("DELETE")
            peer.answer(204 if is_removal else 200, b"" if is_removal else json.dumps(response).encode())

    with LoopbackServer(behave) as server:
        shell = RemoteShell(tmp_path, server.url(path=""), TOKEN)
        assert shell.run(*command.split(), standard_input="y\n").exit_code == 0
        response = without(ANY_RESPONSE, place)
        result = shell.run(*command.split(), standard_input="y\n")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.exit_code in {0, 1}


def test_control_characters_of_a_server_do_not_reach_the_terminal(tmp_path: Path) -> None:
    record = {**TARGET, "name": "\x1b]0;x\x07\u202e"}
    with LoopbackServer(always(200, json.dumps(record).encode())) as server:
        shell = RemoteShell(tmp_path, server.url(path=""), TOKEN)
        printed = shell.run("target", "show", "tgt_1").stdout + shell.run("target", "show", "tgt_1", "--json").stdout
    assert printed.count("\\u001b]0;x\\u0007\\u202e") == 2
    assert "\x1b" not in printed


# --- retries


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_change_is_retried_with_its_key(status: int, tmp_path: Path) -> None:
    asked: list[ReceivedRequest] = []
    first = (status, b"busy", {"Retry_After": "0"})
    with LoopbackServer(respond([first, (200, TARGET, {}), (200, TARGET, {})], asked)) as server:
        shell = RemoteShell(tmp_path, server.url(path=""), TOKEN)
        for _ in range(2):
            assert shell.json("target", "pause", "tgt_1") == TARGET
    keys = [each.headers["idempotency-key"] for each in asked]
    assert (keys[0] == keys[1], keys[1] == keys[2]) == (True, False)


def test_a_change_with_a_lost_response_is_retried_with_its_key(tmp_path: Path) -> None:
    asked: list[ReceivedRequest] = []

    def behave(peer: Peer) -> None:
        if peer.number == 1:
            asked.append(peer.read() or pytest.fail("no request"))
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            return
        respond([(200, TARGET, {})], asked)(peer)

    with LoopbackServer(behave) as server:
        assert RemoteShell(tmp_path, server.url(path=""), TOKEN).json("target", "pause", "tgt_1") == TARGET
    assert asked[0].headers["idempotency-key"] == asked[1].headers["idempotency-key"]


def test_retries_during_an_outage_end_with_its_reason(tmp_path: Path) -> None:
    error = {"code": "SERVICE_UNAVAILABLE", "message": "The database is unavailable.", "details": {}, "request_id": "req_1"}
    with LoopbackServer(always(503, json.dumps({"error": error}).encode())) as server:
        message = refused(tmp_path, server.url(path=""))
        assert server.connections <= 2
    assert "also not later: The database is unavailable. (request req_1)" in message


def test_a_long_retry_after_ends_the_command(tmp_path: Path) -> None:
    with LoopbackServer(always(429, b"{}", Retry_After="3600")) as server:
        refused(tmp_path, server.url(path=""))
        assert server.connections == 1


# --- jobs of workers


def job_server(total: int, asked: list[ReceivedRequest]) -> Callable[[Peer], None]:
    """Return a behavior that finds `total` exports, and has a job that processes one export and then makes no progress."""
    job = {"id": "blk_1", "status": "running", "total": total}

    def behave(peer: Peer) -> None:
        while request := peer.read():
            asked.append(request)
            is_list = request.line.startswith("GET /api/ticket-exports?")
            page: dict[str, Any] = {
                "items": [],
                "next_cursor": None,
                "total": total,
                "facets": {"severity": {"high": total}},
            }
            peer.answer(200, json.dumps(page if is_list else {**job, "done": int(len(asked) > 2)}).encode())

    return behave


def test_waiting_ends_for_a_job_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_PAUSE_S", 0.01)
    monkeypatch.setattr(exports, "_NO_PROGRESS_S", 0.3)
    for words, command in (
        (("dismiss", "--severity", "high", "--reason", "test", "--yes"), "bulk"),
        (("recover", "--target", "tgt_1", "--since", "7d"), "recover"),
    ):
        asked: list[ReceivedRequest] = []
        with LoopbackServer(job_server(2, asked)) as server:
            result = RemoteShell(tmp_path, server.url(path=""), TOKEN).run("export", *words, "--json")
        assert result.exit_code == 1
        assert (json.loads(result.stdout)["status"], json.loads(result.stdout)["done"]) == ("running", 1)
        assert "blk_1 is still running, without progress for 0 s; check that a worker runs" in result.stderr
        assert f"see `export {command} --show blk_1`" in result.stderr


def test_no_job_is_created_if_nothing_matches(tmp_path: Path) -> None:
    asked: list[ReceivedRequest] = []
    with LoopbackServer(job_server(0, asked)) as server:
        shell = RemoteShell(tmp_path, server.url(path=""), TOKEN)
        printed = shell.json("export", "dismiss", "--severity", "high", "--reason", "test", "--yes")
    assert [printed[name] for name in ("id", "action", "status", "total", "done")] == [None, "dismiss", "done", 0, 0]
    assert [each.line.split()[0] for each in asked] == ["GET"]


def test_an_approval_without_matching_exports_still_validates_its_target(tmp_path: Path) -> None:
    def behave(peer: Peer) -> None:
        while request := peer.read():
            if request.line.startswith("GET"):
                peer.answer(200, b'{"items": [], "next_cursor": null, "total": 0, "facets": {"severity": {}}}')
            else:
                peer.answer(422, b'{"error": {"code": "VALIDATION_FAILED", "message": "No target has this id."}}')

    with LoopbackServer(behave) as server:
        done = RemoteShell(tmp_path, server.url(path=""), TOKEN).run("export", "approve", "--target", "tgt_0", "--rule", "a")
    assert (done.exit_code, "No target has this id." in done.stderr) == (1, True)


def test_local_commands_do_not_import_the_remote_package() -> None:
    code = "import sys; from bin.__main__ import riskrelay; from bin.cli.lazy_group import load; load(('target', 'list'));"
    code += "print([each for each in sys.modules if each.startswith('bin.remote')])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[]\n"
