"""Tickets of captures and diagnostics state what was found, where, and by which app, so that somebody can act on them."""

from typing import Any

import pytest

from schemas.base.fields import MAX_TEXT
from schemas.exports.tickets.ticket import MAX_TITLE, Ticket
from schemas.exports.tickets.ticket_text import preview_problems, ticket_for_capture, ticket_for_diagnostic
from schemas.intake.diagnostics import CmsDiagnosticsForm, StorefrontDiagnosticsForm
from schemas.intake.evidence import CaptureForm
from tests.support.factories import capture, cms_diagnostics, storefront_diagnostics


def captured(**changes: Any) -> Ticket:
    return ticket_for_capture(CaptureForm().read(capture(7, **changes)))


def least(**members: Any) -> Ticket:
    return ticket_for_capture(CaptureForm().read({"project_id": 7, "page_url": "https://shop.example", **members}))


def cms(reported: dict[str, Any] | None = None, **changes: Any) -> Ticket:
    body = cms_diagnostics(7, **changes)
    return ticket_for_diagnostic(CmsDiagnosticsForm().read(body if reported is None else {**body, "diagnostics": reported}))


def shop(reported: dict[str, Any] | None = None, **changes: Any) -> Ticket:
    body = storefront_diagnostics(7, **changes)
    return ticket_for_diagnostic(
        StorefrontDiagnosticsForm().read(body if reported is None else {**body, "diagnostics": reported})
    )


def test_the_ticket_of_a_capture_has_the_selected_text_and_the_page() -> None:
    sent = capture(7, report_id=3)
    assert captured(report_id=3).record() == {
        "title": "Evidence from /cart: Your cart",
        "description": "The total is missing.\n\nPage: https://shop.example/cart?step=2\nTitle: Your cart\n"
        "Canonical URL: https://shop.example/cart\nMeta description: Everything you chose.\n"
        "Headings: h1 Your cart; h2 Delivery\nCaptured at: 2026-03-01T12:00:00.250Z\nCaptured with: browser extension 1.4.0",
        "severity": "info",
        "page_url": "https://shop.example/cart?step=2",
        "labels": ["website-risk", "severity:info", "source:browser-extension"],
        "evidence": {
            **{name: value for name, value in sent.items() if name not in {"project_id", "report_id"}},
            "captured_at": "2026-03-01T12:00:00.250Z",
        },
    }


def test_a_capture_of_a_page_without_a_selection_makes_a_ticket() -> None:
    ticket = least()
    assert ticket.title == "Evidence from /: shop.example"
    assert ticket.description == (
        "This page was captured as evidence; no text was selected on it.\n\nPage: https://shop.example\n"
        "Captured with: browser extension"
    )
    assert ticket.evidence == {"page_url": "https://shop.example"}


@pytest.mark.parametrize(
    ("members", "title"),
    [
        ({"page_title": " A\n  title "}, "Evidence from /: A title"),
        ({"page_title": " ", "selected_text": "Wrong\ntotal"}, "Evidence from /: Wrong total"),
        ({"page_url": "https://shop.example/a%20b/?q=1#f"}, "Evidence from /a%20b/: shop.example"),
        ({"page_title": "t" * 1000}, f"Evidence from /: {'t' * (MAX_TITLE - 18)}…t"[:MAX_TITLE]),
        ({"page_url": f"https://shop.example/{'p' * 500}", "page_title": "Cart"}, f"Evidence from /{'p' * 98}…: Cart"),
    ],
)
def test_a_captures_title_fits_and_names_the_page(members: dict[str, Any], title: str) -> None:
    assert least(**members).title == title
    assert len(title) <= MAX_TITLE


def test_a_long_outline_is_summarized_and_kept_as_evidence() -> None:
    outline = [{"level": "h2", "text": f"Part {number}\n of it"} for number in range(1, 13)]
    ticket = least(heading_outline=outline)
    assert "\nHeadings: h2 Part 1 of it; " in ticket.description
    assert "h2 Part 10 of it; … and 2 more\n" in ticket.description
    assert "Part 11" not in ticket.description
    assert ticket.evidence["heading_outline"] == outline


