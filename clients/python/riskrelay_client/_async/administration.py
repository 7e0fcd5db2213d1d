"""Accounts, projects, users, grants, tokens, scan runs, the audit log, compliance requests and console sessions.

They need the ability `account:manage`; other accounts than the token's own and compliance requests need `admin`. With
`admin`, lists take `account_id`.
"""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Final, Literal, Unpack

from riskrelay_client import models
from riskrelay_client._async.sender import AsyncResource
from riskrelay_client._transport import given, path, timestamp
from riskrelay_client.filters import AuditFilter, Role, TicketGrouping
from riskrelay_client.models import Account, AuditEntry, ComplianceRequest, Grant, NewToken, ScanRun, Token, User

_ACCOUNT: Final = "/api/accounts/{}"
_PROJECT: Final = "/api/projects/{}"
_USER: Final = "/api/users/{}"
_GRANT: Final = "/api/grants/{}"


class AsyncAccounts(AsyncResource):
    """The token's own account, and those of an operator."""

    async def own(self) -> Account:
        """Read the token's own account with its usage."""
        return await self._sender.get(Account, "/api/account")

    async def rename_own(self, name: str, *, idempotency_key: str | None = None) -> Account:
        """Rename the token's own account."""
        return await self._sender.patch(Account, "/api/account", {"name": name}, idempotency_key)

    def list(self) -> AsyncIterator[Account]:
        """Iterate over all accounts."""
        return self._sender.pages(Account, "/api/accounts", {})

    async def create(
        self, name: str, *, may_use_webhooks: bool | None = None, idempotency_key: str | None = None
    ) -> Account:
        """Create an account."""
        body = given(name=name, may_use_webhooks=may_use_webhooks)
        return await self._sender.post(Account, "/api/accounts", body, idempotency_key)

    async def get(self, account_id: int) -> Account:
        """Read an account."""
        return await self._sender.get(Account, path(_ACCOUNT, account_id))

    async def edit(
        self,
        account_id: int,
        *,
        name: str | None = None,
        may_use_webhooks: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Account:
        """Change the given members of an account."""
        body = given(name=name, may_use_webhooks=may_use_webhooks)
        return await self._sender.patch(Account, path(_ACCOUNT, account_id), body, idempotency_key)


class AsyncProjects(AsyncResource):
    """The sites of an account."""

    def list(self, *, account_id: int | None = None) -> AsyncIterator[models.Project]:
        """Iterate over projects."""
        return self._sender.pages(models.Project, "/api/projects", {"account_id": account_id})

    async def create(
        self,
        name: str,
        *,
        shop_domain: str | None = None,
        ticket_grouping: TicketGrouping | None = None,
        account_id: int | None = None,
        idempotency_key: str | None = None,
    ) -> models.Project:
        """Create a project."""
        body = given(name=name, shop_domain=shop_domain, ticket_grouping=ticket_grouping, account_id=account_id)
        return await self._sender.post(models.Project, "/api/projects", body, idempotency_key)

    async def get(self, project_id: int) -> models.Project:
        """Read a project."""
        return await self._sender.get(models.Project, path(_PROJECT, project_id))

    async def edit(
        self, project_id: int, *, idempotency_key: str | None = None, **changes: Unpack[models.ProjectChangeInput]
    ) -> models.Project:
        """Change the given members of a project; `shop_domain=None` removes the domain."""
        return await self._sender.patch(models.Project, path(_PROJECT, project_id), changes, idempotency_key)


class AsyncUsers(AsyncResource):
    """The people of an account."""

    def list(self, *, email: str | None = None, account_id: int | None = None) -> AsyncIterator[User]:
        """Iterate over users, or find the one with an email address."""
        return self._sender.pages(User, "/api/users", {"email": email, "account_id": account_id})

    async def create(
        self, email: str, *, role: Role | None = None, account_id: int | None = None, idempotency_key: str | None = None
    ) -> User:
        """Create a user; without a role, only grants give rights."""
        body = given(email=email, role=role, account_id=account_id)
        return await self._sender.post(User, "/api/users", body, idempotency_key)

    async def get(self, user_id: int) -> User:
        """Read a user."""
        return await self._sender.get(User, path(_USER, user_id))

    async def set_role(self, user_id: int, role: Role | None, *, idempotency_key: str | None = None) -> User:
        """Change the role in the account; None removes it."""
        return await self._sender.patch(User, path(_USER, user_id), {"role": role}, idempotency_key)

    async def set_state(
        self, user_id: int, state: Literal["active", "disabled"], *, idempotency_key: str | None = None
    ) -> User:
        """Disable a user, whose tokens then stop working, or enable it again."""
        return await self._sender.patch(User, path(_USER, user_id), {"state": state}, idempotency_key)

    async def remove(self, user_id: int) -> None:
        """Remove a user for good."""
        await self._sender.delete(path(_USER, user_id))


class AsyncGrants(AsyncResource):
    """What users may do in single projects and with single reports."""

    def list(
        self, *, user_id: int | None = None, project_id: int | None = None, account_id: int | None = None
    ) -> AsyncIterator[Grant]:
        """Iterate over grants."""
        query = {"user_id": user_id, "project_id": project_id, "account_id": account_id}
        return self._sender.pages(Grant, "/api/grants", query)

    async def create(
        self,
        user_id: int,
        *,
        project_id: int | None = None,
        report_id: int | None = None,
        role: Role | None = None,
        idempotency_key: str | None = None,
    ) -> Grant:
        """Grant a user a project or a report; without a role, only uploads."""
        body = given(user_id=user_id, project_id=project_id, report_id=report_id, role=role)
        return await self._sender.post(Grant, "/api/grants", body, idempotency_key)

    async def get(self, grant_id: int) -> Grant:
        """Read a grant."""
        return await self._sender.get(Grant, path(_GRANT, grant_id))

    async def remove(self, grant_id: int) -> None:
        """Remove a grant."""
        await self._sender.delete(path(_GRANT, grant_id))


class AsyncTokens(AsyncResource):
    """Tokens of users; a token cannot create one that may do more than itself."""

    def list(self, *, user_id: int | None = None, account_id: int | None = None) -> AsyncIterator[Token]:
        """Iterate over tokens, without their values."""
        return self._sender.pages(Token, "/api/tokens", {"user_id": user_id, "account_id": account_id})

    async def create(
        self,
        kind: Literal["api", "platform"] = "api",
        *,
        user_id: int | None = None,
        abilities: Iterable[str] | None = None,
        name: str | None = None,
        expires_at: datetime | str | None = None,
        idempotency_key: str | None = None,
    ) -> NewToken:
        """Create a token, by default for the user of this one; its member `token` is shown only now."""
        named = None if abilities is None else [*abilities]
        ends = None if expires_at is None else timestamp(expires_at)
        body = given(kind=kind, user_id=user_id, abilities=named, name=name, expires_at=ends)
        return await self._sender.post(NewToken, "/api/tokens", body, idempotency_key)

    async def get(self, token_id: int) -> Token:
        """Read a token, without its value."""
        return await self._sender.get(Token, path("/api/tokens/{}", token_id))

    async def revoke(self, token_id: int) -> None:
        """Revoke a token; it stops working at once."""
        await self._sender.delete(path("/api/tokens/{}", token_id))


class AsyncScanRuns(AsyncResource):
    """Scan runs, registered so that their results belong to a project."""

    def list(self, *, project_id: int | None = None, account_id: int | None = None) -> AsyncIterator[ScanRun]:
        """Iterate over scan runs, the highest number first."""
        query = {"project_id": project_id, "account_id": account_id}
        return self._sender.pages(ScanRun, "/api/scan-runs", query)

    async def register(
        self, project_id: int, *, scan_run_id: int | None = None, idempotency_key: str | None = None
    ) -> ScanRun:
        """Register a scan run of a project, with an id of your own if one is given."""
        body = given(project_id=project_id, id=scan_run_id)
        return await self._sender.post(ScanRun, "/api/scan-runs", body, idempotency_key)

    async def get(self, scan_run_id: int) -> ScanRun:
        """Read a scan run."""
        return await self._sender.get(ScanRun, path("/api/scan-runs/{}", scan_run_id))


class AsyncAudit(AsyncResource):
    """The audit log: who changed what, and when."""

    def list(self, *, page_size: int | None = None, **filters: Unpack[AuditFilter]) -> AsyncIterator[AuditEntry]:
        """Iterate over the audit log, newest first."""
        return self._sender.pages(AuditEntry, "/api/audit", {**filters, "limit": page_size})


class AsyncComplianceRequests(AsyncResource):
    """Requests of shops to show or erase data."""

    def list(self) -> AsyncIterator[ComplianceRequest]:
        """Iterate over compliance requests, newest first."""
        return self._sender.pages(ComplianceRequest, "/api/compliance-requests", {})

    async def get(self, request_id: str) -> ComplianceRequest:
        """Read a compliance request."""
        return await self._sender.get(ComplianceRequest, path("/api/compliance-requests/{}", request_id))


class AsyncConsoleSessions(AsyncResource):
    """Browsers that are signed in to the console."""

    def list(self) -> AsyncIterator[models.ConsoleSession]:
        """Iterate over sessions, newest first."""
        return self._sender.pages(models.ConsoleSession, "/api/console-sessions", {})

    async def revoke(self, session_id: str, *, idempotency_key: str | None = None) -> models.ConsoleSession:
        """Sign a browser out."""
        address = path("/api/console-sessions/{}/revoke", session_id)
        return await self._sender.post(models.ConsoleSession, address, None, idempotency_key)
