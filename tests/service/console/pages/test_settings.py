"""The settings page: every setting with its effective value, and no part of a secret in any form."""

import base64
import re
from html import unescape
from pathlib import Path

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.settings.definitions import SETTINGS
from service.app import create_app
from storage.db import engine
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault, key_fingerprint
from tests.support.canaries import traces
from tests.support.database.databases import on_sqlite
from tests.support.factories import Customer, make_customer, make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ConsoleBrowser, make_console_token, page_statements

WORD = "canaryword{}forthesettings"
KEYS = (b"K" * 31 + b"1", b"K" * 31 + b"2")


def shown(customer: Customer, tmp_path: Path, **changes: str) -> str:
    """Return the page of an installation with these settings."""
    settings = make_settings(tmp_path, changes)
    person = ConsoleBrowser(
        TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({}))), origin=settings.public_base_url
    )
    assert person.sign_in(make_console_token(customer)).status_code == 303
    page = person.get("/settings")
    assert page.status_code == 200
    return page.text


def values(html: str) -> dict[str, str]:
    """Return the text beside each setting's name."""
    found = re.findall(r'<th scope="row"><code>([A-Z_]+)</code></th><td>(.*?)</td>', html)
    return {name: unescape(re.sub(r"<[^>]+>", "", value)) for name, value in found}


@on_sqlite
def test_every_setting_is_listed_in_the_order_of_the_docs(customer: Customer, tmp_path: Path) -> None:
    html = shown(customer, tmp_path)
    assert [*values(html)] == [setting.name for setting in SETTINGS]


@on_sqlite
def test_no_table_cell_shows_the_text_none(customer: Customer, tmp_path: Path) -> None:
    assert "<td>none</td>" not in shown(customer, tmp_path)


def test_values_are_shown_as_they_are_typed(customer: Customer, tmp_path: Path) -> None:
    changes = {
        "BIND": "127.0.0.1:9000",
        "TARGET_ALLOWED_NETWORKS": "10.1.0.0/16,fd00::/8",
        "TARGET_ALLOWED_PORTS": "443,8000-8999",
        "TARGET_ALLOW_HTTP": "true",
        "RETRY_SCHEDULE": "1,2,3",
        "SWEEP_SECONDS": "0.5",
        "TRUSTED_PROXIES": "127.0.0.1",
        "LOG_LEVEL": "debug",
        "WORKER_METRICS_BIND": "127.0.0.1:9108",
    }
    content = values(shown(customer, tmp_path, **changes))
    assert {name: content[name] for name in changes} == {**changes, "TRUSTED_PROXIES": "127.0.0.1/32"}
    assert content["PUBLIC_BASE_URL"] == "http://127.0.0.1:9000"
    assert content["DATA_DIR"] == str(tmp_path)
    assert content["DEPLOYMENT_MODE"] == "self-hosted"
    # Other settings have their defaults.
    assert content["RETENTION_DAYS"] == "90"
    assert content["EXTRA_ROUTE_FAMILIES"] == content["SENTRY_DSN"] == content["DEFAULT_PROJECT_ID"] == "not set"


#: Columns: setting; its value; what is shown of it. `{w}` is replaced by a word that must not be shown.
PLACES = {
    "a database behind a password": (
        "DATABASE_URL",
        "postgresql://{w}user:{w}pass@db.example.com:6543/risk?sslpassword={w}&application_name={w}",
        "PostgreSQL, host db.example.com, port 6543, database risk",
    ),
    "a database whose password is an option": (
        "DATABASE_URL",
        "postgres:///risk?host=db.example.com&user={w}&password={w}",
        "PostgreSQL, host db.example.com, database risk",
    ),
    "a password in percents": (
        "DATABASE_URL",
        "postgresql://u:%63{w}%40@db.example.com/risk",
        "PostgreSQL, host db.example.com, database risk",
    ),
    "a SQLite file": ("DATABASE_URL", "sqlite:////srv/risk.db", "SQLite, /srv/risk.db"),
    "Redis": ("REDIS_URL", "redis://{w}:{w}p@redis.example.com:6380/2", "redis://***@redis.example.com:6380/2"),
    "Redis with TLS": (
        "REDIS_URL",
        "rediss://:{w}@redis.example.com?ssl_certfile=/srv/redis.pem",
        "rediss://***@redis.example.com?ssl_certfile=/srv/redis.pem",
    ),
    "Redis behind Sentinels": (
        "REDIS_URL",
        "redis+sentinel://:{w}@one.example.com,two.example.com:26380/main",
        "redis+sentinel://***@one.example.com,two.example.com:26380/main",
    ),
    "Sentry": ("SENTRY_DSN", "https://{w}:{w}s@sentry.example.com/42", "https://***@sentry.example.com/42"),
}


@on_sqlite
@pytest.mark.parametrize("case", PLACES)
def test_urls_in_settings_are_shown_without_secrets(case: str, customer: Customer, tmp_path: Path) -> None:
    name, text, content = PLACES[case]
    word = WORD.format(1)
    html = shown(customer, tmp_path, **{name: text.format(w=word)})
    assert values(html)[name] == content
    assert traces({"page": html.encode()}, [word]) == []


