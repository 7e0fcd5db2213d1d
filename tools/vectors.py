"""The test vectors of examples/vectors.json: requests to a receiver, each with the expected response.

They are signed by the product's own signer, so that they match real deliveries. All values are constants, so that the file
changes only with the contract. `make docs` writes it; a test fails if it differs.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from schemas.base.places import ChangedPlace
from schemas.base.strict_json import canonical
from schemas.base.ticket_event_types import TicketEventType
from schemas.base.timestamps import format_rfc3339
from schemas.exports.tickets.ticket import Source, Ticket, delivery_body, digest
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, event_body
from schemas.targets.pings import PingJob, ping_body
from worker.delivery.outcomes import SIGNATURE_INVALID, VALIDATION_FAILED, WEBHOOK_RATE_LIMITED
from worker.http.signing import DEFAULT_TOLERANCE_S, NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, hmac_sha256, sign

NOW: Final = 1_700_000_000
SECRET: Final = "a-secret-for-vectors-only"  # noqa: S105 - signs nothing but vectors
NEW_SECRET: Final = "its-successor-for-vectors-only"  # noqa: S105 - the same
UNICODE_SECRET: Final = "Schlüssel-鍵-🔑"  # noqa: S105 - the same

_EXPORT: Final = "exp_01HF7YAT00VECTRS0000000001"
_TARGET: Final = "tgt_01HF7YAT00VECTRS0000000002"
_PING: Final = "png_01HF7YAT00VECTRS0000000003"
_EVENT: Final = "evt_01HF7YAT00VECTRS0000000004"

_ABOUT: Final = (
    "Requests to a receiver, each with the expected response. Configure the receiver with `secrets`, the clock at "
    "`now` (Unix seconds), the nonces in `seen` as already used, and, unless `rate_per_minute` is 0, with a rate "
    "limit on correctly signed requests; requests at the times in `earlier` were accepted. It has the `tickets`, by "
    "the id of their export: `status` is open or closed, `texts` the number of texts stored with it (its title and a "
    "note for each event); events with the keys `processed` were applied. Send `headers` and the bytes of "
    "`body_base64`. Expect `status` (200 means any 2xx; 400 is allowed instead of 422), `code` in the response's "
    "body, and a new ticket only if `ticket` is true; a 429 has a Retry-After header. `after` are the tickets "
    "afterwards; one whose content was erased has 0 texts. `body` is the body as text, null if it is not UTF-8. "
    "Vectors whose name begins with `event` matter to targets that ask for events; other receivers may skip them."
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected response: status, the code in its body, and whether a ticket is created."""

    status: int
    code: str | None = None
    ticket: bool = False


class StoredTicket(NamedTuple):
    """A ticket as a receiver stores it: status, and the number of texts."""

    status: str
    texts: int


#: The tickets of a receiver, by the id of their export.
StoredTickets = Mapping[str, StoredTicket]

ACCEPTED: Final = Expected(200, ticket=True)
ACKNOWLEDGED: Final = Expected(200)
UNSIGNED: Final = Expected(401, SIGNATURE_INVALID)
INVALID: Final = Expected(422, VALIDATION_FAILED)
LIMITED: Final = Expected(429, WEBHOOK_RATE_LIMITED)


@dataclass(frozen=True, slots=True)
class Vector:
    """One request, the state of the receiver, and the expected response; times in Unix seconds.

    `after` are the tickets after the request: by default `tickets`, and a new one if a ticket is expected.
    """

    name: str
    why: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    expected: Expected
    secrets: tuple[str, ...] = (SECRET,)
    seen: tuple[str, ...] = ()
    rate_per_minute: int = 0
    earlier: tuple[int, ...] = ()
    tickets: StoredTickets = field(default_factory=dict)
    processed: tuple[str, ...] = ()
    after: StoredTickets | None = None

    def record(self) -> dict[str, Any]:
        """Return the vector as in the file."""
        created = {_EXPORT: StoredTicket("open", 1)} if self.expected.ticket else {}
        after = {**self.tickets, **created} if self.after is None else self.after
        return {
            "name": self.name,
            "why": self.why,
            "secrets": list(self.secrets),
            "now": NOW,
            "seen": list(self.seen),
            "rate_per_minute": self.rate_per_minute,
            "earlier": list(self.earlier),
            "tickets": _stored(self.tickets),
            "processed": list(self.processed),
            "headers": [list(header) for header in self.headers],
            "body": _text(self.body),
            "body_base64": base64.b64encode(self.body).decode(),
            "expect": {"status": self.expected.status, "code": self.expected.code, "ticket": self.expected.ticket},
            "after": _stored(after),
        }


