"""Checkpoints: long-running work calls a function between its parts, so that the caller can yield to other work."""

from collections.abc import Callable
from typing import TypeAlias

#: Called between parts of the work; the service yields to other requests in it.
Checkpoint: TypeAlias = Callable[[], object]


def no_checkpoint() -> None:
    """Continue at once."""
