"""`/openapi.json`: the OpenAPI 3.1 description of the API, without authentication.

It describes the routes that this installation serves, and contains no secrets or records. It is built on the first request,
because most processes never serve it.
"""

import json
from collections.abc import Sequence
from typing import Any

import falcon

from schemas.settings.definitions import RouteFamily
from service.http import conditional_requests
from service.http.conditional_requests import TaggedBody, tagged


class OpenApiResource:
    """Responds with the description of `resources` and of itself."""

    path = "/openapi.json"
    family = RouteFamily.HEALTH

    def __init__(self, resources: Sequence[Any], public_base_url: str) -> None:
        self.resources = (*resources, self)
        self._public_base_url = public_base_url
        self._written: TaggedBody | None = None

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return the description, or 304 if the client has the current version."""
        # Two concurrent first requests may both build the description; the results are equal.
        written = self._written = self._written or self._write()
        conditional_requests.send_revalidated(req, resp, written, falcon.MEDIA_JSON)

    on_head = on_get

    def _write(self) -> TaggedBody:
        # Imported here, because apispec and the texts of all operations would delay every start by a tenth of a second.
        from service.openapi.document import document  # noqa: PLC0415 - see above

        return tagged(json.dumps(document(self.resources, self._public_base_url), ensure_ascii=False).encode())
