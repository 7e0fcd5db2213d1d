"""How connections to targets leave this host: through a proxy, from fixed addresses, with client certificates."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.parse import unquote

from marshmallow import ValidationError

from schemas.settings.parsers import HOW_TO_ENCODE, server_address
from schemas.url_policy.policy import Address

Sources: TypeAlias = tuple[Address, ...]

_PROXY_FORM: Final = f"Use http://HOST:PORT or http://USER:PASSWORD@HOST:PORT. {HOW_TO_ENCODE}"
_SOURCE_FORM: Final = (
    "Use an IPv4 address, an IPv6 address, or one of each, comma-separated, such as 192.0.2.10,2001:db8::10."
)


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """An HTTP proxy; `authorization` is the value of Proxy-Authorization."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Egress:
    """How connections to targets are made.

    `authorities` (PEM) are trusted in addition to the usual ones. `certificate` (PEM, with its key) is presented to targets
    without a certificate of their own, for the accounts `certificate_accounts`; None means all accounts. A connection starts
    at the one address in `sources` that has the family of its destination; destinations of other families are not used.
    Without `sources`, the kernel chooses.
    """

    authorities: str = ""
    certificate: str | None = field(default=None, repr=False)
    certificate_accounts: frozenset[int] | None = None
    proxy: EgressProxy | None = None
    sources: Sources = ()

    def certificate_for(self, account_id: int | None) -> str | None:
        """Return the client certificate for an account's targets that have none of their own."""
        is_served = self.certificate_accounts is None or account_id in self.certificate_accounts
        return self.certificate if is_served else None


#: Connections without proxy, fixed source, client certificate or additional authorities.
DIRECT: Final = Egress()


def parse_proxy(text: str) -> EgressProxy:
    """Return the proxy of a URL. Raises ValidationError, which never quotes the URL."""
    parts = server_address(text, {"http"})
    if parts is None or not (parts.hostname and parts.port):
        raise ValidationError(_PROXY_FORM)
    return EgressProxy(parts.hostname, parts.port, _authorization(parts.username, parts.password))


def parse_sources(text: str) -> Sources:
    """Return at most one address of each family. Raises ValidationError."""
    try:
        found = tuple(ip_address(each.strip()) for each in text.split(",") if each.strip())
    except ValueError:
        raise ValidationError(_SOURCE_FORM) from None
    if len({each.version for each in found}) < len(found) or any(each.is_unspecified for each in found):
        raise ValidationError(_SOURCE_FORM)
    return found


def source_for(address: Address, sources: Sequence[Address]) -> Address | None:
    """Return the source with the family of an address; None if there is none."""
    return next((each for each in sources if each.version == address.version), None)


def _authorization(user: str | None, password: str | None) -> str | None:
    if user is None and password is None:
        return None
    return "Basic " + b64encode(f"{unquote(user or '')}:{unquote(password or '')}".encode()).decode()
