"""Conditional requests: an `ETag` on the response, and 304 for a client that has the current version."""

import hashlib
from typing import NamedTuple

import falcon


class TaggedBody(NamedTuple):
    """A body and its ETag."""

    body: bytes
    tag: str


def tagged(body: bytes) -> TaggedBody:
    """Return `body` with an ETag that differs for every other body."""
    return TaggedBody(body, hashlib.sha256(body).hexdigest()[:32])


def send_revalidated(req: falcon.Request, resp: falcon.Response, tagged_body: TaggedBody, media_type: str) -> None:
    """Respond like `send_tagged`, and let browsers cache the body if they revalidate it before each use."""
    resp.set_header("Cache-Control", "no-cache")
    send_tagged(req, resp, tagged_body, media_type)


def send_tagged(req: falcon.Request, resp: falcon.Response, tagged_body: TaggedBody, media_type: str) -> None:
    """Respond with the body, or with 304 if the client has the current version."""
    resp.set_header("ETag", f'"{tagged_body.tag}"')
    if matches(req, tagged_body.tag):
        resp.status = falcon.HTTP_304
        return
    resp.content_type = media_type
    resp.data = tagged_body.body


def matches(req: falcon.Request, tag: str) -> bool:
    """Return whether `If-None-Match` contains this tag."""
    # Nearly always the header is the ETag exactly as it was sent; Falcon parses every other form.
    header = req.env.get("HTTP_IF_NONE_MATCH")
    if header is None or header == f'"{tag}"':
        return header is not None
    known = req.if_none_match
    return known is not None and any(each == "*" or str(each) == tag for each in known)
