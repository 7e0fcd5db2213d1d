"""The senders' pages are true: each row of their tables of refusals is sent, and answered as the page says.

A row names what is sent instead of something in the page's smallest request: a member, a header, the query, the whole body.
What a row says in words is arranged by `ARRANGED`; words that nobody arranges fail.
"""

import hashlib
import hmac
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any, Final

import pytest
from falcon.inspect import inspect_routes
from falcon.testing import Result, TestClient

from schemas.base.principal import Ability
from service.app import create_app
from tests.support.factories import (
    SCANNER_SECRET,
    Customer,
    make_platform_token,
    make_project,
    make_report,
    make_settings,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.raw_http import Call, everything_stored
from tests.support.specification import EMAIL_SECRET, STOREFRONT_SECRET, everything

SENDERS: Final = Path(__file__).resolve().parents[2] / "docs" / "senders"
PAGES: Final = sorted(path.stem for path in SENDERS.glob("*.md"))
SIGNATURE: Final = "X-Platform-Hmac-Sha256"
#: What a page calls the place of a refusal that is of no member.
WHOLE: Final = "(request)"
_FIELD: Final = re.compile(rf"(?:`([^`]*)`|{re.escape(WHOLE)}) `(\w+)`")

_ABILITIES: Final = {
    "browser-extension": Ability.UPLOAD_EVIDENCE,
    "cms-plugin": Ability.UPLOAD_CMS_DIAGNOSTICS,
    "storefront-app": Ability.UPLOAD_STOREFRONT_DIAGNOSTICS,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One refusal as a page tells it; `fields` are the path and the code of each problem."""

    place: str
    status: int
    code: str
    fields: frozenset[tuple[str, str]]
    sent: str


@dataclass
class Stage:
    """A cloud installation, the page's smallest request, and how to change either."""

    page: str
    customer: Customer
    settings: Mapping[str, str]
    folder: Path
    call: Call
    clients: dict[str, TestClient]

    def client(self, **changes: str) -> TestClient:
        """The application with other settings; an empty one is not set."""
        key = repr(sorted(changes.items()))
        if key not in self.clients:
            wanted = {name: value for name, value in {**self.settings, **changes}.items() if value}
            settings = make_settings(self.folder, wanted)
            if changes.get("ENCRYPTION_KEYS") == "":
                settings = replace(settings, encryption_keys=(), webhook_secret=None)
            self.clients[key] = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
        return self.clients[key]

    def body(self, **members: Any) -> Call:
        """The smallest request with these members, signed anew."""
        return self.signed(self.call.with_json({**self.call.json, **members}))

    def signed(self, call: Call) -> Call:
        """A request with the signature of its body, where it had one."""
        if SIGNATURE not in dict(call.headers):
            return call
        return with_header(call, SIGNATURE, hmac.new(STOREFRONT_SECRET.encode(), call.body, hashlib.sha256).hexdigest())


Arrangement = Callable[[Stage], Result]


def with_header(call: Call, name: str, value: str) -> Call:
    """The request with another header; without it where the value is empty."""
    return call.without(name).plus((name, value)) if value else call.without(name)


def rows(page: str) -> Iterator[Row]:
    text = (SENDERS / f"{page}.md").read_text()
    before, _, after = text.partition("\n## Errors\n")
    first = before.count("\n") + 2
    for number, line in enumerate(after.partition("\n## ")[0].splitlines(), first):
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        told = re.fullmatch(r"(\d{3}) `(\w+)`", cells[0])
        if told is None:
            continue
        assert len(cells) == 4, line
        assert cells[3], line
        fields = [_FIELD.fullmatch(each) for each in cells[1].split(", ")] if cells[1] else []
        found = frozenset((field[1] or "", field[2]) for field in fields if field is not None)
        assert len(found) == len(fields), line
        yield Row(f"{page}.md:{number}", int(told[1]), told[2], found, cells[2])


def smallest_request(page: str, variables: Mapping[str, str]) -> Call:
    """Read the page's first curl as a shell would: the words, the variables, the body after it."""
    section = (SENDERS / f"{page}.md").read_text().partition("\n## Minimal request\n")[2]
    block = Template(section.partition("```sh\n")[2].partition("```")[0]).safe_substitute(variables)
    written = re.search(r"(?:<<JSON\n(?P<here>.*?)\nJSON$|^printf %s '(?P<file>.*?)' >body\.json$)", block, re.DOTALL | re.M)
    assert written is not None
    body = written["here"] or written["file"]
    words = shlex.split(block[block.index("curl ") :].partition("<<JSON")[0].replace("\\\n", " "))
    headers = [words[at + 1].partition(": ") for at, word in enumerate(words) if word == "-H"]
    [url] = [word for word in words if word.startswith("http://")]
    path = url.removeprefix("http://127.0.0.1:8000")
    return Call("POST", path, tuple((name, value) for name, _, value in headers), body.encode())


def merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, inner in patch.items():
        if inner is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), inner)
    return result


