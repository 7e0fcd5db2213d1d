"""Exports at the console: found, shown as their receiver gets them, and decided."""

import re
from collections.abc import Mapping
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any, Final

import pytest
from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.base.fields import problem
from schemas.exports.delivery import Timings
from schemas.exports.record import Approval, PreparationForm
from schemas.exports.state_machine import ExportStatus, Transition
from schemas.exports.tickets.ticket import Ticket
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.targets.target import TargetStatus
from schemas.targets.validations import Validation
from service.app import create_app
from service.console.choices import MAX_TARGETS
from service.console.pages.exports import MAX_ENTRIES
from service.console.triage.attempts import AttemptPhase, phases_of
from service.console.wording import word
from storage.accounts import audit_chain, audit_log, projects
from storage.db.engine import execute, transaction
from storage.exports import claims_sql, queries, receipts, recoveries, transitions
from storage.exports.rows import Draft
from storage.targets import targets
from tests.service.console.form_fields import in_words
from tests.support.database.databases import on_sqlite
from tests.support.database.many_rows import many_targets
from tests.support.factories import (
    LOOPBACK_POLICY,
    Customer,
    claim_due,
    completed_attempt,
    forbid_webhooks,
    issue,
    make_approved,
    make_colleague,
    make_customer,
    make_exports,
    make_failed,
    make_settings,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements
from tests.support.http.raw_http import base64url
from tests.support.worker.receipts import deliver

UNKNOWN_ID: Final = "exp_01AAAAAAAAAAAAAAAAAAAAAAAA"
BAD_IDS: Final = [UNKNOWN_ID, "exp_%00", "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA", "x" * 5000, "%F0%9F%92%A9", "exp_", "null"]
WORKER: Final = "worker:host-of-ours:1"


def prepared(customer: Customer, **ticket: Any) -> str:
    """Return a prepared export with a hand-made ticket."""
    preparation = PreparationForm().read({"ticket": {"title": "The total is wrong", **ticket}})
    return transitions.prepare_by_hand(preparation, customer.account_id, utc_now(), "user:1").id


def tried(customer: Customer, count: int = 1, answer: str | None = "No such project.") -> str:
    """Return an export with `count` attempts that waits for the next one; the receiver responded with `answer`."""
    began = utc_now()
    export_id = make_approved(customer, make_target(customer).id, began)
    for number in range(count):
        at = began + timedelta(minutes=number)
        [claim] = claim_due(1, at, 6, WORKER)
        waits = {"next_attempt_at": at + timedelta(seconds=30), "error_code": "http_503", "retry_after_s": 30}
        made = completed_attempt(claim, Transition.RESCHEDULE, at, **waits)
        claims_sql.record_attempts([made._replace(outcome=made.outcome._replace(kept=answer))], at, WORKER)
    return export_id


def in_every_state(customer: Customer) -> dict[ExportStatus, str]:
    """Return an export of the customer for each status."""
    ids = {}
    for status in ExportStatus:
        [ids[status]] = make_exports(customer, 1)
        is_open = status in {ExportStatus.PREPARED, ExportStatus.DISMISSED}
        target_id = None if is_open else make_target(customer).id
        is_due = status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED, ExportStatus.DELIVERING}
        lease = "lse_1" if status is ExportStatus.DELIVERING else None
        execute(
            "UPDATE exports SET status = ?, due_at = ?, lease = ?, body = ?, target_id = ? WHERE id = ?",
            (status.value, 1 if is_due else None, lease, None if is_open else b"{}", target_id, ids[status]),
        )
    return ids


def titles(page: Result) -> list[str]:
    return [unescape(title) for title in re.findall(r'<td><a href="/console/exports/exp_[^"]+"><bdi>([^<]*)', page.text)]


def listed(page: Result) -> list[str]:
    return re.findall(r'<td><a href="/console/exports/(exp_[^"]+)"', page.text)


def main_of(page: Result) -> str:
    """Return the content of the page's main element."""
    return page.text.partition("<main")[2].partition("</main>")[0]


def hidden(page: Result, name: str) -> str:
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', main_of(page).replace('name="csrf"', ""))
    assert found is not None, f"There is no {name}."
    return unescape(found[1])


def offered(page: Result) -> list[str]:
    """Return the targets that the page offers, in order."""
    return re.findall(r'<option value="(tgt_[^"]+)"', page.text)


def buttons(page: Result) -> set[str]:
    return {text.strip() for text in re.findall(r"<button[^>]*>([^<]+)<", main_of(page))}


# --- the list -----------------------------------------------------------------


def test_the_list_shows_the_main_properties_of_each_export(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer, "https://tracker.example.com:8443/hook", "Our tracker")
    [waiting] = make_exports(customer, 1)
    [failed] = make_failed(customer, target.id)
    page = person.get("/exports")
    assert listed(page) == [failed, waiting]
    [first, second] = re.findall(r"<tr>\n<td>.*?</tr>", page.text, re.DOTALL)
    for expected in ("Missing name", "failed", "receiver gone", "high", "manual", "tracker.example.com:8443", ">2<"):
        assert expected in first
    assert f'href="/console/targets/{target.id}"' in first
    assert "prepared" in second
    assert "tracker" not in second


@on_sqlite
def test_the_list_names_a_target_that_its_filter_does_not_offer(person: ConsoleBrowser, customer: Customer) -> None:
    oldest, *_ = many_targets(customer, 0, MAX_TARGETS + 1, "https://old.example/hook")
    make_failed(customer, oldest)
    page = person.get("/exports")
    assert f'<option value="{oldest}"' not in page.text
    # Below the title, because a column of its own would leave too little room for titles.
    assert f'</bdi></a><br><a class="aside" href="/console/targets/{oldest}">old.example</a></td>' in page.text


