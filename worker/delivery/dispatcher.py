"""One thread that drains what is due: claim, hand to the pool, write what came back, in one transaction a tick.

The drain owns the database work; the pool's threads own the network, and neither waits for the other. It refuses to claim
more than the pool can soon send, so that what this process holds does not wait here while another one idles; and more of one
target than the target's turn and this worker's share of it allow (`worker.delivery.throttle`), so that none holds up
another.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from runtime import logs
from schemas.exports.delivery import Attempted, Claim
from schemas.targets.throttle_state import ThrottleState
from storage.db.engine import OUTAGES, connection, transaction
from storage.exports import transitions, worker_heartbeats
from storage.targets import throttle_state
from worker import outages
from worker.delivery import target_effects, throttle
from worker.delivery.attempt import AttemptRunner
from worker.delivery.claim_planner import MAX_BATCH, ClaimPlan, ClaimPlanner
from worker.delivery.due_targets import QUICK_SCAN_S, DueTargets
from worker.delivery.target_queues import TargetQueues

#: A commit costs a disk sync: at 20 ms it is shared by dozens of deliveries and still felt by nobody. A tick is twice as
#: long while every thread is busy and more waits for one: whatever would be claimed then, would only wait too.
TICK_S: Final = 0.02
#: Due times are whole milliseconds; waking a little early would only mean looking twice.
MIN_SLEEP_S: Final = 0.005
#: With answers outstanding and none coming, how soon to look whether something else has come due.
PATIENCE_S: Final = 0.5
#: Held claims are renewed every 2 s and lapse after 6 s, so that a worker that died is replaced within 10 s.
RENEW_S: Final = 2.0
LEASE_S: Final = 6.0
#: How long one ring may keep its RQ job; the next ring carries on.
SLICE_S: Final = 25.0
#: How long the writes of a stopping worker may wait for a database that is away.
FAREWELL_S: Final = 10.0
#: A wall clock that leaves the monotonic one by more was set. Leases are measured by it, so every worker renews its own,
#: which takes them `renew_s`, before anybody takes a lease for lapsed.
CLOCK_STEP_S: Final = 1.0
AFTER_A_STEP: Final = 1.5  # times `renew_s`
#: After a sign of life that could not be given, how soon to try again.
RENEW_AGAIN_S: Final = 0.5

Result = TypeVar("Result")

_log: Final = logging.getLogger(__name__)


class Returned(NamedTuple):
    """A claim that came back from the pool: with its attempt, unsent, or with neither where the attempt broke off.

    One that `ends_turn` has closed its lane until it is written.
    """

    claim: Claim
    attempted: Attempted | None = None
    is_unsent: bool = False
    pauses_queue: bool = False


@dataclass(frozen=True, slots=True)
class DispatcherOptions:
    """How a worker process drains."""

    worker: str
    concurrency: int
    sweep_s: float
    now: Callable[[], datetime]
    lease_s: float = LEASE_S
    renew_s: float = RENEW_S
    farewell_s: float = FAREWELL_S
    quick_scan_s: float = QUICK_SCAN_S
    #: Puts `now` right by the clock that all hosts share, from time to time; a connection is held then.
    compare_clocks: Callable[[], None] = lambda: None
    #: Told of attempts once they are written, and of the exports that they moved.
    count: Callable[[Sequence[Attempted], Collection[str]], None] = lambda _attempts, _moved: None


class Dispatcher:
    """Delivers what is due when it is woken, and looks by itself every `sweep_s` seconds."""

    def __init__(self, runner: AttemptRunner, terms: DispatcherOptions) -> None:
        self._runner = runner
        self._terms = terms
        self._held: dict[int, Claim] = {}
        self._queues = TargetQueues()
        #: What the pool sends back, and rings: events that are set when they are answered, None where nobody waits for that.
        #: One queue for both, so that either ends the wait for the other, and a simple one, because a signal handler may put
        #: into it at any moment.
        self._inbox: queue.SimpleQueue[Returned | threading.Event | None] = queue.SimpleQueue()
        #: Rings that were heard: the look that follows answers them.
        self._heard: list[threading.Event] = []
        self._renew_at = 0.0
        #: When the last sign of life was given; None before the first one.
        self._renewed_at: float | None = None
        #: Both clocks at the last tick, and from when on the monotonic one lets this worker claim.
        self._clocks: tuple[datetime, float] | None = None
        self._claim_from = 0.0
        #: When something was last claimed, by the monotonic clock.
        self._claimed_at = 0.0
        #: Turns as the last tick saw them, but for those that it changed.
        self._seen: dict[str, ThrottleState] = {}
        self._planner = ClaimPlanner(terms.concurrency, DueTargets(terms.quick_scan_s))
        self._stopped_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="dispatcher")

    def start(self) -> None:
        """Start the thread; its first look is at once."""
        self._inbox.put(None)
        for number in range(self._terms.concurrency):
            threading.Thread(target=self._send_claims, name=f"delivery-{number}", daemon=True).start()
        self._thread.start()

    def deliver_due(self, timeout_s: float = SLICE_S) -> None:
        """Wake the thread and wait until nothing is due, at most `timeout_s` seconds."""
        # Of its own: a look that began before this ring may end after it, and says nothing of what came meanwhile.
        answered = threading.Event()
        self._inbox.put(answered)
        answered.wait(timeout_s)

    @property
    def leaves_to_others(self) -> bool:
        """Tell whether the last look saw something due that another worker is to send."""
        return self._planner.leaves_to_others

    def stop(self) -> None:
        """Claim nothing more; what is being sent is finished, what was not begun is given back.

        Takes no lock, so that a signal handler may call it.
        """
        self._stopped_at = min(self._stopped_at, time.monotonic())
        self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread after `stop`; tell whether it ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_stopping(self) -> bool:
        return self._stopped_at < float("inf")

    def _run(self) -> None:
        while not self._is_stopping():
            if not self._held:
                self._wait_for_a_ring()
            self._safely(self._until_nothing_is_due)
            self._answer()
        self._safely(self._give_back_what_was_not_begun)
        self._safely(self._until_nothing_is_held)
        self._safely(self._leave)
        self._queues.end(self._terms.concurrency)
        self._hear_rings()
        self._answer()

    def _send_claims(self) -> None:
        """What each thread of the pool does: make one attempt after the other."""
        claim = self._queues.take()
        while claim is not None:
            returned = self._send(claim)
            following = self._queues.after(claim, pauses_queue=returned.pauses_queue)
            self._inbox.put(returned)
            claim = following or self._queues.take()

    def _send(self, claim: Claim) -> Returned:
        try:
            attempted = self._runner.deliver(claim)
        except Exception:  # noqa: BLE001 - the thread must go on; the claim is left to lapse
            _log.exception("attempt broke off", extra={"export_id": claim.export_id, "target_id": claim.target_id})
            logs.concern()
            return Returned(claim, pauses_queue=True)
        if attempted is None:
            return Returned(claim, is_unsent=True, pauses_queue=True)
        return Returned(claim, attempted, pauses_queue=attempted.verdict.effect.pauses_queue)

    def _wait_for_a_ring(self) -> None:
        """Sleep until a ring, the next sweep or the next due time; the look that follows answers every ring until then."""
        self._next(self._until_next_look_s())
        self._hear_rings()

    def _hear_rings(self) -> None:
        """Hear the rings that are there, where nothing is held and so nothing else can be."""
        while not self._inbox.empty():
            self._next(0)

    def _answer(self) -> None:
        for ring in self._heard:
            ring.set()
        self._heard.clear()

    def _until_next_look_s(self) -> float:
        """Return the sweep's period, or less where an attempt may start or a sign of life is due before that."""
        if not self._inbox.empty():
            return 0.0
        until_s = min(self._terms.sweep_s, max(0.0, self._renew_at - time.monotonic()))
        if self._planner.ready_at is None or self._is_stopping():
            return until_s
        return min(until_s, max(MIN_SLEEP_S, (self._planner.ready_at - self._terms.now()).total_seconds()))

    def _safely(self, work: Callable[[], None]) -> None:
        """Keep the thread alive through what it does not expect; what is being sent stays held and is written later."""
        try:
            work()
        except Exception:  # noqa: BLE001 - the next look begins anew, and nothing is lost: the table is the truth
            _log.exception("drain broke off")

    def _until_nothing_is_due(self) -> None:
        while not self._is_stopping():
            claims = self._tick(claiming=True)
            if not claims and not self._held:
                return

    def _until_nothing_is_held(self) -> None:
        while self._held:
            self._tick(claiming=False)
            # What a thread met in a lane that had closed was not begun either.
            self._give_back_what_was_not_begun()
            self._answer()

    def _tick(self, *, claiming: bool) -> list[Claim]:
        """Write what came back since the last tick and claim what there is room for, in one transaction."""
        returned = self._returned()
        # A tick that was not written has seen nothing that the next one could go by.
        self._seen = {}
        try:
            claims = self._write(returned, claiming=claiming)
        finally:
            # Written or not, it came back and is held no longer: what could not be written lapses and is sent again.
            for each in returned:
                del self._held[id(each.claim)]
                if each.pauses_queue:
                    self._queues.written(each.claim.target_id)
        self._held |= {id(claim): claim for claim in claims}
        self._queues.add(claims)
        if claiming:
            self._persistently(self._open_queues)
        return claims

    def _write(self, returned: list[Returned], *, claiming: bool) -> list[Claim]:
        """Write a tick; an answer that the database refuses is left out and does not take the others with it."""
        try:
            return self._persistently(lambda: self._write_and_claim(returned, claiming=claiming))
        except OUTAGES:
            raise
        except Exception:
            if not returned:
                raise
            _log.exception("tick not written, writing its answers one by one")
        for each in returned:
            self._safely(partial(self._write_alone, each))
        return []

    def _write_alone(self, returned: Returned) -> None:
        self._persistently(lambda: self._write_and_claim([returned], claiming=False))

    def _returned(self) -> list[Returned]:
        """Collect what the pool sends back: wait for the first, let a tick pass where more is out, take what is there."""
        first = self._next(min(PATIENCE_S, self._until_next_look_s())) if self._held else None
        if first is None:
            return []
        returned = [first]
        if len(self._held) > 1:
            # Asleep, not waiting for each: every one that woke this thread would hold up those that send.
            time.sleep(TICK_S)
            if self._queues.is_ahead():
                time.sleep(TICK_S)
        while len(returned) < MAX_BATCH and (another := self._next(0)) is not None:
            returned.append(another)
        return returned

    def _next(self, timeout_s: float) -> Returned | None:
        """Return what came back next; None when a ring or nothing came."""
        try:
            came = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(came, Returned):
            return came
        if came is not None:
            self._heard.append(came)
        self._planner.look_anew()
        return None

    def _write_and_claim(self, returned: list[Returned], *, claiming: bool) -> list[Claim]:
        worker = self._terms.worker
        attempts = [each.attempted for each in returned if each.attempted is not None]
        # Once a tick, and before a database is waited for.
        logs.write_waiting()
        with connection():
            # Not before: a connection may be long in coming, and would make it look as if the clock had been set.
            self._watch_clock()
            now = self._terms.now()
            self._renew()
            claiming = claiming and time.monotonic() >= self._claim_from
            # A look costs no write lock; most looks of an idle daemon end here. What came back may change what it sees.
            plan = self._plan(returned, now) if claiming and not returned else ClaimPlan()
            if not (returned or plan):
                return []
            with transaction():
                moved = transitions.record_attempts(attempts, now, worker)
                news = self._mark_targets(target_effects.effects_of(attempts, moved), now)
                transitions.postpone([each.claim for each in returned if each.is_unsent], now, worker)
                # Others may have kept the transaction waiting for as long as most of a lease.
                now = self._terms.now()
                claiming = claiming and not self._was_set_by(now)
                claims = self._claim(plan or self._plan(returned, now), now) if claiming else []
            _log_late(attempts, moved)
            self._terms.count(attempts, moved)
            target_effects.tell(news)
        return claims

    def _mark_targets(self, effects: target_effects.Effects, now: datetime) -> list[target_effects.News]:
        """Write what attempts say about their targets; of these, and of those that something waits for, see the turns."""
        seen = throttle_state.read(sorted({*effects, *self._queues.waiting()}))
        changed = target_effects.changed_by(effects, seen, now)
        self._seen = {target_id: state for target_id, state in seen.items() if target_id not in changed}
        return target_effects.write(changed, effects, now, self._terms.worker)

    def _plan(self, returned: Sequence[Returned], now: datetime) -> ClaimPlan:
        back = Counter(each.claim.target_id for each in returned)
        held = Counter(claim.target_id for claim in self._held.values())
        held.subtract(back)
        self._planner.tick_took(time.monotonic() - self._claimed_at)
        return self._planner.plan(held, back, now, self._queues.behind())

    def _claim(self, plan: ClaimPlan, now: datetime) -> list[Claim]:
        """Take what the plan says, and end what waits for targets that were turned off."""
        transitions.end_waiting(plan.off, now, self._terms.worker, MAX_BATCH)
        # Another worker may have used up the pace since the look; from here on it waits. Where one is at it just now, it is
        # left to that one: two that mark each other's targets would wait for each other in a ring.
        paced = throttle_state.read(sorted(plan.paced), locked=True, waits=False)
        pace = dict.fromkeys(plan.paced, 0) | {target_id: throttle.pace(state, now) for target_id, state in paced.items()}
        quotas = {target_id: min(quota, pace.get(target_id, quota)) for target_id, quota in plan.quotas.items()}
        allowed = {target_id: quota for target_id, quota in quotas.items() if quota}
        claims = transitions.claim_due(allowed, now, self._terms.lease_s, self._terms.worker)
        self._claimed_at = time.monotonic()
        taken = Counter(claim.target_id for claim in claims)
        self._planner.took(plan, taken)
        throttle_state.write(
            throttle.paced(state, taken[target_id], now) for target_id, state in paced.items() if taken[target_id]
        )
        return claims

    def _open_queues(self) -> None:
        """Let wait what its target's turn allows now, and send for no other target; what must wait is given back."""
        waiting, now = self._queues.waiting(), self._terms.now()
        # What this tick has just read, in its transaction, need not be read once more: it was as dear as the claim.
        found = {target_id: state for target_id, state in self._seen.items() if target_id in waiting}
        if unseen := sorted(waiting - found.keys()):
            with connection():
                found |= throttle_state.read(unseen)
        for target_id, state in found.items():
            count = self._planner.slots(state, now)
            self._queues.open(target_id, count)
            for claim in self._queues.take_back(target_id) if not count else ():
                self._inbox.put(Returned(claim, is_unsent=True))

    def _watch_clock(self) -> None:
        """Notice that the wall clock was set, and keep leases as long as they were meant to be."""
        if time.monotonic() >= self._renew_at:
            self._terms.compare_clocks()
        is_first, step_s = self._clocks is None, self._step_s()
        if abs(step_s) > CLOCK_STEP_S:
            # It may have been put right, and then it is the difference to the shared one that was wrong.
            self._terms.compare_clocks()
            step_s += self._step_s()
        if abs(step_s) > CLOCK_STEP_S:
            _log.warning("clock was set, renewing leases before claiming again", extra={"step_s": round(step_s)})
            self._renew_at = 0.0
            self._claim_from = time.monotonic() + AFTER_A_STEP * self._terms.renew_s
        if is_first or step_s < -CLOCK_STEP_S:
            # Whoever died before a step back left leases that would last until the old time comes again.
            transitions.shorten_leases(self._terms.now(), self._terms.lease_s)

    def _step_s(self) -> float:
        """Return by how many seconds the wall clock has left the monotonic one since the last time; 0 the first time."""
        before, self._clocks = self._clocks, (self._terms.now(), time.monotonic())
        return 0.0 if before is None else _apart_s(before, self._clocks)

    def _was_set_by(self, now: datetime) -> bool:
        """Tell whether the clock was set since this tick looked: by what it shows now, leases that are held seem to be over.

        The next tick renews those of this worker.
        """
        return self._clocks is not None and abs(_apart_s(self._clocks, (now, time.monotonic()))) > CLOCK_STEP_S

    def _renew(self) -> None:
        """Show that this worker lives: renew the leases of what it holds, and learn its share of the targets."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + RENEW_AGAIN_S
        held = list(self._held.values())
        with transaction():
            # Once it has begun: a lease counted from before the wait for it would be short of that wait.
            now = self._terms.now()
            for first in range(0, len(held), MAX_BATCH):
                transitions.renew(held[first : first + MAX_BATCH], now, self._terms.lease_s)
            self._planner.share = worker_heartbeats.beat(self._terms.worker, now)
        self._let_others_renew()
        self._renewed_at = time.monotonic()
        self._renew_at = self._renewed_at + self._terms.renew_s

    def _let_others_renew(self) -> None:
        """Claim nothing for a while after a sign of life that came so late that others' leases may have lapsed.

        What kept this worker from it, a database that was away or a machine that stood still, kept the others from it too;
        what they hold is theirs still.
        """
        late_s = self._terms.lease_s - self._terms.renew_s
        if self._renewed_at is not None and time.monotonic() - self._renewed_at > late_s:
            self._claim_from = time.monotonic() + AFTER_A_STEP * self._terms.renew_s

    def _give_back_what_was_not_begun(self) -> None:
        unsent = self._queues.take_back_all()
        for claim in unsent:
            del self._held[id(claim)]
        if unsent:
            self._persistently(lambda: self._postpone(unsent))

    def _postpone(self, unsent: list[Claim]) -> None:
        with connection():
            transitions.postpone(unsent, self._terms.now(), self._terms.worker)

    def _leave(self) -> None:
        with connection():
            worker_heartbeats.remove(self._terms.worker)

    def _persistently(self, work: Callable[[], Result]) -> Result:
        """Try again while the database is away: what came back from receivers is nowhere else."""
        retrying = Retrying(
            retry=retry_if_exception_type(OUTAGES),
            wait=wait_exponential(multiplier=0.05, max=1.0),
            stop=self._has_waited_enough,
            before_sleep=_log_outage,
            reraise=True,
        )
        result = retrying(work)
        outages.DATABASE.over()
        return result

    def _has_waited_enough(self, _state: RetryCallState) -> bool:
        return time.monotonic() - self._stopped_at > self._terms.farewell_s


def _apart_s(before: tuple[datetime, float], after: tuple[datetime, float]) -> float:
    """Return by how many seconds a wall clock has left the monotonic one between two looks at both."""
    return (after[0] - before[0]).total_seconds() - (after[1] - before[1])


def _log_outage(state: RetryCallState) -> None:
    failure = state.outcome.exception() if state.outcome else None
    outages.DATABASE.note(failure)


def _log_late(attempts: list[Attempted], moved: set[str]) -> None:
    for attempt in attempts:
        if attempt.claim.export_id not in moved:
            fields = {
                "export_id": attempt.claim.export_id,
                "attempt_id": attempt.id,
                "target_id": attempt.claim.target_id,
            }
            _log.warning("lease lapsed before the answer was written", extra=fields)
