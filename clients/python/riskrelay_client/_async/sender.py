"""Sends the requests of an asynchronous client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar

import httpx

from riskrelay_client import _transport
from riskrelay_client._transport import MAX_PAUSE_S, Call, Query, Reply, Settings
from riskrelay_client.errors import RiskRelayError, WaitTimeout

T = TypeVar("T")


class AsyncSender:
    """Sends requests and repeats them while that is safe; `sleep` and `clock` are replaced in tests."""

    def __init__(
        self,
        settings: Settings,
        http: httpx.AsyncClient,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.settings = settings
        self.http = http
        self._sleep = sleep
        self._clock = clock

    async def get(self, model: type[T], path: str, query: Query | None = None) -> T:
        """Read a record."""
        reply = await self.send(_transport.call("GET", path, self.settings.token, None, None, query))
        data: T = reply.data
        return data

    async def post(self, model: type[T], path: str, body: object = None, key: str | None = None) -> T:
        """Create or change something, once for each key."""
        reply = await self.send(_transport.call("POST", path, self.settings.token, body, key, None))
        data: T = reply.data
        return data

    async def patch(self, model: type[T], path: str, body: object, key: str | None = None) -> T:
        """Change the given members of a record."""
        reply = await self.send(_transport.call("PATCH", path, self.settings.token, body, key, None))
        data: T = reply.data
        return data

    async def delete(self, path: str) -> None:
        """Remove a record."""
        await self.send(_transport.call("DELETE", path, self.settings.token, None, None, None))

    async def pages(self, model: type[T], path: str, query: Query) -> AsyncIterator[T]:
        """Yield every record of a list, page by page."""
        cursor: str | None = None
        while True:
            page = await self.get(dict[str, Any], path, {**query, "cursor": cursor})
            records, cursor = _transport.page_of(page, cursor)
            for record in records:
                yield record
            if cursor is None:
                return

    async def wait(
        self,
        model: type[T],
        path: str,
        timeout: float,
        finished: frozenset[str],
        on_change: Callable[[T], object] | None = None,
    ) -> T:
        """Read a record until its status is in `finished`, at most `timeout` seconds.

        An unchanged record is not sent again. The pause is a second, grows up to 30, and is never shorter than Retry-After.
        Raises WaitTimeout; at once, if Retry-After ends later. Raises the error of a request that no time is left to repeat.
        """
        call = _transport.call("GET", path, self.settings.token, None, None, None)
        until, pause = self._clock() + timeout, 1.0
        record: Any = None
        tag: dict[str, str] = {}
        while True:
            reply = await self.send(replace(call, headers={**call.headers, **tag}), until)
            if reply.status != 304:
                record, pause = _transport.record_with_status(reply.data), 1.0
                tag = {"If-None-Match": reply.headers["ETag"]} if "ETag" in reply.headers else {}
                if on_change is not None:
                    on_change(record)
            if record["status"] in finished:
                found: T = record
                return found
            left = until - self._clock()
            if left <= 0 or reply.retry_after > left:
                raise WaitTimeout(record)
            await self._sleep(min(max(pause, reply.retry_after), left))
            pause = min(pause * 1.5, MAX_PAUSE_S)

    async def send(self, call: Call, until: float | None = None) -> Reply:
        """Send a request, and repeat it while that is safe and can succeed, at most until a time of the clock.

        Raises ApiError for the last error response, Unreachable if there was none.
        """
        limit, attempt = self._clock() + self.settings.retry_for, 0
        until = limit if until is None else min(until, limit)
        while True:
            outcome = await self._attempt(call, is_repeat=attempt > 0)
            if isinstance(outcome, Reply):
                return outcome
            pause = _transport.pause_s(outcome, attempt)
            if pause is None or self._clock() + pause > until:
                raise outcome
            await self._sleep(pause)
            attempt += 1

    async def _attempt(self, call: Call, is_repeat: bool) -> Reply | RiskRelayError:
        """Return the response or the error: one that is raised here would keep the request with its headers."""
        try:
            reply = await self._send_once(call)
        except httpx.HTTPError as error:
            return _transport.unreachable(error, self.http.base_url.host)
        if is_repeat and call.method == "DELETE" and reply.status == 404:
            return Reply(204, reply.headers)  # the response to an earlier attempt was lost
        return _transport.problem(call, reply) or reply

    async def _send_once(self, call: Call) -> Reply:
        """Send one request; redirects are returned and never followed.

        httpx limits each read; this limits the time and the size of the whole response.
        """
        until, content = self._clock() + self.settings.timeout, bytearray()
        async with self.http.stream(
            call.method,
            call.path,
            headers=dict(call.headers),
            params=dict(call.params),
            content=call.content,
            auth=call.credential,
        ) as response:
            async for piece in response.aiter_bytes():
                content += piece
                if self._clock() > until:
                    raise httpx.ReadTimeout("The response took too long.")
                if len(content) > _transport.MAX_RESPONSE_BYTES:
                    raise httpx.DecodingError("The response is too long.")
        return _transport.reply(response.status_code, response.headers, bytes(content))


class AsyncResource:
    """One noun of the API."""

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender
