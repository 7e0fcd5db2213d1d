"""Decisions on one ticket at the console: each leads to the next ticket, and a form that is sent twice is executed once."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import escape, unescape

import pytest
from falcon.testing import Result

from runtime.clock import utc_now
from schemas.base.fields import MAX_TEXT
from schemas.exports.decisions import DismissalReason, Snooze
from schemas.exports.state_machine import ExportStatus
from schemas.intake.scanner import PostbackForm
from storage.accounts import audit_log
from storage.db.engine import execute, rows
from storage.exports import queries
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
from tests.support.http.console_user import ConsoleBrowser

#: The notice after each decision.
NOTICE_OF = {"dismiss": "dismissed", "snooze": "snoozed"}


def hidden(page: Result, name: str) -> str:
    """Return the value of a hidden field in the ticket's forms."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text.partition('id="ticket"')[2])
    assert found is not None, name
    return unescape(found[1])


def undo_fields(page: Result) -> dict[str, str]:
    """Return the fields of the form in the notice."""
    form = page.text.partition('class="notice"')[2].partition("</form>")[0]
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in fields}


def chosen_target(page: Result) -> str | None:
    """Return the target that is selected beside Approve."""
    form = page.text.partition('/approve">')[2].partition("</form>")[0]
    found = re.search(r'<option value="(tgt_[^"]+)" selected>', form)
    return found[1] if found else None


