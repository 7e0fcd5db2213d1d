"""The servers of the demo, on loopback: a page with issues for the scanner, and a minimal GitHub.

The page has the issues of many small shops: no security headers, a script from another host over http, images without alt
text, no language, no title. Its cookie tests that the scanner does not report cookies. The GitHub is one repository, which
takes issues with its token: it responds to the requests of `schemas/trackers/github.py` like GitHub Enterprise Server, below
`/api/v3`, with the members of GitHub's responses that the product reads.
"""

import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

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

REPOSITORY: Final = "acme/shop"


class _DemoServer(ThreadingHTTPServer):
    """Serves on a free loopback port, as a context."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _DemoHandler)
        #: The address of the server, with a slash at its end.
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def respond(self, method: str, path: str, authorization: str, body: bytes) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and content of the response to a request."""
        raise NotImplementedError


class _DemoHandler(BaseHTTPRequestHandler):
    server: _DemoServer
    timeout = 10  # ends an idle connection and its thread

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        authorization = self.headers.get("Authorization", "")
        status, content_type, content = self.server.respond(self.command, urlsplit(self.path).path, authorization, body)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Set-Cookie", "visitor=42; Path=/")
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the demo prints its own output."""


class DemoSite(_DemoServer):
    """Serves PAGE at `url`."""

    def respond(self, method: str, path: str, authorization: str, body: bytes) -> tuple[HTTPStatus, str, bytes]:
        """Return the page, or Not Found."""
        if path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", PAGE
        return HTTPStatus.NOT_FOUND, "text/plain", b"Not found.\n"


class DemoGitHub(_DemoServer):
    """Serves REPOSITORY, whose page is `url`; `issues` are those it created."""

    def __init__(self) -> None:
        super().__init__()
        self.url += REPOSITORY
        self.token = f"github_pat_{secrets.token_hex(16)}"
        self.issues: list[dict[str, Any]] = []

    def respond(self, method: str, path: str, authorization: str, body: bytes) -> tuple[HTTPStatus, str, bytes]:
        """Return the response as JSON; without the right token it is an error."""
        status, value = HTTPStatus.UNAUTHORIZED, {"message": "Bad credentials"}
        if authorization == f"Bearer {self.token}":
            status, value = self._result(method, path, json.loads(body or b"{}"))
        return status, "application/json; charset=utf-8", json.dumps(value).encode()

    def _result(self, method: str, path: str, issue: dict[str, Any]) -> tuple[HTTPStatus, Any]:
        match method, path.removeprefix(f"/api/v3/repos/{REPOSITORY}"):
            case "GET", "":
                return HTTPStatus.OK, {"full_name": REPOSITORY, "private": True, "archived": False, "has_issues": True}
            case "GET", "/issues":
                return HTTPStatus.OK, self.issues[::-1]
            case "POST", "/issues":
                number = len(self.issues) + 1
                self.issues.append({**issue, "number": number, "html_url": f"{self.url}/issues/{number}"})
                return HTTPStatus.CREATED, self.issues[-1]
            case "GET", "/api/v3/user":
                return HTTPStatus.OK, {"login": "riskrelay"}
        return HTTPStatus.NOT_FOUND, {"message": "Not Found"}
