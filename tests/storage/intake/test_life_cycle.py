"""How postbacks change known findings: fixed, open again, counted in their exports, however postbacks race."""

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schemas.base.timestamps import to_ms
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll
from schemas.exports.state_machine import ExportStatus
from schemas.findings.life_cycle import FindingState, LifeCycle, RunOutcome, after_miss, after_report
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm
from schemas.triage.bulk_decisions import ExportReference
from schemas.triage.decision_forms import DismissalRequest
from schemas.triage.finding_filter import FindingQuery
from storage.accounts import projects
from storage.db.engine import connection, execute, rows
from storage.db.models import ExportRow, FindingRow
from storage.exports import queries, transitions
from storage.intake import finding_history, finding_list, findings
from storage.intake.options import IntakeOptions
from storage.reporting import finding_trends, menu_counts
from storage.targets import changes, targets
from storage.triage import decisions, targeting
from tests.support.database.query_plans import statements
from tests.support.factories import LOOPBACK_POLICY, NOW, Customer, issue, make_target, postback

PAGE = "https://shop.example/cart"


def post(
    customer: Customer,
    run: int,
    *issues: str | Mapping[str, Any],
    url: str = PAGE,
    status: str = "completed",
    fixed_after_runs: int = 2,
    **page: Any,
) -> PostbackResult:
    given = [issue(each) if isinstance(each, str) else each for each in issues]
    body = postback(run, given, page={"url": url, **page}, status=status)
    prepared = findings.prepare_postback(PostbackForm().read(body), customer.project_id)
    at = NOW + timedelta(minutes=run)
    options = IntakeOptions(fixed_after_runs=fixed_after_runs)
    return findings.record(prepared, customer.project_id, at, "scanner", options)


def counts(result: PostbackResult) -> tuple[int, int, int, int]:
    return result.new, result.seen, result.fixed, result.reopened


def life_cycles() -> dict[str, tuple[int, bool, int]]:
    found = rows("SELECT code, missed_runs, fixed_at IS NOT NULL, times_reopened FROM findings ORDER BY code")
    return {code: (missed, bool(fixed), reopened) for code, missed, fixed, reopened in found}


def history(code: str) -> list[tuple[int, str]]:
    found = rows(
        "SELECT s.scan_run_id, s.outcome FROM finding_sightings s JOIN findings f ON f.id = s.finding_id "
        "WHERE f.code = ? ORDER BY 1",
        (code,),
    )
    return [(run, outcome) for run, outcome in found]


def deliver(customer: Customer, export_id: str) -> None:
    target = make_target(customer, "http://127.0.0.1:9/hook")
    approval = Approval(target.id, None)
    transitions.approve(export_id, customer.account_id, approval, NOW, "user:1", LOOPBACK_POLICY)
    execute("UPDATE exports SET status = 'exported', due_at = NULL, finished_at = ? WHERE id = ?", (to_ms(NOW), export_id))


def by_rule(customer: Customer) -> None:
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")


def test_a_finding_is_fixed_by_the_second_run_that_does_not_report_it(customer: Customer) -> None:
    assert counts(post(customer, 1, "csp", "img-alt")) == (2, 0, 0, 0)
    assert counts(post(customer, 2, "img-alt")) == (0, 1, 0, 0)
    assert life_cycles() == {"csp": (1, False, 0), "img-alt": (0, False, 0)}
    assert counts(post(customer, 3, "img-alt")) == (0, 1, 1, 0)
    assert counts(post(customer, 4, "img-alt")) == (0, 1, 0, 0)
    assert rows("SELECT fixed_at FROM findings WHERE code = 'csp'") == [(to_ms(NOW + timedelta(minutes=3)),)]
    assert history("csp") == [(1, "seen"), (2, "missed"), (3, "fixed")]
    assert history("img-alt") == [(run, "seen") for run in (1, 2, 3, 4)]


def test_a_page_without_issues_counts_as_a_visit(customer: Customer) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    post(customer, 2)
    assert queries.get(export_id).findings == (1, 0)
    assert counts(post(customer, 3)) == (0, 0, 1, 0)
    export = queries.get(export_id)
    assert (export.findings, export.version, export.status) == ((1, 1), 2, "prepared")


