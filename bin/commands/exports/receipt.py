"""`receipt`: show the delivery receipt of an export, and verify one without database and settings."""

import hmac
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from bin.cli.installation import opened
from bin.cli.output import Refused
from bin.cli.private_files import write_private
from bin.cli.records import Record, json_option, print_record
from bin.cli.request_bodies import parse_lines, parse_strictly
from bin.cli.terminal import secret_line
from schemas.base.principal import OPERATOR
from schemas.exports.receipt import SignatureCheck, signed_at, verify_receipt
from schemas.targets.webhook_options import STANDARD_PREFIX, BodyFormat, standard_key
from service.operations.wiring import build_operations
from storage.accounts import audit_chain
from worker.http.body_formats import formatted
from worker.http.signing import sign, sign_standard

receipt: Final = click.Group("receipt")


@receipt.command()
@click.argument("export_id")
@click.option(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the receipt to this file, with mode 0600.",
)
def show(export_id: str, file: Path | None) -> None:
    """Print the delivery receipt of an exported export as JSON; the API returns the same.

    Example: riskrelay receipt show exp_… --output receipt.json

    Exit codes: 0 shown, 1 not found, not delivered or write failed, 2 wrong usage or settings.
    """
    with opened() as settings:
        # Chain the entries here, because no worker may be running.
        audit_chain.extend_to_end()
        print_receipt(build_operations(settings).exports.receipt(export_id, OPERATOR), file)


def print_receipt(found: Record, file: Path | None) -> None:
    """Print a receipt, or write it to a file."""
    write_private(file, [f"{json.dumps(found, indent=2)}\n"])


@receipt.command()
@click.argument("file", type=click.File("rb"))
@click.option("--audit", "log", type=click.File("rb"), help="Also compare the receipt with this export of the audit log.")
@click.option(
    "--secret-stdin", is_flag=True, help="Also check the signatures, with the secret from one line of standard input."
)
@json_option
def verify(file: BinaryIO, log: BinaryIO | None, secret_stdin: bool, as_json: bool) -> None:
    """Verify the delivery receipt in FILE; needs neither database nor settings.

    Recomputes every hash and digest in it. Only --audit, or a comparison of a position and hash with the log, proves that
    its audit entries are those of the installation.

    Example: riskrelay receipt verify receipt.json --audit audit.jsonl

    Exit codes: 0 valid, 1 invalid or no receipt, 2 no such file or wrong usage.
    """
    content = parse_strictly(file.read())
    export_id = str(content.get("export_id")) if isinstance(content, dict) else ""
    check = _signature_check(export_id, secret_line()) if secret_stdin else None
    report = verify_receipt(content, _forms, check, None if log is None else parse_lines(log))
    if check is not None and not report.problems and not report.signatures:
        report.problems.append("The secret signed none of the attempts.")
    record = {"valid": not report.problems, "problems": report.problems, "not_proven": report.notes}
    print_record({**record, "valid_signatures": report.signatures}, as_json)
    if report.problems:
        raise SystemExit(1)


def _forms(body: bytes) -> Iterator[bytes]:
    for wanted in BodyFormat:
        try:
            yield formatted(body, wanted).body
        except (AttributeError, KeyError, TypeError, ValueError):
            # A ticket that was changed may lack fields that this format needs.
            continue


def _signature_check(export_id: str, secret: str) -> SignatureCheck:
    """Return how to check signatures: by Standard Webhooks for a `whsec_` secret, else by our own scheme."""
    is_standard = secret.startswith(STANDARD_PREFIX)
    key = standard_key(secret) if is_standard else secret.encode()
    if not key:
        raise Refused("No secret to verify with; pass it on standard input.")

    def check(attempt: Mapping[str, Any], body: bytes) -> bool | None:
        kind = "v1," if is_standard else "sha256="
        own = [part for part in str(attempt["signature"]).split(" ") if part.startswith(kind)]
        if not own:
            return None
        at, nonce = signed_at(attempt), str(attempt["nonce"])
        if not nonce.isalnum():
            return False
        expected = sign_standard(key, export_id, at, body) if is_standard else sign(key, at, nonce, body)
        return all(hmac.compare_digest(part.encode(), expected.encode()) for part in own)

    return check
