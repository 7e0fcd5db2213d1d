"""Requests of commands to the API of a RiskRelay on another host.

All attempts of a change have one Idempotency-Key. Each attempt has a limit of seconds.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import UnionType
from typing import Any, Final
from urllib.parse import quote

import requests

from bin.api_client.retrying_session import (
    MAX_RESPONSE_BYTES,
    PAUSES_S,
    CannotSend,
    RetryingSession,
    TransientFailure,
    field_problems,
)
from bin.cli.output import Refused

#: Time for one request with its whole response, in seconds: a ping waits for a worker and a receiver.
DEADLINE_S: Final = 60.0
#: The longest page of a list.
_PAGE: Final = 200
#: A million records; a longer list is not a response of RiskRelay.
_MAX_PAGES: Final = 5_000


class ApiRefusal(Refused):
    """The API refused a request, or did not respond as RiskRelay does."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ApiRecord(dict[str, Any]):
    """An object of the API, at any depth. A member that is missing, or of another type, ends the command."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        _require(name, [value], _TYPES.get(name, object))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return a member, or the default if it is absent. Raises ApiRefusal for a member of another type."""
        return super().get(name, default) if name not in self else self[name]

    def __missing__(self, name: str) -> Any:
        raise ApiRefusal(f"The response of the server lacks `{name}`; check --url, and that its version is not older.")


#: The types of the members that commands not only print, but also use.
_TYPES: Final[Mapping[str, type | UnionType]] = {
    **dict.fromkeys(("id", "project_id", "report_id", "user_id"), int | str | None),
    **dict.fromkeys(("status", "provider_key"), str),
    **dict.fromkeys(("error_code", "next_cursor", "reason", "role", "target_id", "token", "url"), str | None),
    **dict.fromkeys(("facets", "provider_settings", "ticket", "usage"), ApiRecord),
    **dict.fromkeys(("last_validation", "provider_ticket"), ApiRecord | None),
    **dict.fromkeys(("abilities", "items"), list),
    "total": int | None,
}


class ApiClient:
    """Sends requests to the installation at `url` with a token."""

    def __init__(self, url: str, token: str, pauses_s: Iterable[float] = PAUSES_S, deadline_s: float = DEADLINE_S) -> None:
        self._requests = RetryingSession(url, {"Authorization": f"Bearer {token}"}, pauses_s, deadline_s)
        self._host = self._requests.host

    def get(self, path: str, **query: Any) -> ApiRecord:
        """Return the record at a path. Raises ApiRefusal."""
        return self._record("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> ApiRecord:
        """Send a POST, without a body by default, and return the record of the response. Raises ApiRefusal."""
        return self._record("POST", path, json=body, headers=_idempotency_key())

    def patch(self, path: str, body: Mapping[str, Any]) -> ApiRecord:
        """Change the record at a path, and return it. Raises ApiRefusal."""
        return self._record("PATCH", path, json=body, headers=_idempotency_key())

    def delete(self, path: str) -> None:
        """Delete the record at a path; a 404 to a retry means that an earlier attempt deleted it. Raises ApiRefusal."""
        try:
            content = self._send("DELETE", path)
        except ApiRefusal as refused:
            if refused.status == HTTPStatus.NOT_FOUND and self._requests.attempts > 1:
                return
            raise
        if content:
            raise self._not_riskrelay()

    def items(self, path: str, limit: int | None = None, **query: Any) -> list[ApiRecord]:
        """Return the records of a list, newest first, at most `limit`. Raises ApiRefusal."""
        found: list[ApiRecord] = []
        cursor: Any = None
        for _ in range(_MAX_PAGES):
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)
            page = self.get(path, **query, limit=size, cursor=cursor)
            records = records_of(page)
            cursor = page["next_cursor"]
            # A page has at most `size` records; one that is not the last is never empty.
            if len(records) > size or (cursor is not None and not records):
                break
            found += records
            if cursor is None or len(found) == limit:
                return found
        raise self._not_riskrelay()

    def _record(self, method: str, path: str, **options: Any) -> ApiRecord:
        record = _parsed(self._send(method, path, **options))
        if not record:
            raise self._not_riskrelay()
        return record

    def _send(self, method: str, path: str, **options: Any) -> bytes:
        """Return the body of the 2xx response; the options are those of a session's request."""
        try:
            response = self._requests.send(method, path, **options)
        except TransientFailure as failure:
            cause = f"{failure}." if failure.response is None else self._refusal(failure.response).message
            raise ApiRefusal(f"{self._host} did not respond as it should, also not later: {cause}") from None
        except CannotSend as failure:
            raise ApiRefusal(f"Cannot send to {self._host}: {failure}.") from None
        except TimeoutError:
            raise ApiRefusal(f"{self._host} sent no complete response in time; check there whether it was done.") from None
        if len(response.content) > MAX_RESPONSE_BYTES:
            raise ApiRefusal(f"{self._host} sent more than {MAX_RESPONSE_BYTES // 1024**2} MiB; check --url.")
        if 200 <= response.status_code < 300:
            return response.content
        raise self._refusal(response)

    def _refusal(self, response: requests.Response) -> ApiRefusal:
        """Return the refusal, with the text that a command on the server would print."""
        status, body = response.status_code, _parsed(response.content)
        if 300 <= status < 400:
            return ApiRefusal(
                f"{self._host} responds {status}. Redirects are not followed: set --url to the URL that it redirects to."
            )
        error = body.get("error")
        if not isinstance(error, ApiRecord) or not isinstance(error.get("message"), str):
            return ApiRefusal(f"{self._host} responds {status}, and not as RiskRelay does; check --url.", status)
        about = "; ".join(field_problems(body))
        # Print one line, even if a server sends several.
        text = " ".join((f"{error['message']}: {about}" if about else error["message"]).split())
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            text += f" (request {error.get('request_id')})"
        return ApiRefusal(text, status)

    def _not_riskrelay(self) -> ApiRefusal:
        return ApiRefusal(f"The response of {self._host} is not from RiskRelay; check --url.")


def path_to(template: str, **ids: Any) -> str:
    """Return a path with ids from the command line, each quoted as one segment."""
    return template.format(**{name: quote(str(value), safe="") or "-" for name, value in ids.items()})


def _idempotency_key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4())}


def _parsed(content: bytes) -> ApiRecord:
    """Return the JSON object, or an empty one for anything else, and for text that UTF-8 cannot encode."""
    try:
        body = json.loads(content, object_hook=ApiRecord)
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return ApiRecord()
    return body if isinstance(body, ApiRecord) else ApiRecord()


def records_of(page: ApiRecord) -> list[ApiRecord]:
    """Return the `items` of a response. Raises ApiRefusal."""
    items: list[Any] = page["items"]
    _require("items", items, ApiRecord)
    return items


def counts_of(record: ApiRecord, name: str) -> dict[str, dict[str, int]]:
    """Return a member whose members are objects of numbers. Raises ApiRefusal."""
    objects: ApiRecord = record[name]
    _require(name, objects.values(), ApiRecord)
    for each in objects.values():
        _require(name, each.values(), int)
    return objects


def _require(name: str, values: Iterable[Any], kind: type | UnionType) -> None:
    if not all(isinstance(each, kind) for each in values):
        raise ApiRefusal(f"The server sent another type of `{name}` than RiskRelay does; check --url.")
