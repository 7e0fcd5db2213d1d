"""A separate process with a fake Gitea that creates issues at once and counts: `python -m bench.servers.instant_tracker`.

It prints the URL of its repository, then the counts as JSON for each line on standard input; it exits at the end of that
input.
"""

import json
import sys
import time
from typing import Any

from tests.support.fakes import Peer, ReceivedRequest
from tests.support.trackers.servers import FakeGitea, Refusal


class CountingGitea(FakeGitea):
    """A fake Gitea that records when requests to create an issue arrived, in seconds of the machine's monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived_at: list[float] = []

    def record(self) -> dict[str, Any]:
        """Return the counts: creates, issues, lookups, all requests; first_at and last_at; cpu_s of this process."""
        return {
            "creates": len(self._arrived_at),
            "issues": len(self.issues),
            "lookups": self.lookups,
            "requests": len(self.requests),
            "first_at": min(self._arrived_at, default=None),
            "last_at": max(self._arrived_at, default=None),
            "cpu_s": time.process_time(),
        }

    def _create(self, request: ReceivedRequest, peer: Peer) -> Refusal | None:
        self._arrived_at.append(time.monotonic())
        return super()._create(request, peer)


def main() -> None:
    """Serve until standard input ends."""
    with CountingGitea() as tracker:
        print(tracker.base_url, flush=True)
        for _ in sys.stdin:
            print(json.dumps(tracker.record()), flush=True)


if __name__ == "__main__":
    main()