#: How a run checks the page without reporting the finding, and whether the run counts.
VISITS: dict[str, tuple[dict[str, Any], bool]] = {
    "without a status code": ({}, True),
    "200": ({"statusCode": 200}, True),
    "not found": ({"statusCode": 404}, False),
    "moved": ({"statusCode": 301}, False),
    "failed": ({"status": "failed"}, False),
    "cancelled": ({"status": "cancelled"}, False),
    "partial": ({"status": "partial"}, False),
    "running": ({"status": "running"}, False),
    "with its rule": ({"rules": ["img-alt", "csp"]}, True),
    "with the beginning of its rule": ({"rules": ["cs*"]}, True),
    "with other rules": ({"rules": ["img-alt"]}, False),
    "without rules": ({"rules": []}, False),
    "by another URL of the page": ({"url": f"{PAGE}?utm_source=mail"}, True),
    "by its normalized URL": ({"url": "https://cdn.example/x", "normalizedUrl": PAGE}, True),
    "another page": ({"url": "https://shop.example/"}, False),
}


@pytest.mark.parametrize("name", VISITS)
def test_only_completed_runs_that_checked_the_page_for_the_rule_count_as_missed(customer: Customer, name: str) -> None:
    visit, is_counted = VISITS[name]
    post(customer, 1, "csp")
    post(customer, 2, **visit)
    assert life_cycles() == {"csp": (1 if is_counted else 0, False, 0)}
    # A run that does not count does not reset the count either.
    post(customer, 3)
    post(customer, 4, **visit)
    assert life_cycles()["csp"][1] is True if is_counted else life_cycles() == {"csp": (1, False, 0)}


def test_a_run_counts_once_however_often_it_posts_between_other_runs(customer: Customer) -> None:
    post(customer, 1, "csp", fixed_after_runs=3)
    for run in (2, 2, 3, 2, 3, 1):
        post(customer, run, fixed_after_runs=3)
    assert life_cycles() == {"csp": (2, False, 0)}
    assert counts(post(customer, 4, fixed_after_runs=3)) == (0, 0, 1, 0)


def test_a_run_that_posts_a_page_in_parts_reverts_its_own_fix(customer: Customer) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    post(customer, 2)
    assert counts(post(customer, 3, "img-alt")) == (1, 0, 1, 0)
    assert counts(post(customer, 3, "csp")) == (0, 1, 0, 0)
    assert life_cycles()["csp"] == (0, False, 0)
    assert history("csp") == [(1, "seen"), (2, "missed"), (3, "seen")]
    assert queries.get(export_id).findings == (1, 0)


def test_a_finding_that_is_reported_again_is_open_and_so_is_its_ticket(customer: Customer) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    post(customer, 2)
    post(customer, 3)
    assert menu_counts.count(customer.account_id, NOW).inbox == 0
    result = post(customer, 4, "csp")
    assert (counts(result), result.ticket_exports) == ((0, 0, 0, 1), ())
    # Another postback of the same run changes nothing.
    assert counts(post(customer, 4, "csp")) == (0, 1, 0, 0)
    assert life_cycles() == {"csp": (0, False, 1)}
    assert history("csp") == [(1, "seen"), (2, "missed"), (3, "fixed"), (4, "reopened")]
    assert queries.get(export_id).findings == (1, 0)
    assert menu_counts.count(customer.account_id, NOW).inbox == 1


def test_a_fix_that_another_run_reverted_stays_in_history_and_trends(customer: Customer) -> None:
    post(customer, 1, "csp")
    for run in (2, 3):
        post(customer, run)
    assert counts(post(customer, 4, "csp")) == (0, 0, 0, 1)
    # Run 3 continues in parallel with run 4.
    assert counts(post(customer, 3, "csp")) == (0, 1, 0, 0)
    assert history("csp") == [(1, "seen"), (2, "missed"), (3, "fixed"), (4, "reopened")]
    [day] = finding_trends.read_trend(customer.account_id, None, NOW.replace(hour=0), 1).days
    assert (day.changes, day.unfixed) == ({"new": 1, "fixed": 1, "reopened": 1}, {"high": 1})


