"""Text that assigns a credential to a name: the names, the minimum lengths of values, and the forms."""

from typing import Final

import pytest

from schemas.content_policy.detectors.assignments import has_assignment, has_url_token

#: Random digits and letters.
VALUE: Final = "8f14e45f9a0b1d3f5a7c"
QUALIFIERS: Final = (
    "api app application access secret private auth account encryption signing storage shared master service subscription"
    " consumer client license jwt hmac ssh aes admin deploy session security refresh bearer bot personal login vault oauth"
    " oauth2 gitlab github"
)
PASSWORDS: Final = "pass password passwd passwort passphrase passcode passe pwd kennwort db_pass userPassword"
PUBLIC: Final = "PUBLIC SITE PUBLISHABLE PRIMARY FOREIGN CACHE SORT CSRF XSRF"


@pytest.mark.parametrize("name", PASSWORDS.split())
def test_a_password_has_six_characters(name: str) -> None:
    named = "mot de passe" if name == "passe" else name
    assert has_assignment(f"{named}: hunte2")
    assert has_assignment(f"{named} = 'hunte2'")
    assert not has_assignment(f"{named}: hunt2")
    assert not has_assignment(f"{named}: hunter")


@pytest.mark.parametrize(
    "text", ["bypass: hunter22", "compass=hunter22", "BYPASS: hunter22", "passe: hunter22", "mot passe: hunter22"]
)
def test_a_name_of_a_password_at_the_end_of_another_word_is_not_matched(text: str) -> None:
    assert not has_assignment(text)


@pytest.mark.parametrize("qualifier", QUALIFIERS.split())
@pytest.mark.parametrize("root", ["key", "token"])
def test_a_qualified_key_has_ten_characters(qualifier: str, root: str) -> None:
    for name in (f"{qualifier}_{root}", f"{qualifier}-{root}", f"{qualifier} {root}", f"{qualifier}{root.title()}"):
        assert has_assignment(f"{name}: {VALUE[:10]}")
        # After the word "secret", eight characters are enough.
        assert has_assignment(f"{name}: {VALUE[:9]}") is (qualifier == "secret")
    assert not has_assignment(f"{qualifier}.{root}: {VALUE[:10]}")


@pytest.mark.parametrize("name", ["secret", "client_secret", "secret_key", "secret-access-key", "secret token", "SECRET"])
def test_a_secret_has_eight_characters(name: str) -> None:
    assert has_assignment(f"{name}: {VALUE[:8]}")
    assert not has_assignment(f"{name}: {VALUE[:7]}")
    assert not has_assignment(f"{name.lower().replace('secret', 'discret')}: {VALUE[:9]}")


def test_a_variable_in_capitals_has_sixteen_characters() -> None:
    for name in ("STRIPE_KEY", "MY_2ND_TOKEN"):
        assert has_assignment(f"{name}={VALUE[:16]}")
        assert not has_assignment(f"{name}={VALUE[:15]}")
        assert not has_assignment(f"{name.lower()}={VALUE[:16]}")
        assert not has_assignment(f"{name} = {VALUE[:16]}")
    assert not has_assignment(f"KEY={VALUE[:16]}")


@pytest.mark.parametrize("word", PUBLIC.split())
def test_a_variable_that_is_public_by_its_name_passes(word: str) -> None:
    assert not has_assignment(f"{word}_KEY={VALUE}")
    assert not has_assignment(f"MY_{word}_KEY={VALUE}")
    # A prefix for CSRF tokens passes with any suffix.
    assert has_assignment(f"{word}_X_KEY={VALUE}") is (word not in ("CSRF", "XSRF"))


