"""Records of requests, acknowledgements and arrivals: files of JSON lines, each written by one process.

The product does not access them. They survive a killed process: each line is passed to the kernel before the process
continues.
"""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ACTS: Final = "acts.jsonl"
ARRIVALS: Final = "arrivals-{}.jsonl"
ISSUES: Final = "issues-{}.jsonl"


def now_ms() -> int:
    """Return the wall time in milliseconds since 1970, as in the tables."""
    return int(time.time() * 1000)


class EventLog:
    """Appends lines to a file; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def append(self, what: str, **details: Any) -> int:
        """Append a line for the event `what` and return its time, in milliseconds since 1970."""
        with self._lock:
            at = now_ms()
            self._file.write(json.dumps({"what": what, "at": at, **details}) + "\n")
            self._file.flush()
            return at

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; skips an incomplete last line of a killed process."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue
