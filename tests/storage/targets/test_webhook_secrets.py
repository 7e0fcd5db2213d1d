"""Headers and the Standard Webhooks secret of a webhook: encrypted, shown as fingerprints, erased before they could leak."""

import json
from base64 import b64encode
from typing import Final

import pytest

from schemas.base.errors import Conflict, TargetNotFound, ValidationFailed
from schemas.targets.target import Target, TargetEdit, TargetHeader, TargetRequest, TargetStatus
from storage.db.engine import execute, rows
from storage.db.models import TargetRow
from storage.secrets.default_secret import DefaultSecret
from storage.secrets.encrypted_columns import STANDARD_SECRET, TARGET_HEADERS
from storage.secrets.vault import Vault
from storage.targets import changes, targets, webhook_secrets
from tests.support.factories import DEFAULT_SECRET, NOW, Customer, claim_due, in_s, make_approved, make_target

VAULT: Final = Vault([b"k" * 32])
STANDARD: Final = f"whsec_{b64encode(bytes(range(32))).decode()}"
LATER: Final = in_s(60)


def set_header(target_id: str, name: str = "Authorization", value: str = "Bearer of ours") -> str:
    return webhook_secrets.set_header(target_id, name, value, VAULT, NOW, "operator")


def set_standard(target_id: str, default: DefaultSecret = DEFAULT_SECRET) -> str:
    return webhook_secrets.set_standard_secret(target_id, STANDARD, VAULT, default, NOW, "operator")


def edit(target_id: str, default: DefaultSecret = DEFAULT_SECRET, **members: str) -> None:
    changes.edit(target_id, TargetEdit(**members), default, LATER, "operator")  # type: ignore[arg-type]  # texts alone


def headers_of(target_id: str) -> dict[str, str] | None:
    sealed = TargetRow.get_by_id(target_id).headers_sealed
    return None if sealed is None else dict(json.loads(VAULT.open(sealed, TARGET_HEADERS.context(target_id))))


def new_target(customer: Customer, signature: str, default: DefaultSecret) -> Target:
    url = "https://tracker.example.com/hook"
    request = TargetRequest("generic_webhook", url, None, "Tracker", None, signature=signature)
    return targets.create(request, customer.account_id, "self-hosted", default, NOW, "operator")


def state(target_id: str) -> tuple[str, str | None]:
    target = targets.get(target_id, None)
    return target.status.value, target.status_reason


def code_of(refused: pytest.ExceptionInfo[ValidationFailed]) -> tuple[str, str]:
    [problem] = refused.value.problems
    return problem.path, problem.code


def test_headers_are_encrypted_together_and_shown_as_fingerprints(customer: Customer) -> None:
    target = make_target(customer)
    assert set_header(target.id) == VAULT.fingerprint("Bearer of ours")
    set_header(target.id, "X-Api-Key", "key-7")
    assert headers_of(target.id) == {"Authorization": "Bearer of ours", "X-Api-Key": "key-7"}
    assert targets.get(target.id, None).headers == (
        TargetHeader("Authorization", VAULT.fingerprint("Bearer of ours")),
        TargetHeader("X-Api-Key", VAULT.fingerprint("key-7")),
    )
    assert "of ours" not in str(rows("SELECT * FROM targets")) + str(rows("SELECT * FROM audit_entries"))


def test_the_next_claim_has_the_headers(customer: Customer) -> None:
    target = make_target(customer)
    set_header(target.id)
    make_approved(customer, target.id)
    [claim] = claim_due(1, NOW, 60, "worker")
    assert claim.options.headers_sealed == TargetRow.get_by_id(target.id).headers_sealed is not None


def test_a_name_in_another_case_replaces_the_header(customer: Customer) -> None:
    target = make_target(customer)
    set_header(target.id, "X-Api-Key", "one")
    set_header(target.id, "x-api-key", "two")
    assert headers_of(target.id) == {"x-api-key": "two"}


def test_a_target_has_four_headers_at_most_and_replaces_one_of_four(customer: Customer) -> None:
    target = make_target(customer)
    for number in range(4):
        set_header(target.id, f"X-Key-{number}", "value")
    with pytest.raises(ValidationFailed) as refused:
        set_header(target.id, "X-Key-4", "value")
    assert code_of(refused) == ("/name", "too_many_headers")
    set_header(target.id, "X-Key-3", "another")
    webhook_secrets.remove_header(target.id, "x-KEY-0", VAULT, NOW, "operator")
    set_header(target.id, "X-Key-4", "value")
    assert [each.name for each in targets.get(target.id, None).headers] == ["X-Key-1", "X-Key-2", "X-Key-3", "X-Key-4"]


