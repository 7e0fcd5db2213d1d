"""Accounts and what is managed in them: users, grants, tokens, projects, scan runs, sessions, the audit log."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from marshmallow import fields

from schemas.api.response_fields import (
    EXAMPLE,
    ResponseSchema,
    counts,
    dump,
    free,
    identifier,
    moment,
    number,
    one_of,
    part,
    several,
    text,
    truth,
)
from schemas.base.console_session import SessionEndReason, SignInMethod
from schemas.base.principal import PROJECT_ROLES, Ability, Role, TokenKind
from schemas.compliance.requests import ComplianceRequest, ComplianceResult, ComplianceStatus, Topic
from schemas.intake.grouping import TicketGrouping


class LimitUsageResponse(ResponseSchema):
    """How much of a limit is used."""

    used = number("How many there are.", example=312)
    limit = number("How many there may be.", example=10_000)


class AccountUsageResponse(ResponseSchema):
    """What an account stores."""

    findings = part(LimitUsageResponse, "Findings.")
    waiting_exports = part(LimitUsageResponse, "Exports that are prepared, approved or to be retried.")
    targets = part(LimitUsageResponse, "Targets.")
    uploads_24h = part(LimitUsageResponse, "Uploads of the last 24 hours.")


class AccountResponse(ResponseSchema):
    """An account."""

    id = number("The account.", minimum=1, example=2)
    name = text("Its name.", example="Example Ltd")
    may_use_webhooks = truth("Whether it may use webhook and tracker targets.")
    created_at = moment("When it was created.")
    usage = part(AccountUsageResponse, "What it stores, and its limits.")


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

    id = number("The user.", minimum=1, example=7)
    email = address("The address")
    account_id = number("The account.", minimum=1, example=2)
    role = one_of(
        Role,
        "What the user may do in the account; null: only the roles of grants count.",
        nullable=True,
        example=Role.TRIAGER,
    )
    state = one_of(("active", "disabled", "removed"), "Whether the user's tokens are accepted.")
    created_at = moment("When the user was created.")


class GrantResponse(ResponseSchema):
    """The right of a user to manage a project or one report."""

    id = number("The grant.", minimum=1, example=12)
    user_id = number("The user.", minimum=1, example=7)
    user = address("The user's address")
    project_id = number("The project; null for a report.", nullable=True, minimum=1, example=1)
    report_id = number("The report; null for a project.", nullable=True, minimum=1)
    role = one_of(PROJECT_ROLES, "What a user without a role in the account may do in the project.", nullable=True)
    created_at = moment("When it was given.")


class TokenResponse(ResponseSchema):
    """A token without its text."""

    id = number("The token.", minimum=1, example=31)
    kind = one_of(TokenKind, "`api` or `platform`.", example=TokenKind.API)
    name = text("Its purpose.", example="nightly export")
    user_id = number("The user that it acts for.", minimum=1, example=7)
    user = address("The user's address")
    abilities = several(one_of(Ability, "An ability."), "What it may do, as far as the user's role allows it.")
    created_at = moment("When it was created.")
    expires_at = moment("When it expires; null: never.", nullable=True)
    revoked_at = moment("When it was revoked.", nullable=True)


class NewTokenResponse(TokenResponse):
    """A token that was created."""

    token = text(
        "The token, only in this response; null in the response to a repeated request.", nullable=True, example="rrt_…"
    )


class ScanRunResponse(ResponseSchema):
    """A scan run."""

    id = number("The scan run; the scanner's own number.", minimum=1, example=42)
    project_id = number("The project that its results belong to.", minimum=1)
    status = text("`running`, or what the scanner's last result said.", example="running")
    created_at = moment("When it was registered.")
    updated_at = moment("When its last result came.")


class AuditActorResponse(ResponseSchema):
    """Who did it."""

    kind = text("`user`, `operator`, `rule`, `worker`, `scanner` and so on.", example="user")
    id = text("The user's number or the rule; null for others.", nullable=True, example="7")


class AuditObjectResponse(ResponseSchema):
    """What it was done to."""

    type = text("`exp`, `tgt`, `user`, `token` and so on: the beginning of its id.", example="token")
    id = text("Its id, as `object` of the list takes it.", example="token:31")


class AuditEntryResponse(ResponseSchema):
    """An entry of the audit log."""

    id = number("The entry; grows with every entry.", minimum=1, example=4711)
    at = moment("When it was done.")
    actor = part(AuditActorResponse, "Who did it.")
    action = text("What was done.", example="revoke_token")
    object = part(AuditObjectResponse, "What it was done to.")
    details = free("`status_before`, `status_after`, `reason` and `digest`, as far as there are any.")


class ComplianceRequestResponse(ResponseSchema):
    """A request of the storefront platform about personal data, without any."""

    id = identifier("cpl", "The request.")
    topic = one_of(Topic, "What is requested.")
    shop_domain = text("The shop.", example="snow.shops.example")
    subject = text("A pseudonym of the person; null for a shop.", nullable=True, attribute="subject_pseudonym")
    status = one_of(ComplianceStatus, "Whether it is done.")
    result = one_of(ComplianceResult, "What came of it.", nullable=True)
    counts = counts("Number of rows by result.")
    has_report = truth("Whether it holds a report for the person.", example=False)
    attempts = number("How often a worker began it.")
    last_error = text("Why the last attempt failed.", nullable=True)
    received_at = moment("When it came.")
    due_at = moment("When it is due by law.")
    overdue = truth("Whether it is not done although it is due.", example=False)
    next_run_at = moment("When a worker tries it next.", nullable=True)
    finished_at = moment("When it was done.", nullable=True)


def dump_compliance_request(request: ComplianceRequest, now: datetime) -> dict[str, Any]:
    """Return the record of a request as it is at `now`."""
    is_overdue = request.status is ComplianceStatus.RECEIVED and request.due_at <= now
    return dump(ComplianceRequestResponse, {**asdict(request), "overdue": is_overdue})


class ProjectResponse(ResponseSchema):
    """A website of the account."""

    id = number("The project.", minimum=1)
    name = text("Its name.", example="Shop")
    account_id = number("The account.", minimum=1, example=2)
    shop_domain = text("The storefront's domain, if it is a storefront.", nullable=True)
    ticket_grouping = one_of(
        TicketGrouping, "How new findings become tickets: one for all findings of a `rule`, or one for each `finding`."
    )
    created_at = moment("When it was created.")


class ConsoleSessionResponse(ResponseSchema):
    """A session at the console."""

    id = identifier("ses", "The session; this id is not a credential.")
    user = text("The email address of the user.", attribute="email", example="ada@shop.example")
    method = one_of([*SignInMethod], "How the user signed in.")
    token_id = number(
        "The token that was used to sign in; null for other methods.",
        minimum=1,
        nullable=True,
        attribute="principal.token_id",
        example=3,
    )
    token_name = text("The name of that token.", nullable=True, example="Ada's console")
    created_at = moment("When the user signed in.")
    seen_at = moment("When the session was last used, to the minute.")
    ended_at = moment("When it was ended.", nullable=True)
    ended_reason = one_of(
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