def test_tickets_of_reopened_findings_are_written_before_the_transaction(customer: Customer) -> None:
    # The first export gets an event, the others get new tickets.
    first, *others = post(customer, 1, *map(str, range(8))).ticket_exports
    for each in (first, *others):
        deliver(customer, each)
    execute("UPDATE exports SET events = '[\"ticket.reopened\"]' WHERE id = ?", (first,))
    execute("UPDATE targets SET events = '[\"ticket.reopened\"]'")
    for run in (2, 3):
        post(customer, run)
    again = PostbackForm().read(postback(4, [issue(str(each)) for each in range(8)], page={"url": PAGE}))
    early = findings.prepare_postback(again, customer.project_id)
    assert len(early.tickets) == len(others)
    marked = {mark: (made, replace(text, digest="written before")) for mark, (made, text) in early.tickets.items()}
    # Meanwhile, one of the findings was moved to another ticket.
    execute("UPDATE findings SET export_id = ? WHERE export_id = ?", (others[0], others[1]))
    result = findings.record(replace(early, tickets=marked), customer.project_id, NOW, "scanner")
    assert counts(result) == (0, 0, 0, 8)
    renewed = [queries.get(each) for each in result.ticket_exports]
    assert Counter(each.ticket_digest == "written before" for each in renewed) == {True: 6, False: 1}
    earlier = Counter(each.ticket["description"].partition("Its earlier ticket: ")[2][:30] for each in renewed)
    assert earlier == {others[0]: 2} | dict.fromkeys(others[2:], 1)


def test_after_its_ticket_was_delivered_a_new_export_names_the_earlier_one(customer: Customer) -> None:
    first, other = post(customer, 1, issue("csp", description=""), "img-alt").ticket_exports
    deliver(customer, first)
    post(customer, 2, "img-alt")
    post(customer, 3, "img-alt")
    result = post(customer, 4, issue("csp", description=""), "img-alt")
    [second] = result.ticket_exports
    assert second not in {first, other}
    assert counts(result) == (0, 1, 0, 1)
    export = queries.get(second)
    assert (export.status, export.findings, export.source.scan_run_id) == ("prepared", (1, 0), 4)
    lead = f"Image without alternative text\n\nThis was fixed, and is reported again. Its earlier ticket: {first}."
    assert export.ticket["description"].startswith(lead)
    assert queries.get(first).findings == (1, 1)
    assert rows("SELECT export_id FROM findings WHERE code = 'csp'") == [(second,)]
    # The finding is fixed and reported once more before the second ticket is delivered.
    for run in (5, 6):
        post(customer, run)
    assert post(customer, 7, "csp").ticket_exports == ()
    assert queries.get(second).findings == (1, 0)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_the_new_export_has_the_highest_severity_that_was_reported(customer: Customer, is_grouped: bool) -> None:
    if is_grouped:
        by_rule(customer)
    [first] = post(customer, 1, issue("csp", severity="critical")).ticket_exports
    deliver(customer, first)
    post(customer, 2)
    post(customer, 3)
    [second] = post(customer, 4, issue("csp", severity="low")).ticket_exports
    assert (queries.get(second).severity, rows("SELECT severity FROM findings")) == ("critical", [("critical",)])


def test_the_history_has_the_time_at_which_a_run_reopened_a_finding(customer: Customer) -> None:
    post(customer, 1, "csp")
    post(customer, 2)
    post(customer, 3)
    # The first run posts its page once more.
    body = postback(1, [issue("csp")], page={"url": PAGE})
    prepared = findings.prepare_postback(PostbackForm().read(body), customer.project_id)
    findings.record(prepared, customer.project_id, NOW + timedelta(days=5), "scanner")
    [again] = rows("SELECT seen_at FROM finding_sightings WHERE outcome = 'reopened'")
    assert again == (to_ms(NOW + timedelta(days=5)),)


def test_the_history_of_a_finding_begins_with_the_latest_run_whatever_its_number(customer: Customer) -> None:
    for minute, run in enumerate((900, 7, 500)):
        body = PostbackForm().read(postback(run, [issue("csp")] if run == 900 else [], page={"url": PAGE}))
        findings.record(
            findings.prepare_postback(body, None), customer.project_id, NOW + timedelta(minutes=minute), "scanner"
        )
    [(finding_id,)] = rows("SELECT id FROM findings")
    assert [each.scan_run_id for each in finding_history.list_runs(finding_id, 2)] == [500, 7]


