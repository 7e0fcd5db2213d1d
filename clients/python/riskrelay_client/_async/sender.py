"""Sends the requests of an asynchronous client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar

import httpx

from riskrelay_client import _transport
from riskrelay_client._deadline import AsyncDeadline
from riskrelay_client._transport import LAST_READ_S, MAX_PAUSE_S, Call, Query, Reply, Settings
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

    async def post(
        self, model: type[T], path: str, body: object = None, key: str | None = None, least_timeout_s: float = 0.0
    ) -> T:
        """Create or change something, once for each key; a request may take `least_timeout_s` seconds or more."""
        reply = await self.send(_transport.call("POST", path, self.settings.token, body, key, None, least_timeout_s))
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
        # Every page has the same parameters: a filter that is an iterator can be read only once.
        first = call = _transport.call("GET", path, self.settings.token, None, None, query)
        cursor: str | None = None
        while True:
            reply = await self.send(call)
            records, cursor = _transport.page_of(reply.data, cursor)
            for record in records:
                yield record
            if cursor is None:
                return
            call = replace(first, params={**first.params, "cursor": cursor})

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
        The last request begins when the time ends, and takes up to a second. Raises WaitTimeout; at once, if the next
        attempt is due later. Raises the error of a request that no time is left to repeat.
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
            # Without `next_attempt_at`, Retry-After is a guess: a person may resume the target at any time.
            is_due_later = reply.retry_after > left and record.get("next_attempt_at") is not None
            if left <= 0 or is_due_later:
                raise WaitTimeout(record)
            await self._sleep(min(max(pause, reply.retry_after), left))
            pause = min(pause * 1.5, MAX_PAUSE_S)

    async def send(self, call: Call, until: float | None = None) -> Reply:
        """Send a request, and repeat it while that is safe and can succeed, at most until a time of the clock.

        That time also limits each request. Raises ApiError for the last error response, Unreachable if there was none.
        """
        limit, attempt = self._clock() + self.settings.retry_for, 0
        limit = limit if until is None else min(until, limit)
        while True:
            outcome = await self._attempt(call, self._timeout_s(call, until), is_repeat=attempt > 0)
            if isinstance(outcome, Reply):
                return outcome
            pause = _transport.pause_s(outcome, attempt)
            if pause is None or self._clock() + pause > limit:
                raise outcome
            await self._sleep(pause)
            attempt += 1

    def _timeout_s(self, call: Call, until: float | None) -> float:
        timeout_s = max(self.settings.timeout, call.least_timeout_s)
        return timeout_s if until is None else min(timeout_s, max(until - self._clock(), LAST_READ_S))

    async def _attempt(self, call: Call, timeout_s: float, is_repeat: bool) -> Reply | RiskRelayError:
        """Return the response or the error: the traceback of an error raised here would keep the request and its headers."""
        try:
            reply = await self._send_once(call, timeout_s)
        except httpx.HTTPError as error:
            return _transport.unreachable(error, self.http.base_url.host)
        if is_repeat and call.method == "DELETE" and reply.status == 404:
            return Reply(204, reply.headers)  # the response to an earlier attempt was lost
        return _transport.problem(call, reply) or reply

    async def _send_once(self, call: Call, timeout_s: float) -> Reply:
        """Send one request; redirects are returned and never followed.

        httpx limits each read; this limits the time of the whole request, and the size of the response.
        """
        until, content = self._clock() + timeout_s, bytearray()
        async with (
            AsyncDeadline(timeout_s) as deadline,
            self.http.stream(
                call.method,
                call.path,
                headers=dict(call.headers),
                params=dict(call.params),
                content=call.content,
                auth=call.credential,
                timeout=timeout_s,
                extensions=deadline.extensions,
            ) as response,
        ):
            async for piece in response.aiter_bytes():
                content += piece
                if self._clock() > until:  # the deadline may not apply to a `transport` of the caller
                    raise httpx.ReadTimeout("The response took too long.")
                if len(content) > _transport.MAX_RESPONSE_BYTES:
                    raise httpx.DecodingError("The response is too long.")
        return _transport.reply(response.status_code, response.headers, bytes(content))


class AsyncResource:
    """The methods for one kind of record."""

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender
