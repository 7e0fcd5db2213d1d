"""Sends the same request repeatedly on a few connections, with wrk if installed, otherwise with a small loop of our own.

A request is raw bytes. NUMBER in them is replaced by another number of the same length for each request, so that the length
of the body stays the same. Any other status than the expected one ends the measurement; with wrk, any from 400 on.
Percentiles are those of a client that sends its next request after the response.
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

from bench.servers.receiver_process import child, pipe

#: Nobody's digits and no long word, lest it be taken for a card number or a key.
NUMBER: Final = "run-number"
#: Few enough for two cores, enough that no process waits for its next request.
CONNECTIONS: Final = 16
TOOLS: Final = ("wrk", "own")
#: More than any load here sends.
_DIGITS: Final = 6
_PATIENCE_S: Final = 10

#: wrk asks for every request; `parts` are the bytes before and after each number.
_SCRIPT: Final = """
local n, parts = {before}, {{{parts}}}
function request()
  n = n + 1
  return table.concat(parts, string.format("{prefix}%0{digits}d", n))
end
"""
_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it goes over the wire, and the status of its answer."""

    sent: bytes
    status: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """What stands in for NUMBER: `prefix` and so many digits, counted from `first`."""

    prefix: str
    digits: int = _DIGITS
    first: int = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a load: answers a second, how long they took, and how many came; some may be under way when wrk ends."""

    per_s: float
    p50_ms: float
    p99_ms: float
    answers: int


def request(method: str, path: str, headers: Mapping[str, str], body: str = "") -> bytes:
    """Return a request as it goes over the wire; numbers in the body must be as long as NUMBER is, as `new_numbers` are."""
    all_headers = {"Host": "127.0.0.1", **headers, **({"Content-Length": str(len(body.encode()))} if body else {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def new_numbers() -> Numbers:
    """Return numbers that no load had before."""
    return Numbers("".join(secrets.choice(string.ascii_lowercase) for _ in range(3)) + "-")


def tool_here() -> str:
    """Name what makes the load on this machine."""
    return "wrk" if shutil.which("wrk") else "own"


def load(
    tool: str, port: int, question: Question, seconds: int, connections: int = CONNECTIONS, numbers: Numbers | None = None
) -> Loaded:
    """Ask the same again and again for `seconds`, on each connection as soon as it has its answer."""
    made = _wrk if tool == "wrk" else _own
    return made(port, question, seconds, connections, numbers or new_numbers())


def _wrk(port: int, question: Question, seconds: int, connections: int, numbers: Numbers) -> Loaded:
    assert 200 <= question.status < 400, "wrk tells these from the rest, no more."
    wrk = shutil.which("wrk")
    assert wrk is not None, "wrk is not installed."
    words = [wrk, "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", "--latency"]
    # It would call slow answers errors after two seconds, which a disk that others use may well take.
    words += ["--timeout", f"{_PATIENCE_S}s"]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_script(question.sent, numbers))
        script.flush()
        words += ["--script", script.name, f"http://127.0.0.1:{port}"]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in output, output
    assert "Socket errors" not in output, output
    rate, answers = _found(r"Requests/sec:\s+([\d.]+)", output), _found(r"(\d+) requests in", output)
    return Loaded(float(rate[1]), _percentile_ms(50, output), _percentile_ms(99, output), int(answers[1]))


def _script(sent: bytes, numbers: Numbers) -> str:
    parts = ", ".join(_lua(part) for part in sent.split(NUMBER.encode()))
    return _SCRIPT.format(before=numbers.first - 1, parts=parts, prefix=numbers.prefix, digits=numbers.digits)


def _found(pattern: str, output: str) -> re.Match[str]:
    found = re.search(pattern, output)
    assert found is not None, output
    return found


def _percentile_ms(percent: int, output: str) -> float:
    found = _found(rf"{percent}%\s+([\d.]+)(us|ms|s|m)\s", output)
    return float(found[1]) * _MS[found[2]]


def _lua(text: bytes) -> str:
    """Write bytes as a Lua string; a decimal escape stands for whatever is no plain letter or digit."""
    plain = (string.ascii_letters + string.digits).encode()
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in text) + '"'


def _own(port: int, question: Question, seconds: int, connections: int, numbers: Numbers) -> Loaded:
    asked = {
        "port": port,
        "seconds": seconds,
        "connections": connections,
        "status": question.status,
        "parts": question.sent.decode().split(NUMBER),
        "prefix": numbers.prefix,
        "digits": numbers.digits,
        "first": numbers.first,
    }
    with child("bench.load.keep_alive") as process:
        pipe(process.stdin).write(json.dumps(asked) + "\n")
        pipe(process.stdin).flush()
        output = json.loads(pipe(process.stdout).readline() or "null")
    assert output is not None, "The load broke off: an answer had another status, or the connection ended."
    return Loaded(output["answers"] / output["seconds"], output["p50_ms"], output["p99_ms"], output["answers"])
