"""Compares the reports of scan runs with the resulting findings, tickets and events at targets. Pure.

A receiver that deduplicates by `Idempotency-Key` must end with the product's state of every place, and must get no event
before its ticket, and the events of one ticket in order. A tracker must have one comment for each event, and the state of
the last one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from soak.receivers.behaviors import BEHAVIORS

Line = Mapping[str, Any]
#: `lost` or `wrong`, and a sentence.
Problem = tuple[str, str]
#: A page's URL and a location on the page.
Place = tuple[str, str]

#: A finding is fixed after this many consecutive completed runs that do not report it.
_RUNS_UNTIL_FIXED: Final = 2
FIXED, REOPENED = "ticket.fixed", "ticket.reopened"


@dataclass
class _KnownFinding:
    missed: int = 0
    is_fixed: bool = False
    reopened: int = 0


def is_event(line: Line) -> bool:
    """Return whether an arrival is an event of a ticket."""
    return str(line["type"]).startswith("ticket.") and line["type"] != "ticket.export"


def verify_life_cycles(
    acts: Mapping[str, Sequence[Line]], arrived: Iterable[Line], tracked: Iterable[Line]
) -> Iterator[Problem]:
    """Yield every problem; the lines are those of `soak.clients.scanner`, of receivers and of trackers."""
    expected: defaultdict[int, dict[Place, _KnownFinding]] = defaultdict(dict)
    for scan in acts["scanned"]:
        yield from _scan(scan, expected[scan["project"]])
    places: defaultdict[str, dict[Place, str]] = defaultdict(dict)
    for shown in acts["shown findings"]:
        yield from _findings(shown, expected[shown["project"]])
        for item in shown["items"]:
            places[item["ticket_export_id"]][item["url"], item["location"]] = item["state"]
    of_ticket: defaultdict[str, list[Line]] = defaultdict(list)
    for line in sorted(arrived, key=lambda each: int(each["at"])):
        of_ticket[line["ticket"] if is_event(line) else str(line["export"])].append(line)
    of_issue: defaultdict[str, list[Line]] = defaultdict(list)
    for line in tracked:
        of_issue[str(line["issue"] if line["what"] in {"comment", "state"} else "")].append(line)
    for ticket in acts["shown ticket"]:
        lines, issue = of_ticket[ticket["export"]], of_issue[str((ticket["provider_ticket"] or {}).get("id"))]
        yield from _ticket(ticket, places[ticket["export"]])
        yield from _receiver(ticket, lines, places[ticket["export"]]) if lines else _tracker(ticket, issue)


def _scan(scan: Line, findings: dict[Place, _KnownFinding]) -> Iterator[Problem]:
    """Apply a postback to the expected findings, and check the counts in its response."""
    counts = Counter({"new": 0, "seen": 0, "fixed": 0, "reopened": 0})
    found = [(scan["url"], f"#{rule}") for rule in scan["found"]] if scan["status"] in {"completed", "partial"} else []
    for place in found:
        finding = findings.get(place)
        counts["new" if finding is None else "reopened" if finding.is_fixed else "seen"] += 1
        finding = findings.setdefault(place, _KnownFinding())
        finding.reopened += finding.is_fixed
        finding.missed, finding.is_fixed = 0, False
    if scan["status"] == "completed" and scan["status_code"] in {200, None}:
        for (url, location), finding in findings.items():
            is_checked = scan["rules"] is None or location.removeprefix("#") in scan["rules"]
            if url == scan["url"] and (url, location) not in found and is_checked and not finding.is_fixed:
                finding.missed += 1
                finding.is_fixed = finding.missed >= _RUNS_UNTIL_FIXED
                counts["fixed"] += finding.is_fixed
    if dict(counts) != scan["counts"]:
        yield "wrong", f"Run {scan['run']} returned {scan['counts']} for {scan['url']} instead of {dict(counts)}."


def _findings(shown: Line, expected: Mapping[Place, _KnownFinding]) -> Iterator[Problem]:
    items = {(item["url"], item["location"]): item for item in shown["items"]}
    for place in expected.keys() - items.keys():
        yield "lost", f"Finding {' '.join(place)} was reported and is not there."
    for place, item in items.items():
        finding = expected.get(place, _KnownFinding())
        state = ("fixed" if finding.is_fixed else "open", finding.reopened)
        if (item["state"], item["times_reopened"]) != state:
            yield (
                "wrong",
                f"Finding {item['id']} is {item['state']}, reopened {item['times_reopened']} times, not {state}.",
            )


def _ticket(ticket: Line, places: Mapping[Place, str]) -> Iterator[Problem]:
    """Check a ticket's counts of its findings, and that all its events are delivered."""
    fixed = sum(state == "fixed" for state in places.values())
    if ticket["findings"] != {"total": len(places), "fixed": fixed}:
        yield "wrong", f"Ticket {ticket['export']} has {ticket['findings']}, and {fixed} of {len(places)} are fixed."
    for event in ticket["events"]:
        if event["status"] != "delivered":
            yield "lost", f"Event {event['id']} of ticket {ticket['export']} is {event['status']} in the end."


