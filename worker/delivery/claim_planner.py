"""Plans how many exports of each target this worker claims now: what the throttle states allow, shared fairly.

`runtime.account_shares` divides the free threads among accounts; each account's part is divided among its targets. So an
account with a thousand targets and a hundred thousand due exports takes no claims from the other accounts.

A scan skips from one target with due exports to the next, so a target with a hundred thousand waiting exports costs as much
as a target with one, and is planned for no more often. If more than MAX_KNOWN targets are due, a scan returns some of each
account, and each plan reads a page of the others. Scans of many targets are spaced so that they take a small part of the
time; the scans between them read the targets that the last full scan found. While every target fills its quota, the next
plans reuse the result of the scan: the claim statement itself checks what is due and whether it may be sent.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from runtime.account_shares import AccountId, AccountShares
from schemas.targets.target import TargetStatus
from schemas.targets.throttle_state import TargetKey, ThrottleState, WorkerShare
from storage.targets import throttle_state_sql
from worker.delivery import throttle
from worker.delivery.target_queues import WaitingClaims

#: The most exports of one claim. An attempt takes 16 parameters; exceeding SQLite's limit of 32,766 parameters would look
#: like a permanent outage.
MAX_BATCH: Final = 500
#: How many claims may wait for a slot: this many times the results of a tick, and at most as many as are sent in _WAITS_S
#: seconds. A claim that has waited for longer than `worker.delivery.attempt.FRESH` is checked in the database again, which
#: took 9 % of the sender threads' time when ticks took 70 ms.
_AHEAD: Final = 2.0
_WAITS_S: Final = 0.12
#: Statuses that end the exports waiting for a target; a pause keeps them waiting.
_TURNED_OFF: Final = frozenset({TargetStatus.BLOCKED, TargetStatus.DISABLED})

#: Targets that one statement reads: a few milliseconds on either database.
TARGETS_PER_QUERY: Final = 256
#: If a full scan takes longer than this, more than a tick can spare, the next scan waits nine times as long: scans get a
#: tenth of the time.
QUICK_SCAN_S: Final = 0.005
REST_FACTOR: Final = 9.0
#: The longest wait after a scan, a sweep's period. If a process or a database stalls during a scan, new exports must not
#: wait for minutes, nor longer than after a lost wake-up.
MAX_REST_S: Final = 1.0
#: The most targets that one scan returns, and that are read between full scans; further targets are read in pages.
MAX_KNOWN: Final = 256
#: If more targets are due, how many of them are read between full scans: four of each of 16 accounts.
KNOWN_OF_MANY: Final = 64
#: How long the result of a scan serves further claims: exports that come due for another target wait no longer than this.
#: A scan of twenty targets took 0.2 ms on SQLite, and 1.3 ms on PostgreSQL, which must skip the dead rows that ticks leave.
SCAN_REUSED_FOR_S: Final = 0.1
_NONE_WAITING: Final = WaitingClaims(Counter(), Counter())
#: Added to "now" if a rest ended during a scan: a time in the past would mean that no export waits.
_AT_ONCE_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The claims to make.

    `quotas` maps targets to numbers of exports, `rate_limited` are those of them with a rate limit, `off` are targets that
    are blocked or disabled.
    """

    quotas: dict[str, int] = field(default_factory=dict)
    rate_limited: list[str] = field(default_factory=list)
    off: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.quotas or self.off)


