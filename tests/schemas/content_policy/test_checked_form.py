"""One response names every problem of a body; the names of unknown members are repeated only if they are harmless."""

from typing import Any, Final

import pytest

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.content_policy.checked_form import read_checked
from schemas.exports.record import ApprovalForm, PreparationForm

TARGET: Final = "tgt_01KJM8A1Z8Q4R2S6T0V8W3X5Y7"

#: Columns: an approval with unknown members; the message about them.
UNKNOWN: Final[list[tuple[dict[str, Any], str]]] = [
    ({"headers": 1}, "Unknown field: `headers`"),
    ({"a": 1, "b_2": 2}, "Unknown fields: `a`, `b_2`"),
    ({f"n{number}": 1 for number in range(90)}, "Unknown fields: `n0`, `n1`, `n10`, `n11`, `n12` and 85 more"),
    ({"not-ordinary": 1}, "Unknown field."),
    ({"": 1}, "Unknown field."),
    ({"x" * 41: 1}, "Unknown field."),
    ({"4242424242424242": 1}, "Unknown field."),
    ({"4242424242424242": 1, "headers": 2}, "Unknown fields: `headers` and 1 more"),
]


def problems(form: Any, body: Any) -> tuple[FieldProblem, ...]:
    with pytest.raises(ValidationFailed) as refused:
        read_checked(form, body)
    return refused.value.problems


@pytest.mark.parametrize(("unknown", "message"), UNKNOWN)
def test_an_unknown_field_is_named_if_its_name_is_harmless(unknown: dict[str, Any], message: str) -> None:
    found = problems(ApprovalForm(), {"target_id": TARGET, **unknown})
    assert FieldProblem("", "unknown_member", message) in found


def test_a_refusal_names_wrong_fields_and_forbidden_content_at_once() -> None:
    found = problems(PreparationForm(), {"ticket": {"title": 1, "description": "x", "evidence": {"password": "p"}}})
    assert {(each.path, each.code) for each in found} == {
        ("/ticket/title", "invalid_type"),
        ("/ticket/evidence/password", "forbidden_name"),
    }


def test_a_valid_body_is_read() -> None:
    assert read_checked(ApprovalForm(), {"target_id": TARGET}).target_id == TARGET