def test_a_removed_header_leaves_nothing(customer: Customer) -> None:
    target = make_target(customer)
    set_header(target.id)
    webhook_secrets.remove_header(target.id, "authorization", VAULT, NOW, "operator")
    assert (headers_of(target.id), targets.get(target.id, None).headers) == (None, ())
    with pytest.raises(ValidationFailed) as refused:
        webhook_secrets.remove_header(target.id, "Authorization", VAULT, NOW, "operator")
    assert code_of(refused) == ("/name", "unknown_header")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("Host", "x", ("/name", "header_reserved")),
        ("X Api", "x", ("/name", "invalid_header_name")),
        ("X-Api-Key", "a\r\nHost: b", ("/value", "invalid_header_value")),
    ],
)
def test_a_header_that_is_refused_changes_nothing(
    customer: Customer, name: str, value: str, problem: tuple[str, str]
) -> None:
    target = make_target(customer)
    with pytest.raises(ValidationFailed) as refused:
        set_header(target.id, name, value)
    assert code_of(refused) == problem
    assert headers_of(target.id) is None


def test_headers_cannot_be_set_for_a_tracker_or_another_accounts_target(customer: Customer) -> None:
    target = make_target(customer)
    with pytest.raises(TargetNotFound):
        webhook_secrets.set_header(target.id, "X-Api-Key", "x", VAULT, NOW, "operator", customer.account_id + 1)
    execute("UPDATE targets SET provider_key = 'github'")
    for refused in (
        lambda: set_header(target.id),
        lambda: set_standard(target.id),
        lambda: webhook_secrets.remove_standard_secret(target.id, NOW, "operator"),
    ):
        with pytest.raises(Conflict, match="is a tracker"):
            refused()
    with pytest.raises(ValidationFailed) as problems:
        edit(target.id, signature="both", format="sarif")
    assert {(each.path, each.code) for each in problems.value.problems} == {
        ("/signature", "webhooks_only"),
        ("/format", "webhooks_only"),
    }


def test_a_standard_webhooks_secret_is_encrypted_and_shown_as_a_fingerprint(customer: Customer) -> None:
    target = make_target(customer)
    assert set_standard(target.id) == VAULT.fingerprint(STANDARD)
    row = TargetRow.get_by_id(target.id)
    assert VAULT.open(row.standard_secret_sealed or b"", STANDARD_SECRET.context(target.id)) == STANDARD
    assert targets.get(target.id, None).standard_secret_fingerprint == VAULT.fingerprint(STANDARD)
    with pytest.raises(ValidationFailed) as refused:
        webhook_secrets.set_standard_secret(target.id, "a secret", VAULT, DEFAULT_SECRET, NOW, "operator")
    assert code_of(refused) == ("/secret", "invalid_standard_secret")


# Columns: signature; default secret; reasons for which the target waits, one after the other.
WAITING: Final = [
    ("service", DEFAULT_SECRET, []),
    ("service", DefaultSecret(), ["no_secret"]),
    ("standard-webhooks", DefaultSecret(), ["no_standard_secret"]),
    ("both", DEFAULT_SECRET, ["no_standard_secret"]),
    ("both", DefaultSecret(), ["no_standard_secret", "no_secret"]),
]


@pytest.mark.parametrize(("signature", "default", "missing"), WAITING)
def test_a_new_target_waits_for_every_secret_of_its_signature(
    customer: Customer, signature: str, default: DefaultSecret, missing: list[str]
) -> None:
    target = new_target(customer, signature, default)
    for reason in missing:
        assert state(target.id) == ("inactive", reason)
        if reason == "no_secret":
            targets.set_secret(target.id, "a secret of its own", VAULT, NOW)
        else:
            set_standard(target.id, default)
    assert state(target.id) == ("active", None)


def test_the_order_of_both_secrets_does_not_matter(customer: Customer) -> None:
    target = new_target(customer, "both", DefaultSecret())
    targets.set_secret(target.id, "a secret of its own", VAULT, NOW)
    assert state(target.id) == ("inactive", "no_standard_secret")
    set_standard(target.id, DefaultSecret())
    assert state(target.id) == ("active", None)


def test_a_target_that_is_turned_off_stays_off_when_it_gets_its_secrets(customer: Customer) -> None:
    target = make_target(customer)
    targets.change_status(target.id, "disable", NOW, "operator")
    set_standard(target.id)
    assert targets.get(target.id, None).status is TargetStatus.DISABLED


