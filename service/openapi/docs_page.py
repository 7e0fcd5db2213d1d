"""`/docs`: the OpenAPI description as a page to read and to try, without authentication.

Swagger UI displays the description. Its files are served from the installed package swagger-ui-py; the page and its script
are ours. The page has no inline scripts or styles, loads and calls nothing outside this service, and drops a token when its
tab is closed.
"""

from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import falcon

from schemas.settings.definitions import RouteFamily
from service.http import conditional_requests
from service.http.conditional_requests import tagged
from service.http.static_files import StaticFiles

#: The strictest policy with which the page works. Swagger UI's style sheet contains its images as `data:` URLs.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

#: The folder of the page and its script. All URLs in them are relative, so that the page works below any path of a proxy.
_STATIC: Final = Path(__file__).parent / "static"
#: The package's files are located, because importing the package would load a template engine.
_SWAGGER_UI: Final = Path(str(distribution("swagger-ui-py").locate_file("swagger_ui/static")))
#: The files that the page loads, 1.6 MB.
FILES: Final[Mapping[str, Path]] = {
    **{name: _SWAGGER_UI / name for name in ("swagger-ui-bundle.js", "swagger-ui.css", "index.css")},
    "page.js": _STATIC / "page.js",
}


class DocsPageResource:
    """Serves the page; `files` serves the files that the page loads."""

    path = "/docs"
    family = RouteFamily.HEALTH

    def __init__(self) -> None:
        self.files = StaticFiles("/docs/{file}", RouteFamily.HEALTH, FILES)
        self._page = tagged((_STATIC / "docs.html").read_bytes())

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Return the page, or 304 if the client has the current version."""
        resp.set_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        conditional_requests.send_revalidated(req, resp, self._page, falcon.MEDIA_HTML)

    on_head = on_get
