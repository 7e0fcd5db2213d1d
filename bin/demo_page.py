"""A page with real issues, served on loopback for the demo's scanner.

It has the issues of many small shops: no security headers, a script from
another host over http, images without alt text, no language, no title. Its
cookie tests that the scanner does not report cookies.
"""

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# The other host does not exist (.example is reserved); the scanner reads only the page itself.
PAGE = b"""<!doctype html>
<html>
<head>
  <meta charset="utf-8">
  <script src="http://widgets.example/chat.js"></script>
</head>
<body>
  <h1>Corner Shop</h1>
  <img src="/teapot.png">
  <p>Teapots, repaired while you wait.</p>
  <img src="/opening-hours.png">
</body>
</html>
"""

# The codes that examples/scanner.py reports.
ISSUES = frozenset(
    {
        "missing-content-security-policy",
        "missing-x-content-type-options",
        "missing-referrer-policy",
        "missing-frame-protection",
        "insecure-subresource",
        "html-lang-missing",
        "title-missing",
        "img-alt-missing",
    }
)


class DemoSite:
    """Serves PAGE at `url` on a free loopback port, as a context or from `start()` to `stop()`."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _DemoSiteHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def start(self) -> "DemoSite":
        """Start serving."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and free the port; may be called again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "DemoSite":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _DemoSiteHandler(BaseHTTPRequestHandler):
    server_version = "CornerShop"
    sys_version = ""
    timeout = 10  # ends an idle connection and its thread

    def do_GET(self) -> None:
        found = self.path == "/"
        body = PAGE if found else b"Not found.\n"
        self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/html; charset=utf-8" if found else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "visitor=42; Path=/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the demo prints its own output."""
