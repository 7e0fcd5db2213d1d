"""Saved requests in HTTP/1.1 format: written by `listen --save`, sent again by `trigger --replay`.

A file has mode 0600: it contains the ticket, and a signature that is valid for five minutes. It contains no secret.
"""

import http.client
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bin.cli.output import Refused
from bin.receiver_kit.receiver import MAX_BODY_BYTES, Received

#: Headers of one connection; the client sets them again for a replay.
_FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
#: Obsolete line folding of headers.
_FOLD: Final = re.compile(r"\s*\r?\n\s*")
_HEAD_END: Final = b"\r\n\r\n"
#: Characters removed from a sender's id for the file name, and the maximum length of the rest.
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_ID_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class SavedRequest:
    """One request to send again; `headers` without those of its connection."""

    headers: dict[str, str]
    body: bytes


def save(folder: Path, received: Received) -> Path:
    """Write a request to a new file of mode 0600, and create the folder with mode 0700 if needed; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"POST {received.path} HTTP/1.1", *(f"{name}: {value}" for name, value in received.headers)]
    content = "\r\n".join(lines).encode("latin-1", "replace") + _HEAD_END + received.body
    path = folder / f"{_name(received)}.http"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path


def read(path: Path) -> SavedRequest:
    """Read a saved request. Raises Refused."""
    try:
        content = path.read_bytes()
    except OSError as failed:
        raise Refused(f"Cannot read {path}: {failed.strerror}.") from None
    head, end, body = content.partition(_HEAD_END)
    line, _, headers = head.partition(b"\r\n")
    if not end or not re.fullmatch(rb"POST \S+ HTTP/1\.[01]", line) or len(body) > MAX_BODY_BYTES:
        raise Refused(f"{path} is not a saved request; save requests with `riskrelay listen --save DIR`.")
    return SavedRequest(_headers(path, headers + _HEAD_END), body)


def _headers(path: Path, lines: bytes) -> dict[str, str]:
    try:
        message = http.client.parse_headers(io.BytesIO(lines))
    except http.client.HTTPException:
        raise Refused(f"{path} is not a saved request: its headers are too long or too many.") from None
    kept: dict[str, str] = {}
    for name, value in message.items():
        if name.lower() in {each.lower() for each in kept}:
            raise Refused(f"{path} has the header {name} twice; remove one of them.")
        if name.lower() not in _FRAMING:
            kept[name] = _FOLD.sub(" ", value)
    return kept


def _name(received: Received) -> str:
    id_ = received.export_id or received.idempotency_key or received.request_id or "request"
    return f"{received.at:%Y%m%dT%H%M%S.%f}Z-{_UNSAFE.sub('', id_)[:_ID_CHARS] or 'request'}"
