"""Decisions on a selection: first a summary, then the result of each ticket, or the progress of a job."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from urllib.parse import urlencode

import pytest
from falcon.testing import Result

from runtime.clock import utc_now
from schemas.base.errors import ExportNotFound
from schemas.base.fields import MESSAGES
from schemas.exports.decisions import DismissalReason
from schemas.exports.state_machine import ExportStatus
from schemas.intake.scanner import PostbackForm
from service.console.triage import ticket_list
from storage.db.engine import execute, rows
from storage.exports import queries
from storage.exports.search import export_list
from storage.targets import changes
from tests.service.console.form_fields import shown_fields
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    Customer,
    issue,
    make_customer,
    make_failed,
    make_project,
    make_target,
    postback,
    record_postback,
)
from tests.support.fakes import FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, page_statements


def picked(*ids: str) -> dict[str, str]:
    """Return the check boxes of tickets as the list's form sends them."""
    return {export_id: queries.get(export_id).ticket_digest for export_id in ids}


def decided(person: ConsoleBrowser, path: str, **fields: str) -> Result:
    """Send a decision; return the page with its result."""
    response = person.post(path, **fields)
    assert response.status_code == 200, response.text
    return response


def test_a_summary_is_shown_before_anything_happens(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    target = make_target(customer)
    ids = [prepare("One", severity="high"), prepare("Two <b>", severity="low")]
    page = person.post("/inbox/review", action="approve", then="/inbox?severity=high,low", **picked(*ids))
    assert page.status_code == 200
    assert "Approve 2 tickets" in page.text
    assert "Two &lt;b&gt;" in page.text
    assert f'<option value="{target.id}" selected>' in page.text
    for export_id in ids:
        assert f'name="{export_id}" value="{queries.get(export_id).ticket_digest}"' in page.text
        assert queries.get(export_id).status is ExportStatus.PREPARED


@on_sqlite
@pytest.mark.parametrize("is_all", [False, True])
def test_the_summary_of_an_approval_reads_the_selection_once(
    person: ConsoleBrowser, prepare: Callable[..., str], is_all: bool
) -> None:
    fields = {"all": "yes"} if is_all else picked(prepare("One"), prepare("Two"))
    with page_statements() as ran:
        assert person.post("/inbox/review", action="approve", then="/inbox", **fields).status_code == 200
    asked = Counter((each.sql, repr(each.parameters)) for each in ran)
    assert [each for each, times in asked.items() if times > 1 and "exports" in each[0]] == []


def test_a_selection_from_projects_with_different_last_targets_has_none_preset(
    person: ConsoleBrowser, customer: Customer
) -> None:
    targets = {project_id: make_target(customer) for project_id in (customer.project_id, make_project(customer))}
    for project_id, target in targets.items():
        for code in ("first", "second"):
            posted = PostbackForm().read(postback(project_id, issues=[issue(code)]))
            record_postback(posted, project_id)
        [[approved]] = rows("SELECT id FROM exports WHERE project_id = ? ORDER BY id LIMIT 1", (project_id,))
        fields = {"action": "approve", "then": "/inbox", "target_id": target.id, **picked(approved)}
        person.keep_cookies(person.post("/inbox/decide", **fields))

    def preset(then: str, **fields: str) -> list[str]:
        page = person.post("/inbox/review", action="approve", then=then, **fields)
        return re.findall(r'<option value="(tgt_[^"]+)" selected>', page.text)

    first, second = (target.id for target in targets.values())
    waiting = rows("SELECT project_id, id FROM exports WHERE status = 'prepared' ORDER BY project_id")
    assert [preset("/inbox", **picked(export_id)) for _, export_id in waiting] == [[first], [second]]
    assert preset("/inbox", **picked(*(export_id for _, export_id in waiting))) == []
    assert preset("/inbox", all="yes") == []
    assert preset(f"/inbox?project_id={customer.project_id}", all="yes") == [first]


def test_a_selection_is_approved_except_tickets_changed_meanwhile_with_the_reason(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str], wake_ups: FakeWakeUpQueue
) -> None:
    target = make_target(customer)
    first, changed, strange = prepare("First"), prepare("Changed"), prepare("Strange", of=make_customer())
    fields = picked(first, strange)
    fields[changed] = "sha256:" + "0" * 64
    page = decided(person, "/inbox/decide", action="approve", target_id=target.id, then="/inbox?q=x", **fields)
    assert "1 ticket approved." in page.text
    assert f'href="/console/exports/{changed}"><bdi>Changed</bdi></a>: It changed meanwhile.' in page.text
    assert f"<bdi>{strange}</bdi></a>: {ExportNotFound().message}" in page.text
    # The Enter key follows this link.
    back = '<a class="button primary" href="/console/inbox?q=x" autofocus aria-describedby="result">Back to the list</a>'
    assert back in page.text
    assert queries.get(first).status is ExportStatus.APPROVED
    assert {queries.get(each).status for each in (changed, strange)} == {ExportStatus.PREPARED}
    assert wake_ups.notifications == 1
    # Sending the form again changes nothing more.
    again = decided(person, "/inbox/decide", action="approve", target_id=target.id, **picked(first))
    assert "0 tickets approved. 1 left as it was." in again.text
    assert queries.get(first).version == 2


