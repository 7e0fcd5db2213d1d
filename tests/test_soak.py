"""The soak test detects lost, wrong and forbidden results, is reproducible by its seed, and cleans up."""

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from schemas.base.timestamps import to_ms
from soak.plan import Fault, SoakPlan, faults, intervals, sizes
from soak.receivers.behaviors import ACCEPTS, BEHAVIORS, behavior_of, is_reliable
from soak.receivers.event_log import ISSUES, EventLog, read
from soak.receivers.tracker import SoakGitea, is_tracker, tracker_behavior_of
from soak.verification.deliveries import (
    AFTERMATH_MS,
    AT_ONCE_MS,
    FRESH_MS,
    LATE_MS,
    REDACTION_MS,
    FinalExport,
    Findings,
    RecordedAttempt,
    started_ms,
    verify,
)
from soak.verification.report import FENCED, contains, read_logs
from soak.verification.samples import Sample, growing, trends
from storage.db.identifiers import ATTEMPT, EXPORT, new_id
from tests.support.trackers.servers import REPOSITORY, TOKEN

ROOT: Final = Path(__file__).resolve().parent.parent
BEGAN: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BEGAN_MS: Final = to_ms(BEGAN)
PLAN: Final = SoakPlan("postgresql", seed=7, duration_s=60, exports=600, kills=12, rate=10)
MAX_ATTEMPTS: Final = 3

_numbers: Final = itertools.count(1)

#: For a soak test of some seconds, with time for a busy machine.
WITHIN_S: Final = 280.0

# One requested, approved and delivered export. Each case in the tables below changes one thing.
ROW: Final = FinalExport("exp_1", "soak-1", "exported", None, "tgt_1", "aa", 1, path="/t/0")
ACTS: Final[tuple[dict[str, Any], ...]] = (
    {"what": "submitting", "at": BEGAN_MS, "name": "soak-1", "rows": 1},
    {"what": "acknowledged", "at": BEGAN_MS, "name": "soak-1", "ids": ["exp_1"]},
    {"what": "approving", "at": BEGAN_MS, "export": "exp_1", "target": "tgt_1"},
    {"what": "approved", "at": BEGAN_MS, "export": "exp_1", "target": "tgt_1", "digest": "sha256:1"},
)


def act(what: str, after_ms: int = 0, **details: Any) -> dict[str, Any]:
    return {"what": what, "at": BEGAN_MS + after_ms, **details}


def arrival(after_ms: int = 100, behavior: str = ACCEPTS.name, **changes: Any) -> dict[str, Any]:
    """Return the receiver's line for an attempt that started `after_ms` after the beginning and arrived at once."""
    at = BEGAN_MS + after_ms
    line = {
        "what": "arrived",
        "at": at,
        "path": "/t/0",
        "type": "ticket.export",
        "export": "exp_1",
        "key": "exp_1",
        "attempt": new_id(ATTEMPT, datetime.fromtimestamp(at / 1000, UTC)),
        "nonce": f"nonce-{next(_numbers)}",
        "is_signed": True,
        "sha256": "aa",
        "digest": "sha256:1",
        "behavior": behavior,
        "status": BEHAVIORS[behavior].status,
    }
    return {**line, **changes}


def responded(line: Mapping[str, Any]) -> dict[str, Any]:
    return {"what": "responded", "at": line["at"], "attempt": line["attempt"]}


def verified(
    *more: Mapping[str, Any],
    arrivals: list[dict[str, Any]] | None = None,
    rows: list[FinalExport] | None = None,
    recorded: Mapping[str, RecordedAttempt] | None = None,
    without: str = "",
    tracked: Sequence[Mapping[str, Any]] = (),
) -> Findings:
    """Verify the export, with more acts, `without` one kind of act, or with other arrivals or rows."""
    acts = [line for line in ACTS if line["what"] != without]
    came = [arrival()] if arrivals is None else arrivals
    honest = frozenset({"tgt_1"})
    return verify([*acts, *more], came, [ROW] if rows is None else rows, recorded or {}, MAX_ATTEMPTS, honest, tracked)


# The same export, but approved for a tracker.
TRACKED: Final = replace(ROW, path="/acme/shop", is_for_tracker=True, issue="1")


def create(status: int | None = 201, after_ms: int = 100) -> dict[str, Any]:
    return act("create", after_ms, exports=["exp_1"], behavior="creates", status=status)


