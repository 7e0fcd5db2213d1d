"""Posts to targets and inspects them; what the network or the receiver does comes back as a value.

The hot path calls the adapter without a session (`worker.http.adapter`).
"""

import ssl
from contextlib import closing
from typing import Any, Final, Literal

from runtime.account_shares import AccountId
from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from schemas.exports.delivery import Outcome
from schemas.settings.egress import DIRECT, Egress
from schemas.targets.validations import EXPIRES_SOON, EXPIRES_SOON_DAYS, Validation
from schemas.url_policy.policy import TargetPolicy
from worker.http.adapter import CONFIRMED_FOR_S, KEPT_IDLE_S, GuardedAdapter
from worker.http.deadline import Exchange
from worker.http.errors import TargetRefused, TransportError
from worker.http.response_parser import ParsedResponse

#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, which the ssl module has no name for.
_CERT_HAS_EXPIRED: Final = 10


class HttpClient:
    """Sends through one `GuardedAdapter`, whose arguments it takes; one for all threads of a process."""

    def __init__(
        self,
        policy: TargetPolicy,
        resolver: DnsResolver,
        deadline_s: float,
        connect_timeout_s: float,
        connections: int,
        verify: Literal[True] | str = True,
        confirmed_for_s: float = CONFIRMED_FOR_S,
        kept_idle_s: float = KEPT_IDLE_S,
        egress: Egress = DIRECT,
    ) -> None:
        self._adapter = GuardedAdapter(
            policy, resolver, deadline_s, connect_timeout_s, connections, verify, confirmed_for_s, kept_idle_s, egress
        )

    def post(
        self,
        url: str,
        headers: dict[str, str],
        body: bytes,
        account_id: AccountId = None,
        certificate: str | None = None,
    ) -> Outcome:
        """Send one POST for an account and return its outcome; never raises for what the network or the receiver does.

        `certificate` is the target's own client certificate with its key, as PEM.
        """
        exchange = self._adapter.begin(account_id, certificate)
        try:
            response = self._adapter.exchange(exchange, "POST", url, headers, body)
        except TransportError as failed:
            return exchange.outcome(error=failed.error, refused=isinstance(failed, TargetRefused))
        return exchange.outcome(response.status, retry_after=response.retry_after, body=response.body)

    def begin(self, account_id: AccountId = None, certificate: str | None = None) -> Exchange:
        """Return an exchange for requests of an account under one deadline, which begins now."""
        return self._adapter.begin(account_id, certificate)

    def exchange(self, exchange: Exchange, method: str, url: str, headers: dict[str, str], body: bytes) -> ParsedResponse:
        """Send one request of an exchange, as the adapter does. Raises TransportError, InvalidHeader."""
        return self._adapter.exchange(exchange, method, url, headers, body)

    def inspect(self, url: str, account_id: AccountId = None, certificate: str | None = None) -> Validation:
        """Check a target as a delivery would meet it now, from its URL to its certificate; sends nothing, never raises.

        Reasons are the error codes of attempts, and `certificate_expired` beside them.
        """
        exchange = self._adapter.begin(account_id, certificate)
        try:
            with closing(self._adapter.connect(exchange, url)) as connection:
                return _judge_certificate(connection.socket)
        except TransportError as failed:
            return Validation(_reason(failed), isinstance(failed, TargetRefused))

    def close(self) -> None:
        """Close every kept connection."""
        self._adapter.close()


def _judge_certificate(connected: Any) -> Validation:
    """Return whether the certificate, which has been verified, expires soon; plain http has none."""
    if not isinstance(connected, ssl.SSLSocket):
        return Validation()
    certificate: Any = connected.getpeercert()
    left_s = ssl.cert_time_to_seconds(certificate["notAfter"]) - utc_now().timestamp()
    return Validation(EXPIRES_SOON if left_s < EXPIRES_SOON_DAYS * 24 * 3600 else None)


def _reason(failed: TransportError) -> str:
    """Return the error code of an attempt, but `certificate_expired` for a certificate that has expired."""
    cause = failed.__cause__
    if failed.error == "tls_certificate" and isinstance(cause, ssl.SSLCertVerificationError):
        return "certificate_expired" if cause.verify_code == _CERT_HAS_EXPIRED else failed.error
    return failed.error
