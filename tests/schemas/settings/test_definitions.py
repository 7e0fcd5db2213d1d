"""Settings: every default, all errors in one report, and no secret in any text."""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.base.principal import Role
from schemas.settings.alert_channels import AlertChannel, AlertKind, SmtpServer
from schemas.settings.definitions import (
    MAX_SOCKET_PATH_BYTES,
    SETTINGS,
    DeploymentMode,
    InvalidSettings,
    RouteFamily,
    Settings,
    default_settings,
    embedded_redis_socket,
    find_env_file,
    load_settings,
    unknown_names,
)
from schemas.url_policy.policy import parse_networks, parse_ports
from tests.support.servers.authorities import CertificateAuthority

NETWORKS = parse_networks("10.0.0.0/8,fd00::/8,192.0.2.1/32")
KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
OTHER_KEY = "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="
CHECKED = "postgresql://u@db.example/d?sslmode=verify-full&sslrootcert=/etc/ssl/ca.pem"
SECRETS = ("SCANNER_SHARED_SECRET", "EMAIL_WEBHOOK_SECRET", "STOREFRONT_WEBHOOK_SECRET", "WEBHOOK_SECRET")
ROOT = Path(__file__).resolve().parents[3]
Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that loads settings from exactly the given variables and the `.env` in the test's folder."""

    def load_exactly(variables: Mapping[str, str] | None = None, **more: str) -> Settings:
        for name in list(os.environ):
            monkeypatch.delenv(name)
        for name, value in {**(variables or {}), **more}.items():
            monkeypatch.setenv(name, value)
        return load_settings(tmp_path / ".env")

    return load_exactly


def errors_of(load: Load, **variables: str) -> dict[str, list[str]]:
    with pytest.raises(InvalidSettings) as wrong:
        load(variables)
    return wrong.value.mistakes