def created(number: int = 1) -> dict[str, Any]:
    return act("issue", 100, exports=["exp_1"], issue={"number": number})


def tracked(*lines: Mapping[str, Any], more: Sequence[Mapping[str, Any]] = (), **changes: Any) -> Findings:
    """Verify the export at a tracker with these lines; `changes` replace fields of its row."""
    without = changes.pop("without", "")
    return verified(*more, arrivals=[], rows=[replace(TRACKED, **changes)], tracked=lines, without=without)


def test_an_export_with_one_issue_is_clean() -> None:
    findings = tracked(create(None), act("lookup", behavior="creates"), create(), created())
    assert findings.is_clean
    assert findings.tracked == {"create": 2, "lookup": 1, "issue": 1}
    assert findings.issues_twice == 0
    refused = tracked(create(422), status="failed", reason="tracker_rejected", issue=None)
    assert refused.is_clean, refused


def test_an_export_with_two_issues_is_counted_and_reported_as_wrong() -> None:
    findings = tracked(create(None), created(1), create(), created(2))
    assert findings.issues_twice == 1
    assert findings.wrong == ["Export exp_1 has the issues 1, 2."]


# the verification, the kind of finding, and a part of its message
AT_TRACKERS: Final[list[tuple[Callable[[], Findings], str, str]]] = [
    (tracked, "lost", "no receiver accepted it"),
    (lambda: tracked(create()), "lost", "no receiver accepted it"),
    (
        lambda: tracked(create(500), status="failed", reason="tracker_rejected"),
        "lost",
        "which its receiver gave no reason for",
    ),
    (lambda: tracked(create(), created(7)), "wrong", "names issue 1 and has 7"),
    (lambda: tracked(create(), created(), without="approving"), "forbidden", "nobody ever approved it"),
    (
        lambda: tracked(create(), created(), more=[act("dismissed", export="exp_1")]),
        "forbidden",
        "came to a tracker and was dismissed",
    ),
    (lambda: tracked(create(), created(), is_for_tracker=False), "forbidden", "which is not its target"),
    (
        lambda: tracked(
            create(after_ms=REDACTION_MS + AFTERMATH_MS + 1),
            more=[act("erasure requested", export="exp_1"), act("erasure accepted", export="exp_1")],
            redacted_at=BEGAN_MS,
            name=None,
            status="dismissed",
        ),
        "forbidden",
        "after its redaction",
    ),
]


@pytest.mark.parametrize(("found", "kind", "expected"), AT_TRACKERS, ids=map(str, range(len(AT_TRACKERS))))
def test_lost_wrong_and_forbidden_issues_of_trackers_are_detected(
    found: Callable[[], Findings], kind: str, expected: str
) -> None:
    findings = found()
    assert any(expected in sentence for sentence in getattr(findings, kind)), findings
    assert not findings.is_clean


def test_an_approved_and_delivered_export_is_clean() -> None:
    findings = verified()
    assert findings.is_clean
    assert findings.counts == {"exported": 1}
    assert (findings.late, findings.repeated.total()) == (0, 0)


LOST: Final = [
    # the row is missing for the request, its id and its approval
    (lambda: verified(rows=[], arrivals=[]), "was acknowledged and is not there"),
    # exported only according to the database
    (lambda: verified(arrivals=[]), "no receiver accepted it"),
    # the receiver rejected the request
    (lambda: verified(arrivals=[arrival(behavior="is overloaded")]), "no receiver accepted it"),
    # it still waits at the end
    (lambda: verified(rows=[replace(ROW, status="retry_scheduled")]), "is retry_scheduled in the end"),
    # failed, but no response of its receiver is a reason for that
    (lambda: verified(rows=[replace(ROW, status="failed", reason="receiver_gone")], arrivals=[]), "gave no reason for"),
    # failed before all retries of its schedule
    (
        lambda: verified(rows=[replace(ROW, status="failed", reason="attempts_exhausted", attempts=2)], arrivals=[]),
        "gave no reason for",
    ),
    # its target was neither disabled nor could it have been blocked
    (lambda: verified(rows=[replace(ROW, status="failed", reason="target_disabled")], arrivals=[]), "gave no reason for"),
    (lambda: verified(rows=[replace(ROW, status="blocked", reason="address_private")], arrivals=[]), "gave no reason for"),
    # one of two findings of a postback is missing
    (
        lambda: verified(
            act("submitting", name="soak-2", rows=2),
            act("acknowledged", name="soak-2", ids=[]),
            rows=[ROW, replace(ROW, id="exp_2", name="soak-2", status="prepared", target=None)],
        ),
        "has 1 rows instead of 2",
    ),
]


