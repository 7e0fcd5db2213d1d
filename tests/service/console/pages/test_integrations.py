"""The page of inbound sources: whether each can receive data, its last success and rejection, and what to do."""

import re
from pathlib import Path
from typing import Final

import pytest
from falcon.testing import TestClient

from runtime.clock import utc_now
from schemas.base.principal import Ability
from schemas.intake.sources import CredentialFault, InboundSource, RejectedField, Rejection
from service.app import create_app
from storage.db.engine import execute, is_sqlite, transaction
from storage.db.identifiers import CAPTURE, new_id
from storage.intake import rejections
from storage.secrets import integrations
from storage.secrets.integrations import MAX_TOKENS, Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.support.corpora import naughty_strings
from tests.support.database.databases import on_sqlite
from tests.support.database.query_plans import full_scans, indexes_read, plan_of, statements
from tests.support.factories import NOW, SCANNER_SECRET, Customer, environment, make_platform_token, make_settings, postback
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.console_user import ORIGIN, ConsoleBrowser, make_console_token, page_statements
from tests.support.processes.gunicorn_process import Service
from tests.support.processes.workers import wait_until

SECRETS: Final = {
    "EMAIL_WEBHOOK_SECRET": "email-secret-for-tests",
    "STOREFRONT_WEBHOOK_SECRET": "storefront-secret-for-tests",
}
PLATFORM: Final = (InboundSource.BROWSER_EXTENSION, InboundSource.CMS_PLUGIN, InboundSource.STOREFRONT_APP)
#: Nothing listens at this address: each process counts rate limits by itself, and no worker is notified.
NO_REDIS: Final = "redis://127.0.0.1:1/0"


def visitor(customer: Customer, folder: Path, **changes: str) -> ConsoleBrowser:
    """Return the customer's user, signed in at their own installation, which serves everything."""
    given = {"DEPLOYMENT_MODE": "cloud", "OPERATOR_ACCOUNT_ID": str(customer.account_id), **SECRETS, **changes}
    app = create_app(make_settings(folder, given), FakeWakeUpQueue(), FakeResolver({}))
    person = ConsoleBrowser(TestClient(app), origin=given.get("PUBLIC_BASE_URL", ORIGIN))
    assert person.sign_in(make_console_token(customer)).status_code == 303
    return person


def sections(text: str) -> dict[InboundSource, str]:
    """Return the section of each source."""
    parts = re.findall(r'<section id="([a-z-]+)"(.*?)</section>', text, re.DOTALL)
    return {InboundSource(name): expected for name, expected in parts}


def section(person: ConsoleBrowser, source: InboundSource) -> str:
    return sections(person.get("/integrations").text)[source]


def test_every_source_is_shown_with_the_fingerprint_of_its_secret(customer: Customer, tmp_path: Path) -> None:
    person = visitor(customer, tmp_path)
    shared = SharedSecrets(make_settings(tmp_path, SECRETS), Vault([b"A" * 32]))
    shared.set(Integration.EMAIL, "another-email-secret", NOW)
    text = person.get("/integrations").text
    shown = sections(text)
    assert set(shown) == set(InboundSource)
    by_name = {state.name: state for state in shared.states()}
    for source, name, place in (
        (InboundSource.SCANNER, "scanner", "environment"),
        (InboundSource.EMAIL, "email", "database"),
        (InboundSource.COMPLIANCE, "storefront", "environment"),
    ):
        assert f"<code>{by_name[name].fingerprint}</code>, set in the {place}" in shown[source]
    for secret in (SCANNER_SECRET, "another-email-secret", *SECRETS.values()):
        assert secret not in text


@on_sqlite
def test_unconfigured_and_unavailable_sources_show_what_to_do(customer: Customer, tmp_path: Path) -> None:
    changes = {"EMAIL_WEBHOOK_SECRET": "", "DEPLOYMENT_MODE": "self-hosted"}
    shown = sections(visitor(customer, tmp_path, **changes).get("/integrations").text)
    assert "bin/riskrelay secret set email" in shown[InboundSource.EMAIL]
    for source in (*PLATFORM, InboundSource.COMPLIANCE):
        assert "set <code>DEPLOYMENT_MODE=cloud</code>" in shown[source]


def test_live_tokens_are_counted_and_without_one_the_command_is_shown(customer: Customer, tmp_path: Path) -> None:
    person = visitor(customer, tmp_path)
    make_platform_token(customer, Ability.UPLOAD_EVIDENCE)
    make_platform_token(customer)
    for ended in ("revoked_at", "expires_at"):
        make_platform_token(customer)
        execute(f"UPDATE tokens SET {ended} = 1 WHERE id = (SELECT MAX(id) FROM tokens)")  # noqa: S608 - our own names
    shown = sections(person.get("/integrations").text)
    assert "<dd>2 with the ability <code>browser-extension:evidence-upload</code>" in shown[InboundSource.BROWSER_EXTENSION]
    assert "<dd>1 with the ability <code>cms-plugin:diagnostics-upload</code>" in shown[InboundSource.CMS_PLUGIN]
    execute("UPDATE tokens SET revoked_at = 1 WHERE kind = 'platform'")
    other = section(person, InboundSource.CMS_PLUGIN)
    making = "token create --user EMAIL --kind platform --ability cms-plugin:diagnostics-upload"
    assert f"To create one, run <code>bin/riskrelay {making}</code>" in other