@pytest.mark.parametrize(
    ("query", "statuses"),
    [
        ("", [*ExportStatus]),
        ("status=&source=&target=&cursor=&limit=", [*ExportStatus]),  # what a form without the script sends
        ("status=blocked", ["blocked"]),
        ("status=failed&source=manual", ["failed"]),
        ("source=finding", []),
        ("status=prepared&source=inbound_email&unknown=1", []),
    ],
)
def test_the_list_is_filtered_by_the_query_of_the_address(
    query: str, statuses: list[str], person: ConsoleBrowser, customer: Customer
) -> None:
    ids = in_every_state(customer)
    assert listed(person.get("/exports", query)) == [ids[ExportStatus(status)] for status in statuses][::-1]


def test_the_exports_of_a_target_are_listed(person: ConsoleBrowser, customer: Customer) -> None:
    here, there = make_target(customer), make_target(customer)
    [failed], [blocked] = make_failed(customer, here.id), make_failed(customer, here.id, status="blocked")
    make_failed(customer, there.id)
    approved = make_approved(customer, here.id)
    assert listed(person.get("/exports", f"target={here.id}")) == [approved, blocked, failed]
    assert listed(person.get("/exports", f"target={here.id}&status=failed&source=manual")) == [failed]
    assert listed(person.get("/exports", f"target={here.id}&status=prepared")) == []
    assert listed(person.get("/exports", f"target={here.id}&source=finding")) == []
    page = person.get("/exports", f"target={here.id}&limit=2")
    [query] = re.findall(r'rel="next" href="/console/exports\?([^"]+)"', page.text)
    older = person.get("/exports", unescape(query))
    assert (listed(page), listed(older)) == ([approved, blocked], [failed])
    assert f'href="/console/exports?target={here.id}">Newest' in older.text


def test_the_pages_of_a_list_follow_one_another_under_its_filters(person: ConsoleBrowser, customer: Customer) -> None:
    ids = make_exports(customer, 5)
    query, seen = "status=prepared&limit=2", []
    while query:
        page = person.get("/exports", query)
        seen += listed(page)
        query = next(map(unescape, re.findall(r'rel="next" href="/console/exports\?([^"]+)"', page.text)), "")
    assert seen == ids[::-1]


def test_a_bad_filter_is_refused_by_its_name_and_not_repeated(person: ConsoleBrowser) -> None:
    for query, named in [
        ("status=CANARY", "/status"),
        ("status=failed&status=blocked", "/status"),
        ("source=<script>CANARY", "/source"),
        ("target=exp_01AAAAAAAAAAAAAAAAAAAAAAAA", "/target"),
        ("target=%00CANARY", "/target"),
        ("limit=201", "/limit"),
        ("limit=CANARY", "/limit"),
        (f"cursor={'CANARY' * 1000}", "/cursor"),
        (f"cursor={base64url('1:tgt_01AAAAAAAAAAAAAAAAAAAAAAAA')}", "/cursor"),
    ]:
        page = person.get("/exports", query)
        assert page.status_code == 422, query
        assert f">{in_words(named)}: " in page.text, query
        assert "CANARY" not in page.text, query


def test_an_empty_list_says_why(person: ConsoleBrowser, customer: Customer) -> None:
    assert 'data-state="unused"' in person.get("/exports").text
    make_exports(customer, 1)
    assert 'data-state="filtered"' in person.get("/exports", "status=failed").text
    target = make_target(make_customer())
    assert 'data-state="filtered"' in person.get("/exports", f"target={target.id}").text


@on_sqlite
def test_a_list_runs_as_many_statements_for_many_rows_as_for_one(person: ConsoleBrowser, customer: Customer) -> None:
    def asked(query: str = "limit=200") -> int:
        with page_statements() as ran:
            assert person.get("/exports", query).status_code == 200
        return len(ran)

    make_failed(customer, make_target(customer).id)
    one = asked()
    for _ in range(20):
        make_failed(customer, make_target(customer).id, 5)
    assert asked() == one
    assert asked(f"limit=200&target={make_target(customer).id}") == one


# --- one export ---------------------------------------------------------------


#: Possible statuses of an export after a retry.
RETRIED: Final = {ExportStatus.APPROVED, ExportStatus.DELIVERING, ExportStatus.RETRY_SCHEDULED}
#: The buttons for each status; other statuses have none.
OFFERED: Final = {
    ExportStatus.PREPARED: {"Approve", "Dismiss", "Snooze"},
    ExportStatus.DISMISSED: {"Restore"},
    ExportStatus.FAILED: {"Retry", "Retry there"},
    ExportStatus.BLOCKED: {"Retry", "Retry there"},
}


