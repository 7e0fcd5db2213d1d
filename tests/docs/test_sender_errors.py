"""Each row in the error tables of the senders' pages gets the documented response.

A row changes the page's minimal request: a JSON object is merged into the body, `Name: value` replaces a header, `?…` sets
the query, and other code replaces the body. `SCENARIOS` implements the changes that are described in words.
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
from tests.support.factories import SCANNER_SECRET, Customer, make_platform_token, make_project, make_report, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import Call, everything_stored
from tests.support.http.specification import EMAIL_SECRET, STOREFRONT_SECRET, everything

SENDERS: Final = Path(__file__).resolve().parents[2] / "docs" / "senders"
PAGES: Final = sorted(path.stem for path in SENDERS.glob("*.md"))
SIGNATURE: Final = "X-Platform-Hmac-Sha256"
#: The path of an error that concerns no field, as written on the pages.
NO_FIELD: Final = "(request)"
_FIELD: Final = re.compile(rf"(?:`([^`]*)`|{re.escape(NO_FIELD)}) `(\w+)`")

_ABILITIES: Final = {
    "browser-extension": Ability.UPLOAD_EVIDENCE,
    "cms-plugin": Ability.UPLOAD_CMS_DIAGNOSTICS,
    "storefront-app": Ability.UPLOAD_STOREFRONT_DIAGNOSTICS,
}


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A row of an error table; `fields` has the path and the code of each field error."""

    place: str
    status: int
    code: str
    fields: frozenset[tuple[str, str]]
    sent: str


@dataclass
class Setup:
    """A cloud installation and a page's minimal request, with methods to change both."""

    page: str
    customer: Customer
    settings: Mapping[str, str]
    folder: Path
    call: Call
    clients: dict[str, TestClient]

    def client(self, **changes: str) -> TestClient:
        """Return a client of the application with changed settings; an empty value removes a setting."""
        key = repr(sorted(changes.items()))
        if key not in self.clients:
            wanted = {name: value for name, value in {**self.settings, **changes}.items() if value}
            settings = make_settings(self.folder, wanted)
            if changes.get("ENCRYPTION_KEYS") == "":
                settings = replace(settings, encryption_keys=(), webhook_secret=None)
            self.clients[key] = TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
        return self.clients[key]

    def body(self, **members: Any) -> Call:
        """Return the minimal request with these fields, signed again."""
        return self.signed(self.call.with_json({**self.call.json, **members}))

    def signed(self, call: Call) -> Call:
        """Return the request with a new signature of its body, if it had one."""
        if SIGNATURE not in dict(call.headers):
            return call
        return with_header(call, SIGNATURE, hmac.new(STOREFRONT_SECRET.encode(), call.body, hashlib.sha256).hexdigest())


Scenario = Callable[[Setup], Result]


def with_header(call: Call, name: str, value: str) -> Call:
    """Return the request with a replaced header, or without it if the value is empty."""
    return call.without(name).plus((name, value)) if value else call.without(name)


def rows(page: str) -> Iterator[ErrorRow]:
    text = (SENDERS / f"{page}.md").read_text()
    before, _, after = text.partition("\n## Errors\n")
    first = before.count("\n") + 2
    for number, line in enumerate(after.partition("\n## ")[0].splitlines(), first):
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        status = re.fullmatch(r"(\d{3}) `(\w+)`", cells[0])
        if status is None:
            continue
        assert len(cells) == 4, line
        assert cells[3], line
        fields = [_FIELD.fullmatch(each) for each in cells[1].split(", ")] if cells[1] else []
        found = frozenset((field[1] or "", field[2]) for field in fields if field is not None)
        assert len(found) == len(fields), line
        yield ErrorRow(f"{page}.md:{number}", int(status[1]), status[2], found, cells[2])


def minimal_request(page: str, variables: Mapping[str, str]) -> Call:
    """Parse the page's first curl command with its variables and body."""
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


def changed_request(setup: Setup, fragment: str) -> Call:
    """Return the minimal request with the change in a row's code."""
    call = setup.call
    if fragment.startswith("?"):
        return replace(call, query=fragment[1:])
    header = re.fullmatch(r"([\w-]+):(.*)", fragment)
    if header is not None:
        return with_header(call, header[1], header[2].strip())
    try:
        patch = json.loads(fragment)
    except ValueError:
        return setup.signed(replace(call, body=fragment.encode()))
    return setup.signed(call.with_json(merged(call.json, patch)))


