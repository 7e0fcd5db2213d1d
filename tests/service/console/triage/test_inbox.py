"""The inbox: waiting tickets, searched and filtered, with one ticket beside the list."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from html import unescape
from typing import Final

import pytest
from falcon.testing import Result

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.base.timestamps import to_ms
from schemas.intake.scanner import PostbackForm
from service.console.triage import ticket_list
from service.console.triage.ticket_list import MAX_OPTIONS, PAGE_ROWS
from storage.db.engine import execute
from storage.exports import queries
from storage.exports.search import export_list
from tests.service.console.form_fields import in_words, shown_fields
from tests.support.database.databases import on_sqlite
from tests.support.factories import (
    Customer,
    issue,
    make_approved,
    make_customer,
    make_exports,
    make_failed,
    make_project,
    make_target,
    postback,
    record_postback,
)
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements

MARKUP: Final = "</bdi></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'>{{ 7777*7 }}"


def listed(page: Result) -> list[str]:
    """Return the IDs of the rows, in order."""
    assert page.status_code == 200, page.text
    return re.findall(r'data-open="(exp_[^"]+)"', page.text)


def opened(page: Result) -> str:
    """Return the title of the ticket beside the list."""
    found = re.search(r'<h2 id="ticket-title"[^>]*><bdi>([^<]*)</bdi>', page.text)
    return unescape(found[1]) if found else ""


def row_texts(page: Result) -> list[str]:
    """Return the markup of the rows."""
    return re.findall(r'<li class="row".*?</li>', page.text, re.DOTALL)


def tabs(page: Result) -> dict[str, str]:
    """Return the numbers on the tabs."""
    chips = page.text.partition('aria-label="Lists"')[2].partition("</nav>")[0]
    return dict(re.findall(r">([A-Z][a-z ]+) <b>([^<]+)</b>", chips))


def menu(page: Result, label: str) -> dict[str, str]:
    """Return the values in a filter's menu with their counts."""
    found = page.text.partition(f">{label}: ")[2].partition("</details>")[0]
    return {unescape(text): number for text, number in re.findall(r"<bdi>([^<]*)</bdi> <b>([^<]*)</b>", found)}


def link(page: Result, text: str) -> str:
    """Return the query of the link to a menu's value."""
    found = re.search(rf'href="/console/inbox\??([^"]*)"[^>]*><bdi>{re.escape(text)}</bdi>', page.text)
    assert found, text
    return unescape(found[1])


def test_waiting_tickets_are_listed_by_severity_with_the_first_one_opened(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    low, high, medium = (prepare(each, severity=each) for each in ("low", "high", "medium"))
    page = person.get("/inbox")
    assert listed(page) == [high, medium, low]
    assert opened(page) == "high"
    assert tabs(page) == {"Waiting": "3", "Snoozed": "0", "Dismissed": "0"}
    assert "3 waiting for a decision" in page.text
    assert "1 of 3" in page.text


def test_the_address_of_the_open_ticket_shows_it_when_the_list_is_empty(person: ConsoleBrowser, customer: Customer) -> None:
    """Its state is refreshed from this address: without an ID, the list shows its first ticket, or none."""
    _, second = (make_approved(customer, make_target(customer).id) for _ in "ab")
    here = re.search('id="ticket"[^>]* data-here="/console([^"]*)"', person.get("/deliveries").text)
    assert here is not None
    assert here[1] == f"/deliveries?export={second}"
    execute("UPDATE exports SET status = 'exported', finished_at = 1, due_at = NULL")
    page = person.get(*here[1].split("?"))
    assert listed(page) == []
    assert f'data-here="/console{here[1]}"' in page.text
    assert ">delivered</span>" in page.text.partition('id="state"')[2].partition("</section>")[0]


def test_each_view_has_its_tickets(person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]) -> None:
    waiting, snoozed, dismissed, fixed, over = (prepare(each) for each in "abcde")
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (snoozed,))
    execute("UPDATE exports SET snoozed_at = 1, snoozed_until = 2 WHERE id = ?", (over,))
    execute("UPDATE exports SET status = 'dismissed', finished_at = 1 WHERE id = ?", (dismissed,))
    execute("UPDATE exports SET findings_total = 2, findings_fixed = 2 WHERE id = ?", (fixed,))
    page = person.get("/inbox")
    assert listed(page) == [over, waiting]
    assert tabs(page) == {"Waiting": "2", "Snoozed": "1", "Dismissed": "1"}
    assert listed(person.get("/inbox", "view=snoozed")) == [snoozed]
    assert listed(person.get("/inbox", "view=dismissed")) == [dismissed]


