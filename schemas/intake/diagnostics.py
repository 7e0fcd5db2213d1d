"""Diagnostics that a CMS plugin or the storefront app reports about its site: no orders, customers or credentials.

Both forms are closed at every depth: a member that is not listed is refused. A storefront may have granted three scopes,
all of them for reading; an upload that names another one is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from marshmallow import ValidationError, fields, post_load

from schemas.base.fields import Form, Several, Text, WebUrl, WholeNumber
from schemas.base.shop_domain import normalised_shop_domain
from schemas.base.timestamps import rfc3339
from schemas.intake.evidence import MAX_LINE, MAX_VERSION

SAFE_SCOPES: Final = ("read_content", "read_products", "read_themes")
#: Duplicates count once; a longer list is invalid.
MAX_SCOPES: Final = 20
#: Plugins of one site.
MAX_PLUGINS: Final = 200
MAX_SYMPTOMS: Final = 100
#: A name, a status or a bucket such as "100-500".
MAX_NAME: Final = 200
MAX_BUCKET: Final = 100
#: One symptom of an array; a single text may be as long as any text.
MAX_SYMPTOM: Final = 2000


class Platform(StrEnum):
    """The origin of diagnostics."""

    CMS_COMMERCE = "cms_commerce"
    STOREFRONT = "storefront"


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Diagnostics, with their project and report.

    A plugin names its `site_url`; the app names its shop and what it was granted. `client_version` is the version of the
    plugin or app; `reported` holds every member that the platform's `diagnostics` can have, None where it was not sent.
    """

    platform: Platform
    project_id: int
    report_id: int | None
    client_version: str | None
    reported: Mapping[str, Any]
    site_url: str | None = None
    shop_domain: str | None = None
    shop_name: str | None = None
    granted_scopes: tuple[str, ...] | None = None

    @property
    def symptoms(self) -> tuple[str, ...]:
        """The visible symptoms."""
        name = "visible_browser_symptoms" if self.platform is Platform.CMS_COMMERCE else "visible_storefront_symptoms"
        return tuple(symptom for symptom in self.reported[name] or () if symptom.strip())


class ShopDomain(fields.Field[str]):
    """A shop domain, normalized for comparison."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("invalid_type")
        domain = normalised_shop_domain(value)
        if domain is None:
            raise ValidationError("invalid_shop_domain")
        return domain


class Symptoms(Several):
    """An array of texts, or one text, which becomes an array of one."""

    def __init__(self) -> None:
        super().__init__(Text(max_length=MAX_SYMPTOM), at_most=MAX_SYMPTOMS, load_default=None)
        self._prose = Text()

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> list[Any]:
        if isinstance(value, str):
            return [self._prose.deserialize(value)]
        return super()._deserialize(value, attr, data, **kwargs)


def _name() -> Text:
    return Text(max_length=MAX_NAME, load_default=None)


def _version() -> Text:
    return Text(max_length=MAX_VERSION, load_default=None)


class _CmsToldForm(Form):
    cms_version = _version()
    commerce_plugin_version = _version()
    active_theme = _name()
    active_plugin_names = Several(Text(max_length=MAX_NAME), at_most=MAX_PLUGINS, load_default=None)
    checkout_page_url = WebUrl(load_default=None)
    commerce_plugin_status = _name()
    visible_browser_symptoms = Symptoms()


class _StorefrontToldForm(Form):
    primary_domain = Text(max_length=MAX_LINE, load_default=None)
    published_theme_name = _name()
    theme_count = WholeNumber(load_default=None)
    product_count_bucket = Text(max_length=MAX_BUCKET, load_default=None)
    checkout_profile_status = _name()
    app_embed_status = _name()
    visible_storefront_symptoms = Symptoms()


class CmsDiagnosticsForm(Form):
    """The body of `POST /api/cms-plugins/cms-commerce/diagnostics`."""

    project_id = WholeNumber(minimum=1, required=True)
    report_id = WholeNumber(minimum=1, load_default=None)
    platform = Text(required=True, allowed=(Platform.CMS_COMMERCE.value,))
    site_url = WebUrl(required=True)
    plugin_version = _version()
    diagnostics = fields.Nested(_CmsToldForm, required=True)

    @post_load
    def _make(self, sent: dict[str, Any], **_: Any) -> Diagnostics:
        return Diagnostics(
            platform=Platform.CMS_COMMERCE,
            project_id=sent["project_id"],
            report_id=sent["report_id"],
            client_version=sent["plugin_version"],
            reported=sent["diagnostics"],
            site_url=sent["site_url"],
        )


class StorefrontDiagnosticsForm(Form):
    """The body of `POST /api/storefront-app/diagnostics`."""

    project_id = WholeNumber(minimum=1, required=True)
    report_id = WholeNumber(minimum=1, load_default=None)
    shop_domain = ShopDomain(required=True)
    shop_name = Text(max_length=MAX_NAME, load_default=None)
    granted_scopes = Several(Text(allowed=SAFE_SCOPES), at_least=1, at_most=MAX_SCOPES, required=True)
    app_version = _version()
    diagnostics = fields.Nested(_StorefrontToldForm, required=True)

    @post_load
    def _make(self, sent: dict[str, Any], **_: Any) -> Diagnostics:
        return Diagnostics(
            platform=Platform.STOREFRONT,
            project_id=sent["project_id"],
            report_id=sent["report_id"],
            client_version=sent["app_version"],
            reported=sent["diagnostics"],
            shop_domain=sent["shop_domain"],
            shop_name=sent["shop_name"],
            granted_scopes=tuple(dict.fromkeys(sent["granted_scopes"])),
        )


def submitted_facts(diagnostics: Diagnostics) -> dict[str, Any]:
    """Return the reported fields as JSON under their original names, without project and report."""
    if diagnostics.platform is Platform.CMS_COMMERCE:
        return {
            "platform": diagnostics.platform.value,
            "site_url": diagnostics.site_url,
            "plugin_version": diagnostics.client_version,
            "diagnostics": dict(diagnostics.reported),
        }
    return {
        "shop_domain": diagnostics.shop_domain,
        "shop_name": diagnostics.shop_name,
        "granted_scopes": list(diagnostics.granted_scopes or ()),
        "app_version": diagnostics.client_version,
        "diagnostics": dict(diagnostics.reported),
    }


def diagnostic_record(diagnostics: Diagnostics, diagnostic_id: str, created_at: datetime) -> dict[str, Any]:
    """Return the stored diagnostics as clients see them."""
    return {
        "id": diagnostic_id,
        "project_id": diagnostics.project_id,
        "report_id": diagnostics.report_id,
        **submitted_facts(diagnostics),
        "created_at": rfc3339(created_at),
    }
