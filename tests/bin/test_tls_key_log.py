"""No command writes TLS keys to the file that SSLKEYLOGFILE names."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bin.commands.installation.serve import GUNICORN
from tests.support.factories import LOOPBACK, environment
from tests.support.fakes import LoopbackServer
from tests.support.processes.workers import RISKRELAY
from tests.support.worker.receivers import always, make_certificate

ROOT: Final = Path(__file__).resolve().parents[2]
WITHIN_S: Final = 60.0
FINDING: Final = {
    "message": {"text": "No policy"},
    "locations": [{"physicalLocation": {"artifactLocation": {"uri": "https://shop.example/"}}}],
}
REPORT: Final = {"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x"}}, "results": [FINDING]}]}
COMMANDS: Final = {
    "doctor": [RISKRELAY, "doctor"],
    "trigger": [RISKRELAY, "trigger", "--to", "{url}"],
    "import-scan": [RISKRELAY, "import-scan", "--format", "sarif", "report.sarif", "--to", "{url}"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_commands_that_use_tls_write_no_key_log(tmp_path: Path, sqlite_url: str, words: list[str]) -> None:
    (tmp_path / "report.sarif").write_text(json.dumps(REPORT))
    context, _ = make_certificate(tmp_path, "127.0.0.1")
    key_log = tmp_path / "keys.log"
    with LoopbackServer(always(), context) as server:
        url = server.url(path="")
        settings = {"DATABASE_URL": sqlite_url, "PUBLIC_BASE_URL": url, "SSLKEYLOGFILE": str(key_log), **LOOPBACK}
        ended = subprocess.run(
            [word.format(url=url) for word in words],
            cwd=tmp_path,
            env=environment(tmp_path / "data", **settings),
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        assert server.connections >= 1, ended.stdout + ended.stderr
    assert not key_log.exists()


@pytest.mark.parametrize(
    "words",
    [[*GUNICORN, "--check-config"], ["-P", "-c", "from worker.jobs import deliver_due; deliver_due()"]],
    ids=["service", "job of a plain RQ worker"],
)
def test_gunicorn_and_rq_processes_write_no_tls_key_log(tmp_path: Path, sqlite_url: str, words: list[str]) -> None:
    settings = {"DATABASE_URL": sqlite_url, "REDIS_URL": "rediss://127.0.0.1:1", "SSLKEYLOGFILE": str(tmp_path / "keys.log")}
    subprocess.run(
        [sys.executable, *words],
        env={**environment(tmp_path / "data", **settings), "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=WITHIN_S,
    )
    assert not (tmp_path / "keys.log").exists()