def test_filters_have_counts_and_are_links_that_keep_each_other(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    high, info = prepare("one", severity="high"), prepare("two", severity="info")
    prepare("three", severity="low")
    page = person.get("/inbox")
    assert menu(page, "Severity") == {"High": "1", "Low": "1", "Info": "1"}
    assert menu(page, "Source") == {"written by hand": "3"}
    narrowed = person.get("/inbox", link(page, "High"))
    assert listed(narrowed) == [high]
    # The counts of a filter ignore the filter itself.
    assert menu(narrowed, "Severity") == {"High": "1", "Low": "1", "Info": "1"}
    both = person.get("/inbox", link(narrowed, "Info"))
    assert listed(both) == [high, info]
    assert link(both, "newest") == "severity=high,info&sort=-created_at"
    # Links to a ticket and back keep the filters.
    assert f'href="/console/inbox?severity=high,info&amp;export={info}"' in both.text
    ticket = person.get("/inbox", f"severity=high,info&export={info}")
    assert opened(ticket) == "two"
    assert '<p class="back"><a href="/console/inbox?severity=high,info">' in ticket.text


def test_projects_and_rules_are_named_in_their_menus(person: ConsoleBrowser, customer: Customer) -> None:
    body = postback(issues=[issue("zap:1", severity="high"), issue("axe:<b>", location="b")])
    record_postback(PostbackForm().read(body), customer.project_id)
    page = person.get("/inbox")
    [(project, number)] = menu(page, "Project").items()
    assert (project.startswith("Project "), number) == (True, "2")
    assert set(menu(page, "Rule")) == {"zap:1", "axe:<b>"}
    assert len(listed(person.get("/inbox", link(page, "zap:1")))) == 1


@on_sqlite
def test_the_menu_of_projects_has_all_projects_and_the_menu_of_rules_the_selected_rules(
    person: ConsoleBrowser, customer: Customer
) -> None:
    rules = [f"rule-{number}" for number in range(MAX_OPTIONS + 2)]
    for number, rule in enumerate(rules, 1):
        project_id = make_project(customer)
        record_postback(PostbackForm().read(postback(number, [issue(rule)])), project_id)
    page = person.get("/inbox")
    assert len(menu(page, "Project")) == len(rules)
    # Each rule has one ticket; equal counts are sorted by name, so every process shows the same rules.
    assert [*menu(page, "Rule")] == sorted(rules)[:MAX_OPTIONS]
    for rule in rules:
        assert rule in menu(person.get("/inbox", f"rule={rule}"), "Rule")


@on_sqlite
def test_a_menu_without_a_value_says_so(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    prepare()
    rules = person.get("/inbox").text.partition(">Rule: ")[2].partition("</details>")[0]
    assert '<li class="aside">Nothing to choose from</li>' in rules


@on_sqlite
def test_if_not_all_tickets_are_counted_every_severity_is_offered_and_counts_have_a_plus(
    person: ConsoleBrowser, prepare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest are counted: a menu of counted values would hide severities that only older tickets have."""
    oldest = prepare("oldest", severity="critical")
    for title in ("two", "three"):
        prepare(title, severity="low")
    for module in (export_list, ticket_list):
        monkeypatch.setattr(module, "MAX_FACETED", 2)
    page = person.get("/inbox")
    assert menu(page, "Severity") == {"Low": "2+"}
    assert listed(person.get("/inbox", link(page, "Critical"))) == [oldest]


def test_words_and_a_host_find_tickets(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    wanted = prepare("The checkout is slow", page_url="https://shop.example/checkout")
    prepare("The cart is empty", page_url="https://blog.example/")
    assert listed(person.get("/inbox", "q=slow+CHECKOUT")) == [wanted]
    assert listed(person.get("/inbox", "host=shop.example")) == [wanted]
    assert 'data-state="filtered"' in person.get("/inbox", "q=nowhere").text


def test_the_search_for_an_id_opens_its_export(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    wanted = prepare()
    for path, query in (("/inbox", f"q={wanted}"), ("/deliveries", f"q=%20{wanted}%0A")):
        response = person.get(path, query)
        assert (response.status_code, response.headers["location"]) == (303, f"/console/exports/{wanted}")
    asked = ConsoleBrowser(person.client).get("/inbox", f"q={wanted}")
    assert (asked.status_code, asked.headers["location"].partition("?")[0]) == (303, "/console/sign-in")


def test_pages_follow_one_another_in_the_chosen_order(person: ConsoleBrowser, customer: Customer) -> None:
    ids = make_exports(customer, PAGE_ROWS + 2)
    first = person.get("/inbox", "sort=created_at")
    assert listed(first) == ids[:PAGE_ROWS]
    [following] = re.findall(r'rel="next" href="/console/inbox\?([^"]*)"', first.text)
    second = person.get("/inbox", unescape(following))
    assert listed(second) == ids[PAGE_ROWS:]
    assert '<a href="/console/inbox?sort=created_at">First page</a>' in second.text
    # A cursor of another order is refused.
    assert person.get("/inbox", unescape(following).replace("sort=created_at", "sort=-severity")).status_code == 422


@on_sqlite
def test_a_page_on_which_everything_was_decided_links_the_first_page(person: ConsoleBrowser, customer: Customer) -> None:
    ids = make_exports(customer, PAGE_ROWS + 2)
    [following] = re.findall(r'rel="next" href="/console/inbox\?([^"]*)"', person.get("/inbox", "severity=high").text)
    for export_id in ids[:2]:
        execute("UPDATE exports SET status = 'dismissed', finished_at = 1 WHERE id = ?", (export_id,))
    page = person.get("/inbox", unescape(following))
    assert listed(page) == []
    assert "No tickets are left on this page." in page.text
    assert 'href="/console/inbox?severity=high">First page' in page.text


@on_sqlite
def test_only_tickets_with_a_common_decision_can_be_selected(person: ConsoleBrowser, customer: Customer) -> None:
    make_failed(customer, make_target(customer).id, 1)
    assert '<input type="checkbox" form="selection"' in person.get("/deliveries", "view=failed").text
    execute("UPDATE exports SET status = 'exported'")
    page = person.get("/deliveries", "view=delivered")
    assert len(listed(page)) == 1
    assert "selection" not in page.text


@on_sqlite
@pytest.mark.parametrize(
    "query", ["view=nothing", "sort=title", "severity=grave", "project_id=x", "cursor=x", "source=<b>", "q=>>"]
)
def test_a_bad_filter_is_refused_by_its_name(query: str, person: ConsoleBrowser) -> None:
    page = person.get("/inbox", query)
    name = in_words(query.partition("=")[0]).replace("Q", "Search")
    assert (page.status_code, f">{name}: " in page.text) == (422, True)
    assert "<b>" not in page.text.partition("<main")[2]


@on_sqlite
def test_the_period_in_the_url_is_shown_and_can_be_removed(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    found = prepare(severity="high")
    query = "severity=high&created_after=2026-01-01T00:00:00Z&created_before=2026-01-02T00:00:00Z"
    page = person.get("/inbox", query)
    assert listed(page) == []
    more = page.text.partition('chip" aria-current="true">More<')[2].partition("</details>")[0]
    removing = dict(re.findall(r'<p>(.+?) <a href="/console/inbox\?([^"]+)">Remove', more))
    assert [*removing] == ["Prepared since 2026-01-01T00:00:00Z", "Prepared before 2026-01-02T00:00:00Z"]
    assert listed(person.get("/inbox", unescape([*removing.values()][1]))) == [found]


@on_sqlite
def test_the_error_page_of_an_invalid_filter_links_the_page_without_filters(person: ConsoleBrowser) -> None:
    for path, query in (("/deliveries", "q=>>"), ("/findings", "project_id=x"), ("/audit", "first_day=1")):
        assert f'<a href="/console{path}">Back</a>' in person.get(path, query).text


@on_sqlite
def test_a_filter_repeated_in_the_url_has_both_values(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    found = prepare("Blue window", severity="high")
    prepare("Blue door", severity="low")
    assert listed(person.get("/inbox", "severity=high&severity=critical")) == [found]
    assert listed(person.get("/inbox", "q=blue&q=window")) == [found]
    assert person.get("/inbox", "sort=created_at&sort=-severity").status_code == 422


@on_sqlite
def test_an_empty_inbox_names_the_next_step(person: ConsoleBrowser) -> None:
    page = person.get("/inbox")
    assert 'data-state="unused"' in page.text
    assert "Nothing waits for a decision." in page.text
    assert "bin/riskrelay import-scan" in page.text


@on_sqlite
def test_another_accounts_tickets_are_not_found(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    strange = prepare("Not ours", of=make_customer())
    for query in ("", f"export={strange}", "q=ours"):
        page = person.get("/inbox", query)
        assert (listed(page), "Not ours" in page.text) == ([], False)


@on_sqlite
def test_a_ticket_that_was_decided_meanwhile_stays_readable(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    gone, left = prepare("gone", severity="high"), prepare("left")
    execute("UPDATE exports SET status = 'dismissed', finished_at = 1 WHERE id = ?", (gone,))
    page = person.get("/inbox", f"export={gone}")
    assert (listed(page), opened(page)) == ([left], "gone")


@on_sqlite
def test_markup_is_text_in_rows_menus_and_the_ticket(person: ConsoleBrowser, customer: Customer) -> None:
    make_target(customer, name=MARKUP)
    body = postback(issues=[issue(MARKUP[:60], title=MARKUP, location=MARKUP)])
    record_postback(PostbackForm().read(body), customer.project_id)
    execute("UPDATE projects SET name = ?", (MARKUP,))
    page = person.get("/inbox", f"q={MARKUP[15:30]}")
    for each in (person.get("/inbox"), page):
        for live in ("<script>", "<img", "54439"):
            assert live not in each.text.partition("<main")[2]
    assert "alert(1)" in person.get("/inbox").text


@on_sqlite
def test_a_row_shows_invisible_characters_by_their_numbers(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    prepare("A\u202eB", description="C\u200bD")
    page = person.get("/inbox")
    assert opened(page) == "A[U+202E]B"
    assert "C[U+200B]D" in page.text


@on_sqlite
def test_every_link_of_the_inbox_leads_to_a_page(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    pages = [person.get("/inbox").text]
    prepare("A ticket")
    pages.append(person.get("/inbox").text)
    links = {unescape(each) for page in pages for each in re.findall(r'href="/console(/[^"#]*)', page)}
    assert len(links) > 10
    found = {each: person.get(*each.split("?", 1)).status_code for each in links}
    assert {each: status for each, status in found.items() if status != 200} == {}


@on_sqlite
def test_a_list_runs_as_many_statements_for_many_rows_as_for_one(person: ConsoleBrowser, customer: Customer) -> None:
    def asked() -> int:
        with page_statements() as ran:
            assert person.get("/inbox").status_code == 200
        return len(ran)

    make_exports(customer, 1)
    person.get("/inbox")
    one = asked()
    make_exports(customer, PAGE_ROWS)
    assert asked() == one


@on_sqlite
def test_the_first_places_of_a_group_are_shown_and_the_rest_can_be_expanded(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    places = [{"url": f"https://shop.example/{n}", "location": f"main > p:nth-child({n})"} for n in range(6)]
    export_id = prepare(evidence={"places": places})
    execute("UPDATE exports SET findings_total = 40, findings_fixed = 3, rule = 'zap:1' WHERE id = ?", (export_id,))
    page = person.get("/inbox")
    assert "<summary>3 of 37 more places</summary>" in page.text
    assert page.text.count('<bdi class="page">/') == 6
    assert "shop.example · 40 places · zap:1 · 3 of 40 fixed" in page.text
    assert "<dt>Places</dt><dd>40, 3 of 40 fixed</dd>" in person.get(f"/exports/{export_id}").text
    assert queries.get(export_id).findings == (40, 3)


@on_sqlite
def test_the_due_time_of_a_delivery_is_a_relative_time(person: ConsoleBrowser, customer: Customer) -> None:
    make_approved(customer, make_target(customer).id)
    due_at = utc_now() + timedelta(minutes=11, seconds=30)
    execute("UPDATE exports SET status = 'retry_scheduled', attempts = 1, due_at = ?", (to_ms(due_at),))
    line = person.get("/deliveries").text.partition('class="row-about">')[2].partition("</p>")[0]
    assert re.search(r'1 attempt · due <time class="ago" datetime="[^"]+" title="[^"]+ UTC">in 11 min</time>', line)


@on_sqlite
def test_the_last_attempt_of_a_delivery_is_not_taken_for_its_next_one(person: ConsoleBrowser, customer: Customer) -> None:
    make_approved(customer, make_target(customer).id)
    at = to_ms(utc_now() - timedelta(minutes=3))
    execute("UPDATE exports SET status = 'retry_scheduled', attempts = 1, last_attempt_at = ?, last_duration_ms = 5", (at,))
    line = person.get("/deliveries").text.partition('class="row-about">')[2].partition("</p>")[0]
    assert re.search(r'tried <time class="ago" [^>]+>3 min ago</time>', line)
    execute("UPDATE exports SET status = 'exported', finished_at = last_attempt_at, due_at = NULL")
    assert "tried" not in person.get("/deliveries", "view=delivered").text


@on_sqlite
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", '<a href="/console/report-uploads">import a report</a>'),
        ("view=snoozed", "<b>No ticket is snoozed.</b>"),
        ("view=dismissed", "<b>No ticket is dismissed.</b>"),
    ],
)
def test_an_empty_list_offers_the_next_step(query: str, text: str, person: ConsoleBrowser) -> None:
    page = person.get("/inbox", query)
    empty = page.text.partition('data-state="unused"')[2].partition("</div>")[0]
    assert (text in empty, "<a href=" in empty) == (True, True)
    assert '<a class="button" href="/console/report-uploads">Import a report</a>' in page.text


@on_sqlite
@pytest.mark.parametrize(("path", "noun"), [("/inbox", "ticket"), ("/deliveries", "delivery")])
def test_an_empty_list_shows_a_sample_row(path: str, noun: str, person: ConsoleBrowser) -> None:
    empty = person.get(path).text.partition('data-state="unused"')[2]
    assert f"<summary>What a {noun} looks like</summary>" in empty
    assert "Form field without a label" in empty.partition("</details>")[0]


@on_sqlite
def test_a_filtered_list_names_no_new_tickets_because_the_count_is_of_all(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    prepare(severity="high")
    queries_with_count = ("", "sort=created_at", "severity=high", "q=total", "view=snoozed")
    assert ["data-new" in person.get("/inbox", each).text for each in queries_with_count] == [True, True, *[False] * 3]


@on_sqlite
def test_every_page_of_the_whole_list_names_new_tickets(
    person: ConsoleBrowser, prepare: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticket_list, "PAGE_ROWS", 1)
    prepare("one")
    prepare("two")
    found = re.search(r'rel="next" href="/console/inbox\?([^"]+)"', person.get("/inbox").text)
    assert found is not None
    assert "data-new" in person.get("/inbox", unescape(found[1])).text


@on_sqlite
def test_rows_say_when_and_why_a_ticket_was_dismissed_and_until_when_it_is_snoozed(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    dismissed, dated, unseen = (prepare(each, page_url="https://shop.example/<b>") for each in ("one", "two", "three"))
    bare = prepare("without a page")
    noon = "2026-03-01T12:00:00Z"
    at = to_ms(datetime.fromisoformat(noon))
    changes = "status = 'dismissed', finished_at = ?, dismissal_reason = 'wont_fix'"
    execute(f"UPDATE exports SET {changes} WHERE id = ?", (at, dismissed))  # noqa: S608 - our own columns
    execute("UPDATE exports SET snoozed_at = 1, snoozed_until = ? WHERE id = ?", (to_ms(utc_now()) + 86_500_000, dated))
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (unseen,))
    [row] = row_texts(person.get("/inbox", "view=dismissed"))
    assert re.search(
        rf"Won&#39;t fix <time class=\"ago\" datetime=\"{noon}\"[^>]*>[^<]+</time> · shop.example · /&lt;b&gt;", row
    )
    with_date, without_date = sorted(row_texts(person.get("/inbox", "view=snoozed")), key=lambda row: ">two<" not in row)
    assert "until it is seen again · shop.example · /&lt;b&gt;" in without_date
    execute("UPDATE exports SET snoozed_at = 1 WHERE id = ?", (bare,))
    assert any("<bdi>until it is seen again</bdi>" in row for row in row_texts(person.get("/inbox", "view=snoozed")))
    assert re.search(r"until <time datetime=[^>]+>[^<]+</time> · shop.example", with_date)
    assert re.search(r'<span class="row-age"><time class="ago" [^>]+>in 1 day</time>', with_date)


@on_sqlite
def test_projects_and_targets_are_offered_by_name(person: ConsoleBrowser, customer: Customer) -> None:
    for number, name in enumerate(("beta", "Alpha", "gamma"), 1):
        project_id = make_project(customer)
        execute("UPDATE projects SET name = ? WHERE id = ?", (name, project_id))
        record_postback(PostbackForm().read(postback(number, [issue(name)])), project_id)
        make_target(customer, name=name)
    assert [*menu(person.get("/inbox"), "Project")] == ["Alpha", "beta", "gamma"]
    # A menu of targets has no counts.
    targets = person.get("/deliveries").text.partition(">Target: ")[2].partition("</details>")[0]
    assert re.findall(r"<bdi>(\w+) \(", targets) == ["Alpha", "beta", "gamma"]
    form = person.get("/inbox").text.partition('/approve">')[2].partition("</form>")[0]
    assert re.findall(r">(\w+) \(", form) == ["Alpha", "beta", "gamma"]
    offered = person.get("/findings").text.partition('name="project_id"')[2].partition("</select>")[0]
    assert re.findall(r">(Alpha|beta|gamma)<", offered) == ["Alpha", "beta", "gamma"]


@on_sqlite
def test_a_delivery_names_its_target(person: ConsoleBrowser, customer: Customer) -> None:
    def lines() -> list[str]:
        with page_statements() as ran:
            page = person.get("/deliveries", "view=failed")
        statements.append(len(ran))
        return [row.partition("</time> · ")[2] for row in re.findall(r'class="row-about">(.*?)</p>', page.text)]

    statements: list[int] = []
    make_failed(customer, make_target(customer, name="One <b>").id)
    assert [line.startswith("One &lt;b&gt; · receiver gone · ") for line in lines()] == [True]
    make_failed(customer, make_target(customer, name="Two").id, 2)
    assert sorted(line.partition(" ·")[0] for line in lines()) == ["One &lt;b&gt;", "Two", "Two"]
    assert statements[0] == statements[1]


@on_sqlite
@pytest.mark.parametrize(("page", "status"), [("/inbox", "dismissed"), ("/deliveries", "failed")])
def test_a_row_shows_the_time_by_which_the_list_is_sorted(
    page: str, status: str, person: ConsoleBrowser, customer: Customer
) -> None:
    """The line below the title has another time, that of the last event."""
    ids = make_failed(customer, make_target(customer).id, 3)
    execute("UPDATE exports SET status = ?", (status,))
    # They ended in another order than they were prepared.
    for export_id, prepared_at, finished_at in zip(ids, (1, 2, 3), (5, 9, 7), strict=True):
        times = (prepared_at * 86_400_000, finished_at * 86_400_000, export_id)
        execute("UPDATE exports SET created_at = ?, finished_at = ? WHERE id = ?", times)
    shown = row_texts(person.get(page, f"view={status}"))
    days = [re.findall(r'datetime="1970-01-(\d\d)T', row) for row in shown]
    assert days == [["08", "04"], ["10", "03"], ["06", "02"]]


@on_sqlite
def test_only_lists_with_deliveries_in_progress_are_refreshed(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    make_failed(customer, target.id, 1)
    # Without a moving ticket, the list is not refreshed.
    assert 'id="rows" data-refresh' not in person.get("/deliveries").text
    make_approved(customer, target.id)
    for query in ("", "view=moving"):
        page = person.get("/deliveries", query).text
        assert '<div id="rows" data-refresh="10">' in page
        assert '<p id="about" class="about" data-refresh="10">1 on the way</p>' in page
    for path, query in (("/deliveries", "view=failed"), ("/inbox", "")):
        page = person.get(path, query).text
        assert ('<div id="rows">' in page, '<p id="about" class="about">' in page) == (True, True)


@on_sqlite
def test_empty_tabs_of_deliveries_say_so_and_link_to_all_exports(person: ConsoleBrowser) -> None:
    page = person.get("/deliveries", "view=failed").text
    assert "<b>Nothing failed.</b>" in page
    assert "Approve a ticket" not in page
    assert '<a class="button" href="/console/exports">All exports</a>' in page
    for query, text in (("", "Nothing is on its way."), ("view=delivered", "Nothing was delivered yet.")):
        page = person.get("/deliveries", query).text
        assert f"<b>{text}</b>" in page
        assert "Approve a ticket" in page


def test_the_first_row_of_the_next_page_follows_the_last_row_of_a_page(person: ConsoleBrowser, customer: Customer) -> None:
    ids = make_exports(customer, PAGE_ROWS + 2)
    page = person.get("/inbox", f"sort=created_at&export={ids[PAGE_ROWS - 1]}")
    [following] = re.findall(r'data-next="/console/inbox\?([^"]*)"', page.text)
    decided = shown_fields(page, f"/exports/{ids[PAGE_ROWS - 1]}/dismiss")
    assert decided["then"] == f"/inbox?{unescape(following)}"
    page = person.get("/inbox", unescape(following))
    assert listed(page) == ids[PAGE_ROWS:]
    assert f'aria-current="true">\n<input type="checkbox" form="selection" name="{ids[PAGE_ROWS]}"' in page.text
    # After the last row of all, the row before it follows.
    page = person.get("/inbox", unescape(following).replace(ids[PAGE_ROWS], ids[-1]))
    assert 'data-next=""' in page.text
    then = shown_fields(page, f"/exports/{ids[-1]}/dismiss")["then"]
    assert (f"export={ids[-2]}" in then, "cursor=" in then) == (True, True)


@on_sqlite
def test_a_ticket_links_the_form_of_a_rule_that_matches_it(person: ConsoleBrowser, customer: Customer) -> None:
    posted = PostbackForm().read(postback(1, [issue("zap:a&b*c")]))
    [export_id] = record_postback(posted, customer.project_id).ticket_exports
    assert "/rules/new" not in person.get(f"/exports/{export_id}").text
    person.sign_in(make_console_token(customer, Ability.CONSOLE, Ability.MANAGE_RULES))
    [query] = re.findall(r'href="/console/rules/new\?([^"]*)">Make a rule', person.get("/inbox").text)
    form = shown_fields(person.get("/rules/new", unescape(query)), "/rules/new")
    assert (form["rule"], form["project_id"]) == ("zap:a&b?c", str(customer.project_id))


@on_sqlite
def test_shortcut_hints_are_shown_only_where_shortcuts_are_active(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    make_target(customer)
    export_id = prepare()
    hints = [f'<kbd aria-hidden="true">{key}</kbd>' for key in "ad/"]
    assert all(hint in person.get("/inbox").text for hint in hints)
    # The page of a ticket has no shortcuts.
    assert not any(hint in person.get(f"/exports/{export_id}").text for hint in hints)
    person.keep_cookies(person.post("/shortcuts/off"))
    assert not any(hint in person.get("/inbox").text for hint in hints)
