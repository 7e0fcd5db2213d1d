"""Projects, and sessions at the console."""

from marshmallow import fields

from schemas.api.response_fields import ResponseSchema, identifier, moment, next_cursor_text, number, one_of, several, text
from schemas.base.console_session import Ended, SignInMethod
from schemas.intake.grouping import TicketGrouping


class ProjectResponse(ResponseSchema):
    """A website of the account."""

    id = number("The project.", minimum=1)
    name = text("Its name.")
    account_id = number("The account.", minimum=1)
    shop_domain = text("The storefront's domain, if it is a storefront.", nullable=True)
    ticket_grouping = one_of(
        TicketGrouping, "How new findings become tickets: one for all findings of a `rule`, or one for each `finding`."
    )
    created_at = moment("When it was created.")


class ProjectListResponse(ResponseSchema):
    """A page of projects."""

    items = several(fields.Nested(ProjectResponse), "The projects, newest first.")
    next_cursor = next_cursor_text()


class ConsoleSessionResponse(ResponseSchema):
    """A session at the console."""

    id = identifier("ses", "The session; this id is not a credential.")
    user = text("The email address of the user.", attribute="email")
    method = one_of([*SignInMethod], "How the user signed in.")
    token_id = number(
        "The token that was used to sign in; null for other methods.",
        minimum=1,
        nullable=True,
        attribute="principal.token_id",
    )
    token_name = text("The name of that token.", nullable=True)
    created_at = moment("When the user signed in.")
    seen_at = moment("When the session was last used, to the minute.")
    ended_at = moment("When it was ended.", nullable=True)
    ended_reason = one_of(
        [Ended.SIGNED_OUT, Ended.REVOKED, Ended.CROWDED_OUT, Ended.ANOTHER_BROWSER, Ended.RESTORED],
        "Why it was ended.",
        nullable=True,
        attribute="ended",
    )


class ConsoleSessionListResponse(ResponseSchema):
    """A page of sessions."""

    items = several(fields.Nested(ConsoleSessionResponse), "The sessions, newest first.")
    next_cursor = next_cursor_text()
