"""Uploads of scanners, browser extensions, CMS plugins and storefront apps."""

from riskrelay_client import _transport, models
from riskrelay_client._async.sender import AsyncResource
from riskrelay_client._transport import path


class AsyncScanner(AsyncResource):
    """Results of scans, which need the scanner's shared secret in place of a token."""

    async def submit(self, postback: models.PostbackInput, *, idempotency_key: str | None = None) -> models.Postback:
        """Submit the result for one page; new findings prepare exports."""
        secret = self._sender.settings.scanner_secret
        submitted = _transport.call("POST", "/api/scanner/results", secret, postback, idempotency_key, None)
        reply = await self._sender.send(submitted)
        postback_result: models.Postback = reply.data
        return postback_result


class AsyncUploads(AsyncResource):
    """Uploads of platforms, which need a platform token."""

    async def evidence_capture(
        self, capture: models.CaptureInput, *, idempotency_key: str | None = None
    ) -> models.CaptureUpload:
        """Upload what a browser extension captured."""
        address = "/api/browser-extension/evidence-captures"
        return await self._sender.post(models.CaptureUpload, address, capture, idempotency_key)

    async def cms_diagnostics(
        self, diagnostics: models.CmsDiagnosticsInput, *, idempotency_key: str | None = None
    ) -> models.CmsUpload:
        """Upload the diagnostics of a CMS plugin."""
        address = "/api/cms-plugins/cms-commerce/diagnostics"
        return await self._sender.post(models.CmsUpload, address, diagnostics, idempotency_key)

    async def storefront_diagnostics(
        self, diagnostics: models.StorefrontDiagnosticsInput, *, idempotency_key: str | None = None
    ) -> models.StorefrontUpload:
        """Upload the diagnostics of a storefront app."""
        address = "/api/storefront-app/diagnostics"
        return await self._sender.post(models.StorefrontUpload, address, diagnostics, idempotency_key)

    async def handoff(self, handoff_id: str) -> models.HandoffProgress:
        """Read the progress of an upload."""
        return await self._sender.get(models.HandoffProgress, path("/api/handoffs/{}", handoff_id))
