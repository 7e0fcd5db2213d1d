#!/usr/bin/env python3
"""Talk to RiskRelay: submit, approve, poll until it is delivered. Needs Python 3.11 alone; import it or run it.

    export RISKRELAY_URL=… RISKRELAY_TOKEN=…         # and SCANNER_SHARED_SECRET for results of a scanner
    examples/client.py submit ticket.json            # {"ticket": {"title": …}}, or a scanner's postback; prints ids
    examples/client.py show exp_…                    # the ticket and its ticket_digest
    examples/client.py approve exp_… --target tgt_… --digest sha256:…
    examples/client.py poll exp_…                    # a line for each status, until nothing more comes

Exit code 0: done, for `poll` exported; 1: refused or unreachable; 2: wrong usage; 3: `poll` ended failed, blocked or
dismissed; 4: still on its way when the time was up. What may be sent again is sent again, with the same bytes and key.
"""

import argparse
import hashlib
import http.client
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

TIMEOUT_S = 15  # for one request, all of it; the service answers in milliseconds, a ping in seconds
PATIENCE_S = 60  # for one request with all its repeats
MAX_PAUSE_S = 30  # between two repeats or polls, unless Retry-After asks for more
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # a page of 200 exports has less, each as long as can be
PASSING = {408, 429, 502, 503, 504}  # and 409 IDEMPOTENCY_IN_PROGRESS; anything else comes back the same
DONE = {"exported", "failed", "blocked", "dismissed"}


class Answer(NamedTuple):
    """One HTTP answer: the body is parsed JSON, None where there is none."""

    status: int
    headers: Message
    body: Any

    @property
    def retry_after_s(self) -> float:
        """The seconds to wait at least."""
        asked = self.headers.get("Retry-After", "")
        return float(asked) if asked.isdecimal() else 0.0


class Refused(Exception):
    """RiskRelay said no: `status`, `code`, and `fields` with a path, a code and a message each."""

    def __init__(self, answer: Answer) -> None:
        error = _object(_object(answer.body).get("error"))
        self.status, self.code = answer.status, error.get("code")
        self.fields: list[dict[str, str]] = _object(error.get("details")).get("fields", [])
        told = [f"{self.status} {self.code or 'without a code'}: {error.get('message', 'is this RiskRelay?')}"]
        told += [f"  {field['path']}  {field['code']}  {field['message']}" for field in self.fields]
        super().__init__("\n".join([*told, f"  request {error.get('request_id', 'unknown')}"]))


class Unreachable(Exception):
    """No whole answer came for as long as we had patience."""


