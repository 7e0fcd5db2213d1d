"""What was asked, what was acknowledged and what arrived: files of JSON lines, each appended to by one process.

They stand outside of the product and outlive whoever is killed: a line is with the kernel before what it tells of goes on.
"""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ACTS: Final = "acts.jsonl"
ARRIVALS: Final = "arrivals-{}.jsonl"


def now_ms() -> int:
    """Return the wall time, in milliseconds since 1970, as the tables have it."""
    return int(time.time() * 1000)


class EventLog:
    """A file that lines are appended to, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._turn = threading.Lock()

    def note(self, what: str, **told: Any) -> int:
        """Append a line and return its time, in milliseconds since 1970."""
        with self._turn:
            at = now_ms()
            self._file.write(json.dumps({"what": what, "at": at, **told}) + "\n")
            self._file.flush()
            return at

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; the last one of a process that was killed may be half a line."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue
