"""`demo`: the whole story on a throw-away installation, told as it happens; exit 0 only if every step held.

A page with real flaws is scanned by `examples/scanner.py`, its findings become tickets, and a receiver that first answers
503, then 429 with Retry-After, gets them signed and delivered. Everything runs on loopback in a temporary folder.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import requests
from dotenv import dotenv_values

from bin.commands.init import FIRST_TOKEN
from bin.demo_page import FLAW_COUNT, DemoSite
from bin.processes import child_process
from bin.receiver_kit.receiver import Misbehaviour, Received, Receiver
from runtime.clock import utc_now
from worker.http.signing import SignatureVerdict

ROOT: Final = Path(__file__).resolve().parents[2]
RISKRELAY: Final = ROOT / "bin" / "riskrelay"
SCANNER: Final = ROOT / "examples" / "scanner.py"

#: What the receiver answers first; then it accepts.
FAILURES: Final = (503, 429)
#: The receiver's Retry-After: long enough to tell it from the schedule, short enough to watch.
RETRY_AFTER_S: Final = 2
#: Seconds after each failure; an installation's own schedule would make this a long demo.
RETRY_SCHEDULE: Final = "1,1,1,1"

START_WITHIN_S: Final = 60
DELIVER_WITHIN_S: Final = 30
STOP_WITHIN_S: Final = 30
POLL_S: Final = 0.2


class StepFailed(Exception):
    """A step of the story did not hold; the message says which."""


@dataclass(frozen=True, slots=True)
class Instance:
    """The throw-away installation: where it is and how to speak to it."""

    url: str
    token: str
    scanner_secret: str
    webhook_secret: str

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        """Send one authenticated request."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return _directly().request(method, f"{self.url}{path}", json=body, headers=headers, timeout=10)


@click.command(epilog="Example: riskrelay demo\n\nExit codes: 0 every step held, 1 one did not.")
def demo() -> None:
    """Run the whole story on a throw-away installation: scan, approve, deliver, retry, verify."""
    began_at = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="riskrelay-demo-") as folder:
            _tell_story(Path(folder))
    except StepFailed as failed:
        click.echo(f"\nThe demo failed: {failed}", err=True)
        raise SystemExit(1) from None
    click.echo(f"\nEvery step held. That took {time.monotonic() - began_at:.0f} s; nothing of it is left.")


def _tell_story(folder: Path) -> None:
    environment = _environment(folder)
    _initialise(folder, environment)
    secrets = dotenv_values(folder / ".env")
    instance = Instance(
        url=f"http://{environment['BIND']}",
        token=(folder / "data" / FIRST_TOKEN).read_text().strip(),
        scanner_secret=secrets["SCANNER_SHARED_SECRET"] or "",
        webhook_secret=secrets["WEBHOOK_SECRET"] or "",
    )
    misbehaviour = Misbehaviour(failures=FAILURES, retry_after_s=RETRY_AFTER_S)
    with (
        _running(folder, environment, instance),
        DemoSite() as site,
        Receiver([instance.webhook_secret.encode()], utc_now, misbehaviour=misbehaviour) as receiver,
    ):
        export_ids = _scan(instance, site)
        target_id = _make_target(instance, receiver)
        _deliver_through_failures(instance, receiver, export_ids[0], target_id)
        _deliver_the_rest(instance, receiver, export_ids[1:], target_id)


