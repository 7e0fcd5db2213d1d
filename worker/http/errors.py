"""Why a request got no response: exceptions of requests that carry the error code of an attempt.

The codes are those of the API's `error_code` (`connect_refused`, `deadline_exceeded`, `address_private`, …). No message
contains an address.
"""

from typing import Final

from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ConnectTimeout, ReadTimeout, SSLError


class TransportError(RequestsConnectionError):
    """A request without a response; `error` is the code."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class TargetRefused(TransportError):
    """The address policy forbids the URL or an address that its name resolves to; `error` is its RefusalReason."""


class TransportConnectTimeout(TransportError, ConnectTimeout):
    """No connection within the connect timeout, or no DNS answer in time."""


class DeadlineExceeded(TransportError, ReadTimeout):
    """The deadline passed before the response headers were complete."""


class TlsError(TransportError, SSLError):
    """The TLS handshake failed, or the certificate is not valid for the host."""


_CLASSES: Final[dict[str, type[TransportError]]] = {
    "dns_timeout": TransportConnectTimeout,
    "connect_timeout": TransportConnectTimeout,
    "deadline_exceeded": DeadlineExceeded,
    "tls_certificate": TlsError,
    "tls_failed": TlsError,
}


def transport_error(error: str) -> TransportError:
    """Return the exception for an error code."""
    return _CLASSES.get(error, TransportError)(error)
