"""The records of accounts, users, grants, tokens, scan runs, the audit log and compliance, as typed dictionaries."""

from typing import Any, Literal, NotRequired, TypedDict

Role = Literal["viewer", "triager", "manager", "owner"]
TicketGrouping = Literal["rule", "finding"]


class Account(TypedDict):
    """An owner of projects, targets and exports."""

    id: int
    name: str
    may_use_webhooks: bool
    created_at: str
    usage: NotRequired[dict[str, Any]]


class User(TypedDict):
    """A person of an account; a null role means only the roles of its grants."""

    id: int
    email: str
    account_id: int
    role: Role | None
    state: Literal["active", "disabled", "removed"]
    created_at: str


class Grant(TypedDict):
    """What a user may do in a project or with a report; a null role means uploads only."""

    id: int
    user_id: int
    user: str
    project_id: int | None
    report_id: int | None
    role: Role | None
    created_at: str


class Token(TypedDict):
    """A token without its value."""

    id: int
    kind: Literal["api", "platform"]
    name: str | None
    user_id: int
    user: str
    abilities: list[str]
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class NewToken(Token):
    """A new token; `token` is its value, which is never shown again."""

    token: str


class ScanRun(TypedDict):
    """A registered scan run."""

    id: int
    project_id: int
    status: str
    created_at: str
    updated_at: str


class AuditActor(TypedDict):
    """Who acted: a user, a rule or the system."""

    kind: str
    id: int | str | None


class AuditObject(TypedDict):
    """What was acted on."""

    type: str
    id: int | str


class AuditEntry(TypedDict):
    """An entry of the audit log."""

    id: int | str
    at: str
    actor: AuditActor
    action: str
    object: AuditObject
    details: dict[str, Any]


class ComplianceRequest(TypedDict):
    """A compliance request, without personal data; more members are those of `compliance show`."""

    id: str
    topic: str
    status: str
