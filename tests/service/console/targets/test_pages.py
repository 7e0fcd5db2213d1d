"""Targets at the console: their state, and what users may do with them; secrets can be set but never read."""

import re
from base64 import b64decode
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Final

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.fields import MESSAGES
from schemas.base.timestamps import to_ms
from schemas.exports.state_machine import Transition
from schemas.targets.pings import PingResult
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, Target
from schemas.targets.validations import Validation
from service.app import create_app
from service.operations import targets as operations_of_targets
from storage.db.engine import execute, rows
from storage.db.models import ALL
from storage.exports import claims_sql, recoveries
from storage.secrets.vault import Vault
from storage.targets import pings, targets, validations
from tests.service.conftest import LogLines
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    ENCRYPTION_KEY,
    NOW,
    Customer,
    claim_due,
    completed_attempt,
    forbid_webhooks,
    limit_target,
    make_approved,
    make_customer,
    make_failed,
    make_settings,
    make_target,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements

ENCRYPTION_KEY_BYTES: Final = b64decode(ENCRYPTION_KEY)
SECRET: Final = "cAnArY-of-a-secret <b>&\"'é"
UNKNOWN_ID: Final = "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"
POSTS: Final = ("validate", "ping", "pause", "resume", "disable", "secret", "recover", "edit")
#: Operations that connect to a target or deliver to it.
FOR_WEBHOOKS: Final = ("validate", "ping", "resume", "secret", "recover", "edit")
FIELDS: Final = {"secret": {"secret": SECRET}, "recover": {"since": "24h"}, "edit": {"name": "Other"}}


def run_worker() -> object:
    """Do what a form waits for: send a ping, or validate a target."""
    order, job = pings.claim_next(utc_now()), validations.claim_next(utc_now(), lease_s=30)
    return (
        order and pings.finish(order.id, PingResult(False, 503, "receiver_unavailable", 1234), utc_now()),
        job and validations.finish(job, Validation(), utc_now(), "worker:test"),
    )


@pytest.fixture
def wake_ups() -> FakeWakeUpQueue:
    return FakeWakeUpQueue(run_worker)


def act(person: ConsoleBrowser, target_id: str, verb: str) -> Result:
    """Send the form of an operation."""
    return person.post(f"/targets/{target_id}/{verb}", **FIELDS.get(verb, {}))


