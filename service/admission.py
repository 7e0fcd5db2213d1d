"""The order of checks before any work: size, authentication, headers, parsing, schema.

A resource names its operations; this middleware runs what stands before each of them, and its responder finds the
principal and the checked payload in `req.context`. A method without an operation is let through to be answered 405.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import falcon

from schemas.errors import NotAcceptable, PayloadTooLarge, UnsupportedMediaType, ValidationFailed
from schemas.fields import Form, problem
from schemas.strict_json import MalformedJson, canonical, parse
from service.auth import Authenticate
from service.error_responses import PROBLEM_JSON
from storage import database

#: A chunked body is read in pieces of this size, so that one byte over the cap is noticed before much more is read.
_PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Operation:
    """What stands before one method of one route."""

    authenticate: Authenticate
    form: Form | None = None


class Admission:
    """Falcon middleware that admits requests to the resources that name `operations`."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: Any, _params: Mapping[str, Any]
    ) -> None:
        """Run the checks in the contract's order; the first that fails answers."""
        operations: Mapping[str, Operation] = getattr(resource, "operations", {})
        operation = operations.get(req.method)
        if operation is None:
            return
        if (req.content_length or 0) > self._max_body_bytes:
            raise PayloadTooLarge
        req.context.principal = operation.authenticate(req)
        _check_accept(req)
        if "dry_run" in req.params:
            # Whoever asks for a dry run must not have the work done.
            raise ValidationFailed(problem("/dry_run", "not_supported"))
        if operation.form is not None:
            # A body may take its sender minutes; connections are few, and nobody holds one meanwhile.
            database.release()
            value = self._read_json(req)
            req.context.payload = operation.form.read(value)
            req.context.canonical_payload = canonical(value)

    def _read_json(self, req: falcon.Request) -> Any:
        media_type = (req.content_type or "").partition(";")[0].strip().lower()
        if media_type != falcon.MEDIA_JSON:
            raise UnsupportedMediaType
        try:
            return parse(self._read(req))
        except MalformedJson:
            raise ValidationFailed(problem("", "malformed_json")) from None

    def _read(self, req: falcon.Request) -> bytes:
        """Read the body under the cap; one without a length is chunked, not empty."""
        stream = req.bounded_stream if req.content_length is not None else req.stream
        pieces: list[bytes] = []
        size = 0
        while piece := _piece(stream, min(_PIECE_BYTES, self._max_body_bytes + 1 - size)):
            pieces.append(piece)
            size += len(piece)
            if size > self._max_body_bytes:
                raise PayloadTooLarge
        return b"".join(pieces)


def _piece(stream: Any, size: int) -> bytes:
    """Read from a body that may break off or be chunked wrongly, which is the sender's mistake and not ours."""
    try:
        return bytes(stream.read(size))
    except Exception:  # noqa: BLE001 - every server has its own errors for it, and some quote the body
        raise ValidationFailed(problem("", "malformed_json")) from None


def _check_accept(req: falcon.Request) -> None:
    if not (req.client_accepts(falcon.MEDIA_JSON) or req.client_accepts(PROBLEM_JSON)):
        raise NotAcceptable
