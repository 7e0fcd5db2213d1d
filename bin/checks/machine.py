"""Checks of `doctor` for this machine and its settings: Python, files, disk, addresses, backups."""

import json
import os
import ssl
import stat
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from bin.checks.results import CheckResult, failure, ok, warning
from bin.processes.local_service import DIRECTLY
from runtime.deadline import within
from schemas.settings.definitions import ENV_FILE_VARIABLE, Settings
from schemas.settings.file_trust import trust_problem, trusted_users
from storage.db.disk_space import LOW_BYTES, free_bytes
from storage.maintenance.backup import PART
from storage.secrets.vault import installation_ids

#: The same version as in setup.cfg.
OLDEST_PYTHON: Final = (3, 11)
#: A local service responds in milliseconds, a distant one in half a second.
RESPONSE_WITHIN_S: Final = 2.0
#: A busy installation writes the first number of bytes in a day; below the second, SQLite is about to refuse writes.
LITTLE_DISK_BYTES: Final = 1024**3
NO_DISK_BYTES: Final = LOW_BYTES
#: The age of the newest backup if a daily backup was missed once.
BACKUP_WITHIN: Final = timedelta(days=2)
#: Files beside backups: the redactions file, which cron and the systemd units write every hour, and incomplete backups.
_NO_BACKUPS: Final = frozenset({".redactions", PART})

ANOTHER_INSTALLATION: Final = "another installation responds"

_MIB: Final = 1024**2


def python(version: tuple[int, ...], name: str) -> CheckResult:
    """Check the Python version."""
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return failure("python", f"Python {name} is too old.", f"install Python {oldest} or newer and run: make setup")
    return ok("python", f"Python {name}")


def env_file(path: Path) -> CheckResult:
    """Check that only the owner can change and read the settings."""
    if not path.is_file():
        if os.environ.get(ENV_FILE_VARIABLE):
            fix = "restore it; only for a new installation: bin/riskrelay init"
            return warning("env file", f"{ENV_FILE_VARIABLE} names {path}, which does not exist.", fix)
        return ok("env file", f"No {path}; all settings come from the environment.")
    if problem := trust_problem(path, trusted_users()):
        return failure("env file", problem.message, f"check its lines, then run: {problem.command}")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o007:
        return failure("env file", f"{path} is readable by every user (mode {mode:04o}).", f"chmod 600 '{path}'")
    if mode & 0o070:
        return warning("env file", f"{path} is readable by its group (mode {mode:04o}).", f"chmod 600 '{path}'")
    return ok("env file", f"{path} (mode {mode:04o})")


def data_dir(settings: Settings) -> CheckResult:
    """Check that DATA_DIR is writable, and private."""
    folder = settings.data_dir
    if not folder.exists():
        return warning("data", f"DATA_DIR {folder} does not exist yet.", "make run, or: bin/riskrelay migrate")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return failure("data", f"DATA_DIR {folder} is not writable.", "become its owner, or set another DATA_DIR")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o007:
        return warning("data", f"DATA_DIR {folder} is accessible to every user (mode {mode:04o}).", f"chmod 700 '{folder}'")
    return ok("data", f"DATA_DIR {folder}")


def disk(settings: Settings) -> CheckResult:
    """Check the free space of DATA_DIR, and of SQLite's folder if it is elsewhere."""
    folders = [settings.data_dir]
    if settings.database_url.startswith("sqlite:///"):
        folders.append(Path(settings.database_url.removeprefix("sqlite:///")).parent)
    rooms = {folder: free_bytes([folder]) for folder in folders}
    fullest = min(rooms, key=rooms.__getitem__)
    return check_free_space(fullest, rooms[fullest])


def check_free_space(folder: Path, room_bytes: int) -> CheckResult:
    """Return whether `room_bytes` are enough."""
    message = f"{room_bytes // _MIB:,} MiB are free in {folder}."
    fix = "free space, or delete old records with `bin/riskrelay prune`"
    if room_bytes < NO_DISK_BYTES:
        return failure("disk", message, fix)
    return warning("disk", message, fix) if room_bytes < LITTLE_DISK_BYTES else ok("disk", message)


