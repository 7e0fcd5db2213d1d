"""Reads the forms of browsers up to a maximum size: fields alone, or fields with one file (`multipart/form-data`)."""

from io import BytesIO
from typing import Final
from urllib.parse import parse_qsl

import falcon
from falcon.media.multipart import BodyPart, MultipartForm, MultipartParseError, MultipartParseOptions

from schemas.base.errors import PayloadTooLarge, UnsupportedMediaType, ValidationFailed
from schemas.base.fields import problem
from service.http.limits.large_body_limiter import ByteBudget
from service.http.request_body import read_body

#: Maximum size of a form. The longest field is a description of 20,000 characters; encoding uses up to 12 bytes for each.
MAX_FORM_BYTES: Final = 256 * 1024
#: Maximum number of fields. The largest form has a check box for each ticket of a page, and a few more fields.
MAX_FORM_FIELDS: Final = 100
#: Maximum size of a multipart body without its file: the other fields and the boundaries.
MAX_OTHER_BYTES: Final = 64 * 1024
_MAX_FIELDS: Final = 20
#: The problem code of a form that cannot be read.
_MALFORMED: Final = "malformed_form"
_URLENCODED: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_OPTIONS: Final = MultipartParseOptions()
_OPTIONS.max_body_part_count = _MAX_FIELDS
_OPTIONS.max_body_part_buffer_size = MAX_OTHER_BYTES


class MultipartFields(dict[str, str]):
    """The fields of a form, with its file; `content` is empty if the form has no file."""

    file_name = ""
    content = b""


def read_urlencoded(req: falcon.Request) -> dict[str, str]:
    """Read a form of UTF-8 text in which each field occurs once.

    Raises PayloadTooLarge, RequestTimeout, UnsupportedMediaType, ValidationFailed.
    """
    if (req.content_type or "").partition(";")[0].strip().lower() != _URLENCODED:
        raise UnsupportedMediaType("Forms must have the content type application/x-www-form-urlencoded.")
    body = read_body(req, MAX_FORM_BYTES, None, f"A form has at most {MAX_FORM_BYTES} bytes.", _MALFORMED)
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS, strict_parsing=bool(body)
        )
    except ValueError:
        raise _malformed() from None
    fields = dict(pairs)
    if len(fields) < len(pairs) or any("\0" in text for pair in pairs for text in pair):
        raise _malformed()
    return fields


def read_multipart(req: falcon.Request, max_file_bytes: int, budget: ByteBudget) -> MultipartFields:
    """Read a form with a file of at most `max_file_bytes`; received bytes count against `budget` until the response.

    Raises PayloadTooLarge, RequestTimeout, UnsupportedMediaType, ValidationFailed, LargeBodyOverload.
    """
    media_type, parameters = falcon.parse_header(req.content_type or "")
    boundary = parameters.get("boundary", "")
    if media_type.lower() != _MULTIPART or not boundary.isascii():
        raise UnsupportedMediaType(f"A form with a file must have the content type {_MULTIPART}.")
    too_large = f"The file is larger than {max_file_bytes // 1024**2} MiB. Nothing was stored."
    body = read_body(req, max_file_bytes + MAX_OTHER_BYTES, budget, too_large, _MALFORMED)
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
        raise PayloadTooLarge(too_large)
    if any("\0" in text for text in (*fields.values(), *fields, fields.file_name)):
        raise _malformed()
    return fields


def _name_of(part: BodyPart) -> str:
    """Return the name of a file without the folders that some browsers send."""
    return (part.filename or "").replace("\\", "/").rpartition("/")[2]


def _malformed() -> ValidationFailed:
    return ValidationFailed(problem("", _MALFORMED))
