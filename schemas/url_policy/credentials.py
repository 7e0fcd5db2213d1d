"""Credentials in a target's URL: before its host, or in parameters that are named like credentials.

A URL is shown to users and written to the logs of proxies and receivers, so it must not contain a credential. A name is read
as a receiver would read it: decoded, in any case, with `_`, `-` or camelCase between its words.
"""

import re
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote_plus

MASK: Final = "***"

#: Ends of names, with their words joined: `access_token`, `X-Amz-Signature`, `clientSecret`.
_ENDINGS: Final = (
    *("token", "secret", "password", "passwd", "passphrase", "passcode", "signature", "credential", "credentials"),
    *("apikey", "accesskey", "authkey", "privatekey", "secretkey", "signingkey", "sharedkey", "subscriptionkey"),
    *("authorization", "sessionid"),
)
#: Last words of names: `webhook_sig`, not `design`.
_LAST_WORDS: Final = frozenset({"auth", "oauth", "bearer", "hmac", "jwt", "pass", "pwd", "sig"})
#: The name of a credential only if it is the whole name: `sort_key` names a column.
_ALONE: Final = "key"

#: URLs inside the values of URLs are searched to this depth; a parameter that is deeper counts as a credential.
_MAX_DEPTH: Final = 8
_PARAMETER: Final = re.compile(r"([?&;])([^=&;?]*)(?:=([^&;]*))?")
_USER: Final = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//)[^/?#]*@")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def has_credential(url: str) -> bool:
    """Return whether a parameter of `url` is named like a credential, at any place in its path or query."""
    return any(map(_is_credential, _PARAMETER.finditer(url)))


def masked(url: str) -> str:
    """Return `url` with `***` in place of the values of such parameters, and of a user and a password before its host."""
    url = _USER.sub(rf"\g<1>{MASK}@", url, count=1)
    return _PARAMETER.sub(lambda found: f"{found[1]}{found[2]}={MASK}" if _is_credential(found) else found[0], url)


def _is_credential(parameter: re.Match[str], depth: int = 0) -> bool:
    if depth > _MAX_DEPTH or _names_credential(parameter[2]):
        return True
    # The value may be an encoded URL with parameters of its own.
    return any(_is_credential(inner, depth + 1) for inner in _PARAMETER.finditer(unquote_plus(parameter[3] or "")))


def _names_credential(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(normalize("NFKC", unquote_plus(unquote_plus(name))))]
    whole = "".join(words)
    return whole == _ALONE or whole.endswith(_ENDINGS) or (bool(words) and words[-1] in _LAST_WORDS)
