"""Example receiver for RiskRelay: verifies deliveries, creates one ticket for each, and applies its events.

    WEBHOOK_SECRET=... PORT=9000 python3 receiver.py
    python3 receiver.py --vectors vectors.json      # run the test vectors

Uses only the standard library. Run it, copy from it, or `from receiver import verify`.
"""

import base64
import hmac
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOLERANCE_S = 300  # allowed difference from the sender's clock
REMEMBERED_S = 2 * TOLERANCE_S  # a request can be replayed for as long as its timestamp is accepted
MAX_REMEMBERED = 100_000  # memory limit: beyond it the oldest entries are dropped
MAX_BODY_BYTES = 4 * 1024 * 1024
IDLE_TIMEOUT_S = 30

# Status of a ticket after each event; None: unchanged. A target only gets the events in its setting `events`.
EVENTS = {"ticket.updated": None, "ticket.fixed": "closed", "ticket.reopened": "open", "ticket.redact": None}

Response = tuple[int, dict[str, str], dict[str, str]]  # status, body, headers


def verify(
    secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: int, is_replay: Callable[[str], bool]
) -> bool:
    """Return whether a request is authentic, recent and not a replay.

    `secrets` has several entries during a rotation. `headers` has lower-case names. `body` is the raw bytes, read before
    any parsing. `now` is in unix seconds. `is_replay(nonce)` stores a nonce and returns whether it was known; it is called
    last, so that forged requests cannot fill the memory.
    """
    timestamp, nonce = headers.get("x-service-timestamp", ""), headers.get("x-service-nonce", "")
    # Without these checks, signed bytes could be moved between timestamp, nonce and body.
    if not re.fullmatch("[0-9]{1,15}", timestamp) or not re.fullmatch("[0-9A-Fa-f]{32}", nonce):
        return False
    if abs(now - int(timestamp)) > TOLERANCE_S:
        return False
    given = headers.get("x-service-signature", "").encode()
    message = f"{timestamp}.{nonce}.".encode() + body
    expected = [b"sha256=" + hmac.new(secret, message, "sha256").hexdigest().encode() for secret in secrets]
    is_signed = any([hmac.compare_digest(each, given) for each in expected])  # noqa: C419 - every secret is tried
    return is_signed and not is_replay(nonce)


class WebhookReceiver:
    """Handles requests. Keeps its state in memory; a production receiver keeps it in its database."""

    def __init__(self, secrets: Sequence[bytes], rate_per_minute: int = 0) -> None:
        self.secrets = secrets
        self.rate_per_minute = rate_per_minute  # 0 is no limit
        self.nonces: dict[str, int] = {}  # nonce to time of receipt
        self.let_through: list[int] = []  # times of accepted requests in the last minute
        self.tickets: dict[str, dict[str, Any]] = {}  # by Idempotency-Key, the export's id; in a database, a unique column
        self.events: dict[str, int] = {}  # Idempotency-Key of an event to time of receipt
        self.last_number = 0
        self.lock = threading.Lock()

    def receive(self, headers: Mapping[str, str], body: bytes, now: int) -> Response:
        """Handle one request; 2xx confirms that the ticket is stored."""
        with self.lock:
            if not verify(self.secrets, headers, body, now, lambda nonce: self.is_replay(nonce, now)):
                return 401, {"code": "WEBHOOK_SIGNATURE_INVALID"}, {}
            wait_s = self.wait_s(now)
            if wait_s > 0:
                return 429, {"code": "WEBHOOK_RATE_LIMITED"}, {"Retry-After": str(wait_s)}
            event, key = read_event(body), headers.get("idempotency-key")
            if event.get("type") == "target.ping":
                return 200, {}, {}  # a test event: create no ticket
            if is_ticket_event(event) and key:
                self.apply(key, event, now)
                return 200, {}, {}
            if event.get("type") != "ticket.export" or not has_title(event.get("ticket")) or not key:
                return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}, {}
            ticket_id = self.ticket_for(key, event["ticket"])
            return 200, {"id": ticket_id, "url": f"https://tracker.example/{ticket_id}"}, {}

    def is_replay(self, nonce: str, now: int) -> bool:
        while self.nonces and self.nonces[oldest := next(iter(self.nonces))] < now - REMEMBERED_S:
            del self.nonces[oldest]
        if nonce in self.nonces:
            return True
        remember(self.nonces, nonce, now)
        return False

    def wait_s(self, now: int) -> int:
        self.let_through = [at for at in self.let_through if at > now - 60]
        if self.rate_per_minute and len(self.let_through) >= self.rate_per_minute:
            return self.let_through[0] + 60 - now
        self.let_through += [now] if self.rate_per_minute else []
        return 0

    def ticket_for(self, key: str, ticket: dict[str, Any]) -> str:
        """Create a ticket once per key: a delivery is repeated if its response was lost."""
        if key not in self.tickets:
            self.last_number += 1
            stored = {"id": f"T-{self.last_number}", "status": "open", "texts": [ticket["title"]]}
            remember(self.tickets, key, stored)  # pass `ticket` to your tracker here
        ticket_id: str = self.tickets[key]["id"]
        return ticket_id

    def apply(self, key: str, event: dict[str, Any], now: int) -> None:
        """Apply an event to its ticket once. Ignore an event whose ticket never arrived: a retry would not change that."""
        ticket = self.tickets.get(event["export"]["id"])
        if ticket is None or key in self.events:
            return
        if event["type"] == "ticket.redact":
            # Erase the content in your tracker, too, before the 2xx. The id and this key remain as the proof.
            ticket["texts"], ticket["erased_by"] = [], key
        else:
            ticket["status"] = EVENTS[event["type"]] or ticket["status"]
            added, fixed, still = (event["change"].get(f"places_{each}") for each in ("added", "fixed", "open"))
            ticket["texts"].append(f"{added} places added, {fixed} fixed, {still} open")
        remember(self.events, key, now)