def test_without_a_variable_every_setting_has_its_default(load: Load, tmp_path: Path) -> None:
    settings = load()
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    policy = settings.target_policy
    assert {name: found.pop(name) for name in ("allow_http", "allowed_ports", "allowed_networks")} == asdict(policy)
    assert (policy.allow_http, policy.allowed_ports, tuple(policy.allowed_networks)) == (
        False,
        parse_ports("443,8443"),
        tuple(parse_networks("")),
    )
    assert found == {
        "deployment_mode": DeploymentMode.SELF_HOSTED,
        "extra_route_families": frozenset(),
        "data_dir": tmp_path / "data",
        "database_url": f"sqlite:///{tmp_path}/data/riskrelay.db",
        "redis_url": f"unix://{embedded_redis_socket(tmp_path / 'data')}",
        "redis_embedded": True,
        "bind": "127.0.0.1:8000",
        "web_processes": 2,
        "web_threads": 1000,
        "public_base_url": "http://127.0.0.1:8000",
        "artifacts_base_url": "",
        "scanner_shared_secret": None,
        "email_webhook_secret": None,
        "storefront_webhook_secret": None,
        "webhook_secret": None,
        "encryption_keys": (),
        "default_project_id": None,
        "target_ca": "",
        "target_client_cert": None,
        "target_client_key": None,
        "egress_proxy": None,
        "egress_sources": (),
        "delivery_timeout_s": 15.0,
        "connect_timeout_s": 5.0,
        "retry_schedule_s": (5, 30, 120, 600, 1800, 7200, 18000, 36000, 50400, 72000),
        "max_age_hours": 72,
        "worker_processes": 1,
        "worker_concurrency": 32,
        "sweep_s": 1.0,
        "max_body_bytes": 1048576,
        "rate_limit_per_minute": 600,
        "auth_failures_per_minute": 20,
        "fixed_after_runs": 2,
        "event_settle_s": 60,
        "max_findings_per_account": 1_000_000,
        "max_waiting_exports_per_account": 500_000,
        "max_targets_per_account": 1000,
        "max_uploads_per_day": 50_000,
        "trusted_proxies": (),
        "email_allowed_networks": (),
        "idempotency_ttl_hours": 72,
        "retention_days": 90,
        "console_enabled": True,
        "operator_account_id": None,
        "oidc_issuer": "",
        "oidc_client_id": "",
        "oidc_client_secret": None,
        "oidc_scopes": "openid email profile",
        "oidc_groups_claim": "groups",
        "oidc_roles": {},
        "oidc_account_id": None,
        "oidc_trusts_email": False,
        "oidc_label": "Sign in with OpenID Connect",
        "console_sign_in_links": False,
        "worker_metrics_bind": None,
        "sentry_dsn": None,
        "otlp_endpoint": None,
        "alert_kinds": set(AlertKind),
        "smtp_server": None,
        "alert_email_to": (),
        "alert_email_from": "",
        "alert_slack_url": "",
        "alert_mattermost_url": "",
        "alert_discord_url": "",
        "alert_teams_url": "",
        "alert_webhook_url": "",
        "alert_webhook_secret": None,
        "backup_alert_days": 7,
        "log_level": "info",
        "log_format": "auto",
    }
    assert settings.max_age == settings.idempotency_ttl == timedelta(days=3)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("DEPLOYMENT_MODE", "webhook-only", "deployment_mode", DeploymentMode.WEBHOOK_ONLY),
        (
            "OIDC_ROLES",
            " admins = owner, cn=triage=triager ,",
            "oidc_roles",
            {"admins": Role.OWNER, "cn=triage": Role.TRIAGER},
        ),
        ("OIDC_SCOPES", "openid  groups", "oidc_scopes", "openid groups"),
        ("EXTRA_ROUTE_FAMILIES", " email , scanner", "extra_route_families", {RouteFamily.EMAIL, RouteFamily.SCANNER}),
        ("DATABASE_URL", "postgres://u@h/d", "database_url", "postgres://u@h/d"),
        ("DATABASE_URL", "postgresql:///d?host=/run/postgresql", "database_url", "postgresql:///d?host=/run/postgresql"),
        ("DATABASE_URL", "postgresql://u:p%40x@h:1,[::1]:2/d", "database_url", "postgresql://u:p%40x@h:1,[::1]:2/d"),
        ("DATABASE_URL", CHECKED, "database_url", CHECKED),
        ("DATABASE_URL", "sqlite:////srv/my data/r.db", "database_url", "sqlite:////srv/my data/r.db"),
        ("REDIS_URL", "rediss://h:6380/1", "redis_url", "rediss://h:6380/1"),
        ("BIND", "[::1]:9000", "bind", "[::1]:9000"),
        ("BIND", "relay_1.example.com:9000", "bind", "relay_1.example.com:9000"),
        ("BIND", "localhost:9000", "bind", "localhost:9000"),
        ("WORKER_METRICS_BIND", "0.0.0.0:9108", "worker_metrics_bind", "0.0.0.0:9108"),
        ("PUBLIC_BASE_URL", "https://risk.example/", "public_base_url", "https://risk.example"),
        ("PUBLIC_BASE_URL", "http://[::1]:8000/under/a/path", "public_base_url", "http://[::1]:8000/under/a/path"),
        ("ENCRYPTION_KEYS", f"{KEY}, {OTHER_KEY}", "encryption_keys", (b"A" * 32, b"B" * 32)),
        ("DEFAULT_PROJECT_ID", "7", "default_project_id", 7),
        ("DELIVERY_TIMEOUT_S", "2.5", "delivery_timeout_s", 2.5),
        ("RETRY_SCHEDULE", "0, 1,2", "retry_schedule_s", (0, 1, 2)),
        ("RATE_LIMIT_PER_MINUTE", "1", "rate_limit_per_minute", 1),
        ("AUTH_FAILURES_PER_MINUTE", "100000", "auth_failures_per_minute", 100_000),
        ("TRUSTED_PROXIES", "10.0.0.0/8, fd00::/8,192.0.2.1", "trusted_proxies", NETWORKS),
        ("EMAIL_ALLOWED_NETWORKS", "10.0.0.0/8, fd00::/8,192.0.2.1", "email_allowed_networks", NETWORKS),
        ("SENTRY_DSN", "https://k@o1.s.example:8443/sentry/42", "sentry_dsn", "https://k@o1.s.example:8443/sentry/42"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1]:4318/otlp/", "otlp_endpoint", "http://[::1]:4318/otlp/"),
        ("LOG_FORMAT", "text", "log_format", "text"),
        ("WEBHOOK_SECRET", "naïve secret ", "webhook_secret", "naïve secret "),
        ("WEBHOOK_SECRET", "7 bytés", "webhook_secret", "7 bytés"),  # eight bytes
    ],
)
def test_a_variable_replaces_the_default(load: Load, name: str, value: str, field: str, expected: Any) -> None:
    assert getattr(load({name: value}), field) == expected


