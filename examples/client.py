#!/usr/bin/env python3
"""Example client for RiskRelay: submit, approve and poll tickets. Needs only Python 3.11; import it or run it.

    export RISKRELAY_URL=… RISKRELAY_TOKEN=…         # and SCANNER_SHARED_SECRET for scanner results
    examples/client.py submit ticket.json            # {"ticket": {"title": …}} or a scanner's postback; prints export ids
    examples/client.py show exp_…                    # prints the export with its ticket and ticket_digest
    examples/client.py approve exp_… --target tgt_… --digest sha256:…
    examples/client.py poll exp_…                    # prints each status until the export is finished

Exit codes: 0 done, `poll` exported; 1 rejected or unreachable; 2 wrong usage; 3 `poll` ended failed, blocked or dismissed;
4 `poll` timed out. Requests are repeated where that is safe, with the same bytes and the same Idempotency-Key.
"""

import argparse
import hashlib
import http.client
import io
import json
import os
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.message import Message
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

TIMEOUT_S = 15  # total time of one request; the service responds in milliseconds, to a ping in seconds
RETRY_FOR_S = 60  # total time of one request with all its repeats
MAX_PAUSE_S = 30  # between two repeats or polls, unless Retry-After is longer
MAX_RESPONSE_BYTES = 64 * 1024 * 1024  # more than a page of 200 exports of maximum size
RETRYABLE = {408, 429, 502, 503, 504}  # and 409 IDEMPOTENCY_IN_PROGRESS; other errors are permanent
FINISHED = {"exported", "failed", "blocked", "dismissed"}


class RelayResponse(NamedTuple):
    """An HTTP response; `body` is parsed JSON, or None without a JSON body."""

    status: int
    headers: Message
    body: Any

    @property
    def retry_after_s(self) -> float:
        """The minimum number of seconds to wait."""
        seconds = self.headers.get("Retry-After", "")
        return float(seconds) if seconds.isdecimal() else 0.0


class ApiError(Exception):
    """An error response: `status`, `code`, and `fields` with a path, a code and a message each."""

    def __init__(self, response: RelayResponse) -> None:
        error = _object(_object(response.body).get("error"))
        self.status, self.code = response.status, error.get("code")
        self.fields: list[dict[str, str]] = _object(error.get("details")).get("fields", [])
        lines = [f"{self.status} {self.code or 'without a code'}: {error.get('message', 'the server may not be RiskRelay')}"]
        lines += [f"  {field['path']}  {field['code']}  {field['message']}" for field in self.fields]
        super().__init__("\n".join([*lines, f"  request {error.get('request_id', 'unknown')}"]))


class Unreachable(Exception):
    """No complete response arrived within the retry time."""


class _CompleteLines(io.BufferedReader):
    """Reads the lines of a response; http.client alone accepts a closed connection as the end of the headers."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line of the status, the headers or a chunk; raises IncompleteRead."""
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise http.client.IncompleteRead(line)
        return line