def words(answer: Result) -> str:
    """Return the text of a page's main element."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2])).split())


def status_of(target: Target) -> str:
    return targets.get(target.id, None).status


# --- what is shown


def test_the_list_shows_the_health_of_each_target(person: ConsoleBrowser, customer: Customer, target: Target) -> None:
    now = utc_now()
    for transition in (Transition.DELIVER, Transition.DELIVER, Transition.FAIL):
        make_approved(customer, target.id, now)
        claims_sql.record_attempts(
            [completed_attempt(claim, transition, now) for claim in claim_due(1, now, 6, "worker:x")], now, "worker:x"
        )
    limit_target(target.id, 60, now)
    held = make_target(customer, name="Slow <script>")
    execute(
        "UPDATE targets SET held_until = ?, held_reason = ?, failures_in_row = 9 WHERE id = ?",
        (to_ms(now + timedelta(hours=1)), BREAKER_OPEN, held.id),
    )
    make_target(make_customer(), name="Somebody else's")
    shown = words(person.get("/targets"))
    assert "Tracker tracker.example.com/hook active not used yet passed" in shown
    assert "33.3 % 1 of 3 60/min fp:" in shown
    assert "Slow <script> tracker.example.com/hook active breaker open not used yet" in shown
    assert "Somebody" not in shown
    assert "<script>" not in person.get("/targets").text.partition("<main")[2]


def test_the_list_says_that_the_token_of_a_tracker_is_missing(person: ConsoleBrowser, target: Target) -> None:
    execute("UPDATE targets SET provider_key = 'github', status = 'inactive' WHERE id = ?", (target.id,))
    assert '<td><span class="status warn">missing</span></td>' in person.get("/targets").text


def test_the_list_is_filtered_paged_and_says_when_it_is_empty(person: ConsoleBrowser, customer: Customer) -> None:
    assert 'data-state="unused"' in person.get("/targets").text
    ids = [make_target(customer).id for _ in range(3)]
    targets.change_status(ids[0], "pause", NOW, "user:1")
    assert 'data-state="filtered"' in person.get("/targets", "status=blocked").text
    assert re.findall(r"/targets/(tgt_\w+)\"", person.get("/targets", "status=paused").text) == [ids[0]]
    first = person.get("/targets", "limit=2")
    assert re.findall(r"/targets/(tgt_\w+)\"", first.text) == sorted(ids, reverse=True)[:2]
    older = re.search(r'rel="next" href="/console/targets\?([^"]+)"', first.text)
    assert older is not None
    assert re.findall(r"/targets/(tgt_\w+)\"", person.get("/targets", unescape(older[1])).text) == sorted(ids)[:1]
    assert person.get("/targets", "status=<b>").status_code == 422


def test_a_page_shows_all_properties_of_a_target(person: ConsoleBrowser, customer: Customer, target: Target) -> None:
    now = utc_now()
    make_approved(customer, target.id, now)
    make_failed(customer, target.id, 2, now)
    make_failed(customer, target.id, 1, now - timedelta(days=2))
    execute(
        "UPDATE targets SET held_until = ?, held_reason = ?, failures_in_row = 3 WHERE id = ?",
        (to_ms(now + timedelta(hours=1)), RATE_LIMITED, target.id),
    )
    answer = person.get(f"/targets/{target.id}")
    actual = words(answer)
    for expected in (
        "Status paused",
        "at the receiver's request ( rate_limited )",
        "Consecutive failures 3",
        "Queued or in delivery 1",
        "the last hour: 2 the last 24 hours: 2 the last 7 days: 3",
        "https://tracker.example.com/hook",
        f"ID {target.id}",
        "from WEBHOOK_SECRET",
    ):
        assert expected in actual
    assert f'href="/console/deliveries?view=failed&amp;target_id={target.id}"' in answer.text
    assert "Attempts per hour, last 24 hours" in answer.text
    counted = person.get(f"/targets/{target.id}", "since=3d")
    assert "the time since 3d: 3" in words(counted)
    # A recovery offers the period that was counted, unless another one is chosen.
    assert [re.findall(r'value="(\w+)" checked', page.text) for page in (answer, counted)] == [["24h"], ["3d"]]
    for wrong, code in (("yesterday", "invalid_since"), ("2999-01-01", "in_the_future")):
        page = person.get(f"/targets/{target.id}", f"since={wrong}")
        assert (page.status_code, MESSAGES[code] in unescape(page.text)) == (422, True)


def test_a_credential_in_a_url_is_masked(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer, "https://tracker.example.com/hook?token=s3cr3t")
    for page in (person.get(f"/targets/{target.id}"), person.get("/targets")):
        assert "s3cr3t" not in page.text
    assert "https://tracker.example.com/hook?token=***" in person.get(f"/targets/{target.id}").text


def test_an_expired_hold_is_not_shown(person: ConsoleBrowser, target: Target) -> None:
    over = to_ms(utc_now() - timedelta(seconds=1))
    execute("UPDATE targets SET held_until = ?, held_reason = ? WHERE id = ?", (over, RATE_LIMITED, target.id))
    record = words(person.get(f"/targets/{target.id}"))
    assert ("Status active" in record, "Held no Circuit breaker" in record) == (True, True)


@on_sqlite
def test_a_page_takes_few_statements_whatever_the_number_of_rows(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    make_failed(customer, target.id, 30, utc_now())
    with page_statements() as found:
        person.get(f"/targets/{target.id}")
    assert len(found) <= 9, [each.sql for each in found]
    for _ in range(5):
        make_target(customer)
    with page_statements() as found:
        person.get("/targets")
    assert len(found) <= 5, [each.sql for each in found]


# --- operations


def test_a_target_is_paused_resumed_and_disabled(
    person: ConsoleBrowser, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    for verb, status, done in (
        ("pause", "paused", "paused"),
        ("resume", "active", "resumed"),
        ("disable", "disabled", "disabled"),
    ):
        response = act(person, target.id, verb)
        assert (response.status_code, response.headers["location"]) == (303, f"/console/targets/{target.id}?done={done}")
        assert (status_of(target), 'class="notice"' in person.get(f"/targets/{target.id}", f"done={done}").text) == (
            status,
            True,
        )
    assert wake_ups.notifications == 1
    shown = rows("SELECT action FROM audit_entries WHERE actor = ? ORDER BY id", (f"user:{customer.user_id}",))
    assert [action for (action,) in shown if action.endswith("_target")] == [
        "pause_target",
        "validate_target",
        "resume_target",
        "disable_target",
    ]


def test_the_results_of_a_validation_and_a_ping_are_on_the_page(person: ConsoleBrowser, target: Target) -> None:
    response = act(person, target.id, "validate")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=validated"
    response = act(person, target.id, "ping")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=ping_failed"
    page = person.get(f"/targets/{target.id}", "done=ping_failed")
    assert '<p class="notice bad" role="status" tabindex="-1">Ping failed.' in page.text
    text = words(page)
    assert "Last validation passed" in text
    assert "Last ping failed HTTP 503 in 1 234 ms" in text
    assert "receiver_unavailable The receiver is temporarily unavailable. Check the receiver's log." in text
    assert pings.latest(make_target(make_customer()).id) is None


@on_sqlite
def test_a_validation_without_a_worker_is_not_shown_as_a_whole_one(
    person: ConsoleBrowser, target: Target, wake_ups: FakeWakeUpQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service checks only the address: not the connection, the certificate, or the token of a tracker."""
    monkeypatch.setattr(operations_of_targets, "BEGIN_WITHIN_S", 0.1)
    wake_ups.on_notify = lambda: None
    response = act(person, target.id, "validate")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=validated_partly"
    page = person.get(f"/targets/{target.id}", "done=validated_partly").text
    assert "The address is allowed. No worker tried the target; start one, then choose Validate." in page