def instead(stage: Stage, fragment: str) -> Call:
    """Return the smallest request with what a row's code names."""
    call = stage.call
    if fragment.startswith("?"):
        return replace(call, query=fragment[1:])
    header = re.fullmatch(r"([\w-]+):(.*)", fragment)
    if header is not None:
        return with_header(call, header[1], header[2].strip())
    try:
        patch = json.loads(fragment)
    except ValueError:
        return stage.signed(replace(call, body=fragment.encode()))
    return stage.signed(call.with_json(merged(call.json, patch)))


# --- what rows say in words


def under(**settings: str) -> Arrangement:
    return lambda stage: stage.call.send(stage.client(**settings))


def bearing(token: Callable[[Stage], str]) -> Arrangement:
    return lambda stage: with_header(stage.call, "Authorization", f"Bearer {token(stage)}").send(stage.client())


def another_ability(stage: Stage) -> str:
    return make_platform_token(stage.customer, *(set(_ABILITIES.values()) - {_ABILITIES[stage.page]}))


def twice_with_one_key(stage: Stage) -> Result:
    keyed = stage.call.plus(("Idempotency-Key", "one key"))
    assert keyed.send(stage.client()).status_code < 300
    return keyed.with_json({**keyed.json, **ANOTHER[stage.page]}).send(stage.client())


def too_often(stage: Stage) -> Result:
    client = stage.client(RATE_LIMIT_PER_MINUTE="1")
    assert stage.call.send(client).status_code < 300
    answer = stage.call.send(client)
    assert int(answer.headers["retry-after"]) >= 1
    return answer


def too_large(stage: Stage) -> Result:
    return replace(stage.call, body=b" " * (1024 * 1024) + stage.call.body).send(stage.client())


def an_unknown_run(stage: Stage) -> Result:
    return stage.body(scanRunId=987654).send(stage.client(DEFAULT_PROJECT_ID=""))


def of_another_project(stage: Stage) -> Result:
    project_id = make_project(stage.customer, is_granted=False)
    return stage.body(project_id=project_id).send(stage.client())


def another_report(stage: Stage) -> Result:
    return stage.body(report_id=make_report(make_project(stage.customer))).send(stage.client())


def another_shop(stage: Stage) -> Result:
    return stage.body(project_id=make_project(stage.customer, "sun.shops.example")).send(stage.client())


def signed_with_a_newline(stage: Stage) -> Result:
    longer = stage.signed(replace(stage.call, body=stage.call.body + b"\n"))
    return replace(longer, body=stage.call.body).send(stage.client())


def a_persons(stage: Stage) -> Result:
    call = with_header(stage.body(customer={"id": 7}), "X-Platform-Topic", "customers/redact")
    return call.send(stage.client(ENCRYPTION_KEYS="", WEBHOOK_SECRET=""))


#: A member that makes the smallest request another one.
ANOTHER: Final[Mapping[str, dict[str, Any]]] = {
    "scanner": {"status": "partial"},
    "email": {"subject": "Another"},
    "browser-extension": {"page_title": "Another"},
    "cms-plugin": {"plugin_version": "2"},
    "storefront-app": {"app_version": "2"},
}
ARRANGED: Final[Mapping[str, Arrangement]] = {
    "with `DEPLOYMENT_MODE=webhook-only`": under(DEPLOYMENT_MODE="webhook-only"),
    "with `DEPLOYMENT_MODE=self-hosted`": under(DEPLOYMENT_MODE="self-hosted"),
    "the same `Idempotency-Key` with another body": twice_with_one_key,
    "a body of more than `MAX_BODY_BYTES`": too_large,
    "more than `RATE_LIMIT_PER_MINUTE` requests in a minute": too_often,
    "an unregistered scan run, without `DEFAULT_PROJECT_ID`": an_unknown_run,
    "a recipient that names no project, without `DEFAULT_PROJECT_ID`": under(DEFAULT_PROJECT_ID=""),
    "a token of kind `api`": bearing(lambda stage: stage.customer.token),
    "a platform token with another ability": bearing(another_ability),
    "a project that the user does not manage": of_another_project,
    "a report of another project": another_report,
    "a shop other than the project's": another_shop,
    "while no secret is configured": under(STOREFRONT_WEBHOOK_SECRET=""),
    "a person's request, without `ENCRYPTION_KEYS`": a_persons,
    "the signature of the body with an added newline": signed_with_a_newline,
}


