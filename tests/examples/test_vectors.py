"""The test vectors agree with an independent implementation, with `listen` and with the documented code."""

import base64
import hashlib
import hmac
import json
import re
from collections import Counter
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any, Final

import pytest

from bin.receiver_kit.receiver import LocalReceiver
from schemas.base.ticket_event_types import TicketEventType
from tools.vectors import all_vectors

ROOT: Final = Path(__file__).resolve().parents[2]
VECTORS: Final[list[dict[str, Any]]] = json.loads((ROOT / "examples" / "vectors.json").read_bytes())["vectors"]

EVENTS: Final = ("ticket.updated", "ticket.fixed", "ticket.reopened", "ticket.redact")


def headers_of(vector: dict[str, Any], name: str) -> list[str]:
    return [value for given, value in vector["headers"] if given.lower() == name.lower()]


def body_of(vector: dict[str, Any]) -> bytes:
    return base64.b64decode(vector["body_base64"])


def expected_response(vector: dict[str, Any]) -> dict[str, Any]:
    """Return the expected response to a vector, computed from the interface specification only."""
    body = body_of(vector)
    found = [headers_of(vector, f"X-Service-{part}") for part in ("Timestamp", "Nonce", "Signature")]
    if not all(len(values) == 1 for values in found):
        return error_response(401, "WEBHOOK_SIGNATURE_INVALID")
    timestamp, nonce, signature = (values[0] for values in found)
    digests = {
        hmac.new(secret.encode(), timestamp.encode() + b"." + nonce.encode() + b"." + body, hashlib.sha256).hexdigest()
        for secret in vector["secrets"]
    }
    is_formed = timestamp.isdecimal() and len(nonce) == 32 and set(nonce.lower()) <= set("0123456789abcdef")
    is_fresh = is_formed and -300 <= vector["now"] - int(timestamp) <= 300
    if not is_fresh or signature not in {f"sha256={digest}" for digest in digests} or nonce in vector["seen"]:
        return error_response(401, "WEBHOOK_SIGNATURE_INVALID")
    within_a_minute = [at for at in vector["earlier"] if vector["now"] - at < 60]
    if vector["rate_per_minute"] and len(within_a_minute) >= vector["rate_per_minute"]:
        return error_response(429, "WEBHOOK_RATE_LIMITED")
    try:
        event = json.loads(body)
    except ValueError:
        event = None
    kind = event["type"] if isinstance(event, dict) else None
    is_event = kind in EVENTS and "change" in event and "id" in event["export"]
    if kind != "target.ping" and not is_event and not (kind == "ticket.export" and "title" in event["ticket"]):
        return error_response(422, "WEBHOOK_VALIDATION_FAILED")
    return {"status": 200, "code": None, "ticket": kind == "ticket.export"}


