"""Does the work of a request and takes it back: a dry run answers with what the work itself returned.

So it refuses whatever the work would refuse, and says what would be stored. Nothing that the work may not do inside a
transaction, such as asking the network or ringing for a worker, has a place in it.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from storage.db import engine

_Result = TypeVar("_Result")


class _RollBack(Exception):
    """Takes back what was done."""


def run_and_roll_back(work: Callable[[], _Result]) -> _Result:
    """Return what `work` returns, with nothing stored of what it did. Raises what it raises."""
    with suppress(_RollBack), engine.transaction():
        result = work()
        raise _RollBack
    return result
