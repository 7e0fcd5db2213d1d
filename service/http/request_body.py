"""Reads the body of a request, JSON or form, up to a maximum size."""

from typing import Any, Final

import falcon

from schemas.base.errors import PayloadTooLarge, RequestTimeout, ValidationFailed
from schemas.base.fields import problem
from service.http.limits.large_body_limiter import LARGE_BYTES, ByteBudget

#: A body is read in chunks of this size, so that little more than the limit is read of a body that is too large.
_CHUNK_BYTES: Final = 64 * 1024


def read_body(
    req: falcon.Request,
    max_bytes: int,
    budget: ByteBudget | None = None,
    too_large: str = "",
    malformed: str = "malformed_json",
) -> bytes:
    """Read the body up to the limit; a body without a length is chunked, not empty.

    Received bytes of a large body count against `budget` until `release`. Raises PayloadTooLarge with the message
    `too_large`, ValidationFailed with the code `malformed` for an incomplete body, RequestTimeout, LargeBodyOverload.
    """
    length = req.content_length
    if (length or 0) > max_bytes:
        raise PayloadTooLarge(too_large)
    stream = req.stream if length is None else req.bounded_stream
    chunks: list[bytes] = []
    size = 0
    while chunk := _read(stream, min(_CHUNK_BYTES, max_bytes + 1 - size), malformed):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise PayloadTooLarge(too_large)
        if budget is not None and size > LARGE_BYTES:
            budget.reserve(size - (req.context.get("reserved_bytes") or 0))
            req.context.budget, req.context.reserved_bytes = budget, size
    if size < (length or 0):
        # The received part may be valid JSON, or empty, which some routes accept.
        raise ValidationFailed(problem("", malformed))
    return b"".join(chunks)


def release(req: falcon.Request) -> None:
    """Release the reserved budget of a large body."""
    if req.context.get("reserved_bytes"):
        req.context.budget.release(req.context.reserved_bytes)


def _read(stream: Any, size: int, malformed: str) -> bytes:
    try:
        return bytes(stream.read(size))
    except TimeoutError:
        raise RequestTimeout from None
    except Exception:  # noqa: BLE001 - every server has its own errors for a failed read, and some quote the body
        raise ValidationFailed(problem("", malformed)) from None
