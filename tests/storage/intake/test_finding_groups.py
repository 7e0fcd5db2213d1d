"""In a project that groups by rule, findings of a rule share a ticket while its group is open, however postbacks race."""

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from schemas.base.errors import Conflict
from schemas.exports.decisions import DismissalReason
from schemas.exports.record import Approval, ApprovalForAll, Export
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import digest
from schemas.intake.fingerprint import PostbackResult
from schemas.intake.grouping import TicketGrouping
from schemas.intake.scanner import PostbackForm, ScanPostback
from schemas.triage.bulk_decisions import ExportReference
from schemas.triage.decision_forms import Edit
from schemas.triage.export_filter import ExportQuery
from storage.accounts import projects
from storage.db.engine import connection, execute, rows
from storage.exports import queries, transitions
from storage.exports.search import export_list
from storage.intake import findings
from storage.triage import decisions, splits, targeting
from tests.support.factories import (
    LOOPBACK_POLICY,
    NOW,
    Customer,
    issue,
    make_customer,
    make_target,
    postback,
    record_postback,
)


@pytest.fixture
def customer(customer: Customer) -> Customer:
    """The usual customer; the project groups findings by rule."""
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    return customer


def read(page: str, issues: Sequence[Mapping[str, Any]], scan_run_id: int = 1) -> ScanPostback:
    body = postback(scan_run_id, list(issues), page={"url": f"https://shop.example/{page}"})
    checked: ScanPostback = PostbackForm().read(body)
    return checked


def post(customer: Customer, page: str, *issues: str | Mapping[str, Any], run: int = 1, hours: int = 0) -> PostbackResult:
    given = [issue(each) if isinstance(each, str) else each for each in issues]
    return record_postback(read(page, given, run), customer.project_id, NOW + timedelta(hours=hours))


def approve(export: Export, customer: Customer) -> Export:
    target = make_target(customer)
    approval = Approval(target.id, export.ticket_digest)
    return transitions.approve(export.id, customer.account_id, approval, NOW, "user:1", LOOPBACK_POLICY)


def found_by(customer: Customer, host: str) -> list[str]:
    return [each.id for each in export_list.list_page(ExportQuery(customer.account_id, hosts=(host,)))]


def urls(export: Export) -> list[str]:
    return [place["url"] for place in export.ticket["evidence"]["places"]]


def test_findings_of_one_rule_share_one_prepared_export(customer: Customer) -> None:
    first = post(customer, "a", "csp", "img-alt")
    second = post(customer, "b", "csp", run=2)
    [csp, alt] = first.ticket_exports
    assert second.ticket_exports == (csp,)
    assert (second.new, second.seen) == (1, 0)
    group = queries.get(csp)
    assert group.findings == (2, 0)
    assert (group.rule, group.status, group.version) == ("csp", ExportStatus.PREPARED, 2)
    assert group.ticket["title"] == "Image without alternative text: 2 pages of shop.example"
    assert urls(group) == ["https://shop.example/a", "https://shop.example/b"]
    assert queries.get(alt).findings == (1, 0)
    assert rows("SELECT export_id, COUNT(*) FROM findings GROUP BY 1 ORDER BY 2 DESC") == [(csp, 2), (alt, 1)]
    actions = rows("SELECT action, reason FROM audit_entries WHERE subject_id = ? ORDER BY id", (csp,))
    assert actions == [("prepare", None), ("extend", "1 finding")]


def test_a_group_names_its_first_finding_as_its_source(customer: Customer) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    post(customer, "b", "csp", run=2)
    [(first,)] = rows("SELECT id FROM findings WHERE page_url = 'https://shop.example/a'")
    source = queries.get(export_id).source
    assert (source.type, source.id, source.scan_run_id) == ("finding", first, 1)


