"""Processor time and memory of processes, from /proc."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
#: Indexes of utime, stime, cutime and cstime among the fields after the process name (proc(5)). The last two are those of
#: children that have ended.
_CPU_FIELDS: Final = slice(11, 15)


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that processes have used so far, in seconds: of all threads, and of children that ended."""
    return sum(_ticks(pid) for pid in pids) / _TICKS_A_SECOND


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, in MB of a million bytes."""
    return _memory_mb(pid, "status", "VmRSS:")


def proportional_mb(pid: int) -> float:
    """Return the proportional memory (PSS) in MB: each shared page counts divided by the number of its processes."""
    return _memory_mb(pid, "smaps_rollup", "Pss:")


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children = [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    return [pid, *(each for child in children for each in process_tree(child))]


def _memory_mb(pid: int, file: str, name: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"Process {pid} has ended.")


def _ticks(pid: int) -> int:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(number) for number in numbers[_CPU_FIELDS])