def test_the_default_settings_do_not_depend_on_the_environment(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = load()
    monkeypatch.setenv("DEPLOYMENT_MODE", "no such mode")
    monkeypatch.setenv("SCANNER_SHARED_SECRET_FILE", "/nowhere")
    assert default_settings(tmp_path) == defaults


def test_an_external_redis_is_not_embedded(load: Load) -> None:
    assert load(REDIS_URL="redis://h").redis_embedded is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEPLOYMENT_MODE", "hybrid-hunter2"),
        ("EXTRA_ROUTE_FAMILIES", "scanner,hunter2"),
        ("DATABASE_URL", "mysql://u:hunter2@h/d"),
        ("DATABASE_URL", "sqlite:hunter2.db"),
        ("DATABASE_URL", "sqlite://hunter2.db"),
        ("DATABASE_URL", "postgresql:hunter2"),
        # URLs that PostgreSQL's library would quote in its errors.
        ("DATABASE_URL", "postgresql://u:hunter2@h@i/d"),
        ("DATABASE_URL", "postgresql://u:hunter2/3@h/d"),
        ("DATABASE_URL", "postgresql://u:hunter2?@h/d"),
        ("DATABASE_URL", "postgresql://u:hunter2#@h/d"),
        ("DATABASE_URL", "postgresql://u:hunter2 @h/d"),
        ("DATABASE_URL", "postgresql://u:%hunter2@h/d"),
        ("DATABASE_URL", "postgresql://u:hunter2@[::1/d"),
        ("DATABASE_URL", "postgresql://hunter2:port/d"),
        ("REDIS_URL", "http://:hunter2@h"),
        ("REDIS_URL", "hunter2"),
        ("BIND", "hunter2"),
        ("BIND", "127.0.0.1:hunter2"),
        ("BIND", ":8000"),
        ("BIND", "127.0.0.1:0"),
        ("BIND", "127.0.0.1:65536"),
        ("BIND", "127.0.0.1:٨٠٠٠"),
        ("BIND", "hunter2 x:8000"),
        ("BIND", "http://hunter2:8000"),
        ("BIND", "*:8000"),
        ("BIND", "::1:8000"),
        ("BIND", "[::1:8000"),
        ("BIND", "[127.0.0.1]:8000"),
        ("BIND", "[hunter2]:8000"),
        ("BIND", "256.1.1.1:8000"),
        ("BIND", "10.0.0:8000"),
        ("BIND", "hunter2-:8000"),
        ("BIND", "a..b:8000"),
        ("WORKER_METRICS_BIND", "hunter2 x:9108"),
        ("PUBLIC_BASE_URL", "ftp://hunter2"),
        ("PUBLIC_BASE_URL", "[hunter2"),
        ("PUBLIC_BASE_URL", "http://"),
        # It is part of every Location and Link header.
        ("PUBLIC_BASE_URL", "https://admin:hunter2@risk.example"),
        ("PUBLIC_BASE_URL", "https://hunter2@risk.example"),
        ("PUBLIC_BASE_URL", "https://@risk.example/hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/?key=hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/?"),
        ("PUBLIC_BASE_URL", "https://risk.example/#hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/\r\nX-Hunter: hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/\x7fhunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example:hunter2"),
        # In a redirect it would lead to another host, or browsers would change the path.
        ("PUBLIC_BASE_URL", "https://risk.example//hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/relay/../hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/relay;hunter2"),
        ("PUBLIC_BASE_URL", "https://risk.example/%2F/hunter2"),
        ("PUBLIC_BASE_URL", "https://höhle.example/hunter2"),
        # Seven bytes, and bytes that are not text.
        *((name, "hunter2") for name in SECRETS),
        *((name, "hunter2hunter2\udcff") for name in SECRETS),
        ("ENCRYPTION_KEYS", "hunter2"),
        ("ENCRYPTION_KEYS", "aHVudGVyMg=="),
        ("ENCRYPTION_KEYS", f"{KEY},hunter2é"),
        ("DEFAULT_PROJECT_ID", "hunter2"),
        ("DEFAULT_PROJECT_ID", "0"),
        ("TARGET_ALLOWED_NETWORKS", "10.0.0.0/hunter2"),
        ("TARGET_ALLOWED_PORTS", "443,hunter2"),
        ("TARGET_ALLOWED_PORTS", "0"),
        ("TARGET_ALLOW_HTTP", "hunter2"),
        ("WEB_PROCESSES", "0"),
        ("WEB_PROCESSES", "2.5hunter2"),
        ("WEB_THREADS", "-1"),
        ("DELIVERY_TIMEOUT_S", "0"),
        ("DELIVERY_TIMEOUT_S", "nan"),
        ("DELIVERY_TIMEOUT_S", "inf"),
        ("CONNECT_TIMEOUT_S", "hunter2"),
        ("RETRY_SCHEDULE", "5,hunter2"),
        ("RETRY_SCHEDULE", "5,-1"),
        ("RETRY_SCHEDULE", "5,,6"),
        ("MAX_AGE_HOURS", "0"),
        ("WORKER_PROCESSES", "0"),
        ("WORKER_CONCURRENCY", "0"),
        ("SWEEP_SECONDS", "0"),
        ("SWEEP_SECONDS", "0.009"),  # would keep a CPU busy
        ("MAX_BODY_BYTES", "1023"),
        ("RATE_LIMIT_PER_MINUTE", "0"),
        ("RATE_LIMIT_PER_MINUTE", "-1"),
        ("RATE_LIMIT_PER_MINUTE", "600 hunter2"),
        ("AUTH_FAILURES_PER_MINUTE", "0"),
        ("AUTH_FAILURES_PER_MINUTE", "hunter2"),
        ("TRUSTED_PROXIES", "hunter2"),
        ("EMAIL_ALLOWED_NETWORKS", "10.0.0.1/8"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,hunter2"),
        ("TRUSTED_PROXIES", "10.0.0.1/8"),
        ("TRUSTED_PROXIES", "10.0.0.0/33"),
        ("IDEMPOTENCY_TTL_HOURS", "0"),
        ("SENTRY_DSN", "https://sentry.example/1"),  # no key
        ("SENTRY_DSN", "https://hunter2@sentry.example/"),  # no project
        ("SENTRY_DSN", "https://hunter2@sentry.example/shop"),
        ("SENTRY_DSN", "https://hunter2@sentry.example:99999/1"),
        ("SENTRY_DSN", "udp://hunter2@sentry.example/1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "hunter2:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://hunter2:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://hunter2:4318/v1/traces"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter2@collector.example:4318"),
        ("ALERTS", "target,hunter2"),
        ("SMTP_URL", "http://user:hunter2@mail.example.com"),
        ("SMTP_URL", "smtp://user@mail.example.com"),  # no password
        ("SMTP_URL", "smtps://user:hunter2@mail.example.com:0"),
        ("SMTP_URL", "smtps://user:hunter2@mail.example.com:99999"),
        ("SMTP_URL", "smtps://user:hunter2@mail.example.com/inbox"),
        ("SMTP_URL", "smtps://user:hun ter2@mail.example.com"),
        ("SMTP_URL", "smtps://user:hunter2"),
        ("ALERT_EMAIL_TO", "hunter2"),
        ("ALERT_EMAIL_TO", "ops@example.com\nBcc: hunter2@example.com"),
        ("ALERT_EMAIL_TO", "Ops <hunter2@example.com>"),
        ("ALERT_EMAIL_FROM", "a@example.com,hunter2@example.com"),
        ("ALERT_SLACK_URL", "http://hooks.slack.com/services/hunter2"),
        ("ALERT_SLACK_URL", "https://user:hunter2@hooks.slack.com/"),
        ("ALERT_DISCORD_URL", "https://discord.com/api/webhooks/1/hunter2 x"),
        ("ALERT_TEAMS_URL", "https://"),
        ("ALERT_MATTERMOST_URL", "https://chat.example.com:99999/hooks/hunter2"),
        ("ALERT_WEBHOOK_URL", "https://alerts.example.com/#hunter2"),
        ("ALERT_WEBHOOK_SECRET", "hunter2"),
        ("BACKUP_ALERT_DAYS", "0"),
        ("OIDC_ISSUER", "http://login.example.com/hunter2"),
        ("OIDC_ISSUER", "https://user:hunter2@login.example.com"),
        ("OIDC_ISSUER", "https://login.example.com/?hunter2"),
        ("OIDC_ISSUER", "https://login.example.com:99999"),
        ("OIDC_SCOPES", "email hunter2"),
        ("OIDC_ROLES", "hunter2"),
        ("OIDC_ROLES", "team=hunter2"),
        ("OIDC_ROLES", "=owner"),
        ("OIDC_ROLES", "team=owner,team=viewer"),
        ("LOG_LEVEL", "hunter2"),
        ("LOG_FORMAT", "hunter2"),
    ],
)
def test_an_invalid_setting_is_reported_by_name_without_its_value(load: Load, name: str, value: str) -> None:
    actual = errors_of(load, **{name: value})
    assert [*actual] == [name]
    assert all(actual[name])
    assert "hunter2" not in repr(actual)


def test_all_errors_are_in_one_report(load: Load, tmp_path: Path) -> None:
    wrong = {
        "BIND": "nowhere",
        "WEB_PROCESSES": "many",
        "DEPLOYMENT_MODE": "hybrid",
        "RETRY_SCHEDULE": "soon",
        "ENCRYPTION_KEYS": "short",
        "WEBHOOK_SECRET_FILE": str(tmp_path / "missing"),
        "LOG_LEVEL": "loud",
        "REDIS_URL": "elsewhere",
        "ALERT_WEBHOOK_URL": "nowhere",
    }
    incomplete = {"OIDC_ISSUER": "https://issuer.example"}
    with pytest.raises(InvalidSettings) as refused:
        load(wrong | incomplete)
    assert {*refused.value.mistakes} == {*wrong, "OIDC_CLIENT_ID"}
    lines = str(refused.value).splitlines()
    assert len(lines) == len(wrong) + 2
    assert [line.strip().partition(":")[0] for line in lines[1:]] == sorted({*wrong, "OIDC_CLIENT_ID"})


def test_a_number_beyond_dates_databases_or_machines_is_a_mistake(load: Load) -> None:
    fit = {
        "MAX_AGE_HOURS": "876000",
        "IDEMPOTENCY_TTL_HOURS": "876000",
        "RETENTION_DAYS": "36500",
        "RETRY_SCHEDULE": "5,31536000",
        "DEFAULT_PROJECT_ID": "2147483647",
        "OPERATOR_ACCOUNT_ID": "2147483647",
        "DELIVERY_TIMEOUT_S": "86400",
        "CONNECT_TIMEOUT_S": "86400",
        "SWEEP_SECONDS": "86400",
        "WEB_PROCESSES": "1000",
        "WEB_THREADS": "100000",
        "WORKER_PROCESSES": "1000",
        "WORKER_CONCURRENCY": "10000",
        "MAX_FINDINGS_PER_ACCOUNT": "1000000000000",
        "MAX_BODY_BYTES": "1000000000",
    }
    settings, now = load(fit), datetime.now(UTC)
    assert now - settings.max_age < now - settings.idempotency_ttl + timedelta(hours=1)
    assert set(errors_of(load, **{name: f"{value}0" for name, value in fit.items()})) == {*fit}
    assert set(errors_of(load, **dict.fromkeys(fit, "9" * 5_000))) == {*fit}


def test_the_text_of_the_settings_contains_no_secret(load: Load) -> None:
    settings = load(
        dict.fromkeys(SECRETS, "hunter2!"),
        ENCRYPTION_KEYS=KEY,
        DATABASE_URL="postgresql://u:hunter2@h/d",
        REDIS_URL="redis://:hunter2@h",
    )
    assert settings.webhook_secret == "hunter2!"
    assert "hunter2" not in repr(settings) + str(settings)
    assert "AAAA" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"SMTP_URL": "smtps://mail.example.com"}, {"ALERT_EMAIL_TO", "ALERT_EMAIL_FROM"}),
        ({"ALERT_EMAIL_TO": "ops@example.com"}, {"SMTP_URL", "ALERT_EMAIL_FROM"}),
        ({"ALERT_WEBHOOK_URL": "https://alerts.example.com/"}, {"ALERT_WEBHOOK_SECRET"}),
        ({"ALERT_WEBHOOK_SECRET": "s3cret!!"}, {"ALERT_WEBHOOK_URL"}),
        ({"OIDC_ISSUER": "https://login.example.com/"}, {"OIDC_CLIENT_ID"}),
        ({"OIDC_CLIENT_ID": "riskrelay"}, {"OIDC_ISSUER"}),
        ({"CONSOLE_SIGN_IN_LINKS": "on"}, {"SMTP_URL"}),
        (
            {"OIDC_ISSUER": "https://login.example.com/", "OIDC_CLIENT_ID": "riskrelay", "DEPLOYMENT_MODE": "cloud"},
            {"OIDC_ACCOUNT_ID"},
        ),
    ],
)
def test_a_channel_of_alerts_or_the_issuer_needs_all_of_its_settings(
    load: Load, given: dict[str, str], missing: set[str]
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load(given)
    assert set(refused.value.mistakes) == missing


def test_the_issuer_has_the_account_of_the_operator_in_cloud_mode(load: Load) -> None:
    issuer = {"OIDC_ISSUER": "https://login.example.com/", "OIDC_CLIENT_ID": "riskrelay", "DEPLOYMENT_MODE": "cloud"}
    assert load({**issuer, "OPERATOR_ACCOUNT_ID": "3"}).operator_account_id == 3
    assert load({**issuer, "OIDC_ACCOUNT_ID": "4"}).oidc_account_id == 4


def test_channels_of_alerts_are_those_with_an_address(load: Load) -> None:
    mail = {"SMTP_URL": "smtp://relay:p%40ss@mail.example.com", "ALERT_EMAIL_TO": "a@b.example, c@d.example"}
    settings = load({**mail, "ALERT_EMAIL_FROM": "r@b.example", "ALERT_TEAMS_URL": "https://teams.example.com/x?sig=s3cret"})
    assert settings.alert_channels == (AlertChannel.EMAIL, AlertChannel.TEAMS)
    assert settings.smtp_server == SmtpServer("mail.example.com", 587, is_tls=False, username="relay", password="p@ss")
    assert settings.alert_email_to == ("a@b.example", "c@d.example")
    assert "p@ss" not in repr(settings)
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("url", ["smtp://ops:p%C3%A4ss@mail.example.com", "smtp://%C3%B6ps:pass@mail.example.com"])
def test_a_mail_server_that_smtplib_cannot_sign_in_to_is_refused(load: Load, url: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load({"SMTP_URL": url, "ALERT_EMAIL_TO": "a@b.example", "ALERT_EMAIL_FROM": "r@b.example"})
    assert "not ASCII" in str(refused.value.mistakes["SMTP_URL"])
    assert "pass" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_be_in_a_file_and_loses_one_trailing_newline(load: Load, tmp_path: Path, name: str) -> None:
    for written, read in [
        ("s3cret!!\n", "s3cret!!"),
        ("s3cret!!\r\n", "s3cret!!"),
        ("s3cret!!", "s3cret!!"),
        (" s3cret\n\n", " s3cret\n"),
    ]:
        (tmp_path / "secret").write_bytes(written.encode())
        assert getattr(load({f"{name}_FILE": str(tmp_path / "secret")}), name.lower()) == read


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("DATABASE_URL", "postgresql://u:s3cret@h/d", "database_url"),
        ("REDIS_URL", "redis://:s3cret@h:6379/0", "redis_url"),
        ("SENTRY_DSN", "https://s3cret@sentry.example/1", "sentry_dsn"),
    ],
)
def test_a_url_that_contains_a_secret_may_be_in_a_file(
    load: Load, tmp_path: Path, name: str, value: str, field: str
) -> None:
    (tmp_path / "secret").write_text(f"{value}\n")
    assert getattr(load({f"{name}_FILE": str(tmp_path / "secret")}), field) == value


