"""A fake Gitea as a separate process: `python -m soak.receivers.tracker FOLDER NUMBER PORT SEED BEGAN_MS FAULTY`.

Records in FOLDER each request to create an issue before it decides about it, each new issue, comment and state, and each
lookup; a killed tracker reads them again when it restarts. After a line on standard input it always accepts; it exits at the
end of that input.
"""

import json
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from soak.receivers.behaviors import BEHAVIOR_S, FAULTY_PERIODS, FAULTY_REQUESTS
from soak.receivers.event_log import ISSUES, EventLog, read
from tests.support.fakes import Peer, ReceivedRequest
from tests.support.trackers.servers import FakeGitea, Refusal

#: Targets number 2, 8, 14, … are repositories of trackers; none of these always accepts or is paused by clients.
_TRACKER_EVERY: Final = 6
_FIRST_TRACKER: Final = 2
#: The id of an export; the product finds an issue again by the id in its text.
_MARKER: Final = re.compile(r"exp_[0-9A-Z]{26}")
_EVENT: Final = re.compile(r"evt_[0-9A-Z]{26}")
#: The status of a permanent rejection.
REFUSED: Final = 422
#: Longer than the worker's deadline (3 s), and shorter than that plus the delay before a lookup (5 s).
_LATE_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class TrackerBehavior:
    """The behavior for a request to create an issue: whether it creates it, and what it responds.

    `response` replaces the successful one; without `responds` the connection is closed. If `is_outage`, lookups fail, too.
    """

    name: str
    weight: int = 1
    response: Refusal | None = None
    creates: bool = False
    responds: bool = True
    before_s: float = 0.0
    after_s: float = 0.0
    is_outage: bool = False

    @property
    def status(self) -> int | None:
        """The status that it sends; None without a response."""
        if not self.responds:
            return None
        return self.response.status if self.response else 201


_CREATES: Final = TrackerBehavior("creates", creates=True)
_GOOD: Final = (_CREATES, TrackerBehavior("creates slowly", creates=True, after_s=0.4))
_FAULTY: Final = (
    TrackerBehavior("loses the request", weight=3, responds=False, is_outage=True),
    TrackerBehavior("loses the response", weight=5, creates=True, responds=False),
    TrackerBehavior("is broken", weight=3, response=Refusal(500), is_outage=True),
    TrackerBehavior("is broken once it has created", weight=2, response=Refusal(502), creates=True),
    TrackerBehavior("responds too late", weight=2, creates=True, after_s=_LATE_S),
    TrackerBehavior("creates too late", weight=2, creates=True, before_s=_LATE_S),
    TrackerBehavior("limits the rate", weight=3, response=Refusal(429, {"Retry-After": "1"}), is_outage=True),
    TrackerBehavior("refuses the ticket", response=Refusal(REFUSED, body=b'{"message": "[Title]: MaxSize"}')),
)


def is_tracker(target: int) -> bool:
    """Return whether a target is a repository of a tracker."""
    return target % _TRACKER_EVERY == _FIRST_TRACKER


def tracker_behavior_of(seed: int, tracker: int, elapsed_s: float, request: int) -> TrackerBehavior:
    """Return a tracker's behavior for its request number `request`, `elapsed_s` seconds into the run."""
    period_rng = random.Random(f"{seed}:tracker:{tracker}:{int(elapsed_s / BEHAVIOR_S)}")
    request_rng = random.Random(f"{seed}:create:{tracker}:{request}")
    if period_rng.random() < FAULTY_PERIODS and request_rng.random() < FAULTY_REQUESTS:
        # Chosen for each request: otherwise one period would have one fault, after whose rejection each target waits.
        [behavior] = request_rng.choices(_FAULTY, [behavior.weight for behavior in _FAULTY])
        return behavior
    return request_rng.choice(_GOOD)


class SoakGitea(FakeGitea):
    """A fake Gitea whose behavior depends on the seed, and which keeps its issues in a file."""

    def __init__(self, folder: Path, number: int, port: int, seed: int, began_at: float) -> None:
        path = folder / ISSUES.format(number)
        super().__init__(port=port)
        for line in read(path):
            match line["what"]:
                case "issue":
                    self.issues.append(line["issue"])
                case "comment":
                    made = self.comments.setdefault(int(line["issue"]), [])
                    made.append({"id": len(made) + 1, "body": line["event"]})
                case "state":
                    self.issues[int(line["issue"]) - 1]["state"] = line["state"]
        self.is_faulty = True
        self._events = EventLog(path)
        self._number = number
        self._seed = seed
        self._began_at = began_at
        self._request_count = 0

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._events.close()

    def _response_to(self, request: ReceivedRequest, peer: Peer) -> Refusal | None:
        # Do not keep requests in memory: a run of hours has many, and the file records them.
        self.requests.clear()
        if self._path_of(request) == ("GET", "/issues"):
            behavior = self._behavior()
            self._events.append("lookup", behavior=behavior.name)
            if behavior.is_outage:
                return behavior.response
        return super()._response_to(request, peer)

    def _create(self, request: ReceivedRequest, peer: Peer) -> Refusal | None:
        ticket = json.loads(request.body)
        if not ticket["title"]:
            return super()._create(request, peer)  # a validation
        behavior, exports = self._behavior(), sorted(set(_MARKER.findall(ticket["body"])))
        self._events.append("create", exports=exports, behavior=behavior.name, status=behavior.status)
        time.sleep(behavior.before_s)
        response = behavior.response
        if behavior.creates:
            with self._lock:
                issue = self._issue_of(ticket)
                self._events.append("issue", exports=exports, issue=issue)
                self.issues.append(issue)
            response = response or Refusal(201, {}, json.dumps(issue).encode())
        time.sleep(behavior.after_s)
        return response if behavior.responds else None

    def _of_issue(self, method: str, number: str, below: str = "", *, content: bytes) -> Refusal | None:
        if method == "GET":
            return super()._of_issue(method, number, below, content=content)
        changes = json.loads(content)
        if not below:
            # Never fails: after an unknown outcome, the product would assume that a person has reopened the issue.
            if "state" in changes:
                self._events.append("state", issue=number, state=changes["state"])
            return super()._of_issue(method, number, below, content=content)
        behavior = self._behavior()
        if behavior.response is not None and behavior.response.status == REFUSED:
            behavior = _CREATES
        time.sleep(behavior.before_s)
        response = behavior.response
        if behavior.creates:
            self._events.append("comment", issue=number, event=_EVENT.findall(changes["body"])[-1])
            made = super()._of_issue(method, number, below, content=content)
            response = response or made
        time.sleep(behavior.after_s)
        return response if behavior.responds else None

    def _behavior(self) -> TrackerBehavior:
        if not self.is_faulty:
            return _CREATES
        self._request_count += 1
        return tracker_behavior_of(self._seed, self._number, time.time() - self._began_at, self._request_count)


def main(folder: str, number: str, port: str, seed: str, began_ms: str, faulty: str) -> None:
    """Listen at `port` and serve."""
    with SoakGitea(Path(folder), int(number), int(port), int(seed), int(began_ms) / 1000) as tracker:
        tracker.is_faulty = faulty == "faulty"
        while sys.stdin.readline():
            tracker.is_faulty = False


if __name__ == "__main__":
    main(*sys.argv[1:])
