"""A copy of the checkout. Its commands read the `.env` beside its own `bin`, and write their data there."""

import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDERS: Final = ("bin", "deploy", "examples", "runtime", "schemas", "service", "storage", "worker")


def copy_checkout(folder: Path) -> Path:
    """Copy what the commands need into a new subfolder whose name contains a space and brackets. `.venv` is a link."""
    checkout = folder / "risk [relay]"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", checkout)
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    # The copy's own bin/setup would see that .venv belongs to another folder, and create it again.
    (checkout / "bin" / "setup").write_text(f'#!/bin/sh\nexec "{ROOT}/bin/setup" "$@"\n')
    return checkout
