"""`/docs`: the OpenAPI description as a page to read and to try, without authentication.

Swagger UI displays it. Its files are served from the installed package swagger-ui-py; the page and its script are ours. The
page has no inline scripts or styles, loads and calls nothing outside this service, and drops a token when its tab is closed.
Only the files that it needs are served. If they are not installed, the service starts without the page.
"""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import falcon

from schemas.base.errors import NotFound
from schemas.settings.definitions import RouteFamily
from service.http import conditional_requests
from service.http.conditional_requests import TaggedBody, tagged

#: The package with the files. Importing it would load a template engine.
_PACKAGE: Final = "swagger_ui"
_FOLDER: Final = "static"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_STYLE: Final = "text/css; charset=utf-8"
#: The files that the page needs: 1.6 MB.
_INSTALLED: Final[Mapping[str, str]] = {"swagger-ui-bundle.js": _SCRIPT, "swagger-ui.css": _STYLE, "index.css": _STYLE}

#: The strictest policy that the page works with. Swagger UI's style sheet has its images as `data:`.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

#: The page and its script. All URLs in them are relative, so that the page works below any path of a proxy.
_STATIC: Final = Path(__file__).parent / "static"
_OWN: Final[Mapping[str, tuple[bytes, str]]] = {"page.js": ((_STATIC / "page.js").read_bytes(), _SCRIPT)}
#: The names of all files that are served below the page.
FILES: Final = (*_INSTALLED, *_OWN)

_log: Final = logging.getLogger(__name__)


class DocsPageMissing(NotFound):
    """Swagger UI's files are not installed here; bin/setup installs them, and /openapi.json has the same content."""


class DocsPageResource:
    """Serves the page. `folder` replaces the folder of Swagger UI's files."""

    path = "/docs"
    family = RouteFamily.HEALTH

    def __init__(self, folder: Path | None = None) -> None:
        self.files = DocsFilesResource(folder or _assets_folder())
        self._page = tagged((_STATIC / "docs.html").read_bytes())

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return the page, or 304 if the client has it. Raises DocsPageMissing if the files are missing."""
        self.files.require()
        resp.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        conditional_requests.send_tagged(req, resp, self._page, falcon.MEDIA_HTML)

    on_head = on_get


class DocsFilesResource:
    """Serves the files that the page loads, and no others."""

    path = "/docs/{file}"
    family = RouteFamily.HEALTH

    def __init__(self, folder: Path | None) -> None:
        self._paths = {} if folder is None else {name: folder / name for name in _INSTALLED}
        self._lacks = [name for name in _INSTALLED if name not in self._paths or not self._paths[name].is_file()]
        if self._lacks:
            _log.warning("there is no API page: %s", DocsPageMissing().message)
        #: Read at the first request and cached: most processes never serve them, and many clients get the same bytes.
        self._kept: dict[str, TaggedBody] = {name: tagged(body) for name, (body, _) in _OWN.items()}

    def require(self) -> None:
        """Raise DocsPageMissing if a file was missing when the service started."""
        if self._lacks:
            raise DocsPageMissing

    def on_get(self, req: falcon.Request, resp: falcon.Response, file: str) -> None:
        """Return a file, or 304 if the client has it. Raises NotFound, DocsPageMissing."""
        if file not in FILES:
            raise NotFound
        self.require()
        conditional_requests.send_tagged(req, resp, self._read(file), _INSTALLED.get(file, _SCRIPT))

    on_head = on_get

    def _read(self, name: str) -> TaggedBody:
        # Two concurrent requests may read it twice.
        if name not in self._kept:
            try:
                self._kept[name] = tagged(self._paths[name].read_bytes())
            except OSError:
                # The file was deleted meanwhile.
                raise DocsPageMissing from None
        return self._kept[name]


def _assets_folder() -> Path | None:
    package = find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0]) / _FOLDER
