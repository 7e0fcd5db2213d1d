"""Polls of handoffs by apps: what they see of the ticket, how little a poll costs, and who sees nothing."""

from pathlib import Path
from typing import Any

import pytest
from falcon.testing import Result, TestClient

from schemas.base.principal import Ability
from schemas.base.timestamps import format_rfc3339
from service.app import create_app
from storage.accounts import accounts
from storage.db.engine import execute, rows
from tests.support.database.query_plans import statements
from tests.support.factories import (
    NOW,
    Customer,
    capture,
    cms_diagnostics,
    make_colleague,
    make_customer,
    make_handoff,
    make_platform_token,
    make_report,
    make_settings,
    make_target,
    storefront_diagnostics,
)
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import EXPORTS, JSON, Call, assert_has_standard_headers, assert_is_error

UPLOADS = {
    Ability.UPLOAD_EVIDENCE: ("/api/browser-extension/evidence-captures", capture),
    Ability.UPLOAD_CMS_DIAGNOSTICS: ("/api/cms-plugins/cms-commerce/diagnostics", cms_diagnostics),
    Ability.UPLOAD_STOREFRONT_DIAGNOSTICS: ("/api/storefront-app/diagnostics", storefront_diagnostics),
}


def cloud(folder: Path, mode: str = "cloud") -> TestClient:
    settings = make_settings(folder, {"DEPLOYMENT_MODE": mode})
    return TestClient(create_app(settings, FakeWakeUpQueue(), FakeResolver({"tracker.example.com": ["93.184.215.14"]})))


@pytest.fixture
def client(customer: Customer, tmp_path: Path) -> TestClient:
    """The application in cloud mode, which alone serves handoffs."""
    return cloud(tmp_path)


def poll(client: TestClient, token: str, handoff_id: str, tag: str | None = None, method: str = "GET") -> Result:
    conditional = () if tag is None else (("If-None-Match", tag),)
    headers = (("Authorization", f"Bearer {token}"), *conditional)
    return Call(method, f"/api/handoffs/{handoff_id}", headers).send(client)


def handed_in(client: TestClient, customer: Customer, ability: Ability, **changes: Any) -> dict[str, Any]:
    """Upload with a token of this ability; return the handoff in the response."""
    path, body = UPLOADS[ability]
    bearer = ("Authorization", f"Bearer {make_platform_token(customer, ability)}")
    answer = Call("POST", path, (bearer, *JSON.items())).with_json(body(customer.project_id, **changes)).send(client)
    assert answer.status_code == 201, answer.text
    handoff: dict[str, Any] = answer.json["handoff"]
    return handoff


@pytest.mark.parametrize("ability", UPLOADS)
def test_a_handoff_is_prepared_after_its_upload(client: TestClient, customer: Customer, ability: Ability) -> None:
    handoff = handed_in(client, customer, ability, report_id=make_report(customer.project_id))
    answer = poll(client, make_platform_token(customer, ability), handoff["id"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert_has_standard_headers(answer)
    del handoff["ticket_export_id"]
    assert answer.json == {**handoff, "status": "prepared"}


def test_a_poll_sees_each_decision_once(client: TestClient, customer: Customer) -> None:
    handoff, token, tags = make_handoff(customer), make_platform_token(customer), [""]

    def seen() -> tuple[str, Any]:
        """Poll with an outdated entity tag, then with the current one."""
        answer = poll(client, token, handoff.id, tags[-1])
        assert (answer.status_code, answer.json["created_at"]) == (200, format_rfc3339(handoff.created_at))
        tags.append(answer.headers["etag"])
        for method in ("GET", "HEAD"):
            again = poll(client, token, handoff.id, tags[-1], method)
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tags[-1])
        return answer.json["status"], answer.json.get("provider_ticket")

    def decide(verb: str, **body: str) -> None:
        path = f"{EXPORTS}/{handoff.ticket_export_id}/{verb}"
        assert Call("POST", path, (*customer.bearer.items(), *JSON.items())).with_json(body).send(client).status_code < 300

    def store(values: str) -> None:
        execute(f"UPDATE exports SET {values} WHERE id = ?", (handoff.ticket_export_id,))  # noqa: S608 - our own names

    assert seen() == ("prepared", None)
    decide("dismiss")
    assert seen() == ("dismissed", None)
    decide("restore")
    assert seen() == ("prepared", None)
    decide("approve", target_id=make_target(customer).id)
    assert seen() == ("approved", None)
    store("status = 'failed', finished_at = 1, due_at = NULL")
    assert seen() == ("failed", None)
    store("status = 'exported', provider_ticket_id = '7'")
    assert seen() == ("delivered", {"id": "7", "url": None})
    store("provider_ticket_url = 'https://t.example/7'")
    assert seen() == ("delivered", {"id": "7", "url": "https://t.example/7"})
    store("findings_total = 2, findings_fixed = 2")
    assert seen() == ("fixed", {"id": "7", "url": "https://t.example/7"})


def test_a_poll_runs_three_statements(client: TestClient, customer: Customer) -> None:
    """The statements read the token, the handoff with its export, and the grant."""
    handoff, token = make_handoff(customer), make_platform_token(customer)
    poll(client, token, handoff.id)
    with statements() as ran:
        assert poll(client, token, handoff.id).status_code == 200
    assert len(ran) == 3


def test_another_users_upload_is_not_found(client: TestClient, customer: Customer) -> None:
    handoff, colleague = make_handoff(customer), make_colleague(customer)
    accounts.grant_project(colleague.email, customer.project_id, NOW)
    answers = [
        poll(client, make_platform_token(who), each)
        for who in (colleague, make_customer())
        for each in (handoff.id, f"hof_7{handoff.id[5:]}", handoff.ticket_export_id, "hof_", "'")
    ]
    for answer in answers:
        assert_is_error(answer, 404, "NOT_FOUND")
        assert answer.json["error"]["message"] == "There is no such handoff."
    assert poll(client, make_platform_token(customer), handoff.id).status_code == 200


@pytest.mark.parametrize("needed", UPLOADS)
def test_a_token_needs_the_ability_of_the_upload(client: TestClient, customer: Customer, needed: Ability) -> None:
    handoff = handed_in(client, customer, needed)
    for ability in UPLOADS:
        answer = poll(client, make_platform_token(customer, ability), handoff["id"])
        if ability is needed:
            assert answer.status_code == 200
        else:
            assert_is_error(answer, 403, "FORBIDDEN")
            assert answer.json["error"]["message"] == f"This token lacks the ability {needed.value}."


def test_an_api_token_reads_no_handoff(client: TestClient, customer: Customer) -> None:
    assert_is_error(poll(client, customer.token, make_handoff(customer).id), 403, "FORBIDDEN")


def test_a_user_without_the_project_grant_sees_nothing_of_its_ticket(client: TestClient, customer: Customer) -> None:
    handoff, token = make_handoff(customer), make_platform_token(customer)
    execute("DELETE FROM grants WHERE user_id = ?", (customer.user_id,))
    assert_is_error(poll(client, token, handoff.id), 403, "FORBIDDEN")


@pytest.mark.parametrize("mode", ["self-hosted", "webhook-only"])
def test_only_cloud_mode_has_the_handoff_route(customer: Customer, tmp_path: Path, mode: str) -> None:
    handoff, token = make_handoff(customer), make_platform_token(customer)
    assert_is_error(poll(cloud(tmp_path, mode), token, handoff.id), 404, "NOT_FOUND")
    assert rows("SELECT COUNT(*) FROM handoffs") == [(1,)]
