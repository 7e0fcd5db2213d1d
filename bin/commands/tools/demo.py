"""`demo`: run the whole workflow on a temporary installation, and exit with 0 only if every step succeeded.

`examples/scanner.py` scans a page with real issues, and its findings become tickets. A receiver that first responds 503,
then 429 with Retry-After, receives them signed; the last ticket becomes an issue of a small GitHub. Everything runs on
loopback in a temporary folder.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from dotenv import dotenv_values

from bin.api_client.client import ApiClient
from bin.cli.output import Refused, echo
from bin.commands.installation.init import FIRST_TOKEN
from bin.demo_servers import ISSUES, DemoGitHub, DemoSite
from bin.processes import child_process
from bin.processes.local_service import DIRECTLY
from bin.receiver_kit.receiver import FaultInjection, LocalReceiver, Received
from runtime.clock import utc_now
from schemas.settings.definitions import ENV_FILE_VARIABLE
from worker.http.signing import SignatureVerdict

ROOT: Final = Path(__file__).resolve().parents[3]
RISKRELAY: Final = ROOT / "bin" / "riskrelay"
SCANNER: Final = ROOT / "examples" / "scanner.py"

#: The receiver's first responses; then it accepts.
FAILURES: Final = (503, 429)
#: The receiver's Retry-After: longer than the schedule's delay, but short enough for a demo.
RETRY_AFTER_S: Final = 2
#: Seconds after each failure; the default schedule would take hours.
RETRY_SCHEDULE: Final = "1,1,1,1"

START_WITHIN_S: Final = 60
DELIVER_WITHIN_S: Final = 30
STOP_WITHIN_S: Final = 30
POLL_S: Final = 0.2

EXPORTS: Final = "/api/ticket-exports"
TARGETS: Final = "/api/ticket-export-targets"


@click.command()
def demo() -> None:
    """Run the whole workflow on a temporary installation: scan, approve, deliver to a webhook and a simulated GitHub.

    Example: riskrelay demo

    Exit codes: 0 every step succeeded, 1 a step failed.
    """
    began_at = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="riskrelay-demo-") as folder:
            _run_workflow(Path(folder))
    except Refused as failed:
        echo(f"\nThe demo failed: {failed.message}", err=True)
        raise SystemExit(1) from None
    echo(f"\nEvery step succeeded in {time.monotonic() - began_at:.0f} s. The temporary installation is deleted.")


def _run_workflow(folder: Path) -> None:
    environment = _environment(folder)
    _step("Create an installation")
    _run([RISKRELAY, "init"], folder, environment)
    _print("created settings, secrets, keys, an account, a project and a token")
    secrets = dotenv_values(folder / ".env")
    url = f"http://{environment['BIND']}"
    api = ApiClient(url, (folder / "data" / FIRST_TOKEN).read_text().strip())
    webhook_secret = (secrets["WEBHOOK_SECRET"] or "").encode()
    faults = FaultInjection(failures=FAILURES, retry_after_s=RETRY_AFTER_S)
    with (
        _running(folder, environment, url),
        DemoSite() as site,
        LocalReceiver([webhook_secret], utc_now, faults=faults) as receiver,
        DemoGitHub() as github,
    ):
        export_ids = _scan(api, site.url, url, secrets["SCANNER_SHARED_SECRET"] or "")
        target_id = _create_target(api, receiver)
        _deliver_through_failures(api, receiver, export_ids[0], target_id)
        _deliver_the_rest(api, receiver, export_ids[1:-1], target_id)
        tracker_id = _add_tracker(folder, environment, github)
        _deliver_as_issue(api, github, export_ids[-1], tracker_id)
        _verify_token_is_sealed(folder, api, github.token)


@contextmanager
def _running(folder: Path, environment: dict[str, str], url: str) -> Iterator[None]:
    """Run the installation; its log is printed only if it does not start."""
    log = folder / "run.log"
    with log.open("wb") as output:
        process = child_process.start(["/bin/sh", str(RISKRELAY), "run"], env=environment, output=output, cwd=folder)
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while not _is_ready(url):
            _require(time.monotonic() < deadline, f"the installation did not start: {log.read_text()[-2000:]}")
            time.sleep(POLL_S)
        _print(f"service and worker are ready at {url}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_WITHIN_S)
    _require(process.returncode == 0, f"the installation exited with {process.returncode}")


def _scan(api: ApiClient, site: str, url: str, secret: str) -> list[str]:
    _step(f"Scan {site}")
    environment = {**os.environ, "SCANNER_SHARED_SECRET": secret, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, SCANNER, site, "--to", url, "--scan-run", "1"]
    lines = _run(command, ROOT, environment).splitlines()
    export_ids = [line for line in lines if line.startswith("exp_")]
    for line in lines:
        if line not in export_ids:
            _print(f"found: {line}")
    # A new project has one ticket for each rule.
    _require(len(export_ids) == len(ISSUES), f"expected {len(ISSUES)} prepared tickets, got {len(export_ids)}")
    for export_id in export_ids:
        record = api.get(f"{EXPORTS}/{export_id}")
        _require(record["status"] == "prepared" and record["preview"]["safe"], f"{export_id} is not prepared and safe")
    _print(f"{len(export_ids)} tickets are prepared; no preview contains forbidden content")
    return export_ids


def _create_target(api: ApiClient, receiver: LocalReceiver) -> str:
    _step("Create a webhook target")
    body = {"provider_key": "generic_webhook", "base_url": receiver.url, "name": "Demo receiver"}
    target = api.post(TARGETS, body)
    _require(target["status"] == "active", f"the target is {target['status']}")
    _print(f"{target['id']} at {target['base_url']} is active, signed with {target['secret']['fingerprint']}")
    return str(target["id"])


def _deliver_through_failures(api: ApiClient, receiver: LocalReceiver, export_id: str, target_id: str) -> None:
    _step("Approve a ticket; the receiver fails twice")
    _approve(api, export_id, target_id)
    seen = _wait_until_exported(api, export_id)
    _require("retry_scheduled" in seen, f"{export_id} had the statuses {', '.join(seen)}, without a retry")
    attempts = receiver.received
    for attempt in attempts:
        _print(f"receiver: signature {attempt.verdict}, response {attempt.response.status}")
    _verify_attempts(attempts, export_id)
    waited_s = (attempts[2].at - attempts[1].at).total_seconds()
    _require(waited_s >= RETRY_AFTER_S, f"the retry came after {waited_s:.2f} s, despite Retry-After {RETRY_AFTER_S} s")
    _print(f"the retry came {waited_s:.1f} s after the 429 with Retry-After {RETRY_AFTER_S} s")


def _verify_attempts(attempts: list[Received], export_id: str) -> None:
    statuses = [attempt.response.status for attempt in attempts]
    _require(statuses == [*FAILURES, 200], f"the receiver responded {statuses}")
    _require(all(a.verdict is SignatureVerdict.OK for a in attempts), "a signature is invalid")
    _require(len({attempt.body for attempt in attempts}) == 1, "the attempts had different bodies")
    _require({attempt.idempotency_key for attempt in attempts} == {export_id}, "the Idempotency-Key changed")
    _require(len({attempt.request_id for attempt in attempts}) == len(attempts), "two attempts had the same id")


def _deliver_the_rest(api: ApiClient, receiver: LocalReceiver, export_ids: list[str], target_id: str) -> None:
    _step("Approve the other tickets")
    before = receiver.count
    for export_id in export_ids:
        _approve(api, export_id, target_id, quiet=True)
    for export_id in export_ids:
        _wait_until_exported(api, export_id, quiet=True)
    delivered = receiver.received[before:]
    _require(all(each.verdict is SignatureVerdict.OK for each in delivered), "a signature is invalid")
    keys = sorted(each.idempotency_key or "" for each in delivered)
    _require(keys == sorted(export_ids), "the receiver did not receive each ticket exactly once")
    _print(f"{len(export_ids)} more tickets are exported; the receiver got each once, with a valid signature")


def _add_tracker(folder: Path, environment: dict[str, str], github: DemoGitHub) -> str:
    _step("Add a GitHub repository as a target; the token comes on standard input")
    command = [RISKRELAY, "target", "add", "github", github.url, "--label", "website-risk"]
    _print(f"$ riskrelay {' '.join(map(str, command[1:]))} <token.txt")
    added = _run_json(command, folder, environment, github.token)
    checked = _run_json([RISKRELAY, "target", "validate", added["id"]], folder, environment)["checked"]
    _require(checked["status"] == "passed", f"the validation failed: {checked['reason']}")
    _print(f"{added['id']} is {added['status']}; GitHub accepts the token for {github.url}")
    return str(added["id"])


def _run_json(command: Sequence[Any], folder: Path, environment: dict[str, str], standard_input: str = "") -> Any:
    """Run a command of the installation, and return the JSON document that it prints."""
    return json.loads(_run([*command, "--json"], folder, environment, standard_input))


def _run(command: Sequence[Any], folder: Path, environment: dict[str, str], standard_input: str = "") -> str:
    """Run a program in a folder; return its standard output."""
    done = subprocess.run(
        command, cwd=folder, env=environment, input=standard_input, capture_output=True, text=True, check=False
    )
    words = " ".join(map(str, command[:3]))
    _require(done.returncode == 0, f"`{words}` exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _deliver_as_issue(api: ApiClient, github: DemoGitHub, export_id: str, target_id: str) -> None:
    _step("Approve the last ticket for GitHub")
    _approve(api, export_id, target_id)
    _wait_until_exported(api, export_id, quiet=True)
    _require(len(github.issues) == 1, f"GitHub got {len(github.issues)} issues")
    [issue] = github.issues
    ticket = api.get(f"{EXPORTS}/{export_id}")["provider_ticket"]
    expected = {"id": str(issue["number"]), "url": issue["html_url"]}
    _require(ticket == expected, f"provider_ticket is {ticket}, but GitHub created {expected}")
    _print(f"issue {ticket['id']} at {ticket['url']}, labels: {', '.join(issue['labels'])}")
    _print(f"title: {issue['title']}")
    for line in issue["body"].splitlines():
        _print(f"  | {line}")


def _verify_token_is_sealed(folder: Path, api: ApiClient, token: str) -> None:
    """Require that the token is in no file of the installation, such as database or log, and in no response."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    found = [file.name for file in files if token.encode() in file.read_bytes()]
    found += [path for path in (TARGETS, EXPORTS) if token in json.dumps(api.get(path))]
    _require(not found, f"GitHub's token is in clear in {', '.join(found)}")
    _print(f"GitHub's token is in clear nowhere: searched {len(files)} files and the API's responses")


