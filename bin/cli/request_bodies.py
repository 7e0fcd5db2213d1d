"""Reads a command's options as strictly as the service reads a request body."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import click

from bin.cli.output import Refused
from schemas.base.errors import ValidationFailed
from schemas.base.fields import Form
from schemas.base.strict_json import MalformedJson, parse
from schemas.content_policy.checked_form import read_checked


class FieldText(click.ParamType[str]):
    """Text that a field of a request body accepts."""

    name = "text"

    def __init__(self, form: type[Form], field: str) -> None:
        self._form, self._field = form(), field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; a text that the field refuses is wrong usage."""
        text = str(value)
        try:
            checked(self._form, {self._field: text})
        except ValidationFailed as invalid:
            for problem in invalid.problems:
                if problem.path == f"/{self._field}":
                    self.fail(problem.message, param, ctx)
        return text


def read_limited(file: BinaryIO, max_bytes: int) -> bytes:
    """Return the bytes of a file. Raises Refused beyond `max_bytes`, the size of a request body."""
    text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise Refused(f"The file has more than {max_bytes} bytes; see MAX_BODY_BYTES.")
    return text


def parse_strictly(text: bytes) -> Any:
    """Parse JSON strictly: a shell can pass text that a response could not contain. Raises Refused."""
    try:
        return parse(text)
    except MalformedJson as malformed:
        raise Refused(str(malformed)) from None


def parse_lines(file: BinaryIO) -> Iterator[Any]:
    """Yield the values of JSON Lines. Raises Refused for a line that is not JSON."""
    for number, line in enumerate(file, 1):
        try:
            yield parse(line)
        except MalformedJson as malformed:
            raise Refused(f"Line {number} cannot be read: {malformed}") from None


def present(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as the members of a request body. Raises Refused."""
    body: dict[str, Any] = parse_strictly(json.dumps(present(options)).encode())
    return body


def checked(form: Form, options: Mapping[str, Any]) -> Any:
    """Return the value of `form` for the given options. Raises ValidationFailed, also for forbidden content; Refused."""
    return read_checked(form, given(options))