def test_a_finding_whose_export_was_deleted_gets_a_new_one(customer: Customer) -> None:
    post(customer, 1, "csp")
    execute("DELETE FROM exports")
    for run in (2, 3):
        post(customer, run)
    [export_id] = post(customer, 4, "csp").ticket_exports
    assert queries.get(export_id).findings == (1, 0)


def test_a_dismissed_finding_may_be_fixed_and_stays_dismissed_when_it_comes_back(customer: Customer) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    decisions.dismiss(export_id, None, NOW, "test")
    post(customer, 2)
    assert counts(post(customer, 3)) == (0, 0, 1, 0)
    result = post(customer, 4, "csp")
    assert (counts(result), result.ticket_exports) == ((0, 0, 0, 1), ())
    assert queries.get(export_id).status == "dismissed"


def test_all_exports_of_one_ticket_count_its_findings(customer: Customer) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    targets = tuple(make_target(customer, f"http://127.0.0.1:9/{number}").id for number in range(2))
    exports = targeting.approve_for_all(
        export_id, customer.account_id, ApprovalForAll(targets, None), NOW, "user:1", LOOPBACK_POLICY
    )
    for run in (2, 3):
        post(customer, run)
    assert [queries.get(each.id).findings for each in exports] == [(1, 1), (1, 1)]
    post(customer, 4, "csp")
    assert [queries.get(each.id).findings for each in exports] == [(1, 0), (1, 0)]


# --- groups


def test_a_group_is_open_until_all_its_findings_are_fixed(customer: Customer) -> None:
    by_rule(customer)
    [group] = post(customer, 1, "csp").ticket_exports
    post(customer, 1, "csp", url="https://shop.example/a")
    for run in (2, 3):
        post(customer, run)
    assert queries.get(group).findings == (2, 1)
    assert post(customer, 3, "csp", url="https://shop.example/b").ticket_exports == (group,)
    for run in (4, 5):
        for page in "ab":
            post(customer, run, url=f"https://shop.example/{page}")
    closed = queries.get(group)
    assert (closed.findings, closed.status) == ((3, 3), "prepared")
    assert menu_counts.count(customer.account_id, NOW).inbox == 0
    [second] = post(customer, 6, "csp", url="https://shop.example/c").ticket_exports
    assert second != group


def test_a_group_whose_last_place_is_fixed_as_another_one_joins_is_open(customer: Customer) -> None:
    by_rule(customer)
    for is_delivered in (False, True):
        code = f"csp-{is_delivered}"
        [export_id] = post(customer, 1, issue(code, location="a")).ticket_exports
        if is_delivered:
            deliver(customer, export_id)
        post(customer, 2)
        assert counts(post(customer, 3, issue(code, location="b"))) == (1, 0, 1, 0)
        assert queries.get(export_id).findings == (2, 1)
        post(customer, 3, issue(code, location="c"), url=f"{PAGE}/other")
        assert queries.get(export_id).findings == (3, 1)


def test_a_restored_group_whose_places_are_all_fixed_stays_closed(customer: Customer) -> None:
    by_rule(customer)
    [export_id] = post(customer, 1, "csp").ticket_exports
    decisions.dismiss(export_id, None, NOW, "user:1")
    for run in (2, 3):
        post(customer, run)
    decisions.restore(export_id, None, NOW, "user:1")
    assert rows("SELECT open_group FROM exports") == [(None,)]
    post(customer, 4, "csp")
    assert rows("SELECT open_group FROM exports") == [("csp",)]


def test_a_group_that_waits_is_open_again_with_its_finding(customer: Customer) -> None:
    by_rule(customer)
    [group] = post(customer, 1, "csp").ticket_exports
    for run in (2, 3):
        post(customer, run)
    assert post(customer, 4, "csp").ticket_exports == ()
    assert post(customer, 4, "csp", url="https://shop.example/a").ticket_exports == (group,)
    assert queries.get(group).findings == (2, 0)


def test_only_one_of_two_groups_of_a_rule_is_open(customer: Customer) -> None:
    by_rule(customer)
    [first] = post(customer, 1, "csp").ticket_exports
    for run in (2, 3):
        post(customer, run)
    [second] = post(customer, 4, "csp", url="https://shop.example/a").ticket_exports
    post(customer, 5, "csp")
    assert [queries.get(each).findings for each in (first, second)] == [(1, 0), (1, 0)]
    assert rows("SELECT id FROM exports WHERE open_group = 'csp'") == [(second,)]


