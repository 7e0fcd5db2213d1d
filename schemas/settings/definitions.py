"""Every setting with its default and its limits; all mistakes are reported at once.

Values come from the process environment, then from a `.env` file; each can also come from the file named by `<NAME>_FILE`.
Relative paths are relative to the folder of the `.env` in use. An empty value counts as unset, so an empty variable does not
hide a line of `.env`. An invalid value is reported by the name of the setting, never quoted. A setting that has both a value
and a file is a mistake.
"""

import errno
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from environs import Env, EnvValidationError
from marshmallow import ValidationError

from schemas.base.principal import Role
from schemas.settings import alert_channels, certificates, egress, openid
from schemas.settings import parsers as values
from schemas.settings.alert_channels import AlertChannel, AlertKind, SmtpServer
from schemas.settings.env_lines import NAME, line_mistakes
from schemas.settings.file_trust import INSTALLATION, trust_problem, trusted_users
from schemas.settings.redis_url import parse_redis_url
from schemas.url_policy.policy import Network, PortSet, TargetPolicy, parse_networks, parse_ports

#: sun_path has 108 bytes; Redis needs a few of them.
MAX_SOCKET_PATH_BYTES: Final = 100

#: The beginning of the URL of a SQLite file.
_SQLITE: Final = "sqlite:///"
#: The suffix of a setting that names a file with the value.
FILE_SUFFIX: Final = "_FILE"
#: The environment variable that names the `.env` to use.
ENV_FILE_VARIABLE: Final = "RISKRELAY_ENV_FILE"


class DeploymentMode(StrEnum):
    """The route families that an installation serves."""

    CLOUD = "cloud"
    SELF_HOSTED = "self-hosted"
    WEBHOOK_ONLY = "webhook-only"


class RouteFamily(StrEnum):
    """A group of routes that is enabled or disabled together."""

    EXPORTS = "exports"
    SCANNER = "scanner"
    EMAIL = "email"
    HANDOFFS = "handoffs"
    HEALTH = "health"
    CONSOLE = "console"


#: Families that webhook-only mode serves only if EXTRA_ROUTE_FAMILIES lists them.
OPTIONAL_FAMILIES: Final = frozenset({RouteFamily.SCANNER, RouteFamily.EMAIL})


class InvalidSettings(Exception):
    """The settings are invalid: `mistakes` maps each setting to its problems, the message has one per line."""

    def __init__(self, mistakes: Mapping[str, list[str]]) -> None:
        self.mistakes = dict(mistakes)
        lines = [f"  {name}: {' '.join(problems)}" for name, problems in sorted(self.mistakes.items())]
        super().__init__("\n".join(["Invalid settings:", *lines]))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its parser and its documentation.

    `default` is the text from which an unset setting is parsed; if it is None, an unset setting has no value. `shown`
    replaces the default in the documentation if it depends on something else. `member` is the attribute of `Settings`.
    """

    name: str
    member: str
    parse: values.Parse
    default: str | None
    meaning: str
    shown: str = ""
    is_secret: bool = False


_FAMILIES: Final = values.some_of(RouteFamily, OPTIONAL_FAMILIES, "Use route families from: scanner, email.")
_ALERT_KINDS: Final = values.some_of(AlertKind, AlertKind, f"Use kinds of alerts from: {', '.join(AlertKind)}.")


def _redis_url(text: str) -> str:
    """Return the URL if `schemas.settings.redis_url` can parse it; its errors quote nothing."""
    parse_redis_url(text)
    return text


def setting(
    parse: values.Parse, default: str | None, meaning: str, *, name: str = "", shown: str = "", is_secret: bool = False
) -> Any:
    """Return a member of `Settings`; `name` is the setting's name unless it is the member's name in capitals."""
    documented = {"parse": parse, "default": default, "meaning": meaning, "shown": shown, "is_secret": is_secret}
    return field(repr=not is_secret, metadata={"name": name, **documented})


def _secret(meaning: str, shown: str = "generated") -> Any:
    return setting(values.secret, None, meaning, shown=shown, is_secret=True)


def _serial(meaning: str, shown: str = "") -> Any:
    return setting(values.whole(1, values.MAX_SERIAL), None, meaning, shown=shown)


def _webhook(meaning: str) -> Any:
    return setting(alert_channels.parse_webhook, "", meaning, shown="none", is_secret=True)


@dataclass(frozen=True, slots=True)
class Settings:
    """The valid settings of an installation, in the order of the documentation; `repr` omits secrets."""

    redis_embedded: bool
    deployment_mode: DeploymentMode = setting(
        values.member_of(DeploymentMode),
        "self-hosted",
        "mode that determines the served routes: `cloud`, `self-hosted` or `webhook-only`",
    )
    extra_route_families: frozenset[RouteFamily] = setting(
        _FAMILIES,
        "",
        "route families that webhook-only mode serves in addition: `scanner`, `email` or both, comma-separated",
    )
    data_dir: Path = setting(
        Path,
        "./data",
        "folder of the SQLite file, embedded Redis, first token and backups; relative to the folder of the `.env` in use",
    )
    database_url: str = setting(
        values.database_url,
        "",
        "URL of the database: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/DATABASE`",
        shown="`sqlite:///<DATA_DIR>/riskrelay.db`",
        is_secret=True,
    )
    redis_url: str = setting(
        _redis_url,
        None,
        "URL of Redis: `redis://…`, `rediss://…` (TLS), `unix://…`, `redis+sentinel://HOST:26379,HOST:26379/SERVICE`",
        shown="embedded",
        is_secret=True,
    )
    bind: str = setting(values.bind, "127.0.0.1:8000", "address and port of the service")
    web_processes: int = setting(values.whole(1, values.MAX_PROCESSES), "2", "number of service processes")
    web_threads: int = setting(
        values.whole(1, 100_000), "1000", "maximum number of concurrent connections of each service process"
    )
    public_base_url: str = setting(
        values.public_url, "", "base URL at which clients reach the service", shown="`http://<BIND>`"
    )
    artifacts_base_url: str = setting(
        values.public_url,
        "",
        "URL below which the scanner's artifacts are served: screenshot paths become links in the console and in tickets",
        shown="none: paths are text",
    )
    scanner_shared_secret: str | None = _secret("secret that scanner postbacks must send as `X-Scanner-Secret`")
    email_webhook_secret: str | None = _secret("secret that inbound email must send as `X-Email-Webhook-Secret`")
    storefront_webhook_secret: str | None = _secret("secret that verifies the signature of storefront webhooks")
    webhook_secret: str | None = _secret(
        "secret that signs deliveries to targets without a secret of their own; in `cloud` mode only for targets of "
        "`OPERATOR_ACCOUNT_ID`"
    )
    encryption_keys: tuple[bytes, ...] = setting(
        values.encryption_keys,
        "",
        "keys of the secrets in the database: base64 of 32 bytes each, comma-separated; the first encrypts, all decrypt",
        shown="generated",
        is_secret=True,
    )
    default_project_id: int | None = _serial(
        "id of the project of scan runs that are not registered, and of emails whose recipients name no project; "
        "`bin/riskrelay init` writes the id of the first project to `.env`"
    )
    allowed_networks: tuple[Network, ...] = setting(
        parse_networks,
        "",
        "private networks that deliveries may connect to, such as `10.1.0.0/16`",
        name="TARGET_ALLOWED_NETWORKS",
    )
    allowed_ports: PortSet = setting(
        parse_ports,
        "443,8443",
        "ports and port ranges that deliveries may connect to, such as `443,8000-8999`",
        name="TARGET_ALLOWED_PORTS",
    )
    allow_http: bool = setting(values.truth, "false", "allow targets with plain http", name="TARGET_ALLOW_HTTP")
    target_ca: str = setting(
        certificates.authorities,
        "",
        "certificates (PEM) of authorities that may sign the certificates of targets, in addition to the usual authorities; "
        "name the file of a bundle with `TARGET_CA_FILE`",
    )
    target_client_cert: str | None = setting(
        certificates.certificate_chain,
        None,
        "client certificate and its chain (PEM) for targets that require one and have none of their own; name its file with "
        "`TARGET_CLIENT_CERT_FILE`. In `cloud` mode only for targets of `OPERATOR_ACCOUNT_ID`",
    )
    target_client_key: str | None = setting(
        certificates.private_key, None, "private key (PEM, not encrypted) of `TARGET_CLIENT_CERT`", is_secret=True
    )
    egress_proxy: egress.EgressProxy | None = setting(
        egress.parse_proxy,
        None,
        "`http://USER:PASSWORD@HOST:PORT`: HTTP proxy of all connections to targets; RiskRelay resolves and checks the "
        "target's name and asks the proxy for a tunnel (CONNECT) to the address",
        name="EGRESS_PROXY_URL",
        shown="none",
        is_secret=True,
    )
    egress_sources: egress.Sources = setting(
        egress.parse_sources,
        "",
        "source address of all connections to targets: an IPv4 address, an IPv6 address, or both, comma-separated; with "
        "one family, the other is not used",
        name="EGRESS_BIND",
        shown="chosen by the kernel",
    )
    delivery_timeout_s: float = setting(
        values.seconds, "15", "maximum duration of a delivery attempt in seconds, from DNS to the end of the response"
    )
    connect_timeout_s: float = setting(values.seconds, "5", "maximum duration of connecting to a target, in seconds")
    retry_schedule_s: tuple[int, ...] = setting(
        values.schedule,
        "5,30,120,600,1800,7200,18000,36000,50400,72000",
        "seconds to wait before each retry, comma-separated; the default is ten retries over a little more than two days",
        name="RETRY_SCHEDULE",
    )
    max_age_hours: int = setting(
        values.whole(1, values.MAX_HOURS),
        "72",
        "maximum age of an export in hours, from its approval or from the last retry by a person; if an attempt fails and "
        "the next one would be due later, the export becomes `failed`",
    )
    worker_processes: int = setting(values.whole(1, values.MAX_PROCESSES), "1", "number of worker processes")
    worker_concurrency: int = setting(
        values.whole(1, values.MAX_THREADS), "32", "maximum number of concurrent deliveries of each worker process"
    )
    sweep_s: float = setting(
        values.seconds,
        "1",
        "seconds between a worker's polls for due exports, which it makes in addition to wake-ups",
        name="SWEEP_SECONDS",
    )
    max_body_bytes: int = setting(
        values.whole(1024, values.MAX_BODY_BYTES), "1048576", "maximum size of a request body in bytes"
    )
    rate_limit_per_minute: int = setting(
        values.whole(1), "600", "maximum number of requests per minute of one user or one inbound sender"
    )
    auth_failures_per_minute: int = setting(
        values.whole(1), "20", "maximum number of failed authentications per minute of one client address"
    )
    fixed_after_runs: int = setting(
        values.whole(1, 100),
        "2",
        "number of completed scan runs in a row after which a finding is fixed: they visited its page and did not report it",
    )
    event_settle_s: int = setting(
        values.whole(0, 86_400),
        "60",
        "seconds to wait after the last postback of a scan run, before events are created from its changes to delivered "
        "tickets",
        name="EVENT_SETTLE_SECONDS",
    )
    max_findings_per_account: int = setting(values.whole(1), "1000000", "maximum number of findings of an account")
    max_waiting_exports_per_account: int = setting(
        values.whole(1),
        "500000",
        "maximum number of unfinished exports of an account: prepared, approved, delivering or to be retried",
    )
    max_targets_per_account: int = setting(values.whole(1), "1000", "maximum number of targets of an account")
    max_uploads_per_day: int = setting(
        values.whole(1),
        "50000",
        "maximum number of captures, diagnostics and reports that an account may upload in 24 hours",
    )
    trusted_proxies: tuple[Network, ...] = setting(
        parse_networks, "", "networks of reverse proxies whose `X-Forwarded-For` is trusted, such as `127.0.0.1`"
    )
    email_allowed_networks: tuple[Network, ...] = setting(
        parse_networks,
        "",
        "networks of the email provider, such as `198.51.100.0/24`; email webhooks from other client addresses get 403. "
        "Behind a proxy, set `TRUSTED_PROXIES` too",
        shown="every network",
    )
    idempotency_ttl_hours: int = setting(
        values.whole(1, values.MAX_HOURS), "72", "hours for which an `Idempotency-Key` is stored"
    )
    retention_days: int = setting(
        values.whole(1, values.MAX_DAYS),
        "90",
        "days for which finished and prepared exports, attempts, page results, uploads and emails are stored",
    )
    console_enabled: bool = setting(values.truth, "true", "serve the console at `/console`; never in webhook-only mode")
    operator_account_id: int | None = _serial(
        "account whose console shows the pages of the installation: settings, integrations, compliance, audit, queue; in "
        "`cloud` mode the only one that `WEBHOOK_SECRET` serves",
        shown="the first account; none in `cloud` mode",
    )
    oidc_issuer: str = setting(
        openid.issuer,
        "",
        "URL of the OpenID Connect issuer whose users may sign in to the console, exactly as in the issuer's metadata",
        shown="none: people sign in with tokens",
    )
    oidc_client_id: str = setting(str, "", "client id of RiskRelay at the issuer")
    oidc_client_secret: str | None = setting(
        str, None, "client secret of RiskRelay at the issuer; none for a public client", is_secret=True
    )
    oidc_scopes: str = setting(openid.scopes, "openid email profile", "scopes that are requested of the issuer")
    oidc_groups_claim: str = setting(str, "groups", "claim of the issuer that lists a user's groups")
    oidc_roles: Mapping[str, Role] = setting(
        openid.roles,
        "",
        "`GROUP=ROLE`, comma-separated: role of each group, set at every sign-in; of several the highest. Users without "
        "such a group cannot sign in",
        shown="none: roles stay as they are, and only existing users sign in",
    )
    oidc_account_id: int | None = _serial(
        "account of the users who sign in at the issuer",
        shown="`OPERATOR_ACCOUNT_ID`, or the first account unless DEPLOYMENT_MODE is `cloud`",
    )
    oidc_trusts_email: bool = setting(
        values.truth,
        "false",
        "accept email addresses that the issuer does not mark as verified; only for an issuer that sets addresses itself",
        name="OIDC_TRUST_EMAIL",
    )
    oidc_label: str = setting(
        str, "Sign in with OpenID Connect", "text of the button on the sign-in page", shown="Sign in with OpenID Connect"
    )
    console_sign_in_links: bool = setting(
        values.truth,
        "false",
        "users may request a one-time link to the console by email; needs `SMTP_URL`, `ALERT_EMAIL_FROM` and "
        "`ALERT_EMAIL_TO`",
    )
    worker_metrics_bind: str | None = setting(
        values.bind, None, "address for the metrics of a worker host without a service, such as `127.0.0.1:9108`"
    )
    sentry_dsn: str | None = setting(
        values.sentry_dsn,
        None,
        "DSN of the Sentry project for error reports; off unless set, needs `make setup EXTRAS=1`",
        is_secret=True,
    )
    otlp_endpoint: str | None = setting(
        values.otlp_endpoint,
        None,
        "OTLP/HTTP collector for traces, such as `http://127.0.0.1:4318`; off unless set, needs `make setup EXTRAS=1`",
        name="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    alert_kinds: frozenset[AlertKind] = setting(
        _ALERT_KINDS,
        ",".join(AlertKind),
        "kinds of alerts that are sent: `target`, `exports`, `rule`, `compliance`, `disk`, `worker`, `backup`, `weekly`; "
        "without a channel (see the next settings), none is sent",
        name="ALERTS",
        shown="all",
    )
    smtp_server: SmtpServer | None = setting(
        alert_channels.parse_smtp,
        None,
        "`smtps://USER:PASSWORD@HOST:465` or `smtp://USER:PASSWORD@HOST:587` (STARTTLS): mail server for alerts and "
        "sign-in links",
        name="SMTP_URL",
        shown="none",
        is_secret=True,
    )
    alert_email_to: tuple[str, ...] = setting(
        alert_channels.parse_addresses, "", "email addresses that receive alerts, comma-separated"
    )
    alert_email_from: str = setting(alert_channels.parse_address, "", "sender address of alerts by email")
    alert_slack_url: str = _webhook("incoming webhook of a Slack channel, for alerts")
    alert_mattermost_url: str = _webhook("incoming webhook of a Mattermost channel, for alerts")
    alert_discord_url: str = _webhook("webhook of a Discord channel, for alerts")
    alert_teams_url: str = _webhook("webhook of a Microsoft Teams channel, made by Workflows, for alerts")
    alert_webhook_url: str = _webhook("https URL that receives alerts as signed JSON")
    alert_webhook_secret: str | None = _secret("secret that signs alerts for `ALERT_WEBHOOK_URL`", shown="")
    backup_alert_days: int = setting(
        values.whole(1, 3_650), "7", "days without a backup by `riskrelay backup` after which an alert is sent"
    )
    log_level: str = setting(
        values.one_of("debug", "info", "warning", "error"),
        "info",
        "minimum level of log messages: `debug`, `info`, `warning` or `error`",
    )
    log_format: str = setting(
        values.one_of("auto", "json", "text"),
        "auto",
        "format of log messages: `json`, `text` or `auto` (text on a terminal, otherwise JSON)",
    )

    @property
    def target_policy(self) -> TargetPolicy:
        """Which addresses targets may have."""
        return TargetPolicy(self.allow_http, self.allowed_ports, self.allowed_networks)

    @property
    def route_families(self) -> frozenset[RouteFamily]:
        """The route families that are served."""
        if self.deployment_mode is DeploymentMode.WEBHOOK_ONLY:
            return frozenset({RouteFamily.EXPORTS, RouteFamily.HEALTH}) | self.extra_route_families
        off = set() if self.console_enabled else {RouteFamily.CONSOLE}
        if self.deployment_mode is DeploymentMode.SELF_HOSTED:
            off.add(RouteFamily.HANDOFFS)
        return frozenset(RouteFamily) - off

    @property
    def max_age(self) -> timedelta:
        """The age at which an export fails."""
        return timedelta(hours=self.max_age_hours)

    @property
    def idempotency_ttl(self) -> timedelta:
        """How long an idempotency key is stored."""
        return timedelta(hours=self.idempotency_ttl_hours)

    @property
    def retention(self) -> timedelta:
        """How long finished records are stored."""
        return timedelta(days=self.retention_days)

    @property
    def client_certificate(self) -> str | None:
        """The client certificate with its key, if they are set; one alone is a mistake."""
        return self.target_client_cert and f"{self.target_client_cert}{self.target_client_key}"

    @property
    def alert_urls(self) -> dict[AlertChannel, str]:
        """The URL of each channel but email; empty if the channel is not configured."""
        return {
            AlertChannel.SLACK: self.alert_slack_url,
            AlertChannel.MATTERMOST: self.alert_mattermost_url,
            AlertChannel.DISCORD: self.alert_discord_url,
            AlertChannel.TEAMS: self.alert_teams_url,
            AlertChannel.WEBHOOK: self.alert_webhook_url,
        }

    @property
    def alert_channels(self) -> tuple[AlertChannel, ...]:
        """The channels that are configured, in a fixed order."""
        email = (AlertChannel.EMAIL,) if self.smtp_server else ()
        return (*email, *(channel for channel, url in self.alert_urls.items() if url))


#: Every setting, in the order of the documentation, which is generated from here.
SETTINGS: Final = tuple(
    Setting(**{**each.metadata, "name": each.metadata["name"] or each.name.upper()}, member=each.name)
    for each in fields(Settings)
    if each.metadata
)


def load_settings(env_file: Path | None = None) -> Settings:
    """Load and validate the settings from the environment, then from `env_file`.

    `env_file` defaults to `find_env_file()`; it need not exist. Raises InvalidSettings with every mistake; a file that
    another user can change is a mistake, too.
    """
    env_file = env_file or find_env_file()
    env = _Environment(env_file)
    read = {setting.member: env.read(setting) for setting in SETTINGS}
    # An invalid value is read as None and so counts as missing here; its own mistake replaces that one.
    mistakes = _pair_mistakes(read["target_client_cert"], read["target_client_key"]) | _group_mistakes(read)
    try:
        env.seal()
    except EnvValidationError as invalid:
        messages: Any = invalid.error_messages
        mistakes |= {str(name): [str(text) for text in problems] for name, problems in messages.items()}
    if mistakes:
        raise InvalidSettings(mistakes)
    return _settings(read, env_file.parent.resolve())


def default_settings(folder: Path) -> Settings:
    """Return the default settings of an installation in an absolute folder, without reading the environment."""
    read = {each.member: None if each.default is None else each.parse(each.default) for each in SETTINGS}
    return _settings(read, folder)


def unknown_names(env_file: Path | None = None) -> dict[str, str | None]:
    """Return the names in `env_file` that are not settings, each with a similar setting or None.

    A text that does not look like a name is shortened: it may be the second line of a secret. `env_file` defaults to
    `find_env_file()`; call this after `load_settings`, which rejects an unreadable file.
    """
    env = _Environment(env_file or find_env_file())
    known = _known_names()
    meant = {name: next(iter(get_close_matches(name.upper(), known, 1)), None) for name in env.names if name not in known}
    return {name if near or NAME.fullmatch(name) else f"{name[:2]}…": near for name, near in meant.items()}


def find_env_file() -> Path:
    """Return the file named by RISKRELAY_ENV_FILE, or `.env` of the installation; the current folder has no influence."""
    return INSTALLATION / (os.environ.get(ENV_FILE_VARIABLE) or ".env")


def embedded_redis_socket(data_dir: Path) -> Path:
    """Return the socket path: in `data_dir` if it is short enough for a unix socket, else in a temporary folder."""
    path = data_dir / "redis" / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    name = f"riskrelay-{os.getuid()}-{digest}/redis.sock"
    path = Path(tempfile.gettempdir(), name)
    # Redis cuts a longer path off without an error.
    return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else Path("/tmp", name)  # noqa: S108 - made private


class _Environment(Env):
    """Env that treats empty values as unset, reads files, and collects their errors for the report."""

    def __init__(self, env_file: Path) -> None:
        super().__init__(eager=False)
        self.add_parser("value", _parsed)
        self._folder = env_file.parent.resolve()
        self._read_file(env_file)

    @property
    def names(self) -> list[str]:
        """The names in the file."""
        return list(self._environ)

    def _read_file(self, path: Path) -> None:
        """Add the values of a `.env` that the environment does not set."""
        try:
            if not path.exists():
                return
            if not path.is_file():
                self._errors[str(path)].append("Is not a file.")
            elif problem := trust_problem(path, trusted_users()):
                # The lines of `.env` decide where secrets are sent.
                self._errors[str(path)].append(f"{problem.message} Check its lines, then run: {problem.command}")
            else:
                for mistake in line_mistakes(path.read_text(encoding="utf-8"), _known_names()):
                    self._errors[str(path)].append(mistake)
                self.read_env(path, recurse=False)
        except (OSError, UnicodeDecodeError) as unreadable:
            self._errors[str(path)].append(f"Cannot be read: {_reason(unreadable)}.")

    def read(self, setting: Setting) -> Any:
        """Return the value of a setting; mistakes are collected until the environment is sealed."""
        if setting.default is None and not self._get_value(setting.name, ""):
            # Also for an empty file: an empty secret would count as a configured one.
            return None
        return self.value(setting.name, setting.default or "", parse=setting.parse)

    def _get_value(self, env_key: str, default: Any) -> Any:
        # An exception here would end the report at the first mistake.
        value, path = self._raw(env_key), self._raw(env_key + FILE_SUFFIX)
        if value and path:
            self._errors[env_key].append(f"Set either {env_key} or {env_key}{FILE_SUFFIX}, not both.")
            return default
        return self._content(env_key + FILE_SUFFIX, path, default) if path else _line(value) or default

    def _raw(self, name: str) -> str:
        # Compose files and CI jobs pass on variables that nobody set, as empty ones; these must not hide a line of `.env`.
        return os.environ.get(name) or self._environ.get(name, "")

    def _content(self, name: str, path: str, default: Any) -> Any:
        try:
            file = self._folder / path
            if file.is_fifo():
                raise OSError(errno.ESPIPE, "it is a pipe, and several processes read it")
            # Editors on Windows begin a file with a byte order mark, which is no part of the value.
            return _line(file.read_text(encoding="utf-8-sig")) or default
        except (OSError, ValueError) as unreadable:
            self._errors[name].append(f"Names a file that cannot be read: {_reason(unreadable)}.")
            return default


def _parsed(text: str, parse: values.Parse) -> Any:
    # Undecodable bytes of the environment are surrogates, which cannot be encoded.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValidationError("Must be UTF-8 text.")
    return parse(text)


def _known_names() -> list[str]:
    return [setting.name + suffix for setting in SETTINGS for suffix in ("", FILE_SUFFIX)]


def _line(text: str) -> str:
    """Return the text without its final newline."""
    return text.removesuffix("\n").removesuffix("\r")


def _reason(unreadable: OSError | ValueError) -> str:
    """Return the reason, without any of the content."""
    return unreadable.strerror or "it no longer exists" if isinstance(unreadable, OSError) else "it is not UTF-8 text"


def _settings(read: dict[str, Any], folder: Path) -> Settings:
    """Derive the values that depend on other settings."""
    data_dir = folder / read.pop("data_dir")
    redis_url = read.pop("redis_url")
    url = read["database_url"] or f"{_SQLITE}{data_dir / 'riskrelay.db'}"
    read["database_url"] = f"{_SQLITE}{folder / url.removeprefix(_SQLITE)}" if url.startswith(_SQLITE) else url
    read["public_base_url"] = (read["public_base_url"] or f"http://{read['bind']}").rstrip("/")
    return Settings(
        data_dir=data_dir,
        redis_url=redis_url or f"unix://{quote(str(embedded_redis_socket(data_dir)))}",
        redis_embedded=not redis_url,
        **read,
    )


def _pair_mistakes(certificate: str | None, key: str | None) -> dict[str, list[str]]:
    try:
        if certificate and key:
            certificates.certificate_pair(f"{certificate}{key}")
    except ValidationError as refused:
        return {"TARGET_CLIENT_KEY": [str(each) for each in refused.messages]}
    return {}


def _group_mistakes(read: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return which settings a client certificate, a channel of alerts, or the issuer lacks."""
    groups = (
        {"TARGET_CLIENT_CERT": "target_client_cert", "TARGET_CLIENT_KEY": "target_client_key"},
        {"SMTP_URL": "smtp_server", "ALERT_EMAIL_TO": "alert_email_to", "ALERT_EMAIL_FROM": "alert_email_from"},
        {"ALERT_WEBHOOK_URL": "alert_webhook_url", "ALERT_WEBHOOK_SECRET": "alert_webhook_secret"},
        {"OIDC_ISSUER": "oidc_issuer", "OIDC_CLIENT_ID": "oidc_client_id"},
    )
    mistakes: dict[str, list[str]] = {}
    if read["console_sign_in_links"] and not read["smtp_server"]:
        mistakes["SMTP_URL"] = ["Set it too: CONSOLE_SIGN_IN_LINKS needs it."]
    if (
        read["oidc_issuer"]
        and read["deployment_mode"] is DeploymentMode.CLOUD
        and not (read["oidc_account_id"] or read["operator_account_id"])
    ):
        mistakes["OIDC_ACCOUNT_ID"] = ["Set it or OPERATOR_ACCOUNT_ID: OIDC_ISSUER needs one of them in cloud mode."]
    for members in groups:
        given = [name for name, member in members.items() if read[member]]
        if given:
            mistakes |= {
                name: [f"Set it too, or {name}{FILE_SUFFIX}: {given[0]} needs it."] for name in members if name not in given
            }
    return mistakes
