"""The environment of a compared task queue: a separate folder, built from pinned files, apart from .venv."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.servers.receiver_process import ROOT

FOLDER: Final = ROOT / ".venv-peers"
LOCK: Final = Path(__file__).parents[1] / "requirements-peers.lock"
#: As in bin/setup: only wheels, since no hash covers the packages that a build from source would download.
_INSTALL: Final = ("-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:")
#: Time limit for the installation, in case the package index does not respond.
_INSTALL_WITHIN_S: Final = 180


def python_of_peers() -> str:
    """Return the interpreter of the peers' environment; create it if it is missing or was built from another lock file."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "made-for"
    expected = hashlib.sha256(sys.version.encode() + LOCK.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != expected:
        shutil.rmtree(FOLDER, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([python, *_INSTALL, "-r", LOCK], check=True, timeout=_INSTALL_WITHIN_S)
        stamp.write_text(expected)
    return str(python)