class DueTargetScanner:
    """Reads the throttle states of targets with due exports, some of each account.

    After a full scan that took longer than `quick_scan_s`, the next one waits, and so do pages after slow pages.
    """

    def __init__(self, quick_scan_s: float = QUICK_SCAN_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._scans, self._pages = _Backoff(quick_scan_s, monotonic), _Backoff(quick_scan_s, monotonic)
        #: The result of the last full scan, whether it has all due targets, when the scan began, and whether to reuse it.
        self._result: list[ThrottleState] = []
        self._is_complete = True
        self._scanned_at = 0.0
        self.is_reusable = False
        #: The ids of the targets that are read between full scans.
        self._known: list[str] = []
        self._was_full = False
        #: The target after which the next page begins.
        self.page_end = ""

    def cached(self) -> list[ThrottleState]:
        """Return the result of the last full scan while it may be reused, else an empty list."""
        is_fresh = self.is_reusable and self._is_complete and self._monotonic() < self._scanned_at + SCAN_REUSED_FOR_S
        return self._result if is_fresh else []

    def scan(self, now: datetime) -> list[ThrottleState]:
        """Return targets with exports due at `now`; if there are more than MAX_KNOWN, some of each account."""
        self.is_reusable = False
        self._was_full = self._scans.left_s() <= 0
        if not self._was_full:
            return throttle_state_sql.due_of(self._known, now)
        self._scanned_at = self._monotonic()
        with self._scans.after():
            self._result = throttle_state_sql.due_by_account(MAX_KNOWN, now)
        self._is_complete = len(self._result) < MAX_KNOWN
        self._known = [state.target_id for state in self._result[: MAX_KNOWN if self._is_complete else KNOWN_OF_MANY]]
        return self._result

    def pages(self, now: datetime) -> Generator[list[ThrottleState], None, None]:
        """Yield the due targets of all accounts, beginning after the last page; nothing if scans find all of them."""
        if self._is_complete or self._pages.left_s() > 0:
            return
        # The caller closes this generator when it has enough targets; the time until then counts as the time of the read.
        with self._pages.after():
            yield from _pages(self.page_end, now)

    def next_scan_at(self, now: datetime) -> datetime | None:
        """Return when to scan again after a scan that found nothing to claim; None if no export waits for a later time."""
        if self._was_full and self._is_complete:
            return throttle_state_sql.next_ready(now)
        rest_s = self._scans.left_s() if self._is_complete else min(self._scans.left_s(), self._pages.left_s())
        return now + timedelta(seconds=max(_AT_ONCE_S, rest_s))


class _Backoff:
    """A rest after work that took longer than `quick_s`."""

    def __init__(self, quick_s: float, monotonic: Callable[[], float]) -> None:
        self._quick_s = quick_s
        self._monotonic = monotonic
        self._until = monotonic()

    def left_s(self) -> float:
        return self._until - self._monotonic()

    @contextmanager
    def after(self) -> Iterator[None]:
        """Rest after the block."""
        began_at = self._monotonic()
        try:
            yield
        finally:
            ended_at = self._monotonic()
            elapsed_s = ended_at - began_at
            self._until = ended_at + (min(MAX_REST_S, REST_FACTOR * elapsed_s) if elapsed_s > self._quick_s else 0)


@dataclass(frozen=True, slots=True)
class _QuotaCollector:
    """Collects, by account, how many claims each target may get, for no more targets than can get a claim.

    `quota` returns the number for one target. Also collects the targets with a rate limit and those that are turned off.
    """

    shares: AccountShares
    satisfied: Collection[AccountId]
    quota: Callable[[ThrottleState], int]
    quotas: dict[AccountId, dict[str, int]] = field(default_factory=dict)
    rate_limited: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)

    def add(self, states: Iterable[ThrottleState]) -> None:
        """Add claims of these targets as far as there is room."""
        for state in states:
            if state.status in _TURNED_OFF:
                self.off.add(state.target_id)
            elif self._has_room(state.account_id) and (quota := self.quota(state)):
                self.quotas.setdefault(state.account_id, {})[state.target_id] = quota
                if state.max_per_minute is not None:
                    self.rate_limited.add(state.target_id)

    def fills_shared(self) -> bool:
        """Return whether there are targets for all shared threads."""
        return sum(map(len, self.quotas.values())) >= self._shared_room()

    def _has_room(self, account_id: int) -> bool:
        room = max(self._shared_room(), self.shares.reserved - self.shares.held(account_id))
        may_take = account_id not in self.satisfied and self.shares.may_take(account_id)
        return may_take and len(self.quotas.get(account_id, ())) < room

    def _shared_room(self) -> int:
        return self.shares.shared - self.shares.total


