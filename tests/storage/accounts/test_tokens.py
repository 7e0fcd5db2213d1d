"""Tokens are shown once, stored as a digest, and stop working with the next request after they were revoked or expired."""

import hashlib
import re
from datetime import timedelta

import pytest

from schemas.base.errors import Conflict, NotFound
from schemas.base.principal import ABILITIES, DEFAULT_ABILITIES, Ability, TokenKind
from schemas.base.timestamps import to_ms
from storage.accounts import tokens
from storage.db.engine import execute, rows
from tests.support.factories import NOW, Customer, make_customer

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_a_token_has_a_prefix_160_random_bits_and_a_checksum(customer: Customer) -> None:
    texts = {tokens.create(customer.email, TokenKind.API, NOW)[1] for _ in range(50)}
    assert len(texts) == 50
    assert all(re.fullmatch(r"rrt_[0-9A-Za-z]{33}", text) for text in texts)
    assert len(DIGITS) ** 27 >= 2**160
    # The characters vary at both ends, so they are random.
    assert len({text[10] for text in texts}) > 10
    assert len({text[30] for text in texts}) > 10


def test_a_mistyped_token_is_not_accepted_even_if_its_digest_matches(customer: Customer) -> None:
    text = customer.token
    swapped = "B" if text[-1] != "B" else "C"
    mistyped = text[:-1] + swapped
    execute("UPDATE tokens SET token_sha256 = ?", (hashlib.sha256(mistyped.encode()).hexdigest(),))
    assert tokens.principal_for(mistyped, NOW) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rrt_",
        "rrt_" + "0" * 33,  # the checksum of zeros is not zero
        "rrt_é",
        "rrt_" + "0" * 5000,
        "Bearer",
        "\x00",
    ],
)
def test_a_malformed_token_is_not_accepted(database: str, text: str) -> None:
    assert tokens.principal_for(text, NOW) is None


def test_a_token_names_its_user_account_kind_and_abilities(customer: Customer) -> None:
    row, text = tokens.create(customer.email, TokenKind.API, NOW, [Ability.CONSOLE], "laptop")
    principal = tokens.principal_for(text, NOW)
    assert principal is not None
    assert (principal.token_id, principal.user_id, principal.account_id) == (row.id, customer.user_id, customer.account_id)
    assert (principal.kind, principal.abilities) == (TokenKind.API, frozenset({"console"}))
    assert principal.may_use_webhooks
    assert principal.key == f"user:{customer.user_id}"


def test_the_principal_of_a_token_has_the_webhook_permission_of_its_account(database: str) -> None:
    principal = tokens.principal_for(make_customer(may_use_webhooks=False).token, NOW)
    assert principal is not None
    assert principal.may_use_webhooks is False


@pytest.mark.parametrize("kind", TokenKind)
def test_without_named_abilities_a_token_has_all_but_console_account_and_admin(customer: Customer, kind: TokenKind) -> None:
    principal = tokens.principal_for(tokens.create(customer.email, kind, NOW)[1], NOW)
    assert principal is not None
    assert principal.abilities == {ability.value for ability in DEFAULT_ABILITIES[kind]}
    assert principal.abilities == {ability.value for ability in ABILITIES[kind]} - {"console", "account:manage", "admin"}


@pytest.mark.parametrize(
    ("kind", "ability"),
    [
        (TokenKind.API, Ability.UPLOAD_EVIDENCE),
        (TokenKind.PLATFORM, Ability.READ_EXPORTS),
        (TokenKind.PLATFORM, Ability.CONSOLE),
    ],
)
def test_a_kind_of_token_cannot_have_abilities_of_the_other_kind(
    customer: Customer, kind: TokenKind, ability: Ability
) -> None:
    before = rows("SELECT COUNT(*) FROM tokens")
    with pytest.raises(Conflict, match=ability.value):
        tokens.create(customer.email, kind, NOW, [ability])
    assert rows("SELECT COUNT(*) FROM tokens") == before


def test_the_tables_hold_a_digest_and_never_the_token(customer: Customer) -> None:
    [stored] = rows("SELECT * FROM tokens")
    assert hashlib.sha256(customer.token.encode()).hexdigest() in stored
    assert customer.token not in repr(stored)
    assert customer.token[4:31] not in repr(stored) + repr(rows("SELECT * FROM audit_entries"))


def test_a_token_expires_at_its_expiration_time(customer: Customer) -> None:
    _, text = tokens.create(customer.email, TokenKind.API, NOW, expires=timedelta(days=2))
    assert tokens.principal_for(text, NOW + timedelta(days=2, milliseconds=-1)) is not None
    assert tokens.principal_for(text, NOW + timedelta(days=2)) is None


def test_a_token_that_expires_at_its_creation_is_never_accepted(customer: Customer) -> None:
    _, text = tokens.create(customer.email, TokenKind.API, NOW, expires=timedelta(0))
    assert tokens.principal_for(text, NOW) is None


def test_a_revoked_token_is_invalid_at_once(customer: Customer) -> None:
    principal = tokens.principal_for(customer.token, NOW)
    assert principal is not None
    assert principal.token_id is not None
    first = tokens.revoke(principal.token_id, NOW)
    assert tokens.principal_for(customer.token, NOW) is None
    again = tokens.revoke(principal.token_id, NOW + timedelta(days=1))
    assert again.revoked_at == first.revoked_at == NOW
    recorded = rows("SELECT action FROM audit_entries WHERE subject_id = ? ORDER BY id", (f"token:{principal.token_id}",))
    assert recorded == [("create_token",), ("revoke_token",)]


def test_revoking_all_tokens_of_a_user_affects_no_other_user(customer: Customer) -> None:
    other = make_customer()
    early, _ = tokens.create(customer.email, TokenKind.API, NOW, name="early")
    tokens.revoke(early.id, NOW)
    _, platform = tokens.create(customer.email, TokenKind.PLATFORM, NOW)
    later = NOW + timedelta(days=1)
    revoked = tokens.revoke_all(customer.email, later)
    assert [tokens.principal_for(text, later) for text in (customer.token, platform)] == [None, None]
    assert tokens.principal_for(other.token, later) is not None
    assert [row.revoked_at for row in revoked] == [later, later]
    # The token that was revoked before keeps its time; each revocation has one audit entry.
    assert rows("SELECT revoked_at FROM tokens WHERE id = ?", (early.id,)) == [(to_ms(NOW),)]
    recorded = rows("SELECT subject_id FROM audit_entries WHERE action = 'revoke_token' ORDER BY id")
    assert recorded == [(f"token:{row.id}",) for row in (early, *revoked)]
    assert tokens.revoke_all(customer.email, later) == []


def test_unknown_users_and_tokens_are_not_found(database: str) -> None:
    with pytest.raises(NotFound):
        tokens.create("nobody@example.com", TokenKind.API, NOW)
    with pytest.raises(NotFound):
        tokens.revoke(999, NOW)
    with pytest.raises(NotFound):
        tokens.revoke_all("nobody@example.com", NOW)