def document() -> str:
    """Return examples/vectors.json: one line per field, in ASCII, since some of its characters are invisible."""
    vectors = ",\n".join(_lines(each.record()) for each in all_vectors())
    return f'{{"about": {json.dumps(_ABOUT)},\n"vectors": [\n{vectors}\n]}}\n'


def all_vectors() -> list[Vector]:
    """Return every vector; names and nonces are unique."""
    signatures = (_good, _age, _tampering, _replays, _secrets, _bytes, _missing, _signatures, _moved_dots)
    return [vector for kind in (*signatures, _contents, _limits, _events) for vector in kind()]


def _good() -> Iterator[Vector]:
    yield _vector("good", "A normal delivery.", ACCEPTED)
    yield _vector("ping", "A test event is accepted and creates no ticket.", ACKNOWLEDGED, _ping(), key=_PING)
    lower = tuple((name.lower(), value) for name, value in _headers("lower-case header names", _delivery()))
    why = "Header names are case-insensitive; HTTP/2 and many proxies send them in lower case."
    yield Vector("lower-case header names", why, lower, _delivery(), ACCEPTED)


def _age() -> Iterator[Vector]:
    edge = DEFAULT_TOLERANCE_S
    yield _vector("five minutes old", "300 s are allowed.", ACCEPTED, at=NOW - edge)
    yield _vector("five minutes ahead", "Clocks differ in both directions.", ACCEPTED, at=NOW + edge)
    yield _vector("stale", "301 s are too old: a recorded request cannot be sent again later.", UNSIGNED, at=NOW - edge - 1)
    why = "A timestamp in the future would stay valid for longer than nonces are stored."
    yield _vector("from the future", why, UNSIGNED, at=NOW + edge + 1)
    yield _vector("milliseconds", "The timestamp is in seconds.", UNSIGNED, at=NOW * 1000)
    why = "Text that is not a number has no age; comparisons with NaN are always false."
    name = "timestamp is no number"
    yield _with(name, why, UNSIGNED, timestamp="now", signature=_signed("now", _nonce(name), _delivery()))


def _tampering() -> Iterator[Vector]:
    body = _delivery()
    changed = body.replace(b'"medium"', b'"severe"')
    yield _with("tampered body", "The signature covers other bytes.", UNSIGNED, sent=changed)
    yield _with("body cut short", "The last byte is missing.", UNSIGNED, sent=body[:-1])
    yield _with(
        "newline after the body",
        "One additional byte; a receiver that trims the body does not notice it.",
        UNSIGNED,
        sent=body + b"\n",
    )
    why = "The signature covers the timestamp, which was changed by a second."
    yield _with("tampered timestamp", why, UNSIGNED, timestamp=str(NOW - 1))
    why = "The signature covers the nonce, which was replaced."
    yield _with("tampered nonce", why, UNSIGNED, nonce=_nonce("another nonce"))


def _replays() -> Iterator[Vector]:
    nonce = _nonce("replayed nonce")
    yield _vector("replayed nonce", "The request is valid, but its nonce was already used.", UNSIGNED, seen=(nonce,))
    yield _vector("another nonce was seen", "Only the same nonce is a replay.", ACCEPTED, seen=(nonce,))


def _secrets() -> Iterator[Vector]:
    yield _vector("wrong secret", "Signed with a secret that the receiver does not have.", UNSIGNED, secret=NEW_SECRET)
    both = (NEW_SECRET, SECRET)
    why = "During a rotation, both secrets are valid."
    yield _vector("rotation: signed with the new secret", why, ACCEPTED, secrets=both, secret=NEW_SECRET)
    yield _vector("rotation: signed with the old secret", why, ACCEPTED, secrets=both)
    why = "After the rotation, the old secret is invalid."
    yield _vector("rotation: the old secret afterwards", why, UNSIGNED, secrets=(NEW_SECRET,))
    why = "The key is the secret encoded as UTF-8."
    yield _vector("secret beyond ASCII", why, ACCEPTED, secrets=(UNICODE_SECRET,), secret=UNICODE_SECRET)


