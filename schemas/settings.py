"""The shape of the environment: every setting, its default and its limits, all mistakes in one report.

Values come from the process environment, then from a `.env` file. A secret can also come from the file named by
`<NAME>_FILE`. An empty value counts as unset. A wrong value is refused with the setting's name, never with the value.
"""

import base64
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from environs import EnvValidationError, FileAwareEnv
from marshmallow import ValidationError, validate

from schemas.target_url import Network, TargetPolicy, parse_networks, parse_ports

#: Seconds after each failure; ten entries are ten retries, eleven attempts, a little over two days.
RETRY_SCHEDULE_S: Final = (5, 30, 120, 600, 1800, 7200, 18000, 36000, 50400, 72000)

#: sun_path holds 108 bytes; Redis needs a little for itself.
MAX_SOCKET_PATH_BYTES: Final = 100

#: AES-256.
KEY_BYTES: Final = 32


class DeploymentMode(StrEnum):
    """Which route families an installation serves."""

    CLOUD = "cloud"
    SELF_HOSTED = "self-hosted"
    WEBHOOK_ONLY = "webhook-only"


class RouteFamily(StrEnum):
    """A group of routes that is switched on or off as one."""

    EXPORTS = "exports"
    SCANNER = "scanner"
    EMAIL = "email"
    HANDOFFS = "handoffs"
    HEALTH = "health"


#: Families that webhook-only mode leaves off unless EXTRA_ROUTE_FAMILIES names them.
OPTIONAL_FAMILIES: Final = frozenset({RouteFamily.SCANNER, RouteFamily.EMAIL})


class InvalidSettings(Exception):
    """The settings are wrong; `mistakes` maps each setting's name to what is wrong with it."""

    def __init__(self, mistakes: Mapping[str, list[str]]) -> None:
        self.mistakes = dict(mistakes)
        super().__init__(self.report())

    def report(self) -> str:
        """Return every mistake, a line each."""
        lines = [f"  {name}: {' '.join(told)}" for name, told in sorted(self.mistakes.items())]
        return "\n".join(["The settings are wrong:", *lines])


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation's settings, checked; secrets stay out of `repr`."""

    deployment_mode: DeploymentMode
    extra_route_families: frozenset[RouteFamily]
    data_dir: Path
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    redis_embedded: bool
    bind: str
    web_processes: int
    web_threads: int
    public_base_url: str
    scanner_shared_secret: str | None = field(repr=False)
    email_webhook_secret: str | None = field(repr=False)
    storefront_webhook_secret: str | None = field(repr=False)
    webhook_secret: str | None = field(repr=False)
    encryption_keys: tuple[bytes, ...] = field(repr=False)
    default_project_id: int | None
    target_policy: TargetPolicy
    delivery_timeout_s: float
    connect_timeout_s: float
    retry_schedule_s: tuple[int, ...]
    max_age_hours: int
    worker_processes: int
    worker_concurrency: int
    sweep_s: float
    max_body_bytes: int
    rate_limit_per_minute: int
    auth_failures_per_minute: int
    trusted_proxies: tuple[Network, ...]
    idempotency_ttl_hours: int
    retention_days: int
    worker_metrics_bind: str | None
    sentry_dsn: str | None = field(repr=False)
    otlp_endpoint: str | None = field(repr=False)
    log_level: str
    log_format: str

    @property
    def route_families(self) -> frozenset[RouteFamily]:
        """The families that this deployment mode serves."""
        if self.deployment_mode is DeploymentMode.WEBHOOK_ONLY:
            return frozenset({RouteFamily.EXPORTS, RouteFamily.HEALTH}) | self.extra_route_families
        if self.deployment_mode is DeploymentMode.SELF_HOSTED:
            return frozenset(RouteFamily) - {RouteFamily.HANDOFFS}
        return frozenset(RouteFamily)

    @property
    def max_age(self) -> timedelta:
        """How old an export may get before it is given up."""
        return timedelta(hours=self.max_age_hours)

    @property
    def idempotency_ttl(self) -> timedelta:
        """How long an idempotency key is remembered."""
        return timedelta(hours=self.idempotency_ttl_hours)

    @property
    def retention(self) -> timedelta:
        """How long what is finished is kept."""
        return timedelta(days=self.retention_days)

    @property
    def redis_socket(self) -> Path:
        """Where the embedded Redis listens."""
        return embedded_redis_socket(self.data_dir)


