"""`riskrelay secret set target ID --client-certificate`: storage, output and errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.settings.certificates import certificate_fingerprint
from storage.db.engine import close_database, rows
from storage.secrets.encrypted_columns import TARGET_CERTIFICATE
from storage.secrets.vault import Vault
from tests.support.factories import make_customer, make_settings, make_target
from tests.support.processes.shell import Shell
from tests.support.servers.authorities import CertificateAuthority

PAIR: Final = CertificateAuthority("Company").pair("client.example.com")
MISSING: Final = "tgt_01ARZ3NDEKTSV4RRFFQ69G5FAV"


class SecretShell(Shell):
    """Runs `secret` commands."""

    verb = ("secret",)

    def target(self) -> str:
        """Store a target and return its id."""
        with self.database():
            return make_target(make_customer()).id

    def stored(self) -> list[tuple[Any, ...]]:
        """Return the stored certificates and the audit log."""
        with self.database():
            found = rows("SELECT id, certificate_sealed, certificate_fingerprint FROM targets")
            entries = rows("SELECT actor, action, subject_id FROM audit_entries ORDER BY id")
            return [*found, *(entry for entry in entries if str(entry[1]).endswith("_certificate"))]


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Iterator[SecretShell]:
    yield SecretShell(tmp_path, database_url)
    close_database()


def test_setting_a_secret_without_encryption_keys_is_refused_with_the_fix(shell: SecretShell, tmp_path: Path) -> None:
    shell.environment |= {"ENCRYPTION_KEYS": None, "RISKRELAY_ENV_FILE": str(tmp_path / "none")}
    result = shell.run("set", "target", shell.target(), standard_input="a secret of a target")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ENCRYPTION_KEYS is not set; restore the .env of this database" in result.stderr


def test_a_certificate_is_encrypted_listed_by_its_fingerprint_and_removed(shell: SecretShell, tmp_path: Path) -> None:
    target_id, fingerprint = shell.target(), certificate_fingerprint(PAIR)
    set_it = ("set", "target", target_id, "--client-certificate")
    assert shell.json(*set_it, standard_input=PAIR) == {
        "name": target_id,
        "client_certificate": True,
        "fingerprint": fingerprint,
    }
    [(_, sealed, stored), entry] = shell.stored()
    assert (stored, entry) == (fingerprint, ("operator", "set_certificate", target_id))
    vault = Vault(make_settings(tmp_path).encryption_keys)
    assert vault.open(bytes(sealed), TARGET_CERTIFICATE.context(target_id)) == PAIR
    listed = {record["name"]: record["fingerprint"] for record in shell.json("list")}
    assert listed[f"{target_id} client certificate"] == fingerprint
    assert shell.json(*set_it, "--remove") == {"name": target_id, "client_certificate": True, "removed": True}
    assert shell.stored()[0] == (target_id, None, None)
    assert shell.stored()[-1] == ("operator", "remove_certificate", target_id)


# the content of standard input, and a part of the error message
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "standard input"),
        (PAIR * 100, "at most 65,536 characters"),
        (PAIR.partition("-----BEGIN PRIVATE")[0], "No private key found"),
        ("hunter2hunter2", "No certificate found"),
    ],
    ids=["nothing", "too long", "no key", "no PEM"],
)
def test_an_unusable_certificate_changes_nothing_and_is_not_quoted(shell: SecretShell, text: str, said: str) -> None:
    target_id = shell.target()
    before = shell.stored()
    message = shell.refused("set", "target", target_id, "--client-certificate", standard_input=text)
    assert said in message
    assert "hunter2" not in message
    assert shell.stored() == before


def test_a_certificate_needs_a_target_and_remove_needs_the_certificate(shell: SecretShell) -> None:
    target_id = shell.target()
    refused = shell.refused("set", "target", MISSING, "--client-certificate", standard_input=PAIR)
    assert "target" in refused.lower()
    usage = shell.run("set", "target", target_id, "--remove")
    assert usage.exit_code == 2
    assert "--remove needs --header, --standard-webhooks or --client-certificate" in usage.output
