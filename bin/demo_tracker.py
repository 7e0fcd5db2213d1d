"""A small GitHub for the demo: one repository on loopback, which takes issues with its token.

It answers the requests of `schemas/trackers/github.py` as GitHub Enterprise Server does, below `/api/v3`, with the
members of GitHub's responses that the product reads.
"""

import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

REPOSITORY: Final = "acme/shop"


class DemoGitHub:
    """Serves REPOSITORY at `url` on a free loopback port, as a context; `issues` are those it created."""

    def __init__(self) -> None:
        self.token = f"github_pat_{secrets.token_hex(16)}"
        self.issues: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The page of the repository."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{REPOSITORY}"

    def respond(self, method: str, path: str, issue: dict[str, Any]) -> tuple[HTTPStatus, Any]:
        """Return status and value of the response to a request with the right token."""
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

    def __enter__(self) -> "DemoGitHub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler_of(github: DemoGitHub) -> type[BaseHTTPRequestHandler]:
    class DemoGitHubHandler(BaseHTTPRequestHandler):
        timeout = 10  # ends an idle connection and its thread

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status: HTTPStatus = HTTPStatus.UNAUTHORIZED
            value: Any = {"message": "Bad credentials"}
            if self.headers.get("Authorization") == f"Bearer {github.token}":
                status, value = github.respond(self.command, urlsplit(self.path).path, json.loads(body or b"{}"))
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the demo prints its own output."""

    return DemoGitHubHandler