@on_sqlite
def test_an_export_offers_what_its_state_allows(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    for status, export_id in in_every_state(customer).items():
        page = person.get(f"/exports/{export_id}")
        assert (page.status_code, buttons(page)) == (200, OFFERED.get(status, set())), status
        is_waiting = status in {ExportStatus.APPROVED, ExportStatus.RETRY_SCHEDULED}
        assert ("<dt>Next attempt</dt>" in page.text) == is_waiting, status


@on_sqlite
def test_an_outdated_button_says_the_state_and_changes_nothing(
    person: ConsoleBrowser, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    target_id = make_target(customer).id
    for status, export_id in in_every_state(customer).items():
        before = queries.get(export_id)
        # A second Dismiss or Retry counts as a double click.
        again = {"Dismiss"} if status is ExportStatus.DISMISSED else {"Retry"} if status in RETRIED else set()
        for verb in {"Approve", "Dismiss", "Retry"} - OFFERED.get(status, set()) - again:
            seen = {"target_id": target_id, "ticket_digest": before.ticket_digest}
            page = person.post(f"/exports/{export_id}/{verb.lower()}", **seen)
            assert page.status_code == 409, (status, verb)
            is_prepared = status is ExportStatus.PREPARED
            reason = f"is prepared; {verb.lower()} needs" if is_prepared else f"the status “{word(status.value)}” now"
            assert reason in page.text
            assert f'href="/console/exports/{export_id}"' in page.text
            assert (queries.get(export_id), wake_ups.notifications) == (before, 0), (status, verb)


def test_a_ticket_is_shown_as_it_will_be_sent_and_then_as_it_is(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    export_id = prepared(
        customer,
        description="It counts\ntwice.",
        severity="high",
        page_url="https://shop.example/cart",
        labels=["checkout", "Ärger"],
        evidence={"rule": "label", "seen": [1, None]},
    )
    before = person.get(f"/exports/{export_id}")
    export = queries.get(export_id)
    for expected in (
        "The total is wrong",
        "It counts\ntwice.",
        "high",
        "checkout",
        "Ärger",
        '"rule": "label"',
        export.ticket_digest,
    ):
        assert expected in unescape(before.text)
    link = 'href="https://shop.example/cart" rel="noreferrer noopener nofollow" target="_blank">Open shop.example</a>'
    assert link in before.text
    assert '"target_id": "(the selected target)"' in unescape(before.text)
    transitions.approve(export_id, customer.account_id, Approval(target.id, None), utc_now(), "user:1", LOOPBACK_POLICY)
    after = unescape(person.get(f"/exports/{export_id}").text)
    assert f'"target_id": "{target.id}"' in after
    assert "Request body, " in after
    frozen = queries.get_frozen_body(export_id, customer.account_id).body
    assert frozen is not None
    assert f"{len(frozen):,}".replace(",", "\N{NARROW NO-BREAK SPACE}") + " bytes" in after


def test_the_timeline_is_newest_first(person: ConsoleBrowser, customer: Customer) -> None:
    page = person.get(f"/exports/{tried(customer)}")
    timeline = main_of(page).partition('aria-label="Timeline"')[2]
    steps = re.findall(r"<li><p><b>(.*?)</b>.*?</p>\n<p class=\"aside\"><bdi>(.*?)</bdi>", timeline)
    assert steps == [
        ("Retry scheduled", WORKER),
        ("Attempt started", WORKER),
        ("Approved", "user:test"),
        ("Prepared", "user:test"),
    ]


def test_the_timeline_shows_ids_as_they_are(person: ConsoleBrowser, customer: Customer) -> None:
    export_id, job_id = make_exports(customer, 1)[0], "blk_01KJM8AV0G3T0M3Q9V6W2Y5Z7A"
    with transaction():
        for action, reason in (("dismiss", "false_positive"), ("approve", job_id)):
            audit_log.append(utc_now(), "user:1", action, export_id, reason)
    timeline = main_of(person.get(f"/exports/{export_id}")).partition('aria-label="Timeline"')[2]
    assert f'<span class="aside">{job_id}</span>' in timeline
    assert '<span class="aside">false positive</span>' in timeline


def test_the_timeline_shows_the_readers_own_name(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    target = make_target(customer)
    page = person.get(f"/exports/{export_id}")
    person.post(f"/exports/{export_id}/approve", target_id=target.id, ticket_digest=hidden(page, "ticket_digest"))
    page = person.get(f"/exports/{export_id}")
    timeline = main_of(page).partition('aria-label="Timeline"')[2]
    assert re.search(rf"<b>Approved</b>.*?</p>\n<p class=\"aside\"><bdi>{re.escape(customer.email)}</bdi>", timeline)


@on_sqlite
def test_a_long_timeline_shows_the_newest_200_entries_and_says_so(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    with transaction():
        for number in range(1, MAX_ENTRIES):
            audit_log.append(utc_now(), "operator", f"look_{number}", export_id)
    assert "newest 200 entries" not in person.get(f"/exports/{export_id}").text
    with transaction():
        audit_log.append(utc_now(), "operator", f"look_{MAX_ENTRIES}", export_id)
    page = person.get(f"/exports/{export_id}")
    assert f"the newest {MAX_ENTRIES} entries" in page.text
    assert f"look {MAX_ENTRIES}<" in page.text
    assert ">Prepared<" not in page.text


def test_attempts_are_listed_with_their_timings_in_pages(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = tried(customer, 3)
    page = person.get(f"/exports/{export_id}", "limit=2")
    assert re.findall(r"<b>No\. (\d)</b>", page.text) == ["3", "2"]
    for expected in (
        "503",
        "http 503",
        "Retry-After 30 s",
        "192.0.2.1",
        WORKER,
        "No such project.",
        'aria-label="DNS 1 ms, connect 2 ms',
    ):
        assert expected in page.text
    [query] = re.findall(r'rel="next" href="/console/exports/[^"?]+\?([^"]+)"', page.text)
    older = person.get(f"/exports/{export_id}", unescape(query))
    assert re.findall(r"<b>No\. (\d)</b>", older.text) == ["1"]
    refused = person.get(f"/exports/{prepared(customer)}", unescape(query))
    assert (refused.status_code, "Cursor: " in refused.text) == (422, True)


Phase = AttemptPhase
#: Columns: timings; phases.
SPLITS: Final = [
    (Timings(), []),  # no connection, and no time passed
    (Timings(total_ms=5), [Phase("rest", 5, 0, 100)]),  # a connection without a response
    (Timings(1, 2, 3, 10, 20), [
        Phase("DNS", 1, 0, 5),
        Phase("connect", 2, 5, 10),
        Phase("TLS", 3, 15, 15),
        Phase("first byte", 4, 30, 20),
        Phase("rest", 10, 50, 50),
    ]),
    (Timings(first_byte_ms=3, total_ms=4), [Phase("first byte", 3, 0, 75), Phase("rest", 1, 75, 25)]),  # kept alive
    (Timings(dns_ms=7, total_ms=7), [Phase("DNS", 7, 0, 100)]),  # no address
    (Timings(0, 0, None, 0, 0), []),  # faster than a millisecond
    (Timings(5, 5, None, 4, 9), [Phase("DNS", 5, 0, 50), Phase("connect", 5, 50, 50)]),  # each value is rounded up
]  # fmt: skip


@pytest.mark.parametrize(("timings", "parts"), SPLITS)
def test_the_time_of_an_attempt_is_split(timings: Timings, parts: list[AttemptPhase]) -> None:
    assert phases_of(timings) == parts


@on_sqlite
def test_attempts_without_times_are_shown(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = tried(customer, answer=None)
    execute(
        "UPDATE attempts SET dns_ms = NULL, connect_ms = NULL, tls_ms = NULL, first_byte_ms = NULL, total_ms = 0, "
        "response_status = NULL, error_code = NULL, retry_after_s = NULL, address = NULL WHERE export_id = ?",
        (export_id,),
    )
    page = person.get(f"/exports/{export_id}")
    assert page.status_code == 200
    assert '<svg class="split"' not in page.text


def test_a_redacted_export_says_so_and_offers_nothing(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = tried(customer)
    with transaction():
        transitions.redact([export_id], utc_now(), "worker")
    page = person.get(f"/exports/{export_id}")
    assert "data-redacted" in page.text
    assert "The request body is redacted" in page.text
    assert buttons(page) == set()
    for gone in ("Missing name", "No such project.", "shop.example"):
        assert gone not in page.text
    refused = person.post(f"/exports/{export_id}/retry")
    assert (refused.status_code, "was redacted" in refused.text) == (409, True)


@on_sqlite
def test_an_unsafe_ticket_says_what_is_wrong_with_it(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer)
    ticket = Ticket("Card", "4111 1111 1111 1111", "high", None, (), {})
    source = queries.get(make_exports(customer, 1)[0]).source
    with transaction():
        [export_id] = transitions.prepare([Draft(customer.account_id, None, source, ticket)], utc_now(), "user:1")
    assert queries.get(export_id).preview_problems
    page = person.get(f"/exports/{export_id}")
    assert "cannot be approved" in page.text
    assert buttons(page) == {"Dismiss", "Snooze"}
    assert problem("", "preview_not_safe").code not in page.text


@on_sqlite
@pytest.mark.parametrize("status", ["disabled", "inactive", "paused"])
def test_an_export_that_cannot_be_delivered_has_the_reason_instead_of_a_button(
    status: str, person: ConsoleBrowser, customer: Customer
) -> None:
    target = make_target(customer)
    [export_id] = make_failed(customer, target.id)
    execute("UPDATE targets SET status = ? WHERE id = ?", (status, target.id))
    page = person.get(f"/exports/{export_id}")
    assert f"when its target is active again, or at another target. This target is {status}." in page.text
    assert buttons(page) == set()


@on_sqlite
def test_an_export_of_a_paused_target_names_the_pause_in_place_of_a_time(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    export_id = make_approved(customer, target.id)
    for path in (f"/exports/{export_id}", "/exports"):
        assert "Next attempt" in person.get(path).text
    execute("UPDATE targets SET status = 'paused' WHERE id = ?", (target.id,))
    page = person.get(f"/exports/{export_id}")
    assert "<code>target_paused</code>" in page.text
    assert "Resume the target." in page.text
    assert "Next attempt" not in page.text
    assert "target paused" in person.get("/exports").text


@on_sqlite
def test_an_export_that_failed_at_a_blocked_target_may_be_retried(person: ConsoleBrowser, customer: Customer) -> None:
    """A retry checks the target's address again."""
    target = make_target(customer)
    [export_id] = make_failed(customer, target.id, status="blocked")
    execute("UPDATE targets SET status = 'blocked' WHERE id = ?", (target.id,))
    assert buttons(person.get(f"/exports/{export_id}")) == {"Retry"}


@on_sqlite
def test_an_approval_is_offered_for_targets_that_accept_it(person: ConsoleBrowser, customer: Customer) -> None:
    ids = {status: make_target(customer).id for status in TargetStatus}
    for status, target_id in ids.items():
        execute("UPDATE targets SET status = ? WHERE id = ?", (status.value, target_id))
    page = person.get(f"/exports/{prepared(customer)}")
    assert offered(page) == [ids[TargetStatus.ACTIVE]]
    for status in (TargetStatus.PAUSED, TargetStatus.BLOCKED, TargetStatus.INACTIVE):
        assert f"This target is {status}." in page.text
        assert f'href="/console/targets/{ids[status]}"' in page.text
    assert ids[TargetStatus.DISABLED] not in page.text


@on_sqlite
def test_a_target_that_failed_its_validation_is_named_with_the_reason(person: ConsoleBrowser, customer: Customer) -> None:
    export_id, target = prepared(customer), make_target(customer)
    targets.record_validation(target.id, None, Validation("connect_refused"), utc_now(), "worker")
    page = person.get(f"/exports/{export_id}")
    assert (offered(page), buttons(page)) == ([], {"Dismiss", "Snooze"})
    assert "The last validation of this target failed (connect_refused)." in page.text
    # The page was loaded before the failure.
    seen = {"target_id": target.id, "ticket_digest": queries.get(export_id).ticket_digest}
    refused = person.post(f"/exports/{export_id}/approve", **seen)
    assert (refused.status_code, "Target id: " in refused.text) == (422, True)
    assert queries.get(export_id).status is ExportStatus.PREPARED


@on_sqlite
def test_an_approval_for_a_url_that_is_refused_now_blocks_the_target(person: ConsoleBrowser, customer: Customer) -> None:
    export_id, target = prepared(customer), make_target(customer, "https://tracker.example.com:9443/hook")
    seen = {"target_id": target.id, "ticket_digest": queries.get(export_id).ticket_digest}
    refused = person.post(f"/exports/{export_id}/approve", **seen)
    assert (refused.status_code, "port_not_allowed" in refused.text) == (422, True)
    assert targets.get(target.id, None).status is TargetStatus.BLOCKED


@on_sqlite
def test_of_many_targets_the_newest_are_offered_and_the_page_says_so(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = prepared(customer)
    ids = many_targets(customer, 0, MAX_TARGETS, "https://tracker.example.com/hook")
    page = person.get(f"/exports/{export_id}")
    assert ({*offered(page)}, "are offered" in page.text) == ({*ids}, False)
    ids += many_targets(customer, MAX_TARGETS, 1, "https://tracker.example.com/hook")
    page = person.get(f"/exports/{export_id}")
    assert ({*offered(page)}, f"The newest {MAX_TARGETS} targets are offered" in page.text) == ({*ids[1:]}, True)


@on_sqlite
def test_without_a_target_the_page_says_how_to_make_one(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(make_customer())
    page = person.get(f"/exports/{prepared(customer)}")
    assert buttons(page) == {"Dismiss", "Snooze"}
    assert "There is no target to send it to." in page.text


@on_sqlite
def test_the_number_of_statements_of_a_page_does_not_depend_on_the_history_of_the_export(
    person: ConsoleBrowser, customer: Customer
) -> None:
    def asked(export_id: str) -> int:
        with page_statements() as ran:
            assert person.get(f"/exports/{export_id}").status_code == 200
        return len(ran)

    once = tried(customer, 1)
    targets.change_status(str(queries.get(once).target_id), "pause", utc_now(), "operator")
    # Session, operator's account, export, body, target, audit entries, owner of the attempts, attempts, events, emails.
    assert asked(once) == asked(tried(customer, 30)) == 10


# --- decisions ----------------------------------------------------------------


def test_a_ticket_is_approved_as_it_was_seen(person: ConsoleBrowser, customer: Customer, wake_ups: FakeWakeUpQueue) -> None:
    target, paused = make_target(customer), make_target(customer, name="Waits")
    targets.change_status(paused.id, "pause", utc_now(), "operator")
    make_target(make_customer(), name="Not ours")
    export_id = prepared(customer)
    wake_ups.on_notify = lambda: queries.get(export_id).status.value
    page = person.get(f"/exports/{export_id}")
    assert offered(page) == [target.id]
    assert "Waits</a> (tracker.example.com): This target is paused (operator)." in page.text
    seen = {"target_id": target.id, "ticket_digest": hidden(page, "ticket_digest")}
    response = person.post(f"/exports/{export_id}/approve", **seen)
    assert (response.status_code, response.headers["location"]) == (303, f"/console/exports/{export_id}?done=approved")
    assert wake_ups.seen == ["approved"]
    assert "A worker delivers it" in person.get(f"/exports/{export_id}", "done=approved").text
    # A double click.
    assert person.post(f"/exports/{export_id}/approve", **seen).status_code == 303
    export = queries.get(export_id)
    assert (export.status, export.target_id, export.version) == (ExportStatus.APPROVED, target.id, 2)


@on_sqlite
@pytest.mark.parametrize(
    ("changes", "status", "expected"),
    [
        ({"ticket_digest": "sha256:" + "0" * 64}, 409, "This ticket changed after you opened it"),
        ({"ticket_digest": ""}, 422, "Ticket digest: "),
        ({"ticket_digest": "x" * 5000}, 422, "Ticket digest: "),
        ({"target_id": ""}, 422, "Target id: "),
        ({"target_id": "tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"}, 422, "Target id: "),
        ({"target_id": "<script>"}, 422, "Target id: "),
        ({"target_id": "\u202e"}, 422, "Target id: "),
    ],
)
def test_an_approval_with_another_target_or_digest_is_refused(
    changes: Mapping[str, str],
    status: int,
    expected: str,
    person: ConsoleBrowser,
    customer: Customer,
    wake_ups: FakeWakeUpQueue,
) -> None:
    export_id = prepared(customer)
    seen = {"target_id": make_target(customer).id, "ticket_digest": queries.get(export_id).ticket_digest}
    page = person.post(f"/exports/{export_id}/approve", **{**seen, **changes})
    assert (page.status_code, expected in page.text) == (status, True)
    assert (queries.get(export_id).status, wake_ups.notifications) == (ExportStatus.PREPARED, 0)


@on_sqlite
def test_another_accounts_target_is_unknown(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = prepared(customer)
    strange = make_target(make_customer())
    digest = queries.get(export_id).ticket_digest
    page = person.post(f"/exports/{export_id}/approve", target_id=strange.id, ticket_digest=digest)
    assert (page.status_code, "No target has this id" in page.text) == (422, True)


def test_a_failed_export_is_retried_once(person: ConsoleBrowser, customer: Customer, wake_ups: FakeWakeUpQueue) -> None:
    [export_id] = make_failed(customer, make_target(customer).id)
    wake_ups.on_notify = lambda: queries.get(export_id).status.value
    response = person.post(f"/exports/{export_id}/retry")
    assert (response.status_code, response.headers["location"]) == (303, f"/console/exports/{export_id}?done=retried")
    assert wake_ups.seen == ["approved"]
    before = queries.get(export_id)
    assert person.post(f"/exports/{export_id}/retry").status_code == 303
    assert queries.get(export_id) == before


@on_sqlite
@pytest.mark.parametrize(("addresses", "status"), [(["93.184.215.14"], 303), (["10.0.0.1"], 422)])
def test_a_blocked_targets_address_is_looked_up_before_a_retry(
    addresses: list[str], status: int, person: ConsoleBrowser, customer: Customer, resolver: FakeResolver
) -> None:
    target = make_target(customer)
    [export_id] = make_failed(customer, target.id, status="blocked")
    execute("UPDATE targets SET status = 'blocked' WHERE id = ?", (target.id,))
    resolver.table["tracker.example.com"] = addresses
    assert person.post(f"/exports/{export_id}/retry").status_code == status
    is_due = queries.get(export_id).status is ExportStatus.APPROVED
    assert (is_due, targets.get(target.id, None).status.value) == ((True, "active") if status == 303 else (False, "blocked"))


@on_sqlite
def test_a_blocked_targets_address_is_not_looked_up_without_permission_for_webhooks(
    client: TestClient, customer: Customer
) -> None:
    barred = make_customer()
    target = make_target(barred)
    forbid_webhooks(barred)
    [export_id] = make_failed(barred, target.id, status="blocked")
    execute("UPDATE targets SET status = 'blocked' WHERE id = ?", (target.id,))
    somebody = ConsoleBrowser(client)
    somebody.sign_in(make_console_token(barred))
    assert somebody.post(f"/exports/{export_id}/retry").status_code == 403
    assert queries.get(export_id).status is ExportStatus.BLOCKED


def test_a_prepared_export_is_dismissed_after_a_confirmation(
    person: ConsoleBrowser, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    export_id = prepared(customer)
    page = person.get(f"/exports/{export_id}")
    assert re.search(r'<summary class="button">Dismiss….*?action="[^"]+/dismiss".*?</details>', page.text, re.DOTALL)
    response = person.post(f"/exports/{export_id}/dismiss")
    shown = f"/console/exports/{export_id}?done=dismissed&undo={export_id}.2"
    assert (response.status_code, response.headers["location"]) == (303, shown)
    assert (queries.get(export_id).status, wake_ups.notifications) == (ExportStatus.DISMISSED, 0)


@on_sqlite
@pytest.mark.parametrize("verb", ["approve", "retry", "dismiss"])
def test_a_form_without_the_sessions_token_decides_nothing(verb: str, person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    export_id = make_failed(customer, target.id)[0] if verb == "retry" else prepared(customer)
    before = queries.get(export_id)
    seen = {"target_id": target.id, "ticket_digest": before.ticket_digest}
    assert person.post(f"/exports/{export_id}/{verb}", csrf="", **seen).status_code == 403
    elsewhere = ConsoleBrowser(person.client, origin="https://elsewhere.example")
    elsewhere.cookie, elsewhere.csrf = person.cookie, person.csrf
    assert elsewhere.post(f"/exports/{export_id}/{verb}", **seen).status_code == 403
    assert queries.get(export_id) == before


# --- permissions --------------------------------------------------------------


def test_another_accounts_export_is_not_found(person: ConsoleBrowser) -> None:
    strange = make_customer()
    export_id = prepared(strange)
    before = queries.get(export_id)
    seen = {"target_id": make_target(strange).id, "ticket_digest": before.ticket_digest}
    pages = [person.get(f"/exports/{export_id}")]
    pages += [person.post(f"/exports/{export_id}/{verb}", **seen) for verb in ("approve", "retry", "dismiss")]
    assert {page.status_code for page in pages} == {404}
    assert all("The total is wrong" not in page.text for page in pages)
    assert listed(person.get("/exports")) == []
    assert queries.get(export_id) == before


def test_an_invalid_export_id_is_not_found(person: ConsoleBrowser) -> None:
    for export_id in BAD_IDS:
        missing = person.get(f"/exports/{export_id}")
        assert missing.status_code == 404, export_id
        # Pages link back to the form that the user came from; this request came from no page.
        assert '<a href="/console/inbox">Go to the inbox</a>' in missing.text
        for verb in ("approve", "retry", "dismiss"):
            refused = person.post(f"/exports/{export_id}/{verb}", target_id="x", ticket_digest="x")
            assert refused.status_code == 404, (export_id, verb)


@on_sqlite
def test_only_the_operator_sees_the_url_of_an_attempt(client: TestClient, customer: Customer) -> None:
    other = make_customer()
    export_id = tried(other)
    somebody = ConsoleBrowser(client)
    somebody.sign_in(make_console_token(other))
    page = somebody.get(f"/exports/{export_id}")
    assert page.status_code == 200
    assert "http 503" in page.text
    for private in ("192.0.2.1", "host-of-ours", "No such project."):
        assert private not in page.text
    assert re.search(r"<b>Attempt started</b>.*?</p>\n<p class=\"aside\"><bdi>worker</bdi>", page.text)


@on_sqlite
def test_in_cloud_mode_no_page_shows_the_urls_of_attempts(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": "cloud"})
    somebody = ConsoleBrowser(TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))))
    somebody.sign_in(make_console_token(customer))
    page = somebody.get(f"/exports/{tried(customer)}")
    assert (page.status_code, "192.0.2.1" in page.text) == (200, False)


# --- untrusted text -----------------------------------------------------------

MARKUP: Final = "</pre></bdi></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'>{{ 7777*7 }}"


@on_sqlite
def test_markup_is_escaped_everywhere(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer, name=MARKUP)
    export_id = tried(customer, answer=MARKUP)
    execute(
        "UPDATE exports SET ticket = ?, provider_ticket_id = ?, provider_ticket_url = ?, source_id = ?, status_reason = ?, "
        "body = ?, target_id = ? WHERE id = ?",
        (
            '{"title": %s, "description": %s, "severity": %s, "page_url": %s, "labels": [%s], "evidence": {%s: %s}}'
            % ((repr_json(MARKUP),) * 7),
            MARKUP,
            "javascript:alert(1)",
            MARKUP,
            MARKUP,
            MARKUP.encode(),
            target.id,
            export_id,
        ),
    )
    with transaction():
        audit_log.append(utc_now(), MARKUP, MARKUP, export_id, MARKUP)
    for page in (person.get("/exports"), person.get(f"/exports/{export_id}")):
        assert page.status_code == 200
        assert "alert(1)" in page.text
        for live in ("<script>", "<img", "54439"):
            assert live not in main_of(page)


def repr_json(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@on_sqlite
def test_long_words_large_evidence_and_direction_controls_are_shown_completely_and_escaped(
    person: ConsoleBrowser, customer: Customer
) -> None:
    export_id = prepared(
        customer,
        title="invoice \u202egpj.exe \x1b[31m",
        description="W" * 500,
        labels=["L" * 100] * 50,
        evidence={"a": "e" * 8184},
    )
    page = person.get(f"/exports/{export_id}")
    assert page.status_code == 200
    for whole in ("W" * 500, "L" * 100, "e" * 8184, "invoice [U+202E]gpj.exe [U+001B][31m"):
        assert whole in page.text
    assert titles(person.get("/exports")) == ["invoice [U+202E]gpj.exe [U+001B][31m"]
    for turned in ("\u202e", "\x1b"):
        assert turned not in page.text


@on_sqlite
def test_invisible_characters_are_shown_by_their_numbers_everywhere(person: ConsoleBrowser, customer: Customer) -> None:
    turned = "safe \u202eexe"
    target = make_target(customer, name=turned)
    sent, waiting = tried(customer, answer=turned), prepared(customer)
    ticket = (
        '{"title": %s, "description": %s, "severity": "high", "page_url": %s, "labels": [%s], "evidence": {"a": %s}}'
        % ((repr_json(turned),) * 5)
    )
    execute(
        "UPDATE exports SET ticket = ?, provider_ticket_id = ?, provider_ticket_url = ?, source_id = ?, body = ?, "
        "target_id = ? WHERE id = ?",
        (ticket, turned, turned, turned, turned.encode(), target.id, sent),
    )
    recovery = recoveries.request(target.id, customer.account_id, utc_now(), utc_now(), "user:1").id
    targets.change_status(target.id, "pause", utc_now(), "user:1")
    of_target = ("/overview", "/targets", f"/targets/{target.id}", "/recoveries", f"/recoveries/{recovery}")
    for path in ("/exports", f"/exports/{sent}", f"/exports/{waiting}", *of_target):
        page = person.get(path)
        assert "safe [U+202E]exe" in page.text, path
        # Fields that are submitted contain the stored name: a name with visible escapes would replace it.
        shown = page.text
        for field in ('name="name" maxlength="200" autocomplete="off" required', 'type="hidden" name="shown.name"'):
            shown = shown.replace(f'<input {field} value="{turned}">', "")
        assert "\u202e" not in shown, path


@on_sqlite
@pytest.mark.parametrize("body", [b"no JSON at all <script>", b"\xff\xfe", b"[" * 50_000, b"null"])
def test_a_body_that_is_no_json_is_shown_as_text(body: bytes, person: ConsoleBrowser, customer: Customer) -> None:
    export_id = tried(customer)
    execute("UPDATE exports SET body = ? WHERE id = ?", (body, export_id))
    page = person.get(f"/exports/{export_id}")
    assert (page.status_code, "<pre data-body data-copy>" in page.text) == (200, True)
    assert "<script>" not in main_of(page)


@on_sqlite
@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://bank.example@shop.example/", "data:text/html,x"])
def test_an_unsafe_address_is_not_a_link(url: str, person: ConsoleBrowser, customer: Customer) -> None:
    export_id = prepared(customer)
    execute("UPDATE exports SET provider_ticket_url = ? WHERE id = ?", (url, export_id))
    page = person.get(f"/exports/{export_id}")
    assert url in unescape(page.text)
    assert not [href for href in re.findall(r'href="([^"]*)"', main_of(page)) if not href.startswith("/")]


@on_sqlite
def test_a_delivered_ticket_links_to_its_issue(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = prepared(customer)
    assert "Open at" not in person.get(f"/exports/{export_id}").text
    execute("UPDATE exports SET provider_ticket_url = 'https://tracker.example/1' WHERE id = ?", (export_id,))
    link_attributes = 'rel="noreferrer noopener nofollow" target="_blank"'
    button = f'<a class="button" href="https://tracker.example/1" {link_attributes}>Open at tracker.example</a>'
    assert button in person.get(f"/exports/{export_id}").text


@on_sqlite
def test_a_finding_shows_how_often_it_was_seen(person: ConsoleBrowser, client: TestClient, customer: Customer) -> None:
    headers = {"X-Scanner-Secret": "scanner-secret-for-tests"}
    answer = client.simulate_post("/api/scanner/results", json=postback(), headers=headers)
    [export_id] = answer.json["ticket_exports"]
    page = person.get(f"/exports/{export_id}")
    assert "<dt>Seen</dt><dd>in 1 scan run, <time" in page.text
    assert "<summary>Reported by 1 scan run</summary>" in page.text


#: Columns: transition, reason and error code of the last attempt; then the explanation and the fix on the page.
REASONS: Final = {
    "given up": (
        Transition.FAIL,
        "attempts_exhausted",
        "connect_refused",
        "nothing listens on its port",
        "Start the receiver and check its port. Then retry.",
    ),
    "refused": (
        Transition.FAIL,
        "receiver_unauthorized",
        "receiver_unauthorized",
        "denied access",
        "Check the access rules of the receiver and the proxy, then retry.",
    ),
    "retried": (
        Transition.RESCHEDULE,
        None,
        "tls_certificate",
        "certificate is not valid",
        "Replace the receiver&#39;s certificate",
    ),
}


@on_sqlite
@pytest.mark.parametrize("case", REASONS)
def test_a_failure_is_explained_with_its_fix(case: str, person: ConsoleBrowser, customer: Customer) -> None:
    transition, reason, code, why, to_do = REASONS[case]
    began = utc_now()
    export_id = make_approved(customer, make_target(customer).id, began)
    [claim] = claim_due(1, began, 6, WORKER)
    waits = {"next_attempt_at": began + timedelta(seconds=30)} if transition is Transition.RESCHEDULE else {}
    claims_sql.record_attempts(
        [completed_attempt(claim, transition, began, reason=reason, error_code=code, **waits)], began, WORKER
    )
    state = main_of(person.get(f"/exports/{export_id}")).partition("<h2>Ticket</h2>")[0]
    assert re.search(rf"<dt>Reason</dt><dd>.*{re.escape(why)}", state)
    assert re.search(rf"<dt>What to do</dt><dd>{re.escape(to_do)}", state)
    # The error of the last attempt is shown separately only if the reason is that the attempts are exhausted.
    assert ("Last attempt:" in state) == (reason == "attempts_exhausted")


@on_sqlite
def test_the_page_of_an_export_in_progress_is_refreshed(person: ConsoleBrowser, customer: Customer) -> None:
    """After an approval, the page shows the delivery without a reload; other pages are not refreshed."""
    moving = {ExportStatus.APPROVED, ExportStatus.DELIVERING, ExportStatus.RETRY_SCHEDULED}
    for status, export_id in in_every_state(customer).items():
        followed = re.findall(r'id="(\w+)"[^>]* data-refresh', person.get(f"/exports/{export_id}").text)
        assert followed == (["state", "decisions", "attempts", "timeline"] if status in moving else []), status


@on_sqlite
def test_the_timeline_links_a_retry_to_its_recovery(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    with transaction():
        audit_log.append(utc_now(), "operator", "retry", export_id, reason="rec_01AAAAAAAAAAAAAAAAAAAAAAAA")
    assert (
        '<a href="/console/recoveries/rec_01AAAAAAAAAAAAAAAAAAAAAAAA">recovery</a>'
        in person.get(f"/exports/{export_id}").text
    )


def test_a_delivered_export_offers_its_receipt(person: ConsoleBrowser, customer: Customer) -> None:
    waiting, delivered = tried(customer), deliver(customer)
    audit_chain.extend_to_end()
    assert "Delivery receipt" not in person.get(f"/exports/{waiting}").text
    assert f'href="/console/exports/{delivered}/receipt"' in person.get(f"/exports/{delivered}").text
    answer = person.get(f"/exports/{delivered}/receipt")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["content-disposition"] == f'attachment; filename="receipt-{delivered}.json"'
    assert answer.json == receipts.read(delivered, customer.account_id)
    assert person.get(f"/exports/{waiting}/receipt").status_code == 409
    theirs = deliver(make_customer())
    audit_chain.extend_to_end()
    assert person.get(f"/exports/{theirs}/receipt").status_code == 404


@on_sqlite
def test_the_list_has_severities_as_marks_relative_times_and_words_for_people(
    person: ConsoleBrowser, customer: Customer
) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    execute("UPDATE exports SET status = 'exported', finished_at = 1, due_at = NULL")
    page = main_of(person.get("/exports"))
    severity = queries.get(export_id).severity
    assert f'<span class="sev {severity}">' in page
    assert '<time class="ago"' in page.partition("<tbody>")[2]
    assert ('<span class="status good">delivered</span>' in page, ">exported<" in page) == (True, False)
    assert '<option value="exported">delivered</option>' in page


@on_sqlite
def test_attempts_and_the_timeline_have_words_for_people(person: ConsoleBrowser, customer: Customer) -> None:
    page = main_of(person.get(f"/exports/{tried(customer)}"))
    attempts, _, timeline = page.partition('aria-label="Timeline"')
    assert (">temporary failure</span>" in attempts, "retryable" in attempts) == (True, False)
    assert re.search(r'<li><p><b>Attempt started</b>.*<time class="ago" [^>]+>[^<]+</time></span></p>', timeline)
    assert re.search(r'<span class="end"><time class="ago"', attempts.partition('id="attempts"')[2])


@on_sqlite
def test_an_empty_list_offers_the_import_of_a_report(person: ConsoleBrowser) -> None:
    for path in ("/exports", "/findings"):
        empty = person.get(path).text.partition('data-state="unused"')[2].partition("</div>")[0]
        assert '<a class="button primary" href="/console/report-uploads' in empty, path


@on_sqlite
def test_the_timeline_shows_the_addresses_of_colleagues_and_the_page_shows_its_project(
    person: ConsoleBrowser, customer: Customer
) -> None:
    [export_id] = record_postback(PostbackForm().read(postback()), customer.project_id).ticket_exports
    colleague = make_colleague(customer)
    with transaction():
        for user_id in (customer.user_id, colleague.user_id, 99_999):
            audit_log.append(utc_now(), f"user:{user_id}", "edit", export_id, "edited")
    execute("UPDATE projects SET name = 'Shop <b>' WHERE id = ?", (customer.project_id,))
    page = person.get(f"/exports/{export_id}").text
    timeline = page.partition('id="timeline"')[2].partition("</section>")[0]
    assert {customer.email, colleague.email, "user:99999"} <= {
        *re.findall(r'<p class="aside"><bdi>([^<]*)</bdi></p>', timeline)
    }
    assert "· <bdi>Shop &lt;b&gt;</bdi></span>" in page


@on_sqlite
def test_details_of_the_first_place_of_a_group_are_not_shown_for_all(person: ConsoleBrowser, customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, utc_now(), "test")
    body = postback(1, [issue("a", location="h1"), issue("a", location="h2")])
    [export_id] = record_postback(PostbackForm().read(body), customer.project_id).ticket_exports
    page = person.get(f"/exports/{export_id}").text
    assert "<dt>First place seen</dt><dd>in 1 scan run, <time" in page
    assert "<summary>First place reported by 1 scan run</summary>" in page


@on_sqlite
def test_a_ticket_whose_places_are_all_fixed_says_why_it_does_not_wait(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = record_postback(PostbackForm().read(postback()), customer.project_id).ticket_exports
    explained = "All places are fixed. It waits for a decision again if a scan reports one."
    assert explained not in person.get(f"/exports/{export_id}").text
    execute("UPDATE exports SET findings_fixed = findings_total WHERE id = ?", (export_id,))
    assert explained in person.get(f"/exports/{export_id}").text


@on_sqlite
@pytest.mark.parametrize(
    ("decision", "text"), [("approve", "approval, and the ticket"), ("dismiss", "dismissal, and Restore")]
)
def test_a_page_says_that_places_added_after_a_decision_are_missing_in_the_ticket(
    decision: str, text: str, person: ConsoleBrowser, customer: Customer
) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, utc_now(), "test")
    first, second = (PostbackForm().read(postback(run, [issue("a", location=f"h{run}")])) for run in (1, 2))
    [export_id] = record_postback(first, customer.project_id).ticket_exports
    fields = {"target_id": make_target(customer).id, "ticket_digest": queries.get(export_id).ticket_digest}
    assert person.post(f"/exports/{export_id}/{decision}", reason="wont_fix", **fields).status_code == 303
    assert "of them joined after" not in person.get(f"/exports/{export_id}").text
    record_postback(second, customer.project_id)
    assert f"1 of them joined after the {text}" in person.get(f"/exports/{export_id}").text