def remember(memory: dict[str, Any], name: str, value: object) -> None:
    memory[name] = value
    if len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]


def read_event(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body.decode())
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def has_title(ticket: object) -> bool:
    return isinstance(ticket, dict) and isinstance(ticket.get("title"), str)


def is_ticket_event(event: dict[str, Any]) -> bool:
    export, kind = event.get("export"), event.get("type")
    has_export = isinstance(export, dict) and isinstance(export.get("id"), str)
    return isinstance(kind, str) and kind in EVENTS and has_export and isinstance(event.get("change"), dict)


def handler_for(receiver: WebhookReceiver) -> type[BaseHTTPRequestHandler]:
    """Return an HTTP handler for `receiver`."""

    class RequestHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_TIMEOUT_S
        wbufsize = -1  # send a response in one packet

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MAX_BODY_BYTES:
                # The body stays unread, so the connection must be closed.
                self.respond(413 if length else 411, {"code": "WEBHOOK_VALIDATION_FAILED"}, {"Connection": "close"})
                return
            body = self.rfile.read(int(length))
            if len(body) < int(length):  # the sender closed the connection
                self.close_connection = True
                return
            headers = {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers}
            self.respond(*receiver.receive(headers, body, int(time.time())))

        def do_GET(self) -> None:
            self.respond(405, {}, {"Allow": "POST"})

        def respond(self, status: int, body: dict[str, str], headers: dict[str, str]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    return RequestHandler


def passes(vector: dict[str, Any]) -> bool:
    """Return whether one test vector gets the expected response."""
    receiver = WebhookReceiver([secret.encode() for secret in vector["secrets"]], vector["rate_per_minute"])
    receiver.nonces = dict.fromkeys(vector["seen"], vector["now"])
    receiver.let_through = vector["earlier"]
    receiver.events = dict.fromkeys(vector["processed"], vector["now"])
    for key, ticket in vector["tickets"].items():
        receiver.tickets[key] = {"id": "T-0", "status": ticket["status"], "texts": [""] * ticket["texts"]}
    headers: dict[str, str] = {}
    for name, value in vector["headers"]:
        before = headers.get(name.lower())
        headers[name.lower()] = value if before is None else f"{before}, {value}"
    status, body, further = receiver.receive(headers, base64.b64decode(vector["body_base64"]), vector["now"])
    actual = {"status": status, "code": body.get("code"), "ticket": "id" in body}
    after = {key: {"status": each["status"], "texts": len(each["texts"])} for key, each in receiver.tickets.items()}
    is_right = actual == vector["expect"] and after == vector["after"]
    return is_right and ("Retry-After" in further) == (status == 429)


def run_vectors(path: str) -> int:
    vectors = json.loads(Path(path).read_text(encoding="utf-8"))["vectors"]
    failed = [vector["name"] for vector in vectors if not passes(vector)]
    for name in failed:
        print("failed:", name)
    print(f"{len(vectors) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def main() -> int:
    if sys.argv[1:2] == ["--vectors"]:
        return run_vectors(sys.argv[2])
    secrets = [os.environ.get(name, "").encode() for name in ("WEBHOOK_SECRET", "WEBHOOK_SECRET_OLD")]
    if not any(secrets):
        print("Set WEBHOOK_SECRET to the secret that deliveries are signed with.", file=sys.stderr)
        return 2
    receiver = WebhookReceiver([each for each in secrets if each], int(os.environ.get("RATE_PER_MINUTE", "0")))
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), handler_for(receiver))
    print(f"Listening on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
