"""Encrypted secrets are decrypted only with a key of the installation, and only for the row that they belong to."""

import re

import pytest

from schemas.base.errors import NoEncryptionKey, WrongEncryptionKey
from storage.secrets.vault import Vault

OLD, NEW, FOREIGN = (bytes([number]) * 32 for number in (1, 2, 3))
HERE = "targets|tgt_1|signing secret"


@pytest.mark.parametrize("secret", ["s3cret", "a much longer secret " * 100, "naïve ☃", ""])
def test_encrypted_text_can_be_decrypted(secret: str) -> None:
    vault = Vault([NEW])
    sealed = vault.seal(secret, HERE)
    assert vault.open(sealed, HERE) == secret
    assert not secret or secret.encode() not in sealed


def test_the_same_secret_has_a_different_ciphertext_each_time() -> None:
    vault = Vault([NEW])
    assert vault.seal("s", HERE) != vault.seal("s", HERE)


def test_a_secret_moved_to_another_row_cannot_be_decrypted() -> None:
    vault = Vault([NEW])
    with pytest.raises(WrongEncryptionKey):
        vault.open(vault.seal("s", HERE), "targets|tgt_2|signing secret")


def test_another_key_cannot_decrypt() -> None:
    with pytest.raises(WrongEncryptionKey):
        Vault([FOREIGN]).open(Vault([NEW]).seal("s", HERE), HERE)


def test_an_old_key_still_decrypts_and_the_first_key_encrypts() -> None:
    sealed = Vault([OLD]).seal("s", HERE)
    rotated = Vault([NEW, OLD])
    assert rotated.open(sealed, HERE) == "s"
    assert Vault([NEW]).open(rotated.seal("s", HERE), HERE) == "s"
    with pytest.raises(WrongEncryptionKey):
        Vault([OLD]).open(rotated.seal("s", HERE), HERE)


def test_a_changed_bit_or_a_missing_byte_is_detected() -> None:
    vault = Vault([NEW])
    sealed = vault.seal("secret", HERE)
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(len(sealed))]
    for broken in [*changed, *(sealed[:length] for length in range(len(sealed)))]:
        with pytest.raises(WrongEncryptionKey):
            vault.open(broken, HERE)


def test_without_a_key_nothing_is_encrypted_decrypted_or_shown() -> None:
    sealed, vault = Vault([NEW]).seal("s", HERE), Vault([])
    for use in (lambda: vault.seal("s", HERE), lambda: vault.open(sealed, HERE), lambda: vault.fingerprint("s")):
        with pytest.raises(NoEncryptionKey):
            use()


def test_a_fingerprint_is_short_keyed_and_stable() -> None:
    vault = Vault([NEW])
    assert re.fullmatch(r"fp:[0-9a-f]{12}", vault.fingerprint("s"))
    assert vault.fingerprint("s") == Vault([NEW, OLD]).fingerprint("s")
    assert vault.fingerprint("s") != vault.fingerprint("t")
    assert vault.fingerprint("s") != Vault([OLD]).fingerprint("s")
