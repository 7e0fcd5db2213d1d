"""Values of credentials: which are placeholders, words or expressions, and which are secrets."""

from typing import Final

import pytest

from schemas.content_policy.detectors.secret_values import (
    is_expression,
    is_filler,
    is_label,
    is_mixed,
    is_opaque,
    is_password,
    is_placeholder,
    is_slug,
    slug_parts,
)

#: Phrases from documentation; together they contain every placeholder word.
PHRASES: Final = [
    *("a-bearer-token", "access_token", "account-id", "admin", "an_api_key", "any.string", "api-key", "apikey"),
    *("app_secret", "auth-cookie", "bar", "basic", "baz", "bot-token", "change-it", "changeit", "changeme"),
    *("client_code", "current value", "default", "deleted", "demo", "dummy", "empty", "encoded", "enter-here", "example"),
    *("fake", "false", "foo", "generated", "goes-here", "hidden", "id", "include", "insert-key-here", "is", "it"),
    *("login", "long", "masked", "me", "my-name", "new", "nil", "no", "none", "null", "oauth", "off", "old", "omit"),
    *("on", "optional", "or", "origin", "our", "pass", "passwd", "password", "passwort", "paste", "personal"),
    *("placeholder", "private", "public", "put", "pwd", "random", "real", "redacted", "refresh", "removed", "replace"),
    *("required", "same", "sample", "secret", "secure", "service", "session", "some", "string", "strong", "super"),
    *("test", "text", "that", "the", "this", "to", "todo", "true", "type", "undefined", "unset", "user", "username"),
    *("val", "value", "very", "with", "xyz", "yes", "you", "your"),
]
PLACEHOLDERS: Final = [
    *("<TOKEN>", "&lt;token&gt;", "[redacted]", "(hidden)", "{key}", "${KEY}", "#{key}", "%{key}", "{{ key }}"),
    *("$(cat key)", "$API_KEY_2", "$key", "$1", "%KEY%", "%(key)s", "%s", "%d", "%v", "%q", "AKIAIOSFODNN7EXAMPLE"),
    *("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "xxxx", "****", "xxxx-xxxx", "aaaabbbbcccc", "'changeme'", '"<token>"'),
    *("`none`", "", "yourPassword", "yourkey", "MY_API_KEY", "your-password-123", "my_key1", "example12", "insert-99"),
    *("dummy_1", "sample2"),
]
SECRETS: Final = [
    *("hunter22", "<token>1", "a<token>", "$Key", "$key$", "%k%y", "AKIAIOSFODNN7EXAMPLE1", "secret-garden", "mykitchen"),
    *("your-password-1234", "access1", "password-7", "aab1c2", "xx1y2", "ourhouse"),
]


@pytest.mark.parametrize("value", [*PHRASES, *PLACEHOLDERS])
def test_a_placeholder_is_known_by_its_whole_form(value: str) -> None:
    assert is_placeholder(value)
    assert is_placeholder(value.upper()) or value in PLACEHOLDERS


@pytest.mark.parametrize("value", SECRETS)
def test_text_that_only_resembles_a_placeholder_is_a_value(value: str) -> None:
    assert not is_placeholder(value)


@pytest.mark.parametrize(
    ("text", "share", "expected"),
    [
        *(("aabb", 0.5, False), ("aabb", 0.49, True), ("AaBb", 0.49, True), ("aaaa", 0.74, True)),
        *(("abab", 0.0, False), ("", 0.0, False)),
    ],
)
def test_text_with_more_than_a_share_of_repeated_characters_is_filler(text: str, share: float, expected: bool) -> None:
    assert is_filler(text, share) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a1", True), ("ab", False), ("12", False), ("é1", True), ("<a1>", False), ("my1", False), ("", False)],
)
def test_a_mixed_value_has_a_digit_and_a_letter(value: str, expected: bool) -> None:
    assert is_mixed(value) is expected


@pytest.mark.parametrize(
    ("value", "least", "expected"),
    [
        ("8f14e45f9a", 10, True),
        ("8f14e45f9a", 11, False),
        ("abcdefghij", 10, False),
        ("1234567890", 10, False),
        ("page-2", 4, False),
        ("terms-of-use-2024", 4, False),
        ("./8f14e45f9a", 4, False),
        ("<8f14e45f9a>", 4, False),
        ("AIza8f14e45f9a", 4, False),
    ],
)
def test_a_value_that_looks_generated_is_opaque(value: str, least: int, expected: bool) -> None:
    assert is_opaque(value, least) is expected


@pytest.mark.parametrize(
    ("value", "least", "expected"),
    [
        ("hunter22", 8, True),
        ("hunter22", 9, False),
        ("correct!horse", 8, True),
        ("correct-horse", 8, False),
        ("correcthorse!", 8, False),  # the exclamation mark ends the sentence
        ("correct horse1", 8, False),
        ("sha256", 4, False),
        ("./secrets1", 4, False),
        ("${pass1}", 4, False),
    ],
)
def test_a_password_has_digits_and_letters_or_a_symbol_within(value: str, least: int, expected: bool) -> None:
    assert is_password(value, least) is expected


@pytest.mark.parametrize(
    ("value", "parts"),
    [("page-2", 2), ("terms-of-use", 3), ("camelCaseWord", 1), ("v1.2", 2), ("a--b", 2), ("-a-", 1), ("8f14e4", 0), ("", 0)],
)
def test_a_slug_is_words_and_small_numbers(value: str, parts: int) -> None:
    assert slug_parts(value) == parts
    assert is_slug(value) is (parts > 0 or not value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("Passwort", True), ("passwort", False), ("Enter it here", True), ("8 letters", False), ("Pass1", False), ("", False)],
)
def test_a_label_is_a_capitalized_word_or_several_words(value: str, expected: bool) -> None:
    assert is_label(value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("process.env.DB_PASSWORD", True),
        ("getPassword(user1)", True),
        ("os.environ['DB_PASSWORD1']", True),
        ("/run/secrets/db", True),
        ("https://shop.example/a", True),
        ("hunter22", False),
    ],
)
def test_an_expression_computes_a_value_or_is_a_path(value: str, expected: bool) -> None:
    assert is_expression(value) is expected