# --- changes described in words


def under(**settings: str) -> Scenario:
    return lambda setup: setup.call.send(setup.client(**settings))


def bearing(token: Callable[[Setup], str]) -> Scenario:
    return lambda setup: with_header(setup.call, "Authorization", f"Bearer {token(setup)}").send(setup.client())


def another_ability(setup: Setup) -> str:
    return make_platform_token(setup.customer, *(set(_ABILITIES.values()) - {_ABILITIES[setup.page]}))


def twice_with_one_key(setup: Setup) -> Result:
    keyed = setup.call.plus(("Idempotency-Key", "one key"))
    assert keyed.send(setup.client()).status_code < 300
    return keyed.with_json({**keyed.json, **ANOTHER[setup.page]}).send(setup.client())


def too_often(setup: Setup) -> Result:
    client = setup.client(RATE_LIMIT_PER_MINUTE="1")
    assert setup.call.send(client).status_code < 300
    response = setup.call.send(client)
    assert int(response.headers["retry-after"]) >= 1
    return response


def too_large(setup: Setup) -> Result:
    return replace(setup.call, body=b" " * (1024 * 1024) + setup.call.body).send(setup.client())


def an_unknown_run(setup: Setup) -> Result:
    return setup.body(scanRunId=987654).send(setup.client(DEFAULT_PROJECT_ID=""))


def of_another_project(setup: Setup) -> Result:
    project_id = make_project(setup.customer, is_granted=False)
    return setup.body(project_id=project_id).send(setup.client())


def another_report(setup: Setup) -> Result:
    return setup.body(report_id=make_report(make_project(setup.customer))).send(setup.client())


def another_shop(setup: Setup) -> Result:
    return setup.body(project_id=make_project(setup.customer, "sun.shops.example")).send(setup.client())


def signed_with_a_newline(setup: Setup) -> Result:
    longer = setup.signed(replace(setup.call, body=setup.call.body + b"\n"))
    return replace(longer, body=setup.call.body).send(setup.client())


def a_persons(setup: Setup) -> Result:
    call = with_header(setup.body(customer={"id": 7}), "X-Platform-Topic", "customers/redact")
    return call.send(setup.client(ENCRYPTION_KEYS="", WEBHOOK_SECRET=""))


def under_another_topic(setup: Setup) -> Result:
    call = with_header(setup.body(customer={"id": 7}), "X-Platform-Topic", "customers/redact")
    assert call.send(setup.client()).status_code == 204
    return with_header(call, "X-Platform-Topic", "customers/data_request").send(setup.client())


#: A field that changes the minimal request.
ANOTHER: Final[Mapping[str, dict[str, Any]]] = {
    "scanner": {"status": "partial"},
    "email": {"subject": "Another"},
    "browser-extension": {"page_title": "Another"},
    "cms-plugin": {"plugin_version": "2"},
    "storefront-app": {"app_version": "2"},
}
SCENARIOS: Final[Mapping[str, Scenario]] = {
    "with `DEPLOYMENT_MODE=webhook-only`": under(DEPLOYMENT_MODE="webhook-only"),
    "with `DEPLOYMENT_MODE=self-hosted`": under(DEPLOYMENT_MODE="self-hosted"),
    "the same `Idempotency-Key` with another body": twice_with_one_key,
    "a body of more than `MAX_BODY_BYTES`": too_large,
    "more than `RATE_LIMIT_PER_MINUTE` requests in a minute": too_often,
    "an unregistered scan run, without `DEFAULT_PROJECT_ID`": an_unknown_run,
    "a recipient that names no project, without `DEFAULT_PROJECT_ID`": under(DEFAULT_PROJECT_ID=""),
    "a token of kind `api`": bearing(lambda setup: setup.customer.token),
    "a platform token with another ability": bearing(another_ability),
    "a project that the user does not manage": of_another_project,
    "a report that is not one of the project": another_report,
    "a shop other than the project's": another_shop,
    "while no secret is configured": under(STOREFRONT_WEBHOOK_SECRET=""),
    "a person's request, without `ENCRYPTION_KEYS`": a_persons,
    "a body that was accepted under another topic": under_another_topic,
    "from a network that `EMAIL_ALLOWED_NETWORKS` does not name": under(EMAIL_ALLOWED_NETWORKS="198.51.100.0/24"),
    "the signature of the body with an added newline": signed_with_a_newline,
}


