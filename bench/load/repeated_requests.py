"""Sends the same request repeatedly on a few connections, with wrk if installed, otherwise with a small loop of our own.

A request is raw bytes. Each request has another number in place of NUMBER, of the same length, so that the length of the
body stays the same. An unexpected status ends the measurement; with wrk, only a status of 400 or more. Percentiles are those
of clients that wait for each response before they send the next request.
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

#: Not digits and not a long word: the detectors of forbidden content could take these for a card number or a key.
NUMBER: Final = "run-number"
#: Few enough for two cores, and enough that each service process always has a next request.
CONNECTIONS: Final = 16
TOOLS: Final = ("wrk", "own")
#: Enough for the number of requests of any load here.
_DIGITS: Final = 6
_PATIENCE_S: Final = 10

#: wrk calls `request` for every request; `parts` are the bytes around the numbers.
_SCRIPT: Final = """
local n, parts = {before}, {{{parts}}}
function request()
  n = n + 1
  return table.concat(parts, string.format("{prefix}%0{digits}d", n))
end
"""
_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The bytes of a request, with NUMBER as placeholder, and the expected status."""

    content: bytes
    status: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """The values for NUMBER: `prefix` and a number with `digits` digits, counted from `first`."""

    prefix: str
    digits: int = _DIGITS
    first: int = 1


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Responses per second, response times, and the number of responses; wrk does not count those in progress at its end."""

    per_s: float
    p50_ms: float
    p99_ms: float
    responses: int


def request(method: str, path: str, headers: Mapping[str, str], body: str = "") -> bytes:
    """Return the bytes of a request; numbers in its body must be as long as NUMBER, as those of `new_numbers` are."""
    all_headers = {"Host": "127.0.0.1", **headers, **({"Content-Length": str(len(body.encode()))} if body else {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def new_numbers() -> Numbers:
    """Return numbers with a random prefix, so that no two loads send the same number."""
    return Numbers("".join(secrets.choice(string.ascii_lowercase) for _ in range(3)) + "-")


def available_tool() -> str:
    """Return `wrk` if it is installed, otherwise `own`."""
    return "wrk" if shutil.which("wrk") else "own"


def load(
    tool: str,
    port: int,
    template: RequestTemplate,
    seconds: int,
    connections: int = CONNECTIONS,
    numbers: Numbers | None = None,
) -> LoadResult:
    """Send a request repeatedly for `seconds`, on each connection as soon as the previous response has arrived."""
    send = _wrk if tool == "wrk" else _own
    return send(port, template, seconds, connections, numbers or new_numbers())


def _wrk(port: int, template: RequestTemplate, seconds: int, connections: int, numbers: Numbers) -> LoadResult:
    assert 200 <= template.status < 400, "wrk only distinguishes 2xx and 3xx from other statuses."
    wrk = shutil.which("wrk")
    assert wrk is not None, "wrk is not installed."
    words = [wrk, "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", "--latency"]
    # By default, wrk counts a response as an error after two seconds, which a busy disk can take.
    words += ["--timeout", f"{_PATIENCE_S}s"]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_script(template.content, numbers))
        script.flush()
        words += ["--script", script.name, f"http://127.0.0.1:{port}"]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in output, output
    assert "Socket errors" not in output, output
    rate, responses = _found(r"Requests/sec:\s+([\d.]+)", output), _found(r"(\d+) requests in", output)
    return LoadResult(float(rate[1]), _percentile_ms(50, output), _percentile_ms(99, output), int(responses[1]))


def _script(content: bytes, numbers: Numbers) -> str:
    parts = ", ".join(_lua(part) for part in content.split(NUMBER.encode()))
    return _SCRIPT.format(before=numbers.first - 1, parts=parts, prefix=numbers.prefix, digits=numbers.digits)


def _found(pattern: str, output: str) -> re.Match[str]:
    found = re.search(pattern, output)
    assert found is not None, output
    return found


def _percentile_ms(percent: int, output: str) -> float:
    found = _found(rf"{percent}%\s+([\d.]+)(us|ms|s|m)\s", output)
    return float(found[1]) * _MS[found[2]]


def _lua(text: bytes) -> str:
    """Write bytes as a Lua string; everything except ASCII letters and digits is a decimal escape."""
    plain = (string.ascii_letters + string.digits).encode()
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in text) + '"'


def _own(port: int, template: RequestTemplate, seconds: int, connections: int, numbers: Numbers) -> LoadResult:
    parameters = {
        "port": port,
        "seconds": seconds,
        "connections": connections,
        "status": template.status,
        "parts": template.content.decode().split(NUMBER),
        "prefix": numbers.prefix,
        "digits": numbers.digits,
        "first": numbers.first,
    }
    with child("bench.load.keep_alive") as process:
        pipe(process.stdin).write(json.dumps(parameters) + "\n")
        pipe(process.stdin).flush()
        output = json.loads(pipe(process.stdout).readline() or "null")
    assert output is not None, "The load broke off: a response had another status, or the connection ended."
    return LoadResult(output["responses"] / output["seconds"], output["p50_ms"], output["p99_ms"], output["responses"])
