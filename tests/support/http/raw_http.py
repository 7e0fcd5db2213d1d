"""Requests to the API, and assertions about responses."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Final

from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from storage.db.engine import execute, rows
from storage.db.models import ALL
from storage.exports import queries
from tests.support.factories import SCANNER_SECRET, Customer, make_target, postback
from tests.support.http.described_responses import require_described

JSON: Final = {"Content-Type": "application/json"}
SCANNER: Final = {"X-Scanner-Secret": SCANNER_SECRET}
RESULTS: Final = "/api/scanner/results"
#: The default of PUBLIC_BASE_URL.
BASE = "http://127.0.0.1:8000"
TARGETS: Final = "/api/ticket-export-targets"
EXPORTS: Final = "/api/ticket-exports"
RECOVERIES: Final = "/api/ticket-export-recoveries"
RULES: Final = "/api/approval-rules"
SESSIONS: Final = "/api/console-sessions"

SAFE_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}

#: A value in requests that no response may contain.
CANARY: Final = "cAnArY-4f1d9b"

_TABLES: Final = [model._meta.table_name for model in ALL]
_MADE_REQUEST_ID: Final = re.compile(r"req_[0-9A-HJKMNP-TV-Z]{26}")


def is_of_the_console(path: str) -> bool:
    """Return whether a route belongs to the console. API clients do not use it, and its permissions have their own tests."""
    return path == "/console" or path.startswith("/console/")


@dataclass(frozen=True, slots=True)
class Call:
    """One request; a header may be repeated."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    query: str = ""

    def plus(self, *headers: tuple[str, str]) -> "Call":
        """Return a copy with further headers."""
        return replace(self, headers=(*self.headers, *headers))

    def without(self, name: str) -> "Call":
        """Return a copy without one header."""
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0] != name))

    def with_json(self, value: Any) -> "Call":
        """Return a copy with `value` as its JSON body."""
        return replace(self, body=json.dumps(value).encode())

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def send(self, client: TestClient) -> Result:
        """Send the request to the application. Fails if the OpenAPI document does not describe the response."""
        answer = client.simulate_request(
            self.method, self.path, headers=list(self.headers), body=self.body or None, query_string=self.query
        )
        require_described(client, self.method, self.path, answer)
        return answer


class SlowBody(BytesIO):
    """A request body as `wsgi.input` that calls `meanwhile` before each read."""

    def __init__(self, body: bytes, meanwhile: Callable[[], object]) -> None:
        super().__init__(body)
        self._meanwhile = meanwhile

    def read(self, size: int | None = -1) -> bytes:
        self._meanwhile()
        return super().read(size)


@dataclass(frozen=True, slots=True)
class FieldRefusal:
    """The path and the code of one invalid field in a response with status 422."""

    path: str
    code: str


@dataclass
class HttpScene:
    """Two customers in the open database, each with an export and a target."""

    customer: Customer
    other: Customer
    client: TestClient
    export_id: str
    target_id: str
    others_export_id: str
    others_target_id: str
    tokens: dict[str, str] = field(default_factory=dict)
    stored: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    @property
    def results(self) -> Call:
        """A valid postback."""
        return Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback(99))

    @property
    def register(self) -> Call:
        """A valid request for a new target."""
        return Call("POST", TARGETS, (*self.customer.bearer.items(), *JSON.items())).with_json(target_request())

    @property
    def approve(self) -> Call:
        """A valid approval."""
        path = f"{EXPORTS}/{self.export_id}/approve"
        return Call("POST", path, (*self.customer.bearer.items(), *JSON.items())).with_json({"target_id": self.target_id})

    @property
    def read(self) -> Call:
        """A valid poll."""
        return Call("GET", f"{EXPORTS}/{self.export_id}", tuple(self.customer.bearer.items()))


def target_request(base_url: str = "https://tracker.example.com/hook", **changes: Any) -> dict[str, Any]:
    """Return the body of a request for a new target; `changes` replace members."""
    body = {"provider_key": "generic_webhook", "base_url": base_url, "deployment_mode": "self-hosted", "name": "Tracker"}
    return {**body, **changes}


def prepared(client: TestClient, scan_run_id: int = 42, **changes: Any) -> str:
    """Post one new finding and return the id of the export that it prepared."""
    call = Call("POST", RESULTS, (*SCANNER.items(), *JSON.items())).with_json(postback(scan_run_id, **changes))
    answer = call.send(client)
    assert answer.status_code == 202, answer.text
    export_id: str = answer.json["ticket_exports"][0]
    return export_id


def approved(client: TestClient, customer: Customer) -> tuple[str, str]:
    """Prepare and approve an export through the API; return its id and the id of its target."""
    export_id, target = prepared(client), make_target(customer)
    call = Call("POST", f"{EXPORTS}/{export_id}/approve", (*customer.bearer.items(), *JSON.items()))
    assert call.with_json({"target_id": target.id}).send(client).status_code == 202
    return export_id, target.id


def schedule_retry(export_id: str, seconds: float) -> None:
    """Set an approved export to `retry_scheduled`, due in `seconds` seconds."""
    due_ms = to_ms(utc_now()) + round(seconds * 1000)
    assert execute("UPDATE exports SET status = 'retry_scheduled', due_at = ? WHERE id = ?", (due_ms, export_id)) == 1
    assert queries.get(export_id).status == "retry_scheduled"


def everything_stored() -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table."""
    return {name: sorted(rows(f"SELECT * FROM {name}"), key=repr) for name in _TABLES}  # noqa: S608 - our own names


def assert_has_standard_headers(answer: Result) -> None:
    """Check that a response has a request id and the security headers SAFE_HEADERS."""
    assert {name: answer.headers.get(name) for name in SAFE_HEADERS} == SAFE_HEADERS
    assert answer.headers["x-request-id"]


def assert_is_error(answer: Result, status: int, code: str, fields: tuple[FieldRefusal, ...] = ()) -> None:
    """Check the complete body of an error response, and its headers."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert_has_standard_headers(answer)
    error = only_member(answer.json, "error")
    assert set(error) == {"code", "message", "details", "request_id"}
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]
    reported = error["details"].get("fields", [])
    assert error["details"] == ({"fields": reported} if reported else {})
    assert all(set(each) == {"path", "code", "message"} and each["message"] for each in reported)
    assert {(each["path"], each["code"]) for each in reported} == {(each.path, each.code) for each in fields}


def field_message(answer: Result) -> str:
    """Return the message about the only invalid field of a response with status 422."""
    [reported] = answer.json["error"]["details"]["fields"]
    message: str = reported["message"]
    return message


def was_made(request_id: str) -> bool:
    """Return whether a request id has the form of those that the service generates."""
    return _MADE_REQUEST_ID.fullmatch(request_id) is not None


def only_member(body: Mapping[str, Any], name: str) -> Any:
    """Return the value of `name`, which must be the only member of a body."""
    assert list(body) == [name]
    return body[name]


def base64url(text: str) -> str:
    """Return a text in base64url without padding, the encoding of cursors."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def response_fingerprint(response: Result) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    """Return the status, body and headers of a response, without its request id and its remaining rate limit."""
    request_id = response.headers["x-request-id"]
    headers = {name: value for name, value in response.headers.items() if name not in {"x-request-id", "ratelimit"}}
    return response.status_code, response.text.replace(request_id, ""), tuple(sorted(headers.items()))
