"""Handoffs: a capture or a diagnostic is stored, an export is prepared from it, and one record ties them together.

All of it is one transaction, which begins by asking whether the uploader may manage the project or report.
"""

from datetime import datetime
from typing import Any

from schemas.base.errors import ValidationFailed
from schemas.base.fields import problem
from schemas.base.principal import TokenPrincipal
from schemas.base.shop_domain import normalised_shop_domain
from schemas.base.timestamps import to_ms
from schemas.exports.handoffs import RECEIVED, Handoff
from schemas.exports.ticket import Source, Ticket
from schemas.exports.ticket_text import ticket_for_capture, ticket_for_diagnostic
from schemas.intake.diagnostics import Diagnostics
from schemas.intake.evidence import Capture, outline_record
from storage.accounts.audit_log import AuditEntry, append_all
from storage.accounts.grants import manageable
from storage.db import identifiers
from storage.db.columns import JsonField
from storage.db.engine import execute, transaction, values_list
from storage.exports.rows import Draft
from storage.exports.transitions import prepare

_json = JsonField()


def record_capture(capture: Capture, principal: TokenPrincipal, now: datetime) -> Handoff:
    """Store an evidence capture and prepare an export from it. Raises Forbidden, ValidationFailed on `/report_id`."""
    with transaction():
        manageable(principal, capture.project_id, capture.report_id)
        capture_id = identifiers.new_id(identifiers.CAPTURE, now)
        _insert("evidence_captures", _capture_row(capture, capture_id, now))
        source = Source("evidence_capture", capture_id)
        return _hand_off(source, ticket_for_capture(capture), capture, principal, now)


def record_diagnostics(diagnostics: Diagnostics, principal: TokenPrincipal, now: datetime) -> Handoff:
    """Store diagnostics and prepare an export from them.

    Raises Forbidden, and ValidationFailed on `/report_id`, or on `/shop_domain` where the project has another shop.
    """
    with transaction():
        project = manageable(principal, diagnostics.project_id, diagnostics.report_id)
        _require_shop(diagnostics.shop_domain, project.shop_domain)
        diagnostic_id = identifiers.new_id(identifiers.DIAGNOSTIC, now)
        _insert("diagnostics", _diagnostics_row(diagnostics, diagnostic_id, now))
        source = Source("diagnostics", diagnostic_id)
        return _hand_off(source, ticket_for_diagnostic(diagnostics), diagnostics, principal, now)


def _require_shop(named: str | None, expected: str | None) -> None:
    """Refuse a shop other than the project's; a project without one takes any and stays without."""
    if named is None or expected is None:
        return
    # An operator may have written it when it was still taken as it came.
    if named != (normalised_shop_domain(expected) or expected):
        raise ValidationFailed(problem("/shop_domain", "other_shop"))


def _hand_off(
    source: Source, ticket: Ticket, upload: Capture | Diagnostics, principal: TokenPrincipal, now: datetime
) -> Handoff:
    draft = Draft(principal.account_id, upload.project_id, source, ticket)
    [export_id] = prepare([draft], now, principal.key)
    handoff_id = identifiers.new_id(identifiers.HANDOFF, now)
    _insert(
        "handoffs",
        {
            "id": handoff_id,
            "source_type": source.type,
            "source_id": source.id,
            "project_id": upload.project_id,
            "report_id": upload.report_id,
            "user_id": principal.user_id,
            "export_id": export_id,
            "status": RECEIVED,
            "created_at": to_ms(now),
        },
    )
    append_all([AuditEntry(to_ms(now), principal.key, "hand_off", handoff_id, None, RECEIVED)])
    return Handoff(handoff_id, source, upload.project_id, upload.report_id, export_id, now)


def _capture_row(capture: Capture, capture_id: str, now: datetime) -> dict[str, Any]:
    return {
        "id": capture_id,
        "project_id": capture.project_id,
        "report_id": capture.report_id,
        "page_url": capture.page_url,
        "page_title": capture.page_title,
        "selected_text": capture.selected_text,
        "meta_description": capture.meta_description,
        "canonical_url": capture.canonical_url,
        "heading_outline": _json.db_value(outline_record(capture)),
        "captured_at": None if capture.captured_at is None else to_ms(capture.captured_at),
        "extension_version": capture.extension_version,
        "created_at": to_ms(now),
    }


def _diagnostics_row(diagnostics: Diagnostics, diagnostic_id: str, now: datetime) -> dict[str, Any]:
    scopes = diagnostics.granted_scopes
    return {
        "id": diagnostic_id,
        "project_id": diagnostics.project_id,
        "report_id": diagnostics.report_id,
        "platform": diagnostics.platform.value,
        "site_url": diagnostics.site_url,
        "shop_domain": diagnostics.shop_domain,
        "shop_name": diagnostics.shop_name,
        "granted_scopes": None if scopes is None else _json.db_value(list(scopes)),
        "client_version": diagnostics.client_version,
        "diagnostics": _json.db_value(dict(diagnostics.told)),
        "created_at": to_ms(now),
    }


def _insert(table: str, row: dict[str, Any]) -> None:
    execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES {values_list(len(row), 1)}", [*row.values()])  # noqa: S608 - our own names
