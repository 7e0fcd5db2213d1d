"""What a receiver has to get right: requests to send it, and the answers of a right one, for `trigger --case` and `--all`.

An answer is judged as a worker judges it, so "right" means that a delivery would end as it should. Each case has tickets
and nonces of its own, so cases can be run alone, in any order, and again.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.base.strict_json import canonical
from schemas.exports.delivery import DELIVERED, Outcome, Verdict
from storage.db import identifiers
from worker.delivery.outcomes import SIGNATURE_INVALID, VALIDATION_FAILED
from worker.http.signed_request import Message, new_nonce, signed_headers
from worker.http.signing import DEFAULT_TOLERANCE_S, NONCE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

#: Beyond the five minutes by enough that two clocks which differ a little agree about it.
OFF_S: Final = DEFAULT_TOLERANCE_S + 100
ACCEPTED: Final = "2xx"
NO_SIGNATURE: Final = f"401 {SIGNATURE_INVALID}"
NO_TICKET: Final = f"422 {VALIDATION_FAILED}"


class Request(NamedTuple):
    """One request to send, and what a right receiver answers."""

    headers: dict[str, str]
    body: bytes
    right: str


class Answered(NamedTuple):
    """What came of a request: the answer, and what a worker makes of it."""

    request: Request
    outcome: Outcome
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        """Whether a right receiver answers so."""
        match self.request.right:
            case "2xx":
                return self.verdict.outcome == DELIVERED
            case right:
                return self.verdict.outcome == "rejected" and self.verdict.error_code == right.partition(" ")[2]

    @property
    def told(self) -> str:
        """The answer in a few words."""
        told = self.verdict.provider_ticket_id or self.verdict.error_code
        return " ".join(str(part) for part in (self.outcome.status, told) if part is not None) or "no answer"


@dataclass(frozen=True, slots=True)
class Sample:
    """What requests are made of: makes a message with a ticket, a time and a nonce of its own, and signs."""

    message: Callable[[], Message]
    secret: str

    def signed(self, message: Message, right: str = ACCEPTED, secret: str | None = None, late_s: int = 0) -> Request:
        """Return a message signed `late_s` seconds ago, with the right secret unless another is given."""
        headers = signed_headers(message, self.secret)
        timestamp = int(headers[TIMESTAMP_HEADER]) - late_s
        signature = sign((secret or self.secret).encode(), timestamp, message.nonce, message.body)
        return Request({**headers, TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: signature}, message.body, right)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to get right: what is sent, the requests, and what is wrong with a receiver that answers otherwise.

    `compare` looks at answers that are right one by one, and says what is wrong with them together.
    """

    name: str
    sends: str
    requests: Callable[[Sample], Iterator[Request]]
    remedy: str
    compare: Callable[[Sequence[Answered]], str | None] = lambda _: None


class Result(NamedTuple):
    """What came of a case: the answers in order, and what is wrong with them, None where nothing is."""

    case: Case
    answers: Sequence[Answered]
    problem: str | None


def try_case(case: Case, sample: Sample, ask: Callable[[Request], Answered]) -> Result:
    """Send the requests of a case one after the other, until an answer is wrong."""
    answers: list[Answered] = []
    for request in case.requests(sample):
        answers.append(ask(request))
        if not answers[-1].is_right:
            place = f"request {len(answers)}: " if len(answers) > 1 else ""
            return Result(case, answers, f"{place}{answers[-1].told}; right is {request.right}")
    return Result(case, answers, case.compare(answers))


def _delivery(sample: Sample) -> Iterator[Request]:
    yield sample.signed(sample.message())


def _ping(sample: Sample) -> Iterator[Request]:
    message = sample.message()
    ping_id = identifiers.new_id(identifiers.PING, message.at)
    created_at = json.loads(message.body)["created_at"]
    target = {"id": message.target_id, "name": "Sample"}
    body = {"id": ping_id, "type": "target.ping", "version": 1, "created_at": created_at, "target": target}
    yield sample.signed(message._replace(id=ping_id, key=ping_id, body=canonical(body)))