def _bytes() -> Iterator[Vector]:
    ticket = _ticket(title="Größe fehlt: 尺码 👟", description="Zero width: \u200b, combining: e\u0301, line: \u2028")
    yield _vector(
        "text beyond ASCII", "Unescaped UTF-8, including characters outside the basic plane.", ACCEPTED, _delivery(ticket)
    )
    spaced = json.dumps(json.loads(_delivery(ticket)), indent=2, sort_keys=False).encode()
    why = "Spaces, line breaks and \\u escapes: re-serialized JSON has other bytes."
    yield _vector("spaces and escapes", why, ACCEPTED, spaced)
    numbers = _delivery(_ticket(evidence={"n": 0})).replace(
        b'{"n":0}', b'{"a":1.0,"b":1E+2,"c":-0.0,"d":12345678901234567890}'
    )
    why = "Number formats that JSON libraries do not preserve: only the raw bytes have them."
    yield _vector("numbers in other forms", why, ACCEPTED, numbers)
    yield _vector("names in another order", "Sorted fields have other bytes.", ACCEPTED, _reversed_fields(_delivery()))
    yield _vector("newline in the signed body", "The newline is one of the signed bytes.", ACCEPTED, _delivery() + b"\n")


def _missing() -> Iterator[Vector]:
    for header in (TIMESTAMP_HEADER, NONCE_HEADER, SIGNATURE_HEADER):
        name = f"no {header}"
        kept = tuple(each for each in _headers(name, _delivery()) if each[0] != header)
        yield Vector(name, "All three headers are required.", kept, _delivery(), UNSIGNED)
    yield Vector("no headers at all", "An unsigned request.", (), _delivery(), UNSIGNED)
    name = "signature is there twice"
    twice = (*_headers(name, _delivery()), (SIGNATURE_HEADER, "sha256=" + "0" * 64))
    yield Vector(
        name, "A repeated header is rejected, because two programs may use different values.", twice, _delivery(), UNSIGNED
    )


def _signatures() -> Iterator[Vector]:
    def spelled(name: str, why: str, spell: str) -> Vector:
        good = _signed(str(NOW), _nonce(name), _delivery())
        digest = good.removeprefix("sha256=")
        base64_digest = base64.b64encode(bytes.fromhex(digest)).decode()
        return _with(name, why, UNSIGNED, signature=spell.format(digest=digest, upper=digest.upper(), base64=base64_digest))

    why = "The sender writes lower case; the receiver compares the text without conversion."
    yield spelled("upper-case hex", why, "sha256={upper}")
    yield spelled("no prefix", "The prefix is a part of the value.", "{digest}")
    yield spelled("wrong prefix", "The algorithm is SHA-256, not SHA-1.", "sha1={digest}")
    yield spelled("base64", "The digest is encoded in hex.", "sha256={base64}")
    yield spelled("one digit short", "A truncated signature is invalid.", "sha256={digest:.63}")
    yield spelled("one digit too many", "A longer signature is invalid.", "sha256={digest}0")
    yield spelled("no hex", "The length is right, but the characters are not hex.", "sha256=" + "z" * 64)
    yield spelled("prefix alone", "An empty digest.", "sha256=")
    body, name = _delivery(), "signed over the body alone"
    alone = "sha256=" + hmac_sha256(SECRET.encode(), body).hex()
    yield _with(name, "Without timestamp and nonce, a signature would be valid forever.", UNSIGNED, signature=alone)


def _moved_dots() -> Iterator[Vector]:
    """The signed message is one byte string: without a strict format of nonce and timestamp, its dots can be moved."""
    name, body = "dot moved into the nonce", b"0." + _delivery()
    nonce, signature = _nonce(name), _signed(str(NOW), _nonce(name), body)
    why = "Signed bytes moved from the body to the nonce, which then looks unused: a nonce is 32 hex digits."
    yield _with(name, why, UNSIGNED, nonce=nonce + ".0", signature=signature, sent=body.removeprefix(b"0."))
    name, inner = "dot moved into the timestamp", _nonce("a nonce within a body")
    signature = _signed(str(NOW), _nonce(name), f"{inner}.".encode() + _delivery())
    why = "The nonce moved to the timestamp: a timestamp contains only digits; some number parsers ignore the rest."
    yield _with(name, why, UNSIGNED, timestamp=f"{NOW}.{_nonce(name)}", nonce=inner, signature=signature)


