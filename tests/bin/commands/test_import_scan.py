"""`import-scan`: reports sent to a fake service and to the real one, up to delivered tickets."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from bin.__main__ import riskrelay
from bin.receiver_kit.receiver import LocalReceiver
from bin.scan_import.sender import PostbackSender, send_all
from runtime.clock import utc_now
from schemas.report_files.pages import run_number
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
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import WorkerProcess, wait_until
from tests.support.scan_reports import FILES, REPORTS, SHOP, imported
from tests.support.servers.redis_and_postgres import RedisServer
from worker.http.signing import SignatureVerdict


@dataclass
class FakeService:
    """Responds like the service, once per key; the responses in `first` are sent before that."""

    first: list[tuple[int, dict[str, str], Any]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""
    _known: dict[str, Any] = field(default_factory=dict)

    def respond(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, dict[str, str], Any]:
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


#: A response in `first` like the usual one.
def accepted(new: int = 1) -> tuple[int, dict[str, str], Any]:
    return 202, {}, {"findings": {"new": new, "seen": 0}, "ticket_exports": ["exp_x"] * new}


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, response = fake.respond(self.path, dict(self.headers.items()), body)
            content = response if isinstance(response, bytes) else json.dumps(response).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the tests' output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield fake
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: FakeService) -> Callable[..., Result]:
    """Run `riskrelay import-scan` against the fake service, in a folder without an installation."""
    monkeypatch.chdir(tmp_path)

    def run_(name: str, *words: str, file: Path | None = None, standard_input: str | None = None, **env: str) -> Result:
        command = ["import-scan", "--format", name, str(file or FILES[name]), *words]
        given = {"SCANNER_SHARED_SECRET": SCANNER_SECRET, "PUBLIC_BASE_URL": service.url, **env}
        return CliRunner().invoke(riskrelay, command, env=given, input=standard_input)

    return run_


def record(result: Result) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_no_compressed_response_is_requested(service: FakeService, run: Callable[..., Result]) -> None:
    run("zap")
    assert service.asked[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("response", [(409, {}, b"[" * 200_000), (202, {}, b"[" * 200_000)])
def test_unexpected_responses_cause_no_traceback(
    response: tuple[int, dict[str, str], Any], service: FakeService, run: Callable[..., Result]
) -> None:
    service.first = [response] * 5
    result = run("zap")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in {0, 1}


def test_each_page_is_sent_as_a_postback_with_its_own_key(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    result = run("zap", "--scan-run", "42", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [body["page"]["url"] for _, _, body in service.asked] == [
        f"{SHOP}search?q=",
        f"{SHOP}subscribe",
        SHOP,
        f"{SHOP}product?id=12&colour=blue",
        f"{SHOP}cart?sid=",
    ]
    assert {(path, headers["X-Scanner-Secret"], body["scanRunId"]) for path, headers, body in service.asked} == {
        ("/api/scanner/results", SCANNER_SECRET, 42)
    }
    assert len({headers["Idempotency-Key"] for _, headers, _ in service.asked}) == 5
    done = record(result)
    assert (done["pages"], done["issues"], done["sent"], done["findings"]) == (5, 6, 5, {"new": 6, "seen": 0})
    assert len(done["ticket_exports"]) == 6
    # no database, no folder, no log
    assert [*tmp_path.iterdir()] == []


def test_the_output_is_a_summary_and_one_export_per_line(run: Callable[..., Result]) -> None:
    lines = run("wapiti").stdout.splitlines()
    number = run_number(FILES["wapiti"].read_bytes())
    assert lines[:2] == [
        f"Wapiti report: 8 issues on 4 pages, scan run {number}.",
        "8 new findings, 0 known findings; 8 tickets prepared or extended.",
    ]
    assert all(line.startswith("exp_") for line in lines[2:])
    assert len(lines) == 10
    assert "8 new findings, 0 known findings. Nothing was stored." in run("wapiti", "--dry-run").stdout


def test_a_ticket_of_several_pages_is_printed_once(service: FakeService, run: Callable[..., Result]) -> None:
    counts = {"new": 1, "seen": 0}
    named = (["exp_a", "exp_b"], ["exp_b"], ["exp_b"], ["exp_c"])
    service.first += [(202, {}, {"findings": counts, "ticket_exports": exports}) for exports in named]
    lines = run("wapiti").stdout.splitlines()
    assert lines[1:] == ["4 new findings, 0 known findings; 3 tickets prepared or extended.", *("exp_a", "exp_b", "exp_c")]


def test_running_the_same_command_again_prepares_nothing(service: FakeService, run: Callable[..., Result]) -> None:
    run("nuclei")
    again = run("nuclei", "--json")
    done = record(again)
    assert again.exit_code == 0
    assert (done["sent"], done["sent_before"], done["findings"]["new"], done["ticket_exports"]) == (0, 3, 0, [])
    assert len(service.asked) == 6


def test_a_dry_run_sends_the_dry_run_parameter(service: FakeService, run: Callable[..., Result]) -> None:
    done = record(run("sarif", "--dry-run", "--json"))
    assert {path for path, _, _ in service.asked} == {"/api/scanner/results?dry_run=true"}
    assert (done["dry_run"], done["findings"]["new"], done["ticket_exports"]) == (True, 3, [])


def test_the_secret_can_be_read_from_standard_input(service: FakeService, run: Callable[..., Result]) -> None:
    run("sarif", "--secret-stdin", standard_input="another secret\n")
    assert {headers["X-Scanner-Secret"] for _, headers, _ in service.asked} == {"another secret"}


def test_a_report_without_issues_sends_nothing(service: FakeService, run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    result = run("nuclei", file=tmp_path / "empty.jsonl")
    assert (result.exit_code, result.stdout) == (0, "The Nuclei report contains no issues to import; nothing was sent.\n")
    files = run("sarif", "--json", file=REPORTS / "files.sarif")
    assert (files.exit_code, record(files)["postbacks"], files.stderr, service.asked) == (0, 0, "", [])
    assert record(files)["skipped"][0].startswith("2 issues without")


def nuclei_report(folder: Path, *paths: str) -> Path:
    matches = [{"template-id": "open", "type": "http", "matched-at": f"{SHOP}{path}"} for path in paths]
    file = folder / "nuclei.jsonl"
    file.write_text("\n".join(map(json.dumps, matches)))
    return file


def test_pages_of_earlier_reports_are_sent_without_issues(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    pages = tmp_path / "pages.txt"
    pages.write_text(f"{SHOP}visited?session=1\n\n{SHOP}a")
    for paths in (("a", "b", "b"), ("a",), ()):
        assert run("nuclei", "--pages", str(pages), file=nuclei_report(tmp_path, *paths)).exit_code == 0
    sent = [(body["page"]["url"].removeprefix(SHOP), len(body["issues"])) for _, _, body in service.asked]
    first, second, third = sent[:3], sent[3:6], sent[6:]
    assert first == [("a", 1), ("b", 1), ("visited?session=", 0)]
    assert second == [("a", 1), ("visited?session=", 0), ("b", 0)]
    assert third == [("visited?session=", 0), ("a", 0), ("b", 0)]
    assert {tuple(body["page"]["rules"]) for _, _, body in service.asked} == {("nuclei:*",)}
    assert pages.read_text() == f"{SHOP}visited?session=1\n{SHOP}a\n{SHOP}b\n"


def test_the_first_import_creates_the_file_of_pages_and_a_dry_run_does_not(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    pages = tmp_path / "pages.txt"
    assert run("sarif", "--pages", str(pages), "--dry-run").exit_code == 0
    assert not pages.exists()
    assert run("sarif", "--pages", str(pages)).exit_code == 0
    assert pages.read_text().splitlines() == [body["page"]["url"] for path, _, body in service.asked if "dry" not in path]


def test_a_rejected_page_is_not_added_to_the_file_of_pages(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    service.first = [(422, {}, {"details": {"fields": []}}), accepted()]
    assert run("nuclei", "--pages", "pages.txt", file=nuclei_report(tmp_path, "a", "b")).exit_code == 1
    assert (tmp_path / "pages.txt").read_text() == f"{SHOP}b\n"


def test_pages_that_a_stopped_import_did_not_send_are_not_added_to_the_file_of_pages(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    service.first = [accepted(), (401, {}, {})]
    assert run("nuclei", "--pages", "pages.txt", file=nuclei_report(tmp_path, "a", "b", "c")).exit_code == 1
    assert (tmp_path / "pages.txt").read_text() == f"{SHOP}a\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nuclei", "https://shop.example/\nshop.example/cart\n", "line 2 is not the http or https URL of a page"),
        ("nuclei", None, "it is not a regular file"),
        ("lighthouse", "", "leave out --pages"),
    ],
)
def test_a_file_of_pages_that_cannot_be_used_sends_nothing(
    name: str, content: str | None, says: str, service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    pages = tmp_path / "pages.txt"
    if content is None:
        os.mkfifo(pages)
    else:
        pages.write_text(content)
    result = run(name, "--pages", str(pages))
    assert result.exit_code in {1, 2}
    assert says in result.stderr
    assert service.asked == []


def test_skipped_issues_are_printed_on_standard_output(run: Callable[..., Result]) -> None:
    result = run("sarif", file=REPORTS / "files.sarif")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Skipped: 2 issues without")


def test_a_report_with_an_error_at_its_end_sends_nothing(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(FILES["nuclei"].read_text() + '{"template-id": []}\n')
    result = run("nuclei", file=damaged)
    assert (result.exit_code, result.stdout, service.asked) == (1, "", [])
    assert result.stderr == f"riskrelay: {damaged}: /6/template-id is not a string. Nothing was sent.\n"


WRONG_USAGE: Final = [
    ("--to", "shop.example"),
    ("--to", "ftp://shop.example"),
    ("--to", "https://u:p@shop.example"),
    ("--to", "https://shop.example/?a=1"),
    ("--to", "https://shop.example:99999"),
    # would send the secret unencrypted
    ("--to", "http://shop.example"),
    ("--scan-run", "0"),
]


@pytest.mark.parametrize("words", WRONG_USAGE)
def test_wrong_usage_sends_nothing(service: FakeService, run: Callable[..., Result], words: tuple[str, ...]) -> None:
    result = run("zap", *words)
    assert (result.exit_code, service.asked) == (2, [])
    assert words[0] in result.stderr


def test_the_secret_is_sent_unencrypted_only_to_this_machine(service: FakeService, run: Callable[..., Result]) -> None:
    result = run("zap", PUBLIC_BASE_URL="http://relay.example.com")
    assert (result.exit_code, service.asked) == (2, [])
    assert "PUBLIC_BASE_URL: http would send the scanner secret unencrypted" in result.stderr
    assert "Traceback" not in result.output


def test_proxies_and_logins_of_the_environment_are_not_used(
    service: FakeService, run: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password hunter22\n")
    nobody = "http://127.0.0.1:9"
    result = run("sarif", HTTP_PROXY=nobody, ALL_PROXY=nobody, NO_PROXY="", NETRC=str(tmp_path / "netrc"))
    assert (result.exit_code, len(service.asked)) == (0, 3)
    assert [headers for _, headers, _ in service.asked if "Authorization" in headers] == []


def test_without_a_secret_nothing_is_sent(service: FakeService, run: Callable[..., Result]) -> None:
    result = run("zap", SCANNER_SHARED_SECRET="")
    assert (result.exit_code, service.asked) == (1, [])
    assert "SCANNER_SHARED_SECRET" in result.stderr


#: Responses that apply to every page, and a part of the message.
FATAL: Final = [
    (401, {}, {}, "the scanner secret is wrong"),
    (404, {}, {}, "EXTRA_ROUTE_FAMILIES=scanner"),
    (422, {}, {"error": {"details": {"fields": [{"path": "/scanRunId", "message": "Not registered."}]}}}, "scan-run add"),
    (307, {"Location": "http://127.0.0.1:9/"}, {}, "redirects are not followed"),
    (202, {}, b"<html>", "is not RiskRelay's; check --to"),
    (403, {}, [], "this is not a response of RiskRelay; check --to"),
    (503, {"Retry-After": "3600"}, {}, "responds 503 with Retry-After 3600 s"),
    (409, {}, {"error": {"code": "IDEMPOTENCY_CONFLICT"}}, "responds 409"),
]


@pytest.mark.parametrize(("status", "headers", "body", "message"), FATAL, ids=[each[3] for each in FATAL])
def test_a_fatal_response_stops_the_import_and_the_same_command_resumes_it(
    service: FakeService, run: Callable[..., Result], status: int, headers: dict[str, str], body: Any, message: str
) -> None:
    run("zap", "--scan-run", "1")  # an import of another scan run has no effect
    service.asked.clear()
    service.first += [accepted(), accepted(), (status, headers, body)]
    stopped = run("zap")
    assert stopped.exit_code == 1
    assert message in stopped.stderr
    assert "Sent 2 of 5 postbacks; run the same command again to resume." in stopped.stderr
    assert len(service.asked) == 3
    resumed = run("zap", "--json")
    assert (resumed.exit_code, record(resumed)["stopped"]) == (0, None)
    keys = [headers["Idempotency-Key"] for _, headers, _ in service.asked]
    assert keys[:3] == keys[3:6]


def test_a_rejected_page_is_reported_and_the_others_are_sent(service: FakeService, run: Callable[..., Result]) -> None:
    problem = {"path": "/issues/0/title", "code": "jwt", "message": "Contains a JSON Web Token; remove it."}
    service.first += [accepted(), (422, {}, {"error": {"details": {"fields": [problem]}}}), (413, {}, {})]
    result = run("zap", "--json")
    assert (result.exit_code, len(service.asked)) == (1, 5)
    assert record(result)["refused"] == [
        {"url": f"{SHOP}subscribe", "problems": ["/issues/0/title: Contains a JSON Web Token; remove it."]},
        {"url": SHOP, "problems": ["larger than the service's MAX_BODY_BYTES"]},
    ]
    assert f"Rejected: {SHOP}subscribe: /issues/0/title: Contains" in result.stderr


TRANSIENT: Final = [
    (429, {"Retry-After": "0"}, {}),
    (503, {"Retry-After": "0"}, {}),
    (409, {"Retry-After": "0"}, {"error": {"code": "IDEMPOTENCY_IN_PROGRESS"}}),
    (408, {}, {}),
    (500, {}, {}),
    (502, {"Retry-After": "soon"}, b"<html>"),
]


def test_transient_failures_are_retried_with_the_same_key(service: FakeService) -> None:
    postbacks = imported("sarif").postbacks
    service.first += TRANSIENT
    summary = send_all(postbacks, PostbackSender(service.url, b"secret", pauses_s=[0] * len(TRANSIENT)), lambda _: None)
    assert (summary.sent, summary.stopped) == (3, None)
    assert {headers["Idempotency-Key"] for _, headers, _ in service.asked[: len(TRANSIENT) + 1]} == {postbacks[0].key}


def test_retry_after_replaces_the_pause(service: FakeService) -> None:
    service.first.append((503, {"Retry-After": "0"}, {}))
    began = time.monotonic()
    summary = send_all(imported("sarif").postbacks, PostbackSender(service.url, b"secret", pauses_s=(60,)), lambda _: None)
    assert (summary.sent, summary.stopped, time.monotonic() - began < 30) == (3, None, True)


def test_an_import_resumes_after_an_outage(service: FakeService) -> None:
    postbacks = imported("zap").postbacks
    service.first += [accepted(), accepted(), *[(503, {}, {})] * 3]
    summary = send_all(postbacks, PostbackSender(service.url, b"secret", pauses_s=(0, 0)), lambda _: None)
    assert (summary.sent, summary.stopped) == (
        2,
        f"{service.url.removeprefix('http://')} did not accept a page in 3 attempts: it responds 503.",
    )
    gone = send_all(postbacks, PostbackSender("http://127.0.0.1:1", b"secret", pauses_s=(0,)), lambda _: None)
    assert gone.stopped == "127.0.0.1:1 did not accept a page in 2 attempts: no connection."
    assert send_all(postbacks, PostbackSender(service.url, b"secret"), lambda _: None).stopped is None


def test_ctrl_c_stops_the_import(service: FakeService) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    summary = send_all(imported("zap").postbacks, PostbackSender(service.url, b"secret"), stop)
    assert (summary.sent, summary.stopped) == (1, "Stopped by Ctrl-C.")


def test_a_secret_with_characters_not_allowed_in_headers_stops_the_import(service: FakeService) -> None:
    summary = send_all(imported("zap").postbacks, PostbackSender(service.url, b" a\nb"), lambda _: None)
    assert "the secret contains characters that are not allowed in a header" in (summary.stopped or "")
    assert service.asked == []


# ── the real service ──────────────────────────────────────────────────────────


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Customer]:
    """A customer in a database that is also open in the test's process."""
    open_database(sqlite_url)
    with connection():
        assert not schema_version.inspect().pending
        yield make_customer()
    close_database()


