"""Accounts, and their users, grants, tokens, projects, scan runs, sessions and audit log."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from marshmallow import fields

from schemas.api import response_fields as field
from schemas.api.response_fields import EXAMPLE, ResponseSchema, dump
from schemas.base.console_session import SessionEndReason, SignInMethod
from schemas.base.principal import PROJECT_ROLES, Ability, Role, TokenKind
from schemas.compliance.requests import ComplianceRequest, ComplianceResult, ComplianceStatus, Topic
from schemas.intake.grouping import TicketGrouping


class LimitUsageResponse(ResponseSchema):
    """How much of a limit is used."""

    used = field.number("How many there are.", example=312)
    limit = field.number("How many there may be.", example=10_000)


class AccountUsageResponse(ResponseSchema):
    """What an account stores."""

    findings = field.part(LimitUsageResponse, "Findings.")
    waiting_exports = field.part(LimitUsageResponse, "Exports that are prepared, approved or to be retried.")
    targets = field.part(LimitUsageResponse, "Targets.")
    uploads_24h = field.part(LimitUsageResponse, "Uploads of the last 24 hours.")


class AccountResponse(ResponseSchema):
    """An account."""

    id = field.number("The account.", minimum=1, example=2)
    name = field.text("Its name.", example="Example Ltd")
    may_use_webhooks = field.truth("Whether it may use webhook and tracker targets.")
    created_at = field.moment("When it was created.")
    usage = field.part(AccountUsageResponse, "What it stores, and its limits.")


class Address(fields.String):
    """The email of a user; null for a removed user, whose address is erased."""

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        # No address has a colon.
        return None if value.startswith("removed:") else value


def address(description: str, attribute: str | None = None) -> Address:
    """Return the field of a user's email, which `attribute` holds."""
    metadata = {"description": f"{description}; null once removed.", EXAMPLE: "ada@shop.example"}
    return Address(required=True, allow_none=True, attribute=attribute, metadata=metadata)


class UserResponse(ResponseSchema):
    """A user of an account."""

    id = field.number("The user.", minimum=1, example=7)
    email = address("The address")
    account_id = field.number("The account.", minimum=1, example=2)
    role = field.one_of(
        Role,
        "What the user may do in the account; null: only the roles of grants count.",
        nullable=True,
        example=Role.TRIAGER,
    )
    state = field.one_of(("active", "disabled", "removed"), "Whether the user's tokens are accepted.")
    created_at = field.moment("When the user was created.")


class GrantResponse(ResponseSchema):
    """The right of a user to manage a project or one report."""

    id = field.number("The grant.", minimum=1, example=12)
    user_id = field.number("The user.", minimum=1, example=7)
    user = address("The user's address")
    project_id = field.number("The project; null for a report.", nullable=True, minimum=1, example=1)
    report_id = field.number("The report; null for a project.", nullable=True, minimum=1)
    role = field.one_of(PROJECT_ROLES, "What a user without a role in the account may do in the project.", nullable=True)
    created_at = field.moment("When it was given.")


class TokenResponse(ResponseSchema):
    """A token without its text."""

    id = field.number("The token.", minimum=1, example=31)
    kind = field.one_of(TokenKind, "`api` or `platform`.", example=TokenKind.API)
    name = field.text("Its purpose.", example="nightly export")
    user_id = field.number("The user that it acts for.", minimum=1, example=7)
    user = address("The user's address")
    abilities = field.several(field.one_of(Ability, "An ability."), "What it may do, as far as the user's role allows it.")
    created_at = field.moment("When it was created.")
    expires_at = field.moment("When it expires; null: never.", nullable=True)
    revoked_at = field.moment("When it was revoked.", nullable=True)


class NewTokenResponse(TokenResponse):
    """A token that was created."""

    token = field.text(
        "The token, only in this response; null in the response to a repeated request.", nullable=True, example="rrt_…"
    )


class ScanRunResponse(ResponseSchema):
    """A scan run."""

    id = field.number("The scan run; the scanner's own number.", minimum=1, example=42)
    project_id = field.number("The project that its results belong to.", minimum=1)
    status = field.text("`running`, or what the scanner's last result said.", example="running")
    created_at = field.moment("When it was registered.")
    updated_at = field.moment("When its last result came.")


