"""Key rotation re-encrypts everything with the first key, also after an interruption and beside other writers."""

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from peewee import BlobField

from runtime.clock import utc_now
from schemas.base.console_session import SignInMethod
from schemas.base.errors import WrongEncryptionKey
from schemas.compliance.requests import ComplianceResult, Topic
from schemas.settings.definitions import Settings
from storage.accounts import sessions, sign_in_links
from storage.compliance import requests as compliance_requests
from storage.db.engine import execute, rows, transaction
from storage.db.models import ALL, TargetRow
from storage.maintenance import key_rotation
from storage.maintenance.key_rotation import SLICE, UnreadableValue
from storage.secrets.encrypted_columns import (
    CANARY,
    ENCRYPTED_COLUMNS,
    ID_TOKEN,
    LINK_MAIL,
    STANDARD_SECRET,
    TARGET_CERTIFICATE,
    TARGET_HEADERS,
)
from storage.secrets.integrations import Integration, SharedSecrets
from storage.secrets.key_check import canary, check_keys, opens, renew_canary
from storage.secrets.vault import Vault
from storage.targets import targets, webhook_secrets
from tests.support.factories import DEFAULT_SECRET, NOW, Customer, make_settings, make_target
from tests.support.http.storefront import ADA, BOB, SHOP, receive

ROOT: Final = Path(__file__).parents[3]
OLD, NEW = b"A" * 32, b"B" * 32
BEFORE, BOTH, AFTER = Vault([OLD]), Vault([NEW, OLD]), Vault([NEW])
EVERYTHING: Final = 1_000_000

#: Binary columns that are not encrypted: bodies are sent to receivers, and the hashes of the audit log are public.
OPEN_COLUMNS: Final = {
    ("exports", "body"),
    ("ticket_events", "body"),
    ("audit_entries", "digest"),
    ("audit_entries", "hash"),
}


def rotate(limit: int = EVERYTHING) -> tuple[int, list[UnreadableValue]]:
    progress = list(key_rotation.rotate(BOTH, limit))
    return sum(each.rotated for each in progress), [lost for each in progress for lost in each.unreadable]


def sealed_values() -> list[bytes]:
    return [
        bytes(row[0])
        for place in (*ENCRYPTED_COLUMNS, CANARY)
        for row in rows(f"SELECT {place.column} FROM {place.table} WHERE {place.column} IS NOT NULL")  # noqa: S608 - our own names
    ]


def sealed_places() -> list[tuple[str, bytes]]:
    return [
        (place.context(row[0]), bytes(row[1]))
        for place in ENCRYPTED_COLUMNS
        for row in rows(f"SELECT {place.key.name}, {place.column} FROM {place.table} WHERE {place.column} IS NOT NULL")  # noqa: S608 - our own names
    ]


def opened_with(vault: Vault) -> int:
    """Return how many encrypted values this vault decrypts."""
    count = 0
    for context, sealed in sealed_places():
        try:
            vault.open(sealed, context)
            count += 1
        except WrongEncryptionKey:
            continue
    return count


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def populated(customer: Customer, settings: Settings) -> list[str]:
    """Targets with and without secrets, a shared secret, a waiting request and one with a report; returns the target IDs."""
    check_keys(BEFORE, NOW)
    ids = [make_target(customer).id for _ in range(3)]
    for target_id in ids[:2]:
        targets.set_secret(target_id, f"secret of {target_id}", BEFORE, NOW)
    SharedSecrets(settings, BEFORE).set(Integration.SCANNER, "open sesame", NOW)
    asked = receive(Topic.DATA_REQUEST, BEFORE, BOB)
    held = compliance_requests.claim_next(utc_now())
    assert held is not None
    report = {"subject": BOB.subject.record(), "records": []}
    with transaction():
        compliance_requests.finish(
            held, ComplianceResult.REPORTED, {}, compliance_requests.seal_report(asked, report, BEFORE), utc_now(), "w"
        )
    receive(Topic.CUSTOMER_REDACT, BEFORE, ADA)
    return ids


def test_key_rotation_covers_every_encrypted_column() -> None:
    blobs = {
        (model._meta.table_name, name)
        for model in ALL
        for name, field in model._meta.columns.items()
        if isinstance(field, BlobField)
    }
    assert {(place.table, place.column) for place in (*ENCRYPTED_COLUMNS, CANARY)} == blobs - OPEN_COLUMNS


def test_pending_sign_in_data_is_encrypted_again(customer: Customer) -> None:
    def seal_id_token(session_id: str) -> bytes:
        return BEFORE.seal("an ID token", ID_TOKEN.context(session_id))

    method = SignInMethod.OPENID_CONNECT
    sessions.begin_for_user(customer.user_id, method, "state", "a browser", NOW, seal_id_token)
    sign_in_links.request(lambda link_id, _token: BEFORE.seal("a mail", LINK_MAIL.context(link_id)), NOW)
    assert key_rotation.count() == key_rotation.survey(BOTH).older == 2
    assert rotate() == (2, [])
    assert sorted(AFTER.open(sealed, context) for context, sealed in sealed_places()) == ["a mail", "an ID token"]
    assert rotate() == (0, [])


