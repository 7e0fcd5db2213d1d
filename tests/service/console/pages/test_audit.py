"""The audit log page: its content and order, which account sees which entries, and no markup of entries is executed."""

import base64
import re
from datetime import UTC, datetime
from html import escape
from typing import Any, Final
from urllib.parse import quote, urlencode

from falcon.testing import TestClient

from schemas.base.timestamps import to_ms
from storage.accounts import audit_log
from storage.accounts.audit_log import AuditEntry
from storage.db.engine import execute, rows, transaction
from tests.support.corpora import naughty_strings
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import full_scans
from tests.support.factories import NOW, Customer, make_customer, make_exports, make_target
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements

#: Invalid cursors: of another list, without a valid version, not a row number, beyond 64 bits, with other digits.
CURSORS: Final = (
    "<script>alert(1)</script>",
    *(
        base64.urlsafe_b64encode(f"{text}".encode()).decode().rstrip("=")
        for text in ("7", "2:7", "1:0", "1:-7", "1:07", "1:7 ", "1:9999999999999999999", "1:exp_1", "1:7 OR 1=1", "1:\u0661")
    ),
)
#: Far more statements than this page needs, however many lines it shows.
MAX_STATEMENTS: Final = 6


def line(actor: str = "operator", action: str = "test_it", subject: str = "scanner", **members: Any) -> AuditEntry:
    return AuditEntry(to_ms(NOW), actor, action, subject, **members)


def append(*entries: AuditEntry) -> None:
    with transaction():
        audit_log.append_all(entries)


def test_the_audit_log_shows_who_did_what_to_which_record_and_why(person: ConsoleBrowser, customer: Customer) -> None:
    [export_id] = make_exports(customer, 1)
    append(
        line(f"user:{customer.user_id}", "approve", export_id, status_before="prepared", status_after="approved"),
        line("worker:host-1", "claim", export_id, reason="because"),
        line("user:999999", "approve", "somebody_elses"),
        # An unknown user, and a number beyond the database's integers.
        line("user:99999999999999999999", "approve", "a_client"),
    )
    text = person.get("/audit").text
    for expected in (
        customer.email,
        "worker:host-1",
        "because",
        "user:999999",
        "user:99999999999999999999",
        "somebody_elses",
    ):
        assert f">{expected}</td>" in text
    assert '<span class="status calm">prepared</span> → <span class="status busy">approved</span>' in text
    assert text.index("somebody_elses") < text.index("because") < text.index("approved</span>")
    assert f'href="/console/exports/{export_id}">{export_id}</a>' in text


def test_an_entry_that_changes_no_status_shows_none(person: ConsoleBrowser, customer: Customer) -> None:
    append(line("scanner", "extend", "exp_1", status_before="prepared", status_after="prepared", reason="1 finding"))
    [row] = re.findall(r"<tr>(?:(?!<tr>).)*exp_1.*?</tr>", person.get("/audit").text, re.DOTALL)
    assert "prepared" not in row


def test_only_records_that_the_visitor_may_open_are_links(person: ConsoleBrowser, customer: Customer) -> None:
    other = make_customer()
    mine, theirs = make_target(customer).id, make_target(other).id
    [others_export] = make_exports(other, 1)
    append(*(line(subject=subject) for subject in (mine, theirs, others_export, "tgt_", "exp_<b>", "token:1")))
    text = person.get("/audit").text
    assert f'href="/console/targets/{mine}"' in text
    assert f"<td>{theirs}</td>" in text
    assert f"<td>{others_export}</td>" in text
    assert "<td>exp_&lt;b&gt;</td>" in text


def test_the_audit_log_is_paged_and_shows_each_entry_once(person: ConsoleBrowser) -> None:
    append(*(line(subject=f"subject-{number:03}") for number in range(125)))
    shown: list[str] = []
    query = "limit=50"
    for _ in range(4):
        text = person.get("/audit", query).text
        shown += [part[:3] for part in text.split("<td>subject-")[1:]]
        if 'rel="next"' not in text:
            break
        query = text.split('rel="next" href="/console/audit?')[1].split('"')[0].replace("&amp;", "&")
    assert shown == [f"{number:03}" for number in reversed(range(125))]


def test_the_entries_of_one_record_are_found_and_paging_keeps_the_filter(person: ConsoleBrowser) -> None:
    append(*(line(subject="a b&c") for _ in range(3)), line(subject="another"))
    text = person.get("/audit", urlencode({"subject": "a b&c", "limit": 2})).text
    assert text.count("<td>a b&amp;c</td>") == 2
    assert "another" not in text
    assert 'href="/console/audit?subject=a+b%26c&amp;limit=2&amp;cursor=' in text
    assert 'value="a b&amp;c"' in text
    assert person.get("/audit", "subject=nothing").text.count('data-state="filtered"') == 1
    assert person.get("/audit", "subject=").text.count("<td>another</td>") == 1