def _receiver(ticket: Line, lines: Sequence[Line], places: Mapping[Place, str]) -> Iterator[Problem]:
    """Check that a receiver got every event of a ticket, after the ticket and in order; repeats must have the same bytes."""
    export_id, ids = ticket["export"], [event["id"] for event in ticket["events"]]
    first, accepted = _first(lines), _first(filter(_accepts, lines))
    for event_id in [each for each in ids if each not in accepted]:
        yield "lost", f"Event {event_id} of ticket {export_id} is there, and its receiver never accepted it."
    for event_id in first.keys() - {export_id, *ids}:
        yield "wrong", f"Event {event_id} of ticket {export_id} arrived and is not there."
    for line in lines:
        if line["sha256"] != first[line["key"]]["sha256"]:
            yield "wrong", f"{line['key']} of ticket {export_id} arrived with different bytes."
    # The Idempotency-Key of the ticket is its export's id.
    for earlier, later in pairwise([export_id, *(each for each in ids if each in first)]):
        if earlier not in accepted or first[later]["at"] < accepted[earlier]["at"]:
            yield "wrong", f"Event {later} of ticket {export_id} arrived before {earlier} was accepted."
    yield from _places(export_id, [line["change"] for line in accepted.values() if is_event(line)], places)


def _places(export_id: str, changes: Sequence[Mapping[str, Any]], places: Mapping[Place, str]) -> Iterator[Problem]:
    """Check that the accepted events give a receiver the state of every place."""
    shown = dict.fromkeys(places, "open")
    for change in changes:
        shown |= {(place["url"], place["location"]): place["state"] for place in change["places"]}
    if shown != places:
        differing = sorted(
            " ".join(place) for place in shown.keys() | places.keys() if shown.get(place) != places.get(place)
        )
        yield "wrong", f"The receiver of ticket {export_id} was shown otherwise of {', '.join(differing)}."
    places_open = sum(state == "open" for state in places.values())
    if changes and changes[-1]["places_open"] != places_open:
        yield "wrong", f"The last event of ticket {export_id} does not say that {places_open} places are open."


def _first(lines: Iterable[Line]) -> dict[str, Line]:
    """Return the first line of each Idempotency-Key, in the order of `lines`."""
    found: dict[str, Line] = {}
    for line in lines:
        found.setdefault(str(line["key"]), line)
    return found


def _accepts(line: Line) -> bool:
    return BEHAVIORS[line["behavior"]].accepts


def _tracker(ticket: Line, lines: Sequence[Line]) -> Iterator[Problem]:
    """Check the comments and the state of an issue whose target closes and reopens issues."""
    export_id, events = ticket["export"], ticket["events"]
    comments = [line["event"] for line in lines if line["what"] == "comment"]
    expected = [event["id"] for event in events]
    if sorted(comments) != sorted({*comments}):
        yield "wrong", f"The issue of ticket {export_id} has two comments of one event."
    for event_id in [each for each in expected if each not in comments]:
        yield "lost", f"The issue of ticket {export_id} has no comment of event {event_id}."
    if [each for each in dict.fromkeys(comments) if each in expected] != [each for each in expected if each in comments]:
        yield "wrong", f"The comments of ticket {export_id} are not in the order of its events."
    left = next((event for event in events if event["result"] == "left_alone"), None)
    # After an attempt with an unknown outcome, the issue may already be reopened, which looks like the act of a person.
    if left is not None and left["attempts"] == 1:
        yield "wrong", f"The issue of ticket {export_id} was left alone, and nobody else reopened it."
    last = next((event["type"] for event in reversed(events) if event["type"] in {FIXED, REOPENED}), REOPENED)
    state = next((line["state"] for line in reversed(lines) if line["what"] == "state"), "open")
    if state != ("closed" if last == FIXED and left is None else "open"):
        yield "wrong", f"The issue of ticket {export_id} is {state} after {last}."
