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

    used = field.number("The current number.", example=312)
    limit = field.number("The maximum number.", example=10_000)


class AccountUsageResponse(ResponseSchema):
    """What an account stores."""

    findings = field.part(LimitUsageResponse, "The number of findings, and the limit.")
    waiting_exports = field.part(
        LimitUsageResponse, "The number of exports that are prepared, approved or to be retried, and the limit."
    )
    targets = field.part(LimitUsageResponse, "The number of targets, and the limit.")
    uploads_24h = field.part(LimitUsageResponse, "The number of uploads in the last 24 hours, and the limit.")


class AccountResponse(ResponseSchema):
    """An account."""

    id = field.number("The id of the account.", minimum=1, example=2)
    name = field.text("The name of the account.", example="Example Ltd")
    may_use_webhooks = field.truth("Whether the account may use targets: webhooks and trackers.")
    created_at = field.moment("The time at which the account was created.")
    usage = field.part(AccountUsageResponse, "How much the account stores, and its limits.")


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

    id = field.number("The id of the user.", minimum=1, example=7)
    email = address("The user's email address")
    account_id = field.number("The id of the account.", minimum=1, example=2)
    role = field.one_of(
        Role, "The user's role in the account; null: only the roles of grants count.", nullable=True, example=Role.TRIAGER
    )
    state = field.one_of(
        ("active", "disabled", "removed"), "The state of the user; only the tokens of an `active` user are accepted."
    )
    created_at = field.moment("The time at which the user was created.")


class GrantResponse(ResponseSchema):
    """The right of a user to manage a project or one report."""

    id = field.number("The id of the grant.", minimum=1, example=12)
    user_id = field.number("The id of the user.", minimum=1, example=7)
    user = address("The user's email address")
    project_id = field.number("The id of the project", null="if the grant is for a report", minimum=1, example=1)
    report_id = field.number("The id of the report", null="if the grant is for a project", minimum=1)
    role = field.one_of(
        PROJECT_ROLES,
        "The role in the project, for a user without a role in the account; null: the user may only upload.",
        nullable=True,
    )
    created_at = field.moment("The time at which the grant was created.")


class TokenResponse(ResponseSchema):
    """A token without its text."""

    id = field.number("The id of the token.", minimum=1, example=31)
    kind = field.one_of(
        TokenKind,
        "The kind of token: `api` for clients, `platform` for the browser extension, the plugin and the storefront app.",
        example=TokenKind.API,
    )
    name = field.text("The purpose of the token.", example="nightly export")
    user_id = field.number("The id of the user that the token acts for.", minimum=1, example=7)
    user = address("The user's email address")
    abilities = field.several(
        field.one_of(Ability, "An ability of the token."),
        "The abilities of the token; the user's role can limit them further.",
    )
    created_at = field.moment("The time at which the token was created.")
    expires_at = field.moment("The time at which the token expires; null: never.", nullable=True)
    revoked_at = field.moment("The time at which the token was revoked", null="if it was not")


class NewTokenResponse(TokenResponse):
    """A token that was created."""

    token = field.text(
        "The token itself, in this response only", null="in the response to a repeated request", example="rrt_…"
    )


class ScanRunResponse(ResponseSchema):
    """A scan run."""

    id = field.number("The id of the scan run: the scanner's own number.", minimum=1, example=42)
    project_id = field.number("The id of the project that the results belong to.", minimum=1)
    status = field.text("`running`, or the status in the scanner's last result.", example="running")
    created_at = field.moment("The time at which the scan run was registered.")
    updated_at = field.moment("The time of the scanner's last result.")


class AuditActorResponse(ResponseSchema):
    """The actor of an audit entry."""

    kind = field.text("The kind of actor: `user`, `operator`, `rule`, `worker`, `scanner` and so on.", example="user")
    id = field.text("The id of the user or of the rule", null="for other actors", example="7")


