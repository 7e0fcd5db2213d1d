"""`import-scan`: postbacks of reports on their way, to a stand-in and to the real service, and on to delivered tickets."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from bin.__main__ import riskrelay
from bin.receiver_kit.receiver import Receiver
from bin.scan_import.pages import run_number
from bin.scan_import.sender import Relay, send_all
from runtime.clock import utc_now
from storage.db import schema_version
from storage.db.engine import close_database, connection, open_database
from tests.support.factories import (
    LOOPBACK,
    SCANNER_SECRET,
    WEBHOOK_SECRET,
    Customer,
    environment,
    make_customer,
    make_target,
)
from tests.support.gunicorn_process import Service
from tests.support.scan_reports import FILES, REPORTS, SHOP, imported
from tests.support.servers import RedisServer
from tests.support.workers import WorkerProcess, wait_until
from worker.http.signing import SignatureVerdict


@dataclass
class StandIn:
    """Answers as the service does, each key once; what stands in `first` is answered before that."""

    first: list[tuple[int, dict[str, str], Any]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""
    _known: dict[str, Any] = field(default_factory=dict)

    def answer(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, dict[str, str], Any]:
        self.asked.append((path, headers, body))
        if self.first:
            return self.first.pop(0)
        if "dry_run" in path:
            return 200, {}, self._accepted(body)
        key = headers["Idempotency-Key"]
        if key in self._known:
            return 202, {"Idempotency-Replayed": "true"}, self._known[key]
        self._known[key] = self._accepted(body)
        return 202, {}, self._known[key]

    def _accepted(self, body: Any) -> Any:
        count = len(body["issues"])
        exports = [f"exp_{len(self._known)}_{number}" for number in range(count)]
        findings = {"new": count, "seen": 0}
        return {"scan_run_id": body["scanRunId"], "status": "accepted", "findings": findings, "ticket_exports": exports}


#: For an answer of `first` that goes on as usual.
def accepted(new: int = 1) -> tuple[int, dict[str, str], Any]:
    return 202, {}, {"findings": {"new": new, "seen": 0}, "ticket_exports": ["exp_x"] * new}


@pytest.fixture
def relay() -> Iterator[StandIn]:
    stand_in = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, answer = stand_in.answer(self.path, dict(self.headers.items()), body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the tests' output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield stand_in
    server.shutdown()
    server.server_close()


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relay: StandIn) -> Callable[..., Result]:
    """Type `riskrelay import-scan` for the stand-in, in a folder without an installation."""
    monkeypatch.chdir(tmp_path)

    def type_(name: str, *words: str, file: Path | None = None, standard_input: str | None = None, **env: str) -> Result:
        command = ["import-scan", "--format", name, str(file or FILES[name]), *words]
        given = {"SCANNER_SHARED_SECRET": SCANNER_SECRET, "PUBLIC_BASE_URL": relay.url, **env}
        return CliRunner().invoke(riskrelay, command, env=given, input=standard_input)

    return type_


def record(result: Result) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_a_page_is_a_postback_with_a_key_of_its_own(relay: StandIn, typed: Callable[..., Result], tmp_path: Path) -> None:
    result = typed("zap", "--scan-run", "42", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [body["page"]["url"] for _, _, body in relay.asked] == [
        f"{SHOP}search?q=",
        f"{SHOP}subscribe",
        SHOP,
        f"{SHOP}product?id=12&colour=blue",
        f"{SHOP}cart?sid=",
    ]
    assert {(path, headers["X-Scanner-Secret"], body["scanRunId"]) for path, headers, body in relay.asked} == {
        ("/api/scanner/results", SCANNER_SECRET, 42)
    }
    assert len({headers["Idempotency-Key"] for _, headers, _ in relay.asked}) == 5
    done = record(result)
    assert (done["pages"], done["flaws"], done["sent"], done["findings"]) == (5, 6, 5, {"new": 6, "seen": 0})
    assert len(done["ticket_exports"]) == 6
    # no database, no folder, no log
    assert [*tmp_path.iterdir()] == []


def test_a_person_reads_what_came_of_it_and_each_export_alone_on_its_line(typed: Callable[..., Result]) -> None:
    lines = typed("wapiti").stdout.splitlines()
    run = run_number(FILES["wapiti"].read_bytes())
    assert lines[:2] == [f"Wapiti report: 8 flaws on 4 pages, scan run {run}.", "8 tickets prepared, 0 were known already."]
    assert all(line.startswith("exp_") for line in lines[2:])
    assert len(lines) == 10
    assert "8 tickets would be prepared" in typed("wapiti", "--dry-run").stdout


def test_typing_the_same_again_prepares_nothing(relay: StandIn, typed: Callable[..., Result]) -> None:
    typed("nuclei")
    again = typed("nuclei", "--json")
    done = record(again)
    assert again.exit_code == 0
    assert (done["sent"], done["sent_before"], done["findings"]["new"], done["ticket_exports"]) == (0, 3, 0, [])
    assert len(relay.asked) == 6


def test_a_dry_run_asks_the_service_to_store_nothing(relay: StandIn, typed: Callable[..., Result]) -> None:
    done = record(typed("sarif", "--dry-run", "--json"))
    assert {path for path, _, _ in relay.asked} == {"/api/scanner/results?dry_run=true"}
    assert (done["dry_run"], done["findings"]["new"], done["ticket_exports"]) == (True, 3, [])


def test_the_secret_may_come_by_standard_input(relay: StandIn, typed: Callable[..., Result]) -> None:
    typed("sarif", "--secret-stdin", standard_input="another secret\n")
    assert {headers["X-Scanner-Secret"] for _, headers, _ in relay.asked} == {"another secret"}


def test_nothing_to_import_is_told_and_nothing_is_sent(relay: StandIn, typed: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    result = typed("nuclei", file=tmp_path / "empty.jsonl")
    assert (result.exit_code, result.stdout) == (0, "The Nuclei report holds nothing to import; nothing was sent.\n")
    files = typed("sarif", "--json", file=REPORTS / "files.sarif")
    assert (files.exit_code, record(files)["postbacks"], relay.asked) == (0, 0, [])
    assert files.stderr.startswith("Left out: 2 without")


def test_of_a_report_that_is_damaged_at_its_end_nothing_is_sent(
    relay: StandIn, typed: Callable[..., Result], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(FILES["nuclei"].read_text() + '{"template-id": []}\n')
    result = typed("nuclei", file=damaged)
    assert (result.exit_code, result.stdout, relay.asked) == (1, "", [])
    assert result.stderr == f"riskrelay: {damaged}: /6/template-id is not a text. Nothing was sent.\n"


WRONG_USAGE: Final = [
    ("--to", "shop.example"),
    ("--to", "ftp://shop.example"),
    ("--to", "https://u:p@shop.example"),
    ("--to", "https://shop.example/?a=1"),
    ("--to", "https://shop.example:99999"),
    # the secret would go there in the clear
    ("--to", "http://shop.example"),
    ("--scan-run", "0"),
]


@pytest.mark.parametrize("words", WRONG_USAGE)
def test_wrong_usage_sends_nothing(relay: StandIn, typed: Callable[..., Result], words: tuple[str, ...]) -> None:
    result = typed("zap", *words)
    assert (result.exit_code, relay.asked) == (2, [])
    assert words[0] in result.stderr


def test_the_secret_goes_in_the_clear_to_this_machine_alone(relay: StandIn, typed: Callable[..., Result]) -> None:
    result = typed("zap", PUBLIC_BASE_URL="http://relay.example.com")
    assert (result.exit_code, relay.asked) == (2, [])
    assert "PUBLIC_BASE_URL: The scanner secret would go there in the clear" in result.stderr
    assert "Traceback" not in result.output


def test_neither_proxies_nor_logins_of_the_machine_come_between(
    relay: StandIn, typed: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password hunter22\n")
    nobody = "http://127.0.0.1:9"
    result = typed("sarif", HTTP_PROXY=nobody, ALL_PROXY=nobody, NO_PROXY="", NETRC=str(tmp_path / "netrc"))
    assert (result.exit_code, len(relay.asked)) == (0, 3)
    assert [headers for _, headers, _ in relay.asked if "Authorization" in headers] == []


def test_without_a_secret_nothing_is_sent(relay: StandIn, typed: Callable[..., Result]) -> None:
    result = typed("zap", SCANNER_SHARED_SECRET="")
    assert (result.exit_code, relay.asked) == (1, [])
    assert "SCANNER_SHARED_SECRET" in result.stderr


#: What no other page would be answered otherwise; what is told of it.
ENDS_IT: Final = [
    (401, {}, {}, "its scanner secret is another one"),
    (404, {}, {}, "EXTRA_ROUTE_FAMILIES=scanner"),
    (422, {}, {"error": {"details": {"fields": [{"path": "/scanRunId", "message": "Not registered."}]}}}, "scan-run add"),
    (307, {"Location": "http://127.0.0.1:9/"}, {}, "a redirect, which is not followed"),
    (202, {}, b"<html>", "not as RiskRelay does"),
    (403, {}, [], "is --to right?"),
    (503, {"Retry-After": "3600"}, {}, "asks to wait for 3600 s"),
    (409, {}, {"error": {"code": "IDEMPOTENCY_CONFLICT"}}, "answers 409"),
]


@pytest.mark.parametrize(("status", "headers", "body", "said"), ENDS_IT, ids=[each[3] for each in ENDS_IT])
def test_what_every_page_would_be_answered_ends_it_and_typing_the_same_goes_on(
    relay: StandIn, typed: Callable[..., Result], status: int, headers: dict[str, str], body: Any, said: str
) -> None:
    typed("zap", "--scan-run", "1")  # whatever was sent before, by another run, is another matter
    relay.asked.clear()
    relay.first += [accepted(), accepted(), (status, headers, body)]
    failed = typed("zap")
    assert failed.exit_code == 1
    assert said in failed.stderr
    assert "Sent 2 of 5 postbacks; type the same again to go on." in failed.stderr
    assert len(relay.asked) == 3
    gone_on = typed("zap", "--json")
    assert (gone_on.exit_code, record(gone_on)["failed"]) == (0, None)
    keys = [headers["Idempotency-Key"] for _, headers, _ in relay.asked]
    assert keys[:3] == keys[3:6]


def test_a_page_that_is_refused_is_told_and_the_others_go(relay: StandIn, typed: Callable[..., Result]) -> None:
    problem = {"path": "/issues/0/title", "code": "jwt", "message": "Contains a JSON Web Token; remove it."}
    relay.first += [accepted(), (422, {}, {"error": {"details": {"fields": [problem]}}}), (413, {}, {})]
    result = typed("zap", "--json")
    assert (result.exit_code, len(relay.asked)) == (1, 5)
    assert record(result)["refused"] == [
        {"url": f"{SHOP}subscribe", "problems": ["/issues/0/title Contains a JSON Web Token; remove it."]},
        {"url": SHOP, "problems": ["larger than the service's MAX_BODY_BYTES"]},
    ]
    assert f"Refused: {SHOP}subscribe: /issues/0/title Contains" in result.stderr


PASSING: Final = [
    (429, {"Retry-After": "0"}, {}),
    (503, {"Retry-After": "0"}, {}),
    (409, {"Retry-After": "0"}, {"error": {"code": "IDEMPOTENCY_IN_PROGRESS"}}),
    (408, {}, {}),
    (500, {}, {}),
    (502, {"Retry-After": "soon"}, b"<html>"),
]


def test_what_may_pass_is_tried_again_under_the_same_key(relay: StandIn) -> None:
    postbacks = imported("sarif").postbacks
    relay.first += PASSING
    tally = send_all(postbacks, Relay(relay.url, b"secret", pauses_s=[0] * len(PASSING)), lambda _: None)
    assert (tally.sent, tally.failed) == (3, None)
    assert {headers["Idempotency-Key"] for _, headers, _ in relay.asked[: len(PASSING) + 1]} == {postbacks[0].key}


def test_a_relay_that_dies_halfway_leaves_the_rest_for_the_next_time(relay: StandIn) -> None:
    postbacks = imported("zap").postbacks
    relay.first += [accepted(), accepted(), *[(503, {}, {})] * 3]
    tally = send_all(postbacks, Relay(relay.url, b"secret", pauses_s=(0, 0)), lambda _: None)
    assert (tally.sent, tally.failed) == (
        2,
        f"{relay.url.removeprefix('http://')} did not take it in 3 tries: it answers 503.",
    )
    gone = send_all(postbacks, Relay("http://127.0.0.1:1", b"secret", pauses_s=(0,)), lambda _: None)
    assert gone.failed == "127.0.0.1:1 did not take it in 2 tries: no connection."
    assert send_all(postbacks, Relay(relay.url, b"secret"), lambda _: None).failed is None


def test_ctrl_c_says_how_to_go_on(relay: StandIn) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    tally = send_all(imported("zap").postbacks, Relay(relay.url, b"secret"), stop)
    assert (tally.sent, tally.failed) == (1, "Stopped by Ctrl-C.")


def test_a_secret_that_no_header_carries_ends_it(relay: StandIn) -> None:
    tally = send_all(imported("zap").postbacks, Relay(relay.url, b" a\nb"), lambda _: None)
    assert "the secret has characters that no header can carry" in (tally.failed or "")
    assert relay.asked == []


# ── the whole way ──────────────────────────────────────────────────────────


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Customer]:
    """A customer in a database that the test's process has open, too."""
    open_database(sqlite_url)
    with connection():
        assert not schema_version.inspect().pending
        yield make_customer()
    close_database()