def test_several_findings_of_one_rule_on_a_page_begin_one_group(customer: Customer) -> None:
    result = post(customer, "a", *(issue("img-alt", location=f"main > img:nth-child({number})") for number in range(3)))
    [export_id] = result.ticket_exports
    assert result.new == 3
    title = "Image without alternative text: 3 places on 1 page of shop.example"
    assert queries.get(export_id).ticket["title"] == title


def test_a_rule_code_is_trimmed_and_its_case_counts(customer: Customer) -> None:
    result = post(customer, "a", "csp", issue(" csp ", location="other"), issue("CSP", location="third"))
    assert len(result.ticket_exports) == 2
    assert rows("SELECT rule, open_group, findings_total FROM exports ORDER BY rule DESC") == [
        ("csp", "csp", 2),
        ("CSP", "CSP", 1),
    ]


def test_issues_without_a_code_share_a_ticket_by_title(customer: Customer) -> None:
    untitled = [{"title": "Slow page", "location": str(number)} for number in range(2)]
    [export_id] = post(customer, "a", *untitled).ticket_exports
    assert queries.get(export_id).rule == "Slow page"


def test_a_known_place_changes_nothing(customer: Customer) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    before = queries.get(export_id)
    assert post(customer, "a", "csp", run=2).ticket_exports == ()
    after = queries.get(export_id)
    assert (after.version, after.ticket_digest) == (before.version, before.ticket_digest)


def test_a_known_place_that_becomes_more_severe_extends_the_group(customer: Customer) -> None:
    [export_id] = post(customer, "a", issue("csp", severity="low")).ticket_exports
    post(customer, "b", issue("csp", severity="medium"), run=2)
    digest = queries.get(export_id).ticket_digest
    assert post(customer, "a", issue("csp", severity="medium"), run=3).ticket_exports == ()
    assert queries.get(export_id).ticket_digest == digest
    assert post(customer, "a", issue("csp", severity="critical"), run=4).ticket_exports == (export_id,)
    raised = queries.get(export_id)
    assert (raised.severity, raised.ticket["severity"], raised.findings) == ("critical", "critical", (2, 0))
    assert post(customer, "a", issue("csp", severity="low"), run=5).ticket_exports == ()
    assert queries.get(export_id).severity == "critical"


def test_an_approval_with_the_digest_from_before_an_extension_is_refused(customer: Customer) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    seen = queries.get(export_id)
    post(customer, "b", "csp")
    with pytest.raises(Conflict):
        approve(seen, customer)
    assert approve(queries.get(export_id), customer).status is ExportStatus.APPROVED


#: The statuses of an open group whose ticket is frozen.
FROZEN = ["approved", "delivering", "exported", "retry_scheduled", "failed", "blocked", "dismissed"]


@pytest.mark.parametrize("status", FROZEN)
def test_findings_join_a_frozen_group_and_wait(customer: Customer, status: str) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    frozen = approve(queries.get(export_id), customer)
    is_due = status in {"approved", "delivering", "retry_scheduled"}
    due_at, lease = 1 if is_due else None, "lse_1" if status == "delivering" else None
    execute("UPDATE exports SET status = ?, due_at = ?, lease = ?", (status, due_at, lease))
    result = post(customer, "b", "csp", run=2)
    assert (result.new, result.ticket_exports) == (1, ())
    after = queries.get(export_id)
    assert (after.findings, after.version) == ((2, 0), frozen.version + 1)
    assert (after.ticket, after.ticket_digest) == (frozen.ticket, frozen.ticket_digest)
    assert rows("SELECT DISTINCT export_id FROM findings") == [(export_id,)]


def test_a_group_is_found_by_the_host_of_a_place_that_its_ticket_does_not_list(customer: Customer) -> None:
    [export_id] = post(customer, "a", *(issue("csp", location=f"p:nth-child({n})") for n in range(60))).ticket_exports
    body = postback(2, [issue("csp")], page={"url": "https://blog.example/"})
    record_postback(PostbackForm().read(body), customer.project_id)
    assert found_by(customer, "blog.example") == [export_id]
    decisions.dismiss(export_id, customer.account_id, NOW, "user:1", DismissalReason.WONT_FIX)
    post(customer, "b", "csp", run=3)
    decisions.restore(export_id, customer.account_id, NOW, "user:1")
    assert found_by(customer, "blog.example") == [export_id]


