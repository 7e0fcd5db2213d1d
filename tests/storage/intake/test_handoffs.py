"""An upload stores the capture or diagnostics, its export, its handoff and audit entries in one transaction, or nothing."""

import json
from datetime import datetime
from typing import Any

import pytest

from schemas.api.response_fields import dump
from schemas.api.uploads import HandoffResponse
from schemas.base.errors import Forbidden, ValidationFailed
from schemas.base.principal import TokenKind, TokenPrincipal
from schemas.base.timestamps import to_ms
from schemas.exports.handoffs import Handoff
from schemas.exports.state_machine import ExportStatus
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_text import ticket_for_capture, ticket_for_diagnostic
from schemas.intake.diagnostics import CmsDiagnosticsForm, Diagnostics, StorefrontDiagnosticsForm
from schemas.intake.evidence import Capture, CaptureForm
from storage.db import identifiers
from storage.db.engine import execute, rows, transaction
from storage.db.models import DiagnosticRow, EvidenceCaptureRow, HandoffRow
from storage.exports import queries
from storage.intake import handoffs
from tests.support.factories import (
    NOW,
    Customer,
    capture,
    cms_diagnostics,
    make_customer,
    make_project,
    make_report,
    storefront_diagnostics,
)
from tests.support.fakes import Rollback

TABLES = ("evidence_captures", "diagnostics", "handoffs", "exports", "audit_entries")


def principal(customer: Customer) -> TokenPrincipal:
    return TokenPrincipal(1, customer.user_id, customer.account_id, TokenKind.PLATFORM, frozenset(), may_use_webhooks=True)


def captured(project_id: int, **changes: Any) -> Capture:
    read: Capture = CaptureForm().read(capture(project_id, **changes))
    return read


def from_plugin(project_id: int, **changes: Any) -> Diagnostics:
    read: Diagnostics = CmsDiagnosticsForm().read(cms_diagnostics(project_id, **changes))
    return read


def from_app(project_id: int, **changes: Any) -> Diagnostics:
    read: Diagnostics = StorefrontDiagnosticsForm().read(storefront_diagnostics(project_id, **changes))
    return read


def counts() -> dict[str, int]:
    return {name: rows(f"SELECT COUNT(*) FROM {name}")[0][0] for name in TABLES}  # noqa: S608 - our own names


def uploaded(upload: Capture | Diagnostics, customer: Customer) -> Handoff:
    """Store an upload by the customer's user."""
    return handoffs.record_upload(handoffs.prepare_upload(upload), principal(customer), NOW)


def belonging(table: str, row_id: str) -> tuple[int, int | None]:
    """Return the project and the report that a row belongs to."""
    [(project_id, report_id)] = rows(f"SELECT project_id, report_id FROM {table} WHERE id = ?", (row_id,))  # noqa: S608 - our own names
    return project_id, report_id


def assert_tied_together(handoff: Handoff, customer: Customer, report_id: int | None) -> None:
    """Require that the handoff's row, its export and the audit log agree."""
    row = HandoffRow.get_by_id(handoff.id)
    assert (row.source_type, row.source_id) == (handoff.source.type, handoff.source.id)
    assert belonging("handoffs", handoff.id) == (customer.project_id, report_id)
    assert (row.user.id, row.export.id) == (customer.user_id, handoff.ticket_export_id)
    assert (row.status, row.created_at) == ("received", NOW)
    export = queries.get(handoff.ticket_export_id, customer.account_id)
    assert (export.status, export.source) == (ExportStatus.PREPARED, handoff.source)
    assert rows("SELECT project_id, scan_run_id FROM exports WHERE id = ?", (export.id,)) == [(customer.project_id, None)]
    recorded = rows("SELECT at, actor, action, subject_id, status_after FROM audit_entries ORDER BY id DESC LIMIT 2")
    actor = f"user:{customer.user_id}"
    assert recorded == [
        (to_ms(NOW), actor, "hand_off", handoff.id, "received"),
        (to_ms(NOW), actor, "prepare", export.id, "prepared"),
    ]


