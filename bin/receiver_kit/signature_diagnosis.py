"""Why a signature does not hold: try what usually goes wrong, one thing at a time, and name the first that fits.

What is named was computed and is equal, byte for byte, to what came. Where nothing fits, nothing is said.
A signature that fits a suspect is no better for it, and stays refused. A secret is named by its setting alone.
"""

import hashlib
import hmac
import json
import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from worker.http.signing import DEFAULT_TOLERANCE_S, NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, SignatureVerdict

#: The verdicts that a closer look can say more about; the others name their part already.
_PUZZLING: Final = frozenset(
    {
        SignatureVerdict.SIGNATURE_WRONG,
        SignatureVerdict.SIGNATURE_MALFORMED,
        SignatureVerdict.TIMESTAMP_STALE,
        SignatureVerdict.TIMESTAMP_FUTURE,
        SignatureVerdict.NONCE_MALFORMED,
    }
)
#: Who reads the clock twice, once to sign and once to send, is off by a second or two.
_NEIGHBOURS_S: Final = (-1, 1, -2, 2, -3, 3)
_MS: Final = 1000
_SHA256_BYTES: Final = 32
_RAW_BYTES: Final = "sign and verify the raw bytes, not JSON that was written anew"


class Signed(NamedTuple):
    """What should have been signed, as the request tells it."""

    timestamp: bytes
    nonce: bytes
    body: bytes


def explain(
    secret: bytes,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    verdict: SignatureVerdict,
    at: datetime,
    others: Mapping[str, bytes],
) -> str | None:
    """Say what fits a request that was refused, and what to change; None where nothing does.

    `others` are further secrets that the sender may have taken by mistake, by the names to show for them.
    """
    given = {name.lower(): value for name, value in headers}
    signature, timestamp, nonce = (given.get(name.lower()) for name in (SIGNATURE_HEADER, TIMESTAMP_HEADER, NONCE_HEADER))
    if verdict not in _PUZZLING or signature is None or timestamp is None or nonce is None:
        return None
    read = _read_signature(signature.strip())
    if read is None:
        return None
    digest, spelling = read
    signed = Signed(timestamp.encode("latin-1", "replace"), nonce.encode("latin-1", "replace"), body)
    if hmac.compare_digest(digest, hmac.digest(secret, _joined(signed), "sha256")):
        return "; ".join(filter(None, ["the digest is right", spelling, _told_age(timestamp, at)]))
    fits = next((told for told, tried in _suspects(secret, signed, others) if hmac.compare_digest(digest, tried)), None)
    return fits and "; ".join(filter(None, [f"it fits {fits}", spelling]))


def _read_signature(text: str) -> tuple[bytes, str | None] | None:
    """The 32 bytes of a digest, however they are spelled, and what is wrong with the spelling."""
    digits = text[7:] if text[:7].lower() == "sha256=" else text
    wrong = [] if text.startswith("sha256=") else ["write `sha256=` in front of it"]
    if re.fullmatch(r"[0-9A-Fa-f]{64}", digits):
        digest = bytes.fromhex(digits)
        wrong += [] if digits == digits.lower() else ["write its hex digits in lower case"]
    else:
        decoded = _unbase64(digits.encode("latin-1", "replace"))
        if decoded is None or len(decoded) != _SHA256_BYTES:
            return None
        digest, wrong = decoded, [*wrong, "write it in hex, not base64"]
    return digest, " and ".join(wrong) or None


