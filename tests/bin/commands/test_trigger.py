"""`trigger` sends a sample ticket to real receivers, and evaluates the response as a worker does.

A correct receiver passes every case; each mistake of an incorrect receiver fails its own cases.
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
from bin.receiver_kit.cases import EVENT_NAMES, NAMES
from bin.receiver_kit.receiver import FaultInjection, LocalReceiver, Received
from runtime.clock import utc_now
from schemas.base.strict_json import canonical
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.processes.terminals import Terminal
from worker.http.signing import DEFAULT_TOLERANCE_S, NONCE_HEADER, SIGNATURE_HEADER, SignatureVerdict, verify

SECRET: Final = "a secret for tests: é"


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[LocalReceiver, list[Received]]]]:
    """Return a function that starts receivers, which record requests. All are stopped after the test."""
    started: list[LocalReceiver] = []

    def starter(*failures: int, retry_after_s: int | None = None) -> tuple[LocalReceiver, list[Received]]:
        got: list[Received] = []
        faults = FaultInjection(failures, retry_after_s, 0.0)
        receiver = LocalReceiver([SECRET.encode()], utc_now, faults=faults, on_received=got.append).start()
        started.append(receiver)
        return receiver, got

    yield starter
    for receiver in started:
        receiver.stop()


@pytest.fixture
def trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `riskrelay trigger` in a folder without an installation, with settings as keywords."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, secret: str | None = SECRET, **env: str) -> Result:
        return CliRunner().invoke(riskrelay, ["trigger", *words], env={"WEBHOOK_SECRET": secret or "", **env})

    return run


def output(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_the_receiver_gets_a_ticket_with_a_valid_signature(
    start: Callable[..., Any], trigger: Callable[..., Result]
) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--json")
    assert result.exit_code == 0, result.output
    [received] = got
    assert received.verdict is SignatureVerdict.OK
    assert (received.kind, received.title) == ("ticket.export", "Image without alternative text on /")
    record = output(result)
    assert (record["outcome"], record["response_status"], record["retry_in_s"]) == ("delivered", 200, None)
    assert record["idempotency_key"] == received.idempotency_key
    assert record["provider_ticket_id"]
    assert SECRET not in result.output


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST"])
def test_a_receiver_on_this_host_may_be_named_localhost(
    name: str, start: Callable[..., Any], trigger: Callable[..., Result]
) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url.replace("127.0.0.1", name))
    assert result.exit_code == 0, result.output
    assert [received.verdict for received in got] == [SignatureVerdict.OK]


def test_localhost_is_replaced_only_in_the_host_of_a_url(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, _ = start()
    url = f"{receiver.url}?next=http://localhost/"
    result = trigger("--to", url, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["url"] == url


def test_overrides_set_fields_by_path(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
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
def test_an_invalid_path_is_wrong_usage_and_sends_nothing(
    start: Callable[..., Any], trigger: Callable[..., Result], override: str
) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--override", override)
    assert (result.exit_code, got) == (2, [])
    assert "--override" in result.output


#: The receiver's status and Retry-After, and what a worker would do.
FAILURES: Final = [
    (503, 40, "retryable", None, 40),
    (429, 9, "retryable", "WEBHOOK_RATE_LIMITED", 9),
    (422, None, "rejected", None, None),
]


@pytest.mark.parametrize(("status", "retry_after_s", "outcome", "code", "at_least_s"), FAILURES)
def test_the_outcome_that_a_worker_would_record_is_printed(
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
    record = output(result)
    assert result.exit_code == 1
    assert (record["outcome"], record["response_status"]) == (outcome, status)
    assert code is None or record["error_code"] == code
    assert (record["retry_in_s"] is None) if at_least_s is None else (record["retry_in_s"] >= at_least_s)


def test_another_secret_is_rejected_by_the_receiver(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--json", secret="another-secret")
    assert result.exit_code == 1
    assert got[0].verdict is SignatureVerdict.SIGNATURE_WRONG
    assert output(result)["error_code"] == "WEBHOOK_SIGNATURE_INVALID"


def test_without_a_secret_nothing_is_sent(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, secret=None)
    assert (result.exit_code, got) == (1, [])
    assert "WEBHOOK_SECRET" in result.output


def test_the_url_policy_of_deliveries_applies(trigger: Callable[..., Result]) -> None:
    result = trigger("--to", "https://169.254.169.254/", "--json")
    assert result.exit_code == 1
    assert output(result)["outcome"] == "refused"


def test_an_unreachable_receiver_is_retryable(trigger: Callable[..., Result], start: Callable[..., Any]) -> None:
    receiver, _ = start()
    receiver.stop()
    result = trigger("--to", receiver.url, "--json")
    assert (result.exit_code, output(result)["outcome"]) == (1, "retryable")
    assert "The receiver refused the connection" in trigger("--to", receiver.url).stdout


def test_a_secret_typed_on_a_terminal_is_not_echoed(start: Callable[..., Any], tmp_path: Path) -> None:
    receiver, got = start()
    terminal = Terminal(tmp_path, "trigger", "--secret-stdin", "--to", receiver.url)
    terminal.read_until("Secret: ")
    terminal.type(SECRET + "\n")
    shown = terminal.read_until("provider_ticket_id  DEV-1")
    assert terminal.end() == 0
    assert SECRET not in shown
    assert got[0].verdict is SignatureVerdict.OK


@pytest.mark.parametrize(
    ("event", "effect"), [("updated", "noted"), ("fixed", "closed"), ("reopened", "open"), ("redact", "erased")]
)
def test_an_event_changes_a_previously_sent_ticket(
    start: Callable[..., Any], trigger: Callable[..., Result], event: str, effect: str
) -> None:
    receiver, got = start()
    export_id = output(trigger("--to", receiver.url, "--json"))["idempotency_key"]
    result = trigger("--to", receiver.url, "--event", event, "--ticket", export_id, "--json")
    record = output(result)
    assert (result.exit_code, record["outcome"], record["answer"]) == (0, "delivered", f'{{"status": "{effect}"}}')
    sent = json.loads(got[1].body)
    assert (sent["type"], sent["export"]["id"], sent["version"]) == (f"ticket.{event}", export_id, 1)
    assert (got[1].verdict, got[1].idempotency_key) == (SignatureVerdict.OK, sent["id"])
    assert sent["id"].startswith("evt_")
    assert (sent["ticket"]["title"] is None) is (event == "redact")
    assert {place["state"] for place in sent["change"]["places"]} <= {"open", "fixed"}


def test_an_event_with_an_override_is_sent_and_ignored_for_an_unknown_ticket(
    start: Callable[..., Any], trigger: Callable[..., Result]
) -> None:
    receiver, got = start()
    result = trigger("--to", receiver.url, "--event", "fixed", "--override", "change.places_fixed:42", "--json")
    assert (result.exit_code, output(result)["answer"]) == (0, '{"status": "ignored"}')
    assert got[0].change == {"places_added": 0, "places_fixed": 42, "places_open": 0}


# ── cases ──────────────────────────────────────────────────────────────────


class IncorrectReceiver:
    """A receiver that is correct except for one mistake; `behave` serves one connection."""

    def __init__(self, mistake: str) -> None:
        self._mistake = mistake
        self._nonces: set[str] = set()
        self._tickets: defaultdict[str, str] = defaultdict(lambda: f"T-{len(self._tickets) + 1}")

    def behave(self, peer: Peer) -> None:
        while request := peer.read():
            status, content = self._answer(request)
            peer.answer(status, json.dumps(content).encode())

    def _answer(self, request: ReceivedRequest) -> tuple[int, dict[str, str]]:
        if self._mistake == "parses first" and _event(request.body) is None:
            return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}
        if not self._is_genuine(request):
            return 401, {} if self._mistake == "no codes" else {"code": "WEBHOOK_SIGNATURE_INVALID"}
        event = _event(request.body)
        if event is None:
            return (200, {}) if self._mistake == "takes anything" else (422, {"code": "WEBHOOK_VALIDATION_FAILED"})
        if event["type"] == "target.ping" and self._mistake != "tickets of pings":
            return 204, {}
        if event["type"] not in ("ticket.export", "target.ping") and self._mistake != "takes any type":
            return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}
        key = request.headers["idempotency-key"]
        if self._mistake == "two tickets":
            key += str(time.monotonic_ns())
        return 200, {"id": "T-0" if self._mistake == "one ticket" else self._tickets[key]}

    def _is_genuine(self, request: ReceivedRequest) -> bool:
        headers, body, mistake = request.headers, request.body, self._mistake
        if mistake == "no signature" and SIGNATURE_HEADER.lower() not in headers:
            return True
        if mistake == "burns nonces" and self._seen(headers.get(NONCE_HEADER.lower(), "")):
            return False
        if mistake == "re-serializes":
            event = _event(body)
            body = body if event is None else canonical(event)
        if mistake == "no prefix":
            headers[SIGNATURE_HEADER.lower()] = "sha256=" + headers.get(SIGNATURE_HEADER.lower(), "").removeprefix("sha256=")
        seen = (lambda _: False) if mistake in ("no nonces", "burns nonces") else self._seen
        tolerance_s = 10**9 if mistake == "no clock" else DEFAULT_TOLERANCE_S
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


#: The cases without an invalid signature.
ACCEPTED_OR_INVALID: Final = {
    *("delivery", "ping", "spelling", "repeat", "two-tickets"),
    *("not-json", "no-object", "empty", "unknown-type"),
}
#: A mistake, and the cases that detect it.
MISTAKES: Final = [
    ("none", set()),
    ("no nonces", {"replayed-nonce"}),
    ("burns nonces", {"forged-first"}),
    ("re-serializes", {"spelling"}),
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


@pytest.mark.parametrize(("mistake", "found_by"), MISTAKES, ids=[mistake for mistake, _ in MISTAKES])
def test_each_receiver_mistake_is_detected_by_its_cases_only(
    trigger: Callable[..., Result], mistake: str, found_by: set[str]
) -> None:
    with LoopbackServer(IncorrectReceiver(mistake).behave) as server:
        result = trigger("--all", "--to", server.url(), "--json")
    record = output(result)
    assert [case["case"] for case in record["cases"]] == list(NAMES)
    assert {case["case"] for case in record["cases"] if not case["is_right"]} == found_by
    assert (record["right"], record["wrong"]) == (len(NAMES) - len(found_by), len(found_by))
    assert result.exit_code == (1 if found_by else 0)
    assert all((case["problem"] is None) is case["is_right"] is (case["remedy"] is None) for case in record["cases"])


class EventReceiver(IncorrectReceiver):
    """A receiver of tickets and events that is correct except for one mistake with events."""

    def _answer(self, request: ReceivedRequest) -> tuple[int, dict[str, str]]:
        mistake, event = self._mistake, _event(request.body) or {}
        name, key = str(event.get("type")).removeprefix("ticket."), request.headers["idempotency-key"]
        if name not in ("updated", "fixed", "reopened", "redact"):
            return super()._answer(request)
        if not self._is_genuine(request) and not (mistake == "trusts redact" and name == "redact"):
            return 401, {"code": "WEBHOOK_SIGNATURE_INVALID"}
        if mistake == "knows no events" or (mistake == "needs a title" and event["ticket"]["title"] is None):
            return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}
        if mistake != "takes incomplete events" and not ("change" in event and "export" in event):
            return 422, {"code": "WEBHOOK_VALIDATION_FAILED"}
        if mistake == "tickets of events":
            return 200, {"id": self._tickets[key]}
        if mistake == "rejects repeats" and self._seen(key):
            return 409, {}
        export_id = event.get("export", {}).get("id")
        if export_id not in self._tickets and mistake == "retries unknown tickets":
            return 404, {}
        if name == "redact" and mistake == "forgets erased tickets":
            self._tickets[f"erased {export_id}"] = self._tickets.pop(export_id)
        return 200, {"id": self._tickets[export_id]} if export_id in self._tickets else {}


EVENT_MISTAKES: Final = [
    ("none", set()),
    ("knows no events", {*EVENT_NAMES} - {"event-forged", "event-incomplete"}),
    ("tickets of events", {*EVENT_NAMES} - {"event-redact", "event-forged", "event-incomplete"}),
    ("needs a title", {"event-redact"}),
    ("forgets erased tickets", {"event-redact"}),
    ("rejects repeats", {"event-repeat"}),
    ("retries unknown tickets", {"event-unknown-ticket"}),
    ("trusts redact", {"event-forged"}),
    ("takes incomplete events", {"event-incomplete"}),
]


@pytest.mark.parametrize(("mistake", "found_by"), EVENT_MISTAKES, ids=[mistake for mistake, _ in EVENT_MISTAKES])
def test_each_mistake_with_events_is_detected_by_its_cases_only(
    trigger: Callable[..., Result], mistake: str, found_by: set[str]
) -> None:
    with LoopbackServer(EventReceiver(mistake).behave) as server:
        record = output(trigger("--all", "--events", "--to", server.url(), "--json"))
    assert [case["case"] for case in record["cases"]] == [*NAMES, *EVENT_NAMES]
    assert {case["case"] for case in record["cases"] if not case["is_right"]} == found_by


@pytest.mark.parametrize(
    ("options", "names"), [(("--all",), NAMES), (("--events",), EVENT_NAMES), (("--all", "--events"), NAMES + EVENT_NAMES)]
)
def test_the_receiver_of_listen_passes_every_case(
    start: Callable[..., Any], trigger: Callable[..., Result], options: tuple[str, ...], names: tuple[str, ...]
) -> None:
    receiver, _ = start()
    result = trigger(*options, "--to", receiver.url)
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[:-1]] == [["passed", name] for name in names]
    assert result.stdout.splitlines()[-1] == f"{len(names)} of {len(names)} passed at {receiver.url}"


def test_a_failed_case_prints_the_expected_response_and_the_fix(trigger: Callable[..., Result]) -> None:
    with LoopbackServer(IncorrectReceiver("no clock").behave) as server:
        result = trigger("--case", "stale", "--case", "delivery", "--to", server.url())
    passed, failed, fix, total = result.stdout.splitlines()
    assert passed.split() == ["passed", "delivery", "200", "T-1"]
    assert " ".join(failed.split()) == "failed stale 200 T-2; expected 401 WEBHOOK_SIGNATURE_INVALID"
    assert "a ticket signed 400 s ago: reject timestamps more than 300 s old" in fix
    assert total.startswith("1 of 2 passed")
    assert result.exit_code == 1


def test_a_case_stops_at_the_first_wrong_response(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, got = start(500)
    [case] = output(trigger("--case", "replayed-nonce", "--to", receiver.url, "--json"))["cases"]
    assert case["problem"].endswith("expected 2xx")
    assert len(got) == 1


def test_the_fix_for_a_rate_limit_is_to_disable_it(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, _ = start(429, retry_after_s=9)
    result = trigger("--case", "delivery", "--to", receiver.url)
    assert "disable its rate limit for this test" in result.stdout


def test_no_response_is_reported_in_one_line(start: Callable[..., Any], trigger: Callable[..., Result]) -> None:
    receiver, _ = start()
    receiver.stop()
    result = trigger("--all", "--to", receiver.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"No response from {receiver.url}: connect_refused" in result.stderr
    refused = trigger("--all", "--to", "http://10.0.0.1/")
    assert "TARGET_ALLOWED_NETWORKS" in refused.stderr


# ── replays ────────────────────────────────────────────────────────────────


@pytest.fixture
def saved(
    start: Callable[..., Any], trigger: Callable[..., Result], tmp_path: Path
) -> tuple[LocalReceiver, list[Received], Path]:
    """A receiver with one delivery, and the file in which it is saved."""
    receiver, got = start()
    assert trigger("--to", receiver.url, "--override", "ticket.title:Größe").exit_code == 0
    return receiver, got, saved_requests.save(tmp_path / "kept", got[0])


def test_a_replay_is_the_same_request_and_its_nonce_is_rejected(saved: Any, trigger: Callable[..., Result]) -> None:
    receiver, got, path = saved
    result = trigger("--replay", str(path), "--to", receiver.url, "--json", secret=None)
    assert (result.exit_code, output(result)["error_code"]) == (1, "WEBHOOK_SIGNATURE_INVALID")
    first, again = got
    assert (again.headers, again.body) == (first.headers, first.body)
    assert again.verdict is SignatureVerdict.NONCE_REPLAYED


def test_a_replay_with_a_new_signature_returns_the_same_ticket(saved: Any, trigger: Callable[..., Result]) -> None:
    receiver, got, path = saved
    result = trigger("--replay", str(path), "--resign", "--to", receiver.url, "--json")
    assert (result.exit_code, output(result)["provider_ticket_id"]) == (0, "DEV-1")
    assert output(result)["idempotency_key"] == got[0].idempotency_key
    assert got[1].body == got[0].body
    assert got[1].repeat


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "request.http: No such file"),
        (b"", "is not a saved request"),
        (b"{}", "is not a saved request"),
        (b"GET / HTTP/1.1\r\n\r\n", "is not a saved request"),
        (b"POST / HTTP/1.1\r\nA: 1\r\na: 2\r\n\r\n{}", "has the header a twice"),
        (b"POST / HTTP/1.1\r\n" + b"A: 1\r\n" * 200 + b"\r\n", "too long or too many"),
    ],
)
def test_a_file_without_a_request_is_reported_in_one_line(
    trigger: Callable[..., Result], tmp_path: Path, content: bytes | None, error: str
) -> None:
    path = tmp_path / "request.http"
    if content is not None:
        path.write_bytes(content)
    result = trigger("--replay", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert error in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--all", "--replay", "x"),
        ("--case", "stale", "--override", "version:7"),
        ("--resign",),
        ("--all", "--event", "fixed"),
        ("--events", "--override", "version:7"),
        ("--ticket", "exp_1"),
        ("--event", "export"),
        ("--case", "none"),
    ],
)
def test_conflicting_options_are_wrong_usage(trigger: Callable[..., Result], words: tuple[str, ...]) -> None:
    assert trigger(*words).exit_code == 2