def test_a_group_is_reopened_even_if_another_place_is_fixed_at_the_same_time(customer: Customer) -> None:
    by_rule(customer)
    first, second = (issue("csp", location=place) for place in "ab")
    [group] = post(customer, 1, first, second).ticket_exports
    for run in (2, 3):
        post(customer, run)
    # Another group keeps the first one closed until its own place is fixed.
    post(customer, 3, "csp", url="https://shop.example/other")
    post(customer, 4, first)
    for run in (4, 5):
        post(customer, run, url="https://shop.example/other")
    post(customer, 5)
    version = queries.get(group).version
    assert counts(post(customer, 6, second)) == (0, 0, 1, 1)
    assert queries.get(group).findings == (2, 1)
    assert queries.get(group).version > version
    assert rows("SELECT id FROM exports WHERE open_group = 'csp'") == [(group,)]


def test_if_groups_of_a_rule_are_restored_together_the_newest_is_open(customer: Customer) -> None:
    by_rule(customer)
    groups: list[ExportReference] = []
    for run, page in enumerate("ab", 1):
        [export_id] = post(customer, run, "csp", url=f"https://shop.example/{page}").ticket_exports
        groups.append(ExportReference(export_id))
        transitions.dismiss_many(groups[-1:], customer.account_id, NOW, "user:1", DismissalRequest(DismissalReason.OTHER))
    decisions.restore_many(groups[::-1], customer.account_id, NOW, "user:1")
    assert rows("SELECT id FROM exports WHERE open_group = 'csp'") == [(groups[1].id,)]


def test_a_group_that_is_open_again_has_the_severity_of_a_place_that_became_more_severe(customer: Customer) -> None:
    by_rule(customer)
    [group] = post(customer, 1, issue("csp", severity="low")).ticket_exports
    for run in (2, 3):
        post(customer, run)
    assert post(customer, 4, issue("csp", severity="critical")).ticket_exports == (group,)
    export = queries.get(group)
    assert (export.severity, export.ticket["severity"], export.findings) == ("critical", "critical", (1, 0))
    assert rows("SELECT open_group FROM exports") == [("csp",)]
    assert post(customer, 5, issue("csp", severity="critical")).ticket_exports == ()


def test_a_closed_group_beside_an_open_one_gets_the_higher_severity_and_stays_closed(customer: Customer) -> None:
    by_rule(customer)
    [first] = post(customer, 1, issue("csp", severity="low")).ticket_exports
    for run in (2, 3):
        post(customer, run)
    [second] = post(customer, 3, "csp", url="https://shop.example/other").ticket_exports
    assert post(customer, 4, issue("csp", severity="critical")).ticket_exports == (first,)
    assert rows("SELECT id FROM exports WHERE open_group = 'csp'") == [(second,)]
    assert queries.get(first).severity == "critical"


@pytest.mark.parametrize("is_closed", [True, False], ids=["all fixed", "one still open"])
def test_reopened_places_of_a_delivered_group_share_a_new_export(customer: Customer, is_closed: bool) -> None:
    by_rule(customer)
    [first] = post(customer, 1, "csp").ticket_exports
    for page in "ab":
        post(customer, 1, "csp", url=f"https://shop.example/{page}")
    deliver(customer, first)
    for run in (2, 3):
        post(customer, run)
        post(customer, run, url="https://shop.example/a")
        post(customer, run, *([] if is_closed else ["csp"]), url="https://shop.example/b")
    [second] = post(customer, 4, "csp", issue("csp", location="footer")).ticket_exports
    assert second != first
    assert post(customer, 4, "csp", url="https://shop.example/a").ticket_exports == (second,)
    assert queries.get(first).findings == (3, 3 if is_closed else 2)
    again = queries.get(second)
    assert again.findings == (3, 0)
    assert f"Its earlier ticket: {first}." in again.ticket["description"]
    assert len(again.ticket["evidence"]["places"]) == 3
    assert rows("SELECT COUNT(*) FROM findings WHERE export_id = ?", (second,)) == [(3,)]


