"""Who is calling: a bearer token or a shared secret, never one in place of the other.

Each header has one purpose. WSGI joins a header that came twice with a comma, so it holds more than the secret and is
refused like any other; whatever is wrong, the answer is the same. Secrets are compared as digests, in constant time.
"""

import hashlib
import hmac
from typing import Final, Protocol

import falcon

from schemas.errors import Forbidden, Unauthorized
from schemas.principal import Ability, SharedSecretPrincipal, TokenKind, TokenPrincipal
from storage import tokens
from storage.clock import utc_now
from storage.integrations import Integration, SharedSecrets

Principal = TokenPrincipal | SharedSecretPrincipal

_BEARER: Final = "bearer "
_CHALLENGE: Final = 'Bearer realm="riskrelay"'


class Authenticate(Protocol):
    """Returns who is calling. Raises Unauthorized or Forbidden."""

    def __call__(self, req: falcon.Request) -> Principal: ...


class Bearer:
    """A token of one kind with one ability, where `for_webhooks` of an account that may use webhook targets."""

    def __init__(self, kind: TokenKind, ability: Ability, *, for_webhooks: bool = False) -> None:
        self._kind = kind
        self._ability = ability
        self._for_webhooks = for_webhooks

    def __call__(self, req: falcon.Request) -> TokenPrincipal:
        req.context.challenge = _CHALLENGE
        header = req.get_header("Authorization") or ""
        text = header[len(_BEARER) :] if header[: len(_BEARER)].lower() == _BEARER else ""
        principal = tokens.principal_for(text, utc_now()) if text else None
        if principal is None:
            raise Unauthorized
        if principal.kind is not self._kind:
            raise Forbidden(f"This route takes tokens of kind {self._kind.value}.")
        if self._ability not in principal.abilities:
            raise Forbidden(f"This token lacks the ability {self._ability.value}.")
        if self._for_webhooks and not principal.may_use_webhooks:
            raise Forbidden("This account may not use generic_webhook targets.")
        return principal


class SharedSecret:
    """The secret of one integration in one header."""

    def __init__(self, header: str, integration: Integration, secrets: SharedSecrets) -> None:
        self._header = header
        self._integration = integration
        self._secrets = secrets

    def __call__(self, req: falcon.Request) -> SharedSecretPrincipal:
        expected = self._secrets.current(self._integration)
        submitted = req.get_header(self._header)
        if not expected or not submitted or not _same(submitted, expected):
            raise Unauthorized
        return SharedSecretPrincipal(self._integration.value)


def _same(submitted: str, expected: str) -> bool:
    # WSGI gives header bytes as latin-1; the secret was typed as UTF-8. Digests make both one length.
    ours = hashlib.sha256(expected.encode()).digest()
    theirs = hashlib.sha256(submitted.encode("latin-1", "replace")).digest()
    return hmac.compare_digest(ours, theirs)
