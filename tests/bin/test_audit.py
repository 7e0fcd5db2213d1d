"""`bin/audit` says what a database of vulnerabilities said, and never takes silence for a clean answer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

AUDIT: Final = Path(__file__).resolve().parents[2] / "bin" / "audit"
#: What makes the environment, brings the tool and is the tool, without a network: it gives the answer that is prepared for
#: the database it is asked for.
STAND_IN: Final = """#!/bin/sh
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip-audit" ;;
    "-m pip") exit "$(cat "{answers}/pip")" ;;
    "--vulnerability-service "*) cat "{answers}/$2"; exit 1 ;;
    *) exec "{python}" -I -S "$@" ;;
esac
"""
CLEAN: Final = {"dependencies": [{"name": "falcon", "version": "4.4.0", "vulns": []}]}
KNOWN: Final = {
    "dependencies": [{"name": "falcon", "version": "4.4.0", "vulns": [{"id": "X-1", "fix_versions": ["4.4.1"]}]}]
}
SKIPPED: Final = {"dependencies": [{"name": "falcon", "skip_reason": "not found"}]}
#: The tool broke off: it has written nothing.
NOTHING: Final = None


@pytest.mark.parametrize(
    ("pypi", "osv", "pip", "code", "told"),
    [
        (CLEAN, NOTHING, 0, 0, "nothing is known against 1 packages"),
        (NOTHING, CLEAN, 0, 0, "nothing is known against 1 packages"),  # the second one is asked where the first is silent
        (SKIPPED, CLEAN, 0, 0, "nothing is known against 1 packages"),
        (KNOWN, NOTHING, 0, 1, "falcon 4.4.0: X-1, fixed in 4.4.1"),
        (NOTHING, NOTHING, 0, 3, "no database"),
        (SKIPPED, SKIPPED, 0, 3, "no database"),  # what it does not know, it has not audited
        ({"dependencies": []}, NOTHING, 0, 3, "no database"),
        (CLEAN, CLEAN, 1, 3, "could not be had"),  # the tool itself
    ],
)
def test_silence_is_never_taken_for_a_clean_answer(
    tmp_path: Path, pypi: Any, osv: Any, pip: int, code: int, told: str
) -> None:
    for name, answer in {"pypi": pypi, "osv": osv}.items():
        (tmp_path / name).write_text("" if answer is NOTHING else json.dumps(answer))
    (tmp_path / "pip").write_text(str(pip))
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(answers=tmp_path, python=sys.executable))
    stand_in.chmod(0o755)
    done = subprocess.run(
        [AUDIT], env={**os.environ, "PYTHON": str(stand_in)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done.stderr