@pytest.mark.parametrize("is_removed", [False, True])
def test_new_places_of_a_rule_whose_target_is_gone_begin_a_new_group(customer: Customer, is_removed: bool) -> None:
    by_rule(customer)
    [delivered] = post(customer, 1, "csp").ticket_exports
    deliver(customer, delivered)
    home = "https://shop.example/home"
    assert post(customer, 2, "csp", url=home).ticket_exports == ()
    target_id = str(queries.get(delivered).target_id)
    if is_removed:
        changes.remove(target_id, NOW, "user:1")
    else:
        targets.change_status(target_id, "disable", NOW, "user:1")
    [begun] = post(
        customer, 3, "csp", {**issue("csp"), "location": "footer"}, {**issue("csp"), "location": "nav"}
    ).ticket_exports
    assert (queries.get(delivered).findings, queries.get(begun).findings) == ((2, 0), (2, 0))
    assert post(customer, 4, "csp", url=f"{home}/2").ticket_exports == (begun,)


def test_an_approved_group_that_was_not_delivered_yet_keeps_its_findings(customer: Customer) -> None:
    by_rule(customer)
    [group] = post(customer, 1, "csp").ticket_exports
    target = make_target(customer, "http://127.0.0.1:9/hook")
    approval = Approval(target.id, queries.get(group).ticket_digest)
    transitions.approve(group, customer.account_id, approval, NOW, "user:1", LOOPBACK_POLICY)
    for run in (2, 3):
        post(customer, run)
    assert post(customer, 4, "csp").ticket_exports == ()
    assert (queries.get(group).findings, queries.get(group).status) == ((1, 0), "approved")
    assert rows("SELECT open_group FROM exports") == [("csp",)]


# --- random sequences, races, costs


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_postbacks_agrees_with_the_rules_of_life_cycles(customer: Customer, seed: int) -> None:
    chance, codes = random.Random(seed), ["a", "b", "c"]
    post(customer, 1, *codes)
    expected = dict.fromkeys(codes, LifeCycle())
    outcomes: dict[str, dict[int, RunOutcome]] = {code: {1: RunOutcome.SEEN} for code in codes}
    fixed_by: dict[str, int] = {}
    for _ in range(40):
        run = chance.randint(1, 6)
        reported = [code for code in codes if chance.random() < 0.4]
        post(customer, run, *reported)
        for code in codes:
            own, before = outcomes[code].get(run), expected[code]
            if code in reported:
                after, outcome = after_report(before, own, has_fixed=fixed_by.get(code) == run)
            else:
                after, missed = after_miss(before, own, 2)
                outcome = missed or RunOutcome.FIXED
                if missed is None:
                    continue
            expected[code], outcomes[code][run] = after, outcome
            if after.is_fixed and not before.is_fixed:
                fixed_by[code] = run
    assert life_cycles() == {code: (each.missed_runs, each.is_fixed, each.times_reopened) for code, each in expected.items()}
    assert {code: dict(history(code)) for code in codes} == {code: dict(found) for code, found in outcomes.items()}
    require_counted()


def require_counted() -> None:
    """Require that the counts of every export match its findings."""
    found = rows(
        "SELECT e.id, e.findings_total, e.findings_fixed, COUNT(*), COUNT(f.fixed_at) "
        "FROM exports e JOIN findings f ON f.export_id = e.id GROUP BY e.id, e.findings_total, e.findings_fixed"
    )
    assert found
    for _, total, fixed, stored, stored_fixed in found:
        assert (total, fixed) == (stored, stored_fixed)


@pytest.mark.parametrize("grouping", TicketGrouping)
def test_runs_that_post_the_same_pages_at_once_count_each_once(customer: Customer, grouping: TicketGrouping) -> None:
    projects.set_ticket_grouping(customer.project_id, None, grouping, NOW, "test")
    codes, pages = ["a", "b", "c", "d"], ["x", "y"]
    for page in pages:
        post(customer, 1, *codes, url=f"https://shop.example/{page}")
    start = threading.Barrier(6)

    def race(run: int) -> None:
        chance = random.Random(run)
        with connection():
            start.wait()
            for _ in range(6):
                url = f"https://shop.example/{chance.choice(pages)}"
                post(customer, run, *chance.sample(codes, 2), url=url, fixed_after_runs=3)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(race, range(2, 8)))
    require_counted()
    missed = Counter(dict(rows("SELECT finding_id, COUNT(*) FROM finding_sightings WHERE outcome <> 'seen' GROUP BY 1")))
    for finding_id, missed_runs in rows("SELECT id, missed_runs FROM findings WHERE fixed_at IS NULL"):
        assert missed_runs <= missed[finding_id]


