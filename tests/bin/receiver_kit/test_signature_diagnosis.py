"""Invalid signatures, each made with one common mistake: the mistake is reported, and nothing else."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from bin.receiver_kit.signature_diagnosis import explain
from worker.http.signing import NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, SignatureVerdict, verify

NOW: Final = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
AT: Final = str(int(NOW.timestamp()))
NONCE: Final = "0123456789abcdef0123456789ABCDEF"
SECRET: Final = b"c2VjcmV0IGZvciB0ZXN0cw=="
HEX_SECRET: Final = b"00ff" * 8
OTHER: Final = b"the scanner's own secret"
EVENT: Final = {"type": "ticket.export", "id": "exp_1", "ticket": {"title": "Größe 🛒", "page_url": "https://shop.example/"}}
#: In a JSON format that the diagnosis does not try.
BODY: Final = json.dumps(EVENT, indent=3, ensure_ascii=False).encode() + b"\r\n"


def mac(message: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()


def text(timestamp: str = AT, nonce: str = NONCE, body: bytes = BODY) -> bytes:
    return f"{timestamp}.{nonce}.".encode() + body


def diagnosed(
    signature: str, *, secret: bytes = SECRET, timestamp: str = AT, body: bytes = BODY
) -> tuple[SignatureVerdict, str | None]:
    """Return the verdict of the verifier, and the diagnosis."""
    headers = ((SIGNATURE_HEADER.lower(), signature), (TIMESTAMP_HEADER, timestamp), (NONCE_HEADER, NONCE))
    verdict = verify(secret, dict(headers), body, int(NOW.timestamp()), lambda _: False)
    return verdict, explain(secret, headers, body, verdict, NOW, {"SCANNER_SHARED_SECRET": OTHER})


def reserialized(**options: Any) -> bytes:
    return text(body=json.dumps(EVENT, **options).encode())


#: The digest sent as the signature, and a part of the diagnosis.
MISTAKES: Final = [
    # another key
    (mac(text(), OTHER), "SCANNER_SHARED_SECRET as the secret"),
    (mac(text(), SECRET + b"\n"), "the secret with a trailing newline"),
    (mac(text(), SECRET + b"\r\n"), "the secret with a trailing CR LF"),
    (mac(text(), b'"' + SECRET + b'"'), "the secret in double quotes"),
    (mac(text(), b"'" + SECRET + b"'"), "the secret in single quotes"),
    (mac(text(), b"secret for tests"), "the secret decoded from base64"),
    (mac(text(), SECRET.hex().encode()), "the secret in hex"),
    (mac(text(), b""), "an empty secret"),
    # another body: re-serialized or trimmed
    (mac(text(body=b"")), "the body omitted"),
    (mac(text(body=BODY.strip())), "the body without surrounding whitespace"),
    (mac(text(body=BODY + b"\n")), "the body with a trailing newline"),
    (mac(text(body=BODY.replace(b"\r\n", b"\n"))), "the body with LF instead of CR LF"),
    (mac(text(body=BODY.replace(b"\n", b"\r\n"))), "the body with CR LF instead of LF"),
    (mac(reserialized(separators=(",", ":"), ensure_ascii=False)), "the body re-serialized compact:"),  # JSON.stringify
    (mac(reserialized(separators=(",", ":"))), "the body re-serialized compact, non-ASCII escaped:"),
    (mac(reserialized(ensure_ascii=False)), "the body re-serialized with spaces:"),
    (mac(reserialized()), "the body re-serialized with spaces, non-ASCII escaped:"),  # json.dumps
    (mac(reserialized(separators=(",", ":"), sort_keys=True, ensure_ascii=False)), "compact, keys sorted:"),
    (mac(reserialized(separators=(",", ":"), sort_keys=True)), "compact, keys sorted, non-ASCII escaped:"),
    (mac(reserialized(sort_keys=True, ensure_ascii=False)), "with spaces, keys sorted:"),
    (mac(reserialized(sort_keys=True)), "with spaces, keys sorted, non-ASCII escaped:"),
    (mac(reserialized(indent=2, ensure_ascii=False)), "indented by 2:"),
    (mac(reserialized(indent=4, ensure_ascii=False)), "indented by 4:"),
    (mac(reserialized(separators=(",", ":")).replace(b"/", b"\\/")), "compact, non-ASCII escaped, slashes escaped:"),  # PHP
    # another text
    (mac(BODY), "the body only"),
    (mac(f"{AT}.".encode() + BODY), "timestamp and body, without the nonce"),
    (mac(f"{NONCE}.".encode() + BODY), "nonce and body, without the timestamp"),
    (mac(f"{NONCE}.{AT}.".encode() + BODY), "nonce and timestamp in the wrong order"),
    (mac(BODY + f".{AT}.{NONCE}".encode()), "the body first"),
    (mac(f"{AT}{NONCE}".encode() + BODY), "the three parts without dots"),
    (mac(f"{AT}\n{NONCE}\n".encode() + BODY), "the three parts separated by newlines"),
    (mac(f"{AT}:{NONCE}:".encode() + BODY), "the three parts separated by colons"),
    (mac(text(nonce=NONCE.lower())), "the nonce in lower case"),
    (mac(text(nonce=NONCE.upper())), "the nonce in upper case"),
    (mac(text(body=BODY.hex().encode())), "the body in hex"),
    # another time
    (mac(text(timestamp=str(int(AT) + 1))), "a timestamp 1 s later than the one sent"),
    (mac(text(timestamp=str(int(AT) - 3))), "a timestamp 3 s earlier than the one sent"),
    # another function
    (hashlib.sha256(SECRET + text()).digest(), "SHA-256 of secret and text"),
]


@pytest.mark.parametrize(("digest", "expected"), MISTAKES, ids=[expected for _, expected in MISTAKES])
def test_each_common_signature_mistake_is_diagnosed(digest: bytes, expected: str) -> None:
    verdict, diagnosis = diagnosed("sha256=" + digest.hex())
    assert verdict is SignatureVerdict.SIGNATURE_WRONG
    assert diagnosis is not None
    assert expected in diagnosis
    assert SECRET.decode() not in diagnosis
    assert OTHER.decode() not in diagnosis


def test_a_secret_in_hex_is_also_tried_decoded() -> None:
    signature = "sha256=" + mac(text(), bytes.fromhex(HEX_SECRET.decode())).hex()
    assert "the secret decoded from hex" in str(diagnosed(signature, secret=HEX_SECRET)[1])


def test_a_secret_with_surrounding_spaces_is_also_tried_without_them() -> None:
    signature = "sha256=" + mac(text(), b"spaced").hex()
    assert "without surrounding spaces" in str(diagnosed(signature, secret=b" spaced ")[1])


#: Wrong encodings of a correct digest, and the fix.
ENCODINGS: Final[list[tuple[Callable[[bytes], str], str]]] = [
    (lambda digest: "sha256=" + digest.hex().upper(), "write the hex digits in lower case"),
    (lambda digest: "SHA256=" + digest.hex(), "prefix it with `sha256=`"),
    (lambda digest: digest.hex(), "prefix it with `sha256=`"),
    (lambda digest: "sha256=" + base64.b64encode(digest).decode(), "encode it in hex, not base64"),
    (lambda digest: base64.urlsafe_b64encode(digest).decode().rstrip("="), "prefix it with `sha256=` and encode it in hex"),
]


@pytest.mark.parametrize(("encode", "fix"), ENCODINGS, ids=[fix for _, fix in ENCODINGS])
def test_the_wrong_encoding_of_a_correct_digest_is_reported(encode: Callable[[bytes], str], fix: str) -> None:
    verdict, diagnosis = diagnosed(encode(mac(text())))
    assert verdict is SignatureVerdict.SIGNATURE_MALFORMED
    assert str(diagnosis).startswith("the digest is correct; ")
    assert fix in str(diagnosis)


def test_two_mistakes_are_both_reported_if_one_is_the_encoding() -> None:
    _, diagnosis = diagnosed(base64.b64encode(mac(BODY)).decode())
    assert str(diagnosis).startswith("matches the body only")
    assert str(diagnosis).endswith("not base64")


@pytest.mark.parametrize(
    ("timestamp", "verdict", "expected"),
    [
        (str(int(AT) - 900), SignatureVerdict.TIMESTAMP_STALE, "only the timestamp is invalid, 900 s old"),
        (str(int(AT) + 301), SignatureVerdict.TIMESTAMP_FUTURE, "only the timestamp is invalid, 301 s ahead"),
        (AT + "123", SignatureVerdict.TIMESTAMP_FUTURE, "in milliseconds"),
    ],
)
def test_a_wrong_time_is_reported_if_the_signature_is_correct(
    timestamp: str, verdict: SignatureVerdict, expected: str
) -> None:
    signature = "sha256=" + mac(text(timestamp=timestamp)).hex()
    found, diagnosis = diagnosed(signature, timestamp=timestamp)
    assert found is verdict
    assert expected in str(diagnosis)
    assert diagnosed("sha256=" + mac(b"something else").hex(), timestamp=timestamp) == (verdict, None)


def test_a_timestamp_signed_in_seconds_and_sent_in_milliseconds_is_reported() -> None:
    _, diagnosis = diagnosed("sha256=" + mac(text()).hex(), timestamp=AT + "123")
    assert "the timestamp in seconds, but it was sent in milliseconds" in str(diagnosis)


#: Signatures that match no mistake, and unusual bodies.
UNMATCHED: Final = ("sha256=" + "0" * 64, "sha256=", "", "\xff", "sha256=" + "é" * 64, "0" * 65, "=" * 44)
ODD: Final = (BODY, b"", b"\xff", b"[" * 100_000, b'{"n": 1e999, "s": "\\ud800"}', b"1" * 5000)


@pytest.mark.parametrize("signature", UNMATCHED, ids=range(len(UNMATCHED)))
@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_nothing_is_reported_if_no_mistake_matches(signature: str, body: bytes) -> None:
    assert diagnosed(signature, body=body)[1] is None


def test_a_valid_request_and_a_missing_header_get_no_diagnosis() -> None:
    assert diagnosed("sha256=" + mac(text()).hex()) == (SignatureVerdict.OK, None)
    headers = ((SIGNATURE_HEADER, "sha256=" + mac(text()).hex()), (NONCE_HEADER, NONCE))
    assert explain(SECRET, headers, BODY, SignatureVerdict.TIMESTAMP_MISSING, NOW, {}) is None