def test_a_group_of_many_hosts_is_found_by_each_host(customer: Customer) -> None:
    hosts = [f"shop{number}.example" for number in range(90)]
    issues = [issue("csp", url=f"https://{host}/") for host in hosts]
    [export_id] = post(customer, "a", *issues[:80]).ticket_exports
    post(customer, "a", *issues[80:], run=2)
    decisions.edit(export_id, customer.account_id, NOW, "user:1", Edit(title="Another title"))
    assert [found_by(customer, host) for host in hosts] == [[export_id]] * 90


@pytest.mark.parametrize("copies", [0, 1])
def test_a_frozen_group_and_its_copies_are_found_by_the_host_of_a_place_that_waits(customer: Customer, copies: int) -> None:
    first = [issue("csp", url=f"https://shop{number}.example/") for number in range(80)]
    [export_id] = post(customer, "a", *first).ticket_exports
    targets = tuple(make_target(customer).id for _ in range(1 + copies))
    approval = ApprovalForAll(targets, queries.get(export_id).ticket_digest)
    frozen = targeting.approve_for_all(export_id, customer.account_id, approval, NOW, "user:1", LOOPBACK_POLICY)
    post(customer, "a", issue("csp", url="https://late.example/"), run=2)
    expected = sorted(each.id for each in frozen)
    assert [sorted(found_by(customer, host)) for host in ("shop79.example", "late.example")] == [expected, expected]


def test_a_split_group_is_found_by_the_host_of_the_finding_that_it_keeps(customer: Customer) -> None:
    [export_id] = post(customer, "a", *(issue("csp", url=f"https://{host}.example/") for host in "xyz")).ticket_exports
    ids = splits.split(export_id, customer.account_id, NOW, "user:1")
    assert [found_by(customer, f"{host}.example") for host in "xyz"] == [[each] for each in ids]


def test_a_closed_group_is_followed_by_a_new_one(customer: Customer) -> None:
    [first] = post(customer, "a", "csp").ticket_exports
    execute("UPDATE exports SET status = 'dismissed', open_group = NULL")
    [second] = post(customer, "b", "csp").ticket_exports
    assert first != second
    assert queries.get(first).findings == queries.get(second).findings == (1, 0)


def test_a_restored_group_has_the_places_that_waited_once_it_grows(customer: Customer) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    execute("UPDATE exports SET status = 'dismissed'")
    post(customer, "b", issue("csp", severity="critical"))
    execute("UPDATE exports SET status = 'prepared'")
    post(customer, "c", "csp")
    group = queries.get(export_id)
    assert urls(group) == [f"https://shop.example/{page}" for page in "abc"]
    assert (group.findings, group.severity) == ((3, 0), "critical")
    assert group.ticket["title"].endswith(": 3 pages of shop.example")
    assert group.ticket["labels"] == ["website-risk", "severity:critical"]


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_restored_group_has_the_places_that_joined_it_while_it_was_dismissed(customer: Customer, is_edited: bool) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    [other] = post(customer, "a", "img-alt").ticket_exports
    if is_edited:
        decisions.edit(export_id, customer.account_id, NOW, "user:1", Edit(title="My title"))
    for each in (export_id, other):
        decisions.dismiss(each, customer.account_id, NOW, "user:1", DismissalReason.WONT_FIX)
    post(customer, "b", issue("csp", severity="critical"))
    before = queries.get(other)
    decisions.restore_many([ExportReference(each) for each in (export_id, other)], customer.account_id, NOW, "user:1")
    group = queries.get(export_id)
    assert urls(group) == ["https://shop.example/a", "https://shop.example/b"]
    assert (group.ticket["severity"], group.severity, group.findings) == ("critical", "critical", (2, 0))
    assert group.ticket["title"] == ("My title" if is_edited else "Image without alternative text: 2 pages of shop.example")
    assert group.ticket_digest == digest(group.ticket)
    found = export_list.list_page(ExportQuery(customer.account_id, words=("b",)))
    assert [each.id for each in found] == [export_id]
    assert queries.get(other).ticket == before.ticket
    assert post(customer, "c", "csp").ticket_exports == (export_id,)
    assert len(urls(queries.get(export_id))) == 3


