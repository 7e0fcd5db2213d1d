"""No command and no process reads settings or code from the current folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bin.commands.installation.serve import GUNICORN
from tests.support.factories import environment
from tests.support.processes.workers import RISKRELAY

ROOT: Final = Path(__file__).resolve().parents[2]
WITHIN_S: Final = 60.0
COMMANDS: Final = {
    "migrate": [RISKRELAY, "migrate"],
    "doctor": [RISKRELAY, "doctor", "--json"],
    "import-scan": [RISKRELAY, "import-scan", "--format", "sarif", "report.sarif", "--dry-run"],
    "service": [sys.executable, *GUNICORN, "--check-config"],
    "rq job": [sys.executable, "-P", "-c", "from worker.standalone import load_settings; load_settings()"],
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with invalid settings and with modules that end the process."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    (folder / ".env").write_text("BIND=nowhere\n")
    (folder / "report.sarif").write_text(json.dumps({"version": "2.1.0", "runs": []}))
    for name in ("bin", "schemas", "runtime", "storage", "service", "worker", "falcon", "click"):
        (folder / f"{name}.py").write_text("raise SystemExit(66)\n")
    return folder


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_files_of_the_current_folder_do_not_affect_commands(hostile: Path, sqlite_url: str, command: list[str]) -> None:
    settings = environment(hostile.parent / "data", DATABASE_URL=sqlite_url, REDIS_URL="redis://127.0.0.1:1")
    done = subprocess.run(
        command,
        cwd=hostile,
        env={**settings, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    assert done.returncode in {0, 1}, done.stderr
    assert "BIND:" not in done.stdout + done.stderr
    assert "Invalid" not in done.stderr


def test_arguments_in_the_environment_do_not_affect_the_service(tmp_path: Path, sqlite_url: str) -> None:
    settings = environment(tmp_path / "data", DATABASE_URL=sqlite_url, REDIS_URL="redis://127.0.0.1:1")
    done = subprocess.run(
        COMMANDS["service"],
        env={**settings, "PYTHONPATH": str(ROOT), "GUNICORN_CMD_ARGS": "--timeout never"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["run", "init", "serve", "work", "migrate", "sweep", "target list", "trigger"])
def test_every_command_refuses_an_env_file_writable_by_others_with_the_fix(tmp_path: Path, verb: str) -> None:
    settings = environment(tmp_path / "data", WEBHOOK_SECRET="")
    env_file = tmp_path / ".env"
    if verb == "init":
        tmp_path.chmod(0o777)
        fix = f"chmod go-w {tmp_path}"
    else:
        env_file.write_text("WEB_PROCESSES=1\n")
        env_file.chmod(0o666)
        fix = f"chmod go-w {env_file}"
    done = subprocess.run(
        [RISKRELAY, *verb.split()], env=settings, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert fix in done.stderr
    assert not (tmp_path / "data").exists()
    assert [each.name for each in tmp_path.iterdir()] == ([] if verb == "init" else [".env"])
