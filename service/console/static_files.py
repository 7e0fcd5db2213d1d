"""The files that pages load: a stylesheet and a script, by their names, and no others."""

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
}


class ConsoleFiles:
    """Answers with them; they say nothing that is anybody's."""

    path = f"{CONSOLE}/static/{{file}}"
    family = RouteFamily.CONSOLE

    def __init__(self) -> None:
        self._kept = {name: tagged((_FOLDER / name).read_bytes()) for name in _TYPES}

    def on_get(self, req: falcon.Request, resp: falcon.Response, file: str) -> None:
        """Return a file, or 304 where the client has this one. Raises NotFound."""
        if file not in self._kept:
            raise NotFound
        conditional_requests.answer(req, resp, self._kept[file], _TYPES[file])

    on_head = on_get