def test_the_newest_finished_ping_is_shown(person: ConsoleBrowser, target: Target) -> None:
    act(person, target.id, "ping")
    ping_id = pings.request(target.id, target.account_id, utc_now(), "user:1")
    pings.finish(ping_id, PingResult(True, 202, None, 7), utc_now())
    pings.request(target.id, target.account_id, utc_now(), "user:1")
    assert "Last ping delivered HTTP 202 in 7 ms" in words(person.get(f"/targets/{target.id}"))


def test_actions_on_a_disabled_target_are_a_conflict_that_names_its_status(person: ConsoleBrowser, target: Target) -> None:
    act(person, target.id, "disable")
    for verb in ("pause", "ping", "recover"):
        refused = act(person, target.id, verb)
        assert (refused.status_code, "is disabled" in words(refused)) == (409, True)
        # "Back" links to the target.
        assert f'href="/console/targets/{target.id}"' in refused.text
    assert status_of(target) == "disabled"


def test_a_failed_validation_is_not_shown_as_a_success(
    person: ConsoleBrowser, target: Target, resolver: FakeResolver
) -> None:
    resolver.table["tracker.example.com"] = ["10.0.0.1"]
    response = act(person, target.id, "validate")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=validation_failed"
    page = person.get(f"/targets/{target.id}", "done=validation_failed")
    assert '<p class="notice bad" role="status" tabindex="-1">Validation failed.' in page.text
    assert "address_private" in words(page)


def test_a_target_with_a_refused_address_is_not_resumed_and_the_page_says_why(
    person: ConsoleBrowser, target: Target, resolver: FakeResolver
) -> None:
    act(person, target.id, "pause")
    resolver.table["tracker.example.com"] = ["10.0.0.1"]
    refused = act(person, target.id, "resume")
    assert refused.status_code == 422
    assert "The target was not resumed." in words(refused)
    assert "/base_url" not in words(refused)
    assert "The host has an address" in words(refused)
    assert status_of(target) == "paused"


# --- secrets


def seen_anywhere(needle: str) -> list[str]:
    """Return the tables that contain a text unencrypted."""
    found = []
    for model in ALL:
        table = model._meta.table_name
        cells = [cell for row in rows(f"SELECT * FROM {table}") for cell in row]  # noqa: S608 - our own names
        text = " ".join(repr(bytes(cell) if isinstance(cell, bytes | memoryview) else cell) for cell in cells)
        found += [table] if needle in text else []
    return found


def test_a_new_secret_is_stored_encrypted_and_shown_only_as_a_fingerprint(
    person: ConsoleBrowser, customer: Customer, target: Target, log_lines: LogLines
) -> None:
    before = targets.get(target.id, None).secret_fingerprint
    response = person.post(f"/targets/{target.id}/secret", secret=SECRET + "\r\n")
    assert (response.status_code, response.headers["location"]) == (303, f"/console/targets/{target.id}?done=secret_set")
    after = targets.get(target.id, None).secret_fingerprint
    assert after not in {None, before}
    page = person.get(f"/targets/{target.id}", "done=secret_set")
    assert f"{after}</code> set for this target" in page.text
    [(sealed,)] = rows("SELECT secret_sealed FROM targets WHERE id = ?", (target.id,))
    assert Vault((ENCRYPTION_KEY_BYTES,)).open(bytes(sealed), targets.secret_context(target.id)) == SECRET
    assert rows("SELECT actor FROM audit_entries WHERE action = 'set_secret'") == [(f"user:{customer.user_id}",)]
    assert "cAnArY" not in response.text + page.text + repr(response.headers) + log_lines.text
    assert seen_anywhere("cAnArY") == []