def test_the_env_file_may_name_a_file_too(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret!!\n")
    (tmp_path / ".env").write_text(f"WEBHOOK_SECRET_FILE={tmp_path / 'secret'}\n")
    assert load().webhook_secret == "s3cret!!"


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS if setting.is_secret])
def test_a_secret_that_is_set_twice_is_an_error_wherever_it_is_set(load: Load, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / ".env").write_text(f"{name}=hunter2\n")
    actual = errors_of(load, **{f"{name}_FILE": str(tmp_path / "secret")})
    assert actual == {name: [f"Set either {name} or {name}_FILE, not both."]}


def test_an_empty_variable_hides_no_line_of_the_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from file")
    (tmp_path / ".env").write_text("BIND=127.0.0.1:9000\nWEBHOOK_SECRET_FILE=secret\n")
    settings = load(BIND="", WEBHOOK_SECRET="", WEBHOOK_SECRET_FILE="")
    assert (settings.bind, settings.webhook_secret) == ("127.0.0.1:9000", "from file")


def test_keys_may_be_in_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    assert load(ENCRYPTION_KEYS_FILE=str(tmp_path / "keys")).encryption_keys == (b"A" * 32,)


def test_a_byte_order_mark_is_no_part_of_a_value_in_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\ufeffa long secret\r\n")
    assert load(WEBHOOK_SECRET_FILE=str(tmp_path / "secret")).webhook_secret == "a long secret"


