"""The part of `bin/check-bare` that runs in the minimal system: first start, stop, restart, restore, within limits.

Standard library only: it runs under the system's Python, before the setup.
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

#: Bounds that docs/performance.md states, on a machine with two cores.
FIRST_START_S: Final = 60
SECOND_START_S: Final = 5
INSTALLED_MB: Final = 150
IDLE_MEMORY_MB: Final = 250
IDLE_PERCENT: Final = 2.0
IDLE_FOR_S: Final = 20
PORT: Final = 8911


def main() -> int:
    """Run all steps. Returns exit code 1 if a bound is exceeded or a step fails."""
    os.chdir(sys.argv[1])
    os.environ["BIND"] = f"127.0.0.1:{PORT}"
    failures: list[str] = []

    def check(name: str, value: float, limit: float, unit: str) -> None:
        print(f"  {name:28} {value:8.1f} {unit:3} (at most {limit:g})", flush=True)
        if value > limit:
            failures.append(name)

    process, took_s = start()
    check("setup and first start", took_s, FIRST_START_S, "s")
    doctor = command("doctor", "--json")
    print(f"  doctor                       {doctor['status']}")
    if doctor["status"] == "failure":
        failures.append(f"doctor: {doctor['checks']}")
    backup = command("backup", str(Path("data/first.backup")), "--json")
    print(f"  backup                       {backup['bytes']} bytes")
    check("idle memory (PSS)", memory_mb(family(process.pid)), IDLE_MEMORY_MB, "MB")
    check("idle CPU", idle_percent(process.pid), IDLE_PERCENT, "%")
    stop(process, failures)

    settings = Path(".env").read_bytes()
    process, took_s = start()
    check("second start", took_s, SECOND_START_S, "s")
    stop(process, failures)
    if Path(".env").read_bytes() != settings:
        failures.append("the second start changed .env")
    check("installed", size_mb(Path(".venv")), INSTALLED_MB, "MB")

    restored = command("restore", "data/first.backup", "--replace", "--json")
    print(f"  restore                      {restored}")
    subprocess.run(["make", "clean"], check=True, stdout=subprocess.DEVNULL)
    if Path(".venv").exists() or not Path(".env").exists() or not Path("data/riskrelay.db").exists():
        failures.append("make clean removed the wrong things")
    subprocess.run(["make", "setup"], check=True, stdout=subprocess.DEVNULL)
    for failure in failures:
        print(f"  FAILED: {failure}")
    return 1 if failures else 0


def start() -> tuple[subprocess.Popen[bytes], float]:
    """Start `make run` in a new terminal. Returns the process and the seconds until it was ready."""
    started_at = time.monotonic()
    terminal, child_end = pty.openpty()
    process = subprocess.Popen(["make", "run"], stdin=child_end, stdout=child_end, stderr=child_end, start_new_session=True)
    atexit.register(end, process)
    os.close(child_end)
    os.set_blocking(terminal, False)
    output = b""
    while b"is ready at" not in output:
        if process.poll() is not None or time.monotonic() - started_at > 10 * FIRST_START_S:
            sys.exit(f"make run did not become ready:\n{output.decode(errors='replace')}")
        time.sleep(0.05)
        try:
            output += os.read(terminal, 65536)
        except OSError:  # no output yet, or the terminal is closed: the next poll detects it
            continue
    return process, time.monotonic() - started_at


def stop(process: subprocess.Popen[bytes], failures: list[str]) -> None:
    """Press Ctrl-C and check that every process ends."""
    pids = family(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(60)
    # make reports an interrupt as 2 or 130, or 0 if the command exited with 0.
    print(f"  stopped with                 {code}")
    left = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and state(pid) != "Z"]
    if left:
        failures.append(f"processes that survived Ctrl-C: {left}")
    if port_responds():
        failures.append("the port still responds")


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop the process at exit, after failures too."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def port_responds() -> bool:
    """Return whether a server responds on PORT."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=2):
            return True
    except OSError:
        return False


def command(*words: str) -> dict[str, Any]:
    """Run a command that prints one JSON document, and return the document."""
    finished = subprocess.run(["bin/riskrelay", *words], capture_output=True, text=True, check=False)
    if not finished.stdout:
        sys.exit(f"riskrelay {' '.join(words)} exited with {finished.returncode}: {finished.stderr}")
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


def family(pid: int) -> list[int]:
    """Return a process with all its descendants."""
    parents = {int(each.name): parent(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdecimal()}
    found = [pid]
    for each in found:
        found += [child for child, its in parents.items() if its == each]
    return found


def fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may contain spaces; placeholders if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0", *["0"] * 20]


def state(pid: int) -> str:
    """Return the state letter of a process."""
    return fields(pid)[0]


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(fields(pid)[1])


def memory_mb(pids: list[int]) -> float:
    """Return the memory of processes, shared pages counted once (PSS)."""
    kilobytes = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kilobytes += int(line.split()[1])
    return kilobytes / 1000


def idle_percent(pid: int) -> float:
    """Return the CPU use of an idle process and its descendants, in percent of one core."""
    ticks = os.sysconf("SC_CLK_TCK")
    time.sleep(5)
    before = sum(int(fields(each)[11]) + int(fields(each)[12]) for each in family(pid))
    time.sleep(IDLE_FOR_S)
    after = sum(int(fields(each)[11]) + int(fields(each)[12]) for each in family(pid))
    return (after - before) / ticks / IDLE_FOR_S * 100


def size_mb(folder: Path) -> float:
    """Return the disk usage of a folder."""
    return sum(each.lstat().st_blocks * 512 for each in folder.rglob("*")) / 1e6


if __name__ == "__main__":
    sys.exit(main())