def load_settings(env_file: Path | None = None) -> Settings:
    """Read the environment, then `env_file`, and check everything.

    `env_file` defaults to `find_env_file()`. A relative DATA_DIR counts from the folder of the `.env` in use.
    Raises InvalidSettings with every mistake.
    """
    env_file = env_file or find_env_file()
    env = _Environment()
    if env_file.is_file():
        env.read_env(env_file, recurse=False)
    values = _read(env)
    try:
        env.seal()
    except EnvValidationError as invalid:
        raise InvalidSettings(_mistakes(invalid)) from None
    return _settings(values, env_file.parent.resolve())


def find_env_file() -> Path:
    """Return the `.env` of the current folder where there is one, else that of the checkout, else the current one's."""
    here = Path.cwd() / ".env"
    checkout = Path(__file__).resolve().parent.parent / ".env"
    return checkout if checkout.is_file() and not here.is_file() else here


def embedded_redis_socket(data_dir: Path) -> Path:
    """Return the socket's path: in `data_dir` where that is short enough for a unix socket, else in the temporary folder."""
    path = data_dir / "redis" / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"riskrelay-{os.getuid()}-{digest}" / "redis.sock"


class _Environment(FileAwareEnv):
    """FileAwareEnv that takes an empty value for unset and reports an unreadable file with the other mistakes."""

    def __init__(self) -> None:
        super().__init__(eager=False)
        self.add_parser("route_families", _route_families)
        self.add_parser("encryption_keys", _encryption_keys)
        self.add_parser(
            "ports",
            _refused_as("Give ports or ranges from 1 to 65535, comma-separated, such as 443,8000-8999.", parse_ports),
        )
        self.add_parser(
            "networks", _refused_as("Give networks, comma-separated, such as 10.0.0.0/8, host bits zero.", parse_networks)
        )
        self.add_parser("schedule", _schedule)
        self.add_parser("bind", _bind)
        self.add_parser("optional_bind", lambda value: _bind(value) if value else None)
        self.add_parser("database_url", _url_of("postgresql://", "postgres://", "sqlite:///"))
        self.add_parser("redis_url", _url_of("redis://", "rediss://", "unix://", "redis+sentinel://"))
        self.add_parser("web_url", _url_of("http://", "https://"))

    def _get_value(self, env_key: str, default: Any) -> Any:
        # environs raises here at once; eager=False promises a report of everything, so the mistake is kept for it.
        try:
            value = super()._get_value(env_key, default)
        except (ValueError, OSError) as unreadable:
            self._errors[f"{env_key}_FILE"].append(str(unreadable) or "Not a readable file.")
            return default
        if value == "":
            return default
        return value.removesuffix("\n").removesuffix("\r") if isinstance(value, str) else value


def _read(env: _Environment) -> dict[str, Any]:
    """Parse every setting; mistakes stay in `env` until it is sealed."""
    at_least_one = validate.Range(min=1)
    positive = validate.Range(min=0, min_inclusive=False)
    log_levels = validate.OneOf(["debug", "info", "warning", "error"])
    return {
        "deployment_mode": env.enum("DEPLOYMENT_MODE", DeploymentMode.SELF_HOSTED, enum=DeploymentMode, by_value=True),
        "extra_route_families": env.route_families("EXTRA_ROUTE_FAMILIES", ""),
        "data_dir": env.path("DATA_DIR", Path("data")),
        "database_url": env.database_url("DATABASE_URL", ""),
        "redis_url": env.redis_url("REDIS_URL", ""),
        "bind": env.bind("BIND", "127.0.0.1:8000"),
        "web_processes": env.int("WEB_PROCESSES", 2, validate=at_least_one),
        "web_threads": env.int("WEB_THREADS", 1000, validate=at_least_one),
        "public_base_url": env.web_url("PUBLIC_BASE_URL", ""),
        "scanner_shared_secret": env.str("SCANNER_SHARED_SECRET", None),
        "email_webhook_secret": env.str("EMAIL_WEBHOOK_SECRET", None),
        "storefront_webhook_secret": env.str("STOREFRONT_WEBHOOK_SECRET", None),
        "webhook_secret": env.str("WEBHOOK_SECRET", None),
        "encryption_keys": env.encryption_keys("ENCRYPTION_KEYS", ""),
        "default_project_id": env.int("DEFAULT_PROJECT_ID", None, validate=at_least_one),
        "allowed_networks": env.networks("TARGET_ALLOWED_NETWORKS", ""),
        "allowed_ports": env.ports("TARGET_ALLOWED_PORTS", "443,8443"),
        "allow_http": env.bool("TARGET_ALLOW_HTTP", False),
        "delivery_timeout_s": env.float("DELIVERY_TIMEOUT_S", 15.0, validate=positive),
        "connect_timeout_s": env.float("CONNECT_TIMEOUT_S", 5.0, validate=positive),
        "retry_schedule_s": env.schedule("RETRY_SCHEDULE", ",".join(map(str, RETRY_SCHEDULE_S))),
        "max_age_hours": env.int("MAX_AGE_HOURS", 72, validate=at_least_one),
        "worker_processes": env.int("WORKER_PROCESSES", 1, validate=at_least_one),
        "worker_concurrency": env.int("WORKER_CONCURRENCY", 32, validate=at_least_one),
        "sweep_s": env.float("SWEEP_SECONDS", 1.0, validate=positive),
        "max_body_bytes": env.int("MAX_BODY_BYTES", 1048576, validate=validate.Range(min=1024)),
        "rate_limit_per_minute": env.int("RATE_LIMIT_PER_MINUTE", 600, validate=at_least_one),
        "auth_failures_per_minute": env.int("AUTH_FAILURES_PER_MINUTE", 20, validate=at_least_one),
        "trusted_proxies": env.networks("TRUSTED_PROXIES", ""),
        "idempotency_ttl_hours": env.int("IDEMPOTENCY_TTL_HOURS", 72, validate=at_least_one),
        "retention_days": env.int("RETENTION_DAYS", 90, validate=validate.Range(min=1, max=36_500)),
        "worker_metrics_bind": env.optional_bind("WORKER_METRICS_BIND", ""),
        "sentry_dsn": env.web_url("SENTRY_DSN", "") or None,
        "otlp_endpoint": env.web_url("OTEL_EXPORTER_OTLP_ENDPOINT", "") or None,
        "log_level": env.str("LOG_LEVEL", "info", validate=log_levels),
        "log_format": env.str("LOG_FORMAT", "auto", validate=validate.OneOf(["auto", "json", "text"])),
    }