class AuditObjectResponse(ResponseSchema):
    """The record that an audit entry is about."""

    type = field.text(
        "The type of the record, which is the beginning of its id: `exp`, `tgt`, `user`, `token` and so on.", example="token"
    )
    id = field.text("The id of the record, in the form of the parameter `object`.", example="token:31")


class AuditEntryResponse(ResponseSchema):
    """An entry of the audit log."""

    id = field.number("The id of the entry; later entries have higher ids.", minimum=1, example=4711)
    at = field.moment("The time of the action.")
    actor = field.part(AuditActorResponse, "The actor.")
    action = field.text("The action.", example="revoke_token")
    object = field.part(AuditObjectResponse, "The record that the entry is about.")
    details = field.free("`status_before`, `status_after`, `reason` and `digest`, if the action has them.")


class ComplianceRequestResponse(ResponseSchema):
    """A request of the storefront platform about personal data, without any."""

    id = field.identifier("cpl", "The id of the request.")
    topic = field.one_of(Topic, "The topic: a request for data, or for an erasure.")
    shop_domain = field.text("The domain of the shop.", example="snow.shops.example")
    subject = field.text("A pseudonym of the person", null="if the request is about a shop", attribute="subject_pseudonym")
    status = field.one_of(ComplianceStatus, "The status: `received`, then `done`.")
    result = field.one_of(ComplianceResult, "The result", null="until the request is done")
    counts = field.counts("The number of rows for each kind of result.")
    has_report = field.truth("Whether the request has a report with the person's data.", example=False)
    attempts = field.number("The number of times that a worker began to process the request.")
    last_error = field.text("Why the last attempt failed", null="if it did not")
    received_at = field.moment("The time at which the request was received.")
    due_at = field.moment("The legal deadline.")
    overdue = field.truth("Whether the request is not done although its deadline has passed.", example=False)
    next_run_at = field.moment("The time at which a worker processes the request next", null="if none is planned")
    finished_at = field.moment("The time at which the request was done", null="before that")


def dump_compliance_request(request: ComplianceRequest, now: datetime) -> dict[str, Any]:
    """Return the record of a request as it is at `now`."""
    is_overdue = request.status is ComplianceStatus.RECEIVED and request.due_at <= now
    return dump(ComplianceRequestResponse, {**asdict(request), "overdue": is_overdue})


class ProjectResponse(ResponseSchema):
    """A website of the account."""

    id = field.number("The id of the project.", minimum=1)
    name = field.text("The name of the project.", example="Shop")
    account_id = field.number("The id of the account.", minimum=1, example=2)
    shop_domain = field.text("The storefront's domain", null="if the project is not a storefront")
    ticket_grouping = field.one_of(
        TicketGrouping,
        "How new findings become tickets. `rule`: one ticket for all findings of a rule; `finding`: "
        "one ticket for each finding.",
    )
    created_at = field.moment("The time at which the project was created.")


class ConsoleSessionResponse(ResponseSchema):
    """A session at the console."""

    id = field.identifier("ses", "The id of the session; it is not a credential.")
    user = field.text("The email address of the user.", attribute="email", example="ada@shop.example")
    method = field.one_of([*SignInMethod], "How the user signed in.")
    token_id = field.number(
        "The id of the token that was used to sign in",
        minimum=1,
        null="for other methods",
        attribute="principal.token_id",
        example=3,
    )
    token_name = field.text("The name of that token", null="for other methods", example="Ada's console")
    created_at = field.moment("The time at which the user signed in.")
    seen_at = field.moment("The time at which the session was last used, to the minute.")
    ended_at = field.moment("The time at which the session was ended", null="if it is open")
    ended_reason = field.one_of(
        [
            SessionEndReason.SIGNED_OUT,
            SessionEndReason.REVOKED,
            SessionEndReason.REPLACED,
            SessionEndReason.ANOTHER_BROWSER,
            SessionEndReason.RESTORED,
        ],
        "Why the session was ended",
        null="if it is open",
        attribute="ended",
    )
