"""`/console/settings`: the effective value of every setting; secrets only as fingerprints.

Settings that contain credentials or have a parsed form have their own formatter. URLs are shown without user, password and
options. Other values are shown as entered, other secrets only as configured or not set.
"""

import platform
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import falcon

from schemas.settings import definitions as schema_settings
from schemas.settings.alert_channels import AlertKind, SmtpServer
from schemas.settings.certificates import certificate_fingerprint, count_certificates
from schemas.settings.definitions import FILE_SUFFIX, Setting, Settings
from schemas.settings.egress import EgressProxy
from schemas.settings.redis_url import RedisUrl, parse_redis_url
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


class SettingRow(NamedTuple):
    """A setting for display; in `default` and `meaning`, code is between backticks."""

    name: str
    value: str
    default: str
    meaning: str


class SettingsPage(ConsolePage):
    """Shows the settings, versions and other facts of this service process."""

    path = f"{CONSOLE}/settings"
    template = "settings.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return all settings, in the order of the documentation, and the facts."""
        states = self._states()
        return {
            "rows": [self._row(setting, states) for setting in schema_settings.SETTINGS],
            "facts": self._facts(),
            "file_suffix": FILE_SUFFIX,
        }

    def _states(self) -> Mapping[str, SecretState]:
        """Return the state of each integration's secret; empty without an encryption key, which fingerprints need."""
        if not self._settings.encryption_keys:
            return {}
        return {state.name: state for state in SharedSecrets(self._settings, self._vault).states()}

    def _row(self, setting: Setting, states: Mapping[str, SecretState]) -> SettingRow:
        default = setting.shown or (f"`{setting.default}`" if setting.default else "")
        return SettingRow(setting.name, self._value(setting, states), default, setting.meaning)

    def _value(self, setting: Setting, states: Mapping[str, SecretState]) -> str:
        if setting.name in _FORMATTERS:
            return _FORMATTERS[setting.name](self._settings)
        state = states.get(_INTEGRATIONS.get(setting.name, ""))
        if state is not None:
            return _integration(state)
        value = getattr(self._settings, setting.member)
        if setting.is_secret:
            return self._secret(value)
        return plain(value)

    def _secret(self, value: str | None) -> str:
        if not value:
            return NOT_SET
        return f"{CONFIGURED}, {self._vault.fingerprint(value)}" if self._settings.encryption_keys else CONFIGURED

    def _facts(self) -> Mapping[str, str]:
        settings = self._settings
        operator = settings.operator_account_id or accounts.first_id()
        return {
            "Version": VERSION,
            "Mode": settings.deployment_mode.value,
            "Routes": ", ".join(sorted(family.value for family in settings.route_families)),
            "Operator account": plain(operator),
            "Database": engine.server_version(),
            "Schema": schema_version.version(),
            "Python": platform.python_version(),
        }


def plain(value: object) -> str:
    """Return a non-secret value as it is written in the environment, or `not set`."""
    if value is None or value in {"", ()} or value == frozenset():
        return NOT_SET
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, frozenset):
        return ",".join(sorted(plain(each) for each in value))
    if isinstance(value, tuple):
        return ",".join(plain(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _integration(state: SecretState) -> str:
    if not state.configured:
        return NOT_SET
    where = "database (overrides the environment)" if state.source == "database" else "environment"
    return f"{CONFIGURED}, {state.fingerprint}, set in the {where}"


def _encryption_keys(settings: Settings) -> str:
    keys = settings.encryption_keys
    if not keys:
        return NOT_SET
    return f"{len(keys)} {'key' if len(keys) == 1 else 'keys'}, {', '.join(key_fingerprint(key) for key in keys)}"


def _redis(settings: Settings) -> str:
    where = parse_redis_url(settings.redis_url)
    kind = "embedded" if settings.redis_embedded else "Redis with TLS" if where.is_tls else "Redis"
    return ", ".join([kind, *_addresses(where), *([f"database {where.database}"] if where.database else [])])


def _addresses(where: RedisUrl) -> list[str]:
    if where.socket is not None:
        return [f"socket {where.socket}"]
    kind = "host" if where.service is None else "Sentinel"
    addresses = [f"{kind} {host} port {port}" for host, port in where.places]
    return addresses if where.service is None else [f"service {where.service}", *addresses]


def _sentry(settings: Settings) -> str:
    if not settings.sentry_dsn:
        return NOT_SET
    # The key precedes the host. Between the host and the project number there may be the path of a proxy.
    parts = urlsplit(settings.sentry_dsn)
    return f"Sentry, host {parts.hostname}, project {parts.path.rpartition('/')[2]}"


def _ports(settings: Settings) -> str:
    ranges = settings.allowed_ports
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or NOT_SET


def _server(server: EgressProxy | SmtpServer | None) -> str:
    if server is None:
        return NOT_SET
    password = server.authorization if isinstance(server, EgressProxy) else server.password
    return f"host {server.host}, port {server.port}" + (", with a password" if password else "")


def _oidc_roles(settings: Settings) -> str:
    return ", ".join(f"{group}={role}" for group, role in settings.oidc_roles.items()) or NOT_SET


def _target_ca(settings: Settings) -> str:
    count = count_certificates(settings.target_ca)
    return f"{count} {'certificate' if count == 1 else 'certificates'}" if count else NOT_SET


def _client_certificate(settings: Settings) -> str:
    return certificate_fingerprint(settings.target_client_cert) if settings.target_client_cert else NOT_SET


#: Formatters of settings that contain credentials, or that `Settings` stores under another name.
_FORMATTERS: Final[Mapping[str, Callable[[Settings], str]]] = {
    "DATABASE_URL": lambda settings: engine.describe_url(settings.database_url),
    "REDIS_URL": _redis,
    "SENTRY_DSN": _sentry,
    "ENCRYPTION_KEYS": _encryption_keys,
    "EGRESS_PROXY_URL": lambda settings: _server(settings.egress_proxy),
    "SMTP_URL": lambda settings: _server(settings.smtp_server),
    "ALERTS": lambda settings: "all" if settings.alert_kinds == frozenset(AlertKind) else plain(settings.alert_kinds),
    "OIDC_ROLES": _oidc_roles,
    "TARGET_CA": _target_ca,
    "TARGET_CLIENT_CERT": _client_certificate,
    "TARGET_ALLOWED_PORTS": _ports,
}
