"""Runs an installation with canaries in all of its input, and then searches everything that it has written or sent.

It has real processes that log at `debug`, a Redis that writes to disk and reports its commands, a Sentry, a trace
collector, receivers that put a canary in every part of their responses, and a console user. The test searches every
response and page, every written file (logs, metrics, backups, the database with its write-ahead log), every column,
PostgreSQL's own log, a dump of the database, Redis, command lines, error reports, spans, and the output of commands.
`tests/service/api/test_canary.py` tests each member of each form separately.
"""

import base64
import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from bin.__main__ import riskrelay
from runtime.clock import utc_now
from schemas.targets.target import TargetEdit
from storage.db.engine import execute, is_sqlite, release, rows
from storage.exports import queries
from storage.secrets.vault import Vault
from storage.targets import changes, targets, webhook_secrets
from tests.support import canaries
from tests.support.factories import (
    DEFAULT_SECRET,
    LOOPBACK,
    Customer,
    environment,
    make_approved,
    make_exports,
    make_target,
    make_tracker,
)
from tests.support.fakes import LoopbackServer, Peer
from tests.support.http.console_user import FORM, make_console_token
from tests.support.http.invalid_payloads import HEADERS
from tests.support.http.raw_http import EXPORTS, RESULTS, TARGETS
from tests.support.processes.gunicorn_process import RawResponse, Service
from tests.support.processes.workers import RISKRELAY, WorkCommand, wait_until
from tests.support.scan_reports import FILES
from tests.support.servers.collectors import SentryCollector, TraceCollector
from tests.support.servers.proxies import tinyproxy
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer, free_port
from tests.support.worker.receivers import make_certificate

#: In input that must appear nowhere: headers, queries, paths, unknown members, rejected bodies. RECEIVER is the same for the
#: parts of a receiver's response other than its JSON.
NOWHERE: Final = "cAnArY-of-nowhere-4f1d9b"
RECEIVER: Final = "cAnArY-of-a-receiver-8e2c7a"
#: In input that is stored as documented: it is in the database, in responses and pages, and in deliveries.
TICKET: Final = "cAnArY-of-a-ticket-3b6f0d"
#: In the JSON of a receiver's response, which operators can read with the attempt.
SAID: Final = "cAnArY-of-words-5d0a1e"
#: In the URLs of targets, which only the customer and the operator can read.
ADDRESS: Final = "canary-of-an-address-1a7b3c"
#: The secrets of the installation. They are encrypted, or not stored at all.
SECRETS: Final = {
    name: f"cAnArY-of-{name.lower().replace('_', '-')}-9c8d7e6f"
    for name in ("SCANNER_SHARED_SECRET", "EMAIL_WEBHOOK_SECRET", "STOREFRONT_WEBHOOK_SECRET", "WEBHOOK_SECRET")
}
OWN_SECRET: Final = "cAnArY-of-one-target-2f4e6a8c"
TYPED_SECRET: Final = "cAnArY-of-a-form-6d0b4a2c"
#: The URL of the console. PAGES are the pages that the test reads.
CONSOLE_URL: Final = "https://console.example.com"
PAGES: Final = (
    *("exports", "targets", "findings", "recoveries", "integrations", "compliance", "audit", "queue", "settings"),
    *("sessions", "sign-in"),
)
HEADER: Final = "cAnArY-of-a-header-5e1f0a77"
PAIR: Final = base64.b64encode(f"somebody:{HEADER}".encode()).decode()
STANDARD: Final = base64.b64encode(b"cAnArY-of-a-standard-secret-61").decode()
ECHOED: Final = f"{PAIR} {HEADER} {STANDARD}"
PASSWORD: Final = "cAnArY-of-a-password-7b9d1f3a"
TRACKER: Final = "cAnArY-of-a-tracker-0c4e8d2a"
ISSUER: Final = "cAnArY-of-an-issuer-3d7f1b5c"
MAIL: Final = "cAnArY-of-mail-6a2c9e4d"
PROXY: Final = "cAnArY-of-a-proxy-7e1d5b9c"
CHANNEL: Final = "cAnArY-of-a-channel-1f8b3d7e"
SIGNS_ALERTS: Final = "cAnArY-of-alerts-5c9a7e3b-0d4f"
KEY: Final = b"cAnArY-of-the-key-0123456789abcd"