@on_sqlite
def test_the_result_of_a_retry_names_the_fix_for_each_target(person: ConsoleBrowser, customer: Customer) -> None:
    stopped, removed = (make_target(customer).id for _ in range(2))
    failed = [make_failed(customer, each)[0] for each in (stopped, removed)]
    execute("UPDATE targets SET status = 'paused', status_reason = 'client' WHERE id <> ?", (removed,))
    changes.remove(removed, utc_now(), "user:1", customer.account_id)
    page = decided(person, "/deliveries/decide", action="retry", then="/deliveries", **picked(*failed)).text
    reasons = [each.partition("</bdi></a>: ")[2] for each in page.splitlines() if "</bdi></a>: " in each]
    assert reasons[0].startswith("This target is paused (client).")
    assert "To resume it:" in reasons[0]
    assert reasons[1].startswith(MESSAGES["target_removed"].partition("`")[0].partition("{")[0])


@on_sqlite
def test_a_selection_is_dismissed_with_a_reason_and_restored(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    ids = [prepare("One"), prepare("Two")]
    page = decided(person, "/inbox/decide", action="dismiss", reason="wont_fix", note="Old\r\nsite.", **picked(*ids))
    assert "2 tickets dismissed." in page.text
    dismissal = queries.get(ids[0]).dismissal
    assert dismissal is not None
    assert (dismissal.reason, dismissal.note) == (DismissalReason.WONT_FIX, "Old\nsite.")
    page = decided(person, "/inbox/decide", action="restore", then="/inbox?view=dismissed", **picked(*ids))
    assert "2 tickets restored." in page.text
    assert {queries.get(each).status for each in ids} == {ExportStatus.PREPARED}


@on_sqlite
def test_failed_deliveries_are_retried_together(
    person: ConsoleBrowser, customer: Customer, wake_ups: FakeWakeUpQueue
) -> None:
    ids = make_failed(customer, make_target(customer).id, 3)
    page = person.get("/deliveries", "view=failed")
    assert re.findall(r'name="action" value="(\w+)"', page.text) == ["retry"]
    page = decided(person, "/deliveries/decide", action="retry", then="/deliveries?view=failed", **picked(*ids))
    assert "3 tickets queued for retry." in page.text
    assert {queries.get(each).status for each in ids} == {ExportStatus.APPROVED}
    assert wake_ups.notifications == 1


def test_a_decision_on_all_matches_becomes_a_job_that_can_be_cancelled(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str], wake_ups: FakeWakeUpQueue
) -> None:
    target = make_target(customer)
    for number in range(3):
        prepare(f"High {number}", severity="high")
    low = prepare("Low", severity="low")
    summary = person.post("/inbox/review", action="approve", all="yes", then="/inbox?severity=high", **picked(low))
    assert "Approve 3 tickets" in summary.text
    assert "Low" not in summary.text.partition("<main")[2]
    assert 'name="expected_count" value="3"' in summary.text
    fields = {"action": "approve", "all": "yes", "then": "/inbox?severity=high", "target_id": target.id}
    response = person.post("/inbox/decide", expected_count="3", **fields)
    [(job_id,)] = rows("SELECT id FROM bulk_jobs")
    begun = f"/bulk-jobs/{job_id}?then=%2Finbox%3Fseverity%3Dhigh"
    assert response.headers["location"] == f"/console{begun}&done=bulk_job_begun"
    assert wake_ups.notifications == 1
    page = person.get(*begun.split("?"))
    assert '<progress max="3" value="0"' in page.text
    assert '<noscript><meta http-equiv="refresh"' in page.text
    execute("UPDATE bulk_jobs SET done = 2, changed = 1, errors = ? WHERE id = ?", ('{"changed": 1}', job_id))
    counted = person.get(f"/bulk-jobs/{job_id}").text
    assert "<dt>Left as it was</dt><dd>0</dd>" in counted
    assert "<dt>Left out</dt><dd>1<ul><li>1 · changed</li>" in counted
    cancel = f"/bulk-jobs/{job_id}/cancel"
    for _ in range(2):
        response = person.post(cancel, **shown_fields(page, cancel))
        assert response.headers["location"] == f"/console{begun}&done=bulk_job_cancelled"
    page = person.get(*begun.split("?"))
    assert ">cancelled<" in page.text
    assert 'href="/console/inbox?severity=high">Back to the inbox' in page.text
    assert 'href="/console/inbox">Back to the inbox' in person.get(f"/bulk-jobs/{job_id}", "then=//elsewhere.example").text
    assert "http-equiv" not in page.text