class AuditActorResponse(ResponseSchema):
    """The actor of an audit entry."""

    kind = field.text("`user`, `operator`, `rule`, `worker`, `scanner` and so on.", example="user")
    id = field.text("The user's number or the rule; null for others.", nullable=True, example="7")


class AuditObjectResponse(ResponseSchema):
    """The record that an audit entry is about."""

    type = field.text("`exp`, `tgt`, `user`, `token` and so on: the beginning of its id.", example="token")
    id = field.text("Its id, as `object` of the list takes it.", example="token:31")


class AuditEntryResponse(ResponseSchema):
    """An entry of the audit log."""

    id = field.number("The entry; grows with every entry.", minimum=1, example=4711)
    at = field.moment("When it was done.")
    actor = field.part(AuditActorResponse, "Who did it.")
    action = field.text("What was done.", example="revoke_token")
    object = field.part(AuditObjectResponse, "What it was done to.")
    details = field.free("`status_before`, `status_after`, `reason` and `digest`, as far as there are any.")


class ComplianceRequestResponse(ResponseSchema):
    """A request of the storefront platform about personal data, without any."""

    id = field.identifier("cpl", "The request.")
    topic = field.one_of(Topic, "What is requested.")
    shop_domain = field.text("The shop.", example="snow.shops.example")
    subject = field.text("A pseudonym of the person; null for a shop.", nullable=True, attribute="subject_pseudonym")
    status = field.one_of(ComplianceStatus, "Whether it is done.")
    result = field.one_of(ComplianceResult, "What came of it.", nullable=True)
    counts = field.counts("Number of rows by result.")
    has_report = field.truth("Whether it holds a report for the person.", example=False)
    attempts = field.number("How often a worker began it.")
    last_error = field.text("Why the last attempt failed.", nullable=True)
    received_at = field.moment("When it came.")
    due_at = field.moment("When it is due by law.")
    overdue = field.truth("Whether it is not done although it is due.", example=False)
    next_run_at = field.moment("When a worker tries it next.", nullable=True)
    finished_at = field.moment("When it was done.", nullable=True)


def dump_compliance_request(request: ComplianceRequest, now: datetime) -> dict[str, Any]:
    """Return the record of a request as it is at `now`."""
    is_overdue = request.status is ComplianceStatus.RECEIVED and request.due_at <= now
    return dump(ComplianceRequestResponse, {**asdict(request), "overdue": is_overdue})


class ProjectResponse(ResponseSchema):
    """A website of the account."""

    id = field.number("The project.", minimum=1)
    name = field.text("Its name.", example="Shop")
    account_id = field.number("The account.", minimum=1, example=2)
    shop_domain = field.text("The storefront's domain, if it is a storefront.", nullable=True)
    ticket_grouping = field.one_of(
        TicketGrouping, "How new findings become tickets: one for all findings of a `rule`, or one for each `finding`."
    )
    created_at = field.moment("When it was created.")


class ConsoleSessionResponse(ResponseSchema):
    """A session at the console."""

    id = field.identifier("ses", "The session; this id is not a credential.")
    user = field.text("The email address of the user.", attribute="email", example="ada@shop.example")
    method = field.one_of([*SignInMethod], "How the user signed in.")
    token_id = field.number(
        "The token that was used to sign in; null for other methods.",
        minimum=1,
        nullable=True,
        attribute="principal.token_id",
        example=3,
    )
    token_name = field.text("The name of that token.", nullable=True, example="Ada's console")
    created_at = field.moment("When the user signed in.")
    seen_at = field.moment("When the session was last used, to the minute.")
    ended_at = field.moment("When it was ended.", nullable=True)
    ended_reason = field.one_of(
        [
            SessionEndReason.SIGNED_OUT,
            SessionEndReason.REVOKED,
            SessionEndReason.REPLACED,
            SessionEndReason.ANOTHER_BROWSER,
            SessionEndReason.RESTORED,
        ],
        "Why it was ended.",
        nullable=True,
        attribute="ended",
    )
