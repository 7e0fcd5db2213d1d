"""Credentials in text that are not tokens with a prefix: keys, headers, URLs, commands, assignments.

Each asks for a plausible value: "How to set Cookie: headers?", `Authorization: Bearer <token>` and `$PASSWORD` are talk
about credentials. Every quantifier that could meet itself again is bounded, so that no text takes more than linear time.
"""

import re
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as NotBase64
from typing import Final

#: A key's armour, and the least of its body that makes it more than a mention.
_KEY_HEADER: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-[0-9]:")
_KEY_BODY: Final = re.compile(r"[A-Za-z0-9+/]{32}")
#: Room for what stands before the body: `Proc-Type`, `Version`, `Comment`, a PuTTY file's public half.
_KEY_HEAD_CHARACTERS: Final = 1000

_JWT: Final = re.compile(
    r"(?<![\w-])(eyJ[\w-]{10,})\.(?:(eyJ[\w-]{8,})\.[\w-]*|[\w-]*\.[\w-]{16}\.[\w-]{2,}\.[\w-]{20,})", re.ASCII
)
#: The claims of RFC 7519.
_CLAIMS: Final = (b'"iss"', b'"sub"', b'"aud"', b'"exp"', b'"nbf"', b'"iat"', b'"jti"')
#: A shorter payload without any of them identifies nobody.
_MIN_CLAIMS_BYTES: Final = 20

_SCHEMES: Final = (
    "bearer|basic|digest|token|api-?token|api-?key|oauth|negotiate|ntlm|hmac|jwt|key|bot|ssws|splunk|aws4-hmac-sha256"
)
_AUTHORIZATION: Final = re.compile(
    rf"(?i)authorization(?=[\"'\\]{{0,3}}\s{{0,9}}[:=]\s{{0,9}}[\"'\\]{{0,3}}(?:({_SCHEMES})\s{{1,9}})?([A-Za-z0-9+/_.~=@|:\"-]{{4,256}}))"
)
_COOKIE: Final = re.compile(r"(?i)(?<![\w-])(?:set-)?cookie2?[\"'\\]{0,3}\s{0,9}:\s{0,9}[\"'\\]{0,3}([^\r\n\"']{1,4096})")
#: A cookie from its equals sign on, told by what a name may end with: from its beginning, each character of a long word
#: that no sign follows would be tried as one.
_VALUE: Final = re.compile(r"(?<=[!#$%&'*+.^`|~\w-])=([^\s;,<>]{1,4096})", re.ASCII)
_NAME: Final = re.compile(r"[!#$%&'*+.^`|~\w-]+\Z", re.ASCII)
#: Longer than any of the attributes.
_NAME_CHARACTERS: Final = 16
#: A response's cookie is said with these, and they say nothing of anybody.
_COOKIE_ATTRIBUTES: Final = frozenset({"path", "domain", "expires", "max-age", "samesite", "secure", "httponly", "priority"})
_MIN_COOKIE_CHARACTERS: Final = 3

_USERINFO: Final = re.compile(r"://[^\s/?#@:\"'<>\\]{0,128}:([^\s/?#@\"'<>\\]{3,256})@[\w\[]")
_QUERY: Final = re.compile(
    r"(?i)[?&#;](?:password|passwd|pwd|client_secret|access_token|refresh_token|auth_token)=([^\s&#\"'<>]{8,4096})"
)
_ASSIGNMENT: Final = re.compile(
    r"(?:password|passwd|passphrase|client_?secret|secret_?key|secret_?access_?key)[\"'\\]{0,3}\s{0,9}(?:=>|[:=])\s{0,9}"
    r"\\?([\"'])([^\s\"'<>\\]{8,256})\\?\1"
)
_CURL_USER: Final = re.compile(r"(?<!\S)(?:-u|--user)(?:\s|[=\\/]){1,9}[\"']?([^\s:]{0,128}):([^\s]{0,256})")
_CURL_HEADER: Final = re.compile(
    r"(?i)(?<!\S)(?:-H|--header)\s{1,9}[\"'](?:[\w-]{0,40}(?:api-?key|token|secret))\s{0,9}:\s{0,9}([\w.~+/=-]{8,4096})"
)

#: What stands in examples instead of a value: a run of one character, a variable, a bracketed word.
_SAMPLE: Final = re.compile(
    r"(?i)(.)\1{5}|x{3}|^[\[({]|[<>]|\{\{|\$[{(a-z_]|\*{3}|\.{3}|…|your|example|placeholder|redacted|changeme|abc123"
)
_SAMPLE_WORDS: Final = frozenset(
    {"value", "val", "name", "token", "string", "password", "passwd", "pass", "pwd", "secret", "username", "user", "key"}
    | {"foo", "bar", "baz", "test", "abc", "123", "xyz", "yyy", "none", "null", "true", "false", "deleted"}
)
_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[A-Za-z]")
_MIXED_CASE: Final = re.compile(r"[a-z][A-Z]+[a-z]")