def bind(settings: Settings) -> CheckResult:
    """Check that the service is not exposed without TLS."""
    host = settings.bind.rpartition(":")[0].strip("[]")
    if is_loopback(host) or settings.public_base_url.startswith("https://"):
        return ok("bind", f"BIND {settings.bind}")
    return warning(
        "bind",
        f"BIND {settings.bind} accepts connections from other machines, and PUBLIC_BASE_URL is not https.",
        "set BIND=127.0.0.1:8000 behind a reverse proxy (deploy/ has examples), and PUBLIC_BASE_URL to its https URL",
    )


def base_url(settings: Settings) -> Iterator[CheckResult]:
    """Check that PUBLIC_BASE_URL is safe for tokens and that the service responds there."""
    url = settings.public_base_url
    if not (url.startswith("https://") or is_loopback(urlsplit(url).hostname or "")):
        yield warning(
            "base URL", f"PUBLIC_BASE_URL {url} sends tokens unencrypted.", "serve it over https and set the https URL"
        )
    why = health_problem(f"{url}/healthz", ours=installation_ids(settings.encryption_keys, settings.database_url))
    if why == ANOTHER_INSTALLATION:
        fix = "stop it, or set BIND and PUBLIC_BASE_URL of this one to a free port"
        yield failure("base URL", f"Another installation of RiskRelay responds at {url}.", fix)
    elif why is None:
        yield ok("base URL", f"The service responds at {url}")
    else:
        fix = "start it (make run, or bin/riskrelay serve); if it runs, set BIND or PUBLIC_BASE_URL in .env to its address"
        yield warning("base URL", f"No healthy response from {url}/healthz: {why}.", fix)


def backups(settings: Settings, now: datetime) -> Iterator[CheckResult]:
    """Check the age of the newest backup in DATA_DIR/backups, if any; the database has the time of one elsewhere."""
    made_at = newest_backup(settings)
    if made_at is not None:
        yield check_backup(settings, made_at, f"The newest backup in {_backup_folder(settings)} is from", now)


def newest_backup(settings: Settings) -> datetime | None:
    """Return the time of the newest backup in DATA_DIR/backups; None without a backup."""
    folder = _backup_folder(settings)
    files = folder.iterdir() if folder.is_dir() else ()
    times = [path.stat().st_mtime for path in files if path.is_file() and path.suffix not in _NO_BACKUPS]
    return datetime.fromtimestamp(max(times), UTC) if times else None


def check_backup(settings: Settings, made_at: datetime, where: str, now: datetime) -> CheckResult:
    """Return whether a backup is young enough; `where` begins the message."""
    message = f"{where} {made_at:%Y-%m-%d %H:%M} UTC."
    return warning("backups", message, back_up(settings)) if now - made_at > BACKUP_WITHIN else ok("backups", message)


def back_up(settings: Settings) -> str:
    """Return the fix for a missing backup."""
    return f"bin/riskrelay backup '{_backup_folder(settings)}/'; docs/backup.md has a line for cron"


def _backup_folder(settings: Settings) -> Path:
    return settings.data_dir / "backups"


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def health_problem(url: str, within_s: float = RESPONSE_WITHIN_S, ours: Collection[str] = ()) -> str | None:
    """Request a service's health; return what is wrong with the response, or None if it is healthy.

    Returns ANOTHER_INSTALLATION if the response names an installation that is not one of `ours`.
    """
    try:
        health = within(within_s, lambda: _read_health(url, within_s))
    except HTTPError as error:
        with error:
            return f"it responds with {error.code}"
    except OSError as failed:
        cause = failed.reason if isinstance(failed, URLError) else failed
        return f"no response within {within_s:g} s" if isinstance(cause, TimeoutError) else _text_of(cause)
    except (ValueError, RecursionError, HTTPException):
        return "the response is not RiskRelay's"
    if not isinstance(health, dict) or health.get("status") != "ok":
        return "the response is not RiskRelay's"
    # A service without keys, or of an older version, names no installation.
    installation = health.get("installation")
    return None if installation is None or not ours or installation in ours else ANOTHER_INSTALLATION


def _read_health(url: str, within_s: float) -> Any:
    with DIRECTLY.open(url, timeout=within_s) as response:
        return json.loads(response.read(1024))


def _text_of(cause: BaseException | str) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message})"
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