def _contents() -> Iterator[Vector]:
    yield _vector("empty body", "The signature is valid, but the body is not JSON.", INVALID, b"")
    yield _vector(
        "no JSON", "The request is signed, so the response contains the error.", INVALID, b'{"id": "exp_1", "type"'
    )
    yield _vector("no text", "Bytes that are not UTF-8.", INVALID, b"\xff\xfe\x00{}\xc3")
    yield _vector("no object", "JSON, but not an event.", INVALID, b'["ticket.export"]')
    later = _delivery().replace(b'"ticket.export"', b'"ticket.closed"')
    why = "A 2xx confirms that an event was processed; an unknown type is not."
    yield _vector("unknown type", why, INVALID, later)
    untitled = _delivery().replace(b'"title":', b'"titel":')
    yield _vector("ticket without a title", "An event of a known type without a valid ticket.", INVALID, untitled)
    name = "unsigned and no JSON"
    yield _with(name, "The signature is verified first: an unsigned request gets no other error.", UNSIGNED, sent=b"{")


def _limits() -> Iterator[Vector]:
    just_now = (NOW - 20, NOW - 10)
    why = "Two requests per minute are allowed, and two were accepted."
    yield _vector("over the limit", why, LIMITED, rate_per_minute=2, earlier=just_now)
    yield _vector("within the limit", "The third of three.", ACCEPTED, rate_per_minute=3, earlier=just_now)
    why = "A request more than a minute ago does not count."
    yield _vector("limit of a minute ago", why, ACCEPTED, rate_per_minute=1, earlier=(NOW - 61,))
    name, why = "over the limit and unsigned", "The signature is verified first: unsigned requests do not count."
    signature = _signed(str(NOW), _nonce(name), _delivery(), NEW_SECRET)
    headers = _headers(name, _delivery(), signature=signature)
    yield Vector(name, why, headers, _delivery(), UNSIGNED, rate_per_minute=2, earlier=just_now)


def _events() -> Iterator[Vector]:
    def applied(
        name: str, kind: TicketEventType, why: str, before: StoredTicket, after: StoredTicket, **state: Any
    ) -> Vector:
        state = {"tickets": {_EXPORT: before}, "after": {_EXPORT: after}, "key": _EVENT, **state}
        return _vector(f"event: {name}", why, ACKNOWLEDGED, _event(kind), **state)

    new, noted, closed = StoredTicket("open", 1), StoredTicket("open", 2), StoredTicket("closed", 2)
    yield applied("updated", TicketEventType.UPDATED, "A note on the ticket, which stays open.", new, noted)
    yield applied("fixed", TicketEventType.FIXED, "The ticket is closed.", new, closed)
    yield applied("reopened", TicketEventType.REOPENED, "The ticket is open again.", closed, StoredTicket("open", 3))
    why = "Title and notes are erased before the 2xx, which is the proof; id and status stay."
    yield applied("redact", TicketEventType.REDACT, why, closed, StoredTicket("closed", 0))
    why = "The response was lost; the ticket was reopened since. A known key gets a 2xx again and changes nothing."
    reopened = StoredTicket("open", 3)
    yield applied("repeated", TicketEventType.FIXED, why, reopened, reopened, processed=(_EVENT,))
    fixed = _event(TicketEventType.FIXED)
    why = "A ticket that never arrived here: a 2xx, because no retry would change that, and no new ticket."
    yield _vector("event: unknown ticket", why, ACKNOWLEDGED, fixed, key=_EVENT)

    state: dict[str, Any] = {"tickets": {_EXPORT: new}, "key": _EVENT}
    event = json.loads(fixed)
    why = "An event of a known type that does not say what changed."
    unchanged = canonical({name: value for name, value in event.items() if name != "change"})
    yield _vector("event: no change", why, INVALID, unchanged, **state)
    why = "An event of a known type that does not name the export of its ticket."
    unnamed = canonical({**event, "export": {"target_id": _TARGET}})
    yield _vector("event: no export", why, INVALID, unnamed, **state)
    why = "The signature is verified first: nobody else closes or erases a ticket."
    forged = _event(TicketEventType.REDACT)
    yield _vector("event: forged redact", why, UNSIGNED, forged, secret=NEW_SECRET, **state)


