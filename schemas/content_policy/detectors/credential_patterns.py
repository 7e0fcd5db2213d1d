"""Credentials in text that are not tokens with a prefix: keys, headers, URLs, commands.

Each function requires a plausible value: "How to set Cookie: headers?", `Authorization: Bearer <token>` and `$PASSWORD` only
mention credentials. Every quantifier that could match the same characters again is bounded, so that no text takes more than
linear time.
"""

import re
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as NotBase64
from typing import Final

from schemas.content_policy.detectors.secret_values import is_mixed, is_placeholder

#: A key's armor, and the length of a body that makes it more than a mention.
_KEY_HEADER: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-[0-9]:")
_KEY_BODY_CHARACTERS: Final = 32
_KEY_BODY: Final = re.compile(rf"[A-Za-z0-9+/]{{{_KEY_BODY_CHARACTERS}}}")
#: The beginning of a truncated body, directly after the armor; line ends may be escaped and lines may be quoted.
_KEY_START: Final = re.compile(
    r"(?:\s|\\[nr]|[\"'+>]){0,40}(?=[a-z0-9+/]{0,15}[A-Z])(?=[A-Z0-9+/]{0,15}[a-z])[A-Za-z0-9+/]{16}"
)
#: Characters allowed for headers before the body: `Proc-Type`, `Version`, `Comment`, a PuTTY file's public half.
_KEY_HEAD_CHARACTERS: Final = 1000

_JWT: Final = re.compile(
    r"(?<![\w-])(eyJ[\w-]{10,})\.(?:(eyJ[\w-]{8,})\.[\w-]*|[\w-]*\.[\w-]{16}\.[\w-]{2,}\.[\w-]{20,})", re.ASCII
)
#: The claims of RFC 7519.
_CLAIMS: Final = (b'"iss"', b'"sub"', b'"aud"', b'"exp"', b'"nbf"', b'"iat"', b'"jti"')
#: A shorter payload without any of these claims identifies no user.
_MIN_CLAIMS_BYTES: Final = 20

#: The scheme that is long enough to look random before a placeholder.
_LONGEST_SCHEME: Final = "aws4-hmac-sha256"
_SCHEMES: Final = (
    f"bearer|basic|digest|token|api-?token|api-?key|oauth|negotiate|ntlm|hmac|jwt|key|bot|ssws|splunk|{_LONGEST_SCHEME}"
)
#: The text between the name of the header and its value: the next field of an object (`"name": "Authorization", "value":
#: "…"`); the separator of a header, a setting or JSON; that of a dictionary's entry (`['Authorization'] = '…'`,
#: `'Authorization' => '…'`) or of arguments (`set("Authorization", "…")`), where only quotes make the value a literal.
_UP_TO_VALUE: Final = (
    r"(?:[\"'\\]{0,3}(?:,\s{0,60}|\s{1,60})[\"'\\]{0,3}value[\"'\\]{0,3}\s{0,9}[:=]\s{0,9}[\"'\\]{0,3}"
    r"|[\"'\\]{0,3}\s{0,9}[:=]\s{0,9}[\"'`\\]{0,3}"
    r"|[\"'`\\]{1,3}\s{0,9}(?:\]\s{0,9}=|=>|,)\s{0,9}[\"'`\\]{1,3})"
)
_AUTHORIZATION: Final = re.compile(
    rf"(?i)authorization(?={_UP_TO_VALUE}(?:({_SCHEMES})\s{{1,9}})?([A-Za-z0-9+/_.~=@|:\"-][A-Za-z0-9+/_.~=@|:\"!$%^&*#?-]{{3,255}}))"
)
#: The end of a string that is concatenated with its value: `"Bearer "+accessToken`.
_CONCATENATED: Final = re.compile('"[+.&]')
_USERINFO: Final = re.compile(r"://[^\s/?#@:\"'<>\\]{0,128}:([^\s/?#@\"'<>\\]{3,256})@[\w\[]")
_CURL_USER: Final = re.compile(r"(?<!\S)(?:-u|--user)(?:\s|[=\\/]){1,9}[\"']?([^\s:]{0,128}):([^\s]{0,256})")
_CURL_HEADER: Final = re.compile(r"(?<!\S)(?:-H|--header)\s{1,9}[\"']([\w-]{1,60})\s{0,9}:\s{0,9}([\w.~+/=-]{8,4096})")
_NETRC: Final = re.compile(
    r"(?<!\S)machine\s{1,9}\S{1,255}\s{1,9}login\s{1,9}\S{1,255}\s{1,9}password\s{1,9}([^\s<$]{4,256})"
)
_MYSQL: Final = re.compile(r"(?<!\w)mysql(?:dump|admin|import|show)?\s[^\n|;]{0,200}?(?<=\s)-p([^\s'\"$]{6,128})")
_CREDENTIAL_HEADERS: Final = ("api-key", "apikey", "token", "secret")

