"""Receivers that use the package agree with the test vectors and with the reference library of Standard Webhooks."""

import base64
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from standardwebhooks import Webhook

from riskrelay_client import webhooks
from riskrelay_client.webhooks import InvalidContent, InvalidSignature, MemoryNonces, WebhookError

VECTORS: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).resolve().parents[2] / "examples" / "vectors.json").read_bytes()
)["vectors"]
SECRET: Final = "whsec_" + base64.b64encode(b"a key of thirty-two random bytes").decode()
BODY: Final = b'{"id": "png_1", "type": "target.ping"}'
NOW: Final = 1_700_000_000


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_vector_has_the_expected_result(vector: dict[str, Any]) -> None:
    """A vector for rate limits is a valid request for the package, because rate limits are the receiver's task."""
    nonces = MemoryNonces()
    assert all(nonces.is_new(nonce, vector["now"]) for nonce in vector["seen"])
    body, expected = base64.b64decode(vector["body_base64"]), vector["expect"]
    headers = [(name, value) for name, value in vector["headers"]]
    if expected["status"] in (200, 429):
        event = webhooks.verify(headers, body, vector["secrets"], nonces=nonces, now=vector["now"])
        assert event == json.loads(body)
        assert event["id"] == {name.lower(): value for name, value in headers}["idempotency-key"]
        assert (event["type"] == "ticket.export") == (expected["ticket"] or expected["status"] == 429)
        return
    with pytest.raises(WebhookError) as raised:
        webhooks.verify(headers, body, vector["secrets"], nonces=nonces, now=vector["now"])
    assert (raised.value.status, raised.value.code) == (expected["status"], expected["code"])


def test_a_refused_request_uses_up_no_nonce() -> None:
    [good] = [each for each in VECTORS if each["name"] == "good"]
    [tampered] = [each for each in VECTORS if each["name"] == "tampered body"]
    nonces = MemoryNonces()
    stolen = [(name, value) for name, value in good["headers"] if name != "X-Service-Signature"]
    forged = [*stolen, *(each for each in tampered["headers"] if each[0] == "X-Service-Signature")]
    with pytest.raises(InvalidSignature):
        webhooks.verify(forged, base64.b64decode(good["body_base64"]), good["secrets"], nonces=nonces, now=NOW)
    webhooks.verify(dict(good["headers"]), base64.b64decode(good["body_base64"]), good["secrets"], nonces=nonces, now=NOW)


def test_a_nonce_is_stored_for_ten_minutes_and_accepted_by_one_thread_only() -> None:
    nonces, results = MemoryNonces(), list[bool]()
    threads = [threading.Thread(target=lambda: results.append(nonces.is_new("a", 0.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]
    assert not nonces.is_new("a", 600.0)
    assert nonces.is_new("a", 601.0)


def test_nonces_must_be_kept_for_twice_the_tolerance() -> None:
    [good] = [each for each in VECTORS if each["name"] == "good"]
    body, secrets = base64.b64decode(good["body_base64"]), good["secrets"]
    with pytest.raises(ValueError, match="keep nonces for twice tolerance_s"):
        webhooks.verify(good["headers"], body, secrets, nonces=MemoryNonces(), tolerance_s=301, now=NOW)
    nonces = MemoryNonces(seconds=7200)
    webhooks.verify(good["headers"], body, secrets, nonces=nonces, tolerance_s=3600, now=NOW - 3600)
    for later in (NOW, NOW + 3600):
        with pytest.raises(InvalidSignature):
            webhooks.verify(good["headers"], body, secrets, nonces=nonces, tolerance_s=3600, now=later)
    # Standard Webhooks has no nonce.
    webhooks.verify(standard(), BODY, SECRET, signature="standard-webhooks", nonces=MemoryNonces(), tolerance_s=301, now=NOW)


def test_the_number_of_stored_nonces_is_limited() -> None:
    nonces = MemoryNonces(most=2)
    assert [nonces.is_new(each, 0.0) for each in "abc"] == [True, True, True]
    assert [nonces.is_new(each, 0.0) for each in "cba"] == [False, False, True]


# ── Standard Webhooks ──────────────────────────────────────────────────────────


def standard(body: bytes = BODY, at: int = NOW, secret: str = SECRET, **changes: str) -> dict[str, str]:
    """Return headers that the reference library signed."""
    signature = Webhook(secret).sign("png_1", datetime.fromtimestamp(at, UTC), body.decode())
    headers = {"Webhook-Id": "png_1", "Webhook-Timestamp": str(at), "Webhook-Signature": signature}
    return {**headers, **{name.replace("_", "-"): value for name, value in changes.items()}}


def verify_standard(headers: Any, body: bytes = BODY, secret: Any = SECRET, now: int = NOW) -> webhooks.Event:
    return webhooks.verify(headers, body, secret, signature="standard-webhooks", now=now)


def test_a_signature_of_the_reference_library_is_valid() -> None:
    other = "whsec_" + base64.b64encode(b"another key").decode()
    assert verify_standard(standard())["id"] == "png_1"
    assert verify_standard(standard(), secret=[other, SECRET])["type"] == "target.ping"
    signatures = f"v1,AAAA {standard()['Webhook-Signature']} v1a,BBBB"
    assert verify_standard(standard(Webhook_Signature=signatures))
    assert verify_standard(standard(), now=NOW + 300)


INVALID: Final[dict[str, tuple[dict[str, str], bytes, int]]] = {
    "another id": (standard(Webhook_Id="png_2"), BODY, NOW),
    "another time": (standard(Webhook_Timestamp=str(NOW + 1)), BODY, NOW),
    "another body": (standard(), BODY + b" ", NOW),
    "another version": (standard(Webhook_Signature=standard()["Webhook-Signature"].replace("v1,", "v2,")), BODY, NOW),
    "no signature": (standard(Webhook_Signature=""), BODY, NOW),
    "no text": (standard(Webhook_Signature="v1,\u00e9\udc80"), BODY, NOW),
    "too old": (standard(), BODY, NOW + 301),
    "from the future": (standard(), BODY, NOW - 301),
    "another secret": (standard(secret="whsec_" + base64.b64encode(b"x").decode()), BODY, NOW),
    "the service's headers": (dict(VECTORS[0]["headers"]), base64.b64decode(VECTORS[0]["body_base64"]), NOW),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_signature_of_standard_webhooks_is_refused(name: str) -> None:
    headers, body, now = INVALID[name]
    with pytest.raises(InvalidSignature):
        verify_standard(headers, body, now=now)


def test_a_standard_webhooks_signature_is_not_a_valid_service_signature() -> None:
    with pytest.raises(InvalidSignature):
        webhooks.verify(standard(), BODY, SECRET, now=NOW)


def test_the_signature_of_a_body_in_another_format_is_verified_without_its_content() -> None:
    sarif = b'{"version": "2.1.0", "runs": []}'
    webhooks.verify_signature(standard(sarif), sarif, SECRET, signature="standard-webhooks", now=NOW)
    with pytest.raises(InvalidContent):
        verify_standard(standard(sarif), sarif)


@pytest.mark.parametrize("secret", ["", b"", [], ["a", ""]])
def test_an_empty_secret_raises_an_error(secret: Any) -> None:
    with pytest.raises(ValueError, match="empty secret"):
        webhooks.verify({}, b"", secret)


def test_an_invalid_standard_webhooks_secret_raises_an_error() -> None:
    for secret in ("whsec_", "whsec_!"):
        with pytest.raises(ValueError, match="base64"):
            verify_standard(standard(), secret=secret)
