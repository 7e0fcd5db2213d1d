"""The same request over and over on a few connections, by wrk where it is installed, else by a small loop of our own.

A request is raw bytes. Where NUMBER stands in them, every request has another number, of the same length, so that the
length of the body never changes. Any answer but the expected status ends the measurement.
"""

import json
import re
import secrets
import shutil
import string
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.counterpart import child, pipe

#: Nobody's digits and no long word, lest it be taken for a card number or a key.
NUMBER: Final = "run-number"
#: Few enough for two cores, enough that no process waits for its next request.
CONNECTIONS: Final = 16
TOOLS: Final = ("wrk", "own")
_PATIENCE_S: Final = 10

#: wrk asks for every request; `%s` are the bytes before and after each number.
_SCRIPT: Final = """
local n, parts = 0, {{{parts}}}
function request()
  n = n + 1
  return table.concat(parts, string.format("{run}-%05d", n))
end
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a load: answers a second, and how many answers came; requests may be under way when wrk ends."""

    per_s: float
    answers: int


def request(method: str, path: str, headers: Mapping[str, str], body: str = "") -> bytes:
    """Return a request as it goes over the wire."""
    told = {"Host": "127.0.0.1", **headers, **({"Content-Length": str(len(body.encode()))} if body else {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def tool_here() -> str:
    """Name what makes the load on this machine."""
    return "wrk" if shutil.which("wrk") else "own"


def load(tool: str, port: int, sent: bytes, status: int, seconds: int) -> Loaded:
    """Send `sent` again and again for `seconds`; every answer has `status`."""
    run = "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    return _wrk(port, sent, status, seconds, run) if tool == "wrk" else _own(port, sent, status, seconds, run)


def _wrk(port: int, sent: bytes, status: int, seconds: int, run: str) -> Loaded:
    assert 200 <= status < 300, "wrk tells 2xx from the rest, no more."
    wrk = shutil.which("wrk")
    assert wrk is not None, "wrk is not installed."
    parts = ", ".join(_lua(part) for part in sent.split(NUMBER.encode()))
    words = [wrk, "--threads", "1", "--connections", str(CONNECTIONS), "--duration", f"{seconds}s"]
    # It would call slow answers errors after two seconds, which a disk that others use may well take.
    words += ["--timeout", f"{_PATIENCE_S}s"]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT.format(parts=parts, run=run))
        script.flush()
        words += ["--script", script.name, f"http://127.0.0.1:{port}"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in told, told
    assert "Socket errors" not in told, told
    rate, answers = re.search(r"Requests/sec:\s+([\d.]+)", told), re.search(r"(\d+) requests in", told)
    assert rate is not None, told
    assert answers is not None, told
    return Loaded(float(rate[1]), int(answers[1]))


def _lua(text: bytes) -> str:
    """Write bytes as a Lua string; a decimal escape stands for whatever is no plain letter or digit."""
    plain = (string.ascii_letters + string.digits).encode()
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in text) + '"'


def _own(port: int, sent: bytes, status: int, seconds: int, run: str) -> Loaded:
    with child("keep_alive_load", str(port), str(seconds), str(CONNECTIONS), str(status), run, NUMBER) as process:
        pipe(process.stdin).write(json.dumps(sent.decode()) + "\n")
        pipe(process.stdin).flush()
        told = json.loads(pipe(process.stdout).readline() or "null")
    assert told is not None, "The load broke off: an answer had another status, or the connection ended."
    return Loaded(told["answers"] / told["seconds"], told["answers"])
