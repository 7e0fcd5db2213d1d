"""Runs the blocking and the async client against scripted responses, without a network and without real pauses."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from riskrelay_client import AsyncRiskRelay, RiskRelay

URL: Final = "https://riskrelay.example"
TOKEN: Final = "rrt_a-token-for-tests"
SECRET: Final = "a-scanner-secret-for-tests"

#: A response, or an error that the transport raises.
Scripted = httpx.Response | Exception


def ok(data: Any = None, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={} if data is None else data, headers=_named(headers))


def failure(status: int, code: str, **headers: str) -> httpx.Response:
    error = {"code": code, "message": f"About {code}", "details": {}, "request_id": "req_1"}
    return httpx.Response(status, json={"error": error}, headers=_named(headers))


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class Script:
    """Returns the scripted responses in order, then repeats the last one. Records requests, and pauses on a fake clock."""

    responses: list[Scripted]
    requests: list[httpx.Request] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    now: float = 0.0

    def respond(self, request: httpx.Request) -> httpx.Response:
        """Record a request and return the next response, or raise the next error."""
        self.requests.append(request)
        response = self.responses[min(len(self.requests), len(self.responses)) - 1]
        if isinstance(response, Exception):
            raise response
        return httpx.Response(response.status_code, headers=response.headers, content=response.content)

    def pause(self, seconds: float) -> None:
        """Advance the clock, and record the pause."""
        self.pauses.append(seconds)
        self.now += seconds

    async def pause_async(self, seconds: float) -> None:
        """Advance the clock, and record the pause."""
        self.pause(seconds)

    @property
    def keys(self) -> list[str | None]:
        """The idempotency key of each request."""
        return [request.headers.get("Idempotency-Key") for request in self.requests]

    @property
    def bodies(self) -> list[Any]:
        """The body of each request."""
        return [json.loads(request.content) if request.content else None for request in self.requests]


#: Calls a method of the blocking or the async client, and returns its result. Reads an iterator completely.
Run = Callable[[Script, Callable[[Any], Any]], Any]


def run_blocking(script: Script, call: Callable[[RiskRelay], Any], url: str = URL, **options: Any) -> Any:
    credentials = {"token": TOKEN, "scanner_secret": SECRET, **options}
    with RiskRelay(url, transport=httpx.MockTransport(script.respond), **credentials) as client:
        client._sender._sleep, client._sender._clock = script.pause, lambda: script.now
        result = call(client)
        return [*result] if isinstance(result, Iterator) else result


def run_async(script: Script, call: Callable[[AsyncRiskRelay], Any], url: str = URL, **options: Any) -> Any:
    return asyncio.run(_run_async(script, call, url, {"token": TOKEN, "scanner_secret": SECRET, **options}))


async def _run_async(script: Script, call: Callable[[AsyncRiskRelay], Any], url: str, options: dict[str, Any]) -> Any:
    async with AsyncRiskRelay(url, transport=httpx.MockTransport(script.respond), **options) as client:
        client._sender._sleep, client._sender._clock = script.pause_async, lambda: script.now
        result = call(client)
        if isinstance(result, AsyncIterator):
            return [each async for each in result]
        return await result if isinstance(result, Awaitable) else result