def _vector(
    name: str,
    why: str,
    expected: Expected,
    body: bytes | None = None,
    *,
    at: int = NOW,
    secret: str = SECRET,
    key: str = _EXPORT,
    **state: Any,
) -> Vector:
    """Return a vector whose request is signed like a delivery; `state` is the state of the receiver."""
    content = _delivery() if body is None else body
    signature = sign(secret.encode(), at, _nonce(name), content)
    headers = _headers(name, content, timestamp=str(at), signature=signature, key=key)
    return Vector(name, why, headers, content, expected, **state)


def _with(name: str, why: str, expected: Expected, *, sent: bytes | None = None, **changes: str) -> Vector:
    """Return a vector whose valid request is changed after signing: another body, or other header values."""
    body = _delivery()
    return Vector(name, why, _headers(name, body, **changes), body if sent is None else sent, expected)


def _headers(
    name: str,
    body: bytes,
    *,
    timestamp: str = str(NOW),
    nonce: str | None = None,
    signature: str | None = None,
    key: str = _EXPORT,
) -> tuple[tuple[str, str], ...]:
    return (
        ("Content-Type", "application/json"),
        ("Idempotency-Key", key),
        (TIMESTAMP_HEADER, timestamp),
        (NONCE_HEADER, nonce or _nonce(name)),
        (SIGNATURE_HEADER, signature or sign(SECRET.encode(), NOW, _nonce(name), body)),
    )


def _signed(timestamp: str, nonce: str, body: bytes, secret: str = SECRET) -> str:
    """Sign any timestamp; the product's signer accepts only numbers."""
    return "sha256=" + hmac_sha256(secret.encode(), f"{timestamp}.{nonce}.".encode() + body).hex()


def _nonce(name: str) -> str:
    """Return 32 hex digits derived from the name."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _ticket(**changes: Any) -> Ticket:
    sample: dict[str, Any] = {
        "title": "Image without alternative text",
        "description": "Screen readers cannot tell what the picture shows.",
        "severity": "medium",
        "page_url": "https://shop.example/",
        "labels": ("website-risk",),
        "evidence": {"rule": "img-alt"},
    }
    return Ticket(**(sample | changes))


def _delivery(ticket: Ticket | None = None) -> bytes:
    source = Source("manual", "vectors")
    return delivery_body(
        _EXPORT, _TARGET, source, (ticket or _ticket()).record(), format_rfc3339(datetime.fromtimestamp(NOW, UTC))
    )


def _ping() -> bytes:
    return ping_body(PingJob(_PING, datetime.fromtimestamp(NOW, UTC), _TARGET, 1, "Vectors", "", None))


def _event(kind: TicketEventType) -> bytes:
    is_redact, is_open = kind is TicketEventType.REDACT, kind is not TicketEventType.FIXED
    place = ChangedPlace("https://shop.example/", "main > img.hero", "open" if is_open else "fixed")
    change = TicketChange() if is_redact else TicketChange(int(is_open), int(not is_open), int(is_open), (place,))
    sample = _ticket()
    title = None if is_redact else sample.title
    ticket = EventTicket(_EXPORT, _TARGET, Source("manual", "vectors"), title, digest(sample.record()), "T-1")
    return event_body(_EVENT, kind, ticket, change, format_rfc3339(datetime.fromtimestamp(NOW, UTC)))


def _reversed_fields(body: bytes) -> bytes:
    """Return the same object with its fields in reverse order."""
    members = reversed(json.loads(body).items())
    return b"{" + b",".join(canonical(name) + b":" + canonical(value) for name, value in members) + b"}"


def _stored(tickets: StoredTickets) -> dict[str, dict[str, Any]]:
    return {export_id: ticket._asdict() for export_id, ticket in tickets.items()}


def _lines(record: dict[str, Any]) -> str:
    members = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items())
    return f" {{\n{members}\n }}"


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
