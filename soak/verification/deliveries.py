"""Compares acknowledgements with arrivals and the final database. Pure: values in, findings out.

Three findings mean that the product broke a promise: `lost` (acknowledged but missing, or approved and neither delivered nor
visibly failed or blocked because of its receiver), `wrong` (bytes that were not approved, an invalid signature, extra rows,
a final state that changed, a repeat without a cause, a redaction that was not requested or not done, and the findings of
`soak.verification.life_cycles`) and `forbidden` (an arrival of an export that was not approved, was dismissed or redacted,
or whose target was off; an arrival at a forbidden address or at another target's). Deliveries that were `late`, or
`repeated` after a receiver had accepted, are counted; the cause of a repeat is a lost response or an injected fault.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from schemas.exports.delivery import DELIVERED
from soak.receivers.behaviors import BEHAVIORS
from soak.verification.life_cycles import is_event, verify_life_cycles

Line = Mapping[str, Any]

#: Longest time between the check that a delivery is allowed and the start of its attempt (docs/why-at-least-once.md).
FRESH_MS: Final = 200
#: Longest duration of a redaction: its recorded time is that of the start, and it may wait for locks of suspended processes.
REDACTION_MS: Final = 12_000
#: If one worker was suspended, two workers may deliver the same export at once for this long; the late result is discarded.
AT_ONCE_MS: Final = 2_000
#: Effects of a fault last this much longer than the fault: processes restart, leases expire.
AFTERMATH_MS: Final = 15_000
#: The promised limit for a delivery after a kill; later ones count as late.
LATE_MS: Final = 10_000

#: Final state of an export by the receiver's response.
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
    """An export in the final database; times are in ms since 1970.

    `sha256` is the hash of its frozen body, `path` that of its target's URL, `issue` the number of its issue in the tracker.
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
    is_for_tracker: bool = False
    issue: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """An attempt in the database; `ended_at` is in ms since 1970."""

    outcome: str
    ended_at: int


@dataclass
class Findings:
    """The findings of a verification, one sentence each."""

    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    late: int = 0
    worst_late_ms: int = 0
    #: Lines of trackers by kind, and exports with more than one issue.
    tracked: Counter[str] = field(default_factory=Counter)
    issues_twice: int = 0
    #: Events of tickets, and the requests and comments that carried them.
    events: int = 0
    events_sent: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        """Return whether nothing is lost, wrong or forbidden."""
        return not (self.lost or self.wrong or self.forbidden)


def verify(
    acts: Iterable[Line],
    arrivals: Iterable[Line],
    rows: Iterable[FinalExport],
    recorded: Mapping[str, RecordedAttempt],
    max_attempts: int,
    reliable: frozenset[str] = frozenset(),
    tracked: Iterable[Line] = (),
) -> Findings:
    """Compare the records with the database and return the findings.

    `acts` and `arrivals` are lines of `soak.clients.submitters`, `soak.fault_injection` and `soak.receivers.receiver`;
    `recorded`: the attempts in the database, by id; `max_attempts` is the limit for one export; `reliable` are the targets
    that always accept, for which lateness counts; `tracked` are lines of `soak.receivers.tracker`.
    """
    case = _Case(list(acts), list(arrivals), {row.id: row for row in rows}, recorded, max_attempts, reliable, list(tracked))
    for finding in (_names, _acknowledged, _states, _approved, _issues, _redacted, _repeats, _bytes, _allowed, _lateness):
        finding(case)
    _life_cycles(case)
    return case.findings