def _approve(api: ApiClient, export_id: str, target_id: str, *, quiet: bool = False) -> None:
    record = api.post(f"{EXPORTS}/{export_id}/approve", {"target_id": target_id})
    if not quiet:
        _print(f"{export_id} is {record['status']}: {record['ticket']['title']}")


def _wait_until_exported(api: ApiClient, export_id: str, *, quiet: bool = False) -> list[str]:
    """Wait until an export is exported, and print each of its statuses; return them."""
    seen, deadline = list[str](), time.monotonic() + DELIVER_WITHIN_S
    while "exported" not in seen:
        record = api.get(f"{EXPORTS}/{export_id}")
        status = str(record["status"])
        if status not in seen[-1:]:
            seen.append(status)
            wait = f", next attempt in {record['retry_after_seconds']} s" if "retry_after_seconds" in record else ""
            last = record.get("last_attempt") or {}
            cause = f" after {last['response_status']} {last['error_code']}" if last.get("error_code") else ""
            if status in {"retry_scheduled", "exported"} and not quiet:
                _print(f"{export_id} is {status}{cause}{wait}")
        _require(time.monotonic() < deadline, f"{export_id} had the statuses {', '.join(seen)}")
        time.sleep(POLL_S)
    return seen


def _is_ready(url: str) -> bool:
    try:
        with DIRECTLY.open(f"{url}/readyz", timeout=2):
            return True
    except OSError:
        return False


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the temporary installation, without settings of the caller."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        ENV_FILE_VARIABLE: str(folder / ".env"),
        "DATA_DIR": str(folder / "data"),
        "BIND": f"127.0.0.1:{_free_port()}",
        "RETRY_SCHEDULE": RETRY_SCHEDULE,
        # The receiver is on loopback, which is not allowed by default.
        "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
        "TARGET_ALLOWED_PORTS": "1-65535",
        "TARGET_ALLOW_HTTP": "true",
        "LOG_LEVEL": "warning",
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _require(holds: bool, failure: str) -> None:
    if not holds:
        raise Refused(failure)


def _step(title: str) -> None:
    echo(f"\n{title}")


def _print(text: str) -> None:
    echo(f"  {text}")