def error_response(status: int, code: str) -> dict[str, Any]:
    return {"status": status, "code": code, "ticket": False}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_vector_matches_the_interface_specification(vector: dict[str, Any]) -> None:
    assert expected_response(vector) == vector["expect"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_listen_responds_as_a_vector_expects(vector: dict[str, Any]) -> None:
    """Except for rate limits: `listen` has none, and sends 429 only on request."""
    at = datetime.fromtimestamp(vector["now"], UTC)
    with LocalReceiver([secret.encode() for secret in vector["secrets"]], lambda: at) as receiver:
        for nonce in vector["seen"]:
            receiver._is_replayed(nonce)
        receiver._tickets |= dict.fromkeys(vector["tickets"], 1)
        message = Message()
        for name, value in vector["headers"]:
            message[name] = value
        answer = receiver.receive("/", message, body_of(vector))
    assert answer is not None
    actual = {"status": answer.status, "code": answer.body.get("code"), "ticket": "ticket_id" in answer.body}
    is_limited = vector["expect"]["status"] == 429
    assert actual == ({"status": 200, "code": None, "ticket": True} if is_limited else vector["expect"])


def tickets_after(vector: dict[str, Any]) -> dict[str, Any]:
    """Return the tickets after a vector, computed by the documented rules for events."""
    tickets = {export_id: dict(ticket) for export_id, ticket in vector["tickets"].items()}
    expected, [key] = vector["expect"], headers_of(vector, "Idempotency-Key") or [""]
    if expected["status"] != 200:
        return tickets
    event = json.loads(body_of(vector))
    ticket = tickets.get(event.get("export", {}).get("id"))
    if event["type"] == "ticket.export":
        tickets[key] = {"status": "open", "texts": 1}
    elif ticket is not None and key not in vector["processed"]:
        ticket["status"] = {"ticket.fixed": "closed", "ticket.reopened": "open"}.get(event["type"], ticket["status"])
        ticket["texts"] = 0 if event["type"] == "ticket.redact" else ticket["texts"] + 1
    return tickets


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_vector_results_in_the_tickets_of_its_after_member(vector: dict[str, Any]) -> None:
    assert tickets_after(vector) == vector["after"]


def test_the_vectors_contain_every_event_type_of_targets() -> None:
    assert {*EVENTS} == {*TicketEventType}
    sent = {json.loads(body_of(each))["type"] for each in VECTORS if each["name"].startswith("event")}
    assert sent == {*EVENTS}


def test_names_and_nonces_of_vectors_are_unique() -> None:
    vectors = all_vectors()
    assert max(Counter(vector.name for vector in vectors).values()) == 1
    fresh = Counter(value for vector in vectors for name, value in vector.headers if name.lower() == "x-service-nonce")
    assert max(fresh.values()) == 1


def test_every_vector_has_its_body_as_text_and_as_base64() -> None:
    in_text = [vector for vector in VECTORS if vector["body"] is not None]
    assert len(VECTORS) - len(in_text) == 1
    assert [each["name"] for each in in_text if each["body"].encode() != body_of(each)] == []


def test_verifying_a_serialized_copy_of_the_body_fails() -> None:
    """The vectors detect a receiver that does not verify the raw bytes, whatever its JSON format."""
    ways: list[dict[str, Any]] = [
        {"separators": separators, "ensure_ascii": is_ascii, "sort_keys": is_sorted, "indent": indent}
        for separators in ((",", ":"), (", ", ": "))
        for is_ascii in (True, False)
        for is_sorted in (True, False)
        for indent in (None, 2)
    ]
    accepted = [vector for vector in VECTORS if vector["expect"]["ticket"]]
    for way in ways:
        again = [json.dumps(json.loads(base64.b64decode(each["body_base64"])), **way).encode() for each in accepted]
        assert [body for body, vector in zip(again, accepted, strict=True) if body != body_of(vector)]


def test_the_documented_receiver_code_agrees_with_the_vectors() -> None:
    """The code checks signature and age, but not nonces, limits and content."""
    code = re.search(r"```python\n(import hashlib.*?)```", (ROOT / "docs" / "receiving.md").read_text(), re.DOTALL)
    assert code is not None
    for vector in VECTORS:
        if vector["name"] == "replayed nonce" or len(vector["secrets"]) != 1:
            continue
        if not all(len(headers_of(vector, f"X-Service-{part}")) == 1 for part in ("Timestamp", "Nonce", "Signature")):
            continue
        names: dict[str, Any] = {}
        exec(code.group(1), names)  # noqa: S102 - the page's own snippet
        names["time"] = FixedTime(vector["now"])
        headers = {name.title(): value for name, value in vector["headers"]}
        is_genuine = names["is_genuine"](vector["secrets"][0].encode(), headers, body_of(vector))
        assert is_genuine == (vector["expect"]["status"] != 401), vector["name"]


class FixedTime:
    """Replaces the `time` module in the documented code."""

    def __init__(self, at: int) -> None:
        self._at = at

    def time(self) -> float:
        """Return the fixed time."""
        return self._at
