"""Diagnoses an invalid signature: computes signatures with common mistakes, and reports the first that matches.

A reported mistake produces exactly the received digest. If nothing matches, nothing is reported.
The request stays rejected even if a mistake is found. A secret is identified only by the name of its setting.
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

#: The verdicts that a diagnosis can explain; the others already name the invalid part.
_DIAGNOSABLE: Final = frozenset(
    {
        SignatureVerdict.SIGNATURE_WRONG,
        SignatureVerdict.SIGNATURE_MALFORMED,
        SignatureVerdict.TIMESTAMP_STALE,
        SignatureVerdict.TIMESTAMP_FUTURE,
        SignatureVerdict.NONCE_MALFORMED,
    }
)
#: A sender that reads the clock twice, to sign and to send, is off by a second or two.
_NEIGHBORS_S: Final = (-1, 1, -2, 2, -3, 3)
_MS: Final = 1000
_SHA256_BYTES: Final = 32
_RAW_BYTES: Final = "sign and verify the raw bytes, not re-serialized JSON"


class Signed(NamedTuple):
    """The parts that the signature of a request should cover."""

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
    """Return the mistake that matches a rejected request, with its fix; None if no mistake matches.

    `others` are secrets that the sender may have used by mistake, by the names to show for them.
    """
    given = {name.lower(): value for name, value in headers}
    signature, timestamp, nonce = (given.get(name.lower()) for name in (SIGNATURE_HEADER, TIMESTAMP_HEADER, NONCE_HEADER))
    if verdict not in _DIAGNOSABLE or signature is None or timestamp is None or nonce is None:
        return None
    read = _read_signature(signature.strip())
    if read is None:
        return None
    digest, spelling = read
    signed = Signed(timestamp.encode("latin-1", "replace"), nonce.encode("latin-1", "replace"), body)
    if hmac.compare_digest(digest, hmac.digest(secret, _joined(signed), "sha256")):
        return "; ".join(filter(None, ["the digest is correct", spelling, _age_problem(timestamp, at)]))
    candidates = _candidates(secret, signed, others)
    match = next((mistake for mistake, candidate in candidates if hmac.compare_digest(digest, candidate)), None)
    return match and "; ".join(filter(None, [f"matches {match}", spelling]))


def _read_signature(text: str) -> tuple[bytes, str | None] | None:
    """Return the 32 bytes of a digest in any encoding, and how to correct the encoding."""
    digits = text[7:] if text[:7].lower() == "sha256=" else text
    wrong = [] if text.startswith("sha256=") else ["prefix it with `sha256=`"]
    if re.fullmatch(r"[0-9A-Fa-f]{64}", digits):
        digest = bytes.fromhex(digits)
        wrong += [] if digits == digits.lower() else ["write the hex digits in lower case"]
    else:
        decoded = _unbase64(digits.encode("latin-1", "replace"))
        if decoded is None or len(decoded) != _SHA256_BYTES:
            return None
        digest, wrong = decoded, [*wrong, "encode it in hex, not base64"]
    return digest, " and ".join(wrong) or None


def _age_problem(timestamp: str, at: datetime) -> str | None:
    """Return the problem with a timestamp that was signed correctly."""
    if not (timestamp.isascii() and timestamp.isdigit()):
        return None
    late_s = int(at.timestamp()) - int(timestamp)
    if abs(late_s) <= DEFAULT_TOLERANCE_S:
        return None
    if abs(int(at.timestamp()) - int(timestamp) // _MS) <= DEFAULT_TOLERANCE_S:
        return "the timestamp is in milliseconds: sign and send whole seconds"
    direction = "old" if late_s > 0 else "ahead"
    return f"only the timestamp is invalid, {abs(late_s)} s {direction}: compare the clocks or sign again"


def _candidates(secret: bytes, signed: Signed, others: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield each mistake with the digest that it produces."""
    text = _joined(signed)
    for name, other in others.items():
        yield f"{name} as the secret: sign with the secret of this receiver", hmac.digest(other, text, "sha256")
    for mistake, changed in _SECRETS:
        key = changed(secret)
        if key is not None:
            yield f"{mistake}: compare the two secrets byte for byte", hmac.digest(key, text, "sha256")
    for mistake, body in _bodies(signed.body):
        yield f"the body {mistake}: {_RAW_BYTES}", hmac.digest(secret, _joined(signed._replace(body=body)), "sha256")
    for mistake, message in _MESSAGES:
        yield f"{mistake}: sign timestamp, `.`, nonce, `.`, body", hmac.digest(secret, message(signed), "sha256")
    for mistake, timestamp in _timestamps(signed.timestamp):
        yield mistake, hmac.digest(secret, _joined(signed._replace(timestamp=timestamp)), "sha256")
    yield "SHA-256 of secret and text: use HMAC-SHA-256", hashlib.sha256(secret + text).digest()


