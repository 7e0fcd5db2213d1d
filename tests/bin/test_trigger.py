"""A sample ticket, sent to real receivers: signed as deliveries are, changed by path, judged by the worker's own table."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from bin.__main__ import riskrelay
from bin.receiver import Misbehaviour, Received, Receiver
from storage.clock import utc_now
from worker.signing import SignatureVerdict

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
