"""A scanner's report is uploaded at the console; its page shows the progress and the result."""

from html import unescape

import pytest
from falcon.testing import Result

from runtime.clock import utc_now
from schemas.intake.report_uploads import MAX_FILE_BYTES
from service.console import choices
from storage.db.engine import rows
from storage.intake import report_uploads
from storage.intake.options import DEFAULT_OPTIONS
from storage.secrets import key_check
from storage.secrets.vault import Vault
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_customer, make_project, make_report_upload
from tests.support.http.console_user import ConsoleBrowser
from tests.support.scan_reports import FILES
from worker.background.batches.report_uploads import ReportUploadTask

NEW = "/report-uploads"
ZAP = FILES["zap"].read_bytes()
NAME = "zap <b>\u202egpj.json"


def import_waiting() -> None:
    """Import the waiting reports, as a worker does."""
    task = ReportUploadTask(Vault([b"A" * 32]), DEFAULT_OPTIONS, utc_now)
    while task.run_once():
        pass


def send(person: ConsoleBrowser, customer: Customer, content: bytes, name: str = "zap.json", **fields: str) -> Result:
    return person.upload(NEW, content, name, **{"project": str(customer.project_id), **fields})


def page_of(person: ConsoleBrowser, answer: Result) -> Result:
    assert answer.status_code == 303, answer.text
    path, _, query = answer.headers["location"].partition("?")
    return person.get(path.partition("/console")[2], query)


def refusal(answer: Result) -> str:
    assert answer.status_code == 422
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]
    return unescape(answer.text)


def test_a_report_is_uploaded_imported_and_its_result_is_shown(person: ConsoleBrowser, customer: Customer) -> None:
    assert 'enctype="multipart/form-data"' in person.get(NEW).text
    sent = send(person, customer, ZAP, NAME)
    waiting = page_of(person, sent).text
    assert "Report uploaded. A worker imports it." in waiting
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in waiting
    assert "<b>" not in waiting
    assert "\u202e" not in waiting
    assert "zap &lt;b&gt;" in waiting
    import_waiting()
    done = page_of(person, sent).text
    assert "<dt>Format</dt><dd>ZAP</dd>" in done
    assert "<dt>New findings</dt><dd>6</dd>" in done
    assert "<dt>Tickets prepared</dt><dd>6</dd>" in done
    assert "refresh" not in done
    link = f"/console/inbox?project_id={customer.project_id}"
    assert f'href="{link}"' in done
    assert "Nothing waits" not in person.get("/inbox", f"project_id={customer.project_id}").text
    assert "zap &lt;b&gt;" in person.get(NEW).text
    assert rows("SELECT actor FROM audit_entries WHERE action = 'upload_report'") == [(f"user:{customer.user_id}",)]


@on_sqlite
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Choose a report file that is not empty."),
        (b"  \n", "The report is empty"),
        (b'{"some": "value"}', "The file is not a report of a supported scanner. Supported: ZAP, Lighthouse"),
        (b"<xml></xml>", "The report is HTML or XML; configure the scanner to write JSON."),
        (b'{"site": [', "The report is truncated at line 1"),
        (b"\x1f\x8b\x08", "The report is not valid utf-8 at byte 2"),
        (b"x" * (MAX_FILE_BYTES - 5), "The report is not JSON at line 1, column 1"),
    ],
)
def test_an_invalid_report_file_is_refused_with_a_message(
    person: ConsoleBrowser, customer: Customer, content: bytes, message: str
) -> None:
    page = refusal(send(person, customer, content))
    assert message in page
    assert f'<option value="{customer.project_id}" selected>' in page


@on_sqlite
@pytest.mark.parametrize("size", [MAX_FILE_BYTES + 1, MAX_FILE_BYTES + 100 * 1024])
def test_a_file_over_the_limit_is_refused(person: ConsoleBrowser, customer: Customer, size: int) -> None:
    answer = send(person, customer, b"[" + b" " * (size - 1))
    assert answer.status_code == 413
    assert "The file is larger than 5 MiB. Nothing was stored." in answer.text
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]


@on_sqlite
def test_a_scan_run_must_belong_to_the_project(person: ConsoleBrowser, customer: Customer) -> None:
    for number, message in (("7", "The project has no scan run 7."), ("x", "not the number of a scan run")):
        assert message in refusal(send(person, customer, ZAP, scan_run_id=number))
    sent = send(person, customer, ZAP)
    [(run,)] = rows("SELECT scan_run_id FROM report_uploads")
    import_waiting()
    again = page_of(person, send(person, customer, ZAP, scan_run_id=str(run)))
    assert again.status_code == page_of(person, sent).status_code == 200
    assert rows("SELECT DISTINCT scan_run_id FROM report_uploads") == [(run,)]


