"""The style sheets and the scripts of the console; no other file is served."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import falcon

from schemas.base.errors import NotFound
from schemas.settings.definitions import RouteFamily
from service.console.layout import CONSOLE
from service.http import conditional_requests
from service.http.conditional_requests import tagged

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final[Mapping[str, str]] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "triage.css": "text/css; charset=utf-8",
    "triage.js": "text/javascript; charset=utf-8",
}


class StaticFiles:
    """Serves the files without authentication; they contain no data."""

    path = f"{CONSOLE}/static/{{file}}"
    family = RouteFamily.CONSOLE

    def __init__(self) -> None:
        self._files = {name: tagged((_FOLDER / name).read_bytes()) for name in _TYPES}

    def on_get(self, req: falcon.Request, resp: falcon.Response, file: str) -> None:
        """Respond with the file, or with 304 if the client has it. Raises NotFound."""
        if file not in self._files:
            raise NotFound
        conditional_requests.send_tagged(req, resp, self._files[file], _TYPES[file])

    on_head = on_get