@pytest.mark.parametrize(("found", "expected"), LOST, ids=map(str, range(len(LOST))))
def test_missing_and_undelivered_exports_are_reported_as_lost(found: Callable[[], Findings], expected: str) -> None:
    findings = found()
    assert any(expected in sentence for sentence in findings.lost), findings
    assert not findings.is_clean


LEGITIMATE: Final = [
    # the receiver rejected the ticket
    (replace(ROW, status="failed", reason="WEBHOOK_VALIDATION_FAILED"), [arrival(behavior="rejects the ticket")]),
    (replace(ROW, status="failed", reason="redirect_refused"), [arrival(behavior="redirects")]),
    # all tries were used
    (replace(ROW, status="failed", reason="attempts_exhausted", attempts=3), [arrival(behavior="hangs")]),
    # the erasure of its person was requested
    (replace(ROW, name=None, status="failed", reason="redacted", redacted_at=BEGAN_MS), []),
]


@pytest.mark.parametrize(("row", "arrivals"), LEGITIMATE, ids=map(str, range(len(LEGITIMATE))))
def test_rejected_exhausted_and_redacted_exports_are_not_lost(row: FinalExport, arrivals: list[dict[str, Any]]) -> None:
    assert verified(act("erasure requested", export="exp_1"), rows=[row], arrivals=arrivals).is_clean


def test_an_unacknowledged_request_may_be_stored_completely_or_not_at_all() -> None:
    asked = act("submitting", name="soak-2", rows=2)
    halves = [replace(ROW, id=f"exp_{number}", name="soak-2", status="prepared", target=None) for number in (2, 3)]
    assert verified(asked).is_clean
    assert verified(asked, rows=[ROW, *halves]).is_clean
    assert "is incomplete" in verified(asked, rows=[ROW, halves[0]]).wrong[0]
    third = replace(halves[0], id="exp_4")
    assert "3 times instead of 2" in verified(asked, rows=[ROW, *halves, third]).wrong[0]


WRONG: Final = [
    (lambda: verified(arrivals=[arrival(is_signed=False)]), "signature that does not verify"),
    (lambda: verified(arrivals=[arrival(sha256="bb")]), "other bytes than the frozen ones"),
    (lambda: verified(arrivals=[arrival(digest="sha256:2")]), "another ticket than the approved one"),
    (lambda: verified(arrivals=[arrival(key="exp_2")]), "another Idempotency-Key"),
    (lambda: verified(arrivals=[arrival(nonce="n"), arrival(nonce="n")]), "a nonce that was there before"),
    # a client has seen it as exported
    (
        lambda: verified(act("seen", export="exp_1", status="exported"), rows=[replace(ROW, status="approved")]),
        "was exported and is approved now",
    ),
    # a response confirmed it, and it was undone
    (
        lambda: verified(
            arrivals=[arrival(attempt="att_01")],
            recorded={"att_01": RecordedAttempt("delivered", BEGAN_MS)},
            rows=[replace(ROW, status="retry_scheduled")],
        ),
        "was delivered by att_01 and is retry_scheduled now",
    ),
    # another target than the approved one
    (lambda: verified(rows=[replace(ROW, target="tgt_2")]), "was approved for tgt_1 and has tgt_2"),
    # redacted without a request, or not redacted after a request
    (lambda: verified(rows=[replace(ROW, name=None, redacted_at=BEGAN_MS)]), "although no client requested it"),
    (
        lambda: verified(act("erasure requested", export="exp_1"), act("erasure accepted", export="exp_1")),
        "was to be redacted and was not",
    ),
    # a row without a request
    (lambda: verified(rows=[ROW, replace(ROW, id="exp_2", name=None, status="prepared")]), "no client submitted it"),
    # two rows for one request
    (lambda: verified(rows=[ROW, replace(ROW, id="exp_2", status="prepared")]), "2 times instead of 1"),
]


@pytest.mark.parametrize(("found", "expected"), WRONG, ids=map(str, range(len(WRONG))))
def test_deliveries_and_rows_that_differ_from_the_approval_are_reported_as_wrong(
    found: Callable[[], Findings], expected: str
) -> None:
    findings = found()
    assert any(expected in sentence for sentence in findings.wrong), findings
    assert not findings.is_clean


