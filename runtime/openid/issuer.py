"""The operator's OpenID Connect issuer: its description, its keys, the exchange of a code, the check of an ID token.

Checked are the signature with a key that the issuer publishes, by an algorithm of public keys; the issuer, the audience and
the authorized party; the times, with a leeway; the nonce; the hash of the access token.
"""

import base64
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote_plus, urlsplit

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from runtime.openid.bounded_requests import fetch_json
from runtime.openid.errors import IssuerUnavailable, TokenRefused

#: Public-key algorithms only. With HS256, anybody who knows the public key or the client secret could sign a token.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
#: OpenID Connect Core 1.0, section 2: at most 255 ASCII characters.
MAX_SUBJECT_LENGTH: Final = 255
#: Clocks of two well-kept hosts differ by less.
LEEWAY_S: Final = 60
#: Issuers rotate keys within days or weeks; a key that was withdrawn is accepted no longer than this.
CACHED_S: Final = 3600.0
#: How often a token with an unknown key may cause a request for new keys: anybody can make such a token.
REFETCH_S: Final = 60.0
#: How long a failure is kept: while an issuer is down, each sign-in would otherwise wait for it.
RETRY_S: Final = 10.0

_DISCOVERY: Final = "/.well-known/openid-configuration"
_Fetched = TypeVar("_Fetched")
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class IssuerDescription:
    """The issuer's own description of its endpoints and methods."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    end_session_endpoint: str | None
    #: Whether the issuer's responses to the browser always name the issuer (RFC 9207).
    names_itself: bool
    #: Whether the client's secret goes into a header; else into the form.
    takes_basic: bool


class IssuedTokens(NamedTuple):
    """The response of the token endpoint."""

    id_token: str
    access_token: str | None


class Issuer:
    """One issuer and our client there; each process fetches its description and keys once an hour."""

    def __init__(self, url: str, client_id: str, client_secret: str | None, tls: ssl.SSLContext) -> None:
        self.url = url
        self.client_id = client_id
        self._secret = client_secret
        self._tls = tls
        self._description = _Cached(self._fetch_description)
        self._keys = _Cached(self._fetch_keys)

    def describe(self) -> IssuerDescription:
        """Return the issuer's description. Raises IssuerUnavailable."""
        return self._description.get(CACHED_S)

    def exchange(self, code: str, verifier: str, redirect_uri: str) -> IssuedTokens:
        """Exchange a code for tokens. Raises IssuerUnavailable, TokenRefused for a response without an ID token."""
        description = self.describe()
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
        authorization = None
        if self._secret is not None and description.takes_basic:
            # RFC 6749: both are encoded before they are joined.
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self._secret)}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.client_id} | ({} if self._secret is None else {"client_secret": self._secret})
        response = fetch_json(description.token_endpoint, self._tls, form, authorization)
        id_token, access_token = response.get("id_token"), response.get("access_token")
        if not isinstance(id_token, str):
            raise TokenRefused("no_id_token")
        return IssuedTokens(id_token, access_token if isinstance(access_token, str) else None)

    def claims_of(self, tokens: IssuedTokens, nonce: str, now: datetime) -> Mapping[str, Any]:
        """Return the claims of an ID token that passes every check. Raises TokenRefused, IssuerUnavailable."""
        token = self._verified(tokens.id_token)
        options: Any = {"iss": {"essential": True, "value": self.url}, "aud": {"essential": True, "value": self.client_id}}
        params = {"nonce": nonce, "client_id": self.client_id, "access_token": tokens.access_token}
        claims = CodeIDToken(token.claims, token.header, options, params)
        try:
            claims.validate(now=int(now.timestamp()), leeway=LEEWAY_S)
        except JoseError as refused:
            raise TokenRefused(f"claim_{getattr(refused, 'claim', 'invalid')}") from None
        except (ValueError, TypeError):
            raise TokenRefused("claim_invalid") from None
        subject: str = claims["sub"]
        if not (subject and subject.isascii() and subject.isprintable()) or len(subject) > MAX_SUBJECT_LENGTH:
            raise TokenRefused("claim_sub")
        return dict(claims)

    def user_info(self, tokens: IssuedTokens, subject: str) -> Mapping[str, Any]:
        """Return further claims of the same person; none if the issuer has no endpoint for them.

        Raises IssuerUnavailable, TokenRefused for another person.
        """
        endpoint = self.describe().userinfo_endpoint
        if endpoint is None or tokens.access_token is None:
            return {}
        found = fetch_json(endpoint, self._tls, authorization=f"Bearer {tokens.access_token}")
        if found.get("sub") != subject:
            raise TokenRefused("userinfo_sub")
        return found

    def _verified(self, id_token: str) -> jwt.Token:
        try:
            try:
                return jwt.decode(id_token, self._keys.get(CACHED_S), list(ALGORITHMS))
            except InvalidKeyIdError:
                return jwt.decode(id_token, self._keys.get(REFETCH_S), list(ALGORITHMS))
        except JoseError as refused:
            raise TokenRefused(f"signature_{refused.error}") from None
        except (ValueError, TypeError):
            raise TokenRefused("signature_malformed") from None

    def _fetch_description(self) -> IssuerDescription:
        found = fetch_json(self.url.removesuffix("/") + _DISCOVERY, self._tls)
        # The URLs must be equal: another issuer's description would name another issuer's keys.
        if found.get("issuer") != self.url:
            raise IssuerUnavailable("another_issuer")
        authorization, token, keys = (self._endpoint(found, name) for name in _ENDPOINTS)
        if authorization is None or token is None or keys is None:
            raise IssuerUnavailable("no_endpoint")
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return IssuerDescription(
            authorization,
            token,
            keys,
            self._endpoint(found, "userinfo_endpoint"),
            self._endpoint(found, "end_session_endpoint"),
            found.get("authorization_response_iss_parameter_supported") is True,
            isinstance(methods, list) and "client_secret_basic" in methods,
        )

    def _endpoint(self, found: Mapping[str, Any], name: str) -> str | None:
        """Return a URL as secure as that of the issuer; None for any other value."""
        url = found.get(name)
        if not isinstance(url, str) or not (url.isascii() and url.isprintable()) or " " in url:
            return None
        try:
            parts = urlsplit(url)
            is_whole = bool(parts.hostname) and parts.port != 0 and parts.username is None and not parts.fragment
        except ValueError:
            return None
        return url if is_whole and parts.scheme in {"https", urlsplit(self.url).scheme} else None

    def _fetch_keys(self) -> KeySet:
        found = fetch_json(self.describe().jwks_uri, self._tls).get("keys")
        keys: list[Key] = []
        for each in found if isinstance(found, list) else []:
            if isinstance(each, dict) and each.get("kty") != "oct" and each.get("use", "sig") == "sig":
                # Skip keys of unknown types: no algorithm in ALGORITHMS uses them.
                with suppress(JoseError, ValueError, TypeError, KeyError):
                    keys.append(JWKRegistry.import_key(each))
        if not keys:
            raise IssuerUnavailable("no_keys")
        return KeySet(keys)


class _Cached(Generic[_Fetched]):
    """A value of the issuer in this process; one thread at a time fetches it, and a failure is kept for RETRY_S."""

    def __init__(self, fetch: Callable[[], _Fetched]) -> None:
        self._fetch = fetch
        self._lock = Lock()
        self._found: tuple[_Fetched, float] | None = None
        self._failed: tuple[str, float] | None = None

    def get(self, max_age_s: float) -> _Fetched:
        """Return the value, fetched again if it is older than `max_age_s`. Raises IssuerUnavailable."""
        with self._lock:
            now = time.monotonic()
            if self._found is not None and now - self._found[1] < max_age_s:
                return self._found[0]
            if self._failed is not None and now - self._failed[1] < RETRY_S:
                raise IssuerUnavailable(self._failed[0])
            try:
                value = self._fetch()
            except IssuerUnavailable as failed:
                self._failed = (failed.reason, time.monotonic())
                raise
            self._found, self._failed = (value, time.monotonic()), None
            return value
