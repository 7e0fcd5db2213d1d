"""`listen`: a receiver for developing, on a terminal.

It prints what arrives, says which part of a signature is wrong and what would
fit it, keeps requests on request, and fails on request, so that retries can be
watched. What a sender wrote is printed without its control characters; the
secret is never printed.
"""

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from bin.cli.installation import checked_settings
from bin.cli.terminal import may_colour, secret_line
from bin.receiver_kit import saved_requests
from bin.receiver_kit.receiver import DEFAULT_PORT, Misbehaviour, Received, Receiver
from bin.receiver_kit.signature_diagnosis import explain
from runtime.clock import utc_now
from schemas.base.timestamps import rfc3339
from schemas.settings.definitions import InvalidSettings, Settings, load_settings
from worker.delivery.outcomes import VALIDATION_FAILED
from worker.http.signing import DEFAULT_TOLERANCE_S, SignatureVerdict

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

#: What is said of signed bytes that are neither.
_EXPECTED = ": expected JSON of the type ticket.export with a ticket.title, or target.ping"


@click.command(
    epilog="""\b
Example:
  riskrelay listen --port 9000 --fail 503 --times 2 --retry-after 5
  printf %s "$SECRET" | riskrelay listen --secret-stdin --json
  riskrelay listen --save requests --drop 1

\b
Exit codes:
  0  stopped by Ctrl-C or SIGTERM
  1  no secret, or the address cannot be listened on
  2  wrong usage or configuration"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any free one.")
@click.option("--secret-stdin", is_flag=True, help="Read the secret from one line of standard input.")
@click.option("--save", type=click.Path(path_type=Path, file_okay=False), help="Keep each request in a file of this folder.")
@click.option("--fail", type=click.IntRange(300, 599), multiple=True, help="Status to fail with; may be repeated.")
@click.option("--times", type=click.IntRange(1), default=1, show_default=True, help="Failures of each --fail, in order.")
@click.option("--retry-after", type=click.IntRange(0), help="Seconds to ask for with a 429 or 503.")
@click.option("--delay", type=click.FloatRange(0), default=0.0, help="Seconds to wait before every answer.")
@click.option("--drop", type=click.IntRange(0), default=0, help="Accept so many, after the failures, and lose the answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line for each request.")
def listen(
    host: str,
    port: int,
    secret_stdin: bool,
    save: Path | None,
    fail: tuple[int, ...],
    times: int,
    retry_after: int | None,
    delay: float,
    drop: int,
    as_json: bool,
) -> None:
    """Run a test receiver that verifies and prints deliveries, and can fail on request.

    The secret is WEBHOOK_SECRET unless --secret-stdin is given. With --json, standard output holds the
    requests alone, and the line that names the address goes to standard error. `trigger --replay` sends again what
    --save has kept: the raw body and the headers, the signature among them, but no secret.
    """
    secret, others = _secrets(secret_stdin)
    failures = tuple(status for status in fail for _ in range(times))
    misbehaviour = Misbehaviour(failures, retry_after, delay, drop)
    reader_gone = threading.Event()

    def show(received: Received) -> None:
        fits = explain(secret, received.headers, received.body, received.verdict, received.at, others)
        kept = None if save is None else _save(save, received)
        try:
            click.echo((_line if as_json else _block)(received, fits, kept), color=may_colour())
        except BrokenPipeError:
            reader_gone.set()

    receiver = _open(host, port, secret, misbehaviour, show)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with receiver:
            click.echo(f"Listening on {receiver.url} (Ctrl-C to stop)", err=as_json)
            reader_gone.wait()
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))  # which ends a command quietly
    except KeyboardInterrupt:
        click.echo(f"Stopped after {receiver.count} requests.", err=True)


def _secrets(from_stdin: bool) -> tuple[bytes, dict[str, bytes]]:
    """The secret to verify with, and by their names those that a sender may have taken for it."""
    if from_stdin:
        secret, settings = secret_line(), _settings_if_right()
    else:
        settings = checked_settings()
        secret = (settings.webhook_secret or "").encode()
    if not secret:
        raise click.ClickException(
            "There is no secret to verify with; set WEBHOOK_SECRET, or use --secret-stdin and type it."
        )
    return secret, {name: other for name, other in _named(settings).items() if other != secret}


def _settings_if_right() -> Settings | None:
    """The settings, which are of use here but not needed."""
    try:
        return load_settings()
    except InvalidSettings:
        return None


def _named(settings: Settings | None) -> dict[str, bytes]:
    if settings is None:
        return {}
    secrets: Mapping[str, str | None] = {
        "WEBHOOK_SECRET": settings.webhook_secret,
        "SCANNER_SHARED_SECRET": settings.scanner_shared_secret,
        "EMAIL_WEBHOOK_SECRET": settings.email_webhook_secret,
        "STOREFRONT_WEBHOOK_SECRET": settings.storefront_webhook_secret,
    }
    return {name: secret.encode() for name, secret in secrets.items() if secret}


def _save(folder: Path, received: Received) -> Path | None:
    try:
        return saved_requests.save(folder, received)
    except OSError as failed:
        click.echo(f"Not saved in {folder}: {failed.strerror}.", err=True)
        return None


def _open(host: str, port: int, secret: bytes, misbehaviour: Misbehaviour, show: Callable[[Received], None]) -> Receiver:
    try:
        return Receiver([secret], utc_now, host=host, port=port, misbehaviour=misbehaviour, on_received=show)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise click.ClickException(f"Cannot listen on {host} port {port}: {why}. Choose another with --port.") from None


def _line(received: Received, fits: str | None, kept: Path | None) -> str:
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
            "suspect": fits,
            "repeat": received.repeat,
            "status": None if received.is_dropped else received.answer.status,
            "retry_after": received.answer.retry_after_s,
            "answer": None if received.is_dropped else received.answer.body,
            "saved": None if kept is None else str(kept),
        }
    )


def _block(received: Received, fits: str | None, kept: Path | None) -> str:
    """One request as a few lines for a person."""
    repeat = "  (repeat: this key was accepted before)" if received.repeat else ""
    lines = {
        "request": _plain(received.request_id),
        "export": _plain(received.export_id or received.idempotency_key),
        "title": _plain(received.title),
        "signature": _judgement(received.verdict),
        "suspect": fits and click.style(fits, fg="yellow"),
        "saved": kept and str(kept),
        "answered": _answer(received),
    }
    head = f"{click.style(rfc3339(received.at), dim=True)}  {click.style(_plain(received.kind), bold=True)}{repeat}"
    return "\n".join([head, *(f"  {name:10} {text}" for name, text in lines.items() if text), ""])


def _judgement(verdict: SignatureVerdict) -> str:
    words = click.style(verdict.replace("_", " "), fg="green" if verdict.ok else "red")
    return f"{words}: {_REMEDIES[verdict]}" if verdict in _REMEDIES else words


def _answer(received: Received) -> str:
    answer = received.answer
    told = answer.body.get("ticket_id") or answer.body.get("code") or answer.body.get("status", "")
    if received.is_dropped:
        return click.style(
            f"nothing: the connection is closed (--drop); it would have been {answer.status} {told}", fg="yellow"
        )
    after = f", Retry-After {answer.retry_after_s}" if answer.retry_after_s is not None else ""
    is_invalid = answer.body.get("code") == VALIDATION_FAILED and received.verdict.ok and not received.is_known
    expected = _EXPECTED if is_invalid else ""
    return f"{click.style(str(answer.status), fg='green' if answer.status // 100 == 2 else 'red')} {told}{after}{expected}"


def _plain(text: str | None) -> str:
    """What a sender wrote, safe for a terminal: control characters and half characters become `?`."""
    if text is None:
        return "-"
    shown = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    safe = "".join(character if character.isprintable() else "?" for character in shown)
    encoding = sys.stdout.encoding or "ascii"
    return safe.encode(encoding, "replace").decode(encoding)
