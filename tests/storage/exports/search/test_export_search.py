"""The search entries of exports follow their tickets, and nothing of them is left after a redaction or a deletion."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.exports.tickets.ticket import Source, Ticket
from schemas.intake.scanner import PostbackForm
from schemas.triage.decision_forms import EditForm
from schemas.triage.export_filter import ExportQuery, ExportSort
from schemas.triage.search_words import hosts_of, words_of
from storage.db.engine import database, execute, is_sqlite, rows, transaction
from storage.exports import transitions
from storage.exports.rows import Draft
from storage.exports.search import export_list, export_search, export_sets, export_words_sql
from storage.exports.search.export_search import SearchEntry
from storage.triage import decisions
from tests.support.database.databases import on_postgresql
from tests.support.database.many_rows import export_id, many_finished, many_targets
from tests.support.database.query_plans import indexes_read, statements
from tests.support.factories import NOW, Customer, make_customer, make_exports, postback, record_postback

SECRET = "Hildegardsecretword"


def prepare(customer: Customer, title: str = "Title", rule: str | None = None) -> str:
    ticket = Ticket(title, "", "low", "https://shop.example/", (), {})
    draft = Draft(customer.account_id, None, Source("manual", ""), ticket, rule)
    with transaction():
        return transitions.prepare([draft], NOW, "user:test")[0]


def found(customer: Customer | None, *words: str) -> list[str]:
    query = ExportQuery(None if customer is None else customer.account_id, words=words)
    return [each.id for each in export_list.list_page(query)]


def test_a_search_finds_nothing_of_another_account(customer: Customer) -> None:
    mine = prepare(customer, "Shared word")
    theirs = prepare(other := make_customer(), "Shared thing")
    assert found(customer, "shared") == [mine]
    assert found(other, "shared") == [theirs]
    assert found(customer, "thing") == []
    assert found(None, "shared") == [theirs, mine]
    # The word that stores the account cannot be searched for.
    assert found(customer, str(customer.account_id)) == []


def test_a_changed_ticket_is_found_by_its_new_words_and_still_by_its_rule(customer: Customer) -> None:
    export_id = prepare(customer, "Old words", rule="csp")
    changed = Ticket("New words", "", "low", "https://new.example/", (), {}).record()
    with transaction():
        export_search.replace({export_id: (words_of(changed), hosts_of(changed))})
    assert (found(customer, "old"), found(customer, "new", "words")) == ([], [export_id])
    for query, number in (
        # A ticket names only the first places of a group.
        (ExportQuery(customer.account_id, hosts=("shop.example",)), 1),
        (ExportQuery(customer.account_id, hosts=("new.example",)), 1),
        (ExportQuery(customer.account_id, rules=("csp",)), 1),
    ):
        assert export_list.count(query) == number


def test_an_edited_ticket_and_an_extended_group_are_found_by_their_current_text(customer: Customer) -> None:
    export_id = prepare(customer, "Old words")
    decisions.edit(export_id, customer.account_id, NOW, "user:1", EditForm().read({"title": "Edited heading"}))
    assert (found(customer, "old"), found(customer, "edited")) == ([], [export_id])
    execute("UPDATE projects SET ticket_grouping = 'rule' WHERE id = ?", (customer.project_id,))
    for run, page in ((42, "one"), (43, "two")):
        url = f"https://{page}.example/{page}page"
        posted = postback(run, page={**postback()["page"], "url": url, "normalizedUrl": url})
        [group] = record_postback(PostbackForm().read(posted), customer.project_id).ticket_exports
    for word in ("onepage", "twopage"):
        assert found(customer, word) == [group]
    assert export_list.count(ExportQuery(customer.account_id, hosts=("two.example",))) == 1


def test_a_redacted_export_is_found_by_no_word_no_host_and_no_rule(customer: Customer) -> None:
    # The rule of an issue without a code is its title.
    export_id, other = prepare(customer, SECRET, rule=SECRET), prepare(customer, "Other", rule="csp")
    with transaction():
        transitions.redact([export_id], NOW, "worker")
    assert found(customer, SECRET.lower()) == []
    assert found(customer, "shop") == [other]
    assert rows("SELECT export_id FROM export_search") == [(other,)]
    assert rows("SELECT kind FROM export_terms WHERE export_id = ?", (export_id,)) == []
    for rule, number in ((SECRET, 0), ("csp", 1)):
        assert export_list.count(ExportQuery(customer.account_id, rules=(rule,))) == number


def test_deleting_an_export_deletes_its_search_entries(customer: Customer) -> None:
    gone, stays = prepare(customer, "Gone", rule="csp"), prepare(customer, "Stays")
    execute("DELETE FROM exports WHERE id = ?", (gone,))
    assert rows("SELECT DISTINCT export_id FROM export_terms") == [(stays,)]
    assert (found(customer, "gone"), found(customer, "stays")) == ([], [stays])


def test_removed_words_leave_nothing_in_the_sqlite_file(customer: Customer) -> None:
    # Several writes, so that the text index has several segments.
    for number in range(40):
        prepare(customer, f"Word{number} {SECRET}{number}")
    with transaction():
        transitions.redact([each for (each,) in rows("SELECT export_id FROM export_search")], NOW, "worker")
    export_words_sql.overwrite_removed()
    if is_sqlite():
        rows("PRAGMA wal_checkpoint(TRUNCATE)")
        path = Path(database.obj.database)
        assert SECRET.lower().encode() not in path.read_bytes().lower()
        with closing(sqlite3.connect(path)) as check, check:
            check.execute("INSERT INTO export_words (export_words) VALUES ('integrity-check')")
    assert found(customer, "word7") == []
    kept = make_exports(customer, 1, NOW + timedelta(minutes=1))
    assert found(customer, "missing", "name") == kept


def store_many(customer: Customer) -> None:
    """Store 20,000 exports; a word such as `w1` is in 1,150 of them."""
    many_targets(customer, 0, 1, "https://desk.example/")
    many_finished(customer, 0, 20_000, (0, 1), NOW)
    texts = [f"w{number % 50} w{number % 51} w{number % 53}" for number in range(20_000)]
    with transaction():
        export_search.add(
            [SearchEntry(export_id(number), customer.account_id, text, ()) for number, text in enumerate(texts)]
        )
    database.execute_sql("ANALYZE")


@pytest.mark.parametrize("sort", ExportSort)
def test_a_search_for_an_unknown_word_does_not_read_all_texts(customer: Customer, sort: ExportSort) -> None:
    store_many(customer)
    query = ExportQuery(customer.account_id, words=("nowhere",))
    with statements() as ran:
        assert export_list.list_page(query, sort, 50) == []
    in_order = "sqlite_autoindex_export_search_1" if is_sqlite() else "export_search_export_id_key"
    assert ran
    assert not [each.sql for each in ran if in_order in indexes_read(each)]


@on_postgresql
@pytest.mark.parametrize("sort", ExportSort)
def test_a_page_of_a_frequent_word_does_not_count_all_that_have_it(
    customer: Customer, sort: ExportSort, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_many(customer)
    monkeypatch.setattr(export_sets, "MAX_SORTED", 10)
    query = ExportQuery(customer.account_id, words=("w1",))
    with statements() as ran:
        page = export_list.list_page(query, sort, 50)
    assert ran
    # The operator of the full-text index.
    assert not [each.sql for each in ran if "@@" in each.sql]
    having = {export_id(number) for number in range(20_000) if 1 in {number % 50, number % 51, number % 53}}
    assert len(page) == 50
    assert {each.id for each in page} <= having