def test_entries_are_found_by_actor_action_period_and_account(person: ConsoleBrowser, customer: Customer) -> None:
    other = make_customer()
    own, theirs = (make_exports(each, 1)[0] for each in (customer, other))
    late = AuditEntry(to_ms(datetime(2026, 2, 3, 23, 59, 59, 999_000, UTC)), "worker:host-1", "mark_late", own)
    next_day = AuditEntry(to_ms(datetime(2026, 2, 4, tzinfo=UTC)), f"user:{other.user_id}", "mark_next", theirs)
    append(late, next_day)
    for query, shown in {
        "actor=worker:host-1": {"late"},
        f"actor=user:{other.user_id}": {"next"},
        f"actor=+{quote(other.email.upper())}+": {"next"},
        "actor=somebody@example.com": set(),
        "action=mark_late": {"late"},
        # In the words of the page.
        "action=mark+next": {"next"},
        "first_day=2026-02-03&last_day=2026-02-03": {"late"},
        "first_day=2026-02-04&last_day=2026-02-04": {"next"},
        "first_day=2026-02-03&last_day=9999-12-31&subject=": {"late", "next"},
        f"account_id={other.account_id}": {"next"},
        f"subject={own}&action=mark_next": set(),
    }.items():
        text = person.get("/audit", query).text
        assert {name for name in ("late", "next") if f"<td>mark {name}</td>" in text} == shown, query
    text = person.get("/audit", "first_day=2026-02-03&limit=1&action=mark+next&actor=").text
    assert 'name="first_day" type="date" value="2026-02-03"' in text
    text = person.get("/audit", f"first_day=2026-02-03&account_id={customer.account_id}&limit=1").text
    assert f"/console/audit?first_day=2026-02-03&amp;account_id={customer.account_id}&amp;limit=1&amp;cursor=" in text


@on_sqlite
def test_a_filter_that_is_no_day_or_no_number_is_refused(person: ConsoleBrowser) -> None:
    for query, name in {
        "first_day=2026-02-30": "First day",
        "last_day=tomorrow": "Last day",
        "account_id=one": "Account id",
        "account_id=9999999999999999999": "Account id",
        "actor=%00": "Actor",
        "action=a&action=b": "Action",
    }.items():
        answer = person.get("/audit", query)
        assert (answer.status_code, f"{name}: " in answer.text) == (422, True), query
        assert ("such as 2026-03-01" in answer.text) == ("_day" in query)
        assert ("the allowed values: a number, such as 7." in answer.text) == ("account_id" in query)


def test_an_empty_audit_log_says_so(person: ConsoleBrowser) -> None:
    execute("DELETE FROM audit_entries")
    assert 'data-state="unused"' in person.get("/audit").text


def test_a_foreign_cursor_is_refused_and_not_repeated_in_the_page(person: ConsoleBrowser) -> None:
    for cursor in CURSORS:
        answer = person.get("/audit", urlencode({"cursor": cursor}))
        assert answer.status_code == 422, cursor
        assert "Cursor: " in answer.text, cursor
        # A short cursor may occur by chance in the CSRF token.
        assert escape(cursor) not in answer.text.replace(person.csrf, "")


def test_a_subject_that_no_record_has_is_refused_or_found_nowhere(person: ConsoleBrowser) -> None:
    for query in ("subject=%00", "subject=a%0Ab", "subject=a&subject=b", f"subject={'x' * 201}", "subject=%ff"):
        answer = person.get("/audit", query)
        assert answer.status_code in {200, 422}, query
        assert 'data-state="filtered"' in answer.text or "Subject: " in answer.text, query
    assert [person.get("/audit", f"subject={'x' * length}").status_code for length in (200, 201)] == [200, 422]


@on_sqlite
def test_text_in_an_audit_entry_is_escaped(person: ConsoleBrowser) -> None:
    texts = [text.replace("\0", "") for text in naughty_strings()]
    append(*(line(text, text, text, status_before=text, status_after=text, reason=text) for text in texts))
    for _ in range(3):
        answer = person.get("/audit", "limit=200")
        assert answer.status_code == 200
    dangerous = [text for text in texts if "<" in text and len(text) > 3]
    assert dangerous
    shown = person.get("/audit", "limit=200").text
    assert [text for text in dangerous if text in shown] == []


def test_a_page_takes_few_statements_that_use_indexes(person: ConsoleBrowser, customer: Customer) -> None:
    made = make_exports(customer, 60)
    append(*(line(f"user:{customer.user_id}", "approve", export_id) for export_id in made))
    for query in ("", "subject=nobody", f"subject={made[0]}"):
        with page_statements() as ran:
            assert person.get("/audit", query).status_code == 200
        assert len(ran) <= MAX_STATEMENTS, [each.sql for each in ran]
    asked = [each for each in ran if "audit_entries" in each.sql]
    assert len(asked) == 1
    assert len(rows("SELECT 1 FROM audit_entries")) > 100
    assert not full_scans(asked[0], {"exports"})


@on_sqlite
def test_only_the_operator_sees_the_audit_log_of_the_installation(client: TestClient, person: ConsoleBrowser) -> None:
    stranger = ConsoleBrowser(client)
    assert stranger.sign_in(make_console_token(make_customer())).status_code == 303
    assert person.get("/audit").status_code == 200
    for page in ("/audit", "/compliance", "/integrations"):
        assert stranger.get(page).status_code == 404
        assert f'href="/console{page}"' not in stranger.get("/exports").text
