"""`listen`: a receiver for developing, on a terminal.

It prints what arrives, says which part of a signature is wrong, and fails on
request, so that retries can be watched. What a sender wrote is printed without
its control characters; the secret is never printed.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable

import click

from bin.installation import checked_settings
from bin.receiver import Misbehaviour, Received, Receiver
from schemas.times import rfc3339
from storage.clock import utc_now
from worker.signing import DEFAULT_TOLERANCE_S, SignatureVerdict

DEFAULT_PORT = 9000

# A title is one line of a terminal or two; the body itself is the sender's to look at.
MAX_SHOWN_CHARS = 200

_REMEDIES = {
    SignatureVerdict.SIGNATURE_WRONG: "another secret, or body, timestamp or nonce changed on the way",
    SignatureVerdict.SIGNATURE_MALFORMED: "expected sha256= and 64 lower-case hex digits",
    SignatureVerdict.TIMESTAMP_MALFORMED: "expected whole unix seconds",
    SignatureVerdict.TIMESTAMP_STALE: f"signed over {DEFAULT_TOLERANCE_S} s ago; compare the clocks",
    SignatureVerdict.TIMESTAMP_FUTURE: f"over {DEFAULT_TOLERANCE_S} s ahead; compare the clocks",
    SignatureVerdict.NONCE_MALFORMED: "expected 32 hex digits",
    SignatureVerdict.NONCE_REPLAYED: "each attempt needs a nonce of its own",
}


@click.command(
    epilog="""\b
Example:
  riskrelay listen --port 9000 --fail 503 --times 2 --retry-after 5
  printf %s "$SECRET" | riskrelay listen --secret-stdin --json

\b
Exit codes:
  0  stopped by Ctrl-C or SIGTERM
  1  no secret, or the address cannot be listened on
  2  wrong usage or configuration"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any free one.")
@click.option("--secret-stdin", is_flag=True, help="Read the secret from one line of standard input.")
@click.option("--fail", type=click.IntRange(300, 599), multiple=True, help="Status to fail with; may be repeated.")
@click.option("--times", type=click.IntRange(1), default=1, show_default=True, help="Failures of each --fail, in order.")
@click.option("--retry-after", type=click.IntRange(0), help="Seconds to ask for with a 429 or 503.")
@click.option("--delay", type=click.FloatRange(0), default=0.0, help="Seconds to wait before every answer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line for each request.")
def listen(
    host: str,
    port: int,
    secret_stdin: bool,
    fail: tuple[int, ...],
    times: int,
    retry_after: int | None,
    delay: float,
    as_json: bool,
) -> None:
    """Receive deliveries: verify, print, and misbehave on request.

    The secret is WEBHOOK_SECRET unless --secret-stdin is given. With --json, standard output holds the
    requests alone, and the line that names the address goes to standard error.
    """
    failures = tuple(status for status in fail for _ in range(times))
    receiver = _open(
        host,
        port,
        _secret(secret_stdin),
        Misbehaviour(failures, retry_after, delay),
        _line if as_json else _block,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with receiver:
            click.echo(f"Listening on {receiver.url} (Ctrl-C to stop)", err=as_json)
            threading.Event().wait()
    except KeyboardInterrupt:
        click.echo(f"Stopped after {receiver.count} requests.", err=True)


def _secret(from_stdin: bool) -> bytes:
    secret = secret_line() if from_stdin else (checked_settings().webhook_secret or "").encode()
    if not secret:
        raise click.ClickException(
            "There is no secret to verify with; set WEBHOOK_SECRET, or use --secret-stdin and type it."
        )
    return secret


def secret_line() -> bytes:
    """Read a secret from one line of standard input."""
    return sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")


def _open(host: str, port: int, secret: bytes, misbehaviour: Misbehaviour, describe: Callable[[Received], str]) -> Receiver:
    def show(received: Received) -> None:
        click.echo(describe(received))

    try:
        return Receiver([secret], utc_now, host=host, port=port, misbehaviour=misbehaviour, on_received=show)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise click.ClickException(f"Cannot listen on {host} port {port}: {why}. Choose another with --port.") from None


def _line(received: Received) -> str:
    """One request as one line of JSON, in ASCII."""
    return json.dumps(
        {
            "at": rfc3339(received.at),
            "request_id": received.request_id,
            "idempotency_key": received.idempotency_key,
            "export_id": received.export_id,
            "type": received.kind,
            "title": received.title,
            "signature": received.verdict,
            "repeat": received.repeat,
            "status": received.answer.status,
            "retry_after": received.answer.retry_after_s,
            "answer": received.answer.body,
        }
    )


def _block(received: Received) -> str:
    """One request as a few lines for a person."""
    repeat = "  (repeat: this key was answered with 2xx before)" if received.repeat else ""
    return "\n".join(
        [
            f"{rfc3339(received.at)}  {_plain(received.kind)}{repeat}",
            f"  request    {_plain(received.request_id)}",
            f"  export     {_plain(received.export_id or received.idempotency_key)}",
            f"  title      {_plain(received.title)}",
            f"  signature  {_judgement(received.verdict)}",
            f"  answered   {_answer(received)}",
            "",
        ]
    )


def _judgement(verdict: SignatureVerdict) -> str:
    words = verdict.replace("_", " ")
    return f"{words}: {_REMEDIES[verdict]}" if verdict in _REMEDIES else words


def _answer(received: Received) -> str:
    answer = received.answer
    after = f", Retry-After {answer.retry_after_s}" if answer.retry_after_s is not None else ""
    return f"{answer.status} {answer.body.get('ticket_id') or answer.body['code']}{after}"


def _plain(text: str | None) -> str:
    """What a sender wrote, safe for a terminal: control characters and half characters become `?`."""
    if text is None:
        return "-"
    shown = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    safe = "".join(character if character.isprintable() else "?" for character in shown)
    encoding = sys.stdout.encoding or "ascii"
    return safe.encode(encoding, "replace").decode(encoding)