@pytest.mark.parametrize("make", [Path.exists, Path.mkdir, os.mkfifo, lambda path: path.write_bytes(b"\xff\xfe\xfd")])
def test_a_file_that_cannot_be_read_is_a_mistake_that_names_the_setting(
    load: Load, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "secret")
    actual = errors_of(load, SCANNER_SHARED_SECRET_FILE=str(tmp_path / "secret"))
    assert [*actual] == ["SCANNER_SHARED_SECRET_FILE"]


@pytest.mark.parametrize("name", ["OIDC_LABEL", "WEBHOOK_SECRET", "DATABASE_URL", "DATA_DIR"])
def test_a_value_that_is_not_utf8_is_a_mistake(load: Load, name: str) -> None:
    value = "sqlite:////srv/caf\udce9 and more"
    assert errors_of(load, **{name: value}) == {name: ["Must be UTF-8 text."]}


@pytest.mark.parametrize(
    "make", [lambda path: path.write_bytes(b"BIND=\xff\xfe"), lambda path: path.symlink_to("/proc/self/mem")]
)
def test_an_env_file_that_cannot_be_read_is_a_mistake_that_names_it(
    load: Load, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / ".env")
    actual = errors_of(load, BIND="nowhere")
    assert {*actual} == {str(tmp_path / ".env"), "BIND"}
    assert "Cannot be read" in actual[str(tmp_path / ".env")][0]


