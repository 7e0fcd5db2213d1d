"""Typed text is not lost when a form is refused: the error page shows it, except secrets."""

from collections.abc import Callable
from typing import Final

import pytest

from runtime.clock import utc_now
from schemas.base.console_session import SessionEndReason
from storage.accounts import sessions
from storage.db.engine import rows
from storage.exports import queries
from tests.service.console.form_fields import shown_fields
from tests.support.factories import Customer, make_approved, make_target
from tests.support.http.console_user import ConsoleBrowser

TYPED: Final = {"title": "A new title", "description": "One <b>\r\ntwo.", "labels": "team:shop"}


def end_session() -> None:
    """Revoke the only session."""
    [(session_id,)] = rows("SELECT id FROM console_sessions")
    sessions.end(session_id, SessionEndReason.REVOKED, utc_now(), "user:test")


def assert_shows_typed(text: str) -> None:
    """Require that the texts of TYPED are shown under their labels, to be copied."""
    shown = text.partition('<h2 id="typed">')[2].partition("</section>")[0]
    for label, typed in (("Title", "A new title"), ("Description", "One &lt;b&gt;\r\ntwo."), ("Labels", "team:shop")):
        assert typed in shown.partition(f"<label>{label}")[2].partition("</label>")[0], label


def test_the_text_of_an_edit_is_shown_after_the_session_has_ended(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    path = f"/exports/{prepare()}/edit"
    fields = {**shown_fields(person.get(path), path), **TYPED}
    end_session()
    page = person.post(path, **fields)
    assert page.status_code == 401
    assert_shows_typed(page.text)
    for other in (person.csrf, fields["ticket_digest"]):
        assert other not in page.text


def test_the_text_of_an_edit_is_shown_after_another_sign_in(
    person: ConsoleBrowser, customer: Customer, prepare: Callable[..., str]
) -> None:
    path = f"/exports/{prepare()}/edit"
    page = person.post(path, **{**TYPED, "csrf": f"{customer.account_id}.old"})
    assert page.status_code == 403
    assert_shows_typed(page.text)


def test_the_text_of_an_edit_is_shown_after_the_ticket_was_decided(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    export_id = prepare()
    path = f"/exports/{export_id}/edit"
    fields = {**shown_fields(person.get(path), path), **TYPED}
    assert person.post(f"/exports/{export_id}/dismiss").status_code == 303
    page = person.post(path, **fields)
    assert page.status_code == 409
    assert_shows_typed(page.text)


def test_the_note_of_a_late_dismissal_is_shown(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    page = person.post(f"/exports/{export_id}/dismiss", reason="duplicate", note="Ada knows.")
    assert (page.status_code, "Ada knows.</textarea>" in page.text) == (409, True)


@pytest.mark.parametrize("origin", ["https://elsewhere.example", None])
def test_a_form_of_another_site_is_not_repeated(
    origin: str | None, person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    end_session()
    person.origin = origin
    page = person.post(f"/exports/{prepare()}/edit", **TYPED)
    assert (page.status_code, "A new title" in page.text) == (401, False)


def test_no_secret_is_repeated(person: ConsoleBrowser, customer: Customer) -> None:
    target = make_target(customer)
    end_session()
    for path, fields in (
        ("/targets/add", {"provider": "generic_webhook", "secret": "cAnArY" * 5}),
        (f"/targets/{target.id}/secret", {"secret": "cAnArY" * 5}),
        (f"/targets/{target.id}/header", {"name": "X-Api-Key", "value": "cAnArY"}),
    ):
        page = person.post(path, **{"base_url": "https://bob:cAnArY@a.example/hook?token=cAnArY", **fields})
        assert (page.status_code, "cAnArY" in page.text) == (401, False), path
    typed = person.post("/targets/add", name="My target", base_url="https://a.example/hook?token=cAnArY").text
    assert ("My target</textarea>" in typed, "https://a.example/hook?token=***</textarea>" in typed) == (True, True)


def test_a_refused_form_without_text_shows_none(person: ConsoleBrowser, customer: Customer) -> None:
    export_id = make_approved(customer, make_target(customer).id)
    page = person.post(f"/exports/{export_id}/snooze", days="7")
    assert (page.status_code, "What you typed" in page.text) == (409, False)
    assert queries.get(export_id).snooze is None


def test_the_way_back_to_the_list_is_shown_after_the_session_has_ended(
    person: ConsoleBrowser, prepare: Callable[..., str]
) -> None:
    path = f"/exports/{prepare()}/dismiss"
    end_session()
    page = person.post(path, then="/inbox?severity=high")
    assert page.status_code == 401
    assert '<a href="/console/inbox?severity=high">Back to the list</a>' in page.text
    assert "Back to the list" not in person.post(path, then="//elsewhere.example").text