class _Case:
    """The inputs of a verification, indexed, and its findings."""

    def __init__(
        self,
        acts: Sequence[Line],
        arrivals: Sequence[Line],
        rows: Mapping[str, FinalExport],
        recorded: Mapping[str, RecordedAttempt],
        max_attempts: int,
        reliable: frozenset[str],
        tracked: Sequence[Line],
    ) -> None:
        self.rows = rows
        self.recorded = recorded
        self.max_attempts = max_attempts
        self.reliable = reliable
        self.findings = Findings()
        self.acts: defaultdict[str, list[Line]] = defaultdict(list)
        for act in acts:
            self.acts[act["what"]].append(act)
        self.arrived = [line for line in arrivals if line["what"] == "arrived"]
        self.tickets = [line for line in self.arrived if line["type"] != "target.ping" and not is_event(line)]
        self.tracked = tracked
        self.of_export: defaultdict[str, list[Line]] = defaultdict(list)
        for line in self.tickets:
            self.of_export[str(line["export"])].append(line)
        self.creates: defaultdict[str, list[Line]] = defaultdict(list)
        self.issues: defaultdict[str, list[Line]] = defaultdict(list)
        for line in tracked:
            self.findings.tracked[line["what"]] += 1
            for export_id in line.get("exports", ()):
                (self.issues if line["what"] == "issue" else self.creates)[export_id].append(line)
        #: Attempts with completely sent responses.
        self.responded = {line["attempt"] for line in arrivals if line["what"] == "responded"}
        #: Intervals of faults.
        self.faults = [
            (act["began_at"], act["at"] + int(act["pause_s"] * 1000) + AFTERMATH_MS) for act in self.acts["fault done"]
        ]
        self.approving = {act["export"] for act in self.acts["approving"]}
        self.dismissed = {act["export"] for act in self.acts["dismissed"]}
        #: When each target was disabled, and the intervals in which it was paused.
        self.disabled_at = {act["target"]: act["at"] for act in reversed(self.acts["disabled"])}
        self.pauses = _pauses(self.acts["paused"], self.acts["resuming"])
        forbidden = {act["target"] for act in self.acts["registered"] if "/forbidden/" in act["url"]}
        #: Targets that workers must not reach, and targets that a client or their receiver may disable.
        self.forbidden, self.off = forbidden, {act["target"] for act in self.acts["registered"]} - forbidden

    def approvals(self) -> dict[str, Line]:
        """Return the first acknowledged approval of each export."""
        return {act["export"]: act for act in reversed(self.acts["approved"])}


def _names(case: _Case) -> None:
    """Check that each acknowledged request created all its rows, and each other request all or none."""
    found = Counter(row.name for row in case.rows.values() if row.name is not None)
    redacted = {row.id for row in case.rows.values() if row.redacted_at is not None}
    acknowledged = {act["name"]: act["ids"] for act in case.acts["acknowledged"]}
    for act in case.acts["submitting"]:
        name, expected, count = act["name"], act["rows"], found[act["name"]]
        if redacted.intersection(acknowledged.get(name, [])):
            continue
        if count > expected:
            case.findings.wrong.append(f"Request {name} exists {count} times instead of {expected}.")
        elif count < expected and name in acknowledged:
            case.findings.lost.append(f"Request {name} was acknowledged and has {count} rows instead of {expected}.")
        elif 0 < count < expected:
            case.findings.wrong.append(f"Request {name} is incomplete: {count} rows of {expected}.")
    submitted = {act["name"] for act in case.acts["submitting"]}
    unexpected = [row.id for row in case.rows.values() if row.redacted_at is None and row.name not in submitted]
    case.findings.wrong.extend(f"Export {export_id} exists, although no client submitted it." for export_id in unexpected)


def _acknowledged(case: _Case) -> None:
    """Check that every acknowledged id exists."""
    for act in case.acts["acknowledged"]:
        gone = [export_id for export_id in act["ids"] if export_id not in case.rows]
        case.findings.lost.extend(f"Export {export_id} was acknowledged and is not there." for export_id in gone)


def _states(case: _Case) -> None:
    """Check that the states dismissed and exported are final."""
    actual = [(act["export"], "dismissed") for act in case.acts["dismissed"]]
    actual += [(act["export"], act["status"]) for act in case.acts["seen"]]
    for export_id, status in actual:
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
    """Check that each approval arrived, or failed or was blocked because of its receiver."""
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
    # Approvals without an acknowledgement may have any consistent outcome.
    for row in case.rows.values():
        has_arrived = row.id in case.issues or any(_accepts(line) for line in case.of_export[row.id])
        if row.status == "exported" and not has_arrived:
            case.findings.lost.append(f"Export {row.id} is exported, and no receiver accepted it.")


def _why_lost(case: _Case, row: FinalExport) -> str | None:
    """Return the problem with an approved export's final state, if any."""
    if row.status == "exported" or row.redacted_at is not None:
        return None
    lines = case.of_export[row.id]
    match row.status, row.reason:
        case "failed", "attempts_exhausted":
            is_justified = row.attempts >= case.max_attempts
        case "failed", "target_disabled":
            is_justified = row.target in case.off
        case "blocked", _:
            is_justified = row.target in case.forbidden
        case "failed", "tracker_rejected":
            is_justified = any(line["status"] == 422 for line in case.creates[row.id])
        case "failed", reason:
            is_justified = any(_BY_STATUS.get(line["status"]) == reason for line in lines)
        case _:
            return f"is {row.status} in the end."
    return None if is_justified else f"is {row.status} ({row.reason}), which its receiver gave no reason for."


