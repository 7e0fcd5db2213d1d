"""The forms that add, change and remove a target; a submitted secret comes out nowhere."""

from base64 import b64decode
from datetime import timedelta
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.exports.delivery import CompletedAttempt, Outcome, Timings
from schemas.targets.target import Target, TargetEdit
from storage.db.engine import rows, transaction
from storage.exports import claims_sql
from storage.secrets.vault import Vault
from storage.targets import changes, targets
from tests.service.conftest import LogLines
from tests.service.console.form_fields import shown_fields
from tests.support.factories import (
    DEFAULT_SECRET,
    ENCRYPTION_KEY,
    NOW,
    Customer,
    claim_due,
    forbid_webhooks,
    make_approved,
    make_customer,
    make_failed,
    make_target,
    make_tracker,
)
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser
from tests.support.http.raw_http import everything_stored
from worker.delivery.outcomes import Schedule, Try, decide_outcome
from worker.delivery.throttle_writer import effects_of, write_effects

VAULT: Final = Vault([b64decode(ENCRYPTION_KEY)])
URL: Final = "https://tracker.example.com/hook"
SECRET: Final = "cAnArY of a secret"


def test_a_target_is_added_from_the_empty_list_and_its_page_offers_the_ping(person: ConsoleBrowser) -> None:
    assert 'href="/console/targets/add"' in person.get("/targets").text
    answer = person.post("/targets/add", name=" Our tracker ", base_url=URL, max_per_minute="30", secret="")
    [(target_id, name, url, limit, fingerprint)] = rows(
        "SELECT id, name, base_url, max_per_minute, secret_fingerprint FROM targets"
    )
    assert (name, url, limit, fingerprint) == ("Our tracker", URL, 30, None)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/console/targets/{target_id}?done=target_added")
    page = person.get(f"/targets/{target_id}", "done=target_added").text
    assert "Ping it to see whether its receiver accepts signed deliveries." in page
    assert f'action="/console/targets/{target_id}/ping"' in page
    assert 'href="/console/targets/add"' in person.get("/targets").text


def test_a_target_is_added_with_a_secret_that_no_page_and_no_log_shows(person: ConsoleBrowser, log_lines: LogLines) -> None:
    person.post("/targets/add", name="Tracker", base_url=URL, secret=SECRET)
    [(target_id, sealed, fingerprint)] = rows("SELECT id, secret_sealed, secret_fingerprint FROM targets")
    assert VAULT.open(bytes(sealed), targets.secret_context(target_id)) == SECRET
    page = person.get(f"/targets/{target_id}").text
    assert fingerprint in page
    assert SECRET not in page + log_lines.text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "Tracker", "base_url": "https://10.20.30.40/"}, "problem-base_url"),
        ({"name": "Tracker", "base_url": "https://tracker.example.com/?token=s3cr3t"}, "A parameter of this URL is named"),
        ({"name": " ", "base_url": URL}, "problem-name"),
        ({"name": "Tracker"}, "problem-base_url"),
        ({"name": "Tracker", "base_url": URL, "max_per_minute": "0"}, "problem-max_per_minute"),
        ({"name": "Tracker", "base_url": URL, "max_per_minute": "9" * 5000}, "problem-max_per_minute"),
        ({"name": "Tracker", "base_url": URL, "secret": "s3cr3t"}, "problem-secret"),
        ({"name": "Tracker", "base_url": URL, "provider": "trello"}, "The target was not added."),
    ],
)
def test_a_form_that_is_refused_stores_nothing(person: ConsoleBrowser, fields: dict[str, str], reason: str) -> None:
    before = everything_stored()
    answer = person.post("/targets/add", **fields)
    assert answer.status_code == 422
    assert reason in answer.text
    assert "s3cr3t" not in answer.text
    assert everything_stored() == before