@pytest.mark.parametrize("grouping", TicketGrouping)
def test_a_run_that_posts_its_pages_at_once_counts_each_once(customer: Customer, grouping: TicketGrouping) -> None:
    """On PostgreSQL, the postbacks of a run share its row, and a page may report findings of another page."""
    projects.set_ticket_grouping(customer.project_id, None, grouping, NOW, "test")
    codes, pages = ["a", "b", "c", "d"], [f"https://shop.example/{page}" for page in "xyz"]
    for page in pages:
        post(customer, 1, *codes, url=page)

    def race(number: int) -> None:
        chance = random.Random(number)
        with connection():
            for run in range(2, 7):
                start.wait(20)
                elsewhere = [{**issue(code), "url": chance.choice(pages)} for code in chance.sample(codes, 2)]
                try:
                    post(customer, run, *elsewhere, url=pages[number % len(pages)])
                except BaseException:
                    start.abort()
                    raise

    start = threading.Barrier(6)
    with ThreadPoolExecutor(6) as threads:
        posted = [threads.submit(race, number) for number in range(6)]
    failed = [
        error for each in posted if (error := each.exception()) and not isinstance(error, threading.BrokenBarrierError)
    ]
    assert not failed
    require_counted()


def test_one_finding_costs_as_many_statements_as_many(customer: Customer) -> None:
    def asked(run: int, codes: Sequence[str]) -> int:
        url = f"https://shop.example/{len(codes)}"
        for before in (run, run + 1):
            post(customer, before, *(codes if before == run else ()), url=url)
        with statements() as found:
            assert post(customer, run + 2, url=url).fixed == len(codes)
        with statements() as again:
            assert post(customer, run + 3, *codes, url=url).reopened == len(codes)
        return len(found) + len(again)

    assert asked(10, ["a"]) == asked(20, [f"rule-{chr(97 + number)}" for number in range(4)])


def test_the_other_findings_of_a_page_are_those_that_are_not_fixed(customer: Customer) -> None:
    post(customer, 1, "a", "b", "c")
    for run in (2, 3):
        post(customer, run, "a", "b")
    [(finding_id,)] = rows("SELECT id FROM findings WHERE code = 'a'")
    [(other_id,)] = rows("SELECT id FROM findings WHERE code = 'b'")
    assert [each.id for each in finding_history.list_others_of_page(finding_id, 10)] == [other_id]


@pytest.mark.parametrize(
    ("is_fixed", "ticket", "is_snoozed", "state"),
    [
        (False, ExportStatus.PREPARED, False, FindingState.OPEN),
        (False, ExportStatus.EXPORTED, False, FindingState.OPEN),
        (False, None, False, FindingState.OPEN),
        (False, ExportStatus.DISMISSED, False, FindingState.DISMISSED),
        (False, ExportStatus.PREPARED, True, FindingState.SNOOZED),
        # An approval ends a snooze.
        (False, ExportStatus.APPROVED, True, FindingState.OPEN),
        (True, ExportStatus.PREPARED, True, FindingState.FIXED),
        (True, ExportStatus.DISMISSED, False, FindingState.FIXED),
        (True, None, False, FindingState.FIXED),
    ],
)
def test_the_state_of_a_finding_follows_its_fix_its_ticket_and_its_snooze(
    customer: Customer, is_fixed: bool, ticket: ExportStatus | None, is_snoozed: bool, state: FindingState
) -> None:
    [export_id] = post(customer, 1, "csp").ticket_exports
    FindingRow.update(fixed_at=NOW if is_fixed else None).execute()
    if ticket is None:
        FindingRow.update(export_id=None).execute()
    else:
        frozen = {
            "target": make_target(customer, "http://127.0.0.1:9/hook").id,
            "body": b"{}",
            "due_at": NOW if ticket is ExportStatus.APPROVED else None,
        }
        snoozed_at = NOW if is_snoozed else None
        ExportRow.update(status=ticket, snoozed_at=snoozed_at, **frozen).where(ExportRow.id == export_id).execute()
    [listed] = finding_list.list_page(FindingQuery(customer.account_id), NOW, 10)
    assert listed == finding_list.get(listed.id, customer.account_id, NOW)
    assert listed.state is state