#: Columns: secret; code of the error.
REFUSED = [
    ("", "invalid_secret"),
    ("\n", "invalid_secret"),
    ("cAnArY-two\nlines", "invalid_secret"),
    ("cAnArY\x07bell", "invalid_secret"),
    ("cAnArY" * 700, "invalid_secret"),
    ("cAnArY", "secret_too_short"),
]


@on_sqlite
@pytest.mark.parametrize(("secret", "code"), REFUSED, ids=["none", "newline", "lines", "bell", "long", "short"])
def test_an_invalid_secret_is_rejected_and_not_repeated(
    person: ConsoleBrowser, target: Target, log_lines: LogLines, secret: str, code: str
) -> None:
    before = rows("SELECT secret_fingerprint, updated_at FROM targets")
    refused = person.post(f"/targets/{target.id}/secret", secret=secret)
    assert refused.status_code == 422
    assert f'<span class="problem" id="problem-secret">{MESSAGES[code].partition("`")[0]}' in unescape(refused.text)
    assert '<details class="confirm" open><summary>Set secret…' in refused.text
    assert "/secret</code>" not in refused.text
    assert "cAnArY" not in refused.text + log_lines.text
    assert rows("SELECT secret_fingerprint, updated_at FROM targets") == before


@on_sqlite
def test_a_form_without_the_sessions_token_sets_no_secret_and_repeats_none(
    person: ConsoleBrowser, target: Target, log_lines: LogLines
) -> None:
    for csrf in ("", "x" * 43):
        refused = person.post(f"/targets/{target.id}/secret", secret=SECRET, csrf=csrf)
        assert (refused.status_code, "cAnArY" in refused.text + log_lines.text) == (403, False)
    assert rows("SELECT secret_fingerprint FROM targets") == [(None,)]


@on_sqlite
def test_no_secret_is_encrypted_with_the_key_of_another_installation(
    customer: Customer, target: Target, tmp_path: Path, log_lines: LogLines
) -> None:
    def person_of(key: str, folder: Path) -> ConsoleBrowser:
        folder.mkdir()
        settings = make_settings(folder, {"ENCRYPTION_KEYS": key})
        made = ConsoleBrowser(TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))))
        made.sign_in(make_console_token(customer))
        return made

    assert act(person_of(ENCRYPTION_KEY, tmp_path / "own"), target.id, "secret").status_code == 303
    [before] = rows("SELECT secret_sealed FROM targets")
    refused = act(person_of("Qk" * 21 + "Q=", tmp_path / "other"), target.id, "secret")
    assert (refused.status_code, "ENCRYPTION_KEYS" in words(refused)) == (503, True)
    assert rows("SELECT secret_sealed FROM targets") == [before]
    assert "cAnArY" not in refused.text + log_lines.text


def test_a_target_without_any_secret_is_active_with_its_first(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"WEBHOOK_SECRET": ""})
    person = ConsoleBrowser(TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))))
    person.sign_in(make_console_token(customer))
    target = make_target(customer)
    execute("UPDATE targets SET status = 'inactive', status_reason = 'no_secret'")
    assert "set its secret first" in words(person.get(f"/targets/{target.id}"))
    act(person, target.id, "secret")
    assert status_of(target) == "active"


# --- permissions


@pytest.mark.parametrize("verb", POSTS)
def test_another_accounts_target_is_not_found(person: ConsoleBrowser, verb: str) -> None:
    others = make_target(make_customer())
    before = rows("SELECT status, secret_fingerprint, validated_at FROM targets WHERE id = ?", (others.id,))
    answers = [act(person, each, verb) for each in (others.id, UNKNOWN_ID, "tgt_%00", "x" * 500)]
    assert {answer.status_code for answer in answers} == {404}
    # Equal except for the request ID.
    of_another, nobodys = (words(answer).partition("Request ID")[0] for answer in answers[:2])
    assert of_another == nobodys
    assert person.get(f"/targets/{others.id}").status_code == 404
    assert rows("SELECT status, secret_fingerprint, validated_at FROM targets WHERE id = ?", (others.id,)) == before
    assert (recoveries.list_page(), rows("SELECT COUNT(*) FROM pings")) == ([], [(0,)])


