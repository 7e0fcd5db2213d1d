"""Reads request bodies with the forms of `schemas`."""

from typing import Any

from schemas.base.errors import ValidationFailed
from schemas.base.fields import Form


def read_or_failure(form: Form, body: Any) -> Any:
    """Return the value that the form reads from a body, or the ValidationFailed that it raises."""
    try:
        return form.read(body)
    except ValidationFailed as failure:
        return failure
