"""Forms with one file (`multipart/form-data`), read within a limit of bytes."""

from io import BytesIO
from typing import Final

import falcon
from falcon.media.multipart import BodyPart, MultipartForm, MultipartParseError, MultipartParseOptions

from schemas.base.errors import PayloadTooLarge, UnsupportedMediaType, ValidationFailed
from schemas.base.fields import problem
from service.http.limits.large_body_limiter import ByteBudget
from service.http.request_pipeline import read_chunk, reserve

#: The fields beside the file, and what separates them.
MAX_OTHER_BYTES: Final = 64 * 1024
_MAX_FIELDS: Final = 20
_CHUNK_BYTES: Final = 64 * 1024
_FORM_TYPE: Final = "multipart/form-data"
_OPTIONS: Final = MultipartParseOptions()
_OPTIONS.max_body_part_count = _MAX_FIELDS
_OPTIONS.max_body_part_buffer_size = MAX_OTHER_BYTES


class MultipartFields(dict[str, str]):
    """The fields of a form, with its file; without one, `content` is empty."""

    file_name = ""
    content = b""


def read_multipart(req: falcon.Request, max_file_bytes: int, budget: ByteBudget) -> MultipartFields:
    """Read a form with a file of at most `max_file_bytes`; what has arrived counts against `budget` until the response.

    Raises PayloadTooLarge, UnsupportedMediaType, ValidationFailed, LargeBodyOverload.
    """
    media_type, parameters = falcon.parse_header(req.content_type or "")
    boundary = parameters.get("boundary", "")
    if media_type.lower() != _FORM_TYPE or not boundary.isascii():
        raise UnsupportedMediaType(f"A form with a file must have the content type {_FORM_TYPE}.")
    too_large = PayloadTooLarge(f"The file is larger than {max_file_bytes // 1024**2} MiB. Nothing was stored.")
    if (req.content_length or 0) > max_file_bytes + MAX_OTHER_BYTES:
        raise too_large
    body = _body(req, budget)
    fields = MultipartFields()
    try:
        for part in MultipartForm(BytesIO(body), boundary.encode(), len(body), _OPTIONS):
            name = part.name or ""
            if name in fields or not name:
                raise _malformed()
            if part.filename is None:
                fields[name] = part.get_data().decode()
            else:
                fields[name] = ""
                fields.file_name, fields.content = _name_of(part), part.stream.read()
    except (MultipartParseError, ValueError):
        raise _malformed() from None
    if len(fields.content) > max_file_bytes:
        raise too_large
    if any("\0" in text for text in (*fields.values(), *fields, fields.file_name)):
        raise _malformed()
    return fields


def _name_of(part: BodyPart) -> str:
    """Return the name of a file without its folders, which some browsers send."""
    return (part.filename or "").replace("\\", "/").rpartition("/")[2]


def _body(req: falcon.Request, budget: ByteBudget) -> bytes:
    """Read a form's bytes. A form without a length would be chunked, which no browser sends."""
    length = req.content_length or 0
    pieces, size = [], 0
    while size < length and (piece := read_chunk(req.bounded_stream, min(_CHUNK_BYTES, length - size))):
        pieces.append(piece)
        size += len(piece)
        reserve(req, budget, size)
    if size < length:
        raise _malformed()
    return b"".join(pieces)


def _malformed() -> ValidationFailed:
    return ValidationFailed(problem("", "malformed_form"))