def _told_age(timestamp: str, at: datetime) -> str | None:
    """What is wrong with a timestamp that was signed as it should be."""
    if not (timestamp.isascii() and timestamp.isdigit()):
        return None
    late_s = int(at.timestamp()) - int(timestamp)
    if abs(late_s) <= DEFAULT_TOLERANCE_S:
        return None
    if abs(int(at.timestamp()) - int(timestamp) // _MS) <= DEFAULT_TOLERANCE_S:
        return "the timestamp is in milliseconds: sign and send whole seconds"
    return f"the timestamp alone is {abs(late_s)} s {'old' if late_s > 0 else 'ahead'}: compare the clocks, or sign it anew"


def _suspects(secret: bytes, signed: Signed, others: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield each suspect and the digest that it makes."""
    text = _joined(signed)
    for name, other in others.items():
        yield f"{name} as the secret: sign with the one that belongs to this receiver", hmac.digest(other, text, "sha256")
    for told, changed in _SECRETS:
        key = changed(secret)
        if key is not None:
            yield f"{told}: compare the two secrets byte for byte", hmac.digest(key, text, "sha256")
    for told, body in _bodies(signed.body):
        yield f"the body {told}: {_RAW_BYTES}", hmac.digest(secret, _joined(signed._replace(body=body)), "sha256")
    for told, shape in _SHAPES:
        yield f"{told}: sign timestamp, `.`, nonce, `.`, body", hmac.digest(secret, shape(signed), "sha256")
    for told, timestamp in _timestamps(signed.timestamp):
        yield told, hmac.digest(secret, _joined(signed._replace(timestamp=timestamp)), "sha256")
    yield "SHA-256 of secret and text: take HMAC-SHA-256", hashlib.sha256(secret + text).digest()


def _joined(signed: Signed) -> bytes:
    return b".".join(signed)


def _unbase64(text: bytes) -> bytes | None:
    """What a text is base64 of, in either alphabet; None if it is none."""
    try:
        return b64decode(text.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(text) % 4), validate=True)
    except NoBase64:
        return None


def _unhex(text: bytes) -> bytes | None:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None


#: How the same secret turns into another key.
_SECRETS: Final[tuple[tuple[str, Callable[[bytes], bytes | None]], ...]] = (
    ("the secret with a line's end behind it", lambda secret: secret + b"\n"),
    ("the secret with CR and LF behind it", lambda secret: secret + b"\r\n"),
    ("the secret without the spaces around it", bytes.strip),
    ("the secret within double quotes", lambda secret: b'"%b"' % secret),
    ("the secret within single quotes", lambda secret: b"'%b'" % secret),
    ("the bytes of which the secret is the hex", _unhex),
    ("the bytes of which the secret is the base64", _unbase64),
    ("the secret in hex", lambda secret: secret.hex().encode()),
    ("an empty secret", lambda _: b""),
)

#: What else is signed in place of `timestamp.nonce.body`.
_SHAPES: Final[tuple[tuple[str, Callable[[Signed], bytes]], ...]] = (
    ("the body alone", lambda it: it.body),
    ("timestamp and body, without the nonce", lambda it: b".".join((it.timestamp, it.body))),
    ("nonce and body, without the timestamp", lambda it: b".".join((it.nonce, it.body))),
    ("nonce and timestamp the wrong way round", lambda it: b".".join((it.nonce, it.timestamp, it.body))),
    ("the body in front", lambda it: b".".join((it.body, it.timestamp, it.nonce))),
    ("the three without dots", b"".join),
    ("the three with line ends for dots", b"\n".join),
    ("the three with colons for dots", b":".join),
    ("the nonce in lower case", lambda it: _joined(it._replace(nonce=it.nonce.lower()))),
    ("the nonce in upper case", lambda it: _joined(it._replace(nonce=it.nonce.upper()))),
    ("the body in hex", lambda it: _joined(it._replace(body=it.body.hex().encode()))),
)

#: How JSON is written by those who parse it first: what each is told as, and the arguments of json.dumps.
_WRITERS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("compact", {"separators": (",", ":"), "ensure_ascii": False}),
    ("compact, non-ASCII escaped", {"separators": (",", ":")}),
    ("with spaces", {"ensure_ascii": False}),
    ("with spaces, non-ASCII escaped", {}),
    ("compact, keys sorted", {"separators": (",", ":"), "ensure_ascii": False, "sort_keys": True}),
    ("compact, keys sorted, non-ASCII escaped", {"separators": (",", ":"), "sort_keys": True}),
    ("with spaces, keys sorted", {"ensure_ascii": False, "sort_keys": True}),
    ("with spaces, keys sorted, non-ASCII escaped", {"sort_keys": True}),
    ("indented by 2", {"indent": 2, "ensure_ascii": False}),
    ("indented by 4", {"indent": 4, "ensure_ascii": False}),
)


def _bodies(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what becomes of a body before somebody signs or verifies it."""
    yield "left out", b""
    yield "without the white space around it", body.strip()
    yield "with a line's end behind it", body + b"\n"
    yield "with LF in place of CR LF", body.replace(b"\r\n", b"\n")
    yield "with CR LF in place of LF", body.replace(b"\n", b"\r\n")
    for told, written in _rewritten(body):
        yield f"re-serialised {told}", written.encode("utf-8", "surrogatepass")
        # PHP's json_encode does so unless it is asked not to.
        yield f"re-serialised {told}, slashes escaped", written.replace("/", "\\/").encode("utf-8", "surrogatepass")


def _rewritten(body: bytes) -> list[tuple[str, str]]:
    try:
        value = json.loads(body)
        return [(told, json.dumps(value, **options)) for told, options in _WRITERS]
    except (ValueError, RecursionError):
        return []


def _timestamps(timestamp: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the timestamps that may have been signed in place of the one that was sent."""
    if not timestamp.isdigit():
        return
    number = int(timestamp)
    yield "the timestamp in seconds, which was sent in milliseconds: send what is signed", str(number // _MS).encode()
    for off_s in _NEIGHBOURS_S:
        told = f"a timestamp {abs(off_s)} s {'later' if off_s > 0 else 'earlier'}"
        yield f"{told} than the one sent: read the clock once for both", str(number + off_s).encode()