class ClaimPlanner:
    """Plans the claims of a worker with `threads` shared threads; `share` is its place among the workers."""

    def __init__(self, threads: int, scanner: DueTargetScanner | None = None) -> None:
        self._threads = threads
        self._scanner = scanner or DueTargetScanner()
        #: A target takes half the threads at most, so that a target that hangs leaves threads to the others.
        self._slots_per_target = max(1, threads // 2)
        self._ahead = _AHEAD
        #: By account, the target that got the last claim.
        self._served_last: dict[AccountId, str] = {}
        self.share = WorkerShare()
        #: When the next attempt of any target may start, according to the last plan; None if nothing waits.
        self.ready_at: datetime | None = None
        #: Whether the last plan found a due target for which only another worker has a slot.
        self.has_work_for_other_workers = False

    def slots(self, state: ThrottleState, now: datetime) -> int:
        """Return how many requests to a target this worker may have open at once."""
        return min(self._slots_per_target, throttle.slots(state, self.share, now))

    def plan(
        self, held: Counter[TargetKey], returned: Counter[TargetKey], now: datetime, waiting: WaitingClaims = _NONE_WAITING
    ) -> ClaimPlan:
        """Plan claims for the free room of each account.

        `held` counts this worker's claims by target, without those `returned` in this tick; `waiting` counts those of them
        that no thread is sending yet. Waiting claims do not count against other accounts, and claims that wait for a slot of
        their target do not count against other targets: if a target hangs suddenly, the others must still get free threads.
        """
        self.ready_at, self.has_work_for_other_workers = None, False
        shares, satisfied = self._shares(held, returned, waiting)
        if shares.total >= shares.limit:
            return ClaimPlan()
        cached = self._scanner.cached()
        found = cached or self._scanner.scan(now)
        quota = partial(self._quota, held=held, returned=returned, now=now, shares=shares)
        collector = _QuotaCollector(shares, satisfied, quota)
        # If only reserved threads are free, the scan is enough: it returns targets of every account.
        read = [] if shares.is_reserve else self._add_pages(collector, now)
        collector.add(sorted(found, key=self._after_served))
        quotas = self._allot(collector.quotas, shares)
        if cached:
            self._plan_again_by(now + timedelta(seconds=SCAN_REUSED_FOR_S), now)
        elif not quotas:
            self._plan_again_by(self._scanner.next_scan_at(now), now)
        if read:
            self._scanner.page_end = _last_served(read, quotas)
        return ClaimPlan(quotas, sorted(collector.rate_limited & quotas.keys()), sorted(collector.off))

    def record_claims(self, plan: ClaimPlan, claimed: Counter[str]) -> None:
        """Record the claims made for a plan: if every target filled its quota, the next plan may reuse the scan."""
        self._scanner.is_reusable = all(claimed[target_id] == quota for target_id, quota in plan.quotas.items())

    def scan_again(self) -> None:
        """Base the next plan on a new scan, because a wake-up came."""
        self._scanner.is_reusable = False

    def record_tick(self, tick_s: float) -> None:
        """Set how many claims may wait, from the length of a tick: a claim that waits too long must be checked again."""
        self._ahead = max(1.0, min(_AHEAD, _WAITS_S / max(tick_s, _WAITS_S / _AHEAD)))

    def _shares(
        self, held: Mapping[TargetKey, int], returned: Mapping[TargetKey, int], waiting: WaitingClaims
    ) -> tuple[AccountShares, set[AccountId]]:
        """Return the threads that each account holds, minus the claims it may make for threads that will be free soon.

        Also returns the accounts with more waiting claims than that; these claims do not count against other accounts.
        """
        in_use, back, satisfied = Counter[AccountId](), Counter[AccountId](), set[AccountId]()
        for key, count in held.items():
            in_use[key.account_id] += count
        for key, count in returned.items():
            back[key.account_id] += count
        for account_id in in_use.keys() | back.keys():
            ahead, for_threads = round(self._ahead * back[account_id]), waiting.for_threads[account_id]
            in_use[account_id] -= waiting.for_slots[account_id] + max(ahead, for_threads)
            if for_threads > ahead:
                satisfied.add(account_id)
        return AccountShares(self._threads, held=in_use), satisfied

    def _add_pages(self, collector: _QuotaCollector, now: datetime) -> list[ThrottleState]:
        """Add targets beyond those that scans find until all shared threads have one; return the targets that were read."""
        read: list[ThrottleState] = []
        with closing(self._scanner.pages(now)) as pages:
            for page in pages:
                read += page
                collector.add(page)
                if collector.fills_shared():
                    break
        return read

    def _after_served(self, state: ThrottleState) -> tuple[bool, str]:
        """Return a key that sorts the targets of an account, beginning after the target that got the last claim."""
        return state.target_id <= self._served_last.get(state.account_id, ""), state.target_id

    def _allot(self, quotas_of: Mapping[AccountId, Mapping[str, int]], shares: AccountShares) -> dict[str, int]:
        """Divide the room among accounts, then each account's share among its targets."""
        total_of = {account_id: sum(quotas.values()) for account_id, quotas in quotas_of.items() if quotas}
        given = Counter[AccountId]()
        most = shares.total + MAX_BATCH
        # A heap, because sorting hundreds of accounts again for each claim took 14 ms of a tick.
        queue = [(shares.held(account_id), place, account_id) for place, account_id in enumerate(total_of)]
        heapq.heapify(queue)
        # If the account that holds the fewest threads may take none, no other account may.
        while queue and shares.total < most and shares.may_take(queue[0][-1]):
            _, place, account_id = queue[0]
            shares.take(account_id)
            given[account_id] += 1
            if given[account_id] < total_of[account_id]:
                heapq.heapreplace(queue, (shares.held(account_id), place, account_id))
            else:
                heapq.heappop(queue)
        quotas: dict[str, int] = {}
        for account_id, count in given.items():
            quotas |= (own := throttle.distribute(quotas_of[account_id], count))
            self._served_last[account_id] = next(reversed(own))
        return quotas

    def _quota(
        self,
        state: ThrottleState,
        held: Mapping[TargetKey, int],
        returned: Mapping[TargetKey, int],
        now: datetime,
        shares: AccountShares,
    ) -> int:
        slots, held_here = self.slots(state, now), held.get(state.key, 0)
        self.has_work_for_other_workers = self.has_work_for_other_workers or not slots
        if shares.is_reserve:
            slots = min(slots, shares.half_reserved)
        if state.max_per_minute is None:
            return _room(slots, round(self._ahead * returned.get(state.key, 0)), held_here) if slots else 0
        self._plan_again_by(throttle.rate_allows_from(state), now)
        # With a rate limit, claim only for free slots: claims that wait for a slot would later exceed the limit.
        return min(_room(slots, 0, held_here), throttle.rate_allowance(state, now))

    def _plan_again_by(self, ready_at: datetime | None, now: datetime) -> None:
        """Set `self.ready_at` to this time if it is earlier, and in the future."""
        if ready_at is not None and ready_at > now and (self.ready_at is None or ready_at < self.ready_at):
            self.ready_at = ready_at


def _pages(after_id: str, now: datetime) -> Iterator[list[ThrottleState]]:
    """Yield pages of the due targets after an id, then of those up to it."""
    yield from _pages_between(after_id, None, now)
    if after_id:
        yield from _pages_between("", after_id, now)


def _pages_between(after_id: str, up_to: str | None, now: datetime) -> Iterator[list[ThrottleState]]:
    while True:
        page = throttle_state_sql.due(after_id, TARGETS_PER_QUERY, now)
        if up_to is not None:
            page = [state for state in page if state.target_id <= up_to]
        if page:
            yield page
        if len(page) < TARGETS_PER_QUERY:
            return
        after_id = page[-1].target_id


def _last_served(read: Sequence[ThrottleState], quotas: Collection[str]) -> str:
    """Return the target after which the next page begins: the last target with a claim, or the last target of all.

    Only claims of the account with the most targets count: scans find some targets of the other accounts anyway.
    """
    [(account_id, _)] = Counter(state.account_id for state in read).most_common(1)
    served = [state.target_id for state in read if state.account_id == account_id and state.target_id in quotas]
    return served[-1] if served else read[-1].target_id


def _room(at_once: int, ahead: int, held: int) -> int:
    """Return how many more claims to make: some are sent at once, some wait for a slot."""
    return min(max(0, at_once + ahead - held), MAX_BATCH)
