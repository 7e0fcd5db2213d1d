"""Signatures that do not hold, each made by one usual mistake: the mistake is named, and nothing else is ever guessed."""

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
#: Written as none of the writers that are tried.
BODY: Final = json.dumps(EVENT, indent=3, ensure_ascii=False).encode() + b"\r\n"


def mac(message: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()


def text(timestamp: str = AT, nonce: str = NONCE, body: bytes = BODY) -> bytes:
    return f"{timestamp}.{nonce}.".encode() + body


def judged(
    signature: str, *, secret: bytes = SECRET, timestamp: str = AT, body: bytes = BODY
) -> tuple[SignatureVerdict, str | None]:
    """What the verifier finds, and what the suspects say about it."""
    headers = ((SIGNATURE_HEADER.lower(), signature), (TIMESTAMP_HEADER, timestamp), (NONCE_HEADER, NONCE))
    verdict = verify(secret, dict(headers), body, int(NOW.timestamp()), lambda _: False)
    return verdict, explain(secret, headers, body, verdict, NOW, {"SCANNER_SHARED_SECRET": OTHER})


def written(**options: Any) -> bytes:
    return text(body=json.dumps(EVENT, **options).encode())


#: What was computed in place of the signature, and what has to be said about it.
MISTAKES: Final = [
    # another key
    (mac(text(), OTHER), "SCANNER_SHARED_SECRET as the secret"),
    (mac(text(), SECRET + b"\n"), "the secret with a line's end behind it"),
    (mac(text(), SECRET + b"\r\n"), "the secret with CR and LF behind it"),
    (mac(text(), b'"' + SECRET + b'"'), "the secret within double quotes"),
    (mac(text(), b"'" + SECRET + b"'"), "the secret within single quotes"),
    (mac(text(), b"secret for tests"), "the bytes of which the secret is the base64"),
    (mac(text(), SECRET.hex().encode()), "the secret in hex"),
    (mac(text(), b""), "an empty secret"),
    # another body: parsed and written again by somebody, or cut to size
    (mac(text(body=b"")), "the body left out"),
    (mac(text(body=BODY.strip())), "the body without the white space around it"),
    (mac(text(body=BODY + b"\n")), "the body with a line's end behind it"),
    (mac(text(body=BODY.replace(b"\r\n", b"\n"))), "the body with LF in place of CR LF"),
    (mac(text(body=BODY.replace(b"\n", b"\r\n"))), "the body with CR LF in place of LF"),
    (mac(written(separators=(",", ":"), ensure_ascii=False)), "the body re-serialised compact:"),  # JSON.stringify
    (mac(written(separators=(",", ":"))), "the body re-serialised compact, non-ASCII escaped:"),
    (mac(written(ensure_ascii=False)), "the body re-serialised with spaces:"),
    (mac(written()), "the body re-serialised with spaces, non-ASCII escaped:"),  # json.dumps
    (mac(written(separators=(",", ":"), sort_keys=True, ensure_ascii=False)), "compact, keys sorted:"),
    (mac(written(separators=(",", ":"), sort_keys=True)), "compact, keys sorted, non-ASCII escaped:"),
    (mac(written(sort_keys=True, ensure_ascii=False)), "with spaces, keys sorted:"),
    (mac(written(sort_keys=True)), "with spaces, keys sorted, non-ASCII escaped:"),
    (mac(written(indent=2, ensure_ascii=False)), "indented by 2:"),
    (mac(written(indent=4, ensure_ascii=False)), "indented by 4:"),
    (mac(written(separators=(",", ":")).replace(b"/", b"\\/")), "compact, non-ASCII escaped, slashes escaped:"),  # PHP
    # another text
    (mac(BODY), "the body alone"),
    (mac(f"{AT}.".encode() + BODY), "timestamp and body, without the nonce"),
    (mac(f"{NONCE}.".encode() + BODY), "nonce and body, without the timestamp"),
    (mac(f"{NONCE}.{AT}.".encode() + BODY), "nonce and timestamp the wrong way round"),
    (mac(BODY + f".{AT}.{NONCE}".encode()), "the body in front"),
    (mac(f"{AT}{NONCE}".encode() + BODY), "the three without dots"),
    (mac(f"{AT}\n{NONCE}\n".encode() + BODY), "the three with line ends for dots"),
    (mac(f"{AT}:{NONCE}:".encode() + BODY), "the three with colons for dots"),
    (mac(text(nonce=NONCE.lower())), "the nonce in lower case"),
    (mac(text(nonce=NONCE.upper())), "the nonce in upper case"),
    (mac(text(body=BODY.hex().encode())), "the body in hex"),
    # another time
    (mac(text(timestamp=str(int(AT) + 1))), "a timestamp 1 s later than the one sent"),
    (mac(text(timestamp=str(int(AT) - 3))), "a timestamp 3 s earlier than the one sent"),
    # another function
    (hashlib.sha256(SECRET + text()).digest(), "SHA-256 of secret and text"),
]


@pytest.mark.parametrize(("digest", "told"), MISTAKES, ids=[told for _, told in MISTAKES])
def test_a_usual_mistake_is_named(digest: bytes, told: str) -> None:
    verdict, said = judged("sha256=" + digest.hex())
    assert verdict is SignatureVerdict.SIGNATURE_WRONG
    assert said is not None
    assert told in said
    assert SECRET.decode() not in said
    assert OTHER.decode() not in said


def test_a_secret_in_hex_is_tried_as_its_bytes() -> None:
    signature = "sha256=" + mac(text(), bytes.fromhex(HEX_SECRET.decode())).hex()
    assert "the bytes of which the secret is the hex" in str(judged(signature, secret=HEX_SECRET)[1])


def test_spaces_around_a_secret_are_tried_without() -> None:
    signature = "sha256=" + mac(text(), b"spaced").hex()
    assert "without the spaces around it" in str(judged(signature, secret=b" spaced ")[1])


#: How a digest that is right may be spelled, and what to change.
SPELLINGS: Final[list[tuple[Callable[[bytes], str], str]]] = [
    (lambda digest: "sha256=" + digest.hex().upper(), "write its hex digits in lower case"),
    (lambda digest: "SHA256=" + digest.hex(), "write `sha256=` in front of it"),
    (lambda digest: digest.hex(), "write `sha256=` in front of it"),
    (lambda digest: "sha256=" + base64.b64encode(digest).decode(), "write it in hex, not base64"),
    (lambda digest: base64.urlsafe_b64encode(digest).decode().rstrip("="), "in front of it and write it in hex"),
]


@pytest.mark.parametrize(("spell", "told"), SPELLINGS, ids=[told for _, told in SPELLINGS])
def test_a_right_digest_in_a_wrong_spelling_is_told_so(spell: Callable[[bytes], str], told: str) -> None:
    verdict, said = judged(spell(mac(text())))
    assert verdict is SignatureVerdict.SIGNATURE_MALFORMED
    assert str(said).startswith("the digest is right; ")
    assert told in str(said)


def test_two_mistakes_at_once_are_both_named_if_one_is_the_spelling() -> None:
    _, said = judged(base64.b64encode(mac(BODY)).decode())
    assert str(said).startswith("it fits the body alone")
    assert str(said).endswith("not base64")


@pytest.mark.parametrize(
    ("timestamp", "verdict", "told"),
    [
        (str(int(AT) - 900), SignatureVerdict.TIMESTAMP_STALE, "the timestamp alone is 900 s old"),
        (str(int(AT) + 301), SignatureVerdict.TIMESTAMP_FUTURE, "the timestamp alone is 301 s ahead"),
        (AT + "123", SignatureVerdict.TIMESTAMP_FUTURE, "in milliseconds"),
    ],
)
def test_a_time_that_is_off_is_told_apart_from_the_rest(timestamp: str, verdict: SignatureVerdict, told: str) -> None:
    signature = "sha256=" + mac(text(timestamp=timestamp)).hex()
    found, said = judged(signature, timestamp=timestamp)
    assert found is verdict
    assert told in str(said)
    assert judged("sha256=" + mac(b"something else").hex(), timestamp=timestamp) == (verdict, None)


def test_seconds_that_are_signed_and_sent_in_milliseconds_are_told() -> None:
    _, said = judged("sha256=" + mac(text()).hex(), timestamp=AT + "123")
    assert "the timestamp in seconds, which was sent in milliseconds" in str(said)


#: Signatures that fit nothing, and bodies that are nothing.
STRANGE: Final = ("sha256=" + "0" * 64, "sha256=", "", "\xff", "sha256=" + "é" * 64, "0" * 65, "=" * 44)
ODD: Final = (BODY, b"", b"\xff", b"[" * 100_000, b'{"n": 1e999, "s": "\\ud800"}', b"1" * 5000)


@pytest.mark.parametrize("signature", STRANGE, ids=range(len(STRANGE)))
@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_where_nothing_fits_nothing_is_said(signature: str, body: bytes) -> None:
    assert judged(signature, body=body)[1] is None


def test_a_right_request_and_one_that_names_its_part_need_no_explanation() -> None:
    assert judged("sha256=" + mac(text()).hex()) == (SignatureVerdict.OK, None)
    headers = ((SIGNATURE_HEADER, "sha256=" + mac(text()).hex()), (NONCE_HEADER, NONCE))
    assert explain(SECRET, headers, BODY, SignatureVerdict.TIMESTAMP_MISSING, NOW, {}) is None
