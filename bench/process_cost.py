"""What processes cost, as the kernel counts it under /proc: processor time and memory."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
#: Places of the user's and the system's share among the numbers after a process's name (proc(5)).
_USER, _SYSTEM = 11, 12


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that processes have taken so far, all their threads, in seconds."""
    return sum(_ticks(pid) for pid in pids) / _TICKS_A_SECOND


def resident_mb(pid: int) -> float:
    """Return the memory of a process that is in RAM now, in MB of a million bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"Process {pid} has no memory any more.")


def _ticks(pid: int) -> int:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(numbers[_USER]) + int(numbers[_SYSTEM])