def _repeat(sample: Sample) -> Iterator[Request]:
    message = sample.message()
    yield sample.signed(message)
    yield sample.signed(message._replace(nonce=new_nonce(), id=identifiers.new_id(identifiers.ATTEMPT, message.at)))


def _two_tickets(sample: Sample) -> Iterator[Request]:
    yield sample.signed(sample.message())
    yield sample.signed(sample.message())


def _other_spelling(sample: Sample) -> Iterator[Request]:
    message = sample.message()
    event = json.loads(message.body)
    event["ticket"]["title"] = "Größe fehlt, 画像に代替テキストがない 🛒"
    event["ticket"]["evidence"] = {"z": 1.50, "a": "</script>", "big": 12345678901234567890}
    # Spaces, an escape, a number and an order of names as no library writes them.
    text = json.dumps(event, indent=1, ensure_ascii=False).replace("ö", "\\u00f6").replace("1.5,", "1.50,")
    yield sample.signed(message._replace(body=b" " + text.encode() + b"\r\n"))


def _replayed(sample: Sample) -> Iterator[Request]:
    request = sample.signed(sample.message())
    yield request
    yield request._replace(right=NO_SIGNATURE)


def _forged_before(sample: Sample) -> Iterator[Request]:
    message = sample.message()
    yield sample.signed(message, NO_SIGNATURE, secret="not " + sample.secret)
    yield sample.signed(message)


def _tampered_body(sample: Sample) -> Iterator[Request]:
    request = sample.signed(sample.message(), NO_SIGNATURE)
    yield request._replace(body=request.body.removesuffix(b"}") + b',"tampered":true}')


def _tampered(header: str, change: Callable[[str], str]) -> Callable[[Sample], Iterator[Request]]:
    def requests(sample: Sample) -> Iterator[Request]:
        request = sample.signed(sample.message(), NO_SIGNATURE)
        yield request._replace(headers={**request.headers, header: change(request.headers[header])})

    return requests


def _without(header: str) -> Callable[[Sample], Iterator[Request]]:
    def requests(sample: Sample) -> Iterator[Request]:
        request = sample.signed(sample.message(), NO_SIGNATURE)
        yield request._replace(headers={name: value for name, value in request.headers.items() if name != header})

    return requests


def _late(late_s: int) -> Callable[[Sample], Iterator[Request]]:
    def requests(sample: Sample) -> Iterator[Request]:
        yield sample.signed(sample.message(), NO_SIGNATURE, late_s=late_s)

    return requests


def _wrong_secret(sample: Sample) -> Iterator[Request]:
    yield sample.signed(sample.message(), NO_SIGNATURE, secret="not " + sample.secret)


def _body(body: bytes) -> Callable[[Sample], Iterator[Request]]:
    def requests(sample: Sample) -> Iterator[Request]:
        yield sample.signed(sample.message()._replace(body=body), NO_TICKET)

    return requests


def _no_json_of_a_stranger(sample: Sample) -> Iterator[Request]:
    yield sample.signed(sample.message()._replace(body=b"{"), NO_SIGNATURE, secret="not " + sample.secret)


def _unknown_type(sample: Sample) -> Iterator[Request]:
    message = sample.message()
    event = {**json.loads(message.body), "type": "ticket.unheard-of"}
    yield sample.signed(message._replace(body=canonical(event)), NO_TICKET)


def _makes_no_ticket(answers: Sequence[Answered]) -> str | None:
    [answer] = answers
    made = answer.verdict.provider_ticket_id
    is_ticket = made is not None and made != answer.request.headers["Idempotency-Key"]
    return f"it names a ticket, {made}" if is_ticket else None


def _is_one_ticket(answers: Sequence[Answered]) -> str | None:
    first, second = (answer.verdict.provider_ticket_id for answer in answers)
    return None if first == second else f"two tickets, {first} and {second}"