FORBIDDEN: Final = [
    (lambda: verified(without="approving"), "nobody ever approved it"),
    (lambda: verified(act("dismissed", export="exp_1")), "was dismissed"),
    (lambda: verified(arrivals=[arrival(), arrival(path="/elsewhere")]), "where nobody may go"),
    (lambda: verified(arrivals=[arrival(), arrival(path="/forbidden")]), "where nobody may go"),
    (lambda: verified(arrivals=[arrival(), arrival(path="/t/1")]), "at /t/1, which is not where its target is"),
    (
        lambda: verified(rows=[replace(ROW, name=None, redacted_at=BEGAN_MS)], arrivals=[arrival(60_000)]),
        "after its redaction",
    ),
    (lambda: verified(act("disabled", target="tgt_1"), arrivals=[arrival(FRESH_MS + 1)]), "after its target was disabled"),
    (
        lambda: verified(act("paused", target="tgt_1"), act("resuming", 2_000, target="tgt_1"), arrivals=[arrival(1_000)]),
        "while its target was paused",
    ),
]


@pytest.mark.parametrize(("found", "expected"), FORBIDDEN, ids=map(str, range(len(FORBIDDEN))))
def test_deliveries_that_were_not_permitted_are_reported_as_forbidden(found: Callable[[], Findings], expected: str) -> None:
    findings = found()
    assert any(expected in sentence for sentence in findings.forbidden), findings
    assert not findings.is_clean


ALLOWED: Final = [
    # it had already started, or was permitted shortly before
    [act("disabled", target="tgt_1"), arrival(FRESH_MS)],
    # before the pause, and after it
    [act("paused", 500, target="tgt_1"), act("resuming", 900, target="tgt_1"), arrival(100)],
    [act("paused", 500, target="tgt_1"), act("resuming", 900, target="tgt_1"), arrival(901)],
]


@pytest.mark.parametrize("lines", ALLOWED, ids=map(str, range(len(ALLOWED))))
def test_deliveries_started_before_a_pause_or_disable_are_allowed(lines: list[dict[str, Any]]) -> None:
    *acts, came = lines
    assert verified(*acts, arrivals=[came]).is_clean


def test_a_repeated_delivery_needs_a_cause() -> None:
    first, second = arrival(100), arrival(9_000)
    came = [first, responded(first), second]
    assert "no cause" in verified(arrivals=came).wrong[0]
    # Only a complete response counts.
    assert verified(arrivals=[first, second]).is_clean
    # The worker did not store the result, because a process was killed or stopped at that time.
    killed = act("fault done", 200, kind="worker killed", began_at=BEGAN_MS + 200, pause_s=0.0)
    assert verified(killed, arrivals=came).repeated == {"after a fault": 1}
    long_ago = act("fault done", -AFTERMATH_MS - 1, kind="worker killed", began_at=0, pause_s=0.0)
    assert not verified(long_ago, arrivals=came).is_clean
    # The worker had already given up the attempt.
    lost = {first["attempt"]: RecordedAttempt("retryable", BEGAN_MS + 3_000)}
    assert verified(arrivals=came, recorded=lost).repeated == {"answer lost": 1}
    # It was stored as delivered, but sent again. No fault explains that.
    known = {first["attempt"]: RecordedAttempt("delivered", second["at"] - AT_ONCE_MS - 1)}
    assert not verified(killed, arrivals=came, recorded=known).is_clean


def test_late_deliveries_are_counted() -> None:
    assert verified(arrivals=[arrival(LATE_MS)]).late == 0
    findings = verified(arrivals=[arrival(LATE_MS + 1), arrival(LATE_MS + 500)])
    assert (findings.late, findings.worst_late_ms) == (1, LATE_MS + 1)


def test_the_start_of_an_attempt_is_read_from_its_id() -> None:
    assert started_ms(new_id(ATTEMPT, BEGAN)) == BEGAN_MS


# duration, exports, kills and rate: the given values, and all values
SIZES: Final = [
    ((None, None, None, None), (180.0, 2520, 40, 14.0)),  # some minutes
    ((None, 20_000, 300, None), (20_000 / 14, 20_000, 300, 14.0)),  # as long as the exports take
    ((None, 100, 200, None), (900.0, 100, 200, 100 / 900)),  # as long as the kills take
    ((3600.0, None, 0, 20.0), (3600.0, 72_000, 0, 20.0)),  # endurance
    ((100.0, 200, None, None), (100.0, 200, 22, 2.0)),  # a length and a number of exports
]


