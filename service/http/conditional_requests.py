"""Conditional requests: an `ETag` on the response, and 304 for a client that has this version."""

import hashlib
from typing import Final, NamedTuple

import falcon

_KEEP: Final = "no-cache"


class TaggedBody(NamedTuple):
    """A body and the ETag of this version."""

    body: bytes
    tag: str


def tagged(body: bytes) -> TaggedBody:
    """Return `body` with an ETag that no other body has."""
    return TaggedBody(body, hashlib.sha256(body).hexdigest()[:32])


def answer(req: falcon.Request, resp: falcon.Response, kept: TaggedBody, media_type: str) -> None:
    """Respond with the body, or with 304 if the client has this version."""
    resp.set_header("ETag", f'"{kept.tag}"')
    resp.set_header("Cache-Control", _KEEP)
    if has(req, kept.tag):
        resp.status = falcon.HTTP_304
        return
    resp.content_type = media_type
    resp.data = kept.body


def has(req: falcon.Request, tag: str) -> bool:
    """Return whether `If-None-Match` names this version."""
    # Nearly always the header is the ETag as it was sent; falcon parses every other form.
    header = req.env.get("HTTP_IF_NONE_MATCH")
    if header is None or header == f'"{tag}"':
        return header is not None
    known = req.if_none_match
    return known is not None and any(each == "*" or str(each) == tag for each in known)
