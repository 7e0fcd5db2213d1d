"""A checkout of its own, whose commands read the `.env` and write the data beside its `bin`."""

import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDERS: Final = ("bin", "deploy", "examples", "runtime", "schemas", "service", "storage", "worker")


def copy_checkout(folder: Path) -> Path:
    """Copy what runs the commands into a new subfolder, whose name contains a space; `.venv` is shared."""
    checkout = folder / "risk relay"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", checkout)
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    # A setup of the copy would find a .venv of another folder and create it again.
    (checkout / "bin" / "setup").write_text(f'#!/bin/sh\nexec "{ROOT}/bin/setup" "$@"\n')
    return checkout
