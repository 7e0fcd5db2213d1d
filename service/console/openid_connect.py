"""Signs users in at the operator's OpenID Connect issuer: authorization code with PKCE, state and nonce.

State, nonce and code verifier are stored in an encrypted cookie for ten minutes, so that only the browser that began a
sign-in can finish it. Requests to the issuer hold no database connection and no transaction.
"""

import base64
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from runtime.openid.errors import IssuerUnavailable, TokenRefused
from runtime.tls_context import client_context
from schemas.base.errors import Forbidden, ServiceUnavailable, WrongEncryptionKey
from schemas.base.principal import Role
from schemas.base.timestamps import to_ms
from schemas.settings.definitions import Settings
from storage.accounts import accounts
from storage.accounts.identities import Identity
from storage.db import engine
from storage.secrets.encrypted_columns import ID_TOKEN
from storage.secrets.vault import Vault

#: Maximum time that a person may spend at the issuer.
LASTS_FOR: Final = timedelta(minutes=10)
CALLBACK: Final = "/sign-in/callback"

#: 256 bits, which are 43 characters of URL-safe base64; RFC 7636 requires at least 43 characters.
_RANDOM_BYTES: Final = 32
_CONTEXT: Final = "cookie|sign-in|OpenID Connect"
_ROLES: Final = tuple(Role)

_log: Final = logging.getLogger(__name__)


class SignInFailed(Forbidden):
    """This sign-in failed a check. Sign in again."""


@dataclass(frozen=True, slots=True)
class SignedInPerson:
    """A person whom the issuer has authenticated; `state` is unique to this sign-in."""

    identity: Identity
    state: str
    next_path: str
    id_token: str


class OpenIdConnect:
    """The sign-in at the issuer that the settings name."""

    def __init__(self, settings: Settings, vault: Vault, console_url: str) -> None:
        self.label = settings.oidc_label
        self._settings = settings
        self._vault = vault
        self._console_url = console_url
        tls = client_context(settings.target_ca)
        # Imported here, because its packages take 7 MB in each process, and few installations have an issuer.
        from runtime.openid.issuer import Issuer  # noqa: PLC0415 - see above

        self._issuer = Issuer(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret, tls)

    @property
    def account_id(self) -> int | None:
        """The account of the users who sign in; None if there is no account yet."""
        return self._settings.oidc_account_id or self._settings.operator_account_id or accounts.first_id()

    def begin(self, next_path: str, now: datetime) -> tuple[str, str]:
        """Return the issuer's URL for the browser, and the value of the cookie. Raises ServiceUnavailable."""
        state, nonce, verifier = (secrets.token_urlsafe(_RANDOM_BYTES) for _ in range(3))
        stored = {"state": state, "nonce": nonce, "verifier": verifier, "next": next_path, "at": to_ms(now)}
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self._console_url + CALLBACK,
            "scope": self._settings.oidc_scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        engine.release()
        try:
            url = _with_query(self._issuer.describe().authorization_endpoint, query)
        except IssuerUnavailable as failed:
            raise _unavailable(failed) from None
        return url, base64.urlsafe_b64encode(self._vault.seal(json.dumps(stored), _CONTEXT)).decode().rstrip("=")

    def finish(self, params: Mapping[str, str], cookie: str, now: datetime) -> SignedInPerson:
        """Return the person who signed in; `params` are the parameters of the issuer's redirect.

        Raises SignInFailed if a check fails, Forbidden for a person without a role, ServiceUnavailable.
        """
        stored = self._open_cookie(cookie, now)
        if not hmac.compare_digest(params.get("state", "").encode(), stored["state"].encode()):
            raise _failed("state")
        engine.release()
        try:
            return self._person(params, stored, now)
        except TokenRefused as refused:
            raise _failed(refused.reason) from None
        except IssuerUnavailable as failed:
            # The code was already used, has expired, or belongs to another client.
            if failed.reason == "status_400":
                raise _failed("code") from None
            raise _unavailable(failed) from None

    def sealer(self, person: SignedInPerson) -> Callable[[str], bytes]:
        """Return a function that takes a session's id and encrypts the ID token for that session."""
        return lambda session_id: self._vault.seal(person.id_token, ID_TOKEN.context(session_id))

    def sign_out_url(self, session_id: str, sealed_id_token: bytes | None) -> str | None:
        """Return the issuer's URL that ends the person's session at the issuer; None if it has none or is unavailable."""
        id_token = None
        # The key of the ID token may be missing. Without the token, most issuers ask the person to confirm.
        with suppress(WrongEncryptionKey):
            id_token = sealed_id_token and self._vault.open(bytes(sealed_id_token), ID_TOKEN.context(session_id))
        engine.release()
        try:
            endpoint = self._issuer.describe().end_session_endpoint
        except IssuerUnavailable:
            return None
        hint = {} if not id_token else {"id_token_hint": id_token}
        after = {"client_id": self._issuer.client_id, "post_logout_redirect_uri": f"{self._console_url}/sign-in"}
        return None if endpoint is None else _with_query(endpoint, hint | after)

    def _open_cookie(self, cookie: str, now: datetime) -> dict[str, Any]:
        try:
            opened = self._vault.open(base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4)), _CONTEXT)
        except (ValueError, WrongEncryptionKey):
            raise _failed("cookie") from None
        stored: dict[str, Any] = json.loads(opened)
        if not 0 <= to_ms(now) - stored["at"] < LASTS_FOR / timedelta(milliseconds=1):
            raise _failed("too_late")
        return stored

    def _person(self, params: Mapping[str, str], stored: Mapping[str, str], now: datetime) -> SignedInPerson:
        issuer = self._issuer
        # RFC 9207: otherwise another issuer could make us send its code, or the code of its victim, to this issuer.
        named = params.get("iss")
        if named != issuer.url and (named is not None or issuer.describe().names_itself):
            raise _failed("another_issuer")
        if "error" in params:
            raise _failed("denied", "The issuer did not sign you in.")
        if not params.get("code"):
            raise _failed("no_code")
        tokens = issuer.exchange(params["code"], stored["verifier"], self._console_url + CALLBACK)
        claims = issuer.claims_of(tokens, stored["nonce"], now)
        groups_claim, roles = self._settings.oidc_groups_claim, self._settings.oidc_roles
        if "email" not in claims or (roles and groups_claim not in claims):
            claims = {**issuer.user_info(tokens, claims["sub"]), **claims}
        is_verified = claims.get("email_verified") is True or self._settings.oidc_trusts_email
        email = claims.get("email")
        role = _highest(roles, claims.get(groups_claim)) if roles else None
        identity = Identity(issuer.url, claims["sub"], email if is_verified and isinstance(email, str) else None, role)
        return SignedInPerson(identity, stored["state"], stored["next"], tokens.id_token)


def _highest(roles: Mapping[str, Role], groups: Any) -> Role:
    named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    found = [roles[group] for group in named if isinstance(group, str) and group in roles]
    if not found:
        raise Forbidden("None of your groups at the issuer has a role here. Ask the operator to add you to one.")
    return max(found, key=_ROLES.index)


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"


def _failed(reason: str, message: str | None = None) -> SignInFailed:
    _log.warning("a sign-in at the issuer was refused", extra={"reason": reason})
    return SignInFailed(f"{message or 'This sign-in failed a check'} ({reason}). Sign in again.")


def _unavailable(failed: IssuerUnavailable) -> ServiceUnavailable:
    _log.warning("the issuer is unavailable", extra={"reason": failed.reason})
    return ServiceUnavailable("The sign-in server is unavailable or sent an invalid response. Try again in a minute.")
