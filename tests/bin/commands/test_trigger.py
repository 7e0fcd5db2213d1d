"""A sample ticket, sent to real receivers: signed as deliveries are, changed by path, judged by the worker's own table.

And what tells a right receiver from a wrong one: right ones pass every case, and each flaw fails the cases that are for it.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from bin.__main__ import riskrelay
from bin.receiver_kit import saved_requests
from bin.receiver_kit.cases import NAMES
from bin.receiver_kit.receiver import Misbehaviour, Received, Receiver
from runtime.clock import utc_now
from schemas.base.strict_json import canonical
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.terminals import Terminal
from worker.http.signing import DEFAULT_TOLERANCE_S, NONCE_HEADER, SIGNATURE_HEADER, SignatureVerdict, verify

SECRET: Final = "a secret for tests: é"


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[Receiver, list[Received]]]]:
    """Start receivers that keep what they got; all are stopped after the test."""
    started: list[Receiver] = []

    def starter(*failures: int, retry_after_s: int | None = None) -> tuple[Receiver, list[Received]]:
        got: list[Received] = []
        misbehaviour = Misbehaviour(failures, retry_after_s, 0.0)
        receiver = Receiver([SECRET.encode()], utc_now, misbehaviour=misbehaviour, on_received=got.append).start()
        started.append(receiver)
        return receiver, got

    yield starter
    for receiver in started:
        receiver.stop()


@pytest.fixture
def trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Type `riskrelay trigger` in a folder without an installation; settings by name."""
    monkeypatch.chdir(tmp_path)

    def typed(*words: str, secret: str | None = SECRET, **env: str) -> Result:
        return CliRunner().invoke(riskrelay, ["trigger", *words], env={"WEBHOOK_SECRET": secret or "", **env})

    return typed


