"""The forms for a webhook's signature, format, headers and Standard Webhooks secret; no value comes out anywhere."""

from base64 import b64decode, b64encode
from html import escape, unescape
from typing import Final

import pytest

from schemas.base.fields import MESSAGES
from schemas.targets.target import Target
from storage.db.engine import execute, rows
from storage.db.models import TargetRow
from storage.secrets.vault import Vault
from storage.targets import targets, webhook_secrets
from tests.service.conftest import LogLines
from tests.service.console.form_fields import shown_fields
from tests.support.factories import ENCRYPTION_KEY, NOW, Customer, forbid_webhooks, make_target
from tests.support.http.console_user import ConsoleBrowser

VAULT: Final = Vault([b64decode(ENCRYPTION_KEY)])
VALUE: Final = "Bearer cAnArY"
STANDARD: Final = f"whsec_{b64encode(b'cAnArY' * 5).decode()}"


@pytest.fixture
def target(customer: Customer) -> Target:
    return make_target(customer)


def test_a_header_is_set_and_removed_and_its_value_is_seen_nowhere(
    person: ConsoleBrowser, customer: Customer, target: Target, log_lines: LogLines
) -> None:
    response = person.post(f"/targets/{target.id}/header", name=" Authorization ", value=f"{VALUE}\r\n")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=header_set"
    page = person.get(f"/targets/{target.id}", "done=header_set").text
    assert f"Authorization <code>{VAULT.fingerprint(VALUE)}</code>" in page
    assert "cAnArY" not in page + log_lines.text + str(rows("SELECT * FROM audit_entries"))
    assert rows("SELECT actor, reason FROM audit_entries WHERE action = 'set_header'") == [
        (f"user:{customer.user_id}", "Authorization")
    ]
    response = person.post(f"/targets/{target.id}/header/remove", name="Authorization")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=header_removed"
    assert TargetRow.get_by_id(target.id).headers_sealed is None


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("Host", VALUE, "header_reserved"),
        ("X Api", VALUE, "invalid_header_name"),
        ("", VALUE, "invalid_header_name"),
        ("X-Api-Key", "cAnArY\nHost: x", "invalid_header_value"),
        ("X-Api-Key", "", "invalid_header_value"),
    ],
)
def test_a_rejected_header_is_explained_and_not_repeated(
    person: ConsoleBrowser, target: Target, log_lines: LogLines, name: str, value: str, code: str
) -> None:
    refused = person.post(f"/targets/{target.id}/header", name=name, value=value)
    assert (refused.status_code, MESSAGES[code] in unescape(refused.text)) == (422, True)
    assert "cAnArY" not in refused.text + log_lines.text
    assert targets.get(target.id, None).headers == ()


def test_signature_and_format_are_chosen_once_the_secret_is_set(
    person: ConsoleBrowser, target: Target, log_lines: LogLines
) -> None:
    refused = person.post(f"/targets/{target.id}/webhook", signature="both", format="cloudevents")
    assert refused.status_code == 422
    problem = refused.text.partition('id="problem-signature">')[2].partition("</span>")[0]
    assert problem.startswith(escape(MESSAGES["standard_secret_needed"]).partition("`")[0])
    # The chosen options are sent again as shown.
    chosen = shown_fields(refused, f"/targets/{target.id}/webhook")
    assert (chosen["signature"], chosen["format"]) == ("both", "cloudevents")
    response = person.post(f"/targets/{target.id}/standard-secret", secret=f"{STANDARD}\n")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=standard_secret_set"
    response = person.post(f"/targets/{target.id}/webhook", signature="both", format="cloudevents")
    assert response.headers["location"] == f"/console/targets/{target.id}?done=target_edited"
    changed = targets.get(target.id, None)
    assert (changed.signature, changed.format) == ("both", "cloudevents")
    page = person.get(f"/targets/{target.id}").text
    assert '<option value="both" selected>' in page
    assert '<option value="cloudevents" selected>' in page
    assert VAULT.fingerprint(STANDARD) in page
    assert STANDARD[6:] not in page + log_lines.text


def test_unchanged_options_keep_the_values_that_another_user_saved_meanwhile(person: ConsoleBrowser, target: Target) -> None:
    path = f"/targets/{target.id}/webhook"
    first, second = (shown_fields(person.get(f"/targets/{target.id}"), path) for _ in range(2))
    assert person.post(path, **{**first, "event_ticket.redact": "1"}).status_code == 303
    for fields in ({**second, "format": "sarif"}, second):
        assert person.post(path, **fields).headers["location"] == f"/console/targets/{target.id}?done=target_edited"
    found = targets.get(target.id, None)
    assert (found.events, found.format, found.signature) == (["ticket.redact"], "sarif", "service")
    assert person.post(path, **{**first, "format": "ticket"}).status_code == 303
    assert targets.get(target.id, None).format == "sarif"


def test_an_invalid_standard_webhooks_secret_is_rejected(person: ConsoleBrowser, target: Target) -> None:
    refused = person.post(f"/targets/{target.id}/standard-secret", secret="cAnArY of a secret")
    assert (refused.status_code, "24 to 64 random bytes" in refused.text, "cAnArY" in refused.text) == (422, True, False)
    assert 'id="problem-secret">' in refused.text


def test_neither_a_tracker_nor_an_account_without_webhooks_has_these_forms(
    person: ConsoleBrowser, customer: Customer, target: Target
) -> None:
    webhook_secrets.set_header(target.id, "X-Api-Key", "x", VAULT, NOW, "operator")
    assert f"/targets/{target.id}/header" in person.get(f"/targets/{target.id}").text
    forbid_webhooks(customer)
    assert f"/targets/{target.id}/header" not in person.get(f"/targets/{target.id}").text
    for form in ("webhook", "header", "header/remove", "standard-secret"):
        assert person.post(f"/targets/{target.id}/{form}", name="X-Api-Key", value="x").status_code == 403
    execute("UPDATE accounts SET may_use_webhooks = (1 = 1)")
    execute("UPDATE targets SET provider_key = 'github'")
    assert person.post(f"/targets/{target.id}/header", name="X-Api-Key", value="x").status_code == 409
