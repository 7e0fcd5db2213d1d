"""Programs that some tests need besides Python: a browser, a proxy and other languages. bin/runtimes installs them."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def runtime(command: str) -> Path:
    """Return the path of a command. If it is missing, the test is skipped; in CI, where bin/runtimes has run, it fails."""
    found = shutil.which(command)
    return missing(command) if found is None else Path(found)


def missing(name: str | Path) -> NoReturn:
    """Skip the test because `name` is not installed; in CI, where bin/runtimes has run, fail."""
    reported = f"there is no {name} here: bin/runtimes installs it"
    if os.environ.get("CI"):
        pytest.fail(reported)
    pytest.skip(reported)
