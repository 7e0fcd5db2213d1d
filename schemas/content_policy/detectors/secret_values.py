"""Decides whether the value of a credential is a placeholder, words, or a secret.

A placeholder counts only as the whole value and in a known form: `<TOKEN>`, `${VAR}`, `xxxx`, `your-api-key`, `changeme`. A
value that merely contains one is a secret. Every pattern matches in linear time.
"""

import re
from itertools import pairwise
from typing import Final

#: Brackets around a name, a variable of a shell or template, a directive of a format string, a command's output.
_PLACEHOLDER: Final = re.compile(
    r"<[^<>]{1,200}>|&lt;[^<>]{1,200}&gt;|\[[^\[\]]{1,200}\]|\([^()]{1,200}\)|[$#%]?\{[^{}]{1,200}\}|\{\{[^{}]{1,200}\}\}"
    r"|\$\([^()]{1,200}\)|\$[A-Z_][A-Z0-9_]{0,60}|\$[a-z_]{1,60}|\$[0-9]|%[A-Za-z_]{1,60}%|%\([A-Za-z_]{1,60}\)s|%[sdvq]"
    # The example keys of Amazon's manuals.
    r"|[A-Z0-9]{13}EXAMPLE|[A-Za-z0-9/+]{30}EXAMPLEKEY"
)
#: Words that documentation uses instead of a value, alone or joined: `my_secret_key`, `changeme`, `string`.
_WORDS: Final = frozenset(
    (
        *("a", "access", "account", "admin", "an", "any", "api", "apikey", "app", "auth", "bar", "basic", "baz"),
        *("bearer", "bot", "change", "changeit", "changeme", "client", "code", "cookie", "current", "default", "deleted"),
        *("demo", "dummy", "empty", "encoded", "enter", "example", "fake", "false", "foo", "generated", "goes", "here"),
        *("hidden", "id", "include", "insert", "is", "it", "key", "login", "long", "masked", "me", "my", "name", "new"),
        *("nil", "no", "none", "null", "oauth", "off", "old", "omit", "on", "optional", "or", "origin", "our", "pass"),
        *("passwd", "password", "passwort", "paste", "personal", "placeholder", "private", "public", "put", "pwd"),
        *("random", "real", "redacted", "refresh", "removed", "replace", "required", "same", "sample", "secret"),
        *("secure", "service", "session", "some", "string", "strong", "super", "test", "text", "that", "the", "this"),
        *("to", "todo", "token", "true", "type", "undefined", "unset", "user", "username", "val", "value", "very"),
        *("with", "xyz", "yes", "you", "your"),
    )
)
#: The first words of a placeholder that may end with a number: `your-password-123`.
_OWNERS: Final = ("your", "my", "example", "sample", "dummy", "insert")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SEPARATORS: Final = str.maketrans("", "", "-_. ")
_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[^\W\d_]")
#: A symbol inside a value; at the end of a word it may be punctuation.
_INNER_SYMBOL: Final = re.compile(r"[^\W_][^\w\s.,:;/'\"-]+[^\W_]")
#: One part of a slug: words, also in camelCase, perhaps with a small number; or a number.
_SLUG_PART: Final = re.compile(r"(?:[A-Z]?[a-z]+(?:[A-Z][a-z]{2,})*|[A-Z]{1,12})[0-9]{0,4}|v?[0-9]{1,4}", re.ASCII)
_SLUG_SEPARATOR: Final = re.compile(r"[-_./:,+ ]+")
#: An expression instead of a literal: a call, a member of an object, an array entry, a variable.
_EXPRESSION: Final = re.compile(
    r"[\w.$>:-]{1,100}[(\[]|[$@&]\w{0,60}(?:->|\[|\Z)|[A-Za-z_]\w{0,60}(?:\.[A-Za-z_]\w{0,60}){1,9}\Z"
)
_PATH: Final = re.compile(r"(?:[a-z][a-z0-9+-]{1,20}:)?/|\.{1,2}/|[A-Za-z]:\\")
#: The name of a hash or encoding: `sha256`, `base64-encoded`.
_ALGORITHM: Final = re.compile(
    r"(?i)(?:sha|md|base|aes|rsa|utf|bcrypt|argon|pbkdf|hmac)[_-]?[0-9]{1,4}(?:[-_/][a-z0-9]{1,20})*"
)
#: Keys that vendors intend for public pages: Google's browser APIs and tags, Mapbox, Stripe, reCAPTCHA, Datadog, PostHog.
_PUBLIC_KEY: Final = re.compile(r"AIza|pk[._]|6L[\w-]{38}\Z|G-|UA-|GTM-|pub[0-9a-f]{32}\Z|phc_")
#: A value is filler if more than this share of its characters repeat the one before; one of sixteen repeats by chance.
_FILLING: Final = 0.6