@pytest.mark.parametrize(("given", "expected"), SIZES, ids=map(str, range(len(SIZES))))
def test_missing_plan_sizes_are_computed_from_the_given_ones(given: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert sizes(*given) == pytest.approx(expected)


def test_the_same_seed_produces_the_same_faults_and_behaviors_in_the_same_order() -> None:
    def first_of(plan: SoakPlan) -> list[tuple[Fault, float]]:
        return list(itertools.islice(zip(faults(plan), intervals(plan), strict=False), 200))

    assert first_of(PLAN) == first_of(PLAN)
    assert first_of(PLAN) != first_of(replace(PLAN, seed=8))
    behaviors = [behavior_of(7, target, s, 1) for target in range(60) for s in range(0, 400, 4)]
    assert behaviors == [behavior_of(7, target, s, 1) for target in range(60) for s in range(0, 400, 4)]
    assert behaviors != [behavior_of(8, target, s, 1) for target in range(60) for s in range(0, 400, 4)]


def test_every_kind_of_fault_and_every_behavior_occurs() -> None:
    kinds = {fault.kind for fault in itertools.islice(faults(PLAN), 1000)}
    assert len(kinds) == 14
    on_sqlite = {fault.kind for fault in itertools.islice(faults(replace(PLAN, database="sqlite")), 1000)}
    assert kinds - on_sqlite == {kind for kind in kinds if kind.startswith("postgresql")} != set()
    met = {behavior_of(7, target, s, 1).name for target in range(60) for s in range(0, 400, 4)}
    # Requests get "is gone" only at a path of its own.
    assert met == set(BEHAVIORS) - {"is gone"}


def test_every_third_target_always_accepts() -> None:
    assert [is_reliable(target) for target in range(6)] == [True, False, False, True, False, False]
    assert {behavior_of(7, 3, s, 1) for s in range(400)} == {ACCEPTS}


def test_some_targets_are_trackers_with_every_kind_of_failure() -> None:
    assert [target for target in range(12) if is_tracker(target)] == [2, 8]
    assert not any(is_reliable(target) for target in range(60) if is_tracker(target))
    met = [tracker_behavior_of(7, 0, s, request) for s in range(0, 80, 4) for request in range(60)]
    assert {behavior.status for behavior in met} == {201, 422, 429, 500, 502, None}
    assert {(behavior.creates, behavior.responds) for behavior in met if behavior.status is None} == {
        (True, False),
        (False, False),
    }


def test_a_restarted_tracker_keeps_its_issues(tmp_path: Path) -> None:
    export_id = new_id(EXPORT, BEGAN)
    for _ in range(2):
        with SoakGitea(tmp_path, 0, 0, 7, 0.0) as gitea:
            gitea.is_faulty = False
            body = json.dumps({"title": "A", "body": f"Export {export_id}"}).encode()
            url = gitea.url(path=f"/api/v1/repos/{REPOSITORY}/issues")
            with urlopen(Request(url, body, {"Authorization": f"token {TOKEN}"}), timeout=5) as response:  # noqa: S310 - ours
                assert response.status == 201
            issues = gitea.issues_of(export_id)
    assert [issue["number"] for issue in issues] == [1, 2]
    lines = list(read(tmp_path / ISSUES.format(0)))
    assert [(line["what"], line["exports"]) for line in lines] == [("create", [export_id]), ("issue", [export_id])] * 2


def test_a_token_in_a_log_file_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "worker-1.log"
    path.write_text("")
    assert not contains(path, "token")
    path.write_text('{"message": "sent with token-1"}')
    assert contains(path, "token-1")
    assert not contains(path, "token-2")
    assert not contains(tmp_path, "token-1")


def sample(s: float, **figures: float) -> Sample:
    return {"s": s, "done": 0, "processes": {"worker 1": figures}}


def test_growth_is_distinguished_from_noise() -> None:
    flat = [sample(s, pss_mb=60 + s % 3, descriptors=40 + s % 5, threads=48) for s in range(0, 3600, 10)]
    assert growing(trends(flat)) == []
    # 10 MB an hour, and a descriptor every three minutes. Growth during the warm-up does not count.
    leaking = [sample(s, pss_mb=60 + s / 360, descriptors=40 + s // 180, threads=48) for s in range(0, 3600, 10)]
    assert {trend.figure for trend in growing(trends(leaking))} == {"pss_mb", "descriptors"}
    [memory] = [trend for trend in trends(leaking) if trend.figure == "pss_mb"]
    assert memory.slope_per_hour == pytest.approx(10, abs=0.01)
    warmed = [sample(s, pss_mb=60 + min(s, 600) / 60) for s in range(0, 3600, 10)]
    assert growing(trends(warmed)) == []


def test_too_few_samples_give_no_trend() -> None:
    assert trends([sample(s, pss_mb=60 + s) for s in range(8)]) == []


def test_an_incomplete_last_line_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    events = EventLog(path)
    events.append("arrived", export="exp_1")
    events.close()
    with path.open("a") as file:
        file.write('{"what": "arr')
    assert [line["what"] for line in read(path)] == ["arrived"]
    assert list(read(tmp_path / "none")) == []


def test_fenced_results_and_errors_in_the_logs_are_counted(tmp_path: Path) -> None:
    lines = [
        json.dumps({"level": "warning", "message": FENCED}),
        json.dumps({"level": "info", "message": "worker started"}),
        *(json.dumps({"level": "error", "message": f"Worker (pid:{pid}) ended"}) for pid in (12, 345)),
        "Traceback (most recent call last):",
    ]
    path = tmp_path / "worker.log"
    path.write_text("\n".join(lines) + "\n")
    fenced, complaints = read_logs([path])
    assert fenced == 1
    assert complaints == {"error: Worker (pid:*) ended": 2, "(a line that is none of the log's)": 1}


def run_soak(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "soak", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False)


@pytest.mark.timeout(300)
def test_a_short_soak_finds_no_losses_and_detects_a_deleted_export(tmp_path: Path) -> None:
    record = tmp_path / "report.json"
    words = ("--seconds", "8", "--kills", "4", "--rate", "10", "--seed", "30", "--receivers", "1")
    done = run_soak("--database", "sqlite", *words, "--keep", str(tmp_path / "kept"), "--into", str(record))
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(record.read_text())["runs"]
    assert (report["kills"], report["lost"], report["wrong"], report["forbidden"]) == (4, 0, 0, 0)
    assert report["approved"] >= 80
    assert report["exported"] + report["failed"] + report["blocked"] >= report["approved"]
    assert report["pages"] > 0
    assert report["approved_by_rule"] > 0
    assert report["issues"] > 0
    assert report["issues_twice"] == 0
    assert report["scans"] > 0
    folder = tmp_path / "kept" / "sqlite"
    # An acknowledged and delivered export is deleted directly in the database.
    with closing(sqlite3.connect(folder / "riskrelay.db")) as database, database:
        [(gone,)] = database.execute("SELECT id FROM exports WHERE status = 'exported' ORDER BY id LIMIT 1").fetchall()
        for table, column in (
            ("attempts", "export_id"),
            ("handoffs", "export_id"),
            ("inbound_emails", "export_id"),
            ("exports", "id"),
        ):
            database.execute(f"DELETE FROM {table} WHERE {column} = ?", (gone,))  # noqa: S608 - our own names
    again = run_soak("--judge", str(folder))
    assert again.returncode == 1
    assert f"lost: Export {gone} was approved and is not there." in again.stdout


@pytest.mark.timeout(300)
def test_a_soak_stopped_by_sigterm_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    words = ["--database", "sqlite", "--seconds", "60", "--workers", "1", "--receivers", "1", "--keep", str(folder)]
    soaking = subprocess.Popen([sys.executable, "-m", "soak", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + WITHIN_S / 2
        while not any(folder.rglob("arrivals-*.jsonl")):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert processes_that_name(folder)
        soaking.send_signal(signal.SIGTERM)
        _, actual = soaking.communicate(timeout=WITHIN_S / 2)
    finally:
        soaking.kill()
        soaking.wait()
    assert soaking.returncode == 128 + signal.SIGTERM
    assert f"Logs, database and records: {folder / 'sqlite'}" in actual
    assert processes_that_name(folder) == []


def processes_that_name(folder: Path) -> list[int]:
    """Return the processes whose command or working folder names `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + os.fsencode((process / "cwd").readlink())
        except OSError:  # the process has ended meanwhile, or belongs to another user
            continue
        if os.fsencode(folder) in words:
            found.append(int(process.name))
    return found
