"""Injects the planned faults into the processes of an installation and records them."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import redis

from soak.installation import Child, SoakInstallation, SoakReceiverProcess
from soak.plan import Fault
from soak.receivers.event_log import EventLog
from tests.support.servers.redis_and_postgres import processes_in

Item = TypeVar("Item")

#: The process title of a PostgreSQL backend begins with this: it contains the name of the database user.
_BACKEND: Final = b"postgres: riskrelay"


class FaultInjector:
    """Injects one fault at a time; resumes suspended processes when their pause is over."""

    def __init__(self, installation: SoakInstallation, events: EventLog) -> None:
        self.done: Counter[str] = Counter()
        self.kills = 0
        self._installation = installation
        self._events = events
        self._stalled: list[tuple[float, Child]] = []
        self._actions: dict[str, Callable[[Fault], bool]] = {
            "worker killed": lambda fault: self._worker(fault).send(signal.SIGKILL),
            "worker asked to stop": lambda fault: self._worker(fault).send(signal.SIGTERM),
            "worker stalled": self._stall,
            "service killed": lambda _: installation.service.send(signal.SIGKILL),
            "service asked to stop": lambda _: installation.service.send(signal.SIGTERM),
            "service process killed": self._kill_service_process,
            "redis killed, back empty": self._kill_redis_and_its_file,
            "redis killed, back with its file": self._kill_redis,
            "redis emptied": self._empty_redis,
            "receiver killed": lambda fault: self._kill_server(installation.receivers, fault),
            "tracker killed": lambda fault: self._kill_server(installation.trackers, fault),
            "postgresql backend killed": self._kill_backend,
            "postgresql stopped at once": self._stop_postgres_at_once,
            "postgresql killed": self._kill_postgres,
        }

    def inject(self, fault: Fault) -> None:
        """Inject one fault; it counts only if its victim was running."""
        began_at = self._events.append("fault", kind=fault.kind)
        if not self._actions[fault.kind](fault):
            return
        self.done[fault.kind] += 1
        self.kills += fault.is_kill
        self._events.append("fault done", kind=fault.kind, began_at=began_at, pause_s=round(fault.pause_s, 2))

    def resume_due(self) -> None:
        """Resume processes whose pause is over."""
        now = time.monotonic()
        for resume_at, child in self._stalled:
            if resume_at <= now:
                child.send(signal.SIGCONT)
        self._stalled = [(resume_at, child) for resume_at, child in self._stalled if resume_at > now]

    def resume_all(self) -> None:
        """Resume all suspended processes."""
        for _, child in self._stalled:
            child.send(signal.SIGCONT)
        self._stalled = []

    def _worker(self, fault: Fault) -> Child:
        return _one(self._installation.workers, fault)

    def _stall(self, fault: Fault) -> bool:
        worker = self._worker(fault)
        if not worker.send(signal.SIGSTOP):
            return False
        self._stalled.append((time.monotonic() + fault.pause_s, worker))
        return True

    def _kill_service_process(self, fault: Fault) -> bool:
        return _kill_one(self._installation.service.children(), fault)

    def _kill_redis(self, fault: Fault) -> bool:
        self._installation.redis.kill()
        time.sleep(fault.pause_s)
        self._installation.redis.start()
        return True

    def _kill_redis_and_its_file(self, fault: Fault) -> bool:
        server = self._installation.redis
        server.kill()
        for path in [*server.folder.rglob("*.aof"), *server.folder.rglob("*.rdb"), *server.folder.rglob("*.manifest")]:
            path.unlink()
        time.sleep(fault.pause_s)
        server.start()
        return True

    def _empty_redis(self, _: Fault) -> bool:
        try:
            self._installation.redis.flush()
        except redis.exceptions.RedisError:
            return False
        return True

    def _kill_server(self, among: Sequence[SoakReceiverProcess], fault: Fault) -> bool:
        _one(among, fault).kill()
        time.sleep(fault.pause_s)
        return True

    def _kill_backend(self, fault: Fault) -> bool:
        """Kill one process that serves a connection: PostgreSQL ends all the others and recovers."""
        postgres = self._installation.postgres
        assert postgres is not None
        return _kill_one([pid for pid in processes_in(postgres.folder) if _title(pid).startswith(_BACKEND)], fault)

    def _stop_postgres_at_once(self, fault: Fault) -> bool:
        assert self._installation.postgres is not None
        self._installation.postgres.stop_at_once()
        time.sleep(fault.pause_s)
        self._installation.postgres.start()
        return True

    def _kill_postgres(self, fault: Fault) -> bool:
        assert self._installation.postgres is not None
        self._installation.postgres.kill()
        time.sleep(fault.pause_s)
        self._installation.postgres.start()
        return True


def _one(among: Sequence[Item], fault: Fault) -> Item:
    return among[fault.victim % len(among)]


def _kill_one(pids: Sequence[int], fault: Fault) -> bool:
    if not pids:
        return False
    try:
        os.kill(_one(sorted(pids), fault), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _title(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
