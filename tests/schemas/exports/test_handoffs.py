"""The status of an upload as an app sees it, derived from its export; and which uploads concern the same page or problem."""

from typing import Any

import pytest

from schemas.exports.handoffs import HandoffStatus, handoff_status, natural_key
from schemas.exports.state_machine import ExportStatus
from schemas.intake.diagnostics import CmsDiagnosticsForm, StorefrontDiagnosticsForm
from schemas.intake.evidence import CaptureForm
from tests.support.factories import capture, cms_diagnostics, storefront_diagnostics

#: Every status of an export, with the status of a handoff without findings and of one with two fixed findings.
STATUSES = {
    "prepared": ("prepared", "prepared"),
    "approved": ("approved", "approved"),
    "delivering": ("approved", "approved"),
    "retry_scheduled": ("approved", "approved"),
    "exported": ("delivered", "fixed"),
    "failed": ("failed", "failed"),
    "blocked": ("failed", "failed"),
    "dismissed": ("dismissed", "dismissed"),
}


@pytest.mark.parametrize("status", ExportStatus)
def test_each_status_of_an_export_has_a_status_of_the_handoff(status: ExportStatus) -> None:
    without, fixed = STATUSES[status]
    assert (handoff_status(status, None, None), handoff_status(status, 2, 2)) == (without, fixed)
    assert handoff_status(status, 2, 1) == handoff_status(status, 2, None) == without


def test_every_status_of_a_handoff_except_received_corresponds_to_a_status_of_an_export() -> None:
    assert {*sum(STATUSES.values(), ())} == {*HandoffStatus} - {HandoffStatus.RECEIVED}


def of_capture(project_id: int = 1, **changes: Any) -> str:
    return natural_key(CaptureForm().read(capture(project_id, **changes)))


def of_plugin(project_id: int = 1, **changes: Any) -> str:
    return natural_key(CmsDiagnosticsForm().read(cms_diagnostics(project_id, **changes)))


def of_app(project_id: int = 1, **changes: Any) -> str:
    return natural_key(StorefrontDiagnosticsForm().read(storefront_diagnostics(project_id, **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"page_url": "HTTPS://Shop.Example:443/cart?utm_source=mail&step=2#total"},
        {"selected_text": "  The total\n is missing. "},
        {"page_title": "(1) Your cart", "heading_outline": None, "meta_description": None, "canonical_url": None},
        {"captured_at": "2026-03-02T08:00:00Z", "extension_version": "1.4.1"},
    ],
    ids=["as it is", "the page", "spaces", "the rest of the page", "time and version"],
)
def test_the_same_text_of_the_same_page_is_the_same_capture(changes: dict[str, Any]) -> None:
    assert of_capture(**changes) == of_capture()


@pytest.mark.parametrize(
    "changes",
    [
        {"page_url": "https://shop.example/cart?step=3"},
        {"selected_text": "The total is wrong."},
        {"selected_text": None},
        {"report_id": 1},
    ],
    ids=["another page", "another text", "no text", "a report"],
)
def test_another_page_text_report_or_project_is_another_capture(changes: dict[str, Any]) -> None:
    assert of_capture(**changes) != of_capture()
    assert of_capture(2) != of_capture()


def test_without_a_selected_text_all_that_was_captured_counts_but_time_and_version() -> None:
    first = of_capture(selected_text=None)
    assert of_capture(selected_text=" ", captured_at=None, extension_version="2") == first
    others: list[dict[str, Any]] = [{"page_title": "Another"}, {"heading_outline": []}, {"canonical_url": None}]
    for changes in others:
        assert of_capture(selected_text=None, **changes) != first


@pytest.mark.parametrize("diagnosed", [of_plugin, of_app])
def test_diagnostics_are_the_same_if_they_report_the_same(diagnosed: Any) -> None:
    version = "plugin_version" if diagnosed is of_plugin else "app_version"
    assert diagnosed(**{version: "99.0"}) == diagnosed()
    assert len({diagnosed(), diagnosed(diagnostics={}), diagnosed(2), diagnosed(report_id=1)}) == 4


def test_diagnostics_of_different_sites_or_shops_are_different() -> None:
    assert of_plugin(site_url="https://SHOP.example") == of_plugin() != of_plugin(site_url="https://other.example/")
    others = {of_app(shop_domain="other.example"), of_app(shop_name="Ice"), of_app(granted_scopes=["read_themes"])}
    assert len({of_app(), *others}) == 4
