"""`/healthz` tells that the process answers, `/readyz` what it depends on; both are open to whoever reaches the address."""

import json

import falcon

from schemas.settings import RouteFamily
from storage.database import is_reachable
from storage.doorbell import Doorbell


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
    """Names each check; only a database that is away makes the service unready, since Redis away only delays."""

    path = "/readyz"
    family = RouteFamily.HEALTH

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return 200 `ok` or `degraded`, or 503 `unavailable`."""
        database, redis = is_reachable(), self._doorbell.is_reachable()
        status = "unavailable" if not database else "ok" if redis else "degraded"
        checks = {"database": "ok" if database else "unavailable", "redis": "ok" if redis else "unavailable"}
        resp.status = 200 if database else 503
        resp.content_type = falcon.MEDIA_JSON
        resp.data = json.dumps({"status": status, "checks": checks}).encode()

    on_head = on_get