class _Response(http.client.HTTPResponse):
    """A response with a complete header block."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = _CompleteLines(self.fp.detach())


class Client:
    """Client of the RiskRelay at `url`: https, or http on this machine, so that no credential is sent unencrypted."""

    def __init__(
        self,
        url: str,
        token: str = "",
        scanner_secret: str = "",
        retry_for_s: float = RETRY_FOR_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._root = parts.hostname or "", parts.port, parts.path.rstrip("/")
        if parts.username or not (parts.scheme == "https" or (parts.scheme == "http" and _is_here(self._host))):
            raise ValueError("The URL must be https://…, or http:// on this machine, without a user name.")
        if not (token.isascii() and token.isprintable() and scanner_secret.isprintable()):
            raise ValueError("The token or the secret contains a character not allowed in headers, such as a line break.")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._bearer = {"Authorization": f"Bearer {token}".encode()}
        self._scanner = {"X-Scanner-Secret": scanner_secret.encode()}
        self._retry_for_s, self._timeout_s = retry_for_s, timeout_s

    def submit(self, body: dict[str, Any], key: str | None = None) -> list[str]:
        """Submit a scanner's postback or a ticket `{"ticket": {"title": …}, …}`; return the ids of the exports.

        A repeated body counts as the same submission; pass another `key` to submit it again.
        """
        if "scanRunId" in body:
            accepted = self._request("POST", "/api/scanner/results", self._scanner, body, key).body
            return list(accepted["ticket_exports"])
        return [self._request("POST", "/api/ticket-exports", self._bearer, body, key).body["id"]]

    def show(self, export_id: str) -> dict[str, Any]:
        """Return the export with its `status`, `ticket`, `ticket_digest` and other fields."""
        return dict(self._request("GET", _export(export_id), self._bearer).body)

    def approve(self, export_id: str, target_id: str, digest: str, key: str | None = None) -> dict[str, Any]:
        """Approve the ticket with this digest for a target; raises ApiError `CONFLICT` if the ticket has changed."""
        body = {"target_id": target_id, "ticket_digest": digest}
        return dict(self._request("POST", f"{_export(export_id)}/approve", self._bearer, body, key).body)

    def exports(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Yield all matching exports, newest first, for example with `status="prepared,failed"`, `source="finding"`."""
        page: dict[str, Any] = {"next_cursor": None}
        while "items" not in page or page["next_cursor"]:
            cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
            query = urlencode({"limit": "200", **filters, **cursor})
            page = self._request("GET", f"/api/ticket-exports?{query}", self._bearer).body
            yield from page["items"]

    def poll(
        self, export_id: str, within_s: float = 3600, on_change: Callable[[dict[str, Any]], object] = lambda _: None
    ) -> dict[str, Any]:
        """Poll until the export's status is in FINISHED, for at most `within_s` seconds; return its last state.

        Calls `on_change` with every new state. Returns early if `next_attempt_at` is after `within_s`.
        """
        until, pause_s = time.monotonic() + within_s, 1.0
        tag: dict[str, bytes] = {}
        record: dict[str, Any] = {}
        while True:
            response = self._request("GET", _export(export_id), {**self._bearer, **tag})
            if response.status == http.client.OK:
                record, pause_s = response.body, 1.0
                tag = {"If-None-Match": response.headers["ETag"].encode()} if "ETag" in response.headers else {}
                on_change(record)
            left_s = until - time.monotonic()
            # Without `next_attempt_at`, Retry-After is a guess: a person may resume the target at any time.
            is_due_later = response.retry_after_s > left_s and record.get("next_attempt_at") is not None
            if record["status"] in FINISHED or left_s <= 0 or is_due_later:
                return record
            time.sleep(min(max(pause_s, response.retry_after_s), left_s))
            pause_s = min(pause_s * 1.5, MAX_PAUSE_S)

    def _request(
        self, method: str, path: str, headers: dict[str, bytes], body: Any = None, key: str | None = None
    ) -> RelayResponse:
        """Send one request and repeat it while that is safe and can succeed."""
        content = None if body is None else json.dumps(body, sort_keys=True).encode()
        if content is not None:
            key = key or hashlib.sha256(f"{method} {path} ".encode() + content).hexdigest()
            headers = {**headers, "Content-Type": b"application/json", "Idempotency-Key": key.encode()}
        until = time.monotonic() + self._retry_for_s
        for attempt in count():
            problem: Exception
            retry_after_s = 0.0
            try:
                response = self._send_once(method, path, headers, content)
                is_record = response.status // 100 == 2 and isinstance(response.body, dict)
                if is_record or (response.status == http.client.NOT_MODIFIED and "If-None-Match" in headers):
                    return response
                problem, retry_after_s = ApiError(response), response.retry_after_s
                if response.status not in RETRYABLE and problem.code != "IDEMPOTENCY_IN_PROGRESS":
                    raise problem
            except (OSError, http.client.HTTPException) as error:
                problem = Unreachable(f"{self._host} sent no complete response: {str(error) or type(error).__name__}")
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise problem from error
            pause_s = max(retry_after_s, _pause_s(attempt))
            if time.monotonic() + pause_s > until:
                raise problem
            time.sleep(pause_s)
        raise AssertionError("count() never ends")

    def _send_once(self, method: str, path: str, headers: dict[str, bytes], content: bytes | None) -> RelayResponse:
        """Send one request over its own connection; redirects are returned and never followed."""
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        connection.response_class = _Response
        connection.connect()
        # The socket timeout limits each read; this timer limits the whole request against slow responses.
        timer = threading.Timer(self._timeout_s, _close, [connection.sock])
        timer.start()
        try:
            # A server that rejects a long body may close the connection early; its response is still readable.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._root + path, content, {"Accept": "application/json", **headers})
            response = connection.getresponse()
            text = response.read(MAX_RESPONSE_BYTES)
        finally:
            timer.cancel()
            connection.close()
        body = _json(text)
        # A body that ends with the connection has no length: only its content shows whether it is complete.
        ends_with_connection = response.length is None and not response.chunked
        if response.length or (ends_with_connection and response.status // 100 == 2 and not isinstance(body, dict)):
            raise http.client.IncompleteRead(text, response.length)
        return RelayResponse(response.status, response.headers, body)


def _pause_s(attempt: int) -> float:
    """Half a second, doubled each time, with jitter, so that clients that failed together do not retry together."""
    return min(MAX_PAUSE_S, 0.5 * 2.0 ** min(attempt, 9)) * random.uniform(0.5, 1)  # noqa: S311 - spreads load


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # 304 has no body, and a proxy in front of RiskRelay may send HTML


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # a proxy in front of RiskRelay has its own error format


def _export(export_id: str) -> str:
    return f"/api/ticket-exports/{quote(export_id, safe='')}"


def _close(sock: socket.socket) -> None:
    with suppress(OSError):  # it is already closed
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of the plain socket: a TLS shutdown would break the concurrent read


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(file: str) -> dict[str, Any]:
    try:
        body = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as failed:
        sys.exit(f"{file}: {failed}")
    if not isinstance(body, dict):
        sys.exit(f"{file}: not a JSON object")
    return body


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Submit tickets to RiskRelay, approve them, poll until they are delivered.")
    default = os.environ.get("RISKRELAY_URL", "http://127.0.0.1:8000")
    parser.add_argument("--to", default=default, metavar="URL", help="URL of RiskRelay (RISKRELAY_URL; %(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    submit = verbs.add_parser("submit", help="submit a ticket or a postback; prints the export ids")
    submit.add_argument("file", help="JSON file; - for standard input")
    submit.add_argument("--key", help="Idempotency-Key (default: a digest of the content)")
    show = verbs.add_parser("show", help="print an export as JSON")
    approve = verbs.add_parser("approve", help="approve a ticket for a target; prints the status")
    approve.add_argument("--target", required=True, help="tgt_…")
    approve.add_argument("--digest", help="ticket_digest of the reviewed ticket (default: the current one)")
    poll = verbs.add_parser("poll", help="print each status until the export is finished")
    poll.add_argument("--within", type=float, default=3600, metavar="S", help="maximum seconds to wait (%(default)s)")
    for verb in (show, approve, poll):
        verb.add_argument("export", help="exp_…")
    return parser.parse_args()


def _print_status(export: dict[str, Any]) -> None:
    wait_s, reason = export.get("retry_after_seconds"), export.get("status_reason")
    print(export["status"], *([f"({reason})"] if reason else []), *([f"in {wait_s} s"] if wait_s else []), flush=True)


def _run(client: Client, arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    match arguments.verb:
        case "submit":
            ids = client.submit(_read(arguments.file), arguments.key)
            print("\n".join(ids) or "no new ticket", file=sys.stdout if ids else sys.stderr)
        case "show":
            print(json.dumps(client.show(arguments.export), indent=2))
        case "approve":
            digest = arguments.digest or client.show(arguments.export)["ticket_digest"]
            _print_status(client.approve(arguments.export, arguments.target, digest))
        case "poll":
            status = client.poll(arguments.export, arguments.within, _print_status)["status"]
            return 0 if status == "exported" else 3 if status in FINISHED else 4
    return 0


def main() -> int:
    arguments = _parse_arguments()
    token, secret = os.environ.get("RISKRELAY_TOKEN", ""), os.environ.get("SCANNER_SHARED_SECRET", "")
    try:
        return _run(Client(arguments.to, token, secret), arguments)
    except (ApiError, Unreachable) as failed:
        print(failed, file=sys.stderr)
        return 1
    except ValueError as wrong:  # an invalid URL, token or key
        print(wrong, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # the exit code of a shell after Ctrl-C


if __name__ == "__main__":
    sys.exit(main())
