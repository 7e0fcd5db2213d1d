"""`/healthz` tells that the process answers, `/readyz` what it depends on; both are open to whoever reaches the address."""

import json
from typing import Final

import falcon

from schemas.errors import NoEncryptionKey
from schemas.settings import RouteFamily
from storage import installation, schema, workers
from storage.clock import utc_now
from storage.database import OUTAGES, connection, is_reachable
from storage.doorbell import Doorbell
from storage.vault import Vault

OK: Final = "ok"
UNAVAILABLE: Final = "unavailable"
#: Nobody could be asked.
UNKNOWN: Final = "unknown"
#: In the order of the answer.
CHECKS: Final = ("database", "schema", "keys", "redis", "workers")
#: Without these nothing is answered.
_VITAL: Final = frozenset({"database", "schema", "keys"})
_AWAY: Final = {"database": UNAVAILABLE, "schema": UNKNOWN, "keys": UNKNOWN, "workers": UNKNOWN}


class Health:
    """Alive or not; touches nothing."""

    path = "/healthz"
    family = RouteFamily.HEALTH

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200."""
        resp.content_type = falcon.MEDIA_JSON
        resp.data = b'{"status": "ok"}'

    #: Load balancers ask with HEAD.
    on_head = on_get


class Readiness:
    """Names each check, and tells degraded from dead.

    Without a worker or without Redis everything is taken in and delivered later: degraded. Dead is what cannot answer: the
    database away, of another version, or sealed with keys that this process has not.
    """

    path = "/readyz"
    family = RouteFamily.HEALTH

    def __init__(self, doorbell: Doorbell, vault: Vault) -> None:
        self._doorbell = doorbell
        self._vault = vault

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 `ok` or `degraded`, or 503 `unavailable`."""
        checks = self._of_the_database() | {"redis": OK if self._doorbell.is_reachable() else UNAVAILABLE}
        failed = {name for name, found in checks.items() if found != OK}
        status = UNAVAILABLE if failed & _VITAL else "degraded" if failed else OK
        resp.status = 503 if failed & _VITAL else 200
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps({"status": status, "checks": {name: checks[name] for name in CHECKS}}).encode()

    on_head = on_get

    def _of_the_database(self) -> dict[str, str]:
        if not is_reachable():
            return _AWAY
        try:
            with connection():
                return {"database": OK, **self._of_its_rows()}
        except OUTAGES:  # it has gone away since
            return _AWAY

    def _of_its_rows(self) -> dict[str, str]:
        if not schema.is_current():
            # Tables of another version may not even have these rows.
            return {"schema": "not_current", "keys": UNKNOWN, "workers": UNKNOWN}
        return {
            "schema": OK,
            "keys": OK if self._keys_fit() else "wrong",
            "workers": OK if workers.count_alive(utc_now()) else UNAVAILABLE,
        }

    def _keys_fit(self) -> bool:
        canary = installation.canary()
        try:
            return canary is None or installation.opens(canary, self._vault)
        except NoEncryptionKey:
            return False
