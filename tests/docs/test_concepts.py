"""The diagrams and tables of docs/concepts.md match the state machines in the code."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from schemas.base.errors import Conflict
from schemas.exports.state_machine import TRANSITIONS, ExportStatus
from schemas.exports.tickets.ticket import SOURCE_TYPES
from schemas.targets.target import TargetStatus
from storage.db.engine import execute, rows, transaction
from storage.maintenance.restore_sql import pausing_statements
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from storage.targets import targets
from tests.support.factories import NOW, Customer, make_target

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = (DOCS / "concepts.md").read_text()
SVG: Final = "{http://www.w3.org/2000/svg}"
#: Allowed distance between the end of an arrow and the edge of its box.
NEAR: Final = 1.5

#: Transition, source state, target state.
Arrows = set[tuple[str, str, str]]


def transitions_under(heading: str) -> Arrows:
    """Return the transitions in the table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: Arrows = set()
    for line in section.splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")]
        if line.startswith("| `"):
            [[transition], sources, [target]] = cells[:3]
            found |= {(transition, source, target) for source in sources}
    return found


def diagram(name: str) -> ElementTree.Element:
    return ElementTree.parse(DOCS / name).getroot()  # noqa: S314 - our own file


def boxes(drawn: ElementTree.Element) -> dict[str, tuple[float, float, float, float]]:
    """Return the box of each state by its label."""
    found = {}
    for group in drawn.iter(f"{SVG}g"):
        box, word = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        if box is not None and word is not None and group.get("id"):
            x, y, width, height = (float(box.get(side, "nan")) for side in ("x", "y", "width", "height"))
            found[str(word.text)] = (x, y, x + width, y + height)
    return found


def arrows(drawn: ElementTree.Element) -> Arrows:
    """Return the arrows by their data attributes; assert that each connects the edges of its two boxes."""
    where, found = boxes(drawn), set()
    for path in drawn.iter(f"{SVG}path"):
        transitions, source, target = (path.get(f"data-{name}", "") for name in ("moves", "from", "to"))
        if not transitions:
            continue
        points = [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d", ""))]
        assert is_at_edge(points[0], where[source]), (transitions, source)
        assert is_at_edge(points[-1], where[target]), (transitions, target)
        found |= {(transition, source, target) for transition in transitions.split()}
    return found


def is_at_edge(point: tuple[float, float], box: tuple[float, float, float, float]) -> bool:
    (x, y), (left, top, right, bottom) = point, box
    is_inside = left - NEAR <= x <= right + NEAR and top - NEAR <= y <= bottom + NEAR
    return is_inside and min(abs(x - left), abs(x - right), abs(y - top), abs(y - bottom)) <= NEAR


def arrow_labels(drawn: ElementTree.Element) -> set[str]:
    """Return the labels of the arrows."""
    inside = {id(text) for group in drawn.iter(f"{SVG}g") if group.get("id") for text in group.iter(f"{SVG}text")}
    words = [str(text.text).split(",") for text in drawn.iter(f"{SVG}text") if id(text) not in inside]
    return {word.strip() for each in words for word in each}


def export_transitions() -> Arrows:
    return {
        (transition.value, source.value, step.target.value)
        for transition, step in TRANSITIONS.items()
        for source in step.sources
    }


def test_the_table_of_export_states_matches_the_state_machine() -> None:
    assert transitions_under("Export states") == export_transitions()


def test_the_diagram_of_export_states_matches_the_state_machine() -> None:
    drawn = diagram("states.svg")
    assert set(boxes(drawn)) == set(ExportStatus)
    assert arrows(drawn) == export_transitions()
    assert arrow_labels(drawn) == {transition.value for transition in TRANSITIONS} | {"lease expired"}


@pytest.mark.parametrize("name", ["states.svg", "target-states.svg"])
def test_a_diagram_contains_no_links_and_no_scripts(name: str) -> None:
    text = (DOCS / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?:|href|<script|<style|<foreignObject| on\w+=|data:", text) == []
    assert f"]({name})" in PAGE


# --- targets have no table of transitions, so the test performs them


def status_change(verb: str) -> Callable[[str], None]:
    def change(target_id: str) -> None:
        targets.change_status(target_id, verb, NOW, "user:test")

    return change


def set_secret(target_id: str) -> None:
    targets.set_secret(target_id, "a secret", Vault([b"A" * 32]), NOW)


def turning_off(status: TargetStatus) -> Callable[[str], None]:
    def deactivate(target_id: str) -> None:
        with transaction():
            targets.deactivate(target_id, status, "a reason", NOW, "worker:test")

    return deactivate


def restore(_target_id: str) -> None:
    for statement in pausing_statements("begin_restore", "installation", NOW):
        execute(statement)


def start_without_default_secret(_target_id: str) -> None:
    targets.apply_default_secret(DefaultSecret(), NOW, "operator")


ACTIONS: Final[Mapping[str, Callable[[str], None]]] = {
    "secret": set_secret,
    "settings": start_without_default_secret,
    "pause": status_change("pause"),
    "resume": status_change("resume"),
    "disable": status_change("disable"),
    "refuse": turning_off(TargetStatus.BLOCKED),
    "give-up": turning_off(TargetStatus.DISABLED),
    "restore": restore,
}


def actual_target_transitions(customer: Customer) -> Arrows:
    """Return the transitions that each action causes from each state."""
    target_id, found = make_target(customer).id, set()
    for before in TargetStatus:
        for name, action in ACTIONS.items():
            execute("UPDATE targets SET status = ?, secret_sealed = NULL WHERE id = ?", (before.value, target_id))
            try:
                action(target_id)
            except Conflict:
                continue
            [(after,)] = rows("SELECT status FROM targets WHERE id = ?", (target_id,))
            if after != before.value:
                found.add((name, before.value, after))
    return found


def test_the_table_and_the_diagram_of_target_states_match_the_code(customer: Customer) -> None:
    real = actual_target_transitions(customer)
    assert len(real) > len(TargetStatus)
    assert transitions_under("Target states") == real
    drawn = diagram("target-states.svg")
    assert set(boxes(drawn)) == set(TargetStatus)
    assert arrows(drawn) == real
    assert arrow_labels(drawn) == set(ACTIONS)


def test_every_source_type_is_listed() -> None:
    [row] = re.findall(r"^\| source \|.*$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(SOURCE_TYPES)
