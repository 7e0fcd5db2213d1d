"""Exports, findings and approval rules."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final, Unpack

from riskrelay_client import models
from riskrelay_client._async.sender import AsyncResource
from riskrelay_client._transport import given, joined, path, timestamp
from riskrelay_client.filters import DismissalReason, ExportFilter, FindingFilter, SortedExportFilter

_EXPORTS: Final = "/api/ticket-exports"
_EXPORT: Final = "/api/ticket-exports/{}"
_BULK_JOB: Final = "/api/bulk-jobs/{}"
_RULE: Final = "/api/approval-rules/{}"

#: Statuses of exports that only a request changes, and of jobs that have ended.
_FINISHED_EXPORTS: Final = frozenset({"exported", "failed", "blocked", "dismissed"})
_FINISHED_JOBS: Final = frozenset({"done", "cancelled"})


class AsyncExports(AsyncResource):
    """Tickets on their way to targets."""

    async def prepare(
        self,
        ticket: models.TicketInput,
        *,
        source_id: str | None = None,
        project_id: int | None = None,
        idempotency_key: str | None = None,
    ) -> models.Export:
        """Prepare a ticket by hand; `source_id` is your own id for it. It waits for an approval."""
        source = None if source_id is None else {"type": "manual", "id": source_id}
        body = given(ticket=ticket, source=source, project_id=project_id)
        return await self._sender.post(models.Export, _EXPORTS, body, idempotency_key)

    async def get(self, export_id: str) -> models.Export:
        """Read an export with its ticket."""
        return await self._sender.get(models.Export, path(_EXPORT, export_id))

    def list(self, *, page_size: int | None = None, **filters: Unpack[SortedExportFilter]) -> AsyncIterator[models.Export]:
        """Iterate over exports, newest first unless `sort` says otherwise; pages are read when they are needed."""
        return self._sender.pages(models.Export, _EXPORTS, {**filters, "limit": page_size})

    async def page(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        facets: bool = False,
        **filters: Unpack[SortedExportFilter],
    ) -> models.ExportList:
        """Read one page of exports, with their `total`, and with `facets` the counts of each value."""
        query = {**filters, "cursor": cursor, "limit": limit, "facets": facets or None}
        return await self._sender.get(models.ExportList, _EXPORTS, query)

    async def edit(
        self, export_id: str, *, idempotency_key: str | None = None, **changes: Unpack[models.EditInput]
    ) -> models.Export:
        """Change the ticket of a prepared export; with `ticket_digest`, only the version that was seen."""
        return await self._sender.patch(models.Export, path(_EXPORT, export_id), changes, idempotency_key)

    def attempts(self, export_id: str) -> AsyncIterator[models.Attempt]:
        """Iterate over the delivery attempts, newest first."""
        return self._sender.pages(models.Attempt, path(f"{_EXPORT}/attempts", export_id), {})

    def events(self, export_id: str) -> AsyncIterator[models.TicketEvent]:
        """Iterate over the events after the delivery, newest first."""
        return self._sender.pages(models.TicketEvent, path(f"{_EXPORT}/events", export_id), {})

    async def receipt(self, export_id: str) -> models.DeliveryReceipt:
        """Read the delivery receipt of an exported ticket."""
        return await self._sender.get(models.DeliveryReceipt, path(f"{_EXPORT}/receipt", export_id))

    async def approve(
        self,
        export_id: str,
        target_id: str,
        *,
        ticket_digest: str | None = None,
        events: bool | None = None,
        idempotency_key: str | None = None,
    ) -> models.Export:
        """Approve a ticket for a target, which starts its delivery.

        With the `ticket_digest` that a person has seen, a ticket that has changed since raises Conflict. With `events` false
        the approval does not cover the events after the delivery. Approving again for the same target changes nothing.
        """
        body = given(target_id=target_id, ticket_digest=ticket_digest, events=events)
        return await self._sender.post(models.Export, path(f"{_EXPORT}/approve", export_id), body, idempotency_key)

    async def approve_for_each(
        self,
        export_id: str,
        target_ids: Sequence[str],
        *,
        ticket_digest: str | None = None,
        events: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Sequence[models.Export]:
        """Approve a ticket for 2 to 20 targets, all or none; there is one export for each afterwards."""
        body = given(target_ids=[*target_ids], ticket_digest=ticket_digest, events=events)
        address = path(f"{_EXPORT}/approve", export_id)
        return (await self._sender.post(models.SiblingExports, address, body, idempotency_key))["items"]

    async def retry(
        self, export_id: str, *, target_id: str | None = None, idempotency_key: str | None = None
    ) -> models.Export:
        """Deliver a failed or blocked export again, to another target if one is named."""
        body = given(target_id=target_id)
        return await self._sender.post(models.Export, path(f"{_EXPORT}/retry", export_id), body, idempotency_key)

    async def dismiss(
        self,
        export_id: str,
        *,
        reason: DismissalReason | None = None,
        note: str | None = None,
        idempotency_key: str | None = None,
    ) -> models.Export:
        """Dismiss a prepared export with its findings."""
        body = given(reason=reason, note=note)
        return await self._sender.post(models.Export, path(f"{_EXPORT}/dismiss", export_id), body, idempotency_key)

    async def restore(self, export_id: str, *, idempotency_key: str | None = None) -> models.Export:
        """Make a dismissed export prepared again, or end its snooze."""
        return await self._sender.post(models.Export, path(f"{_EXPORT}/restore", export_id), None, idempotency_key)

    async def snooze(
        self, export_id: str, until: datetime | str | None, *, idempotency_key: str | None = None
    ) -> models.Export:
        """Hide a prepared export until a time, or until it is seen again (None)."""
        body = {"until": None if until is None else timestamp(until)}
        return await self._sender.post(models.Export, path(f"{_EXPORT}/snooze", export_id), body, idempotency_key)

    async def split(self, export_id: str, *, idempotency_key: str | None = None) -> Sequence[str]:
        """Split a group into one export for each finding; returns the ids of all."""
        address = path(f"{_EXPORT}/split", export_id)
        return (await self._sender.post(models.Split, address, None, idempotency_key))["ticket_exports"]

    async def decide(self, decision: models.BulkDecisionInput, *, idempotency_key: str | None = None) -> models.BulkResults:
        """Approve, dismiss, restore or retry up to 200 exports by `ids`; each has a result of its own."""
        return await self._sender.post(models.BulkResults, f"{_EXPORTS}/bulk", decision, idempotency_key)

    async def decide_matching(
        self,
        decision: models.BulkDecisionInput,
        matching: ExportFilter,
        expected_count: int,
        *,
        idempotency_key: str | None = None,
    ) -> models.BulkJob:
        """Start a job that decides on all exports of a filter; another count than expected raises Conflict with `count`."""
        body = {**decision, "filter": joined(matching), "expected_count": expected_count}
        return await self._sender.post(models.BulkJob, f"{_EXPORTS}/bulk", body, idempotency_key)

    async def wait(
        self, export_id: str, timeout: float, *, on_change: Callable[[models.Export], object] | None = None
    ) -> models.Export:
        """Wait until an export is exported, failed, blocked or dismissed, at most `timeout` seconds.

        `on_change` gets each new version. Raises WaitTimeout, also when the next attempt is due later than that. Raises
        Unreachable if RiskRelay cannot be reached for `retry_for` seconds, or until `timeout` ends.
        """
        return await self._sender.wait(models.Export, path(_EXPORT, export_id), timeout, _FINISHED_EXPORTS, on_change)


class AsyncBulkJobs(AsyncResource):
    """Decisions on all exports of a filter."""

    def list(self) -> AsyncIterator[models.BulkJob]:
        """Iterate over jobs, newest first."""
        return self._sender.pages(models.BulkJob, "/api/bulk-jobs", {})

    async def get(self, job_id: str) -> models.BulkJob:
        """Read a job."""
        return await self._sender.get(models.BulkJob, path(_BULK_JOB, job_id))

    async def cancel(self, job_id: str, *, idempotency_key: str | None = None) -> models.BulkJob:
        """Stop a job; its decisions so far remain."""
        return await self._sender.post(models.BulkJob, path(f"{_BULK_JOB}/cancel", job_id), None, idempotency_key)

    async def wait(self, job_id: str, timeout: float) -> models.BulkJob:
        """Wait until a job is done or cancelled, at most `timeout` seconds.

        Raises WaitTimeout. Raises Unreachable if RiskRelay cannot be reached for `retry_for` seconds, or until `timeout`
        ends.
        """
        return await self._sender.wait(models.BulkJob, path(_BULK_JOB, job_id), timeout, _FINISHED_JOBS)


class AsyncFindings(AsyncResource):
    """Issues on pages, over all scan runs."""

    def list(self, *, page_size: int | None = None, **filters: Unpack[FindingFilter]) -> AsyncIterator[models.Finding]:
        """Iterate over findings, newest first."""
        return self._sender.pages(models.Finding, "/api/findings", {**filters, "limit": page_size})

    async def get(self, finding_id: str) -> models.FindingHistory:
        """Read a finding with its history."""
        return await self._sender.get(models.FindingHistory, path("/api/findings/{}", finding_id))


class AsyncApprovalRules(AsyncResource):
    """Rules that approve, dismiss or label exports when they are prepared."""

    def list(self) -> AsyncIterator[models.ApprovalRule]:
        """Iterate over the rules."""
        return self._sender.pages(models.ApprovalRule, "/api/approval-rules", {})

    async def create(self, rule: models.RuleInput, *, idempotency_key: str | None = None) -> models.ApprovalRule:
        """Create a rule."""
        return await self._sender.post(models.ApprovalRule, "/api/approval-rules", rule, idempotency_key)

    async def get(self, rule_id: str) -> models.ApprovalRule:
        """Read a rule."""
        return await self._sender.get(models.ApprovalRule, path(_RULE, rule_id))

    async def edit(
        self, rule_id: str, *, idempotency_key: str | None = None, **changes: Unpack[models.RuleChangeInput]
    ) -> models.ApprovalRule:
        """Change the given members of a rule."""
        return await self._sender.patch(models.ApprovalRule, path(_RULE, rule_id), changes, idempotency_key)

    async def remove(self, rule_id: str) -> None:
        """Delete a rule."""
        await self._sender.delete(path(_RULE, rule_id))

    async def test(self, rule_id: str, *, idempotency_key: str | None = None) -> models.RuleTest:
        """Count the exports of the last 30 days that the rule would have matched; changes nothing."""
        return await self._sender.post(models.RuleTest, path(f"{_RULE}/test", rule_id), None, idempotency_key)
