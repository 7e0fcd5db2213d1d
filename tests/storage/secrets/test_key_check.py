"""The canary: an installation recognizes its own keys, and refuses other keys before it encrypts anything with them."""

import threading

import pytest

from schemas.base.errors import NoEncryptionKey, WrongEncryptionKey
from schemas.compliance.requests import Topic
from storage.compliance import requests as compliance_requests
from storage.db.engine import connection, rows
from storage.secrets.key_check import canary, check_keys, opens, renew_canary
from storage.secrets.vault import Vault
from tests.support.factories import NOW
from tests.support.http.storefront import ADA, receive

OLD, NEW = b"A" * 32, b"B" * 32


def test_the_first_keys_become_the_installations(database: str) -> None:
    check_keys(Vault([OLD]), NOW)
    made = canary()
    check_keys(Vault([OLD]), NOW)
    check_keys(Vault([NEW, OLD]), NOW)
    assert canary() == made
    with pytest.raises(WrongEncryptionKey, match="put back the key that sealed it"):
        check_keys(Vault([NEW]), NOW)
    with pytest.raises(NoEncryptionKey):
        check_keys(Vault([]), NOW)


def test_a_modified_canary_cannot_be_decrypted(database: str) -> None:
    check_keys(Vault([OLD]), NOW)
    made = canary()
    assert made is not None
    assert opens(made, Vault([OLD]))
    assert not opens(made[:-1] + bytes([made[-1] ^ 1]), Vault([OLD]))
    assert not opens(b"", Vault([OLD]))
    assert not opens(Vault([OLD]).seal("These keys are this installation's.", "targets|1|signing secret"), Vault([OLD]))


def test_of_two_processes_that_start_with_different_keys_one_is_refused(database: str) -> None:
    begin, recorded = threading.Barrier(2), list[str]()

    def start(key: bytes) -> None:
        with connection():
            begin.wait(10)
            try:
                check_keys(Vault([key]), NOW)
                recorded.append("welcome")
            except WrongEncryptionKey:
                recorded.append("refused")

    starting = [threading.Thread(target=start, args=(key,)) for key in (OLD, NEW)]
    for each in starting:
        each.start()
    for each in starting:
        each.join()
    assert sorted(recorded) == ["refused", "welcome"]
    assert rows("SELECT COUNT(*) FROM installation") == [(1,)]


def test_no_request_is_encrypted_with_foreign_keys(database: str) -> None:
    receive(Topic.DATA_REQUEST, Vault([OLD]), ADA)
    with pytest.raises(WrongEncryptionKey):
        receive(Topic.CUSTOMER_REDACT, Vault([NEW]), ADA)
    assert len(compliance_requests.list_all()) == 1
    # A request about a shop contains nothing to encrypt.
    receive(Topic.SHOP_REDACT, Vault([NEW]))
    assert len(compliance_requests.list_all()) == 2


def test_a_renewed_canary_needs_the_first_key(database: str) -> None:
    check_keys(Vault([OLD]), NOW)
    renew_canary(Vault([NEW]))
    check_keys(Vault([OLD]), NOW)
    renew_canary(Vault([NEW, OLD]))
    check_keys(Vault([NEW]), NOW)
    with pytest.raises(WrongEncryptionKey):
        check_keys(Vault([OLD]), NOW)