class Client:
    """One RiskRelay at `url`, which is https, or http on this machine: neither token nor secret goes over an open line."""

    def __init__(
        self,
        url: str,
        token: str = "",
        scanner_secret: str = "",
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        place = urlsplit(url)
        self._host, self._port, self._root = place.hostname or "", place.port, place.path.rstrip("/")
        if place.username or not (place.scheme == "https" or (place.scheme == "http" and _is_here(self._host))):
            raise ValueError("The address has to be https://…, or http:// on this machine, without a user in it.")
        if not (token.isascii() and token.isprintable() and scanner_secret.isprintable()):
            raise ValueError("The token or the secret holds what no header may hold, such as a line's end.")
        self._tls = ssl.create_default_context() if place.scheme == "https" else None
        self._bearer = {"Authorization": f"Bearer {token}".encode()}
        self._scanner = {"X-Scanner-Secret": scanner_secret.encode()}
        self._patience_s, self._timeout_s = patience_s, timeout_s

    def submit(self, body: dict[str, Any], key: str | None = None) -> list[str]:
        """Hand in a scanner's postback, or a ticket `{"ticket": {"title": …}, …}`; return the ids of the exports.

        The same body is the same submission, unless `key` says otherwise.
        """
        if "scanRunId" in body:
            found = self._ask("POST", "/api/scanner/results", self._scanner, body, key).body
            return list(found["ticket_exports"])
        return [self._ask("POST", "/api/ticket-exports", self._bearer, body, key).body["id"]]

    def show(self, export_id: str) -> dict[str, Any]:
        """Return the export: `status`, `ticket`, `ticket_digest` and the rest."""
        return dict(self._ask("GET", _export(export_id), self._bearer).body)

    def approve(self, export_id: str, target_id: str, digest: str, key: str | None = None) -> dict[str, Any]:
        """Let the ticket that has this digest go to a target; if it is another by now, that is a `CONFLICT`."""
        asked = {"target_id": target_id, "ticket_digest": digest}
        return dict(self._ask("POST", f"{_export(export_id)}/approve", self._bearer, asked, key).body)

    def exports(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Yield the exports, newest first, page by page; `status="prepared,failed"`, `source="finding"`."""
        page: dict[str, Any] = {"next_cursor": None}
        while "items" not in page or page["next_cursor"]:
            cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
            asked = urlencode({"limit": "200", **filters, **cursor})
            page = self._ask("GET", f"/api/ticket-exports?{asked}", self._bearer).body
            yield from page["items"]

    def poll(
        self, export_id: str, within_s: float = 3600, told: Callable[[dict[str, Any]], object] = lambda _: None
    ) -> dict[str, Any]:
        """Wait until the export's status is one of DONE, at most `within_s` seconds; return it as it was last.

        `told` is called with every version of it. Comes back at once where the next attempt lies beyond `within_s`.
        """
        until, pause_s = time.monotonic() + within_s, 1.0
        tag: dict[str, bytes] = {}
        record: dict[str, Any] = {}
        while True:
            answer = self._ask("GET", _export(export_id), {**self._bearer, **tag})
            if answer.status == http.client.OK:
                record, pause_s = answer.body, 1.0
                tag = {"If-None-Match": answer.headers["ETag"].encode()} if "ETag" in answer.headers else {}
                told(record)
            pause_s = max(pause_s, answer.retry_after_s)
            if record["status"] in DONE or time.monotonic() + pause_s > until:
                return record
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, MAX_PAUSE_S)

    def _ask(self, method: str, path: str, headers: dict[str, bytes], body: Any = None, key: str | None = None) -> Answer:
        """Send one request, again and again while that is safe and of use."""
        content = None if body is None else json.dumps(body, sort_keys=True).encode()
        if content is not None:
            key = key or hashlib.sha256(f"{method} {path} ".encode() + content).hexdigest()
            headers = {**headers, "Content-Type": b"application/json", "Idempotency-Key": key.encode()}
        until = time.monotonic() + self._patience_s
        for attempt in count():
            problem: Exception
            asked_s = 0.0
            try:
                answer = self._once(method, path, headers, content)
                is_record = answer.status // 100 == 2 and isinstance(answer.body, dict)
                if is_record or (answer.status == http.client.NOT_MODIFIED and "If-None-Match" in headers):
                    return answer
                problem, asked_s = Refused(answer), answer.retry_after_s
                if answer.status not in PASSING and problem.code != "IDEMPOTENCY_IN_PROGRESS":
                    raise problem
            except (OSError, http.client.HTTPException) as lost:
                problem = Unreachable(f"{self._host} gave no whole answer: {str(lost) or type(lost).__name__}")
                if isinstance(lost, ssl.SSLCertVerificationError):
                    raise problem from lost
            pause_s = max(asked_s, _pause_s(attempt))
            if time.monotonic() + pause_s > until:
                raise problem
            time.sleep(pause_s)
        raise AssertionError("count() never ends")

    def _once(self, method: str, path: str, headers: dict[str, bytes], content: bytes | None) -> Answer:
        """Send one request over a connection of its own; redirects are answers like any other, and never followed."""
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        connection.connect()
        # A socket's timeout bounds each read; what comes byte by byte is bounded by this.
        alarm = threading.Timer(self._timeout_s, _hang_up, [connection.sock])
        alarm.start()
        try:
            # Who refuses a long body may hang up before its end: the answer is there all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._root + path, content, {"Accept": "application/json", **headers})
            response = connection.getresponse()
            text = response.read(MAX_ANSWER_BYTES)
        finally:
            alarm.cancel()
            connection.close()
        if response.length:
            raise http.client.IncompleteRead(text, response.length)
        return Answer(response.status, response.headers, _json(text))


def _pause_s(attempt: int) -> float:
    """Half a second, doubled each time; half of it by chance, so that clients which failed together come back apart."""
    return min(MAX_PAUSE_S, 0.5 * 2.0 ** min(attempt, 9)) * random.uniform(0.5, 1)  # noqa: S311 - spreads load


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # 304 has no body, and what stands in front of RiskRelay may answer with a page


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # errors of what stands in front of RiskRelay have forms of their own


def _export(export_id: str) -> str:
    return f"/api/ticket-exports/{quote(export_id, safe='')}"


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):  # it has just ended
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of the plain socket: TLS would forget its session while it is read


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
        sys.exit(f"{file}: is no JSON object")
    return body


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Submit tickets to RiskRelay, approve them, poll until they are delivered.")
    here = os.environ.get("RISKRELAY_URL", "http://127.0.0.1:8000")
    parser.add_argument("--to", default=here, metavar="URL", help="where RiskRelay is (RISKRELAY_URL; %(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    submit = verbs.add_parser("submit", help="hand in a ticket or a postback; prints the ids of its exports")
    submit.add_argument("file", help="JSON; - for standard input")
    submit.add_argument("--key", help="Idempotency-Key, if not that of the content")
    show = verbs.add_parser("show", help="print an export as JSON")
    approve = verbs.add_parser("approve", help="let a ticket go to a target; prints the status")
    approve.add_argument("--target", required=True, help="tgt_…")
    approve.add_argument("--digest", help="the ticket_digest that you have seen; without it, what the ticket is now")
    poll = verbs.add_parser("poll", help="print each status until nothing more comes")
    poll.add_argument("--within", type=float, default=3600, metavar="S", help="seconds to wait at most (%(default)s)")
    for verb in (show, approve, poll):
        verb.add_argument("export", help="exp_…")
    return parser.parse_args()


def _told(export: dict[str, Any]) -> None:
    wait_s, reason = export.get("retry_after_seconds"), export.get("status_reason")
    print(export["status"], *([f"({reason})"] if reason else []), *([f"in {wait_s} s"] if wait_s else []), flush=True)


def _do(client: Client, asked: argparse.Namespace) -> int:
    """Do what was asked and return the exit code."""
    match asked.verb:
        case "submit":
            print("\n".join(client.submit(_read(asked.file), asked.key)))
        case "show":
            print(json.dumps(client.show(asked.export), indent=2))
        case "approve":
            digest = asked.digest or client.show(asked.export)["ticket_digest"]
            _told(client.approve(asked.export, asked.target, digest))
        case "poll":
            status = client.poll(asked.export, asked.within, _told)["status"]
            return 0 if status == "exported" else 3 if status in DONE else 4
    return 0


def main() -> int:
    asked = _asked()
    token, secret = os.environ.get("RISKRELAY_TOKEN", ""), os.environ.get("SCANNER_SHARED_SECRET", "")
    try:
        return _do(Client(asked.to, token, secret), asked)
    except (Refused, Unreachable) as failed:
        print(failed, file=sys.stderr)
        return 1
    except ValueError as wrong:  # an address, a token or a key that cannot be sent
        print(wrong, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as a shell tells it


if __name__ == "__main__":
    sys.exit(main())
