"""Metrics of several real processes are summed, contain no personal data, and match the dashboard, alerts and docs."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

import click
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bin.__main__ import riskrelay
from runtime.clock import utc_now
from runtime.logs import FIELDS
from storage.db.engine import close_database, connection, open_database
from tests.support.factories import LOOPBACK, environment, make_approved, make_customer, make_target
from tests.support.http.raw_http import CANARY, EXPORTS
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import RISKRELAY, CountingReceiver, WorkCommand, wait_until
from tests.support.servers.redis_and_postgres import RedisServer, free_port

ROOT: Final = Path(__file__).resolve().parents[3]
DASHBOARD: Final = json.loads((ROOT / "deploy/grafana/riskrelay.json").read_text())
ALERTS: Final = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
DOCUMENT: Final = (ROOT / "docs/monitoring.md").read_text()

EXPORTS_SENT: Final = 30
POLLS: Final = 40
#: Labels that Prometheus adds to each sample, and by which the dashboard's variables select.
OF_THE_SCRAPE: Final = {"job", "instance"}

_ask: Final = build_opener(ProxyHandler({})).open


@dataclass
class Story:
    """An installation with two service and two worker processes, and the requests that it has received."""

    service: Service
    worker_port: int
    database: Path

    def scraped(self) -> list[Sample]:
        """Return the samples of the service's metrics endpoint."""
        return samples(self.page())

    def page(self) -> str:
        answer = self.service.request("GET", "/metrics")
        assert answer.status == 200
        return answer.content.decode()

    def of_the_workers(self) -> list[Sample]:
        """Return the samples of the workers' own metrics endpoint."""
        with _ask(f"http://127.0.0.1:{self.worker_port}/metrics", timeout=20) as answer:
            return samples(answer.read().decode())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        reader = sqlite3.connect(self.database)
        try:
            return reader.execute(statement).fetchall()
        finally:
            reader.close()


def samples(page: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def total(found: list[Sample], name: str, **labels: str) -> float:
    """Return the sum of the samples with this name and these labels."""
    return sum(each.value for each in found if each.name == name and labels.items() <= each.labels.items())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path, redis_server: RedisServer) -> Iterator[Story]:
    """One installation for all tests: a receiver that gets 30 tickets, and requests to existing and missing routes."""
    folder = tmp_path_factory.mktemp("metrics")
    database = folder / "riskrelay.db"
    database.write_bytes(migrated_sqlite.read_bytes())
    url, worker_port = f"sqlite:///{database}", free_port()
    env = environment(folder, DATABASE_URL=url, REDIS_URL=redis_server.url, WEB_PROCESSES="2", RATE_LIMIT_PER_MINUTE="60000")
    shown = {"WORKER_PROCESSES": "2", "WORKER_METRICS_BIND": f"127.0.0.1:{worker_port}"}
    with (
        CountingReceiver() as receiver,
        Service({**env, **LOOPBACK}) as service,
        WorkCommand(folder, url, redis_server.url, **shown),
    ):
        story = Story(service, worker_port, database)
        wait_until(lambda: story.rows("SELECT COUNT(*) FROM workers") == [(2,)], 30)
        ask_for_everything(story, approved_for(url, receiver.url()))
        wait_until(lambda: story.rows("SELECT DISTINCT status FROM exports") == [("exported",)], 30)
        yield story


def approved_for(url: str, receiver_url: str) -> str:
    """Store due exports for three targets; return a token of their account."""
    open_database(url)
    with connection():
        customer = make_customer()
        targets = [make_target(customer, f"{receiver_url}?{CANARY}", CANARY) for _ in range(3)]
        for number in range(EXPORTS_SENT):
            make_approved(customer, targets[number % 3].id, utc_now())
    close_database()
    return customer.token


def ask_for_everything(story: Story, token: str) -> None:
    """Send requests in parallel, so that both processes respond, with a canary in every part that a client controls."""
    bearer = {"Authorization": f"Bearer {token}", "X-Request-Id": CANARY, "X-Canary": CANARY}
    with ThreadPoolExecutor(8) as pool:
        polls = [pool.submit(story.service.request, "GET", f"{EXPORTS}/exp_{CANARY}?{CANARY}", bearer) for _ in range(POLLS)]
        assert {poll.result().status for poll in polls} == {404}
    for path in (f"/{CANARY}", f"{EXPORTS}/{CANARY}/{CANARY}", f"/metrics/{CANARY}"):
        assert story.service.request("GET", path, bearer).status == 404
    assert story.service.request(CANARY.upper(), "/healthz", bearer).status == 405
    assert story.service.request("GET", f"{EXPORTS}", {"Authorization": f"Bearer {CANARY}"}).status == 401


