"""The soak test detects events that are lost, wrong or out of order, and findings that differ from the scan runs."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from soak.receivers.behaviors import BEHAVIORS, behavior_of, patient_behavior_of
from soak.receivers.event_log import ISSUES, read
from soak.receivers.tracker import SoakGitea
from soak.verification.life_cycles import verify_life_cycles
from storage.db.identifiers import EVENT, new_id
from tests.support.trackers.servers import REPOSITORY, TOKEN

URL: Final = "https://shop.example/soak-1/one/"
NO_COUNTS: Final = {"new": 0, "seen": 0, "fixed": 0, "reopened": 0}


def scan(run: int, *found: str, **changes: Any) -> dict[str, Any]:
    """Return the line of a postback; `counts` has the counts that are not 0."""
    counts = {**NO_COUNTS, **changes.pop("counts", {})}
    line = {"what": "scanned", "project": 3, "run": run, "url": URL, "status": "completed", "status_code": 200}
    return {**line, "rules": None, "found": list(found), "counts": counts, **changes}


# Two places of a ticket: both are fixed, then one is reopened.
SCANS: Final = (
    scan(1, "alt", "title", counts={"new": 2}),
    scan(2),
    scan(3, status="failed"),
    scan(4, status="partial"),
    scan(5, status_code=503),
    scan(6, rules=["label"]),
    scan(7, counts={"fixed": 2}),
    scan(8, "alt", counts={"reopened": 1}),
    scan(9, "alt", counts={"seen": 1}),
)
ITEMS: Final = (
    {"id": "fnd_1", "url": URL, "location": "#alt", "state": "open", "times_reopened": 1, "ticket_export_id": "exp_1"},
    {"id": "fnd_2", "url": URL, "location": "#title", "state": "fixed", "times_reopened": 0, "ticket_export_id": "exp_1"},
)


def event(number: int, event_type: str, result: str | None = None, **changes: Any) -> dict[str, Any]:
    line = {"id": f"evt_{number}", "type": event_type, "status": "delivered", "attempts": 1, "result": result}
    return {**line, **changes}


def ticket(*events: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    line = {"what": "shown ticket", "export": "exp_1", "findings": {"total": 2, "fixed": 1}, "provider_ticket": {"id": "7"}}
    return {**line, "events": list(events), **changes}


SHOWN: Final = (event(1, "ticket.fixed", "closed"), event(2, "ticket.reopened", "reopened"))


def arrival(at: int, key: str, **changes: Any) -> dict[str, Any]:
    line = {"at": at, "type": "ticket.export", "export": key, "ticket": None, "key": key, "sha256": key, "change": None}
    return {**line, "behavior": "accepts", **changes}


def notice(at: int, key: str, places_open: int, places: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """Return the arrival of an event; `places` has the state of each place by its location."""
    changed_places = [{"url": URL, "location": f"#{rule}", "state": state} for rule, state in places.items()]
    about = {"ticket": "exp_1", "change": {"places_open": places_open, "places": changed_places}}
    return arrival(at, key, **{"type": "ticket.updated", **about, **changes})


FIRST: Final = notice(20, "evt_1", 0, {"alt": "fixed", "title": "fixed"})
SECOND: Final = notice(30, "evt_2", 1, {"alt": "open"})
ARRIVED: Final = (arrival(10, "exp_1"), FIRST, SECOND)
TRACKED: Final = (
    {"what": "lookup"},
    {"what": "comment", "issue": "7", "event": "evt_1"},
    {"what": "state", "issue": "7", "state": "closed"},
    {"what": "comment", "issue": "7", "event": "evt_2"},
    {"what": "state", "issue": "7", "state": "open"},
)


def found(
    arrived: Sequence[Mapping[str, Any]] = ARRIVED,
    tracked: Sequence[Mapping[str, Any]] = (),
    scans: Sequence[Mapping[str, Any]] = SCANS,
    items: Sequence[Mapping[str, Any]] = ITEMS,
    of_ticket: Mapping[str, Any] | None = None,
) -> list[tuple[str, str]]:
    acts: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    acts["scanned"] += scans
    acts["shown findings"].append({"project": 3, "items": items})
    acts["shown ticket"].append(of_ticket or ticket(*SHOWN))
    return list(verify_life_cycles(acts, arrived, tracked))


def test_correct_life_cycles_are_clean() -> None:
    assert found() == []
    assert found([], TRACKED) == []
    repeated = [*ARRIVED, {**FIRST, "at": 25}]
    refused = [{**FIRST, "at": 15, "behavior": "is overloaded"}, *repeated]
    assert found(refused) == []


def changed(lines: Sequence[Mapping[str, Any]], number: int, **changes: Any) -> list[Mapping[str, Any]]:
    return [{**line, **changes} if place == number else line for place, line in enumerate(lines)]


PROBLEMS: Final[list[tuple[Callable[[], list[tuple[str, str]]], str, str]]] = [
    # the effects of scan runs on findings
    (lambda: found(scans=changed(SCANS, 6, counts=NO_COUNTS)), "wrong", "Run 7 returned"),
    (lambda: found(items=ITEMS[:1]), "lost", "#title was reported and is not there"),
    (lambda: found(items=changed(ITEMS, 1, state="open")), "wrong", "fnd_2 is open"),
    (lambda: found(items=changed(ITEMS, 0, times_reopened=2)), "wrong", "reopened 2 times"),
    (lambda: found(of_ticket=ticket(*SHOWN, findings={"total": 2, "fixed": 2})), "wrong", "1 of 2 are fixed"),
    # the events that a receiver got
    (
        lambda: found(of_ticket=ticket(SHOWN[0], event(2, "ticket.reopened", status="pending"))),
        "lost",
        "is pending in the end",
    ),
    (lambda: found(ARRIVED[:2]), "lost", "its receiver never accepted it"),
    (lambda: found(changed(ARRIVED, 2, behavior="is broken")), "lost", "its receiver never accepted it"),
    (lambda: found([*ARRIVED, notice(40, "evt_3", 1, {})]), "wrong", "evt_3 of ticket exp_1 arrived and is not there"),
    (lambda: found([*ARRIVED, {**SECOND, "at": 40, "sha256": "other"}]), "wrong", "arrived with different bytes"),
    (lambda: found(changed(ARRIVED, 0, at=25)), "wrong", "evt_1 of ticket exp_1 arrived before exp_1 was accepted"),
    (lambda: found(ARRIVED[1:]), "wrong", "arrived before exp_1 was accepted"),
    (lambda: found(changed(ARRIVED, 1, at=35)), "wrong", "evt_2 of ticket exp_1 arrived before evt_1 was accepted"),
    (
        lambda: found([{**SECOND, "at": 15, "behavior": "is broken"}, *ARRIVED]),
        "wrong",
        "evt_2 of ticket exp_1 arrived before evt_1 was accepted",
    ),
    (
        lambda: found([*ARRIVED[:2], notice(30, "evt_2", 1, {"title": "open"})]),
        "wrong",
        f"was shown otherwise of {URL} #alt",
    ),
    (lambda: found([*ARRIVED[:2], notice(30, "evt_2", 0, {"alt": "open"})]), "wrong", "does not say that 1 places are open"),
    # the issues of a tracker
    (lambda: found([], [*TRACKED, TRACKED[1]]), "wrong", "two comments of one event"),
    (lambda: found([], TRACKED[:3] + TRACKED[4:]), "lost", "has no comment of event evt_2"),
    (lambda: found([], [TRACKED[3], *TRACKED[1:3], TRACKED[4]]), "wrong", "not in the order of its events"),
    (lambda: found([], TRACKED[:4]), "wrong", "is closed after ticket.reopened"),
    (
        lambda: found([], TRACKED, of_ticket=ticket(SHOWN[0], event(2, "ticket.reopened", "left_alone"))),
        "wrong",
        "was left alone, and nobody else reopened it",
    ),
]


@pytest.mark.parametrize(("problems", "kind", "expected"), PROBLEMS, ids=map(str, range(len(PROBLEMS))))
def test_lost_and_wrong_events_and_findings_are_detected(
    problems: Callable[[], list[tuple[str, str]]], kind: str, expected: str
) -> None:
    sentences = [sentence for of_kind, sentence in problems() if of_kind == kind]
    assert any(expected in sentence for sentence in sentences), problems()


def test_an_issue_that_may_have_been_reopened_stays_open() -> None:
    events = (*SHOWN[:1], event(2, "ticket.reopened", "left_alone", attempts=2), event(3, "ticket.fixed", "left_alone"))
    lines = [*TRACKED, {"what": "comment", "issue": "7", "event": "evt_3"}]
    assert found([], lines, of_ticket=ticket(*events)) == []


def test_targets_of_events_never_reject_permanently() -> None:
    requests = [(7, target, s, 1) for target in range(60) for s in range(0, 400, 4)]
    statuses = {behavior_of(*each).status for each in requests}
    assert statuses - {patient_behavior_of(*each).status for each in requests} == {307, 401, 422}
    assert {503, 500, None} <= {patient_behavior_of(*each).status for each in requests}
    assert BEHAVIORS["accepts"] in {patient_behavior_of(*each) for each in requests}


def test_a_restarted_tracker_keeps_its_comments_and_states(tmp_path: Path) -> None:
    event_id = new_id(EVENT, datetime(2026, 3, 1, tzinfo=UTC))
    sent = [
        ("POST", "", {"title": "A", "body": "B"}),
        ("POST", "/1/comments", {"body": f"Fixed. {event_id}"}),
        ("PATCH", "/1", {"state": "closed"}),
        ("PATCH", "/1", {"title": "erased"}),
    ]
    for requests in (sent, []):
        with SoakGitea(tmp_path, 0, 0, 7, 0.0) as gitea:
            gitea.is_faulty = False
            for method, below, body in requests:
                url = gitea.url(path=f"/api/v1/repos/{REPOSITORY}/issues{below}")
                headers = {"Authorization": f"token {TOKEN}"}
                with urlopen(Request(url, json.dumps(body).encode(), headers, method=method), timeout=5):  # noqa: S310 - ours
                    pass
            comments, state = gitea.comments_of(1), gitea.issues[0]["state"]
    assert (comments, state) == ([event_id], "closed")
    assert [line["what"] for line in read(tmp_path / ISSUES.format(0))] == ["create", "issue", "comment", "state"]
