"""The example scanner, run as a program against loopback servers for the page and for RiskRelay."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bin.demo_servers import ISSUES, DemoSite
from examples.scanner import RULES, find_issues
from schemas.intake.scanner import MAX_ISSUES, PostbackForm

ROOT = Path(__file__).parents[2]
SCANNER = ROOT / "examples" / "scanner.py"
#: Two images have no alt text; every other issue occurs once.
ISSUE_COUNT = len(ISSUES) + 1
SECRET = "a scanner's secret: é"

SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
CLEAN = """<!doctype html><html lang="en"><head><title>Clean</title>
<link rel="stylesheet" href="/site.css"><script src="https://cdn.example/x.js"></script></head>
<body><a href="http://elsewhere.example/">a link loads nothing</a><img src="/a.png" alt=""></body></html>"""


@dataclass
class RecordingServer:
    """A loopback server with one response for all requests, which it records."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def serve() -> Iterator[Callable[..., RecordingServer]]:
    servers: list[ThreadingHTTPServer] = []

    def server(**options: Any) -> RecordingServer:
        recording = RecordingServer(**options)

        class RecordingHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                recording.asked.append((f"{self.command} {self.path}", dict(self.headers.items()), body))
                self.send_response(recording.status)
                for name, value in recording.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(recording.body)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        recording.url = f"http://127.0.0.1:{servers[-1].server_address[1]}"
        return recording

    yield server
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.fixture
def relay(serve: Callable[..., RecordingServer]) -> RecordingServer:
    """Accepts every postback and returns two export ids."""
    answer = {"scan_run_id": 7, "status": "accepted", "findings": {"new": 2, "seen": 0, "fixed": 0, "reopened": 0}}
    exports = {"ticket_exports": ["exp_01A", "exp_01B"]}
    return serve(status=202, body=json.dumps(answer | exports).encode(), headers={"Content-Type": "application/json"})


def scan(*arguments: str, secret: str | None = SECRET) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SCANNER_SHARED_SECRET"}
    if secret is not None:
        environment["SCANNER_SHARED_SECRET"] = secret
    command = [sys.executable, str(SCANNER), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=60, check=False)


def codes(url: str, html: str, **headers: str) -> list[str]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return [issue["code"] for issue in find_issues(url, SAFE_HEADERS | given, html)]


# ── complete workflow ──────────────────────────────────────────────────────────


def test_the_issues_of_the_demo_page_are_found_and_posted(relay: RecordingServer) -> None:
    with DemoSite() as site:
        done = scan(site.url, "--to", relay.url, "--scan-run", "7")
    assert (done.returncode, done.stderr) == (0, "")
    (asked, headers, body), *more = relay.asked
    assert (asked, more) == ("POST /api/scanner/results", [])
    assert headers["X-Scanner-Secret"].encode("latin-1").decode() == SECRET
    assert headers["Content-Type"] == headers["Accept"] == "application/json"
    posted = json.loads(body)
    assert (posted["scanRunId"], posted["status"]) == (7, "completed")
    assert (posted["page"]["url"], posted["page"]["statusCode"]) == (site.url, 200)
    assert posted["page"]["pageType"] == "home"
    assert posted["page"]["rules"] == [*RULES]
    assert {issue["code"] for issue in posted["issues"]} == ISSUES
    assert len(posted["issues"]) == ISSUE_COUNT


def test_the_service_accepts_the_postback(relay: RecordingServer) -> None:
    with DemoSite() as site:
        scan(site.url, "--to", relay.url)
    postback = PostbackForm().load(json.loads(relay.asked[0][2]))
    assert len(postback.issues) == ISSUE_COUNT <= MAX_ISSUES
    assert {issue.severity for issue in postback.issues} == {"low", "medium", "high"}
    assert all(issue.title and issue.description and issue.location for issue in postback.issues)
    assert {issue.url for issue in postback.issues} == {postback.page.url}


def test_a_cookie_of_the_page_is_not_posted(relay: RecordingServer) -> None:
    with DemoSite() as site:
        scan(site.url, "--to", relay.url)
    assert "Content-Type" in json.loads(relay.asked[0][2])["page"]["responseHeaders"]
    assert b"visitor" not in relay.asked[0][2]
    assert b"cookie" not in relay.asked[0][2].lower()


def test_a_clean_page_has_no_issues(serve: Callable[..., RecordingServer], relay: RecordingServer) -> None:
    page = serve(body=CLEAN.encode(), headers=SAFE_HEADERS | {"Content-Type": "text/html"})
    assert scan(page.url, "--to", relay.url).returncode == 0
    assert json.loads(relay.asked[0][2])["issues"] == []


