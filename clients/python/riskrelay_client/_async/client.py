"""The asynchronous client of RiskRelay."""

from typing import Self

import httpx

from riskrelay_client import _transport
from riskrelay_client._async import administration, targets, triage, uploads
from riskrelay_client._async.sender import AsyncSender
from riskrelay_client._transport import RETRY_FOR_S, TIMEOUT_S


class AsyncRiskRelay:
    """A client of the RiskRelay at `url`: https, or http on this machine; `allow_http` also allows it elsewhere.

    `token` is an API or a platform token, `scanner_secret` the shared secret of the scanner. A request takes up to `timeout`
    seconds, a ping or a validation of a target up to 30 if that is more; it is repeated for up to `retry_for` seconds, with
    the same idempotency key, while that is safe. `transport` replaces httpx's, for example for a proxy or a client
    certificate.

    Use it as a context manager, or call `close`. Methods raise the errors of `riskrelay_client.errors`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        scanner_secret: str | None = None,
        timeout: float = TIMEOUT_S,
        retry_for: float = RETRY_FOR_S,
        allow_http: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = _transport.settings(url, token, scanner_secret, timeout, retry_for, allow_http)
        http = httpx.AsyncClient(
            base_url=settings.url,
            timeout=timeout,
            transport=transport,
            mounts=_transport.direct(settings.url),
            follow_redirects=False,
        )
        self._sender = sender = AsyncSender(settings, http)
        self.exports = triage.AsyncExports(sender)
        self.bulk_jobs = triage.AsyncBulkJobs(sender)
        self.findings = triage.AsyncFindings(sender)
        self.approval_rules = triage.AsyncApprovalRules(sender)
        self.targets = targets.AsyncTargets(sender)
        self.recoveries = targets.AsyncRecoveries(sender)
        self.scanner = uploads.AsyncScanner(sender)
        self.uploads = uploads.AsyncUploads(sender)
        self.accounts = administration.AsyncAccounts(sender)
        self.projects = administration.AsyncProjects(sender)
        self.users = administration.AsyncUsers(sender)
        self.grants = administration.AsyncGrants(sender)
        self.tokens = administration.AsyncTokens(sender)
        self.scan_runs = administration.AsyncScanRuns(sender)
        self.audit = administration.AsyncAudit(sender)
        self.compliance_requests = administration.AsyncComplianceRequests(sender)
        self.console_sessions = administration.AsyncConsoleSessions(sender)

    def __repr__(self) -> str:
        return f"AsyncRiskRelay({self._sender.settings.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._sender.http.aclose()
