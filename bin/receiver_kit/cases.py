"""Test cases for receivers, sent by `trigger`: requests, and the responses of a correct receiver.

A response is evaluated as a worker evaluates it, so "right" means that a delivery would end with the correct status. Each
case has its own tickets and nonces, so cases can run alone, in any order, and repeatedly.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.base.places import ChangedPlace
from schemas.base.strict_json import canonical
from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.delivery import DELIVERED, Outcome, Verdict
from schemas.exports.tickets.ticket import Source, digest
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, event_body
from storage.db import identifiers
from worker.delivery.outcomes import SIGNATURE_INVALID, VALIDATION_FAILED
from worker.http.signed_request import Message, new_nonce, signed_headers
from worker.http.signing import DEFAULT_TOLERANCE_S, NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

#: Exceeds the tolerance by 100 s, which covers a small difference between the clocks of sender and receiver.
OUTSIDE_TOLERANCE_S: Final = DEFAULT_TOLERANCE_S + 100
ACCEPTED: Final = "2xx"
NO_SIGNATURE: Final = f"401 {SIGNATURE_INVALID}"
NO_TICKET: Final = f"422 {VALIDATION_FAILED}"


_URL: Final = "https://shop.example/"
_FIXED: Final = ChangedPlace(_URL, "main > img.hero", "fixed")
_OPEN: Final = ChangedPlace(_URL, "main > img.new", "open")
_CHANGES: Final = {
    TicketEventType.UPDATED: TicketChange(1, 1, 1, (_OPEN, _FIXED)),
    TicketEventType.FIXED: TicketChange(0, 1, 0, (_FIXED,)),
    TicketEventType.REOPENED: TicketChange(1, 0, 1, (_OPEN,)),
    TicketEventType.REDACT: TicketChange(),
}


class CaseRequest(NamedTuple):
    """One request to send, and the response of a correct receiver."""

    headers: dict[str, str]
    body: bytes
    right: str


class CaseResponse(NamedTuple):
    """The outcome of a request, and the verdict of a worker on it."""

    request: CaseRequest
    outcome: Outcome
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        """Whether a correct receiver responds like this."""
        if self.request.right == ACCEPTED:
            return self.verdict.outcome == DELIVERED
        return self.verdict.outcome == "rejected" and self.verdict.error_code == self.request.right.partition(" ")[2]

    @property
    def summary(self) -> str:
        """The status, with the ticket or the error code."""
        detail = self.verdict.provider_ticket_id or self.verdict.error_code
        return " ".join(str(part) for part in (self.outcome.status, detail) if part is not None) or "no response"


@dataclass(frozen=True, slots=True)
class SampleRequests:
    """Signs sample messages; each message has its own ticket, time and nonce."""

    message: Callable[[], Message]
    secret: str

    def signed(self, message: Message, right: str = ACCEPTED, secret: str | None = None, late_s: int = 0) -> CaseRequest:
        """Return a message signed `late_s` seconds ago, with the receiver's secret unless another is given."""
        headers = signed_headers(message, self.secret)
        timestamp = int(headers[TIMESTAMP_HEADER]) - late_s
        signature = sign((secret or self.secret).encode(), timestamp, message.nonce, message.body)
        return CaseRequest({**headers, TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: signature}, message.body, right)

    def forged(self, message: Message) -> CaseRequest:
        """Return a message signed with another secret than the receiver's."""
        return self.signed(message, NO_SIGNATURE, secret=f"not {self.secret}")