@on_sqlite
def test_an_account_without_webhooks_may_only_stop_its_targets(client: TestClient, customer: Customer) -> None:
    poor = make_customer()
    target = make_target(poor)
    forbid_webhooks(poor)
    person = ConsoleBrowser(client)
    person.sign_in(make_console_token(poor))
    page = person.get(f"/targets/{target.id}").text
    assert re.findall(r'action="/console/targets/[^/]+/(\w+)"', page) == ["pause", "disable", "remove"]
    for verb in FOR_WEBHOOKS:
        refused = act(person, target.id, verb)
        assert (refused.status_code, "is not allowed to use webhook or tracker targets" in words(refused)) == (403, True)
    assert (status_of(target), recoveries.list_page()) == ("active", [])
    assert [act(person, target.id, verb).status_code for verb in ("pause", "disable")] == [303, 303]
    assert status_of(target) == "disabled"


#: Columns: status; operations that the page offers.
OFFERED = [
    ("active", ["validate", "ping", "pause", "edit", "disable", "secret", "webhook", "header", "remove", "recover"]),
    ("paused", ["validate", "ping", "resume", "edit", "disable", "secret", "webhook", "header", "remove", "recover"]),
    ("inactive", ["validate", "edit", "disable", "secret", "webhook", "header", "remove"]),
    ("blocked", ["validate", "ping", "resume", "edit", "disable", "secret", "webhook", "header", "remove"]),
    ("disabled", ["validate", "resume", "edit", "secret", "webhook", "header", "remove"]),
]


@on_sqlite
def test_a_page_offers_what_the_targets_status_allows(person: ConsoleBrowser, target: Target) -> None:
    for status, verbs in OFFERED:
        execute("UPDATE targets SET status = ?", (status,))
        offered = re.findall(r'action="/console/targets/[^/]+/(\w+)"', person.get(f"/targets/{target.id}").text)
        assert offered == verbs, status


def test_a_held_target_is_resumed_before_the_end_of_its_hold(
    person: ConsoleBrowser, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    until = to_ms(utc_now() + timedelta(hours=1))
    execute("UPDATE targets SET held_until = ?, held_reason = ? WHERE id = ?", (until, BREAKER_OPEN, target.id))
    form = f'action="/console/targets/{target.id}/resume"'
    assert form in person.get(f"/targets/{target.id}").text
    assert act(person, target.id, "resume").status_code == 303
    assert (targets.get(target.id, None).held_until, wake_ups.notifications) == (None, 1)
    assert form not in person.get(f"/targets/{target.id}").text


@on_sqlite
def test_irreversible_actions_are_confirmed_without_a_script(person: ConsoleBrowser, target: Target) -> None:
    page = person.get(f"/targets/{target.id}").text
    confirmed = re.findall(r'<details class="confirm">.*?</details>', page, re.DOTALL)
    assert [re.findall(r'action="[^"]+/(\w+)"', each) for each in confirmed] == [
        ["edit"],
        ["disable"],
        ["secret"],
        ["webhook"],
        ["header"],
        ["remove"],
    ]
    assert 'type="password" name="secret" autocomplete="new-password"' in confirmed[2]


@pytest.mark.parametrize("send", [lambda p, t: act(p, t.id, "pause"), lambda p, t: act(p, t.id, "disable")])
def test_a_form_sent_twice_is_carried_out_once(
    person: ConsoleBrowser, target: Target, send: Callable[[ConsoleBrowser, Target], Result]
) -> None:
    assert [send(person, target).status_code for _ in range(2)] == [303, 303]
    assert len(rows("SELECT 1 FROM audit_entries WHERE action IN ('pause_target', 'disable_target')")) == 1


@on_sqlite
def test_missing_values_of_a_target_are_empty_and_its_id_can_be_copied(person: ConsoleBrowser, target: Target) -> None:
    page = person.get(f"/targets/{target.id}").text
    assert re.search(r"<dt>Rate limit</dt><dd></dd>\n", page)
    assert re.search(r"<dt>Events</dt><dd></dd>\n", page)
    configuration, _, details = page.partition("<h2>Configuration</h2>")[2].partition("<summary>Details</summary>")
    assert (target.id in configuration, f"<code data-copy>{target.id}</code>" in details) == (False, True)
    assert '<dt>Created</dt><dd><time class="ago"' in configuration
