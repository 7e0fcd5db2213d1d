"""`/console/settings`: the effective value of every setting; secrets only as fingerprints.

URLs are shown without their credentials. Other values are shown as entered.
"""

import platform
from collections.abc import Callable, Mapping, Sized
from enum import Enum
from typing import Any, Final

import falcon

from schemas.settings import definitions as schema_settings
from schemas.settings.alert_channels import SmtpServer
from schemas.settings.certificates import certificate_fingerprint
from schemas.settings.definitions import FILE_SUFFIX, Setting
from schemas.settings.egress import EgressProxy
from schemas.url_policy.credentials import masked
from schemas.version import VERSION
from service.console.layout import CONSOLE, ConsolePage
from service.console.pages.integrations import SOURCES
from service.console.sessions import ConsoleUser
from storage.accounts import accounts
from storage.db import engine, schema_version
from storage.secrets.integrations import SecretState, SharedSecrets
from storage.secrets.vault import key_fingerprint

NOT_SET: Final = "not set"
CONFIGURED: Final = "configured"
#: The integrations of secret settings, by setting. A secret in the database overrides the setting.
_INTEGRATIONS: Final = {each.variable: each.integration.value for each in SOURCES if each.integration}


class SettingsPage(ConsolePage):
    """Shows the settings, versions and other facts of this service process."""

    path = f"{CONSOLE}/settings"
    template = "settings.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return all settings with their values, in the order of the documentation, and the facts."""
        states: Mapping[str, SecretState] = {}
        # Fingerprints need an encryption key.
        if self._settings.encryption_keys:
            states = {state.name: state for state in SharedSecrets(self._settings, self._vault).states()}
        return {
            "rows": [(setting, self._value(setting, states)) for setting in schema_settings.SETTINGS],
            "facts": self._facts(),
            "file_suffix": FILE_SUFFIX,
        }

    def _value(self, setting: Setting, states: Mapping[str, SecretState]) -> str:
        value = getattr(self._settings, setting.member)
        state = states.get(_INTEGRATIONS.get(setting.name, ""))
        if state is not None and state.configured:
            return f"{CONFIGURED}, {state.fingerprint}, set in the {state.source}"
        if value is None or (isinstance(value, Sized) and not value):
            return NOT_SET
        if setting.name in _FORMATTERS:
            return _FORMATTERS[setting.name](value)
        if setting.is_secret:
            return f"{CONFIGURED}, {self._vault.fingerprint(value)}" if self._settings.encryption_keys else CONFIGURED
        return plain(value)

    def _facts(self) -> Mapping[str, str]:
        settings = self._settings
        return {
            "Version": VERSION,
            "Mode": settings.deployment_mode.value,
            "Routes": ", ".join(sorted(family.value for family in settings.route_families)),
            "Operator account": str(settings.operator_account_id or accounts.first_id() or NOT_SET),
            "Database": engine.server_version(),
            "Schema": schema_version.version(),
            "Python": platform.python_version(),
        }


def plain(value: object) -> str:
    """Return a non-secret value as it is written in the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={plain(each)}" for name, each in value.items())
    if isinstance(value, tuple | frozenset):
        texts = [plain(each) for each in value]
        return ",".join(sorted(texts) if isinstance(value, frozenset) else texts)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _server(server: EgressProxy | SmtpServer) -> str:
    return f"host {server.host}, port {server.port}"


#: Formatters of settings that contain credentials, or whose values are not readable.
_FORMATTERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "DATABASE_URL": engine.describe_url,
    "REDIS_URL": masked,
    "SENTRY_DSN": masked,
    "ENCRYPTION_KEYS": lambda keys: ", ".join(key_fingerprint(key) for key in keys),
    "EGRESS_PROXY_URL": _server,
    "SMTP_URL": _server,
    "TARGET_CA": lambda _: CONFIGURED,
    "TARGET_CLIENT_CERT": certificate_fingerprint,
    "TARGET_ALLOWED_PORTS": lambda ports: ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in ports
    ),
}