def test_request_counts_of_both_processes_add_up(story: Story) -> None:
    polls = {"method": "GET", "route": f"{EXPORTS}/{{export_id}}", "status": "404"}
    wait_until(lambda: total(story.scraped(), "riskrelay_http_requests_total", **polls) == POLLS)

    found = story.scraped()
    assert total(found, "riskrelay_http_request_seconds_count", route=polls["route"]) == POLLS
    assert total(found, "riskrelay_http_requests_total", route="unmatched") >= 3
    # Every counted response also has a duration.
    counted = total(found, "riskrelay_http_requests_total")
    assert total(found, "riskrelay_http_request_seconds_count") == counted


def test_attempt_counts_of_both_workers_equal_the_recorded_attempts(story: Story) -> None:
    written = dict(story.rows("SELECT outcome, COUNT(*) FROM attempts GROUP BY outcome"))
    assert sum(written.values()) >= EXPORTS_SENT
    wait_until(lambda: total(story.scraped(), "riskrelay_attempts_total") == sum(written.values()))

    found = story.scraped()
    assert {name: total(found, "riskrelay_attempts_total", outcome=name) for name in written} == written
    assert total(found, "riskrelay_delivery_seconds_count") == sum(written.values())
    # On a busy machine, a worker with a late heartbeat is briefly not counted.
    wait_until(lambda: total(story.scraped(), "riskrelay_workers") == 2)
    # Each worker has its own file. A worker host without a service serves the same metrics.
    assert len(list((story.database.parent / "metrics" / "worker").glob("counter_*.db"))) == 2
    shown = story.of_the_workers()
    assert {name: total(shown, "riskrelay_attempts_total", outcome=name) for name in written} == written


def test_gauges_report_the_current_state(story: Story) -> None:
    def is_reported() -> bool:
        found = story.scraped()
        exported = total(found, "riskrelay_exports", status="exported")
        return (exported, total(found, "riskrelay_exports_waiting")) == (EXPORTS_SENT, 0)

    wait_until(is_reported)
    found = story.scraped()
    assert total(found, "riskrelay_targets", status="active") == 3
    assert (total(found, "riskrelay_database_up"), total(found, "riskrelay_redis_up")) == (1, 1)
    assert total(found, "riskrelay_due_age_seconds") == 0
    assert total(found, "riskrelay_sweep_lag_seconds") < 30


def test_metrics_contain_nothing_that_a_client_sent(story: Story) -> None:
    assert CANARY.lower() not in story.page().lower()
    folder = story.database.parent / "metrics"
    held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert CANARY.lower().encode() not in held.lower()
    # Neither the client nor the destination is in a label.
    names = {name for sample in story.scraped() for name in sample.labels}
    assert names == {"method", "route", "status", "le", "outcome", "reason", "version"}
    assert not re.search(r"127\.0\.0\.1|localhost|(exp|tgt|att|req)_\w", story.page())


def test_killing_a_process_loses_no_counts(story: Story) -> None:
    time.sleep(1.1)
    before = story.scraped()
    running = story.service.workers
    os.kill(running[0], signal.SIGKILL)
    wait_until(lambda: len(story.service.workers) == len(running) and running[0] not in story.service.workers)
    wait_until(lambda: answers(story))
    time.sleep(1.1)
    after = story.scraped()

    for name in ("riskrelay_http_requests_total", "riskrelay_attempts_total"):
        labels = {tuple(sorted(sample.labels.items())) for sample in before if sample.name == name}
        assert all(total(after, name, **dict(each)) >= total(before, name, **dict(each)) for each in labels)


