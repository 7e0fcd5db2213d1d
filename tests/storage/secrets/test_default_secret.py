"""In cloud mode, only the operator's account uses the default secret: accounts must not forge each other's deliveries."""

from pathlib import Path

import pytest

from schemas.settings.definitions import DeploymentMode
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.vault import Vault
from tests.support.factories import WEBHOOK_SECRET, make_settings

#: Columns: mode, OPERATOR_ACCOUNT_ID, WEBHOOK_SECRET, and which of the accounts 1, 2 and 3 the secret serves.
SERVED = [
    ("self-hosted", "", WEBHOOK_SECRET, {1, 2, 3}),
    ("self-hosted", "2", WEBHOOK_SECRET, {1, 2, 3}),
    ("webhook-only", "2", WEBHOOK_SECRET, {1, 2, 3}),
    ("cloud", "2", WEBHOOK_SECRET, {2}),
    ("cloud", "", WEBHOOK_SECRET, set()),
    ("cloud", "2", "", set()),
    ("self-hosted", "", "", set()),
]


@pytest.mark.parametrize(("mode", "operator", "secret", "served"), SERVED)
def test_the_default_secret_serves_the_accounts_of_its_mode(
    mode: str, operator: str, secret: str, served: set[int], tmp_path: Path
) -> None:
    changes = {"DEPLOYMENT_MODE": mode, "OPERATOR_ACCOUNT_ID": operator, "WEBHOOK_SECRET": secret}
    settings = make_settings(tmp_path, changes)
    vault = Vault(settings.encryption_keys)
    default = DefaultSecret.of(settings, vault)
    assert {each for each in (1, 2, 3) if default.serves(each)} == served
    assert [default.text_for(each) for each in (1, 2, 3)] == [secret if each in served else None for each in (1, 2, 3)]
    shown = vault.fingerprint(secret) if served else None
    assert [default.fingerprint_for(each) for each in (1, 2, 3)] == [shown if each in served else None for each in (1, 2, 3)]


def test_a_message_without_an_account_is_not_signed_where_one_account_is_served() -> None:
    assert DefaultSecret("secret", accounts=frozenset({1})).text_for(None) is None


def test_the_default_secret_is_not_printed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, {"DEPLOYMENT_MODE": DeploymentMode.CLOUD.value})
    assert WEBHOOK_SECRET not in repr(DefaultSecret.of(settings, Vault(settings.encryption_keys)))
