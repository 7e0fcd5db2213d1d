"""Reads a body with its form and searches it for forbidden content, so that one refusal names every problem."""

from collections.abc import Callable
from typing import Any

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import Form
from schemas.content_policy import rules


def read_checked(
    form: Form, value: Any, inspected: Callable[[Any], Any] = lambda value: value, checkpoint: Checkpoint = no_checkpoint
) -> Any:
    """Return the value of `form` for a body. Raises ValidationFailed with every problem.

    `inspected` picks the part of the reduced value to search for forbidden content; `checkpoint` is called between parts of
    the work.
    """
    problems: tuple[FieldProblem, ...] = ()
    payload = None
    value = form.reduced(value, checkpoint)
    try:
        payload = form.read_reduced(value, _may_name)
    except ValidationFailed as failed:
        problems = failed.problems
    checkpoint()
    problems += rules.find(inspected(value), form.member_names(), checkpoint)
    if problems:
        # A field's own check and the search may find the same problem.
        raise ValidationFailed(*dict.fromkeys(problems))
    return payload


def _may_name(name: str) -> bool:
    """Return whether a message may repeat the name of an unknown field: no detector finds forbidden content in it."""
    return not rules.find([name], frozenset())
