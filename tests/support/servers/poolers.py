"""PgBouncer in front of a test server, with transaction pooling: each transaction can run in another session."""

import signal
from typing import Final
from urllib.parse import urlsplit

import psycopg

from tests.support.servers.redis_and_postgres import Server, free_port, unprivileged_owner
from tests.support.servers.runtimes import runtime

#: Fewer sessions than clients, so that clients share sessions.
SESSIONS: Final = 8


class PgBouncer(Server):
    """A connection pooler on a loopback port for the database at `url`, configured as docs/scaling.md describes."""

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGTERM
    ready_errors = (psycopg.OperationalError,)

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        super().__init__(unprivileged_owner())
        self._program = runtime("pgbouncer")
        self._behind = url
        self._address = address
        self._port = free_port()

    @property
    def url(self) -> str:
        """The URL of the database through the pooler."""
        behind = urlsplit(self._behind)
        return self._behind.replace(f"{behind.hostname}:{behind.port}/", f"{self._address}:{self._port}/")

    def _ping(self) -> None:
        psycopg.connect(self.url, connect_timeout=2).close()

    def _command(self) -> list[str]:
        behind = urlsplit(self._behind)
        file = self.folder / "pgbouncer.ini"
        file.write_text(f"""
[databases]
* = host={behind.hostname} port={behind.port} user={behind.username}
[pgbouncer]
listen_addr = {self._address}
listen_port = {self._port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SESSIONS}
max_client_conn = 500
ignore_startup_parameters = options
""")
        return [str(self._program), str(file)]
