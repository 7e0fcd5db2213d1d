"""Lets a command finish its current batch when it is interrupted."""

import signal
from types import FrameType
from typing import Any, Self


class Interruption:
    """Records the first SIGINT or SIGTERM, so that the current batch is finished; a second one ends the command."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.is_wanted = True
        signal.signal(number, self._before[number])