@pytest.fixture
def stage(request: pytest.FixtureRequest, customer: Customer, tmp_path: Path) -> Stage:
    """The page's request against an installation that serves every route."""
    page: str = request.param
    settings = {**everything(customer), "AUTH_FAILURES_PER_MINUTE": "1000"}
    variables = {
        "SCANNER_SHARED_SECRET": SCANNER_SECRET,
        "EMAIL_WEBHOOK_SECRET": EMAIL_SECRET,
        "PROJECT_ID": str(customer.project_id),
        "TOKEN": make_platform_token(customer, _ABILITIES[page]) if page in _ABILITIES else "",
    }
    stage = Stage(page, customer, settings, tmp_path, smallest_request(page, variables), {})
    stage.call = stage.signed(stage.call)
    return stage


def answer_to(stage: Stage, sent: str) -> Result:
    if sent in ARRANGED:
        return ARRANGED[sent](stage)
    fragment = re.fullmatch(r"`([^`]+)`", sent)
    assert fragment is not None, f"nobody arranges {sent!r}"
    before = everything_stored()
    answer = instead(stage, fragment[1]).send(stage.client())
    assert everything_stored() == before, sent
    return answer


def wrong_with(row: Row, answer: Result) -> str | None:
    """Return how an answer is another than a row's; None where it is the row's."""
    error = (answer.json if answer.content else {}).get("error", {})
    fields = [(each["path"], each["code"]) for each in error.get("details", {}).get("fields", [])]
    if (answer.status_code, error.get("code"), sorted(fields)) == (row.status, row.code, sorted(row.fields)):
        return None
    return f"{row.place}: {row.sent} is answered {answer.status_code} {error.get('code')} {fields}"


@pytest.mark.parametrize("stage", PAGES, indirect=True)
def test_every_refusal_of_a_page_is_answered_as_it_says(stage: Stage) -> None:
    told = list(rows(stage.page))
    assert len(told) > 15
    assert {row.status for row in told} >= {401, 404, 413, 415, 422, 429}
    assert list(filter(None, (wrong_with(row, answer_to(stage, row.sent)) for row in told))) == []


@pytest.mark.parametrize("stage", PAGES, indirect=True)
def test_the_smallest_request_is_taken_and_nothing_can_be_left_out(stage: Stage) -> None:
    assert stage.call.send(stage.client()).status_code in {201, 202, 204}
    headers = [name for name, _ in stage.call.headers if name != "Content-Type"]
    assert headers
    for name in headers:
        assert stage.call.without(name).send(stage.client()).status_code in {401, 422}, name
    for name in set(stage.call.json) - LUXURY:
        body = {key: value for key, value in stage.call.json.items() if key != name}
        assert stage.signed(stage.call.with_json(body)).send(stage.client()).status_code == 422, name


#: Without issues there would be nothing to prepare.
LUXURY: Final = frozenset({"issues"})


def test_every_arrangement_is_some_rows() -> None:
    assert set(ARRANGED) - {row.sent for page in PAGES for row in rows(page)} == set()


def test_every_inbound_route_has_a_page() -> None:
    app = create_app(make_settings(SENDERS, {"DEPLOYMENT_MODE": "cloud"}), FakeWakeUpQueue(), FakeResolver({}))
    taking = {
        route.path for route in inspect_routes(app) for each in route.methods if each.method == "POST" and not each.internal
    }
    ours = ("/api/ticket-export", "/api/console-sessions", "/console")
    inbound = {path for path in taking if not path.startswith(ours)}
    told = {smallest_request(page, {}).path for page in PAGES}
    assert (len(inbound), inbound - told) == (6, set())