def test_a_metrics_address_in_use_ends_the_worker_with_the_fix(story: Story) -> None:
    bind = f"127.0.0.1:{story.worker_port}"
    folder = story.database.parent / "another"
    env = environment(folder, DATABASE_URL=f"sqlite:///{story.database}", WORKER_METRICS_BIND=bind)
    ended = subprocess.run([RISKRELAY, "work"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    reported = ended.stderr.splitlines()[-1]
    assert bind in reported
    assert "set WORKER_METRICS_BIND to another address" in reported
    assert "Traceback" not in ended.stderr


def answers(story: Story) -> bool:
    try:
        return story.service.request("GET", "/healthz").status == 200
    except OSError:
        return False


# --- the files that refer to metrics ---------------------------------------------


def known(story: Story) -> dict[str, set[str]]:
    """Return the labels of every scraped metric, by name."""
    found: dict[str, set[str]] = {}
    for sample in story.scraped():
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def asked_for(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics in a PromQL expression, each with the labels that select its samples."""
    for name, matchers in re.findall(r"\b(riskrelay_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def expressions() -> dict[str, str]:
    panels = {
        f"panel {panel['title']}: {query['refId']}": query["expr"]
        for panel in DASHBOARD["panels"]
        for query in panel.get("targets", [])
    }
    return {**panels, **{f"alert {rule['alert']}": rule["expr"] for rule in ALERTS}}


def test_every_metric_and_label_of_the_dashboard_and_alerts_is_exported(story: Story) -> None:
    there = {**known(story), "up": set()}
    missing = [
        (where, name, labels)
        for where, expression in expressions().items()
        for name, labels in asked_for(expression)
        if name not in there or not labels <= there[name] | OF_THE_SCRAPE
    ]
    assert missing == []
    # The search in the expressions finds metrics.
    assert len({name for expression in expressions().values() for name, _ in asked_for(expression)}) > 12


def test_expressions_group_only_by_labels_of_their_metrics(story: Story) -> None:
    there = {**known(story), "up": set()}
    for where, expression in expressions().items():
        grouped = {name.strip() for each in re.findall(r"\bby \(([^)]*)\)", expression) for name in each.split(",")}
        labels = {label for name, _ in asked_for(expression) for label in there[name]}
        assert grouped <= labels | OF_THE_SCRAPE, where


def test_expressions_select_only_label_values_that_are_reported(story: Story) -> None:
    """HTTP statuses are not compared: expressions select them with patterns, and few statuses occur in this test."""
    reported = {(sample.name, name, value) for sample in story.scraped() for name, value in sample.labels.items()}
    for where, expression in expressions().items():
        for metric, matchers in re.findall(r"\b(riskrelay_(?!http)\w+)\{([^}]*)\}", expression):
            for label, wanted in re.findall(r'(\w+)=~?"([^"$]*)"', matchers):
                assert all((metric, label, value) in reported for value in wanted.split("|")), (where, metric, wanted)


def test_the_documented_metrics_and_labels_are_exactly_the_exported_ones(story: Story) -> None:
    rows = re.findall(r"^\| `(riskrelay_\w+)` \| (\w+)((?:,| `\w+`)*) \|", DOCUMENT, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows}
    shown: dict[str, set[str]] = {}
    for name, labels in known(story).items():
        shown.setdefault(re.sub(r"_(bucket|sum|count)$", "", name), set()).update(labels - {"le"})
    assert documented == shown


def test_the_documented_alerts_are_exactly_the_defined_ones() -> None:
    documented = re.findall(r"^\| `(RiskRelay\w+)` \|", DOCUMENT, re.MULTILINE)
    assert documented == [rule["alert"] for rule in ALERTS]


def test_every_log_field_is_documented() -> None:
    table = DOCUMENT.partition("## Logs")[2]
    assert [field for field in FIELDS if f"`{field}`" not in table] == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_every_alert_has_a_severity_a_summary_and_an_action(rule: Mapping[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"].endswith(".")
    assert re.search(r"bin/riskrelay|curl|systemctl", rule["annotations"]["action"])


def commands_named() -> list[str]:
    reported = [DOCUMENT, *(rule["annotations"]["action"] for rule in ALERTS)]
    return sorted(
        {command.strip() for text in reported for command in re.findall(r"bin/riskrelay ([a-z][a-z -]*[a-z])", text)}
    )


@pytest.mark.parametrize("words", commands_named())
def test_every_command_in_the_document_and_in_alert_actions_exists(words: str) -> None:
    """The first words are a command, or a group with one of its commands. Other text may follow."""
    command: click.Command | None = riskrelay
    context = click.Context(riskrelay)
    for word in words.split():
        if not isinstance(command, click.Group):
            return
        command = command.get_command(context, word)
        assert command is not None, words


def test_the_dashboard_can_be_imported() -> None:
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job"]
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "HTTP", "Deliveries", "Targets", "Infrastructure"]
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    # No panels overlap, and none exceeds the width of the dashboard.
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
