"""What tests drive beside Python: a browser and other languages, which bin/runtimes installs."""

import os
import shutil
from pathlib import Path

import pytest


def runtime(command: str) -> Path:
    """Return where a command is; without it a test is skipped, and in CI, where bin/runtimes has run, it fails."""
    found = shutil.which(command)
    if found is not None:
        return Path(found)
    reported = f"there is no {command} here: bin/runtimes installs it"
    if os.environ.get("CI"):
        pytest.fail(reported)
    pytest.skip(reported)
