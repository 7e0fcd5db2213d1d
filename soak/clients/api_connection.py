"""A well-behaved HTTP client: keeps its connection, and repeats a request after 429, 503 or no response.

Repeats have the same idempotency key. Any unexpected response is recorded as a surprise. A request without a final response
in time counts as not acknowledged.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from soak.receivers.event_log import EventLog

#: Retryable statuses; 409 only while the first request with the same key is in progress.
_RETRYABLE_STATUSES: Final = frozenset({429, 503})
_TIMEOUT_S: Final = 20.0
#: Longer than any outage in a soak.
RETRY_FOR_S: Final = 90.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class SoakResponse:
    """An HTTP response; header names are lower-case; a body that is not JSON is text."""

    status: int
    headers: Mapping[str, str]
    body: Any


class ApiConnection:
    """One client's connection to the service."""

    def __init__(self, port: int, events: EventLog, counts: Counter[str], stop: threading.Event) -> None:
        self._port = port
        self._events = events
        self._counts = counts
        self._stop = stop
        self._client: http.client.HTTPConnection | None = None

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Any = None,
        expected: frozenset[int] = frozenset({200}),
        content: bytes | None = None,
    ) -> SoakResponse | None:
        """Repeat a request until it gets a final response; None without one in time, or for an unexpected status.

        `content` replaces `body` and is sent unchanged; it is JSON unless `headers` have another Content-Type.
        """
        if content is None and body is not None:
            content = json.dumps(body).encode()
        typed = {**({"Content-Type": "application/json"} if content is not None else {}), **headers}
        deadline, pause_s = time.monotonic() + RETRY_FOR_S, _FIRST_PAUSE_S
        while time.monotonic() < deadline:
            response = self._once(method, path, typed, content)
            if response is not None and not _is_retryable(response):
                return response if self._is_expected(method, path, response, expected) else None
            self._counts["retried"] += 1
            # Also while stopping: the verification needs the outcome of every request.
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        self._counts["not acknowledged"] += 1
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _once(self, method: str, path: str, headers: Mapping[str, str], content: bytes | None) -> SoakResponse | None:
        self._counts["requests"] += 1
        client = self._client = self._client or http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            client.request(method, path, content, dict(headers))
            response = client.getresponse()
            actual = response.read()
            is_json = "json" in (response.getheader("Content-Type") or "")
            body = (json.loads(actual) if is_json else actual.decode()) if actual else None
        except (OSError, http.client.HTTPException, ValueError):
            # The service was killed during a response, or does not listen.
            self.close()
            return None
        self._counts[f"status {response.status}"] += 1
        return SoakResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def _is_expected(self, method: str, path: str, response: SoakResponse, expected: frozenset[int]) -> bool:
        if response.status in expected:
            return True
        self._events.append("surprise", method=method, path=path, status=response.status, body=response.body)
        return False


def _is_retryable(response: SoakResponse) -> bool:
    if response.status != 409:
        return response.status in _RETRYABLE_STATUSES
    return isinstance(response.body, dict) and response.body["error"]["code"] == "IDEMPOTENCY_IN_PROGRESS"
