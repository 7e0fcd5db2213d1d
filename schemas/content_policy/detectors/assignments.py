"""Credentials that a text assigns to a name: in settings files, code, XML, headers, commands and queries of URLs.

The text is searched for the root of a name, in lower case. The words before the name, the separator and the value decide.
Passwords need digits and letters or symbols; keys and tokens must look generated. Not detected: values with spaces, a
`token` or `key` without a qualifying word (outside a URL), `data-` attributes and CSRF tokens, which pages contain anyway.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from schemas.content_policy.detectors.secret_values import (
    is_expression,
    is_label,
    is_mixed,
    is_opaque,
    is_password,
    is_placeholder,
    slug_parts,
)
from schemas.content_policy.text_parts import folded

#: The separator between a name and its value, and the value: in quotes, or up to a space.
_TAIL: Final = (
    r"[0-9]{0,2}([\"'\\\])]{0,4})[^\S\r\n]{0,9}(=>|:=|==?|:|,|>|[^\S\r\n](?=[^\s-]))(?:(?<=:)\s{0,9}|[^\S\r\n]{0,9})"
    r"(?:\\{0,2}([\"'`])([^\"'`\r\n]{1,256})(?=\\{0,2}\3|[\r\n]|\Z)|([^\s\"'`<>]{4,256}))"
)
#: The first words of a name are searched in this many characters before its root.
_BEFORE_CHARACTERS: Final = 64
#: Words before `key` or `token` that make it a credential.
_QUALIFIERS: Final = (
    *("api", "app", "application", "access", "secret", "private", "auth", "account", "encryption", "signing"),
    *("storage", "shared", "master", "service", "subscription", "consumer", "client", "license", "jwt", "hmac"),
    *("ssh", "aes", "admin", "deploy", "session", "security", "refresh", "bearer", "bot", "personal", "login"),
    *("vault", "oauth", "oauth2", "gitlab", "github"),
)
#: The beginning of a shell variable's name, as in `export STRIPE_KEY=…`, and beginnings of names that are not secret.
_VARIABLE: Final = re.compile(r"(?<![A-Za-z0-9])[A-Z][A-Z0-9_]*_\Z")
_NOT_SECRET: Final = re.compile(r"(?:PUBLIC|SITE|PUBLISHABLE|PRIMARY|FOREIGN|CACHE|SORT|CSRF|XSRF)_\Z")
_PAGE_ATTRIBUTE: Final = re.compile(r"(?i)(?<![\w-])data-[\w-]*\Z|(?:csrf|xsrf)[\w-]*\Z")
_IN_QUERY: Final = re.compile(r"[?&#][\w.\[\]-]*\Z")
_ELEMENT: Final = re.compile(r"<[\w:.-]*\Z")
_FIRST_ARGUMENT: Final = re.compile(r"\w\(\s{0,9}\\?[\"'][\w.-]*\Z")
_NEXT_PAIR: Final = re.compile(r"&[\w.\[\]-]{1,64}=")
#: A value alone on the line below its name; text with a colon or an equals sign is the next name.
_ALONE: Final = re.compile(r"[^\s:=]{4,256}[^\S\n]*(?:\n|\Z)")
_OPENING: Final = re.compile(r"[(\[{]")
_LEAST_PASSWORD: Final = 6
_LEAST_KEY: Final = 10
_LEAST_SECRET: Final = 8
#: A variable's name alone is weak evidence, so its value must be long.
_LEAST_VARIABLE: Final = 16

#: A parameter of a query, a fragment or a path, with its value, which is at least as long as a password.
_PARAMETER: Final = re.compile(r"[?&#;]([\w.\[\]-]{1,64})=([^\s&?#;\"'<>]{6,4096})")
#: Ends of names whose values count if they have digits and letters. `pass` must be a word of its own, unlike in `compass`. A
#: form asks for some values twice.
_PASSWORD_PARAMETER: Final = re.compile(
    r"(?i:pass(?:word|wd|phrase|code|wort)|pwd|kennwort|secret|(?<![a-z])pass)(?i:[_.-]?(?:confirm(?:ation)?|repeat|again))?\Z"
    r"|(?<=[a-z])Pass\Z"
)
#: Names of public keys, such as Sentry's in the report-uri of a policy, and of tokens against forged requests.
_PUBLIC_PARAMETER: Final = re.compile(
    r"(?<![a-z])(?:(?:public|publishable|site|cache|sort|sentry|form)[_-]?key|[cx]srf[\w-]*|authenticity_token"
    r"|requestverificationtoken)\Z"
)
#: A name whose last word is "key", not `monkey`.
_KEY_NAME: Final = re.compile(rf"(?<![A-Za-z])(?i:key)\Z|(?<=[a-z0-9])K(?:ey|EY)\Z|(?i:{'|'.join(_QUALIFIERS)})(?i:key)\Z")
#: A `key` of this form is public: the id of a site in the URL of a widget, such as Zendesk's.
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
#: Characters after a name that is one of several: `password2`, `user[password][]`.
_NUMBERING: Final = "0123456789[]_.-"
#: The shortest value that counts if it looks generated, by the end of its name.
_KEY_PARAMETERS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("token", "session_id", "sessionid", "sessid"), 10),
    **dict.fromkeys(("key", "signature"), 12),
}
#: The same, by whole names that are too short to be recognized as the end of a longer one.
_SHORT_PARAMETERS: Final[Mapping[str, int]] = {"auth": 10, "sig": 12, "sid": 16}


class _Form(Enum):
    """How a value is assigned to a name."""

    PLAIN = auto()
    #: `<password>…</password>`.
    ELEMENT = auto()
    #: `define('DB_PASSWORD', '…')`.
    ARGUMENT = auto()
    #: `DB_PASSWORD=…`.
    VARIABLE = auto()
    NONE = auto()


class _Assignment(NamedTuple):
    """A name, the text before it, and its value."""

    name: str
    before: str
    value: str
    form: _Form
    is_quoted: bool


def has_assignment(text: str) -> bool:
    """Return whether `text` assigns a credential to a name that denotes one, outside the query of a URL."""
    lower = folded(text)
    for root, names, is_credential in _NAMES:
        if root in lower:
            assignments = (_assignment(text, found) for found in names.finditer(lower))
            if any(one is not None and is_credential(one) for one in assignments):
                return True
    return False


def has_url_token(text: str) -> bool:
    """Return whether a URL in `text` carries a password, a token, a key, a session or a signature."""
    return any(_is_credential_parameter(name.rstrip(_NUMBERING), value) for name, value in _PARAMETER.findall(text))


def _is_credential_parameter(name: str, value: str) -> bool:
    if _PASSWORD_PARAMETER.search(name):
        return is_mixed(value)
    is_key, name = bool(_KEY_NAME.search(name)), name.lower()
    if _PUBLIC_PARAMETER.search(name) or (name == "key" and _UUID.fullmatch(value)):
        return False
    if name.endswith("key") and not is_key:
        return False
    least = _SHORT_PARAMETERS.get(name) or next((_KEY_PARAMETERS[end] for end in _KEY_PARAMETERS if name.endswith(end)), 0)
    return least > 0 and is_opaque(value, least)


def _assignment(text: str, found: re.Match[str]) -> _Assignment | None:
    """Return the assignment of a match; None if nothing is assigned, or within a query, which `has_url_token` checks."""
    before = text[max(0, found.start() - _BEFORE_CHARACTERS) : found.start()]
    separator, is_quoted = found[2], found[4] is not None
    value = text[slice(*found.span(4 if is_quoted else 5))]
    if _IN_QUERY.search(before) or any(map(str.isspace, value)):
        return None
    name = text[found.start() : found.start(1)]
    form = _Form.PLAIN
    if separator == ">":
        is_element = not found[1] and _ELEMENT.search(before) and text.startswith("</", found.end())
        form = _Form.ELEMENT if is_element else _Form.NONE
    elif separator == ",":
        form = _Form.ARGUMENT if is_quoted and _FIRST_ARGUMENT.search(before) else _Form.NONE
    elif separator.isspace():
        form = _Form.PLAIN if before.endswith("--") else _Form.NONE
    elif separator == "=" and name.isupper() and found.end(1) == found.start(2) and not found[1]:
        form = _Form.VARIABLE
    if not is_quoted and form in (_Form.PLAIN, _Form.VARIABLE):
        if "\n" in text[found.end(2) : found.start(5)] and not _ALONE.match(text, found.start(5)):
            return None
        value = _unquoted(value)
    return None if form is _Form.NONE else _Assignment(name, before, value, form, is_quoted)


def _is_password_assigned(one: _Assignment) -> bool:
    if one.name.lower() in ("pass", "passe") and not _is_whole_name(one):
        return False
    if one.form is not _Form.PLAIN:
        # These forms contain only a value, so plain words count as well.
        is_label_of_form = one.form is _Form.ELEMENT and is_label(one.value)
        is_none = is_placeholder(one.value) or is_expression(one.value) or is_label_of_form
        return len(one.value) >= _LEAST_PASSWORD and not is_none
    if not one.is_quoted and (is_expression(one.value) or slug_parts(one.value) > 2):
        return False
    return is_password(one.value, _LEAST_PASSWORD)


def _is_whole_name(one: _Assignment) -> bool:
    """Distinguish `db_pass`, `dbPass`, `pass:` and `mot de passe` from the end of another word."""
    if one.name.lower() == "passe":
        return one.before.lower().endswith("mot de ")
    last = one.before[-1:]
    is_camel_case = one.name[0].isupper() and last.islower()
    return is_camel_case or not last.isalnum()


def _is_key_assigned(one: _Assignment) -> bool:
    if not is_opaque(one.value, _LEAST_SECRET) or _PAGE_ATTRIBUTE.search(one.before):
        return False
    if not one.is_quoted and is_expression(one.value):
        return False
    if one.name.lower().startswith("cret"):
        return one.before[-2:].lower() == "se"
    if one.before.removesuffix("_").removesuffix("-").removesuffix(" ").lower().endswith(_QUALIFIERS):
        return len(one.value) >= _LEAST_KEY
    is_secret = one.form is _Form.VARIABLE and _VARIABLE.search(one.before) and not _NOT_SECRET.search(one.before)
    return bool(is_secret) and len(one.value) >= _LEAST_VARIABLE


def _unquoted(value: str) -> str:
    """Remove the text after a value: the next pair of form data, punctuation, and brackets that opened before the value."""
    following = _NEXT_PAIR.search(value)
    bare = value[: following.start() if following else len(value)].rstrip(".,;:!?")
    return bare if _OPENING.search(bare) else bare.rstrip(".,;:!?)]}")


#: For each root, a pattern of the names, and a function that decides whether an assignment to such a name is a credential.
_NAMES: Final = tuple(
    (root, re.compile(f"{names}{_TAIL}"), is_credential)
    for root, names, is_credential in (
        ("pass", "pass(?:w(?:or)?d|wort|phrase|code|e)?", _is_password_assigned),
        ("pwd", "pwd", _is_password_assigned),
        ("kennwort", "kennwort", _is_password_assigned),
        ("cret", "cret(?:[ _-]?(?:access[ _-]?)?(?:key|token))?", _is_key_assigned),
        ("key", "key", _is_key_assigned),
        ("token", "token", _is_key_assigned),
    )
)