def test_a_capture_is_stored_as_it_was_sent(customer: Customer) -> None:
    report_id = make_report(customer.project_id)
    sent = captured(customer.project_id, report_id=report_id)

    handoff = uploaded(sent, customer)

    row = EvidenceCaptureRow.get_by_id(handoff.source.id)
    assert belonging("evidence_captures", row.id) == (customer.project_id, report_id)
    assert (row.page_url, row.page_title, row.selected_text) == (sent.page_url, sent.page_title, sent.selected_text)
    assert (row.meta_description, row.canonical_url) == (sent.meta_description, sent.canonical_url)
    assert row.heading_outline == capture(1)["heading_outline"]
    assert (row.captured_at, row.extension_version, row.created_at) == (sent.captured_at, "1.4.0", NOW)
    assert queries.get(handoff.ticket_export_id).ticket == ticket_for_capture(sent).record()
    assert_tied_together(handoff, customer, report_id)


def test_omitted_members_are_null(customer: Customer) -> None:
    least: Capture = CaptureForm().read({"project_id": customer.project_id, "page_url": "https://shop.example"})
    handoff = uploaded(least, customer)
    [row] = rows(
        "SELECT report_id, page_title, selected_text, meta_description, canonical_url, heading_outline, captured_at, "
        "extension_version FROM evidence_captures"
    )
    assert row == (None,) * 8
    assert_tied_together(handoff, customer, None)


def test_a_plugins_diagnostics_are_stored_as_they_were_sent(customer: Customer) -> None:
    report_id = make_report(customer.project_id)
    sent = from_plugin(customer.project_id, report_id=report_id)

    handoff = uploaded(sent, customer)

    row = DiagnosticRow.get_by_id(handoff.source.id)
    assert belonging("diagnostics", row.id) == (customer.project_id, report_id)
    assert (row.platform, row.created_at) == ("cms_commerce", NOW)
    assert (row.site_url, row.client_version) == ("https://shop.example/", "2.0.1")
    assert (row.shop_domain, row.shop_name, row.granted_scopes) == (None, None, None)
    assert row.diagnostics == cms_diagnostics(1)["diagnostics"]
    assert queries.get(handoff.ticket_export_id).ticket == ticket_for_diagnostic(sent).record()
    assert_tied_together(handoff, customer, report_id)


def test_the_apps_diagnostics_are_stored_as_they_were_sent(customer: Customer) -> None:
    sent = from_app(customer.project_id)

    handoff = uploaded(sent, customer)

    row = DiagnosticRow.get_by_id(handoff.source.id)
    assert belonging("diagnostics", row.id) == (customer.project_id, None)
    assert (row.shop_domain, row.shop_name) == ("snow.shops.example", "Snow")
    assert (row.granted_scopes, row.client_version) == (["read_content", "read_themes"], "3.1")
    assert (row.platform, row.site_url, row.created_at) == ("storefront", None, NOW)
    assert row.diagnostics == storefront_diagnostics(1)["diagnostics"]
    assert queries.get(handoff.ticket_export_id).ticket == ticket_for_diagnostic(sent).record()
    assert_tied_together(handoff, customer, None)


def test_a_handoff_names_its_source_project_report_and_export() -> None:
    handoff = Handoff("hof_1", Source("diagnostics", "dia_1"), 7, None, "exp_1", NOW)
    assert dump(HandoffResponse, handoff) == {
        "id": "hof_1",
        "source": {"type": "diagnostics", "id": "dia_1"},
        "project_id": 7,
        "report_id": None,
        "ticket_export_id": "exp_1",
        "status": "received",
        "created_at": "2026-03-01T12:00:00.000Z",
    }


