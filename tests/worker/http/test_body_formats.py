"""The other formats of a body: CloudEvents in both modes, and valid SARIF; every attempt sends the same bytes."""

import json
from typing import Any, Final

import pytest
from jsonschema_rs import Draft7Validator

from schemas.base.places import ChangedPlace
from schemas.base.strict_json import canonical
from schemas.base.ticket_event_types import TicketEventType
from schemas.exports.tickets.ticket import REDACTED_TICKET, Source, Ticket, delivery_body
from schemas.exports.tickets.ticket_events import EventTicket, TicketChange, event_body
from schemas.targets.pings import PingJob, ping_body
from schemas.targets.webhook_options import BodyFormat
from tests.support.factories import NOW
from tests.support.sarif_schema import SARIF_LOG
from worker.http.body_formats import formatted

SARIF: Final = Draft7Validator(SARIF_LOG, validate_formats=True)
CREATED_AT: Final = "2026-03-01T12:00:00Z"

PLACES: Final = [
    {"url": "https://shop.example.com/a b?q=50%&r=[ä]", "location": "main > img"},
    {"url": "https://shop.example.com/", "location": ""},
]
GROUP: Final = Ticket(
    "Images lack alternative text",
    "42 images.\n\nPlaces: …",
    "high",
    "https://shop.example.com/",
    ("risk", "a11y", "risk"),
    {
        "rule": "img-alt",
        "location": "main > img",
        "places": PLACES,
        "findings": 42,
        "pages": 7,
        "sites": ["shop.example.com"],
    },
)
TICKETS: Final = {
    "a group": GROUP,
    "a finding": Ticket("T", "D", "critical", "https://a.example/x", (), {"rule": "r", "location": "#id"}),
    "a ticket by hand": Ticket("By hand", "", "info", None, ("a",), {}),
    "evidence with the names of a group": Ticket(
        "T", "D", "low", None, (), {"places": [1], "findings": 1, "pages": 1, "sites": []}
    ),
    "evidence of other types": Ticket("T", "D", "low", None, (), {"rule": 7, "location": ["x"], "places": "none"}),
    "a redacted ticket": REDACTED_TICKET,
}


def body_of(ticket: Ticket) -> bytes:
    source = Source("finding", "fnd_1", 42)
    return delivery_body("exp_1", "tgt_1", source, ticket.record(), CREATED_AT)


PING: Final = ping_body(PingJob("png_1", NOW, "tgt_1", 1, "Größe\N{ZERO WIDTH SPACE}", "https://a.example", None))
REPORTS: Final = {**{name: body_of(ticket) for name, ticket in TICKETS.items()}, "a ping": PING}


def event_of(kind: TicketEventType) -> bytes:
    title = None if kind is TicketEventType.REDACT else GROUP.title
    ticket = EventTicket("exp_1", "tgt_1", Source("finding", "fnd_1", 42), title, "sha256:0", "T-1")
    change = TicketChange(0, 1, 41, (ChangedPlace(PLACES[0]["url"], PLACES[0]["location"], "fixed"),))
    return event_body("evt_1", kind, ticket, change, CREATED_AT)


EVENTS: Final = {kind.value: event_of(kind) for kind in TicketEventType}
BODIES: Final = {**REPORTS, **EVENTS}


def sarif(body: bytes) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(formatted(body, BodyFormat.SARIF).body)
    return log


def test_the_ticket_form_is_the_approved_bytes() -> None:
    assert formatted(BODIES["a group"], BodyFormat.TICKET) == (BODIES["a group"], {"Content-Type": "application/json"})


@pytest.mark.parametrize("form", list(BodyFormat))
@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_form_is_the_same_for_every_attempt(body: bytes, form: BodyFormat) -> None:
    first = formatted(body, form)
    assert formatted(bytes(bytearray(body)), form) == first
    assert json.loads(first.body)


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_structured_event_holds_the_ticket_as_data(body: bytes) -> None:
    event, given = formatted(body, BodyFormat.CLOUDEVENTS), json.loads(body)
    envelope = json.loads(event.body)
    assert event.headers == {"Content-Type": "application/cloudevents+json"}
    assert event.body == canonical(envelope)
    assert envelope.pop("data") == given
    assert envelope == {
        "specversion": "1.0",
        "id": given["id"],
        "source": "urn:riskrelay:target:tgt_1",
        "type": f"io.riskrelay.{given['type']}",
        "subject": "exp_1" if "export" in given else "tgt_1",
        "time": given["created_at"],
        "datacontenttype": "application/json",
    }


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_binary_event_is_the_approved_bytes_with_headers(body: bytes) -> None:
    event, envelope = (
        formatted(body, BodyFormat.CLOUDEVENTS_BINARY),
        json.loads(formatted(body, BodyFormat.CLOUDEVENTS).body),
    )
    assert event.body == body
    attributes = {name: value for name, value in envelope.items() if name not in {"data", "datacontenttype"}}
    assert event.headers == {"Content-Type": "application/json", **{f"ce-{name}": text for name, text in attributes.items()}}
    assert all(value.isascii() and value.isprintable() for value in event.headers.values())


