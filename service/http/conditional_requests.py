"""Answers that a client may keep, but not use without asking whether they are still the same: an `ETag`, and 304 for it."""

import hashlib
from typing import Final, NamedTuple

import falcon

_KEEP: Final = "no-cache"


class TaggedBody(NamedTuple):
    """A body and the name of this version of it."""

    body: bytes
    tag: str


def tagged(body: bytes) -> TaggedBody:
    """Return `body` with a name that any other body would not have."""
    return TaggedBody(body, hashlib.sha256(body).hexdigest()[:32])


def answer(req: falcon.Request, resp: falcon.Response, kept: TaggedBody, media_type: str) -> None:
    """Answer with the body, or with 304 where the client has this one."""
    resp.set_header("ETag", f'"{kept.tag}"')
    resp.set_header("Cache-Control", _KEEP)
    if has(req, kept.tag):
        resp.status = falcon.HTTP_304
        return
    resp.content_type = media_type
    resp.data = kept.body


def has(req: falcon.Request, tag: str) -> bool:
    """Tell whether the client says that it has the version of this name."""
    # What a client was told comes back as it is, nearly always; falcon reads whatever else the header may say.
    told = req.env.get("HTTP_IF_NONE_MATCH")
    if told is None or told == f'"{tag}"':
        return told is not None
    known = req.if_none_match
    return known is not None and any(each == "*" or str(each) == tag for each in known)
