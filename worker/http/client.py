"""Posts to targets and inspects them; failures of the network or the receiver are returned as values.

The hot path calls the adapter without a session (`worker.http.adapter`).
"""

import socket
import ssl
from contextlib import closing
from typing import Any, Final

from runtime.account_shares import AccountId
from runtime.clock import utc_now
from schemas.exports.delivery import Outcome
from schemas.targets.validations import EXPIRES_SOON, EXPIRES_SOON_DAYS, Validation
from worker.http.adapter import GuardedAdapter
from worker.http.errors import TargetRefused, TransportError

#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, which the ssl module does not define.
_CERT_HAS_EXPIRED: Final = 10


class HttpClient(GuardedAdapter):
    """A `GuardedAdapter` whose failures are values; one for all threads of a process."""

    def post(
        self, url: str, headers: dict[str, str], body: bytes, account_id: AccountId = None, certificate: str | None = None
    ) -> Outcome:
        """Send one POST for an account and return its outcome; never raises for failures of the network or the receiver.

        `certificate` is the target's own client certificate with its key, as PEM.
        """
        exchange = self.begin(account_id, certificate)
        try:
            response = self.exchange(exchange, "POST", url, headers, body)
        except TransportError as failed:
            return exchange.outcome(error=failed.error, refused=isinstance(failed, TargetRefused))
        return exchange.outcome(response.status, retry_after=response.retry_after, body=response.body)

    def inspect(self, url: str, account_id: AccountId = None, certificate: str | None = None) -> Validation:
        """Check whether a delivery to a target could be sent now, from its URL to its certificate.

        Sends no request and never raises. Reasons are the error codes of attempts, and `certificate_expired`.
        """
        exchange = self.begin(account_id, certificate)
        try:
            with closing(self.connect(exchange, url)) as connection:
                return _check_expiry(connection.socket)
        except TransportError as failed:
            return Validation(_reason(failed), isinstance(failed, TargetRefused))


def _check_expiry(connected: socket.socket) -> Validation:
    """Return whether the certificate, which has been verified, expires soon; plain http has none."""
    if not isinstance(connected, ssl.SSLSocket):
        return Validation()
    certificate: Any = connected.getpeercert()
    left_s = ssl.cert_time_to_seconds(certificate["notAfter"]) - utc_now().timestamp()
    return Validation(EXPIRES_SOON if left_s < EXPIRES_SOON_DAYS * 24 * 3600 else None)


def _reason(failed: TransportError) -> str:
    """Return the error code of an attempt, or `certificate_expired` for a certificate that has expired."""
    cause = failed.__cause__
    if failed.error == "tls_certificate" and isinstance(cause, ssl.SSLCertVerificationError):
        return "certificate_expired" if cause.verify_code == _CERT_HAS_EXPIRED else failed.error
    return failed.error
