"""Checks of `doctor` that look at this machine and its settings: Python, files, disk, addresses, backups."""

import json
import os
import shutil
import ssl
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from bin.checks.results import Finding, failure, ok, warning
from bin.processes.local_service import DIRECTLY
from schemas.settings.definitions import Settings

#: What setup.cfg asks for.
OLDEST_PYTHON: Final = (3, 11)
#: A service on this machine answers in milliseconds; one across the world in half a second.
ANSWER_WITHIN_S: Final = 2.0
#: A day of an installation that scans a lot; below the second one SQLite is about to refuse writes.
LITTLE_DISK_BYTES: Final = 1024**3
NO_DISK_BYTES: Final = 100 * 1024**2
#: A daily backup that is late by one.
BACKUP_WITHIN: Final = timedelta(days=2)

_MIB: Final = 1024**2


def python(version: tuple[int, ...], name: str) -> Finding:
    """Is it a version that RiskRelay is made for?"""
    if version[:2] < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return failure("python", f"Python {name} is too old.", f"install Python {wanted} or newer and run: make setup")
    return ok("python", f"Python {name}")


def env_file(path: Path, uid: int) -> Finding:
    """May anybody but the owner read the secrets? `uid` is the user who asks; root answers for every owner."""
    if not path.is_file():
        return ok("env file", "There is none; the settings come from the environment.")
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o007:
        return failure("env file", f"{path} is open to every user (mode {mode:04o}).", f"chmod 600 '{path}'")
    if mode & 0o070:
        return warning("env file", f"{path} is open to its group (mode {mode:04o}).", f"chmod 600 '{path}'")
    if uid not in {0, found.st_uid} and found.st_uid != 0:
        return warning("env file", f"{path} belongs to user {found.st_uid}, who can read it.", f"chown {uid} '{path}'")
    return ok("env file", f"{path} (mode {mode:04o})")


def data_dir(settings: Settings) -> Finding:
    """Can DATA_DIR be written to, and by whom can it be read?"""
    folder = settings.data_dir
    if not folder.exists():
        return warning("data", f"DATA_DIR {folder} is not there yet.", "make run, or: bin/riskrelay migrate")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return failure("data", f"DATA_DIR {folder} cannot be written to.", "make it yours, or set another DATA_DIR")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o007:
        return warning("data", f"DATA_DIR {folder} is open to every user (mode {mode:04o}).", f"chmod 700 '{folder}'")
    return ok("data", f"DATA_DIR {folder}")


def disk(settings: Settings) -> Finding:
    """Is there room for what comes?"""
    folder = next(each for each in (settings.data_dir, *settings.data_dir.parents) if each.is_dir())
    return judged_disk(folder, shutil.disk_usage(folder).free)


def judged_disk(folder: Path, free_bytes: int) -> Finding:
    """Say whether so many free bytes are enough."""
    told = f"{free_bytes // _MIB:,} MiB are free in {folder}."
    fix = "make room, or let `bin/riskrelay prune` take what is old"
    if free_bytes < NO_DISK_BYTES:
        return failure("disk", told, fix)
    return warning("disk", told, fix) if free_bytes < LITTLE_DISK_BYTES else ok("disk", told)


def bind(settings: Settings) -> Finding:
    """Does the service listen to others without TLS in front of it?"""
    host = settings.bind.rpartition(":")[0].strip("[]")
    if is_loopback(host) or settings.public_base_url.startswith("https://"):
        return ok("bind", f"BIND {settings.bind}")
    return warning(
        "bind",
        f"BIND {settings.bind} is open to other machines, and nothing says that TLS is in front of it.",
        "set BIND=127.0.0.1:8000 behind a reverse proxy (deploy/ has examples), and PUBLIC_BASE_URL to its https address",
    )


def base_url(settings: Settings) -> Iterator[Finding]:
    """Is PUBLIC_BASE_URL safe for tokens, and does the service answer there?"""
    url = settings.public_base_url
    if not (url.startswith("https://") or is_loopback(urlsplit(url).hostname or "")):
        yield warning("base URL", f"PUBLIC_BASE_URL {url} carries tokens in the clear.", "serve it over https and set it so")
    why = unanswered(f"{url}/healthz")
    if why is None:
        yield ok("base URL", f"The service answers at {url}")
    else:
        fix = "start it (make run, or bin/riskrelay serve), or set PUBLIC_BASE_URL to where it is reached"
        yield warning("base URL", f"The service does not answer at {url}/healthz: {why}.", fix)


def backups(settings: Settings, now: datetime) -> Finding:
    """How old is the newest backup in DATA_DIR/backups? Those that lie elsewhere are not known here."""
    folder = settings.data_dir / "backups"
    fix = f"bin/riskrelay backup '{folder}/'; docs/backup.md has a line for cron"
    if not folder.is_dir():
        return ok("backups", f"None are kept in {folder}; `bin/riskrelay backup FILE` makes one anywhere.")
    newest = max((path.stat().st_mtime for path in folder.iterdir() if path.is_file()), default=None)
    if newest is None:
        return warning("backups", f"There is none in {folder}.", fix)
    made_at = datetime.fromtimestamp(newest, UTC)
    told = f"The newest in {folder} is of {made_at:%Y-%m-%d %H:%M} UTC."
    return warning("backups", told, fix) if now - made_at > BACKUP_WITHIN else ok("backups", told)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine and nothing else."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unanswered(url: str, within_s: float = ANSWER_WITHIN_S) -> str | None:
    """Ask a service for its health; return what came instead of a good answer, None where it is well."""
    said: list[str | None] = []
    # A name that is looked up or a header that drips outlasts every socket's timeout.
    asking = threading.Thread(target=lambda: said.append(_asked(url, within_s)), daemon=True)
    asking.start()
    asking.join(within_s)
    return said[0] if said else _late(within_s)


def _asked(url: str, within_s: float) -> str | None:
    try:
        with DIRECTLY.open(url, timeout=within_s) as answer:
            is_ours = json.loads(answer.read(1024)) == {"status": "ok"}
    except HTTPError as answered:
        with answered:
            return f"it answers {answered.code}"
    except URLError as failed:
        return _late(within_s) if isinstance(failed.reason, TimeoutError) else _reason(failed)
    except TimeoutError:
        return _late(within_s)
    except (OSError, ValueError) as failed:
        return "it is not RiskRelay that answers" if isinstance(failed, ValueError) else str(failed)
    return None if is_ours else "it is not RiskRelay that answers"


def _late(within_s: float) -> str:
    return f"no answer within {within_s:g} s"


def _reason(failed: URLError) -> str:
    reason = failed.reason
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message})"
    if isinstance(reason, OSError):
        return reason.strerror or str(reason)
    return f"{reason}"