def test_after_a_rotation_only_the_first_key_decrypts_the_secrets(populated: list[str]) -> None:
    assert key_rotation.count() == 5 == opened_with(BEFORE)
    assert rotate() == (5, [])
    assert (opened_with(AFTER), opened_with(BEFORE)) == (5, 0)
    assert key_rotation.survey(BOTH) == key_rotation.Survey(current=5, older=0, outdated=0, unreadable=[])


def test_secrets_are_unchanged_and_have_new_fingerprints(populated: list[str], settings: Settings) -> None:
    rotate()
    for target_id in populated[:2]:
        [(sealed, shown)] = rows("SELECT secret_sealed, secret_fingerprint FROM targets WHERE id = ?", (target_id,))
        assert AFTER.open(bytes(sealed), targets.secret_context(target_id)) == f"secret of {target_id}"
        assert shown == AFTER.fingerprint(f"secret of {target_id}")
    shared = SharedSecrets(settings, AFTER)
    assert shared.current(Integration.SCANNER) == "open sesame"
    assert shared.states()[0].fingerprint == AFTER.fingerprint("open sesame")
    assert rows("SELECT secret_sealed, secret_fingerprint FROM targets WHERE id = ?", (populated[2],)) == [(None, None)]


def test_webhook_headers_secrets_and_certificates_are_encrypted_again(populated: list[str]) -> None:
    target_id = populated[0]
    secret = f"whsec_{b64encode(bytes(32)).decode()}"
    webhook_secrets.set_header(target_id, "Authorization", "Bearer of ours", BEFORE, NOW, "operator")
    webhook_secrets.set_header(target_id, "X-Api-Key", "key-7", BEFORE, NOW, "operator")
    webhook_secrets.set_standard_secret(target_id, secret, BEFORE, DEFAULT_SECRET, NOW, "operator")
    certificate = BEFORE.seal("a certificate", TARGET_CERTIFICATE.context(target_id))
    execute(
        "UPDATE targets SET certificate_sealed = ?, certificate_fingerprint = 'sha256:0' WHERE id = ?",
        (certificate, target_id),
    )
    assert rotate() == (8, [])
    row = TargetRow.get_by_id(target_id)
    headers = {"Authorization": "Bearer of ours", "X-Api-Key": "key-7"}
    assert json.loads(AFTER.open(row.headers_sealed or b"", TARGET_HEADERS.context(target_id))) == headers
    shown = [{"name": name, "fingerprint": AFTER.fingerprint(value)} for name, value in headers.items()]
    assert row.header_fingerprints == shown
    assert AFTER.open(row.standard_secret_sealed or b"", STANDARD_SECRET.context(target_id)) == secret
    assert row.standard_secret_fingerprint == AFTER.fingerprint(secret)
    assert AFTER.open(row.certificate_sealed or b"", TARGET_CERTIFICATE.context(target_id)) == "a certificate"
    assert row.certificate_fingerprint == "sha256:0"
    # A second rotation finds nothing to do.
    assert rotate() == (0, [])


def test_waiting_requests_and_stored_reports_get_the_pseudonym_of_the_new_key(populated: list[str]) -> None:
    rotate()
    held = compliance_requests.claim_next(utc_now())
    assert held is not None
    assert compliance_requests.subject_of(held, AFTER) == ADA.subject
    assert held.subject_pseudonym == compliance_requests.pseudonym_of(ADA.subject, SHOP, AFTER)
    [(request_id, pseudonym)] = compliance_requests.reported(SHOP)
    assert pseudonym == compliance_requests.pseudonym_of(BOB.subject, SHOP, AFTER)
    report = compliance_requests.report_of(request_id, AFTER)
    assert report is not None
    assert report["subject"]["email"] == BOB.email


def test_a_request_without_a_report_keeps_its_pseudonym(populated: list[str]) -> None:
    [(request_id, before)] = compliance_requests.reported(SHOP)
    compliance_requests.replace_report(request_id, None, NOW, "operator")
    rotate()
    assert (
        compliance_requests.get(request_id).subject_pseudonym
        == before
        == compliance_requests.pseudonym_of(BOB.subject, SHOP, BEFORE)
    )


def test_a_second_run_changes_nothing(populated: list[str]) -> None:
    rotate()
    before = sealed_values()
    assert rotate() == (0, [])
    assert sealed_values() == before


def test_a_rotation_encrypts_no_more_rows_than_its_limit(populated: list[str]) -> None:
    for reencrypted, waiting in ((2, 3), (2, 1), (1, 0), (0, 0)):
        assert rotate(limit=2) == (reencrypted, [])
        assert key_rotation.survey(BOTH).outdated == waiting


