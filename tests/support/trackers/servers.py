"""Fake trackers on loopback with the issue APIs of Gitea, GitHub and GitLab, which can lose, delay or reject requests."""

import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest

TOKEN: Final = "gitea-token-of-the-tests"
REPOSITORY: Final = "acme/shop"


class LostResponse(Enum):
    """Whether the connection of a create request ends before or after the issue or comment is created."""

    BEFORE_CREATING = auto()
    AFTER_CREATING = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that replaces the regular one."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"message": "refused by the test"}'


class FakeGitea(LoopbackServer):
    """A Gitea with one repository, `acme/shop`, and the token TOKEN. Each create request makes a new issue.

    `next_creates` sets the outcomes of the next create requests, in order. While `refusal` is set, it is the response to
    every request. After an issue is created, the response waits for `gate`, and then for `pause_s` seconds.
    """

    provider_key = "gitea"
    _api_base = "/api/v1"
    _repository = f"/repos/{REPOSITORY}"
    _authorization = ("authorization", f"token {TOKEN}")

    def __init__(self, labels: tuple[str, ...] = ("website-risk",), port: int = 0, page_limit: int = 50) -> None:
        self.requests: list[ReceivedRequest] = []
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.labels = [{"id": number, "name": name} for number, name in enumerate(labels, 1)]
        self.refusal: Refusal | None = None
        #: Added to each response to a create.
        self.limit_headers: dict[str, str] = {}
        self.pause_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        #: Set once an issue is created, so that a test can kill the worker before it receives the response.
        self.created = threading.Event()
        self._next: deque[LostResponse | Refusal | None] = deque()
        self._next_comments: deque[LostResponse | Refusal | None] = deque()
        self._page_limit = page_limit
        self._lock = threading.Lock()
        super().__init__(self._serve_api, port=port)

    @property
    def base_url(self) -> str:
        """The URL of the repository's page, a target's `base_url`."""
        return self.url(path=f"/{REPOSITORY}")

    def next_creates(self, *outcomes: "LostResponse | Refusal | None") -> None:
        """Set the outcomes of the next creates. None is a success; all later creates succeed."""
        self._next.extend(outcomes)

    def next_comments(self, *outcomes: "LostResponse | Refusal | None") -> None:
        """Set the outcomes of the next comments. None is a success; all later comments succeed."""
        self._next_comments.extend(outcomes)

    def comments_of(self, number: int) -> list[str]:
        """Return the comments of an issue."""
        with self._lock:
            return [each["body"] for each in self.comments.get(number, [])]

    def issues_of(self, marker: str) -> list[dict[str, Any]]:
        """Return the issues whose text contains the marker."""
        with self._lock:
            return [issue for issue in self.issues if marker in issue["body"]]

    def creates_of(self, marker: str) -> int:
        """Return the number of requests to create an issue with the marker, including failed ones."""
        sent = [request for request in list(self.requests) if request.line.startswith("POST ")]
        return len([request for request in sent if marker.encode() in request.body])

    @property
    def lookups(self) -> int:
        """The number of requests for the list of issues. These requests do not contain the marker, as for a real Gitea."""
        return len([request for request in list(self.requests) if self._path_of(request) == ("GET", "/issues")])

    def _serve_api(self, peer: Peer) -> None:
        while request := peer.read():
            self.requests.append(request)
            response = self._response_to(request, peer)
            if response is None:
                return
            peer.answer(response.status, response.body, **{"Content_Type": "application/json", **response.headers})

    def _response_to(self, request: ReceivedRequest, peer: Peer) -> Refusal | None:
        if self.refusal is not None:
            return self.refusal
        name, value = self._authorization
        if request.headers.get(name) != value:
            return _json(401, {"message": "invalid username, password or token"})
        match self._path_of(request):
            case "POST", "/issues":
                return self._create(request, peer)
            case "GET", "/issues":
                return self._list(request)
            case "GET", "/labels":
                return _json(200, self.labels)
            case "GET", "":
                return _json(200, {"full_name": REPOSITORY, "archived": False, "has_issues": True})
            case "GET", "/user":
                return _json(200, {"id": 1, "login": "riskrelay"})
            case method, path if path.startswith("/issues/"):
                return self._of_issue(method, *path.removeprefix("/issues/").split("/"), content=request.body)
            case _:
                return _NOT_FOUND

    def _create(self, request: ReceivedRequest, peer: Peer) -> Refusal | None:
        wanted = json.loads(request.body)
        if not wanted["title"]:
            return _json(422, {"message": "[Title]: Required"})
        with self._lock:
            outcome = self._next.popleft() if self._next else None
            if isinstance(outcome, Refusal):
                return outcome
            if outcome is LostResponse.BEFORE_CREATING:
                return None
            issue = self._issue_of(wanted)
            self.issues.append(issue)
        self.created.set()
        while not self.gate.wait(0.02):
            if peer.client_has_closed():
                return None
        time.sleep(self.pause_s)
        return None if outcome is LostResponse.AFTER_CREATING else replace(_json(201, issue), headers=self.limit_headers)

    def _of_issue(self, method: str, number: str, below: str = "", *, content: bytes) -> Refusal | None:
        with self._lock:
            issue = next((each for each in self.issues if str(each["number"]) == number), None)
            if issue is None:
                return _NOT_FOUND
            comments = self.comments.setdefault(issue["number"], [])
            if not below:
                if method != "GET":
                    issue |= self._changes_of(json.loads(content))
                return _json(200, issue)
            if method == "GET":
                return _json(200, comments)
            outcome = self._next_comments.popleft() if self._next_comments else None
            if isinstance(outcome, Refusal):
                return outcome
            if outcome is LostResponse.BEFORE_CREATING:
                return None
            comments.append({"id": len(comments) + 1, "body": json.loads(content)["body"]})
            return None if outcome is LostResponse.AFTER_CREATING else _json(201, comments[-1])

    def _changes_of(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the members of an issue that an update sets."""
        return wanted

    def _issue_of(self, wanted: dict[str, Any]) -> dict[str, Any]:
        number = len(self.issues) + 1
        ids = wanted.get("labels") or []
        return {
            "id": 1000 + number,
            "number": number,
            "html_url": f"{self.base_url}/issues/{number}",
            "title": wanted["title"],
            "body": wanted.get("body", ""),
            "labels": [label for label in self.labels if label["id"] in ids],
            "state": "open",
        }

    def _list(self, request: ReceivedRequest) -> Refusal:
        query = parse_qs(urlsplit(request.line.split(" ")[1]).query)
        page, limit = int(query.get("page", ["1"])[0]), min(int(query.get("limit", ["30"])[0]), self._page_limit)
        words = query.get("q", [""])[0]
        with self._lock:
            found = [issue for issue in reversed(self.issues) if words in issue["body"]]
        shown, is_more = found[(page - 1) * limit : page * limit], len(found) > page * limit
        link = {"Link": f'<{self.base_url}?page={page + 1}>; rel="next"'} if is_more else {}
        return _json(200, shown, **link)

    def _path_of(self, request: ReceivedRequest) -> tuple[str, str]:
        """Return the method, and the path relative to the repository's path or else to the API's path."""
        method, target, _ = request.line.split(" ")
        return method, urlsplit(target).path.removeprefix(self._api_base).removeprefix(self._repository)

    def __exit__(self, *error: object) -> None:
        self.gate.set()
        super().__exit__(*error)


class FakeGitHub(FakeGitea):
    """A GitHub Enterprise Server with the behavior of FakeGitea."""

    provider_key = "github"
    _api_base = "/api/v3"
    _authorization = ("authorization", f"Bearer {TOKEN}")


class FakeGitLab(FakeGitea):
    """A GitLab with the behavior of FakeGitea. It ignores GitLab's parameters, and lists the newest issues."""

    provider_key = "gitlab"
    _api_base = "/api/v4"
    _repository = f"/projects/{quote(REPOSITORY, safe='')}"
    _authorization = ("private-token", TOKEN)

    def _issue_of(self, wanted: dict[str, Any]) -> dict[str, Any]:
        issue = super()._issue_of({"title": wanted["title"], "body": wanted["description"]})
        page = f"{self.base_url}/-/issues/{issue['number']}"
        return issue | {"iid": issue["number"], "web_url": page, "description": issue["body"], "state": "opened"}

    def _changes_of(self, wanted: dict[str, Any]) -> dict[str, Any]:
        states = {"close": {"state": "closed"}, "reopen": {"state": "opened"}}
        body = {"body": wanted["description"]} if "description" in wanted else {}
        return wanted | body | states.get(wanted.get("state_event", ""), {})


_NOT_FOUND: Final = Refusal(404, body=b'{"errors": null, "message": "not found"}')


def _json(status: int, value: object, **headers: str) -> Refusal:
    return Refusal(status, headers, json.dumps(value).encode())
