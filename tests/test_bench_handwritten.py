"""The handwritten services of the benchmark respond like the product, and store the same rows."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import falcon.testing
import pytest

from bench.handwritten import app as handwritten
from bench.handwritten.comparison import TABLES, difference, normalize, numbered_request, stored_rows
from bench.handwritten.stores import open_store
from bench.load.request_templates import SeededDatabase, prepare_many, seed
from schemas.settings.definitions import Settings
from service.app import create_app
from storage.db.engine import close_database, open_database
from tests.support.factories import LOOPBACK, make_settings
from tests.support.servers.redis_and_postgres import PostgresServer, RedisServer


class SeededApplication:
    """An application on its own database, which is seeded like that of the other application."""

    def __init__(self, url: str, folder: Path, redis: RedisServer) -> None:
        self.seeded: SeededDatabase = seed(url)
        prepare_many(self.seeded, 1, len(self.seeded.templates()))
        self.settings: Settings = make_settings(
            folder,
            {
                **LOOPBACK,
                "DATABASE_URL": url,
                "REDIS_URL": redis.url,
                "DEPLOYMENT_MODE": "cloud",
                "OPERATOR_ACCOUNT_ID": "1",
                "DEFAULT_PROJECT_ID": str(self.seeded.customer.project_id),
            },
        )

    def ask(self, app: falcon.testing.TestClient, kind: str, number: int) -> list[str | None]:
        """Send one request of a kind; return its response's location, version and body."""
        template = self.seeded.templates()[kind]
        head, _, body = numbered_request(kind, template, number).decode().partition("\r\n\r\n")
        line, *headers = head.split("\r\n")
        method, path, _ = line.split()
        named = [(name, value) for name, value in (header.split(": ", 1) for header in headers) if name != "Host"]
        answer = app.simulate_request(method, path, headers=named, body=body)
        assert answer.status_code == template.status, (kind, answer.text)
        return [answer.headers.get("Location"), answer.headers.get("ETag"), answer.text]


@pytest.fixture(params=["sqlite", "postgresql"])
def make_side(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer
) -> Iterator[Callable[[str], SeededApplication]]:
    """Return a function that creates applications by name, on databases of one kind."""
    postgres: PostgresServer | None = None
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres_server")

    def made(name: str) -> SeededApplication:
        url = postgres.create_database() if postgres else f"sqlite:///{tmp_path / name}.db"
        return SeededApplication(url, tmp_path / name, redis)

    yield made
    close_database()


def test_handwritten_routes_return_and_store_the_same_as_the_product(make_side: Callable[[str], SeededApplication]) -> None:
    theirs, ours = make_side("handwritten"), make_side("product")
    open_database(ours.seeded.url)
    products = falcon.testing.TestClient(create_app(ours.settings))
    before = stored_rows(ours.seeded.url)
    with closing(open_store(theirs.seeded.url)) as store:
        handwritten_client = falcon.testing.TestClient(handwritten.create_app(theirs.settings, store))
        for number, kind in enumerate(ours.seeded.templates(), start=1):
            answers = ours.ask(products, kind, number), theirs.ask(handwritten_client, kind, number)
            assert normalize(answers[0]) == normalize(answers[1]), kind
            # A repeat gets the same bytes from both, and stores no more rows.
            assert (ours.ask(products, kind, number), theirs.ask(handwritten_client, kind, number)) == answers
    stored = stored_rows(ours.seeded.url)
    assert difference(stored, stored_rows(theirs.seeded.url)) == ""
    written = {table for table in TABLES if stored[table] != before[table]}
    assert written == set(TABLES)