def told(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_a_receiver_gets_a_ticket_that_verifies(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--json")
    assert result.exit_code == 0, result.output
    [received] = got
    assert received.verdict is SignatureVerdict.OK
    assert (received.kind, received.title) == ("ticket.export", "Image without alternative text on /")
    record = told(result)
    assert (record["outcome"], record["response_status"], record["retry_in_s"]) == ("delivered", 200, None)
    assert record["idempotency_key"] == received.idempotency_key
    assert record["provider_ticket_id"]
    assert SECRET not in result.output


def test_members_are_changed_by_path(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start()
    overrides = ("ticket.title:Hello: you", "ticket.evidence.extra:[1, 2]", "version:7")
    result = trigger("--to", receiver.url, *(word for each in overrides for word in ("--override", each)))
    assert result.exit_code == 0, result.output
    body = json.loads(got[0].body)
    assert body["ticket"]["title"] == "Hello: you"
    assert body["ticket"]["evidence"]["extra"] == [1, 2]
    assert body["version"] == 7
    assert got[0].verdict is SignatureVerdict.OK


@pytest.mark.parametrize("override", ["ticket.title", ":x", "nothing.there:1", "ticket.title.deeper:1", "ticket.:1"])
def test_a_path_that_leads_nowhere_is_wrong_usage_and_sends_nothing(
    start: Callable[..., Any], trigger: Callable[..., Result], override: str
) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--override", override)
    assert (result.exit_code, got) == (2, [])
    assert "--override" in result.output


#: What a receiver answers, what it asks for, and what a worker would do.
FAILURES: Final = [
    (503, 40, "retryable", None, 40),
    (429, 9, "retryable", "WEBHOOK_RATE_LIMITED", 9),
    (422, None, "rejected", None, None),
]


@pytest.mark.parametrize(("status", "retry_after_s", "outcome", "code", "at_least_s"), FAILURES)
def test_what_a_worker_would_do_with_the_answer_is_told(
    start: Callable[..., Any],
    trigger: Callable[..., Result],
    status: int,
    retry_after_s: int | None,
    outcome: str,
    code: str | None,
    at_least_s: int | None,
) -> None:
    receiver, _ = start(status, retry_after_s=retry_after_s)
    result = trigger("--to", receiver.url, "--json")
    record = told(result)
    assert result.exit_code == 1
    assert (record["outcome"], record["response_status"]) == (outcome, status)
    assert code is None or record["error_code"] == code
    assert (record["retry_in_s"] is None) if at_least_s is None else (record["retry_in_s"] >= at_least_s)


def test_another_secret_is_refused_by_the_receiver(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--json", secret="another-secret")
    assert result.exit_code == 1
    assert got[0].verdict is SignatureVerdict.SIGNATURE_WRONG
    assert told(result)["error_code"] == "WEBHOOK_SIGNATURE_INVALID"


def test_without_a_secret_nothing_is_sent(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, secret=None)
    assert (result.exit_code, got) == (1, [])
    assert "WEBHOOK_SECRET" in result.output


def test_what_deliveries_may_not_reach_is_not_reached_by_hand_either(trigger: Callable[..., Result]) -> None:
    result = trigger("--to", "https://169.254.169.254/", "--json")
    assert result.exit_code == 1
    assert told(result)["outcome"] == "refused"


def test_a_receiver_that_is_not_there_is_told(trigger: Callable[..., Result], start: Callable[..., Any]) -> None:
    receiver, _ = start()
    receiver.stop()
    result = trigger("--to", receiver.url, "--json")
    assert (result.exit_code, told(result)["outcome"]) == (1, "retryable")


def test_a_secret_is_typed_unseen_on_a_terminal(start: Callable[..., Any], tmp_path: Path) -> None:
    receiver, got = start()
    terminal = Terminal(tmp_path, "trigger", "--secret-stdin", "--to", receiver.url)
    terminal.read_until("Secret: ")
    terminal.type(SECRET + "\n")
    shown = terminal.read_until("provider_ticket_id  DEV-1")
    assert terminal.end() == 0
    assert SECRET not in shown
    assert got[0].verdict is SignatureVerdict.OK


# ── what a receiver has to get right ───────────────────────────────────────


class Flawed:
    """A receiver that is right but for one flaw; `behave` is what a server does with it."""

    def __init__(self, flaw: str) -> None:
        self._flaw = flaw
        self._nonces: set[str] = set()
        self._tickets: defaultdict[str, str] = defaultdict(lambda: f"T-{len(self._tickets) + 1}")

    def behave(self, peer: Peer) -> None:
        while request := peer.read():
            status, answer = self._answer(request)
            peer.answer(status, json.dumps(answer).encode())

    def _answer(self, request: ReceivedRequest) -> tuple[int, dict[str, str]]:
        if self._flaw == "parses first" and _event(request.body) is None:
            return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}
        if not self._is_genuine(request):
            return 401, {} if self._flaw == "no codes" else {"code": "WEBHOOK_SIGNATURE_INVALID"}
        event = _event(request.body)
        if event is None:
            return (200, {}) if self._flaw == "takes anything" else (422, {"code": "WEBHOOK_VALIDATION_FAILED"})
        if event["type"] == "target.ping" and self._flaw != "tickets of pings":
            return 204, {}
        if event["type"] not in ("ticket.export", "target.ping") and self._flaw != "takes any type":
            return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}
        key = request.headers["idempotency-key"]
        if self._flaw == "two tickets":
            key += str(time.monotonic_ns())
        return 200, {"id": "T-0" if self._flaw == "one ticket" else self._tickets[key]}

    def _is_genuine(self, request: ReceivedRequest) -> bool:
        headers, body, flaw = request.headers, request.body, self._flaw
        if flaw == "no signature" and SIGNATURE_HEADER.lower() not in headers:
            return True
        if flaw == "burns nonces" and self._seen(headers.get(NONCE_HEADER.lower(), "")):
            return False
        if flaw == "re-serialises":
            event = _event(body)
            body = body if event is None else canonical(event)
        if flaw == "no prefix":
            headers[SIGNATURE_HEADER.lower()] = "sha256=" + headers.get(SIGNATURE_HEADER.lower(), "").removeprefix("sha256=")
        seen = (lambda _: False) if flaw in ("no nonces", "burns nonces") else self._seen
        tolerance_s = 10**9 if flaw == "no clock" else DEFAULT_TOLERANCE_S
        return verify(SECRET.encode(), headers, body, int(time.time()), seen, tolerance_s).ok

    def _seen(self, nonce: str) -> bool:
        is_known = nonce in self._nonces
        self._nonces.add(nonce)
        return is_known


def _event(body: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(body)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


#: The cases in which nothing is to be refused by its signature.
ACCEPTED_OR_INVALID: Final = {
    *("delivery", "ping", "spelling", "repeat", "two-tickets"),
    *("not-json", "no-object", "empty", "unknown-type"),
}
#: A flaw, and the cases that find it.
FLAWS: Final = [
    ("none", set()),
    ("no nonces", {"replayed-nonce"}),
    ("burns nonces", {"forged-first"}),
    ("re-serialises", {"spelling"}),
    ("two tickets", {"repeat"}),
    ("one ticket", {"two-tickets"}),
    ("no clock", {"stale", "future"}),
    ("no signature", {"no-signature"}),
    ("no prefix", {"no-prefix"}),
    ("tickets of pings", {"ping"}),
    ("takes anything", {"not-json", "no-object", "empty"}),
    ("takes any type", {"unknown-type"}),
    ("parses first", {"forged-not-json"}),
    ("no codes", {*NAMES} - ACCEPTED_OR_INVALID),
]


@pytest.mark.parametrize(("flaw", "found_by"), FLAWS, ids=[flaw for flaw, _ in FLAWS])
def test_each_flaw_is_found_by_the_cases_that_are_for_it(
    trigger: Callable[..., Result], flaw: str, found_by: set[str]
) -> None:
    with LoopbackServer(Flawed(flaw).behave) as server:
        result = trigger("--all", "--to", server.url(), "--json")
    record = told(result)
    assert [case["case"] for case in record["cases"]] == list(NAMES)
    assert {case["case"] for case in record["cases"] if not case["is_right"]} == found_by
    assert (record["right"], record["wrong"]) == (len(NAMES) - len(found_by), len(found_by))
    assert result.exit_code == (1 if found_by else 0)
    assert all((case["problem"] is None) is case["is_right"] is (case["remedy"] is None) for case in record["cases"])


def test_the_receiver_of_listen_gets_everything_right(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, _ = start()
    result = trigger("--all", "--to", receiver.url)
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[:-1]] == [["right", name] for name in NAMES]
    assert result.stdout.splitlines()[-1] == f"{len(NAMES)} of {len(NAMES)} right at {receiver.url}"


def test_a_wrong_answer_is_told_with_the_right_one_and_what_to_change(trigger: Callable[..., Result]) -> None:
    with LoopbackServer(Flawed("no clock").behave) as server:
        result = trigger("--case", "stale", "--case", "delivery", "--to", server.url())
    right, wrong, remedy, total = result.stdout.splitlines()
    assert right.split() == ["right", "delivery", "200", "T-1"]
    assert " ".join(wrong.split()) == "wrong stale 200 T-2; right is 401 WEBHOOK_SIGNATURE_INVALID"
    assert "a ticket signed 400 s ago: refuse timestamps over 300 s old" in remedy
    assert total.startswith("1 of 2 right")
    assert result.exit_code == 1


def test_a_case_whose_first_request_is_answered_wrong_ends_there(
    start: Callable[..., Any], trigger: Callable[..., Result]
) -> None:
    receiver, got = start(500)
    [case] = told(trigger("--case", "replayed-nonce", "--to", receiver.url, "--json"))["cases"]
    assert case["problem"].endswith("right is 2xx")
    assert len(got) == 1


def test_a_receiver_that_asks_to_wait_is_told_so(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, _ = start(429, retry_after_s=9)
    result = trigger("--case", "delivery", "--to", receiver.url)
    assert "switch its rate limit off for this" in result.stdout


def test_where_nobody_answers_one_line_tells_it(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, _ = start()
    receiver.stop()
    result = trigger("--all", "--to", receiver.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{receiver.url} gave no answer: connect_refused" in result.stderr
    refused = trigger("--all", "--to", "http://10.0.0.1/")
    assert "TARGET_ALLOWED_NETWORKS" in refused.stderr


# ── replays ────────────────────────────────────────────────────────────────


@pytest.fixture
def saved(
    start: Callable[..., Any], trigger: Callable[..., Result], tmp_path: Path
) -> tuple[Receiver, list[Received], Path]:
    """A receiver that has had one delivery, and the file in which it was kept."""
    receiver, got = start()
    assert trigger("--to", receiver.url, "--override", "ticket.title:Größe").exit_code == 0
    return receiver, got, saved_requests.save(tmp_path / "kept", got[0])


def test_a_replay_is_the_same_request_and_its_nonce_is_refused(saved: Any, trigger: Callable[..., Result]) -> None:
    receiver, got, path = saved
    result = trigger("--replay", str(path), "--to", receiver.url, "--json", secret=None)
    assert (result.exit_code, told(result)["error_code"]) == (1, "WEBHOOK_SIGNATURE_INVALID")
    first, again = got
    assert (again.headers, again.body) == (first.headers, first.body)
    assert again.verdict is SignatureVerdict.NONCE_REPLAYED


def test_a_replay_that_is_signed_anew_is_the_same_ticket(saved: Any, trigger: Callable[..., Result]) -> None:
    receiver, got, path = saved
    result = trigger("--replay", str(path), "--resign", "--to", receiver.url, "--json")
    assert (result.exit_code, told(result)["provider_ticket_id"]) == (0, "DEV-1")
    assert told(result)["idempotency_key"] == got[0].idempotency_key
    assert got[1].body == got[0].body
    assert got[1].repeat


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is no saved request"),
        (b"{}", "is no saved request"),
        (b"GET / HTTP/1.1\r\n\r\n", "is no saved request"),
        (b"POST / HTTP/1.1\r\nA: 1\r\na: 2\r\n\r\n{}", "holds a twice"),
        (b"POST / HTTP/1.1\r\n" + b"A: 1\r\n" * 200 + b"\r\n", "too long or too many"),
    ],
)
def test_a_file_that_holds_no_request_is_one_clear_line(
    trigger: Callable[..., Result], tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "request.http"
    if content is not None:
        path.write_bytes(content)
    result = trigger("--replay", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert why in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--all", "--replay", "x"),
        ("--case", "stale", "--override", "version:7"),
        ("--resign",),
        ("--case", "none"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(trigger: Callable[..., Result], words: tuple[str, ...]) -> None:
    assert trigger(*words).exit_code == 2


def test_a_secret_that_is_no_text_is_refused(trigger: Callable[..., Result], tmp_path: Path) -> None:
    result = CliRunner().invoke(riskrelay, ["trigger", "--secret-stdin"], input=b"\xff\n")
    assert (result.exit_code, "no UTF-8" in result.stderr) == (1, True)