def test_undecryptable_values_are_reported_by_their_place_and_stop_nothing(populated: list[str]) -> None:
    lost = Vault([b"L" * 32]).seal("s", targets.secret_context(populated[0]))
    execute("UPDATE targets SET secret_sealed = ? WHERE id = ?", (lost, populated[0]))
    execute("UPDATE integration_secrets SET secret_sealed = ?", (b"",))
    places = [
        UnreadableValue("targets", populated[0], "secret_sealed"),
        UnreadableValue("integration_secrets", "scanner", "secret_sealed"),
    ]
    assert rotate() == (3, places)
    assert (opened_with(AFTER), key_rotation.survey(BOTH).unreadable) == (3, places)
    assert rows("SELECT secret_sealed FROM targets WHERE id = ?", (populated[0],))[0][0] == lost


class InterruptingVault(Vault):
    """A vault that calls `meanwhile` once, between reading a slice and writing it."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__([NEW, OLD])
        self._meanwhile: list[Callable[[], None]] = [meanwhile]

    def seal(self, secret: str, context: str) -> bytes:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().seal(secret, context)


@pytest.mark.parametrize("keys", [[OLD], [NEW, OLD]], ids=["by a process with the older key", "by one with both"])
def test_a_secret_that_is_set_during_the_rotation_is_kept(populated: list[str], keys: list[bytes]) -> None:
    def set_secret() -> None:
        targets.set_secret(populated[0], "the newest", Vault(keys), NOW)

    reencrypted = sum(each.rotated for each in key_rotation.rotate(InterruptingVault(set_secret), EVERYTHING))
    [(sealed,)] = rows("SELECT secret_sealed FROM targets WHERE id = ?", (populated[0],))
    assert BOTH.open(bytes(sealed), targets.secret_context(populated[0])) == "the newest"
    assert reencrypted == 4
    assert key_rotation.survey(BOTH).older == (1 if keys == [OLD] else 0)


def test_values_erased_during_the_rotation_stay_erased(populated: list[str]) -> None:
    [(request_id, _)] = compliance_requests.reported(SHOP)
    # The report is in the last slice; the slice before it contains the subject.
    execute("UPDATE targets SET secret_sealed = NULL, secret_fingerprint = NULL")
    execute("DELETE FROM integration_secrets")
    execute("UPDATE compliance_requests SET subject_sealed = NULL")
    list(
        key_rotation.rotate(
            InterruptingVault(lambda: compliance_requests.replace_report(request_id, None, NOW, "operator")), EVERYTHING
        )
    )
    assert compliance_requests.report_of(request_id, BOTH) is None


def test_a_rotation_keeps_the_canary_which_is_renewed_afterwards(populated: list[str]) -> None:
    made = canary()
    assert made is not None
    assert key_rotation.needs_older_keys(BOTH)
    rotate()
    assert canary() == made
    renew_canary(BOTH)
    renewed = canary()
    assert renewed is not None
    assert (opens(renewed, AFTER), opens(renewed, BEFORE)) == (True, False)
    assert not key_rotation.needs_older_keys(BOTH)


#: Re-encrypts two slices, and a third one that it never commits.
CUT_OFF: Final = """
import sys, time
from storage.maintenance import key_rotation
from storage.db.engine import connection, open_database, transaction
from storage.secrets.vault import Vault
open_database(sys.argv[1])
with connection():
    slices = key_rotation.rotate(Vault([b"B" * 32, b"A" * 32]), 1_000_000)
    next(slices), next(slices)
    with transaction():
        next(slices)
        print("cut", flush=True)
        time.sleep(60)
"""


def test_the_next_run_completes_a_killed_key_rotation(customer: Customer, database: str) -> None:
    ids = [make_target(customer).id for _ in range(3 * SLICE + 1)]
    for target_id in ids:
        execute(
            "UPDATE targets SET secret_sealed = ?, secret_fingerprint = 'fp:0' WHERE id = ?",
            (BEFORE.seal(target_id, targets.secret_context(target_id)), target_id),
        )
    words = [sys.executable, "-c", CUT_OFF, database]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as cut:
        assert cut.stdout is not None
        assert cut.stdout.readline() == "cut\n"
        cut.kill()
    found = key_rotation.survey(BOTH)
    assert (found.current, found.older, found.unreadable) == (2 * SLICE, SLICE + 1, [])
    assert rotate() == (SLICE + 1, [])
    assert opened_with(AFTER) == 3 * SLICE + 1
    named = rows("SELECT COUNT(DISTINCT secret_fingerprint) FROM targets WHERE secret_fingerprint <> 'fp:0'")
    assert named == [(3 * SLICE + 1,)]


def test_a_request_about_orders_alone_has_no_pseudonym_before_and_after(database: str) -> None:
    check_keys(BEFORE, NOW)
    request_id = receive(Topic.CUSTOMER_REDACT, BEFORE, ADA)
    subject = {"customer_id": None, "email": None, "phone": None, "order_ids": ["7"]}
    sealed = BEFORE.seal(json.dumps(subject), f"compliance_requests|{request_id}|subject")
    execute("UPDATE compliance_requests SET subject_sealed = ?, subject_pseudonym = NULL", (sealed,))
    assert rotate() == (1, [])
    assert compliance_requests.get(request_id).subject_pseudonym is None
    assert rotate() == (0, [])