def test_a_signature_without_its_secret_is_refused(customer: Customer) -> None:
    target = make_target(customer)
    for signature in ("both", "standard-webhooks"):
        with pytest.raises(ValidationFailed) as refused:
            edit(target.id, signature=signature)
        assert code_of(refused) == ("/signature", "standard_secret_needed")
        assert "secret set target ID --standard-webhooks" in refused.value.problems[0].message
    set_standard(target.id)
    edit(target.id, signature="standard-webhooks")
    with pytest.raises(ValidationFailed) as refused:
        edit(target.id, DefaultSecret(), signature="both")
    assert code_of(refused) == ("/signature", "secret_needed")
    assert (targets.get(target.id, None).signature, state(target.id)) == ("standard-webhooks", ("active", None))


def test_an_inactive_target_becomes_active_with_a_signature_that_has_its_secret(customer: Customer) -> None:
    target = new_target(customer, "standard-webhooks", DEFAULT_SECRET)
    edit(target.id, signature="service")
    assert state(target.id) == ("active", None)


def test_a_standard_secret_that_signs_is_not_removed(customer: Customer) -> None:
    target = make_target(customer)
    set_standard(target.id)
    edit(target.id, signature="both", format="cloudevents")
    assert (targets.get(target.id, None).signature, targets.get(target.id, None).format) == ("both", "cloudevents")
    with pytest.raises(Conflict, match="target set ID --signature service"):
        webhook_secrets.remove_standard_secret(target.id, NOW, "operator")
    edit(target.id, signature="service")
    webhook_secrets.remove_standard_secret(target.id, NOW, "operator")
    assert targets.get(target.id, None).standard_secret_fingerprint is None


def test_the_default_secret_decides_only_for_targets_that_it_signs_for(customer: Customer) -> None:
    alone, waiting = new_target(customer, "standard-webhooks", DEFAULT_SECRET), new_target(customer, "both", DefaultSecret())
    for target in (alone, waiting):
        set_standard(target.id, DefaultSecret())
    assert [state(each.id) for each in (alone, waiting)] == [("active", None), ("inactive", "no_secret")]
    targets.apply_default_secret(DEFAULT_SECRET, LATER, "operator")
    assert [state(each.id) for each in (alone, waiting)] == [("active", None), ("active", None)]
    targets.apply_default_secret(DefaultSecret(), LATER, "operator")
    assert [state(each.id) for each in (alone, waiting)] == [("active", None), ("inactive", "no_secret")]


def test_a_target_without_a_needed_secret_is_not_resumed(customer: Customer) -> None:
    target = new_target(customer, "standard-webhooks", DEFAULT_SECRET)
    targets.change_status(target.id, "disable", NOW, "operator")
    with pytest.raises(Conflict, match="secret set target ID --standard-webhooks"):
        targets.change_status(target.id, "resume", NOW, "operator", default=DEFAULT_SECRET)


# Columns: the new URL; whether the headers stay.
MOVES: Final = [
    ("https://tracker.example.com/other", True),
    ("https://TRACKER.example.com/hook", True),
    ("https://tracker.example.com:8443/hook", False),
    ("https://elsewhere.example.com/hook", False),
    ("http://tracker.example.com/hook", False),
]


@pytest.mark.parametrize(("base_url", "stay"), MOVES)
def test_a_url_on_another_server_removes_the_headers_of_a_target(customer: Customer, base_url: str, stay: bool) -> None:
    target = make_target(customer)
    set_header(target.id)
    edit(target.id, base_url=base_url)
    assert (headers_of(target.id) is not None, bool(targets.get(target.id, None).headers)) == (stay, stay)
    assert state(target.id) == ("active", None)
    removed = rows("SELECT reason FROM audit_entries WHERE action = 'remove_headers'")
    assert removed == ([] if stay else [("other_server",)])


def test_a_removed_target_keeps_none_of_its_secrets(customer: Customer) -> None:
    target = make_target(customer)
    targets.set_secret(target.id, "a secret of its own", VAULT, NOW)
    set_header(target.id)
    set_standard(target.id)
    execute("UPDATE targets SET certificate_sealed = ?, certificate_fingerprint = 'sha256:0'", (b"sealed",))
    changes.remove(target.id, LATER, "operator")
    row = TargetRow.get_by_id(target.id)
    sealed = {name: getattr(row, name) for name in TargetRow._meta.fields if "sealed" in name or "fingerprint" in name}
    assert len(sealed) == 8
    assert {name: value for name, value in sealed.items() if value is not None} == {"header_fingerprints": []}
