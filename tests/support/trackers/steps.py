"""Runs the request generators of trackers, with scripted responses or against a real server."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import requests

from schemas.trackers.exchange import Steps, TrackerFailure, TrackerRefused, TrackerRequest, TrackerResponse

Result = TypeVar("Result")


def answer(status: int, body: Any = None, **headers: str) -> TrackerResponse:
    """Return a response. A body that is not bytes is encoded as JSON; `retry_after="7"` sets the header `retry-after`."""
    sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return TrackerResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, sent)


def play(steps: Steps[Result], answers: Iterable[TrackerResponse]) -> tuple[Result | TrackerFailure, list[TrackerRequest]]:
    """Send the responses `answers` to a generator; return its result, or the failure that ended it, and its requests.

    Bodies are truncated as the worker truncates them. Fails if a request has no response, or if a list has more responses
    than there are requests.
    """
    left, requests = iter(answers), []
    result: Result | TrackerFailure
    try:
        request = next(steps)
        while True:
            requests.append(request)
            response = next(left, None)
            assert response is not None, f"There is no response to request {len(requests)}: {request.method} {request.url}"
            request = steps.send(response._replace(body=response.body[: request.max_response_bytes]))
    except StopIteration as ended:
        result = ended.value
    except TrackerRefused as refused:
        result = refused.failure
    assert not isinstance(answers, Sequence) or len(answers) == len(requests), f"Only {len(requests)} requests were made"
    return result, requests


def perform(steps: Steps[Result]) -> Result | TrackerFailure | str:
    """Send the requests of a generator to a real server.

    Returns the generator's result, the failure that ended it, or "lost" if a request gets no response.
    """
    try:
        request = next(steps)
        while True:
            response = requests.request(
                request.method, request.url, headers=request.headers, data=request.body, timeout=30, allow_redirects=False
            )
            headers = {name.lower(): value for name, value in response.headers.items()}
            body = response.content[: request.max_response_bytes]
            request = steps.send(TrackerResponse(response.status_code, headers, body))
    except requests.ConnectionError:
        steps.close()
        return "lost"
    except StopIteration as ended:
        result: Result = ended.value
        return result
    except TrackerRefused as refused:
        return refused.failure