def import_rejected(folder: Path, env: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Import a report with one page that the service rejects; return the rejection, and the exports of the other page."""
    token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6Ik4ifQ.c2lnbmF0dXJl"
    file = nuclei_report(folder, f"reset/{token}", "fine")
    result = CliRunner().invoke(riskrelay, ["import-scan", "--format", "nuclei", str(file), "--json"], env=env)
    assert result.exit_code == 1, result.output
    done = record(result)
    assert (done["sent"], len(done["refused"]), done["stopped"]) == (1, 1, None)
    return done["refused"][0], done["ticket_exports"]


def test_imported_reports_are_delivered_as_tickets_and_a_repeated_scan_prepares_none(
    shop: Customer, sqlite_url: str, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"DATABASE_URL": sqlite_url, "REDIS_URL": redis.url, "WEB_PROCESSES": "1", **LOOPBACK}
    serving = environment(tmp_path, DEFAULT_PROJECT_ID=str(shop.project_id), **given)
    with (
        LocalReceiver([WEBHOOK_SECRET.encode()], utc_now) as receiver,
        Service(serving) as service,
        WorkerProcess(tmp_path / "worker", sqlite_url, redis.url),
    ):
        env = {"SCANNER_SHARED_SECRET": SCANNER_SECRET, "PUBLIC_BASE_URL": f"http://127.0.0.1:{service.port}"}

        def import_(name: str, *words: str) -> dict[str, Any]:
            command = ["import-scan", "--format", name, str(FILES[name]), "--json", *words]
            result = CliRunner().invoke(riskrelay, command, env=env)
            assert result.exit_code == 0, result.output
            return record(result)

        prepared: list[str] = []
        for name in FILES:
            dry_run = import_(name, "--dry-run")
            done = import_(name)
            assert dry_run["findings"] == done["findings"] == {"new": done["issues"], "seen": 0}, name
            assert len(done["ticket_exports"]) == done["issues"] > 0, name
            prepared += done["ticket_exports"]
            again = import_(name)
            assert (again["findings"]["new"], again["sent_before"]) == (0, done["postbacks"]), name
            next_scan = import_(name, "--scan-run", "42")
            assert next_scan["findings"] == {"new": 0, "seen": done["issues"]}, name
        rejected, others = import_rejected(tmp_path, env)
        assert rejected["problems"][0].startswith("/page/url: ")
        prepared += others
        target = make_target(shop, receiver.url)
        for export_id in prepared:
            path = f"/api/ticket-exports/{export_id}/approve"
            assert service.request("POST", path, shop.bearer, {"target_id": target.id}).status == 202
        wait_until(lambda: {each.export_id for each in receiver.received} == set(prepared), 60)
    assert {each.verdict for each in receiver.received} == {SignatureVerdict.OK}
    assert "Cross Site Scripting (Reflected)" in {
        each.title.partition(" on ")[0] for each in receiver.received if each.title
    }


def test_the_last_finding_of_a_page_is_fixed_if_the_page_is_in_the_file_of_pages(
    shop: Customer, sqlite_url: str, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = environment(
        tmp_path, DATABASE_URL=sqlite_url, REDIS_URL=redis.url, WEB_PROCESSES="1", DEFAULT_PROJECT_ID=str(shop.project_id)
    )
    with Service(env) as service:
        to = {"SCANNER_SHARED_SECRET": SCANNER_SECRET, "PUBLIC_BASE_URL": f"http://127.0.0.1:{service.port}"}
        for run_id, paths in enumerate((("a", "b"), ("a",), ("a",)), 1):
            report = str(nuclei_report(tmp_path, *paths))
            words = ["import-scan", "--format", "nuclei", report, "--pages", "pages.txt", "--scan-run", str(run_id)]
            imported = CliRunner().invoke(riskrelay, words, env=to)
            assert imported.exit_code == 0
            assert (", 1 fixed;" in imported.stdout) == (run_id == 3), imported.stdout
        found = service.request("GET", "/api/findings", shop.bearer).json["items"]
    assert {each["url"].removeprefix(SHOP): each["state"] for each in found} == {"a": "open", "b": "fixed"}
