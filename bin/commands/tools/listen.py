"""`listen`: a development receiver on a terminal.

It prints each request, diagnoses invalid signatures, saves requests and
injects faults, so that retries can be watched. Control characters in a
request are printed as `?`; the secret is never printed.
"""

import json
import signal
from pathlib import Path

import click

from bin.cli.installation import checked_settings, shared_secrets
from bin.cli.output import Refused, echo, echo_styled
from bin.cli.terminal import secret_or_setting
from bin.receiver_kit import saved_requests
from bin.receiver_kit.receiver import DEFAULT_PORT, FaultInjection, LocalReceiver, Received
from bin.receiver_kit.signature_diagnosis import explain
from runtime.clock import utc_now
from schemas.base.printable import printable
from schemas.base.timestamps import format_rfc3339
from worker.delivery.outcomes import VALIDATION_FAILED
from worker.http.signing import DEFAULT_TOLERANCE_S, SignatureVerdict

# A title then takes at most a line or two of a terminal.
MAX_SHOWN_CHARS = 200

_EXPLANATIONS = {
    SignatureVerdict.SIGNATURE_WRONG: "signed with another secret, or body, timestamp or nonce changed after signing",
    SignatureVerdict.SIGNATURE_MALFORMED: "expected sha256= and 64 lower-case hex digits",
    SignatureVerdict.TIMESTAMP_MALFORMED: "expected whole Unix seconds",
    SignatureVerdict.TIMESTAMP_STALE: f"signed more than {DEFAULT_TOLERANCE_S} s ago; compare the clocks",
    SignatureVerdict.TIMESTAMP_FUTURE: f"more than {DEFAULT_TOLERANCE_S} s ahead; compare the clocks",
    SignatureVerdict.NONCE_MALFORMED: "expected 32 hex digits",
    SignatureVerdict.NONCE_REPLAYED: "each attempt needs a new nonce",
}

#: Explains a 422 to a correctly signed request.
_EXPECTED = (
    ": expected a ticket.export with a ticket.title, a ticket.updated, fixed, reopened or redact with export.id and change, "
    "or a target.ping, as JSON, CloudEvents or SARIF"
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 selects a free port.",
)
@click.option("--secret-stdin", is_flag=True, help="Read the secret from one line of standard input.")
@click.option("--save", type=click.Path(path_type=Path, file_okay=False), help="Save each request to a file in this folder.")
@click.option("--fail", type=click.IntRange(300, 599), multiple=True, help="Respond with this status; may be repeated.")
@click.option(
    "--times", type=click.IntRange(1), default=1, show_default=True, help="Number of requests that each --fail applies to."
)
@click.option("--retry-after", "retry_after_s", type=click.IntRange(0), help="Retry-After of a 429 or 503, in seconds.")
@click.option(
    "--delay", "delay_s", type=click.FloatRange(0, 86_400), default=0.0, help="Seconds to wait before each response."
)
@click.option(
    "--drop",
    "drops",
    type=click.IntRange(0),
    default=0,
    help="After the failures, process this many requests and close the connection without a response.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per request.")