def test_an_edit_changes_exactly_the_values_in_the_form(
    person: ConsoleBrowser, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    page = person.get(f"/targets/{target.id}").text
    assert f'value="{target.base_url}"' in page
    answer = person.post(f"/targets/{target.id}/edit", name="Other", base_url=target.base_url, max_per_minute="30")
    assert answer.headers["location"].endswith("?done=target_edited")
    answer = person.post(f"/targets/{target.id}/edit", name="Other", base_url=f"{URL}/2", max_per_minute="")
    assert answer.headers["location"].endswith("?done=target_moved")
    found = targets.get(target.id, None)
    assert (found.name, found.base_url, found.max_per_minute) == ("Other", f"{URL}/2", None)
    assert wake_ups.notifications == 2
    assert person.post(f"/targets/{target.id}/edit", name="Other", base_url="https://10.0.0.1/").status_code == 422


def test_an_edit_keeps_unchanged_values(person: ConsoleBrowser, customer: Customer) -> None:
    target_id = make_tracker(customer, "https://git.example.com/shop/web")
    settings = {"labels": ["a, b", "c\nd"], "assignees": ["Ada"]}
    edit = TargetEdit(name="Soft\u00adhyphen", provider_settings=settings)
    changes.edit(target_id, edit, DEFAULT_SECRET, utc_now(), "user:1")
    before = targets.get(target_id, None)
    page = person.get(f"/targets/{target_id}")
    assert "a, b, c\nd" in page.text.partition("<h2>Configuration</h2>")[2]
    fields = shown_fields(page, f"/targets/{target_id}/edit")
    assert person.post(f"/targets/{target_id}/edit", **{**fields, "max_per_minute": "7"}).status_code == 303
    after = targets.get(target_id, None)
    assert (after.name, after.base_url, after.provider_settings) == (before.name, before.base_url, settings)
    assert after.max_per_minute == 7


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"base_url": "https://10.0.0.1/"}, "base_url"),
        ({"max_per_minute": "0"}, "max_per_minute"),
        ({"setting.labels": "x" * 101}, "provider_settings-labels"),
    ],
)
def test_a_refused_edit_keeps_what_was_typed(
    changed: dict[str, str], field: str, person: ConsoleBrowser, customer: Customer
) -> None:
    target_id = make_tracker(customer, "https://git.example.com/shop/web")
    path = f"/targets/{target_id}/edit"
    given = {**shown_fields(person.get(f"/targets/{target_id}"), path), "name": "Typed <name>", **changed}
    page = person.post(path, **given)
    assert (page.status_code, f'id="problem-{field}"' in page.text) == (422, True)
    assert '<details class="confirm" open><summary>Edit…' in page.text
    assert shown_fields(page, path) == given
    assert targets.get(target_id, None).name == "Tracker"


def test_a_refused_edit_repeats_no_credential(person: ConsoleBrowser, target: Target) -> None:
    page = person.post(f"/targets/{target.id}/edit", name="Other", base_url=f"{URL}?token=s3cr3t")
    assert (page.status_code, "s3cr3t" in page.text) == (422, False)


def test_a_refused_header_keeps_its_name_and_not_its_value(person: ConsoleBrowser, target: Target) -> None:
    for fields, field in (({"name": "Host", "value": SECRET}, "name"), ({"name": "X-Api-Key", "value": " "}, "value")):
        page = person.post(f"/targets/{target.id}/header", **fields)
        assert (page.status_code, f'id="problem-{field}"' in page.text) == (422, True), fields
        assert '<details class="confirm" open><summary>Headers…' in page.text
        assert shown_fields(page, f"/targets/{target.id}/header") == {"name": fields["name"], "value": ""}
        assert SECRET not in page.text


def test_a_masked_credential_of_an_earlier_version_is_not_written_over_the_url(
    person: ConsoleBrowser, customer: Customer
) -> None:
    target = make_target(customer, f"{URL}?token=s3cr3t")
    assert "s3cr3t" not in person.get(f"/targets/{target.id}").text
    person.post(f"/targets/{target.id}/edit", name="Other", base_url=f"{URL}?token=***")
    assert targets.get(target.id, None).base_url == f"{URL}?token=s3cr3t"
    assert targets.get(target.id, None).name == "Other"


def test_a_target_is_removed_once_no_export_waits_and_its_exports_name_it(
    person: ConsoleBrowser, customer: Customer
) -> None:
    busy, idle = make_target(customer, name="Busy one"), make_target(customer, name="Idle one")
    make_approved(customer, busy.id)
    [failed] = make_failed(customer, idle.id)
    assert f'action="/console/targets/{busy.id}/remove"' not in person.get(f"/targets/{busy.id}").text
    refused = person.post(f"/targets/{busy.id}/remove")
    assert refused.status_code == 409
    assert "1 approved" in refused.text
    assert f'action="/console/targets/{idle.id}/remove"' in person.get(f"/targets/{idle.id}").text
    assert person.post(f"/targets/{idle.id}/remove").headers["location"] == "/console/targets?done=target_removed"
    assert person.get(f"/targets/{idle.id}").status_code == 404
    assert "Idle one" not in person.get("/targets").text
    page = person.get(f"/exports/{failed}").text
    assert "Idle one" in page
    assert "(removed)" in page
    assert f"/console/targets/{idle.id}" not in page
    assert "The target of this export was removed: retry it at another target." in page
    assert f'<option value="{busy.id}" selected>Busy one' in page


