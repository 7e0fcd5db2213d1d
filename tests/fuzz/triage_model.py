"""A model of the effects of approval rules and bulk decisions, written without the product's code.

Its sources are `docs/approval-rules.md` and `docs/api.md`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tests.fuzz.model import FINISHED, ON_ITS_WAY, ObservedTarget, StoredExport

Result = Literal["changed", "skipped", "refused", "target refused"]
FAILED: Final = frozenset({"failed", "blocked"})
#: The statuses that each bulk decision changes. The second table has those in which it has no effect.
_LEGAL: Final = {"approve": {"prepared"}, "dismiss": {"prepared"}, "restore": {"dismissed"}, "retry": FAILED}
_DECIDED: Final[Mapping[str, frozenset[str]]] = {
    # A failed or blocked export needs a retry, which the error says.
    "approve": frozenset({*ON_ITS_WAY, "exported"}),
    "dismiss": frozenset({"dismissed"}),
    "restore": frozenset({"prepared"}),
    "retry": ON_ITS_WAY,
}


class ComparedExport(NamedTuple):
    """The fields of an export that rules compare; `pages` are those of its findings."""

    source: str
    code: str | None = None
    pages: frozenset[str] = frozenset()


class Match(NamedTuple):
    """The conditions of a rule: in the form of the API, and as a function that must be equivalent."""

    requested: dict[str, Any]
    applies: Callable[[ComparedExport], bool]


MATCHES: Final[Mapping[str, Match]] = {
    "by hand": Match({"sources": ["manual"]}, lambda each: each.source == "manual"),
    "from outside": Match(
        {"sources": ["inbound_email", "evidence_capture"]}, lambda each: each.source in {"inbound_email", "evidence_capture"}
    ),
    "one letter, and the rest": Match({"rule": "?l*"}, lambda each: each.code == "alt"),
    "an end": Match({"rule": "*le", "severity_at_least": "low"}, lambda each: each.code == "title"),
    "a page": Match(
        {"sources": ["finding"], "page_path": "/c*"},
        lambda each: bool(each.pages) and all("/c" in url for url in each.pages),
    ),
    "everything": Match({"severity_at_least": "info"}, lambda _: True),
}
ACTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "approve": {"type": "approve"},
    "dismiss, open": {"type": "dismiss", "reason": "wont_fix"},
    "dismiss": {"type": "dismiss", "reason": "test"},
    "label": {"type": "label", "labels": ["one"]},
    "label twice": {"type": "label", "labels": ["one", "two"]},
}


@dataclass(slots=True)
class ExpectedRule:
    """An acknowledged rule."""

    id: str
    match: str
    action: dict[str, Any]
    is_enabled: bool = True


class Decided(NamedTuple):
    """The expected action of a rule on an export."""

    export_id: str
    action: str
    rule_id: str


class RulesModel:
    """The rules of the account and the labels that they added. `waiting` has exports that wait for the target of a rule."""

    def __init__(self, waiting: dict[str, str]) -> None:
        self.rules: dict[str, ExpectedRule] = {}
        self.waiting = waiting
        self._labels: dict[str, set[str]] = {}

    def apply(
        self,
        subjects: Mapping[str, ComparedExport],
        rows: Mapping[str, StoredExport],
        targets: Mapping[str, ObservedTarget],
        now: datetime,
    ) -> list[Decided]:
        """Return the actions of the rules on exports that were just prepared or extended; `rows` are the rows before."""
        enabled = [rule for _, rule in sorted(self.rules.items()) if rule.is_enabled]
        if not enabled:
            return []
        decided: list[Decided] = []
        for export_id, subject in subjects.items():
            # New places end a snooze that lasts until a finding is seen.
            row = rows.get(export_id)
            if row is not None and row.snoozed_until is not None and row.snoozed_until > now:
                continue
            waited_for = self.waiting.pop(export_id, None)
            rule = next((each for each in enabled if MATCHES[each.match].applies(subject)), None)
            if rule is not None:
                decided += self._decided(export_id, rule, targets, waited_for)
        return decided

    def resume(
        self,
        subject_of: Callable[[str], ComparedExport],
        rows: Mapping[str, StoredExport],
        targets: Mapping[str, ObservedTarget],
        now: datetime,
    ) -> Iterator[Decided]:
        """Yield a worker's decisions on exports that have waited for the target of a rule."""
        for export_id, rule_id in list(self.waiting.items()):
            row, rule = rows[export_id], self.rules.get(rule_id)
            if rule is None or (rule.is_enabled and targets[rule.action["target_id"]].status != "active"):
                # Exports that waited for a deleted rule get no decision.
                continue
            del self.waiting[export_id]
            is_snoozed = row.snoozed_at is not None and (row.snoozed_until is None or row.snoozed_until > now)
            if rule.is_enabled and not is_snoozed and MATCHES[rule.match].applies(subject_of(export_id)):
                yield Decided(export_id, "approve", rule.id)

    def _decided(
        self, export_id: str, rule: ExpectedRule, targets: Mapping[str, ObservedTarget], waited_for: str | None
    ) -> Iterator[Decided]:
        match rule.action:
            case {"type": "label", "labels": labels}:
                present = self._labels.setdefault(export_id, set())
                if not present.issuperset(labels):
                    present.update(labels)
                    yield Decided(export_id, "label", rule.id)
            case {"type": "approve", "target_id": target_id} if targets[target_id].status != "active":
                self.waiting[export_id] = rule.id
                if waited_for != rule.id:
                    yield Decided(export_id, "wait_for_target", rule.id)
            case {"type": decision}:
                yield Decided(export_id, decision, rule.id)


@dataclass(slots=True)
class ExpectedJob:
    """An acknowledged bulk job, with its exports and their versions, and its results."""

    action: str
    target_id: str | None
    items: list[tuple[str, int]]
    results: list[Result] = field(default_factory=list)


def judge(
    action: str,
    row: StoredExport | None,
    target_id: str | None,
    targets: Mapping[str, ObservedTarget],
    *,
    version: int | None = None,
    digest: str | None = None,
) -> Result:
    """Return the expected result of a bulk decision for one export."""
    if row is None or digest not in {None, row.digest}:
        return "refused"
    ends_snooze = action == "restore" and row.status == "prepared" and row.snoozed_at is not None
    is_decided = row.status in _DECIDED[action] and (action != "approve" or row.target_id == target_id)
    if is_decided and not ends_snooze:
        return "skipped"
    if version not in {None, row.version} or not (ends_snooze or row.status in _LEGAL[action]):
        return "refused"
    if action in {"restore", "retry"} and row.redacted_at is not None:
        return "refused"
    needed = {"approve": target_id, "retry": row.target_id}.get(action)
    if needed is not None and targets[needed].status != "active":
        return "target refused"
    return "changed"


def matching(rows: Iterable[StoredExport], statuses: Iterable[str]) -> dict[str, int]:
    """Return the exports in some statuses, with their versions."""
    wanted = {*statuses}
    assert wanted <= {"prepared", *FINISHED, *ON_ITS_WAY}
    return {row.id: row.version for row in rows if row.status in wanted}
