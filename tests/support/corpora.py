"""Third-party test data, read from CORPORA_DIR or from shared/corpora beside the checkout. The repository contains none.

Tests that need absent data are skipped with a message.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

CORPORA: Final = Path(os.environ.get("CORPORA_DIR", Path(__file__).resolve().parents[3] / "shared" / "corpora"))


def naughty_strings() -> list[str]:
    """Return strings that are known to break careless parsers. Skips the test if they are absent."""
    path = CORPORA / "strings" / "blns.json"
    if not path.is_file():
        pytest.skip(f"There are no naughty strings in {CORPORA}; set CORPORA_DIR.")
    strings: list[str] = json.loads(path.read_bytes())
    return strings


def url_texts() -> list[str]:
    """Return the inputs of the URL tests for browsers. Skips the test if they are absent."""
    path = CORPORA / "urls" / "urltestdata.json"
    if not path.is_file():
        pytest.skip(f"There are no addresses in {CORPORA}; set CORPORA_DIR.")
    cases = [case for case in json.loads(path.read_bytes()) if isinstance(case, dict)]
    return list(dict.fromkeys(case["input"] for case in cases))


def secrets() -> list[str]:
    """Return texts that contain a secret, in the formats of many vendors. Skips the test if they are absent."""
    path = CORPORA / "secrets" / "gitleaks-rule-vectors.json.gz"
    if not path.is_file():
        pytest.skip(f"There are no secrets in {CORPORA}; set CORPORA_DIR.")
    samples = json.loads(gzip.decompress(path.read_bytes()))["true_positive"]
    return list(dict.fromkeys(sample["text"] for sample in samples))


def tracker_file(name: str) -> Path:
    """Return the path of a tracker's API description or recorded responses. Skips the test if the file is absent."""
    path = CORPORA / "trackers" / name
    if not path.is_file():
        pytest.skip(f"There is no {name} in {CORPORA / 'trackers'}; set CORPORA_DIR.")
    return path


def standard_webhook_vector() -> dict[str, Any]:
    """Return the signature example of the Standard Webhooks project. Skips the test if it is absent."""
    path = CORPORA / "webhooks" / "signature-vectors.json"
    if not path.is_file():
        pytest.skip(f"There are no signatures in {CORPORA}; set CORPORA_DIR.")
    [vector] = [each for each in json.loads(path.read_bytes()) if each["scheme"] == "standard-webhooks v1"]
    return dict(vector)
