"""The application with an open database, a wake-up queue that counts notifications, and a resolver with fixed addresses."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from falcon.testing import TestClient

from runtime.logs import JsonFormatter
from service.app import create_app
from tests.support.factories import Customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue


class LogLines(logging.Handler):
    """Stores every log line as the service would write it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self.lines)


@pytest.fixture
def wake_ups() -> FakeWakeUpQueue:
    return FakeWakeUpQueue()


@pytest.fixture
def resolver() -> FakeResolver:
    return FakeResolver({"tracker.example.com": ["93.184.215.14"]})


@pytest.fixture
def client(customer: Customer, tmp_path: Path, wake_ups: FakeWakeUpQueue, resolver: FakeResolver) -> TestClient:
    """The application of an installation whose default project is the customer's."""
    settings = make_settings(tmp_path, {"DEFAULT_PROJECT_ID": str(customer.project_id)})
    return TestClient(create_app(settings, wake_ups, resolver))


@pytest.fixture
def log_lines() -> Iterator[LogLines]:
    """Everything that is logged during the test, at level DEBUG and above."""
    handler, root = LogLines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.setLevel(level)
    root.removeHandler(handler)