@on_sqlite
def test_of_the_alert_channels_only_the_mail_server_is_shown(customer: Customer, tmp_path: Path) -> None:
    chats = ("ALERT_SLACK_URL", "ALERT_MATTERMOST_URL", "ALERT_DISCORD_URL", "ALERT_TEAMS_URL", "ALERT_WEBHOOK_URL")
    words = {name: WORD.format(number) for number, name in enumerate((*chats, "ALERT_WEBHOOK_SECRET", "SMTP_URL"))}
    urls = {name: f"https://chat.example.com/hooks/{words[name]}" for name in chats}
    mail = {"ALERT_EMAIL_TO": "ops@example.com", "ALERT_EMAIL_FROM": "relay@example.com"}
    own = {"ALERT_WEBHOOK_SECRET": words["ALERT_WEBHOOK_SECRET"], "ALERTS": "target,disk"}
    smtp = f"smtps://{words['SMTP_URL']}:{words['SMTP_URL']}@mail.example.com"
    html = shown(customer, tmp_path, **urls, **mail, **own, SMTP_URL=smtp)
    assert values(html)["SMTP_URL"] == "host mail.example.com, port 465"
    assert values(html)["ALERTS"] == "disk,target"
    assert all(values(html)[name].startswith("configured") for name in chats)
    assert traces({"page": html.encode()}, [*words.values()]) == []


@on_sqlite
def test_an_embedded_redis_is_shown_by_its_socket(customer: Customer, tmp_path: Path) -> None:
    assert values(shown(customer, tmp_path))["REDIS_URL"].startswith("unix://")


@on_sqlite
@pytest.mark.parametrize("by_file", [False, True], ids=["by value", "by file"])
def test_only_the_fingerprint_of_a_secret_is_shown(by_file: bool, customer: Customer, tmp_path: Path) -> None:
    secrets = {
        name: WORD.format(number)
        for number, name in enumerate(
            ("SCANNER_SHARED_SECRET", "EMAIL_WEBHOOK_SECRET", "STOREFRONT_WEBHOOK_SECRET", "WEBHOOK_SECRET")
        )
    }
    changes = {**secrets, "ENCRYPTION_KEYS": ",".join(base64.b64encode(key).decode() for key in KEYS)}
    if by_file:
        given: dict[str, str] = {}
        for name, value in changes.items():
            (tmp_path / name).write_text(f"{value}\n")
            # The variable is empty, because a setting must not be given both ways.
            given |= {name: "", f"{name}_FILE": str(tmp_path / name)}
    else:
        given = changes
    html = shown(customer, tmp_path, **given)
    content, vault = values(html), Vault(KEYS)
    for name, secret in secrets.items():
        assert vault.fingerprint(secret) in content[name]
        assert content[name].startswith("configured, ")
    assert content["ENCRYPTION_KEYS"] == f"{key_fingerprint(KEYS[0])}, {key_fingerprint(KEYS[1])}"
    pieces = [*secrets.values(), *(key.decode() for key in KEYS), *changes["ENCRYPTION_KEYS"].split(",")]
    assert traces({"page": html.encode()}, pieces) == []


def test_a_secret_in_the_database_is_shown_as_overriding_the_environment(customer: Customer, tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    vault = Vault(settings.encryption_keys)
    before = values(shown(customer, tmp_path))
    SharedSecrets(settings, vault).set(Integration.SCANNER, WORD.format(7), utc_now())
    html = shown(customer, tmp_path)
    after = values(html)
    assert "set in the environment" in before["SCANNER_SHARED_SECRET"]
    assert after["SCANNER_SHARED_SECRET"] == (f"configured, {vault.fingerprint(WORD.format(7))}, set in the database")
    assert before["EMAIL_WEBHOOK_SECRET"] == after["EMAIL_WEBHOOK_SECRET"] == "not set"
    assert traces({"page": html.encode()}, [WORD.format(7)]) == []


@on_sqlite
def test_without_encryption_keys_a_secret_is_shown_as_configured_without_a_fingerprint(
    customer: Customer, tmp_path: Path
) -> None:
    content = values(shown(customer, tmp_path, ENCRYPTION_KEYS="", WEBHOOK_SECRET=""))
    assert content["SCANNER_SHARED_SECRET"] == "configured"
    assert content["ENCRYPTION_KEYS"] == content["WEBHOOK_SECRET"] == "not set"


def test_the_page_shows_the_versions_of_the_database_and_the_schema(customer: Customer, tmp_path: Path) -> None:
    html = shown(customer, tmp_path)
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", html))
    assert facts["Database"] == engine.server_version()
    assert re.fullmatch(r"(SQLite|PostgreSQL) \d+\.\d+.*", facts["Database"])
    assert re.fullmatch(r"\d{4}_\w+", facts["Schema"])
    assert facts["Mode"] == "self-hosted"
    assert "console" in facts["Routes"].split(", ")
    assert facts["Operator account"] == str(customer.account_id)


@on_sqlite
def test_the_facts_name_the_operators_account_that_is_set(customer: Customer, tmp_path: Path) -> None:
    other = make_customer()
    html = shown(other, tmp_path, OPERATOR_ACCOUNT_ID=str(other.account_id))
    assert f"<dt>Operator account</dt><dd>{other.account_id}</dd>" in html


@on_sqlite
def test_only_the_operator_sees_the_settings(person: ConsoleBrowser) -> None:
    stranger = ConsoleBrowser(person.client)
    stranger.sign_in(make_console_token(make_customer()))
    assert stranger.get("/settings").status_code == 404
    assert ConsoleBrowser(person.client).get("/settings").status_code == 303


def test_the_page_takes_few_statements(person: ConsoleBrowser) -> None:
    with page_statements() as ran:
        assert person.get("/settings").status_code == 200
    assert len(ran) <= 7
