"""Requests of commands to the API of a RiskRelay on another host.

All attempts of a change have one Idempotency-Key. Each attempt has a limit of seconds.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import requests

from bin.api_client.retrying_session import PAUSES_S, RetryingSession, TransientFailure, field_problems
from bin.cli.output import Refused

#: Time for one request with its whole response, in seconds: a ping waits for a worker and a receiver.
DEADLINE_S: Final = 60.0
#: The longest page of a list.
_PAGE: Final = 200
#: A million records; a longer list is not one of RiskRelay.
_MAX_PAGES: Final = 5_000


class ApiRefusal(Refused):
    """The API refused a request, or did not respond as RiskRelay does."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ApiRecord(dict[str, Any]):
    """An object of the API, at any depth. A member that is missing ends the command."""

    def __missing__(self, name: str) -> Any:
        raise ApiRefusal(f"The response of the server lacks `{name}`; check --url, and that its version is not older.")


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
        """Delete the record at a path. Raises ApiRefusal."""
        self._send("DELETE", path)

    def items(self, path: str, limit: int | None = None, **query: Any) -> list[ApiRecord]:
        """Return the records of a list, newest first, at most `limit`. Raises ApiRefusal."""
        found: list[ApiRecord] = []
        cursor: Any = None
        for _ in range(_MAX_PAGES):
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)
            page = self.get(path, **query, limit=size, cursor=cursor)
            found += page["items"]
            cursor = page["next_cursor"]
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
        except TimeoutError:
            raise ApiRefusal(f"{self._host} sent no complete response in time; check there whether it was done.") from None
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
    """Return the JSON object, or an empty one for anything else."""
    try:
        body = json.loads(content, object_hook=ApiRecord)
    except (ValueError, RecursionError):
        return ApiRecord()
    return body if isinstance(body, ApiRecord) else ApiRecord()