def is_placeholder(value: str) -> bool:
    """Return whether a whole value is a placeholder of a known form."""
    bare = value.strip("\"'`")
    if _PLACEHOLDER.fullmatch(bare):
        return True
    dense = bare.translate(_SEPARATORS)
    return len(set(dense)) < 2 or is_filler(dense, _FILLING) or _is_phrase(bare)


def is_filler(text: str, share: float) -> bool:
    """Return whether more than `share` of the characters repeat the one before: `glsa_XXXXXXXXXXXX_AAAAAAAA`."""
    repeated = sum(left == right for left, right in pairwise(text.lower()))
    return repeated > share * len(text)


def is_mixed(value: str) -> bool:
    """Return whether a value has a digit and a letter, and is no placeholder."""
    return _has_both(value) and not is_placeholder(value)


def is_opaque(value: str, least: int) -> bool:
    """Return whether a value of `least` characters or more looks generated: digits and letters, neither words nor a path."""
    if len(value) < least or not _has_both(value):
        return False
    return not (_PUBLIC_KEY.match(value) or _PATH.match(value) or is_slug(value) or is_placeholder(value))


def is_password(value: str, least: int) -> bool:
    """Return whether a value of `least` characters or more has digits and letters, or symbols within, and no spaces."""
    if len(value) < least or _PATH.match(value) or _ALGORITHM.fullmatch(value) or any(map(str.isspace, value)):
        return False
    return is_mixed(value) or (_INNER_SYMBOL.search(value) is not None and not is_placeholder(value))


def is_slug(value: str) -> bool:
    """Return whether a value consists of words and small numbers: `page-2`, `terms-of-use`."""
    return all(_SLUG_PART.fullmatch(part) for part in _SLUG_SEPARATOR.split(value) if part)


def slug_parts(value: str) -> int:
    """Return the number of words and small numbers of a slug; 0 for any other value."""
    return len([part for part in _SLUG_SEPARATOR.split(value) if part]) if is_slug(value) else 0


def is_label(value: str) -> bool:
    """Return whether a value is the label of a field: a word with a capital letter, or several words without a digit."""
    return (value.istitle() and value.isalpha()) or (" " in value and not _DIGIT.search(value))


def is_expression(value: str) -> bool:
    """Return whether a value is an expression that computes a value, or a path or URL."""
    return _EXPRESSION.match(value) is not None or _PATH.match(value) is not None


def _has_both(value: str) -> bool:
    return _DIGIT.search(value) is not None and _LETTER.search(value) is not None


def _is_phrase(value: str) -> bool:
    words = [word.lower() for word in _WORD.findall(value)]
    joined = value.lower()
    if not words or not (set(words) <= _WORDS or (words == [joined] and joined.removeprefix("your") in _WORDS)):
        return False
    rest = _WORD.sub("", value).translate(_SEPARATORS)
    return not rest or (rest.isdecimal() and len(rest) < 4 and words[0] in _OWNERS)
