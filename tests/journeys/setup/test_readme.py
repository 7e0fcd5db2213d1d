"""The first ticket with curl works as pasted, its output matches, and the sample code for receivers verifies a delivery."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.processes.checkouts import copy_checkout
from tests.support.servers.redis_and_postgres import free_port, processes_in
from worker.http.signing import sign

ROOT = Path(__file__).resolve().parents[3]
FIRST_TICKET = (ROOT / "docs" / "first-ticket.md").read_text()
RECEIVING = (ROOT / "docs" / "receiving.md").read_text()
CURL_STAND_IN = ROOT / "tests" / "journeys" / "curl_stand_in.py"

TARGETS = "/api/ticket-export-targets"
EXPORTS = "/api/ticket-exports"
#: Settings that allow deliveries to this machine.
LOOPBACK_OPEN = {"TARGET_ALLOW_HTTP": "true", "TARGET_ALLOWED_NETWORKS": "127.0.0.0/8"}

START_WITHIN_S = 30
STOP_WITHIN_S = 30


def story(part: str) -> str:
    """Return the shell blocks of one part of the page as one script."""
    return "\n".join(re.findall(rf"<!-- story: {part} -->\n```sh\n(.*?)```", FIRST_TICKET, re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of this checkout without .env and data, as after a clone."""
    return copy_checkout(tmp_path)


@pytest.fixture
def ports() -> dict[str, str]:
    """Free ports by the port in the page, so that the test can run beside an installation."""
    return {"8000": str(free_port()), "9000": str(free_port())}


@pytest.fixture
def environment(ports: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without RiskRelay's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    if shutil.which("curl") is None:
        stand_in = tmp_path_factory.mktemp("commands") / "curl"
        stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CURL_STAND_IN}" "$@"\n')
        stand_in.chmod(0o755)
        kept["PATH"] = f"{stand_in.parent}:{kept['PATH']}"
    return {**kept, "BIND": f"127.0.0.1:{ports['8000']}"}