def type_refused(folder: Path, env: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Import a report with a page that the service refuses, and one that it takes; return the refusal and the exports."""
    token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6Ik4ifQ.c2lnbmF0dXJl"
    matches = [{"template-id": "open", "type": "http", "matched-at": f"{SHOP}{path}"} for path in (f"reset/{token}", "fine")]
    file = folder / "refused.jsonl"
    file.write_text("\n".join(json.dumps(match) for match in matches))
    result = CliRunner().invoke(riskrelay, ["import-scan", "--format", "nuclei", str(file), "--json"], env=env)
    assert result.exit_code == 1, result.output
    done = record(result)
    assert (done["sent"], len(done["refused"]), done["failed"]) == (1, 1, None)
    return done["refused"][0], done["ticket_exports"]


def test_reports_end_in_delivered_tickets_and_the_next_scan_prepares_none(
    shop: Customer, sqlite_url: str, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"DATABASE_URL": sqlite_url, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
    serving = environment(tmp_path, DEFAULT_PROJECT_ID=str(shop.project_id), **given)
    with (
        Receiver([WEBHOOK_SECRET.encode()], utc_now) as receiver,
        Service(serving) as service,
        WorkerProcess(tmp_path / "worker", sqlite_url, redis.url),
    ):
        env = {"SCANNER_SHARED_SECRET": SCANNER_SECRET, "PUBLIC_BASE_URL": f"http://127.0.0.1:{service.port}"}

        def type_(name: str, *words: str) -> dict[str, Any]:
            command = ["import-scan", "--format", name, str(FILES[name]), "--json", *words]
            result = CliRunner().invoke(riskrelay, command, env=env)
            assert result.exit_code == 0, result.output
            return record(result)

        prepared: list[str] = []
        for name in FILES:
            tried = type_(name, "--dry-run")
            done = type_(name)
            assert tried["findings"] == done["findings"] == {"new": done["flaws"], "seen": 0}, name
            assert len(done["ticket_exports"]) == done["flaws"] > 0, name
            prepared += done["ticket_exports"]
            again = type_(name)
            assert (again["findings"]["new"], again["sent_before"]) == (0, done["postbacks"]), name
            next_scan = type_(name, "--scan-run", "42")
            assert next_scan["findings"] == {"new": 0, "seen": done["flaws"]}, name
        refused, gone = type_refused(tmp_path, env)
        assert refused["problems"][0].startswith("/page/url ")
        prepared += gone
        target = make_target(shop, receiver.url)
        for export_id in prepared:
            path = f"/api/ticket-exports/{export_id}/approve"
            assert service.request("POST", path, shop.bearer, {"target_id": target.id}).status == 202
        wait_until(lambda: {each.export_id for each in receiver.received} == set(prepared), 60)
    assert {each.verdict for each in receiver.received} == {SignatureVerdict.OK}
    assert "Cross Site Scripting (Reflected)" in {
        each.title.partition(" on ")[0] for each in receiver.received if each.title
    }
