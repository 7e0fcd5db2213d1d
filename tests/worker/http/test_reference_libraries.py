"""Libraries of Standard Webhooks in other languages accept our requests, and reject modified ones."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.servers.runtimes import missing, runtime
from tests.worker.http.test_signed_request import STANDARD, Receiver, options, sent

#: The first build compiles a part of Go's standard library.
pytestmark = pytest.mark.timeout(300)

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = Path(__file__).with_name("standard_webhooks")
#: Where bin/runtimes installs the library for JavaScript.
INSTALLED: Final = ROOT / "build" / "standard-webhooks"
FORMS: Final = ("ticket", "cloudevents", "cloudevents-binary", "sarif")


def _go(folder: Path) -> list[str]:
    """Build the program; the library is in this machine's module cache."""
    program = folder / "verify"
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-mod=readonly"}
    command = [str(runtime("go")), "build", "-o", str(program), "."]
    built = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    if "module lookup disabled" in built.stderr or "module requires Go" in built.stderr:
        missing("Standard Webhooks library for Go, with Go 1.21 or newer")
    assert built.returncode == 0, built.stderr
    return [str(program)]


def _javascript(_folder: Path) -> list[str]:
    if not (INSTALLED / "node_modules" / "standardwebhooks").is_dir():
        missing("Standard Webhooks library for JavaScript")
    return [str(runtime("node")), str(FOLDER / "verify.mjs"), str(INSTALLED)]


@pytest.mark.parametrize("build", [_go, _javascript], ids=["go", "javascript"])
def test_reference_libraries_accept_every_signed_request_and_reject_a_modified_one(
    build: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    program = build(tmp_path)
    for form in FORMS:
        receiver = Receiver()
        sent(receiver, options(signature="standard-webhooks", form=form))
        assert _verdict(program, receiver) == (0, "")
    # The request of the last format, modified.
    for changed in (
        replace(receiver, received=receiver.received + b" "),
        replace(receiver, headers={**receiver.headers, "webhook-id": "exp_2"}),
        replace(receiver, headers={**receiver.headers, "webhook-timestamp": "1"}),
        replace(receiver, headers={**receiver.headers, "webhook-signature": "v1,AAAA"}),
    ):
        status, reported = _verdict(program, changed)
        assert (status, bool(reported)) == (1, True)


def _verdict(program: list[str], received: Receiver) -> tuple[int, str]:
    request = {"secret": STANDARD, "headers": received.headers, "body": received.received.decode()}
    done = subprocess.run(program, input=json.dumps(request), capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout
