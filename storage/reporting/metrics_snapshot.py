"""The metrics snapshot: counts of exports, targets and workers, taken at scrape time and shared by all processes of a host.

One process at a time takes a snapshot and the others serve it, so more scrapes cause no more load. Each query takes a few
milliseconds with an index, except the count of exports by status, which reads all of them. That count continues from
snapshot to snapshot, a part each time, and the last complete count is served. Up to some 50,000 exports, each snapshot
completes it.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from peewee import SQL, Case, Select, Tuple, fn

from runtime.files import try_lock
from schemas.base.timestamps import from_ms, to_ms
from schemas.exports.state_machine import IN_PROGRESS
from schemas.targets.target import BREAKER_OPEN, PAUSES_BY_RECEIVER, RESTORED, TargetStatus
from storage.compliance import requests as compliance_requests
from storage.db.engine import DAMAGE, OUTAGES, connection, database
from storage.db.models import ExportRow, TargetRow, TicketEventRow
from storage.db.queries import tuples
from storage.exports import worker_heartbeats
from storage.exports.queries import count_up_to
from storage.targets import targets

#: How long after its beginning a snapshot may count exports. With the last batch, a scrape takes at most 100 ms.
COUNT_UNTIL_S: Final = 0.06
#: How many exports one statement counts: about 5 ms, during which the process serves no other request.
COUNT_BATCH: Final = 5_000
#: Up to this number, waiting exports are counted anew, in some 10 ms. For more, the count by status is used.
MAX_COUNTED_WAITING: Final = 20_000
#: A snapshot is valid for a second, or for 40 times as long as it took, so that snapshots take a fortieth of the time,
#: however often they are requested. It is valid for half a minute at most, because older figures mislead.
MIN_REST: Final = timedelta(seconds=1)
REST_FACTOR: Final = 40
MAX_REST: Final = timedelta(seconds=30)
#: A snapshot that takes this long waits for a database that does not respond.
HUNG_AFTER: Final = timedelta(seconds=10)
#: While another process takes a snapshot, a snapshot up to this age is served.
SERVED_FOR: Final = timedelta(minutes=1)
#: A count that was interrupted for this long starts again, because too much has changed meanwhile.
COUNT_VALID_FOR: Final = timedelta(hours=1)

#: The reasons why nothing is sent to a target for now, although it will be later.
PAUSED_BY_HAND: Final = "by_hand"
PAUSES: Final = (PAUSED_BY_HAND, RESTORED, *sorted(PAUSES_BY_RECEIVER), BREAKER_OPEN)

_BEGINNING: Final = (0, "", 0, "")
#: Exports that are due for longer are late: an idle worker sends within a second of the due time, a busy one within minutes.
LATE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ExportCount:
    """An unfinished count of exports by status; `after` is the last export counted: account, status, severity, id."""

    began_at: int
    after: tuple[int, str, int, str] = _BEGINNING
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The figures of one snapshot; times are milliseconds since 1970. `is_up` is False if the database did not respond.

    `exports`, and `exports_at`, when this count began, are None until all exports were counted once.
    """

    at: int
    is_up: bool
    took_s: float = 0.0
    exports: Mapping[str, int] | None = None
    exports_at: int | None = None
    tally: ExportCount | None = None
    waiting: int = 0
    due_age_s: float = 0.0
    targets: Mapping[str, int] = field(default_factory=dict)
    paused: Mapping[str, int] = field(default_factory=dict)
    workers: int = 0
    #: The time since the last heartbeat of any worker; None if all workers ended properly.
    sweep_lag_s: float | None = None
    compliance_overdue: int = 0
    events_waiting: int = 0

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the snapshot is still valid."""
        rest = min(MAX_REST, max(MIN_REST, timedelta(seconds=REST_FACTOR * self.took_s)))
        # After a clock was set back, a snapshot must not stay valid until the former time is reached again.
        return abs(now - from_ms(self.at)) < rest


class SnapshotCache:
    """The snapshot that all processes with the same `file` share; if it cannot be written, each process has its own."""

    def __init__(
        self, file: Path, take: Callable[[datetime, MetricsSnapshot | None], MetricsSnapshot] | None = None
    ) -> None:
        self._file = file
        self._take = take or take_snapshot
        self._own: MetricsSnapshot | None = None

    def figures(self, now: datetime) -> MetricsSnapshot | None:
        """Return the last snapshot, or a new one if it is due and no other process is taking it.

        Returns None if another process is taking one and the last one is older than a minute.
        """
        with _try_exclusive(self._file.with_suffix(".lock"), now) as is_mine:
            last = self._last()
            if is_mine and (last is None or not last.is_fresh(now)):
                self._own = last = self._take(now, last)
                _write(self._file, last)
        if not is_mine and self._is_hung(now):
            return MetricsSnapshot(to_ms(now), is_up=False)
        return None if last is None or abs(now - from_ms(last.at)) > SERVED_FOR else last

    def _last(self) -> MetricsSnapshot | None:
        """Return the newer of this process's snapshot and the file's."""
        found = [each for each in (self._own, _read(self._file)) if each is not None]
        return max(found, key=lambda each: each.at, default=None)

    def _is_hung(self, now: datetime) -> bool:
        """Return whether another process has been taking a snapshot for so long that the database must be unresponsive."""
        try:
            began_at = from_ms(int(self._file.with_suffix(".lock").read_text()))
        except (OSError, ValueError):
            return False
        return now - began_at > HUNG_AFTER


def take_snapshot(now: datetime, last: MetricsSnapshot | None, count_until_s: float = COUNT_UNTIL_S) -> MetricsSnapshot:
    """Query the database, and continue the count of exports where the `last` snapshot stopped."""
    began = time.monotonic()
    try:
        with connection():
            found = _read_values(now, last, began + count_until_s)
    except (*OUTAGES, *DAMAGE):
        down = MetricsSnapshot(to_ms(now), is_up=False, took_s=time.monotonic() - began)
        # The count continues when the database responds again.
        return down if last is None else replace(down, exports=last.exports, exports_at=last.exports_at, tally=last.tally)
    return MetricsSnapshot(to_ms(now), is_up=True, took_s=time.monotonic() - began, **found)


def due_age_s(now: datetime, account_id: int | None = None) -> float:
    """Return for how many seconds the oldest export could have been sent, for targets that are not paused or held.

    Exports that wait for `max_per_minute` of their target are not late. With `account_id`, only targets of that account
    count. Returns 0 if nothing is late.
    """
    wanted = [TargetRow.status == TargetStatus.ACTIVE.value]
    wanted += [] if account_id is None else [TargetRow.account == account_id]
    # One index step for each active target.
    is_waiting = (ExportRow.target == TargetRow.id) & ExportRow.due_at.is_null(False)
    oldest = ExportRow.select(fn.MIN(ExportRow.due_at)).where(is_waiting)
    t = TargetRow
    paced_until = t.paced_until / 1000
    free_at = Case(None, [(paced_until > fn.COALESCE(t.held_until, 0), paced_until)], t.held_until).alias("free_at")
    ready = t.select(free_at, oldest.alias("due_at")).where(*wanted).alias("ready")
    ready_at = Case(None, [(ready.c.free_at > ready.c.due_at, ready.c.free_at)], ready.c.due_at)
    ready_ms = Select([ready], [fn.MIN(ready_at)]).where(ready.c.due_at.is_null(False)).bind(database).scalar()
    return 0.0 if ready_ms is None else max(0.0, (now - from_ms(ready_ms)).total_seconds())


def targets_by_state(now: datetime) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many targets have each status, and how many are paused or held for each reason."""
    by_status, by_pause = dict.fromkeys(map(str, TargetStatus), 0), dict.fromkeys(PAUSES, 0)
    is_restored = fn.COALESCE(TargetRow.status_reason == RESTORED, False)
    held_for = Case(None, [(TargetRow.held_until > now, TargetRow.held_reason)])
    # All targets are read: there are thousands at most, and an index on these columns would be written with every attempt.
    counted = TargetRow.select(TargetRow.status, is_restored, held_for, fn.COUNT(SQL("*")))
    counted = counted.where(targets.IS_NOT_REMOVED)
    for status, was_restored, held_reason, count in tuples(counted.group_by(SQL("1"), SQL("2"), SQL("3"))):
        by_status[status] += count
        if status == TargetStatus.PAUSED:
            by_pause[RESTORED if was_restored else PAUSED_BY_HAND] += count
        elif status == TargetStatus.ACTIVE and held_reason in by_pause:
            by_pause[held_reason] += count
    return by_status, by_pause


def _read_values(now: datetime, last: MetricsSnapshot | None, count_until: float) -> dict[str, Any]:
    """Query the fields of a snapshot. The database must respond."""
    targets, paused = targets_by_state(now)
    seen_at = worker_heartbeats.last_seen()
    found = {
        "due_age_s": due_age_s(now),
        "targets": targets,
        "paused": paused,
        "workers": worker_heartbeats.count_alive(now),
        "sweep_lag_s": None if seen_at is None else max(0.0, (now - seen_at).total_seconds()),
        "compliance_overdue": compliance_requests.count_overdue(now),
        "events_waiting": count_up_to(
            TicketEventRow.select(SQL("1")).where(TicketEventRow.due_at.is_null(False)), MAX_COUNTED_WAITING
        ),
        "waiting": count_up_to(ExportRow.select(SQL("1")).where(ExportRow.due_at.is_null(False)), MAX_COUNTED_WAITING),
        **_exports(now, last, count_until),
    }
    if found["waiting"] == MAX_COUNTED_WAITING and found["exports"]:
        found["waiting"] = max(MAX_COUNTED_WAITING, sum(found["exports"].get(status, 0) for status in IN_PROGRESS))
    return found


def _exports(now: datetime, last: MetricsSnapshot | None, until: float) -> dict[str, Any]:
    """Continue the count until the monotonic time `until`; return its progress and the last complete count."""
    tally = ExportCount(to_ms(now))
    if last is not None and last.tally is not None and abs(now - from_ms(last.at)) < COUNT_VALID_FOR:
        # The file may be from an earlier version, whose positions were shorter.
        tally = last.tally if len(last.tally.after) == len(_BEGINNING) else tally
    while True:
        tally, is_done = _count_batch(tally)
        if is_done:
            return {"exports": tally.counts, "exports_at": tally.began_at, "tally": None}
        if time.monotonic() > until:
            return {"exports": last and last.exports, "exports_at": last and last.exports_at, "tally": tally}
        # Let other greenlets of the service run between two batches.
        time.sleep(0)


def _count_batch(tally: ExportCount) -> tuple[ExportCount, bool]:
    """Count one more batch; return the count, and whether this was the last batch."""
    by = (ExportRow.account, ExportRow.status, ExportRow.severity_rank, ExportRow.id)
    part = ExportRow.select(*by).where(Tuple(*by) > Tuple(*tally.after)).order_by(*by).limit(COUNT_BATCH).alias("part")
    groups = (part.c.account_id, part.c.status, part.c.severity_rank)
    counted = Select([part], [*groups, fn.COUNT(SQL("*")), fn.MAX(part.c.id)]).group_by(*groups).order_by(*groups)
    found = list(counted.bind(database).tuples())
    counts = dict(tally.counts)
    for _, status, _, count, _ in found:
        counts[status] = counts.get(status, 0) + count
    after = (*found[-1][:3], found[-1][4]) if found else tally.after
    return ExportCount(tally.began_at, after, counts), sum(row[3] for row in found) < COUNT_BATCH


@contextmanager
def _try_exclusive(file: Path, now: datetime) -> Iterator[bool]:
    """Yield whether this caller holds the lock file, and store the time in it; without a file, every caller does."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield True
        return
    try:
        is_taken = try_lock(descriptor)
        if is_taken:
            _write_text(descriptor, str(to_ms(now)))
        yield is_taken
        if is_taken:
            _write_text(descriptor, "")
    finally:
        os.close(descriptor)


def _write_text(descriptor: int, text: str) -> None:
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _read(file: Path) -> MetricsSnapshot | None:
    """Return the last snapshot of any process; None if none is stored, or one of another version."""
    try:
        known = json.loads(file.read_text())
        if known["tally"]:
            known["tally"] = ExportCount(**{**known["tally"], "after": tuple(known["tally"]["after"])})
        return MetricsSnapshot(**known)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(file: Path, figures: MetricsSnapshot) -> None:
    beside = file.with_suffix(".new")
    # If the disk is full, this process still has its own snapshot.
    with suppress(OSError):
        beside.write_text(json.dumps(asdict(figures)), encoding="utf-8")
        beside.replace(file)
