"""Recoveries at the console: begun by a form, executed by a worker, shown with their progress, cancelled."""

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Final

from falcon.testing import Result, TestClient

from runtime.clock import utc_now
from schemas.targets.target import Target
from storage.db.engine import rows
from storage.exports import recoveries
from storage.exports.recoveries import BATCH_SIZE
from storage.targets import targets
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, forbid_webhooks, make_customer, make_failed, make_target
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token
from worker.background.batches.batch_task import recovery_task

UNKNOWN_ID: Final = "rec_01AAAAAAAAAAAAAAAAAAAAAAAA"
#: More exports than a page counts.
MANY: Final = 10_001


def words(answer: Result) -> str:
    """Return the text of a page's main element."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2])).split())


def begin(person: ConsoleBrowser, target: Target, since: str = "24h") -> str:
    """Begin a recovery by its form; return its ID."""
    response = person.post(f"/targets/{target.id}/recover", since=since)
    assert response.status_code == 303, response.text
    found = re.fullmatch(r"/console/recoveries/(rec_\w+)\?done=recovery_begun", response.headers["location"])
    assert found is not None
    return found[1]


def batches() -> Iterator[bool]:
    """Execute recoveries as a worker does, one batch per step; yield whether there was something to do."""
    task = recovery_task(FakeWakeUpQueue(), utc_now)
    while True:
        yield task.run_once()


def count(status: str) -> int:
    return int(rows("SELECT COUNT(*) FROM exports WHERE status = ?", (status,))[0][0])


def test_a_recovery_is_started_and_its_progress_is_shown(
    person: ConsoleBrowser, customer: Customer, target: Target, wake_ups: FakeWakeUpQueue
) -> None:
    make_failed(customer, target.id, BATCH_SIZE + 3, utc_now())
    recovery_id = begin(person, target)
    assert (wake_ups.notifications, count("failed")) == (1, BATCH_SIZE + 3)
    running = person.get(f"/recoveries/{recovery_id}", "done=recovery_begun")
    assert f"Status running Retried exports 0 of {BATCH_SIZE + 3}" in words(running)
    assert 'id="recovery" aria-label="Progress" data-refresh="2"' in running.text
    assert '<noscript><meta http-equiv="refresh"' in running.text
    worker = batches()
    assert next(worker)
    half = person.get(f"/recoveries/{recovery_id}")
    assert f'<progress max="{BATCH_SIZE + 3}" value="{BATCH_SIZE}"' in half.text
    assert [next(worker) for _ in range(3)] == [True, True, False]
    done = person.get(f"/recoveries/{recovery_id}")
    assert f"Status done Retried exports {BATCH_SIZE + 3} of {BATCH_SIZE + 3}" in words(done)
    assert "data-refresh" not in done.text
    assert "http-equiv" not in done.text
    assert "Cancel recovery" not in done.text
    assert (count("approved"), count("failed")) == (BATCH_SIZE + 3, 0)
    assert rows("SELECT DISTINCT actor FROM audit_entries WHERE action IN ('begin_recovery', 'retry')") == [
        (f"user:{customer.user_id}",)
    ]


#: Columns: value in the form; how many exports are put back, of three that failed 30 minutes, 3 hours and 5 days ago.
SINCE = [("1h", 1), ("24h", 2), ("7d", 3), ("90m", 1), ("2020-01-01", 3), ("2020-01-01T00:00:00+02:00", 3)]


def test_exports_that_failed_since_the_given_time_are_recovered(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    for ago in (timedelta(minutes=30), timedelta(hours=3), timedelta(days=5)):
        make_failed(customer, target.id, 1, utc_now() - ago)
    for since, recovered in SINCE:
        recovery_id = begin(person, target, since)
        assert recoveries.get(recovery_id).total == recovered, since
        # Cancelled before anything is put back, so that the next recovery finds the same exports.
        assert person.post(f"/recoveries/{recovery_id}/cancel").status_code == 303


@on_sqlite
def test_an_invalid_or_future_time_begins_no_recovery(person: ConsoleBrowser, target: Target) -> None:
    for since in ("", "soon", "<script>", "2999-01-01", "999999999d", "7 d", "x" * 5000):
        refused = person.post(f"/targets/{target.id}/recover", since=since)
        assert (refused.status_code, "Since: " in words(refused)) == (422, True), since
        assert "<script>" not in refused.text.partition("<main")[2]
        assert recoveries.list_page() == [], since


def test_a_target_has_one_recovery_at_a_time_and_the_second_is_shown_the_first(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    make_failed(customer, target.id, 1, utc_now())
    recovery_id = begin(person, target)
    again = person.post(f"/targets/{target.id}/recover", since="24h")
    assert (again.status_code, f"has a recovery already, {recovery_id}" in words(again)) == (409, True)
    assert f'href="/console/recoveries/{recovery_id}"' in again.text
    assert [each.id for each in recoveries.list_page()] == [recovery_id]


@on_sqlite
def test_ten_thousand_exports_are_recovered_and_a_running_recovery_is_cancelled(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    make_failed(customer, target.id, MANY, utc_now())
    assert "the last 24 hours: more than 10 000" in words(person.get(f"/targets/{target.id}"))
    recovery_id, worker = begin(person, target), batches()
    assert [next(worker) for _ in range(2)] == [True, True]
    response = person.post(f"/recoveries/{recovery_id}/cancel")
    assert (response.status_code, response.headers["location"]) == (
        303,
        f"/console/recoveries/{recovery_id}?done=recovery_cancelled",
    )
    # The worker still holds the recovery, and notices the cancellation in its next batch.
    assert [next(worker) for _ in range(2)] == [True, False]
    assert (count("approved"), count("failed")) == (2 * BATCH_SIZE, MANY - 2 * BATCH_SIZE)
    cancelled = words(person.get(f"/recoveries/{recovery_id}"))
    # A recovery counts at most the newest 10,000 at the beginning; the total grows as it finds more.
    assert "Status cancelled Retried exports 1 000 of 10 000 found" in cancelled
    refused = person.post(f"/recoveries/{recovery_id}/cancel")
    assert (refused.status_code, "is cancelled" in words(refused)) == (409, True)
    second = begin(person, target)
    while next(worker):
        pass
    assert (count("approved"), count("failed")) == (MANY, 0)
    assert "Status done Retried exports 9 001 of 9 001 Target" in words(person.get(f"/recoveries/{second}"))
    assert "Queued or in delivery more than 10 000" in words(person.get(f"/targets/{target.id}"))


def test_a_recovery_of_a_target_that_is_turned_off_says_what_it_waits_for(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    make_failed(customer, target.id, 1, utc_now())
    recovery_id = begin(person, target)
    targets.change_status(target.id, "disable", utc_now(), "user:1")
    assert next(batches())
    assert "running Waiting: the target is disabled" in words(person.get(f"/recoveries/{recovery_id}"))
    assert count("approved") == 0


def test_the_list_shows_the_accounts_recoveries_in_pages(person: ConsoleBrowser, customer: Customer, target: Target) -> None:
    assert 'data-state="unused"' in person.get("/recoveries").text
    other = make_customer()
    others = recoveries.request(make_target(other).id, other.account_id, utc_now(), utc_now(), "user:9").id
    ids = [begin(person, each) for each in (target, make_target(customer, name="<b>Second</b>"), make_target(customer))]
    whole = person.get("/recoveries")
    assert re.findall(r"/recoveries/(rec_\w+)\"", whole.text) == sorted(ids, reverse=True)
    assert "&lt;b&gt;Second&lt;/b&gt;" in whole.text
    first = person.get("/recoveries", "limit=2")
    older = re.search(r'rel="next" href="/console/recoveries\?([^"]+)"', first.text)
    assert older is not None
    assert re.findall(r"/recoveries/(rec_\w+)\"", person.get("/recoveries", unescape(older[1])).text) == sorted(ids)[:1]
    assert others not in whole.text
    of_target = person.get(f"/targets/{target.id}").text
    assert re.findall(r"/recoveries/(rec_\w+)\"", of_target) == sorted(ids)[:1]


def test_another_accounts_recovery_is_not_found(person: ConsoleBrowser) -> None:
    other = make_customer()
    others = recoveries.request(make_target(other).id, other.account_id, utc_now(), utc_now(), "user:9").id
    for recovery_id in (others, UNKNOWN_ID, "rec_%00", "x" * 500):
        assert person.get(f"/recoveries/{recovery_id}").status_code == 404
        assert person.post(f"/recoveries/{recovery_id}/cancel").status_code == 404
    assert recoveries.get(others).status == "running"


def test_an_account_without_webhooks_sees_a_recovery_and_cancels_none(client: TestClient, customer: Customer) -> None:
    poor = make_customer()
    ordered = recoveries.request(make_target(poor).id, poor.account_id, utc_now(), utc_now(), "user:9").id
    forbid_webhooks(poor)
    person = ConsoleBrowser(client)
    person.sign_in(make_console_token(poor))
    page = person.get(f"/recoveries/{ordered}")
    assert (page.status_code, "Cancel recovery" in page.text) == (200, False)
    assert person.post(f"/recoveries/{ordered}/cancel").status_code == 403
    assert recoveries.get(ordered).status == "running"
