"""Diagnostics that a CMS plugin or the storefront app reports about its site: no orders, customers or credentials.

Both forms are closed at every depth: a member that is not listed is refused. A storefront may have granted three scopes,
all of them for reading; an upload that names another one is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from marshmallow import ValidationError, fields

from schemas.base.fields import Array, Form, Integer, PageUrl, RecordForm, Text, optional, required, typed
from schemas.base.shop_domain import normalized_shop_domain
from schemas.intake.evidence import MAX_LINE, MAX_VERSION, UploadForm

SAFE_SCOPES: Final = ("read_content", "read_products", "read_themes")
#: Duplicates count once; a longer list is invalid.
MAX_SCOPES: Final = 20
#: Maximum number of plugins of one site.
MAX_PLUGINS: Final = 200
MAX_SYMPTOMS: Final = 100
#: Maximum length of a name, a status or a bucket such as "100-500".
MAX_NAME: Final = 200
MAX_BUCKET: Final = 100
#: Maximum length of one symptom of an array; a single text may be as long as any text.
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

    json_schema: Final = {"type": "string", "format": "idn-hostname"}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        domain = normalized_shop_domain(typed(value, str))
        if domain is None:
            raise ValidationError("invalid_shop_domain")
        return domain


class Symptoms(Array):
    """An array of texts, or one text, which becomes an array of one."""

    def __init__(self, description: str) -> None:
        super().__init__(Text(max_length=MAX_SYMPTOM), at_most=MAX_SYMPTOMS, **optional(description))
        self._prose = Text()

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values."""
        return {"anyOf": [super().json_schema, self._prose.json_schema]}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> list[Any]:
        if isinstance(value, str):
            return [self._prose.deserialize(value)]
        return super()._deserialize(value, attr, data, **kwargs)


def _name(description: str) -> Text:
    return Text(max_length=MAX_NAME, **optional(description))


def _version(description: str, attribute: str | None = None) -> Text:
    return Text(max_length=MAX_VERSION, attribute=attribute, **optional(description))


def _report(form: type[Form]) -> fields.Nested:
    return fields.Nested(form, attribute="reported", **required("The reported data."))


class _CmsReportForm(Form):
    cms_version = _version("The version of the CMS.")
    commerce_plugin_version = _version("The version of the commerce plugin.")
    active_theme = _name("The name of the active theme.")
    active_plugin_names = Array(
        Text(max_length=MAX_NAME), at_most=MAX_PLUGINS, **optional("The names of the active plugins.")
    )
    checkout_page_url = PageUrl(**optional("The URL of the checkout page."))
    commerce_plugin_status = _name("The status of the commerce plugin.")
    visible_browser_symptoms = Symptoms("Problems that people saw in the browser: a list of texts, or one text.")


class _StorefrontReportForm(Form):
    primary_domain = Text(max_length=MAX_LINE, **optional("The domain that customers use."))
    published_theme_name = _name("The name of the published theme.")
    theme_count = Integer(**optional("The number of themes."))
    product_count_bucket = Text(max_length=MAX_BUCKET, **optional("The approximate number of products, such as `100-500`."))
    checkout_profile_status = _name("The status of the checkout profile.")
    app_embed_status = _name("The status of the app embed.")
    visible_storefront_symptoms = Symptoms("Problems that people saw in the storefront: a list of texts, or one text.")


class CmsDiagnosticsForm(UploadForm, RecordForm):
    """The body of `POST /api/cms-plugins/cms-commerce/diagnostics`."""

    makes = Diagnostics
    platform = Text(allowed=(Platform.CMS_COMMERCE.value,), post_load=Platform, **required("The key of the platform."))
    site_url = PageUrl(**required("The URL of the site."))
    plugin_version = _version("The version of the plugin.", "client_version")
    diagnostics = _report(_CmsReportForm)


class StorefrontDiagnosticsForm(UploadForm, RecordForm):
    """The body of `POST /api/storefront-app/diagnostics`."""

    makes = partial(Diagnostics, Platform.STOREFRONT)
    shop_domain = ShopDomain(**required("The domain of the shop; equal to the project's, if the project has one."))
    shop_name = Text(max_length=MAX_NAME, **optional("The name of the shop."))
    granted_scopes = Array(
        Text(allowed=SAFE_SCOPES),
        at_least=1,
        at_most=MAX_SCOPES,
        post_load=lambda scopes: tuple(dict.fromkeys(scopes)),
        **required("The scopes that the shop granted; only read scopes are accepted."),
    )
    app_version = _version("The version of the app.", "client_version")
    diagnostics = _report(_StorefrontReportForm)


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