def test_the_documented_workflow_runs_as_pasted(folder: Path, ports: dict[str, str], environment: dict[str, str]) -> None:
    def pasted(part: str) -> str:
        script = story(part)
        for written, free in ports.items():
            script = script.replace(written, free)
        return script

    with (
        running(pasted("installation"), folder, environment, "is ready at") as installation,
        running(pasted("receiver"), folder, environment, "Listening on") as receiver,
    ):
        done = subprocess.run(
            ["bash", "-e", "-c", pasted("steps")],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed = done.stdout.splitlines()
        assert '"status": "prepared"' in printed[0]
        assert printed[-2:] == ["approved", "exported"]
        wait_for("signature  ok", receiver, 5)
        assert_output_as_shown(installation, folder, ports)
    assert list(processes_in(folder)) == []
    assert (folder / ".env").stat().st_mode & 0o777 == 0o600
    assert (folder / "data" / "first-token").stat().st_mode & 0o777 == 0o600


def test_the_example_scanner_posts_to_an_installation(
    folder: Path, ports: dict[str, str], environment: dict[str, str]
) -> None:
    with running("make run", folder, environment, "is ready at"):
        url = f"http://127.0.0.1:{ports['8000']}"
        pasted = story("scanner").replace("https://example.com/", f"{url}/nowhere").replace("http://127.0.0.1:8000", url)
        scanned = subprocess.run(
            ["bash", "-e", "-c", pasted],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert scanned.returncode == 0, scanned.stderr


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        yield Path(folder)


def test_the_demo_completes_every_step(short_folder: Path, environment: dict[str, str]) -> None:
    # Requests to loopback must not use the proxy.
    settings = {**environment, "TMPDIR": str(short_folder), "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(["make", "demo"], cwd=ROOT, env=settings, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = ("response 503", "response 429", "response 200", "issue 1 at http://", "### Places (2)", "Every step succeeded")
    for words in shown:
        assert words in done.stdout
    assert list(short_folder.iterdir()) == []


def test_a_second_start_continues_with_the_same_data(
    folder: Path, ports: dict[str, str], environment: dict[str, str]
) -> None:
    with running("make run", folder, environment, "is ready at"):
        settings = (folder / ".env").read_text()
        token = (folder / "data" / "first-token").read_text().strip()
    with running("make run", folder, environment, "is ready at"):
        assert (folder / ".env").read_text() == settings
        url = f"http://127.0.0.1:{ports['8000']}/api/ticket-exports/exp_none"
        response = requests.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=5)
        assert response.status_code == 404


def test_an_operator_backs_up_and_restores(folder: Path, ports: dict[str, str], environment: dict[str, str]) -> None:
    """Start, check, back up, change data, restore, deliver and clean up."""
    environment = {**environment, **LOOPBACK_OPEN, "TARGET_ALLOWED_PORTS": ports["9000"]}
    url = f"http://127.0.0.1:{ports['8000']}"

    def run_json(*words: str) -> Any:
        done = subprocess.run(
            ["bin/riskrelay", *words, "--json"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def call_api(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        token = (folder / "data" / "first-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"{method} {path}"}
        response = requests.request(method, url + path, json=body, headers=headers, timeout=10)
        assert response.ok, response.text
        return response.json()

    with running("make run", folder, environment, "is ready at") as installation:
        [step] = re.findall(r"^  bin/riskrelay (token .*)$", installation.log.read_text(), re.MULTILINE)
        assert run_json(*step.split())["token"].startswith("rrt_")
        assert requests.get(f"{url}/readyz", timeout=10).json()["status"] == "ok"
        assert [check for check in run_json("doctor")["checks"] if check["status"] == "failure"] == []
        address = f"http://127.0.0.1:{ports['9000']}/"
        target = call_api("POST", TARGETS, {"provider_key": "generic_webhook", "base_url": address, "name": "Tracker"})
        project = run_json("project", "list")[0]["id"]
        export = call_api("POST", EXPORTS, {"project_id": project, "ticket": {"title": "A link leads nowhere"}})
        backup = run_json("backup", "data/backups/", "--keep", "3")["file"]
        run_json("export", "dismiss", export["id"])
    run_json("restore", backup, "--replace")
    with (
        running("make run", folder, environment, "is ready at"),
        running(f"bin/riskrelay listen --port {ports['9000']}", folder, environment, "Listening on"),
    ):
        restored = call_api("GET", f"{TARGETS}/{target['id']}")
        assert (restored["status"], restored["status_reason"]) == ("paused", "restored")
        assert call_api("GET", f"{EXPORTS}/{export['id']}")["status"] == "prepared"
        run_json("target", "resume", "--all")
        call_api("POST", f"{EXPORTS}/{export['id']}/approve", {"target_id": target["id"]})
        until = time.monotonic() + START_WITHIN_S
        while call_api("GET", f"{EXPORTS}/{export['id']}")["status"] != "exported":
            assert time.monotonic() < until
            time.sleep(0.1)
    done = subprocess.run(["make", "clean"], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert f"{folder}/data" in done.stdout
    assert f"{folder}/.env" in done.stdout
    assert not (folder / ".venv").exists()
    assert (folder / "data" / "riskrelay.db").exists()
    assert (folder / ".env").exists()


def test_the_documented_receiver_code_verifies_a_delivery() -> None:
    code = re.search(r"```python\n(.*?)```", RECEIVING, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code.group(1), names)  # noqa: S102 - the page's own snippet
    is_genuine: Callable[[bytes, dict[str, str], bytes], bool] = names["is_genuine"]
    body, nonce, timestamp = b'{"id": "exp_1"}', "0" * 32, int(time.time())
    headers = {
        "X-Service-Timestamp": str(timestamp),
        "X-Service-Nonce": nonce,
        "X-Service-Signature": sign(b"secret", timestamp, nonce, body),
    }
    assert is_genuine(b"secret", headers, body)
    assert not is_genuine(b"another", headers, body)
    assert not is_genuine(b"secret", headers, body + b" ")
    stale = str(timestamp - 301)
    assert not is_genuine(b"secret", {**headers, "X-Service-Timestamp": stale}, body)


def assert_output_as_shown(installation: "RunningCommand", folder: Path, ports: dict[str, str]) -> None:
    """Check that the start prints the page's lines in order, except those of the setup and of the token."""
    shown = FIRST_TICKET.partition("```text\nMaking .venv")[2].partition("```")[0].partition("Ready.\n")[2]
    for written, real in {"/srv/riskrelay": str(folder), **ports}.items():
        shown = shown.replace(written, real)
    printed = iter(installation.log.read_text().splitlines())
    lines = [line for line in shown.splitlines() if line and line != "…" and "shown only once" not in line]
    assert len(lines) > 5
    assert [line for line in lines if line not in printed] == []


class RunningCommand:
    """A running command and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log


@contextmanager
def running(script: str, folder: Path, environment: dict[str, str], ready: str) -> Iterator[RunningCommand]:
    """Run a script until it prints `ready`; at the end, interrupt it as Ctrl-C does."""
    log = folder / f"{ready.split(maxsplit=1)[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", script.strip()],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    command = RunningCommand(process, log)
    try:
        wait_for(ready, command, START_WITHIN_S)
        yield command
    finally:
        # If the script has already ended, the failure above shows its log.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(STOP_WITHIN_S)


def wait_for(words: str, command: RunningCommand, within_s: float) -> None:
    until = time.monotonic() + within_s
    while words not in command.log.read_text():
        assert command.process.poll() is None, command.log.read_text()
        assert time.monotonic() < until, command.log.read_text()
        time.sleep(0.05)
