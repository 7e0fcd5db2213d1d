"""Compares what scan runs reported with what became of it: findings, tickets, and the events that targets got. Pure.

A receiver that deduplicates by `Idempotency-Key` ends with what the product says of every place, gets no event before its
ticket, and those of one ticket in their order. A tracker has one comment of each event, and the state of the last one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from soak.receivers.behaviors import BEHAVIORS

Line = Mapping[str, Any]
#: What is wrong: `lost` or `wrong`, and a sentence.
Problem = tuple[str, str]
#: A page's URL and a location there.
Place = tuple[str, str]

#: How many completed runs in a row must not report a finding, until it is fixed.
_ENOUGH: Final = 2
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
    """Apply a postback, and check what it was answered."""
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
                finding.is_fixed = finding.missed >= _ENOUGH
                counts["fixed"] += finding.is_fixed
    if dict(counts) != scan["counts"]:
        yield "wrong", f"Run {scan['run']} was answered {scan['counts']} for {scan['url']} instead of {dict(counts)}."


def _findings(shown: Line, expected: Mapping[Place, _KnownFinding]) -> Iterator[Problem]:
    items = {(item["url"], item["location"]): item for item in shown["items"]}
    for place in expected.keys() - items.keys():
        yield "lost", f"Finding {' '.join(place)} was reported and is not there."
    for place, item in items.items():
        finding = expected.get(place, _KnownFinding())
        wanted = ("fixed" if finding.is_fixed else "open", finding.reopened)
        if (item["state"], item["times_reopened"]) != wanted:
            yield "wrong", f"Finding {item['id']} is {item['state']}, reopened {item['times_reopened']} times, not {wanted}."


def _ticket(ticket: Line, places: Mapping[Place, str]) -> Iterator[Problem]:
    """Check what a ticket says of its findings, and that no event is left."""
    fixed = sum(state == "fixed" for state in places.values())
    if ticket["findings"] != {"total": len(places), "fixed": fixed}:
        yield "wrong", f"Ticket {ticket['export']} has {ticket['findings']}, and {fixed} of {len(places)} are fixed."
    for event in ticket["events"]:
        if event["status"] != "delivered":
            yield "lost", f"Event {event['id']} of ticket {ticket['export']} is {event['status']} in the end."


def _receiver(ticket: Line, lines: Sequence[Line], places: Mapping[Place, str]) -> Iterator[Problem]:
    """Check that a receiver got every event of a ticket, after the ticket and in their order, each with the same bytes."""
    export_id, ids = ticket["export"], [event["id"] for event in ticket["events"]]
    first, taken = _first(lines), _first(filter(_accepts, lines))
    for event_id in [each for each in ids if each not in taken]:
        yield "lost", f"Event {event_id} of ticket {export_id} is there, and its receiver never accepted it."
    for event_id in first.keys() - {export_id, *ids}:
        yield "wrong", f"Event {event_id} of ticket {export_id} arrived and is not there."
    for line in lines:
        if line["sha256"] != first[line["key"]]["sha256"]:
            yield "wrong", f"{line['key']} of ticket {export_id} arrived with different bytes."
    # The key of the ticket itself is its id.
    for earlier, later in pairwise([export_id, *(each for each in ids if each in first)]):
        if earlier not in taken or first[later]["at"] < taken[earlier]["at"]:
            yield "wrong", f"Event {later} of ticket {export_id} arrived before {earlier} was accepted."
    yield from _places(export_id, [line["change"] for line in taken.values() if is_event(line)], places)


def _places(export_id: str, changes: Sequence[Mapping[str, Any]], places: Mapping[Place, str]) -> Iterator[Problem]:
    """Check that a receiver that deduplicates knows the state of every place."""
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
    """Return the first line of each key, in their order."""
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
    wanted = [event["id"] for event in events]
    if sorted(comments) != sorted({*comments}):
        yield "wrong", f"The issue of ticket {export_id} has two comments of one event."
    for event_id in [each for each in wanted if each not in comments]:
        yield "lost", f"The issue of ticket {export_id} has no comment of event {event_id}."
    if [each for each in dict.fromkeys(comments) if each in wanted] != [each for each in wanted if each in comments]:
        yield "wrong", f"The comments of ticket {export_id} are not in the order of its events."
    left = next((event for event in events if event["result"] == "left_alone"), None)
    # An attempt whose end is unknown may have reopened it, which counts as done by a person.
    if left is not None and left["attempts"] == 1:
        yield "wrong", f"The issue of ticket {export_id} was left alone, and nobody else reopened it."
    last = next((event["type"] for event in reversed(events) if event["type"] in {FIXED, REOPENED}), REOPENED)
    state = next((line["state"] for line in reversed(lines) if line["what"] == "state"), "open")
    if state != ("closed" if last == FIXED and left is None else "open"):
        yield "wrong", f"The issue of ticket {export_id} is {state} after {last}."