#: A time in milliseconds that is beyond the range of `datetime`: code that reads it raises an exception.
BEYOND_TIME: Final = 10**18
#: The places where canaries are allowed: responses to clients who may read them, output of commands, columns, and COPIES.
COPIES: Final = "copies of the tables"
BELONGS: Final = {
    TICKET: {
        *("answer by hand 201", "answer list 200", "answer target 201", "command targets", COPIES),
        *("exports.ticket", "findings.page_url", "findings.title", "page_results.url", "targets.name"),
        *("page exports 200", "page findings 200", "page targets 200"),
    },
    SAID: {
        *("attempts.answer", "exports.provider_ticket_id", "exports.provider_ticket_url"),
        *("answer list 200", "command attempts", "command export", "page export 200", COPIES),
    },
    # The page of a target repeats a rejected form.
    ADDRESS: {
        *("answer target 201", "command targets", "page target 200", "page targets 200", "page no header 422"),
        *("page no secret 422", "targets.base_url", COPIES),
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for all written files, including temporary ones. SQLite's file is beside it."""
    (tmp_path / "day" / "tmp").mkdir(parents=True)
    return tmp_path / "day"


@pytest.fixture
def written_redis() -> Iterator[RedisServer]:
    """A Redis for this test only, which writes its commands to disk and requires a password."""
    with RedisServer(persistent=True) as server:
        server.execute("ACL", "SETUSER", "riskrelay", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        yield server


def responding(*statuses: int, echoed: str = "") -> Callable[[Peer], None]:
    """Return a behavior that responds with each of the statuses, then repeats the last one.

    Its responses have a canary in every part, and the text `echoed`.
    """
    answers = iter(statuses)
    link, message = f"https://tracker.example.com/{SAID}", f"{SAID} {echoed}"
    said = json.dumps({"code": SAID, "id": SAID, "url": link, "message": message}).encode()
    trailer = f"0\r\nX-Trailer: {RECEIVER}\r\n\r\n".encode()
    body = f"{len(said):x};{RECEIVER}={RECEIVER}\r\n".encode() + said + b"\r\n" + trailer
    headers = (
        f"Transfer-Encoding: chunked\r\nRetry-After: {RECEIVER}\r\nSet-Cookie: s={RECEIVER}\r\nServer: {RECEIVER}\r\n"
        f"Location: https://{RECEIVER}.example.com/{RECEIVER}\r\nContent-Type: text/{RECEIVER}\r\n"
        f"X-{RECEIVER}: {RECEIVER}\r\n {RECEIVER}\r\nWWW-Authenticate: {RECEIVER}\r\n\r\n"
    )

    def behave(peer: Peer) -> None:
        while peer.read():
            peer.send(f"HTTP/1.1 {next(answers, statuses[-1])} {RECEIVER}\r\n{headers}".encode() + body)

    return behave


def nonsense(peer: Peer) -> None:
    """Respond with bytes that are not HTTP."""
    peer.read()
    peer.send(f"{RECEIVER} {RECEIVER}\r\n{RECEIVER}: {RECEIVER}\r\n\r\n".encode())


def redirects(peer: Peer) -> None:
    """Respond with a redirect to another host."""
    peer.read()
    peer.answer(302, b"", Location=f"https://{RECEIVER}.example.com/?{RECEIVER}")


def hostile_bytes() -> Iterator[bytes]:
    """Yield malformed requests that do not reach the application, or end in the middle."""
    word = NOWHERE.encode()
    post = b"POST " + RESULTS.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Scanner-Secret: "
    signed = post + SECRETS["SCANNER_SHARED_SECRET"].encode() + b"\r\n"
    yield word + b" / HTTP/1.1\r\n\r\n"
    yield b"GET /" + word + b" HTTP/" + word + b"\r\n\r\n"
    yield b"GET / HTTP/1.1\r\n" + word + b"\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: a\r\n" + word + b" : " + word + b"\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: a\r\nX: " + word * 1000 + b"\r\n\r\n"
    yield b"GET /" + word * 1000 + b" HTTP/1.1\r\n\r\n"
    yield b"GET /%ff" + word + b"?%ff" + word + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    yield signed + b"Content-Length: " + word + b"\r\n\r\n" + word
    yield signed + b"Transfer-Encoding: " + word + b"\r\n\r\n" + word
    yield signed + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + word + b"\r\n" + word
    yield signed + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5;" + word + b'\r\n{"a": \r\n' + word
    yield signed + b"Content-Length: 24\r\nConnection: close\r\n\r\n" + word
    yield signed + b"Content-Length: 26\r\nConnection: close\r\n\r\n\xff\xfe" + word


def send_requests(service: Service, customer: Customer) -> dict[str, bytes]:
    """Send requests of every kind, with `NOWHERE` in input that is not stored; return the responses."""
    carried = {name: NOWHERE for name in HEADERS if name not in {"X-Scanner-Secret", "Cookie"}}
    carried |= {"Cookie": f"s={NOWHERE}", "X-" + NOWHERE: NOWHERE, "Traceparent": f"00-{NOWHERE}-01"}
    secret = {"X-Scanner-Secret": SECRETS["SCANNER_SHARED_SECRET"]}
    issue = {"code": "img-alt", "title": TICKET, "severity": "high", "description": TICKET}
    page = {"url": f"https://shop.example/{TICKET}", NOWHERE: NOWHERE}
    posted = {"scanRunId": 7, "status": "completed", "page": page, "issues": [issue], NOWHERE: {NOWHERE: [NOWHERE]}}
    target = {"provider_key": "generic_webhook", "name": TICKET, "base_url": f"http://127.0.0.1:9/{ADDRESS}"}
    query = f"?{NOWHERE}={NOWHERE}&token={NOWHERE}"
    asked: dict[str, tuple[str, str, dict[str, str], object]] = {
        "accepted": ("POST", RESULTS + query, secret, posted),
        "repeated": ("POST", RESULTS + query, {**secret, "Idempotency-Key": "k1"}, posted),
        "replayed": ("POST", RESULTS + query, {**secret, "Idempotency-Key": "k1"}, posted),
        "conflict": ("POST", RESULTS + query, {**secret, "Idempotency-Key": "k1"}, {**posted, "scanRunId": 8}),
        "dry": ("POST", f"{RESULTS}?dry_run=true&{NOWHERE}", secret, {**posted, "scanRunId": 9}),
        "target": ("POST", TARGETS + query, customer.bearer, target),
        "list": ("GET", EXPORTS + query, customer.bearer, None),
        "by hand": ("POST", EXPORTS + query, customer.bearer, {"ticket": {"title": TICKET}}),
        "refused": ("POST", EXPORTS + query, customer.bearer, {"ticket": {"title": 1, NOWHERE: NOWHERE}, "source": NOWHERE}),
        "forbidden": ("POST", EXPORTS, customer.bearer, {"ticket": {"title": f"password='{NOWHERE}'", "password": NOWHERE}}),
        "unsafe": ("POST", TARGETS, customer.bearer, {**target, "base_url": f"http://{NOWHERE}.example.invalid/{NOWHERE}"}),
        "no token": ("GET", EXPORTS, {"Authorization": f"Bearer {NOWHERE}"}, None),
        "no secret": ("POST", RESULTS, {"X-Scanner-Secret": NOWHERE}, posted),
        "nowhere": ("GET", f"/{NOWHERE}/{NOWHERE}{query}", {}, None),
        "no export": ("GET", f"{EXPORTS}/exp_{NOWHERE}", customer.bearer, None),
        "no cursor": ("GET", f"{EXPORTS}?cursor={NOWHERE}&status={NOWHERE}", customer.bearer, None),
        "method": ("DELETE", EXPORTS + query, customer.bearer, None),
        "type": ("POST", EXPORTS, {**customer.bearer, "Content-Type": f"text/{NOWHERE}"}, {NOWHERE: NOWHERE}),
        "metrics": ("GET", f"/metrics{query}", {}, None),
        "ready": ("GET", f"/readyz{query}", {}, None),
    }
    answers = {}
    for name, (method, path, headers, body) in asked.items():
        answer = service.request(method, path, {**carried, **headers}, body)
        answers[f"answer {name} {answer.status}"] = f"{answer.headers}".encode() + answer.content
    for number, data in enumerate(hostile_bytes()):
        answers[f"answer to bytes {number}"] = exchanged(service, data)
    return answers


def visit_console(
    service: Service, customer: Customer, export_id: str, target_id: str
) -> tuple[dict[str, bytes], list[str]]:
    """Visit the console with `NOWHERE` in input that is not stored; return the pages, and the credentials that were used."""
    token = make_console_token(customer)
    carried = {"User-Agent": NOWHERE, "Referer": NOWHERE, "Accept-Language": NOWHERE, "X-Forwarded-For": NOWHERE}
    form = {**carried, "Origin": CONSOLE_URL, "Content-Type": FORM}

    def form_body(**fields: str) -> bytes:
        return urlencode({**fields, NOWHERE: NOWHERE}).encode()

    query = f"?{NOWHERE}={NOWHERE}"
    let_in = service.request("POST", f"/console/sign-in{query}", form, form_body(token=token))
    assert let_in.status == 303
    cookie = let_in.headers["set-cookie"].partition(";")[0]
    carried |= {"Cookie": f"{cookie}; other={NOWHERE}"}
    form |= {"Cookie": carried["Cookie"]}
    export, target = f"/exports/{export_id}", f"/targets/{target_id}"
    page = service.request("GET", f"/console{target}", carried).content.decode()
    [csrf] = set(re.findall(r'name="csrf" value="([^"]+)"', page))
    asked: dict[str, tuple[str, bytes | None]] = {
        **{name: (f"/{name}{query}", None) for name in PAGES},
        "overview": (query, None),
        "export": (f"{export}{query}", None),
        "target": (f"{target}{query}", None),
        "no filter": (f"/exports?status={NOWHERE}&cursor={NOWHERE}", None),
        "nowhere": (f"/{NOWHERE}{query}", None),
        "no export": (f"/exports/exp_{NOWHERE}", None),
        "no token": ("/sign-in", form_body(token=NOWHERE)),
        "issuer": (f"/sign-in/openid-connect{query}", None),
        "issuer's answer": (f"/sign-in/callback?code={NOWHERE}&state={NOWHERE}&iss={NOWHERE}", None),
        "no session's form": (f"{target}/pause", form_body(csrf=NOWHERE)),
        "no secret": (f"{target}/secret", form_body(csrf=csrf, secret=f"{TYPED_SECRET}\a")),
        "secret": (f"{target}/secret{query}", form_body(csrf=csrf, secret=TYPED_SECRET)),
        "no header": (f"{target}/header", form_body(csrf=csrf, name="X-Api-Key", value=f"{HEADER}\a")),
        "header": (f"{target}/header{query}", form_body(csrf=csrf, name="X-Api-Key", value=HEADER)),
        "standard secret": (f"{target}/standard-secret{query}", form_body(csrf=csrf, secret=f"whsec_{STANDARD}")),
        "no target": (f"{export}/approve", form_body(csrf=csrf, target_id=NOWHERE, ticket_digest=NOWHERE)),
    }
    reported = {}
    for name, (path, content) in asked.items():
        method, headers = ("GET", carried) if content is None else ("POST", form)
        answer = service.request(method, f"/console{path}", headers, content)
        reported[f"page {name} {answer.status}"] = f"{answer.headers}".encode() + answer.content
    answer = upload(service, form, csrf, customer.project_id, hostile_report())
    reported[f"page upload {answer.status}"] = f"{answer.headers}".encode() + answer.content
    assert answer.status == 303
    wait_until(lambda: rows("SELECT status FROM report_uploads") == [("done",)], 30)
    assert rows("SELECT COUNT(*) FROM findings")[0][0] > 5
    release()
    assert {"page secret 303", "page no secret 422", "page export 200", "page settings 200"} <= set(reported)
    assert {"page header 303", "page no header 422", "page standard secret 303"} <= set(reported)
    assert any(each.startswith("page issuer 5") for each in reported), sorted(reported)
    return reported, [token, cookie.partition("=")[2]]


def hostile_report() -> bytes:
    """Return a scanner's report with `NOWHERE` in data that is not imported, such as its requests and the responses."""
    report = json.loads(FILES["zap"].read_bytes())
    for alert in report["site"][0]["alerts"]:
        for instance in alert["instances"]:
            instance |= {"attack": NOWHERE, "evidence": NOWHERE, "otherinfo": NOWHERE, NOWHERE: NOWHERE}
    return json.dumps(report | {NOWHERE: [NOWHERE]}).encode()


def upload(service: Service, form: Mapping[str, str], csrf: str, project_id: int, content: bytes) -> RawResponse:
    """Upload a report through the console, with `NOWHERE` in the headers of the upload."""
    before = f'--b\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n{csrf}\r\n'
    before += f'--b\r\nContent-Disposition: form-data; name="project"\r\n\r\n{project_id}\r\n'
    before += '--b\r\nContent-Disposition: form-data; name="report"; filename="zap.json"\r\n'
    before += f"Content-Type: text/{NOWHERE}\r\nX-Part: {NOWHERE}\r\n\r\n"
    headers = {**form, "Content-Type": "multipart/form-data; boundary=b"}
    return service.request("POST", "/console/report-uploads", headers, before.encode() + content + b"\r\n--b--\r\n")


def exchanged(service: Service, data: bytes) -> bytes:
    """Send bytes, and shut down sending; return the response, which can be empty."""
    with service.connect() as connection, suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


def cause_errors(service: Service, customer: Customer) -> dict[str, bytes]:
    """Make a row unreadable and a table unavailable; return the responses to requests that need them."""
    [export_id] = make_exports(customer, 1)
    broken = (json.dumps({"title": TICKET}), BEYOND_TIME, export_id)
    execute("UPDATE exports SET ticket = ?, created_at = ? WHERE id = ?", broken)
    release()
    carried = {**customer.bearer, "User-Agent": NOWHERE, "Cookie": NOWHERE}
    answers = [service.request("GET", f"{EXPORTS}/{export_id}?{NOWHERE}", carried)]
    execute("ALTER TABLE exports RENAME TO exports_away")
    release()
    answers.append(service.request("POST", f"{EXPORTS}?{NOWHERE}", carried, {"ticket": {"title": NOWHERE}}))
    execute("ALTER TABLE exports_away RENAME TO exports")
    release()
    # A missing table counts as an outage with SQLite, and as an unexpected error with PostgreSQL.
    assert [answer.status for answer in answers] == [500, 503 if is_sqlite() else 500]
    return {f"answer broken {answer.status}": f"{answer.headers}".encode() + answer.content for answer in answers}


def set_every_secret(target_id: str) -> None:
    """Set every secret that a target can have."""
    vault, now = Vault([KEY]), utc_now()
    targets.set_secret(target_id, OWN_SECRET, vault, now)
    for name, value in (("Authorization", f"Basic {PAIR}"), ("X-Api-Key", HEADER)):
        webhook_secrets.set_header(target_id, name, value, vault, now, "operator")
    webhook_secrets.set_standard_secret(target_id, f"whsec_{STANDARD}", vault, DEFAULT_SECRET, now, "operator")
    changes.edit(target_id, TargetEdit(signature="both"), DEFAULT_SECRET, now, "operator")


def deliver(customer: Customer, receivers: list[LoopbackServer], tracker: LoopbackServer) -> list[str]:
    """Approve an export for each receiver, the first with its own secrets, and for the tracker; return the export ids."""
    ids = []
    for number, receiver in enumerate(receivers):
        target = make_target(customer, receiver.url(path=f"/{ADDRESS}-{number}?key={ADDRESS}"))
        if number == 0:
            set_every_secret(target.id)
        ids.append(make_approved(customer, target.id, utc_now()))
    ids.append(
        make_approved(customer, make_tracker(customer, tracker.url(path="/acme/shop"), Vault([KEY]), TRACKER), utc_now())
    )
    release()
    return ids


def run_commands(folder: Path, given: dict[str, str], export_id: str) -> dict[str, bytes]:
    """Run the commands that read, and `backup`, which copies the database; return their output."""
    commands = {
        "doctor": ("doctor", "--json"),
        "targets": ("target", "list", "--json"),
        "secrets": ("secret", "list", "--json"),
        "tokens": ("token", "list", "--json"),
        "export": ("export", "show", export_id, "--json"),
        "attempts": ("export", "attempts", export_id, "--json"),
        "unknown": ("export", "show", f"exp_{NOWHERE}"),
        "alert test": ("alert", "test"),
        "alerts": ("alert", "list", "--json"),
        "backup": ("backup", str(folder / "day.backup"), "--json"),
    }
    reported = {name: CliRunner().invoke(riskrelay, words, env=given).output.encode() for name, words in commands.items()}
    # In a separate process: it reads the unreadable row, and its error output is what a shell would show.
    broken = [RISKRELAY, "export", "list", "--json"]
    reported["broken"] = subprocess.run(broken, cwd=folder, env=given, capture_output=True, check=False).stderr
    return {f"command {name}": output for name, output in reported.items()}


def with_password(url: str) -> str:
    """Return a database's URL with a password. This PostgreSQL does not require one."""
    return url.replace("//riskrelay@", f"//riskrelay:{PASSWORD}@")


@pytest.mark.timeout(300)  # runs a complete installation, and searches all of its data
def test_canaries_of_the_input_appear_only_where_they_are_allowed(
    tmp_path: Path,
    folder: Path,
    database: str,
    customer: Customer,
    written_redis: RedisServer,
    postgres_server: PostgresServer,
) -> None:
    (folder / "secret").write_text(SECRETS["WEBHOOK_SECRET"])
    (tmp_path / "certificate").mkdir()
    (tmp_path / "proxy").mkdir()
    context, _ = make_certificate(tmp_path / "certificate", f"{RECEIVER}.example.com".lower())
    with ExitStack() as day:
        monitor = day.enter_context(canaries.Monitor(written_redis.url))
        proxy = day.enter_context(tinyproxy(tmp_path / "proxy", credentials=f"riskrelay {PROXY}"))
        sentry, traces = day.enter_context(SentryCollector()), day.enter_context(TraceCollector())
        given = environment(
            folder,
            **{**LOOPBACK, **SECRETS, "WEBHOOK_SECRET": "", "WEBHOOK_SECRET_FILE": str(folder / "secret")},
            DATABASE_URL=with_password(database),
            LOG_LEVEL="debug",
            LOG_FORMAT="json",
            WEB_PROCESSES="1",
            REDIS_URL=written_redis.url.replace("unix://", f"unix://riskrelay:{PASSWORD}@"),
            ENCRYPTION_KEYS=base64.b64encode(KEY).decode(),
            DEFAULT_PROJECT_ID=str(customer.project_id),
            SENTRY_DSN=sentry.dsn,
            OTEL_EXPORTER_OTLP_ENDPOINT=traces.endpoint,
            WORKER_METRICS_BIND=f"127.0.0.1:{free_port()}",
            RETRY_SCHEDULE="0,0,0",
            TMPDIR=str(folder / "tmp"),
            PUBLIC_BASE_URL=CONSOLE_URL,
            # Nothing listens on this port: requests to the issuer fail, and the failures are reported.
            OIDC_ISSUER=f"https://127.0.0.1:{(away := free_port())}",
            OIDC_CLIENT_ID="riskrelay",
            OIDC_CLIENT_SECRET=ISSUER,
            SMTP_URL=f"smtp://riskrelay:{MAIL}@127.0.0.1:{away}",
            ALERT_EMAIL_TO="ada@example.com",
            ALERT_EMAIL_FROM="riskrelay@example.com",
            ALERT_SLACK_URL=f"https://127.0.0.1:{away}/{CHANNEL}",
            ALERT_WEBHOOK_URL=f"https://127.0.0.1:{away}/{CHANNEL}",
            ALERT_WEBHOOK_SECRET=SIGNS_ALERTS,
            EGRESS_PROXY_URL=f"http://riskrelay:{PROXY}@127.0.0.1:{proxy.port}",
        )
        service = day.enter_context(Service(given, forked=False))
        settings = {name: value for name, value in given.items() if name not in {"DATA_DIR", "DATABASE_URL", "REDIS_URL"}}
        worker = day.enter_context(WorkCommand(folder, given["DATABASE_URL"], given["REDIS_URL"], **settings))
        receivers = [
            day.enter_context(LoopbackServer(behave))
            for behave in (responding(500, 200, echoed=ECHOED), responding(401), nonsense, redirects)
        ]
        receivers.append(day.enter_context(LoopbackServer(responding(200), context)))
        tracker = day.enter_context(LoopbackServer(responding(401, echoed=TRACKER)))
        ids = deliver(customer, receivers, tracker)
        ended = ["exported", "failed", "failed", "failed", "failed", "blocked"]
        wait_until(lambda: [queries.get(each).status for each in ids] == ended, 60)
        release()
        proxied = proxy.tunnels()
        places = send_requests(service, customer) | canaries.processes([service.pid, worker.process.pid])
        [[target_id]] = rows("SELECT target_id FROM exports WHERE id = ?", (ids[1],))
        release()
        pages, lets_in = visit_console(service, customer, ids[0], target_id)
        places |= pages
        places |= cause_errors(service, customer)
        places |= canaries.columns()
        release()
        places |= run_commands(folder, given, ids[0])
        worker.signal()
        service.terminate()
        assert (worker.wait(), service.exit_code()) == (0, 0)
        places |= canaries.redis(written_redis.url)
        written_by_redis = {f"Redis {name}": data for name, data in canaries.folder(written_redis.folder).items()}
    (folder / "secret").unlink()
    places |= {"Sentry": sentry.everything.encode(), "traces": traces.everything.encode(), **monitor.places}
    places |= {**canaries.folder(folder), **written_by_redis}
    path = Path(database.removeprefix("sqlite:///"))
    places |= canaries.postgres(postgres_server, folder / "day.backup" if database.startswith("postgres") else None)
    if database.startswith("sqlite"):
        places |= {f"SQLite {each.name}": each.read_bytes() for each in path.parent.glob(f"{path.name}*")}

    # All of this has happened, and the search finds canaries where they are allowed.
    assert (bool(sentry.events), bool(traces.spans)) == (True, True)
    assert "riskrelay.deliveries" in {line["logger"] for line in worker.log_lines}
    assert b"unexpected error (" in places["command broken"]
    assert tracker.connections
    assert proxied
    assert b"slack" in places["command alert test"].lower()
    assert {word: found_in(places, word) for word in BELONGS} == BELONGS

    nowhere = [NOWHERE, RECEIVER, *SECRETS.values(), OWN_SECRET, TYPED_SECRET, PASSWORD, KEY.decode()]
    nowhere += [TRACKER, ISSUER, MAIL, CHANNEL, SIGNS_ALERTS, PROXY]
    nowhere += [HEADER, PAIR, STANDARD, customer.token, *lets_in]
    assert canaries.traces(places, [*nowhere, base64.b64encode(KEY).decode()]) == []


def found_in(places: canaries.Places, word: str) -> set[str]:
    """Return the places that contain a word. The copies of the tables count as one place, COPIES."""
    found = {trace.removeprefix(f"{word} in ") for trace in canaries.traces(places, [word])}
    return {COPIES if name in {"dump", "file day.backup"} or name.startswith("SQLite ") else name for name in found}