def test_many_tokens_are_counted_up_to_a_limit(database: str, customer: Customer) -> None:
    columns = "user_id, kind, name, abilities, token_sha256, created_at"
    with transaction():
        for number in range(MAX_TOKENS + 5):
            values = (customer.user_id, "platform", "", '["browser-extension:evidence-upload"]', f"digest-{number}", 1)
            execute(f"INSERT INTO tokens ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608 - our own names
    with statements() as ran:
        counted = integrations.live_platform_tokens(utc_now())
    assert counted == {"browser-extension:evidence-upload": MAX_TOKENS}
    # PostgreSQL reads such a small table completely.
    assert indexes_read(ran[0]) == {"tokens_platform"} or not is_sqlite()


def test_the_time_of_the_last_accepted_request_is_that_of_the_newest_stored_record(
    customer: Customer, tmp_path: Path
) -> None:
    person = visitor(customer, tmp_path, DEFAULT_PROJECT_ID=str(customer.project_id))
    shown = sections(person.get("/integrations").text)
    assert all("<dt>Last accepted</dt><dd></dd>" in part for part in shown.values())
    execute(
        "INSERT INTO evidence_captures (id, project_id, page_url, created_at) VALUES (?, ?, 'https://shop.example/', ?)",
        (new_id(CAPTURE, NOW), customer.project_id, 1_700_000_000_000),
    )
    sent = person.client.simulate_post("/api/scanner/results", headers={"X-Scanner-Secret": SCANNER_SECRET}, json=postback())
    assert sent.status_code == 202
    shown = sections(person.get("/integrations").text)
    assert '<time class="ago" datetime="2023-11-14T22:13:20Z"' in shown[InboundSource.BROWSER_EXTENSION]
    assert "<dt>Last accepted</dt><dd><time" in shown[InboundSource.SCANNER]
    assert ">connected<" in shown[InboundSource.SCANNER]
    assert ">unknown<" in shown[InboundSource.CMS_PLUGIN]
    assert "<dt>Last accepted</dt><dd></dd>" in shown[InboundSource.CMS_PLUGIN]


@on_sqlite
@pytest.mark.parametrize("fault", CredentialFault)
def test_the_last_rejection_is_explained(customer: Customer, tmp_path: Path, fault: CredentialFault) -> None:
    person = visitor(customer, tmp_path)
    for source, header in ((InboundSource.SCANNER, "X-Scanner-Secret"), (InboundSource.CMS_PLUGIN, "Authorization")):
        field = RejectedField(f"/{header}", fault.value)
        rejections.record([Rejection(source, NOW, 401, "UNAUTHORIZED", (field,), "req_of_the_log")])
        shown = section(person, source)
        assert ">failing<" in shown
        assert "<code>401 UNAUTHORIZED</code>" in shown
        assert "<code>req_of_the_log</code>" in shown
        why = re.findall(rf"<li><code>/{header}</code> (.*?)</li>", shown)
        assert len(why) == 1
        assert why != [fault.value]
    assert "<dt>Last rejected</dt>\n<dd></dd>" in section(person, InboundSource.EMAIL)


def test_a_rejection_by_a_running_service_is_shown_once_it_is_written(
    database: str, customer: Customer, tmp_path: Path
) -> None:
    with Service(environment(tmp_path, DATABASE_URL=database, REDIS_URL=NO_REDIS)) as service:
        answer = service.request("POST", "/api/scanner/results", {"X-Scanner-Secret": "wrong-secret"}, {})
        assert answer.status == 401
        wait_until(lambda: InboundSource.SCANNER in rejections.last())
    shown = section(visitor(customer, tmp_path), InboundSource.SCANNER)
    assert "<li><code>/X-Scanner-Secret</code> the value is unknown, was revoked or has expired</li>" in shown
    assert answer.headers["x-request-id"] in shown


@on_sqlite
def test_all_displayed_text_is_escaped(customer: Customer, tmp_path: Path) -> None:
    person = visitor(customer, tmp_path)
    for text in ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', *naughty_strings()[::50]):
        clean = text.replace("\0", "")
        field = RejectedField(clean, clean)
        rejections.record([Rejection(InboundSource.SCANNER, utc_now(), 422, clean, (field,), clean)])
        shown = person.get("/integrations").text
        assert len(clean) < 4 or "<" not in clean or clean not in shown


def test_the_page_takes_few_statements_that_use_indexes(customer: Customer, tmp_path: Path) -> None:
    person = visitor(customer, tmp_path)
    # PostgreSQL would read a small table completely.
    make_diagnostics(customer, 500)
    execute("ANALYZE diagnostics")
    with page_statements() as ran:
        assert person.get("/integrations").status_code == 200
    # The session, and then: secrets, tokens, the newest records, rejections, a project.
    assert len(ran) <= 8, [each.sql for each in ran]
    [newest] = [each for each in ran if "page_results" in each.sql]
    assert not full_scans(newest, {"diagnostics"}), plan_of(newest)
    assert "diagnostics_platform" in indexes_read(newest)


@on_sqlite
def test_without_a_project_the_page_shows_the_command_that_adds_one(customer: Customer, tmp_path: Path) -> None:
    person = visitor(customer, tmp_path)
    execute("DELETE FROM grants")
    execute("DELETE FROM projects")
    text = person.get("/integrations").text
    assert "bin/riskrelay project add NAME" in text


def make_diagnostics(customer: Customer, count: int) -> None:
    """Store so many diagnostics of each platform."""
    with transaction():
        for number in range(count):
            for platform, place in (("cms_commerce", "site_url"), ("storefront", "shop_domain")):
                execute(
                    f"INSERT INTO diagnostics (id, project_id, platform, {place}, diagnostics, created_at) "  # noqa: S608 - our own names
                    "VALUES (?, ?, ?, 'shop.example', '{}', 1)",
                    (f"dia_{number:05}_{platform}", customer.project_id, platform),
                )
