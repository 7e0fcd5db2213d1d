"""Tickets in a real Redmine: created once, found again, and harmless with each of its text formats."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, Final, get_args

import pytest
import requests

from schemas.base.places import ChangedPlace, Place
from schemas.base.ticket_event_types import TicketEventType
from schemas.trackers.event_steps import apply_event
from schemas.trackers.events import TrackerEvent, TrackerEventAction
from schemas.trackers.exchange import FailureKind, TrackerAccess, TrackerFailure, TrackerIssue, TrackerTicket
from schemas.trackers.failures import (
    ARCHIVED,
    FORBIDDEN,
    ISSUE_NOT_FOUND,
    ISSUES_DISABLED,
    NOT_FOUND,
    REJECTED,
    TOKEN_REJECTED,
)
from schemas.trackers.redmine import RedmineTracker
from schemas.trackers.text.neutral import ZWSP
from tests.support.corpora import tracker_file
from tests.support.trackers.events import EVENT_ID, EXPORT_ID, event
from tests.support.trackers.redmine_server import KEYS, RedmineServer, TextFormat
from tests.support.trackers.steps import perform

#: Starting takes half a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

REDMINE: Final = RedmineTracker()
CONSOLE: Final = "https://riskrelay.example.com/console/exports/exp_1"
CONFIGURATION: Final = FailureKind.CONFIGURATION

#: Syntax of Textile and of Redmine itself.
TEXTILE: Final = {
    "mention": "@reporter and user:reporter and user#5",
    "image": "!https://evil.example/pixel.png! !pixel.png!:https://evil.example",
    "link": '"click":https://evil.example and "click":/logout and https://evil.example and www.evil.example',
    "wiki link": "[[Page]] [[shop:Page|text]] document:plan attachment:file.zip source:README export:README",
    "issue": "#1 ##1 #1-2 #1#note-2 r1 commit:c6f4d0fd version:1.0 forum:1 message#1 news#1 project:shop",
    "macro": "{{collapse(Open)\nhidden\n}} {{include(Page)}} {{toc}} {{thumbnail(x.png)}} {{macro_list}}",
    "raw html": "<b>bold</b><img src=x onerror=alert(1)><script>alert(1)</script><a href=//evil.example>x</a><details open>",
    "end of the block": "</pre>\n\n!https://evil.example/p.png! @reporter\n\nh1. Heading\n\n<pre>",
    "end of the code": '</code></pre>\n"x":https://evil.example\n<pre><code class="ruby">',
    "notextile": "<notextile><img src=x></notextile> ==<b>x</b>==",
    "styles": "p{background:url(https://evil.example)}. text %{color:red}x% h1{position:fixed}. y",
    "entities": "&lt;img src=x&gt; &#60;script&#62; &#64;reporter &amp;#64;reporter",
    "table": '|_. a |\n|"x":https://evil.example|@reporter|',
    "footnote": "x[1]\n\nfn1. note #1",
    "quote": "bq.:https://evil.example quoted\n\n> @reporter\n>> #1",
    "reference": "[x]https://evil.example\n\n[x]: https://evil.example\n[text][x] ![image][x] <https://evil.example>",
    "fence": "```\n~~~\n````\n@reporter #1 ![x](https://evil.example/p.png)\n```",
    "email": "mailto:a@evil.example a@evil.example",
}


def hostile_texts() -> dict[str, str]:
    recorded = json.loads(tracker_file("gitea-1.26.0-markdown.json").read_bytes())
    return TEXTILE | {f"gitea {number}": each["markdown"] for number, each in enumerate(recorded["bodies"])}


def access(redmine: RedmineServer, project: str = "shop", user: str = "reporter", **settings: Any) -> TrackerAccess:
    return TrackerAccess(f"{redmine.url}/projects/{project}", settings, KEYS.get(user, user))


def ticket(export_id: str = "exp_1", **changes: Any) -> TrackerTicket:
    made = TrackerTicket(
        export_id, "Form posts without a token", "The login form has no token.", "high", console_url=CONSOLE
    )
    return replace(made, **changes)


def created(made: object) -> TrackerIssue:
    assert isinstance(made, TrackerIssue), made
    return made


def issue(redmine: RedmineServer, made: TrackerIssue) -> dict[str, Any]:
    response = requests.get(f"{made.url}.json", headers={"X-Redmine-API-Key": KEYS["reporter"]}, timeout=30)
    read: dict[str, Any] = response.json()["issue"]
    return read


class RenderedIssue(HTMLParser):
    """The subject and text on an issue's page: the elements, the targets of links, and the text that a person reads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.addresses: list[str] = []
        self.read = ""
        self._depth = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._depth:
            self.elements.append(tag)
            self.addresses += [value or "" for name, value in attrs if name in {"href", "src", "style", "data"}]
            self.addresses += [name for name, _ in attrs if name.startswith("on")]
        if tag == "div" and (self._depth or given.get("class") in {"wiki", "subject"}):
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "div" and self._depth > 0

    def handle_data(self, data: str) -> None:
        self.read += data if self._depth else ""


def rendered(made: TrackerIssue) -> RenderedIssue:
    return RenderedIssue(requests.get(made.url, timeout=30).text)


def test_an_issue_is_created_with_all_values_of_the_settings(redmine: RedmineServer) -> None:
    target = access(redmine, tracker="support", priority_by_severity={"high": "Urgent"}, assignee="developer test")
    assert perform(REDMINE.validate(target)) is None
    made = created(perform(REDMINE.create(target, ticket("exp_settings"))))
    read = issue(redmine, made)
    assert (made.id, made.url) == (str(read["id"]), f"{redmine.url}/issues/{read['id']}")
    assert (read["tracker"]["name"], read["priority"]["name"]) == ("Support", "Urgent")
    assert (read["assigned_to"]["name"], read["author"]["name"]) == ("Developer Test", "Reporter Test")
    assert read["subject"] == "Form posts without a token"


def test_an_issue_is_found_by_its_export_whether_open_or_closed(redmine: RedmineServer) -> None:
    target = access(redmine)
    assert perform(REDMINE.find(target, ticket("exp_lost"))) is None
    made = created(perform(REDMINE.create(target, ticket("exp_lost"))))
    perform(REDMINE.create(target, ticket("exp_quoting", description="A page that quotes exp_lost.")))
    assert perform(REDMINE.find(target, ticket("exp_lost"))) == made
    redmine.close_issue(made.id)
    assert issue(redmine, made)["status"]["is_closed"] is True
    assert perform(REDMINE.find(target, ticket("exp_lost"))) == made


#: Columns: a project; a user; the code of what is missing.
REFUSALS: Final = [
    ("shop", "f" * 40, TOKEN_REJECTED),
    ("shop", "stranger", FORBIDDEN),
    ("vault", "stranger", FORBIDDEN),
    ("vault", "f" * 40, TOKEN_REJECTED),
    ("absent", "reporter", NOT_FOUND),
    ("wiki", "reporter", ISSUES_DISABLED),
    ("closed", "reporter", ARCHIVED),
]


@pytest.mark.parametrize(("project", "user", "code"), REFUSALS)
def test_each_refusal_has_its_code(redmine: RedmineServer, project: str, user: str, code: str) -> None:
    before = redmine.issues(project)
    target = access(redmine, project, user)
    assert perform(REDMINE.create(target, ticket())) == TrackerFailure(CONFIGURATION, code)
    assert perform(REDMINE.validate(target)) == TrackerFailure(CONFIGURATION, code)
    assert redmine.issues(project) == before


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tracker": "Defect"}, "tracker"),
        ({"priority_by_severity": {"high": "Normal", "low": "Lowest"}}, "priority_by_severity"),
        ({"assignee": "Stranger Test"}, "assignee"),
    ],
)
def test_a_setting_with_an_unknown_value_is_reported(redmine: RedmineServer, settings: dict[str, Any], field: str) -> None:
    failure = perform(REDMINE.validate(access(redmine, **settings)))
    assert failure == TrackerFailure(CONFIGURATION, NOT_FOUND, field=field)


def test_validation_creates_nothing_and_reports_an_invalid_assignee(redmine: RedmineServer) -> None:
    before = redmine.issues()
    assert perform(REDMINE.validate(access(redmine))) is None
    failure = perform(REDMINE.validate(access(redmine, assignee="1")))
    assert failure == TrackerFailure(FailureKind.PAYLOAD, REJECTED)
    assert redmine.issues() == before


def test_a_ticket_of_the_largest_size_is_accepted(redmine: RedmineServer) -> None:
    places = tuple(Place(f"https://shop.example/{number}", "form > input") for number in range(50))
    large = ticket(
        "exp_large",
        title="ä" * 1000,
        description="€ & <b> \U0001f600\n" * 3000,
        places=places,
        evidence={"html": "<p>" * 20_000},
    )
    made = created(perform(REDMINE.create(access(redmine), large)))
    read = issue(redmine, made)
    assert len(read["subject"]) <= 255
    assert read["description"].rstrip().endswith("exp_large")
    assert perform(REDMINE.find(access(redmine), large)) == made


@pytest.fixture(scope="module")
def hostile_issues(redmine: RedmineServer) -> dict[str, tuple[str, TrackerIssue]]:
    """An issue for each hostile text with its export's ID, by the text's name. The same request has to suit every format."""
    made = {}
    for number, (name, text) in enumerate(hostile_texts().items()):
        place = Place(f"https://shop.example/{text}", text)
        hostile = ticket(
            f"exp_hostile{number}",
            title=text,
            description=text,
            page_url=f"https://shop.example/{text}",
            places=(place, place),
            places_total=2,
            evidence={"text": text, text[:50]: 1},
        )
        made[name] = hostile.export_id, created(perform(REDMINE.create(access(redmine), hostile)))
        assert "@reporter" not in issue(redmine, made[name][1])["description"], name
    return made


@pytest.mark.parametrize("text_format", get_args(TextFormat))
def test_hostile_texts_are_harmless_in_the_page(
    redmine: RedmineServer, hostile_issues: dict[str, tuple[str, TrackerIssue]], text_format: TextFormat
) -> None:
    redmine.set_text_format(text_format)
    harm: dict[str, object] = {}
    for name, (export_id, made) in hostile_issues.items():
        shown = rendered(made)
        unexpected = set(shown.elements) - {"p", "pre", "strong", "b", "em", "br", "h3", "div", "a", "code", "li", "ul"}
        if unexpected or set(shown.addresses) - {CONSOLE}:
            harm[name] = (unexpected, shown.addresses)
        assert shown.addresses.count(CONSOLE) == 1, name
        assert export_id in shown.read, name
    assert harm == {}


@pytest.mark.parametrize("text_format", get_args(TextFormat))
def test_a_ticket_is_shown_with_all_its_parts_in_every_text_format(redmine: RedmineServer, text_format: TextFormat) -> None:
    redmine.set_text_format(text_format)
    description = 'Line one\nline two <input name="a">\n\n* 5 > 4 & 3'
    readable = ticket(f"exp_read{text_format}", description=description, page_url="https://shop.example/login?a=1&b=2")
    shown = rendered(created(perform(REDMINE.create(access(redmine), readable))))
    text = shown.read.replace(ZWSP, "").replace("\n    ", "\n")
    for part in ("high", "https://shop.example/login?a=1&b=2", description, readable.export_id, readable.title):
        assert part in text
    assert CONSOLE in shown.addresses
    # Without both elements, the test of hostile texts would prove nothing.
    assert {"p", "pre"} <= set(shown.elements)


def test_the_check_for_harmful_effects_can_fail(redmine: RedmineServer) -> None:
    seen = []
    for text_format in get_args(TextFormat):
        redmine.set_text_format(text_format)
        body = {
            "issue": {"project_id": "shop", "subject": "s", "description": f"@reporter {TEXTILE['link']} {TEXTILE['image']}"}
        }
        made = requests.post(
            f"{redmine.url}/issues.json", json=body, headers={"X-Redmine-API-Key": KEYS["reporter"]}, timeout=30
        ).json()
        seen.append(rendered(TrackerIssue("1", f"{redmine.url}/issues/{made['issue']['id']}")).addresses)
    textile, common_mark, markdown = seen
    assert [addresses[0].startswith("/users/") for addresses in seen] == [True, True, True]
    assert "https://evil.example/pixel.png" in textile
    assert "https://evil.example" in common_mark
    assert "https://evil.example" in markdown


# Events


def event_at(made: TrackerIssue, event_type: TicketEventType = TicketEventType.UPDATED, **changes: Any) -> TrackerEvent:
    return event(event_type, issue_id=made.id, **changes)


def applied(target: TrackerAccess, made: TrackerEvent) -> object:
    return perform(apply_event(REDMINE, target, made))


def notes(redmine: RedmineServer, made: TrackerIssue) -> list[str]:
    headers = {"X-Redmine-API-Key": KEYS["reporter"]}
    read = requests.get(f"{made.url}.json?include=journals", headers=headers, timeout=30).json()
    return [journal["notes"] for journal in read["issue"]["journals"] if journal["notes"]]


