"""The list of exports equals a plain filter over the records, on both databases: filters, orders, pages and counts."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.exports.record import Export
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source, Ticket
from schemas.intake.scanner import SEVERITIES
from schemas.triage.export_filter import ExportQuery, ExportSort
from storage.db.engine import execute, rows, transaction
from storage.exports import queries, transitions
from storage.exports.rows import Draft
from storage.exports.search import export_list, export_sets
from storage.exports.search.export_list import position_of
from storage.exports.search.export_sets import MAX_SORTED
from tests.support.database.query_plans import indexes_read, plan_of, statements
from tests.support.factories import NOW, Customer, make_customer, make_exports, make_project, make_target

EXPORTS: Final = 150
RULES: Final = ("csp", "csp, strict", "hsts", None)
HOSTS: Final = ("shop.example", "blog.shop.example", "other.example")
TEXTS: Final = ("The Image has no text", "the FORM has no name", "Straße und ﬁne Größe", "a form's image: 50% off_now", "")


@dataclass(frozen=True)
class StoredExports:
    """All exports of two accounts, and values for filters."""

    exports: list[Export]
    values: dict[str, list[Any]]


@pytest.fixture(scope="module", params=[MAX_SORTED, 3], ids=["small sets", "large sets"])
def most_sorted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sort sets as a whole, or treat all sets as so large that the list's indexes are read instead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(export_sets, "MAX_SORTED", request.param)
        yield


@pytest.fixture(scope="module")
def stored(module_database: Path) -> StoredExports:
    """Exports of two accounts with every status, severity and source, three for each minute."""
    chosen = random.Random(20)
    customers = [make_customer(), make_customer()]
    projects = {each: [each.project_id, make_project(each), None] for each in customers}
    targets = {each: [make_target(each).id, make_target(each).id] for each in customers}
    ids = [_store(chosen.choice(customers), chosen, projects, targets, number) for number in range(EXPORTS)]
    values: dict[str, list[Any]] = {
        "statuses": [*map(str, ExportStatus)],
        "severities": [*SEVERITIES],
        "project_ids": [each for of in projects.values() for each in of if each] + [999],
        "sources": ["manual", "finding", "diagnostics"],
        "rules": [*filter(None, RULES), "cs"],
        "hosts": [*HOSTS, "example", "shop.example:8080"],
        "words": ["image", "form", "no", "has", "strasse", "fine", "50", "now", "shop", "8080", "7", "ima", "nowhere"],
        "target_ids": [each for of in targets.values() for each in of] + ["tgt_01AAAAAAAAAAAAAAAAAAAAAAAA"],
        "account_id": [*(each.account_id for each in customers), None, 999],
    }
    return StoredExports([queries.get(each) for each in ids], values)


def _store(
    customer: Customer,
    chosen: random.Random,
    projects: dict[Customer, list[Any]],
    targets: dict[Customer, list[str]],
    number: int,
) -> str:
    rule = chosen.choice(RULES)
    findings = None if rule is None else chosen.choice((1, 1, 3, 40))
    source = Source("manual" if rule is None else "finding", f"note-{number}")
    urls = [f"https://{host}:8080/Path/{number}?q=form" for host in chosen.sample(HOSTS, chosen.randrange(3))]
    places = [{"url": url, "location": ""} for url in urls[1:]]
    page, evidence = urls[0] if urls else None, {"places": places} if places else {}
    ticket = Ticket(chosen.choice(TEXTS) or "x", chosen.choice(TEXTS), chosen.choice(SEVERITIES), page, (), evidence)
    draft = Draft(customer.account_id, chosen.choice(projects[customer]), source, ticket, rule, findings)
    with transaction():
        [export_id] = transitions.prepare([draft], NOW + timedelta(minutes=number // 3), "user:test")
    status = chosen.choice((*ExportStatus, ExportStatus.PREPARED, ExportStatus.FAILED))
    is_due, is_claimed = status in {"approved", "retry_scheduled", "delivering"}, status == "delivering"
    values = {
        "status": status.value,
        "body": None if status in {"prepared", "dismissed"} else b"{}",
        "due_at": 1 if is_due else None,
        "lease": "lease" if is_claimed else None,
        "target_id": None if status in {"prepared", "dismissed"} else chosen.choice(targets[customer]),
        "findings_fixed": findings and chosen.choice((0, 1, findings)),
        "snoozed_at": chosen.choice((None, 1)),
        "snoozed_until": chosen.choice((None, 0, 4_000_000_000_000)),
    }
    assigned = ", ".join(f"{name} = ?" for name in values)
    execute(f"UPDATE exports SET {assigned} WHERE id = ?", (*values.values(), export_id))  # noqa: S608 - our own names
    return export_id


def matches(query: ExportQuery, export: Export) -> bool:
    """Return whether an export matches a query; the filters in plain Python."""
    total, fixed = export.findings or (0, -1)
    is_snoozed = export.snooze is not None and query.now is not None and not export.snooze.is_over(query.now)
    return all(
        (
            query.account_id in {None, export.account_id},
            not query.statuses or export.status.value in query.statuses,
            not query.severities or export.severity in query.severities,
            not query.project_ids or export.project_id in query.project_ids,
            query.visible_projects is None or export.project_id in query.visible_projects,
            not query.sources or export.source.type in query.sources,
            not query.rules or export.rule in query.rules,
            not query.target_ids or export.target_id in query.target_ids,
            not query.hosts or {*query.hosts} & {*hosts(export.ticket)},
            {*query.words} <= {*words(export.ticket)},
            query.created_after is None or export.created_at >= query.created_after,
            query.created_before is None or export.created_at < query.created_before,
            query.is_snoozed in {None, is_snoozed},
            query.is_fixed in {None, total == fixed},
        )
    )


def urls_of(ticket: dict[str, Any]) -> list[str]:
    return [url for url in (ticket["page_url"], *(each["url"] for each in ticket["evidence"].get("places", []))) if url]


def hosts(ticket: dict[str, Any]) -> list[str]:
    return [url.split("/")[2].partition(":")[0] for url in urls_of(ticket)]


def words(ticket: dict[str, Any]) -> list[str]:
    text = " ".join([ticket["title"], ticket["description"], *urls_of(ticket)])
    return "".join(each if each.isalnum() else " " for each in text.replace("ﬁ", "fi").casefold()).split()


def key(sort: ExportSort, export: Export) -> tuple[int, str]:
    findings = export.findings[0] if export.findings else 0
    ranks = {ExportSort.SEVERITY: SEVERITIES.index(export.severity), ExportSort.FINDINGS: findings}
    return ranks.get(sort, 0), export.id


def expected(query: ExportQuery, sort: ExportSort, stored: StoredExports) -> list[str]:
    found = sorted(filter(lambda each: matches(query, each), stored.exports), key=lambda each: key(sort, each))
    return [each.id for each in (found if sort is ExportSort.OLDEST else reversed(found))]


def walked(query: ExportQuery, sort: ExportSort, size: int) -> list[str]:
    """Return the IDs of all pages of a list."""
    found: list[Export] = []
    while page := export_list.list_page(query, sort, size, position_of(found[-1], sort) if found else None):
        found += page
    return [each.id for each in found]


@st.composite
def asked(draw: st.DrawFn, stored: StoredExports) -> ExportQuery:
    """A query with any combination of filters, most of them absent."""
    of: dict[str, st.SearchStrategy[Any]] = {
        name: st.just(()) | st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(tuple)
        for name, values in stored.values.items()
    }
    moments = st.none() | st.integers(-1, EXPORTS // 3 + 1).map(lambda minutes: NOW + timedelta(minutes=minutes))
    of |= {
        "account_id": st.sampled_from(stored.values["account_id"]),
        "created_after": moments,
        "created_before": moments,
        "is_snoozed": st.sampled_from((None, None, True, False)),
        "is_fixed": st.sampled_from((None, None, True, False)),
        "visible_projects": st.lists(st.sampled_from(stored.values["project_ids"]), max_size=3, unique=True).map(tuple),
    }
    present = draw(st.sets(st.sampled_from(sorted(of)), max_size=4)) | {"account_id"}
    return ExportQuery(now=NOW, **{name: draw(strategy) for name, strategy in of.items() if name in present})


@settings(max_examples=40, deadline=None)
@given(st.data())
@pytest.mark.usefixtures("most_sorted")
def test_a_list_returns_the_same_exports_as_a_filter_in_python(stored: StoredExports, data: st.DataObject) -> None:
    query, sort = data.draw(asked(stored)), data.draw(st.sampled_from(ExportSort))
    wanted = expected(query, sort, stored)
    assert walked(query, sort, data.draw(st.sampled_from((13, 50)))) == wanted
    assert [each.id for each in export_list.list_page(query, sort)] == wanted
    assert export_list.count(query) == len(wanted)
    assert export_list.count(query, 3) == (len(wanted) if len(wanted) <= 3 else None)
    newest = [(each.id, each.version) for each in stored.exports if matches(query, each)][::-1]
    assert export_list.ids_matching(query, 5) == newest[:5]


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.usefixtures("most_sorted")
def test_facets_are_counted_with_all_filters_but_their_own(stored: StoredExports, data: st.DataObject) -> None:
    query = data.draw(asked(stored))
    of: dict[str, tuple[str, Callable[[Export], Any]]] = {
        "status": ("statuses", lambda each: each.status.value),
        "severity": ("severities", lambda each: each.severity),
        "project_id": ("project_ids", lambda each: each.project_id),
        "source": ("sources", lambda each: each.source.type),
        "rule": ("rules", lambda each: each.rule),
    }
    wanted = {}
    for name, (member, value) in of.items():
        without: dict[str, Any] = {member: ()}
        rest = replace(query, **without)
        found = Counter(value(each) for each in stored.exports if matches(rest, each))
        wanted[name] = {str(each): number for each, number in found.items() if each is not None}
    assert export_list.facets(query) == wanted


def test_exports_wait_for_a_decision_if_prepared_and_neither_snoozed_nor_completely_fixed(stored: StoredExports) -> None:
    query = ExportQuery(stored.exports[0].account_id).waiting_for_decision(NOW)
    found = export_list.list_page(query)
    assert [each.id for each in found] == expected(query, ExportSort.NEWEST, stored)
    assert {each.status for each in found} == {ExportStatus.PREPARED}


@pytest.mark.parametrize("checks", [{}, {"created_after": NOW}, {"is_fixed": False}], ids=str)
def test_facets_count_only_the_newest_exports_up_to_their_limit(
    customer: Customer, monkeypatch: pytest.MonkeyPatch, checks: dict[str, Any]
) -> None:
    ids = [make_exports(customer, 1, NOW + timedelta(minutes=minute))[0] for minute in range(6)]
    for rank, export_id in enumerate(ids[:5]):
        execute("UPDATE exports SET severity_rank = ? WHERE id = ?", (rank, export_id))
    monkeypatch.setattr(export_list, "MAX_FACETED", 3)
    query = ExportQuery(customer.account_id, statuses=("prepared",), **checks)
    assert export_list.facets(query)["severity"] == {"high": 2, "critical": 1}
    assert export_list.count_by_severity(query) == {"high": 2, "critical": 1}


def test_snoozed_exports_are_not_searched_for_among_all_prepared_ones(customer: Customer) -> None:
    snoozed, *_others = make_exports(customer, 300)
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (snoozed,))
    execute("ANALYZE")
    query = ExportQuery(customer.account_id, statuses=("prepared",), is_snoozed=True, now=NOW)
    with statements() as ran:
        assert [each.id for each in export_list.list_page(query, ExportSort.SEVERITY, 10)] == [snoozed]
        assert export_list.count(query) == 1
        assert export_list.facets(query)["status"] == {"prepared": 1}
    # The other statements count the sizes of sets, and read only an index.
    found = [indexes_read(each) for each in ran if "snoozed_until" in each.sql]
    assert found
    assert [each for each in found if "exports_snoozed" not in each or "exports_account_status" in each] == []


@pytest.mark.database("sqlite")
@pytest.mark.parametrize("sort", ExportSort)
def test_time_bounds_limit_what_is_read_from_an_index(customer: Customer, sort: ExportSort) -> None:
    make_exports(customer, 2)
    query = ExportQuery(customer.account_id, statuses=("prepared",), created_after=NOW)
    with statements() as ran:
        assert len(export_list.list_page(query, sort, 10)) == 2
        assert export_list.count(query) == 2
    for statement in ran:
        steps = [each for each in plan_of(statement) if "exports_account" in each]
        assert [each for each in steps if "id>? AND id<?" not in each] == []


@pytest.mark.parametrize("sort", [ExportSort.NEWEST, ExportSort.OLDEST])
def test_rows_that_exist_during_paging_by_time_are_returned_once_whatever_changes(
    customer: Customer, sort: ExportSort
) -> None:
    ids = [make_exports(customer, 1, NOW + timedelta(minutes=minute))[0] for minute in range(8)]
    query = ExportQuery(customer.account_id)
    found: list[Export] = []
    numbers = itertools.count(10)
    while page := export_list.list_page(query, sort, 2, position_of(found[-1], sort) if found else None):
        found += page
        if len(found) < 20:
            make_exports(customer, 1, NOW + timedelta(minutes=next(numbers) % 14 - 5))
        execute("UPDATE exports SET severity_rank = 4, version = version + 1 WHERE id = ?", (page[-1].id,))
    met = [each.id for each in found if each.id in ids]
    assert met == (ids if sort is ExportSort.OLDEST else ids[::-1])


def test_the_first_page_includes_exports_with_the_latest_possible_time(customer: Customer) -> None:
    latest = make_exports(customer, 1, datetime(9999, 1, 1, tzinfo=NOW.tzinfo))
    assert [each.id for each in export_list.list_page(ExportQuery(customer.account_id), limit=1)] == latest


@pytest.mark.database("postgresql")
def test_postgresql_plans_each_list_for_its_own_filters(customer: Customer) -> None:
    query = ExportQuery(customer.account_id, statuses=("prepared",))

    def prepared() -> set[str]:
        found = rows("SELECT name FROM pg_prepared_statements WHERE statement LIKE ?", ("%exports%",))
        return {name for (name,) in found}

    before = prepared()
    for _ in range(10):
        export_list.list_page(query, ExportSort.SEVERITY, 10)
        export_list.count(query)
        export_list.facets(query)
        export_list.ids_matching(query, 10)
    assert prepared() - before == set()
    for _ in range(10):
        queries.projects_of(make_exports(customer, 1))
    assert prepared() - before != set()


@pytest.mark.parametrize("sort", ExportSort)
def test_a_person_may_have_roles_in_a_thousand_projects(sort: ExportSort, customer: Customer) -> None:
    made = make_exports(customer, 3)
    projects = (customer.project_id, *range(10_000, 11_000))
    query = ExportQuery(None, visible_projects=projects)
    assert {each.id for each in export_list.list_page(query, sort)} == {*made}
    assert export_list.count(query) == 3
    assert export_list.list_page(ExportQuery(customer.account_id, visible_projects=projects[1:]), sort) == []


@pytest.mark.parametrize("sort", ExportSort)
def test_a_list_without_a_limit_is_read_in_several_statements(
    sort: ExportSort, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_exports(customer, 11)
    whole = export_list.list_page(ExportQuery(customer.account_id), sort)
    monkeypatch.setattr(queries, "_MAX_IDS", 4)
    assert export_list.list_page(ExportQuery(customer.account_id), sort) == whole
    assert len(whole) == 11


def test_the_comparison_covers_every_member_of_a_query(stored: StoredExports) -> None:
    compared = {*stored.values, "created_after", "created_before", "is_snoozed", "now", "is_fixed", "visible_projects"}
    assert {each.name for each in fields(ExportQuery)} == compared
