"""Holds what was acknowledged against what arrived and what the database says in the end. Pure: values in, findings out.

Three findings mean that the product broke its word: `lost` (acknowledged and not there, or approved and neither delivered
nor visibly failed or blocked by what its receiver did), `wrong` (bytes that nobody approved, a signature that does not
verify, a row too many, a state that changed that never may, a repeat without a cause, a person forgotten whom nobody named
or not forgotten who was named) and `forbidden` (an arrival of what was never approved, was put aside, was redacted, or whose
target was off; an address where nobody may go, or another target's). What came `late`, and what was `repeated` after a
receiver had accepted it, are counted; the cause of a repeat is an answer that got lost, or something that was made to go
wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from schemas.exports.delivery import DELIVERED
from soak.moods import MOODS

Line = Mapping[str, Any]

#: An attempt starts at most so long after its row was last seen to be allowed (docs/why-at-least-once.md).
FRESH_MS: Final = 200
#: A redaction's own time is that of its beginning; its transaction waits for locks, and for whoever stands still in one.
REDACTION_MS: Final = 12_000
#: Two workers may hold the same export for a moment, where one of them stood still; the loser's answer is refused.
AT_ONCE_MS: Final = 2_000
#: What goes wrong goes on for longer than the act: a process has to start again, leases have to lapse.
AFTERMATH_MS: Final = 15_000
#: What is promised after a kill.
LATE_MS: Final = 10_000

#: What each answer of a receiver makes of an export for good.
_BY_STATUS: Final = {
    401: "receiver_unauthorized",
    410: "receiver_gone",
    422: "WEBHOOK_VALIDATION_FAILED",
    307: "redirect_refused",
}
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARACTERS: Final = 10


@dataclass(frozen=True, slots=True)
class FinalExport:
    """An export as the database has it in the end; times are in ms since 1970.

    `sha256` is that of its frozen bytes, `path` that of its target's URL.
    """

    id: str
    name: str | None
    status: str
    reason: str | None
    target: str | None
    sha256: str | None
    attempts: int
    redacted_at: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """An attempt as the database has it; `ended_at` is in ms since 1970."""

    outcome: str
    ended_at: int


@dataclass
class Findings:
    """What came out; each finding is a sentence."""

    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    late: int = 0
    worst_late_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        """Tell whether the product kept its word."""
        return not (self.lost or self.wrong or self.forbidden)


def judge(
    acts: Iterable[Line],
    arrivals: Iterable[Line],
    rows: Iterable[FinalExport],
    recorded: Mapping[str, Recorded],
    most_attempts: int,
    honest: frozenset[str] = frozenset(),
) -> Findings:
    """Return what the ledger and the database say of each other.

    `acts` and `arrivals` are lines as `soak.clients`, `soak.mischief` and `soak.receivers` note them; `recorded` are the
    attempts that the database has, by their ids; `most_attempts` is what an export gets before it is given up; `honest` are
    the targets whose receivers never refuse, where lateness counts.
    """
    case = _Case(list(acts), list(arrivals), {row.id: row for row in rows}, recorded, most_attempts, honest)
    for finding in (_names, _acknowledged, _states, _approved, _redacted, _repeats, _bytes, _allowed, _lateness):
        finding(case)
    return case.findings


class _Case:
    """Everything at hand, sorted by what it is about."""

    def __init__(
        self,
        acts: Sequence[Line],
        arrivals: Sequence[Line],
        rows: Mapping[str, FinalExport],
        recorded: Mapping[str, Recorded],
        most_attempts: int,
        honest: frozenset[str],
    ) -> None:
        self.rows = rows
        self.recorded = recorded
        self.most_attempts = most_attempts
        self.honest = honest
        self.findings = Findings()
        self.acts: defaultdict[str, list[Line]] = defaultdict(list)
        for act in acts:
            self.acts[act["what"]].append(act)
        self.arrived = [line for line in arrivals if line["what"] == "arrived"]
        self.tickets = [line for line in self.arrived if line["type"] != "target.ping"]
        self.of_export: defaultdict[str, list[Line]] = defaultdict(list)
        for line in self.tickets:
            self.of_export[str(line["export"])].append(line)
        #: The attempts whose answers went out whole.
        self.answered = {line["attempt"] for line in arrivals if line["what"] == "answered"}
        #: From when to when something was wrong.
        self.faults = [
            (act["began_at"], act["at"] + int(act["pause_s"] * 1000) + AFTERMATH_MS) for act in self.acts["fault done"]
        ]
        self.approving = {act["export"] for act in self.acts["approving"]}
        self.dismissed = {act["export"] for act in self.acts["dismissed"]}
        #: When each target was acknowledged to be disabled, and from when to when it was known to be paused.
        self.disabled_at = {act["target"]: act["at"] for act in reversed(self.acts["disabled"])}
        self.pauses = _pauses(self.acts["paused"], self.acts["resuming"])
        shut = {act["target"] for act in self.acts["registered"] if "/shut/" in act["url"]}
        #: Targets that workers may not reach, and those that a client or their receiver may turn off.
        self.shut, self.off = shut, {act["target"] for act in self.acts["registered"]} - shut

    def approvals(self) -> dict[str, Line]:
        """Return the first acknowledged approval of each export."""
        return {act["export"]: act for act in reversed(self.acts["approved"])}


def _names(case: _Case) -> None:
    """Every request became as many rows as it says, or none where it was not acknowledged."""
    found = Counter(row.name for row in case.rows.values() if row.name is not None)
    redacted = {row.id for row in case.rows.values() if row.redacted_at is not None}
    acknowledged = {act["name"]: act["ids"] for act in case.acts["acknowledged"]}
    for act in case.acts["asked"]:
        name, wanted, there = act["name"], act["rows"], found[act["name"]]
        if redacted.intersection(acknowledged.get(name, [])):
            continue
        if there > wanted:
            case.findings.wrong.append(f"Request {name} is there {there} times instead of {wanted}.")
        elif there < wanted and name in acknowledged:
            case.findings.lost.append(f"Request {name} was acknowledged and has {there} rows instead of {wanted}.")
        elif 0 < there < wanted:
            case.findings.wrong.append(f"Request {name} is there by halves: {there} rows of {wanted}.")
    asked = {act["name"] for act in case.acts["asked"]}
    unasked = [row.id for row in case.rows.values() if row.redacted_at is None and row.name not in asked]
    case.findings.wrong.extend(f"Export {export_id} is there, and nobody asked for it." for export_id in unasked)


def _acknowledged(case: _Case) -> None:
    """Every id that a client was told is there."""
    for act in case.acts["acknowledged"]:
        gone = [export_id for export_id in act["ids"] if export_id not in case.rows]
        case.findings.lost.extend(f"Export {export_id} was acknowledged and is not there." for export_id in gone)


def _states(case: _Case) -> None:
    """What was put aside stays so, and so does what was seen exported."""
    told = [(act["export"], "dismissed") for act in case.acts["dismissed"]]
    told += [(act["export"], act["status"]) for act in case.acts["seen"]]
    for export_id, status in told:
        row = case.rows.get(export_id)
        if row is None:
            case.findings.lost.append(f"Export {export_id} was {status} and is not there.")
        elif row.status != status:
            case.findings.wrong.append(f"Export {export_id} was {status} and is {row.status} now.")
    for line in case.tickets:
        row, attempt = case.rows.get(str(line["export"])), case.recorded.get(line["attempt"])
        if row is None or attempt is None or row.redacted_at is not None:
            continue
        if attempt.outcome == DELIVERED and row.status != "exported":
            case.findings.wrong.append(f"Export {row.id} was delivered by {line['attempt']} and is {row.status} now.")


def _approved(case: _Case) -> None:
    """Every approval arrived, or visibly failed or was blocked for a reason that its receiver gave."""
    for export_id, approval in case.approvals().items():
        row = case.rows.get(export_id)
        if row is None:
            case.findings.lost.append(f"Export {export_id} was approved and is not there.")
            continue
        case.findings.counts[row.status] += 1
        if row.target != approval["target"]:
            case.findings.wrong.append(f"Export {export_id} was approved for {approval['target']} and has {row.target}.")
        why = _why_lost(case, row)
        if why is not None:
            case.findings.lost.append(f"Export {export_id} was approved and {why}")
    # What was approved without the answer reaching its client counts for nothing but the truth of what it says.
    for row in case.rows.values():
        if row.status == "exported" and not any(_accepts(line) for line in case.of_export[row.id]):
            case.findings.lost.append(f"Export {row.id} is exported, and no receiver accepted it.")


def _why_lost(case: _Case, row: FinalExport) -> str | None:
    """Return what is wrong with the end of an approved export; None where nothing is."""
    if row.status == "exported" or row.redacted_at is not None:
        return None
    lines = case.of_export[row.id]
    match row.status, row.reason:
        case "failed", "attempts_exhausted":
            is_so = row.attempts >= case.most_attempts
        case "failed", "target_disabled":
            is_so = row.target in case.off
        case "blocked", _:
            is_so = row.target in case.shut
        case "failed", reason:
            is_so = any(_BY_STATUS.get(line["status"]) == reason for line in lines)
        case _:
            return f"is {row.status} in the end."
    return None if is_so else f"is {row.status} ({row.reason}), which its receiver gave no reason for."


def _redacted(case: _Case) -> None:
    """Whoever was to be forgotten is, and nobody else."""
    for act in case.acts["redacting"]:
        row = case.rows.get(act["export"])
        if row is not None and row.redacted_at is None:
            case.findings.wrong.append(f"Export {row.id} was to be redacted and was not.")
    forgotten = {act["export"] for act in case.acts["forgetting"]}
    for row in case.rows.values():
        if row.redacted_at is not None and row.id not in forgotten:
            case.findings.wrong.append(f"Export {row.id} was redacted, and nobody asked for it.")


def _repeats(case: _Case) -> None:
    """What was accepted came again only where its answer was lost, or something had gone wrong."""
    for export_id, lines in case.of_export.items():
        for line, following in pairwise(lines):
            if not (_accepts(line) and line["attempt"] in case.answered):
                continue
            cause = _cause(case, line, following)
            case.findings.repeated[cause or "no cause"] += 1
            if cause is None:
                case.findings.wrong.append(f"Export {export_id} was accepted and came again for no cause.")


def _cause(case: _Case, line: Line, following: Line) -> str | None:
    """Return why an accepted attempt was followed by another one; None where nothing accounts for it."""
    recorded = case.recorded.get(line["attempt"])
    if recorded is not None and recorded.outcome != DELIVERED:
        return "answer lost"
    if recorded is not None and started_ms(following["attempt"]) > recorded.ended_at + AT_ONCE_MS:
        return None
    if any(since <= following["at"] and until >= line["at"] for since, until in case.faults):
        return "after a fault"
    return None


def _accepts(line: Line) -> bool:
    return MOODS[line["mood"]].accepts


def _bytes(case: _Case) -> None:
    """What arrives is signed, fresh, and the bytes that were approved."""
    approvals = case.approvals()
    # Several lines of one attempt would be one request that arrived twice.
    nonces = Counter(line["nonce"] for line in case.arrived)
    for line in case.arrived:
        if not line["is_signed"]:
            case.findings.wrong.append(f"Attempt {line['attempt']} arrived with a signature that does not verify.")
        if nonces[line["nonce"]] > 1:
            case.findings.wrong.append(f"Attempt {line['attempt']} arrived with a nonce that was there before.")
    for line in case.tickets:
        row, approval = case.rows.get(str(line["export"])), approvals.get(str(line["export"]))
        if line["export"] != line["key"]:
            case.findings.wrong.append(f"Attempt {line['attempt']} has another Idempotency-Key than its export's id.")
        if approval is not None and line["digest"] != approval["digest"]:
            case.findings.wrong.append(f"Export {line['export']} arrived with another ticket than the approved one.")
        if row is not None and row.redacted_at is None and line["sha256"] != row.sha256:
            case.findings.wrong.append(f"Export {line['export']} arrived with other bytes than the frozen ones.")


def _allowed(case: _Case) -> None:
    """Nothing arrives that must not."""
    for line in case.tickets:
        why = next(_why_forbidden(case, line), None)
        if why is not None:
            case.findings.forbidden.append(f"Attempt {line['attempt']} of export {line['export']} arrived {why}")
    for line in case.arrived:
        if line["path"] in {"/shut", "/elsewhere"}:
            case.findings.forbidden.append(f"Attempt {line['attempt']} arrived at {line['path']}, where nobody may go.")


def _why_forbidden(case: _Case, line: Line) -> Iterator[str]:
    row, started_at = case.rows.get(str(line["export"])), started_ms(line["attempt"])
    if line["export"] not in case.approving:
        yield "and nobody ever approved it."
    if line["export"] in case.dismissed:
        yield "and was dismissed."
    if row is None:
        return
    if row.redacted_at is not None and started_at > row.redacted_at + REDACTION_MS:
        yield "after its redaction."
    if row.target is None:
        return
    if line["path"] != row.path:
        yield f"at {line['path']}, which is not where its target is."
    disabled_at = case.disabled_at.get(row.target)
    if disabled_at is not None and started_at > disabled_at + FRESH_MS:
        yield "after its target was disabled."
    if any(since + FRESH_MS < started_at < until for since, until in case.pauses.get(row.target, ())):
        yield "while its target was paused."


def _pauses(paused: Sequence[Line], resuming: Sequence[Line]) -> dict[str, list[tuple[int, int]]]:
    """Return from when to when each target was known to be paused."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    resumed: defaultdict[str, list[int]] = defaultdict(list)
    for act in resuming:
        resumed[act["target"]].append(act["at"])
    for act in paused:
        until = min((at for at in resumed[act["target"]] if at >= act["at"]), default=act["at"])
        found[act["target"]].append((act["at"], until))
    return found


def _lateness(case: _Case) -> None:
    """How many arrived later than is promised, at receivers that are always kind."""
    for export_id, approval in case.approvals().items():
        if approval["target"] not in case.honest or not case.of_export[export_id]:
            continue
        late_ms = min(line["at"] for line in case.of_export[export_id]) - approval["at"]
        case.findings.late += late_ms > LATE_MS
        case.findings.worst_late_ms = max(case.findings.worst_late_ms, late_ms)


def started_ms(attempt_id: str) -> int:
    """Return when an attempt started, in milliseconds since 1970: its id is a ULID of that moment."""
    number = 0
    for character in attempt_id.partition("_")[2][:_TIME_CHARACTERS]:
        number = number * len(_CROCKFORD) + _CROCKFORD.index(character)
    return number
