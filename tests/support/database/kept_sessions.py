"""PostgreSQL sessions that tests reuse: a new session reads the catalog again, which takes longer than most tests."""

import threading
from itertools import count
from typing import Any, Final, Self

import psycopg
from psycopg.pq import TransactionStatus

#: A test with one thread needs two sessions. A higher limit would keep the many sessions of tests with many threads.
_MAX_KEPT: Final = 4

_kept: list["KeptSession"] = []
_numbers = count()


class KeptSession(psycopg.Connection[Any]):
    """A connection whose session is kept for the next test after `close`."""

    opened_with: object = None

    @classmethod
    def connect(cls, conninfo: str = "", **parameters: Any) -> Self:
        """Return a kept session with the same parameters, reset as if it were new, or a new one."""
        opened_with = (conninfo, sorted((name, str(value)) for name, value in parameters.items()))
        for session in [each for each in _kept if each.opened_with == opened_with]:
            _kept.remove(session)
            if session._is_as_new():
                return session  # type: ignore[return-value]  # this class has no subclasses
        session = super().connect(conninfo, **parameters)
        if threading.current_thread() is threading.main_thread():
            session.opened_with = opened_with
        return session

    def close(self) -> None:
        """Keep the session. End it if it is in a transaction, if another thread opened it, or if enough are kept."""
        if self in _kept:
            return
        idle = not self.closed and self.info.transaction_status == TransactionStatus.IDLE
        if idle and self.opened_with and len(_kept) < _MAX_KEPT:
            _kept.append(self)
        else:
            super().close()

    def _is_as_new(self) -> bool:
        try:
            # The text is different each time. Only a statement that it has not prepared makes psycopg discard its prepared
            # statements.
            self.execute(f"DISCARD ALL -- {next(_numbers)}".encode())
        except psycopg.OperationalError:
            super().close()
            return False
        return True


def process_ids() -> list[int]:
    """Return the ids of the server processes of the kept sessions."""
    return [session.info.backend_pid for session in _kept if not session.closed]


def end_all() -> None:
    """End all kept sessions."""
    while _kept:
        psycopg.Connection.close(_kept.pop())
