"""Compares the state machine with a hand-written table."""

import pytest

from schemas.exports.state_machine import FINISHED, TRANSITIONS, ExportStatus, Transition, allows

#: Transitions, each with its source statuses and its target status.
TABLE = {
    "approve": ({"prepared"}, "approved"),
    "claim": ({"approved", "retry_scheduled", "delivering"}, "delivering"),  # delivering: an expired lease
    "deliver": ({"delivering"}, "exported"),
    "reschedule": ({"delivering"}, "retry_scheduled"),
    "postpone": ({"delivering"}, "retry_scheduled"),
    "fail": ({"delivering"}, "failed"),
    "block": ({"approved", "delivering", "retry_scheduled"}, "blocked"),  # waiting exports: their target was blocked
    "dismiss": ({"prepared"}, "dismissed"),
    "restore": ({"dismissed"}, "prepared"),
    "retry": ({"failed", "blocked"}, "approved"),
    # The data of a person was erased, or the target was disabled.
    "withdraw": ({"approved", "delivering", "retry_scheduled"}, "failed"),
}


def test_the_table_has_every_transition_and_every_status() -> None:
    assert {transition.value for transition in Transition} == {*TABLE} == {transition.value for transition in TRANSITIONS}
    named = {name for sources, target in TABLE.values() for name in {*sources, target}}
    assert named == {status.value for status in ExportStatus}


@pytest.mark.parametrize("status", ExportStatus)
@pytest.mark.parametrize("transition", Transition)
def test_a_transition_is_allowed_only_from_the_states_in_the_table(transition: Transition, status: ExportStatus) -> None:
    sources, target = TABLE[transition.value]
    assert allows(transition, status) is (status.value in sources)
    assert TRANSITIONS[transition].target.value == target


def test_exported_is_final_and_dismissed_can_only_be_restored() -> None:
    assert [transition for transition in Transition if allows(transition, ExportStatus.EXPORTED)] == []
    assert [transition for transition in Transition if allows(transition, ExportStatus.DISMISSED)] == [Transition.RESTORE]


def test_finished_are_the_statuses_that_workers_never_claim() -> None:
    assert {status.value for status in FINISHED} == {"exported", "failed", "blocked", "dismissed"}
    assert not any(allows(Transition.CLAIM, status) for status in FINISHED)