def test_each_export_is_on_its_own_line(relay: RecordingServer) -> None:
    with DemoSite() as site:
        lines = scan(site.url, "--to", relay.url).stdout.splitlines()
    assert lines[-2:] == ["exp_01A", "exp_01B"]
    assert len(lines) == ISSUE_COUNT + 2
    assert "high    Loaded over http from another host (script 'http://widgets.example/chat.js')" in lines


def test_json_prints_only_the_response(relay: RecordingServer) -> None:
    with DemoSite() as site:
        done = scan(site.url, "--to", relay.url, "--json")
    assert json.loads(done.stdout)["ticket_exports"] == ["exp_01A", "exp_01B"]


def test_the_key_is_the_same_for_a_repeat_and_different_for_another_run_or_page(
    serve: Callable[..., RecordingServer], relay: RecordingServer
) -> None:
    page = serve(body=b"<html>", headers={"Content-Type": "text/html"})
    for day, path, run in (("first", "/", "1"), ("later", "/", "1"), ("later", "/", "2"), ("later", "/other", "1")):
        page.headers = {"Content-Type": "text/html", "Date": day}
        scan(page.url + path, "--to", relay.url, "--scan-run", run)
    first, repeat, another_run, another_page = (headers["Idempotency-Key"] for _, headers, _ in relay.asked)
    assert first == repeat
    assert len({first, another_run, another_page}) == 3


# ── errors ───────────────────────────────────────────────────────────────


def test_a_rejection_is_shown_and_exits_with_1(serve: Callable[..., RecordingServer]) -> None:
    relay = serve(status=401, body=b'{"error": {"code": "UNAUTHORIZED"}}')
    with DemoSite() as site:
        done = scan(site.url, "--to", relay.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "rejected the postback with 401" in done.stderr
    assert "UNAUTHORIZED" in done.stderr
    assert SECRET not in done.stderr


def test_the_secret_is_not_sent_to_the_destination_of_a_redirect(serve: Callable[..., RecordingServer]) -> None:
    elsewhere = serve()
    relay = serve(status=307, headers={"Location": elsewhere.url})
    with DemoSite() as site:
        done = scan(site.url, "--to", relay.url)
    assert (done.returncode, elsewhere.asked) == (1, [])
    assert "rejected the postback with 307" in done.stderr


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/", "file:///etc/passwd", "ftp://127.0.0.1/", "not a url", "http://[", "http://" + "a" * 300]
)
def test_an_unreachable_page_is_reported_in_one_line(relay: RecordingServer, url: str) -> None:
    done = scan(url, "--to", relay.url)
    assert (done.returncode, done.stdout, relay.asked) == (1, "", [])
    assert done.stderr.startswith("Failed: ")
    assert done.stderr.count("\n") == 1


