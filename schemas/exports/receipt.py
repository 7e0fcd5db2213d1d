"""The delivery receipt of an export: its approval, its requests and their responses, and its entries in the audit log.

A receipt needs no database to be verified. Its audit entries are lines of the audit log's chain; the entry of the approval
has the digest of the ticket, and the entry of each attempt's result the digest of the attempt. Values that a receipt
contains twice must agree.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from schemas.audit.chain import MEMBERS as ENTRY_MEMBERS
from schemas.audit.chain import BrokenChain, ChainVerification, Line, line_problem
from schemas.base.strict_json import canonical, parse
from schemas.base.timestamps import parse_rfc3339
from schemas.exports.delivery import DELIVERED
from schemas.exports.state_machine import Transition
from schemas.exports.tickets.ticket import digest

#: The `type` and the `version` of a receipt.
TYPE: Final = "riskrelay.delivery_receipt"
VERSION: Final = 1

#: The members of an attempt that its digest covers and that a receipt shows.
ATTEMPT_MEMBERS: Final = (
    *("id", "number", "started_at", "outcome", "response_status", "error_code"),
    *("address_class", "nonce", "signature", "body_sha256", "response_sha256"),
)
_MEMBERS: Final = frozenset(
    {
        *("type", "version", "export_id", "target_id", "ticket_digest", "approved_by", "approved_at", "delivered_at"),
        *("body", "body_sha256", "attempts", "audit_entries"),
    }
)
#: The transitions that the result of an attempt can cause.
_RESULTS: Final = frozenset({Transition.DELIVER, Transition.RESCHEDULE, Transition.FAIL, Transition.BLOCK})
#: Actors that receipts name; the name of a worker contains its host.
_NAMED_ACTORS: Final = frozenset({"user", "rule", "operator"})

#: Returns every form in which frozen bytes may have been sent; the target chooses the form.
Forms = Callable[[bytes], Iterable[bytes]]
#: Returns whether the signature of an attempt is valid for a body; None if the attempt has no signature of the kind to
#: check.
SignatureCheck = Callable[[Mapping[str, Any], bytes], bool | None]


class ReceiptReport:
    """The result of a verification: `problems` contradict the receipt, `notes` name what the receipt does not prove."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.signatures = 0


def attempt_digest(attempt: Mapping[str, Any]) -> str:
    """Return the digest of an attempt: `sha256:` and 64 hex digits of its canonical record."""
    record = {name: attempt[name] for name in ATTEMPT_MEMBERS}
    return f"sha256:{hashlib.sha256(canonical(record)).hexdigest()}"