@pytest.mark.parametrize("body", REPORTS.values(), ids=list(REPORTS))
def test_a_sarif_log_is_valid_by_its_schema(body: bytes) -> None:
    log = sarif(body)
    SARIF.validate(log)
    assert formatted(body, BodyFormat.SARIF).headers == {"Content-Type": "application/sarif+json"}
    assert log["runs"][0]["automationDetails"] == {"id": f"riskrelay/{json.loads(body)['id']}"}
    # The schema must reject something; otherwise the test would prove nothing.
    assert not SARIF.is_valid({**log, "version": "2.0.0"})


def test_a_sarif_log_has_one_rule_and_a_result_for_each_place() -> None:
    [run] = sarif(BODIES["a group"])["runs"]
    [rule] = run["tool"]["driver"]["rules"]
    assert (rule["id"], rule["shortDescription"]["text"]) == ("img-alt", GROUP.title)
    assert rule["properties"] == {"tags": ["a11y", "risk"], "security-severity": "8.0", "severity": "high"}
    assert [result["locations"] for result in run["results"]] == [
        [
            {
                "physicalLocation": {"artifactLocation": {"uri": "https://shop.example.com/a%20b?q=50%25&r=%5B%C3%A4%5D"}},
                "logicalLocations": [{"fullyQualifiedName": "main > img", "kind": "element"}],
            }
        ],
        [{"physicalLocation": {"artifactLocation": {"uri": "https://shop.example.com/"}}}],
    ]
    assert {(result["ruleId"], result["level"], result["message"]["text"]) for result in run["results"]} == {
        ("img-alt", "error", GROUP.title)
    }
    prints = [result["partialFingerprints"]["riskrelayPlace/v1"] for result in run["results"]]
    assert len({*prints}) == len(PLACES)
    event = run["properties"]["riskrelay"]
    assert event["export"]["source"]["scan_run_id"] == 42
    assert (event["evidence"]["findings"], "places" in event["evidence"]) == (42, False)


def test_the_fingerprint_of_a_place_is_that_of_the_next_ticket_about_it() -> None:
    first = sarif(BODIES["a group"])["runs"][0]["results"][1]
    alone = Ticket("Another title", "", "low", PLACES[1]["url"], (), {"rule": "img-alt", "location": ""})
    assert sarif(body_of(alone))["runs"][0]["results"][0]["partialFingerprints"] == first["partialFingerprints"]


def test_a_ticket_without_a_rule_or_a_page_is_one_result_under_its_source() -> None:
    [run] = sarif(BODIES["a ticket by hand"])["runs"]
    [result] = run["results"]
    assert result["ruleId"] == run["tool"]["driver"]["rules"][0]["id"] == "finding"
    assert "locations" not in result


def test_a_ping_is_a_sarif_log_without_results() -> None:
    [run] = sarif(PING)["runs"]
    assert (run["results"], "rules" in run["tool"]["driver"]) == ([], False)
    assert run["properties"]["riskrelay"]["type"] == "target.ping"


@pytest.mark.parametrize("kind", list(TicketEventType))
def test_an_event_of_a_ticket_is_a_cloud_event_of_its_type(kind: TicketEventType) -> None:
    event = json.loads(formatted(EVENTS[kind], BodyFormat.CLOUDEVENTS).body)
    assert (event["id"], event["type"], event["subject"]) == ("evt_1", f"io.riskrelay.{kind}", "exp_1")
    binary = formatted(EVENTS[kind], BodyFormat.CLOUDEVENTS_BINARY)
    assert (binary.headers["ce-type"], binary.body) == (f"io.riskrelay.{kind}", EVENTS[kind])


@pytest.mark.parametrize("body", EVENTS.values(), ids=list(EVENTS))
def test_an_event_of_a_ticket_is_sent_as_json_to_a_sarif_target(body: bytes) -> None:
    assert formatted(body, BodyFormat.SARIF) == (body, {"Content-Type": "application/json"})
