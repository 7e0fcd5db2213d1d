"""Runs a request's work once per Idempotency-Key; key, work and answer are one transaction.

Refusals are not stored: they raise, and the transaction takes the key back with everything else.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import falcon

from runtime import logs
from runtime.clock import utc_now
from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from service.http.dry_run import run_and_roll_back
from storage.db import engine
from storage.exports import idempotency

_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")
REPLAYED: Final = "Idempotency-Replayed"

#: json.dumps would make such an encoder anew for every answer.
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """What a responder answers: a status, a JSON body, headers that belong to it, and the ids it is about for the log."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    log_fields: Mapping[str, str | int | None] = field(default_factory=dict)


class IdempotentExecutor:
    """Answers with the result of some work, done once per key."""

    def __init__(self, ttl: timedelta) -> None:
        self._ttl = ttl

    def respond(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        work: Callable[[], ApiResponse],
        before_transaction: Callable[[], None] | None = None,
    ) -> None:
        """Do `work`, or repeat the answer it gave to the same key and payload before.

        `beforehand` is the part that no transaction may hold, such as asking the network; a repeat leaves it out.
        Raises ValidationFailed for a malformed key, IdempotencyConflict, IdempotencyInProgress.
        """
        request = _keyed_request(req)
        if req.context.is_dry_run:
            _try(resp, work, before_transaction)
            return
        if before_transaction is not None and not self._is_done(request):
            engine.release()
            before_transaction()
        if request is None:
            with engine.transaction():
                respond = work()
            logs.also_concern(**respond.log_fields)
            _send(resp, respond.status, respond.headers, _text(respond))
        else:
            self._once(resp, request, work)

    def _is_done(self, request: idempotency.KeyedRequest | None) -> bool:
        return request is not None and idempotency.recall(request, utc_now(), self._ttl) is not None

    def _once(self, resp: falcon.Response, request: idempotency.KeyedRequest, work: Callable[[], ApiResponse]) -> None:
        with engine.transaction():
            before = idempotency.begin(request, utc_now(), self._ttl)
            if before is None:
                respond = work()
                done = idempotency.StoredResponse(respond.status, dict(respond.headers), _text(respond))
                idempotency.finish(request, done)
        if before is not None:
            resp.set_header(REPLAYED, "true")
            _send(resp, before.status, before.headers, before.body)
        else:
            logs.also_concern(**respond.log_fields)
            _send(resp, done.status, done.headers, done.body)


def _try(resp: falcon.Response, work: Callable[[], ApiResponse], before_transaction: Callable[[], None] | None) -> None:
    """Do everything that would be done, answer what would be stored, and store nothing."""
    if before_transaction is not None:
        engine.release()
        before_transaction()
    _send(resp, 200, {}, _text(run_and_roll_back(work)))


def request_digest(req: falcon.Request) -> str | None:
    """Return 64 hex digits that are the same for every repeat of a keyed request; None without a key."""
    request = _keyed_request(req)
    return None if request is None else hashlib.sha256(repr(request).encode()).hexdigest()


def _keyed_request(req: falcon.Request) -> idempotency.KeyedRequest | None:
    """Fingerprint the canonical JSON of the parsed body and the path, which holds the ids; None without a key."""
    key = req.get_header("Idempotency-Key")
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise ValidationFailed(problem("", "invalid_key"))
    payload = req.context.canonical_payload + b"\n" + req.path.encode()
    digest = hashlib.sha256(payload).hexdigest()
    return idempotency.KeyedRequest(req.context.principal.key, req.method, str(req.uri_template), key, digest)


def _text(respond: ApiResponse) -> str:
    return _encode(respond.body)


def _send(resp: falcon.Response, status: int, headers: Mapping[str, str], body: str) -> None:
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.set_headers(dict(headers))
    resp.data = body.encode()
