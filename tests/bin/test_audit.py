"""`bin/audit` reports known vulnerabilities, and never reports success without a response of a database."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

AUDIT: Final = Path(__file__).resolve().parents[2] / "bin" / "audit"
#: Replaces python, pip and pip-audit, without a network: prints the response prepared for the selected database.
FAKE_TOOL: Final = """#!/bin/sh
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip-audit" ;;
    "-m pip") exit "$(cat "{responses}/pip")" ;;
    "--vulnerability-service "*) cat "{responses}/$2"; exit 1 ;;
    *) exec "{python}" -I -S "$@" ;;
esac
"""
CLEAN: Final = {"dependencies": [{"name": "falcon", "version": "4.4.0", "vulns": []}]}
KNOWN: Final = {
    "dependencies": [{"name": "falcon", "version": "4.4.0", "vulns": [{"id": "X-1", "fix_versions": ["4.4.1"]}]}]
}
SKIPPED: Final = {"dependencies": [{"name": "falcon", "skip_reason": "not found"}]}
#: The tool fails without output.
NOTHING: Final = None


@pytest.mark.parametrize(
    ("pypi", "osv", "pip", "code", "message"),
    [
        (CLEAN, NOTHING, 0, 0, "no known vulnerabilities in 1 packages"),
        (
            NOTHING,
            CLEAN,
            0,
            0,
            "no known vulnerabilities in 1 packages",
        ),  # the second database is queried if the first fails
        (SKIPPED, CLEAN, 0, 0, "no known vulnerabilities in 1 packages"),
        (KNOWN, NOTHING, 0, 1, "falcon 4.4.0: X-1, fixed in 4.4.1"),
        (NOTHING, NOTHING, 0, 3, "no vulnerability database is reachable"),
        (SKIPPED, SKIPPED, 0, 3, "no vulnerability database is reachable"),  # an unknown package is not audited
        ({"dependencies": []}, NOTHING, 0, 3, "no vulnerability database is reachable"),
        (CLEAN, CLEAN, 1, 3, "could not be installed"),  # the tool itself
    ],
)
def test_success_requires_a_response_about_every_package(
    tmp_path: Path, pypi: Any, osv: Any, pip: int, code: int, message: str
) -> None:
    for name, answer in {"pypi": pypi, "osv": osv}.items():
        (tmp_path / name).write_text("" if answer is NOTHING else json.dumps(answer))
    (tmp_path / "pip").write_text(str(pip))
    fake_tool = tmp_path / "python"
    fake_tool.write_text(FAKE_TOOL.format(responses=tmp_path, python=sys.executable))
    fake_tool.chmod(0o755)
    done = subprocess.run(
        [AUDIT], env={**os.environ, "PYTHON": str(fake_tool)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, message in done.stdout + done.stderr) == (code, True), done.stderr
