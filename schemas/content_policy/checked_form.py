"""Reads a body with its form and searches it for forbidden content, so that one refusal names every problem."""

from collections.abc import Callable
from typing import Any

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import Form
from schemas.content_policy import rules


def read_checked(
    form: Form,
    value: Any,
    inspected: Callable[[Any], Any] = lambda value: value,
    known_names: frozenset[str] | None = None,
    give_way: Callable[[], object] = lambda: None,
) -> Any:
    """Return what `form` makes of `value`. Raises ValidationFailed with every problem.

    `inspected` picks the part to search for forbidden content; `known_names` are the form's member names, where the caller
    has them already; `give_way` is called between parts of the work.
    """
    problems: tuple[FieldProblem, ...] = ()
    payload = None
    try:
        payload = form.read(value, _may_name)
    except ValidationFailed as failed:
        problems = failed.problems
    give_way()
    problems += rules.find(inspected(value), form.member_names() if known_names is None else known_names, give_way)
    if problems:
        raise ValidationFailed(*problems)
    return payload


def _may_name(name: str) -> bool:
    """Return whether a message may repeat the name of an unknown field: no detector finds a credential or the like in it."""
    return not rules.find([name], frozenset())