def _joined(signed: Signed) -> bytes:
    return b".".join(signed)


def _unbase64(text: bytes) -> bytes | None:
    """Decode base64 in either alphabet; None if the text is not base64."""
    try:
        return b64decode(text.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(text) % 4), validate=True)
    except NoBase64:
        return None


def _unhex(text: bytes) -> bytes | None:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None


#: Mistakes that change the key.
_SECRETS: Final[tuple[tuple[str, Callable[[bytes], bytes | None]], ...]] = (
    ("the secret with a trailing newline", lambda secret: secret + b"\n"),
    ("the secret with a trailing CR LF", lambda secret: secret + b"\r\n"),
    ("the secret without surrounding spaces", bytes.strip),
    ("the secret in double quotes", lambda secret: b'"%b"' % secret),
    ("the secret in single quotes", lambda secret: b"'%b'" % secret),
    ("the secret decoded from hex", _unhex),
    ("the secret decoded from base64", _unbase64),
    ("the secret in hex", lambda secret: secret.hex().encode()),
    ("an empty secret", lambda _: b""),
)

#: Messages that are signed by mistake instead of `timestamp.nonce.body`.
_MESSAGES: Final[tuple[tuple[str, Callable[[Signed], bytes]], ...]] = (
    ("the body only", lambda it: it.body),
    ("timestamp and body, without the nonce", lambda it: b".".join((it.timestamp, it.body))),
    ("nonce and body, without the timestamp", lambda it: b".".join((it.nonce, it.body))),
    ("nonce and timestamp in the wrong order", lambda it: b".".join((it.nonce, it.timestamp, it.body))),
    ("the body first", lambda it: b".".join((it.body, it.timestamp, it.nonce))),
    ("the three parts without dots", b"".join),
    ("the three parts separated by newlines", b"\n".join),
    ("the three parts separated by colons", b":".join),
    ("the nonce in lower case", lambda it: _joined(it._replace(nonce=it.nonce.lower()))),
    ("the nonce in upper case", lambda it: _joined(it._replace(nonce=it.nonce.upper()))),
    ("the body in hex", lambda it: _joined(it._replace(body=it.body.hex().encode()))),
)

#: Formats of re-serialized JSON: description, and the arguments of json.dumps.
_JSON_FORMATS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
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
    """Yield common changes of a body before it is signed or verified."""
    yield "omitted", b""
    yield "without surrounding whitespace", body.strip()
    yield "with a trailing newline", body + b"\n"
    yield "with LF instead of CR LF", body.replace(b"\r\n", b"\n")
    yield "with CR LF instead of LF", body.replace(b"\n", b"\r\n")
    for format_, text in _reserialized(body):
        yield f"re-serialized {format_}", text.encode("utf-8", "surrogatepass")
        # PHP's json_encode escapes slashes by default.
        yield f"re-serialized {format_}, slashes escaped", text.replace("/", "\\/").encode("utf-8", "surrogatepass")


def _reserialized(body: bytes) -> list[tuple[str, str]]:
    try:
        value = json.loads(body)
        return [(format_, json.dumps(value, **options)) for format_, options in _JSON_FORMATS]
    except (ValueError, RecursionError):
        return []


def _timestamps(timestamp: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield timestamps that may have been signed instead of the one sent."""
    if not timestamp.isdigit():
        return
    number = int(timestamp)
    yield "the timestamp in seconds, but it was sent in milliseconds: send the signed value", str(number // _MS).encode()
    for off_s in _NEIGHBORS_S:
        mistake = f"a timestamp {abs(off_s)} s {'later' if off_s > 0 else 'earlier'} than the one sent"
        yield f"{mistake}: read the clock once for both", str(number + off_s).encode()