@on_sqlite
def test_the_summary_of_all_matching_tickets_names_their_projects(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def span(then: str, **fields: str) -> list[str]:
        page = person.post("/inbox/review", action="dismiss", then=then, **fields)
        return [re.sub("<[^>]+>", "", line) for line in re.findall(r"<p>(Projects?: .*)</p>", page.text)]

    by_hand = prepare("Of no project")
    assert span("/inbox", all="yes") == []
    first, second = customer.project_id, make_project(customer)
    execute("UPDATE projects SET name = 'Shop' WHERE id = ?", (first,))
    record_postback(PostbackForm().read(postback(1)), first)
    assert span("/inbox", all="yes") == ["Project: Shop"]
    record_postback(PostbackForm().read(postback(2)), second)
    assert span("/inbox", all="yes") == ["Projects: 2"]
    assert span(f"/inbox?project_id={first},{second}", all="yes") == ["Projects: 2"]
    assert span(f"/inbox?project_id={first}", all="yes") == ["Project: Shop"]
    assert span("/inbox", **picked(by_hand)) == []
    # Tickets of two clients, which would go to one target.
    selected = [export_id for (export_id,) in rows("SELECT id FROM exports")]
    assert span("/inbox", **picked(*selected)) == ["Projects: 2"]
    # Of many tickets, only the newest are counted.
    monkeypatch.setattr(export_list, "MAX_FACETED", 2)
    summary = person.post("/inbox/review", action="dismiss", then="/inbox", all="yes").text
    assert "Severities and projects of the newest 2 of them." in summary


@on_sqlite
def test_a_decision_on_a_changed_number_of_matches_shows_the_form_again_with_its_values(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    for number in range(3):
        prepare(f"High {number}", severity="high")
    fields = {"action": "dismiss", "all": "yes", "then": "/inbox?severity=high", "reason": "duplicate", "note": "Typed."}
    refused = person.post("/inbox/decide", expected_count="2", **fields)
    assert (refused.status_code, "Nothing was decided. 3 match now" in refused.text) == (409, True)
    again = shown_fields(refused, "/inbox/decide")
    assert again.items() >= {**fields, "expected_count": "3"}.items()
    assert person.post("/inbox/decide", **again).status_code == 303
    # Meanwhile all matching tickets were decided.
    execute("UPDATE exports SET status = 'dismissed', finished_at = 1")
    gone = person.post("/inbox/decide", **again)
    assert (gone.status_code, 'href="/console/inbox?severity=high">Back to the list' in gone.text) == (409, True)


@on_sqlite
def test_more_matches_than_a_job_accepts_cannot_be_selected_together(
    person: ConsoleBrowser, prepare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_list, "count", partial(export_list.count, limit=2))
    monkeypatch.setattr(ticket_list, "MAX_COUNTED", 2)
    for number in range(2):
        prepare(f"Ticket {number}")
    assert '<input type="checkbox" name="all" value="yes"> select all 2 that match</label>' in person.get("/inbox").text
    prepare("One more")
    page = person.get("/inbox").text
    assert ('name="all"' in page, "filter the list to at most 2" in page) == (False, True)
    page = person.post("/inbox/review", action="dismiss", all="yes", then="/inbox").text
    assert MESSAGES["too_many_matches"].partition(";")[0] in page


@on_sqlite
def test_a_job_omits_snoozed_and_fixed_tickets_like_the_list(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    ids = [prepare(f"Ticket {number}") for number in range(3)]
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (ids[0],))
    fields = {"action": "dismiss", "all": "yes", "then": "/inbox", "reason": "test"}
    assert person.post("/inbox/decide", expected_count="2", **fields).status_code == 303
    assert {export_id for (export_id,) in rows("SELECT export_id FROM bulk_job_items")} == set(ids[1:])


@on_sqlite
def test_a_decision_on_all_matches_accepts_a_long_filter(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    rules = [f"{number} " + "Ё" * 198 for number in range(2)]
    body = postback(customer.project_id, issues=[issue(code=rule, location=rule) for rule in rules])
    record_postback(PostbackForm().read(body), customer.project_id)
    prepare("Another")
    then = f"/inbox?{urlencode({'rule': ','.join(rules)})}"
    page = person.post("/inbox/review", action="dismiss", all="yes", then=then)
    assert (page.status_code, "Dismiss 2 tickets" in page.text) == (200, True)


@on_sqlite
@pytest.mark.parametrize("then", ["/deliveries?status=failed", "/inbox?q=" + "x" * 8000, "https://example.com/inbox"])
@pytest.mark.parametrize("verb", ["review", "decide"])
def test_a_decision_on_all_matches_of_an_unknown_list_is_refused(
    verb: str, then: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare()
    fields = {"action": "dismiss", "all": "yes", "reason": "test", "expected_count": "1"}
    page = person.post(f"/inbox/{verb}", then=then, **fields)
    assert (page.status_code, ">Then: " in page.text) == (422, True)
    assert queries.get(export_id).status is ExportStatus.PREPARED


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"action": "explode"}, "Action"),
        ({"action": ""}, "Action"),
        ({"action": "dismiss", "then": "/inbox?severity=grave"}, "Severity"),
    ],
)
def test_a_bad_selection_is_refused(
    fields: dict[str, str], name: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare()
    page = person.post("/inbox/decide", **{**picked(export_id), **fields})
    assert (page.status_code, f">{name}: " in page.text) == (422, True)
    assert queries.get(export_id).status is ExportStatus.PREPARED


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "approve"}, 'id="problem-target_id"'),
        ({"reason": "boring"}, 'id="problem-reason"'),
        ({"note": "x" * 2001}, 'id="problem-note"'),
    ],
)
def test_a_refused_decision_keeps_the_selection_and_what_was_typed(
    fields: dict[str, str], message: str, person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    make_target(customer)
    export_id = prepare()
    given = {
        **picked(export_id),
        "action": "dismiss",
        "reason": "duplicate",
        "note": "Typed.",
        "then": "/inbox?view=waiting",
    }
    page = person.post("/inbox/decide", **{**given, **fields})
    assert (page.status_code, message in page.text, "Nothing was decided." in page.text) == (422, True, True)
    again = shown_fields(page, "/inbox/decide")
    assert again.items() >= {"then": "/inbox?view=waiting", **({} if "all" in fields else picked(export_id))}.items()
    if fields.get("action") != "approve":
        assert again["note"] == fields.get("note", "Typed.")
        assert again["reason"] == ("false_positive" if "reason" in fields else "duplicate")
    assert queries.get(export_id).status is ExportStatus.PREPARED


@on_sqlite
def test_an_empty_selection_is_reported(person: ConsoleBrowser) -> None:
    page = person.post("/inbox/review", action="approve")
    assert (page.status_code, "No ticket is selected." in page.text) == (200, True)
    assert person.post("/inbox/decide", action="dismiss").status_code == 422


@on_sqlite
def test_a_page_of_tickets_fits_one_form(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    ids = [prepare(f"Ticket {number}") for number in range(50)]
    page = decided(person, "/inbox/decide", action="dismiss", reason="other", **picked(*ids))
    assert "50 tickets dismissed." in page.text
    assert all(each.dismissal and each.dismissal.at and each.dismissal.at <= utc_now() for each in map(queries.get, ids))


def test_a_summary_counts_the_tickets_that_are_still_there(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    ids = [prepare("Stays"), prepare("Goes")]
    fields = picked(*ids)
    assert person.post(f"/exports/{ids[1]}/dismiss").status_code == 303
    page = person.post("/inbox/review", action="dismiss", **fields)
    assert "<h1><bdi>Dismiss 1 ticket</bdi></h1>" in page.text
    assert '<button class="danger">Dismiss 1 ticket</button>' in page.text
    assert "1 of the selected tickets changed meanwhile, and is left out." in page.text
    assert (f'name="{ids[0]}"' in page.text, f'name="{ids[1]}"' in page.text) == (True, False)
    assert person.post(f"/exports/{ids[0]}/dismiss").status_code == 303
    assert "Your selection changed meanwhile" in person.post("/inbox/review", action="dismiss", **fields).text


@on_sqlite
def test_a_selected_ticket_that_moved_to_the_next_page_is_still_decided(
    person: ConsoleBrowser, prepare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticket_list, "PAGE_ROWS", 0)
    fields = picked(prepare("Severe", severity="high"), prepare("Moved", severity="low"))
    page = person.post("/inbox/review", action="dismiss", **fields)
    assert ("Dismiss 2 tickets" in page.text, "changed meanwhile" in page.text) == (True, False)
