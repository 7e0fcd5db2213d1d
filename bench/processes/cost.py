"""Processor time and memory of processes, from /proc."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
#: Places among the numbers after a process's name (proc(5)): the user's and the system's share, and the same of its children
#: that have ended.
_SHARES: Final = slice(11, 15)


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that processes have taken so far, in seconds: all their threads, and children that ended."""
    return sum(_ticks(pid) for pid in pids) / _TICKS_A_SECOND


def resident_mb(pid: int) -> float:
    """Return the memory of a process that is in RAM now, in MB of a million bytes."""
    return _memory_mb(pid, "status", "VmRSS:")


def proportional_mb(pid: int) -> float:
    """Return the same with each page that is shared divided by those that share it."""
    return _memory_mb(pid, "smaps_rollup", "Pss:")


def family(pid: int) -> list[int]:
    """Return a process, those that it has started, and those that they have."""
    children = [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    return [pid, *(each for child in children for each in family(child))]


def _memory_mb(pid: int, file: str, name: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"Process {pid} has no memory any more.")


def _ticks(pid: int) -> int:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(number) for number in numbers[_SHARES])
