"""PostgreSQL with default durability, as in production; the tests' server does not sync to disk."""

from typing import Final

from tests.support.servers.redis_and_postgres import PostgresServer

#: PostgreSQL's defaults. They override the options of the tests' server: of repeated options, PostgreSQL uses the last one.
_DEFAULTS: Final = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=128MB")


class DurablePostgres(PostgresServer):
    """The tests' server with the durability of an installation, so that it is comparable with SQLite."""

    def _command(self) -> list[str]:
        return [*super()._command(), *(word for setting in _DEFAULTS for word in ("-c", setting))]
