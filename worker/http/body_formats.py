"""Formats of a delivery's body besides the approved one: CloudEvents and SARIF.

Each is made from the approved bytes alone, so all attempts of an export send the same bytes. Pings have the same formats.
Ticket events have only the CloudEvents formats: SARIF describes results of scans, and cannot express a change of a ticket.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from schemas.base.strict_json import canonical
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.exports.tickets.group_ticket import is_group
from schemas.findings.sarif import LEVELS, logical_locations, sarif_log, sarif_rule, uri_of
from schemas.targets.webhook_options import BodyFormat

#: By convention, event types begin with a reversed domain name. The `type` of the body follows it.
_EVENT_TYPE_PREFIX: Final = "io.riskrelay."


class FormattedBody(NamedTuple):
    """The bytes of a request and the headers that describe them."""

    body: bytes
    headers: Mapping[str, str]


def formatted(body: bytes, wanted: BodyFormat) -> FormattedBody:
    """Return the body of an export, an event or a ping in a format; an event stays JSON if the format is SARIF."""
    return _FORMS[wanted](body)


def _as_it_is(body: bytes) -> FormattedBody:
    return FormattedBody(body, {"Content-Type": "application/json"})


def _structured(body: bytes) -> FormattedBody:
    event = json.loads(body)
    envelope = {**_attributes(event), "datacontenttype": "application/json", "data": event}
    return FormattedBody(canonical(envelope), {"Content-Type": "application/cloudevents+json"})


def _binary(body: bytes) -> FormattedBody:
    attributes = {f"ce-{name}": value for name, value in _attributes(json.loads(body)).items()}
    return FormattedBody(body, {"Content-Type": "application/json", **attributes})


def _attributes(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the context attributes of CloudEvents 1.0: only ids, times and constants, which are valid in any header."""
    target_id = event["export"]["target_id"] if "export" in event else event["target"]["id"]
    return {
        "specversion": "1.0",
        "id": event["id"],
        "source": f"urn:riskrelay:target:{target_id}",
        "type": _EVENT_TYPE_PREFIX + event["type"],
        "subject": event["export"]["id"] if "export" in event else target_id,
        "time": event["created_at"],
    }


def _sarif(body: bytes) -> FormattedBody:
    event = json.loads(body)
    if event["type"] in ALL_EVENTS:
        return _as_it_is(body)
    ticket = event.pop("ticket", None)
    driver: dict[str, Any] = {"name": "RiskRelay"}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"riskrelay/{event['id']}"},
        "results": [],
        "properties": {"riskrelay": event},
    }
    if ticket is not None:
        rule = _rule(ticket, event["export"]["source"]["type"])
        driver["rules"] = [rule]
        run["results"] = [_result(rule, ticket, place) for place in _places(ticket)]
        event["evidence"] = {name: value for name, value in ticket["evidence"].items() if name != "places"}
    return FormattedBody(canonical(sarif_log([run])), {"Content-Type": "application/sarif+json"})


def _rule(ticket: Mapping[str, Any], source: str) -> dict[str, Any]:
    code = ticket["evidence"].get("rule")
    # Without a code, the source is the rule: with the title as the rule, every ticket would have another rule.
    rule_id = code if isinstance(code, str) and code else source
    text = ticket["description"] or ticket["title"]
    return sarif_rule(rule_id, ticket["title"], text, ticket["severity"], ticket["labels"])


def _places(ticket: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """Return page and location of each result; a ticket that is not a group has one result."""
    evidence = ticket["evidence"]
    if is_group(ticket):
        return [(place["url"], place["location"]) for place in evidence["places"]]
    location = evidence.get("location")
    return [(ticket["page_url"], location if isinstance(location, str) else "")]


def _result(rule: Mapping[str, Any], ticket: Mapping[str, Any], place: tuple[str | None, str]) -> dict[str, Any]:
    url, location = place
    physical = {"physicalLocation": {"artifactLocation": {"uri": uri_of(url)}}} if url else {}
    logical = logical_locations(location)
    identity = hashlib.sha256(canonical([rule["id"], url, location])).hexdigest()
    return {
        "ruleId": rule["id"],
        "ruleIndex": 0,
        "level": LEVELS[ticket["severity"]],
        "message": {"text": ticket["title"]},
        **({"locations": [{**physical, **logical}]} if url or location else {}),
        "partialFingerprints": {"riskrelayPlace/v1": identity},
    }


_FORMS: Final[Mapping[BodyFormat, Callable[[bytes], FormattedBody]]] = {
    BodyFormat.TICKET: _as_it_is,
    BodyFormat.CLOUDEVENTS: _structured,
    BodyFormat.CLOUDEVENTS_BINARY: _binary,
    BodyFormat.SARIF: _sarif,
}