@pytest.mark.parametrize("edited", [Edit(), Edit(title="My title"), Edit(severity="info")])
def test_a_restored_group_has_the_severity_of_a_place_that_became_more_severe_meanwhile(
    customer: Customer, edited: Edit
) -> None:
    [export_id] = post(customer, "a", issue("csp", severity="low")).ticket_exports
    decisions.edit(export_id, customer.account_id, NOW, "user:1", edited)
    decisions.dismiss(export_id, customer.account_id, NOW, "user:1", DismissalReason.WONT_FIX)
    decisions.restore(export_id, customer.account_id, NOW, "user:1")
    assert queries.get(export_id).severity == (edited.severity or "low")
    decisions.dismiss(export_id, customer.account_id, NOW, "user:1", DismissalReason.WONT_FIX)
    post(customer, "a", issue("csp", severity="critical"), run=2)
    decisions.restore(export_id, customer.account_id, NOW, "user:1")
    group = queries.get(export_id)
    assert (group.severity, group.ticket["severity"], group.findings) == ("critical", "critical", (1, 0))
    assert group.ticket_digest == digest(group.ticket)


def test_an_edited_group_keeps_its_words_and_grows(customer: Customer) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    execute('UPDATE exports SET original_ticket = ticket, ticket = REPLACE(ticket, \'"title":"\', \'"title":"My \')')
    post(customer, "b", "csp")
    group = queries.get(export_id)
    assert group.ticket["title"].startswith("My Image without alternative text on ")
    assert len(urls(group)) == 2
    assert group.original_ticket is not None
    assert len(group.original_ticket["evidence"]["places"]) == 1


def test_other_projects_have_groups_of_their_own(customer: Customer) -> None:
    other = make_customer(grouping=TicketGrouping.RULE)
    projects.add_scan_run(other.project_id, NOW, 2)
    [first] = post(customer, "a", "csp").ticket_exports
    [second] = post(customer, "a", "csp", run=2).ticket_exports
    assert first != second


def test_a_project_that_groups_by_finding_again_leaves_its_groups_as_they_are(customer: Customer) -> None:
    [group] = post(customer, "a", "csp").ticket_exports
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.FINDING, NOW, "test")
    [single] = post(customer, "b", "csp").ticket_exports
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, NOW, "test")
    assert post(customer, "c", "csp").ticket_exports == (group,)
    assert rows("SELECT open_group FROM exports WHERE id = ?", (single,)) == [(None,)]


def test_a_ticket_that_was_written_before_another_postback_joined_is_written_again(customer: Customer) -> None:
    [export_id] = post(customer, "a", "csp").ticket_exports
    six = [issue("csp", location=f"p:nth-child({number})") for number in range(6)]
    prepared = [findings.prepare_postback(read(page, six, run), customer.project_id) for run, page in ((2, "b"), (3, "c"))]
    for each in prepared:
        result = findings.record(each, customer.project_id, NOW, "scanner")
        assert result.ticket_exports == (export_id,)
    group = queries.get(export_id)
    assert group.findings == (13, 0)
    assert len(urls(group)) == 13
    assert group.ticket["title"].endswith(": 13 places on 3 pages of shop.example")


