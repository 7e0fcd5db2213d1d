"""How the settings configure the parts of a worker."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from runtime.clock import utc_now
from storage.db.engine import rows
from storage.db.shared_clock import SharedClock
from tests.support.database.databases import on_sqlite
from tests.support.factories import make_settings
from tests.support.processes.gunicorn_process import free_port
from tests.support.processes.workers import WorkerProcess, all_are, approved, wait_until
from worker import composition
from worker.background.tasks import BackgroundTask


@pytest.mark.parametrize("changes", [{"CONSOLE_ENABLED": "false"}, {"DEPLOYMENT_MODE": "webhook-only"}])
def test_no_ticket_links_to_a_console_that_is_not_served(tmp_path: Path, changes: dict[str, str]) -> None:
    base = {"PUBLIC_BASE_URL": "https://relay.example.com"}
    assert composition.compose_event_options(make_settings(tmp_path, base)).public_base_url == base["PUBLIC_BASE_URL"]
    assert composition.compose_event_options(make_settings(tmp_path, base | changes)).public_base_url is None


@on_sqlite
def test_tasks_that_are_only_scheduled_do_not_run_with_every_approval(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, bool] = {}

    def note(name: str, run_once: Callable[[], bool], *_: object, takes_wake_ups: bool = True) -> BackgroundTask:
        made[name] = takes_wake_ups
        return BackgroundTask(name, run_once, 60)

    monkeypatch.setattr(composition, "BackgroundTask", note)
    settings = make_settings(tmp_path, {"ALERT_SLACK_URL": "https://hooks.example.com/x"})
    composition.compose_background_tasks(settings, SharedClock(utc_now))
    assert {name for name, takes_wake_ups in made.items() if not takes_wake_ups} == {"alerts", "audit-chain", "retention"}


@on_sqlite
def test_an_export_older_than_the_setting_allows_is_not_retried(start: Callable[..., WorkerProcess]) -> None:
    approved(f"http://127.0.0.1:{free_port()}/", at=utc_now() - timedelta(hours=2))
    with start(MAX_AGE_HOURS="1"):
        wait_until(all_are("failed"))
    assert rows("SELECT status_reason, attempts FROM exports") == [("attempts_exhausted", 1)]
