"""Checks whether a target URL may be used now: its form and every address that its host resolves to."""

from runtime.account_shares import AccountId
from runtime.dns_resolver import DnsError, DnsFailure, DnsResolver
from schemas.base.errors import FieldProblem, ServiceUnavailable, ValidationFailed
from schemas.settings.definitions import Settings
from schemas.targets.validations import Validation
from schemas.url_policy.addresses import check_addresses
from schemas.url_policy.policy import RefusalReason
from schemas.url_policy.refusal_text import refusal_text
from schemas.url_policy.target_url import check_url


class AddressCheck:
    """Checks the URL of a target against the policy: its form and every address that its host currently resolves to."""

    def __init__(self, settings: Settings, resolver: DnsResolver) -> None:
        self._policy = settings.target_policy
        self._resolver = resolver
        self._timeout_s = settings.connect_timeout_s

    def check(self, url: str, account_id: AccountId) -> Validation:
        """Return why `url` is not allowed, or a partial validation that has passed.

        Waits for the resolver and uses the account's share of it; None is the operator's share.
        """
        address = check_url(url, self._policy)
        if isinstance(address, RefusalReason):
            return _refused_validation(address, url)
        try:
            addresses = self._resolver.resolve(address.host, address.port, self._timeout_s, account_id)
        except DnsError as failed:
            return Validation(failed.reason.value, base_url=url)
        refusal = check_addresses(addresses, self._policy)
        return _refused_validation(refusal, url) if refusal else Validation(is_partial=True, base_url=url)

    def require_safe(self, url: str, account_id: AccountId, path: str = "/base_url") -> None:
        """Raise ValidationFailed on `path` if the URL is not allowed; raises ServiceUnavailable as `validate` does."""
        found = self.validate(url, account_id)
        if found.reason is not None:
            raise ValidationFailed(FieldProblem(path, found.reason, self.explain(found)))

    def explain(self, failed: Validation) -> str:
        """Return why a check failed, with the setting that would allow it."""
        return refusal_text(failed.reason or "", self._policy)

    def validate(self, url: str, account_id: AccountId) -> Validation:
        """Check `url`. Raises ServiceUnavailable if our resolver is overloaded, which says nothing about the target."""
        validation = self.check(url, account_id)
        if validation.reason == DnsFailure.OVERLOADED:
            raise ServiceUnavailable
        return validation


def _refused_validation(reason: RefusalReason, url: str) -> Validation:
    return Validation(reason.value, is_refused=True, base_url=url)