def test_an_event_is_one_note_even_if_it_is_repeated(redmine: RedmineServer) -> None:
    target = access(redmine)
    made = created(perform(REDMINE.create(target, ticket("exp_note"))))
    assert applied(target, event_at(made)) is TrackerEventAction.COMMENTED
    assert applied(target, event_at(made, is_outcome_unknown=True)) is TrackerEventAction.COMMENTED
    [note] = notes(redmine, made)
    assert "3 places added, 1 fixed, 5 still open." in note
    assert note.endswith(EVENT_ID)


def test_a_manager_closes_and_reopens_an_issue(redmine: RedmineServer) -> None:
    target = access(redmine, user="manager", on_fixed="close")
    made = created(perform(REDMINE.create(target, ticket("exp_closing"))))
    assert applied(target, event_at(made, TicketEventType.FIXED)) is TrackerEventAction.CLOSED
    assert issue(redmine, made)["status"]["is_closed"] is True
    reopened = event_at(made, TicketEventType.REOPENED, event_id="evt_reopened", has_closed=True)
    assert applied(target, reopened) is TrackerEventAction.REOPENED
    assert issue(redmine, made)["status"]["is_closed"] is False
    fixed = event_at(made, TicketEventType.FIXED, event_id="evt_fixed", has_closed=True)
    assert applied(target, fixed) is TrackerEventAction.LEFT_ALONE
    assert len(notes(redmine, made)) == 3


def test_a_developer_closes_and_cannot_reopen(redmine: RedmineServer) -> None:
    target = access(redmine, user="developer", on_fixed="close")
    made = created(perform(REDMINE.create(target, ticket("exp_developer"))))
    assert applied(target, event_at(made, TicketEventType.FIXED)) is TrackerEventAction.CLOSED
    reopened = event_at(made, TicketEventType.REOPENED, event_id="evt_again", has_closed=True)
    assert applied(target, reopened) is TrackerEventAction.COMMENTED
    assert issue(redmine, made)["status"]["is_closed"] is True
    assert len(notes(redmine, made)) == 2


def test_a_reporter_comments_and_cannot_close_or_erase(redmine: RedmineServer) -> None:
    target = access(redmine, on_fixed="close")
    made = created(perform(REDMINE.create(target, ticket("exp_reporter"))))
    assert applied(target, event_at(made, TicketEventType.FIXED)) is TrackerEventAction.COMMENTED
    assert issue(redmine, made)["status"]["is_closed"] is False
    assert applied(target, event_at(made, TicketEventType.REDACT)) == TrackerFailure(FailureKind.PAYLOAD, FORBIDDEN)
    assert issue(redmine, made)["subject"] == ticket().title


def test_an_issue_is_erased_and_still_found(redmine: RedmineServer) -> None:
    target = access(redmine, user="developer")
    made = created(perform(REDMINE.create(target, ticket(EXPORT_ID, description="Jane Doe"))))
    assert applied(target, event_at(made, TicketEventType.REDACT)) is TrackerEventAction.REDACTED
    read = issue(redmine, made)
    assert read["subject"] == f"Erased ticket {EXPORT_ID}"
    assert "Jane Doe" not in read["description"]
    assert perform(REDMINE.find(target, ticket(EXPORT_ID))) == made


def test_a_missing_issue_fails_its_event_without_blocking_the_target(redmine: RedmineServer) -> None:
    made = TrackerIssue("999999", f"{redmine.url}/issues/999999")
    assert applied(access(redmine), event_at(made)) == TrackerFailure(FailureKind.PAYLOAD, ISSUE_NOT_FOUND)
    for user, code in (("stranger", FORBIDDEN), ("f" * 40, TOKEN_REJECTED)):
        assert applied(access(redmine, user=user), event_at(made)) == TrackerFailure(CONFIGURATION, code)


def test_hostile_places_are_harmless_in_a_note(redmine: RedmineServer) -> None:
    target = access(redmine)
    made = created(perform(REDMINE.create(target, ticket("exp_places"))))
    for number, text in enumerate(hostile_texts().values()):
        places = (ChangedPlace(f"https://shop.example/{text}", text, state="fixed" if number % 2 else "open"),)
        hostile = event_at(made, event_id=f"evt_{number}x", places=places, console_url=CONSOLE)
        assert applied(target, hostile) is TrackerEventAction.COMMENTED
    assert "@reporter" not in "".join(notes(redmine, made))
    for text_format in get_args(TextFormat):
        redmine.set_text_format(text_format)
        shown = RenderedIssue(requests.get(made.url, timeout=30).text)
        assert shown.read.count("RiskRelay event evt_") == len(hostile_texts()), text_format
        assert set(shown.addresses) == {CONSOLE}, text_format
