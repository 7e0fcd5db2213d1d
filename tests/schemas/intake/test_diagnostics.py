"""Diagnostics have one of two closed forms, one for each platform, and may name only read-only scopes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.api.uploads import CmsUploadResponse, StorefrontUploadResponse, dump_upload
from schemas.base.errors import ValidationFailed
from schemas.base.fields import MAX_ID, MAX_TEXT, MESSAGES, Form
from schemas.exports.handoffs import Handoff
from schemas.exports.tickets.ticket import Source
from schemas.exports.tickets.ticket_text import ticket_for_diagnostic
from schemas.intake.diagnostics import (
    MAX_PLUGINS,
    MAX_SCOPES,
    MAX_SYMPTOMS,
    CmsDiagnosticsForm,
    Diagnostics,
    Platform,
    StorefrontDiagnosticsForm,
)
from tests.support.factories import NOW, cms_diagnostics, storefront_diagnostics
from tests.support.http.forms import read_or_failure

CMS = CmsDiagnosticsForm()
SHOP = StorefrontDiagnosticsForm()
NO_NUMBERS: tuple[Any, ...] = ("3", 3.0, 3.5, True, [3], {})
MARK = "Zq9"
CMS_LEAST = {"project_id": 7, "platform": "cms_commerce", "site_url": "https://shop.example", "diagnostics": {}}
SHOP_LEAST = {"project_id": 7, "shop_domain": "shop.example", "granted_scopes": ["read_themes"], "diagnostics": {}}
CMS_REPORTED = cms_diagnostics(7)["diagnostics"]
SHOP_REPORTED = storefront_diagnostics(7)["diagnostics"]


def problems(form: Form, body: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        form.read(body)
    return sorted((each.path, each.code) for each in refused.value.problems)


def cms(**reported: Any) -> dict[str, Any]:
    return cms_diagnostics(7, diagnostics={**CMS_REPORTED, **reported})


def shop(**reported: Any) -> dict[str, Any]:
    return storefront_diagnostics(7, diagnostics={**SHOP_REPORTED, **reported})


def test_the_plugins_form_of_the_specification_is_read() -> None:
    assert CMS.read(cms_diagnostics(7, report_id=3)) == Diagnostics(
        platform=Platform.CMS_COMMERCE,
        project_id=7,
        report_id=3,
        client_version="2.0.1",
        reported=CMS_REPORTED,
        site_url="https://shop.example/",
    )


def test_the_apps_form_of_the_specification_is_read() -> None:
    assert SHOP.read(storefront_diagnostics(7, report_id=3)) == Diagnostics(
        platform=Platform.STOREFRONT,
        project_id=7,
        report_id=3,
        client_version="3.1",
        reported=SHOP_REPORTED,
        shop_domain="snow.shops.example",
        shop_name="Snow",
        granted_scopes=("read_content", "read_themes"),
    )


@pytest.mark.parametrize(("form", "least", "reported"), [(CMS, CMS_LEAST, CMS_REPORTED), (SHOP, SHOP_LEAST, SHOP_REPORTED)])
def test_diagnostics_are_required_and_may_be_empty(form: Form, least: dict[str, Any], reported: dict[str, Any]) -> None:
    assert form.read(least).reported == dict.fromkeys(reported)
    assert form.read({**least, "diagnostics": dict.fromkeys(reported)}) == form.read(least)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (["a", "b"], ["a", "b"]),
        ("It is\nslow.", ["It is\nslow."]),  # a single text becomes a list
        ("x" * MAX_TEXT, ["x" * MAX_TEXT]),
        (["x" * 2000] * MAX_SYMPTOMS, ["x" * 2000] * MAX_SYMPTOMS),
        ([], []),
        ("", [""]),
        (None, None),
    ],
)
def test_symptoms_are_an_array_or_a_text(sent: Any, kept: list[str] | None) -> None:
    assert CMS.read(cms(visible_browser_symptoms=sent)).reported["visible_browser_symptoms"] == kept
    assert SHOP.read(shop(visible_storefront_symptoms=sent)).reported["visible_storefront_symptoms"] == kept


def test_an_empty_symptom_is_ignored() -> None:
    assert CMS.read(cms(visible_browser_symptoms=["", " \n", "Slow."])).symptoms == ("Slow.",)
    assert SHOP.read(shop(visible_storefront_symptoms="")).symptoms == ()


def test_a_repeated_scope_is_stored_once() -> None:
    body = storefront_diagnostics(7, granted_scopes=["read_themes", "read_content", "read_themes"])
    assert SHOP.read(body).granted_scopes == ("read_themes", "read_content")


def test_a_shop_domain_is_normalized() -> None:
    assert SHOP.read(storefront_diagnostics(7, shop_domain="BÜCHER.Example.")).shop_domain == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {},
            [
                ("/diagnostics", "required"),
                ("/platform", "required"),
                ("/project_id", "required"),
                ("/site_url", "required"),
            ],
        ),
        ({**CMS_LEAST, "project_id": "7"}, [("/project_id", "invalid_type")]),
        ({**CMS_LEAST, "project_id": MAX_ID + 1}, [("/project_id", "out_of_range")]),
        ({**CMS_LEAST, "report_id": 0}, [("/report_id", "out_of_range")]),
        ({**CMS_LEAST, "platform": "another_cms"}, [("/platform", "not_allowed")]),
        ({**CMS_LEAST, "platform": "cms-commerce"}, [("/platform", "not_allowed")]),
        ({**CMS_LEAST, "platform": "storefront"}, [("/platform", "not_allowed")]),
        ({**CMS_LEAST, "platform": None}, [("/platform", "null")]),
        ({**CMS_LEAST, "platform": ["cms_commerce"]}, [("/platform", "invalid_type")]),
        ({**CMS_LEAST, "site_url": "shop.example"}, [("/site_url", "invalid_url")]),
        ({**CMS_LEAST, "site_url": None}, [("/site_url", "null")]),
        ({**CMS_LEAST, "plugin_version": "1" * 101}, [("/plugin_version", "too_long")]),
        ({**CMS_LEAST, "diagnostics": None}, [("/diagnostics", "null")]),
        ({**CMS_LEAST, "diagnostics": []}, [("/diagnostics", "invalid_type")]),
        ({**CMS_LEAST, "diagnostics": "x"}, [("/diagnostics", "invalid_type")]),
        ({**CMS_LEAST, MARK: 1}, [("", "unknown_member")]),
        (cms(**{MARK: 1, "php": 2}), [("/diagnostics", "unknown_member")]),
        (cms(primary_domain="x"), [("/diagnostics", "unknown_member")]),  # a member of the other platform
        (cms(cms_version=6.8), [("/diagnostics/cms_version", "invalid_type")]),
        (cms(cms_version="6" * 101), [("/diagnostics/cms_version", "too_long")]),
        (cms(commerce_plugin_version=9), [("/diagnostics/commerce_plugin_version", "invalid_type")]),
        (cms(active_theme={"name": "x"}), [("/diagnostics/active_theme", "invalid_type")]),
        (cms(active_theme="x" * 201), [("/diagnostics/active_theme", "too_long")]),
        (cms(active_plugin_names="Forms"), [("/diagnostics/active_plugin_names", "invalid_type")]),
        (cms(active_plugin_names=["Forms", 1]), [("/diagnostics/active_plugin_names/1", "invalid_type")]),
        (cms(active_plugin_names=[None]), [("/diagnostics/active_plugin_names/0", "null")]),
        (cms(active_plugin_names=["x" * 201]), [("/diagnostics/active_plugin_names/0", "too_long")]),
        (cms(active_plugin_names=["x"] * (MAX_PLUGINS + 1)), [("/diagnostics/active_plugin_names", "too_many")]),
        (cms(checkout_page_url="/checkout"), [("/diagnostics/checkout_page_url", "invalid_url")]),
        (cms(commerce_plugin_status=True), [("/diagnostics/commerce_plugin_status", "invalid_type")]),
        (cms(visible_browser_symptoms=1), [("/diagnostics/visible_browser_symptoms", "invalid_type")]),
        (cms(visible_browser_symptoms={"a": "b"}), [("/diagnostics/visible_browser_symptoms", "invalid_type")]),
        (cms(visible_browser_symptoms=["a", ["b"]]), [("/diagnostics/visible_browser_symptoms/1", "invalid_type")]),
        (cms(visible_browser_symptoms="x" * (MAX_TEXT + 1)), [("/diagnostics/visible_browser_symptoms", "too_long")]),
        (cms(visible_browser_symptoms=["x" * 2001]), [("/diagnostics/visible_browser_symptoms/0", "too_long")]),
        (cms(visible_browser_symptoms=["x"] * (MAX_SYMPTOMS + 1)), [("/diagnostics/visible_browser_symptoms", "too_many")]),
    ],
)
def test_problems_of_a_plugins_diagnostics_are_reported(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(CMS, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, [(f"/{name}", "required") for name in ("diagnostics", "granted_scopes", "project_id", "shop_domain")]),
        ({**SHOP_LEAST, "project_id": True}, [("/project_id", "invalid_type")]),
        ({**SHOP_LEAST, "report_id": "3"}, [("/report_id", "invalid_type")]),
        ({**SHOP_LEAST, "platform": "cms_commerce"}, [("", "unknown_member")]),
        *(
            ({**SHOP_LEAST, "shop_domain": wrong}, [("/shop_domain", "invalid_shop_domain")])
            for wrong in (
                "",
                "shop",
                "https://shop.example",
                "shop.example:443",
                "a@shop.example",
                "shop.example/",
                "1.2.3.4",
            )
        ),
        ({**SHOP_LEAST, "shop_domain": None}, [("/shop_domain", "null")]),
        ({**SHOP_LEAST, "shop_domain": ["shop.example"]}, [("/shop_domain", "invalid_type")]),
        ({**SHOP_LEAST, "shop_name": "x" * 201}, [("/shop_name", "too_long")]),
        ({**SHOP_LEAST, "granted_scopes": []}, [("/granted_scopes", "too_short")]),
        ({**SHOP_LEAST, "granted_scopes": None}, [("/granted_scopes", "null")]),
        ({**SHOP_LEAST, "granted_scopes": "read_themes"}, [("/granted_scopes", "invalid_type")]),
        ({**SHOP_LEAST, "granted_scopes": {"read_themes": 1}}, [("/granted_scopes", "invalid_type")]),
        ({**SHOP_LEAST, "granted_scopes": ["read_themes"] * (MAX_SCOPES + 1)}, [("/granted_scopes", "too_many")]),
        ({**SHOP_LEAST, "granted_scopes": ["read_themes", "read_orders"]}, [("/granted_scopes/1", "not_allowed")]),
        ({**SHOP_LEAST, "granted_scopes": ["READ_THEMES"]}, [("/granted_scopes/0", "not_allowed")]),
        ({**SHOP_LEAST, "granted_scopes": ["read_themes,read_content"]}, [("/granted_scopes/0", "not_allowed")]),
        ({**SHOP_LEAST, "granted_scopes": [None]}, [("/granted_scopes/0", "null")]),
        ({**SHOP_LEAST, "granted_scopes": [1]}, [("/granted_scopes/0", "invalid_type")]),
        ({**SHOP_LEAST, "app_version": 3}, [("/app_version", "invalid_type")]),
        ({**SHOP_LEAST, "diagnostics": None}, [("/diagnostics", "null")]),
        (shop(cms_version="6"), [("/diagnostics", "unknown_member")]),  # a member of the other platform
        (shop(primary_domain=1), [("/diagnostics/primary_domain", "invalid_type")]),
        (shop(published_theme_name="x" * 201), [("/diagnostics/published_theme_name", "too_long")]),
        *((shop(theme_count=wrong), [("/diagnostics/theme_count", "invalid_type")]) for wrong in NO_NUMBERS),
        (shop(theme_count=-1), [("/diagnostics/theme_count", "out_of_range")]),
        (shop(theme_count=MAX_ID + 1), [("/diagnostics/theme_count", "out_of_range")]),
        (shop(product_count_bucket=100), [("/diagnostics/product_count_bucket", "invalid_type")]),
        (shop(product_count_bucket="x" * 101), [("/diagnostics/product_count_bucket", "too_long")]),
        (shop(checkout_profile_status=[]), [("/diagnostics/checkout_profile_status", "invalid_type")]),
        (shop(app_embed_status=False), [("/diagnostics/app_embed_status", "invalid_type")]),
        (shop(visible_storefront_symptoms=[1]), [("/diagnostics/visible_storefront_symptoms/0", "invalid_type")]),
        (shop(visible_storefront_symptoms=False), [("/diagnostics/visible_storefront_symptoms", "invalid_type")]),
    ],
)
def test_problems_of_the_apps_diagnostics_are_reported(body: Any, expected: list[tuple[str, str]]) -> None:
    assert problems(SHOP, body) == expected


@pytest.mark.parametrize("count", [0, 1, MAX_ID])
def test_any_number_of_themes_is_accepted(count: int) -> None:
    assert SHOP.read(shop(theme_count=count)).reported["theme_count"] == count


def shown(form: Form, sent: dict[str, Any]) -> dict[str, Any]:
    """Return the diagnostics from the response to their upload."""
    handoff = Handoff("hof_1", Source("diagnostics", "dia_1"), 7, None, "exp_1", NOW)
    schema = CmsUploadResponse if form is CMS else StorefrontUploadResponse
    record: dict[str, Any] = dump_upload(schema, form.read(sent), handoff)["diagnostic"]
    return record


@pytest.mark.parametrize(
    ("form", "sent"), [(CMS, cms_diagnostics(7, report_id=3)), (SHOP, storefront_diagnostics(7, report_id=3))]
)
def test_a_record_has_every_member_under_its_own_name(form: Form, sent: dict[str, Any]) -> None:
    assert shown(form, sent) == {**sent, "id": "dia_1", "created_at": "2026-03-01T12:00:00.000Z"}


@pytest.mark.parametrize(
    ("form", "least", "reported", "optional"),
    [(CMS, CMS_LEAST, CMS_REPORTED, ("plugin_version",)), (SHOP, SHOP_LEAST, SHOP_REPORTED, ("shop_name", "app_version"))],
)
def test_omitted_members_are_null(
    form: Form, least: dict[str, Any], reported: dict[str, Any], optional: tuple[str, ...]
) -> None:
    assert shown(form, least) == {
        **least,
        **dict.fromkeys(optional),
        "report_id": None,
        "diagnostics": dict.fromkeys(reported),
        "id": "dia_1",
        "created_at": "2026-03-01T12:00:00.000Z",
    }


NAMES = sorted(CMS.member_names() | SHOP.member_names())
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).map(MARK.__add__)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
members = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([(CMS, CMS_LEAST), (SHOP, SHOP_LEAST)]), members, members)
def test_any_json_is_diagnostics_or_a_refusal_that_repeats_nothing(
    which: tuple[Form, dict[str, Any]], changes: dict[str, Any], reported: dict[str, Any]
) -> None:
    form, least = which
    found = read_or_failure(form, {**least, "diagnostics": reported, **changes})
    if isinstance(found, ValidationFailed):
        assert found.problems
        assert MARK not in repr(found.problems)
        paths = {name for each in found.problems for name in each.path.split("/")[1:] if not name.isdecimal()}
        assert paths <= set(NAMES)
        assert all(each.message.startswith(MESSAGES[each.code].removesuffix(".")) for each in found.problems)
        return
    assert 0 < len(ticket_for_diagnostic(found).title) <= 250
