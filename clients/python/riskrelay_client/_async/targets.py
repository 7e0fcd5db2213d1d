"""Targets and recoveries."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final, Literal, Unpack

from riskrelay_client import models
from riskrelay_client._async.sender import AsyncResource
from riskrelay_client._transport import PING_TIMEOUT_S, path, timestamp

_TARGETS: Final = "/api/ticket-export-targets"
_TARGET: Final = "/api/ticket-export-targets/{}"
_RECOVERIES: Final = "/api/ticket-export-recoveries"
_RECOVERY: Final = "/api/ticket-export-recoveries/{}"


class AsyncTargets(AsyncResource):
    """Where tickets are delivered. Secrets are set by the operator, never by the API."""

    def list(
        self, *, status: Literal["active", "inactive", "paused", "blocked", "disabled"] | None = None
    ) -> AsyncIterator[models.Target]:
        """Iterate over targets, newest first."""
        return self._sender.pages(models.Target, _TARGETS, {"status": status})

    async def providers(self) -> Sequence[models.Provider]:
        """Read which providers there are, with the settings of each."""
        return (await self._sender.get(models.ProviderList, "/api/providers"))["items"]

    async def create(self, target: models.NewTarget, *, idempotency_key: str | None = None) -> models.Target:
        """Create a target; an unsafe or unresolvable `base_url` raises ValidationFailed."""
        return await self._sender.post(models.Target, _TARGETS, target, idempotency_key)

    async def get(self, target_id: str) -> models.Target:
        """Read a target."""
        return await self._sender.get(models.Target, path(_TARGET, target_id))

    async def edit(
        self, target_id: str, *, idempotency_key: str | None = None, **changes: Unpack[models.TargetEditInput]
    ) -> models.Target:
        """Change the given members; a new `base_url` also applies to exports that wait."""
        return await self._sender.patch(models.Target, path(_TARGET, target_id), changes, idempotency_key)

    async def remove(self, target_id: str) -> None:
        """Remove a target; raises Conflict while exports or events wait for it."""
        await self._sender.delete(path(_TARGET, target_id))

    async def validate(self, target_id: str, *, idempotency_key: str | None = None) -> models.Target:
        """Check the URL, at a tracker also the token; see `last_validation`."""
        address = path(f"{_TARGET}/validate", target_id)
        return await self._sender.post(models.Target, address, None, idempotency_key, PING_TIMEOUT_S)

    async def ping(self, target_id: str, *, idempotency_key: str | None = None) -> models.PingOutcome:
        """Deliver a signed test event."""
        address = path(f"{_TARGET}/ping", target_id)
        return await self._sender.post(models.PingOutcome, address, None, idempotency_key, PING_TIMEOUT_S)

    async def pause(self, target_id: str, *, idempotency_key: str | None = None) -> models.Target:
        """Hold deliveries until `resume`."""
        return await self._action(target_id, "pause", idempotency_key)

    async def resume(self, target_id: str, *, idempotency_key: str | None = None) -> models.Target:
        """Continue deliveries of a paused, blocked or disabled target."""
        return await self._action(target_id, "resume", idempotency_key)

    async def disable(self, target_id: str, *, idempotency_key: str | None = None) -> models.Target:
        """Deliver nothing more to a target; exports that wait for it fail."""
        return await self._action(target_id, "disable", idempotency_key)

    async def _action(self, target_id: str, name: str, key: str | None) -> models.Target:
        return await self._sender.post(models.Target, path(f"{_TARGET}/{name}", target_id), None, key)


class AsyncRecoveries(AsyncResource):
    """Jobs that retry the failed exports of a target."""

    def list(self) -> AsyncIterator[models.Recovery]:
        """Iterate over recoveries, newest first."""
        return self._sender.pages(models.Recovery, _RECOVERIES, {})

    async def begin(self, target_id: str, since: datetime | str, *, idempotency_key: str | None = None) -> models.Recovery:
        """Start a job that retries the exports of a target that failed since a time."""
        body = {"target_id": target_id, "since": timestamp(since)}
        return await self._sender.post(models.Recovery, _RECOVERIES, body, idempotency_key)

    async def get(self, recovery_id: str) -> models.Recovery:
        """Read a recovery."""
        return await self._sender.get(models.Recovery, path(_RECOVERY, recovery_id))

    async def cancel(self, recovery_id: str, *, idempotency_key: str | None = None) -> models.Recovery:
        """Stop a recovery."""
        return await self._sender.post(models.Recovery, path(f"{_RECOVERY}/cancel", recovery_id), None, idempotency_key)

    async def wait(self, recovery_id: str, timeout: float) -> models.Recovery:
        """Wait until a recovery is done or cancelled, at most `timeout` seconds.

        Raises WaitTimeout. Raises Unreachable if RiskRelay cannot be reached for `retry_for` seconds, or until `timeout`
        ends.
        """
        return await self._sender.wait(
            models.Recovery, path(_RECOVERY, recovery_id), timeout, frozenset({"done", "cancelled"})
        )
