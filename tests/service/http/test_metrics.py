"""`/metrics` responds during any outage, costs little however often it is requested, and has a bounded number of series."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from falcon.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

from runtime.clock import utc_now
from runtime.metrics import PAGE_FOR_S
from service.app import create_app
from service.http.request_context import MAX_SERIES
from storage.db.engine import close_database, open_database
from storage.exports import worker_heartbeats
from tests.support.database.query_plans import statements
from tests.support.factories import Customer, make_customer, make_exports, make_settings, make_target
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import Call, assert_has_standard_headers
from tests.support.processes.workers import wait_until
from tests.support.servers.redis_and_postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[3]


def scraped(client: TestClient) -> dict[str, float]:
    """Return the samples of a scrape, by name and labels."""
    answer = Call("GET", "/metrics").send(client)
    assert answer.status_code == 200
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    return {"|".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


def test_a_scrape_has_the_current_counts(client: TestClient, customer: Customer) -> None:
    make_exports(customer, 2)
    make_target(customer)
    worker_heartbeats.beat("worker:test", utc_now())

    found = scraped(client)
    assert found["riskrelay_exports|prepared"] == 2
    assert found["riskrelay_exports|exported"] == 0
    assert found["riskrelay_targets|active"] == 1
    assert found["riskrelay_targets_paused|breaker_open"] == 0
    assert (found["riskrelay_database_up"], found["riskrelay_redis_up"], found["riskrelay_workers"]) == (1, 1, 1)


def test_metrics_are_prometheus_text_with_the_common_headers(client: TestClient) -> None:
    answer = Call("GET", "/metrics").send(client)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert_has_standard_headers(answer)
    head = Call("HEAD", "/metrics").send(client)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("mode", ["cloud", "self-hosted", "webhook-only"])
def test_every_mode_has_the_metrics_route(mode: str, customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": mode})
    assert "riskrelay_database_up" in scraped(TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))))


def test_frequent_scrapes_cause_few_statements(client: TestClient) -> None:
    scraped(client)
    with statements() as asked:
        for _ in range(20):
            scraped(client)
    # A second may have passed on a busy machine: that is one more read, not twenty.
    assert len(asked) <= 10


def test_a_scrape_is_cached_only_briefly(client: TestClient, wake_ups: FakeWakeUpQueue) -> None:
    assert scraped(client)["riskrelay_redis_up"] == 1
    wake_ups.is_connected = False
    time.sleep(PAGE_FOR_S)
    assert scraped(client)["riskrelay_redis_up"] == 0


def test_an_unavailable_database_is_reported_in_time_and_its_values_are_omitted(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    open_database(postgres_url)
    make_customer()
    client = TestClient(create_app(make_settings(tmp_path), FakeWakeUpQueue(), FakeResolver({})))
    postgres_server.stop()
    try:
        began = time.monotonic()
        unavailable = scraped(client)
        took_s = time.monotonic() - began
    finally:
        postgres_server.start()
    # On a busy machine, the first statement after the start may take longer than the timeout of a scrape.
    wait_until(lambda: "riskrelay_exports|prepared" in scraped(client), every_s=PAGE_FOR_S)
    back = scraped(client)
    close_database()

    # Prometheus times out after ten seconds.
    assert took_s < 10
    assert {name for name in unavailable if not name.startswith("riskrelay_build_info")} == {
        "riskrelay_redis_up",
        "riskrelay_database_up",
        "riskrelay_disk_free_bytes",
        "riskrelay_disk_full",
    }
    assert unavailable["riskrelay_database_up"] == 0
    assert (back["riskrelay_database_up"], back["riskrelay_exports|prepared"]) == (1, 0)


#: Counts every method and status on every route, and also unknown methods and routes.
EVERYTHING = """
import sys
from pathlib import Path
from falcon.inspect import inspect_routes
from http import HTTPStatus
from runtime import metrics
folder = Path(sys.argv[1])
assert metrics.open_files(folder, metrics.ProcessKind.SERVICE)
from service.app import create_app
from service.http.request_context import RequestMetrics
from tests.support.factories import make_settings
from tests.support.fakes import FakeWakeUpQueue, FakeResolver
app = create_app(make_settings(folder, {"DEPLOYMENT_MODE": "cloud"}), FakeWakeUpQueue(), FakeResolver({}))
routes = [None, *(route.path for route in inspect_routes(app))]
methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", *(f"cAnArY{number}" for number in range(20))]
tried = [(method, route, status.value) for method in methods for route in routes for status in HTTPStatus]
requests = RequestMetrics()
for each in tried:
    requests.count(*each, 0.1)
sys.stderr.write(str(len(tried)))
sys.stdout.write(metrics.exposition(metrics.counted(folder, metrics.ProcessKind)).decode())
"""


def test_the_number_of_series_is_bounded_whatever_clients_send(tmp_path: Path) -> None:
    words = [sys.executable, "-c", EVERYTHING, str(tmp_path)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    families = {family.name: family for family in text_string_to_metric_families(ended.stdout)}
    requests = [sample for sample in families["riskrelay_http_requests"].samples if sample.name.endswith("_total")]

    assert "cAnArY" not in ended.stdout
    others = [sample for sample in requests if sample.labels["method"] == "other"]
    assert len(requests) - len(others) == MAX_SERIES
    assert {"method": "other", "route": "unmatched", "status": "other"} in [sample.labels for sample in others]
    # Everything was counted exactly once.
    assert sum(sample.value for sample in requests) == float(ended.stderr)
    # The space allocated at the start is enough: files that grow could fill a disk.
    sizes = {file.name.partition("_")[0]: file.stat().st_size for file in (tmp_path / "metrics/service").glob("*.db")}
    assert sizes == {"counter": 256 * 1024, "histogram": 256 * 1024}