@pytest.fixture
def setup(request: pytest.FixtureRequest, customer: Customer, tmp_path: Path) -> Setup:
    """The page's request and an installation that serves every route."""
    page: str = request.param
    settings = {**everything(customer), "AUTH_FAILURES_PER_MINUTE": "1000"}
    variables = {
        "SCANNER_SHARED_SECRET": SCANNER_SECRET,
        "EMAIL_WEBHOOK_SECRET": EMAIL_SECRET,
        "PROJECT_ID": str(customer.project_id),
        "TOKEN": make_platform_token(customer, _ABILITIES[page]) if page in _ABILITIES else "",
    }
    setup = Setup(page, customer, settings, tmp_path, minimal_request(page, variables), {})
    setup.call = setup.signed(setup.call)
    return setup


def response_to(setup: Setup, sent: str) -> Result:
    if sent in SCENARIOS:
        return SCENARIOS[sent](setup)
    fragment = re.fullmatch(r"`([^`]+)`", sent)
    assert fragment is not None, f"no scenario for {sent!r}"
    before = everything_stored()
    response = changed_request(setup, fragment[1]).send(setup.client())
    assert everything_stored() == before, sent
    return response


def difference(row: ErrorRow, response: Result) -> str | None:
    """Return the difference between the response and the row, or None."""
    error = (response.json if response.content else {}).get("error", {})
    fields = [(each["path"], each["code"]) for each in error.get("details", {}).get("fields", [])]
    if (response.status_code, error.get("code"), sorted(fields)) == (row.status, row.code, sorted(row.fields)):
        return None
    return f"{row.place}: response to {row.sent} is {response.status_code} {error.get('code')} {fields}"


@pytest.mark.parametrize("setup", PAGES, indirect=True)
def test_every_documented_error_is_returned(setup: Setup) -> None:
    documented = list(rows(setup.page))
    assert len(documented) > 15
    assert {row.status for row in documented} >= {401, 404, 413, 415, 422, 429}
    assert list(filter(None, (difference(row, response_to(setup, row.sent)) for row in documented))) == []


@pytest.mark.parametrize("setup", PAGES, indirect=True)
def test_the_minimal_request_is_accepted_and_nothing_can_be_omitted(setup: Setup) -> None:
    assert setup.call.send(setup.client()).status_code in {201, 202, 204}
    headers = [name for name, _ in setup.call.headers if name != "Content-Type"]
    assert headers
    for name in headers:
        assert setup.call.without(name).send(setup.client()).status_code in {401, 422}, name
    for name in set(setup.call.json) - OPTIONAL:
        body = {key: value for key, value in setup.call.json.items() if key != name}
        assert setup.signed(setup.call.with_json(body)).send(setup.client()).status_code == 422, name


#: Optional, but without issues nothing would be prepared.
OPTIONAL: Final = frozenset({"issues"})


def test_every_scenario_is_used() -> None:
    assert set(SCENARIOS) - {row.sent for page in PAGES for row in rows(page)} == set()


def test_every_inbound_route_has_a_page() -> None:
    app = create_app(make_settings(SENDERS, {"DEPLOYMENT_MODE": "cloud"}), FakeWakeUpQueue(), FakeResolver({}))
    taking = {
        route.path for route in inspect_routes(app) for each in route.methods if each.method == "POST" and not each.internal
    }
    decisions = ("/api/ticket-export", "/api/approval-rules", "/api/bulk-jobs", "/api/console-sessions", "/console")
    administration = tuple(f"/api/{noun}" for noun in ("accounts", "projects", "users", "grants", "tokens", "scan-runs"))
    ours = decisions + administration
    inbound = {path for path in taking if not path.startswith(ours)}
    documented = {minimal_request(page, {}).path for page in PAGES}
    assert (len(inbound), inbound - documented) == (6, set())