def test_postbacks_that_race_make_one_group_and_lose_no_place(customer: Customer) -> None:
    start = threading.Barrier(8)

    def race(number: int) -> list[PostbackResult]:
        with connection():
            start.wait()
            several = [issue("csp", location=f"p:nth-child({place})") for place in range(number % 4 * 3)]
            return [post(customer, f"{number}-{turn}", "csp", "img-alt", *several, run=1 + number % 3) for turn in range(3)]

    with ThreadPoolExecutor(8) as pool:
        results = [result for posted in pool.map(race, range(8)) for result in posted]
    assert len({export_id for result in results for export_id in result.ticket_exports}) == 2
    grouped = rows("SELECT e.rule, e.findings_total, e.id FROM exports e ORDER BY e.rule")
    stored = rows("SELECT code, COUNT(*), MIN(export_id) FROM findings GROUP BY code, export_id ORDER BY code")
    assert grouped == stored
    for rule, total, export_id in grouped:
        export = queries.get(export_id)
        assert export.ticket["evidence"]["findings"] == total
        assert export.ticket["evidence"]["pages"] == 24, rule
        known = rows("SELECT page_url, location FROM findings WHERE export_id = ?", (export_id,))
        assert {(place["url"], place["location"]) for place in export.ticket["evidence"]["places"]} <= set(known)
        assert len(export.ticket["evidence"]["places"]) == min(50, total)


@pytest.mark.parametrize("seed", range(6))
def test_each_finding_has_one_export_and_each_rule_one_open_group_whatever_happens(customer: Customer, seed: int) -> None:
    chance, seen = random.Random(seed), dict[str, tuple[str, dict[str, Any]]]()
    for step in range(40):
        ids = [row[0] for row in rows("SELECT id FROM exports ORDER BY id")]
        action = chance.choice(["post"] * 4 + ["approve", "dismiss", "restore", "split", "switch"]) if ids else "post"
        with suppress(Conflict):
            act(action, customer, chance, step, chance.choice(ids) if ids else "")
        for export_id, total in rows("SELECT id, findings_total FROM exports"):
            export = queries.get(export_id)
            before = seen.get(export_id, (export.ticket_digest, export.ticket))
            assert (export.ticket_digest == before[0]) == (export.ticket == before[1])
            seen[export_id] = (export.ticket_digest, export.ticket)
            assert rows("SELECT COUNT(*) FROM findings WHERE export_id = ?", (export_id,)) == [(total,)], action
        orphans = "SELECT COUNT(*) FROM findings WHERE export_id IS NULL OR export_id NOT IN (SELECT id FROM exports)"
        assert rows(orphans) == [(0,)]
        assert rows("SELECT open_group FROM exports WHERE open_group IS NOT NULL GROUP BY 1 HAVING COUNT(*) > 1") == []


def act(action: str, customer: Customer, chance: random.Random, step: int, export_id: str) -> None:
    """Perform one action of a scanner or a user."""
    account_id, at = customer.account_id, NOW + timedelta(hours=step)
    if action == "post":
        several = [
            issue(code, location=str(chance.randrange(3)), severity=chance.choice(["low", "high"]))
            for code in chance.sample(["csp", "img-alt", "label"], 2)
            for _ in range(chance.randrange(1, 5))
        ]
        post(customer, str(chance.randrange(4)), *several, run=1 + step, hours=step)
    elif action == "approve":
        approve(queries.get(export_id), customer)
    elif action == "dismiss":
        decisions.dismiss(export_id, account_id, at, "user:1", chance.choice([None, *DismissalReason]))
    elif action == "restore":
        decisions.restore(export_id, account_id, at, "user:1")
    elif action == "split":
        splits.split(export_id, account_id, at, "user:1")
    else:
        grouping = chance.choice([TicketGrouping.RULE, TicketGrouping.RULE, TicketGrouping.FINDING])
        projects.set_ticket_grouping(customer.project_id, None, grouping, at, "test")