def without_hosts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the audit log without the name of a worker; its hash stays verifiable."""
    is_named = str(entry["actor"]).partition(":")[0] in _NAMED_ACTORS
    return {**entry, "actor": entry["actor"] if is_named else None}


def approval_in(entries: Sequence[Line]) -> Line | None:
    """Return the entry of the last approval."""
    return next((each for each in reversed(entries) if each["action"] == Transition.APPROVE), None)


def verify_receipt(
    receipt: Any, forms: Forms, check_signature: SignatureCheck | None = None, log: Iterable[Any] | None = None
) -> ReceiptReport:
    """Verify a receipt by itself; with `check_signature`, its signatures; with `log`, against an export of the audit log.

    Reads the whole of `log`, whose lines are verified as well.
    """
    report = ReceiptReport()
    if not _is_receipt(receipt):
        report.problems.append(f"This is not a {TYPE} of version {VERSION} with exactly its members.")
        return report
    _verify_entries(receipt, report)
    if report.problems:
        return report
    _verify_approval(receipt, report)
    body = _verified_body(receipt, report)
    _verify_attempts(receipt, report)
    _verify_delivery(receipt, body, forms, report)
    if check_signature is not None:
        _verify_signatures(receipt, body, forms, check_signature, report)
    if log is not None:
        _verify_against(log, receipt, report)
    return report


def signed_at(attempt: Mapping[str, Any]) -> int:
    """Return the timestamp that an attempt signed, in seconds since 1970; -1 if the time of the attempt is invalid."""
    moment = parse_rfc3339(str(attempt["started_at"]))
    return -1 if moment is None else int(moment.timestamp())


def _is_receipt(receipt: Any) -> bool:
    if not isinstance(receipt, dict) or receipt.keys() != _MEMBERS or not isinstance(receipt["body"], str | None):
        return False
    parts = ((receipt["attempts"], ATTEMPT_MEMBERS), (receipt["audit_entries"], ENTRY_MEMBERS))
    are_whole = all(isinstance(each, list) and all(_is_flat(item, {*members}) for item in each) for each, members in parts)
    return are_whole and (receipt["type"], receipt["version"]) == (TYPE, VERSION)


def _is_flat(item: Any, members: Collection[str]) -> bool:
    """Return whether an object has exactly these members, with values that are not nested."""
    if not isinstance(item, dict) or item.keys() != members:
        return False
    return all(isinstance(value, str | int | None) for value in item.values())


def _verify_entries(receipt: Mapping[str, Any], report: ReceiptReport) -> None:
    last = 0
    for number, entry in enumerate(receipt["audit_entries"], 1):
        problem = line_problem(entry)
        if problem is None and entry["subject_id"] != receipt["export_id"]:
            problem = "it is about another record"
        if problem is None and not (isinstance(entry["position"], int) and entry["position"] > last):
            problem = "its position is not after that of the entry before"
        if problem is not None:
            report.problems.append(f"Audit entry {number}: {problem}.")
            return
        last = entry["position"]


def _verify_approval(receipt: Mapping[str, Any], report: ReceiptReport) -> None:
    approval = approval_in(receipt["audit_entries"])
    if approval is None:
        report.problems.append("No audit entry is the approval.")
        return
    shown = (receipt["approved_by"], receipt["approved_at"])
    if shown != (approval["actor"], approval["at"]):
        report.problems.append("The audit log names another approver or another time of the approval.")
    if approval["digest"] is None:
        report.notes.append("Which ticket was approved: the approval is older than receipts.")
    elif approval["digest"] != receipt["ticket_digest"]:
        report.problems.append("The audit log has the approval of another ticket.")


def _verified_body(receipt: Mapping[str, Any], report: ReceiptReport) -> bytes | None:
    """Return the frozen bytes; None if they were redacted, changed or are no ticket."""
    body = receipt["body"]
    if body is None:
        if (receipt["body_sha256"], receipt["target_id"]) != (None, None):
            report.problems.append("A receipt without the delivered bytes names their hash or their target.")
        report.notes.append("Which ticket the bytes contained: they were redacted.")
        return None
    if hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest() != receipt["body_sha256"]:
        report.problems.append("The delivered bytes do not have the hash of the receipt.")
        return None
    try:
        event: Any = parse(body.encode())
        named = (event["id"], event["export"]["target_id"], event["created_at"])
        ticket_digest = digest(event["ticket"])
    except (KeyError, TypeError, ValueError):
        report.problems.append("The delivered bytes are no ticket.")
        return None
    if named != (receipt["export_id"], receipt["target_id"], receipt["approved_at"]):
        report.problems.append("The delivered bytes name another export, target or time of approval.")
    if ticket_digest != receipt["ticket_digest"]:
        report.problems.append("The delivered bytes do not contain the approved ticket.")
    encoded: bytes = body.encode()
    return encoded


def _verify_attempts(receipt: Mapping[str, Any], report: ReceiptReport) -> None:
    results = [each for each in receipt["audit_entries"] if each["action"] in _RESULTS]
    proven = Counter(each["digest"] for each in results if each["digest"] is not None)
    unproven = []
    for attempt in receipt["attempts"]:
        found = attempt_digest(attempt)
        if proven[found]:
            proven[found] -= 1
        else:
            unproven.append(attempt["number"])
    if proven.total():
        report.problems.append("An attempt in the audit log is missing, or was changed.")
    # Results that were recorded before the upgrade have no digest.
    elif len(unproven) > sum(each["digest"] is None for each in results):
        report.problems.append("An attempt is not in the audit log.")
    elif unproven:
        report.notes.append(f"Attempts {', '.join(map(str, unproven))}: they are older than receipts.")


def _verify_delivery(receipt: Mapping[str, Any], body: bytes | None, forms: Forms, report: ReceiptReport) -> None:
    delivered = [each for each in receipt["attempts"] if each["outcome"] == DELIVERED]
    entries = [each for each in receipt["audit_entries"] if each["action"] == Transition.DELIVER]
    if len(delivered) != 1 or len(entries) != 1:
        report.problems.append("The receipt does not have exactly one delivery.")
        return
    [attempt], [entry] = delivered, entries
    if entry["at"] != receipt["delivered_at"] or entry["digest"] not in {None, attempt_digest(attempt)}:
        report.problems.append("The audit log has another delivery.")
    if body is not None and attempt["body_sha256"] is not None and _sent_form(body, attempt, forms) is None:
        report.problems.append("The delivered attempt sent other bytes.")


def _verify_signatures(
    receipt: Mapping[str, Any], body: bytes | None, forms: Forms, check: SignatureCheck, report: ReceiptReport
) -> None:
    if body is None:
        report.notes.append("The signatures: the bytes that they sign are missing.")
        return
    for attempt in receipt["attempts"]:
        if attempt["signature"] is None:
            continue
        sent = _sent_form(body, attempt, forms)
        is_valid = None if sent is None else check(attempt, sent)
        if is_valid is None:
            what = "other bytes were sent, for another target" if sent is None else "the secret is for another kind"
            report.notes.append(f"The signature of attempt {attempt['number']}: {what}.")
        elif is_valid:
            report.signatures += 1
        else:
            report.problems.append(f"Attempt {attempt['number']} was not signed with this secret.")


def _sent_form(body: bytes, attempt: Mapping[str, Any], forms: Forms) -> bytes | None:
    """Return the form of the frozen bytes that an attempt sent; None if the attempt sent other bytes."""
    wanted = attempt["body_sha256"]
    return next((each for each in forms(body) if hashlib.sha256(each).hexdigest() == wanted), None)


def _verify_against(log: Iterable[Any], receipt: Mapping[str, Any], report: ReceiptReport) -> None:
    entries = {each["position"]: each["hash"] for each in receipt["audit_entries"]}
    found: dict[int, str] = {}
    verification = ChainVerification({})
    try:
        for line in log:
            verification.add(line)
            if line["subject_id"] == receipt["export_id"] and line["position"] <= max(entries, default=0):
                found[line["position"]] = line["hash"]
    except BrokenChain as broken:
        report.problems.append(f"The audit log: {broken}")
        return
    if found != entries:
        report.problems.append("The audit log has other entries about this export.")
