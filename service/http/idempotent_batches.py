"""Processes concurrent requests in one transaction, together with their keys and responses.

A request that arrives alone, a repeated request, and every request of a batch in which one fails are processed one by one.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import falcon

from runtime import logs
from runtime.batches import Batches
from runtime.clock import utc_now
from service.http.idempotency import ApiResponse, IdempotentExecutor, keyed_request, send, stored
from storage.db import engine
from storage.exports import idempotency


class _KeyedWork(NamedTuple):
    """A request, its key, and its subject, such as the id of an export."""

    req: falcon.Request
    key: idempotency.KeyedRequest | None
    subject: str


class _BatchResponse(NamedTuple):
    """A response of a batch, and the form in which it is stored."""

    response: ApiResponse
    stored: idempotency.StoredResponse


class IdempotentBatches:
    """Responds to the POST requests of one route; their responses must contain no secrets.

    `together` does the work of several requests of a group in the caller's transaction. It returns a response for each
    request, or raises. The requests of a group have the same principal.
    """

    def __init__(
        self, executor: IdempotentExecutor, together: Callable[[Sequence[falcon.Request]], Sequence[ApiResponse]]
    ) -> None:
        self._executor = executor
        self._together = together
        self._batches = Batches[_KeyedWork, _BatchResponse](self._run)

    def respond(
        self, req: falcon.Request, resp: falcon.Response, group: Hashable, subject: str, alone: Callable[[], ApiResponse]
    ) -> None:
        """Respond as `IdempotentExecutor.respond` does with `alone`; no two requests of a batch have the same `subject`."""
        wanted = _KeyedWork(req, keyed_request(req), subject)
        done = self._batches.run(group, wanted, lambda: self._executor.respond(req, resp, alone))
        if done is not None:
            logs.add_context(**done.response.log_fields)
            send(resp, done.stored.status, done.stored.headers, done.stored.body)

    def _run(self, wanted: Sequence[_KeyedWork]) -> list[_BatchResponse | None]:
        """Process the first request of each subject and key in one transaction, and return the responses.

        The response is None for a request that must run alone: a later one with the same subject or key, or one with a
        stored key.
        """
        first: list[int] = []
        seen: set[tuple[str, str]] = set()
        for number, each in enumerate(wanted):
            # Only the keys are compared, not the payloads: a request that reuses a key runs alone, and fails then if its
            # payload differs.
            marks = {("subject", each.subject)} | ({("key", each.key.key)} if each.key else set())
            if seen.isdisjoint(marks):
                first.append(number)
            seen |= marks
        done: dict[int, _BatchResponse] = {}
        with engine.transaction():
            keys = [key for number in first if (key := wanted[number].key)]
            claimed = idempotency.claim_all(keys, utc_now(), self._executor.ttl)
            own = [number for number in first if wanted[number].key is None or wanted[number].key in claimed]
            if own:
                responses = self._together([wanted[number].req for number in own])
                done = {number: _BatchResponse(each, stored(each)) for number, each in zip(own, responses, strict=True)}
                idempotency.finish_all([(key, each.stored) for number, each in done.items() if (key := wanted[number].key)])
        return [done.get(number) for number in range(len(wanted))]