def test_the_ticket_of_a_plugin_has_the_symptoms_and_the_facts_of_the_site() -> None:
    assert cms(report_id=3).record() == {
        "title": "Visible symptoms on shop.example: The pay button does nothing.",
        "description": "- The pay button does nothing.\n- The total flickers.\n\nSite: https://shop.example/\n"
        "Checkout page: https://shop.example/checkout\nCMS version: 6.8\nCommerce plugin: 9.3.1\n"
        "Commerce plugin status: active\nActive theme: Storefront Light\nActive plugins: Forms, Cache\n"
        "Reported by: CMS plugin 2.0.1",
        "severity": "medium",
        "page_url": "https://shop.example/checkout",
        "labels": ["website-risk", "severity:medium", "source:cms-commerce"],
        "evidence": {name: value for name, value in cms_diagnostics(7).items() if name != "project_id"},
    }


def test_the_ticket_of_the_app_has_the_symptoms_and_the_facts_of_the_shop() -> None:
    assert shop(report_id=3).record() == {
        "title": "Visible symptoms on snow.shops.example: The price is missing.",
        "description": "The price is missing.\n\nShop: snow.shops.example\nShop name: Snow\n"
        "Primary domain: www.snow.example\nPublished theme: Dawn\nThemes: 3\nProducts: 100-500\n"
        "Checkout profile: published\nApp embed: enabled\nGranted scopes: read_content, read_themes\n"
        "Reported by: storefront app 3.1",
        "severity": "medium",
        "page_url": "https://www.snow.example/",
        "labels": ["website-risk", "severity:medium", "source:storefront"],
        "evidence": {name: value for name, value in storefront_diagnostics(7).items() if name != "project_id"},
    }


def test_without_symptoms_a_diagnostic_has_the_severity_info() -> None:
    plugins, apps = cms({"visible_browser_symptoms": [" "]}), shop({})
    assert (plugins.severity, plugins.title) == ("info", "Diagnostics of shop.example")
    assert (apps.severity, apps.title) == ("info", "Diagnostics of snow.shops.example")
    assert plugins.description.startswith("No visible symptoms were reported.\n\nSite: ")
    assert apps.evidence["diagnostics"] == {}


@pytest.mark.parametrize(
    ("reported", "page"),
    [
        ({}, "https://snow.shops.example/"),
        ({"primary_domain": "Snow.example."}, "https://snow.example/"),
        ({"primary_domain": "https://snow.example"}, "https://snow.shops.example/"),  # not a domain, just submitted text
        ({"primary_domain": "evil.example/?"}, "https://snow.shops.example/"),
    ],
)
def test_the_page_of_a_shop_is_its_primary_domain_if_valid(reported: dict[str, Any], page: str) -> None:
    assert shop(reported).page_url == page


def test_without_a_checkout_page_the_site_is_the_page_of_the_ticket() -> None:
    assert cms({}).page_url == "https://shop.example/"


def test_a_theme_count_of_zero_is_listed_and_an_unknown_one_is_not() -> None:
    assert "\nThemes: 0\n" in shop({"theme_count": 0}).description
    assert "Themes" not in shop({}).description


def test_many_symptoms_and_plugins_are_cut_in_the_text_and_kept_as_evidence() -> None:
    names = [f"plugin {number}" for number in range(1, 31)]
    ticket = cms({"visible_browser_symptoms": names, "active_plugin_names": names})
    assert ticket.description.startswith("- plugin 1\n- plugin 2\n")
    assert "- plugin 20\n… and 10 more\n\n" in ticket.description
    assert "plugin 20, … and 10 more\n" in ticket.description
    assert ticket.evidence["diagnostics"]["active_plugin_names"] == names


def test_a_long_text_of_symptoms_stays_whole_below_a_short_title() -> None:
    prose = "It is slow.\nAnd then it stops. " * 500
    ticket = cms({"visible_browser_symptoms": prose})
    assert len(ticket.title) == MAX_TITLE
    assert prose.strip() in ticket.description


def test_submitted_text_cannot_add_lines_to_the_facts() -> None:
    ticket = least(page_title="Cart\nCaptured with: something else", meta_description="x\r\ny" * 1000)
    assert "\nTitle: Cart Captured with: something else\n" in ticket.description
    assert max(len(line) for line in ticket.description.splitlines()) < 600


def test_an_ordinary_upload_makes_a_ticket_that_can_be_approved() -> None:
    for ticket in (captured(), least(), cms(), shop(), captured(selected_text="word " * (MAX_TEXT // 5))):
        assert preview_problems([ticket.record()]) == [()]
