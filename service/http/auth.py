"""Authentication: bearer tokens, shared secrets and the storefront's signature. Each route accepts one kind only.

Users with roles only in single projects can access records of these projects; for all other records they get a 404.

WSGI joins a repeated header with a comma, so a repeated secret is rejected like any wrong secret. Every failure gets the
same response. Secrets are compared as digests, in constant time. The storefront's signature is checked over the raw bytes,
before parsing.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import falcon

from runtime.clock import utc_now
from schemas.base.errors import (
    ExportNotFound,
    Forbidden,
    NotFound,
    ServiceUnavailable,
    SignatureInvalid,
    Unauthorized,
    WebhooksForbidden,
)
from schemas.base.principal import ROLE_ABILITIES, Ability, Role, SharedSecretPrincipal, TokenKind, TokenPrincipal
from schemas.intake.sources import CredentialFault, RejectedField
from schemas.url_policy.policy import Network
from service.http.client_address import client_address, is_in
from storage.accounts import tokens
from storage.exports import poll_sql, queries
from storage.intake import finding_list
from storage.secrets.integrations import Integration, SharedSecrets

Principal = TokenPrincipal | SharedSecretPrincipal
#: A check that returns the caller. Raises Unauthorized or Forbidden.
Authenticate = Callable[[falcon.Request], Principal]

_BEARER: Final = "bearer "
_CHALLENGE: Final = 'Bearer realm="riskrelay"'
_HEX_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")
#: WSGI joins a repeated header with a comma, which no signature contains.
_HEADER_SEPARATOR: Final = ","
#: Functions that return the project of a record, by the route parameter that contains the record's id.
_PROJECT_OF: Final[Mapping[str, Callable[[str], int | None]]] = {
    "export_id": lambda export_id: queries.projects_of([export_id]).get(export_id),
    "finding_id": finding_list.project_of,
    "project_id": lambda text: int(text) if text.isascii() and text.isdecimal() else None,
}


class Bearer:
    """Requires a token of one kind with one ability; with `requires_webhooks`, also an account that may use webhook targets.

    Without an ability, any token of the kind is accepted. `allows_project_roles` admits users whose roles are in single
    projects, but only to records of these projects.
    """

    def __init__(
        self,
        kind: TokenKind,
        ability: Ability | None = None,
        *,
        requires_webhooks: bool = False,
        allows_project_roles: bool = False,
    ) -> None:
        self.kind = kind
        self.ability = ability
        self.allows_project_roles = allows_project_roles
        #: Abilities that are accepted instead of `ability`.
        self.alternatives: tuple[Ability, ...] = ()
        self._for_webhooks = requires_webhooks

    def __call__(self, req: falcon.Request) -> TokenPrincipal:
        req.context.challenge = _CHALLENGE
        header = req.auth or ""
        # More than one space is valid, too (RFC 6750, section 2.1).
        text = header[len(_BEARER) :].lstrip(" ") if header[: len(_BEARER)].lower() == _BEARER else ""
        principal = self._find_principal(req, text) if text else None
        if principal is None:
            _record_fault(req, "Authorization", _fault(header))
            raise Unauthorized
        req.context.principal = principal
        if principal.kind is not self.kind:
            _record_fault(req, "Authorization", CredentialFault.WRONG_KIND)
            raise Forbidden(f"This route requires a token of kind {self.kind.value}.")
        if self.ability is not None and self.ability not in self._abilities(principal):
            _record_fault(req, "Authorization", CredentialFault.LACKS_ABILITY)
            cause = "" if principal.role is Role.OWNER else ", or its user's role does not allow it"
            raise Forbidden(f"This token lacks the ability {self.ability.value}{cause}.")
        if principal.projects is not None and self.kind is TokenKind.API:
            require_project_role(principal, self.ability, req.context.params, allows_project_roles=self.allows_project_roles)
        if self._for_webhooks and not principal.may_use_webhooks:
            raise WebhooksForbidden
        return principal

    def _find_principal(self, _req: falcon.Request, text: str) -> TokenPrincipal | None:
        return tokens.principal_for(text, utc_now())

    def _abilities(self, principal: TokenPrincipal) -> Collection[str]:
        return principal.abilities


class PollingBearer(Bearer):
    """A Bearer for polls: one query returns the caller and the export, which is stored in `req.context.polled`."""

    def _find_principal(self, req: falcon.Request, text: str) -> TokenPrincipal | None:
        known = poll_sql.poll(text, req.context.params["export_id"], utc_now())
        if known is None:
            return None
        principal, req.context.polled = known
        return principal


@dataclass(frozen=True, slots=True)
class SharedSecret:
    """Requires the secret of one integration in one header, and a client address in `networks` unless that is empty."""

    header: str
    integration: Integration
    secrets: SharedSecrets
    networks: tuple[Network, ...] = ()
    trusted_proxies: tuple[Network, ...] = ()

    def __call__(self, req: falcon.Request) -> SharedSecretPrincipal:
        expected = self.secrets.current(self.integration)
        submitted = req.get_header(self.header)
        if not expected or not submitted or not _is_same(submitted, expected):
            _record_fault(req, self.header, _fault(submitted) if expected else CredentialFault.NOT_CONFIGURED)
            raise Unauthorized
        if self.networks:
            self._require_network(req)
        return SharedSecretPrincipal(self.integration.value)

    def _require_network(self, req: falcon.Request) -> None:
        """Raise Forbidden for a client outside `networks`.

        Call this after the check of the secret, so that only its holder can find out which networks are allowed.
        """
        address = client_address(req, self.trusted_proxies)
        if address is None or not is_in(address, self.networks):
            _record_fault(req, "X-Forwarded-For", CredentialFault.OTHER_NETWORK)
            # These requests have their own rate limit: requests with a stolen secret must not use up the provider's limit.
            req.context.principal = SharedSecretPrincipal(f"{self.integration.value}:other_network")
            raise Forbidden(
                "This client's network is not allowed; the operator allows networks with "
                f"{self.integration.value.upper()}_ALLOWED_NETWORKS."
            )


class StorefrontSignature:
    """Requires the storefront platform's HMAC of the raw body, keyed with the shared secret.

    Raises ServiceUnavailable if no secret is configured, Unauthorized if the header is missing or repeated,
    SignatureInvalid if it does not match.
    """

    HEADER: Final = "X-Platform-Hmac-Sha256"

    def __init__(self, secrets: SharedSecrets) -> None:
        self._secrets = secrets

    def __call__(self, req: falcon.Request) -> SharedSecretPrincipal:
        secret = self._secrets.current(Integration.STOREFRONT)
        if not secret:
            _record_fault(req, self.HEADER, CredentialFault.NOT_CONFIGURED)
            raise ServiceUnavailable
        header = req.get_header(self.HEADER)
        if not header or _HEADER_SEPARATOR in header:
            _record_fault(req, self.HEADER, _fault(header))
            raise Unauthorized
        if not is_signed(req.context.raw_body, header, secret.encode()):
            _record_fault(req, self.HEADER, CredentialFault.WRONG)
            raise SignatureInvalid
        req.context.signature = _signature_bytes(header.strip())
        principal = SharedSecretPrincipal(Integration.STOREFRONT.value)
        req.context.principal = principal
        return principal


def require_project_role(
    principal: TokenPrincipal, ability: Ability | None, ids: Mapping[str, str], *, allows_project_roles: bool
) -> None:
    """Raise unless the caller's role gives `ability` for the record that a route names.

    A role in the whole account always does. `allows_project_roles` says whether users with roles in single projects may use
    the route at all; the responder of such a route returns no records of other projects. Raises NotFound for a record of a
    project without a role, Forbidden for a role that lacks the ability.
    """
    roles = principal.projects
    if roles is None:
        return
    if not allows_project_roles:
        raise Forbidden("This needs a role in the whole account; your roles are in single projects.")
    for name, value in ids.items():
        if name not in _PROJECT_OF:
            continue
        project_id = _PROJECT_OF[name](value)
        if project_id is None or project_id not in roles:
            raise ExportNotFound if name == "export_id" else NotFound
        if ability is not None and ability not in ROLE_ABILITIES[roles[project_id]]:
            raise Forbidden(f"Your role in this project, {roles[project_id].value}, lacks the ability {ability.value}.")


def is_of_another_site(req: falcon.Request) -> bool:
    """Return whether a page of another site made a browser send the request, which then carries no credential of the user.

    Such requests do not count as failed authentications. Otherwise a page could block the address of everyone who opens it.
    """
    is_missing = req.context.fault.code == CredentialFault.MISSING
    return is_missing and req.get_header("Sec-Fetch-Site") in {"cross-site", "same-site"}


def is_signed(body: bytes, signature: str, secret: bytes) -> bool:
    """Return whether `signature` is the HMAC-SHA-256 of `body`, in base64 or as 64 hex digits."""
    submitted = _signature_bytes(signature.strip())
    return submitted is not None and hmac.compare_digest(submitted, hmac.digest(secret, body, "sha256"))


def _fault(submitted: str | None) -> CredentialFault:
    """Return the fault of a rejected credential, using only the credential's form."""
    if not submitted:
        return CredentialFault.MISSING
    return CredentialFault.TWICE if _HEADER_SEPARATOR in submitted else CredentialFault.WRONG


def _record_fault(req: falcon.Request, header: str, fault: CredentialFault) -> None:
    """Record the fault for the operator; the client gets the same response for every fault."""
    req.context.fault = RejectedField(f"/{header}", fault.value)


def _signature_bytes(text: str) -> bytes | None:
    # Check for hex first: hex digits are also valid base64, but decode to other bytes.
    if _HEX_SHA256.fullmatch(text):
        return bytes.fromhex(text)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is a ValueError, and text that is not ASCII raises a plain ValueError
        return None


def _is_same(submitted: str, expected: str) -> bool:
    # WSGI decodes header bytes as latin-1; the secret is text that clients send as UTF-8. Digests have equal lengths.
    ours = hashlib.sha256(expected.encode()).digest()
    theirs = hashlib.sha256(submitted.encode("latin-1", "replace")).digest()
    return hmac.compare_digest(ours, theirs)
