"""What `bin/check-bare` does within the bare system: an operator's first hour, with the promised figures.

Standard library only: it runs under the system's own Python, before anything is set up.
"""

import atexit
import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

#: What the README and the design promise; times are of a machine with two cores.
FIRST_START_S: Final = 90
SECOND_START_S: Final = 5
INSTALLED_MB: Final = 150
IDLE_MEMORY_MB: Final = 300
IDLE_PERCENT: Final = 2.0
IDLE_FOR_S: Final = 20
PORT: Final = 8911


def main() -> int:
    """Go through it all; the exit code is 1 where a promise does not hold."""
    os.chdir(sys.argv[1])
    os.environ["BIND"] = f"127.0.0.1:{PORT}"
    broken: list[str] = []

    def hold(what: str, found: float, limit: float, unit: str) -> None:
        print(f"  {what:28} {found:8.1f} {unit:3} (at most {limit:g})", flush=True)
        if found > limit:
            broken.append(what)

    process, took_s = started()
    hold("set-up and first start", took_s, FIRST_START_S, "s")
    doctor = command("doctor", "--json")
    print(f"  doctor says                  {doctor['status']}")
    if doctor["status"] == "failure":
        broken.append(f"doctor: {doctor['checks']}")
    backup = command("backup", str(Path("data/first.backup")), "--json")
    print(f"  backup                       {backup['bytes']} bytes")
    hold("idle memory (PSS)", memory_mb(family(process.pid)), IDLE_MEMORY_MB, "MB")
    hold("idle processor", idle_percent(process.pid), IDLE_PERCENT, "%")
    stopped(process, broken)

    settings = Path(".env").read_bytes()
    process, took_s = started()
    hold("second start", took_s, SECOND_START_S, "s")
    stopped(process, broken)
    if Path(".env").read_bytes() != settings:
        broken.append("the second start changed .env")
    hold("installed", size_mb(Path(".venv")), INSTALLED_MB, "MB")

    restored = command("restore", "data/first.backup", "--replace", "--json")
    print(f"  restore                      {restored}")
    subprocess.run(["make", "clean"], check=True, stdout=subprocess.DEVNULL)
    if Path(".venv").exists() or not Path(".env").exists() or not Path("data/riskrelay.db").exists():
        broken.append("make clean removed the wrong things")
    subprocess.run(["make", "setup"], check=True, stdout=subprocess.DEVNULL)
    for what in broken:
        print(f"  BROKEN: {what}")
    return 1 if broken else 0


def started() -> tuple[subprocess.Popen[bytes], float]:
    """Start `make run` on a terminal of its own, as a person would; return it with the seconds until it was ready."""
    began = time.monotonic()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["make", "run"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    atexit.register(end, process)
    os.close(theirs)
    os.set_blocking(ours, False)
    said = b""
    while b"is ready at" not in said:
        if process.poll() is not None or time.monotonic() - began > 10 * FIRST_START_S:
            sys.exit(f"make run did not get ready:\n{said.decode(errors='replace')}")
        time.sleep(0.05)
        try:
            said += os.read(ours, 65536)
        except OSError:  # nothing said yet, or the terminal is closed and the next look tells why
            continue
    return process, time.monotonic() - began


def stopped(process: subprocess.Popen[bytes], broken: list[str]) -> None:
    """Press Ctrl-C and see that everything ends."""
    pids = family(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(60)
    # make itself reports an interrupt as 2 or 130, and 0 where the command ended well.
    print(f"  stopped with                 {code}")
    left = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and state(pid) != "Z"]
    if left:
        broken.append(f"processes that outlived Ctrl-C: {left}")
    if port_answers():
        broken.append("the port still answers")


def end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind, whatever broke."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def port_answers() -> bool:
    """Tell whether anything answers on our port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=2):
            return True
    except OSError:
        return False


def command(*words: str) -> dict[str, Any]:
    """Run a command that prints one JSON document, and return it."""
    done = subprocess.run(["bin/riskrelay", *words], capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(f"riskrelay {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def family(pid: int) -> list[int]:
    """Return a process with all its descendants."""
    parents = {int(each.name): parent(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdecimal()}
    found = [pid]
    for each in found:
        found += [child for child, its in parents.items() if its == each]
    return found


def fields(pid: int) -> list[str]:
    """Return what /proc tells of a process after its name, which may hold spaces; nothing for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0", *["0"] * 20]


def state(pid: int) -> str:
    """Return the letter of a process's state."""
    return fields(pid)[0]


def parent(pid: int) -> int:
    """Return the process that started another one."""
    return int(fields(pid)[1])


def memory_mb(pids: list[int]) -> float:
    """Return what processes hold, with shared pages counted once."""
    kilobytes = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kilobytes += int(line.split()[1])
    return kilobytes / 1000


def idle_percent(pid: int) -> float:
    """Return the share of one core that a family of processes takes while nobody asks anything."""
    ticks = os.sysconf("SC_CLK_TCK")
    time.sleep(5)
    before = sum(int(fields(each)[11]) + int(fields(each)[12]) for each in family(pid))
    time.sleep(IDLE_FOR_S)
    after = sum(int(fields(each)[11]) + int(fields(each)[12]) for each in family(pid))
    return (after - before) / ticks / IDLE_FOR_S * 100


def size_mb(folder: Path) -> float:
    """Return what a folder takes on disk."""
    return sum(each.lstat().st_blocks * 512 for each in folder.rglob("*")) / 1e6


if __name__ == "__main__":
    sys.exit(main())
