"""Keys, headers and commands in text: the minimum lengths, and text that only describes them."""

from base64 import b64encode, urlsafe_b64encode
from typing import Final

import pytest

from schemas.content_policy import rules
from schemas.content_policy.detectors.credential_patterns import (
    has_authorization,
    has_command_credentials,
    has_jwt,
    has_private_key,
    has_url_password,
)

BODY: Final = "aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC"
ARMOUR: Final = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (f"{ARMOUR}\n{BODY[:16]}", True),
        (f"{ARMOUR}\n{BODY[:15]}", False),
        (f"{ARMOUR} {BODY.lower()[:20]}", False),
        (f"{ARMOUR}{' ' * 40}{BODY[:16]}", True),
        (f"{ARMOUR}{' ' * 41}{BODY[:16]}", False),
        # A body of 32 characters after headers, which must end within a thousand characters.
        (f"{ARMOUR}{'. ' * 484}{BODY}", True),
        (f"{ARMOUR}{'. ' * 485}{BODY}", False),
        (f"{ARMOUR}{'. ' * 485}{ARMOUR}{'. ' * 485}{BODY}", False),
        (f"{ARMOUR}{'. ' * 485}{ARMOUR} . {BODY}", True),
        (f"{ARMOUR}. {BODY[:31]}", False),
        (f"-----BEGIN CERTIFICATE-----\n{BODY}", False),
        (f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{BODY}", True),
        (f"PuTTY-User-Key-File-3: ssh\n{BODY}", True),
    ],
)
def test_a_private_key_is_found_by_its_header_line_and_a_body_near_it(text: str, is_found: bool) -> None:
    assert has_private_key(text) is is_found


def _part(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("header", "claims", "is_found"),
    [
        ('{"alg":"none"}', '{"name":"Ann Example"}', True),  # 22 bytes
        ('{"alg":"none"}', '{"name":"Ann Exam"}', False),  # 19
        ('{"alg":"none"}', '{"name":"Ann Examp"}', True),
        *(('{"alg":"none"}', f'{{"{claim}":"1"}}', True) for claim in ("iss", "sub", "aud", "exp", "nbf", "iat", "jti")),
        ('{"alg":"none"}', '{"abc":"1"}', False),
        ('{"typ":"none"}', '{"name":"Ann Example"}', False),
        ('{"alg":"none"}', '{"name":"Ann Example of Shop"}', True),
    ],
)
def test_a_token_has_an_algorithm_and_claims(header: str, claims: str, is_found: bool) -> None:
    assert has_jwt(f"{_part(header)}.{_part(claims)}.") is is_found
    assert has_jwt(f"{_part(header)}.{_part(claims)}.{BODY}") is is_found
    assert not has_jwt(f"x{_part(header)}.{_part(claims)}.{BODY}")


@pytest.mark.parametrize(
    ("header", "is_found"), [('{"alg":"dir","enc":"A128GCM"}', True), ('{"alg":"dir","x":"A128GCM"}', False)]
)
def test_an_encrypted_token_has_an_encryption_algorithm_in_its_header(header: str, is_found: bool) -> None:
    assert has_jwt(f"{_part(header)}.{BODY}.{BODY[:16]}.{BODY[:2]}.{BODY[:20]}") is is_found
    assert not has_jwt(f"{_part(header)}.{BODY}.{BODY[:15]}.{BODY[:2]}.{BODY[:20]}")


def test_text_that_is_not_base64_is_no_token() -> None:
    assert not has_jwt(f"eyJaaaaaaaaaa.eyJaaaaaa.{BODY}")
    assert not has_jwt(f"eyJaaaaaaaaaaaaa.eyJaaaaaaaaaaaaaa.{BODY}")


SCHEMES: Final = (
    "Bearer Token api-token apitoken api-key apikey OAuth negotiate NTLM hmac JWT key bot SSWS splunk AWS4-HMAC-SHA256"
)