_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[A-Za-z]")
_MIXED_CASE: Final = re.compile(r"[a-z][A-Z]+[a-z]")


def has_private_key(text: str) -> bool:
    """Return whether `text` holds a private key (PEM, OpenSSH, PGP, PuTTY), whole or cut off, not only its armor."""
    body_start = -1
    for armor in _KEY_HEADER.finditer(text):
        if _KEY_START.match(text, armor.end()):
            return True
        if body_start < armor.end():
            # One search covers all armors before the body that it finds: a search per armor would read each thousand
            # characters up to fifty times.
            body = _KEY_BODY.search(text, armor.end())
            body_start = body.start() if body else len(text) + _KEY_HEAD_CHARACTERS
        if body_start <= armor.end() + _KEY_HEAD_CHARACTERS - _KEY_BODY_CHARACTERS:
            return True
    return False


def has_jwt(text: str) -> bool:
    """Return whether `text` holds a JSON Web Token, signed, unsigned or encrypted."""
    return any(_is_jwt(*found.groups()) for found in _JWT.finditer(text))


def has_authorization(text: str) -> bool:
    """Return whether `text` holds an Authorization header with a plausible value."""
    return any(_is_authorization(*found.groups()) for found in _AUTHORIZATION.finditer(text))


def has_url_password(text: str) -> bool:
    """Return whether a URL in `text` carries a password before its host."""
    return any(not is_placeholder(found[1]) for found in _USERINFO.finditer(text))


def has_command_credentials(text: str) -> bool:
    """Return whether a curl command in `text` carries a password or a key."""
    if any(_is_login(found[1], found[2]) for found in _CURL_USER.finditer(text)):
        return True
    headers = (found.groups() for found in _CURL_HEADER.finditer(text))
    return any(is_mixed(value) for name, value in headers if name.lower().endswith(_CREDENTIAL_HEADERS))


def has_login_of_machine(text: str) -> bool:
    """Return whether `text` holds an entry of a netrc file with its password."""
    return any(not is_placeholder(found[1]) for found in _NETRC.finditer(text))


def has_database_password(text: str) -> bool:
    """Return whether a command of MySQL in `text` carries a password."""
    return any(is_mixed(found[1]) for found in _MYSQL.finditer(text))


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
    """Return whether the value of an Authorization header is plausible.

    Basic must decode to a login, and Digest must begin with a user name. Other schemes require 12 characters; a value
    without a scheme requires 16, with letters and digits.
    """
    value = value.rstrip(".")
    if _CONCATENATED.match(value):
        return False
    if scheme is None:
        # A time does not have three letters, and a word does not have three digits.
        looks_random = len(_DIGIT.findall(value)) > 2 and len(_LETTER.findall(value)) > 2
        is_talk = value.startswith("http") or value.lower() == _LONGEST_SCHEME or is_placeholder(value)
        return len(value) >= 16 and looks_random and not is_talk
    if scheme.lower() == "basic":
        return _is_basic(value)
    if scheme.lower() == "digest":
        return value.lower().startswith("username=")
    return len(value) >= 12 and _is_secret_looking(value)


def _is_basic(value: str) -> bool:
    whole = value.rstrip('"')
    try:
        login = b64decode(whole[: len(whole) // 4 * 4], validate=True)
    except ValueError:
        # Also raised for text that is not ASCII: a case-insensitive pattern matches the long s and the Kelvin sign as
        # letters.
        return False
    return b":" in login


def _is_login(user: str, rest: str) -> bool:
    """Return whether either side of the colon looks secret: some clients send the key as the user name."""
    password = rest.strip("\"'")
    return (len(user) >= 8 and _is_secret_looking(user)) or (len(password) >= 6 and _is_secret_looking(password))


def _is_secret_looking(part: str) -> bool:
    return not is_placeholder(part) and bool(_DIGIT.search(part) or _MIXED_CASE.search(part))