def test_after_an_approval_the_next_ticket_is_shown_with_the_last_target(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    make_target(customer, name="One")
    target = make_target(customer, name="Two")
    make_target(customer, name="Three")
    first, second = prepare("first", severity="critical"), prepare("second", severity="high")
    page = person.get("/inbox", "severity=critical,high")
    assert chosen_target(page) is None
    fields = {"ticket_digest": hidden(page, "ticket_digest"), "then": hidden(page, "then"), "target_id": target.id}
    response = person.post(f"/exports/{first}/approve", **fields)
    following = f"/console/inbox?severity=critical,high&export={second}&done=approved"
    assert (response.status_code, response.headers["location"]) == (303, following)
    # A double click leads to the same page.
    assert person.post(f"/exports/{first}/approve", **fields).headers["location"] == following
    export = queries.get(first)
    assert (export.status, export.target_id, export.version) == (ExportStatus.APPROVED, target.id, 2)
    person.keep_cookies(response)
    after = person.get("/inbox", "severity=critical,high")
    assert re.search('<h2 id="ticket-title"[^>]*><bdi>second</bdi>', after.text)
    assert chosen_target(after) == target.id


@on_sqlite
def test_the_targets_of_a_hundred_projects_fit_the_cookie(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    target = make_target(customer)
    known = ".".join(f"{number}:{target.id}" for number in range(9_999_899, 10_000_000))
    person.preferences["riskrelay_preferences"] = f"{known}.no-keys"
    export_id = prepare()
    fields = {"ticket_digest": queries.get(export_id).ticket_digest, "target_id": target.id}
    kept = person.post(f"/exports/{export_id}/approve", **fields).cookies["riskrelay_preferences"].value
    assert (kept.count(target.id), kept.endswith(".no-keys")) == (100, True)
    # The limit of browsers for a cookie, including its name.
    assert len("riskrelay_preferences") + len(kept) <= 4096


def test_the_last_target_of_a_project_is_not_preset_in_another(person: ConsoleBrowser, customer: Customer) -> None:
    """The projects of an agency belong to its clients."""
    targets = {project_id: make_target(customer) for project_id in (customer.project_id, make_project(customer))}
    ids = {}
    for project_id in targets:
        for code in ("first", "second"):
            posted = PostbackForm().read(postback(project_id, issues=[issue(code)]))
            [ids[project_id, code]] = record_postback(posted, project_id).ticket_exports
    for project_id, target in targets.items():
        page = person.get(f"/exports/{ids[project_id, 'first']}")
        assert chosen_target(page) is None
        fields = {"ticket_digest": hidden(page, "ticket_digest"), "target_id": target.id}
        person.keep_cookies(person.post(f"/exports/{ids[project_id, 'first']}/approve", **fields))
    for project_id, target in targets.items():
        assert chosen_target(person.get(f"/exports/{ids[project_id, 'second']}")) == target.id
    # The same cookie contains whether shortcuts are on.
    person.keep_cookies(person.post("/shortcuts/off"))
    assert chosen_target(person.get(f"/exports/{ids[customer.project_id, 'second']}")) == targets[customer.project_id].id


@on_sqlite
@pytest.mark.parametrize(
    "then",
    [
        "https://elsewhere.example",
        "//elsewhere.example/x",
        "/inbox\r\nX: y",
        "javascript:alert(1)",
        "/inbox?q=<b>" + "x" * 8000,
    ],
)
def test_a_form_redirects_to_no_other_site(then: str, person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    response = person.post(f"/exports/{export_id}/dismiss", then=then)
    assert response.headers["location"] == f"/console/exports/{export_id}?done=dismissed&undo={export_id}.2"


def test_a_dismissal_has_a_reason_and_a_note_and_is_restored(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    fields = {"reason": "false_positive", "note": "Seen with <Ada>.\r\nDecoration."}
    for _ in range(2):
        assert person.post(f"/exports/{export_id}/dismiss", **fields).status_code == 303
    export = queries.get(export_id)
    assert export.dismissal is not None
    assert (export.dismissal.reason, export.dismissal.note) == (
        DismissalReason.FALSE_POSITIVE,
        "Seen with <Ada>.\nDecoration.",
    )
    page = person.get("/inbox", "view=dismissed")
    assert "as false positive" in page.text
    # Line breaks are kept.
    assert '<pre class="text"><bdi>Seen with &lt;Ada&gt;.\nDecoration.</bdi></pre>' in page.text
    for _ in range(2):
        assert person.post(f"/exports/{export_id}/restore").status_code == 303
    assert queries.get(export_id).status is ExportStatus.PREPARED
    assert [entry.action for entry in audit_log.list_for_subject(export_id, 9)] == ["restore", "dismiss", "prepare"]


def test_places_that_were_added_meanwhile_are_not_dismissed_with_the_others(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    execute("UPDATE projects SET ticket_grouping = 'rule'")

    def scan(run: int, place: str) -> tuple[str, ...]:
        body = postback(run, issues=[issue(location=place)])
        return tuple(record_postback(PostbackForm().read(body), customer.project_id).ticket_exports)

    [export_id] = scan(1, "#a")
    path = f"/exports/{export_id}"
    # For groups, the page explains what each reason means for later scans.
    explained = "what later scans find of its rule joins it"
    assert (explained in person.get(path).text, explained in person.get(f"/exports/{prepare()}").text) == (True, False)
    typed = {"reason": "false_positive", "note": "Decoration."}
    seen = {**shown_fields(person.get(path), f"{path}/dismiss"), **typed}
    assert scan(2, "#b") == (export_id,)
    late = person.post(f"{path}/dismiss", **seen)
    assert (late.status_code, "This ticket changed after you opened it" in late.text) == (409, True)
    assert "Decoration." in late.text
    assert queries.get(export_id).status is ExportStatus.PREPARED
    for _ in range(2):
        again = {**seen, "ticket_digest": queries.get(export_id).ticket_digest}
        assert person.post(f"{path}/dismiss", **again).status_code == 303
    assert queries.get(export_id).status is ExportStatus.DISMISSED


@on_sqlite
@pytest.mark.parametrize("verb", ["dismiss", "snooze"])
def test_the_notice_of_a_dismissal_or_a_snooze_undoes_it(
    verb: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    first, second = prepare("first", severity="critical"), prepare("second", severity="high")
    page = person.get("/inbox", "severity=critical,high")
    fields = {"then": hidden(page, "then"), **({"reason": "wont_fix"} if verb == "dismiss" else {"days": "7"})}
    address = person.post(f"/exports/{first}/{verb}", **fields).headers["location"]
    following = f"/console/inbox?severity=critical,high&export={second}"
    assert address == f"{following}&done={NOTICE_OF[verb]}&undo={first}.2"
    shown = person.get("/inbox", address.partition("?")[2]).text.partition('class="notice"')[2].partition("</div>")[0]
    assert f'action="/console/exports/{first}/restore"' in shown
    undo = undo_fields(person.get("/inbox", address.partition("?")[2]))
    # A double click undoes the decision once.
    response = [person.post(f"/exports/{first}/restore", **undo) for _ in range(2)][-1]
    export = queries.get(first)
    assert (export.status, export.snooze) == (ExportStatus.PREPARED, None)
    assert response.headers["location"] == f"/console/inbox?severity=critical,high&export={first}&done=restored"


@pytest.mark.parametrize("verb", ["dismiss", "snooze"])
def test_an_undo_is_refused_after_a_later_decision(verb: str, person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id, fields = prepare(), {"reason": "wont_fix"} if verb == "dismiss" else {"days": "7"}
    address = person.post(f"/exports/{export_id}/{verb}", then="/inbox?q=x", **fields).headers["location"]
    undo = undo_fields(person.get("/inbox", address.partition("?")[2]))
    person.post(f"/exports/{export_id}/restore", **undo)
    # Another user makes the decision again.
    person.post(f"/exports/{export_id}/{verb}", **fields)
    decided = queries.get(export_id)
    answer = person.post(f"/exports/{export_id}/restore", **undo)
    assert (answer.status_code, queries.get(export_id)) == (409, decided)
    assert "changed after the decision that you want to undo; nothing was undone." in answer.text
    assert f'href="/console/exports/{export_id}"' in answer.text
    assert f'href="/console{escape(undo["then"])}">Back to the list' in answer.text
    # The button on the page does not check the version.
    assert person.post(f"/exports/{export_id}/restore").status_code == 303
    assert (queries.get(export_id).status, queries.get(export_id).snooze) == (ExportStatus.PREPARED, None)


@on_sqlite
def test_an_undo_on_the_page_of_a_ticket_returns_to_that_page(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    address = person.post(f"/exports/{export_id}/dismiss", reason="wont_fix").headers["location"]
    page = person.get(f"/exports/{export_id}", address.partition("?")[2])
    assert f'<input type="hidden" name="then" value="/exports/{export_id}">' in page.text.partition('class="notice"')[2]


@on_sqlite
def test_the_dismissal_of_a_snoozed_ticket_cannot_be_undone(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    person.get(f"/exports/{export_id}")
    person.post(f"/exports/{export_id}/snooze", days="7")
    shown = shown_fields(person.get(f"/exports/{export_id}"), f"/exports/{export_id}/dismiss")
    address = person.post(f"/exports/{export_id}/dismiss", **{**shown, "reason": "wont_fix"}).headers["location"]
    assert queries.get(export_id).status is ExportStatus.DISMISSED
    assert address == f"/console/exports/{export_id}?done=dismissed"


@on_sqlite
@pytest.mark.parametrize(
    "query",
    [
        *("done=approved&undo={}.1", "done=dismissed", "done=dismissed&undo={}", "done=dismissed&undo={}.x"),
        *("done=dismissed&undo=exp_1.1", "done=dismissed&undo={}/../../x.1", "done=dismissed&undo={}.9999999999"),
    ],
)
def test_notices_of_other_decisions_offer_no_undo(query: str, person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    page = person.get("/inbox", query.format(prepare()))
    assert 'class="notice"' in page.text
    assert "Undo" not in page.text


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "field"),
    [({"reason": "boring"}, "reason"), ({"note": "x" * 2001}, "note"), ({"note": "4111 1111 1111 1111"}, "note")],
)
def test_a_refused_dismissal_keeps_what_was_typed(
    fields: dict[str, str], field: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare("The title")
    given = {"reason": "duplicate", "note": "Seen with <Ada>.", "then": "/inbox?q=x"} | fields
    page = person.post(f"/exports/{export_id}/dismiss", **given)
    assert (page.status_code, "The title" in page.text) == (422, True)
    message = page.text.partition(f'id="problem-{field}">')[2].partition("</span>")[0]
    assert message
    assert "4111" not in message
    assert '<details class="pop" data-key="d" open>' in page.text
    typed = shown_fields(page, f"/exports/{export_id}/dismiss")
    assert typed["then"] == "/inbox?q=x"
    assert typed["note"] == given["note"]
    assert field == "reason" or typed["reason"] == "duplicate"
    assert queries.get(export_id).status is ExportStatus.PREPARED


def test_a_ticket_is_snoozed_and_the_snooze_is_ended(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    assert person.post(f"/exports/{export_id}/snooze", days="7").status_code == 303
    snooze = queries.get(export_id).snooze
    assert snooze is not None
    assert snooze.until is not None
    assert abs(snooze.until - utc_now() - timedelta(days=7)) < timedelta(minutes=5)
    assert ">snoozed</span> until" in person.get("/inbox", "view=snoozed").text
    assert person.post(f"/exports/{export_id}/restore").status_code == 303
    assert queries.get(export_id).snooze is None


@on_sqlite
def test_only_a_ticket_with_findings_is_snoozed_until_it_is_seen_again(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    """A hand-made ticket is never reported again, so it would be hidden until retention deletes it."""
    [of_finding] = record_postback(PostbackForm().read(postback()), customer.project_id).ticket_exports
    for export_id, is_offered in ((prepare(), False), (of_finding, True)):
        page = person.get(f"/exports/{export_id}").text
        assert ('<option value="">until it is seen again</option>' in page) is is_offered
        answer = person.post(f"/exports/{export_id}/snooze", days="")
        assert answer.status_code == (303 if is_offered else 422)
        assert ("Choose a time." in answer.text.partition('id="problem-days">')[2]) is not is_offered
        assert queries.get(export_id).snooze == (Snooze(None) if is_offered else None)


@on_sqlite
def test_a_snooze_until_a_date_lasts_to_its_end(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    tomorrow = (utc_now() + timedelta(days=1)).date()
    assert person.post(f"/exports/{export_id}/snooze", days="1", date=tomorrow.isoformat()).status_code == 303
    snooze = queries.get(export_id).snooze
    assert snooze is not None
    assert snooze.until is not None
    assert snooze.until.date() == tomorrow
    for fields in ({"date": "2001-01-01"}, {"date": "soon"}, {"days": "2"}, {"days": "x"}):
        assert person.post(f"/exports/{export_id}/snooze", **fields).status_code == 422, fields


def test_a_ticket_is_edited_with_its_original_beside_it(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare("Old title", description="Old text.", severity="low", labels=["a"])
    page = person.get(f"/exports/{export_id}/edit", "then=/inbox%3Fseverity%3Dlow")
    assert page.text.count("Old title") == 2
    digest = re.findall(r'name="ticket_digest" value="([^"]*)"', page.text)[0]
    fields = {
        "ticket_digest": digest,
        "title": "New title",
        "description": "New text,\r\nin two lines.",
        "severity": "high",
        "labels": "a\r\n\r\n b ",
        "then": "/inbox?severity=low",
    }
    response = person.post(f"/exports/{export_id}/edit", **fields)
    assert (response.status_code, response.headers["location"]) == (303, "/console/inbox?severity=low&done=edited")
    export = queries.get(export_id)
    assert export.ticket["title"] == "New title"
    assert export.ticket["description"] == "New text,\nin two lines."
    assert export.ticket["labels"] == ["a", "b"]
    assert export.severity == "high"
    assert export.original_ticket is not None
    assert export.original_ticket["title"] == "Old title"
    assert "Old text." in person.get(f"/exports/{export_id}").text
    # A double click leads to the same page.
    assert person.post(f"/exports/{export_id}/edit", **fields).headers["location"] == response.headers["location"]
    assert queries.get(export_id).version == export.version
    # The form of the older page is refused and keeps the typed text, because somebody may have changed the ticket meanwhile.
    stale = person.post(f"/exports/{export_id}/edit", **{**fields, "title": "Newer"})
    assert (stale.status_code, "changed meanwhile" in stale.text, 'value="Newer"' in stale.text) == (422, True, True)
    assert queries.get(export_id).ticket["title"] == "New title"
    # The current ticket is shown beside it.
    beside = stale.text.partition('<h2 id="original">As it is now</h2>')[2]
    assert ("New title" in beside, "Old title" in stale.text) == (True, False)
    assert f'value="{export.ticket_digest}"' in stale.text


@on_sqlite
def test_an_edit_from_the_page_of_a_ticket_redirects_to_that_page(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    path = f"/exports/{prepare()}"
    links = re.findall(r'href="/console(/exports/[^"]*/edit[^"]*)"', person.get(path).text)
    page = person.get(*unescape(links[0]).split("?", 1))
    assert f'href="/console{path}">Cancel' in page.text
    fields = {**shown_fields(page, f"{path}/edit"), "title": "Other"}
    assert person.post(f"{path}/edit", **fields).headers["location"] == f"/console{path}?done=edited"


def test_a_form_sent_again_after_a_refusal_does_not_overwrite_changes_of_another_user(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    path = f"/exports/{prepare('Old title')}/edit"
    first, second = (shown_fields(person.get(path), path) for _ in range(2))
    assert person.post(path, **{**first, "title": "Theirs"}).status_code == 303
    refused = person.post(path, **{**second, "title": " "})
    assert (refused.status_code, 'id="problem-title"' in refused.text) == (422, True)
    stale = person.post(path, **{**shown_fields(refused, path), "title": "Mine"})
    assert (stale.status_code, "changed meanwhile" in stale.text, "Theirs" in stale.text) == (422, True, True)
    assert person.post(path, **shown_fields(stale, path)).status_code == 303


@on_sqlite
def test_fields_for_a_text_in_any_language_have_its_direction(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    of_edit, of_list = person.get(f"/exports/{export_id}/edit").text, person.get("/inbox").text
    for page, names in ((of_edit, ("title", "description", "labels")), (of_list, ("note", "q"))):
        for name in names:
            assert re.search(rf'<(input|textarea)[^>]* name="{name}" dir="auto"', page), name


@on_sqlite
def test_an_edit_keeps_unchanged_values(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    odd = {"description": "One\r\ntwo.\rThree.", "labels": ["a, b", " c ", "d\ne"]}
    export_id = prepare("Soft\u00adhyphen", severity="low", **odd)
    before = queries.get(export_id)
    page = person.get(f"/exports/{export_id}/edit")
    fields = {**shown_fields(page, f"/exports/{export_id}/edit")}
    assert person.post(f"/exports/{export_id}/edit", **fields).status_code == 303
    assert queries.get(export_id) == before
    assert person.post(f"/exports/{export_id}/edit", **{**fields, "title": "Other"}).status_code == 303
    assert queries.get(export_id).ticket == {**before.ticket, "title": "Other"}


def test_a_ticket_whose_text_is_longer_than_a_form_accepts_gets_another_title(
    person: ConsoleBrowser, customer: Customer
) -> None:
    """The facts are part of the description, and make the longest one longer than a form accepts."""
    body = postback(customer.project_id, issues=[issue(description="x" * MAX_TEXT)])
    [export_id] = record_postback(PostbackForm().read(body), customer.project_id).ticket_exports
    before = queries.get(export_id)
    assert len(before.ticket["description"]) > MAX_TEXT
    fields = shown_fields(person.get(f"/exports/{export_id}/edit"), f"/exports/{export_id}/edit")
    assert person.post(f"/exports/{export_id}/edit", **{**fields, "title": "Other"}).status_code == 303
    assert queries.get(export_id).ticket == {**before.ticket, "title": "Other"}


def test_the_label_of_the_severity_follows_a_new_severity(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare(severity="low", labels=["website-risk", "severity:low"])
    fields = shown_fields(person.get(f"/exports/{export_id}/edit"), f"/exports/{export_id}/edit")
    assert person.post(f"/exports/{export_id}/edit", **{**fields, "severity": "high"}).status_code == 303
    export = queries.get(export_id)
    assert (export.severity, export.version) == ("high", 2)
    assert export.ticket["labels"] == ["website-risk", "severity:high"]
    fields = shown_fields(person.get(f"/exports/{export_id}/edit"), f"/exports/{export_id}/edit")
    assert person.post(f"/exports/{export_id}/edit", **{**fields, "labels": "severity:low"}).status_code == 303
    assert queries.get(export_id).ticket["labels"] == ["severity:low"]


@on_sqlite
def test_a_split_sent_twice_gets_the_same_redirect(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    execute("UPDATE projects SET ticket_grouping = 'rule'")
    body = postback(customer.project_id, issues=[issue(location=place) for place in ("#a", "#b")])
    record_postback(PostbackForm().read(body), customer.project_id)
    [(export_id,)] = rows("SELECT id FROM exports")
    answers = [person.post(f"/exports/{export_id}/split", then="/inbox?q=x").headers["location"] for _ in range(2)]
    assert answers == ["/console/inbox?q=x&done=split"] * 2
    assert len(rows("SELECT id FROM exports")) == 2
    assert person.post(f"/exports/{prepare()}/split").status_code == 409


@on_sqlite
def test_the_longest_description_of_any_script_fits_the_form(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id, longest = prepare(), "\U00020000" * MAX_TEXT
    fields = {"title": "Title", "description": longest, "severity": "high", "labels": ""}
    digest = queries.get(export_id).ticket_digest
    assert person.post(f"/exports/{export_id}/edit", ticket_digest=digest, **fields).status_code == 303
    assert queries.get(export_id).ticket["description"] == longest


@on_sqlite
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"title": " "}, "title"),
        ({"title": "a\nb"}, "title"),
        ({"description": ""}, "description"),
        ({"severity": "grave"}, "severity"),
    ],
)
def test_a_refused_edit_keeps_what_was_typed(
    changes: dict[str, str], field: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare()
    fields = {"title": "Typed title", "description": "Typed <text>.", "severity": "high", "labels": "typed"}
    digest = queries.get(export_id).ticket_digest
    page = person.post(f"/exports/{export_id}/edit", ticket_digest=digest, **{**fields, **changes})
    assert page.status_code == 422
    assert f'id="problem-{field}"' in page.text
    for text in (
        {"Typed title", "Typed &lt;text&gt;.", "typed"}
        - {"Typed title" if "title" in changes else ""}
        - {"Typed &lt;text&gt;." if "description" in changes else ""}
    ):
        assert text in page.text
    assert queries.get(export_id).original_ticket is None


@on_sqlite
def test_forbidden_content_in_an_edit_is_refused_and_not_repeated_in_the_message(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare()
    digest = queries.get(export_id).ticket_digest
    fields = {"title": "A title", "description": "The card 4111 1111 1111 1111.", "severity": "high", "labels": ""}
    page = person.post(f"/exports/{export_id}/edit", ticket_digest=digest, **fields)
    assert page.status_code == 422
    assert "4111" not in page.text.partition('id="problem-description"')[2].partition("</span>")[0]
    assert "4111" not in str(queries.get(export_id).ticket)


def test_a_failed_export_is_retried_at_another_target_and_a_second_click_changes_nothing(
    person: ConsoleBrowser, customer: Customer
) -> None:
    wrong, right = make_target(customer, name="Wrong"), make_target(customer, name="Right")
    [export_id] = make_failed(customer, wrong.id)
    page = person.get("/deliveries", "view=failed")
    assert "Retry there" in page.text
    for _ in range(2):
        assert person.post(f"/exports/{export_id}/retry", target_id=right.id).status_code == 303
    export = queries.get(export_id)
    assert (export.status, export.target_id, export.version) == (ExportStatus.APPROVED, right.id, 2)


@on_sqlite
def test_a_conflicting_decision_links_the_ticket_and_the_list(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    export_id = prepare()
    execute("UPDATE exports SET status = 'dismissed', finished_at = 1")
    page = person.post(f"/exports/{export_id}/snooze", days="7", then="/inbox?severity=high&export=x")
    assert page.status_code == 409
    assert f'<a href="/console/exports/{export_id}">Open the ticket</a>' in page.text
    assert '<a href="/console/inbox?severity=high&amp;export=x">Back to the list</a>' in page.text
    assert "Open the ticket to see who decided or edited." in page.text
    assert "This ticket has the status “dismissed” now. Nothing was changed." in page.text
    assert f"Export {export_id} is" not in page.text


@on_sqlite
def test_an_approval_of_an_edited_ticket_is_refused_with_its_current_state(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    export_id, target_id = prepare(), make_target(customer).id
    seen = {"target_id": target_id, "ticket_digest": queries.get(export_id).ticket_digest}
    edited = {"title": "Another title", "description": "New", "severity": "low", "labels": ""}
    assert person.post(f"/exports/{export_id}/edit", ticket_digest=seen["ticket_digest"], **edited).status_code == 303
    page = person.post(f"/exports/{export_id}/approve", **seen)
    assert page.status_code == 409
    assert "This ticket changed after you opened it" in page.text
    person.post(f"/exports/{export_id}/dismiss", reason="wont_fix")
    page = person.post(f"/exports/{export_id}/approve", **seen)
    assert (page.status_code, "This ticket has the status “dismissed” now. Nothing was changed." in page.text) == (409, True)
    assert "with this digest" not in page.text


@on_sqlite
def test_the_error_page_for_a_deleted_ticket_links_the_inbox_and_not_the_ticket(person: ConsoleBrowser) -> None:
    page = person.post("/exports/exp_01AAAAAAAAAAAAAAAAAAAAAAAA/dismiss", then="/inbox?severity=high")
    assert (page.status_code, "Open the ticket" in page.text) == (404, False)
    assert '<a href="/console/inbox">Go to the inbox</a> · <a href="/console/inbox?severity=high">Back to' in page.text


@on_sqlite
@pytest.mark.parametrize(("path", "link"), [("/inbox/review", "Back"), ("/exports/{export_id}/dismiss", "Open the ticket")])
def test_a_get_request_for_the_url_of_a_form_links_its_page(
    path: str, link: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    address = path.format(export_id=prepare())
    page = person.get(address)
    assert (page.status_code, "There is no page at the address of a form" in page.text) == (405, True)
    assert f'<a href="/console{address.rpartition("/")[0]}">{link}</a>' in page.text


@on_sqlite
@pytest.mark.parametrize("verb", ["approve", "retry", "dismiss", "restore", "snooze", "split", "edit"])
def test_a_decision_on_another_accounts_export_is_404(
    verb: str, person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    export_id = prepare(of=make_customer())
    before = queries.get(export_id)
    fields = {"target_id": make_target(customer).id, "ticket_digest": before.ticket_digest, "days": "1"}
    assert person.post(f"/exports/{export_id}/{verb}", **fields).status_code == 404
    assert queries.get(export_id) == before


@on_sqlite
def test_shortcuts_are_on_until_they_are_turned_off(person: ConsoleBrowser, prepare: Callable[..., str]) -> None:
    prepare()
    assert 'data-keys="on"' in person.get("/inbox").text
    response = person.post("/shortcuts/off", then="/inbox?sort=created_at")
    assert response.headers["location"] == "/console/inbox?sort=created_at&done=keys_off"
    person.keep_cookies(response)
    assert 'data-keys="off"' in person.get("/inbox").text
    person.keep_cookies(person.post("/shortcuts/on"))
    assert 'data-keys="on"' in person.get("/inbox").text


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"date": "2001-01-01"}, "date", "This time is in the past."),
        ({"date": "soon"}, "date", "Enter a date, such as 2026-03-01."),
        ({"days": "2"}, "days", "This value is not one of the allowed values"),
    ],
)
def test_a_refused_snooze_stays_on_the_page_of_the_ticket(
    fields: dict[str, str], field: str, message: str, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare("The title")
    page = person.post(f"/exports/{export_id}/snooze", **{"days": "7", "then": "/inbox?q=x", **fields})
    assert (page.status_code, "The title" in page.text, "The ticket was not snoozed." in page.text) == (422, True, True)
    assert page.text.partition(f'id="problem-{field}">')[2].partition("</span>")[0].startswith(message)
    assert "/until" not in page.text
    typed = shown_fields(page, f"/exports/{export_id}/snooze")
    assert (typed["then"], typed["date"]) == ("/inbox?q=x", fields.get("date", ""))
    assert field == "days" or typed["days"] == "7"


@on_sqlite
def test_the_form_of_an_edit_links_the_list_from_which_it_was_opened(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    path = f"/exports/{prepare()}"
    assert f'<a href="/console{path}">Back to the ticket</a>' in person.get(f"{path}/edit").text
    page = person.get(f"{path}/edit", "then=%2Finbox%3Fseverity%3Dhigh")
    assert '<a href="/console/inbox?severity=high">Back to the ticket</a>' in page.text