def test_an_account_without_webhooks_removes_its_targets_and_adds_none(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    forbid_webhooks(customer)
    assert "/targets/add" not in person.get("/targets").text
    assert person.post("/targets/add", name="Tracker", base_url=URL).status_code == 403
    page = person.get(f"/targets/{target.id}").text
    assert f"/targets/{target.id}/edit" not in page
    assert f"/targets/{target.id}/remove" in page
    assert person.post(f"/targets/{target.id}/remove").status_code == 303


def test_another_accounts_target_is_neither_changed_nor_removed(person: ConsoleBrowser) -> None:
    theirs = make_target(make_customer())
    before = everything_stored()
    assert person.post(f"/targets/{theirs.id}/edit", name="Other").status_code == 404
    assert person.post(f"/targets/{theirs.id}/remove").status_code == 404
    assert everything_stored() == before


def test_the_list_shows_the_paths_of_targets_of_one_host(person: ConsoleBrowser, customer: Customer) -> None:
    for path in ("one", "two"):
        make_target(customer, f"https://tracker.example.com/{path}?team=7")
    page = person.get("/targets").text
    assert "tracker.example.com/one<" in page
    assert "tracker.example.com/two<" in page


def test_the_page_of_a_recovery_names_a_removed_target(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer, name="Old one")
    make_failed(customer, target.id)
    answer = person.post(f"/targets/{target.id}/recover", since="7d")
    page = answer.headers["location"].removeprefix("/console").partition("?")[0]
    changes.remove(target.id, NOW, "user:1")
    for path in (page, "/recoveries"):
        shown = person.get(path).text
        assert "Old one" in shown
        assert "(removed)" in shown


def test_a_target_that_rejects_every_ticket_is_shown_as_failing_with_the_reason(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    """A 422 holds nothing, so otherwise only the failed exports would show the problem."""
    now = utc_now()
    assert "The receiver rejected the ticket." not in person.get("/overview").text
    for _ in range(5):
        make_approved(customer, target.id, now)
    claims = claim_due(5, now, 6, "worker")
    ended = Try(1, Schedule((5.0,), timedelta(days=3)), now, now, 0.0)
    verdict = decide_outcome(Outcome(422, timings=Timings(total_ms=5)), ended)
    done = [CompletedAttempt(each, f"att_{number}", now, None, Outcome(422), verdict) for number, each in enumerate(claims)]
    with transaction():
        moved = claims_sql.record_attempts(done, now, "worker")
        write_effects(effects_of(done, moved), now, "worker")
    assert targets.get(target.id, None).is_failing
    overview = person.get("/overview").text
    for page in (overview, person.get(f"/targets/{target.id}").text):
        assert "failing" in page
        assert "The receiver rejected the ticket." in page
    assert "failing" in person.get("/targets").text
    changes.edit(target.id, TargetEdit(base_url=f"{URL}/2"), DEFAULT_SECRET, now, "user:1")
    assert "The receiver rejected the ticket." not in person.get("/overview").text


def test_an_edit_keeps_changes_that_another_user_saved_meanwhile(person: ConsoleBrowser, customer: Customer) -> None:
    target_id = make_tracker(customer, "https://tracker.example.com/acme/shop")
    path = f"/targets/{target_id}/edit"
    first, second = (shown_fields(person.get(f"/targets/{target_id}"), path) for _ in range(2))
    moved = {"base_url": "https://tracker.example.com/acme/site", "setting.labels": "a\r\nb"}
    assert person.post(path, **{**first, **moved}).status_code == 303
    # Refused at first, then sent again as the page shows it.
    refused = person.post(path, **{**second, "name": "Ours", "max_per_minute": "0"})
    assert refused.status_code == 422
    assert person.post(path, **{**shown_fields(refused, path), "max_per_minute": "30"}).status_code == 303
    found = targets.get(target_id, None)
    assert (found.name, found.max_per_minute) == ("Ours", 30)
    assert (found.base_url, found.provider_settings) == (moved["base_url"], {"labels": ["a", "b"]})