def test_an_empty_variable_counts_as_unset(load: Load) -> None:
    names = [
        "SCANNER_SHARED_SECRET",
        "WEB_PROCESSES",
        "DATABASE_URL",
        "REDIS_URL",
        "BIND",
        "ENCRYPTION_KEYS",
        "DEPLOYMENT_MODE",
    ]
    names += ["RATE_LIMIT_PER_MINUTE", "AUTH_FAILURES_PER_MINUTE", "TRUSTED_PROXIES", "EMAIL_ALLOWED_NETWORKS"]
    names += ["DEFAULT_PROJECT_ID", "RETRY_SCHEDULE", "TARGET_ALLOWED_PORTS", "TARGET_ALLOW_HTTP", "LOG_LEVEL", "DATA_DIR"]
    default = load()
    assert load(dict.fromkeys(names, "")) == default


@pytest.mark.parametrize("content", ["", "\n", "\r\n"])
def test_an_empty_file_counts_as_unset(load: Load, tmp_path: Path, content: str) -> None:
    (tmp_path / "empty").write_bytes(content.encode())
    names = [*SECRETS, "DATABASE_URL", "DEFAULT_PROJECT_ID", "ENCRYPTION_KEYS", "BIND"]
    assert load({f"{name}_FILE": str(tmp_path / "empty") for name in names}) == load()


def test_the_environment_takes_precedence_over_the_env_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WEB_PROCESSES=3\nWEB_THREADS=4\n# a comment\nWEBHOOK_SECRET='from file'\n")
    settings = load(WEB_PROCESSES="9")
    assert (settings.web_processes, settings.web_threads, settings.webhook_secret) == (9, 4, "from file")


def test_a_relative_data_folder_counts_from_the_folder_of_the_env_file(load: Load, tmp_path: Path) -> None:
    assert load(DATA_DIR="there/data").data_dir == tmp_path / "there" / "data"
    assert load(DATA_DIR="/srv/data").data_dir == Path("/srv/data")
    assert load(DATA_DIR="/srv/data").database_url == "sqlite:////srv/data/riskrelay.db"


def test_the_env_file_is_the_named_one_or_that_of_the_installation_and_never_that_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").touch()
    for named, expected in (
        ("", ROOT / ".env"),
        ("/etc/riskrelay/.env", Path("/etc/riskrelay/.env")),
        ("x/.env", ROOT / "x/.env"),
    ):
        monkeypatch.setenv("RISKRELAY_ENV_FILE", named)
        assert find_env_file() == expected
    monkeypatch.delenv("RISKRELAY_ENV_FILE")
    assert find_env_file() == ROOT / ".env"