def _are_two_tickets(answers: Sequence[Answered]) -> str | None:
    first, second = (answer.verdict.provider_ticket_id for answer in answers)
    return f"one ticket for both, {first}" if first is not None and first == second else None


_NEVER_WITHOUT: Final = "answer 401 with the code WEBHOOK_SIGNATURE_INVALID where one of the three headers is missing"
_ALL_THREE: Final = "the signature covers timestamp, nonce and raw body: recompute it over what came, all three of them"

#: In the order in which a receiver is written.
CASES: Final[tuple[Case, ...]] = (
    Case("delivery", "a signed ticket", _delivery, "accept it with any 2xx"),
    Case("ping", "a test event", _ping, "answer 2xx to the type target.ping, and make no ticket of it", _makes_no_ticket),
    Case(
        "spelling",
        "a ticket whose JSON no library would write so",
        _other_spelling,
        "verify the raw bytes, before anything parses them",
    ),
    Case("wrong-secret", "a ticket signed with another secret", _wrong_secret, "compare the signature, in constant time"),
    Case("tampered-body", "a body changed after signing", _tampered_body, _ALL_THREE),
    Case(
        "tampered-timestamp",
        "a timestamp changed after signing",
        _tampered(TIMESTAMP_HEADER, lambda timestamp: str(int(timestamp) + 1)),
        _ALL_THREE,
    ),
    Case("tampered-nonce", "a nonce changed after signing", _tampered(NONCE_HEADER, lambda _: new_nonce()), _ALL_THREE),
    Case("no-signature", "a ticket without a signature", _without(SIGNATURE_HEADER), _NEVER_WITHOUT),
    Case("no-timestamp", "a ticket without a timestamp", _without(TIMESTAMP_HEADER), _NEVER_WITHOUT),
    Case("no-nonce", "a ticket without a nonce", _without(NONCE_HEADER), _NEVER_WITHOUT),
    Case(
        "no-prefix",
        "a signature without sha256= in front",
        _tampered(SIGNATURE_HEADER, lambda signature: signature.removeprefix("sha256=")),
        "compare the whole header with `sha256=` and the hex digits",
    ),
    Case("stale", f"a ticket signed {OFF_S} s ago", _late(OFF_S), f"refuse timestamps over {DEFAULT_TOLERANCE_S} s old"),
    Case(
        "future",
        f"a ticket signed {OFF_S} s from now",
        _late(-OFF_S),
        f"refuse timestamps over {DEFAULT_TOLERANCE_S} s ahead",
    ),
    Case(
        "replayed-nonce",
        "the same request twice",
        _replayed,
        f"remember each nonce for {2 * DEFAULT_TOLERANCE_S} s, and refuse one that you have seen",
    ),
    Case(
        "forged-first",
        "a forged request, then the true one with its nonce",
        _forged_before,
        "remember nonces of signed requests alone: a forger must not use one up",
    ),
    Case(
        "repeat",
        "a ticket again, with the same Idempotency-Key",
        _repeat,
        "look the Idempotency-Key up, and answer a known one with the ticket that it has",
        _is_one_ticket,
    ),
    Case(
        "two-tickets",
        "two tickets with a key each",
        _two_tickets,
        "a ticket is known again by its Idempotency-Key, not by what it says",
        _are_two_tickets,
    ),
    Case("not-json", "signed bytes that are no JSON", _body(b'{"type": "ticket.exp'), f"answer {NO_TICKET}"),
    Case("no-object", "signed JSON that is no object", _body(b"[]"), f"answer {NO_TICKET}"),
    Case("empty", "a signed empty body", _body(b""), f"answer {NO_TICKET}"),
    Case(
        "unknown-type",
        "a signed event of a type that is none",
        _unknown_type,
        f"answer {NO_TICKET}; a 2xx says that it is dealt with",
    ),
    Case(
        "forged-not-json",
        "bytes that are no JSON, signed with another secret",
        _no_json_of_a_stranger,
        "verify before you parse: strangers hear of nothing else",
    ),
)
NAMES: Final = tuple(case.name for case in CASES)