def _settings(values: dict[str, Any], folder: Path) -> Settings:
    """Fill in what depends on other settings."""
    data_dir = folder / values.pop("data_dir")
    redis_url = values.pop("redis_url")
    values["database_url"] = values["database_url"] or f"sqlite:///{data_dir / 'riskrelay.db'}"
    values["public_base_url"] = (values["public_base_url"] or f"http://{values['bind']}").rstrip("/")
    policy = TargetPolicy(
        allow_http=values.pop("allow_http"),
        allowed_ports=values.pop("allowed_ports"),
        allowed_networks=values.pop("allowed_networks"),
    )
    return Settings(
        data_dir=data_dir,
        redis_url=redis_url or f"unix://{quote(str(embedded_redis_socket(data_dir)))}",
        redis_embedded=not redis_url,
        target_policy=policy,
        **values,
    )


def _mistakes(invalid: EnvValidationError) -> dict[str, list[str]]:
    messages: Any = invalid.error_messages
    return {str(name): [str(text) for text in told] for name, told in messages.items()}


def _refused_as(sentence: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Turn the ValueError of a parser into a mistake of the report; the parser quotes the value, the report does not."""

    def parsed(value: str) -> Any:
        try:
            return parse(value)
        except ValueError:
            raise ValidationError(sentence) from None

    return parsed


def _route_families(value: str) -> frozenset[RouteFamily]:
    names = {name.strip() for name in value.split(",") if name.strip()}
    if not names <= {str(family) for family in OPTIONAL_FAMILIES}:
        raise ValidationError("Name route families from: scanner, email.")
    return frozenset(RouteFamily(name) for name in names)


def _encryption_keys(value: str) -> tuple[bytes, ...]:
    keys = []
    for text in filter(None, (part.strip() for part in value.split(","))):
        try:
            key = base64.b64decode(text, validate=True)
        except ValueError:
            # binascii's error is one; another one comes for text that is not ASCII.
            raise ValidationError("Each key must be base64.") from None
        if len(key) != KEY_BYTES:
            raise ValidationError(f"Each key must be {KEY_BYTES} bytes.")
        keys.append(key)
    return tuple(keys)


def _schedule(value: str) -> tuple[int, ...]:
    try:
        delays = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ValidationError("Give whole seconds, comma-separated.") from None
    if any(delay < 0 for delay in delays):
        raise ValidationError("Seconds cannot be negative.")
    return delays


def _bind(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValidationError("Give HOST:PORT, such as 127.0.0.1:8000.")
    return value


def _url_of(*beginnings: str) -> Callable[[str], str]:
    def checked(value: str) -> str:
        if value and not value.startswith(beginnings):
            raise ValidationError(f"Give a URL that begins with one of: {', '.join(beginnings)}")
        return value

    return checked
