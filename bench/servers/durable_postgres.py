"""PostgreSQL with default durability, as in production; the tests' server does not sync to disk."""

from typing import Final

from tests.support.servers.redis_and_postgres import PostgresServer

#: PostgreSQL's own defaults again; of a setting that is given twice it takes the last.
_AS_INSTALLED: Final = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=128MB")


class DurablePostgres(PostgresServer):
    """The tests' server with the durability of an installation, which is what SQLite has here too."""

    def _command(self) -> list[str]:
        return [*super()._command(), *(word for setting in _AS_INSTALLED for word in ("-c", setting))]
