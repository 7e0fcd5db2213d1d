"""`/openapi.json`: the API described by itself, for whoever reaches the address, as OpenAPI 3.1.

It tells of the routes that this installation serves and of nothing else: no secret, no record. It is written once, when it
is first asked for, because most processes never are.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import falcon

from schemas.settings import RouteFamily

#: It may be kept, but not used without asking whether it is still the same: a new version or mode changes it.
_KEEP: Final = "no-cache"


class _Written(NamedTuple):
    body: bytes
    tag: str


class ApiDescription:
    """Answers with the description of `resources` and of itself."""

    path = "/openapi.json"
    family = RouteFamily.HEALTH

    def __init__(self, resources: Sequence[Any], public_base_url: str) -> None:
        self.resources = (*resources, self)
        self._public_base_url = public_base_url
        self._written: _Written | None = None

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return it, or 304 where the client has this one."""
        # Two that ask at once write the same twice.
        written = self._written = self._written or self._write()
        resp.set_header("ETag", f'"{written.tag}"')
        resp.set_header("Cache-Control", _KEEP)
        if req.if_none_match and any(each == "*" or str(each) == written.tag for each in req.if_none_match):
            resp.status = falcon.HTTP_304
            return
        resp.content_type = falcon.MEDIA_JSON
        resp.data = written.body

    on_head = on_get

    def _write(self) -> _Written:
        # Here, because it brings apispec and a sentence about everything, which would cost every start a tenth of a second.
        from service.description.document import document  # noqa: PLC0415 - told above

        body = json.dumps(document(self.resources, self._public_base_url), ensure_ascii=False).encode()
        return _Written(body, hashlib.sha256(body).hexdigest()[:32])