def _initialise(folder: Path, environment: dict[str, str]) -> None:
    _step("A fresh installation")
    made = subprocess.run([RISKRELAY, "init"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    _require(made.returncode == 0, f"init ended with {made.returncode}: {made.stderr.strip()}")
    _tell("settings, secrets, keys, an account, a project and a token are made")


@contextmanager
def _running(folder: Path, environment: dict[str, str], instance: Instance) -> Iterator[None]:
    """Run the installation; its own words go into a log that is shown only if it does not start."""
    log = folder / "run.log"
    with log.open("wb") as output:
        process = child_process.start(["/bin/sh", str(RISKRELAY), "run"], env=environment, output=output, cwd=folder)
    try:
        _wait(lambda: _is_ready(instance), START_WITHIN_S, lambda: f"it did not start: {log.read_text()[-2000:]}")
        _tell(f"service and worker are ready at {instance.url}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_WITHIN_S)
    _require(process.returncode == 0, f"the installation ended with {process.returncode}")


def _scan(instance: Instance, site: DemoSite) -> list[str]:
    _step(f"A scan of {site.url}")
    environment = {**os.environ, "SCANNER_SHARED_SECRET": instance.scanner_secret, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, str(SCANNER), site.url, "--to", instance.url, "--scan-run", "1"]
    scanned = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    _require(scanned.returncode == 0, f"the scanner ended with {scanned.returncode}: {scanned.stderr.strip()}")
    lines = scanned.stdout.splitlines()
    export_ids = [line for line in lines if line.startswith("exp_")]
    for line in lines:
        if line not in export_ids:
            _tell(f"found: {line}")
    _require(len(export_ids) == FLAW_COUNT, f"{FLAW_COUNT} tickets should be prepared, {len(export_ids)} were")
    for export_id in export_ids:
        record = instance.call("GET", f"/api/ticket-exports/{export_id}").json()
        _require(record["status"] == "prepared" and record["preview"]["safe"], f"{export_id} is not prepared and safe")
    _tell(f"{len(export_ids)} tickets are prepared, each with a preview that is safe")
    return export_ids


def _make_target(instance: Instance, receiver: Receiver) -> str:
    _step("A webhook target")
    body = {"provider_key": "generic_webhook", "base_url": receiver.url, "name": "Demo receiver"}
    made = instance.call("POST", "/api/ticket-export-targets", body)
    _require(made.status_code == 201, f"the target was answered with {made.status_code}: {made.text}")
    target = made.json()
    _require(target["status"] == "active", f"the target is {target['status']}")
    _tell(f"{target['id']} at {target['base_url']} is active, signed with {target['secret']['fingerprint']}")
    return str(target["id"])


def _deliver_through_failures(instance: Instance, receiver: Receiver, export_id: str, target_id: str) -> None:
    _step("An approval, and a receiver that is not well")
    _approve(instance, export_id, target_id)
    seen: list[str] = []
    _wait(
        lambda: _poll(instance, export_id, seen) == "exported",
        DELIVER_WITHIN_S,
        lambda: f"{export_id} went {' -> '.join(seen)}",
    )
    _require("retry_scheduled" in seen, f"{export_id} went {' -> '.join(seen)}, without a retry")
    attempts = receiver.received
    for attempt in attempts:
        _tell(f"receiver: signature {attempt.verdict}, answered {attempt.answer.status}")
    _verify_attempts(attempts, export_id)
    waited_s = (attempts[2].at - attempts[1].at).total_seconds()
    _require(waited_s >= RETRY_AFTER_S, f"the retry came {waited_s:.2f} s after a Retry-After of {RETRY_AFTER_S} s")
    _tell(f"the retry came {waited_s:.1f} s after the 429, which had asked for {RETRY_AFTER_S} s")


def _verify_attempts(attempts: list[Received], export_id: str) -> None:
    answered = [attempt.answer.status for attempt in attempts]
    _require(answered == [*FAILURES, 200], f"the receiver answered {answered}")
    _require(all(a.verdict is SignatureVerdict.OK for a in attempts), "a signature did not verify")
    _require(len({attempt.body for attempt in attempts}) == 1, "the attempts carried different bodies")
    _require({attempt.idempotency_key for attempt in attempts} == {export_id}, "the Idempotency-Key changed")
    _require(len({attempt.request_id for attempt in attempts}) == len(attempts), "two attempts had the same id")


def _deliver_the_rest(instance: Instance, receiver: Receiver, export_ids: list[str], target_id: str) -> None:
    _step("The other tickets")
    before = receiver.count
    for export_id in export_ids:
        _approve(instance, export_id, target_id, quiet=True)
    _wait(
        lambda: all(_poll(instance, export_id, []) == "exported" for export_id in export_ids),
        DELIVER_WITHIN_S,
        lambda: "not every ticket was delivered",
    )
    delivered = receiver.received[before:]
    _require(all(each.verdict is SignatureVerdict.OK for each in delivered), "a signature did not verify")
    keys = sorted(each.idempotency_key or "" for each in delivered)
    _require(keys == sorted(export_ids), "the receiver did not get each ticket once")
    _tell(f"{len(export_ids)} more are exported, each arrived once, every signature verified")


def _approve(instance: Instance, export_id: str, target_id: str, *, quiet: bool = False) -> None:
    approved = instance.call("POST", f"/api/ticket-exports/{export_id}/approve", {"target_id": target_id})
    _require(approved.status_code == 202, f"the approval was answered with {approved.status_code}: {approved.text}")
    if not quiet:
        record = approved.json()
        _tell(f"{export_id} is {record['status']}: {record['ticket']['title']}")


def _poll(instance: Instance, export_id: str, seen: list[str]) -> str:
    """Read the status once, and tell it when it is another than before."""
    record = instance.call("GET", f"/api/ticket-exports/{export_id}").json()
    status = str(record["status"])
    if not seen or seen[-1] != status:
        seen.append(status)
        wait = f", next attempt in {record['retry_after_seconds']} s" if "retry_after_seconds" in record else ""
        last = record.get("last_attempt") or {}
        why = f" after {last['response_status']} {last['error_code']}" if last.get("error_code") else ""
        if seen[-1] in {"retry_scheduled", "exported"} and len(seen) > 1:
            _tell(f"{export_id} is {status}{why}{wait}")
    return status


def _is_ready(instance: Instance) -> bool:
    try:
        return _directly().get(f"{instance.url}/readyz", timeout=2).status_code == requests.codes.ok
    except requests.RequestException:
        return False


def _directly() -> requests.Session:
    """Return a session that leaves alone the proxy the environment may name; everything here is on loopback."""
    session = requests.Session()
    session.trust_env = False
    return session


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the throw-away installation; settings of the caller do not reach it."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "DATA_DIR": str(folder / "data"),
        "BIND": f"127.0.0.1:{_free_port()}",
        "RETRY_SCHEDULE": RETRY_SCHEDULE,
        # The receiver is on loopback, which an installation refuses unless it is told otherwise.
        "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8",
        "TARGET_ALLOWED_PORTS": "1-65535",
        "TARGET_ALLOW_HTTP": "true",
        "LOG_LEVEL": "warning",
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait(is_so: Callable[[], bool], within_s: float, failure: Callable[[], str]) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        _require(time.monotonic() < until, failure())
        time.sleep(POLL_S)


def _require(holds: bool, failure: str) -> None:
    if not holds:
        raise StepFailed(failure)


def _step(title: str) -> None:
    click.echo(f"\n{title}")


def _tell(text: str) -> None:
    click.echo(f"  {text}")
