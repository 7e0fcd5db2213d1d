"""`/healthz`: the process responds; `/readyz`: its dependencies work. Both need no authentication."""

import json
from pathlib import Path
from typing import Final

import falcon

from runtime.clock import utc_now
from runtime.wake_up_queue import WakeUpQueue
from schemas.api.health import HealthResponse, ReadinessResponse
from schemas.api.response_fields import dump
from schemas.base.errors import NoEncryptionKey
from schemas.settings.definitions import RouteFamily, Settings
from service.http.paging import send_record
from storage.db import schema_version
from storage.db.disk_space import DiskState, free_bytes, state_of
from storage.db.engine import OUTAGES, connection, database_folders, is_reachable
from storage.exports import worker_heartbeats
from storage.secrets import key_check
from storage.secrets.vault import Vault, installation_ids

OK: Final = "ok"
UNAVAILABLE: Final = "unavailable"
#: The status of a check that could not run.
UNKNOWN: Final = "unknown"
#: The service accepts requests, but deliveries may be late.
DEGRADED: Final = "degraded"
#: The tables belong to another version and may lack columns.
NOT_CURRENT: Final = "not_current"
#: The checks, in the order of the response.
CHECKS: Final = ("database", "disk", "schema", "keys", "redis", "workers")
#: If one of these checks fails, requests fail.
VITAL: Final = frozenset({"database", "disk", "schema", "keys"})
_DATABASE_DOWN: Final = {"database": UNAVAILABLE, "schema": UNKNOWN, "keys": UNKNOWN, "workers": UNKNOWN}


class HealthResource:
    """Reports that the process is running, and the id of the installation. Accesses neither the database nor Redis."""

    path = "/healthz"
    family = RouteFamily.HEALTH

    def __init__(self, settings: Settings) -> None:
        installation = next(iter(installation_ids(settings.encryption_keys, settings.database_url)), None)
        self._body = json.dumps(dump(HealthResponse, {"installation": installation})).encode()

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200."""
        resp.content_type = falcon.MEDIA_JSON
        resp.data = self._body

    #: Load balancers use HEAD.
    on_head = on_get


class ReadinessChecks:
    """Checks the dependencies, for `/readyz` and the console."""

    def __init__(self, wake_ups: WakeUpQueue, vault: Vault, data_dir: Path) -> None:
        self._wake_ups = wake_ups
        self._vault = vault
        self._data_dir = data_dir

    def results(self) -> dict[str, str]:
        """Return the status of each check, in the order of CHECKS: `ok`, or another value that the response schema lists."""
        checks = self._database_checks() | {"redis": OK if self._wake_ups.is_reachable() else UNAVAILABLE}
        checks["disk"] = state_of(free_bytes([self._data_dir, *database_folders()])).value
        return {name: checks[name] for name in CHECKS}

    def _database_checks(self) -> dict[str, str]:
        if not is_reachable():
            return _DATABASE_DOWN
        try:
            with connection():
                return {"database": OK, **self._table_checks()}
        except OUTAGES:  # the database became unavailable after the first check
            return _DATABASE_DOWN

    def _table_checks(self) -> dict[str, str]:
        if not schema_version.is_current():
            return {"schema": NOT_CURRENT, "keys": UNKNOWN, "workers": UNKNOWN}
        return {
            "schema": OK,
            "keys": OK if self._has_right_keys() else "wrong",
            "workers": OK if worker_heartbeats.count_alive(utc_now()) else UNAVAILABLE,
        }

    def _has_right_keys(self) -> bool:
        canary = key_check.canary()
        try:
            return canary is None or key_check.opens(canary, self._vault)
        except NoEncryptionKey:
            return False


class ReadinessResource:
    """Reports each check, and distinguishes degraded from unavailable.

    Without a worker or Redis the service accepts everything and delivers it later: `degraded`. The service is `unavailable`
    without its database, with a database of another version, without the keys of the database, or on a full disk.
    """

    path = "/readyz"
    family = RouteFamily.HEALTH

    def __init__(self, checks: ReadinessChecks) -> None:
        self._checks = checks

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 `ok` or `degraded`, or 503 `unavailable`."""
        checks = self._checks.results()
        failed = {name for name, found in checks.items() if found != OK}
        # Low disk space is a warning: everything can still be stored.
        vital = {name for name in failed & VITAL if checks[name] != DiskState.LOW}
        status = UNAVAILABLE if vital else DEGRADED if failed else OK
        resp.status = 503 if vital else 200
        send_record(resp, dump(ReadinessResponse, {"status": status, "checks": checks}))

    on_head = on_get
