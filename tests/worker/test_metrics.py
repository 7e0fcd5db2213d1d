"""A worker counts each attempt that is recorded, and serves its metrics whatever clients do."""

import re
import socket
import struct
import time
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram

import worker.metrics
from runtime import metrics
from schemas.exports.delivery import Claim, CompletedAttempt, Outcome, Timings, Verdict
from schemas.exports.state_machine import Transition
from tests.support.factories import NOW, completed_attempt
from worker.metrics import DELIVERY_BUCKETS_S, LATE, OUTCOMES, Attempts, serve

ROOT = Path(__file__).resolve().parents[2]


def attempt(export_id: str, outcome: str = "delivered", took_ms: int = 0) -> CompletedAttempt:
    claim = Claim(export_id, "lease", 1, 1, "tgt_1", "https://tracker.example.com/", None, b"{}", NOW, NOW, 1)
    made = completed_attempt(claim)
    return made._replace(verdict=Verdict(Transition.DELIVER, outcome), outcome=Outcome(timings=Timings(total_ms=took_ms)))


def total(registry: CollectorRegistry, outcome: str) -> float | None:
    return registry.get_sample_value("riskrelay_attempts_total", {"outcome": outcome})


def test_attempts_are_counted_by_outcome_and_by_duration() -> None:
    registry = CollectorRegistry()
    attempts = Attempts(registry)
    made = [attempt("exp_1", took_ms=40), attempt("exp_2", "retryable", 400), attempt("exp_3", took_ms=4000)]
    attempts.count(made, {"exp_1", "exp_2", "exp_3"})

    counted = {outcome: registry.get_sample_value("riskrelay_attempts_total", {"outcome": outcome}) for outcome in OUTCOMES}
    assert counted == {**dict.fromkeys(OUTCOMES, 0.0), "delivered": 2.0, "retryable": 1.0}
    at_most = {
        bound: registry.get_sample_value("riskrelay_delivery_seconds_bucket", {"le": bound})
        for bound in ("0.05", "0.5", "5.0")
    }
    assert at_most == {"0.05": 1.0, "0.5": 2.0, "5.0": 3.0}
    assert registry.get_sample_value("riskrelay_delivery_seconds_sum") == 4.44


def test_attempts_counted_together_fill_the_same_buckets_as_single_observations() -> None:
    # On a bound, just over one, at the deadline, and over it.
    times_ms = [0, 50, 50, 51, 999, 1000, 15_000, 15_001, 60_000]
    together, one_by_one = CollectorRegistry(), CollectorRegistry()
    Attempts(together).count([attempt(f"exp_{took_ms}", took_ms=took_ms) for took_ms in times_ms], set())
    plain = Histogram("riskrelay_delivery_seconds", "As they come.", buckets=DELIVERY_BUCKETS_S, registry=one_by_one)
    for took_ms in times_ms:
        plain.observe(took_ms / 1000)

    def counted(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
        metrics = [metric for metric in registry.collect() if metric.name == "riskrelay_delivery_seconds"]
        samples = [sample for metric in metrics for sample in metric.samples if not sample.name.endswith("_created")]
        return [(sample.name, sample.labels, sample.value) for sample in samples]

    assert counted(together) == counted(one_by_one)
    assert total(together, LATE) == len(times_ms)


def test_a_response_after_its_lease_is_late_whatever_its_status() -> None:
    registry = CollectorRegistry()
    Attempts(registry).count([attempt("exp_1"), attempt("exp_2", "rejected")], {"exp_1"})

    counted = [
        registry.get_sample_value("riskrelay_attempts_total", {"outcome": each}) for each in ("delivered", "rejected")
    ]
    assert counted == [1.0, 0.0]
    assert registry.get_sample_value("riskrelay_attempts_total", {"outcome": LATE}) == 1.0


def test_every_decided_outcome_is_counted() -> None:
    source = (ROOT / "worker" / "delivery" / "outcomes.py").read_text()
    decided = re.findall(r'Verdict\(\s*Transition\.\w+,\s*"?(\w+)"?', source)
    assert {outcome.lower() for outcome in decided} == {*OUTCOMES} - {LATE}


def test_an_unknown_outcome_causes_no_error() -> None:
    registry = CollectorRegistry()
    Attempts(registry).count([attempt("exp_1", "of tomorrow")], {"exp_1"})
    assert registry.get_sample_value("riskrelay_delivery_seconds_count") == 1.0


# --- the metrics server --------------------------------------------------------


@pytest.fixture
def port(tmp_path: Path) -> int:
    return serve("127.0.0.1:0", tmp_path)


def asked(port: int, path: str = "/metrics", method: str = "GET") -> HTTPResponse:
    client = HTTPConnection("127.0.0.1", port, timeout=20)
    client.request(method, path)
    return client.getresponse()


def test_the_server_shows_metrics(port: int) -> None:
    answer = asked(port)
    assert (answer.status, answer.headers["Content-Type"]) == (200, metrics.CONTENT_TYPE)
    assert answer.read().startswith(b"# HELP riskrelay_build_info ")


def test_an_idle_connection_blocks_no_scrape(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as idle:
        idle.sendall(b"GET /metr")
        assert asked(port).status == 200


def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.metrics, "_REQUEST_TIMEOUT_S", 0.1)
    with socket.create_connection(("127.0.0.1", serve("127.0.0.1:0", tmp_path)), timeout=20) as idle:
        idle.sendall(b"GET /metr")
        assert idle.recv(1) == b""


def test_a_client_that_disconnects_leaves_no_stack_trace_in_the_log(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.1)
    time.sleep(0.1)
    assert asked(port).status == 200
    assert capfd.readouterr().err == ""


def test_an_address_in_use_is_an_error(port: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        serve(f"127.0.0.1:{port}", tmp_path)