def listen(
    host: str,
    port: int,
    secret_stdin: bool,
    save: Path | None,
    fail: tuple[int, ...],
    times: int,
    retry_after_s: int | None,
    delay_s: float,
    drops: int,
    as_json: bool,
) -> None:
    """Run a test receiver that verifies and prints deliveries, and can fail on request.

    The secret is WEBHOOK_SECRET unless --secret-stdin is given. With --json, standard output contains only the requests;
    the line with the address is written to standard error. --save writes the raw body and the headers, including the
    signature but no secret; `trigger --replay` sends a saved request again. Events change the received tickets:
    the response names the effect, or `ignored`. A ticket.redact erases the ticket from memory; delete saved files yourself.

    Example:
      riskrelay listen --port 9000 --fail 503 --times 2 --retry-after 5
      printf %s "$SECRET" | riskrelay listen --secret-stdin --json
      riskrelay listen --save requests --drop 1

    Exit codes:
      0  stopped by Ctrl-C or SIGTERM
      1  no secret, or the address cannot be bound
      2  wrong usage or configuration
    """
    settings = checked_settings()
    secret = secret_or_setting(secret_stdin, settings.webhook_secret, "WEBHOOK_SECRET").encode()
    # The secrets that a sender may use by mistake.
    others = {name: each.encode() for name, each in shared_secrets(settings).items() if each.encode() != secret}
    failures = tuple(status for status in fail for _ in range(times))

    def show(received: Received) -> None:
        diagnosis = explain(secret, received.headers, received.body, received.verdict, received.at, others)
        saved = None if save is None else _save(save, received)
        if as_json:
            echo(_line(received, diagnosis, saved))
        else:
            echo_styled(_block(received, diagnosis, saved))

    faults = FaultInjection(failures, retry_after_s, delay_s, drops)
    try:
        receiver = LocalReceiver([secret], utc_now, host=host, port=port, faults=faults, on_received=show)
    except OSError as error:
        cause = error.strerror or error
        raise Refused(f"Cannot listen on {host} port {port}: {cause}. Choose another with --port.") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with receiver:
            echo(f"Listening on {receiver.url} (Ctrl-C to stop)", err=as_json)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        echo(f"Stopped after {receiver.count} requests.", err=True)


def _save(folder: Path, received: Received) -> Path | None:
    try:
        return saved_requests.save(folder, received)
    except OSError as failed:
        echo(f"Cannot save the request in {folder}: {failed.strerror}.", err=True)
        return None


def _line(received: Received, diagnosis: str | None, saved: Path | None) -> str:
    """Return a request as one line of JSON, in ASCII."""
    return json.dumps(
        {
            "at": format_rfc3339(received.at),
            "request_id": received.request_id,
            "idempotency_key": received.idempotency_key,
            "export_id": received.export_id,
            "type": received.kind,
            "title": received.title,
            "change": received.change,
            "signature": received.verdict,
            "suspect": diagnosis,
            "repeat": received.repeat,
            "status": None if received.is_dropped else received.response.status,
            "retry_after": received.response.retry_after_s,
            "answer": None if received.is_dropped else received.response.body,
            "saved": None if saved is None else str(saved),
        }
    )


def _block(received: Received, diagnosis: str | None, saved: Path | None) -> str:
    """Return a request as a few lines of text."""
    repeat = "  (repeat: this Idempotency-Key was accepted before)" if received.repeat else ""
    lines = {
        "request": _plain(received.request_id),
        "export": _plain(received.export_id or received.idempotency_key),
        "title": _plain(received.title),
        "places": received.change
        and ", ".join(f"{n} {name.removeprefix('places_')}" for name, n in received.change.items()),
        "signature": _verification(received.verdict),
        "diagnosis": diagnosis and click.style(printable(diagnosis), fg="yellow"),
        "saved": saved and printable(str(saved)),
        "response": _response(received),
    }
    head = f"{click.style(format_rfc3339(received.at), dim=True)}  {click.style(_plain(received.kind), bold=True)}{repeat}"
    return "\n".join([head, *(f"  {name:10} {text}" for name, text in lines.items() if text), ""])


def _verification(verdict: SignatureVerdict) -> str:
    name = click.style(verdict.replace("_", " "), fg="green" if verdict.ok else "red")
    return f"{name}: {_EXPLANATIONS[verdict]}" if verdict in _EXPLANATIONS else name


def _response(received: Received) -> str:
    response = received.response
    body = response.body
    detail = _plain(body.get("ticket_id") or body.get("code") or body.get("status", ""))
    if received.is_dropped:
        return click.style(f"none, connection closed (--drop) instead of {response.status} {detail}", fg="yellow")
    retry_after = f", Retry-After {response.retry_after_s}" if response.retry_after_s is not None else ""
    is_invalid = response.body.get("code") == VALIDATION_FAILED and received.verdict.ok and not received.is_known
    expected = _EXPECTED if is_invalid else ""
    status = click.style(str(response.status), fg="green" if response.status // 100 == 2 else "red")
    return f"{status} {detail}{retry_after}{expected}"


def _plain(text: str | None) -> str:
    """Return a sender's text, safe for a terminal."""
    if text is None:
        return "-"
    short = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    return printable(short)
