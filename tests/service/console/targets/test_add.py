"""The page that adds a target asks for its provider, names the token that each tracker needs, and shows if it works."""

import re
from html import unescape
from typing import Any, Final

import pytest
from falcon.testing import Result

from runtime.clock import utc_now
from schemas.targets.providers import PROVIDERS
from schemas.targets.target import Target
from schemas.targets.validations import EXPIRES_SOON, Validation
from schemas.trackers.failures import TOKEN_REJECTED
from schemas.trackers.registry import TRACKERS
from storage.db.engine import execute, rows
from storage.exports import worker_heartbeats
from storage.targets import targets, validations
from tests.service.conftest import LogLines
from tests.support.factories import Customer, forbid_webhooks
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser
from tests.support.http.raw_http import everything_stored

PAGE: Final = "https://git.example.com/acme/shop"
TOKEN: Final = "cAnArY-of-a-token"
FIELDS: Final = {"provider": "gitea", "name": "Shop team", "base_url": PAGE}


class TrackerWorker:
    """Validates a target as soon as a validation is requested; `reason` is the problem, if any."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self) -> object:
        job = validations.claim_next(utc_now(), lease_s=30)
        return job and validations.finish(job, Validation(self.reason), utc_now(), "worker:test")


@pytest.fixture
def worker() -> TrackerWorker:
    return TrackerWorker()


@pytest.fixture
def wake_ups(worker: TrackerWorker) -> FakeWakeUpQueue:
    return FakeWakeUpQueue(worker)


@pytest.fixture
def resolver() -> FakeResolver:
    return FakeResolver({"git.example.com": ["93.184.215.14"], "git.attacker.example": ["93.184.215.14"]})


@pytest.fixture
def running(worker: TrackerWorker, person: ConsoleBrowser) -> TrackerWorker:
    worker_heartbeats.beat("worker:here:1:0", utc_now())
    return worker


def words(answer: Result) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2])).split())


def follow(person: ConsoleBrowser, answer: Result) -> Result:
    """Follow the redirect after a form; return the page."""
    assert answer.status_code == 303, words(answer)
    path, _, query = answer.headers["location"].removeprefix("/console").partition("?")
    return person.get(path, query)


def only_target() -> Target:
    [target] = targets.list_all(None)
    return target


def test_the_page_offers_every_provider(person: ConsoleBrowser) -> None:
    page = person.get("/targets/add").text
    links = re.findall(r'href="/console/targets/add\?provider=(\w+)">([^<]+)<', page)
    assert links == [(each.key, each.name) for each in PROVIDERS.values()]
    assert person.get("/targets/add", "provider=trello").text.count("/targets/add?provider=") == len(links)


@pytest.mark.parametrize("key", TRACKERS)
def test_the_form_of_a_tracker_says_which_token_to_create_and_asks_for_its_settings(
    person: ConsoleBrowser, key: str
) -> None:
    tracker, answer = TRACKERS[key], person.get("/targets/add", f"provider={key}")
    plain = re.sub(r"</?code>", "", unescape(answer.text))
    assert tracker.credential_help.replace("`", "") in plain
    assert f'href="{tracker.credential_url}"' in answer.text
    assert f'placeholder="{tracker.base_url_example}"' in answer.text
    schema: dict[str, Any] = PROVIDERS[key].settings_schema
    named = set(re.findall(r'name="setting\.(\w+)', answer.text))
    assert named == schema["properties"].keys()
    for name in schema.get("required", ()):
        assert re.search(rf'name="setting\.{name}"[^>]* required', answer.text)


def test_a_tracker_is_added_with_a_token_that_a_worker_tries_at_once(
    person: ConsoleBrowser, running: TrackerWorker, log_lines: LogLines
) -> None:
    fields = {"setting.labels": "website-risk\r\nshop\r\n", "setting.on_fixed": "close", "secret": TOKEN}
    page = follow(person, person.post("/targets/add", **FIELDS, **fields))
    target = only_target()
    assert (target.provider_key, target.base_url, target.name, target.status) == ("gitea", PAGE, "Shop team", "active")
    assert target.provider_settings == {"labels": ["website-risk", "shop"], "on_fixed": "close"}
    shown = words(page)
    assert "The tracker accepts the token and the settings." in shown
    assert "Labels website-risk, shop When the ticket is fixed close Token fp:" in shown
    assert f'href="{PAGE}" rel="noreferrer noopener"' in page.text
    assert f'action="/console/targets/{target.id}/ping"' in page.text
    assert "Gitea" in words(person.get("/targets"))
    assert TOKEN not in page.text + log_lines.text + repr(everything_stored())


def test_a_token_that_the_tracker_refuses_is_explained_with_what_to_do(
    person: ConsoleBrowser, running: TrackerWorker
) -> None:
    running.reason = TOKEN_REJECTED
    page = follow(person, person.post("/targets/add", **FIELDS, secret=TOKEN))
    assert "Validation failed. Last validation below says what to do." in words(page)
    assert TOKEN_REJECTED in words(page)
    assert "has no explanation here" not in words(page)
    running.reason = None
    page = follow(person, person.post(f"/targets/{only_target().id}/secret", secret=f"{TOKEN}-2"))
    assert "The tracker accepts the token and the settings." in words(page)


def test_a_valid_token_does_not_resume_a_blocked_target(person: ConsoleBrowser, running: TrackerWorker) -> None:
    person.post("/targets/add", **FIELDS, secret=TOKEN)
    target_id = only_target().id
    execute("UPDATE targets SET status = 'blocked', status_reason = ?", (TOKEN_REJECTED,))
    page = words(follow(person, person.post(f"/targets/{target_id}/secret", secret=f"{TOKEN}-2")))
    assert "accepts the token and the settings. The target gets nothing until you resume it." in page
    assert "Approve a ticket" not in page
    page = words(follow(person, person.post(f"/targets/{target_id}/validate")))
    assert "Validation passed. The target gets nothing until you resume it." in page


def test_a_validation_that_passed_with_a_warning_is_not_shown_as_failed(
    person: ConsoleBrowser, running: TrackerWorker
) -> None:
    person.post("/targets/add", **FIELDS, secret=TOKEN)
    running.reason = EXPIRES_SOON
    page = words(follow(person, person.post(f"/targets/{only_target().id}/validate")))
    assert "Validation passed." in page
    assert "Validation failed" not in page
    assert "The receiver's certificate expires within 14 days." in page


def test_without_a_worker_the_page_says_that_the_token_was_not_tried(person: ConsoleBrowser) -> None:
    page = follow(person, person.post("/targets/add", **FIELDS, secret=TOKEN))
    assert "No worker tried it; start one" in words(page)
    assert only_target().status == "active"


def test_without_a_token_a_tracker_is_inactive_and_the_page_asks_for_it(person: ConsoleBrowser) -> None:
    page = follow(person, person.post("/targets/add", **FIELDS, secret=""))
    assert "Set its token: until then it is inactive." in words(page)
    assert "Status inactive no_secret" in words(page)
    assert "New token" in words(page)
    assert f'href="{TRACKERS["gitea"].credential_url}"' in page.text
    assert only_target().status == "inactive"


# Columns: fields of the form; path of the error.
REFUSED: Final[list[tuple[dict[str, str], str]]] = [
    ({"base_url": "https://git.example.com/"}, "base_url"),
    ({"setting.labels": "x" * 101}, "provider_settings-labels"),
    ({"setting.on_fixed": "delete"}, "provider_settings-on_fixed"),
    ({"setting.api_base": "https://10.20.30.40/api"}, "provider_settings-api_base"),
    ({"secret": "short"}, "secret"),
    ({"provider": "jira"}, "provider_settings-project"),
    ({"provider": "jira", "setting.project": "SHOP", "setting.api_version": "four"}, "provider_settings-api_version"),
    (
        {"provider": "jira", "setting.project": "SHOP", "setting.priority_by_severity.high": "x" * 200},
        "provider_settings-priority_by_severity-high",
    ),
]


@pytest.mark.parametrize(("fields", "problem"), REFUSED)
def test_a_refused_form_shows_what_was_typed_and_the_reason_beside_the_field(
    person: ConsoleBrowser, fields: dict[str, str], problem: str
) -> None:
    answer = person.post("/targets/add", **{**FIELDS, "secret": TOKEN, **fields})
    assert answer.status_code == 422
    assert f'id="problem-{problem}"' in answer.text
    assert f'aria-describedby="problem-{problem}"' in answer.text
    assert 'value="Shop team"' in answer.text
    assert TOKEN not in answer.text
    assert rows("SELECT id FROM targets") == []


def test_settings_are_edited_and_tried(person: ConsoleBrowser, running: TrackerWorker) -> None:
    jira = {"provider": "jira", "name": "Shop", "base_url": "https://git.example.com", "secret": TOKEN}
    person.post("/targets/add", **jira, **{"setting.project": "SHOP", "setting.priority_by_severity.high": "High"})
    target = only_target()
    page = person.get(f"/targets/{target.id}").text
    assert re.search(r'name="setting\.project"[^>]*value="SHOP"', page)
    assert re.search(r'name="setting\.priority_by_severity\.high"[^>]*value="High"', page)
    fields = {"name": "Shop", "base_url": target.base_url, "setting.project": "SITE", "setting.api_version": "2"}
    fields["setting.priority_by_severity.high"] = ""
    page = words(follow(person, person.post(f"/targets/{target.id}/edit", **fields)))
    assert "The tracker accepts the token and the settings." in page
    assert only_target().provider_settings == {"project": "SITE", "api_version": 2}
    again = person.post(f"/targets/{target.id}/edit", **{**fields, "name": "Other"})
    assert again.headers["location"].endswith("?done=target_edited")
    refused = person.post(f"/targets/{target.id}/edit", **{**fields, "setting.project": ""})
    assert (refused.status_code, "problem-provider_settings-project" in refused.text) == (422, True)
    assert only_target().provider_settings == {"project": "SITE", "api_version": 2}


def test_another_server_needs_the_token_again(person: ConsoleBrowser, running: TrackerWorker) -> None:
    person.post("/targets/add", **FIELDS, secret=TOKEN)
    fields = {"name": "Shop team", "base_url": "https://git.attacker.example/acme/shop"}
    page = words(follow(person, person.post(f"/targets/{only_target().id}/edit", **fields)))
    assert "It leads to another server, so its token was erased: set it again." in page
    assert rows("SELECT secret_sealed, status FROM targets") == [(None, "inactive")]


def test_an_account_without_webhooks_gets_no_page_to_add_a_target(person: ConsoleBrowser, customer: Customer) -> None:
    forbid_webhooks(customer)
    assert person.get("/targets/add").status_code == 403
    assert person.post("/targets/add", **FIELDS).status_code == 403
    assert rows("SELECT id FROM targets") == []