FORMS: Final = [
    # Columns: a text; whether it assigns a password.
    ("<password>correct-horse</password>", True),
    ("<password>correct-horse", False),
    ("<password>horse</password>", False),
    ("password>correct-horse</password>", False),
    ("<password>Contraseña</password>", False),
    ("define('DB_PASSWORD', 'correct-horse')", True),
    ("define('DB_PASSWORD', 'horse')", False),
    ("define('DB_PASSWORD', correct-horse)", False),
    ("['password', 'correct-horse']", False),
    ("DB_PASSWORD=correct-horse", True),
    ("DB_PASSWORD=horse", False),
    ("DB_PASSWORD = correct-horse", False),
    ("db_password=correct-horse", False),
    ('"DB_PASSWORD"=correct-horse', False),
    ("--password hunter22", True),
    ("password hunter22", False),
    ("password=>'hunter22'", True),
    ("password := hunter22", True),
    ("password == 'hunter22'", True),
    ("password:\nhunter22\n", True),
    ("password:\nhunter22 and more\n", False),
    ("password:\nlogin: hunter22", False),
    ("password: hunter22.", True),
    ("password: hunte2.", True),
    ("password: hunt2..", False),
    ("(password: hunte2)", True),
    ("(password: hunt2)", False),
    ("pwd=hunte2&remember=1", True),
    ("pwd=hunt2&remember=1", False),
    ("password: 'hunter22", True),
    ("password: 'two words1'", False),
    ("password: process.env1", False),
    ("password: one-two-three4", False),
    ("password: one-two4", True),
    ("password: 'one-two-three4'", True),
    # Query parameters are checked by another function.
    ("?password=hunter22", False),
    ("&user.password=hunter22", False),
    (f"?{'a' * 63}password=hunter22", False),
    (f"?{'a' * 64}password=hunter22", True),
    # HTML attributes, and CSRF tokens.
    (f"data-api-key: {VALUE}", False),
    (f"csrf_auth_token: {VALUE}", False),
    (f"xsrf-auth-token: {VALUE}", False),
    (f"api_key: path.x{VALUE}", False),
    (f"api_key: 'path.x{VALUE}'", True),
]


@pytest.mark.parametrize(("text", "is_assigned"), FORMS)
def test_an_assignment_is_recognized_by_its_form(text: str, is_assigned: bool) -> None:
    assert has_assignment(text) is is_assigned


PARAMETERS: Final = [
    # Columns: a name; the minimum length of its value.
    *((name, 6) for name in ("password", "user_passwd", "pwd", "client_secret", "user[password]", "userPassword")),
    *((name, 6) for name in ("pass", "user_pass", "user.pass", "userPass", "user[pass]", "passphrase", "PASSCODE")),
    *((name, 6) for name in ("passwort", "kennwort", "password2", "pass_2", "password[]", "password_confirm")),
    *((name, 6) for name in ("passwordConfirmation", "password-repeat", "password_again1")),
    *((name, 10) for name in ("token", "access_token", "session_id", "jsessionid", "sessid", "auth")),
    *((name, 12) for name in ("key", "api_key", "X-Amz-Signature", "sig", "api_key1", "key[0]")),
    ("sid", 16),
]


@pytest.mark.parametrize(("name", "least"), PARAMETERS)
def test_a_parameter_of_a_url_has_a_shortest_value(name: str, least: int) -> None:
    for mark in "?&#;":
        assert has_url_token(f"https://shop.example/{mark}{name}={VALUE[:least]}")
        assert not has_url_token(f"https://shop.example/{mark}{name}={VALUE[: least - 1]}")
    assert not has_url_token(f"https://shop.example/?{name}x={VALUE}")
    assert not has_url_token(f"{name}={VALUE}")


@pytest.mark.parametrize("name", ["compass", "bypass", "COMPASS", "passenger", "pass_type", "password_hint", "confirm"])
def test_a_parameter_that_only_resembles_a_password_passes(name: str) -> None:
    assert not has_url_token(f"https://shop.example/?{name}={VALUE}")


@pytest.mark.parametrize("name", ["mysid", "design_sig", "oauth_auth", "id", "page"])
def test_a_short_parameter_name_is_not_matched_as_a_part_of_a_name(name: str) -> None:
    assert not has_url_token(f"https://shop.example/?{name}={VALUE}")


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        *((name, True) for name in ("key", "api_key", "apiKey", "apikey", "APIKEY", "access-key", "licensekey", "map.key")),
        *((name, False) for name in ("monkey", "turkey", "hotkey", "Monkey", "whiskey")),
    ],
)
def test_the_name_of_a_key_in_a_query_ends_with_the_word(name: str, is_found: bool) -> None:
    assert has_url_token(f"https://shop.example/?{name}=Abc123Def456Ghi789") == is_found
