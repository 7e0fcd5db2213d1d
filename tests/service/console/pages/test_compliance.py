"""The page of compliance requests: what was requested, the deadline and the result, but never the person."""

from datetime import timedelta
from typing import Final

from runtime.clock import utc_now
from schemas.base.timestamps import to_ms
from schemas.compliance.requests import ComplianceResult, Topic
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows, transaction
from storage.secrets.vault import Vault
from tests.support.corpora import naughty_strings
from tests.support.database.databases import on_sqlite
from tests.support.http.console_user import ConsoleBrowser, page_statements
from tests.support.http.storefront import ADA, BOB, receive, traces_of

VAULT: Final = Vault([b"A" * 32])


def finished(result: ComplianceResult, counts: dict[str, int], report: bytes | None = None) -> None:
    held = compliance_requests.claim_next(utc_now())
    assert held is not None
    with transaction():
        compliance_requests.finish(held, result, counts, report, utc_now(), "worker:test")


def test_the_list_shows_the_result_of_each_request_and_no_personal_data(person: ConsoleBrowser) -> None:
    done = receive(Topic.DATA_REQUEST, VAULT, ADA)
    finished(ComplianceResult.REPORTED, {"exports": 3, "inbound_emails": 1}, b"sealed")
    receive(Topic.CUSTOMER_REDACT, VAULT, BOB, "other.shops.example")
    execute("UPDATE compliance_requests SET last_error = 'OperationalError', attempts = 2 WHERE id <> ?", (done,))
    text = person.get("/compliance").text
    for expected in ("customers/data request", "customers/redact", "snow.shops.example", "other.shops.example", "reported"):
        assert f">{expected}<" in text
    assert "<summary>4 records</summary>" in text
    assert "<dt>inbound emails</dt><dd>1</dd>" in text
    assert f"bin/riskrelay compliance show {done} --report" in text
    assert "OperationalError" in text
    assert text.index("other.shops.example") < text.index("snow.shops.example")
    assert traces_of(ADA, text.lower()) == traces_of(BOB, text.lower()) == []
    for (pseudonym,) in rows("SELECT subject_pseudonym FROM compliance_requests"):
        assert pseudonym not in text
        assert pseudonym[:8] in text


def test_overdue_requests_are_marked_unless_they_are_finished(person: ConsoleBrowser) -> None:
    receive(Topic.SHOP_REDACT, VAULT, None, "done.shops.example")
    finished(ComplianceResult.REDACTED, {})
    late = receive(Topic.SHOP_REDACT, VAULT, None, "late.shops.example")
    receive(Topic.SHOP_REDACT, VAULT, None, "soon.shops.example")
    past = to_ms(utc_now() - timedelta(days=1))
    execute("UPDATE compliance_requests SET due_at = ? WHERE id = ? OR status = 'done'", (past, late))
    shown = person.get("/compliance").text.split("<tr>")
    assert ["late.shops" in row for row in shown if "overdue" in row] == [True]


#: Columns: query; shops whose requests are shown.
NARROWED: Final[list[tuple[str, set[str]]]] = [
    ("", {"a", "b", "c"}),
    ("status=done", {"a"}),
    ("status=received", {"b", "c"}),
    ("topic=customers%2Fredact", {"c"}),
    ("status=received&topic=shop%2Fredact", {"b"}),
    ("status=done&topic=customers%2Fredact", set()),
]


def test_filters_narrow_the_list_of_requests(person: ConsoleBrowser) -> None:
    receive(Topic.SHOP_REDACT, VAULT, None, "a.shops.example")
    finished(ComplianceResult.UNKNOWN_SHOP, {})
    receive(Topic.SHOP_REDACT, VAULT, None, "b.shops.example")
    receive(Topic.CUSTOMER_REDACT, VAULT, ADA, "c.shops.example")
    for query, shops in NARROWED:
        answer = person.get("/compliance", query)
        assert {shop for shop in "abc" if f">{shop}.shops.example</span>" in answer.text} == shops, query
        assert ('data-state="filtered"' in answer.text) == (not shops), query


def test_an_empty_list_says_so_and_filters_are_checked(person: ConsoleBrowser) -> None:
    assert 'data-state="unused"' in person.get("/compliance").text
    for query in ("status=lost", "topic=%00", "status=done&status=done", "cursor=cpl_1", "limit=0"):
        assert person.get("/compliance", query).status_code == 422


def test_the_list_is_paged_and_paging_keeps_the_filter(person: ConsoleBrowser) -> None:
    for number in range(3):
        receive(Topic.SHOP_REDACT, VAULT, None, f"shop-{number}.shops.example")
    first = person.get("/compliance", "limit=2&topic=shop%2Fredact").text
    following = first.split('rel="next" href="/console/compliance?')[1].split('"')[0].replace("&amp;", "&")
    assert "topic=shop%2Fredact" in following
    assert "shop-2." in first
    assert "shop-0." not in first
    second = person.get("/compliance", following).text
    assert "shop-0." in second
    assert "shop-1." not in second


@on_sqlite
def test_text_in_a_request_is_escaped_and_a_page_takes_one_statement(person: ConsoleBrowser) -> None:
    """A shop's domain is validated on arrival, but not in a restored backup or in a row written by hand."""
    for number, text in enumerate(texts := [text.replace("\0", "") for text in naughty_strings() if "<" in text][:150]):
        made = receive(Topic.SHOP_REDACT, VAULT, None, f"shop-{number}.shops.example")
        counts = '{"' + "".join(letter for letter in text if letter.isalnum() or letter in "<>/ ='") + '": 1}'
        execute(
            "UPDATE compliance_requests SET shop_domain = ?, last_error = ?, subject_pseudonym = ?, counts = ? WHERE id = ?",
            (text, text, text, counts, made),
        )
    with page_statements() as ran:
        answer = person.get("/compliance", "limit=200")
    assert answer.status_code == 200
    assert len([each for each in ran if "compliance_requests" in each.sql]) == 1
    assert len(texts) > 100
    assert [text for text in texts if len(text) > 3 and text in answer.text] == []
