"""Where the test data of others is: in CORPORA_DIR, or in shared/corpora beside the checkout; never in it.

Tests that need it skip, saying so, where it is absent.
"""

import json
import os
from pathlib import Path
from typing import Final

import pytest

CORPORA: Final = Path(os.environ.get("CORPORA_DIR", Path(__file__).resolve().parents[2] / "shared" / "corpora"))


def naughty_strings() -> list[str]:
    """Return the strings that break what reads them carelessly; skips the test where they are absent."""
    path = CORPORA / "strings" / "blns.json"
    if not path.is_file():
        pytest.skip(f"There are no naughty strings in {CORPORA}; set CORPORA_DIR.")
    strings: list[str] = json.loads(path.read_bytes())
    return strings
