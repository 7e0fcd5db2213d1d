"""The state machine against a table that was written by hand."""

import pytest

from schemas.exports.state_machine import FINISHED, MOVES, ExportStatus, Move, allows

#: move: the states it may start from, and the one it ends in.
TABLE = {
    "approve": ({"prepared"}, "approved"),
    "claim": ({"approved", "retry_scheduled", "delivering"}, "delivering"),  # delivering: a lease that lapsed
    "deliver": ({"delivering"}, "exported"),
    "reschedule": ({"delivering"}, "retry_scheduled"),
    "postpone": ({"delivering"}, "retry_scheduled"),
    "fail": ({"delivering"}, "failed"),
    "block": ({"approved", "delivering", "retry_scheduled"}, "blocked"),  # waiting: its target was blocked
    "dismiss": ({"prepared"}, "dismissed"),
    "retry": ({"failed", "blocked"}, "approved"),
    # its person asked to be forgotten, or its target was disabled
    "withdraw": ({"approved", "delivering", "retry_scheduled"}, "failed"),
}


def test_the_table_names_every_move_and_every_status() -> None:
    assert {move.value for move in Move} == {*TABLE} == {move.value for move in MOVES}
    named = {name for sources, target in TABLE.values() for name in {*sources, target}}
    assert named == {status.value for status in ExportStatus}


@pytest.mark.parametrize("status", ExportStatus)
@pytest.mark.parametrize("move", Move)
def test_a_move_may_start_where_the_table_says_and_nowhere_else(move: Move, status: ExportStatus) -> None:
    sources, target = TABLE[move.value]
    assert allows(move, status) is (status.value in sources)
    assert MOVES[move].target.value == target


@pytest.mark.parametrize("status", [ExportStatus.EXPORTED, ExportStatus.DISMISSED])
def test_nothing_leaves_exported_or_dismissed(status: ExportStatus) -> None:
    assert [move for move in Move if allows(move, status)] == []


def test_finished_is_what_no_worker_starts_from() -> None:
    assert {status.value for status in FINISHED} == {"exported", "failed", "blocked", "dismissed"}
    assert not any(allows(Move.CLAIM, status) for status in FINISHED)
