"""Serves the files that pages load. They contain no data, so no authentication is needed."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import falcon

from schemas.base.errors import NotFound
from schemas.settings.definitions import RouteFamily
from service.http import conditional_requests
from service.http.conditional_requests import TaggedBody, tagged

_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


class StaticFiles:
    """Serves style sheets and scripts below `path`, which ends with `{file}`."""

    def __init__(self, path: str, family: RouteFamily, files: Mapping[str, Path]) -> None:
        self.path = path
        self.family = family
        self._files = files

    def on_get(self, req: falcon.Request, resp: falcon.Response, file: str) -> None:
        """Respond with the file, or with 304 if the client has it. Raises NotFound."""
        if file not in self._files:
            raise NotFound
        path = self._files[file]
        conditional_requests.send_revalidated(req, resp, _read(path), _TYPES[path.suffix])

    on_head = on_get


@cache
def _read(path: Path) -> TaggedBody:
    """Read a file at its first request, because most processes never serve it."""
    return tagged(path.read_bytes())
