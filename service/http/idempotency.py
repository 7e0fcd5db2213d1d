"""Runs a request's work once per key; the key, the work and the stored response commit in one transaction.

The key is the client's `Idempotency-Key`. Without that header, the key is the natural key of the request's subject, if there
is one.

Errors are not stored: they roll the transaction back, including the key.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import falcon

from runtime import logs
from runtime.clock import utc_now
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from storage.db import engine
from storage.exports import idempotency

_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")
REPLAYED: Final = "Idempotency-Replayed"

#: Kept, because json.dumps would create such an encoder for every response.
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A responder's result: a status, a JSON body, headers to store with it, and ids for the log.

    `secrets` replace members of the body in the first response. They are not stored, and a replayed response does not
    contain them.
    """

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    log_fields: Mapping[str, str | int | None] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


class IdempotentExecutor:
    """Runs the work of POST and PATCH requests once per key, and sends the response."""

    def __init__(self, ttl: timedelta) -> None:
        #: How long a key and its response are kept.
        self.ttl = ttl

    def respond(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        work: Callable[[], ApiResponse],
        before_transaction: Callable[[], None] | None = None,
        natural_key: str | None = None,
    ) -> None:
        """Run `work` in a transaction, or replay the response stored for the same key and payload.

        `before_transaction` is work that waits for the network; a replay skips it. A request without a key counts as a
        repeat if a request with the same `natural_key` was made within `NATURAL_KEY_TTL`. A dry run rolls everything back
        and responds with 200. Raises ValidationFailed for a malformed key, IdempotencyConflict, IdempotencyInProgress.
        """
        request = keyed_request(req)
        if before_transaction is not None and (req.context.is_dry_run or not self._is_stored(request)):
            engine.release()
            before_transaction()
        if req.context.is_dry_run:
            send(resp, 200, {}, _encode(run_and_roll_back(work).body))
            return
        ttl = self.ttl
        if request is None and natural_key is not None:
            request = idempotency.naturally_keyed(req.context.principal.key, req.method, str(req.uri_template), natural_key)
            ttl = idempotency.NATURAL_KEY_TTL

        def once() -> tuple[ApiResponse | None, idempotency.StoredResponse]:
            before = None if request is None else idempotency.begin(request, utc_now(), ttl)
            if before is not None:
                return None, before
            response = work()
            new = stored(response)
            if request is not None:
                idempotency.finish_all([(request, new)])
            return response, new

        response, written = engine.transact(once)
        body = written.body
        if response is None:
            resp.set_header(REPLAYED, "true")
        else:
            logs.add_context(**response.log_fields)
            if response.secrets:
                body = _encode({**response.body, **response.secrets})
        send(resp, written.status, written.headers, body)

    def _is_stored(self, request: idempotency.KeyedRequest | None) -> bool:
        return request is not None and idempotency.recall(request, utc_now(), self.ttl) is not None


class _RollBack(Exception):
    """Rolls back the transaction of a dry run."""


def run_and_roll_back(work: Callable[[], _Result]) -> _Result:
    """Do a dry run: return the result of `work`, and roll back its transaction. Raises what `work` raises.

    `work` must do nothing that a rollback cannot undo, such as network requests or wake-ups.
    """
    with suppress(_RollBack), engine.transaction():
        result = work()
        raise _RollBack
    return result


def request_digest(req: falcon.Request) -> str | None:
    """Return 64 hex digits that are the same for every repeat of a keyed request; None without a key."""
    request = keyed_request(req)
    return None if request is None else hashlib.sha256(repr(request).encode()).hexdigest()


def stored(response: ApiResponse) -> idempotency.StoredResponse:
    """Return a response as it is stored and replayed, without its secrets."""
    return idempotency.StoredResponse(response.status, dict(response.headers), _encode(response.body))


def keyed_request(req: falcon.Request) -> idempotency.KeyedRequest | None:
    """Return the request's key with a digest of its payload; None without a key.

    The digest covers the canonical JSON of the parsed body, and the path, which contains the ids. Raises ValidationFailed
    for a malformed key.
    """
    key = req.get_header("Idempotency-Key")
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise ValidationFailed(problem("", "invalid_key"))
    payload = req.context.canonical_payload + b"\n" + req.path.encode()
    digest = hashlib.sha256(payload).hexdigest()
    return idempotency.KeyedRequest(req.context.principal.key, req.method, str(req.uri_template), key, digest)


def send(resp: falcon.Response, status: int, headers: Mapping[str, str], body: str) -> None:
    """Send a JSON body."""
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.set_headers(dict(headers))
    resp.data = body.encode()