def test_relative_paths_count_from_the_folder_of_the_env_file(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("s3cret!!\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings = load(DATABASE_URL="sqlite:///db/riskrelay.db", WEBHOOK_SECRET_FILE="secret")
    assert (settings.database_url, settings.webhook_secret) == (f"sqlite:///{tmp_path}/db/riskrelay.db", "s3cret!!")
    assert load(DATABASE_URL="sqlite:////srv/riskrelay.db").database_url == "sqlite:////srv/riskrelay.db"


def test_an_env_file_that_other_users_may_change_is_a_mistake_and_no_value_of_it_is_used(load: Load, tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("BIND=nowhere\n")
    env_file.chmod(0o666)
    fix = f"Check its lines, then run: chmod go-w {env_file}"
    assert errors_of(load) == {str(env_file): [f"Other users can change it: {env_file} has mode 0666. {fix}"]}
    assert unknown_names(env_file) == {}


def test_the_socket_is_next_to_the_data_or_where_its_path_is_short_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert embedded_redis_socket(Path("/srv/data")) == Path("/srv/data/redis/redis.sock")
    long = [tmp_path / ("x" * 120) / name for name in ("one", "two")]
    sockets = {embedded_redis_socket(folder) for folder in long}
    assert len(sockets) == 2
    for socket in sockets:
        assert len(os.fsencode(socket)) <= MAX_SOCKET_PATH_BYTES
        assert re.fullmatch(rf".*/riskrelay-{os.getuid()}-[0-9a-f]{{12}}/redis\.sock", str(socket))
    assert embedded_redis_socket(long[0]) in sockets
    monkeypatch.setattr(tempfile, "tempdir", str(long[0]))
    assert len(os.fsencode(embedded_redis_socket(long[0]))) <= MAX_SOCKET_PATH_BYTES


def test_a_path_with_spaces_makes_a_redis_url_that_clients_read(load: Load) -> None:
    assert load(DATA_DIR="/srv/my data").redis_url == "unix:///srv/my%20data/redis/redis.sock"


# --- one source of names, defaults and meanings


def test_every_setting_has_its_name_its_member_and_its_meaning_once() -> None:
    for actual in ("name", "member", "meaning"):
        values = [getattr(setting, actual) for setting in SETTINGS]
        assert len({*values}) == len(values) > 30
        assert all(values)
    assert {"database_url", "redis_url", "allowed_networks"} < {setting.member for setting in SETTINGS}


def test_the_values_hidden_in_the_text_of_the_settings_are_the_secrets() -> None:
    hidden = {field.name for field in fields(Settings) if not field.repr}
    secret = {setting.member for setting in SETTINGS if setting.is_secret}
    assert secret <= hidden


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS if setting.default])
def test_the_text_of_a_default_results_in_the_default(load: Load, name: str) -> None:
    [setting] = [setting for setting in SETTINGS if setting.name == name]
    assert load({name: str(setting.default)}) == load()


# --- unknown names


def test_unknown_names_are_reported_with_the_most_similar_setting(load: Load, tmp_path: Path) -> None:
    lines = [
        "# BNID=1",
        "BIND=127.0.0.1:9000",
        "WORKER_PROCESES=2",
        "webhook_secret=x",
        "DATABASE_URL_FIEL=/x",
        "PLUMBING=yes",
    ]
    (tmp_path / ".env").write_text("\n".join(lines))
    assert load().bind == "127.0.0.1:9000"
    assert unknown_names(tmp_path / ".env") == {
        "WORKER_PROCESES": "WORKER_PROCESSES",
        "webhook_secret": "WEBHOOK_SECRET",
        "DATABASE_URL_FIEL": "DATABASE_URL_FILE",
        "PLUMBING": None,
    }


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        # A key on a line of its own: the part before its = counts as a name.
        (OTHER_KEY, "Qk…"),
        # With the other characters of base64, and with two = at the end.
        ("a/B+a/B+a/B+a/B+a/B+a/B+a/B+a/B+a/B+a/B+a/A=", "a/…"),
        ("QkJCQkJCQkJCQkJCQkJCQg==", "Qk…"),
        # A part of a URL or of a text, in letters of one case.
        ("deadbeef01234567@db?sslmode=require", "de…"),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZ=", "AB…"),
    ],
)
def test_a_secret_broken_over_two_lines_is_not_reported_as_a_name(
    load: Load, tmp_path: Path, line: str, reported: str
) -> None:
    (tmp_path / ".env").write_text(f"ENCRYPTION_KEYS={KEY},\n{line}\n")
    assert len(load().encryption_keys) == 1
    assert unknown_names(tmp_path / ".env") == {reported: None}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("BIND=127.0.0.1:1\n\n# again\n\nBIND=127.0.0.1:2\n", "Line 5 sets BIND again, after line 1: keep one of them."),
        ("BIND=\nexport BIND=127.0.0.1:2\n", "Line 2 sets BIND again, after line 1: keep one of them."),
        ("MY_OWN=hunter2\r\nMY_OWN=hunter3", "Line 2 sets MY_OWN again, after line 1: keep one of them."),
        (f"{OTHER_KEY}\n{OTHER_KEY}\n", "Line 2 sets a name again, after line 1: keep one of them."),
        ("# fine\nhunter2\n", "Line 2 cannot be read: write NAME=value, and close every quote."),
        ("\n\n\nBIND hunter2\n", "Line 4 cannot be read: write NAME=value, and close every quote."),
        ("WEBHOOK_SECRET='hunter2\n", "Line 1 cannot be read: write NAME=value, and close every quote."),
        ("=hunter2\n", "Line 1 cannot be read: write NAME=value, and close every quote."),
        ("WEBHOOK_SECRET='hunter2\nMY_OWN='x'\n", "Line 1 cannot be read: write NAME=value, and close every quote."),
        ("WEBHOOK_SECRET='hunter2\nMY_OWN=it's\n", None),
        ("WEBHOOK_SECRET='hunter2\nMY_OWN=it'\n", "Line 1 has a quote that is not closed on the same line."),
    ],
)
def test_a_name_given_twice_and_an_unreadable_line_are_mistakes_with_their_line(
    load: Load, tmp_path: Path, text: str, reported: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".env").write_text(text, newline="")
    with pytest.raises(InvalidSettings) as refused:
        load()
    assert caplog.text == ""
    assert reported is None or refused.value.mistakes[str(tmp_path / ".env")][0] == reported
    assert "hunter" not in str(refused.value)
    assert OTHER_KEY[:8] not in str(refused.value)


