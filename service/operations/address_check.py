"""Checks whether a target URL may be used now: its form and every address that its host resolves to."""

from typing import Final

from runtime.dns_resolver import DnsError, DnsFailure, DnsResolver
from schemas.base.errors import FieldProblem, ServiceUnavailable, ValidationFailed
from schemas.settings.definitions import Settings
from schemas.targets.validations import Validation
from schemas.url_policy.addresses import check_addresses
from schemas.url_policy.policy import UrlRefusal
from schemas.url_policy.target_url import check_url

#: Said of every verdict of the address policy and of the name lookup; the code beside it says which.
_NOT_SAFE: Final = "This address may not be used, or cannot be resolved now; the code says why."


class AddressCheck:
    """Judges the URL of a target as it stands now: its form, and every address that its name leads to."""

    def __init__(self, settings: Settings, resolver: DnsResolver) -> None:
        self._policy = settings.target_policy
        self._resolver = resolver
        self._timeout_s = settings.connect_timeout_s

    def look(self, url: str) -> Validation:
        """Return what speaks against `url`. It may wait for the resolver."""
        address = check_url(url, self._policy)
        if isinstance(address, UrlRefusal):
            return _refused(address)
        try:
            refusal = check_addresses(self._resolver.resolve(address.host, address.port, self._timeout_s), self._policy)
        except DnsError as failed:
            return Validation(failed.reason.value)
        return _refused(refusal) if refusal else Validation()

    def require_safe(self, url: str) -> None:
        """Raises ValidationFailed on `/base_url` for a URL that may not be used."""
        reason = self.look(url).reason
        if reason is not None:
            raise ValidationFailed(FieldProblem("/base_url", reason, _NOT_SAFE))

    def validate(self, url: str) -> Validation:
        """Look at `url`. Raises ServiceUnavailable where our own lookup is what is wrong, not the target."""
        validation = self.look(url)
        if validation.reason == DnsFailure.OVERLOADED:
            raise ServiceUnavailable
        return validation


def _refused(refusal: UrlRefusal) -> Validation:
    return Validation(refusal.reason.value, is_refused=True)