def test_ids_have_the_prefix_of_their_kind_of_record(customer: Customer) -> None:
    of_capture = uploaded(captured(customer.project_id), customer)
    of_diagnostics = uploaded(from_app(customer.project_id), customer)
    assert (of_capture.source.type, of_diagnostics.source.type) == ("evidence_capture", "diagnostics")
    assert identifiers.is_id("evc", of_capture.source.id)
    assert identifiers.is_id("dia", of_diagnostics.source.id)
    assert identifiers.is_id("hof", of_capture.id)
    assert of_capture.id != of_diagnostics.id


@pytest.mark.parametrize("shop", ["snow.shops.example", "SNOW.Shops.Example.", None])
def test_an_upload_from_the_shop_of_the_project_or_for_a_project_without_shop_is_accepted(
    customer: Customer, shop: str | None
) -> None:
    project_id = make_project(customer, shop)
    uploaded(from_app(project_id), customer)
    expected = None if shop is None else "snow.shops.example"
    # An upload never sets the shop of a project.
    assert rows("SELECT shop_domain FROM projects WHERE id = ?", (project_id,)) == [(expected,)]


def test_a_shop_domain_stored_in_another_form_matches(customer: Customer) -> None:
    execute("UPDATE projects SET shop_domain = 'Snow.SHOPS.example.' WHERE id = ?", (customer.project_id,))
    assert uploaded(from_app(customer.project_id), customer).project_id


def test_another_shop_is_refused_and_stores_nothing(customer: Customer) -> None:
    project_id = make_project(customer, "ice.shops.example")
    before = counts()
    with pytest.raises(ValidationFailed) as refused:
        uploaded(from_app(project_id), customer)
    [problem] = refused.value.problems
    assert (problem.path, problem.code) == ("/shop_domain", "other_shop")
    assert counts() == before


def test_diagnostics_of_a_plugin_are_accepted_for_a_project_of_any_shop(customer: Customer) -> None:
    project_id = make_project(customer, "ice.shops.example")
    assert uploaded(from_plugin(project_id), customer).project_id == project_id


def test_an_upload_without_permission_stores_nothing(customer: Customer) -> None:
    stranger = make_customer()
    before = counts()
    with pytest.raises(Forbidden):
        uploaded(captured(stranger.project_id), customer)
    for read in (from_plugin, from_app):
        with pytest.raises(Forbidden):
            uploaded(read(stranger.project_id), customer)
    assert counts() == before


def hand_in_and_break_off(customer: Customer) -> None:
    with transaction():
        uploaded(captured(customer.project_id), customer)
        uploaded(from_app(customer.project_id), customer)
        assert (counts()["handoffs"], counts()["exports"]) == (2, 2)
        raise Rollback


def test_an_upload_is_stored_in_one_transaction(customer: Customer) -> None:
    before = counts()
    with pytest.raises(Rollback):
        hand_in_and_break_off(customer)
    assert counts() == before


@pytest.mark.parametrize("captured_at", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"])
def test_any_capture_time_is_stored(customer: Customer, captured_at: str) -> None:
    handoff = uploaded(captured(customer.project_id, captured_at=captured_at), customer)
    assert EvidenceCaptureRow.get_by_id(handoff.source.id).captured_at == datetime.fromisoformat(captured_at)


def test_texts_of_any_characters_are_kept(customer: Customer) -> None:
    text = "".join(chr(code) for code in (*range(1, 0x20), 0x7F, 0x85, 0x2028, 0xFEFF, 0xFFFF, 0x1F600, 0x10FFFF))
    handoff = uploaded(captured(customer.project_id, selected_text=text), customer)
    recorded = {"visible_storefront_symptoms": [text]}
    other = uploaded(from_app(customer.project_id, diagnostics=recorded), customer)
    assert EvidenceCaptureRow.get_by_id(handoff.source.id).selected_text == text
    assert DiagnosticRow.get_by_id(other.source.id).diagnostics["visible_storefront_symptoms"] == [text]
    [(ticket,)] = rows("SELECT ticket FROM exports WHERE id = ?", (handoff.ticket_export_id,))
    assert json.loads(ticket)["evidence"]["selected_text"] == text