@on_sqlite
def test_the_same_file_of_two_accounts_is_two_scan_runs(person: ConsoleBrowser, customer: Customer) -> None:
    other = make_customer()
    make_report_upload(other, ZAP, "zap")
    page_of(person, send(person, customer, ZAP))
    assert rows("SELECT COUNT(DISTINCT scan_run_id) FROM report_uploads") == [(2,)]


@on_sqlite
def test_a_project_of_another_account_is_not_found(person: ConsoleBrowser) -> None:
    assert send(person, make_customer(), ZAP).status_code == 404
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]


@on_sqlite
def test_a_form_of_another_session_or_origin_is_refused(person: ConsoleBrowser, customer: Customer) -> None:
    assert send(person, customer, ZAP, csrf="1.wrong").status_code == 403
    person.origin = "https://evil.example"
    assert send(person, customer, ZAP).status_code == 403
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]


@on_sqlite
def test_a_file_name_with_a_card_number_is_not_stored(person: ConsoleBrowser, customer: Customer) -> None:
    page = page_of(person, send(person, customer, ZAP, "4111111111111111.json"))
    assert "4111111111111111" not in page.text
    assert rows("SELECT file_name FROM report_uploads") == [("report",)]


@pytest.mark.parametrize("name", ["a\0b.json", "a\0/b.json"])
def test_a_file_name_with_nul_is_refused_unless_only_its_folder_has_it(
    person: ConsoleBrowser, customer: Customer, name: str
) -> None:
    sent = send(person, customer, ZAP, name)
    is_refused = not name.endswith("/b.json")
    assert sent.status_code == (422 if is_refused else 303)
    assert rows("SELECT file_name FROM report_uploads") == ([] if is_refused else [("b.json",)])


@on_sqlite
@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        *((body, "multipart/form-data; boundary=x", 422) for body in (b"", b"--x\r\n", b"no form at all")),
        # A form without a CSRF token.
        (b"--x--", "multipart/form-data; boundary=x", 403),
        (b"--x--", "application/x-www-form-urlencoded; boundary=x", 415),
        (b"--\xe9--", "multipart/form-data; boundary=\xe9", 415),
        (b"--x--", "", 415),
    ],
)
def test_a_broken_form_is_refused(person: ConsoleBrowser, body: bytes, content_type: str, status: int) -> None:
    headers = {
        "Cookie": f"riskrelay_session={person.cookie}",
        "User-Agent": person.browser,
        "Origin": person.origin or "",
        "Content-Type": content_type,
    }
    assert person.client.simulate_post(f"/console{NEW}", body=body, headers=headers).status_code == status


@on_sqlite
def test_a_refused_page_is_shown_with_its_reason(person: ConsoleBrowser, customer: Customer) -> None:
    card = b'[{"template-id": "t", "matched-at": "https://shop.example/a", "info": {"name": "Card 4111 1111 1111 1111"}}]'
    sent = send(person, customer, card)
    import_waiting()
    page = page_of(person, sent).text
    assert "<dt>Pages refused</dt><dd>1</dd>" in page
    assert "https://shop.example/a" in page
    assert "4111" not in page
    assert [each.status for each in report_uploads.list_newest(customer.account_id, 5)] == ["done"]


@on_sqlite
def test_the_form_is_linked_from_the_empty_inbox_and_the_findings(person: ConsoleBrowser, customer: Customer) -> None:
    assert f'href="/console{NEW}"' in person.get("/inbox").text
    assert f'href="/console{NEW}?project={customer.project_id}"' in person.get("/findings").text


@on_sqlite
def test_with_several_projects_the_form_preselects_only_the_requested_one(
    person: ConsoleBrowser, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A report in the project of another client would become tickets of that client.
    monkeypatch.setattr(choices, "MAX_PROJECTS", 2)
    assert "Project…" not in person.get(NEW).text
    others = [make_project(customer) for _ in range(2)]
    assert '<option value="">Project…</option>' in person.get(NEW).text
    for project_id in (customer.project_id, *others):
        page = person.get(NEW, f"project={project_id}").text
        assert f'<option value="{project_id}" selected>' in page
        assert "Project…" not in page
    strange = make_customer().project_id
    assert f'value="{strange}"' not in person.get(NEW, f"project={strange}").text


@on_sqlite
def test_without_the_key_of_the_installation_nothing_is_stored(person: ConsoleBrowser, customer: Customer) -> None:
    assert key_check.canary() is None
    key_check.check_keys(Vault([b"B" * 32]), utc_now())
    answer = send(person, customer, ZAP)
    assert answer.status_code == 503
    assert "ENCRYPTION_KEYS" in answer.text
    assert rows("SELECT COUNT(*) FROM report_uploads") == [(0,)]