def _issues(case: _Case) -> None:
    """Check that trackers have one issue for each export that was approved for them, and no others."""
    for export_id, lines in case.issues.items():
        numbers = [str(line["issue"]["number"]) for line in lines]
        if len(numbers) > 1:
            case.findings.issues_twice += 1
            case.findings.wrong.append(f"Export {export_id} has the issues {', '.join(numbers)}.")
        row = case.rows.get(export_id)
        if row is not None and row.status == "exported" and row.redacted_at is None and row.issue not in numbers:
            case.findings.wrong.append(f"Export {export_id} names issue {row.issue} and has {', '.join(numbers)}.")
    for export_id, lines in case.creates.items():
        row = case.rows.get(export_id)
        if export_id not in case.approving:
            case.findings.forbidden.append(f"Export {export_id} came to a tracker, and nobody ever approved it.")
        if export_id in case.dismissed:
            case.findings.forbidden.append(f"Export {export_id} came to a tracker and was dismissed.")
        if row is not None and not row.is_for_tracker:
            case.findings.forbidden.append(f"Export {export_id} came to a tracker, which is not its target.")
        # A request names no attempt: the worker that sent it may have been suspended for a while.
        until = None if row is None or row.redacted_at is None else row.redacted_at + REDACTION_MS + AFTERMATH_MS
        if until is not None and any(line["at"] > until for line in lines):
            case.findings.forbidden.append(f"Export {export_id} came to a tracker after its redaction.")


def _redacted(case: _Case) -> None:
    """Check that requested redactions were done, and no others."""
    for act in case.acts["erasure accepted"]:
        row = case.rows.get(act["export"])
        if row is not None and row.redacted_at is None:
            case.findings.wrong.append(f"Export {row.id} was to be redacted and was not.")
    requested = {act["export"] for act in case.acts["erasure requested"]}
    for row in case.rows.values():
        if row.redacted_at is not None and row.id not in requested:
            case.findings.wrong.append(f"Export {row.id} was redacted, although no client requested it.")


def _repeats(case: _Case) -> None:
    """Check that accepted exports arrived again only after a lost response or a fault."""
    for export_id, lines in case.of_export.items():
        for line, following in pairwise(lines):
            if not (_accepts(line) and line["attempt"] in case.responded):
                continue
            cause = _cause(case, line, following)
            case.findings.repeated[cause or "no cause"] += 1
            if cause is None:
                case.findings.wrong.append(f"Export {export_id} was accepted and came again for no cause.")


def _cause(case: _Case, line: Line, following: Line) -> str | None:
    """Return why an accepted attempt was repeated; None without a known cause."""
    recorded = case.recorded.get(line["attempt"])
    if recorded is not None and recorded.outcome != DELIVERED:
        return "answer lost"
    if recorded is not None and started_ms(following["attempt"]) > recorded.ended_at + AT_ONCE_MS:
        return None
    if any(since <= following["at"] and until >= line["at"] for since, until in case.faults):
        return "after a fault"
    return None


def _accepts(line: Line) -> bool:
    return BEHAVIORS[line["behavior"]].accepts


def _bytes(case: _Case) -> None:
    """Check that arrivals are signed, have new nonces and carry the approved bytes."""
    approvals = case.approvals()
    # Several lines of one attempt mean that one request arrived twice.
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
    """Check that nothing forbidden arrived."""
    for line in case.tickets:
        why = next(_why_forbidden(case, line), None)
        if why is not None:
            case.findings.forbidden.append(f"Attempt {line['attempt']} of export {line['export']} arrived {why}")
    for line in case.arrived:
        if line["path"] in {"/forbidden", "/elsewhere"}:
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
    """Return the intervals in which each target was paused."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    resumed: defaultdict[str, list[int]] = defaultdict(list)
    for act in resuming:
        resumed[act["target"]].append(act["at"])
    for act in paused:
        until = min((at for at in resumed[act["target"]] if at >= act["at"]), default=act["at"])
        found[act["target"]].append((act["at"], until))
    return found


def _life_cycles(case: _Case) -> None:
    """Check the changes by scan runs, and their events at receivers and trackers."""
    for kind, sentence in verify_life_cycles(case.acts, case.arrived, case.tracked):
        getattr(case.findings, kind).append(sentence)
    case.findings.events = sum(len(act["events"]) for act in case.acts["shown ticket"])
    case.findings.events_sent = sum(map(is_event, case.arrived)) + case.findings.tracked["comment"]


def _lateness(case: _Case) -> None:
    """Count late arrivals at receivers that always accept."""
    for export_id, approval in case.approvals().items():
        if approval["target"] not in case.reliable or not case.of_export[export_id]:
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