#: A function that returns the requests of a case.
Requests = Callable[[SampleRequests], list[CaseRequest]]


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One requirement of a receiver: a description of what is sent, the requests, and the fix if the receiver fails.

    `compare` checks responses that are right one by one, and returns the problem with them together.
    """

    name: str
    sends: str
    requests: Requests
    fix: str
    compare: Callable[[Sequence[CaseResponse]], str | None] = lambda _: None


class CaseResult(NamedTuple):
    """The result of a case: the responses in order, and the problem; None if every response is right."""

    case: ConformanceCase
    responses: Sequence[CaseResponse]
    problem: str | None


def sample_event(ticket: Message, kind: TicketEventType, export_id: str | None = None) -> Message:
    """Return an event of a sample ticket, or of the ticket with that export id, with a key of its own."""
    sent = json.loads(ticket.body)
    title = None if kind is TicketEventType.REDACT else sent["ticket"]["title"]
    source = Source(**sent["export"]["source"])
    about = EventTicket(export_id or ticket.key, ticket.target_id, source, title, digest(sent["ticket"]))
    key = identifiers.new_id(identifiers.EVENT, ticket.at)
    body = event_body(key, kind, about, _CHANGES[kind], sent["created_at"])
    attempt_id = identifiers.new_id(identifiers.ATTEMPT, ticket.at)
    return ticket._replace(id=attempt_id, key=key, nonce=new_nonce(), body=body)


def run_case(case: ConformanceCase, sample: SampleRequests, send: Callable[[CaseRequest], CaseResponse]) -> CaseResult:
    """Send the requests of a case one after the other, until a response is wrong."""
    responses: list[CaseResponse] = []
    for request in case.requests(sample):
        responses.append(send(request))
        if not responses[-1].is_right:
            number = f"request {len(responses)}: " if len(responses) > 1 else ""
            return CaseResult(case, responses, f"{number}{responses[-1].summary}; expected {request.right}")
    return CaseResult(case, responses, case.compare(responses))


def _ping(sample: SampleRequests) -> list[CaseRequest]:
    message = sample.message()
    ping_id = identifiers.new_id(identifiers.PING, message.at)
    created_at = json.loads(message.body)["created_at"]
    target = {"id": message.target_id, "name": "Sample"}
    body = {"id": ping_id, "type": "target.ping", "version": 1, "created_at": created_at, "target": target}
    return [sample.signed(message._replace(id=ping_id, key=ping_id, body=canonical(body)))]


def _again(message: Message) -> Message:
    """Return another attempt of a message."""
    return message._replace(nonce=new_nonce(), id=identifiers.new_id(identifiers.ATTEMPT, message.at))


def _unusual_json(sample: SampleRequests) -> list[CaseRequest]:
    message = sample.message()
    event = json.loads(message.body)
    event["ticket"]["title"] = "Größe fehlt, 画像に代替テキストがない 🛒"
    event["ticket"]["evidence"] = {"z": 1.50, "a": "</script>", "big": 12345678901234567890}
    # Whitespace, an escape, a number and an order of fields that no library writes.
    text = json.dumps(event, indent=1, ensure_ascii=False).replace("ö", "\\u00f6").replace("1.5,", "1.50,")
    return [sample.signed(message._replace(body=b" " + text.encode() + b"\r\n"))]


def _forged_first(sample: SampleRequests) -> list[CaseRequest]:
    message = sample.message()
    return [sample.forged(message), sample.signed(message)]


def _tampered_body(sample: SampleRequests) -> list[CaseRequest]:
    request = sample.signed(sample.message(), NO_SIGNATURE)
    return [request._replace(body=request.body.removesuffix(b"}") + b',"tampered":true}')]


def _tampered(header: str, change: Callable[[str], str]) -> Requests:
    """Return a ticket with a header changed after signing."""

    def tampered(sample: SampleRequests) -> list[CaseRequest]:
        request = sample.signed(sample.message(), NO_SIGNATURE)
        return [request._replace(headers={**request.headers, header: change(request.headers[header])})]

    return tampered


def _without(header: str) -> Requests:
    def incomplete(sample: SampleRequests) -> list[CaseRequest]:
        request = sample.signed(sample.message(), NO_SIGNATURE)
        return [request._replace(headers={name: request.headers[name] for name in request.headers if name != header})]

    return incomplete


def _ticket_then(*others: Callable[[SampleRequests, Message], CaseRequest]) -> Requests:
    """Return a ticket, and the requests that follow it."""

    def requests(sample: SampleRequests) -> list[CaseRequest]:
        ticket = sample.message()
        return [sample.signed(ticket), *(make(sample, ticket) for make in others)]

    return requests


def _body(body: bytes) -> Requests:
    return lambda sample: [sample.signed(sample.message()._replace(body=body), NO_TICKET)]


def _unknown_type(sample: SampleRequests) -> list[CaseRequest]:
    message = sample.message()
    event = {**json.loads(message.body), "type": "ticket.unknown"}
    return [sample.signed(message._replace(body=canonical(event)), NO_TICKET)]


def _event(kind: TicketEventType) -> Callable[[SampleRequests, Message], CaseRequest]:
    return lambda sample, ticket: sample.signed(sample_event(ticket, kind))


def _repeated_event(sample: SampleRequests) -> list[CaseRequest]:
    ticket = sample.message()
    event = sample_event(ticket, TicketEventType.FIXED)
    return [sample.signed(each) for each in (ticket, event, _again(event))]


def _event_without(member: str) -> Callable[[SampleRequests, Message], CaseRequest]:
    def incomplete(sample: SampleRequests, ticket: Message) -> CaseRequest:
        event = sample_event(ticket, TicketEventType.FIXED)
        rest = {name: value for name, value in json.loads(event.body).items() if name != member}
        return sample.signed(event._replace(body=canonical(rest)), NO_TICKET)

    return incomplete


def _creates_no_ticket(responses: Sequence[CaseResponse]) -> str | None:
    [response] = responses
    ticket_id = response.verdict.provider_ticket_id
    is_ticket = ticket_id is not None and ticket_id != response.request.headers["Idempotency-Key"]
    return f"the response names a ticket, {ticket_id}" if is_ticket else None


def _is_one_ticket(responses: Sequence[CaseResponse]) -> str | None:
    first, second = (response.verdict.provider_ticket_id for response in responses)
    return None if first == second else f"two tickets, {first} and {second}"


def _is_no_other_ticket(responses: Sequence[CaseResponse]) -> str | None:
    """Check that no response after the first names another ticket; a receiver may name none in response to an event."""
    first, *others = (response.verdict.provider_ticket_id for response in responses)
    allowed = {None, first, *(response.request.headers["Idempotency-Key"] for response in responses)}
    return next((f"another ticket, {each}" for each in others if each not in allowed), None)


def _are_two_tickets(responses: Sequence[CaseResponse]) -> str | None:
    first, second = (response.verdict.provider_ticket_id for response in responses)
    return f"one ticket for both, {first}" if first is not None and first == second else None


_MISSING_HEADER: Final = f"respond 401 with the code {SIGNATURE_INVALID} if one of the three headers is missing"
_SIGNED_PARTS: Final = "the signature covers timestamp, nonce and raw body: compute it over all three as received"

#: In the order in which a receiver is developed.
CASES: Final[tuple[ConformanceCase, ...]] = (
    ConformanceCase(
        "delivery", "a signed ticket", lambda sample: [sample.signed(sample.message())], "accept it with any 2xx"
    ),
    ConformanceCase(
        "ping", "a test event", _ping, "respond 2xx to the type target.ping, and create no ticket", _creates_no_ticket
    ),
    ConformanceCase(
        "spelling",
        "a ticket in JSON that no library writes like this",
        _unusual_json,
        "verify the raw bytes before parsing them",
    ),
    ConformanceCase(
        "wrong-secret",
        "a ticket signed with another secret",
        lambda sample: [sample.forged(sample.message())],
        "compare the signature, in constant time",
    ),
    ConformanceCase("tampered-body", "a body changed after signing", _tampered_body, _SIGNED_PARTS),
    ConformanceCase(
        "tampered-timestamp",
        "a timestamp changed after signing",
        _tampered(TIMESTAMP_HEADER, lambda timestamp: str(int(timestamp) + 1)),
        _SIGNED_PARTS,
    ),
    ConformanceCase(
        "tampered-nonce", "a nonce changed after signing", _tampered(NONCE_HEADER, lambda _: new_nonce()), _SIGNED_PARTS
    ),
    ConformanceCase("no-signature", "a ticket without a signature", _without(SIGNATURE_HEADER), _MISSING_HEADER),
    ConformanceCase("no-timestamp", "a ticket without a timestamp", _without(TIMESTAMP_HEADER), _MISSING_HEADER),
    ConformanceCase("no-nonce", "a ticket without a nonce", _without(NONCE_HEADER), _MISSING_HEADER),
    ConformanceCase(
        "no-prefix",
        "a signature without the prefix sha256=",
        _tampered(SIGNATURE_HEADER, lambda signature: signature.removeprefix("sha256=")),
        "compare the whole header with `sha256=` and the hex digits",
    ),
    ConformanceCase(
        "stale",
        f"a ticket signed {OUTSIDE_TOLERANCE_S} s ago",
        lambda sample: [sample.signed(sample.message(), NO_SIGNATURE, late_s=OUTSIDE_TOLERANCE_S)],
        f"reject timestamps more than {DEFAULT_TOLERANCE_S} s old",
    ),
    ConformanceCase(
        "future",
        f"a ticket signed {OUTSIDE_TOLERANCE_S} s from now",
        lambda sample: [sample.signed(sample.message(), NO_SIGNATURE, late_s=-OUTSIDE_TOLERANCE_S)],
        f"reject timestamps more than {DEFAULT_TOLERANCE_S} s ahead",
    ),
    ConformanceCase(
        "replayed-nonce",
        "the same request twice",
        _ticket_then(lambda sample, ticket: sample.signed(ticket, NO_SIGNATURE)),
        f"store each nonce for {2 * DEFAULT_TOLERANCE_S} s, and reject one that is stored",
    ),
    ConformanceCase(
        "forged-first",
        "a forged request, then the genuine one with its nonce",
        _forged_first,
        "store nonces of correctly signed requests only: a forger must not use one up",
    ),
    ConformanceCase(
        "repeat",
        "a ticket again, with the same Idempotency-Key",
        _ticket_then(lambda sample, ticket: sample.signed(_again(ticket))),
        "look up the Idempotency-Key, and respond to a known key with its existing ticket",
        _is_one_ticket,
    ),
    ConformanceCase(
        "two-tickets",
        "two tickets, each with its own Idempotency-Key",
        _ticket_then(lambda sample, _: sample.signed(sample.message())),
        "identify a ticket by its Idempotency-Key, not by its content",
        _are_two_tickets,
    ),
    ConformanceCase("not-json", "signed bytes that are not JSON", _body(b'{"type": "ticket.exp'), f"respond {NO_TICKET}"),
    ConformanceCase("no-object", "signed JSON that is not an object", _body(b"[]"), f"respond {NO_TICKET}"),
    ConformanceCase("empty", "a signed empty body", _body(b""), f"respond {NO_TICKET}"),
    ConformanceCase(
        "unknown-type",
        "a signed event of an unknown type",
        _unknown_type,
        f"respond {NO_TICKET}; a 2xx confirms that the event was processed",
    ),
    ConformanceCase(
        "forged-not-json",
        "bytes that are not JSON, signed with another secret",
        lambda sample: [sample.forged(sample.message()._replace(body=b"{"))],
        f"verify before parsing: respond {NO_SIGNATURE} to every request with a wrong signature",
    ),
)
NAMES: Final = tuple(case.name for case in CASES)

#: For receivers of targets that ask for events; others may respond to an event as to any unknown type.
EVENT_CASES: Final[tuple[ConformanceCase, ...]] = (
    ConformanceCase(
        "event-updated",
        "a ticket, then ticket.updated",
        _ticket_then(_event(TicketEventType.UPDATED)),
        "add a note to the ticket, and create no other",
        _is_no_other_ticket,
    ),
    ConformanceCase(
        "event-fixed",
        "a ticket, then ticket.fixed",
        _ticket_then(_event(TicketEventType.FIXED)),
        "close the ticket, and create no other",
        _is_no_other_ticket,
    ),
    ConformanceCase(
        "event-reopened",
        "a ticket, then ticket.fixed and ticket.reopened",
        _ticket_then(_event(TicketEventType.FIXED), _event(TicketEventType.REOPENED)),
        "open the ticket again, and create no other",
        _is_no_other_ticket,
    ),
    ConformanceCase(
        "event-redact",
        "a ticket, then ticket.redact, then the ticket again",
        _ticket_then(_event(TicketEventType.REDACT), lambda sample, ticket: sample.signed(_again(ticket))),
        "erase the content before the 2xx, accept the null title, and keep the Idempotency-Key with the ticket's id",
        lambda responses: _is_one_ticket((responses[0], responses[-1])),
    ),
    ConformanceCase(
        "event-repeat",
        "an event again, with the same Idempotency-Key",
        _repeated_event,
        "look up the Idempotency-Key of events, too, and respond 2xx to a known one",
        _is_no_other_ticket,
    ),
    ConformanceCase(
        "event-unknown-ticket",
        "an event of a ticket that the receiver never got",
        lambda sample: [sample.signed(sample_event(sample.message(), TicketEventType.FIXED))],
        "ignore it with a 2xx, since no retry changes that, and create no ticket",
        _creates_no_ticket,
    ),
    ConformanceCase(
        "event-forged",
        "a ticket, then ticket.redact signed with another secret",
        _ticket_then(lambda sample, ticket: sample.forged(sample_event(ticket, TicketEventType.REDACT))),
        f"verify before reading the type: respond {NO_SIGNATURE}",
    ),
    ConformanceCase(
        "event-incomplete",
        "a ticket, then events without a change or an export",
        _ticket_then(_event_without("change"), _event_without("export")),
        f"respond {NO_TICKET} to an event that does not say what changed in which ticket",
    ),
)
EVENT_NAMES: Final = tuple(case.name for case in EVENT_CASES)
