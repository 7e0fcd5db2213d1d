"""What tests drive beside Python: a browser, a proxy and other languages, which bin/runtimes installs."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def runtime(command: str) -> Path:
    """Return where a command is; without it a test is skipped, and in CI, where bin/runtimes has run, it fails."""
    found = shutil.which(command)
    return missing(command) if found is None else Path(found)


def missing(name: str | Path) -> NoReturn:
    """Skip the test, which needs what is not installed; in CI, where bin/runtimes has run, it fails."""
    reported = f"there is no {name} here: bin/runtimes installs it"
    if os.environ.get("CI"):
        pytest.fail(reported)
    pytest.skip(reported)