def test_an_unreachable_riskrelay_is_reported_in_one_line() -> None:
    with DemoSite() as site:
        done = scan(site.url, "--to", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("Failed: ConnectionError: ")
    assert "127.0.0.1" in done.stderr


def test_an_enormous_page_is_not_scanned(serve: Callable[..., RecordingServer], relay: RecordingServer) -> None:
    done = scan(serve(body=b"x" * (2 * 1024 * 1024 + 1)).url, "--to", relay.url)
    assert (done.returncode, relay.asked) == (1, [])
    assert "Not scanned" in done.stderr


def test_without_a_secret_nothing_is_fetched(serve: Callable[..., RecordingServer]) -> None:
    page = serve()
    done = scan(page.url, secret=None)
    assert (done.returncode, page.asked) == (1, [])
    assert "SCANNER_SHARED_SECRET" in done.stderr


def test_invalid_markup_is_reported_in_one_line(serve: Callable[..., RecordingServer], relay: RecordingServer) -> None:
    page = serve(body=b"<html><![nonsense[<img>", headers={"Content-Type": "text/html"})
    done = scan(page.url, "--to", relay.url)  # newer versions of Python parse it as a comment
    assert done.returncode == done.stderr.count("\n") == (0 if relay.asked else 1)
    assert "Traceback" not in done.stderr


# ── rules ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "html", "expected"),
    [
        ("https://a.example/", '<script src="http://a.example/x.js">', ["mixed-content"]),  # also from its own host
        ("https://a.example/", '<img src="HTTP://b.example/x.png" alt="">', ["mixed-content"]),
        ("https://a.example/", '<link rel="Stylesheet" href="http://b.example/x.css">', ["mixed-content"]),
        ("https://a.example/", '<link rel="canonical" href="http://b.example/">', []),  # not loaded
        ("https://a.example/", '<a href="http://b.example/">', []),
        ("https://a.example/", '<script src="//b.example/x.js">', []),  # inherits https
        ("https://a.example/", '<script src="/x.js">', []),
        ("http://a.example/", '<script src="http://a.example:8080/x.js">', []),  # the same host
        ("http://a.example/", '<script src="http://A.EXAMPLE/x.js">', []),
        ("http://a.example/", '<script src="http://b.example/x.js">', ["insecure-subresource"]),
        ("http://a.example/", '<script src="//b.example/x.js">', ["insecure-subresource"]),  # inherits http
        ("http://a.example/", '<script src="https://b.example/x.js">', []),
        ("http://[::1]:8000/", '<script src="http://[::1]/x.js">', []),
        ("http://a.example/", '<script src="http://[">', ["insecure-subresource"]),  # invalid host, must not crash
        ("http://a.example/", '<img src="x.png">', ["img-alt-missing"]),
        ("http://a.example/", '<img src="x.png" alt>', []),  # an empty alt marks decoration
        ("http://a.example/", '<img src="x.png" role="presentation">', []),
        ("http://a.example/", '<img src="x.png?1"><img src="x.png?2">', ["img-alt-missing"]),  # the same location
    ],
)
def test_markup_rules_report_the_expected_issues(url: str, html: str, expected: list[str]) -> None:
    whole = f'<html lang="en"><title>Here</title>{html}'
    assert codes(url, whole, Strict_Transport_Security="max-age=1") == expected


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<html><title>x</title>", ["html-lang-missing"]),
        ('<html lang=" "><title>x</title>', ["html-lang-missing"]),
        ('<html lang="en"><title> </title>', ["title-missing"]),
        ('<html lang="en"><TITLE class="a">\n x</TITLE>', []),
        ("<p>", ["html-lang-missing", "title-missing"]),
        ("", []),  # not HTML
    ],
)
def test_language_and_title_rules_report_the_expected_issues(html: str, expected: list[str]) -> None:
    assert codes("http://a.example/", html) == expected


@pytest.mark.parametrize(
    ("url", "headers", "html", "expected"),
    [
        ("https://a.example/", {}, "", ["missing-strict-transport-security"]),
        ("http://a.example/", {}, "", []),  # browsers ignore the header over http
        ("http://a.example/", {"X-Content-Type-Options": "sniff"}, "", ["missing-x-content-type-options"]),
        (
            "http://a.example/",
            {"Content-Security-Policy": ""},
            "",
            ["missing-content-security-policy", "missing-frame-protection"],
        ),
        ("http://a.example/", {"Content-Security-Policy": "default-src *"}, "", ["missing-frame-protection"]),
        ("http://a.example/", {"Content-Security-Policy": "default-src *", "X-Frame-Options": "DENY"}, "", []),
    ],
)
def test_header_rules_report_the_expected_issues(url: str, headers: dict[str, str], html: str, expected: list[str]) -> None:
    assert [issue["code"] for issue in find_issues(url, SAFE_HEADERS | headers, html)] == expected


def test_meta_elements_replace_headers_except_for_frame_protection() -> None:
    html = """<html lang="en"><title>x</title><meta http-equiv="Content-Security-Policy" content="frame-ancestors 'none'">
    <meta name="referrer" content="no-referrer">"""
    issues = find_issues("http://a.example/", {"X-Content-Type-Options": "nosniff"}, html)
    assert [issue["code"] for issue in issues] == ["missing-frame-protection"]


def test_a_location_is_short_printable_and_has_no_query() -> None:
    (issue,) = (
        issue
        for issue in find_issues("http://a.example/", SAFE_HEADERS, f'<img src="\x00\x1b{"x" * 999}?token=secret">')
        if issue["code"] == "img-alt-missing"
    )
    assert "token" not in issue["location"]
    assert issue["location"].isascii()
    assert issue["location"].isprintable()
    assert len(issue["location"]) < 300


def test_every_rule_is_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [code for code in RULES if f'"{code}"' not in source and code not in ISSUES] == []


def test_the_example_stays_under_120_lines() -> None:
    assert len(SCANNER.read_text(encoding="utf-8").splitlines()) < 120