def test_ordinary_lines_of_other_programs_are_no_error(load: Load, tmp_path: Path) -> None:
    text = "\ufeff# a\n\n export BIND = '127.0.0.1:9000' # x\nPEM=\"-----BEGIN\nx\n-----END\"\nEMPTY=\nOTHER= # none\n"
    (tmp_path / ".env").write_text(text)
    assert load().bind == "127.0.0.1:9000"


def test_a_file_with_only_settings_has_no_unknown_name(tmp_path: Path) -> None:
    assert unknown_names(tmp_path / "none") == {}
    names = [setting.name + suffix for setting in SETTINGS for suffix in ("", "_FILE")]
    (tmp_path / ".env").write_text("".join(f"{name}=x\n" for name in names))
    assert unknown_names(tmp_path / ".env") == {}


EVERYTHING = frozenset(RouteFamily)
#: Handoffs come from a platform, and only cloud installations belong to one.
SELF_HOSTED_FAMILIES = EVERYTHING - {RouteFamily.HANDOFFS}


@pytest.mark.parametrize(
    ("mode", "extra", "families"),
    [
        ("cloud", "", EVERYTHING),
        ("self-hosted", "", SELF_HOSTED_FAMILIES),
        ("webhook-only", "", {RouteFamily.EXPORTS, RouteFamily.HEALTH}),
        ("webhook-only", "scanner", {RouteFamily.EXPORTS, RouteFamily.HEALTH, RouteFamily.SCANNER}),
        ("webhook-only", "scanner,email", {RouteFamily.EXPORTS, RouteFamily.HEALTH, RouteFamily.SCANNER, RouteFamily.EMAIL}),
    ],
)
def test_a_mode_serves_its_route_families(load: Load, mode: str, extra: str, families: frozenset[RouteFamily]) -> None:
    assert load(DEPLOYMENT_MODE=mode, EXTRA_ROUTE_FAMILIES=extra).route_families == families


@pytest.mark.parametrize("mode", ["cloud", "self-hosted", "webhook-only"])
def test_the_console_can_be_disabled_and_is_always_off_in_webhook_only_mode(load: Load, mode: str) -> None:
    on, off = (load(DEPLOYMENT_MODE=mode, CONSOLE_ENABLED=actual).route_families for actual in ("true", "0"))
    assert on - off == ({RouteFamily.CONSOLE} if mode != "webhook-only" else set())


def test_the_console_cannot_be_enabled_in_webhook_only_mode(load: Load) -> None:
    assert set(errors_of(load, DEPLOYMENT_MODE="webhook-only", EXTRA_ROUTE_FAMILIES="console")) == {"EXTRA_ROUTE_FAMILIES"}


def test_the_operators_account_is_a_number_from_one_on(load: Load) -> None:
    assert load(OPERATOR_ACCOUNT_ID="7").operator_account_id == 7
    for wrong in ("0", "-1", "first"):
        assert set(errors_of(load, OPERATOR_ACCOUNT_ID=wrong)) == {"OPERATOR_ACCOUNT_ID"}


# --- certificates of connections to targets


def test_certificates_are_read_from_the_files_in_the_settings(load: Load, tmp_path: Path) -> None:
    authority = CertificateAuthority("Company")
    pair = authority.pair("client.example.com")
    at = pair.index("-----BEGIN PRIVATE")
    contents = {"TARGET_CA": authority.pem, "TARGET_CLIENT_CERT": pair[:at], "TARGET_CLIENT_KEY": pair[at:]}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    settings = load({f"{name}_FILE": str(tmp_path / name) for name in contents})
    assert (settings.target_ca, settings.client_certificate) == (authority.pem, pair)
    assert pair[at:] not in repr(settings)
    assert load().client_certificate is None


def test_missing_incomplete_and_mismatched_certificate_files_are_reported(load: Load, tmp_path: Path) -> None:
    one, other = (CertificateAuthority("Company").pair("client.example.com") for _ in range(2))
    (tmp_path / "one.pem").write_text(one)
    (tmp_path / "other.pem").write_text(other)
    gone, first, second = (str(tmp_path / name) for name in ("gone.pem", "one.pem", "other.pem"))
    assert errors_of(load, TARGET_CA_FILE=gone) == {
        "TARGET_CA_FILE": ["Names a file that cannot be read: No such file or directory."]
    }
    assert errors_of(load, TARGET_CLIENT_CERT_FILE=first) == {
        "TARGET_CLIENT_KEY": ["Set it too, or TARGET_CLIENT_KEY_FILE: TARGET_CLIENT_CERT needs it."]
    }
    assert errors_of(load, TARGET_CLIENT_KEY_FILE=first) == {
        "TARGET_CLIENT_CERT": ["Set it too, or TARGET_CLIENT_CERT_FILE: TARGET_CLIENT_KEY needs it."]
    }
    assert errors_of(load, TARGET_CLIENT_CERT_FILE=first, TARGET_CLIENT_KEY_FILE=second) == {
        "TARGET_CLIENT_KEY": ["The private key does not belong to the first certificate."]
    }