def has_private_key(text: str) -> bool:
    """Say whether `text` holds a private key (PEM, OpenSSH, PGP, PuTTY), not only its armour."""
    body = None
    for armour in _KEY_HEADER.finditer(text):
        if body is None or body.start() < armour.end():
            # The next one of the whole text, once: armour upon armour would have each thousand characters read fifty times.
            body = _KEY_BODY.search(text, armour.end())
            if body is None:
                return False
        if body.end() <= armour.end() + _KEY_HEAD_CHARACTERS:
            return True
    return False


def has_jwt(text: str) -> bool:
    """Say whether `text` holds a JSON Web Token, signed, unsigned or encrypted."""
    return any(_is_jwt(*found.groups()) for found in _JWT.finditer(text))


def has_authorization(text: str) -> bool:
    """Say whether `text` holds an Authorization header with a plausible value."""
    return any(_is_authorization(*found.groups()) for found in _AUTHORIZATION.finditer(text))


def has_cookies(text: str) -> bool:
    """Say whether `text` holds a Cookie or Set-Cookie header with a cookie."""
    return any(_is_cookie(line[1], value) for line in _COOKIE.finditer(text) for value in _VALUE.finditer(line[1]))


def has_url_password(text: str) -> bool:
    """Say whether a URL in `text` carries a password before its host."""
    return any(not _is_sample(found[1]) for found in _USERINFO.finditer(text))


def has_url_token(text: str) -> bool:
    """Say whether a query in `text` carries a password or a token; one that begins with pk. is made to be public."""
    return any(_is_made_up_of_both(found[1]) and not found[1].startswith("pk.") for found in _QUERY.finditer(text))


def has_command_credentials(text: str) -> bool:
    """Say whether a curl command in `text` carries a password or a key."""
    if any(_is_login(found[1], found[2]) for found in _CURL_USER.finditer(text)):
        return True
    return any(_is_made_up_of_both(found[1]) for found in _CURL_HEADER.finditer(text))


def has_assignment(text: str) -> bool:
    """Say whether `text` assigns a quoted value of letters and digits to a password or a secret."""
    # In lower case, which changes nothing of the verdict: a pattern that minds no case takes six times as long to begin.
    return any(_is_made_up_of_both(found[2]) for found in _ASSIGNMENT.finditer(text.lower()))


def _is_sample(value: str) -> bool:
    return value.lower() in _SAMPLE_WORDS or _SAMPLE.search(value) is not None


def _is_made_up_of_both(value: str) -> bool:
    return bool(_DIGIT.search(value) and _LETTER.search(value)) and not _is_sample(value)


def _is_jwt(header: str, payload: str | None) -> bool:
    declared = _decoded(header)
    if b'"alg"' not in declared:
        return False
    if payload is None:
        return b'"enc"' in declared
    claims = _decoded(payload)
    return claims.startswith(b"{") and (len(claims) >= _MIN_CLAIMS_BYTES or any(claim in claims for claim in _CLAIMS))


def _decoded(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except NotBase64:
        return b""


def _is_authorization(scheme: str | None, value: str) -> bool:
    """Basic must decode to a login; a named scheme wants 12 characters, none at all wants 16 of both kinds."""
    if scheme is None:
        # A time has no three letters, a word no three digits.
        is_mixed = len(_DIGIT.findall(value)) > 2 and len(_LETTER.findall(value)) > 2
        return len(value) >= 16 and is_mixed and not value.startswith("http") and not _is_sample(value)
    if scheme.lower() == "basic":
        return _is_basic(value)
    if scheme.lower() == "digest":
        return value.lower().startswith("username=")
    looks_random = _DIGIT.search(value) or _MIXED_CASE.search(value)
    return len(value) >= 12 and looks_random is not None and not _is_sample(value)


def _is_basic(value: str) -> bool:
    whole = value.rstrip('"')
    try:
        login = b64decode(whole[: len(whole) // 4 * 4], validate=True)
    except ValueError:
        # Also of what is not ASCII: a pattern that minds no case takes the long s and the Kelvin sign for letters.
        return False
    return b":" in login


def _is_cookie(line: str, value: re.Match[str]) -> bool:
    if len(value[1]) < _MIN_COOKIE_CHARACTERS or _is_sample(value[1]):
        return False
    name = _NAME.search(line[max(0, value.start() - _NAME_CHARACTERS) : value.start()])
    return name is None or name[0].lower() not in _COOKIE_ATTRIBUTES


def _is_login(user: str, rest: str) -> bool:
    """Judge what stands on either side of the colon: some put the key where the name belongs."""
    return any(len(part) >= 8 and _is_secret_looking(part) for part in (user, rest.strip("\"'")))


def _is_secret_looking(part: str) -> bool:
    return not _is_sample(part) and bool(_DIGIT.search(part) or _MIXED_CASE.search(part))