@pytest.mark.parametrize("scheme", SCHEMES.split())
def test_the_credential_of_an_authorization_scheme_has_at_least_twelve_characters(scheme: str) -> None:
    for text in (f"Authorization: {scheme} ", f"authorization={scheme} ", f"'Authorization': '{scheme} "):
        assert has_authorization(f"{text}abcdefghij12")
        assert not has_authorization(f"{text}abcdefghij1")
        assert has_authorization(f"{text}abcdefghIjkl")
        assert not has_authorization(f"{text}abcdefghijkl")
        assert not has_authorization(f"{text}<abcdefghij12>")


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        ("abcdefghijklm123", True),
        ("abcdefghijkl123", False),  # 15 characters
        ("abcdefghijklmn12", False),  # only two digits
        ("1234567890123abc", True),
        ("12345678901234ab", False),
        ("abcdefghijkl123.", False),  # the full stop ends the sentence
        ("https://shop1234.example", False),
        ("[abcdefghijk123]", False),
        (f"Basic {b64encode(b'ann:s3cret').decode()}", True),
        (f"Basic {b64encode(b'ann:s3cret').decode()}a", True),
        (f"Basic {b64encode(b'ann s3cret').decode()}", False),
        ("Basic authentication", False),
        ('Digest username="ann"', True),
        ('Digest realm="shop1234"', False),
        ("Unknown abcdefghijklm123", False),
    ],
)
def test_a_credential_without_a_scheme_is_found_only_if_it_looks_random(value: str, is_found: bool) -> None:
    assert has_authorization(f"Authorization: {value}") is is_found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('xhr.setRequestHeader("Authorization", "Bearer {}")', True),
        ("headers['Authorization'] = 'Bearer {}'", True),
        ('$headers["Authorization"]="Bearer {}";', True),
        ("headers[`Authorization`] = `Bearer {}`", True),
        ("'Authorization' => 'Bearer {}'", True),
        ("Authorization: `Bearer {}`", True),
        ('{{"name":"Authorization","value":"Bearer {}"}}', True),
        ('{{\n    "name": "Authorization",\n    "value": "Bearer {}"\n}}', True),
        ('{{\\"name\\":\\"Authorization\\",\\"value\\":\\"Bearer {}\\"}}', True),
        ('<header name="Authorization" value="Bearer {}"/>', True),
        ("- name: Authorization\n  value: Bearer {}", True),
        # Not a literal, or a different argument.
        ("headers['Authorization'] = {}", False),
        ("'Authorization' => {}", False),
        ('set("Authorization", {})', False),
        ('set("Authorization", "Bearer "+{})', False),
        ('"Authorization" => "Bearer ".${}', False),
        ('set("Authorization", "Content-Type", "{}")', False),
        ("Authorization, {}", False),
    ],
)
def test_an_authorization_is_found_in_the_notations_of_programs_and_objects(text: str, is_found: bool) -> None:
    assert has_authorization(text.format(BODY)) is is_found
    for placeholder in ("<token>", "${TOKEN}", "{{ token }}", "token"):
        assert not has_authorization(text.format(placeholder))


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("https://ann:abc@shop.example", True),
        ("https://ann:ab@shop.example", False),
        ("https://:abc@shop.example", True),
        ("https://ann:abc@[::1]/", True),
        ("https://ann:<abc>@shop.example", False),
        ("https://ann:password@shop.example", False),
        ("https://ann@shop.example:8080", False),
        ("https://shop.example/a:abc@b", False),
        ("ann:abc@shop.example", False),
    ],
)
def test_a_password_in_a_url_has_three_characters(text: str, is_found: bool) -> None:
    assert has_url_password(text) is is_found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("curl -u ann:abcde1", True),
        ("curl -u ann:abcd1", False),
        ("curl -u ann:abcdef", False),
        ("curl -u ann:'abcd1'", False),
        ("curl -u ann:abcDef", True),
        ("curl --user=ann:abcde1", True),
        ("curl -u abcdefg1:", True),
        ("curl -u abcdef1:", False),
        ("curl -u abcdefgh:", False),
        ("curl -u user:$PASS1", False),
        ("curl x-u ann:abcde1", False),
        ("curl -H 'X-Api-Key: abcdefg1'", True),
        ("curl -H 'X-Api-Key: abcdef1'", False),
        ("curl -H 'X-Api-Key: abcdefgh'", False),
        ('curl --header "Api-Token: abcdefg1"', True),
        ("curl -H 'apikey: abcdefg1'", True),
        ("curl -H 'X-Secret: abcdefg1'", True),
        ("curl -H 'X-Trace: abcdefg1'", False),
        ("curl -H 'X-Token-Kind: abcdefg1'", False),
    ],
)
def test_a_command_with_a_login_or_a_key_is_found(text: str, is_found: bool) -> None:
    assert has_command_credentials(text) is is_found


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("machine api.example.com login bob password hunter22x", {"command_credentials"}),
        ("machine api.example.com\n  login bob\n  password hunter22x", {"command_credentials"}),
        ("machine api.example.com login bob password <password>", set()),
        ("This machine has a login and a password field", set()),
        ("mysql -u root -pS3cret123x shop", {"command_credentials"}),
        ("mysqldump --single-transaction -u root -pS3cret123x shop > dump.sql", {"command_credentials"}),
        ("mysql -u root -p shop", set()),
        ("mysql -u root -p$PASSWORD shop", set()),
        ("mysql -u root -pproduction shop", set()),
    ],
)
def test_a_login_of_a_machine_or_a_database_has_its_password(text: str, codes: set[str]) -> None:
    assert {each.code for each in rules.find({"text": text}, frozenset({"text"}))} == codes
