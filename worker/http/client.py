"""Dial only addresses that the policy allows, and come back within one deadline.

A name is resolved once, every answer is classified, and the very address that was classified is dialed
(`worker.http.dialer`); Host, SNI and the certificate's name stay those of the URL. A kept-alive connection is used only
while its name was found to lead to its address within the last few seconds (`worker.http.connection_pool`). Redirects are
not followed; proxies, netrc and CA variables of the environment do not count. One deadline covers DNS, connect, TLS, headers
and body (`worker.http.deadline`), and what a receiver may say is bounded in bytes as they come
(`worker.http.response_parser`).
"""

import ssl
import time
from contextlib import closing
from functools import lru_cache
from typing import Any, Final

import requests

from runtime.clock import utc_now
from runtime.dns_resolver import DnsResolver
from schemas.exports.delivery import Outcome
from schemas.targets.validations import EXPIRES_SOON, EXPIRES_SOON_DAYS, Validation
from schemas.url_policy.policy import TargetPolicy, UrlRefusal
from schemas.url_policy.target_url import check_url
from worker.http.connection_pool import GuardedAdapter
from worker.http.deadline import Exchange, Watchdog
from worker.http.dialer import Dialer, DialFailed
from worker.http.response_parser import Answer, InvalidResponse

#: How long an answer of the name servers counts for kept connections. A receiver that moves leaves its name to be cached for
#: 30 s and more, so this is no delay that anybody sees, and one lookup per host in this time is no load.
CONFIRMED_FOR_S: Final = 5.0
#: How long a connection is kept without use. Load balancers and firewalls commonly forget one after 60 s, some silently.
KEPT_IDLE_S: Final = 30.0
#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, which the ssl module has no name for.
_CERT_HAS_EXPIRED: Final = 10
#: URL verdicts are kept for this many targets.
_KNOWN_URLS: Final = 1024


class HttpClient:
    """Posts to targets over kept-alive connections; one for all threads of a process.

    `verify` is True for the usual certificate authorities, or the path of a bundle. A kept connection is used while its name
    was confirmed within `confirmed_for_s`, and closed when nobody used it for some `kept_idle_s`.
    """

    def __init__(
        self,
        policy: TargetPolicy,
        resolver: DnsResolver,
        deadline_s: float,
        connect_timeout_s: float,
        connections: int,
        verify: bool | str = True,
        confirmed_for_s: float = CONFIRMED_FOR_S,
        kept_idle_s: float = KEPT_IDLE_S,
    ) -> None:
        self._policy = policy
        self._deadline_s = deadline_s
        self._verify = verify
        self._adapter = GuardedAdapter(Dialer(policy, resolver, connect_timeout_s, confirmed_for_s), connections)
        self._watchdog = Watchdog(lambda: self._adapter.close_idle(kept_idle_s), kept_idle_s / 6)
        self._checked = lru_cache(maxsize=_KNOWN_URLS)(self._check)

    def post(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Send one POST and return what it met; never raises for what the network or the receiver does."""
        checked = self._checked(url)
        if isinstance(checked, UrlRefusal):
            return Outcome(error=checked.reason, refused=True)
        exchange = Exchange(time.monotonic() + self._deadline_s)
        self._watchdog.watch(exchange)
        try:
            return self._exchange(_request(checked, headers, body), exchange)
        finally:
            self._watchdog.forget(exchange)

    def inspect(self, url: str) -> Validation:
        """Look at a target as a delivery would meet it now, from its URL to its certificate; sends nothing and never raises.

        Reasons are the error names of attempts, and `certificate_expired` beside them.
        """
        checked = self._checked(url)
        if isinstance(checked, UrlRefusal):
            return Validation(checked.reason, is_refused=True)
        exchange = Exchange(time.monotonic() + self._deadline_s)
        self._watchdog.watch(exchange)
        try:
            return self._look(checked, exchange)
        finally:
            self._watchdog.forget(exchange)

    def close(self) -> None:
        """Close every kept-alive connection."""
        self._adapter.close()

    def _check(self, url: str) -> str | UrlRefusal:
        """Check the URL, and return it as requests spells it; both are the same for every delivery to it."""
        checked = check_url(url, self._policy)
        return checked if isinstance(checked, UrlRefusal) else str(requests.Request("POST", checked.url).prepare().url)

    def _exchange(self, request: requests.PreparedRequest, exchange: Exchange) -> Outcome:
        try:
            answer: Answer = self._adapter.send(request, timeout=exchange, verify=self._verify)
        except DialFailed as failed:
            return exchange.outcome(error=failed.error, refused=failed.refused)
        except (InvalidResponse, OSError) as failed:
            return exchange.outcome(error="deadline_exceeded" if exchange.is_over() else _error_name(failed))
        return exchange.outcome(answer.status, retry_after=answer.retry_after, body=answer.body)

    def _look(self, url: str, exchange: Exchange) -> Validation:
        try:
            with closing(self._adapter.connect(url, self._verify, exchange)) as connection:
                return _judge_certificate(connection.socket)
        except DialFailed as failed:
            return Validation(failed.error, failed.refused)
        except OSError as failed:
            return Validation("deadline_exceeded" if exchange.is_over() else _fault_in(failed))


def _request(url: str, headers: dict[str, str], body: bytes) -> requests.PreparedRequest:
    """Put a request together from parts that are in order already; preparing it anew costs more than sending it."""
    request = requests.PreparedRequest()
    request.method, request.url, request.body = "POST", url, body
    framing = {"Accept-Encoding": "identity", "Content-Length": str(len(body))}
    request.headers = {**headers, **framing}  # type: ignore[assignment]  # nobody looks them up in another case
    return request


def _judge_certificate(connected: Any) -> Validation:
    """Tell whether the certificate, which has been verified, runs out soon; over plain http there is none."""
    if not isinstance(connected, ssl.SSLSocket):
        return Validation()
    certificate: Any = connected.getpeercert()
    left_s = ssl.cert_time_to_seconds(certificate["notAfter"]) - utc_now().timestamp()
    return Validation(EXPIRES_SOON if left_s < EXPIRES_SOON_DAYS * 24 * 3600 else None)


def _fault_in(failed: OSError) -> str:
    """Name what an inspection met: as an attempt would, but for a certificate that has run out."""
    if isinstance(failed, ssl.SSLCertVerificationError) and failed.verify_code == _CERT_HAS_EXPIRED:
        return "certificate_expired"
    return _error_name(failed)


def _error_name(failed: InvalidResponse | OSError) -> str:
    """Name what went wrong between connecting and the end of the headers."""
    if isinstance(failed, InvalidResponse):
        return "bad_answer"
    if isinstance(failed, ssl.SSLCertVerificationError):
        return "tls_certificate"
    return "tls_failed" if isinstance(failed, ssl.SSLError) else "connection_closed"
