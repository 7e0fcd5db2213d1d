"""Every error has a code, a message and an HTTP status; every validation problem has a message of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.base import errors
from schemas.base.errors import FieldProblem, RiskRelayError, ValidationFailed
from schemas.base.fields import MESSAGES, problem
from service.http.error_responses import STATUS

ROOT = Path(__file__).parents[3]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RiskRelayError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status_and_a_sentence(kind: type[RiskRelayError]) -> None:
    assert kind.code in STATUS
    error = kind(retry_after_s=1) if kind is errors.RateLimited else kind()
    assert error.message == kind.__doc__
    assert (kind.__doc__ or "").strip()


def test_an_error_may_have_a_message_of_its_own() -> None:
    assert errors.Conflict("Export exp_1 is exported.").message == "Export exp_1 is exported."


def test_a_refusal_carries_its_problems() -> None:
    problems = problem("/name", "too_long")
    refused = ValidationFailed(problems)
    assert refused.problems == (FieldProblem("/name", "too_long", MESSAGES["too_long"]),)
    assert refused.message == "Validation failed"


def codes_in(source: str) -> Iterator[str]:
    """Yield the codes that are literals in calls of `problem` and `ValidationError` or in `error=` arguments."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        position = {"problem": 1, "ValidationError": 0}.get(name)
        values = call.args[position : position + 1] if position is not None else []
        values += [keyword.value for keyword in call.keywords if keyword.arg == "error"]
        yield from (value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))


def test_every_code_in_the_source_has_a_message() -> None:
    files = [path for room in ("schemas", "service", "storage") for path in (ROOT / room).rglob("*.py")]
    # The error report of the settings has messages where forms have codes.
    in_sentences = {
        "alert_channels.py",
        "certificates.py",
        "definitions.py",
        "openid.py",
        "parsers.py",
        "policy.py",
        "redis_url.py",
    }
    forms = [path for path in files if path.name not in in_sentences]
    written = {code for path in forms for code in codes_in(path.read_text(encoding="utf-8"))}
    assert {"too_long", "invalid_url", "unknown_target", "not_allowed"} <= written
    assert written - {*MESSAGES} == set()


def test_messages_are_sentences_that_differ() -> None:
    assert len({*MESSAGES.values()}) == len(MESSAGES)
    assert all(
        message[0].isupper() and message.endswith(".") for message in MESSAGES.values() if "Idempotency" not in message
    )
