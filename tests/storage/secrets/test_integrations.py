"""An operator's secret in the database replaces the environment's, at once and in every process."""

import base64
from pathlib import Path

import pytest

from schemas.base.errors import WrongEncryptionKey
from storage.db.engine import execute, rows
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.vault import Vault
from tests.support.factories import ENCRYPTION_KEY, NOW, SCANNER_SECRET, make_settings

VAULT = Vault([base64.b64decode(ENCRYPTION_KEY)])


@pytest.fixture
def secrets(database: str, tmp_path: Path) -> SharedSecrets:
    return SharedSecrets(make_settings(tmp_path), VAULT)


def test_without_a_setting_the_environment_decides(secrets: SharedSecrets) -> None:
    assert secrets.current(Integration.SCANNER) == SCANNER_SECRET
    assert secrets.current(Integration.EMAIL) is None


def test_a_secret_set_by_command_replaces_the_one_in_the_environment_at_once_in_every_process(
    secrets: SharedSecrets, tmp_path: Path
) -> None:
    another_process = SharedSecrets(make_settings(tmp_path), VAULT)
    for secret in ("first", "second"):
        assert secrets.set(Integration.SCANNER, secret, NOW) == VAULT.fingerprint(secret)
        assert another_process.current(Integration.SCANNER) == secret
    assert another_process.current(Integration.EMAIL) is None
    assert rows("SELECT actor, action, subject_id FROM audit_entries") == [("operator", "set_secret", "scanner")] * 2


def test_the_tables_never_hold_the_secret_itself(secrets: SharedSecrets) -> None:
    secrets.set(Integration.EMAIL, "open sesame", NOW)
    [(sealed, fingerprint)] = rows("SELECT secret_sealed, secret_fingerprint FROM integration_secrets")
    assert b"open sesame" not in bytes(sealed)
    assert fingerprint == VAULT.fingerprint("open sesame")


def test_a_secret_copied_to_another_integration_cannot_be_decrypted(secrets: SharedSecrets) -> None:
    secrets.set(Integration.EMAIL, "s", NOW)
    execute("UPDATE integration_secrets SET name = 'storefront'")
    with pytest.raises(WrongEncryptionKey):
        secrets.current(Integration.STOREFRONT)


def test_states_show_where_a_secret_comes_from_and_its_fingerprint_alone(secrets: SharedSecrets) -> None:
    secrets.set(Integration.EMAIL, "s", NOW)
    scanner, email, storefront = secrets.states()
    assert (scanner.name, scanner.source, scanner.fingerprint) == (
        "scanner",
        "environment",
        VAULT.fingerprint(SCANNER_SECRET),
    )
    assert (email.name, email.source, email.fingerprint) == ("email", "database", VAULT.fingerprint("s"))
    assert (storefront.configured, storefront.source, storefront.fingerprint) == (False, None, None)
